"""Table columns: which columns a table has, which it lacks, and how values go into them.

A schema of Connect becomes a column of the database, and a column of the database a schema. The
types are those that hold every value: what a database has no type for (durations, decimals in
SQLite) becomes a number or text that sorts and reads back.

Rule: a change of a table adds columns and never drops or narrows one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Final, TypeAlias
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.schema import CreateColumn, CreateTable

from streamlog.connect import Field, Schema
from streamlog.connect.row_schema import DECIMAL_DIGITS_MAX, decimal_schema
from streamlog.connectors.sql.database import Database
from streamlog.connectors.sql.row_changes import Adapter
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.erased_types import UserObject

SqlType: TypeAlias = sa.types.TypeEngine[UserObject]
_MICROSECOND: Final = timedelta(microseconds=1)
_KEY_CHARACTERS: Final = 255
"""The length of text in a key of MariaDB, which can't index text without a bound. Its collation is
the binary one, so that `a` and `A` are two keys, as they are in a topic."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What a database says of a table.

    Attributes:
        types: the type of each column, by name, in order.
        primary_key: the columns of its primary key, in order.
        unique: its primary key and every unique index, as sets of columns.
    """

    types: Mapping[str, SqlType]
    primary_key: tuple[str, ...]
    unique: frozenset[frozenset[str]]

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
    return TableColumns(types, key, frozenset(keys))


def _wide(found: SqlType) -> SqlType:
    """Return the type of a column of SQLite, whose integers and floats have 8 bytes each."""
    if isinstance(found, sa.Integer):
        return sa.BigInteger()
    return sa.Double() if isinstance(found, sa.Float) else found


def create_table(
    database: Database, name: tuple[str | None, str], fields: Sequence[Field], keys: Sequence[str]
) -> None:
    """Create a table if it does not exist.

    Args:
        database: where.
        name: the database's schema, or None for its default, and the table's name.
        fields: the columns.
        keys: which of them are the primary key.
    """
    schema, table = name
    columns = [_column(database, each, is_key=each.name in keys) for each in fields]
    made = sa.Table(table, sa.MetaData(), *columns, schema=schema)
    with database.engine.begin() as connection:
        connection.execute(CreateTable(made, if_not_exists=True))


def add_columns(database: Database, name: tuple[str | None, str], fields: Sequence[Field]) -> None:
    """Add columns to a table; rows that it has get NULL, so each column must allow that.

    Raises:
        ConfigError: a field may not be null and has no default.
    """
    schema, table = name
    quoted = database.quoted(schema or "", table)
    for each in fields:
        if not each.schema.optional and each.default is None:
            raise ConfigError(
                f"table {table} lacks column {each.name}, which can't be added: its rows would "
                "have no value for it; make the field optional or give it a default"
            )
        # Rows that are there get NULL, even where a default says what a new one would have.
        optional = replace(each, schema=replace(each.schema, optional=True))
        column = _column(database, optional, is_key=False)
        text = CreateColumn(column).compile(dialect=database.engine.dialect)
        with database.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {quoted} ADD COLUMN {text}")


def _column(database: Database, field: Field, *, is_key: bool) -> sa.Column[UserObject]:
    found = type_of_schema(field.schema, database.engine.dialect.name)
    if is_key and database.mark != "?" and isinstance(found, sa.Text | sa.LargeBinary):
        found = _bounded(found, database.engine.dialect.name)
    return sa.Column(
        field.name,
        found,
        primary_key=is_key,
        nullable=field.schema.optional and not is_key,
        # An integer key would number its rows by itself, but the key comes from the record.
        autoincrement=False,
    )


def _bounded(found: SqlType, dialect: str) -> SqlType:
    if dialect == "postgresql":
        return found
    is_text = isinstance(found, sa.Text)
    return sa.String(_KEY_CHARACTERS, "utf8mb4_bin") if is_text else sa.VARBINARY(_KEY_CHARACTERS)


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


def adapter_of(found: SqlType, dialect: str) -> Adapter:
    """Return what makes a value fit for a column."""
    if isinstance(found, sa.JSON):
        return Adapter(_to_json)
    if isinstance(found, sa.ARRAY):
        return Adapter(_to_array)
    if dialect == "postgresql":
        return Adapter(_plain, _PLAIN_TYPES)
    return Adapter(_to_text_or_number, _BASE_TYPES)


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
