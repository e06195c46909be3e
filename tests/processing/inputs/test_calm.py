"""A topic is calm if it is at rest or live, and never while it is being loaded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.processing.inputs.end_of_input import (
    JITTER_MS,
    PACE,
    SAMPLE_INTERVAL_MS,
    SAMPLES_MAX,
    CalmDetector,
    CalmState,
)
from streamlog.windows.emit import UNKNOWN_MS

SPAN_MS = 5_000
A, B = ("sales", 0), ("sales", 1)
EMPTY = CalmState(0, 0, UNKNOWN_MS)
HOUR_MS = 3_600_000


def reached_after(looks: list[tuple[int, dict[tuple[str, int], CalmState]]]) -> int:
    calm = CalmDetector(SPAN_MS)
    for now_ms, seen in looks:
        calm.look(now_ms, seen)
    return calm.reached_ms([A, B])


def test_a_topic_at_rest_has_reached_the_newest_time_of_its_partitions() -> None:
    seen = {A: CalmState(3, 3, HOUR_MS), B: EMPTY}
    assert reached_after([(0, seen), (SPAN_MS - 1, seen)]) == UNKNOWN_MS
    assert reached_after([(0, seen), (SPAN_MS, seen)]) == HOUR_MS


def test_a_topic_that_never_had_a_record_has_reached_nothing() -> None:
    assert reached_after([(0, {A: EMPTY, B: EMPTY}), (SPAN_MS, {A: EMPTY, B: EMPTY})]) == UNKNOWN_MS


def test_a_topic_is_not_calm_before_its_backlog_is_taken() -> None:
    seen = {A: CalmState(4, 3, HOUR_MS), B: EMPTY}
    assert reached_after([(0, seen), (SPAN_MS, seen)]) == UNKNOWN_MS
    taken = {A: CalmState(9, 4, HOUR_MS), B: EMPTY}
    assert reached_after([(0, seen), (SPAN_MS, taken)]) == HOUR_MS


def test_a_live_topic_has_reached_the_time_at_the_start_of_the_span() -> None:
    looks = [
        (ms, {A: CalmState(ms, ms, HOUR_MS + ms), B: EMPTY})
        for ms in range(0, 30_000, SAMPLE_INTERVAL_MS)
    ]
    assert reached_after(looks) == HOUR_MS + 29_000 - SPAN_MS


def test_a_topic_is_not_calm_if_a_partition_gets_its_first_record() -> None:
    first, then = {A: CalmState(1, 1, 5), B: EMPTY}, {A: CalmState(1, 1, 5), B: CalmState(1, 1, 5)}
    assert reached_after([(0, first), (SPAN_MS, then)]) == UNKNOWN_MS


def test_a_topic_with_an_unsampled_partition_is_not_calm() -> None:
    seen = {A: CalmState(1, 1, 5)}
    assert reached_after([(0, seen), (SPAN_MS, seen)]) == UNKNOWN_MS


@given(
    pace=st.integers(PACE * 2, 10_000),
    partitions=st.integers(2, 5),
    seconds_each=st.integers(1, 60),
)
def test_loading_the_partitions_one_by_one_is_never_calm(
    pace: int, partitions: int, seconds_each: int
) -> None:
    """Event time in the load advances faster than the clock."""
    calm = CalmDetector(SPAN_MS)
    parts = [("sales", number) for number in range(partitions)]
    for second in range(partitions * seconds_each):
        seen: dict[tuple[str, int], CalmState] = {}
        for number, part in enumerate(parts):
            loaded_s = min(max(second + 1 - number * seconds_each, 0), seconds_each)
            time_ms = loaded_s * 1_000 * pace if loaded_s else UNKNOWN_MS
            seen[part] = CalmState(loaded_s, loaded_s, time_ms)
        calm.look(second * 1_000, seen)
        assert calm.reached_ms(parts) == UNKNOWN_MS or pace * SPAN_MS <= PACE * SPAN_MS + JITTER_MS


def test_the_number_of_remembered_samples_is_bounded() -> None:
    calm = CalmDetector(10**9)
    for number in range(SAMPLES_MAX * 2):
        calm.look(number, {})
    assert len(calm._looks) == SAMPLES_MAX
