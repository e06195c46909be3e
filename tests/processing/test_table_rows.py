"""Queries of a task's rows: committed and uncommitted, one by one and in pages."""

from __future__ import annotations

from typing import Any

import pytest

from streamlog import App
from streamlog.errors import TopologyError
from streamlog.processing.table_rows import tables_of
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.tables.stores.memory_store import MemoryStore

TP = ("words", 0)


def counting() -> tuple[Task, Any]:
    app = App("rows")
    words = app.topic("words", key=str, value=str)
    app.table(words, name="latest")
    app.stream(words).group_by_key().count(name="counts")
    topology = app.topology()
    store = MemoryStore()
    task = Task(topology.subtopologies[0], TaskId(0, 0), partitions={"words": 1}, store=store)
    return task, tables_of(topology)


def feed(task: Task, first: int, *keys: str) -> None:
    records = [
        LogRecord(first + at, 0, key.encode(), f"v{first + at}".encode())
        for at, key in enumerate(keys)
    ]
    task.process({TP: records}, 0, ends={TP: first + len(keys)})


def commit(task: Task, next_offset: int) -> None:
    task.committed(task.checkpoint(), next_offset=next_offset)


@pytest.mark.parametrize(("table", "old", "new"), [("latest", "v0", "v2"), ("counts", 1, 2)])
def test_queries_see_committed_rows_and_the_driver_sees_all(
    table: str, old: object, new: object
) -> None:
    task, tables = counting()
    rows = tables[table]

    def row(*, committed: bool) -> object:
        data = task.row(table, rows.row_key("a"), committed=committed)
        page = task.rows(table, rows.span(), committed=committed)
        found = None if data is None else rows.row(rows.row_key("a"), data)[1]
        assert dict(rows.row(*each) for each in page.rows).get("a") == found
        return found

    feed(task, 0, "a", "b")
    assert (row(committed=True), row(committed=False)) == (None, old)
    assert task.committed_positions == {}
    commit(task, 10)
    assert row(committed=True) == old
    assert task.committed_positions == {TP: 2}
    feed(task, 2, "a")
    assert (row(committed=True), row(committed=False)) == (old, new)
    changes = task.checkpoint()
    assert row(committed=True) == old
    assert task.committed_positions == {TP: 2}
    task.committed(changes, next_offset=20)
    assert row(committed=True) == new
    assert task.committed_positions == {TP: 3}


def test_a_task_refuses_queries_for_unknown_tables() -> None:
    task, _ = counting()
    for wrong in ("lost", "words-source"):
        with pytest.raises(TopologyError, match=f"has no table '{wrong}'"):
            task.row(wrong, b"", committed=True)
