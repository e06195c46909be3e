"""Sorts keys together with their values, for stores that write in order.

Comparing a hundred thousand keys pairwise, each wherever it lies in memory, costs more than writing
them. Most keys share a prefix and differ soon after it, so they are sorted by the eight bytes after
the common prefix, as numbers. The rule of the file: `key_sort.pxd` does in C what this file does;
change both or neither.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TypeVar

T = TypeVar("T")
"""A value that is sorted with its key, or a key that is looked for."""

FEW = 16
"""The number of entries that `next_index` checks."""


def sort_by_key(keys: list[bytes], values: list[T]) -> None:
    """Sort the keys in place, and the values along with them.

    The keys are distinct; the order of equal keys is undefined.

    Raises:
        ValueError: the lists differ in length.
    """
    pairs = sorted(zip(keys, values, strict=True), key=itemgetter(0))
    keys[:] = [key for key, _ in pairs]
    values[:] = [value for _, value in pairs]


def next_index(own: list[T], start: int, keys: list[T], at: int) -> int:
    """Return the index of the object `keys[at]` among the next few from `start`; -1 if absent."""
    for index in range(start, min(start + FEW, len(own))):
        if own[index] is keys[at]:
            return index
    return -1
