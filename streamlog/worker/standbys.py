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
from math import inf

from streamlog import repeated
from streamlog.client.consumer import Consumer
from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.local_disk.task_directory import TaskDirectory, tasks_with_state
from streamlog.topology import Topology
from streamlog.worker.assignment.rebalance_plan import UNKNOWN_LAG
from streamlog.worker.assignment.streams_assignor import StreamsAssignor
from streamlog.worker.state.changelog_reader import ChangelogReader, offload
from streamlog.worker.state.restore import Fences, check_cluster
from streamlog.worker.task_deps import TaskDeps
from streamlog.worker.tasks import WorkerTasks

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
                follower.warn_if_rebuilt(path)
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
                await offload(partial(directory.snapshot, store, now_ms))


LOOK_MS = 500
"""Between two looks at how far the copies are."""


class TaskLags:
    """The state that this worker has besides that of its running tasks."""

    def __init__(
        self,
        topology: Topology,
        surroundings: TaskDeps,
        tasks: WorkerTasks,
        exchange: StreamsAssignor,
    ) -> None:
        self._consumer: Consumer = surroundings.consumer
        self._clock = surroundings.clock
        self._state_path = surroundings.state_path
        self._tasks = tasks
        self._exchange = exchange
        self.standbys = Standbys(
            StandbyDeps(
                log=surroundings.log,
                clock=surroundings.clock,
                topology=topology,
                state_path=surroundings.state_path,
                budget=tasks.budget,
                background=surroundings.background,
            )
        )
        self._on_disk: dict[TaskId, int] = {}
        self._looked_ms: float = -inf

    def look_at_disk(self, closed: Collection[TaskId] = ()) -> None:
        """See which tasks have state here that this worker does not run; some just `closed`."""
        mine = self._tasks.of(self._consumer.assignment())
        found = {TaskId(*each) for each in tasks_with_state(self._state_path)}
        self._on_disk = dict.fromkeys(found.difference(mine), UNKNOWN_LAG)
        self._on_disk.update(dict.fromkeys(closed, 0))
        self._exchange.lags = self._lags()

    def look_around(self) -> None:
        """Keep what the others are told up to date; ask for a round if it is time."""
        now_ms = self._clock.now_ms()
        if now_ms < self._looked_ms + LOOK_MS:
            return
        self._looked_ms = now_ms
        self._exchange.lags = self._lags()
        if self._exchange.asks(now_ms):
            self._consumer.enforce_rebalance()

    async def follow(self) -> None:
        """Follow what the leader has said; what is not to be followed any more is closed."""
        await self.standbys.follow(self._exchange.standby | self._exchange.warmup)

    def _lags(self) -> dict[TaskId, int]:
        return self._on_disk | self.standbys.lags | self._tasks.restoring
