"""Prefetches rows: what a compiled fold asks of the processor's caches.

A row of one key among many is in memory that has not been read for a while, and each pointer on the
way to it (the dictionary's entry, the key, the row, its state, the numbers in that) is a wait. If
records are looked up one after the other, all these waits add up and cost more than the fold
itself. So the keys of the next few records are looked up before the first of these is folded:
independent waits overlap. The rule of the file: nothing changes, and no user code is called;
`prefetch.pxd` has the implementation in C, and uncompiled there is nothing to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

R = TypeVar("R")
"""A row."""

AHEAD = 16
"""The number of records to prefetch at a time."""


def warm(rows: Mapping[bytes, object], raws: Sequence[bytes], start: int) -> None:
    """Prefetch the rows of up to `AHEAD` keys, from `start` on."""


def warm_objects(objects: Sequence[object], start: int) -> None:
    """Prefetch up to `AHEAD` objects, from `start` on."""


def warm_rows(rows: Sequence[object], start: int) -> None:
    """Prefetch the contents of up to `AHEAD` rows from `start` on, and the rows after them."""


def warm_next(rows: Mapping[bytes, object], start: int) -> None:
    """Prefetch the rows of a dictionary, and their keys, that come after the one at `start`."""


def warm_slots(rows: Mapping[bytes, object], keys: Sequence[object], start: int) -> None:
    """Prefetch the dictionary's entries of up to `AHEAD` keys, from `start` on."""


def warmed(
    dicts: Sequence[Mapping[bytes, R] | None], raws: Sequence[bytes], start: int
) -> list[R | None]:
    """Return the rows of the keys from `start` on, each from its own dictionary, or None.

    There may be up to `AHEAD` dictionaries, and at least as many keys.
    """
    found = zip(dicts, raws[start : start + len(dicts)], strict=True)
    return [None if rows is None else rows.get(raw) for rows, raw in found]
