"""`spark.read.format("streamlog")`: a topic as rows with the columns of Spark's Kafka source.

One Spark task per partition, rows in offset order. Offsets are resolved once, when the frame
is loaded: a frame read twice, or joined with itself, sees the same rows whatever is appended
meanwhile. Reads a data directory (`path`), also beside a live broker, or a running broker
(`kafka.bootstrap.servers`). Writing and streaming are not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_bridge.offsets import OffsetRange, ReadOptions, parse_options, resolve
from streamlog.assignors import TopicPartition
from streamlog.errors import ConfigError, RequestTimedOut
from streamlog.log import Log, StoredLog
from streamlog.records.batch import Record

ROWS_MAX = 20_000
"""Rows in one Arrow batch: 10,000 to 50,000 measure best."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of keys and values in one Arrow batch: large values must not pile up in memory."""
POLL_TIMEOUT_MS = 1_000
STALL_POLLS_MAX = 30
"""Polls in a row without a record before a read gives up, for it knows that more must come."""

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, "
    "timestamp timestamp, timestampType int"
)
HEADERS = "headers array<struct<key: string, value: binary>>"
CREATE_TIME = 0
LOG_APPEND_TIME = 1

_HEADER_TYPE = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)


class StreamlogDataSource(DataSource):
    """The data source; `register(spark)` makes it known as "streamlog"."""

    _ranges: list[OffsetRange]

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "streamlog"

    def schema(self) -> str:
        """The columns; resolves the offsets, which stay with this instance when it is copied.

        Raises:
            ConfigError: an option is wrong or a topic does not exist.
        """
        options = parse_options(self.options)
        self._ranges = plan(options)
        return f"{COLUMNS}, {HEADERS}" if options.include_headers else COLUMNS

    def reader(self, schema: StructType) -> LogReader:  # noqa: ARG002 - Spark's signature
        """A reader of the ranges that `schema` resolved.

        Raises:
            ConfigError: a schema was given with `.schema(...)`: the columns are fixed.
        """
        if not hasattr(self, "_ranges"):
            raise ConfigError("the streamlog source has fixed columns: leave out .schema(...)")
        return LogReader(parse_options(self.options), self._ranges)


class RangePartition(InputPartition):
    """One Spark task's share."""

    def __init__(self, offsets: OffsetRange) -> None:
        self.offsets = offsets


class LogReader(DataSourceReader):
    """Reads each range in a task of its own."""

    def __init__(self, options: ReadOptions, ranges: Sequence[OffsetRange]) -> None:
        self._options = options
        self._ranges = ranges

    def partitions(self) -> Sequence[InputPartition]:
        """One per range."""
        return [RangePartition(offsets) for offsets in self._ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in offset order, as Arrow batches."""
        # With no ranges at all Spark calls once with a partition of its own making.
        if not isinstance(partition, RangePartition):
            return
        offsets = partition.offsets
        if self._options.path is not None:
            chunks = read_directory(self._options.path, offsets)
        else:
            chunks = read_broker(self._options.bootstrap_servers or "", offsets)
        for records, timestamp_type in cut(chunks):
            yield to_arrow(
                records,
                offsets,
                timestamp_type=timestamp_type,
                include_headers=self._options.include_headers,
            )


Chunk = tuple[Sequence[Record], int]
"""Records in offset order and what their timestamps mean."""


def plan(options: ReadOptions) -> list[OffsetRange]:
    """Resolve the options against the log as it is now.

    Raises:
        ConfigError: a topic or partition does not exist, or an offset lies outside the log.
    """
    if options.path is not None:
        stored = StoredLog(options.path)
        return resolve(options, stored.topics(), stored.offsets)
    return asyncio.run(_plan_broker(options))


async def _plan_broker(options: ReadOptions) -> list[OffsetRange]:
    async with Log.open(f"kafka://{options.bootstrap_servers}") as log:
        described = await log.admin().list_topics()
        partitions = {topic.name: topic.partitions for topic in described}
        wanted = [
            TopicPartition(topic, number)
            for topic in options.topics
            for number in range(partitions.get(topic, 0))
        ]
        async with log.consumer() as consumer:
            first = await consumer.begin_offsets(wanted)
            end = await consumer.end_offsets(wanted)

    def bounds(topic: str, number: int) -> tuple[int, int]:
        partition = TopicPartition(topic, number)
        return first[partition], end[partition]

    return resolve(options, partitions, bounds)


def read_directory(path: str, offsets: OffsetRange) -> Iterator[Chunk]:
    """Records of a range from the files of a data directory, batch by batch."""
    stored = StoredLog(path)
    for batch in stored.read(offsets.topic, offsets.partition, offsets.start, offsets.end):
        if not batch.is_control:
            batch.check_crc()
            kind = LOG_APPEND_TIME if batch.is_log_append_time else CREATE_TIME
            yield _within(batch.records(), offsets), kind


def read_broker(servers: str, offsets: OffsetRange) -> Iterator[Chunk]:
    """Records of a range over the wire, poll by poll.

    Raises:
        RequestTimedOut: the broker has stopped sending records that must be there.
    """
    with asyncio.Runner() as runner:
        log = runner.run(Log.open(f"kafka://{servers}").__aenter__())
        try:
            yield from _polls(runner, log, offsets)
        finally:
            runner.run(log.close())


def _polls(runner: asyncio.Runner, log: Log, offsets: OffsetRange) -> Iterator[Chunk]:
    partition = TopicPartition(offsets.topic, offsets.partition)
    consumer = runner.run(log.consumer(auto_offset_reset="none").__aenter__())
    consumer.assign([partition])
    consumer.seek(partition, offsets.start)
    stalled = 0
    try:
        # By position, not by the last record seen: the range may end in control records.
        while runner.run(consumer.position(partition)) < offsets.end:
            records = runner.run(consumer.poll(timeout_ms=POLL_TIMEOUT_MS)).get(partition, [])
            stalled = 0 if records else stalled + 1
            if stalled > STALL_POLLS_MAX:
                raise RequestTimedOut(
                    f"no record of {offsets.topic}-{offsets.partition} came for "
                    f"{stalled * POLL_TIMEOUT_MS // 1_000} s, but the log ended at "
                    f"{offsets.end} when the read was planned; is the broker well?"
                )
            yield _within(records, offsets), CREATE_TIME
    finally:
        runner.run(consumer.close())


def _within(records: Sequence[Record], offsets: OffsetRange) -> Sequence[Record]:
    if records and records[0].offset >= offsets.start and records[-1].offset < offsets.end:
        return records
    return [record for record in records if offsets.start <= record.offset < offsets.end]


def cut(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The same records in chunks that suit Arrow: bounded in rows and in bytes."""
    pending: list[Record] = []
    pending_bytes = 0
    pending_type = CREATE_TIME
    for records, timestamp_type in chunks:
        if pending and timestamp_type != pending_type:
            yield pending, pending_type
            pending, pending_bytes = [], 0
        pending_type = timestamp_type
        for record in records:
            pending.append(record)
            pending_bytes += len(record.key or b"") + len(record.value or b"")
            if len(pending) >= ROWS_MAX or pending_bytes >= BATCH_BYTES_MAX:
                yield pending, pending_type
                pending, pending_bytes = [], 0
    if pending:
        yield pending, pending_type


def to_arrow(
    records: Sequence[Record], offsets: OffsetRange, *, timestamp_type: int, include_headers: bool
) -> pa.RecordBatch:
    """Records as one Arrow batch in Spark's column order and exact types."""
    offset, timestamp_ms, key, value, headers = zip(*records, strict=True)
    count = len(records)
    milliseconds = pa.array(timestamp_ms, pa.int64())
    columns: list[Any] = [
        pa.array(key, pa.binary()),
        pa.array(value, pa.binary()),
        pa.repeat(pa.scalar(offsets.topic, pa.string()), count),
        pa.repeat(pa.scalar(offsets.partition, pa.int32()), count),
        pa.array(offset, pa.int64()),
        milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
        pa.repeat(pa.scalar(timestamp_type, pa.int32()), count),
    ]
    schema = _SCHEMA
    if include_headers:
        # Spark's source has NULL, not an empty array, where a record has no headers.
        pairs = [[{"key": k, "value": v} for k, v in h] if h else None for h in headers]
        columns.append(pa.array(pairs, _HEADER_TYPE))
        schema = _SCHEMA.append(pa.field("headers", _HEADER_TYPE))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
