"""Column adapters: what makes a value of a record fit for a column, or refuses it.

A driver takes few classes of values, and a column rounds more than it says: MariaDB stores 1.5 in a
column of integers as 2, and every database stores 2**53 + 1 in a column of floats as 2**53. A value
whose type is exact (an integer, a decimal, a text that spells a number) is refused there, and the
record's error policy decides. Floats and times take the precision of their column.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect

from streamlog.connect import BadRecord
from streamlog.connectors.sql.row_changes import Cells
from streamlog.connectors.sql.table_columns import SqlType, TableColumns

_MICROSECOND: Final = timedelta(microseconds=1)
_DOUBLE_BITS: Final = 53
_SINGLE_BITS: Final = 24
"""The largest precision of MariaDB's FLOAT that has 4 bytes; and what such a float holds."""
_SINGLE_DIGITS: Final = 6
"""A 4-byte float holds any decimal of up to this many digits."""
_Holds: TypeAlias = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class Adapter:
    """Makes values fit for a column.

    Attributes:
        adapt: adapts a value other than None.
        passes: the classes whose values it leaves as they are; not those of their subclasses.
    """

    adapt: Callable[[object], object]
    passes: frozenset[type] = frozenset()


def adapt_rows(rows: Sequence[Cells], adapters: Sequence[Adapter]) -> Sequence[Cells]:
    """Return rows as a driver takes them.

    Args:
        rows: the rows.
        adapters: the adapter of each column.
    """
    # Most columns have nothing to adapt, which their types tell for all rows at once.
    columns = zip(adapters, zip(*rows, strict=True), strict=True) if rows else ()
    changed = [
        (at, each.adapt)
        for at, (each, column) in enumerate(columns)
        if not {*map(type, column)} <= each.passes | {type(None)}
    ]
    if not changed:
        return rows
    adapted = []
    for row in rows:
        parts = [*row]
        for at, adapt in changed:
            if parts[at] is not None:
                parts[at] = adapt(parts[at])
        adapted.append(tuple(parts))
    return adapted


def fitting_rows(
    rows: Sequence[Cells], names: Sequence[str], table: TableColumns, dialect: Dialect
) -> Sequence[Cells]:
    """Return rows as a driver takes them.

    Args:
        rows: the rows.
        names: the column of each of their values.
        table: the table.
        dialect: the database's dialect of SQLAlchemy.

    Raises:
        BadRecord: a column would round a value.
    """
    return adapt_rows(rows, [adapter_of(each, table.types[each], dialect) for each in names])


def adapter_of(name: str, found: SqlType, dialect: Dialect) -> Adapter:
    """Return what makes a value fit for a column; it raises `BadRecord` for one that is rounded.

    Args:
        name: the column's name, for errors.
        found: its type.
        dialect: the database's dialect of SQLAlchemy.
    """
    plain = _plain_adapter(found, dialect.name)
    holds, inexact = _exactness(found, dialect.name)
    if holds is None:
        return plain

    def adapt(value: object) -> object:
        if not holds(value):
            shown = found.compile(dialect=dialect)
            raise BadRecord(f"column {name} ({shown}) would round {str(value)[:100]}")
        return plain.adapt(value)

    return Adapter(adapt, plain.passes - inexact)


def _plain_adapter(found: SqlType, dialect: str) -> Adapter:
    if isinstance(found, sa.JSON):
        return Adapter(_to_json)
    if isinstance(found, sa.ARRAY):
        return Adapter(_to_array)
    if dialect == "postgresql":
        return Adapter(_plain, _PLAIN_TYPES)
    return Adapter(_to_text_or_number, _BASE_TYPES)


def _exactness(found: SqlType, dialect: str) -> tuple[_Holds | None, frozenset[type]]:
    """Return what tells whether a column holds a value, and the classes that it may round."""
    if isinstance(found, sa.Float):
        return _is_single if is_single(found) else _is_double, frozenset({int, Decimal, str})
    if isinstance(found, sa.Numeric):
        if dialect == "sqlite":
            return _is_number_of_sqlite, frozenset({Decimal, str})
        if found.scale is not None:
            return partial(_has_scale, found.scale), frozenset({Decimal, str})
    if isinstance(found, sa.Integer) and dialect in {"mysql", "mariadb"}:
        return _is_integer, frozenset({Decimal, str, float})
    return None, frozenset()


def is_single(found: SqlType) -> bool:
    """Whether a float has 4 bytes, not 8."""
    if isinstance(found, mysql.FLOAT):
        return (found.precision or _SINGLE_BITS) <= _SINGLE_BITS and found.scale is None
    # MariaDB reads REAL as DOUBLE, and reports it so.
    return isinstance(found, sa.REAL)


def _is_double(value: object) -> bool:
    """Whether a float of 8 bytes has all digits of a number."""
    if isinstance(value, int):
        zeros = (value & -value).bit_length() - 1
        return value.bit_length() - zeros <= _DOUBLE_BITS
    number = _number(value)
    return number is None or _survives_as_float(number)


def _is_single(value: object) -> bool:
    """Whether a float of 4 bytes has all digits of a number.

    Larger integers may be exact in it, but are read back with fewer digits: 2**52 as 4.5036e15.
    """
    if isinstance(value, int) and abs(value) <= 1 << _SINGLE_BITS:
        return True
    number = Decimal(value) if isinstance(value, int) else _number(value)
    digits = () if number is None else number.as_tuple().digits
    return len("".join(map(str, digits)).strip("0")) <= _SINGLE_DIGITS


def _survives_as_float(value: Decimal) -> bool:
    return not value.is_finite() or Decimal(repr(float(value))) == value


def _is_number_of_sqlite(value: object) -> bool:
    """Whether SQLite, which keeps such a number as an integer or a float, keeps it exactly."""
    number = _number(value)
    return number is None or _has_scale(0, number) or _survives_as_float(number)


def _has_scale(scale: int, value: object) -> bool:
    """Whether a decimal, or text that spells one, has at most this many fractional digits."""
    number = _number(value)
    if number is None:
        return True
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or exponent >= -scale:
        return True
    return not any(digits[exponent + scale :])


def _is_integer(value: object) -> bool:
    return value.is_integer() if isinstance(value, float) else _has_scale(0, value)


def _number(value: object) -> Decimal | None:
    """Return the number that a decimal or a text is; None for another value."""
    if isinstance(value, Decimal):
        return value
    try:
        return Decimal(value) if isinstance(value, str) else None
    except InvalidOperation:
        # The database refuses it, and says why.
        return None


_BASE_TYPES: Final = frozenset({str, int, float, bool, bytes})
_PLAIN_TYPES: Final = _BASE_TYPES | {
    Decimal, datetime, date, time, UUID, timedelta, bytearray, memoryview,
}  # fmt: skip


def _to_json(value: object) -> object:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _to_array(value: object) -> object:
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else _plain(value)


def _plain(value: object) -> object:
    """Return a value that PostgreSQL's driver knows; structures become JSON."""
    if isinstance(value, str | int | float | bytes | Decimal | datetime | date | time | UUID):
        # An enum of text is text, too, but the driver would write its name.
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, timedelta | bytearray | memoryview):
        return value
    return _to_json(value)


def _to_text_or_number(value: object) -> object:
    """Return a value as MariaDB and SQLite take it: times in UTC, the rest as text or number."""
    plain = _plain(value)
    match plain:
        case datetime():
            local = plain if plain.tzinfo is None else plain.astimezone(UTC).replace(tzinfo=None)
            return local.isoformat(" ", "microseconds")
        case date() | time():
            return plain.isoformat()
        case timedelta():
            return plain // _MICROSECOND
        case Decimal() | UUID():
            return str(plain)
        case bytearray() | memoryview():
            return bytes(plain)
        case _:
            return plain
