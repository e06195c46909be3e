"""PartitionAudit: checks every byte of a partition and changes nothing.

Batches are compared with their checksums, with each other, with their producers' sequence numbers,
with the offset and time indexes (`IndexAudit`) and with the indexes of aborted transactions
(`AbortedAudit`). Index entries are crossed off when their batches are found; the rest point
nowhere. An index is read before its log, which can only have grown since. If the entry of an
aborted transaction is missing, readers of committed records see its records; an entry without a
marker hides committed records. An extra entry with a marker is sound: compaction has removed the
data.

Rules of this module: whether bytes after the last sound batch are *unfinished* or *damaged* is
decided as in `log.recovery`: what was known to be on disk can't be unfinished. If a broker has the
directory open, the end of the log is not judged, because it may be a write in progress. Aborted
transactions after damage are not judged, because it is unknown which ones began there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING

from streamlog.broker.storage.disk.files import Files, read_file
from streamlog.broker.storage.log.aborted_index import ABORTED_SUFFIX, AbortedIndex, decode_entries
from streamlog.broker.storage.log.partition_log import START_OFFSET
from streamlog.broker.storage.log.producer_snapshots import SNAPSHOT_SUFFIX
from streamlog.broker.storage.log.producer_states import (
    EndedTransaction,
    OpenTransactions,
    ProducerStates,
)
from streamlog.broker.storage.log.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from streamlog.broker.storage.log.swap import leftover_files, swap_end
from streamlog.broker.storage.repair.findings import Counts, Finding, FindingKind
from streamlog.broker.storage.repair.raw_partition import (
    RawBatch,
    RawPartition,
    RawSegment,
    Unsound,
    walk_file,
)
from streamlog.broker.storage.validator import unreadable_reason
from streamlog.errors import CorruptData, LogError
from streamlog.records.control_batches import ABORT, marker_of
from streamlog.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamlog.records.batch import RecordBatch


class AbortedAudit:
    """Checks the indexes of aborted transactions; `paths` are by the segment's base offset."""

    def __init__(self, files: Files, paths: Mapping[int, str]) -> None:
        self._entries = {base: _read(files, path) for base, path in paths.items()}
        self._expected: dict[int, set[tuple[int, int]]] = {}
        self._markers: dict[int, set[tuple[int, int]]] = {}
        self._transactions = OpenTransactions()
        self._is_damaged = False

    def meet(self, base: int, batch: RecordBatch) -> None:
        """Add the next sound batch of the log, in the segment with base offset `base`."""
        if batch.producer_id < 0 or self._is_damaged:
            return
        item = (batch.producer_id, batch.base_offset)
        try:
            decided = self._transactions.take(batch, batch.base_offset)
            marker = marker_of(batch) if batch.is_control else None
        except CorruptData:
            self._is_damaged = True
            return
        if marker is not None and marker.kind == ABORT:
            self._markers.setdefault(base, set()).add(item)
        if decided is not None and decided.aborted:
            self._expected.setdefault(base, set()).add(item)

    def note_damage(self) -> None:
        """Stop judging: batches are missing here."""
        self._is_damaged = True

    def findings(self, *, complete_before: int) -> Iterator[tuple[int, str]]:
        """Iterate over base offsets of segments with a wrong index, and the reasons.

        Segments from `complete_before` on may lack entries.
        """
        for base, entries in self._entries.items():
            if entries is None:
                yield base, "its entries are not sound"
            elif not self._is_damaged:
                found = {(entry.producer_id, entry.last_offset) for entry in entries}
                stray = found - self._markers.get(base, set())
                lost = self._expected.get(base, set()) - found
                if stray:
                    yield base, f"entries without a marker in the log: {len(stray)}"
                elif lost and base < complete_before:
                    yield base, f"aborted transactions missing in it: {len(lost)}"


def rebuild_aborted_indexes(
    files: Files, batches: Iterator[tuple[int, RecordBatch]], path_of: Callable[[int, str], str]
) -> None:
    """Write the indexes of segments from all batches of a log, given with their segments.

    Raises:
        OSError: they can't be written.
        CorruptData: a marker is malformed.
    """
    transactions = OpenTransactions()
    aborted: dict[int, list[EndedTransaction]] = {}
    for base, batch in batches:
        entries = aborted.setdefault(base, [])
        decided = transactions.take(batch, batch.base_offset)
        if decided is not None and decided.aborted:
            entries.append(decided)
    for base, entries in aborted.items():
        index = AbortedIndex(files, path_of(base, ABORTED_SUFFIX), in_memory=False)
        index.rebuild(entries)
        index.flush(durable=True)


def _read(files: Files, path: str) -> list[EndedTransaction] | None:
    try:
        return decode_entries(read_file(files, path))
    except FileNotFoundError:
        return []


UNINDEXED_BYTES_MAX = 4096
"""How much of a segment may have no index entry, by the default of `index.interval.bytes`."""
_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")


class IndexAudit:
    """Checks the entries of both indexes of a segment."""

    def __init__(self, files: Files, segment: RawSegment) -> None:
        self._segment = segment
        self._wrong: dict[str, str] = {}
        self._missing: set[str] = set()
        self._positions = dict(self._read(files, INDEX_SUFFIX, _OFFSET_ENTRY))
        times = self._read(files, TIME_INDEX_SUFFIX, _TIME_ENTRY)
        self._times = {relative: timestamp_ms for timestamp_ms, relative in times}

    def meet(self, position: int, batch: RecordBatch) -> None:
        """Add the next sound batch of the segment, at `position`."""
        # A segment gets its index files, both, when it has entries for them, or is sealed.
        if len(self._missing) == 1 or (self._missing and position >= UNINDEXED_BYTES_MAX):
            self._wrong |= dict.fromkeys(self._missing, "it is missing")
        relative = batch.base_offset - self._segment.base_offset
        if self._positions.get(relative) == position:
            del self._positions[relative]
        if self._times.get(relative) == batch.max_timestamp_ms:
            del self._times[relative]

    def findings(self) -> Iterator[tuple[str, str]]:
        """Iterate over the paths of wrong indexes and the reasons, after all batches were added."""
        self._leftover(INDEX_SUFFIX, self._positions)
        self._leftover(TIME_INDEX_SUFFIX, self._times)
        for suffix, why in self._wrong.items():
            yield self._segment.index_path(suffix), why

    def _leftover(self, suffix: str, entries: dict[int, int]) -> None:
        if entries and suffix not in self._wrong:
            offset = self._segment.base_offset + next(iter(entries))
            self._wrong[suffix] = (
                f"entries that disagree with the log: {len(entries)}, the first for offset {offset}"
            )

    def _read(self, files: Files, suffix: str, layout: Struct) -> Sequence[tuple[int, int]]:
        try:
            data = read_file(files, self._segment.index_path(suffix))
        except FileNotFoundError:
            self._missing.add(suffix)
            return []
        # Preallocated space is zeros; no entry is all zeros.
        size_bytes = len(data.rstrip(b"\0"))
        # Rounded up, because the last entry may end with bytes of zero.
        entries = -(-size_bytes // layout.size)
        if entries * layout.size > len(data) or len(data) % layout.size:
            self._wrong[suffix] = f"its {len(data)} bytes are not a whole number of entries"
            return []
        found = [layout.unpack_from(data, number * layout.size) for number in range(entries)]
        if any(earlier >= later for earlier, later in pairwise(found)):
            self._wrong[suffix] = "its entries are not in order"
            return []
        return [(first, second) for first, second in found]


DISORDER_MAX = 20
"""Batches out of order reported per partition; the first ones show what is wrong."""
SWAP_REASON = (
    "a compaction was interrupted: this file is the log for these offsets, and the next start, or a"
    " repair, gives it its final name"
)
LEFTOVER_REASON = "it is not part of the log; the next start, or a repair, removes it"


class PartitionAudit:
    """One pass over the files of a partition; `is_open` means that a broker may be writing."""

    def __init__(self, files: Files, stored: RawPartition, *, is_open: bool) -> None:
        self.counts = Counts()
        self.on_read: Callable[[int], None] | None = None
        """Called with the size of each batch, in bytes."""
        self._files = files
        self._stored = stored
        self._is_open = is_open
        self._names = stored.names(files)
        self._segments = stored.segments(self._names)
        self._producers = ProducerStates()
        self._disorder_count = 0

    @property
    def has_changed_files(self) -> bool:
        """Whether files have come or gone since it began, so that it may have misread them."""
        return self._is_open and self._stored.names(self._files) != self._names

    def findings(self) -> list[Finding]:
        """Return everything that is not sound.

        Raises:
            OSError: a file can't be read.
        """
        found: list[Finding] = []
        self.counts.partitions += 1
        last_path = ""
        # A broker that has the directory open may be writing the indexes of the last segment.
        checked = self._segments[:-1] if self._is_open else self._segments
        paths = {each.base_offset: each.index_path(ABORTED_SUFFIX) for each in checked}
        aborted = AbortedAudit(self._files, paths)
        # Before the log, which can only grow after this.
        indexes = {each.path: IndexAudit(self._files, each) for each in checked}
        for each in self.walk(START_OFFSET):
            if isinstance(each, Finding):
                found.append(each)
                self._producers = ProducerStates()  # The lost batches are unknown.
                aborted.note_damage()
                continue
            if each.path != last_path:
                self.counts.segments += 1
                last_path = each.path
            self._count(each.batch)
            aborted.meet(each.segment_offset, each.batch)
            if each.path in indexes:
                indexes[each.path].meet(each.position, each.batch)
            found += [*self._order(each), *self._unreadable(each)]
        whole_kinds = {FindingKind.ORDER, FindingKind.UNREADABLE}
        damaged = {finding.path for finding in found if finding.kind not in whole_kinds}
        for path, index in indexes.items():
            if path not in damaged:  # The damage is reported already.
                found += [self._wrong(FindingKind.INDEX, *each) for each in index.findings()]
        whole = self._stored.recovery_point
        bases = [each.base_offset for each in self._segments]
        complete = max((base for base in bases if base <= whole), default=START_OFFSET)
        for base, why in aborted.findings(complete_before=complete):
            found.append(self._wrong(FindingKind.INDEX, paths[base], why))
        return [*found, *self._snapshots(), *self._leftovers()]

    def _wrong(self, kind: FindingKind, path: str, why: str) -> Finding:
        """Make a finding about a whole file."""
        return Finding(
            kind=kind,
            topic=self._stored.topic,
            partition=self._stored.partition,
            path=path,
            reason=why,
        )

    def walk(self, offset: int) -> Iterator[RawBatch | Finding]:
        """Iterate over batches and findings from the one that contains `offset` on.

        Raises:
            OSError: a file can't be read.
        """
        start = self._stored.log_start_offset
        if not self._segments:
            yield from self._end(start, None, self._stored.path(start))
            return
        first = self._segments[0]
        # A broker that has the directory open may have moved the log start since it was read.
        if first.base_offset > start and not self._is_open:
            why = "no file begins before it"
            yield self._missing(first.path, 0, start, first.base_offset, why)
        for segment, following in pairwise([*self._segments, None]):
            next_base = None if following is None else following.base_offset
            if segment is None or (next_base is not None and next_base <= offset):
                continue
            yield from self._walk_segment(segment, next_base, offset)

    def _walk_segment(
        self, segment: RawSegment, next_base: int | None, offset: int
    ) -> Iterator[RawBatch | Finding]:
        path = segment.path
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return  # The broker has removed it meanwhile.
        reached = base = segment.base_offset
        tail: Unsound | None = None
        overlap_at: int | None = None
        with closing(file):
            end = file.size()
            for each in walk_file(file, base_offset=base, end=end):
                if isinstance(each, Unsound) and each.next_offset is None:
                    tail = each
                    continue
                item = self._classify(path, each)
                if overlap_at is None and next_base is not None and reached >= next_base:
                    overlap_at = item.position
                reached = item.next_offset or reached
                if reached > offset:
                    yield item
        if next_base is None:
            yield from self._end(reached, tail, path, end)
        elif tail is not None:
            yield self._damaged(path, tail, next_base)
        elif reached < next_base:
            yield self._missing(path, end, reached, next_base, "the file ends before it")
        elif reached > next_base:
            yield Finding(
                kind=FindingKind.OVERLAP,
                topic=self._stored.topic,
                partition=self._stored.partition,
                path=path,
                position=end if overlap_at is None else overlap_at,
                size_bytes=0 if overlap_at is None else end - overlap_at,
                first_offset=next_base,
                next_offset=reached,
                reason=f"the next file begins at offset {next_base}",
            )

    def _end(
        self, reached: int, tail: Unsound | None, path: str, end: int = 0
    ) -> Iterator[Finding]:
        """Judge the bytes after the last sound batch of the log."""
        if self._is_open:
            return
        point = self._stored.recovery_point
        if tail is None:
            if reached < point:
                yield self._missing(path, end, reached, point, "the file ends before it")
        elif reached < point:
            yield self._damaged(path, tail, None)
        else:
            yield Finding(
                kind=FindingKind.UNFINISHED,
                topic=self._stored.topic,
                partition=self._stored.partition,
                path=path,
                position=tail.position,
                size_bytes=tail.end_position - tail.position,
                first_offset=reached,
                reason=f"after the last whole batch: {tail.reason}",
            )

    def _classify(self, path: str, each: tuple[int, RecordBatch] | Unsound) -> RawBatch | Finding:
        if isinstance(each, Unsound):
            return self._damaged(path, each, each.next_offset)
        return RawBatch(path, *each)

    def _damaged(self, path: str, item: Unsound, next_offset: int | None) -> Finding:
        return Finding(
            kind=FindingKind.DAMAGED,
            topic=self._stored.topic,
            partition=self._stored.partition,
            path=path,
            position=item.position,
            size_bytes=item.end_position - item.position,
            first_offset=item.first_offset,
            next_offset=next_offset,
            reason=item.reason,
        )

    def _missing(self, path: str, position: int, first: int, following: int, why: str) -> Finding:
        return Finding(
            kind=FindingKind.MISSING,
            topic=self._stored.topic,
            partition=self._stored.partition,
            path=path,
            position=position,
            first_offset=first,
            next_offset=following,
            reason=why,
        )

    def _count(self, batch: RecordBatch) -> None:
        self.counts.batches += 1
        self.counts.records += max(batch.record_count, 0)
        self.counts.size_bytes += batch.size_bytes
        if self.on_read is not None:
            self.on_read(batch.size_bytes)

    def _order(self, placed: RawBatch) -> Iterator[Finding]:
        """Check that a batch continues its producer's sequence, as the broker checked it."""
        batch = placed.batch
        if batch.record_count == 0:
            self._producers = (
                ProducerStates()
            )  # It replaces lost batches, whose numbers are unknown.
            return
        if self._stored.is_compacted:
            return
        if batch.base_sequence < 0:
            if batch.is_control:
                self._producers.replay(batch, batch.base_offset)
            return
        why = ""
        try:
            if self._producers.check(batch) is not None:
                number = batch.base_sequence
                why = f"producer {batch.producer_id}: sequence number {number} occurs twice"
        except LogError as error:
            why = str(error)
        self._producers.replay(batch, batch.base_offset)
        if why and self._disorder_count < DISORDER_MAX:
            self._disorder_count += 1
            yield Finding(
                kind=FindingKind.ORDER,
                topic=self._stored.topic,
                partition=self._stored.partition,
                path=placed.path,
                position=placed.position,
                size_bytes=batch.size_bytes,
                first_offset=batch.base_offset,
                next_offset=batch.next_offset,
                reason=why,
            )

    def _unreadable(self, placed: RawBatch) -> Iterator[Finding]:
        """Report a batch whose records no reader can decode."""
        why = unreadable_reason(placed.batch)
        if why:
            yield Finding(
                kind=FindingKind.UNREADABLE,
                topic=self._stored.topic,
                partition=self._stored.partition,
                path=placed.path,
                position=placed.position,
                size_bytes=placed.batch.size_bytes,
                first_offset=placed.batch.base_offset,
                next_offset=placed.batch.next_offset,
                reason=why,
            )

    def _snapshots(self) -> Iterator[Finding]:
        for name in sorted(self._names):
            path = f"{self._stored.directory}/{name}"
            if not name.endswith(SNAPSHOT_SUFFIX):
                continue
            try:
                ProducerStates.restore(read_file(self._files, path))
            except FileNotFoundError:
                continue  # A broker has removed it meanwhile.
            except CorruptData as error:
                yield self._wrong(FindingKind.SNAPSHOT, path, str(error))

    def _leftovers(self) -> Iterator[Finding]:
        """Report what the next opening finishes or removes; a running broker does it by itself."""
        if self._is_open:
            return
        for segment in self._segments:
            end = swap_end(segment.name)
            if end is not None:
                found = self._wrong(FindingKind.SWAP, segment.path, SWAP_REASON)
                yield replace(found, first_offset=segment.base_offset, next_offset=end)
        for name in leftover_files(self._names):
            yield self._wrong(
                FindingKind.LEFTOVER, f"{self._stored.directory}/{name}", LEFTOVER_REASON
            )
