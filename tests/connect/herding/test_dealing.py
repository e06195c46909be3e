"""Dealings: even, sticky, complete, and with the fewest moves."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.herding.dealing import PARTS_MAX, deal
from streamlog.errors import ConfigError

parts = st.lists(st.integers(0, 30), unique=True, max_size=20)
dealings = st.lists(st.lists(st.integers(0, 30), max_size=8), max_size=8)


@given(parts, dealings, st.integers(1, 10))
def test_every_part_has_one_task_and_tasks_differ_by_one_part(
    there: list[int], before: list[list[int]], tasks_max: int
) -> None:
    dealt = deal(there, before, tasks_max=tasks_max)
    assert sorted(part for task in dealt for part in task) == sorted(there)
    assert len(dealt) == min(tasks_max, len(there))
    sizes = {len(task) for task in dealt}
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)


@given(parts, dealings, st.integers(1, 10))
def test_a_dealing_dealt_again_is_the_same(
    there: list[int], before: list[list[int]], tasks_max: int
) -> None:
    dealt = deal(there, before, tasks_max=tasks_max)
    assert deal(there, dealt, tasks_max=tasks_max) == dealt


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.data())
def test_no_even_dealing_moves_fewer_parts(
    count: int, tasks: int, tasks_max: int, data: st.DataObject
) -> None:
    owners = data.draw(st.lists(st.integers(0, tasks - 1), min_size=count, max_size=count))
    before = [[part for part in range(count) if owners[part] == task] for task in range(tasks)]
    dealt = deal(range(count), before, tasks_max=tasks_max)
    number = len(dealt)
    stay = sum(part in before[task] for task in range(min(number, tasks)) for part in dealt[task])

    # The definition: the best of all even dealings, tried one by one.
    def stays(tried: tuple[int, ...]) -> int:
        sizes = [tried.count(task) for task in range(number)]
        is_even = max(sizes) - min(sizes) <= 1
        return sum(owners[part] == tried[part] for part in range(count)) if is_even else -1

    assert stay == max(map(stays, product(range(number), repeat=count)))


def test_a_part_that_two_tasks_had_stays_with_the_first() -> None:
    assert deal("ab", ["a", "ab"], tasks_max=2) == (("a",), ("b",))


def test_nothing_to_read_needs_no_task() -> None:
    assert deal([], [["a"]], tasks_max=3) == ()


def test_limits_are_errors() -> None:
    (task,) = deal(range(PARTS_MAX), [], tasks_max=1)
    assert len(task) == PARTS_MAX
    with pytest.raises(ConfigError, match="100000"):
        deal(range(PARTS_MAX + 1), [], tasks_max=1)
    with pytest.raises(ConfigError, match=r"tasks\.max=0"):
        deal("a", [], tasks_max=0)
