from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.replication.time_marks import TimeMarks


def test_of_several_wishes_the_earliest_counts() -> None:
    marks = TimeMarks[str]()
    marks.want("t", 30)
    marks.want("t", 10)
    marks.want("t", 20)
    assert marks.next_ms() == 10
    assert marks.take(9) == []
    assert marks.take(10) == ["t"]


def test_what_was_taken_is_asked_for_again_by_who_still_waits() -> None:
    marks = TimeMarks[str]()
    marks.want("t", 10)
    marks.want("t", 5)
    assert marks.take(10) == ["t"]
    assert marks.take(1_000) == []
    marks.want("t", 20)
    assert marks.take(20) == ["t"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=20))
def test_each_is_taken_once_at_the_earliest_time_that_was_asked_for(
    wishes: list[tuple[str, int]],
) -> None:
    marks = TimeMarks[str]()
    for key, due_ms in wishes:
        marks.want(key, due_ms)
    found = [(key, now_ms) for now_ms in range(21) for key in marks.take(now_ms)]
    earliest = {key: min(ms for other, ms in wishes if other == key) for key, _ in wishes}
    assert sorted(found) == sorted(earliest.items())
    assert marks.next_ms() is None
