"""KeyValueStore, the port behind every table, and the keys that are written through it.

One store holds the whole state of one task: the named stores of the topology live in it side
by side, each under its own prefix, so that a single atomic write covers all of them and the
record of progress. Keys are ordered bytes, and their layout is the order in which state is
read: a window store puts the end of the window first, so that closing windows is one scan
from the beginning and expiring them one range. A key here is also the key of its changelog
record (see `changelog`). Not done here: caching and rollback (`transaction`), values' types.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from streamlog.errors import TopologyError

Change: TypeAlias = tuple[bytes, bytes | None]
"""A key and its new value; None deletes."""

STORE_NAME_BYTES_MAX = 255
"""A store's name is written before each of its keys, after one byte with its length."""

_SPAN = struct.Struct(">QQ")
_END = struct.Struct(">Q")


class Changes:
    """Changes as columns, each key once; iterated over, it gives each as a `Change`.

    A commit of many rows hands on two lists instead of a tuple for each row.
    """

    __slots__ = ("head", "row_keys", "row_values")

    def __init__(
        self,
        keys: list[bytes] | None = None,
        values: list[bytes | None] | None = None,
        head: Changes | None = None,
    ) -> None:
        """The lists are kept and not copied: they are not to be changed any more."""
        self.row_keys: list[bytes] = [] if keys is None else keys
        self.row_values: list[bytes | None] = [] if values is None else values
        self.head = head
        """The changes that these begin with, if they are others and one more."""

    @classmethod
    def of(cls, changes: Iterable[Change]) -> Changes:
        """The changes as columns, of each key the last one; columns are given back as they are."""
        if isinstance(changes, Changes):
            return changes
        found = dict(changes)
        return cls(list(found), list(found.values()))

    def __len__(self) -> int:
        return len(self.row_keys)

    def __iter__(self) -> Iterator[Change]:
        return zip(self.row_keys, self.row_values, strict=True)

    def part(self, start: int, stop: int) -> Changes:
        """Those from `start` up to but not including `stop`."""
        return Changes(self.row_keys[start:stop], self.row_values[start:stop])

    def followed_by(self, key: bytes, value: bytes | None) -> Changes:
        """These and one more."""
        return Changes([*self.row_keys, key], [*self.row_values, value], head=self)


class KeyValueStore(Protocol):
    """Port: an ordered map of bytes to bytes, the state of one task.

    Keys are compared byte by byte. There is one writer, and no reader beside it.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value, or None if there is none."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` up to but not including `high` (None: to the last), in order.

        The scan shows the store as it was when it was asked for, whatever is written meanwhile.
        """

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high` (None: to the last)."""

    def write(self, changes: Iterable[Change]) -> None:
        """Apply the changes in their order: all of them or, after a crash, none."""

    def close(self) -> None:
        """Give everything back; the store can't be used any more. Closing twice is harmless."""


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A named store of a topology; its name is the identity of its state.

    Raises:
        TopologyError: the name is empty or longer than 255 bytes.
    """

    name: str

    def __post_init__(self) -> None:
        if not 0 < len(self.name.encode()) <= STORE_NAME_BYTES_MAX:
            raise TopologyError(
                f"a store needs a name of 1 to {STORE_NAME_BYTES_MAX} bytes, not {self.name!r}"
            )

    @property
    def prefix(self) -> bytes:
        """What each key of this store begins with, and no key of another store does."""
        name = self.name.encode()
        return bytes((len(name),)) + name


class NamedStore:
    """One named store inside the store of its task: the same keys, without their prefix."""

    __slots__ = ("_end", "_prefix", "_store")

    def __init__(self, store: KeyValueStore, spec: StoreSpec) -> None:
        self._store = store
        self._prefix = spec.prefix
        self._end = prefix_end(self._prefix)

    def get(self, key: bytes) -> bytes | None:
        """The value, or None if there is none."""
        return self._store.get(self._prefix + key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self._store.put(self._prefix + key, value)

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._store.delete(self._prefix + key)

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys of this store from `low` up to but not including `high`, in order."""
        cut = len(self._prefix)
        pairs = self._store.range(self._prefix + low, self._bound(high))
        return ((key[cut:], value) for key, value in pairs)

    def delete_range(self, low: bytes = b"", high: bytes | None = None) -> None:
        """Remove the keys of this store from `low` up to but not including `high`."""
        self._store.delete_range(self._prefix + low, self._bound(high))

    def _bound(self, high: bytes | None) -> bytes | None:
        return self._end if high is None else self._prefix + high


def prefix_end(prefix: bytes) -> bytes | None:
    """The lowest key above every key that begins with `prefix`; None if there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None


def window_key(end_ms: int, start_ms: int, key: bytes) -> bytes:
    """The key of one window's row, ordered by (end, start, key).

    Both times are milliseconds since the epoch, in [0, 2^63).
    """
    return _SPAN.pack(end_ms, start_ms) + key


def split_window_key(data: bytes) -> tuple[int, int, bytes]:
    """End, start and key of a window's row, as `window_key` put them together."""
    end_ms, start_ms = _SPAN.unpack_from(data)
    return end_ms, start_ms, data[_SPAN.size :]


def window_bound(end_ms: int) -> bytes:
    """The lowest key of any window that ends at `end_ms` or later; a time below 0 counts as 0.

    `range(b"", window_bound(t + 1))` are the rows of the windows that end at `t` or before.
    """
    return _END.pack(max(end_ms, 0))
