"""Cleaning: one pass over a log that `survivors` has selected, in small steps.

First the newest offsets of the dirty part's keys go into the map, as many as fit. Then each group
of segments is rewritten (`SealedBatches` reads, `CleanedSegment` writes) and swapped in
(`log.swap`). Last, the checkpoint records how far the log is clean. Each step of `steps` takes
about a millisecond or is a job for another thread (`disk.offload`), so the caller decides how long
the event loop is held and how much is read and written per second. Between two steps the log may
grow, roll, lose its head or be deleted; no other code touches the files of a cleaning.

Rules of this module: a cleaned segment has every offset of its sources, in the same order; a batch
without records spans the batches that were removed. Damage ends the cleaning and stays as it is. A
batch with the right checksum whose records can't be decoded was written like that: it stays, and
the cleaning continues after it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from streamlog import repeated
from streamlog.broker.storage.compaction.cleaned_batch import (
    UnpackedBatch,
    decompress_payload,
    filler,
    with_horizon,
    without_records,
)
from streamlog.broker.storage.compaction.survivors import (
    Dirtiness,
    OffsetMap,
    Outcomes,
    SegmentFacts,
    Survivors,
    groups,
)
from streamlog.broker.storage.disk.files import directory_error
from streamlog.broker.storage.disk.offload import Steps, offload
from streamlog.broker.storage.log.batch_headers import PREFIX_BYTES
from streamlog.broker.storage.log.index import TIME_ENTRY_BYTES
from streamlog.errors import CorruptData, UnknownTopicOrPartition
from streamlog.records.batch import HEADER_BYTES, LogRecord, RecordBatch, split_batches
from streamlog.records.compression import Compression
from streamlog.records.control_batches import MARKERS, marker_of

if TYPE_CHECKING:
    from streamlog.broker.storage.disk.files import File
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.broker.storage.log.segment import Segment
    from streamlog.broker.storage.log.swap import Swap


WRITE_BYTES = 256 * 1024
"""Bytes per write."""
WRITE_BATCHES = 500
"""The most batches per write; each is examined."""
SYNC_BYTES = 1024 * 1024
"""Bytes per sync, so that no sync takes long."""


class CleanedSegment:
    """Fills `segment`, which is not part of the log yet. Every method may raise OSError."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.changed = False
        """Whether the segment differs from its sources."""
        self._parts: list[bytes | memoryview] = []
        self._parts_bytes = 0
        self._unsynced_bytes = 0
        self._gap: tuple[int, int, int] | None = None

    def create(self) -> Steps[None]:
        """Create the files."""
        yield from offload(self.segment.create)

    def add(self, batch: RecordBatch, data: bytes | memoryview | None) -> Steps[None]:
        """Add the rest of a batch, which follows the last one; None if nothing is left of it."""
        if data is None:
            self._widen_gap(batch)
        else:
            self._close_gap()
            self._append(data)
            self.changed = self.changed or not isinstance(data, memoryview)
        if self._parts_bytes >= WRITE_BYTES or len(self._parts) >= WRITE_BATCHES:
            yield from self._write()

    def finish(self, end_offset: int) -> Steps[None]:
        """Sync the segment, which has to end at `end_offset`, with its indexes.

        Raises:
            CorruptData: it does not end there.
        """
        self._close_gap()
        yield from self._write()
        if self.segment.next_offset != end_offset:
            raise CorruptData(f"{self.segment.path} does not reach up to offset {end_offset}")
        yield from offload(self._finish)

    def discard(self) -> None:
        """Close the segment, and remove its files unless they were renamed."""
        self.segment.remove()

    def _widen_gap(self, batch: RecordBatch) -> None:
        # One filler for all consecutive batches that are gone, but one per leader epoch: the epoch
        # cache is rebuilt from batches.
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

    def _write(self) -> Steps[None]:
        data = b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        if not data:
            return
        batches = list(split_batches(data))
        if batches[0].base_offset != self.segment.next_offset:
            raise CorruptData(
                f"{self.segment.path}: the batch with base offset {batches[0].base_offset} would"
                f" follow offset {self.segment.next_offset - 1}"
            )
        yield from offload(partial(self._write_now, data, batches), len(data))

    def _write_now(self, data: bytes, batches: list[RecordBatch]) -> None:
        self.segment.append(data, batches)
        self._unsynced_bytes += len(data)
        if self._unsynced_bytes >= SYNC_BYTES:
            self.segment.sync()
            self._unsynced_bytes = 0

    def _finish(self) -> None:
        # The index of aborted transactions is always written, even if empty: step 2 of a swap
        # relies on it (see `log.swap`).
        self.segment.aborted.seal()
        self.segment.trim_indexes()
        self.segment.sync()
        self.segment.close()
        self.segment.keep_indexes()


READ_BYTES = 256 * 1024
"""Bytes per read, unless a batch is larger."""
BATCHES_AT_ONCE = 200
"""Batches checked per step."""
AHEAD_BYTES = 1024 * 1024
"""Bytes decompressed per job, unless a batch is larger."""

_LENGTH_AT = slice(8, 12)


class SealedBatches:
    """Reads `segment` from the batch that contains `offset` on; close it.

    The files may be renamed or removed meanwhile.
    """

    def __init__(self, segment: Segment, offset: int) -> None:
        self._segment = segment
        self._from_offset = offset
        self._next_offset = segment.base_offset
        self._end_offset = segment.next_offset
        self._size_bytes = segment.size_bytes
        self._position = 0
        self._chunk = memoryview(b"")
        """The bytes read from the current position on."""
        self._file: File | None = None
        self._batches: list[RecordBatch] = []
        self._payloads: dict[int, bytes] = {}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def next(self) -> Steps[list[RecordBatch]]:
        """Return the next batches; an empty list at the end.

        Raises:
            CorruptData: the segment is damaged.
            OSError: it can't be read.
        """
        self._payloads = {}
        self._batches = []
        while not self._batches and self._position < self._size_bytes:
            # 1. Batches left in the chunk. 2. If there is none, a chunk of the usual size. 3. If it
            #    has no whole batch, a chunk of the size that the batch's header claims.
            found = self._take_checked()
            if not found:
                yield from self._read(READ_BYTES)
                found = self._take_checked()
            if not found:
                yield from self._read(self._next_size_bytes())
                found = self._take_checked()
            if not found:
                raise self._damage_error("the file ends within a batch")
            self._batches = [batch for batch in found if batch.next_offset > self._from_offset]
            yield 0
        if not self._batches and self._next_offset != self._end_offset:
            raise self._damage_error(f"it does not reach offset {self._end_offset - 1}")
        return self._batches

    def unpack(self, batch: RecordBatch) -> Steps[UnpackedBatch]:
        """Decompress one of the batches that were returned last.

        Raises:
            CorruptData: it can't be decompressed.
        """
        if batch.codec is Compression.NONE:
            return UnpackedBatch(batch, decompress_payload(batch))
        if batch.base_offset not in self._payloads:
            first = self._batches.index(batch)
            self._payloads = yield from offload(partial(_payloads, self._batches[first:]))
        return UnpackedBatch(batch, self._payloads.pop(batch.base_offset))

    def _read(self, size_bytes: int) -> Steps[None]:
        wanted_bytes = min(size_bytes, self._size_bytes - self._position)
        self._chunk = memoryview((yield from offload(partial(self._read_now, wanted_bytes))))

    def _read_now(self, size_bytes: int) -> bytes:
        if self._file is None:
            self._file = self._segment.open()
        return self._file.read(size_bytes, self._position)

    def _take_checked(self) -> list[RecordBatch]:
        """Remove the whole batches from the chunk and return them, up to a limit."""
        found: list[RecordBatch] = []
        taken_bytes, next_offset = 0, self._next_offset
        try:
            for batch in islice(split_batches(self._chunk), BATCHES_AT_ONCE):
                _check(batch, next_offset)
                found.append(batch)
                taken_bytes += batch.size_bytes
                next_offset = batch.next_offset
        except CorruptData as error:
            raise self._damage_error(str(error)) from error
        self._chunk = self._chunk[taken_bytes:]
        self._position += taken_bytes
        self._next_offset = next_offset
        return found

    def _next_size_bytes(self) -> int:
        """Return the size of the batch at the beginning of the chunk."""
        size_bytes = int.from_bytes(self._chunk[_LENGTH_AT], "big") + PREFIX_BYTES
        left_bytes = self._size_bytes - self._position
        if not HEADER_BYTES <= size_bytes <= left_bytes:
            raise self._damage_error(f"the batch claims {size_bytes} bytes, {left_bytes} are left")
        return size_bytes

    def _damage_error(self, reason: str) -> CorruptData:
        return CorruptData(
            f"{self._segment.path} is damaged after offset {self._next_offset - 1},"
            f" at position {self._position}: {reason}"
        )


def _check(batch: RecordBatch, next_offset: int) -> None:
    batch.check_crc()
    if batch.base_offset != next_offset or batch.last_offset_delta < 0:
        raise CorruptData(f"the batch has base offset {batch.base_offset} instead of {next_offset}")


def _payloads(batches: Sequence[RecordBatch]) -> dict[int, bytes]:
    """Decompress the first batch, and further ones up to a limit of bytes."""
    found: dict[int, bytes] = {}
    size_bytes = 0
    for batch in batches:
        if size_bytes >= AHEAD_BYTES:
            break
        try:
            payload = decompress_payload(batch)
        except CorruptData:
            if not found:
                raise
            break  # Report it when it is needed, which may be never.
        found[batch.base_offset] = payload
        size_bytes += len(payload)
    return found


SEAL_BYTES = 32 * 1024
"""Records of more bytes than this are compressed in a job."""
INT64_MIN = -(2**63)

_logger = repeated.logger(__name__)


class CleaningResult(NamedTuple):
    """The result of a cleaning."""

    end_offset: int
    before_bytes: int
    after_bytes: int
    keys: int


class Cleaning:
    """One cleaning of `log`, up to the end that `dirty` allows.

    `steps` does the work; `result` is set at its end. `memory_bytes` bounds the map of offsets;
    `wall_ms` is the current time, for tombstones.
    """

    def __init__(
        self, log: PartitionLog, dirty: Dirtiness, *, memory_bytes: int, wall_ms: int
    ) -> None:
        self.result: CleaningResult | None = None
        """Set when the steps have ended."""
        self.unreadable: dict[int, int] = {}
        """First and next offset of batches that can't be read. They stay unchanged."""
        self.retired_paths: list[str] = []
        """Paths of files replaced so far, to be removed later."""
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
        """Iterate over the steps of the cleaning; close the iterator to abandon it.

        Raises:
            CorruptData: the log is damaged; segments not swapped yet are unchanged.
            UnknownTopicOrPartition: the log was deleted meanwhile.
            LogDirectoryError: the disk refused; segments swapped so far stay swapped.
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
            # The checkpoint comes after all swaps: written earlier, a crash would leave dirty
            # segments before it, which no cleaning would look at again.
            yield from offload(partial(self._log.cleaned.write, self._end_offset))
        self.result = CleaningResult(
            self._end_offset, self._before_bytes, self._after_bytes, len(self._map)
        )
        for _ in self._map.release():
            yield 0

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._log.check_open()  # A deleted log is not a disk error.
            raise directory_error(error, self._log.name) from error

    @contextmanager
    def _open(self, segment: Segment, offset: int) -> Iterator[SealedBatches]:
        with closing(SealedBatches(segment, offset)) as source:
            try:
                yield source
            except FileNotFoundError as error:
                if self._log.has_segment(segment):
                    raise
                name = self._log.name
                raise UnknownTopicOrPartition(
                    f"{name}: a segment was deleted while it was compacted"
                ) from error

    # The map of offsets.

    def _fill_map(self, sealed: Sequence[Segment]) -> Steps[None]:
        for segment in sealed:
            if segment.next_offset <= self._first_offset:
                continue
            with self._open(segment, self._first_offset) as source:
                if not (yield from self._take_all(source)):
                    return

    def _take_all(self, source: SealedBatches) -> Steps[bool]:
        """Take the keys of all batches; return whether the map has room for more."""
        while batches := (yield from source.next()):
            for batch in batches:
                if not (yield from self._take(batch, source)):
                    return False
        return True

    def _take(self, batch: RecordBatch, source: SealedBatches) -> Steps[bool]:
        """Take the keys of a batch; return whether the map has room for more."""
        yield batch.size_bytes
        if batch.is_transactional and self._outcomes is None:
            yield from self._find_transactions(batch.base_offset)
        if batch.base_offset >= self._end_offset:
            return False
        aborted = self._outcomes is not None and self._outcomes.is_aborted_data(batch)
        if batch.is_control or batch.record_count == 0 or aborted:
            return True
        slices = yield from self._readable_slices(batch, source)
        for records in slices:
            if not self._map.take(records):
                # The map is full: the cleaning ends before this batch. If it is the first dirty
                # batch, end after it instead, or no cleaning would ever get past it. Its keys
                # that did not fit are unknown to the map, so none of their records is removed.
                first = batch.base_offset <= self._first_offset
                self._end_offset = batch.next_offset if first else batch.base_offset
                return False
            yield 0
        return True

    def _readable_slices(
        self, batch: RecordBatch, source: SealedBatches
    ) -> Steps[list[list[LogRecord]]]:
        """Decode a batch entirely or not at all: the keys of half a batch must not count."""
        found: list[list[LogRecord]] = []
        try:
            unpacked = yield from source.unpack(batch)
            for records in unpacked.slices():
                found.append(records)
                yield 0
        except CorruptData as error:
            self._note_unreadable(batch, error)
            return []
        return found

    def _note_unreadable(self, batch: RecordBatch, error: CorruptData) -> None:
        """Note a batch that stays because its records can't be read, although its CRC is right."""
        self.unreadable[batch.base_offset] = batch.next_offset
        _logger.error(
            "%s: the batch with offsets %d to %d can't be read: it stays as it is, and its keys are"
            " not compacted (`streamlog log repair` removes it): %s",
            self._log.name, batch.base_offset, batch.last_offset, error,
        )  # fmt: skip

    def _find_transactions(self, offset: int) -> Steps[None]:
        """Find the outcomes of transactions from `offset` on; end before the first open one."""
        found = Outcomes()
        undecided = math.inf
        # The log start may move meanwhile; what is deleted needs no outcome.
        while data := self._log.read(max(offset, self._log.log_start_offset), max_bytes=READ_BYTES):
            for batch in split_batches(data):
                found.take(batch)
                offset = batch.next_offset
            yield len(data)
            undecided = math.inf if found.first_open_offset is None else found.first_open_offset
            if self._end_offset <= min(offset, undecided):
                # Read on, beyond the dirty part, until the transactions that reach into it are
                # decided.
                break
        self._outcomes = found
        self._end_offset = int(min(self._end_offset, undecided))

    # The rewrite.

    def _rewrite_all(self, sealed: Sequence[Segment]) -> Steps[None]:
        log = self._log
        survivors = Survivors(
            # Last offsets are taken now: a producer that writes during the rewrite has its newest
            # batch behind the end offset, so an older one that is kept for it is only superfluous.
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
        output = CleanedSegment(self._log.new_cleaned_segment(group[0].base_offset))
        unfinished = True
        try:
            yield from output.create()
            for segment in group:
                with self._open(segment, segment.base_offset) as source:
                    yield from self._rewrite_one(source, output, survivors)
            yield from output.finish(group[-1].next_offset)
            self._before_bytes += sum(segment.size_bytes for segment in group)
            # Nothing to remove: keep the original file.
            if len(group) == 1 and not output.changed:
                self._after_bytes += group[0].size_bytes
                yield from offload(output.discard)
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
            yield from offload(begun.take_out)
        except GeneratorExit:
            # The cleaning is abandoned after the swap: finish it, as the log stays open.
            begun.take_out()
            self._log.end_swap(begun)
            raise
        self._log.end_swap(begun)
        self.retired_paths += begun.retired_paths
        yield from offload(begun.end)

    def _rewrite_one(
        self, source: SealedBatches, output: CleanedSegment, survivors: Survivors
    ) -> Steps[None]:
        while batches := (yield from source.next()):
            for batch in batches:
                data = yield from self._rewrite_batch(batch, source, survivors)
                # The index of aborted transactions is rebuilt from what is written: a transaction
                # whose data is gone no longer needs an entry, and one that is left does.
                if data is not None and batch.is_transactional:
                    output.segment.aborted.extend(survivors.note_written(RecordBatch(data)))
                yield from output.add(batch, data)
                yield batch.size_bytes

    def _rewrite_batch(
        self, batch: RecordBatch, source: SealedBatches, survivors: Survivors
    ) -> Steps[bytes | memoryview | None]:
        """Return what is left of a batch: the batch itself if unchanged, None if nothing."""
        if survivors.is_untouched(batch):
            return batch.data
        if batch.is_control:
            return _marker(batch, survivors)
        if survivors.is_removed(batch):
            return _producer_only(batch, survivors)
        found = yield from self._select_records(batch, source, survivors)
        if found is not None and not any(found[1].select):
            return _producer_only(batch, survivors)
        survivors.note_data(batch)
        if found is None or (found[1].horizon_ms is None and all(found[1].select)):
            return batch.data
        return (yield from _seal(*found))

    def _select_records(
        self, batch: RecordBatch, source: SealedBatches, survivors: Survivors
    ) -> Steps[tuple[UnpackedBatch, _KeptRecords] | None]:
        """Return the records of a batch and which of them stay; None if they can't be read."""
        if batch.base_offset in self.unreadable:
            return None
        try:
            unpacked = yield from source.unpack(batch)
            left = yield from self._select(unpacked, survivors)
        except CorruptData as error:
            self._note_unreadable(batch, error)
            return None
        return unpacked, left

    def _select(self, unpacked: UnpackedBatch, survivors: Survivors) -> Steps[_KeptRecords]:
        left = _KeptRecords()
        for records in unpacked.slices():
            kept = survivors.select(unpacked.batch, records, self._map.newest(records))
            horizon_ms = survivors.horizon_ms(unpacked.batch, records, kept)
            left.add(records, kept, horizon_ms)
            yield 0
        return left


class _KeptRecords:
    """Which records of a batch stay."""

    def __init__(self) -> None:
        self.select: list[bool] = []
        self.slices: list[range] = []
        self.horizon_ms: int | None = None
        self.max_ms = INT64_MIN
        self.count = 0

    def add(self, records: Sequence[LogRecord], kept: list[bool], horizon_ms: int | None) -> None:
        """Add the next slice of records."""
        self.slices.append(range(len(self.select), len(self.select) + len(kept)))
        self.select += kept
        if horizon_ms is not None:
            self.horizon_ms = horizon_ms
        times_ms = [r.timestamp_ms for r, keep in zip(records, kept, strict=True) if keep]
        self.count += len(times_ms)
        self.max_ms = max(self.max_ms, max(times_ms, default=self.max_ms))


def _seal(unpacked: UnpackedBatch, left: _KeptRecords) -> Steps[bytes]:
    """Make a batch of the records that stay."""
    parts: list[bytes | memoryview] = []
    for numbers in left.slices:
        if left.horizon_ms is None:
            parts += unpacked.copy_kept(left.select, numbers)
        else:
            by_ms = left.horizon_ms - unpacked.batch.base_timestamp_ms
            parts.append(unpacked.shift_kept(left.select, numbers, by_ms=by_ms))
        yield 0
    seal = partial(
        unpacked.seal,
        parts,
        horizon_ms=left.horizon_ms,
        max_ms=left.max_ms,
        record_count=left.count,
    )
    small = sum(len(part) for part in parts) <= SEAL_BYTES
    if small or unpacked.batch.codec is Compression.NONE:
        return seal()
    return (yield from offload(seal))


def facts(segment: Segment) -> SegmentFacts:
    """Return the facts about a loaded segment that decisions need."""
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
    return batch.data if batch.record_count == 0 else without_records(batch)


def _marker(batch: RecordBatch, survivors: Survivors) -> bytes | memoryview | None:
    marker = marker_of(batch)
    # 1. A control batch that is no transaction marker (a time mark) always stays. 2. A marker whose
    # transaction has data left stays without a horizon. 3. Without data left, the first cleaning
    # writes a horizon, and one after the horizon removes it (KIP-534). 4. A malformed marker, and
    # a marker past its horizon, stays only if it is the last trace of its producer.
    if marker is not None and marker.kind not in MARKERS:
        return batch.data
    stays, horizon_ms = (False, None) if marker is None else survivors.marker_stays(batch)
    if stays and horizon_ms is not None:
        return with_horizon(batch, horizon_ms)
    if stays or (marker is None and survivors.keeps_producer(batch)):
        return batch.data
    return without_records(batch) if survivors.keeps_producer(batch) else None
