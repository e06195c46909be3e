"""Keys brought into their order with what belongs to them, for stores that write in order.

Comparing a hundred thousand keys two by two, each time where they happen to lie, costs more than
writing them. Most begin alike, and soon differ: so they are put in order by eight bytes at a time,
behind what they have in common, as numbers. The rule of the file: `ordering.pxd` says in C what is
said here; change both or neither.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

FEW = 16
"""Places that are looked at."""


def sort_by_key(keys: list[bytes], values: list[Any]) -> None:
    """Sort the keys where they are, and each one's value along with it.

    The keys are distinct; keys of equal rank may come in any order.

    Raises:
        ValueError: there are not as many values.
    """
    pairs = sorted(zip(keys, values, strict=True), key=itemgetter(0))
    keys[:] = [key for key, _ in pairs]
    values[:] = [value for _, value in pairs]


def next_place(own: list[Any], start: int, keys: list[Any], at: int) -> int:
    """Where among the next few from `start` on the very object `keys[at]` is; -1 if nowhere."""
    for place in range(start, min(start + FEW, len(own))):
        if own[place] is keys[at]:
            return place
    return -1
