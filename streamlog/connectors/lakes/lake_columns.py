"""Lake columns: which columns a table of a lake has, and how they follow the rows.

A table never loses a column and never changes a type. What a row may bring:

- a column that the table lacks: it is added, also inside structs;
- a narrower type, all of whose values the column holds (int32 into int64): it is converted;
- any other type: an error that has both schemas, since no value may be changed or lost.

Rule: every column may be null, so a type that loses a field can go on being written. No I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from importlib import import_module
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from streamlog.connect import Field, Schema
from streamlog.connectors.tables.column_types import holds, is_binary, is_list, is_text
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.erased_types import UserObject

StoredType: TypeAlias = Callable[[UserObject], UserObject]
"""From the Arrow type of a scalar to the one that it has in a format."""

COLUMNS_MAX: Final = 2_000
"""The most columns of a table; rows whose names are data, such as user ids, would add for ever."""
_INT64: Final = range(-(2**63), 2**63)
_SCALARS: Final[Mapping[type, Schema]] = {
    kind: replace(Schema.of(kind), optional=True)
    for kind in (bool, int, float, str, bytes, date, Decimal, UUID)
}
_JSON: Final = Schema("string", logical="json", optional=True)
_TIMESTAMP: Final = Schema("int64", logical="Timestamp", optional=True)
_LOCAL: Final = Schema("int64", logical="LocalTimestamp", optional=True)


class _Misfit(Exception):
    """A column's type does not hold a row's; the text is the column's path."""


def merged_columns(
    table: UserObject, rows: UserObject, stored: StoredType, name: str
) -> UserObject:
    """Return the columns that a table needs in order to take rows, as a `pyarrow.Schema`.

    Args:
        table: the columns that it has; None for a table that is to be created.
        rows: the columns of the rows.
        stored: the type that a scalar has in the format.
        name: the table's name, for errors.

    Raises:
        ConfigError: a column has a type that does not hold the rows', two names differ in case
            only, or there are too many columns.
    """
    pa: UserObject = import_module("pyarrow")
    known: list[UserObject] = [] if table is None else list(table)
    try:
        fields = _merged_fields(pa, known, list(rows), stored)
    except _Misfit as error:
        raise ConfigError(
            f"table {name} can't take the rows: {error}. The table has ({_shown(known)}), the rows "
            f"({_shown(rows)}); change the table's type by hand if the format allows it, or write "
            "the new type to another table"
        ) from None
    if len(fields) > COLUMNS_MAX:
        raise ConfigError(
            f"table {name} would have {len(fields)} columns, more than {COLUMNS_MAX}: names that "
            "are data belong in a map or in JSON"
        )
    # Spark and most catalogues do not tell case apart, and could not read such a table.
    twice = [each for each, n in Counter(field.name.lower() for field in fields).items() if n > 1]
    if twice:
        raise ConfigError(f"table {name}: several columns are named {twice[0]!r} but for case")
    return pa.schema(fields)


def plain_columns(columns: UserObject) -> UserObject:
    """Return a `pyarrow.Schema` without the types that differ in memory alone, such as large_list.

    Two descriptions of the same columns are equal then.
    """
    pa: UserObject = import_module("pyarrow")
    return pa.schema([each.with_type(_plain_type(pa, each.type)) for each in columns])


def _plain_type(pa: UserObject, kind: UserObject) -> UserObject:
    of = pa.types
    if of.is_struct(kind):
        found = pa.struct([each.with_type(_plain_type(pa, each.type)) for each in kind])
    elif is_list(of, kind):
        found = pa.list_(kind.value_field.with_type(_plain_type(pa, kind.value_type)))
    elif of.is_map(kind):
        item = kind.item_field.with_type(_plain_type(pa, kind.item_type))
        found = pa.map_(_plain_type(pa, kind.key_type), item)
    elif is_text(of, kind):
        found = pa.string()
    else:
        found = pa.binary() if is_binary(of, kind) else kind
    return found


def _shown(fields: Sequence[UserObject]) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in fields)


def _merged_fields(
    pa: UserObject,
    table: Sequence[UserObject],
    rows: Sequence[UserObject],
    stored: StoredType,
    path: str = "",
) -> list[UserObject]:
    brought = {each.name: each for each in rows}
    fields: list[UserObject] = []
    for field in table:
        row = brought.pop(field.name, None)
        if row is None and not field.nullable:
            raise _Misfit(f"column {path}{field.name} may not be null, and the rows have none")
        kind = field.type
        if row is not None:
            kind = _merged_type(pa, field.type, row.type, stored, f"{path}{field.name}")
        fields.append(pa.field(field.name, kind, nullable=field.nullable))
    for row in brought.values():
        # Without any value it has no type yet; the column comes with the first one.
        if pa.types.is_null(row.type):
            continue
        kind = _new_type(pa, row.type, stored, f"{path}{row.name}")
        fields.append(pa.field(row.name, kind, nullable=True))
    return fields


def _merged_type(
    pa: UserObject, table: UserObject, row: UserObject, stored: StoredType, path: str
) -> UserObject:
    of = pa.types
    # A narrower type that the format lacks comes back from it as a wider one.
    if of.is_null(row) or holds(of, table, row) or holds(of, table, stored(row)):
        return table
    if of.is_struct(table) and of.is_struct(row):
        found = pa.struct(_merged_fields(pa, list(table), list(row), stored, f"{path}."))
    elif is_list(of, table) and is_list(of, row):
        item = _merged_type(pa, table.value_type, row.value_type, stored, f"{path}[]")
        found = pa.list_(table.value_field.with_type(item))
    elif of.is_map(table) and of.is_map(row):
        key = _merged_type(pa, table.key_type, row.key_type, stored, f"{path} (keys)")
        item = _merged_type(pa, table.item_type, row.item_type, stored, f"{path}[]")
        found = pa.map_(key, table.item_field.with_type(item))
    else:
        raise _Misfit(f"column {path} is {table}, which does not hold every {row}")
    return found


def _new_type(pa: UserObject, row: UserObject, stored: StoredType, path: str) -> UserObject:
    """Return the type of a new column: the rows', where everything inside may be null."""
    of = pa.types
    if of.is_struct(row):
        if not list(row):
            raise _Misfit(f"column {path} is a struct without fields, which Parquet can't hold")
        return pa.struct(_merged_fields(pa, [], list(row), stored, f"{path}."))
    if is_list(of, row):
        return pa.list_(_new_type(pa, row.value_type, stored, f"{path}[]"))
    if of.is_map(row):
        key = _new_type(pa, row.key_type, stored, f"{path} (keys)")
        return pa.map_(key, _new_type(pa, row.item_type, stored, f"{path}[]"))
    return stored(row)


def fitted_rows(rows: UserObject, columns: UserObject, name: str) -> UserObject:
    """Return rows with a table's columns, in its order; null where they have none.

    Args:
        rows: a `pyarrow.Table`.
        columns: the table's columns, from `merged_columns`.
        name: the table's name, for errors.

    Raises:
        ConfigError: a column that may not be null would be.
    """
    pa: UserObject = import_module("pyarrow")
    arrays: list[UserObject] = []
    for field in columns:
        at = rows.schema.get_field_index(field.name)
        if at < 0:
            arrays.append(pa.nulls(len(rows), field.type))
            continue
        column = rows.column(at)
        if column.null_count and not field.nullable:
            raise ConfigError(
                f"column {field.name} of table {name} may not be null, and the rows have "
                f"{column.null_count} without a value: let the column be null (in SQL, ALTER "
                f"TABLE ... ALTER COLUMN {field.name} DROP NOT NULL)"
            )
        arrays.append(column.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=columns)


def typed_rows(
    rows: Sequence[Mapping[str, object] | None], known: Schema
) -> tuple[list[Mapping[str, object] | None], Schema]:
    """Return rows that have no schema, and the schema that they get.

    What is nested or of several types is text: JSON, and a text as it is.

    Args:
        rows: the rows; None for a record without a value.
        known: the columns that are known already, which keep their types.
    """
    columns: dict[str, list[object]] = {}
    for row in rows:
        for name, value in (row or {}).items():
            columns.setdefault(name, []).append(value)
    fields: dict[str, Schema] = {}
    texts: set[str] = set()
    for name, values in columns.items():
        # The table's type counts, even where these values alone would have another.
        field = known.field(name)
        schema = schema_of_values(values) if field is None else field.schema
        # A column without any value has no type yet; it comes with its first value.
        if schema is None:
            continue
        # As text it is written, and as text the column is known from then on.
        logical = None if schema.logical == "json" else schema.logical
        fields[name] = replace(schema, optional=True, logical=logical)
        if schema.kind == "string" and not all(isinstance(each, str) for each in values):
            texts.add(name)
    found = Schema("struct", fields=tuple(Field(*each) for each in fields.items()))
    if not texts:
        return [*rows], found
    changed = [
        row and {name: _text(value) if name in texts else value for name, value in row.items()}
        for row in rows
    ]
    return changed, found


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Decimal | UUID):
        return str(value)
    return msgspec.json.encode(value, enc_hook=str).decode()


def schema_of_values(values: Sequence[object]) -> Schema | None:
    """Return a schema that holds all values; None if all are null.

    Integers and floats together are floats, as JSON does not tell them apart. What is nested or of
    several types is JSON.
    """
    # By type, not by isinstance: True is an int, and a column of both is neither.
    present = [value for value in values if value is not None]
    kinds = {type(value) for value in present}
    if not kinds:
        return None
    found = _JSON
    if kinds == {datetime}:
        zones = {isinstance(each, datetime) and each.tzinfo is not None for each in present}
        found = _JSON if len(zones) > 1 else _TIMESTAMP if zones.pop() else _LOCAL
    elif kinds == {int, float}:
        found = _SCALARS[float]
    elif len(kinds) == 1 and (kinds != {int} or all(value in _INT64 for value in present)):
        found = _SCALARS.get(kinds.pop(), _JSON)
    return found
