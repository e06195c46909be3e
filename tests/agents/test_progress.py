"""Progress of records that are handled out of order, and restarts from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.agents.offsets import AgentProgress, merge_ranges
from streamlog.records.batch import LogRecord

offsets = st.lists(st.integers(0, 60), unique=True, min_size=1).map(sorted)


def records(of: list[int]) -> list[LogRecord]:
    return [LogRecord(offset, 0, None, None) for offset in of]


def is_covered(progress: AgentProgress, offset: int) -> bool:
    ranges = progress.ranges
    return offset < progress.position or any(start <= offset < end for start, end in ranges)


@given(offsets, st.data())
def test_progress_is_exact_for_any_order_of_completion(of: list[int], data: st.DataObject) -> None:
    progress = AgentProgress(0)
    arrived = progress.fresh(records(of))
    assert list(arrived) == records(of)
    done = data.draw(st.permutations(of))
    for count, offset in enumerate(done):
        assert all(is_covered(progress, each) == (each in done[:count]) for each in of)
        progress.done(records([offset]))
    assert progress.position == of[-1] + 1
    assert progress.ranges == []


@given(offsets, st.data())
def test_a_restart_repeats_only_unfinished_records(of: list[int], data: st.DataObject) -> None:
    progress = AgentProgress(0)
    done: set[int] = set()
    for _ in range(3):
        arrived = [each.offset for each in progress.fresh(records(of))]
        assert arrived == [offset for offset in of if offset not in done]
        for offset in data.draw(st.lists(st.sampled_from(arrived), unique=True)) if arrived else ():
            progress.done(records([offset]))
            done.add(offset)
        progress = AgentProgress(progress.position, progress.ranges)


def test_a_repeated_record_is_taken_once() -> None:
    progress = AgentProgress(5)
    assert [each.offset for each in progress.fresh(records([3, 4, 5, 6]))] == [5, 6]
    assert list(progress.fresh(records([5, 6]))) == []
    assert progress.position == 5
    progress.done(records([5, 6]))
    assert progress.position == progress.received == 7


def test_adjacent_ranges_are_merged() -> None:
    assert merge_ranges([(7, 9), (1, 3), (3, 4), (8, 12), (5, 5)]) == [(1, 4), (7, 12)]
