"""Cleaning: one pass over a log that `compaction` has found worth it, in small steps.

First the newest offsets of the keys in the dirty part are taken into the map, as many as fit;
then group by group of segments is rewritten and swapped (`swap`); last the checkpoint tells
how far the log is clean. Each step of `steps` is a batch or some hundred records, so that
whoever drives it decides how long it holds up the broker's loop and how much it reads and
writes in a second. Between two steps the log may grow, roll, lose its head or be deleted.
Rule of the file: what is found damaged ends the cleaning and is left as it is; nothing that
can't be read may be missing afterwards.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.storage.cleaned_batch import Unpacked, emptied, filler
from streamlog.broker.storage.compaction import (
    MARKERS,
    Dirtiness,
    SegmentFacts,
    Survivors,
    Transactions,
    groups,
    marker_type,
)
from streamlog.broker.storage.files import directory_error
from streamlog.broker.storage.index import TIME_ENTRY_BYTES
from streamlog.broker.storage.offset_map import OffsetMap
from streamlog.errors import CorruptData
from streamlog.records.batch import Record, RecordBatch, split_batches

if TYPE_CHECKING:
    from streamlog.broker.storage.partition_log import PartitionLog
    from streamlog.broker.storage.segment import Segment

SLICE_RECORDS = 500
"""Looked up in the map between two steps: about a millisecond."""
WRITE_BYTES = 256 * 1024
"""Written at a time."""
SYNC_BYTES = 1024 * 1024
"""Brought to disk at a time, so that no sync takes long."""
READ_BYTES = 256 * 1024
"""Read at a time while transactions are looked for."""

Steps = Generator[int, None, None]
"""Bytes that were read and written in each step."""


class Cleaned(NamedTuple):
    """What a cleaning has done."""

    end_offset: int
    before_bytes: int
    after_bytes: int
    keys: int


class Cleaning:
    """One cleaning of `log`, up to where `dirty` says; `steps` does it, `result` tells.

    `memory_bytes` bounds the map; `wall_ms` is now, for tombstones.
    """

    def __init__(
        self, log: PartitionLog, dirty: Dirtiness, *, memory_bytes: int, wall_ms: int
    ) -> None:
        self.result: Cleaned | None = None
        """Once the steps have come to their end."""
        self._log = log
        self._first_offset = dirty.first_dirty_offset
        self._end_offset = dirty.end_offset
        self._wall_ms = wall_ms
        self._map = OffsetMap(
            memory_bytes=memory_bytes,
            keys_max=dirty.end_offset - dirty.first_dirty_offset,
            secret=secrets.token_bytes(16),
        )
        self._transactions: Transactions | None = None
        self._before_bytes = self._after_bytes = 0

    def steps(self) -> Steps:
        """Clean, a step at a time; to give it up, close the iterator.

        Raises:
            CorruptData: the log is damaged; nothing of the rest was changed.
            UnknownTopicOrPartition: it was deleted meanwhile.
            LogDirectoryError: the disk refused; what was swapped so far stays.
        """
        log = self._log
        sealed = log.sealed_segments(before_offset=self._end_offset)
        yield from self._fill_map(sealed)
        survivors = Survivors(
            end_offset=self._end_offset,
            transactions=self._transactions or Transactions(),
            last_sequences=log.last_sequences(),
            wall_ms=self._wall_ms,
            delete_retention_ms=log.config.delete_retention_ms,
        )
        found = groups(
            [facts(segment) for segment in sealed],
            end_offset=self._end_offset,
            config=log.config,
            index_entry_bytes=TIME_ENTRY_BYTES,
        )
        for numbers in found:
            yield from self._rewrite(sealed[numbers.start : numbers.stop], survivors)
        log.cleaned.write(self._end_offset)
        self.result = Cleaned(
            self._end_offset, self._before_bytes, self._after_bytes, len(self._map)
        )

    # The map.

    def _fill_map(self, sealed: Sequence[Segment]) -> Steps:
        for segment in sealed:
            if segment.next_offset <= self._first_offset:
                continue
            for batch in _sound_batches(segment, self._first_offset):
                yield batch.size_bytes
                if batch.is_transactional and self._transactions is None:
                    yield from self._find_transactions(batch.base_offset)
                if batch.base_offset >= self._end_offset:
                    return
                if not (yield from self._take(batch)):
                    # The first one is taken as far as it fits: keys that the map does not
                    # know lose nothing, and the next cleaning begins behind it.
                    first = batch.base_offset <= self._first_offset
                    self._end_offset = batch.next_offset if first else batch.base_offset
                    return

    def _take(self, batch: RecordBatch) -> Generator[int, None, bool]:
        aborted = self._transactions is not None and self._transactions.holds_aborted(batch)
        if batch.is_control or batch.record_count == 0 or aborted:
            return True
        for records in _slices(Unpacked(batch).records):
            if not self._map.take(records):
                return False
            yield 0
        return True

    def _find_transactions(self, offset: int) -> Steps:
        """How the transactions from `offset` on end; the log is clean before the first open one."""
        found = Transactions()
        while data := self._log.read(offset, max_bytes=READ_BYTES):
            for batch in split_batches(data):
                found.take(batch)
                offset = batch.next_offset
            yield len(data)
        self._transactions = found
        if found.first_open_offset is not None:
            self._end_offset = min(self._end_offset, found.first_open_offset)

    # The rewrite.

    def _rewrite(self, group: Sequence[Segment], survivors: Survivors) -> Steps:
        log = self._log
        with _disk(group[0].path):
            output = _Output(log.cleaned_segment(group[0].base_offset))
            try:
                output.segment.create()
                for segment in group:
                    yield from self._rewrite_one(segment, output, survivors)
                output.finish(group[-1].next_offset)
                yield 0
                self._before_bytes += sum(segment.size_bytes for segment in group)
                if len(group) == 1 and not output.changed:
                    self._after_bytes += group[0].size_bytes
                else:
                    log.swap_segments(group, output.segment)
                    self._after_bytes += output.segment.size_bytes
            finally:
                # Whatever has become of it: if it counts, it has another name by now.
                output.discard()

    def _rewrite_one(self, segment: Segment, output: _Output, survivors: Survivors) -> Steps:
        for batch in _sound_batches(segment, segment.base_offset):
            data = yield from self._rewritten(batch, survivors)
            yield batch.size_bytes + output.add(batch, data)

    def _rewritten(
        self, batch: RecordBatch, survivors: Survivors
    ) -> Generator[int, None, bytes | memoryview | None]:
        """What is left of the batch: itself if all of it stays, None if nothing does."""
        if survivors.untouched(batch):
            return batch.data
        if batch.is_control:
            return _marker(batch, survivors)
        if survivors.gone(batch):
            return _sequence_only(batch, survivors)
        unpacked = Unpacked(batch)
        kept: list[bool] = []
        for records in _slices(unpacked.records):
            kept += survivors.kept(batch, records, self._map.newest(records))
            yield 0
        if not any(kept):
            return _sequence_only(batch, survivors)
        survivors.note_data(batch)
        horizon_ms = survivors.horizon_ms(batch, unpacked.records, kept)
        if horizon_ms is None and all(kept):
            return batch.data
        return unpacked.only(kept, horizon_ms=horizon_ms)


class _Output:
    """The cleaned segment, written by the chunk."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.changed = False
        """Whether anything in it differs from what it was made from."""
        self._parts: list[bytes | memoryview] = []
        self._parts_bytes = 0
        self._unsynced_bytes = 0
        self._gap: tuple[int, int, int] | None = None

    def add(self, batch: RecordBatch, data: bytes | memoryview | None) -> int:
        """What is left of a batch, which follows the last one; returns the bytes written now."""
        if data is None:
            self._widen_gap(batch)
        else:
            self._close_gap()
            self._append(data)
            self.changed = self.changed or not isinstance(data, memoryview)
        return self._write() if self._parts_bytes >= WRITE_BYTES else 0

    def finish(self, end_offset: int) -> None:
        """All of it, up to this offset, is on disk, its indexes but for the page cache."""
        self._close_gap()
        self._write()
        if self.segment.next_offset != end_offset:
            raise CorruptData(f"{self.segment.path} does not reach up to offset {end_offset}")
        self.segment.flush_indexes()
        self.segment.sync()
        self.segment.close()

    def discard(self) -> None:
        """Remove what still is under the names of something unfinished."""
        self.segment.remove()

    def _widen_gap(self, batch: RecordBatch) -> None:
        epoch = batch.leader_epoch
        if self._gap is not None and self._gap[2] != epoch:
            self._close_gap()
        first = batch.base_offset if self._gap is None else self._gap[0]
        self._gap = (first, batch.last_offset, epoch)
        if batch.record_count:
            self.changed = True

    def _close_gap(self) -> None:
        if self._gap is not None:
            self._append(filler(*self._gap))
            self._gap = None

    def _append(self, data: bytes | memoryview) -> None:
        self._parts.append(data)
        self._parts_bytes += len(data)

    def _write(self) -> int:
        data = b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        if not data:
            return 0
        batches = list(split_batches(data))
        if batches[0].base_offset != self.segment.next_offset:
            raise CorruptData(
                f"{self.segment.path}: the batch with base offset {batches[0].base_offset} would"
                f" follow offset {self.segment.next_offset - 1}"
            )
        self.segment.append(data, batches)
        self._unsynced_bytes += len(data)
        if self._unsynced_bytes >= SYNC_BYTES:
            self.segment.sync()
            self._unsynced_bytes = 0
        return len(data)


def facts(segment: Segment) -> SegmentFacts:
    """What the decisions need to know of a segment that is loaded."""
    return SegmentFacts(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size_bytes,
        index_entries=segment.index_entries,
        first_timestamp_ms=segment.first_timestamp_ms,
        max_timestamp_ms=segment.max_timestamp_ms,
    )


@contextmanager
def _disk(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise directory_error(error, path) from error


def _sound_batches(segment: Segment, offset: int) -> Iterator[RecordBatch]:
    """All batches from the one with `offset` in it on.

    Raises:
        CorruptData: one of them is damaged.
    """
    reached = max(offset, segment.base_offset)
    for batch in segment.batches(offset):
        if batch.base_offset > reached:
            break
        yield batch
        reached = batch.next_offset
    if reached < segment.next_offset:
        raise CorruptData(f"{segment.path} is damaged behind offset {reached - 1}")


def _slices(records: list[Record]) -> Iterator[list[Record]]:
    for begin in range(0, len(records), SLICE_RECORDS):
        yield records[begin : begin + SLICE_RECORDS]


def _sequence_only(batch: RecordBatch, survivors: Survivors) -> bytes | memoryview | None:
    if not survivors.keeps_sequence(batch):
        return None
    return batch.data if batch.record_count == 0 else emptied(batch)


def _marker(batch: RecordBatch, survivors: Survivors) -> bytes | memoryview | None:
    kind = marker_type(batch)
    if kind is None:
        return None
    if kind not in MARKERS:
        return batch.data
    stays, horizon_ms = survivors.marker_stays(batch)
    if not stays:
        return None
    if horizon_ms is None:
        return batch.data
    return Unpacked(batch).only([True] * batch.record_count, horizon_ms=horizon_ms)
