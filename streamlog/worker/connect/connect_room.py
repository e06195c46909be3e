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
from typing import Final, Self

from streamlog import repeated
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.connect.connector_errors import ConnectError
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.connect.herding.configs import TASK_PARTS, ConnectConfigs, task_records
from streamlog.connect.herding.dealing import deal
from streamlog.connect.parts import OffsetBook, part_id
from streamlog.connect.source import SourcePartition
from streamlog.connect_tasks.task_figures import SinkFigures, sum_figures
from streamlog.errors import quantity
from streamlog.processing.outbox import SinkBatch
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.worker.assignment.streams_assignor import StreamsAssignor
from streamlog.worker.commit.commit import SinkWriter
from streamlog.worker.connect.compacted_topic import CompactedTopic
from streamlog.worker.connect.sink_group import SinkGroup, purge_until_cancelled
from streamlog.worker.connect.source_slots import (
    Discovery,
    SlotKey,
    SourceSlots,
    all_slots,
    decode_parts,
    encode_parts,
    slots_of,
)
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.program import Program
from streamlog.worker.task_deps import TaskDeps

logger = repeated.logger(__name__)

OFFSETS_PARTITIONS: Final = 5
"""The partitions of an app's new offsets topic."""


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
        self._sink_slots = {
            # A task without a partition would only cost a member of the group.
            name: min(each.tasks, sum(counts[spec.name] for spec in each.topics))
            for name, each in self._sinks.items()
        }
        self._groups: dict[SlotKey, tuple[SinkGroup, asyncio.Task[None]]] = {}
        self.ended: dict[SlotKey, SinkFigures] = {}
        """What tasks of sinks have done that ended here."""
        sources = program.source_connectors
        self._newest, self._counted = self._new_configs(), self._new_configs()
        self._backlog: deque[LogRecord] = deque()
        """The records of the configs topic that no round has counted yet."""
        self._book = OffsetBook()
        app_id, log = program.app_id, deps.log
        self._configs_topic = f"{app_id}-connect-configs"
        offsets_topic = f"{app_id}-connect-offsets"
        self._configs_log = CompactedTopic(log, self._configs_topic, 1, self._on_config)
        self._offsets_log = CompactedTopic(log, offsets_topic, OFFSETS_PARTITIONS, self._on_offset)
        self._slots = SourceSlots(
            sources,
            clock=deps.clock,
            background=deps.background,
            offsets=self._book,
            offsets_topic=offsets_topic,
            follower=self._offsets_log,
            count=self._count,
            # The worker's loop may be in a poll that has nothing to return.
            on_full=deps.consumer.wakeup,
        )
        self._discovery = Discovery(sources, deps.clock, deps.background, self._on_parts)
        self._followers: list[asyncio.Task[None]] = []
        self._dealings: list[SinkBatch] = []
        self._dealt: list[SinkBatch] = []
        """The dealings of the commit under way."""
        self._given: dict[str, list[int]] = {}
        self._generation: int | None = None
        self._starting: asyncio.Task[None] | None = None
        self._is_leader = self._is_over = False
        self.figures: dict[tuple[str, str], int] = {}
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
        self._exchange.slot_counts = self._slot_counts
        if self.has_sources:
            for follower in (self._configs_log, self._offsets_log):
                await follower.open()
                running = self._deps.background.create_task(follower.run(), name="connect topic")
                self._followers.append(running)
            # Before the worker joins: a leader without the dealing would deal everything anew.
            await self._configs_log.catch_up()
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
        await self._discovery.close()
        await self._slots.stop_all()
        # After an error nothing is flushed: what is not committed is read again.
        if exc_type is not None:
            for _, running in self._groups.values():
                running.cancel()
        await self._stop_sinks([*self._groups])
        for follower in self._followers:
            follower.cancel()

    async def look(self) -> None:
        """Do what is due between two rounds of the worker's loop: the leader looks for parts."""
        if not self.has_sources:
            return
        # A new leader asks at once: its predecessor may have died between question and dealing.
        is_leader = self._deps.consumer.is_leader
        if is_leader and not self._is_leader:
            self._discovery.forget()
        self._is_leader = is_leader
        if is_leader:
            self._discovery.look()

    @property
    def is_full(self) -> bool:
        """Whether a commit should not wait for its time."""
        return self._slots.is_full

    # ------------------------------------------------------------------------- rounds

    async def on_round(self, commit: Callable[[], Awaitable[bool]]) -> None:
        """Carry out what a round of the group has given to this worker.

        Args:
            commit: makes a last commit for what ends here.
        """
        generation = self._deps.consumer.group_metadata().generation_id
        before, self._generation = self._generation, generation
        self._given = {name: [*numbers] for name, numbers in self._exchange.given_slots.items()}
        # A start of the round before would begin parts that may have another owner now.
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        # 1. This worker stood still beyond its session in generation 4. 2. In generation 5 its
        # slots had other owners, which have committed. 3. Generation 6 gives them back: nothing
        # that it read by generation 4 may count.
        if before is not None and generation != before + 1:
            await self._slots.stop_all()
        # The leader may have read further. 1. Its dealing moves part p from task 0 here to another
        # worker's. 2. That worker counts it at once. 3. Until this one has read it, p has two.
        if self.has_sources:
            # Without sources nothing follows the topic; a newer version of the app may have some.
            await self._configs_log.read_to(self._exchange.configs_until)
        self._count_configs(self._exchange.configs_until)
        wanted = slots_of(self._given, self._counted)
        # A task whose parts have changed is dropped without a commit: in this generation its parts
        # may be another worker's already. What is only given up has no owner until the next round.
        await self._slots.stop(self._slots.others_than(all_slots(self._counted)))
        gone = self._slots.others_than(wanted)
        if gone:
            await commit()
            await self._slots.stop(gone)
        sinks = [key for key in self._groups if key[1] not in self._mine(key[0])]
        await self._stop_sinks(sinks)
        # Claimed without what ended: the leader may give it to another worker in the next round.
        self._claim(generation)
        if gone or sinks:
            self._deps.consumer.enforce_rebalance()
        if not self._is_over:
            self._start_sinks()
            self._starting = self._deps.background.create_task(self._start(), name="connectors")

    async def start_over(self) -> None:
        """Drop everything that is not committed, as the worker's commit was undone."""
        # A dealing that is written twice is harmless: the later one counts, with equal tasks.
        self._dealings, self._dealt = [*self._dealt, *self._dealings], []
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
        self._dealt, self._dealings = self._dealings, []
        return records, [*offsets, *self._dealt]

    def counted(self) -> None:
        """Note that the commit has succeeded.

        Raises:
            ProcessingError: a `committed` of a source raised.
        """
        self._dealt = []
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
        if not self.has_sources:
            return {}
        return {TopicPartition(self._configs_topic, 0): OffsetAndMetadata(0)}

    # ------------------------------------------------------------------------- inside

    def _new_configs(self) -> ConnectConfigs:
        # In an app the code is the configuration: the topic has dealings alone.
        configs = ConnectConfigs()
        configs.connectors.update({each.name: {} for each in self._program.source_connectors})
        return configs

    def _on_config(self, record: LogRecord) -> None:
        before = self._slot_counts()[0]
        self._newest.replay(record.key, record.value, record.offset)
        self._backlog.append(record)
        key = record.key or b""
        # The leader has dealt: the next round counts it. Parts may move with equal counts, too.
        if key.startswith(b"commit-") and self._deps.consumer.is_leader:
            logger.debug("a dealing was read back; slots were %s", before)
            self._deps.consumer.enforce_rebalance()

    def _on_offset(self, record: LogRecord) -> None:
        self._book.replay(record.key, record.value)

    def _slot_counts(self) -> tuple[Mapping[str, int], int]:
        # By the newest dealing, together with the offset behind it: members count up to there.
        sources = {name: len(tasks) for name, tasks in self._newest.tasks.items()}
        return {**sources, **self._sink_slots}, self._newest.next_offset

    def _count_configs(self, until: int) -> None:
        # Up to the leader's offset and no further: a later dealing counts from its own round on,
        # else two workers would go by different dealings within one generation.
        while self._backlog and self._backlog[0].offset < until:
            record = self._backlog.popleft()
            self._counted.replay(record.key, record.value, record.offset)

    def _mine(self, name: str) -> Collection[int]:
        return self._given.get(name, ())

    def _claim(self, generation: int) -> None:
        # What is being started counts: the leader has given it, so no other worker may get it.
        self._exchange.own_slots = self._given
        self._exchange.own_slots_generation = generation

    async def _start(self) -> None:
        """Start the source tasks of this worker, when their offsets are read."""
        wanted = slots_of(self._given, self._counted)
        await self._slots.start(wanted)
        if wanted:
            logger.info("connectors: %s of sources", quantity(len(wanted), "task"))

    def _start_sinks(self) -> None:
        for name, numbers in self._given.items():
            for number in numbers if name in self._sinks else ():
                if (name, number) not in self._groups:
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
                    running = self._deps.background.create_task(
                        group.run(), name=f"sink {name} {number}"
                    )
                    self._groups[name, number] = group, running

    def _on_sink_step(self, step: str) -> None:
        self._deps.on_step(f"sink: {step}")

    async def _stop_sinks(self, keys: Sequence[SlotKey]) -> None:
        ended = {key: self._groups.pop(key) for key in keys}
        for group, _ in ended.values():
            group.stop()
        if ended:
            await asyncio.wait([running for _, running in ended.values()])
        for key, (group, _) in ended.items():
            before = [self.ended[key]] if key in self.ended else []
            self.ended[key] = sum_figures(group.runner.figures, before)
            self.ended[key].waits_for = ""

    def _count(self, name: str, what: str, by: int) -> None:
        self.figures[name, what] = self.figures.get((name, what), 0) + by

    def _on_parts(self, connector: SourceConnector, parts: Sequence[SourcePartition]) -> None:
        """Deal the parts that a source has now, unless they are dealt already."""
        by_id: dict[str, SourcePartition] = {part_id(part): part for part in parts}
        if len(by_id) != len(parts):
            raise ConnectError(f"source {connector.name!r} names a part twice in its partitions()")
        before = [
            [part_id(part) for part in decode_parts(task)]
            for task in self._newest.tasks.get(connector.name, [])
        ]
        dealing = deal([*by_id], before, tasks_max=connector.tasks)
        if [*map(sorted, before)] == [*map(sorted, dealing)] or not self._is_leader:
            return
        tasks = [{TASK_PARTS: encode_parts([by_id[each] for each in task])} for task in dealing]
        records = task_records(connector.name, tasks)
        logger.info(
            "source %r has %s in %s",
            connector.name, quantity(len(parts), "part"), quantity(len(tasks), "task"),
        )  # fmt: skip
        times = [self._deps.clock.wall_ms()] * len(records)
        keys, values = [key for key, _ in records], [value for _, value in records]
        self._dealings.append(SinkBatch(self._configs_topic, 0, times, keys, values))
