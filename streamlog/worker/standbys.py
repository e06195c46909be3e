"""Standbys: tasks of other workers whose state this worker keeps up to date on its own disk.

The group's leader assigns them: standbys, which take over if the owner dies, and warm-ups, which
prepare a move (KIP-441). A standby reads the committed records of its changelog into a store of its
own, as a restore does. Promotion to a task is therefore an ordinary restore with little left to
read:

1. The owner of 0_1 dies. The leader assigns 0_1 to this worker, which follows it.
2. The standby stops and closes its store.
3. The task opens the store in place, writes its fence, and reads from the store's offset to the
   fence.

A standby saves its state at intervals (`TaskDirectory.snapshot`), like a task, so little is read
again after a kill.

Rule: a standby writes only to its own store. Its errors are logged, it starts again, and no other
part of the worker ends. Not done here: the assignment of standbys (`assignment/rebalance_plan`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from math import inf

from streamlog import repeated
from streamlog.client.consumer import Consumer
from streamlog.clock import Clock
from streamlog.errors import StreamlogError, quantity
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
from streamlog.worker.state.snapshot_restore import SnapshotRestore
from streamlog.worker.task_deps import TaskDeps
from streamlog.worker.tasks import WorkerTasks

logger = repeated.logger(__name__)

STEP_MS = 500
"""The longest wait for records of a changelog."""
RETRY_MS = 5_000
"""The pause after an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyDeps:
    """The objects of the worker that standbys use."""

    log: Log
    clock: Clock
    topology: Topology
    state_path: str
    """The app's state directory."""
    budget: RocksBudget
    """Shared with the tasks that run."""
    background: asyncio.TaskGroup
    """Runs the standbys."""
    snapshots: Callable[[TaskId], SnapshotRestore | None] = lambda _task_id: None
    """Returns the snapshots of a task in object storage, to begin with."""


@dataclass(slots=True)
class Standby:
    """One task that this worker follows."""

    task_id: TaskId
    store: RocksStore | None = None
    """Its store; None before it is open, and after an error."""
    lag: int | None = None
    """The number of changelog records that the store lacks; None while unknown."""
    even_ms: int | None = None
    """The time, by the clock's `now_ms`, at which the store last lacked no record: its rows are at
    most that old. None before the first such time."""


class Standbys:
    """All tasks that this worker follows. Only the event loop uses it."""

    def __init__(self, deps: StandbyDeps) -> None:
        self._deps = deps
        self._standbys: dict[TaskId, Standby] = {}
        self._runs: dict[TaskId, asyncio.Task[None]] = {}

    @property
    def lags(self) -> dict[TaskId, int]:
        """The lags of the standbys where they are known, in changelog records."""
        return {
            task_id: each.lag for task_id, each in self._standbys.items() if each.lag is not None
        }

    def get(self, task_id: TaskId) -> Standby | None:
        """Return the standby of a task, or None if this worker does not follow it."""
        return self._standbys.get(task_id)

    async def follow(self, tasks: Collection[TaskId]) -> None:
        """Follow exactly these tasks; returns when the stores of all others are closed."""
        # Stop first: a task that is about to open may need the store of one of these, and RocksDB
        # allows one owner.
        for task_id in [*self._runs]:
            if task_id not in tasks:
                await self._stop(task_id)
        for task_id in sorted(tasks):
            if task_id not in self._runs:
                self._standbys[task_id] = standby = Standby(task_id)
                self._runs[task_id] = self._deps.background.create_task(
                    self._run(standby), name=f"standby of task {task_id}"
                )

    async def close(self) -> None:
        """Stop all standbys, and close their stores."""
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
                    "standby of task %s failed and starts again in %d s: %s",
                    standby.task_id,
                    RETRY_MS // 1000,
                    error,
                )
            await asyncio.sleep(RETRY_MS / 1000)

    async def _follow(self, standby: Standby) -> None:
        deps, task_id = self._deps, standby.task_id
        topic = deps.topology.subtopologies[task_id.subtopology].changelog_topic
        if topic is None:
            return
        path = f"{deps.state_path}/{task_id}"
        # The task's owner has another state directory, or runs on another machine.
        directory = TaskDirectory(path)
        store = directory.open(deps.budget, skip_locked=True, is_standby=True)
        try:
            check_cluster(deps.log, store, path)
            if (snapshots := deps.snapshots(task_id)) is not None:
                # A warm-up comes to an empty disk as often as a task does.
                store = await snapshots.begin(directory, store, deps.budget, is_standby=True)
                check_cluster(deps.log, store, path)
            follower = ChangelogReader(
                deps.log,
                store,
                changelog=TopicPartition(topic, task_id.partition),
                admission=Fences.stored,
                clock=deps.clock,
                isolation="read_committed",
            )
            async with follower:
                follower.warn_if_rebuilt(path)
                if follower.rebuilt:
                    # The rebuild has emptied the store; this writes the cluster's id again.
                    check_cluster(deps.log, store, path)
                # Before the read, so that the leader knows the lag of a warm-up while it catches
                # up.
                standby.lag = follower.lag
                await follower.reach(follower.end)
                directory.remove_old()
                logger.info(
                    "standby of task %s is up to date: %s read",
                    task_id,
                    quantity(follower.records, "record"),
                )
                # From here on it may answer queries: its rows are no longer older than its age
                # says.
                standby.store = store
                await self._keep_even(standby, follower, directory)
        finally:
            # Before the close, so that no query reads a closed store.
            standby.store = standby.lag = standby.even_ms = None
            store.close()

    async def _keep_even(
        self, standby: Standby, follower: ChangelogReader, directory: TaskDirectory
    ) -> None:
        clock = self._deps.clock
        while (store := standby.store) is not None:
            # The time before the read: the store has everything committed up to then, at least.
            before_ms = clock.now_ms()
            await follower.step(timeout_ms=STEP_MS)
            standby.lag = follower.lag
            if not standby.lag:
                standby.even_ms = before_ms
            if directory.is_snapshot_due(store, now_ms := clock.now_ms()):
                await offload(partial(directory.snapshot, store, now_ms))


LOOK_MS = 500
"""The interval at which lags are updated."""


class TaskLags:
    """The lags of tasks whose state this worker has, but which it does not run."""

    def __init__(
        self,
        topology: Topology,
        deps: TaskDeps,
        tasks: WorkerTasks,
        exchange: StreamsAssignor,
    ) -> None:
        self._consumer: Consumer = deps.consumer
        self._clock = deps.clock
        self._state_path = deps.state_path
        self._tasks = tasks
        self._exchange = exchange
        self.standbys = Standbys(
            StandbyDeps(
                log=deps.log,
                clock=deps.clock,
                topology=topology,
                state_path=deps.state_path,
                budget=tasks.budget,
                background=deps.background,
                snapshots=tasks.snapshot_restore,
            )
        )
        self._on_disk: dict[TaskId, int] = {}
        self._looked_ms: float = -inf

    def look_at_disk(self, closed: Collection[TaskId] = ()) -> None:
        """Find the state on disk of tasks that this worker does not run.

        Args:
            closed: tasks that were closed just now, whose state is complete.
        """
        mine = self._tasks.of(self._consumer.assignment())
        found = {TaskId(*each) for each in tasks_with_state(self._state_path)}
        self._on_disk = dict.fromkeys(found.difference(mine), UNKNOWN_LAG)
        self._on_disk.update(dict.fromkeys(closed, 0))
        self._exchange.lags = self._lags()

    def look_around(self) -> None:
        """Update the lags that the leader gets, and ask for a rebalance if it is time (KIP-441)."""
        now_ms = self._clock.now_ms()
        if now_ms < self._looked_ms + LOOK_MS:
            return
        self._looked_ms = now_ms
        self._exchange.lags = self._lags()
        if self._exchange.wants_rebalance(now_ms):
            self._consumer.enforce_rebalance()

    async def follow(self) -> None:
        """Follow the tasks that the leader has assigned, and close the stores of all others."""
        await self.standbys.follow(self._exchange.standby | self._exchange.warmup)

    def _lags(self) -> dict[TaskId, int]:
        # The later ones win: a lag that is known replaces `UNKNOWN_LAG` of the same task.
        return self._on_disk | self.standbys.lags | self._tasks.restoring
