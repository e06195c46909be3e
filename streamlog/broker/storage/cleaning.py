"""Cleaning: one pass over a log that `compaction` has found worth it, in small steps.

First the newest offsets of the keys in the dirty part are taken into the map, as many as fit;
then group by group of segments is rewritten and swapped (`swap`); last the checkpoint tells
how far the log is clean. Each step of `steps` takes about a millisecond or is a job for another
thread (`aside`), so that whoever drives it decides how long it holds up the broker's loop and how
much it reads and writes in a second. Between two steps the log may grow, roll, lose its head or
be deleted; what a cleaning reads and writes by itself nobody else touches.
Rule of the file: what is found damaged ends the cleaning and is left as it is; nothing that
can't be read may be missing afterwards. A batch with the right checksum whose records can't be
decoded was written like that: it stays as it is, and the cleaning goes on behind it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from streamlog import repeated
from streamlog.broker.storage.aside import Steps, aside
from streamlog.broker.storage.cleaned_batch import Unpacked, emptied, with_horizon
from streamlog.broker.storage.cleaned_segment import CleanedSegment
from streamlog.broker.storage.compaction import (
    Dirtiness,
    Outcomes,
    SegmentFacts,
    Survivors,
    groups,
)
from streamlog.broker.storage.files import directory_error
from streamlog.broker.storage.index import TIME_ENTRY_BYTES
from streamlog.broker.storage.offset_map import OffsetMap
from streamlog.broker.storage.sealed_batches import SealedBatches
from streamlog.errors import CorruptData, UnknownTopicOrPartition
from streamlog.records.batch import Record, RecordBatch, split_batches
from streamlog.records.compression import Compression
from streamlog.records.control import MARKERS, marker_of

if TYPE_CHECKING:
    from streamlog.broker.storage.partition_log import PartitionLog
    from streamlog.broker.storage.segment import Segment
    from streamlog.broker.storage.swap import Swap

SEAL_BYTES = 32 * 1024
"""Records of more than that are compressed as a job."""
READ_BYTES = 256 * 1024
"""Read at a time while transactions are looked for."""
INT64_MIN = -(2**63)

_logger = repeated.logger(__name__)


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
        self.unreadable: dict[int, int] = {}
        """Batches whose records can't be read: first and next offset. They stay as they are."""
        self.over: list[str] = []
        """Paths of files that were replaced so far, to be removed later."""
        self._log = log
        self._first_offset = dirty.first_dirty_offset
        self._end_offset = dirty.end_offset
        self._wall_ms = wall_ms
        self._map = OffsetMap(
            memory_bytes=memory_bytes,
            keys_max=dirty.end_offset - dirty.first_dirty_offset,
            secret=secrets.token_bytes(16),
        )
        self._outcomes: Outcomes | None = None
        self._before_bytes = self._after_bytes = 0

    def steps(self) -> Steps[None]:
        """Clean, a step at a time; to give it up, close the iterator.

        Raises:
            CorruptData: the log is damaged; nothing of the rest was changed.
            UnknownTopicOrPartition: it was deleted meanwhile.
            LogDirectoryError: the disk refused; what was swapped so far stays.
        """
        with self._disk():
            sealed: list[Segment] = []
            for segment in self._log.sealed_segments(before_offset=self._end_offset):
                sealed.append(segment)
                yield 0
            for _ in self._map.reserve():
                yield 0
            yield from self._fill_map(sealed)
            yield from self._rewrite_all(sealed)
            yield from aside(partial(self._log.cleaned.write, self._end_offset))
        self.result = Cleaned(
            self._end_offset, self._before_bytes, self._after_bytes, len(self._map)
        )
        for _ in self._map.release():
            yield 0

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._log.check_open()  # Deleted with all of its files, it is no trouble of the disk.
            raise directory_error(error, self._log.name) from error

    @contextmanager
    def _opened(self, segment: Segment, offset: int) -> Iterator[SealedBatches]:
        with closing(SealedBatches(segment, offset)) as source:
            try:
                yield source
            except FileNotFoundError as error:
                if self._log.has_segment(segment):
                    raise
                name = self._log.name
                raise UnknownTopicOrPartition(f"{name}: what was to be cleaned is gone") from error

    # The map.

    def _fill_map(self, sealed: Sequence[Segment]) -> Steps[None]:
        for segment in sealed:
            if segment.next_offset <= self._first_offset:
                continue
            with self._opened(segment, self._first_offset) as source:
                if not (yield from self._take_all(source)):
                    return

    def _take_all(self, source: SealedBatches) -> Steps[bool]:
        """Whether to go on."""
        while batches := (yield from source.next()):
            for batch in batches:
                if not (yield from self._take(batch, source)):
                    return False
        return True

    def _take(self, batch: RecordBatch, source: SealedBatches) -> Steps[bool]:
        """Whether to go on."""
        yield batch.size_bytes
        if batch.is_transactional and self._outcomes is None:
            yield from self._find_transactions(batch.base_offset)
        if batch.base_offset >= self._end_offset:
            return False
        aborted = self._outcomes is not None and self._outcomes.holds_aborted(batch)
        if batch.is_control or batch.record_count == 0 or aborted:
            return True
        slices = yield from self._readable_slices(batch, source)
        for records in slices:
            if not self._map.take(records):
                # The first one is taken as far as it fits: keys that the map does not
                # know lose nothing, and the next cleaning begins behind it.
                first = batch.base_offset <= self._first_offset
                self._end_offset = batch.next_offset if first else batch.base_offset
                return False
            yield 0
        return True

    def _readable_slices(
        self, batch: RecordBatch, source: SealedBatches
    ) -> Steps[list[list[Record]]]:
        """The records of a batch, all of them or none: keys of half a batch would count."""
        found: list[list[Record]] = []
        try:
            unpacked = yield from source.unpacked(batch)
            for records in unpacked.slices():
                found.append(records)
                yield 0
        except CorruptData as error:
            self._pass(batch, error)
            return []
        return found

    def _pass(self, batch: RecordBatch, error: CorruptData) -> None:
        """Leave a batch as it is whose records can't be read, though its checksum is right."""
        self.unreadable[batch.base_offset] = batch.next_offset
        _logger.error(
            "%s: the batch with offsets %d to %d can't be read and stays as it is, its keys are not"
            " compacted (`streamlog log repair` removes it): %s",
            self._log.name, batch.base_offset, batch.last_offset, error,
        )  # fmt: skip

    def _find_transactions(self, offset: int) -> Steps[None]:
        """How the transactions from `offset` on end; the log is clean before the first open one."""
        found = Outcomes()
        undecided = math.inf
        # What is deleted nobody sees, be it aborted or not.
        while data := self._log.read(max(offset, self._log.log_start_offset), max_bytes=READ_BYTES):
            for batch in split_batches(data):
                found.take(batch)
                offset = batch.next_offset
            yield len(data)
            undecided = math.inf if found.first_open_offset is None else found.first_open_offset
            if self._end_offset <= min(offset, undecided):
                break
        self._outcomes = found
        self._end_offset = int(min(self._end_offset, undecided))

    # The rewrite.

    def _rewrite_all(self, sealed: Sequence[Segment]) -> Steps[None]:
        log = self._log
        survivors = Survivors(
            end_offset=self._end_offset,
            outcomes=self._outcomes or Outcomes(),
            last_offsets=log.producers.last_offsets(),
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

    def _rewrite(self, group: Sequence[Segment], survivors: Survivors) -> Steps[None]:
        output = CleanedSegment(self._log.cleaned_segment(group[0].base_offset))
        unfinished = True
        try:
            yield from output.create()
            for segment in group:
                with self._opened(segment, segment.base_offset) as source:
                    yield from self._rewrite_one(source, output, survivors)
            yield from output.finish(group[-1].next_offset)
            self._before_bytes += sum(segment.size_bytes for segment in group)
            if len(group) == 1 and not output.changed:
                self._after_bytes += group[0].size_bytes
                yield from aside(output.discard)
            else:
                begun = self._log.begin_swap(group, output.segment)
                self._after_bytes += output.segment.size_bytes
                unfinished = False
                yield from self._end_swap(begun)
        finally:
            if unfinished:
                output.discard()

    def _end_swap(self, begun: Swap) -> Steps[None]:
        try:
            yield from aside(begun.take_out)
        except GeneratorExit:
            # The cleaning is given up, and the log may stay: its files get their names.
            begun.take_out()
            self._log.end_swap(begun)
            raise
        self._log.end_swap(begun)
        self.over += begun.over
        yield from aside(begun.end)

    def _rewrite_one(
        self, source: SealedBatches, output: CleanedSegment, survivors: Survivors
    ) -> Steps[None]:
        while batches := (yield from source.next()):
            for batch in batches:
                data = yield from self._rewritten(batch, source, survivors)
                if data is not None and batch.is_transactional:
                    output.segment.aborted.extend(survivors.written(RecordBatch(data)))
                yield from output.add(batch, data)
                yield batch.size_bytes

    def _rewritten(
        self, batch: RecordBatch, source: SealedBatches, survivors: Survivors
    ) -> Steps[bytes | memoryview | None]:
        """What is left of the batch: itself if all of it stays, None if nothing does."""
        if survivors.untouched(batch):
            return batch.data
        if batch.is_control:
            return _marker(batch, survivors)
        if survivors.gone(batch):
            return _producer_only(batch, survivors)
        found = yield from self._what_stays(batch, source, survivors)
        if found is not None and not any(found[1].kept):
            return _producer_only(batch, survivors)
        survivors.note_data(batch)
        if found is None or (found[1].horizon_ms is None and all(found[1].kept)):
            return batch.data
        return (yield from _sealed(*found))

    def _what_stays(
        self, batch: RecordBatch, source: SealedBatches, survivors: Survivors
    ) -> Steps[tuple[Unpacked, _Left] | None]:
        """The records of a batch, and which of them stay; None if they can't be read."""
        if batch.base_offset in self.unreadable:
            return None
        try:
            unpacked = yield from source.unpacked(batch)
            left = yield from self._left(unpacked, survivors)
        except CorruptData as error:
            self._pass(batch, error)
            return None
        return unpacked, left

    def _left(self, unpacked: Unpacked, survivors: Survivors) -> Steps[_Left]:
        left = _Left()
        for records in unpacked.slices():
            kept = survivors.kept(unpacked.batch, records, self._map.newest(records))
            horizon_ms = survivors.horizon_ms(unpacked.batch, records, kept)
            left.add(records, kept, horizon_ms)
            yield 0
        return left


class _Left:
    """Which records of a batch stay."""

    def __init__(self) -> None:
        self.kept: list[bool] = []
        self.slices: list[range] = []
        self.horizon_ms: int | None = None
        self.max_ms = INT64_MIN
        self.count = 0

    def add(self, records: Sequence[Record], kept: list[bool], horizon_ms: int | None) -> None:
        """The next of its records."""
        self.slices.append(range(len(self.kept), len(self.kept) + len(kept)))
        self.kept += kept
        if horizon_ms is not None:
            self.horizon_ms = horizon_ms
        times_ms = [r.timestamp_ms for r, keep in zip(records, kept, strict=True) if keep]
        self.count += len(times_ms)
        self.max_ms = max(self.max_ms, max(times_ms, default=self.max_ms))


def _sealed(unpacked: Unpacked, left: _Left) -> Steps[bytes]:
    """The batch with what is left of it."""
    parts: list[bytes | memoryview] = []
    for numbers in left.slices:
        if left.horizon_ms is None:
            parts += unpacked.copied(left.kept, numbers)
        else:
            by_ms = left.horizon_ms - unpacked.batch.base_timestamp_ms
            parts.append(unpacked.moved(left.kept, numbers, by_ms=by_ms))
        yield 0
    seal = partial(
        unpacked.sealed,
        parts,
        horizon_ms=left.horizon_ms,
        max_ms=left.max_ms,
        record_count=left.count,
    )
    small = sum(len(part) for part in parts) <= SEAL_BYTES
    if small or unpacked.batch.codec is Compression.NONE:
        return seal()
    return (yield from aside(seal))


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


def _producer_only(batch: RecordBatch, survivors: Survivors) -> bytes | memoryview | None:
    if not survivors.keeps_producer(batch):
        return None
    return batch.data if batch.record_count == 0 else emptied(batch)


def _marker(batch: RecordBatch, survivors: Survivors) -> bytes | memoryview | None:
    marker = marker_of(batch)
    if marker is not None and marker.kind not in MARKERS:
        return batch.data
    stays, horizon_ms = (False, None) if marker is None else survivors.marker_stays(batch)
    if stays and horizon_ms is not None:
        return with_horizon(batch, horizon_ms)
    if stays or (marker is None and survivors.keeps_producer(batch)):
        return batch.data
    return emptied(batch) if survivors.keeps_producer(batch) else None
