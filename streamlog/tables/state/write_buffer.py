"""WriteBuffer: the last change of each key, in columns, until a store takes them.

A task writes the same rows with every commit, in equal order and with the very same objects as
keys. So the index of a change is one of the next few after the index of the change before it, and
is found by comparing object identity; a look-up in a dictionary of a hundred thousand keys would
wait for memory each time. The rule of the file: it may be compiled; one thread writes, and what
another one copies (`columns`) is the state before or after a write. Not done here: counting bytes,
and when changes go to the store (`store_transaction`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from streamlog.records import buffer_writes
from streamlog.tables.folds import prefetch
from streamlog.tables.state import key_sort

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["WriteBuffer"]

_AHEAD = prefetch.AHEAD
_FAR = buffer_writes.AHEAD
T = TypeVar("T")
"""The value that stands for a missing key."""

Read: TypeAlias = "Callable[[list[bytes]], list[bytes | None]]"
"""Returns the value of each key; None for one that has none."""
_Columns: TypeAlias = "tuple[list[bytes], list[bytes | None], dict[bytes, int]]"


class WriteBuffer:
    """Keys and their values; None is a key to remove."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        # One object, because another thread may read it while it is replaced.
        self._columns: _Columns = ([], [], {})
        """Keys, values, and the index of each key."""

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, key: bytes) -> bytes | None:
        """Return the value of an existing key.

        Raises:
            KeyError: the key is not in the buffer.
        """
        _, values, indexes = self._columns
        return values[indexes[key]]

    def get(self, key: bytes, default: T) -> bytes | T | None:
        """Return the value, or `default` for a missing key; for any thread."""
        _, values, indexes = self._columns
        # The writer adds the index of a new key before its value: another thread may see the
        # index alone, and takes the key as missing.
        index = indexes.get(key)
        return default if index is None or index >= len(values) else values[index]

    def read_through(self, keys: Sequence[bytes], read: Read) -> list[bytes | None]:
        """Return the value of each key; for the writer's thread.

        `read` returns the values of the keys that the buffer does not have.

        Raises:
            ValueError: `read` returned another number of values.
        """
        _, values, indexes = self._columns
        found: list[bytes | None] = []
        gaps: list[int] = []
        missing: list[bytes] = []
        wanted = keys if type(keys) is list else list(keys)
        for at in range(len(wanted)):
            if at % _AHEAD == 0:
                prefetch.warm_slots(indexes, wanted, at)
            index = indexes.get(wanted[at])
            if index is None:
                gaps.append(at)
                missing.append(wanted[at])
                found.append(None)
            else:
                found.append(values[index])
        others = read(missing) if missing else []
        if len(others) != len(missing):
            raise ValueError(f"{len(others)} values of {len(missing)} keys")
        for at in range(len(gaps)):
            found[gaps[at]] = others[at]
        return found

    def keys_from(self, start: int) -> Sequence[bytes]:
        """Return the keys from index `start` on, in the order in which they came."""
        return self._columns[0][start:]

    def columns(self) -> tuple[list[bytes], list[bytes | None]]:
        """Return new lists of all keys, in the order in which they came, and their values.

        For any thread; a key that is added meanwhile may be missing.
        """
        own_keys, own_values, _ = self._columns
        keys, values = own_keys[:], own_values[:]
        # The writer may append between the two copies: only pairs that are complete count.
        count = min(len(keys), len(values))
        return keys[:count], values[:count]

    def in_order(self) -> tuple[list[bytes], list[bytes | None]]:
        """Return new lists of all keys and their values, sorted by key.

        Raises:
            TypeError: a key is not bytes.
        """
        own_keys, own_values, _ = self._columns
        keys, values = own_keys[:], own_values[:]
        key_sort.sort_by_key(keys, values)
        return keys, values

    def put_all(self, keys: list[bytes], values: list[bytes | None], start: int, stop: int) -> None:
        """Set the values of the keys from index `start` up to but not including `stop`.

        Raises:
            IndexError: there are fewer keys or values.
        """
        if start < 0 or stop > len(keys) or stop > len(values):
            raise IndexError(f"no entries {start} to {stop} of {len(keys)} and {len(values)}")
        own_keys, own_values, indexes = self._columns
        next_index = 0
        is_cold = True
        for at in range(start, stop):
            if (at - start) % _FAR == 0:
                buffer_writes.bring_near(values, at + _FAR)
                buffer_writes.bring_near(own_values, next_index + _FAR)
            # 1. The last commit wrote a, b, c; this one writes a, c. After a, the search starts at
            #    b and finds c, the same object, within the next few entries.
            # 2. d is new, or has moved: no object matches, and the dictionary is asked.
            index = key_sort.next_index(own_keys, next_index, keys, at)
            if index < 0:
                if is_cold or (at - start) % _AHEAD == 0:
                    prefetch.warm_slots(indexes, keys, at)
                    is_cold = False
                index = _index_of(keys[at], own_keys, indexes)
            if index == len(own_values):
                own_values.append(values[at])
            else:
                own_values[index] = values[at]
            next_index = index + 1

    def removed(self) -> list[bytes]:
        """Return the keys to remove."""
        keys, values, _ = self._columns
        return [keys[at] for at in range(len(values)) if values[at] is None]

    def drop_removed(self, spans: list[tuple[bytes, bytes]]) -> None:
        """Drop those keys to remove that lie in a span: from a key up to but excluding another."""
        own_keys, own_values, _ = self._columns
        keys: list[bytes] = []
        values: list[bytes | None] = []
        indexes: dict[bytes, int] = {}
        for at in range(len(own_keys)):
            key, value = own_keys[at], own_values[at]
            # All later keys get a smaller index, so the index is rebuilt rather than corrected.
            if value is None and _is_in(key, spans):
                continue
            indexes[key] = len(keys)
            keys.append(key)
            values.append(value)
        # One assignment: a concurrent reader sees all three old or all three new.
        self._columns = (keys, values, indexes)

    def clear(self) -> None:
        """Remove everything; a concurrent reader may still see the old columns."""
        self._columns = ([], [], {})


def _is_in(key: bytes, spans: list[tuple[bytes, bytes]]) -> bool:
    for low, high in spans:  # noqa: SIM110 - compiled, this is C
        if low <= key < high:
            return True
    return False


def _index_of(key: bytes, keys: list[bytes], indexes: dict[bytes, int]) -> int:
    """Return the index of the key; a new one is appended, without a value."""
    count = len(keys)
    index = indexes.setdefault(key, count)
    if index == count:
        keys.append(key)
    return index
