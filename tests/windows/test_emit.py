"""Stream time over several sources: when windows close, and that time never decreases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import ConfigError, CorruptData
from streamlog.windows.emit import (
    UNKNOWN_MS,
    Cadence,
    Emit,
    Source,
    StreamTime,
    closed_until,
    is_late,
)

A: Source = ("sales", 0)
B: Source = ("sales", 1)
C: Source = ("returns", 0)


def test_emission_kinds_have_names_and_properties() -> None:
    kinds = [
        Emit.UPDATE,
        Emit.CLOSE,
        Emit.COMMIT,
        Emit.early("10s"),
        Emit.early("1s", clock="wall"),
    ]
    names = [
        "UPDATE",
        "CLOSE",
        "COMMIT",
        "early every 10s (event)",
        "early every 1s (wall)",
    ]
    assert [kind.name for kind in kinds] == names
    assert [kind.is_early for kind in kinds] == [False, False, False, True, True]
    assert [kind.is_final for kind in kinds] == [False, True, False, True, True]
    assert Emit.early("10s") == Emit.early("10000ms")


@pytest.mark.parametrize(
    ("every", "clock", "message"),
    [
        ("0s", "event", "longer than 0 ms"),
        (5, "event", "has no unit"),
        ("1s", "moon", "'event' or 'wall', not 'moon'"),
    ],
)
def test_an_invalid_early_interval_is_refused(every: Any, clock: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Emit.early(every, clock=clock)


@given(st.lists(st.integers(-1, 100)), st.integers(1, 30))
def test_intervals_of_stream_time_are_aligned_to_the_epoch(moves: list[int], every: int) -> None:
    cadence, now_ms, interval = Cadence(Emit.early(f"{every}ms")), -1, -1
    for move in moves:
        now_ms = max(now_ms, move)
        is_due = interval >= 0 and now_ms // every > interval
        interval = max(interval, now_ms // every)
        assert cadence.is_due(now_ms) is is_due


def test_a_wall_clock_interval_starts_at_the_last_emission() -> None:
    cadence = Cadence(Emit.early("10s", clock="wall"))
    times = (3_000, 12_999, 13_000, 22_999, 29_000, 38_999, 39_000)
    assert [cadence.is_due(at) for at in times] == [False, False, True, False, True, False, True]


@pytest.mark.parametrize(
    ("end_ms", "time_ms", "grace_ms", "late"),
    [
        (10, 9, 0, False),
        (10, 10, 0, True),
        (10, 14, 5, False),
        (10, 15, 5, True),
        (10, -1, 0, False),
    ],
)
def test_a_window_closes_when_time_reaches_its_end_and_grace(
    end_ms: int, time_ms: int, grace_ms: int, late: bool
) -> None:
    assert is_late(end_ms, time_ms, grace_ms) is late
    assert (end_ms <= closed_until(time_ms, grace_ms)) is late


def test_stream_time_of_one_source_is_its_largest_timestamp() -> None:
    time = StreamTime([A])
    assert (time.now_ms, time.time_of(A)) == (UNKNOWN_MS, UNKNOWN_MS)
    for timestamp_ms, expected_ms in [(5, 5), (3, 5), (9, 9)]:
        time.advance(A, timestamp_ms)
        assert (time.now_ms, time.time_of(A)) == (expected_ms, expected_ms)


def test_the_slowest_source_holds_windows_open() -> None:
    time = StreamTime([A, B])
    time.advance(A, 100)
    assert time.now_ms == UNKNOWN_MS
    time.advance(B, 10)
    assert time.now_ms == 10
    assert not is_late(60, time.time_of(B), 0)
    assert is_late(60, time.time_of(A), 0)


def test_an_idle_source_does_not_hold_time_back() -> None:
    time = StreamTime([A, B])
    time.advance(A, 100)
    time.set_idle(B)
    assert (time.now_ms, time.is_idle(B)) == (100, True)
    time.advance(B, 7)
    assert (time.now_ms, time.is_idle(B)) == (100, False)
    assert time.time_of(B) == 100, "its windows up to 100 have been emitted without it"
    time.advance(A, 200)
    assert time.now_ms == 100, "it is waited for again"


def test_if_all_sources_are_idle_the_largest_time_counts() -> None:
    time = StreamTime([A, B, C])
    time.advance(A, 5)
    time.advance(B, 50)
    for source in (A, B):
        time.set_idle(source)
    assert time.now_ms == UNKNOWN_MS
    time.set_idle(C)
    assert time.now_ms == 50


def test_an_unknown_source_raises_a_key_error() -> None:
    time = StreamTime([A])
    with pytest.raises(KeyError):
        time.advance(B, 1)
    with pytest.raises(KeyError):
        time.set_idle(B)


events = st.lists(
    st.tuples(st.sampled_from([A, B, C]), st.none() | st.integers(0, 50)), max_size=40
)


@given(events)
def test_stream_time_is_the_minimum_of_live_sources_and_never_falls(
    steps: list[tuple[Source, int | None]],
) -> None:
    time, seen, idle, before_ms = StreamTime([A, B, C]), dict.fromkeys([A, B, C], -1), set(), -1
    for source, timestamp_ms in steps:
        if timestamp_ms is None:
            time.set_idle(source)
            idle.add(source)
        else:
            time.advance(source, timestamp_ms)
            seen[source] = max(seen[source], timestamp_ms)
            idle.discard(source)
        live = [seen[source_] for source_ in seen if source_ not in idle]
        expected_ms = max(before_ms, min(live) if live else max(seen.values()))
        assert time.now_ms == expected_ms
        assert all(time.time_of(source_) == max(seen[source_], expected_ms) for source_ in seen)
        before_ms = expected_ms


@given(events, events)
def test_restored_stream_time_equals_uninterrupted_stream_time(
    before: list[tuple[Source, int | None]], after: list[tuple[Source, int | None]]
) -> None:
    def run(time: StreamTime, steps: list[tuple[Source, int | None]]) -> None:
        for source, timestamp_ms in steps:
            if timestamp_ms is None:
                time.set_idle(source)
            else:
                time.advance(source, timestamp_ms)

    uninterrupted = StreamTime([A, B, C])
    run(uninterrupted, before)
    restarted = StreamTime([A, B, C])
    restarted.load(msgspec.json.decode(msgspec.json.encode(uninterrupted.to_data())))
    run(uninterrupted, after)
    run(restarted, after)
    assert restarted.to_data() == uninterrupted.to_data()


def test_a_new_partition_holds_time_back_without_lowering_it() -> None:
    old = StreamTime([A, C])
    old.advance(A, 30)
    old.advance(C, 40)
    new = StreamTime([A, B])
    new.load(old.to_data())
    assert new.sources == (A, B)
    assert new.now_ms == 30
    new.advance(A, 90)
    assert new.now_ms == 30, "B has not been heard of"


@pytest.mark.parametrize(
    "data",
    [{}, {"now_ms": 1}, {"now_ms": "1", "sources": []}, {"now_ms": 1, "sources": [["a", 0]]}],
)
def test_damaged_state_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(CorruptData, match="stream time"):
        StreamTime([A]).load(data)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.booleans()), max_size=8),
    st.lists(st.integers(0, 60), min_size=1, max_size=5),
)
def test_an_outlook_predicts_stream_time(
    before: list[tuple[int, int, bool]], times: list[int]
) -> None:
    stream = StreamTime([("topic", number) for number in range(3)])
    for number, time_ms, idle in before:
        stream.advance(("topic", number), time_ms)
        if idle:
            stream.set_idle(("topic", number))
    source = ("topic", 1)
    stream.advance(source, times[0])
    own_ms, now_ms, others_ms = stream.outlook(source)
    for time_ms in sorted(times):
        stream.advance(source, time_ms)
        own_ms = max(own_ms, time_ms)
        assert stream.time_of(source) == max(own_ms, now_ms)
        assert stream.now_ms == max(now_ms, min(own_ms, others_ms))
