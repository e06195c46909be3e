"""TaskKeeper: the tasks that this process runs, started and stopped as the herder says.

A task of a source has a transactional producer of its own, as in Kafka Connect (KIP-618): its id
names group, connector and task, so a task that still runs in an older process is fenced before its
offsets are read. Its records and offsets are one transaction, which the coordinator of the workers'
group takes only in the generation that gave the task its parts: so a part that moves from one task
to another has one reader as well. A task of a sink is a member of the group `connect-NAME`.

Rule: what stops has committed and ended before anything starts, since a part may move from one task
to another. Not done here: the decisions (`herding`), and the connectors' calls (`connect_tasks`).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Final, Protocol, TypeVar

from streamlog import repeated
from streamlog.client.offset_metadata import GroupMetadata
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.connect.connector_errors import BadRecord, BadRecords, Refused
from streamlog.connect.declared_connectors import SinkConnector, SourceConnector
from streamlog.connect.herding.herder import Herder
from streamlog.connect.herding.herder_requests import ConnectorSlot, PauseTask, StartTask, StopTask
from streamlog.connect.herding.own_tasks import REFUSED_WAITS, RESTART_WAITS, RestartWaits
from streamlog.connect.parts import OffsetBook, encode_offset
from streamlog.connect.source import SourceOffset, SourcePartition
from streamlog.connect_service.service_group import ServiceGroup
from streamlog.connect_tasks.carried import SourceCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.part_reader import HeldBudget, ReaderDeps
from streamlog.connect_tasks.source_task import SourceTask
from streamlog.connect_tasks.task_figures import ReaderFigures, SinkFigures, sum_figures
from streamlog.errors import ConfigError, SerdeError, TransactionAborted
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.outbox import SinkBatch
from streamlog.topology import dead_letter_topics
from streamlog.worker.commit.commit import SinkWriter
from streamlog.worker.connect.compacted_topic import CompactedTopic
from streamlog.worker.connect.connect_metrics import ConnectorFigures
from streamlog.worker.connect.connector_topics import ConnectorTopics
from streamlog.worker.connect.sink_group import SinkGroup
from streamlog.worker.connect.source_slots import LoopClock, SlotKey, decode_parts
from streamlog.worker.topics.app_topics import declare_topics

logger = repeated.logger(__name__)

STOP_MS: Final = 30_000
"""How long a task may take to commit and end; then it is cancelled."""
COMMIT_MS: Final = 500
"""How often the reads of a source are committed, by default (`offset.flush.interval.ms`)."""
LASTING: Final = (BadRecord, BadRecords, ConfigError, SerdeError)
"""Errors that a restart does not mend."""
REFUSED_MS: Final = 60_000
"""How long a task that the group has refused waits to be stopped by the round that follows."""
SETTLE_MS: Final = 5_000
"""How long a task that stops waits for a rebalance to end before its last commit."""
Command = StartTask | StopTask | PauseTask
HISTORY_MIN: Final = 1_000
"""How many figures of ended tasks may be there before those of deleted connectors are dropped."""
F = TypeVar("F", ReaderFigures, SinkFigures)
Count = Callable[[str, str, int], None]
"""Counts a connector's own figure: the connector, what, and by how many."""


class TaskEvents(Protocol):
    """What happens to tasks, for the herder."""

    def began(self, slot: ConnectorSlot) -> None:
        """A task runs."""

    def failed(
        self, slot: ConnectorSlot, error: Exception, trace: str, waits: RestartWaits | None
    ) -> None:
        """A task has ended with an error; no restart helps if `waits` is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperDeps:
    """What tasks of a service have in common."""

    log: Log
    clock: Clock
    group: ServiceGroup
    """The workers' group, which checks each transaction."""
    group_id: str
    offsets: OffsetBook
    offsets_topic: str
    follower: CompactedTopic
    """Reads the offsets."""
    letters: Producer
    """Writes dead letters of sinks."""
    declare: Callable[[str, Mapping[str, str]], SourceConnector | SinkConnector]
    """Makes a connector of its settings, with secrets."""
    commit_ms: int = COMMIT_MS
    topics: ConnectorTopics
    """Notes the topics that tasks use."""
    herder: Herder
    """Knows which connectors exist."""


class _RefusedByGroup(Exception):
    """The group has gone on without this worker, so the transaction is aborted."""


class _SourceRun:
    """One task of a source, from its producer to its last commit."""

    def __init__(
        self,
        slot: ConnectorSlot,
        connector: SourceConnector,
        deps: KeeperDeps,
        count: Count,
        *,
        generation: int,
    ) -> None:
        self.generation = generation
        """The generation of the group that gave the task its parts, or has left them with it."""
        self._slot, self._connector, self._deps = slot, connector, deps
        self._count = partial(count, slot.connector)
        self._stop, self._woken = asyncio.Event(), asyncio.Event()
        self._is_quiet = True
        """Whether nothing waits for a commit."""
        self.task: SourceTask | None = None
        """None until its offsets are read."""
        self._is_paused = False
        self._is_lost = False
        """Whether its parts may be another task's: nothing of it can be committed any more."""
        self._known: set[str] = set()
        """Topics that exist."""

    def stop(self) -> None:
        self._stop.set()
        self._woken.set()

    def on_round(self, generation: int, *, is_confirmed: bool) -> None:
        """Note a round of the group, and whether it leaves the parts with this task."""
        # For good: a later round speaks of the task that has followed this one.
        self._is_lost = self._is_lost or not is_confirmed
        if not self._is_lost:
            self.generation = generation

    def pause(self, *, is_paused: bool) -> None:
        self._is_paused = is_paused
        if self.task is not None:
            self.task.pause(is_paused=is_paused)

    def figures(self) -> ReaderFigures:
        """Return what the task has done."""
        return ReaderFigures() if self.task is None else self.task.figures()

    async def run(self, settings: Mapping[str, str], began: Callable[[], None]) -> None:
        name, number = self._slot
        identity = f"{self._deps.group_id}-{name}-{number}"
        # 1. The producer opens: an older task of this id is fenced, its transaction aborted.
        # 2. Only then the offsets are read: what they say is final.
        async with self._deps.log.producer(transactional_id=identity) as producer:
            await self._deps.follower.catch_up()
            self.task = task = self._new_task(settings)
            task.pause(is_paused=self._is_paused)
            # Not of a group: its error is looked at below, once its last reads are committed.
            reading = asyncio.get_running_loop().create_task(task.run(), name=f"source {name}")
            began()
            try:
                await self._commit_until_stopped(task, reading, producer)
            except _RefusedByGroup as refused:
                # 1. This worker stood still beyond its session. 2. Its parts have another owner.
                # 3. It will hear so when it joins again: an error to show would be none.
                logger.info("source %s-%d has another owner: %s", *self._slot, refused)
                reading.cancel()
                async with asyncio.timeout(REFUSED_MS / 1000):
                    await self._stop.wait()
                return
            finally:
                reading.cancel()
                await asyncio.wait([reading])
            # What was read before an error counts: the task begins again behind it.
            await self._commit_last(task, producer)
            if not reading.cancelled():
                reading.result()

    def _new_task(self, settings: Mapping[str, str]) -> SourceTask:
        name, number = self._slot
        clock = LoopClock(self._deps.clock)
        reader = ReaderDeps(
            name=name,
            source=self._connector.source,
            context=ConnectorContext(name, number, clock, count=self._count),
            carrier=SourceCarrier(self._connector, number),
            clock=clock,
            chance=random,
            # Of this task alone: a source that waits for its log must not stop the others.
            budget=HeldBudget(),
            on_read=self._on_read,
            on_full=self._woken.set,
        )
        parts = [(part, self._offset(part)) for part in decode_parts(settings)]
        return SourceTask(reader, number, parts)

    def _offset(self, part: SourcePartition) -> SourceOffset | None:
        """Return where a part continues; None if it was never read: the source decides then."""
        name, offsets = self._slot.connector, self._deps.offsets
        own = offsets.offset(name, part)
        # Only until the first commit: from then on the part has an offset of its own.
        return own or self._connector.left_offset(part, offsets.offsets_of(name))

    async def _commit_until_stopped(
        self, task: SourceTask, reading: asyncio.Task[None], producer: Producer
    ) -> None:
        """Commit what is read: at once behind a pause, then every `commit_ms`, or when one is full.

        While nothing is read, nothing wakes: a service may have hundreds of quiet sources.
        """
        clock, due_ms, could_commit = self._deps.clock, 0, True
        reading.add_done_callback(lambda _: self._woken.set())
        while not self._stop.is_set() and not (reading.done() and reading.exception()):
            self._woken.clear()
            self._is_quiet = task.is_empty
            wait_ms = due_ms - clock.now_ms()
            # A refused commit is tried again in its time: the group is between two rounds.
            is_due = wait_ms <= 0 or (task.is_full and could_commit)
            if is_due and not self._is_quiet:
                could_commit = await self._commit(task, producer)
                due_ms = clock.now_ms() + self._deps.commit_ms
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._is_quiet else wait_ms / 1000):
                    await self._woken.wait()

    def _on_read(self) -> None:
        # Of many reads only the first wakes the task: the others wait for the same commit.
        if self._is_quiet:
            self._woken.set()

    async def _commit_last(self, task: SourceTask, producer: Producer) -> None:
        """Commit once more, if the parts are still this task's when the group has settled."""
        clock = self._deps.clock
        deadline_ms = clock.now_ms() + SETTLE_MS
        # 1. This task is to stop while the group is between two rounds. 2. The next one begins, and
        # waits until what it does not give to this worker has ended: this task, too. 3. If that
        # round gives its parts away, to wait until the group has settled is to wait for itself.
        while not (task.is_empty or self._is_lost or await self._commit(task, producer)):
            if self._deps.group.is_settled or clock.now_ms() >= deadline_ms:
                # The group has gone on: what is held is read again elsewhere.
                return
            await self._deps.group.moved_on()

    async def _commit(self, task: SourceTask, producer: Producer) -> bool:
        """Write what is held, and the offsets behind it, in one transaction.

        Returns whether that was possible. If not, the group is between two rounds, or the last one
        is not carried out here: what is held may be another task's by now.
        """
        with self._deps.group.staying(self.generation) as member:
            if member is not None:
                await self._commit_as(member, task, producer)
            return member is not None

    async def _commit_as(self, member: GroupMetadata, task: SourceTask, producer: Producer) -> None:
        name, book = self._slot.connector, self._deps.offsets
        taken = task.take()
        if not taken:
            return
        keys: list[bytes | None] = [book.key(name, reader.part) for reader, _ in taken]
        values = [encode_offset(reads[-1].offset) for _, reads in taken]
        times = [self._deps.clock.wall_ms()] * len(keys)
        records = [batch for _, reads in taken for read in reads for batch in read.records.batches]
        await self._create_topics({batch.topic for batch in records})
        offsets = SinkBatch(self._deps.offsets_topic, None, times, keys, values)
        async with producer.transaction() as transaction:
            writer = SinkWriter(producer)
            await writer.write([*records, offsets])
            await writer.flush()
            for refused in writer.take_refusals():
                raise refused.error
            try:
                await self._deps.group.fence(transaction, member)
            except TransactionAborted as error:
                raise _RefusedByGroup(str(error)) from error
        task.count()
        # Behind the commit: a topic that nothing was written to is none of its topics.
        await self._deps.topics.note(self._slot, {batch.topic for batch in records})

    async def _create_topics(self, names: set[str]) -> None:
        """Create the topics that are written for the first time, if they do not exist."""
        new = names - self._known
        if new:
            # A transform may name any topic, so they are known only now.
            letters = _letters_of(self._connector)
            specs = {name: letters.get(name) or self._connector.topic_of(name) for name in new}
            await declare_topics(self._deps.log, specs)
            self._known |= new


def _letters_of(connector: SourceConnector | SinkConnector) -> dict[str, TopicSpec]:
    """Return the topic of a connector's dead letters, by name; none without such a policy."""
    return dead_letter_topics([connector.policy.dlq_topic(connector.name)])


class _SinkRun:
    """One task of a sink; a paused one has left its group."""

    def __init__(
        self, slot: ConnectorSlot, connector: SinkConnector, deps: KeeperDeps, count: Count
    ) -> None:
        self._slot, self._connector, self._deps, self._count = slot, connector, deps, count
        self._stop, self._changed = asyncio.Event(), asyncio.Event()
        self._is_paused = False
        self.group: SinkGroup | None = None
        """None while the task is paused."""
        self._before = SinkFigures()
        """What its earlier members of the group have done."""

    def stop(self) -> None:
        self._stop.set()
        self._look()

    def pause(self, *, is_paused: bool) -> None:
        self._is_paused = is_paused
        self._look()

    async def run(self, _settings: Mapping[str, str], began: Callable[[], None]) -> None:
        # A sink may be there before the source that feeds it.
        specs = {spec.name: spec for spec in self._connector.topics}
        await declare_topics(self._deps.log, {**_letters_of(self._connector), **specs})
        began()
        await self._deps.topics.note(self._slot, list(specs))
        while not self._stop.is_set():
            self._changed.clear()
            if self._is_paused:
                await self._changed.wait()
                continue
            self.group = SinkGroup(
                self._connector,
                self._slot.task,
                app_id="connect",
                log=self._deps.log,
                producer=self._deps.letters,
                clock=self._deps.clock,
                instance_id=None,
                count=self._count,
                on_step=_unwatched,
            )
            await self.group.run()
            self._before, self.group = self.figures(), None

    def figures(self) -> SinkFigures:
        """Return what the task has done."""
        present = [] if self.group is None else [self.group.runner.figures]
        return sum_figures(self._before, present)

    def _look(self) -> None:
        self._changed.set()
        if self.group is not None and (self._is_paused or self._stop.is_set()):
            self.group.stop()


def _unwatched(_step: str) -> None:
    """No test watches the steps of this sink."""


class _History:
    """What the tasks of this process have done since its start."""

    def __init__(self, herder: Herder) -> None:
        self._herder = herder
        self._runs: dict[ConnectorSlot, list[_SourceRun | _SinkRun]] = {}
        """Tasks that have not ended; a failed one may end after its successor begins."""
        self._read: dict[SlotKey, ReaderFigures] = {}
        self._written: dict[SlotKey, SinkFigures] = {}
        self._own: dict[tuple[str, str], int] = {}
        self._size_max = HISTORY_MIN

    def begin(self, slot: ConnectorSlot, run: _SourceRun | _SinkRun) -> None:
        """Note a task that begins."""
        self._runs.setdefault(slot, []).append(run)

    def end(self, slot: ConnectorSlot, run: _SourceRun | _SinkRun) -> None:
        """Keep the figures of a task that has ended."""
        runs = self._runs[slot]
        runs.remove(run)
        if not runs:
            del self._runs[slot]
        if isinstance(run, _SourceRun):
            _add(self._read, slot, run.figures())
        else:
            _add(self._written, slot, run.figures())
        # Names come from outside: what deleted connectors have done must not pile up.
        if self._size() > self._size_max:
            self._forget_deleted()
            self._size_max = max(2 * self._size(), HISTORY_MIN)

    def count(self, name: str, what: str, by: int) -> None:
        """Count a connector's own figure."""
        self._own[name, what] = self._own.get((name, what), 0) + by

    def figures(self) -> ConnectorFigures:
        """Return the figures of all tasks, and those at work."""
        self._forget_deleted()
        sources: dict[SlotKey, SourceTask] = {}
        sinks: dict[SlotKey, SinkGroup] = {}
        read, written = {**self._read}, {**self._written}
        known = self._herder.configs.connectors
        # The tasks of a deleted connector may not have ended yet.
        for slot, run in [each for each in self.runs() if each[0].connector in known]:
            if isinstance(run, _SourceRun):
                _add(read, slot, run.figures())
                if run.task is not None:
                    sources[slot] = run.task
            else:
                _add(written, slot, run.figures())
                if run.group is not None:
                    sinks[slot] = run.group
        return ConnectorFigures(
            sources=sources,
            sinks=sinks,
            read=read,
            written=written,
            own=self._own,
            herder=self._herder,
        )

    def runs(self) -> list[tuple[ConnectorSlot, _SourceRun | _SinkRun]]:
        """Return the tasks that have not ended."""
        return [(slot, run) for slot, runs in self._runs.items() for run in runs]

    def _size(self) -> int:
        return len(self._read) + len(self._written) + len(self._own)

    def _forget_deleted(self) -> None:
        known = self._herder.configs.connectors
        self._read = {each: done for each, done in self._read.items() if each[0] in known}
        self._written = {each: done for each, done in self._written.items() if each[0] in known}
        self._own = {each: count for each, count in self._own.items() if each[0] in known}


def _add(sums: dict[SlotKey, F], slot: SlotKey, figures: F) -> None:
    before = [sums[slot]] if slot in sums else []
    sums[slot] = sum_figures(figures, before)
    sums[slot].waits_for = ""


@dataclass(slots=True)
class _Running:
    run: _SourceRun | _SinkRun
    task: asyncio.Task[None]


class TaskKeeper:
    """Carries out the herder's commands, one after another."""

    def __init__(self, deps: KeeperDeps, events: TaskEvents, background: asyncio.TaskGroup) -> None:
        """`background` runs the tasks; their errors go to `events`."""
        self._deps, self._events, self._background = deps, events, background
        self._commands: asyncio.Queue[Command | asyncio.Event] = asyncio.Queue()
        self._generation = -1
        self._running: dict[ConnectorSlot, _Running] = {}
        self._history = _History(deps.herder)

    def figures(self) -> ConnectorFigures:
        """Return the connectors as they are now, for metrics."""
        return self._history.figures()

    def do(self, command: Command) -> None:
        """Carry out a command behind those before it."""
        self._commands.put_nowait(command)

    def confirm(self, generation: int, slots: Collection[ConnectorSlot]) -> None:
        """Note a round of the group.

        Args:
            generation: the generation that it has begun; tasks which start now belong to it.
            slots: the tasks whose parts no other task has in it; of all others nothing may be
                committed any more.
        """
        self._generation = generation
        # Those as well that are about to end: they are no longer among `_running`.
        for slot, run in self._history.runs():
            if isinstance(run, _SourceRun):
                run.on_round(generation, is_confirmed=slot in slots)

    async def settled(self) -> None:
        """Wait until all commands so far are carried out: what was to stop has ended."""
        reached = asyncio.Event()
        self._commands.put_nowait(reached)
        await reached.wait()

    async def run(self) -> None:
        """Carry out commands until cancelled; then all tasks commit and end."""
        try:
            while True:
                command: Command | asyncio.Event | None = await self._commands.get()
                stops: list[ConnectorSlot] = []
                # Stops that stand side by side run side by side: each may take seconds.
                while isinstance(command, StopTask):
                    stops.append(command.slot)
                    command = None if self._commands.empty() else self._commands.get_nowait()
                # 1. Part p moves from task 0 to task 1: stop 0, start 1. 2. Task 0 commits p's
                # offset as its last act. 3. Task 1 reads it. In any other order p is read twice.
                await self._stop(stops)
                if isinstance(command, asyncio.Event):
                    command.set()
                elif command is not None:
                    self._carry_out(command)
        finally:
            await self._stop(list(self._running))

    def _carry_out(self, command: StartTask | PauseTask) -> None:
        if isinstance(command, PauseTask):
            found = self._running.get(command.slot)
            if found is not None:
                found.run.pause(is_paused=command.is_paused)
            return
        try:
            connector = self._deps.declare(command.slot.connector, command.settings)
        except ConfigError as error:
            self._events.failed(command.slot, error, str(error), None)
            return
        run: _SourceRun | _SinkRun
        if isinstance(connector, SourceConnector):
            run = _SourceRun(
                command.slot,
                connector,
                self._deps,
                self._history.count,
                generation=self._generation,
            )
        else:
            run = _SinkRun(command.slot, connector, self._deps, self._history.count)
        self._history.begin(command.slot, run)
        run.pause(is_paused=command.is_paused)
        task = self._background.create_task(self._watch(command, run), name=str(command.slot))
        self._running[command.slot] = _Running(run, task)

    async def _watch(self, command: StartTask, run: _SourceRun | _SinkRun) -> None:
        slot = command.slot
        try:
            await run.run(command.settings, lambda: self._events.began(slot))
        except Exception as error:  # noqa: BLE001 - any error of a connector fails its task alone
            # A task that was stopped meanwhile is no longer listed, and one that has replaced it
            # must not lose its place for its sake.
            mine = self._running.get(slot)
            if mine is not None and mine.run is run:
                del self._running[slot]
            trace = "".join(traceback.format_exception(error))
            self._events.failed(slot, error, trace, _restart_waits(error))
        finally:
            self._history.end(slot, run)

    async def _stop(self, slots: list[ConnectorSlot]) -> None:
        ending = [found for slot in slots if (found := self._running.pop(slot, None)) is not None]
        # All are asked before the first is waited for.
        for each in ending:
            each.run.stop()
        if not ending:
            return
        tasks = [each.task for each in ending]
        _, late = await asyncio.wait(tasks, timeout=STOP_MS / 1000)
        # What it held was not committed, so nothing of it counts.
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


def _restart_waits(error: BaseException | None) -> RestartWaits | None:
    """Return how long to wait for a restart; None if a record or a setting is wrong."""
    while error is not None:
        if isinstance(error, Refused):
            return REFUSED_WAITS
        if isinstance(error, LASTING):
            return None
        error = error.__cause__
    return RESTART_WAITS
