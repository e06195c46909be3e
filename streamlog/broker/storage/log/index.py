"""OffsetIndex and TimeIndex: where in a segment a search begins.

An index is a file of sorted entries of fixed size, one for every `index.interval.bytes` of log, in
Kafka's layout: 4-byte relative offset and 4-byte position; 8-byte timestamp and 4-byte relative
offset. The newest entries are kept in memory and written by the hundred, into preallocated space;
what is left of that, zeros, is cut off when the segment is sealed or closed. Lookups in an index
larger than a page use a mapping, which is only read (docs/decisions/004).

Rules of this module: an index is a hint. It is never synced before the log. Code that uses an entry
compares it with the batch that it points at, and rebuilds the index if they disagree. A wrong entry
that no lookup returns can only make a search begin too early.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import closing
from struct import Struct

from streamlog.broker.storage.disk.files import File, Files, Mapping, View, write_whole
from streamlog.errors import CorruptData

PENDING_MAX = 256
"""Entries kept in memory before they are written.

A reader next to the writer, or a restart, walks at most this many intervals (1 MiB with Kafka's
interval). They are packed as in the file, because a partition that is seldom written keeps them for
hours.
"""
ROOM_ENTRIES = 2048
"""Entries that the file has space for after the first write; doubled when it is used up. An index
without entries has no such space: a thousand idle partitions reserve nothing."""
READ_BYTES_MAX = 4096
"""The size in bytes up to which an index is read instead of mapped, because a mapping costs a page
and a descriptor."""

_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")
TIME_ENTRY_BYTES = _TIME_ENTRY.size

_Entry = tuple[int, int]
_NONE = (0, 0)
"""Unused preallocated space reads as zeros; no index contains such an entry."""


class SparseIndex:
    """Sorted pairs of integers in one file, of at most `bytes_max` bytes.

    With `in_memory`, the file is read but never written or mapped, because its writer may cut it:
    new entries stay in memory.
    """

    def __init__(
        self, files: Files, path: str, layout: Struct, *, bytes_max: int, in_memory: bool
    ) -> None:
        self._files = files
        self.path = path
        self._layout = layout
        self._bytes_max = bytes_max
        self._in_memory = in_memory
        self.entry_bytes = layout.size
        self._stored = 0
        self._pending = bytearray()
        self._untrimmed = False
        """Whether the file may be longer than the stored entries."""
        self._mapping: Mapping | None = None
        self._pending_max_bytes = PENDING_MAX * layout.size
        self.last: _Entry | None = None

    def __len__(self) -> int:
        return self._stored + len(self._pending) // self.entry_bytes

    @property
    def needs_flush(self) -> bool:
        """Whether enough entries are in memory to be worth a write."""
        return len(self._pending) >= self._pending_max_bytes and not self._in_memory

    @property
    def is_behind(self) -> bool:
        """Whether the file differs from the index."""
        return bool(self._pending) or self._untrimmed

    def create(self) -> None:
        """Create the file, empty.

        Raises:
            OSError: it can't be created.
        """
        self.clear()
        self.trim()

    def exists(self) -> bool:
        """Whether there is a file.

        Raises:
            OSError: it can't be read.
        """
        try:
            self._files.open(self.path).close()
        except FileNotFoundError:
            return False
        return True

    def begin(self) -> None:
        """Begin without a file; the first `flush` or `trim` of entries creates it."""
        self.clear()
        self._untrimmed = False

    def load(self) -> bool:
        """Read the number of entries; False if the file is missing or cut in an entry.

        Raises:
            OSError: it can't be read.
        """
        self.clear()
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            return False
        with closing(file):
            size_bytes = file.size()
            if size_bytes % self.entry_bytes:
                return False
            count = size_bytes // self.entry_bytes
            self._untrimmed = count > 0 and self._entry(file, count - 1) == _NONE
            if self._untrimmed:
                # Its writer was killed. The preallocated zeros follow the entries, so "is it zero"
                # is sorted, and a binary search finds the last entry.
                count = bisect_left(range(count), 1, key=lambda n: self._entry(file, n) == _NONE)
            self._stored = count
            if count:
                self.last = self._entry(file, count - 1)
        return True

    def clear(self) -> None:
        """Forget all entries; `flush` and `trim` change the file."""
        self._stored = 0
        self._pending = bytearray()
        self._untrimmed = True
        self.last = None

    def add(self, entry: _Entry) -> bool:
        """Add an entry, greater than all others; returns `needs_flush`."""
        self._pending += self._layout.pack(*entry)
        self.last = entry
        return self.needs_flush

    def floor(self, first: int) -> _Entry | None:
        """Return the last entry whose first number is at most `first`.

        Raises:
            CorruptData: the file was cut, or is gone.
            OSError: it can't be read.
        """
        if self.last is None:
            return None
        if self.last[0] <= first:
            return self.last
        pending = self._floor_in(self._pending, len(self._pending), first)
        if pending is not None or not self._stored:
            return pending
        return self._read_floor(first) if self._in_memory else self._view_floor(first)

    def newest_floor(self, first: int) -> _Entry | None:
        """Return what `floor` returns if that entry is in memory; otherwise None, without I/O."""
        if self.last is not None and self.last[0] <= first:
            return self.last
        return self._floor_in(self._pending, len(self._pending), first)

    @property
    def stored_entries(self) -> int:
        """The entries that are in the file."""
        return self._stored

    def flush(self) -> None:
        """Write the entries that are in memory, and preallocate space for more.

        Raises:
            OSError: it can't be written; the entries stay in memory.
        """
        if not self._in_memory:
            with closing(self._files.open(self.path, writable=True)) as file:
                self._write_pending(file, make_room=True)

    def trim(self, *, durable: bool = False) -> None:
        """Write the entries that are in memory, and cut the file to the index.

        Raises:
            OSError: it can't be written; the entries stay in memory.
        """
        if self._in_memory:
            return
        with closing(self._files.open(self.path, writable=True)) as file:
            self._write_pending(file, make_room=False)
            stored_bytes = self._stored * self.entry_bytes
            if file.size() != stored_bytes:
                # Unmap first: touching a mapped page that is cut off raises SIGBUS and kills.
                self.unmap()
                file.truncate(stored_bytes)
            self._untrimmed = False
            if durable:
                file.sync()

    def rename(self, path: str) -> None:
        """Rename the file.

        Raises:
            OSError: it can't be renamed.
        """
        self._files.rename(self.path, path)
        self.path = path

    def unmap(self) -> None:
        """Close the mapping; the next lookup makes another."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None

    def remove(self) -> None:
        """Remove the file, if it exists.

        Raises:
            OSError: it exists and can't be removed.
        """
        self.unmap()
        try:
            self._files.remove(self.path)
        except FileNotFoundError:
            self.clear()

    def _write_pending(self, file: File, *, make_room: bool) -> None:
        size_bytes = file.size()
        if size_bytes < self._stored * self.entry_bytes:
            # Another program has cut the file. The entries in memory are still usable: a walk from
            # the segment's start finds the batches before them.
            self._stored = 0
        if not self._pending:
            return
        data = bytes(self._pending)
        begin = self._stored * self.entry_bytes
        end = begin + len(data)
        if make_room and end > size_bytes:
            file.truncate(self._room_bytes(end))
            self._untrimmed = True
        # A rebuild that produces the same bytes leaves the file alone.
        if file.read(len(data), begin) != data:
            write_whole(file, data, begin)
        self._stored += len(data) // self.entry_bytes
        self._pending = bytearray()

    def _room_bytes(self, end: int) -> int:
        room = ROOM_ENTRIES * self.entry_bytes
        while room < end:
            room *= 2
        return max(end, min(room, self._bytes_max - self._bytes_max % self.entry_bytes))

    def _view_floor(self, first: int) -> _Entry | None:
        end = self._stored * self.entry_bytes
        view = self._read(end) if end <= READ_BYTES_MAX else self._map(end)
        return self._floor_in(view, end, first)

    def _floor_in(self, view: View | bytes | bytearray, end: int, first: int) -> _Entry | None:
        unpack, size = self._layout.unpack_from, self.entry_bytes
        at = bisect_right(range(end // size), first, key=lambda n: unpack(view, n * size)[0])
        if not at:
            return None
        first, second = unpack(view, (at - 1) * size)
        return (first, second)

    def _map(self, end: int) -> View | bytes:
        mapping = self._mapping
        if mapping is None or not mapping.reaches(end):
            self.unmap()
            try:
                self._mapping = mapping = self._files.map(self.path)
            except FileNotFoundError as error:
                raise CorruptData(f"{self.path} is gone") from error
            except OSError:
                return self._read(end)  # The file system can't map files.
            if not mapping.reaches(end):
                raise CorruptData(f"{self.path} was cut off: {end} bytes of it were in use")
        return mapping.view()

    def _read(self, end: int) -> bytes:
        try:
            file = self._files.open(self.path)
        except FileNotFoundError as error:
            raise CorruptData(f"{self.path} is gone") from error
        with closing(file):
            data = file.read(end, 0)
        if len(data) < end:
            raise CorruptData(f"{self.path} was cut off: {end} bytes of it were in use")
        return data

    def _read_floor(self, first: int) -> _Entry | None:
        with closing(self._files.open(self.path)) as file:
            at = bisect_right(range(self._stored), first, key=lambda n: self._entry(file, n)[0])
            return self._entry(file, at - 1) if at else None

    def _entry(self, file: File, number: int) -> _Entry:
        data = file.read(self.entry_bytes, number * self.entry_bytes)
        if len(data) < self.entry_bytes:
            return _NONE  # Cut off by its writer meanwhile.
        first, second = self._layout.unpack(data)
        return (first, second)


def floor_in_file(file: File, entries: int | None, relative: int) -> _Entry:
    """Return the last entry of an offset index that is not above `relative`, or the log's begin.

    For threads other than that of the log: it uses nothing but the open file. `entries` is the
    number of entries in the file; None stands for as many as fit into a file that is complete.

    Raises:
        OSError: it can't be read.
    """
    size = _OFFSET_ENTRY.size
    low, high = 0, file.size() // size if entries is None else entries
    found = _NONE
    while low < high:
        middle = (low + high) // 2
        data = file.read(size, middle * size)
        entry = _OFFSET_ENTRY.unpack(data) if len(data) == size else _NONE
        # Zeros are unused space behind the entries.
        if entry != _NONE and entry[0] <= relative:
            found, low = (entry[0], entry[1]), middle + 1
        else:
            high = middle
    return found


class OffsetIndex(SparseIndex):
    """Maps an offset, relative to the segment's base, to the position of its batch."""

    def __init__(self, files: Files, path: str, *, bytes_max: int, in_memory: bool) -> None:
        super().__init__(files, path, _OFFSET_ENTRY, bytes_max=bytes_max, in_memory=in_memory)


class TimeIndex(SparseIndex):
    """Maps the greatest timestamp so far to the relative base offset of the batch that has it."""

    def __init__(self, files: Files, path: str, *, bytes_max: int, in_memory: bool) -> None:
        super().__init__(files, path, _TIME_ENTRY, bytes_max=bytes_max, in_memory=in_memory)


class Indexes:
    """Both indexes of a segment. Every method may raise OSError."""

    def __init__(
        self, files: Files, offsets_path: str, times_path: str, *, bytes_max: int, in_memory: bool
    ) -> None:
        self.offsets = OffsetIndex(files, offsets_path, bytes_max=bytes_max, in_memory=in_memory)
        self.times = TimeIndex(files, times_path, bytes_max=bytes_max, in_memory=in_memory)

    @property
    def paths(self) -> list[str]:
        """The paths of the files."""
        return [self.offsets.path, self.times.path]

    @property
    def are_behind(self) -> bool:
        """Whether the files lack entries or have preallocated space."""
        return self.offsets.is_behind or self.times.is_behind

    def create(self) -> None:
        """Create the files, empty."""
        self.offsets.create()
        self.times.create()

    def exist(self) -> bool:
        """Whether one of the files exists."""
        return self.offsets.exists() or self.times.exists()

    def begin(self) -> None:
        """Begin without files."""
        self.offsets.begin()
        self.times.begin()

    def load(self) -> bool:
        """Read the number of entries; False if a file is missing or cut in an entry."""
        return self.times.load() and self.offsets.load()

    def clear(self) -> None:
        """Forget all entries; `flush` and `trim` change the files."""
        self.offsets.clear()
        self.times.clear()

    def add(self, entry: _Entry, newest: _Entry) -> bool:
        """Add the position of a batch, and the greatest timestamp so far unless it has an entry.

        Returns whether enough entries are in memory to be worth a `flush`.
        """
        needs_flush = self.offsets.add(entry)
        known = self.times.last
        # A first batch of timestamp 0 gets no entry, which would read as preallocated space; a
        # search without an entry begins there anyway.
        if newest[0] > (-1 if known is None else known[0]) and newest != _NONE:
            needs_flush = self.times.add(newest) or needs_flush
        return needs_flush

    def flush(self) -> None:
        """Write the entries that are in memory, and preallocate space for more."""
        # Times first: an offset entry promises that the time index covers its batch (see
        # `Segment._times_agree`).
        self.times.flush()
        self.offsets.flush()

    def trim(self) -> None:
        """Write the entries that are in memory, and cut off preallocated space."""
        for index in (self.times, self.offsets):
            if index.is_behind:
                index.trim()

    def keep(self) -> None:
        """Sync the indexes to disk."""
        self.times.trim(durable=True)
        self.offsets.trim(durable=True)

    def unmap(self) -> None:
        """Close the mappings."""
        self.offsets.unmap()
        self.times.unmap()

    def rename(self, offsets_path: str, times_path: str) -> None:
        """Rename the files."""
        self.offsets.rename(offsets_path)
        self.times.rename(times_path)

    def remove(self) -> None:
        """Remove the files, if they exist."""
        self.offsets.remove()
        self.times.remove()
