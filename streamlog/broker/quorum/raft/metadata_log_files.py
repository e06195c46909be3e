"""MetadataLog: the entries of the metadata log in segment files.

A new segment begins with every snapshot, so that the entries that a snapshot covers can be
removed as whole files. The positions of all entries are in memory, not their bytes: few entries
follow the last snapshot. Opening reads every batch and checks its CRC.

Rules of this module: an unsound batch after the flushed end is a write that never finished and
was never confirmed; before the flushed end it is damage. Errors are the system's `OSError`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from streamlog.broker.quorum.raft.log_entries import entry_of
from streamlog.broker.quorum.raft.raft_messages import Entry, RaftSnapshotId
from streamlog.broker.storage.disk.files import File, Files, with_reserve, write_whole
from streamlog.errors import CorruptData
from streamlog.records.batch import RecordBatch

LOG_SUFFIX = ".log"


class _EntryPosition(NamedTuple):
    """The position of one entry in its segment."""

    base_offset: int
    next_offset: int
    epoch: int
    segment: int
    """The base offset of the segment."""
    position: int
    """The first byte in the segment."""
    size_bytes: int
    is_control: bool


@dataclass(slots=True)
class _Segment:
    """An open segment file; its first `size_bytes` bytes are sound."""

    base_offset: int
    path: str
    file: File
    size_bytes: int


class MetadataLog:
    """The log in `directory`, which begins after the snapshot `start`.

    Opening changes nothing, so that the caller can examine `damage`; the caller then calls
    `discard_damaged` before it uses the log.

    Args:
        files: the file system.
        directory: the directory of the segments.
        start: the snapshot; earlier entries in the files are ignored.
        flushed_end: the offset up to which the log was synced; None if not known.
    """

    def __init__(
        self, files: Files, directory: str, *, start: RaftSnapshotId, flushed_end: int | None
    ) -> None:
        self.unsound: str | None = None
        """The position of the first unsound bytes, and why; None if all are sound."""
        self.damage: str | None = None
        """What is missing before the flushed end; None if nothing is missing."""
        self._files = files
        self._directory = directory
        self._start = start
        self._flushed_end = flushed_end
        """As of opening."""
        self._entries: list[_EntryPosition] = []
        self._size_bytes = 0
        """The bytes of all entries."""
        self._segments: list[_Segment] = []
        self._unused_segments: list[_Segment] = []
        """Segments before the start, or after unsound bytes; `discard_damaged` removes them."""
        self._dirty: list[_Segment] = []
        """Segments with bytes that are not synced."""
        self._has_new_names = False
        """Whether files were created or removed since the directory was synced."""
        self._open(flushed_end)

    @property
    def start_offset(self) -> int:
        """The offset after the snapshot that the log begins with."""
        return self._start.end_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last entry."""
        return self._entries[-1].next_offset if self._entries else self._start.end_offset

    @property
    def size_bytes(self) -> int:
        """The bytes of all entries since the snapshot."""
        return self._size_bytes

    def chain(self) -> Iterator[Entry]:
        """Iterate over the entries without their payloads, for their epochs."""
        for each in self._entries:
            yield Entry(
                base_offset=each.base_offset,
                count=each.next_offset - each.base_offset,
                epoch=each.epoch,
                payload=b"",
                is_control=each.is_control,
            )

    def read(self, offset: int, *, max_bytes: int, end_offset: int | None = None) -> list[Entry]:
        """Return whole entries from the one at `offset` on, and before `end_offset`.

        They have at most `max_bytes` bytes together; a first entry that is larger is included.
        """
        found: list[Entry] = []
        size_bytes = 0
        first = bisect_left(self._entries, offset, key=lambda each: each.base_offset)
        for each in self._entries[first:]:
            size_bytes += each.size_bytes
            is_past_end = end_offset is not None and each.next_offset > end_offset
            if is_past_end or (found and size_bytes > max_bytes):
                break
            found.append(self._entry(each))
        return found

    # ---- changes ----

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries at the end of the log; they are on disk once `sync` has returned."""
        if not self._segments:
            self._begin_segment(self.end_offset)
        segment = self._segments[-1]
        if segment not in self._dirty:
            self._dirty.append(segment)
        for entry in entries:
            write = partial(write_whole, segment.file, entry.payload, segment.size_bytes)
            with_reserve(self._files, write)
            # Only a write that succeeded is recorded: the next one overwrites a torn one.
            self._record_entry(entry, segment)
            segment.size_bytes += len(entry.payload)

    def sync(self) -> None:
        """Return when everything that was written before the call is on disk; for any thread."""
        # Taken before the sync: an append during it marks its segment dirty again.
        dirty, self._dirty = self._dirty, []
        if self._has_new_names:
            self._has_new_names = False
            self._files.sync_directory(self._directory)
        for segment in dirty:
            segment.file.sync()

    def truncate(self, end_offset: int) -> None:
        """Cut off the entries after `end_offset`, and sync."""
        while self._entries and self._entries[-1].next_offset > end_offset:
            last = self._entries.pop()
            self._size_bytes -= last.size_bytes
            while self._segments[-1].base_offset > last.segment:
                self._remove(self._segments.pop())
            self._segments[-1].size_bytes = last.position
        if self._segments:
            segment = self._segments[-1]
            segment.file.truncate(segment.size_bytes)
            segment.file.sync()
        self.sync()

    def roll(self) -> None:
        """Begin a new segment, unless the last one is empty."""
        if self._segments and self._segments[-1].size_bytes:
            self._begin_segment(self.end_offset)

    def trim(self, start: RaftSnapshotId) -> None:
        """Let the log begin after a snapshot, and remove segments that it covers entirely."""
        first = bisect_right(self._entries, start.end_offset, key=lambda each: each.next_offset)
        self._size_bytes -= sum(each.size_bytes for each in self._entries[:first])
        del self._entries[:first]
        self._start = start
        # The snapshot covers a segment if the next segment begins at or before its end.
        while len(self._segments) > 1 and self._segments[1].base_offset <= start.end_offset:
            self._remove(self._segments.pop(0))

    def restart(self, start: RaftSnapshotId) -> None:
        """Remove all entries; the log begins empty after a snapshot that is on disk."""
        self._entries.clear()
        self._size_bytes = 0
        self._start = start
        while self._segments:
            self._remove(self._segments.pop())
        self._begin_segment(start.end_offset)
        self.sync()

    def discard_damaged(self) -> None:
        """Cut off unsound bytes and everything after them, and sync the rest.

        Entries after the flushed end are written once more. After a sync that failed, Linux may
        mark pages clean that never reached the disk, and a later sync of them reports success.
        """
        while self._unused_segments:
            self._remove(self._unused_segments.pop())
        for segment in self._segments:
            segment.file.truncate(segment.size_bytes)
            unsure = [each for each in self._entries if self._may_be_torn(each, segment)]
            if unsure:
                position = unsure[0].position
                data = segment.file.read(segment.size_bytes - position, position)
                write_whole(segment.file, data, position)
            segment.file.sync()
        if not self._entries:
            self.restart(self._start)
        self.sync()

    def _may_be_torn(self, entry: _EntryPosition, segment: _Segment) -> bool:
        is_known = self._flushed_end is not None and entry.next_offset <= self._flushed_end
        return entry.segment == segment.base_offset and not is_known

    def close(self) -> None:
        """Close the files."""
        for segment in (*self._segments, *self._unused_segments):
            segment.file.close()

    # ---- opening ----

    def _open(self, flushed_end: int | None) -> None:
        bases = sorted(
            int(name.removesuffix(LOG_SUFFIX))
            for name in self._files.list(self._directory)
            if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit()
        )
        found = [self._open_segment(base_offset) for base_offset in bases]
        while len(found) > 1 and found[1].base_offset <= self._start.end_offset:
            self._unused_segments.append(found.pop(0))
        # The first segment may begin before the end of the snapshot. If it begins after the end,
        # entries are missing, and it counts as unsound.
        expected = min([*(each.base_offset for each in found[:1]), self._start.end_offset])
        for segment in found:
            if segment.base_offset != expected or self.unsound is not None:
                self.unsound = self.unsound or f"{segment.path} does not follow offset {expected}"
                self._unused_segments.append(segment)
            else:
                self._segments.append(segment)
                expected = self._walk(segment)
        if flushed_end is not None and self.end_offset < flushed_end:
            self.damage = (
                f"the metadata log in {self._directory} was on disk up to offset {flushed_end}, but"
                f" now ends at {self.end_offset}: {self.unsound or 'its last bytes are missing'}"
            )

    def _open_segment(self, base_offset: int) -> _Segment:
        path = self._path(base_offset)
        return _Segment(base_offset, path, self._files.open(path, writable=True), 0)

    def _walk(self, segment: _Segment) -> int:
        """Record the sound batches of a segment; return the offset after the last one."""
        data = segment.file.read(segment.file.size(), 0)
        next_offset = segment.base_offset
        while segment.size_bytes < len(data):
            try:
                entry = entry_of(RecordBatch(data, segment.size_bytes))
            except CorruptData as error:
                self.unsound = f"{segment.path} at byte {segment.size_bytes}: {error}"
                break
            if entry.base_offset != next_offset:
                self.unsound = (
                    f"{segment.path} continues at offset {entry.base_offset} instead of"
                    f" {next_offset}"
                )
                break
            # Entries that the snapshot covers are checked, but not used.
            if entry.next_offset > self._start.end_offset:
                self._record_entry(entry, segment)
            segment.size_bytes += len(entry.payload)
            next_offset = entry.next_offset
        return next_offset

    def _record_entry(self, entry: Entry, segment: _Segment) -> None:
        """Record the position of an entry that is at the sound end of a segment."""
        self._entries.append(
            _EntryPosition(
                entry.base_offset,
                entry.next_offset,
                entry.epoch,
                segment.base_offset,
                segment.size_bytes,
                len(entry.payload),
                entry.is_control,
            )
        )
        self._size_bytes += len(entry.payload)

    def _begin_segment(self, base_offset: int) -> None:
        path = self._path(base_offset)
        file = self._files.open(path, writable=True)
        file.truncate(0)  # A crash may have left a file of this name.
        self._segments.append(_Segment(base_offset, path, file, 0))
        self._has_new_names = True

    def _remove(self, segment: _Segment) -> None:
        segment.file.close()
        self._files.remove(segment.path)
        self._has_new_names = True

    def _entry(self, entry: _EntryPosition) -> Entry:
        segment = next(each for each in self._segments if each.base_offset == entry.segment)
        return Entry(
            base_offset=entry.base_offset,
            count=entry.next_offset - entry.base_offset,
            epoch=entry.epoch,
            payload=segment.file.read(entry.size_bytes, entry.position),
            is_control=entry.is_control,
        )

    def _path(self, base_offset: int) -> str:
        return f"{self._directory}/{base_offset:020d}{LOG_SUFFIX}"
