"""Copies of plain values: dicts and lists of text and numbers, as if written and read again.

A forwarded result must not change with its state. If a state is plain, a copy made part by part
equals what JSON or MessagePack would return, and costs a fraction of that. The rule of the file: it
may be compiled; a value with any part that may not survive both formats (numbers beyond 64 bits,
keys that are not text, classes of the user's) is left to its serde.
"""

from __future__ import annotations

from streamlog.records import packing
from streamlog.serdes.erased_types import UserState

__all__ = ["OTHER", "copied"]

OTHER = object()
"""The result for a value with a part that is not plain."""
DEPTH_MAX = 32
"""The largest nesting of containers; a list may also contain itself."""


def copied(value: UserState) -> object:
    """Return a copy that shares nothing mutable with the value; OTHER if it is not plain."""
    return _copied(value, DEPTH_MAX)


def _copied(value: UserState, depth: int) -> object:
    kind = type(value)
    if kind is dict:
        return _copied_dict(value, depth - 1) if depth else OTHER
    if kind is list:
        return _copied_list(value, depth - 1) if depth else OTHER
    if kind is int:
        return value if packing.is_long(value) else OTHER
    if kind is str:
        return value if packing.is_ascii_text(value) else OTHER
    if kind is float:
        return value if packing.is_finite(value) else OTHER
    return value if value is None or kind is bool else OTHER


def _copied_dict(value: dict[object, object], depth: int) -> object:
    found: dict[object, object] = {}
    for key, part in value.items():
        if type(key) is not str or not packing.is_ascii_text(key):
            return OTHER
        copy = _copied(part, depth)
        # One part that is not plain makes the whole value not plain: the serde copies all of it.
        if copy is OTHER:
            return OTHER
        found[key] = copy
    return found


def _copied_list(value: list[object], depth: int) -> object:
    found: list[object] = []
    for part in value:
        copy = _copied(part, depth)
        if copy is OTHER:
            return OTHER
        found.append(copy)
    return found
