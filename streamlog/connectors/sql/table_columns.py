"""Table columns: which columns a table has, their types, and how values go into them.

A schema of Connect becomes a column of the database, and a column of the database a schema. The
types are those that hold every value: what a database has no type for (durations, decimals in
SQLite) becomes a number or text that sorts and reads back.

Not done here: changes of a table (`table_changes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from streamlog.connect import Field, Schema
from streamlog.connect.row_schema import DECIMAL_DIGITS_MAX, decimal_schema
from streamlog.connectors.sql.database import Database
from streamlog.replace import replace
from streamlog.serdes.erased_types import UserObject

SqlType: TypeAlias = sa.types.TypeEngine[UserObject]
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What a database says of a table.

    Attributes:
        types: the type of each column, by name, in order.
        primary_key: the columns of its primary key, in order.
        unique: its primary key and every unique index, as sets of columns.
        not_null: the columns that must not be null, but could be altered to allow it.
        required: the columns that must not be null, and have no default.
    """

    types: Mapping[str, SqlType]
    primary_key: tuple[str, ...]
    unique: frozenset[frozenset[str]]
    not_null: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()

    def schema(self, columns: Sequence[str] = ()) -> Schema:
        """Return the schema of its rows, or of some columns."""
        fields = [
            Field(name, schema_of_type(self.types[name], optional=name not in self.primary_key))
            for name in columns or self.types
        ]
        return Schema("struct", fields=tuple(fields))


def read_columns(database: Database, table: str, schema: str | None) -> TableColumns | None:
    """Return what the database says of a table; None if it does not exist."""
    with database.engine.connect() as connection:
        inspector = sa.inspect(connection)
        if not inspector.has_table(table, schema=schema):
            return None
        columns = inspector.get_columns(table, schema=schema)
        key = tuple(inspector.get_pk_constraint(table, schema=schema)["constrained_columns"])
        unique: list[Sequence[str | None]] = [key]
        # An index over an expression has a column without a name, one over some rows a condition.
        unique += [
            each["column_names"]
            for each in inspector.get_indexes(table, schema=schema)
            if each["unique"] and not any("where" in n for n in each.get("dialect_options", {}))
        ]
        # SQLite lists what UNIQUE made here alone.
        for each in inspector.get_unique_constraints(table, schema=schema):
            unique.append([*each["column_names"]])
    names = [[name for name in each if name is not None] for each in unique]
    keys = {frozenset(n) for n, each in zip(names, unique, strict=True) if len(n) == len(each) > 0}
    is_sqlite = database.engine.dialect.name == "sqlite"
    types = {each["name"]: _wide(each["type"]) if is_sqlite else each["type"] for each in columns}
    not_null = [each for each in columns if not each["nullable"]]
    return TableColumns(
        types,
        key,
        frozenset(keys),
        frozenset(n for each in not_null if (n := each["name"]) not in key and not _fills(each)),
        frozenset(each["name"] for each in not_null if not _has_default(each)),
    )


def _fills(column: Mapping[str, UserObject]) -> bool:
    """Whether a column has its values from the database, which can't be null then."""
    return any(column.get(each) for each in ("identity", "computed"))


def _has_default(column: Mapping[str, UserObject]) -> bool:
    is_counted = column.get("autoincrement") is True
    return column.get("default") is not None or is_counted or _fills(column)


def _wide(found: SqlType) -> SqlType:
    """Return the type of a column of SQLite, whose integers and floats have 8 bytes each."""
    if isinstance(found, sa.Integer):
        return sa.BigInteger()
    return sa.Double() if isinstance(found, sa.Float) else found


def type_of_schema(schema: Schema, dialect: str) -> SqlType:
    """Return the type of a column that holds every value of a schema."""
    is_postgres = dialect == "postgresql"
    match schema:
        case Schema(logical="Decimal"):
            found = _decimal_type(schema, dialect)
        case Schema(logical="Date"):
            found = sa.Date()
        case Schema(logical="Time"):
            found = mysql.TIME(fsp=6) if dialect in {"mysql", "mariadb"} else sa.Time()
        case Schema(logical="Timestamp" | "LocalTimestamp"):
            has_zone = schema.logical == "Timestamp"
            is_maria = dialect in {"mysql", "mariadb"}
            found = mysql.DATETIME(fsp=6) if is_maria else sa.DateTime(timezone=has_zone)
        case Schema(logical="Duration"):
            found = postgresql.INTERVAL() if is_postgres else sa.BigInteger()
        case Schema(logical="uuid"):
            found = postgresql.UUID() if is_postgres else sa.String(36)
        case Schema(logical="json") | Schema(kind="struct" | "array" | "map"):
            found = postgresql.JSONB() if is_postgres else sa.JSON()
        case _:
            found = _SCALARS[schema.kind]()
    return found


_SCALARS: Final[Mapping[str, type[SqlType]]] = {
    "int8": sa.SmallInteger,
    "int16": sa.SmallInteger,
    "int32": sa.Integer,
    "int64": sa.BigInteger,
    "float32": sa.REAL,
    "float64": sa.Double,
    "boolean": sa.Boolean,
    "string": sa.Text,
    "bytes": sa.LargeBinary,
}


def _decimal_type(schema: Schema, dialect: str) -> SqlType:
    scale = schema.parameter("scale")
    # SQLite would keep a float; MariaDB would round what has no declared scale.
    if dialect == "sqlite" or (scale is None and dialect != "postgresql"):
        return sa.Text()
    if scale is None:
        return sa.Numeric()
    return sa.Numeric(int(schema.parameter("connect.decimal.precision") or 38), int(scale))


def schema_of_type(found: SqlType, *, optional: bool) -> Schema:
    """Return the schema of a column's values."""
    text = Schema("string")
    schema = next((schema for kind, schema in _KINDS if isinstance(found, kind)), text)
    if isinstance(found, sa.Numeric) and found.asdecimal and not isinstance(found, sa.Float):
        schema = Schema("string", logical="Decimal")
        if found.scale is not None:
            schema = decimal_schema(found.precision or DECIMAL_DIGITS_MAX, found.scale)
    elif isinstance(found, sa.DateTime) and not found.timezone:
        schema = Schema("int64", logical="LocalTimestamp")
    elif isinstance(found, sa.ARRAY):
        schema = Schema("array", items=schema_of_type(found.item_type, optional=True))
    return replace(schema, optional=optional)


_KINDS: Final[Sequence[tuple[type[SqlType], Schema]]] = (
    (sa.Boolean, Schema("boolean")),
    (sa.SmallInteger, Schema("int16")),
    (sa.BigInteger, Schema("int64")),
    (sa.Integer, Schema("int32")),
    (sa.REAL, Schema("float32")),
    (sa.Float, Schema("float64")),
    (sa.Numeric, Schema("float64")),
    (sa.DateTime, Schema("int64", logical="Timestamp")),
    (sa.Date, Schema("int32", logical="Date")),
    (sa.Time, Schema("int32", logical="Time")),
    (sa.Interval, Schema("int64", logical="Duration")),
    (postgresql.INTERVAL, Schema("int64", logical="Duration")),
    (sa.LargeBinary, Schema("bytes")),
    (sa.types.BINARY, Schema("bytes")),
    (sa.types.VARBINARY, Schema("bytes")),
    (sa.JSON, Schema("string", logical="json")),
    (sa.Uuid, Schema("string", logical="uuid")),
)
