"""The port: what a serde is, and what is asked of one beside reading and writing.

Rule of the file: whatever does not fit is a SerdeError that names the type and shows the first
bytes. A serde may say more of itself: its `form` (what its bytes look like, as plain data) and the
type it was `declared` for.
"""

from __future__ import annotations

import re
import typing
from typing import Protocol, TypeVar

from streamlog.errors import SerdeError

T = TypeVar("T")
"""What is serialized."""

SHOWN_BYTES = 48
"""How much of the data an error shows: enough to recognise it, little enough for a log line."""

_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""What some editors and shells on Windows write in front of a text."""

_MODULE = re.compile(r"(?:[\w<>]+\.)+")


class Serde(Protocol[T]):
    """Port: values of one type to bytes and back; `loads(dumps(x)) == x`.

    Both raise SerdeError, and nothing else, for what does not fit.
    """

    def dumps(self, obj: T) -> bytes:
        """The value as bytes."""

    def loads(self, data: bytes) -> T:
        """The value that the bytes stand for."""


def form_of(serde: Serde[T]) -> object:
    """What the bytes of a serde look like, as plain data: equal if they are the same.

    A serde says so by a `form`; one that has none is known by the name of its class.
    """
    form: object = getattr(serde, "form", None)
    return type(serde).__qualname__ if form is None else form


def declared_by(serde: Serde[T]) -> object:
    """The type that a serde was made for; None if it does not say so by a `declared`."""
    return getattr(serde, "declared", None)


def type_name(declared: object) -> str:
    """The type as its author wrote it, for error messages."""
    if isinstance(declared, type) and not typing.get_args(declared):
        return declared.__name__
    return _MODULE.sub("", str(declared))


def wrong_type_error(expected: str, obj: object) -> SerdeError:
    """A value of another type than declared."""
    return SerdeError(f"{expected} expected, got {type(obj).__name__}")


def unreadable_json_error(expected: str, data: bytes, reason: str) -> SerdeError:
    """JSON that is not of the type; a byte order mark, which parsers do not name, is named."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            reason = (
                f"it begins with a byte order mark ({encoding}), which JSON must not have: write "
                "it as UTF-8 without a BOM"
            )
            break
    return unreadable_error(expected, data, reason)


def unreadable_error(expected: str, data: bytes, reason: str) -> SerdeError:
    """Bytes that are not of the type, with the first of them."""
    more = f" and {len(data) - SHOWN_BYTES} bytes more" if len(data) > SHOWN_BYTES else ""
    return SerdeError(f"not {expected}: {reason}; the data is {data[:SHOWN_BYTES]!r}{more}")
