"""Array values: an Arrow array as a list of Python's values, read from its buffers.

`to_pylist` makes an object of Arrow's for each value, which costs five times what the value does.
Arrays of other types go through it here as well. No I/O.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Final

from streamlog.serdes.erased_types import UserObject, UserValue

_CODES: Final[Mapping[str, str]] = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float": "f",
    "double": "d",
}
"""By the type's name in Arrow: how `memoryview` names such numbers."""
_TRUTHS: Final = (False, True)


def values_of(column: UserObject) -> list[UserValue]:
    """Return the values of a `pyarrow.Array`, as its `to_pylist` does."""
    pa: UserObject = import_module("pyarrow")
    of, kind = pa.types, column.type
    code = _CODES.get(str(kind))
    # A null is put in its place at the end; until then it has any value.
    if not len(column):
        return []
    if code is not None:
        found = _numbers(column, code)
    elif of.is_boolean(kind):
        found = [*map(_TRUTHS.__getitem__, _bits(pa, column))]
    elif of.is_string(kind):
        found = _texts(column)
    elif of.is_binary(kind):
        found = _contents(column)
    else:
        values: list[UserValue] = column.to_pylist()
        return values
    return _with_nulls(pa, column, found)


def texts_of(column: UserObject) -> list[UserValue]:
    """Return the contents of a column of bytes as text: UTF-8, or else base64."""
    pa: UserObject = import_module("pyarrow")
    if not len(column):
        return []
    contents, ends = _spans(column)
    found = _sliced(contents, ends) if contents.isascii() else [
        _text(contents[start:end]) for start, end in pairwise(ends)
    ]  # fmt: skip
    return _with_nulls(pa, column, found)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return base64.b64encode(content).decode()


def _with_nulls(pa: UserObject, column: UserObject, found: list[UserValue]) -> list[UserValue]:
    if not column.null_count:
        return found
    present = _bits(pa, column.is_valid())
    return [value if is_there else None for value, is_there in zip(found, present, strict=True)]


def _numbers(column: UserObject, code: str) -> list[UserValue]:
    first = column.offset
    numbers = memoryview(column.buffers()[1]).cast("B").cast(code)  # type: ignore[call-overload] # A code of `_CODES`.
    found: list[UserValue] = numbers[first : first + len(column)].tolist()
    return found


def _bits(pa: UserObject, column: UserObject) -> list[UserValue]:
    return _numbers(column.cast(pa.uint8()), "B")


def _spans(column: UserObject) -> tuple[bytes, Sequence[int]]:
    """Return the contents of a column, and their ends behind the start of the first."""
    _, ends, data = column.buffers()
    first = column.offset
    found = memoryview(ends).cast("B").cast("i")[first : first + len(column) + 1].tolist()
    contents = b"" if data is None else bytes(memoryview(data)[found[0] : found[-1]])
    return contents, [end - found[0] for end in found]


def _texts(column: UserObject) -> list[UserValue]:
    contents, ends = _spans(column)
    if contents.isascii():
        return _sliced(contents, ends)
    return [contents[start:end].decode() for start, end in pairwise(ends)]


def _sliced(contents: bytes, ends: Sequence[int]) -> list[UserValue]:
    text = contents.decode()
    return [text[start:end] for start, end in pairwise(ends)]


def _contents(column: UserObject) -> list[UserValue]:
    contents, ends = _spans(column)
    return [contents[start:end] for start, end in pairwise(ends)]
