"""MetadataLog: the entries of the metadata log in files, found again by their offsets.

One segment at a time is written; a new one begins with every snapshot, so that what a snapshot
stands for can be removed by whole files. All that is in the log is on the heap by place, not by
content: since the last snapshot there is little. Opening walks every batch with its CRC. What
is unsound behind the flushed end is a write that was never finished; before it, it is damage.
Errors are the system's `OSError`.
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


class _Place(NamedTuple):
    """Where an entry stands."""

    base_offset: int
    next_offset: int
    epoch: int
    segment: int
    position: int
    size_bytes: int
    is_control: bool


@dataclass(slots=True)
class _Segment:
    """An open file."""

    base_offset: int
    path: str
    file: File
    size_bytes: int


class MetadataLog:
    """The log in `directory`, which begins behind `start`.

    `flushed_end` is how far it was on disk when that was last known, None if that is not known.
    Files may hold what is before `start`; that is left out. Nothing is changed by opening: before
    the log is used `discard_damaged` is called, by whoever has judged the damage.
    """

    def __init__(
        self, files: Files, directory: str, *, start: RaftSnapshotId, flushed_end: int | None
    ) -> None:
        self.unsound: str | None = None
        """Where the first bytes are that are no entry; None if there are none."""
        self.damage: str | None = None
        """What is missing before the flushed end; None if nothing is."""
        self._files = files
        self._directory = directory
        self._start = start
        self._flushed_end = flushed_end
        """At opening."""
        self._places: list[_Place] = []
        self._size_bytes = 0
        """Of all places."""
        self._segments: list[_Segment] = []
        self._useless: list[_Segment] = []
        """What stands before the start, or behind something unsound."""
        self._dirty: list[_Segment] = []
        self._has_new_names = False
        self._open(flushed_end)

    @property
    def start_offset(self) -> int:
        """Where it begins."""
        return self._start.end_offset

    @property
    def end_offset(self) -> int:
        """Where it ends."""
        return self._places[-1].next_offset if self._places else self._start.end_offset

    @property
    def size_bytes(self) -> int:
        """Of what is in it."""
        return self._size_bytes

    def chain(self) -> Iterator[Entry]:
        """Its entries without their bytes: which epochs it is made of."""
        for place in self._places:
            yield Entry(
                base_offset=place.base_offset,
                count=place.next_offset - place.base_offset,
                epoch=place.epoch,
                payload=b"",
                is_control=place.is_control,
            )

    def read(self, offset: int, *, max_bytes: int, end_offset: int | None = None) -> list[Entry]:
        """Whole entries from the one at `offset` on: at least one, if there is one."""
        found: list[Entry] = []
        size_bytes = 0
        first = bisect_left(self._places, offset, key=lambda place: place.base_offset)
        for place in self._places[first:]:
            size_bytes += place.size_bytes
            is_over = end_offset is not None and place.next_offset > end_offset
            if is_over or (found and size_bytes > max_bytes):
                break
            found.append(self._entry(place))
        return found

    # ---- changes ----

    def append(self, entries: Iterable[Entry]) -> None:
        """Write entries at the end; they are on disk once `sync` has returned."""
        if not self._segments:
            self._begin_segment(self.end_offset)
        segment = self._segments[-1]
        if segment not in self._dirty:
            self._dirty.append(segment)
        for entry in entries:
            write = partial(write_whole, segment.file, entry.payload, segment.size_bytes)
            with_reserve(self._files, write)
            self._take_in(entry, segment)
            segment.size_bytes += len(entry.payload)

    def sync(self) -> None:
        """Return when all that was written before the call is on disk; for any thread."""
        dirty, self._dirty = self._dirty, []
        if self._has_new_names:
            self._has_new_names = False
            self._files.sync_directory(self._directory)
        for segment in dirty:
            segment.file.sync()

    def truncate(self, end_offset: int) -> None:
        """Cut off what is behind `end_offset`, durably."""
        while self._places and self._places[-1].next_offset > end_offset:
            place = self._places.pop()
            self._size_bytes -= place.size_bytes
            while self._segments[-1].base_offset > place.segment:
                self._remove(self._segments.pop())
            self._segments[-1].size_bytes = place.position
        if self._segments:
            segment = self._segments[-1]
            segment.file.truncate(segment.size_bytes)
            segment.file.sync()
        self.sync()

    def roll(self) -> None:
        """Go on in a new file, unless there is nothing in the last one."""
        if self._segments and self._segments[-1].size_bytes:
            self._begin_segment(self.end_offset)

    def trim(self, start: RaftSnapshotId) -> None:
        """Begin behind a snapshot that is on disk: remove the files that have nothing else."""
        first = bisect_right(self._places, start.end_offset, key=lambda place: place.next_offset)
        self._size_bytes -= sum(place.size_bytes for place in self._places[:first])
        del self._places[:first]
        self._start = start
        while len(self._segments) > 1 and self._segments[1].base_offset <= start.end_offset:
            self._remove(self._segments.pop(0))

    def restart(self, start: RaftSnapshotId) -> None:
        """Begin anew behind a snapshot that is on disk."""
        self._places.clear()
        self._size_bytes = 0
        self._start = start
        while self._segments:
            self._remove(self._segments.pop())
        self._begin_segment(start.end_offset)
        self.sync()

    def discard_damaged(self) -> None:
        """Cut off what is unsound, and all behind it, durably; the rest is on disk, too.

        What was not known to be on disk is written once more: after a sync that has failed, a
        system may take pages for clean that never got there, and a later sync says nothing.
        """
        while self._useless:
            self._remove(self._useless.pop())
        for segment in self._segments:
            segment.file.truncate(segment.size_bytes)
            unsure = [each for each in self._places if self._may_be_torn(each, segment)]
            if unsure:
                position = unsure[0].position
                data = segment.file.read(segment.size_bytes - position, position)
                write_whole(segment.file, data, position)
            segment.file.sync()
        if not self._places:
            self.restart(self._start)
        self.sync()

    def _may_be_torn(self, place: _Place, segment: _Segment) -> bool:
        is_known = self._flushed_end is not None and place.next_offset <= self._flushed_end
        return place.segment == segment.base_offset and not is_known

    def close(self) -> None:
        """Give the files back."""
        for segment in (*self._segments, *self._useless):
            segment.file.close()

    # ---- opening ----

    def _open(self, flushed_end: int | None) -> None:
        bases = sorted(
            int(name.removesuffix(LOG_SUFFIX))
            for name in self._files.list(self._directory)
            if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit()
        )
        found = [self._opened(base_offset) for base_offset in bases]
        while len(found) > 1 and found[1].base_offset <= self._start.end_offset:
            self._useless.append(found.pop(0))
        expected = min([*(each.base_offset for each in found[:1]), self._start.end_offset])
        for segment in found:
            if segment.base_offset != expected or self.unsound is not None:
                self.unsound = self.unsound or f"{segment.path} does not follow offset {expected}"
                self._useless.append(segment)
            else:
                self._segments.append(segment)
                expected = self._walk(segment)
        if flushed_end is not None and self.end_offset < flushed_end:
            self.damage = (
                f"the metadata log in {self._directory} was on disk up to offset {flushed_end}, and"
                f" ends at {self.end_offset}: {self.unsound or 'its last bytes are missing'}"
            )

    def _opened(self, base_offset: int) -> _Segment:
        path = self._path(base_offset)
        return _Segment(base_offset, path, self._files.open(path, writable=True), 0)

    def _walk(self, segment: _Segment) -> int:
        """Take note of the sound batches of a segment; the offset behind them."""
        data = segment.file.read(segment.file.size(), 0)
        next_offset = segment.base_offset
        while segment.size_bytes < len(data):
            try:
                entry = entry_of(RecordBatch(data, segment.size_bytes))
            except CorruptData as error:
                self.unsound = f"{segment.path} at byte {segment.size_bytes}: {error}"
                break
            if entry.base_offset != next_offset:
                self.unsound = f"{segment.path} goes from {next_offset} to {entry.base_offset}"
                break
            if entry.next_offset > self._start.end_offset:
                self._take_in(entry, segment)
            segment.size_bytes += len(entry.payload)
            next_offset = entry.next_offset
        return next_offset

    def _take_in(self, entry: Entry, segment: _Segment) -> None:
        """Take note of an entry that stands at the end of a segment."""
        self._places.append(
            _Place(
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
        file.truncate(0)
        self._segments.append(_Segment(base_offset, path, file, 0))
        self._has_new_names = True

    def _remove(self, segment: _Segment) -> None:
        segment.file.close()
        self._files.remove(segment.path)
        self._has_new_names = True

    def _entry(self, place: _Place) -> Entry:
        segment = next(each for each in self._segments if each.base_offset == place.segment)
        return Entry(
            base_offset=place.base_offset,
            count=place.next_offset - place.base_offset,
            epoch=place.epoch,
            payload=segment.file.read(place.size_bytes, place.position),
            is_control=place.is_control,
        )

    def _path(self, base_offset: int) -> str:
        return f"{self._directory}/{base_offset:020d}{LOG_SUFFIX}"
