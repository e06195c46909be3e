"""Foreign-key joins of tables against a model, over partitions, restarts and late outcomes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App, Emit, Table, Topic, on_error, tumbling
from streamlog.durations import when_ms
from streamlog.errors import CorruptData, SerdeError, TopologyError
from streamlog.nodes.table_nodes import ForeignKeyRows
from streamlog.processing.joins.table_table_join import ForeignKeyRowsStep, read_outcome_row
from streamlog.serdes import form_of, serde_for
from streamlog.tables.change_serdes import OutcomeSerde, Reference, ReferenceOutcome, ReferenceSerde
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import StoreSpec

CHANGES = st.lists(
    st.one_of(
        st.tuples(
            st.just("orders"),
            st.sampled_from("abc"),
            st.one_of(st.none(), st.sampled_from(["x|1", "y|1", "x|2", "x|", "y|3"])),
            st.integers(0, 20),
            st.booleans(),
        ),
        st.tuples(
            st.just("users"),
            st.sampled_from("123"),
            st.one_of(st.none(), st.sampled_from(["ann", "bob"])),
            st.integers(0, 20),
            st.booleans(),
        ),
    ),
    max_size=40,
)


def foreign_key(value: str) -> str | None:
    return value.partition("|")[2] or None


def pair(order: str, user: str | None) -> str:
    return f"{order} {user}"


def made(app: App, *, is_left: bool, partitions: int = 1) -> tuple[dict[str, Topic[str, str]], Any]:
    topics = {
        name: app.topic(name, key=str, value=str, partitions=count)
        for name, count in (("orders", partitions), ("users", 2 * partitions - 1))
    }
    orders, users = (app.table(topic) for topic in topics.values())
    join = orders.left_join_on if is_left else orders.join_on
    return topics, join(users, foreign_key, pair, name="join")  # type: ignore[operator] # one of two


def modelled(tables: dict[str, dict[str, str]], *, is_left: bool) -> dict[str, str]:
    found = {}
    for key, order in tables["orders"].items():
        user = tables["users"].get(foreign_key(order) or "")
        if user is not None or is_left:
            found[key] = pair(order, user)
    return found


@pytest.mark.parametrize("is_left", [False, True], ids=["inner", "left"])
@pytest.mark.parametrize("partitions", [1, 3])
@settings(max_examples=40, deadline=None)
@given(changes=CHANGES)
def test_every_row_is_joined_with_the_row_of_its_foreign_key(
    is_left: bool, partitions: int, changes: list[tuple[str, str, str | None, int, bool]]
) -> None:
    app = App("t")
    topics, table = made(app, is_left=is_left, partitions=partitions)
    model_rows: dict[str, dict[str, str]] = {"orders": {}, "users": {}}
    seen: dict[str, str] = {}
    emitted: list[tuple[str, str | None]] = []
    table.changes().peek(lambda r: emitted.append((r.key, r.value)))
    with app.test() as t:
        for name, key, value, at, restarts in changes:
            t.input(topics[name]).send(value, key=key, at=at)  # type: ignore[arg-type] # a deletion
            if value is None:
                model_rows[name].pop(key, None)
            else:
                model_rows[name][key] = value
            if restarts:
                t.restart()
            wanted = modelled(model_rows, is_left=is_left)
            assert t.table(table) == wanted
            for changed, row in emitted:
                if row is None:
                    del seen[changed]  # The row existed.
                else:
                    seen[changed] = row
            emitted.clear()
            assert seen == wanted


def test_a_result_has_the_larger_of_both_rows_timestamps() -> None:
    app = App("t")
    topics, table = made(app, is_left=False)
    seen: list[tuple[str | None, int]] = []
    table.changes().peek(lambda r: seen.append((r.value, when_ms(r.timestamp))))
    with app.test() as t:
        for name, key, value, at in (
            ("orders", "a", "x|1", 5), ("users", "1", "ann", 3), ("users", "1", "bob", 9),
            ("orders", "a", "y|1", 7), ("users", "1", None, 2),
        ):  # fmt: skip
            t.input(topics[name]).send(value, key=key, at=at)  # type: ignore[arg-type] # a deletion
    assert seen == [("x|1 ann", 5), ("x|1 bob", 9), ("y|1 bob", 9), (None, 7)]


def test_joined_rows_can_be_fetched_and_joined_again() -> None:
    app = App("t")
    topics, table = made(app, is_left=True, partitions=2)
    out = app.topic("out", key=str, value=str)
    app.stream(topics["orders"]).join(table, pair).to(out)
    with app.test() as t:
        t.input(topics["orders"]).send("x|1", key="a")
        t.input(topics["users"]).send("ann", key="1")
        assert asyncio.run(table.fetch("a")) == "x|1 ann"
        assert asyncio.run(table.fetch("b")) is None
        t.input(topics["orders"]).send("x|1", key="a")
        assert t.output(out).values == ["x|1 x|1 ann"]


def test_a_table_can_be_joined_with_itself() -> None:
    app = App("t")
    people = app.topic("people", key=str, value=str)
    table = app.table(people)
    bosses: Table[str, str] = table.left_join_on(table, foreign_key, pair, name="bosses")  # type: ignore[arg-type]
    with app.test() as t:
        for key, value in (("1", "ann|"), ("2", "bob|1"), ("1", "eve|2"), ("2", None)):
            t.input(people).send(value, key=key)  # type: ignore[arg-type] # a deletion
        assert t.table(bosses) == {"1": "eve|2 None"}


def test_a_row_on_which_a_function_fails_is_left_out() -> None:
    app = App("t")
    topics = [app.topic(name, key=str, value=int) for name in ("left", "right")]
    left, right = (app.table(topic) for topic in topics)
    skip = on_error.skip(log=False)
    table = left.join_on(
        right, lambda v: str(10 // v), lambda a, b: a // b, name="join", on_error=skip
    )
    with app.test() as t:
        t.input(topics[1]).send(1, key="5")
        for value, wanted in ((2, {"a": 2}), (0, {}), (2, {"a": 2})):
            t.input(topics[0]).send(value, key="a")
            assert t.table(table) == wanted
        t.input(topics[1]).send(0, key="5")
        assert t.table(table) == {}
        assert t.drops["join-refers", "error"] == 1
        assert t.drops["join-meets", "error"] == 1


def test_windowed_tables_are_refused() -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=int)
    windows = app.stream(topic).group_by_key().windowed(tumbling("10ms")).emit(Emit.UPDATE)
    with pytest.raises(TopologyError, match="can't be joined by a foreign key"):
        windows.count(name="n").join_on(app.table(topic), str, max, name="join")


def test_versions_of_deleted_rows_are_forgotten_in_time() -> None:
    app = App("t")
    topics, table = made(app, is_left=True)
    with app.test() as t:
        for at, (key, value) in enumerate([("a", "x|1"), ("a", None), ("b", "x|1"), ("c", None)]):
            t.input(topics["orders"]).send(value, key=key, at=at)  # type: ignore[arg-type]
        t.input(topics["users"]).send("ann", key="1", at=50)
        t.input(topics["orders"]).send("x|1", key="b", at=50)
        t.restart()
        t.input(topics["users"]).send("ann", key="1", at=60)
        t.input(topics["orders"]).send("x|1", key="b", at=60)
        steps = [
            step
            for task in t._tasks.values()
            for step in task._steps.values()
            if isinstance(step, ForeignKeyRowsStep)
        ]
        assert [[key for key, _ in step._rows.range()] for step in steps] == [[b"b"]]
        assert [list(step._gone.range()) for step in steps] == [[]]
        assert t.table(table) == {"b": "x|1 ann"}


def test_an_outcome_of_an_older_version_is_ignored() -> None:
    node = ForeignKeyRows(
        name="join", store=StoreSpec("join"), gone=StoreSpec("join/gone"), key=serde_for(str),
        value=serde_for(str),
    )  # fmt: skip
    step = ForeignKeyRowsStep(node, MemoryStore(), feeds=(), sends_old_values=False)
    found = [step._newer(outcome, b"a", 0, 0) for outcome in (
        ReferenceOutcome(2, "new"), ReferenceOutcome(1, "old"), ReferenceOutcome(2, "newer"),
        ReferenceOutcome(3, None, is_gone=True),
        ReferenceOutcome(2, "late"),
    )]  # fmt: skip
    assert [row is not None for row in found] == [True, False, True, True, False]
    assert step.lookup(b"a") is None


def test_references_and_outcomes_round_trip() -> None:
    references, outcomes = ReferenceSerde(serde_for(int)), OutcomeSerde(serde_for(int))
    for reference in (Reference(b"k", 1, 5), Reference(b"", 2, None)):
        assert references.loads(references.dumps(reference)) == reference
    for outcome in (ReferenceOutcome(1, 5), ReferenceOutcome(2, None, is_gone=True)):
        assert outcomes.loads(outcomes.dumps(outcome)) == outcome
    with pytest.raises(SerdeError, match="not a reference"):
        references.loads(b"12")
    with pytest.raises(SerdeError, match="not an outcome"):
        outcomes.loads(b"12")
    assert form_of(references) == {"reference": form_of(serde_for(int))}
    assert form_of(outcomes) == {"outcome": form_of(serde_for(int))}


def test_an_unreadable_row_is_reported() -> None:
    node = ForeignKeyRows(
        name="join", store=StoreSpec("join"), gone=StoreSpec("join/gone"), key=serde_for(str),
        value=serde_for(str),
    )  # fmt: skip
    with pytest.raises(CorruptData, match="a row of 'join' is not readable"):
        read_outcome_row(node, b"garbage")
