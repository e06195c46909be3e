"""Old values in changes of tables, for every kind of table, across restarts.

Rows are grouped by their own key into lists: with a wrong old value, the grouping would subtract a
value that is not in the list, and fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import (
    App,
    Emit,
    Table,
    Topic,
    Windowed,
    hopping,
    on_error,
    session,
    sliding,
    tumbling,
)

Build = Callable[[App, Topic[str, int]], Table[Any, int]]
KEYS = st.sampled_from("abc")
CHANGES = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 40), st.booleans()),
    max_size=30,
)


def total(a: int, b: int) -> int:
    return a + b


def windowed(emit: Emit) -> Build:
    return lambda app, topic: (
        app.stream(topic)
        .group_by_key()
        .windowed(tumbling("10ms", grace="5ms"))
        .emit(emit)
        .reduce(total, name="sums")
    )


def joined(kind: str) -> Build:
    """Join a table with a view of itself: both sides change with each record."""

    def build(app: App, topic: Topic[str, int]) -> Table[Any, int]:
        left = app.table(topic).filter(lambda _, v: v % 2 == 0)
        right = app.stream(topic).map_values(lambda v: v).to_table(name="kept")
        join = getattr(left, kind)
        table: Table[Any, int] = join(right, lambda a, b: (a or 0) * 100 + (b or 0), name="join")
        return table

    return build


def by_foreign_key(app: App, topic: Topic[str, int]) -> Table[Any, int]:
    """Join a table with some of its own rows by a foreign key."""
    table = app.table(topic)
    even = table.filter(lambda _, v: v % 2 == 0)
    return table.left_join_on(
        even, lambda v: "abc"[v % 3], lambda a, b: a * 100 + (b or 0), name="pointing"
    )


def failing(value: int) -> int:
    if value % 3 == 0:
        raise ValueError(value)
    return value


KINDS: dict[str, Build] = {
    "topic": lambda app, topic: app.table(topic),
    "filtered": lambda app, topic: app.table(topic).filter(lambda _, v: v % 2 == 0),
    "mapped": lambda app, topic: app.table(topic).map_values(lambda v: v % 3),
    "mapped and filtered": lambda app, topic: (
        app.table(topic).map_values(lambda v: v % 4).filter(lambda _, v: v > 1)
    ),
    "failing": lambda app, topic: app.table(topic).map_values(
        failing, on_error=on_error.skip(log=False)
    ),
    "aggregate": lambda app, topic: app.stream(topic).group_by_key().reduce(total, name="sums"),
    "on update": windowed(Emit.UPDATE),
    "on close": windowed(Emit.CLOSE),
    "at commits": windowed(Emit.COMMIT),
    "hopping": lambda app, topic: (
        app.stream(topic)
        .group_by_key()
        .windowed(hopping("12ms", "4ms", grace="5ms"))
        .emit(Emit.UPDATE)
        .reduce(total, name="sums")
    ),
    "sessions": lambda app, topic: (
        app.stream(topic)
        .group_by_key()
        .windowed(session("10ms", grace="5ms"))
        .reduce(total, name="sums")
    ),
    "sliding": lambda app, topic: (
        app.stream(topic)
        .group_by_key()
        .windowed(sliding("10ms", grace="5ms"))
        .reduce(total, name="sums")
    ),
    "cogrouped": lambda app, topic: (
        app.stream(topic).group_by_key().cogroup(total).aggregate(int, name="sums")
    ),
    "of a stream": lambda app, topic: app.stream(topic).to_table(name="kept"),
    "joined": joined("join"),
    "left joined": joined("left_join"),
    "outer joined": joined("outer_join"),
    "windows joined": lambda app, topic: windowed(Emit.UPDATE)(app, topic).outer_join(
        app.stream(topic)
        .group_by_key()
        .windowed(tumbling("10ms", grace="15ms"))
        .count(name="counts"),
        lambda a, b: (a or 0) * 100 + (b or 0),
        name="join",
    ),
    "suppressed": lambda app, topic: app.table(topic).suppress(within="10ms", name="later"),
    "final": lambda app, topic: windowed(Emit.UPDATE)(app, topic).suppress(
        until="closed", name="final"
    ),
    "pointing": by_foreign_key,
    "regrouped": lambda app, topic: (
        app.table(topic)
        .group_by(lambda k, v: (k + str(v % 2), v), name="first")
        .reduce(total, lambda a, b: a - b, name="sums")
    ),
}


def text_of(key: object) -> str:
    return f"{key.key}-{key.start}" if isinstance(key, Windowed) else str(key)


def add(values: list[int], value: int) -> list[int]:
    return [*values, value]


def subtract(values: list[int], value: int) -> list[int]:
    values.remove(value)
    return values


@pytest.mark.parametrize("build", KINDS.values(), ids=KINDS.keys())
@settings(max_examples=25, deadline=None)
@given(changes=CHANGES)
def test_the_old_value_of_a_change_is_the_last_emitted_value(
    build: Build, changes: list[tuple[str, int | None, int, bool]]
) -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=int)
    table = build(app, topic)
    rows = table.group_by(lambda k, v: (text_of(k), v), name="by-key")
    lists = rows.aggregate(list, add, subtract, name="lists")
    seen: dict[str, int | None] = {}
    table.changes().peek(lambda record: seen.update({text_of(record.key): record.value}))
    with app.test() as t:
        for key, value, at, restarts in changes:
            t.input(topic).send(value, key=key, at=at)  # type: ignore[arg-type] # a deletion
            if restarts:
                t.restart()
            found = {key: values for key, values in t.table(lists).items() if values}
            assert found == {key: [v] for key, v in seen.items() if v is not None}


def test_old_values_are_sent_only_if_a_downstream_node_needs_them() -> None:
    app = App("t")
    table = app.table(app.topic("in", key=str, value=int))
    view = table.map_values(lambda v: v + 1)
    (sub,) = app.topology().subtopologies
    assert not any(sub.sends_old_values(node) for node in sub.nodes)
    view.group_by(lambda k, v: (k, v), name="groups").count(name="n")
    first, second = app.topology().subtopologies
    names = [node.name for node in first.nodes if first.sends_old_values(node)]
    assert names == [table.name, view.side.position.node]
    assert not any(second.sends_old_values(node) for node in second.nodes)


def anything(value: str) -> Any:
    return None if value == "gone" else value


def an_object(value: str) -> object:
    return None if value == "gone" else value


def a_literal(value: str) -> Literal[None, "here"]:  # noqa: PYI061 - it may be written so
    return None if value == "gone" else "here"


@pytest.mark.parametrize("fn", [anything, an_object, a_literal])
def test_a_view_never_deletes_a_row_that_it_did_not_show(
    fn: Callable[[str], Any],
) -> None:
    app = App("t")
    rows = app.topic("rows", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    app.table(rows).map_values(fn, name="seen").changes().to(out)
    with app.test() as t:
        for key, value in (("a", "gone"), ("a", "here"), ("a", "gone"), ("a", "gone")):
            t.input(rows).send(value, key=key)
        assert [(r.key, r.value) for r in t.output(out).records] == [("a", "here"), ("a", None)]
