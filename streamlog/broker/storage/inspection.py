"""Inspection: looks through a data directory, every byte of it, and says what is not sound.

Nothing is changed. If nobody has the directory open, it is locked meanwhile; if a broker has, it
is read beside it, and what stands at the end of an open log is not judged, for it may be a write
in progress. Rule of the file: the files are read as they are and not through `PartitionLog`,
whose recovery would mend what is to be shown; only `Scan` says what a sound batch is.
Whether bytes behind the last sound batch are *unfinished* or *damaged* is decided as in
`recovery`: what was known to be on disk can't be unfinished. What to do is `mending`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from struct import Struct
from types import TracebackType
from typing import Self

from streamlog.broker.storage.aborted import ABORTED_SUFFIX
from streamlog.broker.storage.aborted_audit import AbortedAudit
from streamlog.broker.storage.catalog import LOCK, Catalog, TopicEntry, describe_holder
from streamlog.broker.storage.files import (
    File,
    Files,
    OsFiles,
    directory_error,
    process_id,
    read_file,
    write_whole,
)
from streamlog.broker.storage.folders import partition_folder
from streamlog.broker.storage.partition_log import START_OFFSET
from streamlog.broker.storage.producers import ProducerStates
from streamlog.broker.storage.scan import OFFSETS_MAX, Scan, sound_position
from streamlog.broker.storage.segment import LOG_SUFFIX
from streamlog.broker.storage.snapshots import SNAPSHOT_SUFFIX, offset_of
from streamlog.errors import (
    CorruptData,
    LogDirectoryLost,
    LogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.records.batch import RecordBatch

INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
NAME_DIGITS = 20
DISORDER_MAX = 20
"""Batches out of order that are told of one partition: the first says what is wrong."""
_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")


class Kind(StrEnum):
    """What is wrong with a place."""

    DAMAGED = "damaged"
    """Bytes that are no sound batch, and were one."""
    MISSING = "missing"
    """Offsets that no file holds."""
    OVERLAP = "overlap"
    """Offsets that two files hold."""
    UNFINISHED = "unfinished"
    """The end of a log whose process or machine went down: a write that nobody was promised."""
    INDEX = "index"
    """An index that is missing or disagrees with its log."""
    SNAPSHOT = "snapshot"
    """A snapshot of producers that can't be read."""
    ORDER = "order"
    """A producer's batches that are not in the order in which it numbered them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A place that is not sound."""

    kind: Kind
    topic: str
    partition: int
    path: str
    position: int = 0
    size_bytes: int = 0
    first_offset: int | None = None
    next_offset: int | None = None
    """The offsets concerned are those before this one; None if nobody knows where they end."""
    reason: str

    @property
    def is_damage(self) -> bool:
        """Whether something is wrong: an unfinished write is what any crash leaves."""
        return self.kind is not Kind.UNFINISHED


@dataclass(slots=True)
class Counts:
    """How much was looked at."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What an inspection has found."""

    findings: tuple[Finding, ...]
    counts: Counts

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(finding.is_damage for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Unsound:
    """Bytes of a log file that are no batches."""

    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    """Where the sound batch behind it begins; None if there is none."""
    reason: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A sound batch and where it stands."""

    path: str
    position: int
    batch: RecordBatch

    @property
    def base_offset(self) -> int:
        """Of the segment that it stands in."""
        return offset_of(self.path.rpartition("/")[2])

    @property
    def next_offset(self) -> int:
        """The offset behind it."""
        return self.batch.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A partition as files."""

    topic: str
    partition: int
    directory: str
    recovery_point: int
    log_start_offset: int
    """Everything before it was deleted."""
    is_compacted: bool

    def path(self, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
        """The file of a segment."""
        return f"{self.directory}/{base_offset:0{NAME_DIGITS}d}{suffix}"


class Inspection:
    """A data directory that is looked through. Made by `open`; a context manager."""

    def __init__(self, files: Files, path: str, lock: File | None, holder: str | None) -> None:
        self.files = files
        self.path = path
        self.holder = holder
        """Who has the directory open and may be writing; None if nobody has."""
        self.catalog = Catalog(files, path)
        self._lock = lock

    @classmethod
    def open(cls, path: str, *, files: Files | None = None) -> Self:
        """Lock the directory, unless somebody else has.

        Raises:
            LogDirectoryLost: it is not there, or no data directory.
            LogDirectoryFailed: it can't be read.
            CorruptData: the file that says which log it is is damaged.
        """
        files = OsFiles() if files is None else files
        path = path.rstrip("/") or ("/" if path else ".")
        try:
            if Catalog(files, path).identity() is None:
                raise LogDirectoryLost(f"{path} is no data directory of a log")
            lock = files.lock(f"{path}/{LOCK}")
            if lock is not None:
                content = json.dumps({"process_id": process_id(), "since_ms": 0}).encode()
                lock.truncate(0)
                write_whole(lock, content, 0)
        except OSError as error:
            raise directory_error(error, path) from error
        return cls(files, path, lock, describe_holder(files, path) if lock is None else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory back."""
        if self._lock is not None:
            self._lock.close()

    def partitions(self) -> Iterator[Stored]:
        """Every partition of every topic.

        Raises:
            CorruptData: a small file of the directory is damaged.
            LogDirectoryError: it can't be read.
        """
        with self.disk():
            entries, _ = self.catalog.topics()
            points = self.catalog.recovery_points()
            starts = self.catalog.log_start_offsets()
        for entry in sorted(entries, key=lambda each: each.name):
            for number in range(entry.partitions):
                folder = _folder(entry, number)
                point, start = points.get(folder, START_OFFSET), starts.get(folder, START_OFFSET)
                yield self._stored(entry, number, recovery_point=point, log_start_offset=start)

    def partition(self, topic: str, partition: int) -> Stored:
        """One of them. Raises what `partitions` raises.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        for stored in self.partitions():
            if (stored.topic, stored.partition) == (topic, partition):
                return stored
        raise UnknownTopicOrPartition(f"{self.path} has no partition {partition} of {topic!r}")

    def verify(self) -> Report:
        """Read everything and compare everything that can be compared.

        Raises:
            CorruptData: a small file of the directory is damaged, so it can't be looked through.
            LogDirectoryError: it can't be read.
        """
        counts = Counts()
        findings: list[Finding] = []
        for stored in self.partitions():
            with self.disk():
                looking = _Looking(self.files, stored, counts, is_open=self.holder is not None)
                findings += looking.findings()
        return Report(tuple(findings), counts)

    def batches(self, stored: Stored, offset: int = START_OFFSET) -> Iterator[Placed | Finding]:
        """The batches of a partition from the one with `offset` in it on, and what is not sound.

        Raises:
            LogDirectoryError: it can't be read.
        """
        with self.disk():
            looking = _Looking(self.files, stored, Counts(), is_open=self.holder is not None)
            yield from looking.walk(offset)

    def check_alone(self) -> None:
        """Whether something may be changed.

        Raises:
            UsageError: somebody else has the directory open.
        """
        if self.holder is not None:
            raise UsageError(f"{self.holder}; stop it first: a log is mended offline")

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Errors of the system come out as what they mean for the data directory."""
        try:
            yield
        except OSError as error:
            raise directory_error(error, self.path) from error

    def _stored(
        self, entry: TopicEntry, number: int, *, recovery_point: int, log_start_offset: int
    ) -> Stored:
        return Stored(
            topic=entry.name,
            partition=number,
            directory=f"{self.path}/{_folder(entry, number)}",
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            is_compacted="compact" in entry.configs.get("cleanup.policy", ""),
        )


def segment_bases(files: Files, stored: Stored) -> list[int]:
    """The first offsets of the segments that a partition has, in order.

    Raises:
        OSError: the directory can't be read; a missing one has no segments.
    """
    try:
        names = files.list(stored.directory)
    except FileNotFoundError:
        return []
    stems = (name.removesuffix(LOG_SUFFIX) for name in names if name.endswith(LOG_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def walk_file(
    file: File, *, base_offset: int, end: int
) -> Iterator[tuple[int, RecordBatch] | Unsound]:
    """Everything in a log file up to `end`: sound batches with their positions, and the rest.

    Raises:
        OSError: it can't be read.
    """
    position, offset = 0, base_offset
    while True:
        scan = Scan(file, position=position, next_offset=offset, end=end)
        yield from scan
        if not scan.reason:
            return
        offsets = range(scan.next_offset, base_offset + OFFSETS_MAX)
        found = sound_position(file, position=scan.position, end=end, offsets=offsets)
        if found is None:
            yield Unsound(scan.position, end, scan.next_offset, None, scan.reason)
            return
        yield Unsound(scan.position, found[0], scan.next_offset, found[1], scan.reason)
        position, offset = found


class _Looking:
    """One pass over the files of a partition."""

    def __init__(self, files: Files, stored: Stored, counts: Counts, *, is_open: bool) -> None:
        self._files = files
        self._stored = stored
        self._counts = counts
        self._is_open = is_open
        self._producers = ProducerStates()
        self._disordered = 0

    def findings(self) -> list[Finding]:
        found: list[Finding] = []
        self._counts.partitions += 1
        last_path = ""
        indexes: dict[str, _Entries] = {}
        bases = segment_bases(self._files, self._stored)
        checked = bases[:-1] if self._is_open else bases
        audit = AbortedAudit(self._files, checked, self._stored.path)
        for base in checked:
            # Before the log, which may only have more by then.
            path = self._stored.path(base)
            indexes[path] = _Entries(self._files, self._stored, base)
        for each in self.walk(START_OFFSET):
            if isinstance(each, Finding):
                found.append(each)
                self._producers = ProducerStates()  # Nobody knows what was in there.
                audit.note_damage()
                continue
            if each.path != last_path:
                self._counts.segments += 1
                last_path = each.path
            self._count(each.batch)
            audit.meet(each.base_offset, each.batch)
            if each.path in indexes:
                indexes[each.path].meet(each.position, each.batch)
            found += self._order(each)
        damaged = {finding.path for finding in found if finding.kind is not Kind.ORDER}
        for path, entries in indexes.items():
            if path not in damaged:  # Or the log's damage would be told twice.
                found += entries.findings()
        whole = self._stored.recovery_point
        complete = max((base for base in bases if base <= whole), default=START_OFFSET)
        for base, why in audit.findings(complete_before=complete):
            found.append(self._wrong_index(self._stored.path(base, ABORTED_SUFFIX), why))
        return found + self._snapshots()

    def _wrong_index(self, path: str, why: str) -> Finding:
        return Finding(
            kind=Kind.INDEX,
            topic=self._stored.topic,
            partition=self._stored.partition,
            path=path,
            reason=why,
        )

    def walk(self, offset: int) -> Iterator[Placed | Finding]:
        """Everything from the batch with `offset` in it on, across segments."""
        bases = segment_bases(self._files, self._stored)
        start = self._stored.log_start_offset
        if not bases:
            yield from self._end(start, None, self._stored.path(start))
            return
        # A broker that has the directory open may have moved the start on since it was read.
        if bases[0] > start and not self._is_open:
            path = self._stored.path(bases[0])
            yield self._missing(path, 0, start, bases[0], "no file begins before it")
        for base, next_base in pairwise([*bases, None]):
            if base is None or (next_base is not None and next_base <= offset):
                continue
            yield from self._walk_segment(base, next_base, offset)

    def _walk_segment(
        self, base: int, next_base: int | None, offset: int
    ) -> Iterator[Placed | Finding]:
        path = self._stored.path(base)
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return  # A broker has removed it meanwhile.
        reached = base
        tail: Unsound | None = None
        overlap_at: int | None = None
        with closing(file):
            end = file.size()
            for each in walk_file(file, base_offset=base, end=end):
                if isinstance(each, Unsound) and each.next_offset is None:
                    tail = each
                    continue
                place = self._place(path, each)
                if overlap_at is None and next_base is not None and reached >= next_base:
                    overlap_at = place.position
                reached = place.next_offset or reached
                if reached > offset:
                    yield place
        if next_base is None:
            yield from self._end(reached, tail, path, end)
        elif tail is not None:
            yield self._damaged(path, tail, next_base)
        elif reached < next_base:
            yield self._missing(path, end, reached, next_base, "the file ends before it")
        elif reached > next_base:
            yield Finding(
                kind=Kind.OVERLAP,
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
        """What stands behind the last sound batch of the log."""
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
                kind=Kind.UNFINISHED,
                topic=self._stored.topic,
                partition=self._stored.partition,
                path=path,
                position=tail.position,
                size_bytes=tail.end_position - tail.position,
                first_offset=reached,
                reason=f"behind the last whole batch: {tail.reason}",
            )

    def _place(self, path: str, each: tuple[int, RecordBatch] | Unsound) -> Placed | Finding:
        if isinstance(each, Unsound):
            return self._damaged(path, each, each.next_offset)
        return Placed(path, *each)

    def _damaged(self, path: str, place: Unsound, next_offset: int | None) -> Finding:
        return Finding(
            kind=Kind.DAMAGED,
            topic=self._stored.topic,
            partition=self._stored.partition,
            path=path,
            position=place.position,
            size_bytes=place.end_position - place.position,
            first_offset=place.first_offset,
            next_offset=next_offset,
            reason=place.reason,
        )

    def _missing(self, path: str, position: int, first: int, following: int, why: str) -> Finding:
        return Finding(
            kind=Kind.MISSING,
            topic=self._stored.topic,
            partition=self._stored.partition,
            path=path,
            position=position,
            first_offset=first,
            next_offset=following,
            reason=why,
        )

    def _count(self, batch: RecordBatch) -> None:
        self._counts.batches += 1
        self._counts.records += max(batch.record_count, 0)
        self._counts.size_bytes += batch.size_bytes

    def _order(self, placed: Placed) -> Iterator[Finding]:
        """Compare a batch with what its producer wrote before, as the broker did."""
        batch = placed.batch
        if batch.record_count == 0:
            self._producers = ProducerStates()  # It stands for batches that were lost.
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
                why = f"producer {batch.producer_id}: sequence {batch.base_sequence} comes twice"
        except LogError as error:
            why = str(error)
        self._producers.replay(batch, batch.base_offset)
        if why and self._disordered < DISORDER_MAX:
            self._disordered += 1
            yield Finding(
                kind=Kind.ORDER,
                topic=self._stored.topic,
                partition=self._stored.partition,
                path=placed.path,
                position=placed.position,
                size_bytes=batch.size_bytes,
                first_offset=batch.base_offset,
                next_offset=batch.next_offset,
                reason=why,
            )

    def _snapshots(self) -> list[Finding]:
        found = []
        try:
            names = self._files.list(self._stored.directory)
        except FileNotFoundError:
            return []
        for name in names:
            path = f"{self._stored.directory}/{name}"
            if not name.endswith(SNAPSHOT_SUFFIX):
                continue
            try:
                ProducerStates.restore(read_file(self._files, path))
            except FileNotFoundError:
                continue  # A broker has removed it meanwhile.
            except CorruptData as error:
                found.append(
                    Finding(
                        kind=Kind.SNAPSHOT,
                        topic=self._stored.topic,
                        partition=self._stored.partition,
                        path=path,
                        reason=str(error),
                    )
                )
        return found


class _Entries:
    """The index entries of a segment, crossed off as their batches are met."""

    def __init__(self, files: Files, stored: Stored, base_offset: int) -> None:
        self._stored = stored
        self._base_offset = base_offset
        self._wrong: dict[str, str] = {}
        self._positions = dict(self._read(files, INDEX_SUFFIX, _OFFSET_ENTRY))
        times = self._read(files, TIME_INDEX_SUFFIX, _TIME_ENTRY)
        self._times = {relative: timestamp_ms for timestamp_ms, relative in times}

    def meet(self, position: int, batch: RecordBatch) -> None:
        relative = batch.base_offset - self._base_offset
        if self._positions.get(relative) == position:
            del self._positions[relative]
        if self._times.get(relative) == batch.max_timestamp_ms:
            del self._times[relative]

    def findings(self) -> Iterator[Finding]:
        self._leftover(INDEX_SUFFIX, self._positions)
        self._leftover(TIME_INDEX_SUFFIX, self._times)
        for suffix, why in self._wrong.items():
            yield Finding(
                kind=Kind.INDEX,
                topic=self._stored.topic,
                partition=self._stored.partition,
                path=self._stored.path(self._base_offset, suffix),
                reason=why,
            )

    def _leftover(self, suffix: str, entries: dict[int, int]) -> None:
        if entries and suffix not in self._wrong:
            offset = self._base_offset + next(iter(entries))
            self._wrong[suffix] = (
                f"{len(entries)} of its entries disagree with the log, the first for offset"
                f" {offset}"
            )

    def _read(self, files: Files, suffix: str, layout: Struct) -> Sequence[tuple[int, int]]:
        try:
            data = read_file(files, self._stored.path(self._base_offset, suffix))
        except FileNotFoundError:
            self._wrong[suffix] = "there is none"
            return []
        # What is written ahead of the entries is zeros; no entry is all zeros.
        size_bytes = len(data.rstrip(b"\0"))
        entries = -(-size_bytes // layout.size)
        if entries * layout.size > len(data) or len(data) % layout.size:
            self._wrong[suffix] = f"its {len(data)} bytes are no whole number of entries"
            return []
        found = [layout.unpack_from(data, number * layout.size) for number in range(entries)]
        if any(earlier >= later for earlier, later in pairwise(found)):
            self._wrong[suffix] = "its entries are not in order"
            return []
        return [(first, second) for first, second in found]


def _folder(entry: TopicEntry, number: int) -> str:
    return partition_folder(entry.topic_id, number)
