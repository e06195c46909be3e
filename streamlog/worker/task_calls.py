"""Calls: awaits the async functions that tasks ask for, and keeps what comes of them.

Each call is an asyncio task of the worker's TaskGroup; how many there are at a time is the
tasks' to bound. Rule of the file: a call never ends the worker, its error is a result that
its task raises, with the record's coordinates. When a task is given up, its calls are
cancelled, and what they still give is dropped: whoever opens it again makes them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.agents.awaited import awaited
from streamlog.processing.outbox import CallResult, TaskCall
from streamlog.processing.task import TaskId


class Calls:
    """The calls of all tasks of a worker."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._running: dict[TaskId, set[asyncio.Task[None]]] = {}
        self._results: dict[TaskId, list[CallResult]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def has_results(self, task_id: TaskId) -> bool:
        """Whether something has come of a task's calls."""
        return bool(self._results.get(task_id))

    def start(self, task_id: TaskId, calls: Sequence[TaskCall]) -> None:
        """Begin to await these."""
        if not calls:
            return
        running = self._running.setdefault(task_id, set())
        results = self._results.setdefault(task_id, [])

        async def run(call: TaskCall) -> None:
            results.append(await awaited(call))

        for call in calls:
            task = self._group.create_task(run(call), name=f"{call.node} {call.number}")
            running.add(task)
            task.add_done_callback(running.discard)

    def take(self, task_id: TaskId) -> list[CallResult]:
        """What has come of a task's calls since the last time."""
        results = self._results.get(task_id, [])
        taken = results[:]
        results.clear()
        return taken

    def cancel(self, task_id: TaskId) -> None:
        """The task was given up."""
        self._results.pop(task_id, None)
        for task in self._running.pop(task_id, ()):
            task.cancel()
