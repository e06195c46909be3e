"""Deadlines, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.coordinator.group.group_coordinator import Deadlines

NOTES = st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 20))
STEPS = st.lists(NOTES | st.integers(0, 20), max_size=40)


@given(STEPS)
def test_each_group_is_due_once_at_its_earliest_deadline(
    steps: list[tuple[str, int | None] | int],
) -> None:
    deadlines = Deadlines()
    expected: dict[str, int] = {}
    for step in steps:
        match step:
            case (name, None):
                deadlines.note(name, None)
            case (name, int(deadline_ms)):
                deadlines.note(name, deadline_ms)
                expected[name] = min(expected.get(name, deadline_ms), deadline_ms)
            case int(now_ms):
                due = {name: each for name, each in expected.items() if each <= now_ms}
                taken = []
                while (name := deadlines.take(now_ms)) is not None:
                    taken.append(name)
                assert taken == sorted(due, key=lambda name: (due[name], name))
                expected = {name: each for name, each in expected.items() if name not in due}
        next_ms = deadlines.next_ms()
        if expected:
            assert next_ms is not None
            assert next_ms <= min(expected.values())


def test_a_later_deadline_of_a_noted_group_is_ignored() -> None:
    deadlines = Deadlines()
    deadlines.note("a", 5)
    deadlines.note("a", 9)
    assert deadlines.next_ms() == 5
    assert deadlines.take(4) is None
    assert deadlines.take(5) == "a"
    assert deadlines.take(99) is None
    assert deadlines.next_ms() is None
