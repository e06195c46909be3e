"""LocalRows: questions about rows, answered by the tasks that run in this worker.

Tasks answer between two batches, one question after the other, from what they have committed;
standby copies, if they are asked, from what they have read, with the time since they last had
all of it. Rule of the file: what waits is bounded, in number here and in cost by the pages of a
scan; one question too many is refused at once, as whoever asks can come again and a task can't.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from streamlog.clock import Clock
from streamlog.errors import RequestTimedOut
from streamlog.processing.table_rows import RowPage, prefix_of, read_page
from streamlog.processing.task import Task, TaskId
from streamlog.tables.stores.store import KeyValueStore
from streamlog.topology import Topology
from streamlog.worker.access.questions import (
    Asked,
    NotHere,
    PassedAsked,
    PassedRows,
    RowAsked,
    RowFound,
    RowsAsked,
    RowsFound,
)
from streamlog.worker.health.worker_figures import Figures

T = TypeVar("T")
"""What a task answers."""


class _Aged(NamedTuple):
    """A copy, and how long ago it was like its owner."""

    store: KeyValueStore
    age_ms: int


WAITING_MAX = 256
"""Questions of all who ask that wait for this worker's tasks."""
PASSED_LOOK_MS = 20
"""How often it is looked whether a record has been committed, while somebody waits for it."""


class AskedTasks(Protocol):
    """Port: the tasks of this worker."""

    @property
    def is_suspended(self) -> bool:
        """Whether tasks process nothing just now."""

    def runs(self, task_id: TaskId) -> bool:
        """Whether the task runs here."""

    def ask(self, task_id: TaskId, question: Callable[[Task], T]) -> Awaitable[T]:
        """Let a task answer between two batches; NotHere if it does not run here."""


class Copy(Protocol):
    """Port: a task's state that is followed here while the task runs elsewhere."""

    @property
    def store(self) -> KeyValueStore | None:
        """What it has; None while it is being made."""

    @property
    def even_ms(self) -> int | None:
        """When it last had all that its owner had committed; None before it first did."""


class LocalRows:
    """The rows of the tasks that run here."""

    def __init__(
        self,
        topology: Topology,
        tasks: AskedTasks,
        clock: Clock,
        *,
        figures: Figures,
        copy_of: Callable[[TaskId], Copy | None],
    ) -> None:
        """`copy_of` gives the standby copies of this worker, to be used from the event loop."""
        self._topology = topology
        self._tasks = tasks
        self._clock = clock
        self._figures = figures
        self._copy_of = copy_of
        self._waiting = 0

    def has(self, task_id: TaskId) -> bool:
        """Whether this worker is who answers for the task."""
        return self._tasks.runs(task_id)

    async def row(self, asked: RowAsked) -> RowFound:
        """See `Holder`."""

        def look(task: Task) -> bytes | None:
            return task.row(asked.table, asked.key, committed=True)

        if (copy := self._copy(asked)) is not None:
            found = copy.store.get(self._prefix(asked) + asked.key)
            return RowFound(data=found, age_ms=copy.age_ms)
        return RowFound(data=await self._ask(asked, look))

    async def rows(self, asked: RowsAsked) -> RowsFound:
        """See `Holder`."""

        def look(task: Task) -> RowPage:
            return task.rows(asked.table, asked.span, committed=True, rows_max=asked.rows_max)

        if (copy := self._copy(asked)) is not None:
            page = read_page(
                copy.store.range, self._prefix(asked), asked.span, rows_max=asked.rows_max
            )
            return RowsFound(rows=page.rows, next_key=page.next_key, age_ms=copy.age_ms)
        page = await self._ask(asked, look)
        return RowsFound(rows=page.rows, next_key=page.next_key)

    async def passed(self, asked: PassedAsked) -> PassedRows:
        """See `Holder`."""
        deadline_ms = self._clock.now_ms() + asked.wait_ms
        place = (asked.topic, asked.partition)
        while True:
            positions = await self._ask(asked, lambda task: task.committed_positions)
            if positions.get(place, 0) > asked.offset:
                return PassedRows(passed=True)
            if self._tasks.is_suspended:
                return PassedRows(stands=True)
            if self._clock.now_ms() >= deadline_ms:
                return PassedRows()
            await asyncio.sleep(PASSED_LOOK_MS / 1000)

    def _copy(self, asked: Asked) -> _Aged | None:
        """The copy to answer from, if the task does not run here and a copy will do."""
        if not asked.stale_ok or self._tasks.runs(asked.task_id):
            return None
        copy = self._copy_of(asked.task_id) if asked.app == self._topology.app_id else None
        if copy is None or copy.store is None or copy.even_ms is None:
            return None
        self._figures.answered["standby"] += 1
        return _Aged(copy.store, max(self._clock.now_ms() - copy.even_ms, 0))

    def _prefix(self, asked: Asked) -> bytes:
        if asked.subtopology >= len(self._topology.subtopologies):
            raise NotHere(f"this worker's app has no sub-topology {asked.subtopology}")
        return prefix_of(self._topology.subtopologies[asked.subtopology], asked.table)

    async def _ask(self, asked: Asked, question: Callable[[Task], Any]) -> Any:  # noqa: ANN401 - of the question's type
        if asked.app != self._topology.app_id:
            raise NotHere(f"this worker is of app {self._topology.app_id!r}, not {asked.app!r}")
        if self._waiting >= WAITING_MAX:
            raise RequestTimedOut(
                f"this worker is asked for too many rows at once (more than {WAITING_MAX})"
            )
        self._waiting += 1
        try:
            answer = await self._tasks.ask(asked.task_id, question)
            self._figures.answered["task"] += 1
            return answer
        finally:
            self._waiting -= 1
