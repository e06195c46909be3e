"""Unread parts: what a reader can't read of what a writer writes, each with its place and reason.

Rule: texts say what is expected and what is written, so that a message needs no types. Not done
here: the comparison (`readability`, `avro_readability`, `json_readability`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from streamlog.replace import replace


class UnreadKind(StrEnum):
    """Why a part can't be read."""

    MISSING = "missing"
    """The reader requires a field that is never written."""
    OPTIONAL = "optional"
    """The reader requires a field that the writer's type has with a default, or optionally."""
    UNKNOWN_FIELD = "unknown_field"
    """The reader forbids fields that it does not know, and one is written."""
    TYPE = "type"
    """Values of another type are written."""
    CHOICE = "choice"
    """Values are written that are not among those that the reader accepts."""
    LIMIT = "limit"
    """The reader has a limit or a format that the writer does not have."""
    CODING = "coding"
    """The bytes are of another format."""
    INCOMPARABLE = "incomparable"
    """One of the serdes does not describe its bytes, so nothing is certain."""


class UnreadPart(msgspec.Struct, frozen=True):
    """A part of a value that the reader can't read."""

    path: str
    """Where it is in the value; empty for the whole value."""
    kind: UnreadKind
    reader: str
    """What the reader expects, as text."""
    writer: str
    """What is written, as text; empty if nothing is."""


def parts_inside(name: str, parts: Iterable[UnreadPart]) -> Iterator[UnreadPart]:
    """Yield parts of a value as parts of the value that holds it.

    Args:
        name: a field; `[]` for the items of a list, `{}` for the values of a map.
        parts: what can't be read of the inner value.
    """
    for part in parts:
        dot = "." if part.path and part.path[0] not in "[{" else ""
        yield replace(part, path=f"{name}{dot}{part.path}")
