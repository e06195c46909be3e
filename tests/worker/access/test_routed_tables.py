"""Local rows: a worker answers from its tasks, from its standbys, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from streamlog import App
from streamlog.clock import ManualClock
from streamlog.errors import RequestTimedOut
from streamlog.processing.table_rows import prefix_of
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.topology import Topology
from streamlog.worker.access.questions import (
    AppliedAnswer,
    AppliedQuery,
    NotHere,
    RowAnswer,
    RowQuery,
    ScanQuery,
)
from streamlog.worker.access.routed_tables import WAITING_MAX, LocalRows
from streamlog.worker.health.worker_metrics import WorkerMetrics

T = TypeVar("T")
WHERE: dict[str, Any] = {"app": "local", "table": "texts", "subtopology": 0, "partition": 0}
ROW = RowQuery(**WHERE, key=b"k")
STALE = RowQuery(**WHERE, key=b"k", stale_ok=True)


@dataclass
class Copied:
    store: MemoryStore | None = None
    even_ms: int | None = None


@dataclass
class LocalWorker:
    """A worker that may run the task, may have a standby of it, or neither."""

    topology: Topology
    task: Task | None = None
    copy: Copied = field(default_factory=Copied)
    is_suspended: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    gate: asyncio.Event | None = None
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)

    def runs(self, task_id: TaskId) -> bool:
        return self.task is not None and self.task.id == task_id

    async def ask(self, task_id: TaskId, question: Callable[[Task], T]) -> T:
        if self.gate is not None:
            await self.gate.wait()
        if self.task is None or self.task.id != task_id:
            raise NotHere("not here")
        return question(self.task)

    def rows(self) -> LocalRows:
        return LocalRows(
            self.topology, self, self.clock, metrics=self.metrics, copy_of=lambda _: self.copy
        )


@pytest.fixture
def here() -> LocalWorker:
    app = App("local")
    app.table(app.topic("texts", key=str, value=str, partitions=1))
    return LocalWorker(app.topology())


def opened(here: LocalWorker) -> Task:
    sub = here.topology.subtopologies[0]
    here.task = Task(sub, TaskId(0, 0), partitions={"texts": 1}, store=MemoryStore())
    return here.task


def put(task: Task, offset: int, value: bytes) -> None:
    source = ("texts", 0)
    task.process({source: [LogRecord(offset, 0, b"k", value)]}, 0, ends={source: offset + 1})


def commit(task: Task) -> None:
    task.committed(task.checkpoint(), next_offset=1)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_a_task_answers_with_committed_rows(here: LocalWorker) -> None:
    task = opened(here)
    put(task, 0, b"first")
    assert run(here.rows().row(ROW)) == RowAnswer(data=None)
    commit(task)
    put(task, 1, b"second")
    assert run(here.rows().row(STALE)) == RowAnswer(data=b"first", age_ms=None)
    assert run(here.rows().rows(ScanQuery(**WHERE))).rows == [(b"k", b"first")]


def test_a_query_for_an_absent_task_is_refused(here: LocalWorker) -> None:
    for query in (ROW, STALE, RowQuery(**{**WHERE, "app": "other"}, key=b"k", stale_ok=True)):
        with pytest.raises(NotHere):
            run(here.rows().row(query))
    with pytest.raises(NotHere, match="is of app 'local', not 'other'"):
        run(here.rows().row(RowQuery(**{**WHERE, "app": "other"}, key=b"k")))


def test_a_standby_answers_stale_queries_once_it_has_caught_up(here: LocalWorker) -> None:
    store = MemoryStore()
    store.put(prefix_of(here.topology.subtopologies[0], "texts") + b"k", b"old")
    here.copy = Copied(store)
    here.clock.advance(1_000)
    with pytest.raises(NotHere):
        run(here.rows().row(STALE))
    here.copy.even_ms = 400
    assert run(here.rows().row(STALE)) == RowAnswer(data=b"old", age_ms=600)
    found = run(here.rows().rows(ScanQuery(**WHERE, stale_ok=True)))
    assert (found.rows, found.age_ms) == ([(b"k", b"old")], 600)
    with pytest.raises(NotHere):
        run(here.rows().row(ROW))
    assert dict(here.metrics.table_answers.metric().points) == {("standby",): 2}
    with pytest.raises(NotHere, match="no sub-topology 9"):
        run(here.rows().row(RowQuery(**{**WHERE, "subtopology": 9}, key=b"k", stale_ok=True)))


def test_a_record_is_applied_once_it_is_committed(here: LocalWorker) -> None:
    task = opened(here)
    query = AppliedQuery(**WHERE, topic="texts", offset=0)
    put(task, 0, b"x")
    assert run(here.rows().check_applied(query)) == AppliedAnswer()
    here.is_suspended = True
    assert run(here.rows().check_applied(query)) == AppliedAnswer(is_suspended=True)
    commit(task)
    assert run(here.rows().check_applied(query)) == AppliedAnswer(is_applied=True)

    async def later() -> AppliedAnswer:
        here.is_suspended = False
        put(task, 1, b"y")
        waiting = AppliedQuery(**WHERE, topic="texts", offset=1, wait_ms=60_000)
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(here.rows().check_applied(waiting))
            await asyncio.sleep(0)
            commit(task)
        return answer.result()

    assert run(later()) == AppliedAnswer(is_applied=True)


def test_the_number_of_waiting_queries_is_bounded(here: LocalWorker) -> None:
    opened(here)

    async def story() -> None:
        here.gate = asyncio.Event()
        rows = here.rows()
        async with asyncio.TaskGroup() as group:
            query = [group.create_task(rows.row(ROW)) for _ in range(WAITING_MAX)]
            await asyncio.sleep(0)
            with pytest.raises(RequestTimedOut, match="waiting queries for rows: try again"):
                await rows.row(ROW)
            here.gate.set()
        assert {each.result() for each in query} == {RowAnswer(data=None)}
        assert await rows.row(ROW) == RowAnswer(data=None)

    run(story())
