"""Repair: makes a damaged partition readable again, except for the records that are lost.

Damaged bytes are moved, never deleted: first they are copied to a file with the suffix
`.quarantine` in the partition's folder. Then the segment is rewritten, with its sound batches
unchanged, and with one empty batch, like those of compaction, for every range of lost offsets. So
readers step over the range, and no offset changes its meaning. The lost offsets are recorded
(`log.recovery`): a broker fetches their records from other replicas, if there are any, and is in
sync only afterwards. If two files contain the same offsets, the later file wins, provided that it
contains all of them. Indexes are rebuilt. What can't be repaired is left as it is, and `ADVICE`
says what to do.

Rules of this module: a power cut may follow every step. A segment is then either the old one or the
repaired one, and another repair finishes what the first one began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from struct import Struct
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.disk.files import File, Files, make_durable_directory, write_whole
from streamlog.broker.storage.log.aborted_index import ABORTED_SUFFIX
from streamlog.broker.storage.log.batch_headers import PREFIX_BYTES
from streamlog.broker.storage.log.partition_log import START_OFFSET
from streamlog.broker.storage.log.recovery import LostOffsets
from streamlog.broker.storage.log.scan import OFFSETS_MAX
from streamlog.broker.storage.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
)
from streamlog.broker.storage.log.swap import recover
from streamlog.broker.storage.repair.findings import Finding, FindingKind, InspectionReport
from streamlog.broker.storage.repair.partition_audit import rebuild_aborted_indexes
from streamlog.broker.storage.repair.raw_partition import RawPartition, Unsound, walk_file
from streamlog.broker.storage.validator import unreadable_reason
from streamlog.records.batch import HEADER_BYTES, RecordBatch

if TYPE_CHECKING:
    from streamlog.broker.storage.repair.inspection import Inspection

QUARANTINE_SUFFIX = ".quarantine"
COPY_BYTES = 1024 * 1024
REPAIRED_KINDS = frozenset(FindingKind) - {FindingKind.ORDER}
"""What can be repaired; for the rest, the right content is unknown."""
ADVICE = {
    FindingKind.ORDER: "batches of a producer that are out of order can't be repaired: they are"
    " sound and served as they are, and no check can tell which are right; examine them with"
    " `streamlog log dump`, and send missing records again from their source",
    FindingKind.OVERLAP: "two files contain the same offsets, and the later one lacks some that the"
    " earlier one has, or begins within one of its batches: no check can tell which is"
    " right; move the file that should not be there (a copy, perhaps) out of the folder, or restore"
    " both from a copy, and repair again",
}
"""What to do about findings that a repair leaves."""
_REWRITTEN = frozenset(
    {FindingKind.DAMAGED, FindingKind.UNREADABLE, FindingKind.MISSING, FindingKind.UNFINISHED}
)
_LEFT_BY_SWAPS = frozenset({FindingKind.SWAP, FindingKind.LEFTOVER})
_REPAIR_SUFFIX = ".mending"
_MAGIC = 2
# base offset, length, leader epoch, magic, CRC; then what the CRC covers: attributes, last offset
# delta, two timestamps, producer id and epoch, base sequence, record count
_PREFIX = Struct(">qiibI")
_COVERED = Struct(">hiqqqhii")


class RepairStep(msgspec.Struct, frozen=True):
    """One change of a file, for the report."""

    path: str
    what: str


def repair_partition(inspection: Inspection, report: InspectionReport) -> list[RepairStep]:
    """Repair what `report` found, as far as possible.

    Raises:
        UsageError: another process has the directory open.
        LogDirectoryError: the disk refused; what was not repaired is unchanged.
        CorruptData: a small file of the directory is damaged.
    """
    inspection.check_alone()
    found = [finding for finding in report.findings if finding.kind in REPAIRED_KINDS]
    done: list[RepairStep] = []
    for stored in inspection.partitions():
        here = (stored.topic, stored.partition)
        mine = [each for each in found if (each.topic, each.partition) == here]
        if any(finding.kind in _LEFT_BY_SWAPS for finding in mine):
            with inspection.disk():
                done += _recover_swaps(inspection.files, stored)
            # The recovery has renamed files: inspect again.
            mine = [
                finding for finding in inspection.findings(stored) if finding.kind in REPAIRED_KINDS
            ]
        if not mine:
            continue
        with inspection.disk():
            # 1. The directory was shut down cleanly and damaged on disk later. 2. The repair
            #    changes where logs end. 3. With the mark, the next opening would believe the ends
            #    in it, which are wrong now.
            inspection.catalog.take_clean_mark()  # The next opening must examine the end.
            done += _Repair(inspection.files, stored).repair(mine)
    return done


def _recover_swaps(files: Files, stored: RawPartition) -> list[RepairStep]:
    """Finish or undo interrupted compactions, as an opening would."""
    recovered = recover(files, stored.directory)
    pairs = [(name, "renamed to its final name") for name in recovered.finished]
    pairs += [(name, "removed") for name in recovered.removed]
    return [RepairStep(f"{stored.directory}/{name}", what) for name, what in pairs]


class _Repair:
    """Repairs the files of one partition."""

    def __init__(self, files: Files, stored: RawPartition) -> None:
        self._files = files
        self._stored = stored
        self._lost = LostOffsets(files, stored.directory)
        self._done: list[RepairStep] = []

    def repair(self, findings: list[Finding]) -> list[RepairStep]:
        make_durable_directory(self._files, self._stored.directory)
        self._lost.read()
        bases = self._bases() or [self._stored.log_start_offset]
        rewritten = {each.path for each in findings if each.kind in _REWRITTEN}
        rewritten |= {
            each.path
            for each in findings
            if each.kind is FindingKind.OVERLAP and self._is_held_twice(each, bases)
        }
        indexed = {
            each.path.rpartition(".")[0] for each in findings if each.kind is FindingKind.INDEX
        }
        # The first files are missing although the log start says that they exist.
        if bases[0] > self._stored.log_start_offset and self._stored.path(bases[0]) in rewritten:
            self._fill_head(bases[0])
        for base, next_base in zip(bases, [*bases[1:], None], strict=True):
            path = self._stored.path(base)
            if path in rewritten:
                self._rewrite(base, next_base)
            elif path.removesuffix(LOG_SUFFIX) in indexed:
                self._index(base)
                self._done.append(RepairStep(path, "indexes rebuilt"))
        if rewritten or any(each.path.endswith(ABORTED_SUFFIX) for each in findings):
            batches = self._stored.batches(self._files)
            rebuild_aborted_indexes(self._files, batches, self._stored.path)
        for each in findings:
            if each.kind is FindingKind.SNAPSHOT:
                quarantine = self._unused_name(each.path)
                self._files.rename(each.path, quarantine)
                self._done.append(RepairStep(each.path, f"moved to {quarantine}"))
        self._files.sync_directory(self._stored.directory)
        return self._done

    def _is_held_twice(self, overlap: Finding, bases: list[int]) -> bool:
        """Whether the later file contains all offsets that the earlier one has in the overlap."""
        first, end = overlap.first_offset, overlap.next_offset
        # 1. File A has 0-99, file B begins at 80. 2. If a batch of A spans 75-84, A can't be cut at
        #    80: the batch would lose 80-84 but also keep claiming them. 3. Then no file is changed,
        #    and `ADVICE` is shown.
        if first is None or end is None or not self._begins_between(overlap):
            return False
        reached = first
        for base in bases:
            if first <= base <= reached < end:
                reached = self._sound_end(base)
        return reached >= end

    def _sound_end(self, base: int) -> int:
        """Return the offset up to which a file has no unsound range."""
        reached = base
        with closing(self._files.open(self._stored.path(base))) as file:
            for part in walk_ranges(file, base):
                if not isinstance(part, Sound):
                    break
                reached = part.next_offset
        return reached

    def _begins_between(self, overlap: Finding) -> bool:
        """Whether the later file begins at a batch boundary of the earlier one."""
        with closing(self._files.open(overlap.path)) as earlier:
            head = earlier.read(HEADER_BYTES, overlap.position)
        return len(head) == HEADER_BYTES and _PREFIX.unpack_from(head)[0] == overlap.first_offset

    def _fill_head(self, next_base: int) -> None:
        """Write a file of empty batches for everything before the first file."""
        start = self._stored.log_start_offset
        path = self._stored.path(start)
        with closing(self._files.open(path + _REPAIR_SUFFIX, writable=True)) as target:
            target.truncate(0)
            writing = _Writing(target)
            writing.fill(start, next_base)
            target.sync()
        self._install(start, writing.holes)

    def _rewrite(self, base: int, next_base: int | None) -> None:
        path = self._stored.path(base)
        with closing(self._files.open(path, writable=True)) as source:
            parts = list(walk_ranges(source, base, stop=next_base))
            # Quarantine first, then the new file, then the rename (`_install`): a crash leaves
            # the old segment, and at most a quarantined copy that another repair makes again.
            self._quarantine(source, path, base, parts)
            with closing(self._files.open(path + _REPAIR_SUFFIX, writable=True)) as target:
                target.truncate(0)
                writing = _Writing(target)
                self._copy(source, parts, writing, base)
                due = self._stored.recovery_point if next_base is None else next_base
                writing.fill(writing.next_offset, due)
                target.sync()
        self._install(base, writing.holes)

    def _copy(
        self, source: File, parts: Iterable[Sound | Unsound], writing: _Writing, base: int
    ) -> None:
        writing.next_offset = base
        for part in parts:
            if isinstance(part, Sound):
                writing.copy(source, part)
            elif part.next_offset is not None:
                writing.fill(part.first_offset, part.next_offset)

    def _quarantine(
        self, source: File, path: str, base: int, parts: Iterable[Sound | Unsound]
    ) -> None:
        for part in parts:
            if isinstance(part, Sound):
                continue
            name = f"{self._stored.path(base, '')}.{part.position}-{part.end_position}"
            quarantine = self._unused_name(name)
            with closing(self._files.open(quarantine, writable=True)) as file:
                _copy_bytes(source, part.position, part.end_position, file, 0)
                file.sync()
            self._files.sync_directory(self._stored.directory)
            size_bytes = part.end_position - part.position
            self._done.append(RepairStep(path, f"{size_bytes} bytes moved to {quarantine}"))

    def _install(self, base: int, holes: list[tuple[int, int]]) -> None:
        path = self._stored.path(base)
        # Recorded before the rename: a broker that opened the repaired segment without the record
        # would claim to have the lost offsets, and could be elected leader (see `log.recovery`).
        if holes:
            self._lost.add(holes[0][0], holes[-1][1])
        # Before the rename: an index of the old file over the new one would point between batches.
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            with suppress(FileNotFoundError):
                self._files.remove(self._stored.path(base, suffix))
        self._files.rename(path + _REPAIR_SUFFIX, path)
        self._files.sync_directory(self._stored.directory)
        self._index(base)
        for first, following in holes:
            what = f"offsets {first} to {following - 1} are lost: an empty batch replaces them"
            if following == first + 1:
                what = f"offset {first} is lost: an empty batch replaces it"
            self._done.append(RepairStep(path, what))

    def _index(self, base: int) -> None:
        segment = Segment(
            self._files,
            self._stored.directory,
            base,
            index_interval_bytes=TopicConfig().index_interval_bytes,
            partition=f"{self._stored.topic}-{self._stored.partition}",
        )
        segment.rescan()

    def _bases(self) -> list[int]:
        names = self._stored.names(self._files)
        return [segment.base_offset for segment in self._stored.segments(names)]

    def _unused_name(self, path: str) -> str:
        """Return an unused name for a quarantined file."""
        taken = {f"{self._stored.directory}/{name}" for name in self._list()}
        candidate, number = path + QUARANTINE_SUFFIX, 1
        while candidate in taken:
            number += 1
            candidate = f"{path}.{number}{QUARANTINE_SUFFIX}"
        return candidate

    def _list(self) -> list[str]:
        return self._files.list(self._stored.directory)


class Sound(msgspec.Struct, frozen=True):
    """Consecutive sound batches in a file."""

    position: int
    end_position: int
    next_offset: int
    leader_epoch: int


class _Writing:
    """Writes a repaired segment."""

    def __init__(self, target: File) -> None:
        self.next_offset = START_OFFSET
        self.holes: list[tuple[int, int]] = []
        self._target = target
        self._size_bytes = 0
        self._leader_epoch = 0

    def copy(self, source: File, part: Sound) -> None:
        _copy_bytes(source, part.position, part.end_position, self._target, self._size_bytes)
        self._size_bytes += part.end_position - part.position
        self.next_offset = part.next_offset
        self._leader_epoch = part.leader_epoch

    def fill(self, first_offset: int, next_offset: int) -> None:
        """Write empty batches for the offsets from `first_offset` on, if there are any."""
        self.next_offset = max(self.next_offset, next_offset)
        while first_offset < next_offset:
            # The last offset delta of a batch has four bytes, so a long gap takes several batches.
            following = min(next_offset, first_offset + OFFSETS_MAX)
            data = empty_batch(first_offset, following, self._leader_epoch)
            write_whole(self._target, data, self._size_bytes)
            self._size_bytes += len(data)
            self.holes.append((first_offset, following))
            first_offset = following


def walk_ranges(source: File, base: int, *, stop: int | None = None) -> Iterator[Sound | Unsound]:
    """Iterate over the ranges of a log file, each sound or unsound.

    Batches at offset `stop` or after it, where another file begins, count as unsound.

    Raises:
        OSError: it can't be read.
    """
    begin = position = 0
    last: tuple[int, int] | None = None
    end = source.size()
    for found in walk_file(source, base_offset=base, end=end):
        each = _up_to(found, stop, end)
        if isinstance(each, Unsound):
            if last is not None:
                yield Sound(begin, position, *last)
            yield each
            begin, last = each.end_position, None
            if begin == end:
                return
        else:
            at, batch = each
            position = at + batch.size_bytes
            last = (batch.next_offset, batch.leader_epoch)
    if last is not None:
        yield Sound(begin, position, *last)


def _up_to(
    each: tuple[int, RecordBatch] | Unsound, stop: int | None, end: int
) -> tuple[int, RecordBatch] | Unsound:
    """Return the range, or the rest of the file if it begins at `stop` or after it.

    A batch whose records can't be decoded is unsound.
    """
    if isinstance(each, Unsound):
        position, first = each.position, each.first_offset
    else:
        position, first = each[0], each[1].base_offset
    # Offsets from `stop` on belong to the next file, which wins (see the head of this module).
    if stop is None or first < stop:
        return _readable(each)
    return Unsound(position, end, first, None, f"the next file begins at offset {stop}")


def _readable(each: tuple[int, RecordBatch] | Unsound) -> tuple[int, RecordBatch] | Unsound:
    if isinstance(each, Unsound):
        return each
    position, batch = each
    why = unreadable_reason(batch)
    if not why:
        return each
    end = position + batch.size_bytes
    return Unsound(position, end, batch.base_offset, batch.next_offset, why)


def empty_batch(first_offset: int, next_offset: int, leader_epoch: int) -> bytes:
    """Return a batch without records for the offsets up to before `next_offset`."""
    covered = _COVERED.pack(0, next_offset - first_offset - 1, -1, -1, -1, -1, -1, 0)
    length = HEADER_BYTES - PREFIX_BYTES
    prefix = _PREFIX.pack(first_offset, length, leader_epoch, _MAGIC, crc32c(covered))
    return prefix + covered


def _copy_bytes(source: File, begin: int, end: int, target: File, position: int) -> None:
    while begin < end:
        data = source.read(min(COPY_BYTES, end - begin), begin)
        if not data:
            raise OSError(f"{end - begin} bytes could not be read a second time")
        write_whole(target, data, position)
        begin += len(data)
        position += len(data)
