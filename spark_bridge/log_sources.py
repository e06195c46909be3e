"""Log sources: a data directory, also while a broker runs on it, or the brokers of a log.

Both describe the log, resolve a query's options against it, and yield the records of a range as
Arrow batches. A data directory on a path that all executors share needs no broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from spark_bridge.arrow_batches import ArrowBatches, CorruptBatches
from spark_bridge.offset_ranges import (
    Bounds,
    LogMark,
    OffsetOfTime,
    OffsetRange,
    find_lost,
    is_recreated,
    resolve,
    start_offsets,
    wanted_partitions,
)
from spark_bridge.source_options import COMMITTED, ByPartition, Isolation, ReadOptions
from spark_bridge.source_options import SourceKind as Position
from streamlog.errors import (
    CorruptData,
    DamagedBatch,
    OffsetOutOfRange,
    SourceLost,
)
from streamlog.protocol.schema import id_bytes, id_text
from streamlog.record import TopicPartition
from streamlog.records.control_batches import AbortedBatches, AbortedRange
from streamlog.records.epoch_chains import EpochChain
from streamlog.replace import replace
from streamlog.stored_log import StoredLog
from streamlog.transport.security import Security

if TYPE_CHECKING:
    import pyarrow as pa

    from streamlog.log import Log
    from streamlog.records.batch import RecordBatch

POLL_TIMEOUT_MS = 1_000

REMEDY = "the read returns the records that the log still has"

_log = logging.getLogger(__name__)


class LogSource(Protocol):
    """Port: a log to read from."""

    def plan(self) -> list[OffsetRange]:
        """Return the ranges that the options ask for, of the log as it is now."""
        ...

    def starts(self) -> ByPartition:
        """Return the start offset of each partition that the options ask for."""
        ...

    def bounds(
        self, starts: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset and the end of each partition that the options ask for.

        Records before `starts` need not be read for that.
        """
        ...

    def firsts(self) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that the options ask for."""
        ...

    def ids(self) -> dict[str, str]:
        """Return the IDs of all topics, as Kafka's tools print them; empty if the log has none."""
        ...

    def epochs(
        self,
        offsets: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, EpochChain] | None = None,
    ) -> dict[TopicPartition, EpochChain]:
        """Return the last leader epochs before each offset; `known` has some of earlier offsets."""
        ...

    def divergences(
        self, ends: Mapping[TopicPartition, tuple[int, EpochChain]]
    ) -> dict[TopicPartition, int]:
        """Return the offset from which each log differs from its epochs; -1 if it is unknown.

        Logs that don't differ are left out.
        """
        ...

    def visible(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Cut ranges at the first open transaction, and add the aborted transactions to skip."""
        ...

    def read(self, offsets: OffsetRange, value_type: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Arrow's, untyped
        """Yield the records of a range, in offset order."""
        ...


def log_source(options: ReadOptions) -> LogSource:
    """Return the log that the options name."""
    return DirectorySource(options) if options.path is not None else BrokerSource(options)


class Address(Protocol):
    """Options that name a log."""

    @property
    def path(self) -> str | None:
        """A data directory."""
        ...

    @property
    def bootstrap_servers(self) -> str | None:
        """Addresses of brokers, if `path` is None."""
        ...

    @property
    def client(self) -> Mapping[str, str]:
        """Settings of the connection."""
        ...


def connect_log(address: Address) -> Log:
    """Return a log, to be opened; this process runs the broker of a directory that has none.

    Raises:
        ConfigError: a setting of the connection is wrong.
    """
    from streamlog.log import Log  # noqa: PLC0415 - the whole broker; readers of files do without

    if address.path is not None:
        return Log.open(f"embedded:{address.path}", create=False)
    protocol = address.client.get("security.protocol", "PLAINTEXT")
    scheme = "kafka+ssl" if protocol.endswith("SSL") else "kafka"
    security = Security.of(address.client) if address.client else None
    return Log.open(f"{scheme}://{address.bootstrap_servers}", security=security)


class DirectorySource:
    """Reads the files of a data directory."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._path = options.path or ""

    def plan(self) -> list[OffsetRange]:
        """See `LogSource.plan`.

        Raises:
            ConfigError: a topic or partition does not exist, or an offset lies outside the log.
            CorruptData: a partition that is read to its end is damaged there.
        """
        with StoredLog(self._path) as stored:
            ranges = resolve(self._options, stored.topics(), stored.offsets, stored.offset_of_time)
            self._check_ends(stored, ranges)
            seen = [each for found in ranges if (each := self._visible(stored, found)) is not None]
            ids = stored.topic_ids()
            return [
                replace(
                    each,
                    log=LogMark(
                        id_text(ids[each.topic]),
                        each.end,
                        stored.leader_epochs(*each.topic_partition, each.end),
                    ),
                )
                for each in seen
            ]

    def starts(self) -> ByPartition:
        """See `LogSource.starts`.

        Raises:
            ConfigError: a topic or partition does not exist, or an offset lies outside the log.
        """
        with StoredLog(self._path) as stored:

            def bounds(topic: str, number: int) -> tuple[int, int]:
                return self._bounds(stored, TopicPartition(topic, number), 0)

            return start_offsets(self._options, stored.topics(), bounds, stored.offset_of_time)

    def bounds(
        self, starts: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """See `LogSource.bounds`."""
        begun = starts or {}
        with StoredLog(self._path) as stored:
            return {
                each: self._bounds(stored, each, begun.get(each, 0))
                for topic, numbers in wanted_partitions(self._options, stored.topics()).items()
                for each in (TopicPartition(topic, number) for number in numbers)
            }

    def firsts(self) -> dict[TopicPartition, int]:
        """See `LogSource.firsts`."""
        with StoredLog(self._path) as stored:
            return {
                TopicPartition(topic, number): stored.offsets(topic, number)[0]
                for topic, numbers in wanted_partitions(self._options, stored.topics()).items()
                for number in numbers
            }

    def ids(self) -> dict[str, str]:
        """See `LogSource.ids`."""
        with StoredLog(self._path) as stored:
            return {name: id_text(each) for name, each in stored.topic_ids().items()}

    def epochs(
        self,
        offsets: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, EpochChain] | None = None,  # noqa: ARG002 - the port's
    ) -> dict[TopicPartition, EpochChain]:
        """See `LogSource.epochs`."""
        with StoredLog(self._path) as stored:
            return {at: stored.leader_epochs(*at, offset) for at, offset in offsets.items()}

    def divergences(
        self, ends: Mapping[TopicPartition, tuple[int, EpochChain]]
    ) -> dict[TopicPartition, int]:
        """See `LogSource.divergences`."""
        with StoredLog(self._path) as stored:
            found = {at: stored.divergence(*at, *end) for at, end in ends.items()}
        return {at: offset for at, offset in found.items() if offset is not None}

    def _check_ends(self, stored: StoredLog, ranges: list[OffsetRange]) -> None:
        """Check the ends of the partitions that are read to their end."""
        ends = {TopicPartition(found.topic, found.partition): found.end for found in ranges}
        wanted = wanted_partitions(self._options, stored.topics())
        for partition in (
            TopicPartition(t, number) for t, numbers in wanted.items() for number in numbers
        ):
            _, end = stored.offsets(*partition)
            # A range that ends before the end of its log meets no damage there. A partition without
            # a range is checked: the damaged batch may be why it seems empty.
            if ends.get(partition, end) >= end:
                self._check_end(stored, partition)

    def _check_end(self, stored: StoredLog, partition: TopicPartition) -> None:
        """Check that no damaged batch hides the end of a partition."""
        try:
            stored.check_end(*partition)
        except CorruptData as error:
            if self._options.fail_on_data_loss:
                raise CorruptData(
                    f"{error}; with failOnDataLoss=false the records before it are read"
                ) from (error)
            _log.warning("%s", error)

    def _bounds(self, stored: StoredLog, partition: TopicPartition, start: int) -> tuple[int, int]:
        self._check_end(stored, partition)
        first, end = stored.offsets(*partition)
        if self._options.isolation_level == COMMITTED and max(first, start) < end:
            end, _ = _committed_view(stored, partition, max(first, start), end)
        return first, end

    def visible(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """See `LogSource.visible`."""
        with StoredLog(self._path) as stored:
            return [each for found in ranges if (each := self._visible(stored, found)) is not None]

    def _visible(self, stored: StoredLog, found: OffsetRange) -> OffsetRange | None:
        if self._options.isolation_level != COMMITTED:
            return found
        end, aborted = _committed_view(stored, found.topic_partition, found.start, found.end)
        seen = replace(found, end=end, aborted=aborted)
        return seen if seen.start < seen.end else None

    def read(self, offsets: OffsetRange, value_type: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Arrow's, untyped
        """See `LogSource.read`.

        Raises:
            SourceLost: it is another log than the one that the read was planned in.
            OffsetOutOfRange: records were deleted since the read was planned.
            CorruptData: a batch is damaged; says where.
        """
        with StoredLog(self._path) as stored:
            here = _of_same_log(self._options, offsets, *self._log_now(stored, offsets))
            if here is not None:
                batches = ArrowBatches(self._options, here, value_type)
                yield from batches.of_batches(self._batches(stored, here))

    @staticmethod
    def _log_now(stored: StoredLog, offsets: OffsetRange) -> tuple[str | None, int | None]:
        """Return the topic's ID, and the offset from which the log differs from the planned one."""
        found, mark = stored.topic_ids().get(offsets.topic), offsets.log
        topic_id = None if found is None else id_text(found)
        # Leader epochs of another topic say nothing about this one.
        if topic_id is None or is_recreated(mark.topic_id, topic_id):
            return topic_id, None
        return topic_id, stored.divergence(*offsets.topic_partition, mark.offset, mark.epochs)

    def _batches(self, stored: StoredLog, offsets: OffsetRange) -> Iterator[RecordBatch]:
        """Yield the batches that the options' isolation level shows."""
        aborted = AbortedBatches(offsets.aborted)
        corrupt = CorruptBatches(offsets, ignored=self._options.ignore_corrupt_batches)
        for batch in self._stored(stored, offsets):
            try:
                is_seen = not batch.is_control and not aborted.hides(batch)
                if not is_seen and self._options.verify_crc:
                    batch.check_crc()  # A damaged header could hide a batch of records.
            except CorruptData as error:
                corrupt.meet(batch.base_offset, batch.next_offset, error)
                continue
            if is_seen:
                yield batch

    def _stored(self, stored: StoredLog, offsets: OffsetRange) -> Iterator[RecordBatch]:
        topic, number = offsets.topic_partition
        start = offsets.start
        first, _ = stored.offsets(topic, number)
        if start < first and not self._options.fail_on_data_loss:
            _log.warning("%s-%d: offsets %d to %d were deleted", topic, number, start, first - 1)
            start = first
        try:
            yield from stored.read(topic, number, start, offsets.end)
        except CorruptData as error:
            raise CorruptData(f"{topic}-{number}: {error}") from error
        except OffsetOutOfRange as error:
            raise OffsetOutOfRange(
                f"{error}: records of {topic}-{number} were deleted since the read was planned;"
                f" with failOnDataLoss=false {REMEDY}"
            ) from error


class BrokerSource:
    """Reads from brokers, of streamlog or Kafka."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def plan(self) -> list[OffsetRange]:
        """See `LogSource.plan`.

        Raises:
            ConfigError: a topic or partition does not exist, or an offset lies outside the log.
        """

        async def ask() -> list[OffsetRange]:
            async with connect_log(self._options) as log:
                # IDs first: a topic that is created again after this line is noticed.
                ids = await _ids(log)
                ranges = resolve(self._options, *await self._known(log))
                ends = {each.topic_partition: each.end for each in ranges}
                epochs = await log.admin().leader_epochs(ends)
            return [
                replace(
                    each,
                    log=LogMark(ids.get(each.topic, ""), each.end, epochs[each.topic_partition]),
                )
                for each in ranges
            ]

        return asyncio.run(ask())

    def starts(self) -> ByPartition:
        """See `LogSource.starts`. Raises what `plan` raises."""

        async def ask() -> ByPartition:
            async with connect_log(self._options) as log:
                return start_offsets(self._options, *await self._known(log))

        return asyncio.run(ask())

    async def _known(self, log: Log) -> tuple[dict[str, int], Bounds, OffsetOfTime]:
        """Return the topics, the bounds of partitions, and the offsets of the options' times."""
        described, wanted = await self._wanted(log)
        bounds = await _bounds(log, self._options.isolation_level, wanted)
        found = await _offsets_of_times(log, self._options.starting, wanted)
        found |= await _offsets_of_times(log, self._options.ending, wanted)
        return (
            described,
            lambda topic, number: bounds[TopicPartition(topic, number)],
            lambda topic, number, time_ms: found[TopicPartition(topic, number), time_ms],
        )

    async def _wanted(self, log: Log) -> tuple[dict[str, int], list[TopicPartition]]:
        described = {each.name: each.partitions for each in await log.admin().list_topics()}
        chosen = wanted_partitions(self._options, described)
        return described, [TopicPartition(topic, n) for topic, ns in chosen.items() for n in ns]

    def bounds(
        self,
        starts: Mapping[TopicPartition, int] | None = None,  # noqa: ARG002 - the port's
    ) -> dict[TopicPartition, tuple[int, int]]:
        """See `LogSource.bounds`."""

        async def ask() -> dict[TopicPartition, tuple[int, int]]:
            async with connect_log(self._options) as log:
                _, wanted = await self._wanted(log)
                return await _bounds(log, self._options.isolation_level, wanted)

        return asyncio.run(ask())

    def firsts(self) -> dict[TopicPartition, int]:
        """See `LogSource.firsts`."""
        return {partition: first for partition, (first, _) in self.bounds().items()}

    def ids(self) -> dict[str, str]:
        """See `LogSource.ids`."""

        async def ask() -> dict[str, str]:
            async with connect_log(self._options) as log:
                return await _ids(log)

        return asyncio.run(ask())

    def epochs(
        self,
        offsets: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, EpochChain] | None = None,
    ) -> dict[TopicPartition, EpochChain]:
        """See `LogSource.epochs`."""

        async def ask() -> dict[TopicPartition, EpochChain]:
            async with connect_log(self._options) as log:
                return await log.admin().leader_epochs(offsets, known)

        return asyncio.run(ask())

    def divergences(
        self, ends: Mapping[TopicPartition, tuple[int, EpochChain]]
    ) -> dict[TopicPartition, int]:
        """See `LogSource.divergences`."""

        async def ask() -> dict[TopicPartition, int]:
            async with connect_log(self._options) as log:
                return await log.admin().divergences(ends)

        return asyncio.run(ask())

    def visible(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges unchanged: a broker's end is its last stable offset."""
        return ranges

    def read(self, offsets: OffsetRange, value_type: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Arrow's, untyped
        """See `LogSource.read`.

        Raises:
            OffsetOutOfRange: records were deleted since the read was planned.
            RequestTimedOut: the read has stalled.
        """
        # Spark pulls the rows from a generator, which can't await. So each request runs to its end
        # in one loop, which lives as long as the generator.
        with asyncio.Runner() as runner:
            log = runner.run(connect_log(self._options).__aenter__())
            try:
                here = _of_same_log(self._options, offsets, *runner.run(_log_now(log, offsets)))
                if here is not None:
                    batches = ArrowBatches(self._options, here, value_type)
                    polling = _Polling(self._options, runner, log, here)
                    yield from batches.of_batches(polling.batches())
            finally:
                runner.run(log.close())


class _Polling:
    """Reads a range through a consumer."""

    def __init__(
        self, options: ReadOptions, runner: asyncio.Runner, log: Log, offsets: OffsetRange
    ) -> None:
        self._options = options
        self._runner = runner
        self._offsets = offsets
        self._corrupt = CorruptBatches(offsets, ignored=options.ignore_corrupt_batches)
        self._consumer = log.consumer(
            auto_offset_reset="none", isolation_level=options.isolation_level
        )
        self._reader = log.range_reader(self._consumer, {offsets.topic_partition: offsets.end})

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the batches of the range; raises what `BrokerSource.read` raises."""
        offsets, partition = self._offsets, self._offsets.topic_partition
        consumer = self._runner.run(self._consumer.__aenter__())
        consumer.assign([partition])
        self._seek(offsets.start)
        try:
            while not self._runner.run(self._reader.is_at_end()):
                polled = self._runner.run(self._polled())
                if polled is None:
                    return
                yield from polled
        finally:
            self._runner.run(consumer.close())

    async def _polled(self) -> Sequence[RecordBatch] | None:
        """Return the next batches; None if the rest of the range is lost."""
        partition = self._offsets.topic_partition
        try:
            polled = await self._consumer.poll_batches(timeout_ms=POLL_TIMEOUT_MS)
        except DamagedBatch as error:
            # Fails, or warns and continues behind the damaged batch.
            reason = error.__cause__ if isinstance(error.__cause__, CorruptData) else error
            self._corrupt.meet(error.offset, error.next_offset, reason)
            self._seek(error.next_offset)
            return ()
        except SourceLost as error:
            begin = (await self._consumer.begin_offsets([partition]))[partition]
            if not self._passes(error, begin, self._offsets):
                return None
            self._seek(begin)
            return ()
        return polled.get(partition, ())

    def _seek(self, offset: int) -> None:
        topic_id = id_bytes(self._offsets.log.topic_id)
        self._consumer.seek(self._offsets.topic_partition, offset, topic_id=topic_id)

    def _passes(self, error: SourceLost, begin: int, offsets: OffsetRange) -> bool:
        """Return whether records were only deleted, so that the read continues at `begin`.

        Raises:
            SourceLost: the option `failOnDataLoss` is set.
        """
        where = f"{offsets.topic}-{offsets.partition}"
        # With failOnDataLoss=false:
        # 1. Retention has removed offsets below `begin`: the read continues there.
        # 2. The topic was created again, or truncated: offsets from here on are other records, so
        #    the read ends.
        is_removed = not error.is_recreated and error.resume_at < 0 and error.position < begin
        if self._options.fail_on_data_loss:
            raise SourceLost(
                f"{error}: the log of {where} has changed since the read of offsets"
                f" {offsets.start} to {offsets.end - 1} was planned. With failOnDataLoss=false"
                f" {REMEDY}",
                topic=offsets.topic,
                partition=offsets.partition,
                position=error.position,
            ) from error
        if is_removed:
            _log.warning("%s: offsets %d to %d were deleted", where, error.position, begin - 1)
            return True
        _log.warning("%s: reading ends at offset %d", error, error.position)
        return False


def _committed_view(
    stored: StoredLog, partition: TopicPartition, start: int, end: int
) -> tuple[int, tuple[AbortedRange, ...]]:
    """Return the end of committed records, and the aborted transactions before it.

    Raises:
        CorruptData: a marker is unreadable, so the aborted transactions are unknown.
    """
    try:
        end_offset, aborted = stored.committed(*partition, start, end)
    except CorruptData as error:
        raise CorruptData(
            f"{partition.topic}-{partition.partition}: a batch that may be a transaction marker is"
            f" unreadable: {error}. `streamlog log verify` shows it, and `streamlog log repair`"
            " removes it; a read with isolationLevel=read_uncommitted ignores it"
        ) from error
    return end_offset, aborted


def _of_same_log(
    options: ReadOptions, offsets: OffsetRange, topic_id: str | None, divergence: int | None
) -> OffsetRange | None:
    """Cut a range where the log differs from the planned one; return None if nothing is left.

    Raises:
        SourceLost: a part is lost, and `failOnDataLoss` is set.
    """
    lost = find_lost(offsets, topic_id, divergence)
    if lost is None:
        return offsets
    if options.fail_on_data_loss:
        raise lost.error(offsets.start, f"Plan the read again; with failOnDataLoss=false {REMEDY}")
    _log.warning("%s: reading ends at offset %d", lost.text, max(lost.same_until, offsets.start))
    # Records below `same_until` are those that were planned to be read.
    left = replace(offsets, end=min(offsets.end, lost.same_until))
    return left if left.start < left.end else None


async def _log_now(log: Log, offsets: OffsetRange) -> tuple[str | None, int | None]:
    """Return the topic's ID, and the offset from which the log differs from the planned one."""
    mark, topic_id = offsets.log, (await _ids(log, offsets.topic)).get(offsets.topic)
    if topic_id is None or is_recreated(mark.topic_id, topic_id):
        return topic_id, None
    found = await log.admin().divergences({offsets.topic_partition: (mark.offset, mark.epochs)})
    return topic_id, found.get(offsets.topic_partition)


async def _ids(log: Log, *names: str) -> dict[str, str]:
    """Return the IDs of the named topics, or of all, as text."""
    admin = log.admin()
    topics = await (admin.find_topics(names) if names else admin.list_topics())
    ids = {each.name: each.topic_id for each in topics}
    return {name: id_text(each) if any(each) else "" for name, each in ids.items()}


async def _bounds(
    log: Log, isolation_level: Isolation, wanted: list[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    async with log.consumer(isolation_level=isolation_level) as consumer:
        first = await consumer.begin_offsets(wanted)
        end = await consumer.end_offsets(wanted)
    return {each: (first[each], end[each]) for each in wanted}


async def _offsets_of_times(
    log: Log, position: Position, wanted: list[TopicPartition]
) -> dict[tuple[TopicPartition, int], int | None]:
    """Return the offsets of a position that is given by times; empty if it is not."""
    times = {
        each: position.time_ms
        if position.times_ms is None
        else position.times_ms[each.topic][str(each.partition)]
        for each in wanted
    }
    asked = {each: time_ms for each, time_ms in times.items() if time_ms is not None}
    if not asked:
        return {}
    async with log.consumer() as consumer:
        found = await consumer.offsets_for_times(asked)
    return {(each, asked[each]): None if at is None else at.offset for each, at in found.items()}
