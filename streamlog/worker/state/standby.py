"""Standbys: tasks that others run, and whose state this worker keeps up to date on its own disk.

The leader says which (`exchange`): those that are to take over if the owner goes, and those that
this worker gets ready for (warm-ups). Each reads its changelog, committed records only, into a
store of its own, as a restore would; so taking over is the same restore, of which little is left
to do. Like a task it puts its state aside now and then (`TaskDirectory.snapshot`): after a kill
little is read again, and who runs the task from the same directory while this store is still open
begins with that. Rule of the file: a standby writes to nothing but its own store, and its errors
end nobody: they are told, and it begins again. Not done here: whose standbys there are (`moves`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.local_disk.task_directory import TaskDirectory
from streamlog.topology import Topology
from streamlog.worker.state.changelog_reader import ChangelogReader, aside
from streamlog.worker.state.restore import Fences, check_cluster

logger = repeated.logger(__name__)

STEP_MS = 500
"""The longest wait for records of a changelog."""
RETRY_MS = 5_000
"""After an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyDeps:
    """What standbys need of their worker."""

    log: Log
    clock: Clock
    topology: Topology
    state_path: str
    """The app's state directory."""
    budget: RocksBudget
    """Shared with the tasks that run."""
    background: asyncio.TaskGroup
    """Owns the following."""


@dataclass(slots=True)
class Standby:
    """A task that is followed."""

    task_id: TaskId
    store: RocksStore | None = None
    """What it has; None before it is open, and while it begins again."""
    lag: int | None = None
    """How many records of the changelog are not in it; None before that is known."""
    even_ms: int | None = None
    """When it last had all of them, by the clock's `now_ms`: what it says is not older."""


class Standbys:
    """All tasks that this worker follows. Used from its event loop."""

    def __init__(self, room: StandbyDeps) -> None:
        self._room = room
        self._standbys: dict[TaskId, Standby] = {}
        self._runs: dict[TaskId, asyncio.Task[None]] = {}

    @property
    def lags(self) -> dict[TaskId, int]:
        """How far each is behind, as far as that is known."""
        return {
            task_id: each.lag for task_id, each in self._standbys.items() if each.lag is not None
        }

    def get(self, task_id: TaskId) -> Standby | None:
        """A task that is followed; None if it is not."""
        return self._standbys.get(task_id)

    async def follow(self, tasks: Collection[TaskId]) -> None:
        """Follow exactly these; returns when the stores of all others are closed."""
        for task_id in [*self._runs]:
            if task_id not in tasks:
                await self._stop(task_id)
        for task_id in sorted(tasks):
            if task_id not in self._runs:
                self._standbys[task_id] = standby = Standby(task_id)
                self._runs[task_id] = self._room.background.create_task(
                    self._run(standby), name=f"standby of task {task_id}"
                )

    async def close(self) -> None:
        """Follow nothing any more."""
        await self.follow(())

    async def _stop(self, task_id: TaskId) -> None:
        run = self._runs.pop(task_id)
        del self._standbys[task_id]
        run.cancel()
        await asyncio.wait([run])

    async def _run(self, standby: Standby) -> None:
        while True:
            try:
                await self._follow(standby)
            except StreamlogError as error:
                logger.warning(
                    "task %s can't be followed, in %d s it is tried again: %s",
                    standby.task_id,
                    RETRY_MS // 1000,
                    error,
                )
            await asyncio.sleep(RETRY_MS / 1000)

    async def _follow(self, standby: Standby) -> None:
        room, task_id = self._room, standby.task_id
        topic = room.topology.subtopologies[task_id.subtopology].changelog_topic
        if topic is None:
            return
        path = f"{room.state_path}/{task_id}"
        # Whoever runs the task has another directory, or is on another machine.
        directory = TaskDirectory(path)
        store = directory.open(room.budget, skip_locked=True, is_standby=True)
        try:
            check_cluster(room.log, store, path)
            follower = ChangelogReader(
                room.log,
                store,
                changelog=TopicPartition(topic, task_id.partition),
                admission=Fences.stored,
                clock=room.clock,
                isolation="read_committed",
            )
            async with follower:
                follower.tell_if_rebuilt(path)
                if follower.rebuilt:
                    check_cluster(room.log, store, path)
                standby.lag = follower.lag
                await follower.reach(follower.end)
                directory.remove_old()
                logger.info("task %s: a standby, %d records read", task_id, follower.records)
                standby.store = store
                await self._keep_even(standby, follower, directory)
        finally:
            standby.store = standby.lag = standby.even_ms = None
            store.close()

    async def _keep_even(
        self, standby: Standby, follower: ChangelogReader, directory: TaskDirectory
    ) -> None:
        clock = self._room.clock
        while (store := standby.store) is not None:
            asked_ms = clock.now_ms()
            await follower.step(timeout_ms=STEP_MS)
            standby.lag = follower.lag
            if not standby.lag:
                standby.even_ms = asked_ms
            if directory.is_snapshot_due(store, now_ms := clock.now_ms()):
                await aside(partial(directory.snapshot, store, now_ms))
