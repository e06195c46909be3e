"""WholeStore: a named store all of whose rows are in memory as well.

What is read comes from memory, what is written goes to both; the rows are read from the store
beneath when somebody first asks. Rule of the file: the store beneath is the state, this is a copy
of it. Not done here: the user's types (`processing/processor_store`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamlog.tables.memory import MemoryStore
from streamlog.tables.store import Change, KeyValueStore, StoreSpec, prefix_end


class WholeStore:
    """A KeyValueStore for one named store of a task."""

    __slots__ = ("_memory", "_prefix", "_store")

    def __init__(self, store: KeyValueStore, spec: StoreSpec) -> None:
        self._store = store
        self._prefix = spec.prefix
        self._memory: MemoryStore | None = None

    def get(self, key: bytes) -> bytes | None:
        """The value, or None if there is none."""
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self._rows.put(key, value)
        self._store.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._rows.delete(key)
        self._store.delete(key)

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` up to but not including `high`, in order, as they are now."""
        return self._rows.range(low, high)

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`."""
        self._rows.delete_range(low, high)
        self._store.delete_range(low, high)

    def write(self, changes: Iterable[Change]) -> None:
        """Apply the changes in their order."""
        found = list(changes)
        self._rows.write(found)
        self._store.write(found)

    def close(self) -> None:
        """The store beneath is the task's to close."""

    def look_again(self) -> None:
        """The store beneath has been changed by somebody else."""
        self._memory = None

    @property
    def _rows(self) -> MemoryStore:
        if self._memory is None:
            self._memory = MemoryStore()
            self._memory.write(self._store.range(self._prefix, prefix_end(self._prefix)))
        return self._memory
