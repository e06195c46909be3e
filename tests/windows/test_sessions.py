"""Sessions: merging, against connected components and against their limits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import session
from streamlog.errors import ConfigError
from streamlog.windows.definitions import Sessions, SessionSpan, merge_spans

times = st.lists(st.integers(0, 120), min_size=1, max_size=40)


def sessions_of(windows: Sessions, timestamps: list[int]) -> list[SessionSpan]:
    """Return the sessions of these records; all are open."""
    spans: list[SessionSpan] = []
    for timestamp_ms in timestamps:
        merged_indexes, span = merge_spans(windows, spans, timestamp_ms)
        spans = sorted([*(s for at, s in enumerate(spans) if at not in merged_indexes), span])
    return spans


@given(times, st.integers(1, 30))
def test_sessions_without_a_limit_are_runs_within_the_gap(
    timestamps: list[int], gap_ms: int
) -> None:
    ordered = sorted(timestamps)
    begins = [ordered[0], *(b for a, b in pairwise(ordered) if b - a > gap_ms)]
    ends = [*(a for a, b in pairwise(ordered) if b - a > gap_ms), ordered[-1]]
    assert sessions_of(session(f"{gap_ms}ms"), timestamps) == list(zip(begins, ends, strict=True))


@given(times, st.integers(1, 30), st.integers(1, 60))
def test_limited_sessions_are_disjoint_and_hold_all_records(
    timestamps: list[int], gap_ms: int, limit_ms: int
) -> None:
    spans = sessions_of(session(f"{gap_ms}ms", max_length=f"{limit_ms}ms"), timestamps)
    assert all(0 <= end_ms - start_ms <= limit_ms for start_ms, end_ms in spans)
    assert all(first[1] < second[0] for first, second in pairwise(spans))
    for timestamp_ms in timestamps:
        assert any(start_ms <= timestamp_ms <= end_ms for start_ms, end_ms in spans)


def test_records_in_order_fill_a_session_up_to_its_limit() -> None:
    windows = session("10ms", max_length="30ms")
    assert sessions_of(windows, [0, 9, 18, 27, 30, 31, 40]) == [(0, 30), (31, 40)]


@pytest.mark.parametrize(
    ("spans", "timestamp_ms", "expected"),
    [
        ([], 5, ([], (5, 5))),
        ([(0, 10)], 20, ([0], (0, 20))),
        ([(0, 10)], 21, ([], (21, 21))),
        ([(0, 10), (20, 25)], 15, ([0, 1], (0, 25))),
        # The session around the record keeps it; with its neighbour, it would be too long.
        ([(0, 25), (30, 40)], 30, ([1], (30, 40))),
        # The earlier session takes it if a merge of both would be too long.
        ([(0, 20), (28, 40)], 25, ([0], (0, 25))),
    ],
)
def test_sessions_merge_by_example(
    spans: list[SessionSpan], timestamp_ms: int, expected: tuple[list[int], SessionSpan]
) -> None:
    assert merge_spans(session("10ms", max_length="30ms"), spans, timestamp_ms) == expected


def test_an_invalid_session_definition_is_refused() -> None:
    windows = session("30m", grace="1m", max_length="8h")
    assert (windows.gap_ms, windows.grace_ms) == (1_800_000, 60_000)
    assert windows.max_length_ms == 28_800_000
    with pytest.raises(ConfigError, match="longer than 0 ms"):
        session("0s")
    with pytest.raises(ConfigError, match="max_length of a session must be longer"):
        session("1s", max_length="0s")
