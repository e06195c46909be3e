"""UndoLog: writes that can be taken back, for code that fails half-way through a record.

A task's transaction is all or nothing between two commits; a record that is to be skipped needs
less. Rule of the file: what a key had is looked up once per key and record, and only by who asks
for this; so a step without an error policy pays nothing. Not done here: what is kept in memory
beside the store, which has to bear that a row is again as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamlog.tables.store import Change, KeyValueStore


class UndoLog:
    """A KeyValueStore over that of the task, whose latest writes can be taken back."""

    __slots__ = ("_before", "_store")

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._before: dict[bytes, bytes | None] = {}

    def begin(self) -> None:
        """What was written until now stays."""
        self._before.clear()

    def undo(self) -> None:
        """Take back what was written since `begin`."""
        self._store.write(self._before.items())
        self._before.clear()

    def get(self, key: bytes) -> bytes | None:
        """The value, or None if there is none."""
        return self._store.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self._remember(key)
        self._store.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._remember(key)
        self._store.delete(key)

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` up to but not including `high`, in order."""
        return self._store.range(low, high)

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`."""
        for key, _ in self._store.range(low, high):
            self.delete(key)

    def write(self, changes: Iterable[Change]) -> None:
        """Apply the changes in their order."""
        for key, value in changes:
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)

    def close(self) -> None:
        """The store is the task's to close."""

    def _remember(self, key: bytes) -> None:
        if key not in self._before:
            self._before[key] = self._store.get(key)
