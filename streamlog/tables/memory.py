"""MemoryStore: a KeyValueStore in the memory of this process.

A dictionary with its keys in order beside it. It is what the test driver and every model
test run on, and holds to the same contract as the store on disk, closing included. Rule of
the file: the cost of a scan is that of what is read of it. Not done here: bounds (state in
memory is as large as its keys), and survival of the process: that is the changelog's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamlog.errors import UsageError
from streamlog.tables.scans import Scans
from streamlog.tables.sorted_keys import SortedKeys
from streamlog.tables.store import Change


class MemoryStore:
    """A KeyValueStore in memory."""

    __slots__ = ("_closed", "_keys", "_scans", "_values")

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys = SortedKeys()
        self._scans: Scans[bytes] = Scans()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        """The value, or None if there is none."""
        self._check_open()
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self._begin_change()
        if key not in self._values:
            self._keys.add(key)
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._begin_change()
        if self._values.pop(key, None) is not None:
            self._keys.remove(key)

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` up to but not including `high`, in order, as they are now."""
        self._check_open()
        return self._scans.begin(self._keys.range(low, high), self._values)

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`."""
        self._check_open()
        for key in list(self._keys.range(low, high)):
            self.delete(key)

    def persist(self) -> None:
        """Nothing is brought to disk: there is none."""

    def write(self, changes: Iterable[Change]) -> None:
        """Apply the changes in their order."""
        self._check_open()
        # Drawn to the end first: if the iterable fails half-way, nothing has been changed.
        for key, value in list(changes):
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)

    def close(self) -> None:
        """Forget everything."""
        self._closed = True
        self._scans.settle()
        self._values = {}
        self._keys.clear()

    def _begin_change(self) -> None:
        self._check_open()
        if self._scans.are_open:
            self._scans.settle()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the store is closed: its task has been given up")
