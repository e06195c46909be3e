"""Serde: the port between values and bytes, and the errors that all serdes raise.

A serde may have two attributes in addition to its methods: `form` describes its bytes as plain
data, and `declared` is the type that it was made for.

Rule: a value or bytes of another type raise a SerdeError that names the type and shows the first
bytes.
"""

from __future__ import annotations

import re
import typing
from typing import Protocol, TypeVar

from streamlog.errors import SerdeError, quantity

T = TypeVar("T")
"""The type of the values."""

SHOWN_BYTES = 48
"""The most bytes that an error shows: enough to recognise the data in one line of a log."""

_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Bytes that some editors and shells on Windows write in front of a text."""

_MODULE = re.compile(r"(?:[\w<>]+\.)+")


class Serde(Protocol[T]):
    """Port: serializes values of one type and deserializes them; `loads(dumps(x)) == x`.

    Both methods raise SerdeError for a value or bytes of another type, and no other exception.
    """

    def dumps(self, obj: T) -> bytes:
        """Serialize a value; None never gets here, because a tombstone has no bytes."""

    def loads(self, data: bytes) -> T:
        """Deserialize a value."""


def form_of(serde: Serde[T]) -> object:
    """Return a description of a serde's bytes as plain data; equal forms mean equal bytes.

    It is the serde's attribute `form`, or the name of its class if it has no such attribute.
    """
    form: object = getattr(serde, "form", None)
    return type(serde).__qualname__ if form is None else form


def declared_by(serde: Serde[T]) -> object:
    """Return the type that a serde was made for; None if it has no attribute `declared`."""
    return getattr(serde, "declared", None)


def is_binary(serde: Serde[T]) -> bool:
    """Return whether people can't type the bytes of a serde, as its attribute `is_binary` says."""
    return bool(getattr(serde, "is_binary", False))


def type_name(declared: object) -> str:
    """Return a type as its author wrote it, without modules, for error messages."""
    if isinstance(declared, type) and not typing.get_args(declared):
        return declared.__name__
    return _MODULE.sub("", str(declared))


def wrong_type_error(expected: str, obj: object) -> SerdeError:
    """Return the error for a value of another type than the declared one."""
    return SerdeError(f"{expected} expected, got {type(obj).__name__}")


def unreadable_json_error(expected: str, data: bytes, reason: str) -> SerdeError:
    """Return the error for JSON of another type.

    Parsers report a byte order mark as an unexpected character, so the message names it here.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            reason = (
                f"it begins with a byte order mark ({encoding}), which JSON must not have: write "
                "it as UTF-8 without a BOM"
            )
            break
    return unreadable_error(expected, data, reason)


def unreadable_error(expected: str, data: bytes, reason: str) -> SerdeError:
    """Return the error for bytes of another type, which shows the first `SHOWN_BYTES` of them."""
    more = (
        f" and {quantity(len(data) - SHOWN_BYTES, 'byte')} more" if len(data) > SHOWN_BYTES else ""
    )
    return SerdeError(f"not {expected}: {reason}; the data is {data[:SHOWN_BYTES]!r}{more}")
