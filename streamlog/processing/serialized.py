"""Columns to bytes and back, by the shortest way that the serde has.

Serdes of ours offer a function in C that does what `loads` or `dumps` does and tells less when it
fails; whoever calls this goes one by one then, to find the entry and the reason. A serde of the
user's is called as it is. Rule of the file: None stands for no bytes, on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from streamlog.records.columns import all_of_type, called
from streamlog.serdes import BytesSerde, IntSerde, JsonSerde, PackedSerde, Serde, StrSerde

_READ = (StrSerde, JsonSerde, PackedSerde)
_WRITTEN = (StrSerde, IntSerde, JsonSerde, PackedSerde)


def loads_all(serde: Serde[Any], column: Sequence[bytes | None]) -> list[Any]:
    """`loads` of each entry.

    Raises:
        Exception: one of them does not fit.
    """
    if type(serde) is BytesSerde:
        return list(column)
    # By the class itself: one that is derived from it may read otherwise.
    decode: Callable[[Any], Any] = serde.decode if type(serde) in _READ else serde.loads  # type: ignore[attr-defined]
    return called(decode, column)


def dumps_all(serde: Serde[Any], column: Sequence[Any]) -> list[bytes | None]:
    """`dumps` of each entry.

    Raises:
        Exception: one of them does not fit.
    """
    # A value of another type might be written as well, but is to be refused.
    if type(serde) in _WRITTEN and all_of_type(column, serde.exact):  # type: ignore[attr-defined]
        found = called(serde.encode, column)  # type: ignore[attr-defined]
        if type(serde) is not JsonSerde or serde.is_exact(found):
            return found
    return called(serde.dumps, column)
