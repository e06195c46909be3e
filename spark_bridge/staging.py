"""What a Spark task writes: whole record batches, a staged segment for each partition with rows.

Where the data directory can be seen the segments are written beside the log, else they are sent to
the broker, or wait where the driver finds them. Nothing of it counts before the driver publishes
the job, so a task that is tried again, or twice at once, changes nothing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from crc32c import crc32c

from streamlog.errors import ConfigError
from streamlog.records.batch import encode_columns
from streamlog.records.columns import FieldColumns
from streamlog.records.compression import Compression
from streamlog.records.murmur2 import partitions_of_keys
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
        self._waiting = FieldColumns()
        self._waiting_bytes = self._size_bytes = self._record_count = self._crc32c = 0

    def add(self, columns: FieldColumns) -> None:
        """Rows behind those before; whole batches of them are written."""
        at = 0
        while at < len(columns):
            end, taken_bytes = columns.fitting(at, BATCH_BYTES - self._waiting_bytes)
            if end == at and not len(self._waiting):
                end, taken_bytes = at + 1, BATCH_BYTES  # larger than a batch by itself
            part = columns.part(at, end)
            self._waiting.extend(part.timestamps, part.keys, part.values, part.headers)
            self._waiting_bytes += taken_bytes
            at = end
            if at < len(columns):
                self._write()

    def _write(self) -> None:
        if not len(self._waiting):
            return
        data = encode_columns(self._waiting, codec=self._codec)
        self._file.write(data)
        self._crc32c = crc32c(data, self._crc32c)
        self._size_bytes += len(data)
        self._record_count += len(self._waiting)
        self._waiting, self._waiting_bytes = FieldColumns(), 0

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
        columns = FieldColumns()
        keys = _as_bytes(rows, "key")
        values = _as_bytes(rows, "value")
        columns.extend(self._times(rows), keys, values, _headers(_column(rows, "headers")))
        count = self.partitions[topic]
        places = self._places(topic, _column(rows, "partition"), keys)
        for number, part in enumerate(columns.parted(places, count)):
            if part is not None:
                self._file(topic, number).add(part)

    def _times(self, rows: pa.RecordBatch) -> list[int]:
        if "timestamp" not in rows.schema.names:
            return [self.now_ms] * rows.num_rows
        times = rows.column("timestamp").cast("int64").to_pylist()
        return [self.now_ms if each is None else each // 1_000 for each in times]

    def _places(
        self, topic: str, numbers: Sequence[int | None] | None, keys: list[bytes | None]
    ) -> list[int]:
        count = self.partitions[topic]
        self._turn += 1
        named = [key for key in keys if key is not None]
        if numbers is None and len(named) == len(keys):
            return partitions_of_keys(named, count)
        return [
            self._place((topic, count), number, key)
            for number, key in zip(numbers or [None] * len(keys), keys, strict=True)
        ]

    def _place(self, there: tuple[str, int], number: int | None, key: bytes | None) -> int:
        """The partition that a row names, or that of its key, or the one whose turn it is."""
        topic, count = there
        if number is None:
            return self._turn % count if key is None else partitions_of_keys([key], count)[0]
        if not 0 <= number < count:
            raise ConfigError(
                f"a row is for {topic}-{number}, and the topic has partitions 0 to {count - 1}"
            )
        return number

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


def _as_bytes(rows: pa.RecordBatch, name: str) -> list[bytes | None]:
    """Binary or string, as `check_columns` has seen to."""
    if name not in rows.schema.names:
        return [None] * rows.num_rows
    found: list[bytes | None] = rows.column(name).cast("binary").to_pylist()
    return found


def _headers(column: list[Any] | None) -> list[tuple[tuple[str, bytes | None], ...]] | None:
    if column is None:
        return None
    return [tuple((each["key"], each["value"]) for each in pairs or ()) for pairs in column]
