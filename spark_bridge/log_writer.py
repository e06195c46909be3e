"""`df.write.format("streamlog")` and `writeStream`: writes a job's rows atomically and once.

Tasks stage record batches, one segment per partition: in the data directory if they see it, else at
the broker or in a folder that the driver reads. The driver publishes all segments in one operation
that is atomic and idempotent by the job's ID, so a repeated task or micro-batch changes nothing.
Clusters, and brokers of Kafka, get a job in one transaction.

murmur2 places keys unless the option `partitioner` or `app` chooses another partitioner; a write is
refused if another partitioner has placed the keys of the topic.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import tempfile
import uuid
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from crc32c import crc32c
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_bridge.log_sources import connect_log, log_source
from spark_bridge.offset_ranges import OffsetRange
from spark_bridge.python_failures import without_traceback
from spark_bridge.source_options import (
    KAFKA,
    ReadOptions,
    WriteOptions,
    check_columns,
    parse_options,
)
from spark_bridge.typed_values import declared_topic
from streamlog.clock import SystemClock
from streamlog.errors import ConfigError
from streamlog.records.arrow_rows import ArrowRows, BinaryArray
from streamlog.records.builder import BatchBuilder
from streamlog.records.compression import Compression
from streamlog.records.partitioners import (
    DEFAULT,
    Partitioner,
    matching_partitioners,
    partition_by,
    partitioner_name,
)
from streamlog.records.staged_segment import StagedSegment
from streamlog.stored_log import StoredLog

if TYPE_CHECKING:
    import pyarrow as pa


_log = logging.getLogger(__name__)

SAMPLED = 200
"""Offsets sampled at the end of each partition."""
KEYS_ENOUGH = 64
"""No other partitioner places this many keys in the same partitions by chance."""
MISPLACED_MIN = 2
"""Fewer misplaced keys are ignored: one may have been sent to a partition explicitly."""


def partitioner_of(options: WriteOptions, topic: str, count: int) -> Partitioner:
    """Return the partitioner for rows of a topic with `count` partitions.

    Raises:
        ConfigError: no option names one, and another partitioner than murmur2 has placed the
            topic's keys; or the app does not declare the topic.
    """
    if options.partitioner is not None:
        return options.partitioner
    if options.app is not None:
        declared: Partitioner = declared_topic(options.app, topic).partitioner
        return declared
    if count > 1:
        _check(options, topic, count)
    return DEFAULT


def _check(options: WriteOptions, topic: str, count: int) -> None:
    keys: set[tuple[bytes, int]] = set()
    for sampled in _samples(options, topic, count):
        keys |= sampled
        fits = matching_partitioners(keys, count)
        if len(keys) >= KEYS_ENOUGH:
            break
    else:
        fits = matching_partitioners(keys, count)
    # 1. At most one key is not where murmur2 puts it: the write continues.
    # 2. Another partitioner fits all keys: another program has placed them; the write is refused.
    # 3. None fits, for example because the number of partitions has grown: only a warning.
    misplaced = len(keys) - fits[DEFAULT]
    if misplaced < MISPLACED_MIN:
        return
    text = f"{misplaced} of {len(keys)} keys in topic '{topic}' are not where {DEFAULT} puts them"
    others = [name for name, number in fits.items() if number == len(keys)]
    if others:
        raise ConfigError(
            f"{text}, but all are where {others[0]} puts them: rows placed by {DEFAULT} would go to"
            f" other partitions. Give the option partitioner='{others[0]}', or app='MODULE' for the"
            " partitioner that the app declares"
        )
    _log.warning(
        "%s, and no other partitioner fits: rows are placed by %s. If they must be in the same"
        " partitions as these keys, give the option 'partitioner' or 'app', or a partition column",
        text,
        DEFAULT,
    )


def _samples(options: WriteOptions, topic: str, count: int) -> Iterator[set[tuple[bytes, int]]]:
    """Yield the distinct keys of the newest records, partition by partition."""
    source = log_source(_sample_options(options, topic, count))
    for at, (first, end) in sorted(source.bounds().items()):
        # The newest records: older ones may be from before a change of the partitioner.
        start = max(first, end - SAMPLED)
        if start >= end:
            continue
        found: set[tuple[bytes, int]] = set()
        for rows in source.read(OffsetRange(topic, at.partition, start, end), None):
            found |= {(key, at.partition) for key in rows.column("key").to_pylist() if key}
        yield found


def _sample_options(options: WriteOptions, topic: str, count: int) -> ReadOptions:
    where = (
        {"path": options.path}
        if options.path is not None
        else {"kafka.bootstrap.servers": options.bootstrap_servers or ""}
    )
    return parse_options(
        {
            **{f"{KAFKA}{name}": value for name, value in options.client.items()},
            **where,
            "assign": json.dumps({topic: [*range(count)]}),
            "columns": "key",
            "isolationLevel": "read_uncommitted",
            "failOnDataLoss": "false",
            "ignoreCorruptBatches": "true",
        }
    )


BATCH_BYTES: Final = 256 * 1024
"""Size of one record batch before compression; by default a topic accepts a megabyte."""
STAGING: Final = "_staging"
"""The folder in a data directory; see `streamlog.broker.storage.data_directory`."""


class SegmentFile:
    """Writes the rows of one task for one partition to a file."""

    def __init__(self, folder: Path, topic: str, partition: int, codec: Compression) -> None:
        self._topic, self._partition, self._codec = topic, partition, codec
        self.path = folder / uuid.uuid4().hex
        self._file: BinaryIO = self.path.open("wb")
        self._builder = BatchBuilder(codec=codec)
        self._size_bytes = self._record_count = self._crc32c = 0

    def add(self, rows: ArrowRows, first: int, end: int) -> None:
        """Append the rows from `first` to before `end`.

        The file consists of whole batches; a row larger than a batch is a batch of its own.
        """
        # `take` stops when the batch is full: if rows are left, the batch is written. A batch that
        # is not full stays open for the next rows.
        while first < end:
            first = self._builder.take(rows, first, end, BATCH_BYTES)
            if first < end:
                self._write()

    def _write(self) -> None:
        count = self._builder.record_count
        if not count:
            return
        data = self._builder.build()
        self._file.write(data)
        self._crc32c = crc32c(data, self._crc32c)
        self._size_bytes += len(data)
        self._record_count += count
        self._builder = BatchBuilder(codec=self._codec)

    def finish(self) -> StagedSegment:
        """Write the rest, sync the file, and return its segment."""
        self._write()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return StagedSegment(
            self._topic,
            self._partition,
            self.path.name,
            self._size_bytes,
            self._record_count,
            self._crc32c,
        )


def _murmur2(_topic: str, _count: int) -> Partitioner:
    return DEFAULT


@dataclass(slots=True)
class TaskWriter:
    """Writes the rows of one task to a file per partition of their topics."""

    folder: Path
    partitions: dict[str, int]
    """Number of partitions of each topic."""
    topic: str | None
    codec: Compression
    now_ms: int
    """Timestamp of rows without one, ms since 1970."""
    partitioner_of: Callable[[str, int], Partitioner] = _murmur2
    """Returns the partitioner of a topic, given its number of partitions. Called once per topic
    with rows that their keys place."""
    _partitioners: dict[str, Partitioner] = field(default_factory=dict)
    _files: dict[tuple[str, int], SegmentFile] = field(default_factory=dict)
    _turn: int = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows.

        Raises:
            ConfigError: a row has no topic, or names a topic or partition that does not exist.
        """
        topics = _column(rows, "topic")
        if topics is None:
            self._write_to(self.topic, rows)
            return
        named = [each if each is not None else self.topic for each in topics]
        for topic in dict.fromkeys(named):
            indexes = [at for at, name in enumerate(named) if name == topic]
            self._write_to(topic, rows if len(indexes) == len(named) else rows.take(indexes))

    def _write_to(self, topic: str | None, rows: pa.RecordBatch) -> None:
        if topic not in self.partitions:
            there = ", ".join(sorted(self.partitions)) or "none"
            raise ConfigError(
                f"rows name the topic '{topic}', which the log does not have; its topics: {there}"
            )
        if not rows.num_rows:
            return
        keys = _binary(rows, "key") if "key" in rows.schema.names else None
        headers = _headers(_column(rows, "headers"))
        found = ArrowRows(keys, _binary(rows, "value"), self._times(rows), headers)
        numbers = self._partition_numbers(topic, rows, found)
        starts = found.arrange(numbers, self.partitions[topic])
        for number, (first, end) in enumerate(pairwise(starts)):
            if first < end:
                self._file(topic, number).add(found, first, end)

    def _times(self, rows: pa.RecordBatch) -> array[int]:
        if "timestamp" not in rows.schema.names:
            count: int = rows.num_rows
            return array("q", [self.now_ms]) * count
        # Spark's timestamps are in microseconds.
        times: list[int | None] = rows.column("timestamp").cast("int64").to_pylist()
        return array("q", [self.now_ms if each is None else each // 1_000 for each in times])

    def _partition_numbers(self, topic: str, rows: pa.RecordBatch, found: ArrowRows) -> list[int]:
        """Return each row's partition: the one it names, else its key's, else the next in turn."""
        count = self.partitions[topic]
        self._turn += 1
        # All rows of a batch that have neither a key nor a partition go to one partition, the next
        # batch's to the next one: fewer and larger record batches.
        turn = self._turn % count
        given = _column(rows, "partition")
        # The usual case, once the partitioner is known: keys are hashed in their buffers.
        if given is None and self._partitioners.get(topic) == DEFAULT:
            return found.partitions_by_key(count, turn)
        given = given or [None] * rows.num_rows
        keys = rows.column("key").cast("binary").to_pylist() if "key" in rows.schema.names else []
        free = [at for at, key in enumerate(keys) if key is not None and given[at] is None]
        numbers = [turn if number is None else number for number in given]
        if free and topic not in self._partitioners:
            self._partitioners[topic] = self.partitioner_of(topic, count)
        for at in free:
            numbers[at] = partition_by(self._partitioners[topic], keys[at], count)
        for at, number in enumerate(numbers):
            if not 0 <= number < count:
                what = "a row"
                if given[at] is None:
                    by = partitioner_name(self._partitioners[topic])
                    what = f"a row with key {keys[at][:80]!r}, by {by},"
                raise ConfigError(
                    f"{what} is for {topic}-{number}, but the topic has partitions 0 to {count - 1}"
                )
        return numbers

    def _file(self, topic: str, number: int) -> SegmentFile:
        partition_key = topic, number
        if partition_key not in self._files:
            self._files[partition_key] = SegmentFile(self.folder, topic, number, self.codec)
        return self._files[partition_key]

    def finish(self) -> list[StagedSegment]:
        """Write the rest, sync all files and their folder, and return the segments."""
        segments = [file.finish() for file in self._files.values()]
        # The folder too: a file's content is safe after its own sync, its name after the folder's.
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return segments


def _column(rows: pa.RecordBatch, name: str) -> list[Any] | None:
    return rows.column(name).to_pylist() if name in rows.schema.names else None


def _binary(rows: pa.RecordBatch, name: str) -> BinaryArray:
    """Return a binary or string column (see `check_columns`) as its buffers."""
    column = rows.column(name).cast("binary")
    valid, ends, data = column.buffers()
    return BinaryArray(column.offset, len(column), ends, data or b"", valid)


def _headers(column: list[Any] | None) -> list[tuple[tuple[str, bytes | None], ...]] | None:
    if column is None:
        return None
    return [tuple((each["key"], each["value"]) for each in pairs or ()) for pairs in column]


@dataclass
class StagedSegments(WriterCommitMessage):
    """The segments that one task has staged."""

    segments: list[StagedSegment]


class SparkSink:
    """Stages and publishes the rows of a job; made by the driver, copied to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType, staged_by: str) -> None:
        """Look up the topics.

        Args:
            options: the options of the write.
            schema: the columns of the rows.
            staged_by: name under which segments are staged.

        Raises:
            ConfigError: rows can't be records, or there is no such topic.
        """
        types = {each.name: each.dataType.simpleString() for each in schema.fields}
        check_columns(types, options.topic)
        self._options = options
        self._partitions, self._takes_segments = _topic_partitions(options)
        if options.topic is not None and options.topic not in self._partitions:
            there = ", ".join(sorted(self._partitions)) or "none"
            raise ConfigError(f"the log has no topic '{options.topic}'; its topics: {there}")
        self.staged_by = staged_by

    @without_traceback()
    def stage(self, rows: Iterator[pa.RecordBatch]) -> StagedSegments:
        """Write the rows of a task to segments that no reader sees."""
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        writer = TaskWriter(
            folder,
            self._partitions,
            self._options.topic,
            self._options.compression,
            SystemClock().wall_ms(),
            partial(partitioner_of, self._options),
        )
        for batch in rows:
            writer.write(batch)
        segments = writer.finish()
        if self._is_sent():
            asyncio.run(self._send(folder, segments))
            shutil.rmtree(folder)
        return StagedSegments(segments)

    @without_traceback()
    def publish(self, job_id: str, messages: list[WriterCommitMessage | None]) -> None:
        """Make all staged segments visible, atomically.

        Raises:
            LogError: the log refused; no row is visible.
        """
        segments = [each for m in messages if isinstance(m, StagedSegments) for each in m.segments]

        async def ask() -> bool:
            async with connect_log(self._options) as log:
                done = await log.publish(
                    job_id,
                    segments,
                    staged_by=self.staged_by,
                    read=self._content,
                    compression=self._options.compression,
                )
                return done.is_repeated

        if asyncio.run(ask()):
            _log.warning("job %s was published before: nothing was written", job_id)
        self._forget()

    @without_traceback()
    def drop(self) -> None:
        """Remove the staged segments, as far as possible."""

        async def ask() -> None:
            async with connect_log(self._options) as log:
                await log.admin().drop_staged(self.staged_by)

        if self._takes_segments:
            asyncio.run(ask())
        self._forget()

    def _forget(self) -> None:
        if not self._is_sent():
            shutil.rmtree(self._folder(), ignore_errors=True)

    def _is_sent(self) -> bool:
        """Return whether tasks send their segments to the broker."""
        return self._takes_segments and self._options.path is None

    def _folder(self) -> Path:
        if self._options.path is not None:
            return Path(self._options.path) / STAGING / self.staged_by
        if self._takes_segments:
            return Path(tempfile.mkdtemp(prefix="streamlog-"))
        return Path(self._options.staging_path or tempfile.gettempdir()) / self.staged_by

    async def _send(self, folder: Path, segments: list[StagedSegment]) -> None:
        async with connect_log(self._options) as log:
            for each in segments:
                data = (folder / each.name).read_bytes()
                await log.admin().stage(self.staged_by, each.name, data)

    def _content(self, name: str) -> bytes:
        path = self._folder() / name
        if not path.exists():
            raise ConfigError(
                f"{path} does not exist: for a cluster, or a broker of Kafka, the option"
                " 'stagingPath' must name a folder that all executors and the driver share"
            )
        return path.read_bytes()


class LogWriter(DataSourceArrowWriter):
    """Writes a frame as one job."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        # The job's ID makes a repetition harmless. Each writer stages under a name of its own: two
        # concurrent runs of one job don't remove each other's segments.
        self._job_id = options.job_id or f"spark-{uuid.uuid4().hex}"
        self._sink = SparkSink(options, schema, f"{self._job_id}-{uuid.uuid4().hex[:12]}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the job."""
        self._sink.publish(self._job_id, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's signature
        """Remove the staged segments; published rows stay."""
        self._sink.drop()


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch of a streaming query as one job."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if options.query_id is None:
            raise ConfigError(
                "give the query the option 'checkpointLocation' or 'queryId': it identifies a batch"
                " that is repeated after a restart"
            )
        self._query_id = options.query_id
        # Spark makes another writer for the commit: the two share only the query's ID.
        self._sink = SparkSink(options, schema, f"{self._query_id}-staged")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the micro-batch."""
        # 1. Batch 7 is published, and the driver crashes before Spark has noted that.
        # 2. Spark repeats batch 7 after the restart: its tasks stage the rows again.
        # 3. The job's ID is known to the log, so nothing is written twice.
        self._sink.publish(f"{self._query_id}-{batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's signature
        """Remove the staged segments; published rows stay."""
        self._sink.drop()


def _topic_partitions(options: WriteOptions) -> tuple[dict[str, int], bool]:
    """Return the topics' numbers of partitions, and whether the log publishes segments."""
    if options.path is not None:
        with StoredLog(options.path) as stored:
            return stored.topics(), True

    async def ask() -> tuple[dict[str, int], bool]:
        async with connect_log(options) as log:
            topics = await log.admin().list_topics()
            return {each.name: each.partitions for each in topics}, await log.admin().can_publish()

    return asyncio.run(ask())
