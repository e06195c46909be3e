"""Sampled: sums, averages, maxima and rates are those of the events in the kept windows.

The reference counts the events themselves, by Kafka's definition of a rate: what the kept windows
hold, per second since the oldest of them began; windows that have not been yet count as empty.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.metrics.sampled import Sampled, SampleWindows, average, largest

WINDOW_MS = 100
EVENTS = st.lists(st.tuples(st.integers(0, 350), st.integers(-5, 50)), max_size=30)


@given(EVENTS, st.integers(0, 500), st.integers(1, 4), st.integers(0, 10_000))
def test_the_kept_windows_hold_the_events_of_their_time(
    events: list[tuple[int, int]], pause_ms: int, samples: int, start_ms: int
) -> None:
    windows = SampleWindows(start_ms, window_ms=WINDOW_MS, samples=samples)
    sampled, now_ms, seen = windows.sampled(), start_ms, []
    for wait_ms, value in events:
        now_ms += wait_ms
        windows.advance(now_ms)
        sampled.record(value)
        seen.append((now_ms, value))
    now_ms += pause_ms
    windows.advance(now_ms)

    present = (now_ms - start_ms) // WINDOW_MS
    oldest_ms = start_ms + max(present - samples + 1, 0) * WINDOW_MS
    kept = [value for at_ms, value in seen if at_ms >= oldest_ms]
    assert sampled.total == sum(value for _, value in seen)
    assert sampled.count == len(seen)
    assert sampled.recent_total == sum(kept)
    assert sampled.recent_count == len(kept)
    if kept:
        assert average([sampled]) == pytest.approx(sum(kept) / len(kept))
        assert largest([sampled]) == max(kept)
    else:
        assert math.isnan(average([sampled]))
        assert math.isnan(largest([sampled]))
    elapsed_ms = now_ms - oldest_ms + max(samples - 1 - present, 0) * WINDOW_MS
    assert windows.rate(sum(kept), now_ms) == pytest.approx(sum(kept) * 1000 / max(elapsed_ms, 1))


def test_a_burst_in_the_first_second_is_no_rate_of_a_minute() -> None:
    windows = SampleWindows(0)
    sampled = windows.sampled()
    sampled.record(310)
    assert windows.rate(sampled.recent_total, 1_000) == 10  # per second, over 31 s


def test_a_series_that_begins_later_has_the_windows_of_the_others() -> None:
    windows = SampleWindows(0, window_ms=10, samples=2)
    windows.advance(15)
    late = windows.sampled()
    late.record(7)
    windows.advance(25)
    assert late.recent_total == 7
    windows.advance(35)
    assert late.recent_total == 0


def test_a_forgotten_series_keeps_its_sums() -> None:
    windows = SampleWindows(0, window_ms=10)
    sampled = windows.sampled()
    sampled.record(1)
    windows.forget(sampled)
    windows.advance(1_000)
    assert (sampled.total, sampled.recent_total) == (1, 1)


def test_several_series_are_measured_as_one_and_absorb_others() -> None:
    one, other = Sampled(), Sampled()
    for value in (1, 2, 6):
        one.record(value)
    other.record(11)
    assert average([one, other]) == 5
    assert largest([one, other]) == 11
    one.absorb(other)
    assert (one.total, one.count, largest([one])) == (20, 4, 11)
