"""Rows brought near before they are needed: what a compiled fold asks of the processor's caches.

A row of one key among many lies in memory that nobody has touched for a while, and each pointer on
the way to it (the dictionary's slot, the key, the row, its state, the numbers in that) is a wait.
Looked up one after the other, records wait for all of them in turn, which costs more than what is
done with them. So the keys of the next few records are looked up before the first of these is
folded: waits that do not depend on each other pass together. The rule of the file: nothing changes,
and nothing of the user's is called; `warming.pxd` says in C what is to be done, and uncompiled
there is nothing to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

AHEAD = 16
"""So many records at a time."""


def warm(rows: dict[bytes, Any], raws: Sequence[bytes], start: int) -> None:
    """Look at the rows of the keys from `start` on, as many as `AHEAD`."""


def warm_objects(objects: Sequence[Any], start: int) -> None:
    """Look at the objects from `start` on, as many as `AHEAD`."""


def warm_rows(rows: list[Any], start: int) -> None:
    """Look at what the rows from `start` on have, and at the rows behind them; `AHEAD` of each."""


def warm_next(rows: dict[Any, Any], start: int) -> None:
    """Look at the rows of a dictionary, and at their keys, that come behind the one at `start`."""


def warm_slots(rows: dict[Any, Any], keys: Sequence[Any], start: int) -> None:
    """Look where the keys from `start` on are in the dictionary, as many as `AHEAD`."""


def warmed(
    dicts: Sequence[dict[bytes, Any] | None], raws: Sequence[bytes], start: int
) -> list[Any]:
    """The rows of the keys from `start` on, each of its own dictionary; None if it has none.

    There may be `AHEAD` dictionaries, and as many keys as of these.
    """
    found = zip(dicts, raws[start : start + len(dicts)], strict=True)
    return [None if rows is None else rows.get(raw) for rows, raw in found]
