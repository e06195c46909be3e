"""OwnTasks: which tasks a worker of Connect runs, and in which state.

A pure machine. A round of the group gives slots to this worker, and the offset of the configs topic
up to which dealings count; settings of tasks beyond it wait for the next round, so no part has two
readers. Pausing, stopping and restarting need no round: they take effect as their records are read.

A task that failed is started again after 1, 2, 4 ... 300 s if its error may pass. A task that has
run for `SOUND_MS` since is as good as new: its next failure waits 1 s again. Time is passed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from streamlog.connect.herding.configs import TASK_PARTS, ConnectConfigs
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    Effect,
    PauseTask,
    StartTask,
    StopTask,
    WriteStatus,
)
from streamlog.connect.herding.lifecycle import VERSION, ConnectorState, TargetState, next_state
from streamlog.connect.herding.statuses import ConnectStatuses, Status, short_trace
from streamlog.replace import replace


class RestartWaits(NamedTuple):
    """How long a failed task waits: first, and at most; the wait doubles with each failure."""

    first_ms: int
    longest_ms: int


RESTART_WAITS: Final = RestartWaits(1_000, 300_000)
REFUSED_WAITS: Final = RestartWaits(60_000, 900_000)
"""Of a task that was refused: each attempt is a wrong login, and many of them lock a user out."""
SOUND_MS: Final = 600_000
"""How long a task has to run until its earlier failures are forgotten."""
Settings: TypeAlias = Mapping[str, str]
AUTO_RESTART: Final = "errors.auto.restart"
"""Ours: whether a failed task is started again by itself; true by default."""


@dataclass(slots=True)
class Restarts:
    """When a failed task is due to be started again."""

    failures: int = 0
    due_ms: int | None = None
    """The time of the next restart; None if the task runs, or an operator has to restart it."""
    running_since_ms: int | None = None
    """When it began to run; None since its last failure."""

    def began(self, now_ms: int) -> None:
        """Note that the task runs."""
        self.running_since_ms, self.due_ms = now_ms, None

    def failed(self, now_ms: int, waits: RestartWaits | None) -> int | None:
        """Note a failure; returns the wait until the restart in milliseconds, None for none.

        Args:
            now_ms: the time.
            waits: how long to wait; None if no restart helps.
        """
        since_ms, self.running_since_ms = self.running_since_ms, None
        if since_ms is not None and now_ms - since_ms >= SOUND_MS:
            self.failures = 0
        self.failures += 1
        wait_ms = None if waits is None else restart_delay_ms(self.failures, waits)
        self.due_ms = None if wait_ms is None else now_ms + wait_ms
        return wait_ms

    def is_due(self, now_ms: int) -> bool:
        """Return whether the task is to be started now."""
        return self.due_ms is not None and now_ms >= self.due_ms


def restart_delay_ms(failures: int, waits: RestartWaits = RESTART_WAITS) -> int:
    """Return how long a task waits after its `failures`th failure in a row, from 1 on."""
    # The exponent is bounded as well: 2 ** 100,000 would be computed only to be cut off.
    doublings = min(failures - 1, waits.longest_ms.bit_length())
    return min(waits.first_ms << doublings, waits.longest_ms)


def outlook(connector: str, wait_ms: int | None) -> str:
    """Return what becomes of a failed task, for its status and the log."""
    if wait_ms is None:
        return f"it stays FAILED until `streamlog connectors restart {connector} --failed`"
    return f"it starts again by itself in {wait_ms // 1000} s"


@dataclass(slots=True)
class StartCounts:
    """How often a worker has begun to start something, and what became of it."""

    attempts: int = 0
    successes: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Running:
    settings: Settings
    state: ConnectorState
    is_paused: bool
    """What the shell was told last."""
    restarts: Restarts = field(default_factory=Restarts)
    is_started: bool = True
    """Whether the shell has it: false for one that has failed."""
    has_begun: bool = False
    """Whether it has run since it was last started."""
    status: Status | None = None
    """What this worker has written about it."""


class OwnTasks:
    """The tasks of one worker."""

    def __init__(self, worker_id: str, configs: ConnectConfigs, statuses: ConnectStatuses) -> None:
        """`worker_id` is HOST:PORT of the worker's REST address."""
        self._worker_id = worker_id
        self._configs = configs
        self._statuses = statuses
        self._slots: frozenset[ConnectorSlot] = frozenset()
        self._slots_of: dict[str, list[ConnectorSlot]] = {}
        """The same by connector."""
        self._until = 0
        self._generation = 0
        self._dealings: dict[str, list[tuple[int, Sequence[Settings]]]] = {}
        self.confirmed: frozenset[ConnectorSlot] = frozenset()
        """The tasks that ran before the last round and whose parts it has given to no other one:
        what they have read so far may still be committed, even of those that end with it."""
        self._running: dict[ConnectorSlot, _Running] = {}
        self.starts = StartCounts()

    def dealt(self, connector: str, offset: int) -> None:
        """Note the dealing of a connector that was committed at an offset."""
        tasks = list(self._configs.tasks.get(connector, ()))
        self._dealings.setdefault(connector, []).append((offset, tasks))

    def forget(self, connector: str) -> None:
        """Forget the dealings of a connector that was deleted."""
        self._dealings.pop(connector, None)

    def on_round(
        self, slots: Collection[ConnectorSlot], until: int, generation: int
    ) -> Iterator[Effect]:
        """Take the slots that a round gives; yields what to stop before what to start.

        Args:
            slots: the slots of this worker.
            until: the offset up to which dealings count; records up to it have been replayed.
            generation: the group's generation.
        """
        self._slots, self._until, self._generation = frozenset(slots), until, generation
        self._slots_of = {}
        for slot in self._slots:
            self._slots_of.setdefault(slot.connector, []).append(slot)
        # 1. Task 0 of this worker reads p; the round counts a dealing by which task 1 of another
        # one reads p. 2. That one reads p's offset behind the round. 3. A last commit of task 0
        # would move the offset once more. But a slot that was only given up has no other owner
        # before the next round.
        self.confirmed = frozenset(
            slot
            for slot, running in self._running.items()
            if _parts(self._dealt(slot)) == _parts(running.settings)
        )
        for dealings in self._dealings.values():
            # Only the last one that counts, and those that wait, are needed from here on.
            counted = sum(offset < until for offset, _ in dealings)
            del dealings[: max(counted - 1, 0)]
        yield from self.settle()

    def settle(self, connector: str | None = None) -> Iterator[Effect]:
        """Yield what brings the tasks to what slots, dealings and target states ask for.

        Args:
            connector: the one whose records have changed; None for all.
        """
        slots = self._slots if connector is None else self._slots_of.get(connector, ())
        wanted = {slot: found for slot in slots if (found := self._wanted(slot)) is not None}
        for slot, running in list(self._running.items()):
            if connector not in (None, slot.connector):
                continue
            if wanted.get(slot) != running.settings:
                is_gone = slot not in wanted
                yield from self._end(slot, running, is_gone=is_gone)
        for slot, settings in sorted(wanted.items()):
            is_paused = self._configs.target(slot.connector) is TargetState.PAUSED
            ours = self._running.get(slot)
            if ours is None:
                self.starts.attempts += 1
                yield StartTask(slot, settings, is_paused)
                self._running[slot] = _Running(settings, ConnectorState.UNASSIGNED, is_paused)
            elif ours.is_started and is_paused != ours.is_paused:
                # By what the shell was told, not by the state: a connector may be resumed while
                # its task is still opening its database, and has no state but UNASSIGNED.
                yield PauseTask(slot, is_paused)
                ours.is_paused = is_paused
                event = "paused" if is_paused else "resumed"
                yield from self._to(slot, ours, next_state(event, ours.state))

    def began(self, slot: ConnectorSlot, now_ms: int) -> Iterator[Effect]:
        """Note that a task of this worker runs."""
        running = self._running.get(slot)
        if running is None:
            return
        running.restarts.began(now_ms)
        self.starts.successes += not running.has_begun
        running.has_begun = True
        is_paused = self._configs.target(slot.connector) is TargetState.PAUSED
        state = ConnectorState.PAUSED if is_paused else next_state("begun", running.state)
        yield from self._to(slot, running, state)

    def failed(
        self, slot: ConnectorSlot, trace: str, now_ms: int, waits: RestartWaits | None
    ) -> Iterator[Effect]:
        """Note that a task of this worker has ended with an error.

        Args:
            slot: the task.
            trace: the error with its traceback.
            now_ms: the time.
            waits: how long to wait for a restart; None if none helps.
        """
        running = self._running.get(slot)
        if running is None:
            return
        is_automatic = running.settings.get(AUTO_RESTART, "true").strip().lower() != "false"
        running.is_started = False
        self.starts.failures += not running.has_begun
        wait_ms = running.restarts.failed(now_ms, waits if is_automatic else None)
        report = f"{trace.rstrip()}\nTask {slot.task}: {outlook(slot.connector, wait_ms)}"
        yield from self._to(slot, running, ConnectorState.FAILED, report)

    def restart(self, slot: ConnectorSlot) -> Iterator[Effect]:
        """Yield what restarts a task of this worker, failed or not."""
        running = self._running.get(slot)
        if running is None:
            return
        # A failed task has ended by itself: its shell has nothing left to stop.
        if running.is_started:
            yield StopTask(slot)
        yield from self._to(slot, running, next_state("restarting", running.state))
        running.is_started, running.has_begun = True, False
        self.starts.attempts += 1
        running.is_paused = self._configs.target(slot.connector) is TargetState.PAUSED
        yield StartTask(slot, running.settings, running.is_paused)

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Yield the restarts that are due."""
        for slot, running in list(self._running.items()):
            if not running.is_started and running.restarts.is_due(now_ms):
                yield from self.restart(slot)

    def contradicted(self, slot: ConnectorSlot, status: Status) -> Iterator[Effect]:
        """Yield the status of a task of this worker again, if a former owner wrote over it.

        Args:
            slot: the task.
            status: what the topic says about it now.
        """
        # 1. Worker a gives task 0 up in generation 5, and is suspended before it writes UNASSIGNED.
        # 2. This worker runs the task since generation 6, and has written RUNNING. 3. Worker a
        # wakes up, and its record comes last.
        ours = self._running.get(slot)
        if ours is None or ours.status is None or slot not in self._slots:
            return
        if status.worker_id != self._worker_id and status.generation <= self._generation:
            yield WriteStatus(slot, replace(ours.status, generation=self._generation))

    def of(self, connector: str) -> list[ConnectorSlot]:
        """Return the slots of a connector that this worker has, running or failed."""
        return sorted(slot for slot in self._running if slot.connector == connector)

    @property
    def states(self) -> Mapping[ConnectorSlot, ConnectorState]:
        """The states of the tasks that this worker has, running or failed."""
        return {slot: running.state for slot, running in self._running.items()}

    def has(self, slot: ConnectorSlot) -> bool:
        """Return whether a round has given the slot to this worker."""
        return slot in self._slots

    def restart_in_ms(self, slot: ConnectorSlot, now_ms: int) -> int | None:
        """Return when a failed task starts again by itself; None if it does not."""
        found = self._running.get(slot)
        due_ms = None if found is None else found.restarts.due_ms
        return None if due_ms is None else due_ms - now_ms

    def state(self, slot: ConnectorSlot) -> ConnectorState | None:
        """Return the state of a task of this worker; None if it has none."""
        found = self._running.get(slot)
        return None if found is None else found.state

    def _wanted(self, slot: ConnectorSlot) -> Settings | None:
        """Return the settings with which a slot's task has to run; None: it must not."""
        name = slot.connector
        if name not in self._configs.connectors:
            return None
        if self._configs.target(name) is TargetState.STOPPED:
            return None
        return self._dealt(slot)

    @property
    def has_uncounted(self) -> bool:
        """Whether there is a dealing that no round has counted yet."""
        return any(
            dealings and dealings[-1][0] >= self._until for dealings in self._dealings.values()
        )

    def is_counted(self, connector: str) -> bool:
        """Return whether the newest dealing of a connector counts, so that no older one does."""
        dealings = self._dealings.get(connector)
        return not dealings or dealings[-1][0] < self._until

    def _dealt(self, slot: ConnectorSlot) -> Settings | None:
        """Return the settings of a slot by the dealing that counts; None: there is no such task."""
        # 1. The leader deals part p from task 0 to task 1, at offset 9. 2. This worker has task 1
        # and reads offset 9 at once. 3. Another worker still reads p in task 0: so p counts only
        # from the round on that says 10, before which that worker has given task 0 up.
        dealings = self._dealings.get(slot.connector, ())
        counting = [tasks for at, tasks in dealings if at < self._until]
        if not counting or slot.task >= len(counting[-1]):
            return None
        return counting[-1][slot.task]

    def _end(self, slot: ConnectorSlot, running: _Running, *, is_gone: bool) -> Iterator[Effect]:
        if running.is_started:
            yield StopTask(slot)
        del self._running[slot]
        # 1. `tasks.max` goes from 2 to 1, and the leader deletes the status of task 1. 2. The round
        # that follows ends task 1 here. A status written now would stay for ever: the leader has
        # deleted it already. So a task that no longer exists gets none.
        exists = slot.task < len(self._configs.tasks.get(slot.connector, ()))
        if is_gone and exists:
            state = next_state("revoked", running.state)
            if state is not running.state:
                yield from self._to(slot, running, state)

    def _to(
        self,
        slot: ConnectorSlot,
        running: _Running,
        state: ConnectorState,
        trace: str | None = None,
    ) -> Iterator[Effect]:
        running.state = state
        status = Status(
            state=state,
            worker_id=self._worker_id,
            generation=self._generation,
            trace=None if trace is None else short_trace(trace),
            version=VERSION,
        )
        if state in (ConnectorState.RUNNING, ConnectorState.PAUSED) or self._statuses.may_write(
            slot, status
        ):
            running.status = status
            yield WriteStatus(slot, status)


def _parts(settings: Settings | None) -> str | None:
    """Return the parts in the settings of a task; None without settings, as no part is read."""
    return None if settings is None else settings.get(TASK_PARTS, "")
