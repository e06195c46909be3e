from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.time_marks import DueTimes


def test_the_earliest_request_counts() -> None:
    due = DueTimes[str]()
    due.want("t", 30)
    due.want("t", 10)
    due.want("t", 20)
    assert due.next_ms() == 10
    assert due.take(9) == []
    assert due.take(10) == ["t"]


def test_a_reader_that_still_waits_requests_again() -> None:
    due = DueTimes[str]()
    due.want("t", 10)
    due.want("t", 5)
    assert due.take(10) == ["t"]
    assert due.take(1_000) == []
    due.want("t", 20)
    assert due.take(20) == ["t"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=20))
def test_each_partition_is_taken_once_at_its_earliest_request(
    requests: list[tuple[str, int]],
) -> None:
    due = DueTimes[str]()
    for key, due_ms in requests:
        due.want(key, due_ms)
    found = [(key, now_ms) for now_ms in range(21) for key in due.take(now_ms)]
    earliest = {key: min(ms for other, ms in requests if other == key) for key, _ in requests}
    assert sorted(found) == sorted(earliest.items())
    assert due.next_ms() is None
