"""Tables grouped by another key: each row counts in its current group."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamlog import App, Emit, Topic, on_error, session
from streamlog.dsl.table import group_table
from streamlog.durations import when_ms
from streamlog.errors import ProcessingError, TopologyError
from streamlog.replace import replace


def rows(records: list[Any]) -> list[tuple[str, Any, int]]:
    return [(each.key, each.value, when_ms(each.timestamp)) for each in records]


def users(app: App, *, partitions: int = 1) -> Topic[str, str]:
    return app.topic("users", key=str, value=str, partitions=partitions)


def test_a_changed_row_moves_to_its_new_group() -> None:
    app = App("t")
    topic, out = users(app), app.topic("out", key=str, value=int)
    table = app.table(topic).group_by(lambda user, region: (region, user), name="by-region")
    count = table.count(name="count")
    count.changes().to(out)
    with app.test() as t:
        for at, (user, region) in enumerate([("ann", "E"), ("bob", "E"), ("ann", "W")]):
            t.input(topic).send(region, key=user, at=at)
        t.input(topic).send(None, key="bob", at=1)  # type: ignore[arg-type] # a deletion
        t.input(topic).send(None, key="carl", at=9)  # type: ignore[arg-type] # was never there
        found = rows(t.output(out).records)
        assert found == [("E", 1, 0), ("E", 2, 1), ("E", 1, 2), ("W", 1, 2), ("E", 0, 2)]
        assert t.table(count) == {"E": 0, "W": 1}


def test_a_group_is_deleted_when_the_subtractor_returns_none() -> None:
    app = App("t")
    topic, out = users(app), app.topic("out", key=str, value=str)

    def joined(names: str, name: str) -> str:
        return ",".join(sorted([*names.split(","), name]))

    def without(names: str, name: str) -> str:
        left = names.split(",")
        left.remove(name)
        return ",".join(left) or None  # type: ignore[return-value] # None deletes the group

    grouped = app.table(topic).group_by(lambda user, region: (region, user), name="by-region")
    names = grouped.reduce(joined, without, name="names")
    names.changes().to(out)
    with app.test() as t:
        t.input(topic).send("E", key="bob")
        t.input(topic).send("E", key="ann")
        t.restart()
        t.input(topic).send("W", key="bob")
        t.input(topic).send("W", key="ann")
        assert [(r.key, r.value) for r in t.output(out).records] == [
            ("E", "bob"), ("E", "ann,bob"), ("E", "ann"), ("W", "bob"), ("E", None),
            ("W", "ann,bob"),
        ]  # fmt: skip
        assert t.table(names) == {"W": "ann,bob"}
        t.restart()
        assert t.table(names) == {"W": "ann,bob"}


def test_rows_without_a_group_or_a_value_are_in_no_group() -> None:
    app = App("t")
    topic = users(app)

    def group(user: str, region: str) -> tuple[str | None, str | None] | None:
        return {"none": None, "no key": (None, user), "no value": ("E", None)}.get(
            region, (region, user)
        )

    count = app.table(topic).group_by(group, name="by-region").count(name="count")
    with app.test() as t:
        for region in ("none", "E", "no key", "E", "no value", "E"):
            t.input(topic).send(region, key="ann")
            assert t.table(count).get("E", 0) == (1 if region == "E" else 0)  # type: ignore[call-overload]


def test_a_row_on_which_the_grouping_fails_is_in_no_group() -> None:
    app = App("t")
    topic = users(app)

    def group(user: str, region: str) -> tuple[str, str]:
        if region == "bad":
            raise ValueError(user)
        return region, user

    table = app.table(topic).group_by(group, name="by-region", on_error=on_error.skip(log=False))
    count = table.count(name="count")
    with app.test() as t:
        for region in ("E", "bad", "bad", "W"):
            t.input(topic).send(region, key="ann")
        assert t.table(count) == {"E": 0, "W": 1}
        assert t.drops["by-region-groups", "error"] == 2


def test_a_grouping_that_returns_no_pair_is_reported() -> None:
    app = App("t")
    topic = users(app)
    app.table(topic).group_by(lambda user, _: user, name="g").count(name="n")  # type: ignore[arg-type, return-value]
    with pytest.raises(ProcessingError, match="must return \\(group, value\\)"), app.test() as t:
        t.input(topic).send("E", key="ann")


def test_groups_over_partitions_equal_a_count_of_the_last_values() -> None:
    rng = random.Random(7)
    app = App("t")
    topic = users(app, partitions=3)
    grouped = app.table(topic).group_by(lambda _, region: (region, 1), name="by-region")
    sums = grouped.reduce(lambda a, b: a + b, lambda a, b: a - b, name="sums")
    last: dict[str, str] = {}
    with app.test() as t:
        for at in range(300):
            user, region = rng.choice("abcdefgh"), rng.choice("EWNS")
            last[user] = region
            t.input(topic).send(region, key=user, at=at + rng.randint(-5, 5) + 5)
            if at % 60 == 0:
                t.restart()
        found = {region: number for region, number in t.table(sums).items() if number}
    assert found == {region: [*last.values()].count(region) for region in {*last.values()}}


def test_grouping_a_table_without_kept_rows_is_refused() -> None:
    app = App("t")
    table = app.table(users(app))
    unkept = replace(table.side, position=table.changes().map_values(str)._position)
    with pytest.raises(TopologyError, match="can't be grouped by another key"):
        group_table(unkept, lambda k, v: (v, k), "g", None)


def test_windows_without_old_values_in_their_changes_are_refused() -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=int)
    windows = app.stream(topic).group_by_key().windowed(session("1m")).emit(Emit.early("5s"))
    with pytest.raises(TopologyError, match=r"use Emit\.UPDATE or Emit\.CLOSE"):
        windows.count(name="n").group_by(lambda k, n: (k.key, n), name="g")
