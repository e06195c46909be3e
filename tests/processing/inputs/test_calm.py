"""A topic is calm if it is at rest or live, and never while it is being filled."""

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


def after(looks: list[tuple[int, dict[tuple[str, int], CalmState]]]) -> int:
    calm = CalmDetector(SPAN_MS)
    for now_ms, seen in looks:
        calm.look(now_ms, seen)
    return calm.reached_ms([A, B])


def test_a_topic_at_rest_has_reached_the_newest_time_of_its_partitions() -> None:
    seen = {A: CalmState(3, 3, HOUR_MS), B: EMPTY}
    assert after([(0, seen), (SPAN_MS - 1, seen)]) == UNKNOWN_MS
    assert after([(0, seen), (SPAN_MS, seen)]) == HOUR_MS


def test_a_topic_that_never_had_a_record_has_reached_nothing() -> None:
    assert after([(0, {A: EMPTY, B: EMPTY}), (SPAN_MS, {A: EMPTY, B: EMPTY})]) == UNKNOWN_MS


def test_what_was_there_at_the_beginning_has_to_be_taken() -> None:
    seen = {A: CalmState(4, 3, HOUR_MS), B: EMPTY}
    assert after([(0, seen), (SPAN_MS, seen)]) == UNKNOWN_MS
    taken = {A: CalmState(9, 4, HOUR_MS), B: EMPTY}
    assert after([(0, seen), (SPAN_MS, taken)]) == HOUR_MS


def test_a_live_topic_has_reached_the_time_at_the_beginning_of_the_span() -> None:
    looks = [
        (ms, {A: CalmState(ms, ms, HOUR_MS + ms), B: EMPTY})
        for ms in range(0, 30_000, SAMPLE_INTERVAL_MS)
    ]
    assert after(looks) == HOUR_MS + 29_000 - SPAN_MS


def test_a_partition_that_gets_its_first_record_is_being_filled() -> None:
    first, then = {A: CalmState(1, 1, 5), B: EMPTY}, {A: CalmState(1, 1, 5), B: CalmState(1, 1, 5)}
    assert after([(0, first), (SPAN_MS, then)]) == UNKNOWN_MS


def test_a_partition_that_was_not_looked_at_says_nothing() -> None:
    seen = {A: CalmState(1, 1, 5)}
    assert after([(0, seen), (SPAN_MS, seen)]) == UNKNOWN_MS


@given(
    pace=st.integers(PACE * 2, 10_000),
    partitions=st.integers(2, 5),
    seconds_each=st.integers(1, 60),
)
def test_a_load_of_one_partition_after_the_other_is_never_calm(
    pace: int, partitions: int, seconds_each: int
) -> None:
    """As long as the load goes on, and event time goes faster in it than the clock."""
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


def test_what_is_remembered_is_bounded() -> None:
    calm = CalmDetector(10**9)
    for number in range(SAMPLES_MAX * 2):
        calm.look(number, {})
    assert len(calm._looks) == SAMPLES_MAX
