"""Joins of tables against a model, across restarts, and fetches of their rows."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App, Emit, Table, Windowed, on_error, tumbling
from streamlog.durations import moment, when_ms
from streamlog.errors import TopologyError, UsageError

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from("ab"),
        st.one_of(st.none(), st.sampled_from(["x", "y", "z"])),
        st.integers(0, 20),
        st.booleans(),
    ),
    max_size=40,
)
Rows = list[tuple[str, str | None, int]]


def pair(left: str | None, right: str | None) -> str:
    return f"{left}-{right}"


def modelled(kind: str, changes: list[tuple[str, str, str | None, int, bool]]) -> Rows:
    """Compute all results by definition: the row before and the row after each change."""
    rows_of: dict[str, dict[str, tuple[str, int]]] = {"left": {}, "right": {}}

    def row(key: str) -> str | None:
        left, right = (rows_of[side].get(key, (None,))[0] for side in ("left", "right"))
        wanted = {"inner": left and right, "left": left, "outer": left or right}[kind]
        return pair(left, right) if wanted else None

    rows: Rows = []
    for side, key, value, at, _ in changes:
        if value is None and key not in rows_of[side]:
            continue  # The table does not change.
        before = row(key)
        if value is None:
            rows_of[side].pop(key, None)
        else:
            rows_of[side][key] = value, at
        other = rows_of["right" if side == "left" else "left"].get(key, ("", at))
        if before is not None or row(key) is not None:
            rows.append((key, row(key), max(at, other[1])))
    return rows


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
@settings(max_examples=60, deadline=None)
@given(changes=CHANGES)
def test_every_change_emits_the_joined_row(
    kind: str, changes: list[tuple[str, str, str | None, int, bool]]
) -> None:
    app = App("t")
    topics = {side: app.topic(side, key=str, value=str) for side in ("left", "right")}
    out = app.topic("out", key=str, value=str)
    left, right = (app.table(topic) for topic in topics.values())
    join = {"inner": left.join, "left": left.left_join, "outer": left.outer_join}[kind]
    table: Table[str, str] = join(right, pair, name="join")  # type: ignore[operator] # one of three
    table.changes().to(out)
    with app.test() as t:
        for side, key, value, at, restarts in changes:
            t.input(topics[side]).send(value, key=key, at=at)  # type: ignore[arg-type] # a deletion
            if restarts:
                t.restart()
        found = [(r.key, r.value, when_ms(r.timestamp)) for r in t.output(out).records]
        wanted = modelled(kind, changes)
        assert found == wanted
        last = {key: value for key, value, _ in wanted if value is not None}
        gone = {key for key in last if [v for k, v, _ in wanted if k == key][-1] is None}
        assert t.table(table) == {key: row for key, row in last.items() if key not in gone}


def joined_tables(app: App) -> tuple[Any, Any, Table[str, str]]:
    users = app.topic("users", key=str, value=str, partitions=2)
    towns = app.topic("towns", key=str, value=str, partitions=2)
    return users, towns, app.table(users).left_join(app.table(towns), pair, name="join")


def test_joined_rows_can_be_fetched_and_scanned() -> None:
    app = App("t")
    users, towns, table = joined_tables(app)
    shouting = table.map_values(str.upper).filter(lambda key, _: key != "c")

    async def fetched_rows() -> list[Any]:
        rows = [row async for row in shouting.scan()]
        return [await table.fetch("a"), await table.fetch("b"), await shouting.fetch("c"), rows]

    with app.test() as t:
        for key in "ac":
            t.input(users).send("u", key=key)
        for key in "ab":
            t.input(towns).send("t", key=key)
        assert asyncio.run(fetched_rows()) == ["u-t", None, None, [("a", "U-T")]]


def test_a_stream_can_be_joined_with_joined_tables() -> None:
    app = App("t")
    users, towns, table = joined_tables(app)
    words = app.topic("words", key=str, value=str, partitions=2)
    out = app.topic("out", key=str, value=str)
    app.stream(words).left_join(table, pair).to(out)
    with app.test() as t:
        t.input(users).send("u", key="a")
        t.input(words).send("w", key="a")
        t.input(towns).send("t", key="a")
        t.restart()
        t.input(words).send("w", key="a")
        t.input(words).send("w", key="b")
        assert t.output(out).values == ["w-u-None", "w-u-t", "w-None"]


def test_a_row_on_which_the_joiner_fails_is_left_out() -> None:
    app = App("t")
    topics = [app.topic(name, key=str, value=int) for name in ("left", "right")]
    out = app.topic("out", key=str, value=int)
    left, right = (app.table(topic) for topic in topics)
    skip = on_error.skip(log=False)
    left.join(right, lambda a, b: a // b, name="join", on_error=skip).changes().to(out)
    with app.test() as t:
        t.input(topics[0]).send(6, key="a")
        for value in (2, 0, 3):
            t.input(topics[1]).send(value, key="a")
        assert t.output(out).values == [3, None, 2]
        assert t.drops["join", "error"] == 1


def windows(app: App, name: str) -> tuple[Any, Table[Windowed[str], int]]:
    topic = app.topic(name, key=str, value=int)
    windowed = app.stream(topic).group_by_key().windowed(tumbling("10ms", retention="20ms"))
    return topic, windowed.emit(Emit.UPDATE).count(name=f"{name}-count")


def test_windowed_rows_are_joined_and_expire_with_their_windows() -> None:
    app = App("t")
    (one, left), (two, right) = windows(app, "one"), windows(app, "two")

    def both(a: int | None, b: int | None) -> str:
        return f"{a} {b}"

    table = left.outer_join(right, both, name="join")

    async def fetched() -> Any:
        row = await table.fetch(Windowed("a", moment(0), moment(10)))
        at = [[row async for _, row in table.scan(at=moment(ms))] for ms in (9, 10, 20)]
        return row, at

    with app.test() as t:
        for topic, at in ((one, 1), (two, 2), (one, 3), (two, 12)):
            t.input(topic).send(0, key="a", at=at)
        assert asyncio.run(fetched()) == ("2 1", [["2 1"], ["None 1"], []])
        assert {(when_ms(k.start), row) for k, row in t.table(table).items()} == {
            (0, "2 1"), (10, "None 1"),
        }  # fmt: skip
        t.restart()
        for topic in (one, two):
            t.input(topic).send(0, key="b", at=45)
        assert {(k.key, row) for k, row in t.table(table).items()} == {("b", "1 1")}


def test_a_join_of_incompatible_keys_is_refused() -> None:
    app = App("t")
    _, windowed = windows(app, "one")
    plain = app.table(app.topic("users", key=str, value=int))
    with pytest.raises(TopologyError, match="only one of them is windowed"):
        plain.join(windowed, lambda a, b: a + b, name="join")  # type: ignore[arg-type]
    numbers = app.table(app.topic("numbers", key=int, value=int))
    with pytest.raises(TopologyError, match="equal keys would not match"):
        plain.join(numbers, lambda a, b: a + b, name="join")  # type: ignore[arg-type]
    other = App("u")
    with pytest.raises(TopologyError, match="app 'u'"):
        plain.join(other.table(other.topic("users", key=str, value=int)), max, name="join")
    with pytest.raises(TopologyError, match="can't be a table: its keys are windows"):
        windowed.changes().to_table(name="again")


def test_tables_with_unequal_partition_counts_are_refused_at_the_start() -> None:
    app = App("t")
    left = app.table(app.topic("left", key=str, value=int, partitions=2))
    left.join(app.table(app.topic("right", key=str, value=int)), max, name="join")
    with pytest.raises(TopologyError, match="'join' needs the same keys"), app.test():
        pass


def test_rows_of_a_join_can_not_be_put() -> None:
    app = App("t")
    _, _, table = joined_tables(app)

    async def put() -> None:
        await table.put("a", "x")

    with app.test(), pytest.raises(UsageError, match="computed"):
        asyncio.run(put())


def test_a_stream_becomes_a_table_of_its_latest_values() -> None:
    app = App("t")
    words = app.topic("words", key=str, value=str, partitions=2)
    stream = app.stream(words).rekey(lambda _, word: word[:1], name="by-letter")
    table = stream.to_table(name="latest")
    with app.test() as t:
        for word in ("ant", "bee", "ape"):
            t.input(words).send(word, key="k")
        assert t.table(table) == {"a": "ape", "b": "bee"}
        t.restart()
        assert t.table(table) == {"a": "ape", "b": "bee"}
    app = App("t")
    words = app.topic("words", key=str, value=str)
    table = app.stream(words).to_table(name="latest")
    with app.test() as t:
        t.input(words).send("bee", key="b")
        t.input(words).send(None, key="b")  # type: ignore[arg-type] # a deletion
        t.input(words).send("nobody")
        assert t.table(table) == {}
        assert t.drops["latest", "null key"] == 1


@given(
    st.lists(
        st.tuples(st.sampled_from("tu"), st.sampled_from("ab"), st.none() | st.integers(0, 9)),
        max_size=20,
    ),
    st.sampled_from(["join", "left_join", "outer_join"]),
)
def test_the_last_row_never_mixes_two_versions_of_a_table(
    changes: list[tuple[str, str, int | None]], kind: str
) -> None:
    """A table is joined along two paths: directly, and through a join with another table."""
    app = App("paths")
    inputs = {name: app.topic(name, key=str, value=int, compact=True) for name in "tu"}
    out = app.topic("out", key=str, value=str)
    t, u = (app.table(topic) for topic in inputs.values())

    def pair(a: object, b: object) -> str:
        return f"({a},{b})"

    inner = getattr(t.map_values(lambda v: v * 10), kind)(u, pair, name="inner")
    getattr(t, kind)(inner, pair, name="outer").changes().to(out)

    def joined(a: object, b: object) -> str | None:
        enough = {"join": a is not None and b is not None, "left_join": a is not None}
        return pair(a, b) if enough.get(kind, a is not None or b is not None) else None

    rows: dict[tuple[str, str], int | None] = {}
    with app.test() as test:
        for name, key, value in changes:
            rows[name, key] = value
            test.input(inputs[name]).send(cast("int", value), key=key)
            found = {r.key: r.value for r in test.output(out).records}
            left = rows.get(("t", key))
            inner_row = joined(None if left is None else left * 10, rows.get(("u", key)))
            assert found.get(key) == joined(left, inner_row)


def test_a_lookup_sees_no_mixture_of_two_versions() -> None:
    """No lookup between the two paths of a change finds a mixture of old and new."""
    app = App("paths")
    topic = app.topic("t", key=str, value=int, compact=True)
    seen = app.topic("seen", key=str, value=str)
    rows = app.table(topic)
    tens = rows.map_values(lambda v: v * 10)
    changes = rows.changes()
    both = tens.join(rows, lambda a, b: f"{a} {b}", name="both")
    changes.left_join(both, lambda v, row: f"{v}: {row}").to(seen)
    with app.test() as t:
        for value in (1, 2):
            t.input(topic).send(value, key="a")
            t.restart()
        found = t.output(seen).values
    mixtures = {"1: 10 None", "2: 20 1", "2: 10 2"}
    assert not mixtures & {*found}
    assert len(found) == 2
