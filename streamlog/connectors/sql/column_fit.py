"""Column fit: whether a column of a table takes the values of a field, and how it has to change.

A topic's schema changes while its table stays: a field comes, goes, may be null, or changes its
type. For each difference there is a change of the table that loses nothing, or the reason why none
is.

Rule: pure, and narrow about what it refuses. A type is refused where the database would store
another value without a word, as MariaDB rounds 1.5 in a column of integers, or would refuse nearly
every value. What a value alone decides (a text that is a date, a number that is too large) is left
to the database, and the record's error policy decides about its refusal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from streamlog.connect import Field, Schema
from streamlog.connect.row_schema import DECIMAL_DIGITS_MAX
from streamlog.connectors.sql.column_adapters import is_single
from streamlog.connectors.sql.table_columns import SqlType, TableColumns, type_of_schema

_INTEGERS: Final = frozenset({"int8", "int16", "int32", "int64"})
_FLOATS: Final = frozenset({"float32", "float64"})
_KIND_OF_LOGICAL: Final = {
    "Timestamp": "moment", "LocalTimestamp": "moment", "Date": "date", "Time": "time",
    "Duration": "duration", "Decimal": "decimal", "uuid": "uuid", "json": "structure",
}  # fmt: skip
_TAKEN: Final[Mapping[str, Collection[str]]] = {
    "integer": {"integer"},
    "float": {"integer", "float"},
    "decimal": {"integer", "float", "decimal", "string"},
    "boolean": {"boolean"},
    "bytes": {"bytes"},
    "date": {"date", "string"},
    "time": {"time", "string"},
    "moment": {"moment", "date", "string"},
    "duration": {"duration", "string"},
    "uuid": {"uuid", "string"},
    "string": {
        "string", "integer", "float", "decimal", "boolean", "date", "time", "moment", "duration",
        "uuid", "structure",
    },
}  # fmt: skip
"""Which kinds of fields a kind of column takes; one that is not listed takes all."""
_TAKEN_AS_STORED: Final[Mapping[str, Mapping[str, Collection[str]]]] = {
    # Both store booleans and durations as integers.
    "mariadb": {"integer": {"boolean", "duration"}, "float": {"boolean"}, "bytes": {"string"}},
    "mysql": {"integer": {"boolean", "duration"}, "float": {"boolean"}, "bytes": {"string"}},
    # A column of SQLite holds any value as it is, but text that looks like a number becomes one.
    "sqlite": {
        "integer": {"boolean", "duration", "float", "bytes"},
        "float": {"boolean", "bytes"},
        "boolean": {"integer", "float"},
        "string": {"bytes"},
        "bytes": {"string", "uuid"},
    },
}
_BITS: Final[Sequence[tuple[type[SqlType], int]]] = (
    (mysql.TINYINT, 8),
    (mysql.MEDIUMINT, 24),
    (sa.SmallInteger, 16),
    (sa.BigInteger, 64),
    (sa.Integer, 32),
)
_EXACT_INTEGER_BITS: Final = 32
"""Integers that a double holds exactly."""


@dataclass(frozen=True, slots=True)
class TableFit:
    """How the columns of a table and the fields of records differ.

    Attributes:
        not_null: columns that must not be null, though the field may be.
        lacking: columns that must have a value, and that the records have no field for.
        wider: columns whose type holds some values of the field alone, with one that holds all.
        refused: columns whose type takes no value of the field, with the field's schema.
    """

    not_null: Sequence[str]
    lacking: Sequence[str]
    wider: Mapping[str, SqlType]
    refused: Mapping[str, Schema]


def fit_of(
    table: TableColumns, fields: Sequence[Field], dialect: str, *, may_widen: bool
) -> TableFit:
    """Return how a table and the fields of records differ.

    Args:
        table: the table.
        fields: the columns of the records, those of the key included.
        dialect: the database's name, as SQLAlchemy has it.
        may_widen: whether a column may get a wider type.
    """
    keys = frozenset[str]().union(*table.unique)
    known = [each for each in fields if each.name in table.types]
    wider, refused = dict[str, SqlType](), dict[str, Schema]()
    for field in known:
        found = table.types[field.name]
        wide = _wider_type(found, field.schema, dialect) if may_widen else None
        # MariaDB can't index text without a bound.
        if wide is not None and not (field.name in keys and isinstance(wide, sa.Text)):
            wider[field.name] = wide
        elif not _takes(found, field.schema, dialect):
            refused[field.name] = field.schema
    names = {each.name for each in fields}
    return TableFit(
        [each.name for each in known if each.schema.optional and each.name in table.not_null],
        [each for each in table.types if each in table.required and each not in names],
        wider,
        refused,
    )


def outgrown(
    table: TableColumns, fit: TableFit, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> Mapping[str, SqlType]:
    """Return the columns that rows need a wider type for, with that type.

    A value decides, not a type alone: Python's integers all have 64 bits, and a database may
    rewrite the table for a change.

    Args:
        table: the table.
        fit: how it differs from the fields of the rows.
        columns: the columns of the rows.
        rows: a value for each column.
    """
    wanted = [(at, name) for at, name in enumerate(columns) if name in fit.wider]
    return {
        name: fit.wider[name]
        for at, name in wanted
        if _outgrows(table.types[name], fit.wider[name], [row[at] for row in rows])
    }


def shown_kind(schema: Schema) -> str:
    """Return the type of a field, for people."""
    return schema.logical or schema.kind


def _kind_of_schema(schema: Schema) -> str:
    if schema.logical is not None:
        return _KIND_OF_LOGICAL.get(schema.logical, "any")
    if schema.kind in _INTEGERS:
        return "integer"
    if schema.kind in _FLOATS:
        return "float"
    return "structure" if schema.kind in {"struct", "array", "map"} else schema.kind


_KINDS: Final[Sequence[tuple[type[SqlType], str]]] = (
    # An enum is a string to SQLAlchemy, and JSON of MariaDB is text with a check.
    (sa.Enum, "any"),
    (sa.Boolean, "boolean"),
    (sa.Integer, "integer"),
    (sa.Float, "float"),
    (sa.Numeric, "decimal"),
    (sa.DateTime, "moment"),
    (sa.Date, "date"),
    (sa.Time, "time"),
    (sa.Interval, "duration"),
    (postgresql.INTERVAL, "duration"),
    (sa.LargeBinary, "bytes"),
    (sa.types.BINARY, "bytes"),
    (sa.types.VARBINARY, "bytes"),
    (sa.Uuid, "uuid"),
    (sa.String, "string"),
)


def _takes(found: SqlType, schema: Schema, dialect: str) -> bool:
    column = next((kind for each, kind in _KINDS if isinstance(found, each)), "any")
    field = _kind_of_schema(schema)
    taken = _TAKEN.get(column)
    also = _TAKEN_AS_STORED.get(dialect, {}).get(column, ())
    return taken is None or field == "any" or field in taken or field in also


def _wider_type(found: SqlType, schema: Schema, dialect: str) -> SqlType | None:
    """Return a type that holds every value of a column and of a field; None if there is none.

    None as well if the column has that type already.
    """
    kind = _kind_of_schema(schema)
    wide: SqlType | None = None
    if isinstance(found, sa.Integer):
        bits = _bits(found)
        if kind == "integer" and bits < _bits_of_schema(schema):
            wide = sa.BigInteger()
        elif kind == "float" and bits <= _EXACT_INTEGER_BITS:
            wide = sa.Double()
    elif isinstance(found, sa.Float):
        wide = sa.Double() if schema.kind == "float64" and is_single(found) else None
    elif isinstance(found, sa.Numeric):
        wide = _wider_decimal(found, schema) if kind == "decimal" else None
    elif isinstance(found, sa.String) and not isinstance(found, sa.Enum) and found.length:
        wide = type_of_schema(Schema("string"), dialect) if kind == "string" else None
    return wide


def _bits(found: SqlType) -> int:
    bits = next(bits for kind, bits in _BITS if isinstance(found, kind))
    # Its range differs; a value that it does not hold is the database's to refuse.
    return 64 if getattr(found, "unsigned", False) else bits


def _bits_of_schema(schema: Schema) -> int:
    return int(schema.kind.removeprefix("int"))


def _wider_decimal(found: sa.Numeric[Decimal], schema: Schema) -> SqlType | None:
    text = schema.parameter("scale")
    if text is None or found.precision is None or found.scale is None:
        return None
    scale = int(text)
    precision = int(schema.parameter("connect.decimal.precision") or DECIMAL_DIGITS_MAX)
    digits = max(precision - scale, found.precision - found.scale)
    widest = max(scale, found.scale)
    if (digits + widest, widest) == (found.precision, found.scale):
        return None
    return sa.Numeric(digits + widest, widest)


def _outgrows(found: SqlType, wide: SqlType, values: Sequence[object]) -> bool:
    """Whether a value is not held by a column's type, which its wider one holds."""
    if isinstance(found, sa.Integer) and isinstance(wide, sa.Integer):
        limit = 1 << (_bits(found) - 1)
        return any(isinstance(each, int) and not -limit <= each < limit for each in values)
    if isinstance(found, sa.String):
        length = found.length or 0
        return any(isinstance(each, str) and len(each) > length for each in values)
    # A fraction, or digits that the database would round without a word.
    return any(each is not None for each in values)
