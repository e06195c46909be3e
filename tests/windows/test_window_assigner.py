"""Assignment of timestamps to windows, against the definition written as a search."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import UsageError
from streamlog.windows.definitions import Hopping, tumbling
from streamlog.windows.window_assigner import Assigner, window_of, windows_of

sizes = st.integers(1, 10**12)
timestamps = st.integers(0, 253_402_300_799_999)


@given(timestamps, sizes, st.data())
def test_every_timestamp_is_in_its_window(
    timestamp_ms: int, size_ms: int, data: st.DataObject
) -> None:
    offset_ms = data.draw(st.integers(0, size_ms - 1))
    start_ms, end_ms = window_of(timestamp_ms, size_ms, offset_ms)
    assert 0 <= start_ms <= timestamp_ms < end_ms
    assert (end_ms - offset_ms) % size_ms == 0
    assert end_ms - start_ms == size_ms or (start_ms == 0 and end_ms == offset_ms)


@given(st.integers(1, 40), st.data())
def test_tumbling_windows_are_contiguous(size_ms: int, data: st.DataObject) -> None:
    offset_ms = data.draw(st.integers(0, size_ms - 1))
    borders = [0, *range(offset_ms or size_ms, 4 * size_ms, size_ms)]
    for start_ms, end_ms in pairwise(borders):
        for timestamp_ms in range(start_ms, end_ms):
            assert window_of(timestamp_ms, size_ms, offset_ms) == (start_ms, end_ms)


@pytest.mark.parametrize(
    ("timestamp_ms", "size_ms", "offset_ms", "window"),
    [
        (0, 5_000, 0, (0, 5_000)),
        (4_999, 5_000, 0, (0, 5_000)),
        (5_000, 5_000, 0, (5_000, 10_000)),
        (21, 12, 0, (12, 24)),
        (2, 10, 3, (0, 3)),
        (3, 10, 3, (3, 13)),
        (1_735_732_800_000, 86_400_000, 21_600_000, (1_735_711_200_000, 1_735_797_600_000)),
    ],
)
def test_windows_by_example(
    timestamp_ms: int, size_ms: int, offset_ms: int, window: tuple[int, int]
) -> None:
    assert window_of(timestamp_ms, size_ms, offset_ms) == window


def test_times_before_1970_have_no_window() -> None:
    with pytest.raises(UsageError, match="-1 ms is before 1970"):
        window_of(-1, 10)
    with pytest.raises(UsageError, match="-1 ms is before 1970"):
        windows_of(-1, 10, 5)


@given(st.integers(0, 300), st.integers(1, 40), st.data())
def test_hopping_windows_are_all_windows_that_hold_the_timestamp(
    timestamp_ms: int, size_ms: int, data: st.DataObject
) -> None:
    step_ms = data.draw(st.integers(1, size_ms))
    starts = range(0, timestamp_ms + 1, step_ms)
    wanted = [(start, start + size_ms) for start in starts if timestamp_ms < start + size_ms]
    assert windows_of(timestamp_ms, size_ms, step_ms) == wanted


@given(timestamps, sizes)
def test_hopping_by_the_whole_size_is_tumbling(timestamp_ms: int, size_ms: int) -> None:
    assert windows_of(timestamp_ms, size_ms, size_ms) == [window_of(timestamp_ms, size_ms)]


@given(st.integers(0, 200), st.integers(1, 40), st.data())
def test_the_first_open_window_ends_after_the_closed_time(
    closed_ms: int, size_ms: int, data: st.DataObject
) -> None:
    step_ms = data.draw(st.integers(1, size_ms))
    hops = Assigner(Hopping(size_ms=size_ms, retention_ms=size_ms, step_ms=step_ms))
    starts = range(0, closed_ms + size_ms + 1, step_ms)
    assert hops.first_open(closed_ms) == min(s for s in starts if s + size_ms > closed_ms)
    assert hops.end_of(step_ms * 3) == step_ms * 3 + size_ms


def test_a_window_cut_off_at_the_epoch_keeps_its_end() -> None:
    days = Assigner(tumbling("1d", offset="6h"))
    assert days.end_of(0) == 6 * 3_600_000
    assert days.of(6 * 3_600_000) == [(6 * 3_600_000, 30 * 3_600_000)]
