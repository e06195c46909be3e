"""OffsetIndex and TimeIndex: where in a segment to begin to look.

An index is a file of sorted entries of fixed size, one for every `index.interval.bytes` of
log, in Kafka's layout: 4-byte relative offset and 4-byte position; 8-byte timestamp and
4-byte relative offset. The newest entries wait in memory and are written by the hundred.
Rule of the file: an index is a hint. It is never synced before the log, whoever uses an entry
compares it with the batch that it points at, and rebuilds the index when they disagree.
An entry that is wrong and not chosen can only make a search begin too early.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import closing
from struct import Struct

from streamlog.broker.storage.files import File, Files, write_whole

PENDING_MAX = 256
"""Entries kept in memory before they are written: a reader beside the writer, or a restart,
then has at most this many intervals to walk through (1 MiB with Kafka's interval)."""

_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")
TIME_ENTRY_BYTES = _TIME_ENTRY.size

_Entry = tuple[int, int]


class SparseIndex:
    """Sorted pairs of integers in one file.

    With `in_memory` the file is read but never written: new entries stay in memory.
    """

    def __init__(self, files: Files, path: str, layout: Struct, *, in_memory: bool) -> None:
        self._files = files
        self.path = path
        self._layout = layout
        self._in_memory = in_memory
        self.entry_bytes = layout.size
        self._stored = 0
        self._pending: list[_Entry] = []
        self._cut = False
        self.last: _Entry | None = None

    def __len__(self) -> int:
        return self._stored + len(self._pending)

    @property
    def flush_due(self) -> bool:
        """Whether enough entries wait in memory to be worth a write."""
        return len(self._pending) >= PENDING_MAX and not self._in_memory

    @property
    def is_behind(self) -> bool:
        """Whether the file is not what the index is."""
        return bool(self._pending) or self._cut

    def create(self) -> None:
        """Make the file, empty.

        Raises:
            OSError: it can't be made.
        """
        self.clear()
        self.flush()

    def load(self) -> bool:
        """Read how much there is; False if the file is missing or not whole.

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
            self._cut = False
            self._stored = size_bytes // self.entry_bytes
            if self._stored:
                self.last = self._entry(file, self._stored - 1)
        return True

    def clear(self) -> None:
        """Forget every entry; the file follows with the next `flush`."""
        self._stored = 0
        self._pending = []
        self._cut = True
        self.last = None

    def add(self, entry: _Entry) -> None:
        """Add an entry, greater than those before it."""
        self._pending.append(entry)
        self.last = entry

    def floor(self, first: int) -> _Entry | None:
        """The last entry whose first number is at most `first`.

        Raises:
            OSError: the file can't be read.
        """
        if self.last is None:
            return None
        if self.last[0] <= first:
            return self.last
        if self._pending and self._pending[0][0] <= first:
            return self._pending[bisect_right(self._pending, first, key=_first) - 1]
        return self._stored_floor(first)

    def flush(self, *, durable: bool = False) -> None:
        """Write what waits in memory, and cut off what does not belong to the index.

        Raises:
            OSError: it can't be written; the entries stay in memory.
        """
        if self._in_memory:
            return
        with closing(self._files.open(self.path, writable=True)) as file:
            stored_bytes = self._stored * self.entry_bytes
            if file.size() != stored_bytes:
                file.truncate(stored_bytes)
            if self._pending:
                data = b"".join(self._layout.pack(*entry) for entry in self._pending)
                write_whole(file, data, stored_bytes)
                self._stored += len(self._pending)
                self._pending = []
            self._cut = False
            if durable:
                file.sync()

    def rename(self, path: str) -> None:
        """Give the file another name.

        Raises:
            OSError: it can't be renamed.
        """
        self._files.rename(self.path, path)
        self.path = path

    def remove(self) -> None:
        """Remove the file; fine if there is none.

        Raises:
            OSError: it is there and can't be removed.
        """
        try:
            self._files.remove(self.path)
        except FileNotFoundError:
            self.clear()

    def _stored_floor(self, first: int) -> _Entry | None:
        if not self._stored:
            return None
        found: _Entry | None = None
        with closing(self._files.open(self.path)) as file:
            low, high = 0, self._stored
            while low < high:
                middle = (low + high) // 2
                entry = self._entry(file, middle)
                if entry[0] <= first:
                    found = entry
                    low = middle + 1
                else:
                    high = middle
        return found

    def _entry(self, file: File, number: int) -> _Entry:
        data = file.read(self.entry_bytes, number * self.entry_bytes)
        if len(data) < self.entry_bytes:
            return (0, 0)  # cut off under us: agrees with no batch, so the index is rebuilt
        first, second = self._layout.unpack(data)
        return (first, second)


class OffsetIndex(SparseIndex):
    """From an offset, relative to the segment's base, to the position of its batch."""

    def __init__(self, files: Files, path: str, *, in_memory: bool) -> None:
        super().__init__(files, path, _OFFSET_ENTRY, in_memory=in_memory)


class TimeIndex(SparseIndex):
    """From the greatest timestamp so far to the relative base offset of the batch that has it."""

    def __init__(self, files: Files, path: str, *, in_memory: bool) -> None:
        super().__init__(files, path, _TIME_ENTRY, in_memory=in_memory)


def _first(entry: _Entry) -> int:
    return entry[0]
