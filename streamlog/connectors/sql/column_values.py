"""Column values: what a driver gives for a column, as the value that the column's schema says.

Drivers differ: SQLite has text for dates and numbers for booleans, MariaDB has a timedelta for a
TIME, PostgreSQL an object of its own for an address. A converter takes a value by its schema, so a
row has to fit it.

Rule: total. What can't be read as its type stays what it is, and the converter refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from types import NoneType
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from streamlog.connect import Schema
from streamlog.connect.row_spans.json_rows import all_of_kinds
from streamlog.serdes.named_columns import NamedColumns

ToValue: TypeAlias = Callable[[object], object]
_MIDNIGHT: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - only its time of day is used
_BOOLEANS: Final = {0: False, 1: True}


class ColumnReader(NamedTuple):
    """The conversion of a column's values.

    Attributes:
        read: converts a value other than None.
        kept: the types whose values stay what they are.
    """

    read: ToValue
    kept: frozenset[type]


def value_readers(schema: Schema) -> Mapping[str, ColumnReader]:
    """Return the conversions of the columns that need one."""
    found = {each.name: _reader(each.schema) for each in schema.fields}
    return {
        name: ColumnReader(_total(read), _KEPT.get(read, _NONE))
        for name, read in found.items()
        if read is not None
    }


def read_values(rows: NamedColumns, readers: Mapping[str, ColumnReader]) -> NamedColumns:
    """Return rows whose values are as their columns' schemas say."""
    changed: dict[str, Sequence[object]] = {}
    for name, (read, kept) in readers.items():
        at = rows.positions.get(name)
        # Most drivers give most types as they should be: then no value is touched.
        if at is not None and not all_of_kinds(rows.rows, at, kept):
            column = rows.column(name) or ()
            changed[name] = [None if value is None else read(value) for value in column]
    return rows.replaced(changed) if changed else rows


def _total(read: ToValue) -> ToValue:
    def reading(value: object) -> object:
        try:
            return read(value)
        except (ValueError, TypeError, InvalidOperation, msgspec.DecodeError):
            return value

    return reading


def _reader(schema: Schema) -> ToValue | None:
    if schema.kind == "array" and schema.items is not None:
        inner = _reader(schema.items)
        return None if inner is None else _each(_total(inner))
    if schema.logical == "Decimal":
        scale = schema.parameter("scale")
        return lambda value: _decimal(value, None if scale is None else int(scale))
    return _READERS.get(schema.logical or schema.kind)


def _each(read: ToValue) -> ToValue:
    def items(value: object) -> object:
        if not isinstance(value, list):
            return value
        return [None if each is None else items(each) if isinstance(each, list) else read(each)
                for each in value]  # fmt: skip

    return items


def _decimal(value: object, scale: int | None) -> object:
    number = value if isinstance(value, Decimal) else Decimal(str(value))
    if scale is None or not number.is_finite():
        return number
    # SQLite keeps 12.50 as 12.5. What has more digits than the column declares stays, and is
    # refused: a value must not be rounded in silence.
    fitted = number.quantize(Decimal(1).scaleb(-scale))
    return fitted if fitted == number else number


def _boolean(value: object) -> object:
    return _BOOLEANS[value] if type(value) is int and value in _BOOLEANS else value


def _date(value: object) -> object:
    return date.fromisoformat(value) if isinstance(value, str) else value


def _time(value: object) -> object:
    if isinstance(value, timedelta):
        # MariaDB's TIME may be negative or have more than 24 hours, which is no time of day.
        is_of_day = timedelta(0) <= value < timedelta(days=1)
        return (_MIDNIGHT + value).time() if is_of_day else value
    return time.fromisoformat(value) if isinstance(value, str) else value


def _moment(value: object) -> object:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    is_local = isinstance(found, datetime) and found.tzinfo is None
    return found.replace(tzinfo=UTC) if is_local and isinstance(found, datetime) else found


def _local(value: object) -> object:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _json(value: object) -> object:
    found: object = msgspec.json.decode(value) if isinstance(value, str) else value
    return found


def _duration(value: object) -> object:
    return timedelta(microseconds=value) if isinstance(value, int) else value


def _text(value: object) -> object:
    return value if isinstance(value, str | bytes | int | float) else str(value)


_READERS: Final[Mapping[str, ToValue]] = {
    "boolean": _boolean,
    "Date": _date,
    "Time": _time,
    "Timestamp": _moment,
    "LocalTimestamp": _local,
    "json": _json,
    "uuid": lambda value: UUID(value) if isinstance(value, str) else value,
    "Duration": _duration,
    "string": _text,
}
_NONE: Final = frozenset({NoneType})
_KEPT: Final[Mapping[ToValue, frozenset[type]]] = {
    _boolean: _NONE | {bool},
    _text: _NONE | {str, bytes, int, float},
}
