"""LocalRows: questions about rows, answered by the tasks that run in this worker.

Tasks answer between two batches, one question after the other, from what they have committed.
Rule of the file: what waits is bounded, in number here and in cost by the pages of a scan; one
question too many is refused at once, as whoever asks can come again and a task can't.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from streamlog.clock import Clock
from streamlog.errors import RequestTimedOut
from streamlog.processing.rows import Page
from streamlog.processing.task import Task, TaskId
from streamlog.worker.access.questions import (
    Asked,
    NotHere,
    Passed,
    PassedAsked,
    RowAsked,
    RowFound,
    RowsAsked,
    RowsFound,
)

T = TypeVar("T")
"""What a task answers."""

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


class LocalRows:
    """The rows of the tasks that run here."""

    def __init__(self, app_id: str, tasks: AskedTasks, clock: Clock) -> None:
        self._app_id = app_id
        self._tasks = tasks
        self._clock = clock
        self._waiting = 0

    def has(self, task_id: TaskId) -> bool:
        """Whether this worker is who answers for the task."""
        return self._tasks.runs(task_id)

    async def row(self, asked: RowAsked) -> RowFound:
        """See `Holder`."""

        def look(task: Task) -> bytes | None:
            return task.row(asked.table, asked.key, committed=True)

        return RowFound(data=await self._ask(asked, look))

    async def rows(self, asked: RowsAsked) -> RowsFound:
        """See `Holder`."""

        def look(task: Task) -> Page:
            return task.rows(asked.table, asked.span, committed=True, rows_max=asked.rows_max)

        page = await self._ask(asked, look)
        return RowsFound(rows=page.rows, next_key=page.next_key)

    async def passed(self, asked: PassedAsked) -> Passed:
        """See `Holder`."""
        deadline_ms = self._clock.now_ms() + asked.wait_ms
        place = (asked.topic, asked.partition)
        while True:
            positions = await self._ask(asked, lambda task: task.committed_positions)
            if positions.get(place, 0) > asked.offset:
                return Passed(passed=True)
            if self._tasks.is_suspended:
                return Passed(stands=True)
            if self._clock.now_ms() >= deadline_ms:
                return Passed()
            await asyncio.sleep(PASSED_LOOK_MS / 1000)

    async def _ask(self, asked: Asked, question: Callable[[Task], Any]) -> Any:  # noqa: ANN401 - of the question's type
        if asked.app != self._app_id:
            raise NotHere(f"this is a worker of app {self._app_id!r}, not of {asked.app!r}")
        if self._waiting >= WAITING_MAX:
            raise RequestTimedOut(
                f"this worker is asked for too many rows at once (more than {WAITING_MAX})"
            )
        self._waiting += 1
        try:
            return await self._tasks.ask(asked.task_id, question)
        finally:
            self._waiting -= 1
