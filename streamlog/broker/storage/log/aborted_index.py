"""AbortedIndex: the aborted transactions whose markers are in a segment, in a file next to its log.

With every Fetch response, a reader of committed records gets the list of aborted transactions, so
that it can skip their records; the list comes from the `.txnindex`. Entries have Kafka's layout:
version, producer id, first offset, offset of the marker, and the last stable offset after it. They
are in order of their markers. The file exists only if there are entries.

Rules of this module: unlike other indexes, this one is not a hint. If it is unsound, it is rebuilt
from the log before a read is answered, and it is synced with its sealed segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from struct import Struct

from streamlog.broker.storage.disk.files import (
    Files,
    parent_of,
    read_file,
    replace_file,
    write_whole,
)
from streamlog.broker.storage.log.producer_states import EndedTransaction

ABORTED_SUFFIX = ".txnindex"
PENDING_MAX = 100
"""Entries kept in memory before they are written; after a crash the log contains them."""

_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_VERSION = 0


class AbortedIndex:
    """The entries of one file. With `in_memory`, the file is read but never written."""

    def __init__(self, files: Files, path: str, *, in_memory: bool) -> None:
        self.path = path
        self.is_distrusted = False
        """Whether the file has to be rebuilt from the log."""
        self.is_empty = False
        """Whether the entries are known, and there are none: each Fetch asks all segments."""
        self._files = files
        self._in_memory = in_memory
        self._data: bytearray | None = None
        self._stored_bytes = 0
        self._is_new = False

    def __len__(self) -> int:
        return len(self._data or b"") // ENTRY_BYTES

    def __iter__(self) -> Iterator[EndedTransaction]:
        return (self._entry(number) for number in range(len(self)))

    @property
    def is_known(self) -> bool:
        """Whether the entries are known; if not, call `load` or `rebuild`."""
        return self._data is not None

    @property
    def is_behind(self) -> bool:
        """Whether the file differs from the index."""
        return self._data is not None and (
            self.is_distrusted or self._stored_bytes < len(self._data)
        )

    @property
    def needs_flush(self) -> bool:
        """Whether enough entries are in memory to be worth a write."""
        waiting_bytes = len(self._data or b"") - self._stored_bytes
        return waiting_bytes >= PENDING_MAX * ENTRY_BYTES and not self._in_memory

    def load(self, base_offset: int) -> bool:
        """Read the entries of the segment that begins at `base_offset`; False if they are unsound.

        Raises:
            OSError: the file can't be read.
        """
        if self.is_distrusted:
            return False
        try:
            data = read_file(self._files, self.path)
        except FileNotFoundError:
            data = b""
        if not _is_sound(data, base_offset):
            self.distrust()
            return False
        self._data, self._stored_bytes = bytearray(data), len(data)
        self.is_empty = not data
        return True

    def restore(self, base_offset: int, entries: int) -> bool:
        """Load the index, and check that it has the number of entries of the clean shutdown.

        Raises:
            OSError: the file can't be read.
        """
        # Without entries there was no file to read; a file that is there now is ignored until the
        # segment is loaded.
        if not entries or (self.load(base_offset) and len(self) == entries):
            return True
        self.distrust()
        return False

    def distrust(self) -> None:
        """Forget the entries, and rebuild the file from the log before it is used again."""
        self._data, self._stored_bytes, self.is_distrusted = None, 0, True
        self.is_empty = False

    def rebuild(self, entries: Iterable[EndedTransaction]) -> None:
        """Replace the entries; `flush` replaces the file."""
        self._data, self._stored_bytes, self.is_distrusted = bytearray(), 0, True
        self.is_empty = True
        self.extend(entries)

    def add(self, entry: EndedTransaction) -> None:
        """Add an entry; its marker has to be after the markers of all other entries."""
        if self._data is None:
            self._data = bytearray()
        self._data += _ENTRY.pack(_VERSION, *entry[:4])
        self.is_empty = False

    def extend(self, entries: Iterable[EndedTransaction]) -> None:
        """Add entries, which are in order of their markers."""
        for entry in entries:
            self.add(entry)

    def overlapping(self, offset: int, end_offset: int) -> tuple[list[EndedTransaction], bool]:
        """Return the entries with records from `offset` to before `end_offset`.

        The second value is whether the list is complete; if not, the next segment may have more.
        """
        found: list[EndedTransaction] = []
        for number in range(self._first_after(offset), len(self)):
            entry = self._entry(number)
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                # At this marker every transaction that began before `end_offset` was decided, so no
                # later marker can concern the range.
                return found, True
        return found, False

    def flush(self, *, durable: bool = False) -> None:
        """Write the entries in memory, and cut off what does not belong to the index.

        Raises:
            OSError: it can't be written; the entries stay in memory.
        """
        if self._in_memory or self._data is None:
            return
        if not self._data:
            if self.is_distrusted:
                self.remove()
            return
        if self.is_distrusted:
            # As a whole: a part of it would look like a sound index with fewer entries.
            replace_file(self._files, self.path, bytes(self._data))
            self._stored_bytes, self.is_distrusted = len(self._data), False
            return
        self._is_new = self._is_new or self._stored_bytes == 0
        with closing(self._files.open(self.path, writable=True)) as file:
            if file.size() != self._stored_bytes:
                file.truncate(self._stored_bytes)
            if self._stored_bytes < len(self._data):
                write_whole(file, bytes(self._data[self._stored_bytes :]), self._stored_bytes)
            self._stored_bytes = len(self._data)
            if durable:
                file.sync()
        if durable and self._is_new:
            # A new file's name is durable only after a sync of the directory.
            self._files.sync_directory(parent_of(self.path))
            self._is_new = False

    def seal(self) -> None:
        """Sync the file; it is empty if there are no entries.

        Raises:
            OSError: the disk refused.
        """
        with closing(self._files.open(self.path, writable=True)) as file:
            file.truncate(0)
            write_whole(file, bytes(self._data or b""), 0)
            file.sync()
        self._stored_bytes, self.is_distrusted = len(self._data or b""), False

    def rename(self, path: str) -> None:
        """Rename the file.

        Raises:
            OSError: it can't be renamed.
        """
        self._files.rename(self.path, path)
        self.path = path

    def remove(self) -> None:
        """Remove the file, if it exists.

        Raises:
            OSError: the file exists and can't be removed.
        """
        with suppress(FileNotFoundError):
            self._files.remove(self.path)
        self._data, self._stored_bytes, self.is_distrusted = bytearray(), 0, False
        self.is_empty = True

    def _first_after(self, offset: int) -> int:
        """Return the number of the first entry whose marker is at or after `offset`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle).last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _entry(self, number: int) -> EndedTransaction:
        return _decode(self._data or b"", number * ENTRY_BYTES)


def decode_entries(data: bytes) -> list[EndedTransaction] | None:
    """Decode the entries of an index file; None if they are unsound."""
    if len(data) % ENTRY_BYTES or not _is_sound(data, 0):
        return None
    return [_decode(data, position) for position in range(0, len(data), ENTRY_BYTES)]


def _decode(data: bytes | bytearray, position: int) -> EndedTransaction:
    _, producer_id, first, last, stable = _ENTRY.unpack_from(data, position)
    return EndedTransaction(producer_id, first, last, stable, aborted=True)


def _is_sound(data: bytes | bytearray, base_offset: int) -> bool:
    if len(data) % ENTRY_BYTES:
        return False
    # Markers ascend, and each is after its transaction's first record: a torn or overwritten file
    # rarely satisfies both.
    reached = base_offset - 1
    for position in range(0, len(data), ENTRY_BYTES):
        version, _, first, last, stable = _ENTRY.unpack_from(data, position)
        if version != _VERSION or not reached < last or not 0 <= first < last:
            return False
        if not 0 <= stable <= last + 1:
            return False
        reached = last
    return True
