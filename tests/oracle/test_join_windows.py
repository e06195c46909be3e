"""Stream-stream joins with every sign of `before` and `after`, against the definition alone.

The engine keeps records for a span that it derives; these tests do not know that span. They check
the definition: each pair that is near and whose later arrival is in time, an unmatched row exactly
where no partner exists, and mirrored rows when the sides are swapped.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App, JoinWindow

How = Literal["inner", "left", "outer"]
HOWS: tuple[How, ...] = ("inner", "left", "outer")

SIGNS = [(-3, 8), (-3, 3), (0, 8), (0, 0), (3, 8), (8, 3), (8, 0), (8, -3), (3, -3)]
"""Before and after, in ms: all combinations of signs that leave a window."""
END_MS = 10_000
EXAMPLES = 100 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 10


class Sent(NamedTuple):
    """A record of the history; its name is its value."""

    is_left: bool
    key: str
    at: int
    name: str


class Row(NamedTuple):
    left: str | None
    right: str | None
    at: int


histories = st.lists(
    st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 40)), max_size=24
).map(lambda rows: [Sent(*row, f"{number}") for number, row in enumerate(rows)])


def join_rows(history: list[Sent], how: How, window: JoinWindow, *, ends: bool = True) -> list[Row]:
    """Return the engine's rows; with `ends`, a record far in the future follows the history."""
    app = App("windows")
    left, right = (app.topic(name, key=str, value=str, partitions=1) for name in ("left", "right"))
    out = app.topic("out", key=str, value=str, partitions=1)
    join = {"inner": "join", "left": "left_join", "outer": "outer_join"}[how]
    pairs = getattr(app.stream(left), join)(
        app.stream(right), lambda left, right: f"{left} {right}", within=window, name="pairs"
    )
    pairs.to(out)
    with app.test() as t:
        for each in history:
            topic = left if each.is_left else right
            t.input(topic).send(each.name, key=each.key, at=each.at)
        if ends:
            t.input(left).send("end", key="end", at=END_MS)
        rows = t.output(out).records
    found = []
    for row in rows:
        names = [None if name == "None" else name for name in row.value.split()]
        if "end" not in names:
            found.append(Row(names[0], names[1], round(row.timestamp.timestamp() * 1000)))
    return found


def is_near_pair(left: Sent, right: Sent, window: JoinWindow) -> bool:
    is_near = left.at - window.before_ms <= right.at <= left.at + window.after_ms
    return left.key == right.key and is_near


def lateness_ms(history: list[Sent]) -> dict[str, int]:
    """Return how far each record is behind the largest timestamp at its arrival, in ms."""
    found, time_ms = {}, 0
    for each in history:
        time_ms = max(time_ms, each.at)
        found[each.name] = time_ms - each.at
    return found


def is_in_time(each: Sent, late_ms: int, window: JoinWindow) -> bool:
    """Whether stream time has passed neither the record nor its window by more than grace."""
    reach_ms = window.after_ms if each.is_left else window.before_ms
    return late_ms <= max(reach_ms, 0) + window.grace_ms


def near_pairs(history: list[Sent], window: JoinWindow) -> list[tuple[Sent, Sent]]:
    lefts = [each for each in history if each.is_left]
    rights = [each for each in history if not each.is_left]
    return [
        (left, right) for left in lefts for right in rights if is_near_pair(left, right, window)
    ]


@pytest.mark.parametrize(("before_ms", "after_ms"), SIGNS)
@pytest.mark.parametrize("how", HOWS)
def test_each_pair_is_found_once_if_its_later_record_is_in_time(
    how: How, before_ms: int, after_ms: int
) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(histories, st.sampled_from([0, 2, 9]))
    def holds(history: list[Sent], grace_ms: int) -> None:
        window = JoinWindow(before_ms=before_ms, after_ms=after_ms, grace_ms=grace_ms)
        found = Counter(join_rows(history, how, window))
        late = lateness_ms(history)
        near_rows: set[Row] = set()
        for left, right in near_pairs(history, window):
            row = Row(left.name, right.name, max(left.at, right.at))
            near_rows.add(row)
            last = max(left, right, key=lambda each: int(each.name))
            if is_in_time(last, late[last.name], window):
                assert found[row] == 1, (row, history)
        assert {row for row in found if None not in row} <= near_rows
        assert set(found.values()) <= {1}

    holds()


@pytest.mark.parametrize(("before_ms", "after_ms"), SIGNS)
@pytest.mark.parametrize("how", HOWS)
def test_with_enough_grace_a_join_matches_nested_loops(
    how: How, before_ms: int, after_ms: int
) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(histories)
    def holds(history: list[Sent]) -> None:
        window = JoinWindow(before_ms=before_ms, after_ms=after_ms, grace_ms=100)
        pairs = near_pairs(history, window)
        wanted = Counter(
            Row(left.name, right.name, max(left.at, right.at)) for left, right in pairs
        )
        paired = {each.name for pair in pairs for each in pair}
        for each in history:
            if each.name not in paired and each.is_left and how != "inner":
                wanted[Row(each.name, None, each.at)] += 1
            if each.name not in paired and not each.is_left and how == "outer":
                wanted[Row(None, each.name, each.at)] += 1
        assert Counter(join_rows(history, how, window)) == wanted

    holds()


@pytest.mark.parametrize(("before_ms", "after_ms"), SIGNS)
@pytest.mark.parametrize("how", ["inner", "outer"])
def test_swapped_sides_and_spans_give_mirrored_rows(
    how: How, before_ms: int, after_ms: int
) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(histories, st.sampled_from([0, 2, 9]))
    def holds(history: list[Sent], grace_ms: int) -> None:
        window = JoinWindow(before_ms=before_ms, after_ms=after_ms, grace_ms=grace_ms)
        mirror = JoinWindow(before_ms=after_ms, after_ms=before_ms, grace_ms=grace_ms)
        mirrored = join_rows(
            [each._replace(is_left=not each.is_left) for each in history], how, mirror
        )
        swapped = Counter(Row(row.right, row.left, row.at) for row in mirrored)
        assert Counter(join_rows(history, how, window)) == swapped

    holds()


@pytest.mark.parametrize("how", ["left", "outer"])
@pytest.mark.parametrize(("before_ms", "after_ms"), SIGNS)
def test_an_unmatched_record_is_emitted_right_after_window_and_grace(
    how: How, before_ms: int, after_ms: int
) -> None:
    for is_left in (True,) if how == "left" else (True, False):
        for grace_ms in (0, 5):
            window = JoinWindow(before_ms=before_ms, after_ms=after_ms, grace_ms=grace_ms)
            reach_ms = after_ms if is_left else before_ms
            closes_ms = 100 + reach_ms + grace_ms
            for moved_ms in (100, *range(max(closes_ms - 1, 100), closes_ms + 3)):
                history = [Sent(is_left, "a", 100, "one"), Sent(True, "b", moved_ms, "clock")]
                alone = {
                    row.left or row.right for row in join_rows(history, how, window, ends=False)
                }
                assert ("one" in alone) == (moved_ms > closes_ms), (is_left, grace_ms, moved_ms)
