"""Connect room: the connectors of an app on one worker, beside its tasks and agents.

The group's leader asks each source for its parts and deals them to tasks. A dealing is a set of
records in `<app>-connect-configs`, written by the leader's own commit, so that a leader which was
replaced can't write one. It counts from the next round of the group on, up to an offset of that
topic which the leader names. Tasks are slots, which the group places as it places partitions.

Rule: what a round changes is carried out at once where something ends, and in the background where
something begins, as offsets have to be read first. Not done here: the calls of connectors
(`connect_tasks`), and the commit (`worker`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from streamlog import repeated
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.connect.declared_connectors import Connector, SourceConnector
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    PauseTask,
    StartTask,
    StopTask,
)
from streamlog.connect_tasks.task_figures import SinkFigures, sum_figures
from streamlog.errors import UnknownMember, quantity
from streamlog.processing.outbox import SinkBatch
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.worker.assignment.streams_assignor import StreamsAssignor
from streamlog.worker.commit.commit import SinkWriter
from streamlog.worker.connect.app_herder import AppHerder, TaskCommand
from streamlog.worker.connect.connect_metrics import ConnectorFigures, with_ended
from streamlog.worker.connect.sink_group import SinkGroup, purge_until_cancelled
from streamlog.worker.connect.source_slots import Discovery, SlotKey, SourceSlots, decode_parts
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.program import Program
from streamlog.worker.task_deps import TaskDeps

logger = repeated.logger(__name__)


class ConnectRoom:
    """The connectors of this worker; an async context manager."""

    def __init__(
        self,
        program: Program,
        counts: Mapping[str, int],
        deps: TaskDeps,
        exchange: StreamsAssignor,
        *,
        instance_id: str | None,
    ) -> None:
        """Create the room of a worker that has not joined its group yet."""
        self._program, self._deps, self._exchange = program, deps, exchange
        self._instance_id = instance_id
        self._sinks = {each.name: each for each in program.sink_connectors}
        self._groups: dict[SlotKey, tuple[SinkGroup, asyncio.Task[None]]] = {}
        self._ended: dict[SlotKey, SinkFigures] = {}
        """What tasks of sinks have done that ended here."""
        sources = program.source_connectors
        self._commands: deque[TaskCommand] = deque()
        """What the herder wants and is not carried out yet."""
        self._wanted: dict[SlotKey, StartTask] = {}
        """The tasks that have to run here."""
        self._begun: set[SlotKey] = set()
        """The tasks of sinks that the herder knows to run."""
        self.herding = AppHerder(
            program,
            counts,
            deps,
            exchange,
            do=self._commands.append,
            discover=self._discover,
            is_settled=self._is_settled,
        )
        """Decides about the connectors, and answers operators."""
        self._slots = SourceSlots(
            sources,
            clock=deps.clock,
            background=deps.background,
            offsets=self.herding.offsets,
            offsets_topic=self.herding.offsets_topic,
            follower=self.herding.offsets_log,
            count=self._count,
            # The worker's loop may be in a poll that has nothing to return.
            on_full=deps.consumer.wakeup,
        )
        self._discovery = Discovery(
            sources,
            deps.clock,
            deps.background,
            on_parts=self.herding.on_parts,
            on_failure=self.herding.on_no_parts,
        )
        self._followers: list[asyncio.Task[None]] = []
        self._given: dict[str, list[int]] = {}
        self._generation: int | None = None
        self._starting: asyncio.Task[None] | None = None
        self._is_over = False
        self._own: dict[tuple[str, str], int] = {}
        """What connectors count themselves: name and what to the sum."""

    @property
    def has_sources(self) -> bool:
        """Whether the app has sources."""
        return bool(self._program.source_connectors)

    @property
    def slots(self) -> SourceSlots:
        """The source tasks of this worker."""
        return self._slots

    @property
    def sink_groups(self) -> list[SinkGroup]:
        """The sink tasks of this worker."""
        return [group for group, _ in self._groups.values()]

    async def __aenter__(self) -> Self:
        """Create the topics and read them."""
        self._exchange.takes_slots = True
        self._exchange.slot_counts = self.herding.slot_counts
        self._followers += await self.herding.open()
        own = [each for each in self._sinks.values() if each.is_own_topic]
        if own:
            purging = purge_until_cancelled(
                self._deps.log,
                self._program.app_id,
                own,
                is_due=lambda: self._deps.consumer.is_leader,
            )
            self._followers.append(self._deps.background.create_task(purging, name="purge"))
        return self

    def figures(self) -> ConnectorFigures:
        """Return the connectors as they are now, for metrics."""
        sources = {(task.name, task.number): task for task in self._slots.tasks}
        sinks = {(each.connector.name, each.number): each for each in self.sink_groups}
        return ConnectorFigures(
            sources=sources,
            sinks=sinks,
            read=with_ended(
                self._slots.ended, {key: task.figures() for key, task in sources.items()}
            ),
            written=with_ended(
                self._ended, {key: each.runner.figures for key, each in sinks.items()}
            ),
            own=self._own,
            herder=self.herding.herder,
        )

    def sights(self) -> dict[str, Sight]:
        """Return the progress of each sink task, for the watchdog."""
        return {
            f"sink {group.connector.name} {group.number}": Sight(group.runner.reached, group.lags())
            for group in self.sink_groups
        }

    def reason(self, who: str) -> str:
        """Return what a sink task waits for; empty if it is not known here."""
        for group in self.sink_groups:
            if who == f"sink {group.connector.name} {group.number}":
                waits_for = group.runner.figures.waits_for
                return waits_for and f"its target does not answer: {waits_for}"
        return ""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        if self._starting is not None:
            self._starting.cancel()
        self.herding.close()
        await self._discovery.close()
        await self._slots.stop_all()
        # After an error nothing is flushed: what is not committed is read again.
        if exc_type is not None:
            for _, running in self._groups.values():
                running.cancel()
        await self._stop_sinks([*self._groups])
        for follower in self._followers:
            follower.cancel()

    async def look(self, commit: Callable[[], Awaitable[bool]]) -> None:
        """Do what is due between two rounds of the worker's loop: what operators have asked for.

        Args:
            commit: makes a last commit for what ends here.
        """
        self.herding.tick()
        if not self._commands or not self._is_settled():
            return
        await self._cancel_start()
        await self._carry_out(commit)
        self._begin()

    @property
    def is_full(self) -> bool:
        """Whether a commit should not wait for its time."""
        return self._slots.is_full or self.herding.has_writes

    # ------------------------------------------------------------------------- rounds

    async def on_round(self, commit: Callable[[], Awaitable[bool]]) -> None:
        """Carry out what a round of the group has given to this worker.

        Args:
            commit: makes a last commit for what ends here.
        """
        try:
            generation = self._deps.consumer.group_metadata().generation_id
        except UnknownMember:
            # The session has ended since the round, as on a machine that stood still. The next poll
            # joins again, and the round that follows drops what was read by this one.
            return
        before, self._generation = self._generation, generation
        self._given = {name: [*numbers] for name, numbers in self._exchange.given_slots.items()}
        until, herding = self._exchange.configs_until, self.herding
        # A start of the round before would begin parts that may have another owner now.
        await self._cancel_start()
        # 1. This worker stood still beyond its session in generation 4. 2. In generation 5 its
        # slots had other owners, which have committed. 3. Generation 6 gives them back: nothing
        # that it read by generation 4 may count.
        has_missed = before is not None and generation != before + 1
        if has_missed:
            await self._slots.stop_all()
            herding.on_round((), until=0, generation=generation, is_leader=False)
        # The leader may have read further. 1. Its dealing moves part p from task 0 here to another
        # worker's. 2. That worker counts it at once. 3. Until this one has read it, p has two.
        await herding.configs_log.read_to(until)
        herding.on_round(
            {ConnectorSlot(name, number) for name, many in self._given.items() for number in many},
            until=until,
            generation=generation,
            is_leader=self._deps.consumer.is_leader,
        )
        # A task whose parts have changed is dropped without a commit: in this generation its parts
        # may be another worker's already. What is only given up has no owner until the next round.
        confirmed = frozenset() if has_missed else herding.herder.own.confirmed
        ended = await self._carry_out(commit, confirmed)
        # Claimed without what ended: the leader may give it to another worker in the next round.
        self._exchange.own_slots = self._given
        self._exchange.own_slots_generation = generation
        released = [key for key in ended if key[1] not in self._given.get(key[0], ())]
        if released or (herding.herder.is_leader and herding.herder.own.has_uncounted):
            self._deps.consumer.enforce_rebalance()
        self._begin()
        herding.ready.set()

    async def start_over(self) -> None:
        """Drop everything that is not committed, as the worker's commit was undone."""
        self.herding.undone()
        await self._slots.stop_all()

    def begin_again(self) -> None:
        """Start what was dropped, from the offsets that the log has."""
        if self._starting is None or self._starting.done():
            self._starting = self._deps.background.create_task(self._start(), name="connectors")

    async def finish(self) -> None:
        """End the reading of sources; what they hold waits for the last commit."""
        self._is_over = True
        if self._starting is not None:
            self._starting.cancel()
        await self._slots.finish()
        for group, _ in self._groups.values():
            group.stop()

    # ------------------------------------------------------------------------- commits

    def take(self) -> tuple[list[SinkBatch], list[SinkBatch]]:
        """Return what belongs to the present commit: records, and offsets with dealings.

        Nothing if a round has begun whose consequences are not carried out: what is held may be
        another worker's by now.
        """
        if self._deps.consumer.group_metadata().generation_id != self._generation:
            return [], []
        # Dealings go with the offsets: outside of a transaction, too, they follow the records.
        records, offsets = self._slots.take()
        return records, [*offsets, *self.herding.take()]

    def counted(self) -> None:
        """Note that the commit has succeeded.

        Raises:
            ProcessingError: a `committed` of a source raised.
        """
        self.herding.counted()
        self._slots.count()

    async def write_offsets(self, offsets: Sequence[SinkBatch]) -> None:
        """Write offsets outside of a transaction, once their records are acknowledged."""
        if offsets:
            writer = SinkWriter(self._deps.producer)
            await writer.write(offsets)
            await writer.flush()

    @property
    def fence(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """An offset for a transaction that has no other: by it the group checks this worker."""
        if not self.has_sources and not self.herding.is_writing:
            return {}
        return {TopicPartition(self.herding.configs_topic, 0): OffsetAndMetadata(0)}

    # ------------------------------------------------------------------------- inside

    def _is_settled(self) -> bool:
        """Return whether this worker is a member, and the last round is carried out."""
        try:
            generation = self._deps.consumer.group_metadata().generation_id
        except UnknownMember:
            return False
        return self._generation is not None and generation == self._generation

    async def _carry_out(
        self,
        commit: Callable[[], Awaitable[bool]],
        confirmed: Collection[ConnectorSlot] | None = None,
    ) -> set[SlotKey]:
        """Carry out what the herder wants to end or to pause; returns the slots that ended.

        Args:
            commit: makes a last commit for what ends.
            confirmed: the tasks whose parts no other task has; None for all.
        """
        ended: set[SlotKey] = set()
        while self._commands:
            match self._commands.popleft():
                case StartTask(slot) as started:
                    self._wanted[slot] = started
                case StopTask(slot):
                    self._wanted.pop(slot, None)
                    ended.add(slot)
                case PauseTask(slot, is_paused) if slot in self._wanted:
                    self._wanted[slot] = replace(self._wanted[slot], is_paused=is_paused)
                    self._slots.pause(slot, is_paused=is_paused)
        kept = ended if confirmed is None else ended & set(confirmed)
        await self._slots.stop(ended - kept)
        gone = self._slots.running(kept)
        if gone:
            # Ended first: what a source has handed over is in the last commit.
            await self._slots.end(gone)
            await commit()
            await self._slots.stop(gone)
        await self._stop_sinks([key for key in self._groups if key in ended or self._rests(key)])
        self._begun -= ended
        return ended

    def _rests(self, key: SlotKey) -> bool:
        """Return whether a task of this worker is paused."""
        return key in self._wanted and self._wanted[key].is_paused

    def _discover(self, name: str) -> None:
        self._discovery.ask(name)

    async def _cancel_start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])

    def _begin(self) -> None:
        """Start what has to run and does not: sources in the background, behind their offsets."""
        if not self._is_over:
            self._start_sinks()
            self._starting = self._deps.background.create_task(self._start(), name="connectors")

    async def _start(self) -> None:
        """Start the source tasks of this worker, when their offsets are read."""
        wanted = {
            key: decode_parts(task.settings)
            for key, task in self._wanted.items()
            if key[0] not in self._sinks
        }
        started = await self._slots.start(wanted, paused=[*filter(self._rests, wanted)])
        for name, number in started:
            connector = self.herding.declared[name]
            self.herding.began(ConnectorSlot(name, number))
            await self._note(connector, number)
        if started:
            logger.info("connectors: %s of sources", quantity(len(wanted), "task"))

    async def _note(self, connector: Connector, number: int) -> None:
        """Note the topics of a connector: all that it declares."""
        specs = (
            [*connector.topics.values()]
            if isinstance(connector, SourceConnector)
            else connector.topics
        )
        slot = ConnectorSlot(connector.name, number)
        await self.herding.connector_topics.note(slot, [spec.name for spec in specs])

    def _start_sinks(self) -> None:
        for key in [each for each in self._wanted if each[0] in self._sinks]:
            if key not in self._groups and not self._rests(key):
                self._start_sink(key)
            if key not in self._begun:
                self._begun.add(key)
                self.herding.began(ConnectorSlot(*key))
                noting = self._note(self._sinks[key[0]], key[1])
                self._deps.background.create_task(noting, name="connect topics")

    def _start_sink(self, key: SlotKey) -> None:
        name, number = key
        group = SinkGroup(
            self._sinks[name],
            number,
            app_id=self._program.app_id,
            log=self._deps.log,
            producer=self._deps.producer,
            clock=self._deps.clock,
            instance_id=self._instance_id,
            count=self._count,
            on_step=self._on_sink_step,
            source_lost=self._program.source_settings(self._sinks[name].topics),
        )
        running = self._deps.background.create_task(group.run(), name=f"sink {name} {number}")
        self._groups[key] = group, running

    def _on_sink_step(self, step: str) -> None:
        self._deps.on_step(f"sink: {step}")

    async def _stop_sinks(self, keys: Sequence[SlotKey]) -> None:
        ended = {key: self._groups.pop(key) for key in keys}
        for group, _ in ended.values():
            group.stop()
        if ended:
            await asyncio.wait([running for _, running in ended.values()])
        for key, (group, _) in ended.items():
            before = [self._ended[key]] if key in self._ended else []
            self._ended[key] = sum_figures(group.runner.figures, before)
            self._ended[key].waits_for = ""

    def _count(self, name: str, what: str, by: int) -> None:
        self._own[name, what] = self._own.get((name, what), 0) + by
