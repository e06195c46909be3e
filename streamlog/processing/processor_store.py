"""ProcessorStore: one store of a processor, with the user's types, inside the task's store.

Every write goes straight into the task's transaction, as bytes: what was read from here can be
changed by the user's code without reaching the state. Rule of the file: a value of None does
not exist, it is a missing key. Not done here: commits and the changelog (`tables/transaction`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from streamlog.errors import UsageError
from streamlog.tables.expiring_store import ExpiringStore
from streamlog.tables.store import KeyValueStore, NamedStore
from streamlog.topology import ExpiringProcessorStore, ProcessorStore


class BoundStore:
    """A store under the name of its attribute."""

    __slots__ = ("_is_closed", "_key", "_name", "_named", "_ordered", "_store", "_value")

    _store: NamedStore | ExpiringStore
    """What is read, and deleted from."""

    def __init__(self, declared: ProcessorStore, store: KeyValueStore) -> None:
        self._name = declared.store.name
        self._store = self._named = NamedStore(store, declared.store)
        self._key = declared.key
        self._value = declared.value
        self._ordered = declared.is_ordered
        self._is_closed = False

    def get(self, key: object) -> Any:  # noqa: ANN401 - the type that the user declared
        """The value, or None if there is none."""
        data = self._store.get(self._raw(key))
        return None if data is None else self._value.loads(data)

    def put(self, key: object, value: object) -> None:
        """Set a value."""
        if value is None:
            raise UsageError(f"store {self._name!r} can't hold None: use delete({key!r})")
        self._check_open()
        self._put(self._raw(key), self._value.dumps(value))

    def delete(self, key: object) -> None:
        """Remove a key, if it is there."""
        self._check_open()
        self._store.delete(self._raw(key))

    def range(
        self, lo: object = None, hi: object = None, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Keys from `lo` up to but not including `hi`, in order."""
        if not self._ordered and not (lo is None and hi is None):
            raise UsageError(
                f"keys of store {self._name!r} have no order that is known here, so a range can't "
                "have bounds: declare them as str, bytes, int, float or datetime"
            )
        low = b"" if lo is None else self._raw(lo)
        high = None if hi is None else self._raw(hi)
        # Backwards there is no scan: the range is read first.
        pairs = self._store.range(low, high)
        found = reversed([*pairs]) if reverse else pairs
        return ((self._key.loads(key), self._value.loads(data)) for key, data in found)

    def close(self) -> None:
        """Refuse writes from here on: nobody would commit them."""
        self._is_closed = True

    def _put(self, key: bytes, value: bytes) -> None:
        self._named.put(key, value)

    def _raw(self, key: object) -> bytes:
        if key is None:
            raise UsageError(f"None is no key for store {self._name!r}")
        return self._key.dumps(key)

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError(
                f"store {self._name!r} can't be written in close(): the last commit has been"
            )


class ExpiringBoundStore(BoundStore):
    """One whose rows are over a time after the last record that wrote them, in event time."""

    __slots__ = ("_expiring", "_written_ms")

    def __init__(
        self,
        declared: ExpiringProcessorStore,
        store: KeyValueStore,
        written_ms: Callable[[], int],
    ) -> None:
        """`written_ms` tells the time of what is in hand."""
        super().__init__(declared, store)
        self._store = self._expiring = ExpiringStore(self._named, ttl_ms=declared.ttl_ms)
        self._written_ms = written_ms

    def advance(self, stream_time_ms: int) -> None:
        """Stream time has come so far: rows that are over by it are there no more."""
        self._expiring.advance(stream_time_ms)

    def _put(self, key: bytes, value: bytes) -> None:
        self._expiring.put(key, value, self._written_ms())
