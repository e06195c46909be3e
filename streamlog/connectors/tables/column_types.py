"""Column types: whether one Arrow type holds every value of another.

Rule: no value is changed or lost by a wider type. An int64 is no float64, which has 53 bits of it;
a number is no text. Every column may be null, also within structs and lists: whether a field is
required is not a matter of the file. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

from streamlog.serdes.erased_types import UserObject

_EXACT_BITS: Final = {64: 53, 32: 24, 16: 11}
"""By the width of a float in bits: the width of the integers that it holds exactly."""


def holds(of: UserObject, table: UserObject, row: UserObject) -> bool:
    """Return whether a scalar column holds every value of another type; `of` is `pyarrow.types`."""
    if of.is_nested(table) or of.is_nested(row):
        return False
    if of.is_integer(row) and of.is_integer(table):
        found = row.bit_width <= table.bit_width
    elif of.is_floating(table) and of.is_integer(row):
        found = row.bit_width <= _EXACT_BITS[table.bit_width]
    elif of.is_floating(table) and of.is_floating(row):
        found = row.bit_width <= table.bit_width
    elif of.is_decimal(row) and of.is_decimal(table):
        digits = table.precision - table.scale
        found = table.scale >= row.scale and digits >= row.precision - row.scale
    elif of.is_timestamp(row) and of.is_timestamp(table):
        found = row.unit == table.unit and (row.tz is None) == (table.tz is None)
    else:
        kinds = (is_text, is_binary)
        found = table == row or any(is_it(of, table) and is_it(of, row) for is_it in kinds)
    return bool(found)


def is_list(of: UserObject, kind: UserObject) -> bool:
    """Whether a type is a list of any length; `of` is `pyarrow.types`, here and below."""
    return bool(of.is_list(kind) or of.is_large_list(kind))


def is_text(of: UserObject, kind: UserObject) -> bool:
    """Whether a type is text."""
    return bool(of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind))


def is_binary(of: UserObject, kind: UserObject) -> bool:
    """Whether a type is bytes of any length."""
    return bool(of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind))


def united_columns(one: UserObject, other: UserObject) -> UserObject | None:
    """Return the columns that hold the rows of two `pyarrow.Schema`s; None if there are none.

    They are in the order in which they first appear, and may all be null.
    """
    pa: UserObject = import_module("pyarrow")
    fields = _united_fields(pa, list(one), list(other))
    return None if fields is None else pa.schema(fields)


def _united_fields(
    pa: UserObject, one: Sequence[UserObject], other: Sequence[UserObject]
) -> list[UserObject] | None:
    kinds = {each.name: _united_type(pa, each.type, each.type) for each in one}
    for each in other:
        kinds[each.name] = _united_type(pa, kinds.get(each.name, each.type), each.type)
        if kinds[each.name] is None:
            return None
    return [pa.field(name, kind) for name, kind in kinds.items()]


def _united_type(pa: UserObject, one: UserObject, other: UserObject) -> UserObject | None:
    of = pa.types
    if of.is_struct(one) and of.is_struct(other):
        fields = _united_fields(pa, list(one), list(other))
        return None if fields is None else pa.struct(fields)
    if is_list(of, one) and is_list(of, other):
        item = _united_type(pa, one.value_type, other.value_type)
        return None if item is None else pa.list_(item)
    if of.is_map(one) and of.is_map(other):
        key = _united_type(pa, one.key_type, other.key_type)
        item = _united_type(pa, one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    # Without any value, a column has no type yet.
    if of.is_null(other) or holds(of, one, other):
        return one
    if of.is_null(one):
        return _united_type(pa, other, other)
    return other if holds(of, other, one) else None


def fitted_batch(rows: UserObject, columns: UserObject) -> UserObject:
    """Return a `pyarrow.RecordBatch` with columns of `united_columns`; what it lacks is null."""
    pa: UserObject = import_module("pyarrow")
    if rows.schema.equals(columns):
        return rows
    arrays: list[UserObject] = []
    for field in columns:
        at = rows.schema.get_field_index(field.name)
        found = pa.nulls(len(rows), field.type) if at < 0 else rows.column(at).cast(field.type)
        arrays.append(found)
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
