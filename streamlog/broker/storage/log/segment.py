"""Segment: one log file, its two indexes, and the index of the transactions aborted in it.

It is named by the offset of its first batch in 20 digits. Its batches follow each other without
gaps up to `size_bytes`; bytes after that are not part of the log. The last segment of a partition
keeps its file open for writing until other partitions need the descriptor more (`AppendedFile`);
sealed segments are opened for each read, so a thousand of them cost no descriptor. `Damage`
describes a damaged range of a log file: the records, the bytes, and what the operator can do.

Rules of this module: it reads and reports; `recovery` decides whether a range is torn or damaged. A
range that is known to be damaged is refused, and the batches around it are served. If an index
entry disagrees with the log, the file is scanned once and both indexes are rebuilt.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from operator import attrgetter
from typing import NamedTuple

import msgspec

from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.broker.storage.disk.files import (
    Buffer,
    Content,
    File,
    Files,
    unless_full,
    write_whole,
)
from streamlog.broker.storage.log.aborted_index import ABORTED_SUFFIX, AbortedIndex
from streamlog.broker.storage.log.batch_headers import Header, Headers, header_at, last_whole
from streamlog.broker.storage.log.index import Indexes
from streamlog.broker.storage.log.producer_states import EndedTransaction
from streamlog.broker.storage.log.record_search import RecordSearch
from streamlog.broker.storage.log.scan import (
    OFFSETS_MAX,
    Scan,
    epochs,
    first_timestamp_ms,
    sound_position,
)
from streamlog.errors import CorruptData
from streamlog.records.batch import HEADER_BYTES, LogRecord, RecordBatch, count_offsets


class AppendedFile:
    """The open log file of the active segment; a sealed segment has none."""

    __slots__ = ("_files", "file", "was_released", "was_used")

    def __init__(self, files: Files) -> None:
        self.file: File | None = None
        self.was_released = False
        """Whether the file was closed to free its descriptor, although the log accepts appends."""
        self.was_used = False
        self._files = files

    @property
    def is_closed(self) -> bool:
        """Whether the segment accepts no appends."""
        return self.file is None and not self.was_released

    def open(self, path: str, size_bytes: int = 0) -> File | None:
        """Open the log for appending; None if the file is shorter than `size_bytes`.

        A shorter file is not the one that was written.

        Raises:
            OSError: it can't be opened.
        """
        file = self._files.open(path, writable=True)
        if file.size() < size_bytes:
            file.close()
            # The file was replaced by an older copy: appending to it would leave a gap.
            return None
        self.file, self.was_released = file, False
        self._files.held.add(self)
        return file

    def to_append(self, path: str, size_bytes: int) -> File:
        """Return the open file; open it again if its descriptor was given to another log.

        Raises:
            OSError: it can't be opened, or is gone.
        """
        file = self.file
        if file is None:
            if not self.was_released:
                raise ValueError(f"{path} is sealed")
            file = self.open(path, size_bytes)
            if file is None:
                raise FileNotFoundError(errno.ENOENT, "a shorter file has its name", path)
        self.was_used = True
        return file

    def close(self) -> None:
        """Close the file; the segment accepts no more appends."""
        self._files.held.discard(self)
        file, self.file, self.was_released = self.file, None, False
        if file is not None:
            file.close()

    def release(self) -> None:
        """Give up the descriptor; see `Holder`."""
        # Not closed here: another thread may be using it, and dropping the last reference
        # closes it.
        self.was_released = self.file is not None
        self.file = None


class _ReadFile:
    """The file of a segment while it is read: closed behind the block, unless appends hold it.

    A class: a generator for each read would cost a small Fetch 3 % more.
    """

    __slots__ = ("_file", "_is_held")

    def __init__(self, file: File, *, is_held: bool) -> None:
        self._file = file
        self._is_held = is_held

    def __enter__(self) -> File:
        return self._file

    def __exit__(self, *_: object) -> None:
        if not self._is_held:
            self._file.close()


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a log file that can't be served."""

    partition: str
    path: str
    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    """The first offset after the range that can be served; None if it reaches the log's end."""
    reason: str

    def covers(self, offset: int) -> bool:
        """Whether `offset` lies in the range."""
        return offset >= self.first_offset and (
            self.next_offset is None or offset < self.next_offset
        )

    def __str__(self) -> str:
        until = "the end" if self.next_offset is None else str(self.next_offset - 1)
        return (
            f"{self.partition}: {self.path} is damaged at position {self.position}"
            f" ({self.reason}): offsets {self.first_offset} to {until} can't be served;"
            " stop the broker and repair it with `streamlog log repair`, or restore the file from a"
            " copy"
        )


LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
DELETED_SUFFIX = ".deleted"
"""The suffix of files that are out of the log and not removed yet."""
INDEX_BYTES_MAX = 10 * 1024 * 1024
"""The size limit of an index, unless the topic sets another."""
WALK_BYTES_MAX = 64 * 1024
"""Bytes per read when headers are walked."""
NEXT_READS_MAX = 64
"""Readers whose next position is kept in memory, so that their next read needs no index."""


class SegmentEnd(NamedTuple):
    """The state of a segment that was closed in order, so that opening need not read it."""

    base_offset: int
    size_bytes: int
    next_offset: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    since_entry_bytes: int
    offset_entries: int
    time_entries: int
    aborted_entries: int = 0


class Segment:
    """The batches from `base_offset` on, in one file of `directory`.

    Call `create`, `load` or `rescan` before reading. With `read_only`, nothing on disk changes.
    Error messages call it by `partition`. A `suffix` on the names of its files means that it is not
    (yet) one of the log's segments.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        index_bytes_max: int = INDEX_BYTES_MAX,
        partition: str,
        read_only: bool = False,
        suffix: str = "",
        on_damage: Callable[[], None] | None = None,
    ) -> None:
        stem = f"{directory}/{base_offset:020d}"
        self.path = stem + LOG_SUFFIX + suffix
        self._stem = stem
        self.base_offset = base_offset
        self.loaded = False
        self.is_new = False
        """Whether it began without files and nothing has been appended."""
        self.size_bytes = 0
        self.trailing_bytes = 0
        """Bytes after the last whole batch when `load` or `rescan` read the file."""
        self.next_offset = base_offset
        self.first_timestamp_ms = -1
        self.max_timestamp_ms = -1
        self.leader_epoch = -1
        """The highest leader epoch of the batches that were read as a whole."""
        self.damage: list[Damage] = []
        self.read_end_offset = base_offset
        """The offset after the last batch that `range` returned."""
        self.has_unwritten_indexes = False
        """Whether index entries are only in memory because the disk was full."""
        self.has_markers = False
        """Whether `rescan` found control batches."""
        self.aborted = AbortedIndex(files, stem + ABORTED_SUFFIX + suffix, in_memory=read_only)
        self._max_timestamp_offset = base_offset
        self._since_entry_bytes = 0
        self._needs_flush = False
        self._files, self._partition, self._on_damage = files, partition, on_damage
        self._interval_bytes = index_interval_bytes
        self._appended = AppendedFile(files)
        self._sealed = True
        self._has_rescanned = False
        self._chunk_bytes = min(index_interval_bytes + HEADER_BYTES, WALK_BYTES_MAX)
        self._next_reads: dict[int, Header | int] = {}
        """The batch that a reader will probably ask for next, or its position: a hint."""
        self._found: tuple[int, Header] | None = None
        """The offset that was searched last, and its batch. All followers ask for the newest batch;
        older ones are looked at again, which notices damage."""
        paths = (stem + INDEX_SUFFIX + suffix, stem + TIME_INDEX_SUFFIX + suffix)
        self._indexes = Indexes(files, *paths, bytes_max=index_bytes_max, in_memory=read_only)
        self._offsets, self._times = self._indexes.offsets, self._indexes.times

    # Life cycle. Every method here raises OSError when the system refuses.

    def create(self) -> None:
        """Create the files, empty, and open the log for appending."""
        self._indexes.create()
        self.aborted.remove()
        self.unseal()
        self._appended.open(self.path)
        self.loaded = True

    def begin(self) -> None:
        """Begin without files, in an empty directory; the first append creates them."""
        # Not `create`: of thousands of partitions that are made at once many stay empty for long,
        # and three files each are most of what a new partition costs.
        self._indexes.begin()
        self.unseal()
        self._appended.was_released = True
        self.is_new = self.loaded = True

    def unseal(self) -> None:
        """Allow appends; the file is opened with the first one, so until then it costs nothing."""
        self._sealed = False

    def trim_indexes(self) -> None:
        """Write the index entries that are in memory, and cut off preallocated space."""
        self._indexes.trim()
        self.aborted.flush()
        self._needs_flush = False

    @property
    def has_stale_indexes(self) -> bool:
        """Whether the index files lack entries or have preallocated space."""
        return self._indexes.are_behind or self.aborted.is_behind

    def keep_indexes(self) -> None:
        """Sync the indexes to disk."""
        self._indexes.keep()
        self.aborted.flush(durable=True)

    def write_if_space(self, write: Callable[[], None]) -> None:
        """Write the indexes; if the disk is full, their entries stay in memory."""
        # True first: an error other than a full disk leaves it set.
        self.has_unwritten_indexes = True
        with unless_full():
            write()
            self.has_unwritten_indexes = False
        self._needs_flush = self._needs_flush or self.has_unwritten_indexes

    def sync(self) -> None:
        """Sync what was appended; sync the indexes too if the segment is sealed."""
        file = self._appended.file
        if file is not None:
            file.sync()
            return
        if self.is_new:
            return
        with closing(self._files.open(self.path, writable=True)) as file:
            file.sync()
        # Those of the active segment are rebuilt from the log after a crash.
        if self.loaded and self._sealed:
            self.write_if_space(self.keep_indexes)

    def files_to_sync(self) -> list[File]:
        """Open the files that may not be on disk, under separate handles that the caller closes."""
        file = self._appended.file
        if file is not None:
            return [file.share()]
        if self.is_new:
            return []
        sealed = self._appended.is_closed
        paths = [self.path, *(self._indexes.paths if sealed else ())]
        if sealed and len(self.aborted):
            paths.append(self.aborted.path)
        return [self._files.open(path, writable=True) for path in paths]

    def close(self) -> None:
        """Close the log; a later read opens it again."""
        self._sealed = True
        self._indexes.unmap()
        self._appended.close()

    def remove(self) -> None:
        """Remove the files."""
        self.close()
        self._indexes.remove()
        self.aborted.remove()
        with suppress(FileNotFoundError):
            self._files.remove(self.path)

    def retire(self) -> list[str]:
        """Take the files out of the log by renaming them; return the paths to remove.

        The log file is renamed last: while it has its name, the renames can be repeated.
        """
        self.close()
        renamed: list[str] = []
        for path in self.paths:
            with suppress(FileNotFoundError):
                self._files.rename(path, path + DELETED_SUFFIX)
                renamed.append(path + DELETED_SUFFIX)
        return renamed

    @property
    def paths(self) -> list[str]:
        """The paths of all files, the log last."""
        return [*self._indexes.paths, self.aborted.path, self.path]

    def open(self) -> File:
        """Open the log file for reading; the caller closes it."""
        return self._files.open(self.path)

    def rename_log(self, path: str) -> None:
        """Rename the log file and read it under the new name."""
        self._files.rename(self.path, path)
        self.path = path

    def settle(self) -> None:
        """Give the files the names of a segment that is part of the log, the log last."""
        self._indexes.rename(self._stem + INDEX_SUFFIX, self._stem + TIME_INDEX_SUFFIX)
        self.aborted.rename(self._stem + ABORTED_SUFFIX)
        self.rename_log(self._stem + LOG_SUFFIX)

    def cut(self) -> None:
        """Durably cut off the bytes after the last whole batch."""
        with closing(self._files.open(self.path, writable=True)) as file:
            file.truncate(self.size_bytes)
            file.sync()
        self.trailing_bytes = 0

    def is_linked(self) -> bool:
        """Whether the active segment's log file is still in a directory."""
        file = self._appended.file
        if file is None and not self._sealed:
            file = self._appended.open(self.path, self.size_bytes)
        return file is not None and file.is_linked()

    @property
    def end(self) -> SegmentEnd:
        """The state for `restore`."""
        return SegmentEnd(
            self.base_offset,
            self.size_bytes,
            self.next_offset,
            self.first_timestamp_ms,
            self.max_timestamp_ms,
            self._max_timestamp_offset,
            self._since_entry_bytes,
            len(self._offsets),
            len(self._times),
            len(self.aborted),
        )

    def restore(self, end: SegmentEnd) -> bool:
        """Adopt `end` without reading the log; False if the files differ from it."""
        if self.is_new:
            return (end.base_offset, end.size_bytes) == (self.base_offset, 0)
        self._forget()
        with self._reading() as file:
            # A clean shutdown may be followed by anything: a copied directory, a file that a person
            # has cut. Sizes and counts are compared; the contents are trusted.
            if (file.size(), self.base_offset) != (end.size_bytes, end.base_offset):
                return False
        if end.offset_entries and not self._indexes.load():
            return False
        if (len(self._offsets), len(self._times)) != (end.offset_entries, end.time_entries):
            return False
        if not self.aborted.restore(self.base_offset, end.aborted_entries):
            return False
        self.size_bytes, self.next_offset = end.size_bytes, end.next_offset
        self.first_timestamp_ms, self.max_timestamp_ms = end[3:5]
        self._max_timestamp_offset = end.max_timestamp_offset
        self._since_entry_bytes = end.since_entry_bytes
        self.loaded = True
        return True

    # Loading. Every method here raises OSError when the files can't be read.

    def load(self) -> bool:
        """Find the log's end from the newest index entry on; False if the indexes are unusable.

        Batches before that entry are not read. Afterwards, `trailing_bytes` is the number of bytes
        after the last whole batch.
        """
        if self.is_new:
            return True
        self._forget()
        if not self._indexes.load():
            return False
        if not (self.aborted.is_known or self.aborted.load(self.base_offset)):
            return False
        with self._reading() as file:
            end = file.size()
            relative, position = self._offsets.last or (0, 0)
            # An entry at relative offset 0 is never written, and an entry at or after the end of
            # the file points nowhere: either proves that index and log do not belong together.
            if self._offsets.last is not None and (not relative or position >= end):
                return False
            if self._times.last is not None:
                self.max_timestamp_ms, offset = self._times.last
                self._max_timestamp_offset = self.base_offset + offset
            self._scan_on(file, position, self.base_offset + relative, end)
            # The entry must point at a sound batch: no progress behind it means it was wrong.
            self.loaded = position == 0 or self.size_bytes > position
            return self.loaded and self._times_agree(file)

    def rescan(self, end: int | None = None) -> str:
        """Scan the whole file, or up to `end`, with CRCs, and rebuild the indexes.

        Unsound ranges that sound batches follow are noted as `damage`. The caller judges the bytes
        after the last sound batch.

        Returns:
            Why the bytes after the last sound batch are unsound; an empty string if there are none.
        """
        if self.is_new:
            return ""
        self._forget()
        with self._reading() as file:
            end = file.size() if end is None else end
            position, offset = 0, self.base_offset
            # 1. Batches 0-9 are sound, batch 10 fails its CRC, batch 11 is sound.
            # 2. The scan stops at 10, and the search finds 11: 10 is damage, not a torn tail.
            # 3. An index entry at 11 lets readers start behind the damage, which they can't walk
            #    over.
            while reason := self._scan_on(file, position, offset, end):
                found = self._sound_behind(file, end)
                if found is None:
                    break
                position, offset = found
                self._note_damage(reason, position, offset)
                self._add_entry(position, offset)
        # A few batches have no entries. After a crash, thousands of segments may be like that: none
        # gets index files before it is sealed or closed.
        if len(self._offsets) or len(self.aborted) or self._indexes.exist():
            self.write_if_space(self.trim_indexes)
        self.loaded = True
        return reason

    def note_tail_damage(self, reason: str, next_offset: int | None) -> Damage:
        """Note that everything from the last sound batch to `next_offset` is damaged.

        None means up to the end of the log.
        """
        return self._note_damage(reason, self.size_bytes + self.trailing_bytes, next_offset)

    @property
    def has_damaged_end(self) -> bool:
        """Whether damage reaches the end, so that the next offset is unknown."""
        return bool(self.damage) and self.damage[-1].next_offset is None

    def sound_behind(self) -> bool:
        """Whether the trailing bytes contain a sound batch."""
        with self._reading() as file:
            return self._sound_behind(file, self.size_bytes + self.trailing_bytes) is not None

    # Appending.

    @property
    def index_entries(self) -> int:
        """The number of entries of the offset index."""
        return len(self._offsets)

    def is_full(self, size_bytes: int, batches: Sequence[RecordBatch], config: TopicConfig) -> bool:
        """Whether appending these batches would make the segment or its index too large."""
        if self.size_bytes + size_bytes > config.segment_bytes:
            return True
        if self._since_entry_bytes >= self._interval_bytes:
            # The time index has larger entries than the offset index, and at most as many.
            index_bytes = (len(self._offsets) + 1) * self._times.entry_bytes
            if index_bytes > config.segment_index_bytes:
                return True
        # Index entries hold offsets relative to the base, in four bytes.
        return self.next_offset + count_offsets(batches) - self.base_offset > OFFSETS_MAX

    def note_aborted(self, decided: EndedTransaction) -> None:
        """Note that the last batch appended is the marker of an aborted transaction."""
        self.aborted.add(decided)
        self._needs_flush = self._needs_flush or self.aborted.needs_flush

    def room_bytes(self, config: TopicConfig) -> int:
        """Bytes that can be appended before the segment is full, whatever the batches are."""
        # Every interval of bytes costs one index entry; the time index fills first.
        entries = config.segment_index_bytes // self._times.entry_bytes - len(self._offsets)
        return min(config.segment_bytes - self.size_bytes, entries * self._interval_bytes)

    def append(self, data: Content, batches: Sequence[RecordBatch]) -> None:
        """Write `data`, which holds `batches` with offsets from `next_offset` on.

        Raises:
            OSError: the write failed; the file ends with the last whole batch, as before.
        """
        file = self._appended.to_append(self.path, self.size_bytes)
        if self.is_new:
            self._indexes.clear()  # They have files from now on, even without entries.
            self.is_new = False
        if self._needs_flush:
            # Before the data: if the disk has no space for the indexes, the log has not changed.
            self._flush_indexes()
        try:
            write_whole(file, data, self.size_bytes)
        except OSError:
            # A part of the batches may be in the file: cut it off, or the next batch would
            # follow half a batch and look like damage.
            file.truncate(self.size_bytes)
            raise
        for batch in batches:
            self._note_batch(batch, self.size_bytes, self.next_offset)

    # Reading. Every method here raises CorruptData for a damaged range, and OSError.

    def range(
        self, offset: int, max_bytes: int, *, min_one: bool, limit: int | None = None
    ) -> Buffer | FileRange:
        """Return whole batches, the first of which contains `offset`; at least one with `min_one`.

        `limit` is a position at which a batch begins; the batches end before it.
        """
        # Not by `_reading`: most reads are of an open file, and would pay for a block that closes
        # nothing.
        file, opened = self._appended.file, None
        if file is None:
            file = opened = self._files.open(self.path)
        else:
            self._appended.was_used = True
        try:
            first = self._find(file, offset)
            wanted = max(max_bytes, first.size_bytes) if min_one else max_bytes
            if wanted < first.size_bytes:
                self._remember(offset, first)
                return b""
            log_end = self.size_bytes if limit is None else limit
            # Readers get what lies before the next damage; the read that begins at it fails.
            for damage in self.damage:
                if damage.position > first.position:
                    log_end = min(log_end, damage.position)
            last, following = last_whole(
                file,
                first,
                end=min(log_end, first.position + wanted),
                log_end=log_end,
                chunk_bytes=self._chunk_bytes,
            )
            end = last.position + last.size_bytes
            self._remember(last.next_offset, end if following is None else following)
            self.read_end_offset = last.next_offset
            return file.range(end - first.position, first.position)
        finally:
            if opened is not None:
                opened.close()

    def position_of(self, offset: int) -> int:
        """Return the position of the batch that contains `offset`."""
        with self._reading() as file:
            return self._find(file, offset).position

    def first_not_before(self, timestamp_ms: int, start_offset: int = 0) -> LogRecord | None:
        """Return the first record from `start_offset` on that is not older than `timestamp_ms`."""
        if self.max_timestamp_ms < timestamp_ms or start_offset >= self.next_offset:
            return None
        with self._reading() as file:
            begin = self._find(file, max(self._earliest(file, timestamp_ms), start_offset))
            for header in self._walk(file, begin.position, begin.base_offset):
                if header.max_timestamp_ms < timestamp_ms:
                    continue
                # The header's timestamp is the maximum of its records, and of records that
                # compaction has removed: the records decide, and the walk continues without a
                # match.
                records = self._records(file, header)
                kept = [record for record in records if record.offset >= start_offset]
                if found := [record for record in kept if record.timestamp_ms >= timestamp_ms]:
                    return found[0]
        return None

    def search(self, offset: int, end_offset: int) -> RecordSearch:
        """Return a search for the first record from `offset` on, for any thread; does no I/O."""
        newest = self._offsets.newest_floor(offset - self.base_offset) if self.loaded else None
        return RecordSearch(
            files=self._files,
            partition=self._partition,
            path=self.path,
            index_path=self._offsets.path,
            index_entries=self._offsets.stored_entries if self.loaded else None,
            base_offset=self.base_offset,
            begin=newest,
            size_bytes=self.size_bytes if self.loaded else None,
            chunk_bytes=self._chunk_bytes,
            offset=offset,
            end_offset=end_offset,
        )

    def newest(self, start_offset: int = 0) -> LogRecord | None:
        """Return the first record with the greatest timestamp; None without one.

        Records before `start_offset` don't count.
        """
        if self.max_timestamp_ms < 0 or start_offset >= self.next_offset:
            return None
        with self._reading() as file:
            header = self._find(file, self._max_timestamp_offset)
            if header.base_offset < start_offset:
                begin = self._find(file, start_offset)
                later = self._walk(file, begin.position, begin.base_offset)
                header = max(later, key=attrgetter("max_timestamp_ms"))
            records = self._records(file, header)
        kept = (record for record in records if record.offset >= start_offset)
        return max(kept, key=attrgetter("timestamp_ms"), default=None)

    def batches(self, offset: int) -> Iterator[RecordBatch]:
        """Iterate over the sound batches from the one that contains `offset` on."""
        with self._reading() as file:
            for position, end, first in self._sound_ranges():
                scan = Scan(file, position=position, next_offset=first, end=end)
                yield from (batch for _, batch in scan if batch.next_offset > offset)

    def epochs(self) -> Iterator[tuple[int, int]]:
        """Iterate over leader epoch and base offset of every batch whose header is reachable."""
        with self._reading() as file:
            for position, end, first in self._sound_ranges():
                headers = Headers(file, end=end, chunk_bytes=self._chunk_bytes)
                yield from epochs(headers.walk(position, first))

    # Internal.

    def _reading(self) -> _ReadFile:
        file = self._appended.file
        if file is not None:
            self._appended.was_used = True
            return _ReadFile(file, is_held=True)
        return _ReadFile(self._files.open(self.path), is_held=False)

    def _flush_indexes(self) -> None:
        self._indexes.flush()
        self.aborted.flush()
        self._needs_flush = False

    def _forget(self) -> None:
        self._indexes.clear()
        self._next_reads.clear()
        self._found = None
        self.size_bytes = self.trailing_bytes = 0
        self.next_offset = self._max_timestamp_offset = self.base_offset
        self.first_timestamp_ms = self.max_timestamp_ms = -1
        self._since_entry_bytes = 0
        self.has_markers = False
        self.damage = []
        self.loaded = False

    def _scan_on(self, file: File, position: int, offset: int, end: int) -> str:
        """Add the sound batches from `position` to `end`; return why the scan stopped, or ""."""
        if position > 0 and self.first_timestamp_ms < 0:
            self.first_timestamp_ms = first_timestamp_ms(file, self.base_offset)
        self.size_bytes, self.next_offset = position, offset
        scan = Scan(file, position=position, next_offset=offset, end=end)
        for at, batch in scan:
            self._note_batch(batch, at, batch.base_offset)
            self.has_markers = self.has_markers or batch.is_control
            if self._needs_flush and not self.has_unwritten_indexes:
                self.write_if_space(self._flush_indexes)
        self.trailing_bytes = end - self.size_bytes
        return scan.reason

    def _note_batch(self, batch: RecordBatch, position: int, base_offset: int) -> None:
        # Compaction may leave a batch without records, whose timestamp belongs to no record.
        timestamp_ms = batch.max_timestamp_ms if batch.record_count else -1
        if position == 0:
            self.first_timestamp_ms = timestamp_ms
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
            self._max_timestamp_offset = base_offset
        if self._since_entry_bytes >= self._interval_bytes:
            self._add_entry(position, base_offset)
        size_bytes, leader_epoch = batch.size_bytes, batch.leader_epoch
        self._since_entry_bytes += size_bytes
        if leader_epoch > self.leader_epoch:  # noqa: PLR1730 - a call costs more, for each batch
            self.leader_epoch = leader_epoch
        self.size_bytes = position + size_bytes
        self.next_offset = base_offset + batch.last_offset_delta + 1

    def _add_entry(self, position: int, base_offset: int) -> None:
        newest = self._offsets.last
        if position == 0 or (newest is not None and newest[1] >= position):
            return  # a walk from 0 finds it, or it has an entry already
        self._since_entry_bytes = 0
        entry = (base_offset - self.base_offset, position)
        newest_at = self._max_timestamp_offset - self.base_offset
        needs_flush = self._indexes.add(entry, (self.max_timestamp_ms, newest_at))
        self._needs_flush = needs_flush or self._needs_flush

    def _times_agree(self, file: File) -> bool:
        """Whether the time index covers the range of the offset index, and ends correctly."""
        # Time entries are written before offset entries, so after a crash the time index may be
        # longer, but not shorter. Compare with the batches that both last entries point at.
        if self._offsets.last is None:
            return self._times.last is None
        try:
            indexed = self._walk_to(file, self.base_offset + self._offsets.last[0])
            if self._times.last is None:
                return indexed.max_timestamp_ms <= 0
            timestamp_ms, relative = self._times.last
            newest = self._walk_to(file, self.base_offset + relative)
        except CorruptData:
            return False
        return indexed.max_timestamp_ms <= timestamp_ms == newest.max_timestamp_ms

    def _sound_behind(self, file: File, end: int) -> tuple[int, int] | None:
        return sound_position(
            file,
            position=self.size_bytes,
            end=end,
            offsets=range(self.next_offset, self.base_offset + OFFSETS_MAX),
        )

    def _note_damage(self, reason: str, end_position: int, next_offset: int | None) -> Damage:
        damage = Damage(
            partition=self._partition,
            path=self.path,
            position=self.size_bytes,
            end_position=end_position,
            first_offset=self.next_offset,
            next_offset=next_offset,
            reason=reason or "the file ends here",
        )
        self.damage.append(damage)
        if self._on_damage is not None:
            self._on_damage()
        return damage

    def _sound_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over position, end and first offset of the ranges between the damaged ones."""
        position, offset = 0, self.base_offset
        for damage in self.damage:
            yield position, damage.position, offset
            position, offset = damage.end_position, damage.next_offset or self.next_offset
        if position < self.size_bytes:
            yield position, self.size_bytes, offset

    def _find(self, file: File, offset: int) -> Header:
        """Find the header of the batch that contains `offset`."""
        for damage in self.damage:
            if damage.covers(offset):
                raise CorruptData(str(damage))
        found = self._found
        if found is not None and found[0] == offset and found[1].next_offset == self.next_offset:
            return found[1]
        # A hint is taken out: a reader that asks again leaves a new one, and a reader that went
        # away does not occupy an entry.
        hint = self._next_reads.pop(offset, None)
        if isinstance(hint, Header):
            return hint
        try:
            header = self._walk_to(file, offset, hint)
        except CorruptData:
            if self._has_rescanned:
                raise  # The indexes come from a scan: the log itself is damaged.
        else:
            self._found = offset, header
            return header
        self._rebuild()
        return self._find(file, offset)

    def _rebuild(self) -> None:
        """Scan the file, because an index entry is wrong or the log has damage not yet found."""
        self._has_rescanned = True
        end, next_offset = self.size_bytes, self.next_offset
        reason = self.rescan(end)
        if self.size_bytes < end:
            # The end was known to readers: bytes that the scan rejects are damage, not torn.
            self._note_damage(reason, end, next_offset)
            self.size_bytes, self.next_offset = end, next_offset

    def _remember(self, offset: int, found: Header | int) -> None:
        if len(self._next_reads) >= NEXT_READS_MAX:
            del self._next_reads[next(iter(self._next_reads))]
        self._next_reads[offset] = found

    def _walk_to(self, file: File, offset: int, hint: int | None = None) -> Header:
        """Find the header by the index, or at the position that is a hint."""
        if hint is not None:
            # Not by `suppress`: a small Fetch would pay 1 % for the block.
            try:
                return header_at(file, hint, offset, end=self.size_bytes)
            except CorruptData:
                pass  # The hint was wrong: the index knows better.
        relative, position = self._offsets.floor(offset - self.base_offset) or (0, 0)
        for header in self._walk(file, position, self.base_offset + relative):
            if offset < header.next_offset:
                return header
        raise CorruptData(
            f"{self._partition}: offset {offset} is missing in {self.path}, which ends at offset"
            f" {self.next_offset}"
        )

    def _walk(self, file: File, position: int, offset: int) -> Iterator[Header]:
        headers = Headers(file, end=self.size_bytes, chunk_bytes=self._chunk_bytes)
        try:
            yield from headers.walk(position, offset)
        except CorruptData as error:
            raise CorruptData(
                f"{self._partition}: {self.path} is damaged at position {headers.position}: {error}"
            ) from error

    def _earliest(self, file: File, timestamp_ms: int) -> int:
        """Return an offset before which every record is older than `timestamp_ms`."""
        try:
            entry = self._times.floor(timestamp_ms)
        except CorruptData:
            if not self._has_rescanned:
                self._rebuild()
            entry = None
        if entry is None:
            return self.base_offset
        offset = self.base_offset + entry[1]
        try:
            header = self._walk_to(file, offset)
        except CorruptData:
            return self.base_offset
        agrees = (header.max_timestamp_ms, header.base_offset) == (entry[0], offset)
        # If they differ, the entry is wrong: search from the segment's first record.
        return offset if agrees else self.base_offset

    def _records(self, file: File, header: Header) -> list[LogRecord]:
        try:
            batch = RecordBatch(file.read(header.size_bytes, header.position))
            batch.check_crc()
            return batch.records()
        except CorruptData as error:
            raise CorruptData(
                f"{self._partition}: {self.path} is damaged at position {header.position}: {error}"
            ) from error
