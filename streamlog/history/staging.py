"""Staging: files of the rows that a stage writes, for the next stage or to be published.

Each task writes files of its own, so that tasks are independent and a repeated task replaces its
files. Rows for a repartition topic go to one file per source, where they are in order; a partition
is the merge of its sources by (stream time, rank of the source, position), the order in which a
live task processes them. Time marks are part of the files. Rule of the file: files consist of
record batches, as a log does. Not done here: publishing staged rows (`job`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import msgspec
from crc32c import crc32c

from streamlog.errors import CorruptData, LogDirectoryError
from streamlog.processing.outbox import SinkBatch, assign_partitions
from streamlog.processing.provenance import (
    MARK,
    RECORD_BYTES,
    ProvenanceMark,
    identity,
    pack_mark,
    unpack_mark,
    unpack_record,
)
from streamlog.record import Headers
from streamlog.records.batch import LogRecord, RecordBatch, split_batches
from streamlog.records.builder import encode_columns
from streamlog.records.record_columns import FieldColumns, RecordColumns
from streamlog.topology import Subtopology
from streamlog.windows.emit import UNKNOWN_MS, Source

BATCH_RECORDS = 2_000
"""Records per batch of a file, at most; the merge holds one batch of each source in memory."""
BATCH_BYTES = 512 * 1024
"""A file is written in pieces of about this size."""
MERGED_RECORDS = 5_000
"""Records that the merge yields at a time, at most."""

_Entry: TypeAlias = tuple[int, int, int, int, bytes | None, bytes | None, Headers]
"""Stream time, rank of the source, position in it; timestamp, key, value, headers."""
_order_of = itemgetter(0, 1, 2)


class StagedRows(msgspec.Struct, frozen=True):
    """A staged file of whole record batches."""

    path: str
    record_count: int
    size_bytes: int
    crc32c: int
    """Checksum of the whole file."""


class SegmentWriter:
    """Writes a staged file; replaces an existing one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = FieldColumns()
        self._row_bytes = 0
        self._count = self._size_bytes = self._crc = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        # An earlier attempt may have left a file, and `_write` appends.
        path.unlink(missing_ok=True)

    def append(self, columns: FieldColumns) -> None:
        """Append records; they reach the file in batches.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self._rows.extend(columns.timestamps, columns.keys, columns.values, columns.headers)
        self._row_bytes += columns.size_bytes()
        if self._row_bytes >= BATCH_BYTES or len(self._rows) >= BATCH_RECORDS:
            self._write()

    def finish(self, *, is_durable: bool = True) -> StagedRows:
        """Write the last batch and return the file; with `is_durable` after an fsync.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self._write(syncs=is_durable)
        return StagedRows(str(self._path), self._count, self._size_bytes, self._crc)

    def _write(self, *, syncs: bool = False) -> None:
        rows, self._rows, self._row_bytes = self._rows, FieldColumns(), 0
        try:
            with self._path.open("ab") as file:
                for start in range(0, len(rows), BATCH_RECORDS):
                    data = encode_columns(rows.part(start, start + BATCH_RECORDS))
                    self._crc = crc32c(data, self._crc)
                    self._size_bytes += len(data)
                    file.write(data)
                if syncs:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise LogDirectoryError(
                f"{self._path} can't be written: {error.strerror}; the history needs space for the "
                "rows of its stages: choose another directory or free some space"
            ) from error
        self._count += len(rows)


def read_segment(path: str) -> Iterator[RecordBatch]:
    """Yield the batches of a staged file, with their checksums verified.

    Raises:
        CorruptData: a batch is damaged, or the file ends within one.
    """
    with Path(path).open("rb") as file:
        # The head of a record batch: base offset (8 bytes), and length of the rest (4 bytes).
        while header := file.read(12):
            length = int.from_bytes(header[8:12], "big")
            data = header + file.read(length)
            if len(data) != len(header) + length:
                raise CorruptData(f"{path} ends within a batch: run the history again")
            for batch in split_batches(data):
                batch.check_crc()
                yield batch


def write_segment(path: str, pieces: Iterable[RecordColumns]) -> StagedRows:
    """Write records to a staged file, durably.

    Raises:
        LogDirectoryError: the disk refused.
    """
    writer = SegmentWriter(Path(path))
    for piece in pieces:
        columns = FieldColumns()
        columns.extend(piece.timestamps, piece.keys, piece.values, piece.headers)
        writer.append(columns)
    return writer.finish()


def sources_of(sub: Subtopology, topic: str, counts: Mapping[str, int]) -> list[Source]:
    """Return the sources of a repartition topic that a sub-topology reads, in order of rank."""
    return [
        (feeder.name, partition)
        for feeder in sub.feeders[topic]
        for partition in range(feeder.partitions(counts))
    ]


@dataclass(slots=True)
class Shuffle:
    """A repartition topic between two stages."""

    topic: str
    partitions: int
    ranks: dict[bytes, int]
    """Rank of each source, by its identity."""
    directory: Path
    segments: dict[tuple[int, int], StagedRows]
    """Written files, by partition and rank of the source."""

    @classmethod
    def of(
        cls, sub: Subtopology, topic: str, counts: Mapping[str, int], directory: Path
    ) -> Shuffle:
        """Return the shuffle that feeds a sub-topology, without files yet."""
        sources = sources_of(sub, topic, counts)
        ranks = {identity(source): rank for rank, source in enumerate(sources)}
        return cls(topic, counts[topic], ranks, directory / topic, {})

    def end(self, partition: int) -> int:
        """Return the number of records in a partition, time marks included."""
        found = [s.record_count for (at, _), s in self.segments.items() if at == partition]
        return sum(found)

    def read(self, partition: int) -> Iterator[RecordColumns]:
        """Yield the merged records of a partition; offsets count from 0."""
        segments = {
            rank: segment for (at, rank), segment in self.segments.items() if at == partition
        }
        return merge_sources({rank: read_segment(each.path) for rank, each in segments.items()})


class ShuffleWriter:
    """Writes the rows of one task for the repartition topics that it feeds."""

    def __init__(self, shuffles: Mapping[str, Shuffle]) -> None:
        self._shuffles = shuffles
        self._counts = {name: shuffle.partitions for name, shuffle in shuffles.items()}
        self._writers: dict[tuple[str, int, int], SegmentWriter] = {}

    def write(self, batch: SinkBatch) -> None:
        """Append a batch for a repartition topic: records of one source, or a mark."""
        rank = self._shuffles[batch.topic].ranks[source_in(batch)]
        for (topic, partition), columns in assign_partitions([batch], self._counts).items():
            self._writer(topic, partition, rank).append(columns)

    def tell(self, source: Source, mark: ProvenanceMark) -> None:
        """Append a mark to all partitions of the topics that have this source."""
        own = identity(source)
        fields = (max(mark.turn_ms, 0), None, None, ((MARK, pack_mark(mark, own)),))
        for topic, shuffle in self._shuffles.items():
            for partition in range(shuffle.partitions if own in shuffle.ranks else 0):
                writer = self._writer(topic, partition, shuffle.ranks[own])
                writer.append(FieldColumns.of([fields]))

    def _writer(self, topic: str, partition: int, rank: int) -> SegmentWriter:
        key = (topic, partition, rank)
        if key not in self._writers:
            path = self._shuffles[topic].directory / str(partition) / f"{rank}.batches"
            self._writers[key] = SegmentWriter(path)
        return self._writers[key]

    def finish(self) -> None:
        """Finish all files: the next stage can read them."""
        for (topic, partition, rank), writer in self._writers.items():
            # No fsync: a run that fails starts again from the beginning.
            self._shuffles[topic].segments[partition, rank] = writer.finish(is_durable=False)


def source_in(batch: SinkBatch) -> bytes:
    """Return the identity of the one source of a batch for a repartition topic."""
    # The provenance is the last header; all records of the batch have one source.
    name, data = (batch.headers or [()])[0][-1]
    if data is None:
        raise CorruptData(f"a record for {batch.topic} lacks the provenance of its source")
    return unpack_mark(data)[1] if name == MARK else data[RECORD_BYTES:]


def merge_sources(sources: Mapping[int, Iterable[RecordBatch]]) -> Iterator[RecordColumns]:
    """Merge sources, given by rank, by (stream time, rank, position); offsets count from 0."""
    runs = [_Run(rank, iter(batches)) for rank, batches in sorted(sources.items())]
    offset = 0
    while runs := [run for run in runs if run.load()]:
        # 1. Source A is loaded up to merge key 7, source B up to 9.
        # 2. A's next batch may have an entry of key 8, so B's entry of key 9 has to wait.
        # 3. Up to 7, the smallest of the last keys, no entry can come any more.
        bound = min(run.last for run in runs)
        entries = sorted((e for run in runs for e in run.take(bound)), key=_order_of)
        for start in range(0, len(entries), MERGED_RECORDS):
            columns = RecordColumns()
            for _, _, _, timestamp_ms, key, value, headers in entries[
                start : start + MERGED_RECORDS
            ]:
                columns.add(offset, timestamp_ms, key, value, headers)
                offset += 1
            yield columns


class _Run:
    """The entries of one source, read batch by batch."""

    def __init__(self, rank: int, batches: Iterator[RecordBatch]) -> None:
        self._rank = rank
        self._batches = batches
        self._entries: list[_Entry] = []
        self._turn_ms = UNKNOWN_MS
        self._position = 0

    @property
    def last(self) -> tuple[int, int, int]:
        """Merge key of the last loaded entry; entries that load later are greater."""
        return self._entries[-1][:3]

    def load(self) -> bool:
        """Load a batch if no entry is loaded; return whether there is one."""
        while not self._entries:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._entries = [self._entry(record) for record in batch.records()]
        return True

    def take(self, bound: tuple[int, int, int]) -> Sequence[_Entry]:
        """Remove and return the loaded entries up to `bound`."""
        high = bisect_right(self._entries, bound, key=_order_of)
        taken, self._entries = self._entries[:high], self._entries[high:]
        return taken

    def _entry(self, record: LogRecord) -> _Entry:
        _, timestamp_ms, key, value, headers = record
        name, found = headers[-1]
        data = found or b""
        turn_ms = unpack_mark(data)[0].turn_ms if name == MARK else unpack_record(data)[0]
        # The merge key never decreases within a source: a late record keeps its position in it.
        self._turn_ms = max(self._turn_ms, turn_ms)
        self._position += 1
        return (self._turn_ms, self._rank, self._position, timestamp_ms, key, value, headers)
