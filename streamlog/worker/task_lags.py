"""Copies: what this worker has of the state of tasks that it does not run, or does not run yet.

On its disk from before, as a standby, or while it is restored; the exchange tells the leader how
far each is behind, so that tasks go where their state is. A worker that has become ready for a task
asks its group for a round. Not done here: deciding (`moves`), following (`standby`).
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from streamlog.client.consumer import Consumer
from streamlog.processing.task import TaskId
from streamlog.tables.local_disk.task_directory import tasks_with_state
from streamlog.topology import Topology
from streamlog.worker.assignment.rebalance_plan import UNKNOWN_LAG
from streamlog.worker.assignment.streams_assignor import StreamsAssignor
from streamlog.worker.state.standby import StandbyDeps, Standbys
from streamlog.worker.task_deps import TaskDeps
from streamlog.worker.tasks import WorkerTasks

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
