"""DriverConnectors: the connectors of a driver's app, with a worker's tasks and nothing outside.

A sink's records end in a list, where the test sees them; a source's are given by the test, or read
by the real connector on the driver's loop and clock (`TestSource.run`). Serdes, transforms, error
policies, retries and the search for bad records are those of a worker (`connect_tasks`).

Rule: a wait for another attempt takes no time, and `context.sleep` ends when the driver's time has
advanced. What counts survives a restart of the driver: offsets of sources, records of sinks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from streamlog.connect.connector_errors import BadRecords, ConnectError, Retriable
from streamlog.connect.declared_connectors import Connector, SinkConnector, SourceConnector
from streamlog.connect.parts import part_id
from streamlog.connect.sink import Batch, Sink, SinkContext, SinkTask
from streamlog.connect.source import Source, SourceOffset
from streamlog.connect_tasks.carried import SinkCarrier, SourceCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.part_reader import HeldBudget, ReaderDeps
from streamlog.connect_tasks.sink_task import GroupPosition, SinkRunner
from streamlog.connect_tasks.source_task import SourceTask
from streamlog.errors import UsageError
from streamlog.processing.outbox import SinkBatch
from streamlog.record import TopicPartition
from streamlog.records.record_columns import RecordColumns
from streamlog.serdes.erased_types import AnyRecord
from streamlog.testing.driver_topics import MemoryTopic

ATTEMPTS_MAX = 1_000
"""The attempts of one flush after which a sink counts as one that never succeeds."""
SOURCE_WAIT_S = 1
"""The seconds of real time in which a source that does not sleep has to yield its next Read."""
AnySource = Source[Any, Any]


class ConnectorStage(Protocol):
    """Port: the driver, as far as connectors need it."""

    @property
    def now_ms(self) -> int:
        """The driver's time, in milliseconds since 1970."""

    def check_runs(self) -> None:
        """Raise UsageError if the driver does not run."""

    def settle(self) -> None:
        """Run tasks, agents and connectors until nothing is left to do."""


class ConnectorClock:
    """`TaskClock` of a driver, whose time moves only when the test moves it."""

    def __init__(self, stage: ConnectorStage) -> None:
        self._stage = stage
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []
        self.stirred = asyncio.Event()
        """Set when a source begins to sleep."""

    def now_ms(self) -> int:
        """Return the driver's time."""
        return self._stage.now_ms

    def wall_ms(self) -> int:
        """Return the driver's time, which begins in 2025."""
        return self._stage.now_ms

    async def sleep_ms(self, time_ms: int) -> None:
        """Wait until the driver's time has advanced."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = (self._stage.now_ms + time_ms, future)
        self._sleepers.append(sleeper)
        self.stirred.set()
        try:
            await future
        finally:
            self._sleepers.remove(sleeper)

    @property
    def due_ms(self) -> int | None:
        """When the next sleeper wakes; None without any."""
        return min((due_ms for due_ms, _ in self._sleepers), default=None)

    @property
    def sleeping(self) -> int:
        """The number of sleepers that wait."""
        return sum(not future.done() for _, future in self._sleepers)

    def wake(self) -> bool:
        """Wake those whose time has come; return whether there were any."""
        due = [future for due_ms, future in self._sleepers if due_ms <= self._stage.now_ms]
        # A sleeper removes itself once it runs; until then it may be found here again.
        for future in due:
            if not future.done():
                future.set_result(None)
        return bool(due)


class SinkTarget:
    """The outside of a sink in a test: what was committed, and the failures to come."""

    def __init__(self, connector: SinkConnector) -> None:
        self.connector = connector
        self.records: list[AnyRecord] = []
        self.offsets: dict[TopicPartition, int] = {}
        self.failing: list[Exception] = []
        """An error for each of the next writes that fail, or for each of the next bad records."""
        self.bad: dict[tuple[TopicPartition, int], Exception] = {}
        """The bad records, by their offsets: these fail however often they are tried."""

    def fail_next(self, batch: Batch[Any, Any]) -> None:
        """Raise what the test has asked for.

        Raises:
            Retriable: the whole write fails, and may be tried again.
            BadRecords: some of the records fail.
        """
        transient = self.connector.sink.transient
        while self.failing:
            error = self.failing[0]
            if isinstance(error, Retriable):
                del self.failing[0]
                raise error
            # The stand-in has no transient errors of its own; the runtime treats this one alike.
            if isinstance(error, transient) and not isinstance(error, ConnectError):
                del self.failing[0]
                raise Retriable(f"{type(error).__name__}: {error}") from error
            # An error of a record sticks to one that has none yet: the next attempt fails alike.
            fresh = [at for at in _offsets(batch) if at not in self.bad]
            if not fresh:
                break
            self.bad[fresh[0]] = self.failing.pop(0)
        found = {
            index: str(self.bad[at]) for index, at in enumerate(_offsets(batch)) if at in self.bad
        }
        if found:
            raise BadRecords(found)


def _offsets(batch: Batch[Any, Any]) -> list[tuple[TopicPartition, int]]:
    return [(batch.partition, record.offset) for record in batch.records]


class _StandIn(Sink[Any, Any], frozen=True, kw_only=True):
    """The sink that runs in a test instead of the app's own."""

    effect = "transactional"
    target: Any

    def open(self, context: SinkContext) -> SinkTask[Any, Any]:
        """Return a task that writes to the target."""
        del context
        return _StandInTask(self.target)


class _StandInTask(SinkTask[Any, Any]):
    def __init__(self, target: SinkTarget) -> None:
        self._target = target
        self._written: list[AnyRecord] = []

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        known = self._target.offsets
        return {at: known[at] for at in partitions if at in known}

    async def write(self, batch: Batch[Any, Any]) -> None:
        self._target.fail_next(batch)
        self._written += batch.records

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._target.records += self._written
        self._target.offsets.update(offsets)
        self._written = []

    async def abort(self) -> None:
        self._written = []


class _TopicLog:
    """`SinkLog` of a driver: the target has the offsets, and letters go to topics in memory."""

    def __init__(self, topics: Mapping[str, MemoryTopic]) -> None:
        self._topics = topics

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Do nothing: `SinkTarget.offsets` counts."""

    async def with_offsets(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return none: the driver has no other task."""
        del partitions
        return set()

    async def write_letters(self, letters: Sequence[SinkBatch]) -> None:
        """Append the letters to their topics."""
        append(self._topics, letters)


def append(topics: Mapping[str, MemoryTopic], batches: Sequence[SinkBatch]) -> None:
    """Append records to topics in memory."""
    for batch in batches:
        for record in batch.records():
            topics[record.topic].append(
                record.value,
                key=record.key,
                timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )


@dataclass(slots=True)
class RunningSource:
    """A source that the driver runs, and how far it has read."""

    connector: SourceConnector
    source: AnySource | None = None
    """The connector at work; None if the test only gives records."""
    offsets: dict[str, SourceOffset] = field(default_factory=dict)
    """The offsets of its parts, by their names as JSON."""
    task: SourceTask | None = None
    work: asyncio.Task[None] | None = None


class DriverConnectors:
    """Runs the connectors of a driver, on an event loop of its own."""

    def __init__(
        self,
        connectors: Sequence[Connector],
        topics: Mapping[str, MemoryTopic],
        stage: ConnectorStage,
        *,
        before: DriverConnectors | None = None,
    ) -> None:
        """`before` are the connectors of an older program, whose progress these continue."""
        self._topics, self._stage = topics, stage
        self._log = _TopicLog(topics)
        self._runner: asyncio.Runner | None = None
        self._clock: ConnectorClock | None = None
        self.targets = {
            each.name: SinkTarget(each) for each in connectors if isinstance(each, SinkConnector)
        }
        self.sources = {
            each.name: RunningSource(each)
            for each in connectors
            if isinstance(each, SourceConnector)
        }
        self._sinks: dict[str, SinkRunner] = {}
        if before is not None:
            self._continue_from(before)
        self._fed: dict[tuple[str, TopicPartition], int] = {}

    def _continue_from(self, before: DriverConnectors) -> None:
        for name, target in self.targets.items():
            if (older := before.targets.get(name)) is not None:
                target.offsets, target.records = older.offsets, older.records
        for name, source in self.sources.items():
            if (reader := before.sources.get(name)) is not None:
                source.offsets = reader.offsets

    def start(self) -> None:
        """Start the sinks, and the sources that ran before, behind what counts."""
        self._fed.clear()
        for name, target in self.targets.items():
            runner = self._sinks[name] = SinkRunner(
                _StandIn(target=target),
                ConnectorContext(name, 0, self._clock_of_loop()),
                SinkCarrier(target.connector),
                self._log,
                self._clock_of_loop(),
                chance=lambda: 0.0,
            )
            partitions = [*self._partitions(target.connector)]
            runner.assign({at: GroupPosition(target.offsets.get(at, 0)) for at in partitions})
            for at in partitions:
                self._fed[name, at] = target.offsets.get(at, 0)
        for source in self.sources.values():
            # Only one that the test has run: a declared source reads nothing by itself.
            if source.source is not None:
                self._loop().run(self._begin(source))

    def close(self) -> None:
        """Stop all tasks; what they hold is read again after the next start."""
        if self._runner is None:
            return
        runner, self._runner, self._clock = self._runner, None, None
        try:
            runner.run(self._end())
        finally:
            runner.close()

    def handle(self) -> bool:
        """Run the connectors on new records; return whether anything happened."""
        moved = False
        for name in self.targets:
            moved = self._carry_outside(name) or moved
        # A loop turn for each round of the driver would cost tests that run no source.
        if any(source.work is not None for source in self.sources.values()):
            moved = self._loop().run(self._read_on()) or moved
        return moved

    @property
    def due_ms(self) -> int | None:
        """When a source wakes from its sleep; None if none sleeps."""
        return None if self._clock is None else self._clock.due_ms

    def run(self, name: str, source: AnySource) -> None:
        """Start a source, or another in its stead, behind the offsets that count."""
        running = self.sources[name]
        running.source = source
        self._loop().run(self._restart(running))

    def _partitions(self, connector: SinkConnector) -> Iterator[TopicPartition]:
        for spec in connector.topics:
            for number in range(len(self._topics[spec.name].partitions)):
                yield TopicPartition(spec.name, number)

    def _carry_outside(self, name: str) -> bool:
        connector, moved = self.targets[name].connector, False
        for at in self._partitions(connector):
            topic, fed = self._topics[at.topic], self._fed[name, at]
            end = topic.end(at.partition)
            if fed < end:
                records, _ = topic.since(at.partition, fed)
                self._fed[name, at] = end
                moved = bool(records) or moved
                self._loop().run(self._feed(name, at, RecordColumns.of(records), end))
        return moved

    async def _feed(self, name: str, at: TopicPartition, columns: RecordColumns, end: int) -> None:
        runner = self._sinks[name]
        # Before the first records: it connects, and learns where the target is.
        await runner.work()
        runner.seeks.clear()
        await runner.take(at, columns, end)
        for _ in range(ATTEMPTS_MAX):
            await runner.work(at_once=True)
            # A flush that has failed is repeated at the next call, in halves perhaps.
            if runner.committed.get(at, 0) >= end:
                return
        raise UsageError(f"sink {name!r} has not succeeded after {ATTEMPTS_MAX} attempts")

    async def _restart(self, running: RunningSource) -> None:
        await self._stop(running)
        await self._begin(running)

    async def _begin(self, running: RunningSource) -> None:
        source = running.source
        if source is None:
            return
        clock = self._clock_of_loop()
        context = ConnectorContext(running.connector.name, 0, clock)
        deps = ReaderDeps(
            name=running.connector.name,
            source=source,
            context=context,
            carrier=SourceCarrier(running.connector),
            clock=clock,
            chance=lambda: 0.0,
            budget=HeldBudget(),
            on_read=clock.stirred.set,
        )
        parts = await source.partitions(context)
        placed = [(part, running.offsets.get(part_id(part))) for part in parts]
        running.task = SourceTask(deps, 0, placed)
        running.work = asyncio.get_running_loop().create_task(running.task.run())
        running.work.add_done_callback(lambda _: clock.stirred.set())

    async def _read_on(self) -> bool:
        """Let sources read until all of them sleep or have ended; return whether records came."""
        clock, moved = self._clock_of_loop(), False
        clock.wake()
        while True:
            clock.stirred.clear()
            # The generators run in other tasks of this loop, as far as they can without waiting.
            await asyncio.sleep(0)
            took = [self._count(source) for source in self.sources.values()]
            if any(took):
                moved = True
                continue
            if self._are_idle(clock):
                return moved
            try:
                async with asyncio.timeout(SOURCE_WAIT_S):
                    await clock.stirred.wait()
            except TimeoutError:
                # It waits for the outside, in real time: the test continues without it.
                return moved

    def _are_idle(self, clock: ConnectorClock) -> bool:
        reading = sum(
            sum(not reader.is_finished for reader in source.task.readers)
            for source in self.sources.values()
            if source.task is not None and source.work is not None and not source.work.done()
        )
        # Readers of other errors back off by this clock, too, so a sleeper is a reader.
        return clock.sleeping >= reading

    def _count(self, running: RunningSource) -> bool:
        """Write what a source has read, with its offsets; return whether there was anything."""
        task, work = running.task, running.work
        if task is None or work is None:
            return False
        taken = task.take()
        for reader, reads in taken:
            for read in reads:
                append(self._topics, read.records.batches)
                if read.offset is not None:
                    running.offsets[part_id(reader.part)] = read.offset
        task.count()
        # Behind the last records, which an error must not swallow.
        if work.done():
            running.work = None
            error = work.exception()
            if error is not None:
                raise error
        return bool(taken)

    async def _end(self) -> None:
        for running in self.sources.values():
            await self._stop(running)
        for runner in self._sinks.values():
            await runner.close()

    async def _stop(self, running: RunningSource) -> None:
        work, running.work = running.work, None
        if work is not None:
            work.cancel()
            await asyncio.wait([work])
        if running.task is not None:
            running.task.drop()
            running.task = None

    def _loop(self) -> asyncio.Runner:
        """Return the event loop, which is made on first use, because most tests need none."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner

    def _clock_of_loop(self) -> ConnectorClock:
        if self._clock is None:
            self._clock = ConnectorClock(self._stage)
        return self._clock
