"""Row types: which type each field has in rows without a schema.

A column of a file has one type. The first value of a field, other than null, says which; a later
row whose value has another type is refused, so that the error policy decides about that record
alone. Which rows fit follows from their order, however they were cut into batches.

Integers and floats are one type if a float holds the integers exactly, and objects with different
fields are one type with all of them. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Final

from streamlog.connect import Schema

_NAMES: Final[Mapping[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "text",
    bytes: "bytes",
    datetime: "a time",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}
_SCALARS: Final[Mapping[str, Schema]] = {
    "a boolean": Schema("boolean", optional=True),
    "an integer": Schema("int64", optional=True),
    "a float": Schema("float64", optional=True),
    "text": Schema("string", optional=True),
    "bytes": Schema("bytes", optional=True),
}
_NUMBERS: Final = frozenset({"an integer", "a float"})
_INT64: Final = range(-(2**63), 2**63)
_EXACT: Final = range(-(2**53), 2**53 + 1)
"""The integers that a float of 64 bits holds, all of them."""
_PLAIN: Final = frozenset({bool, int, float, str, bytes})


class _Misfit(Exception):
    """A value has another type than those before; the text says where, and which types."""


class RowTypes:
    """The types of the fields in the rows that a file has so far."""

    def __init__(self) -> None:
        self._fields: dict[str, _Type] = {}

    def take(self, rows: Sequence[Mapping[str, object]]) -> dict[int, str]:
        """Add the types of rows that fit, and return why the others do not, by their indexes."""
        names = dict.fromkeys(name for row in rows for name in row)
        # Nearly always a column has one scalar type, and the one that is known.
        changing = [name for name in names if not self._knows_column(name, rows)]
        why: dict[int, str] = {}
        for at, row in enumerate(rows if changing else ()):
            try:
                self._take_row(row, changing)
            except _Misfit as error:
                why[at] = (
                    f"field {error}: a column of a file has one type; convert the field in a "
                    'transform, or write format="jsonl", whose rows may differ'
                )
        return why

    def _knows_column(self, name: str, rows: Sequence[Mapping[str, object]]) -> bool:
        """Whether all values of a field are of its known type, which they do not change."""
        values = [row.get(name) for row in rows]
        kinds = {*map(type, values)} - {NoneType}
        if not kinds:
            return True
        known = self._fields.get(name)
        kind = kinds.pop()
        if kinds or kind not in _PLAIN or known is None or known.kind != _NAMES[kind]:
            return False
        numbers = [each for each in values if isinstance(each, int)] if kind is int else ()
        return not numbers or (min(numbers) in _EXACT and max(numbers) in _EXACT)

    def _take_row(self, row: Mapping[str, object], names: Sequence[str]) -> None:
        found: dict[str, _Type] = {}
        for name in names:
            value = row.get(name)
            if value is not None:
                found[name] = _united(self._fields.get(name), _type_of(value, name), name)
        # Only now: a row that does not fit must not say which types later rows have.
        self._fields |= found

    def schema(self, name: str) -> Schema | None:
        """Return the schema of a field of scalars; None if it is nested, or of another class."""
        known = self._fields.get(name)
        return None if known is None else _SCALARS.get(known.kind)

    def plain(self, name: str, values: Sequence[object]) -> Sequence[object]:
        """Return a field's values as Arrow takes them, and Parquet.

        Integers among floats are floats. An object is null if no row has a field in it, as Parquet
        has no such type.
        """
        known = self._fields.get(name)
        if known is None:
            return values
        if known.kind == "a float" and int in {*map(type, values)}:
            return [float(each) if isinstance(each, int) else each for each in values]
        return [_filled(each, known) for each in values] if known.has_empty else values


class _Type:
    """The type of some values."""

    __slots__ = ("fields", "items", "kind", "large")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.large: int | None = None
        """An integer among them that a float may not hold; None if there is none."""
        self.fields: dict[str, _Type | None] = {}
        """Of an object; None for a field that was only null so far."""
        self.items: _Type | None = None
        """Of a list."""

    @property
    def has_empty(self) -> bool:
        """Whether there is an object without any field in it."""
        if self.kind == "an object":
            inner: Collection[_Type | None] = self.fields.values()
            return not inner or any(each is not None and each.has_empty for each in inner)
        return self.items is not None and self.items.has_empty


def _type_of(value: object, path: str) -> _Type:
    kind = type(value)
    found = _Type(_NAMES.get(kind, f"a {kind.__name__}"))
    if isinstance(value, Mapping):
        found.kind = "an object"
        for name, each in value.items():
            found.fields[name] = None if each is None else _type_of(each, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        inner = f"{path}[]"
        for each in value:
            if each is not None:
                found.items = _united(found.items, _type_of(each, inner), inner)
    elif kind is int and isinstance(value, int) and value not in _EXACT:
        found.large = value
    return found


def _united(known: _Type | None, found: _Type, path: str) -> _Type:
    """Return the type of both; `path` names the field.

    Raises:
        _Misfit: there is none.
    """
    if known is None:
        known = _Type(found.kind)
    if known.kind != found.kind and not {known.kind, found.kind} <= _NUMBERS:
        raise _Misfit(f"{path!r} is {found.kind}, and {known.kind} in an earlier row")
    merged = _Type("a float" if "a float" in (known.kind, found.kind) else known.kind)
    merged.large = known.large if found.large is None else found.large
    if merged.large is not None and merged.kind == "a float":
        raise _Misfit(f"{path!r} has floats and the integer {merged.large}, which no float holds")
    if found.large is not None and found.large not in _INT64:
        raise _Misfit(f"{path!r} is the integer {found.large}, which 64 bits do not hold")
    merged.fields = dict(known.fields)
    for name, each in found.fields.items():
        before = merged.fields.get(name)
        merged.fields[name] = before if each is None else _united(before, each, f"{path}.{name}")
    merged.items = known.items if found.items is None else _united(
        known.items, found.items, f"{path}[]"
    )  # fmt: skip
    return merged


def _filled(value: object, known: _Type) -> object:
    """Return a value with null for objects of a type without fields."""
    if isinstance(value, Mapping):
        if not known.fields:
            return None
        fields = known.fields
        return {
            name: each if (of := fields.get(name)) is None else _filled(each, of)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple) and known.items is not None:
        return [_filled(each, known.items) for each in value]
    return value
