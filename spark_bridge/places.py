"""Where records are read from: a data directory, also beside a live broker, or a running broker.

Both say what there is, resolve the options against it and give the records of a range as Arrow
batches. A directory may be on a shared path that every executor sees; no broker is needed then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from spark_bridge.arrow_batches import ArrowBatches
from spark_bridge.offsets import (
    Bounds,
    OffsetOfTime,
    OffsetRange,
    resolve,
    starts,
    wanted_partitions,
)
from spark_bridge.options import COMMITTED, ByPartition, Isolation, ReadOptions
from spark_bridge.options import Place as Position
from streamlog.assignors import TopicPartition
from streamlog.errors import CorruptData, OffsetOutOfRange, RequestTimedOut
from streamlog.protocol.topic_ids import id_text
from streamlog.records.aborted import AbortedBatches
from streamlog.stored_log import StoredLog
from streamlog.transport.security import Security

if TYPE_CHECKING:
    import pyarrow as pa

    from streamlog.log import Log
    from streamlog.records.batch import RecordBatch

POLL_TIMEOUT_MS = 1_000
STALL_POLLS_MAX = 30
"""Polls in a row without progress before a read gives up, for it knows that more must come."""

_log = logging.getLogger(__name__)


class Place(Protocol):
    """A log to read from."""

    def plan(self) -> list[OffsetRange]:
        """The ranges that the options ask for, of the log as it is now."""
        ...

    def starts(self) -> ByPartition:
        """Where the options say that each partition is begun with."""
        ...

    def bounds(
        self, starts: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """What can be read of each partition asked for: first offset, and one past the last.

        What is before `starts` need not be looked at.
        """
        ...

    def firsts(self) -> dict[TopicPartition, int]:
        """The first offset that there is in each partition asked for."""
        ...

    def ids(self) -> dict[str, str]:
        """The ids of all topics, as Kafka's tools print them; empty where the log tells none."""
        ...

    def visible(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """The ranges as far as all transactions in them are decided, with those to leave out."""
        ...

    def read(self, offsets: OffsetRange, value_type: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Arrow's, untyped
        """The records of a range, in offset order."""
        ...


def place_of(options: ReadOptions) -> Place:
    """Where the options say that the records are."""
    return Directory(options) if options.path is not None else Broker(options)


class Address(Protocol):
    """What options say about where a log is."""

    @property
    def path(self) -> str | None:
        """A data directory."""
        ...

    @property
    def bootstrap_servers(self) -> str | None:
        """Or brokers."""
        ...

    @property
    def client(self) -> Mapping[str, str]:
        """Settings of the connection."""
        ...


def opened_log(address: Address) -> Log:
    """A connection to the log, to be opened; for a directory without a broker that is one.

    Raises:
        ConfigError: a setting is wrong.
    """
    from streamlog.log import Log  # noqa: PLC0415 - the whole broker; readers of files do without

    if address.path is not None:
        return Log.open(f"embedded:{address.path}", create=False)
    protocol = address.client.get("security.protocol", "PLAINTEXT")
    scheme = "kafka+ssl" if protocol.endswith("SSL") else "kafka"
    security = Security.of(address.client) if address.client else None
    return Log.open(f"{scheme}://{address.bootstrap_servers}", security=security)


class Directory:
    """The files of a data directory."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._path = options.path or ""

    def plan(self) -> list[OffsetRange]:
        """See `Place.plan`.

        Raises:
            ConfigError: a topic or partition does not exist, or an offset lies outside the log.
            CorruptData: what is asked for up to its end is damaged there.
        """
        with StoredLog(self._path) as stored:
            ranges = resolve(self._options, stored.topics(), stored.offsets, stored.offset_of_time)
            self._check_ends(stored, ranges)
            return [each for found in ranges if (each := self._visible(stored, found)) is not None]

    def starts(self) -> ByPartition:
        """See `Place.starts`.

        Raises:
            ConfigError: a topic or partition does not exist, or an offset lies outside the log.
        """
        with StoredLog(self._path) as stored:

            def bounds(topic: str, number: int) -> tuple[int, int]:
                return self._bounds(stored, TopicPartition(topic, number), 0)

            return starts(self._options, stored.topics(), bounds, stored.offset_of_time)

    def bounds(
        self, starts: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """See `Place.bounds`."""
        begun = starts or {}
        with StoredLog(self._path) as stored:
            return {
                each: self._bounds(stored, each, begun.get(each, 0))
                for topic, numbers in wanted_partitions(self._options, stored.topics()).items()
                for each in (TopicPartition(topic, number) for number in numbers)
            }

    def firsts(self) -> dict[TopicPartition, int]:
        """See `Place.firsts`."""
        with StoredLog(self._path) as stored:
            return {
                TopicPartition(topic, number): stored.offsets(topic, number)[0]
                for topic, numbers in wanted_partitions(self._options, stored.topics()).items()
                for number in numbers
            }

    def ids(self) -> dict[str, str]:
        """See `Place.ids`."""
        with StoredLog(self._path) as stored:
            return {name: id_text(each) for name, each in stored.topic_ids().items()}

    def _check_ends(self, stored: StoredLog, ranges: list[OffsetRange]) -> None:
        """Check the partitions that are read up to their end."""
        ends = {TopicPartition(found.topic, found.partition): found.end for found in ranges}
        wanted = wanted_partitions(self._options, stored.topics())
        for place in (
            TopicPartition(t, number) for t, numbers in wanted.items() for number in numbers
        ):
            _, end = stored.offsets(*place)
            if ends.get(place, end) >= end:
                self._check_end(stored, place)

    def _check_end(self, stored: StoredLog, place: TopicPartition) -> None:
        """Batches that are damaged at the end must not look as if there were none."""
        try:
            stored.check_end(*place)
        except CorruptData as error:
            if self._options.fail_on_data_loss:
                raise CorruptData(
                    f"{error}; with failOnDataLoss=false what is before is read"
                ) from (error)
            _log.warning("%s", error)

    def _bounds(self, stored: StoredLog, place: TopicPartition, start: int) -> tuple[int, int]:
        self._check_end(stored, place)
        first, end = stored.offsets(*place)
        if self._options.isolation_level == COMMITTED and max(first, start) < end:
            end = stored.committed(*place, max(first, start), end).end_offset
        return first, end

    def visible(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """See `Place.visible`."""
        with StoredLog(self._path) as stored:
            return [each for found in ranges if (each := self._visible(stored, found)) is not None]

    def _visible(self, stored: StoredLog, found: OffsetRange) -> OffsetRange | None:
        if self._options.isolation_level != COMMITTED:
            return found
        place = found.topic, found.partition
        view = stored.committed(*place, found.start, found.end)
        seen = replace(found, end=view.end_offset, aborted=view.aborted)
        return seen if seen.start < seen.end else None

    def read(self, offsets: OffsetRange, value_type: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Arrow's, untyped
        """See `Place.read`.

        Raises:
            OffsetOutOfRange: records were deleted since the read was planned.
            CorruptData: a batch is damaged; says where.
        """
        batches = ArrowBatches(self._options, offsets, value_type)
        where = f"{offsets.topic}-{offsets.partition}"
        try:
            with StoredLog(self._path) as stored:
                yield from batches.of_batches(self._batches(stored, offsets))
        except CorruptData as error:
            raise CorruptData(f"{where}: {error}") from error
        except OffsetOutOfRange as error:
            raise OffsetOutOfRange(
                f"{error}: records of {where} were deleted since the read was planned; with"
                " failOnDataLoss=false it goes on with what is there"
            ) from error

    def _batches(self, stored: StoredLog, offsets: OffsetRange) -> Iterator[RecordBatch]:
        topic, number = offsets.topic, offsets.partition
        start = offsets.start
        first, _ = stored.offsets(topic, number)
        if start < first and not self._options.fail_on_data_loss:
            _log.warning("%s-%d: offsets %d to %d were deleted", topic, number, start, first - 1)
            start = first
        aborted = AbortedBatches(offsets.aborted)
        for batch in stored.read(topic, number, start, offsets.end):
            if not batch.is_control and not aborted.hides(batch):
                yield batch


class Broker:
    """A broker, ours or Kafka's."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def plan(self) -> list[OffsetRange]:
        """See `Place.plan`.

        Raises:
            ConfigError: a topic or partition does not exist, or an offset lies outside the log.
        """
        return resolve(self._options, *asyncio.run(self._known()))

    def starts(self) -> ByPartition:
        """See `Place.starts`. Raises what `plan` raises."""
        return starts(self._options, *asyncio.run(self._known()))

    async def _known(self) -> tuple[dict[str, int], Bounds, OffsetOfTime]:
        """What there is."""
        async with opened_log(self._options) as log:
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
        """See `Place.bounds`."""

        async def ask() -> dict[TopicPartition, tuple[int, int]]:
            async with opened_log(self._options) as log:
                _, wanted = await self._wanted(log)
                return await _bounds(log, self._options.isolation_level, wanted)

        return asyncio.run(ask())

    def firsts(self) -> dict[TopicPartition, int]:
        """See `Place.firsts`."""
        return {place: first for place, (first, _) in self.bounds().items()}

    def ids(self) -> dict[str, str]:
        """See `Place.ids`."""

        async def ask() -> dict[str, str]:
            async with opened_log(self._options) as log:
                topics = await log.admin().list_topics()
            ids = {each.name: each.topic_id for each in topics}
            return {name: id_text(each) if any(each) else "" for name, each in ids.items()}

        return asyncio.run(ask())

    def visible(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """As they are: the broker's end is where transactions are decided."""
        return ranges

    def read(self, offsets: OffsetRange, value_type: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Arrow's, untyped
        """See `Place.read`.

        Raises:
            OffsetOutOfRange: records were deleted since the read was planned.
            RequestTimedOut: the broker has stopped sending records that must be there.
        """
        batches = ArrowBatches(self._options, offsets, value_type)
        with asyncio.Runner() as runner:
            log = runner.run(opened_log(self._options).__aenter__())
            try:
                yield from self._polls(runner, log, offsets, batches)
            finally:
                runner.run(log.close())

    def _polls(
        self, runner: asyncio.Runner, log: Log, offsets: OffsetRange, batches: ArrowBatches
    ) -> Iterator[pa.RecordBatch]:
        partition = TopicPartition(offsets.topic, offsets.partition)
        reset: Literal["none", "earliest"] = (
            "none" if self._options.fail_on_data_loss else "earliest"
        )
        consumer = runner.run(
            log.consumer(
                auto_offset_reset=reset, isolation_level=self._options.isolation_level
            ).__aenter__()
        )
        consumer.assign([partition])
        consumer.seek(partition, offsets.start)
        stalled, before = 0, offsets.start
        try:
            # By position, not by the last record seen: the range may end in control records.
            while (position := runner.run(consumer.position(partition))) < offsets.end:
                stalled = 0 if position > before else stalled + 1
                before = position
                if stalled > STALL_POLLS_MAX:
                    raise RequestTimedOut(
                        f"no record of {offsets.topic}-{offsets.partition} came for "
                        f"{stalled * POLL_TIMEOUT_MS // 1_000} s, but the log ended at "
                        f"{offsets.end} when the read was planned; is the broker well?"
                    )
                polled = runner.run(consumer.poll_batches(timeout_ms=POLL_TIMEOUT_MS))
                if partition in polled:
                    yield from batches.of_batches(polled[partition])
        finally:
            runner.run(consumer.close())


async def _bounds(
    log: Log, isolation_level: Isolation, wanted: list[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    async with log.consumer(isolation_level=isolation_level) as consumer:
        first = await consumer.begin_offsets(wanted)
        end = await consumer.end_offsets(wanted)
    return {each: (first[each], end[each]) for each in wanted}


async def _offsets_of_times(
    log: Log, place: Position, wanted: list[TopicPartition]
) -> dict[tuple[TopicPartition, int], int | None]:
    """Where the times of a place are, if it is given by times."""
    times = {
        each: place.time_ms
        if place.times_ms is None
        else place.times_ms[each.topic][str(each.partition)]
        for each in wanted
    }
    asked = {each: time_ms for each, time_ms in times.items() if time_ms is not None}
    if not asked:
        return {}
    async with log.consumer() as consumer:
        found = await consumer.offsets_for_times(asked)
    return {(each, asked[each]): None if at is None else at.offset for each, at in found.items()}
