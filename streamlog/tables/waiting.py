"""Waiting: the last change of each key, in columns, until a store takes them.

A task writes down the same rows with every commit, in the same order and under the very same
objects as keys. So where a change goes is one of the next places behind where the one before it
went, and is found by looking at whose object is there: of a hundred thousand keys each look-up in
a dictionary waits for memory. The rule of the file: it may be compiled; one thread writes, and
what another one copies (`columns`) is as it was or as it is. Not done here: counting bytes, and
when they go to the store (`deferred`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlog.records import writing
from streamlog.tables import ordering, warming

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Waiting"]

_AHEAD = warming.AHEAD
_FAR = writing.AHEAD


class Waiting:
    """Keys and their values, where None is a key that is to be removed."""

    __slots__ = ("_keys", "_places", "_values")

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._places: dict[bytes, int] = {}
        """Where each key is in these."""

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, key: bytes) -> bytes | None:
        """The value of a key that is there.

        Raises:
            KeyError: it is not.
        """
        return self._values[self._places[key]]

    def get(self, key: bytes, default: Any) -> Any:  # noqa: ANN401 - a value, or whatever it is
        """The value, or what is given for a key that is not there."""
        place = self._places.get(key)
        return default if place is None else self._values[place]

    def keys_from(self, start: int) -> Sequence[bytes]:
        """Those that came when there were so many already."""
        return self._keys[start:]

    def columns(self) -> tuple[list[bytes], list[bytes | None]]:
        """All keys in the order in which they came, and the value of each, as lists of their own.

        Another thread may ask: a key that comes meanwhile may be missing.
        """
        own_keys, own_values = self._keys, self._values
        keys, values = own_keys[:], own_values[:]
        count = min(len(keys), len(values))
        return keys[:count], values[:count]

    def in_order(self) -> tuple[list[bytes], list[bytes | None]]:
        """The same, by key.

        Raises:
            TypeError: a key is something else than bytes.
        """
        keys, values = self._keys[:], self._values[:]
        ordering.sort_by_key(keys, values)
        return keys, values

    def put_all(self, keys: list[bytes], values: list[bytes | None], start: int, stop: int) -> None:
        """The value of each key from now on, of those from `start` up to but not including `stop`.

        Raises:
            IndexError: there are fewer keys or values.
        """
        if start < 0 or stop > len(keys) or stop > len(values):
            raise IndexError(f"no entries {start} to {stop} of {len(keys)} and {len(values)}")
        own_keys, own_values = self._keys, self._values
        next_place = 0
        is_cold = True
        for at in range(start, stop):
            if (at - start) % _FAR == 0:
                writing.bring_near(values, at + _FAR)
                writing.bring_near(own_values, next_place + _FAR)
            place = ordering.next_place(own_keys, next_place, keys, at)
            if place < 0:
                if is_cold or (at - start) % _AHEAD == 0:
                    warming.warm_slots(self._places, keys, at)
                    is_cold = False
                place = self._place_of(keys[at])
            if place == len(own_values):
                own_values.append(values[at])
            else:
                own_values[place] = values[at]
            next_place = place + 1

    def _place_of(self, key: bytes) -> int:
        """Where the key is; a new one is at the end, and lacks its value."""
        count = len(self._keys)
        place = self._places.setdefault(key, count)
        if place == count:
            self._keys.append(key)
        return place

    def clear(self) -> None:
        """Nothing waits any more; who copies the columns meanwhile has those of before."""
        self._keys, self._values = [], []
        self._places.clear()
