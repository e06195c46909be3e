"""What a Spark task writes: whole record batches, a staged segment for each partition with rows.

Where the data directory can be seen the segments are written beside the log, else they are sent to
the broker, or wait where the driver finds them. Nothing of it counts before the driver publishes
the job, so a task that is tried again, or twice at once, changes nothing.
"""

from __future__ import annotations

import os
import uuid
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from crc32c import crc32c

from streamlog.errors import ConfigError
from streamlog.records.arrow_rows import ArrowRows, BinaryArray
from streamlog.records.builder import BatchBuilder
from streamlog.records.compression import Compression
from streamlog.records.partitioners import (
    DEFAULT,
    Partitioner,
    partition_by,
    partitioner_name,
)
from streamlog.records.staged import StagedSegment

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES: Final = 256 * 1024
"""Of one record batch, before compression: a topic's `max.message.bytes` is a megabyte."""
STAGING: Final = "_staging"
"""The folder in a data directory; see `streamlog.broker.storage.staging`."""


class SegmentFile:
    """The rows of one task for one partition, on their way into a file."""

    def __init__(self, folder: Path, topic: str, partition: int, codec: Compression) -> None:
        self._topic, self._partition, self._codec = topic, partition, codec
        self.path = folder / uuid.uuid4().hex
        self._file: BinaryIO = self.path.open("wb")
        self._builder = BatchBuilder(codec=codec)
        self._size_bytes = self._record_count = self._crc32c = 0

    def add(self, rows: ArrowRows, first: int, end: int) -> None:
        """Rows behind those before, from `first` to before `end` in their order.

        Whole batches are written; a row that is larger than a batch has one by itself.
        """
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
        """Bring it to disk."""
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
    """Spreads the rows of one task over the partitions of their topics."""

    folder: Path
    partitions: dict[str, int]
    """How many each topic has."""
    topic: str | None
    codec: Compression
    now_ms: int
    """The time of rows without one."""
    partitioner_of: Callable[[str, int], Partitioner] = _murmur2
    """Asked once for each topic with rows that go by their keys; with how many partitions it has.
    """
    _partitioners: dict[str, Partitioner] = field(default_factory=dict)
    _files: dict[tuple[str, int], SegmentFile] = field(default_factory=dict)
    _turn: int = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows.

        Raises:
            ConfigError: a row is for a topic or partition that the log has not, or has none.
        """
        topics = _column(rows, "topic")
        if topics is None:
            self._write_to(self.topic, rows)
            return
        named = [each if each is not None else self.topic for each in topics]
        for topic in dict.fromkeys(named):
            places = [at for at, name in enumerate(named) if name == topic]
            self._write_to(topic, rows if len(places) == len(named) else rows.take(places))

    def _write_to(self, topic: str | None, rows: pa.RecordBatch) -> None:
        if topic not in self.partitions:
            there = ", ".join(sorted(self.partitions)) or "none"
            raise ConfigError(
                f"rows are for topic '{topic}', which the log has not (it has: {there})"
            )
        if not rows.num_rows:
            return
        keys = _binary(rows, "key") if "key" in rows.schema.names else None
        headers = _headers(_column(rows, "headers"))
        found = ArrowRows(keys, _binary(rows, "value"), self._times(rows), headers)
        places = self._places(topic, rows, found)
        starts = found.arrange(places, self.partitions[topic])
        for number, (first, end) in enumerate(pairwise(starts)):
            if first < end:
                self._file(topic, number).add(found, first, end)

    def _times(self, rows: pa.RecordBatch) -> array[int]:
        if "timestamp" not in rows.schema.names:
            count: int = rows.num_rows
            return array("q", [self.now_ms]) * count
        times: list[int | None] = rows.column("timestamp").cast("int64").to_pylist()
        return array("q", [self.now_ms if each is None else each // 1_000 for each in times])

    def _places(self, topic: str, rows: pa.RecordBatch, found: ArrowRows) -> list[int]:
        """The partitions that rows name, or those of their keys, or the one whose turn it is."""
        count = self.partitions[topic]
        self._turn += 1
        turn = self._turn % count
        numbers = _column(rows, "partition")
        if numbers is None and self._partitioners.get(topic) == DEFAULT:
            return found.places(count, turn)
        numbers = numbers or [None] * rows.num_rows
        keys = rows.column("key").cast("binary").to_pylist() if "key" in rows.schema.names else []
        free = [at for at, key in enumerate(keys) if key is not None and numbers[at] is None]
        places = [turn if number is None else number for number in numbers]
        if free and topic not in self._partitioners:
            self._partitioners[topic] = self.partitioner_of(topic, count)
        for at in free:
            places[at] = partition_by(self._partitioners[topic], keys[at], count)
        for at, place in enumerate(places):
            if not 0 <= place < count:
                what = "a row"
                if numbers[at] is None:
                    by = partitioner_name(self._partitioners[topic])
                    what = f"a row with key {keys[at][:80]!r}, by {by},"
                raise ConfigError(
                    f"{what} is for {topic}-{place}, and the topic has partitions 0 to {count - 1}"
                )
        return places

    def _file(self, topic: str, number: int) -> SegmentFile:
        place = topic, number
        if place not in self._files:
            self._files[place] = SegmentFile(self.folder, topic, number, self.codec)
        return self._files[place]

    def finish(self) -> list[StagedSegment]:
        """Bring everything to disk."""
        segments = [file.finish() for file in self._files.values()]
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return segments


def _column(rows: pa.RecordBatch, name: str) -> list[Any] | None:
    return rows.column(name).to_pylist() if name in rows.schema.names else None


def _binary(rows: pa.RecordBatch, name: str) -> BinaryArray:
    """Binary or string, as `check_columns` has seen to."""
    column = rows.column(name).cast("binary")
    valid, ends, data = column.buffers()
    return BinaryArray(column.offset, len(column), ends, data or b"", valid)


def _headers(column: list[Any] | None) -> list[tuple[tuple[str, bytes | None], ...]] | None:
    if column is None:
        return None
    return [tuple((each["key"], each["value"]) for each in pairs or ()) for pairs in column]
