"""Arrow columns: the records of a batch as a `pyarrow.RecordBatch`.

Rule: the columns follow from the schema alone, so two batches of one schema have equal columns,
whatever their values are. pyarrow is imported at the first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from importlib import import_module
from typing import Any

import msgspec

from streamlog.connect.connector_errors import BadRecord, BadRecords
from streamlog.connect.row_schema import Field, Schema, fields_of
from streamlog.record import Record
from streamlog.serdes.erased_types import UserObject, UserValue

_MICROSECOND = timedelta(microseconds=1)
_BYTES = Schema("bytes", optional=True)


def batch_to_arrow(
    records: Sequence[Record[Any, Any]], schema: Schema | None, key_schema: Schema | None
) -> UserObject:
    """Return records as a `pyarrow.RecordBatch`.

    Args:
        records: the records.
        schema: the schema of the values; None if they are bytes.
        key_schema: the schema of the keys; None for text or bytes, by the first key.

    Raises:
        BadRecords: values or keys do not fit their schema, by index.
    """
    pa: UserObject = import_module("pyarrow")

    columns: dict[str, UserObject] = {}
    values = [record.value for record in records]
    if schema is not None and schema.kind == "struct":
        rows = _rows_of(values)
        for field in schema.fields:
            column = [None if row is None else row.get(field.name) for row in rows]
            columns[field.name] = _array(pa, column, field)
    else:
        columns["value"] = _array(pa, values, Field("value", schema or _BYTES))
    # With underscores, because a field of the value may well be named `key` or `offset`.
    keys = [record.key for record in records]
    columns["_key"] = _array(pa, keys, Field("_key", key_schema or _schema_of_keys(keys)))
    times = [record.timestamp for record in records]
    columns["_timestamp"] = pa.array(times, pa.timestamp("us", tz="UTC"))
    columns["_offset"] = pa.array([record.offset for record in records], pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def _rows_of(values: Sequence[UserValue]) -> list[Mapping[str, object] | None]:
    rows, why = list[Mapping[str, object] | None](), dict[int, str]()
    for at, value in enumerate(values):
        try:
            rows.append(None if value is None else fields_of(value))
        except BadRecord as error:
            why[at] = str(error)
    if why:
        raise BadRecords(why)
    return rows


def _schema_of_keys(keys: Sequence[UserValue]) -> Schema:
    first = next((key for key in keys if key is not None), None)
    return Schema("string", optional=True) if isinstance(first, str) else _BYTES


def _array(pa: UserObject, values: Sequence[UserValue], field: Field) -> UserObject:
    declared = field.schema.to_arrow()
    # One pass for a column whose values are plain already, which is the common case.
    plain = plainer(field.schema)
    try:
        return pa.array(values if plain is None else [plain(each) for each in values], declared)
    # Arrow's error names no row. Only now, in the rare case, each value is tried alone.
    except (pa.ArrowException, BadRecord, TypeError, ValueError, OverflowError):
        raise BadRecords(_misfits(pa, values, field, plain)) from None


def _misfits(
    pa: UserObject,
    values: Sequence[UserValue],
    field: Field,
    plain: Callable[[UserValue], UserValue] | None,
) -> dict[int, str]:
    """Return why values do not fit, by index, by trying each alone."""
    declared, why = field.schema.to_arrow(), dict[int, str]()
    for at, value in enumerate(values):
        try:
            pa.array([value if plain is None else plain(value)], declared)
        except (pa.ArrowException, BadRecord, TypeError, ValueError, OverflowError) as error:
            why[at] = f"{field.name} is no {declared}: {error}"
    return why


def plainer(schema: Schema) -> Callable[[UserValue], UserValue] | None:
    """Return the conversion from a row's value to one that Arrow takes; None: none is needed."""
    found: Callable[[UserValue], UserValue] | None = None
    match schema:
        case Schema(logical="uuid"):
            found = str
        case Schema(logical="json"):
            found = _json_text
        case Schema(logical="Duration"):
            found = _microseconds
        case Schema(logical="Decimal") if schema.parameter("scale") is None:
            found = str
        case Schema(kind="struct"):
            found = _plain_struct(schema)
        case Schema(kind="array", items=Schema() as items):
            found = _plain_array(items)
        case Schema(kind="map"):
            found = _plain_map(schema)
        case Schema(kind="string" | "int64", logical=None):
            found = _plain_enum
    return None if found is None else _unless_null(found)


def _unless_null(convert: Callable[[UserValue], UserValue]) -> Callable[[UserValue], UserValue]:
    return lambda value: None if value is None else convert(value)


def _json_text(value: UserValue) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _microseconds(value: timedelta) -> int:
    return value // _MICROSECOND


def _plain_array(items: Schema) -> Callable[[UserValue], UserValue]:
    plain = plainer(items)
    return list if plain is None else lambda value: [plain(each) for each in value]


def _plain_enum(value: UserValue) -> UserValue:
    return value.value if isinstance(value, Enum) else value


def _plain_struct(schema: Schema) -> Callable[[UserValue], UserValue]:
    inner = [(field.name, plainer(field.schema)) for field in schema.fields]

    def convert(value: UserValue) -> UserValue:
        row = fields_of(value)
        return {
            name: row.get(name) if plain is None else plain(row.get(name)) for name, plain in inner
        }

    return convert


def _plain_map(schema: Schema) -> Callable[[UserValue], UserValue]:
    plain = None if schema.items is None else plainer(schema.items)

    def convert(value: UserValue) -> UserValue:
        return [(key, part if plain is None else plain(part)) for key, part in value.items()]

    return convert
