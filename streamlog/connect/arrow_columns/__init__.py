"""Arrow columns: the records of a batch as a `pyarrow.RecordBatch`.

Rule: the columns follow from the schema alone, so two batches of one schema have equal columns,
whatever their values are. pyarrow is imported at the first use, and pandas by pyarrow once it
converts Python's values itself: so columns of plain scalars are made of buffers (`plain_array`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from importlib import import_module
from operator import attrgetter, methodcaller
from types import NoneType
from typing import Final, TypeGuard

import msgspec

from streamlog.connect.arrow_columns.value_buffers import (
    ValueBuffers,
    contents,
    floats,
    texts,
    truths,
    whole_numbers,
)
from streamlog.connect.connector_errors import BadRecord, BadRecords
from streamlog.connect.row_schema import Field, Schema, attributes_of, fields_of
from streamlog.durations import EPOCH, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN, moment
from streamlog.records.record_columns import all_of_type, called, first_outside
from streamlog.serdes.erased_types import UserObject, UserValue

_MICROSECOND = timedelta(microseconds=1)
_BYTES = Schema("bytes", optional=True)
_INT: Final[frozenset[type]] = frozenset({int})
_BUFFERS: Final[Mapping[str, Callable[[Sequence[UserValue]], ValueBuffers | None]]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), whole_numbers),
    **dict.fromkeys(("float32", "float64"), floats),
    "boolean": truths,
    "string": texts,
    "bytes": contents,
}
"""What makes buffers of plain values, by the kind of their schema."""
_WIDER: Final[Mapping[str, Schema]] = {
    **dict.fromkeys(("int8", "int16", "int32"), Schema("int64")),
    "float32": Schema("float64"),
}
"""The kinds whose buffers are those of another one."""
_PLAIN_KINDS: Final[Mapping[str, frozenset[type]]] = {
    "string": frozenset({str, NoneType}),
    "int64": frozenset({int, NoneType}),
}
"""The classes of plain values, of those kinds whose values may be enumerations."""


def batch_to_arrow(
    values: Sequence[UserValue],
    schema: Schema | None,
    *,
    keys: Sequence[UserValue],
    key_schema: Schema | None,
    times: Sequence[int] | Sequence[datetime],
    offsets: Sequence[int],
) -> UserObject:
    """Return the records of a batch as a `pyarrow.RecordBatch`.

    Args:
        values: the values.
        schema: their schema; None if they are bytes.
        keys: the keys.
        key_schema: their schema; None for text or bytes, by the first key.
        times: milliseconds since 1970, or datetimes.
        offsets: the offsets.

    Raises:
        BadRecords: values or keys do not fit their schema, by index.
        ConfigError: a time is outside of the years 1 to 9999.
    """
    pa: UserObject = import_module("pyarrow")

    columns: dict[str, UserObject] = {}
    if schema is not None and schema.kind == "struct":
        column_of = _columns_of(values)
        for field in schema.fields:
            columns[field.name] = _array(pa, column_of(field.name), field)
    else:
        columns["value"] = _array(pa, values, Field("value", schema or _BYTES))
    # With underscores, because a field of the value may well be named `key` or `offset`.
    columns["_key"] = _array(pa, keys, Field("_key", key_schema or _schema_of_keys(keys)))
    columns["_timestamp"] = times_array(pa, times)
    columns["_offset"] = _int64s(pa, pa.int64(), offsets)
    return pa.RecordBatch.from_pydict(columns)


def _columns_of(values: Sequence[UserValue]) -> Callable[[str], Sequence[UserValue]]:
    """Return what gives the column of a field, by name; null where a value is or lacks it.

    Raises:
        BadRecords: values have no fields, by index.
    """
    kinds = {*map(type, values)} - {NoneType}
    kind = kinds.pop() if len(kinds) == 1 else None
    # Nearly always all values are of one class, and then no dict is made of each of them.
    if kind is dict:
        return lambda name: called(methodcaller("get", name), values)
    names = None if kind is None or issubclass(kind, Mapping) else attributes_of(kind)
    if names is None:
        rows = _rows_of(values)
        return lambda name: [None if row is None else row.get(name) for row in rows]
    nothing = [None] * len(values)
    return lambda name: called(attrgetter(name), values) if name in names else nothing


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


def times_array(pa: UserObject, times: Sequence[int] | Sequence[datetime]) -> UserObject:
    """Return the times of records as a `pyarrow.Array` of microseconds, UTC.

    Raises:
        ConfigError: a time is outside of the years 1 to 9999.
    """
    microseconds = pa.timestamp("us", tz="UTC")
    if not _are_ms(times):
        given: Sequence[UserValue] = times
        return _int64s(pa, microseconds, [(each - EPOCH) // _MICROSECOND for each in given])
    wrong = first_outside(times, TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX)
    if wrong >= 0:
        # It has no datetime, which is the error.
        moment(times[wrong])
    return _int64s(pa, pa.timestamp("ms", tz="UTC"), times).cast(microseconds)


def _are_ms(times: Sequence[int] | Sequence[datetime]) -> TypeGuard[Sequence[int]]:
    return all_of_type(times, _INT)


def _int64s(pa: UserObject, kind: UserObject, numbers: Sequence[int]) -> UserObject:
    """Return an array of a type whose values are numbers of 64 bits."""
    made = whole_numbers(numbers)
    if made is None:
        return pa.array(numbers, pa.int64()).cast(kind)
    return _of_buffers(pa, kind, len(numbers), made)


def _of_buffers(pa: UserObject, kind: UserObject, count: int, made: ValueBuffers) -> UserObject:
    buffers = [made.valid, made.data] if made.ends is None else [made.valid, made.ends, made.data]
    wrapped = [None if each is None else pa.py_buffer(each) for each in buffers]
    return pa.Array.from_buffers(kind, count, wrapped, made.null_count)


def plain_array(pa: UserObject, values: Sequence[UserValue], schema: Schema) -> UserObject | None:
    """Return a column of plain scalars as a `pyarrow.Array`; None if it has any other value.

    Args:
        pa: pyarrow.
        values: the values.
        schema: their schema.
    """
    make = None if schema.logical is not None else _BUFFERS.get(schema.kind)
    try:
        made = None if make is None else make(values)
    # Half of a surrogate pair, which the conversion by pyarrow names with its record.
    except UnicodeEncodeError:
        return None
    if made is None:
        return None
    declared = schema.to_arrow()
    wider = _WIDER.get(schema.kind)
    if wider is None:
        return _of_buffers(pa, declared, len(values), made)
    wide = _of_buffers(pa, wider.to_arrow(), len(values), made)
    try:
        return wide.cast(declared)
    except pa.ArrowInvalid:
        return None


def _schema_of_keys(keys: Sequence[UserValue]) -> Schema:
    first = next((key for key in keys if key is not None), None)
    return Schema("string", optional=True) if isinstance(first, str) else _BYTES


def _array(pa: UserObject, values: Sequence[UserValue], field: Field) -> UserObject:
    found = plain_array(pa, values, field.schema)
    if found is not None:
        return found
    declared = field.schema.to_arrow()
    # One pass for a column whose values are plain already, which is the common case.
    plain = None if _is_plain(values, field.schema) else plainer(field.schema)
    try:
        return pa.array(values if plain is None else [plain(each) for each in values], declared)
    # Arrow's error names no row. Only now, in the rare case, each value is tried alone.
    except (pa.ArrowException, BadRecord, TypeError, ValueError, OverflowError):
        raise BadRecords(_misfits(pa, values, field, plain)) from None


def _is_plain(values: Sequence[UserValue], schema: Schema) -> bool:
    """Whether a column of texts or numbers has no enumerations."""
    kinds = _PLAIN_KINDS.get(schema.kind) if schema.logical is None else None
    return kinds is not None and all_of_type(values, kinds)


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
