"""Lake columns: laws of types that a table can take, by random types and values."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import Schema
from streamlog.connectors.lakes.lake_columns import (
    COLUMNS_MAX,
    fitted_rows,
    merged_columns,
    plain_columns,
    schema_of_values,
    typed_rows,
)
from streamlog.errors import ConfigError

SCALARS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
    pa.decimal128(9, 2),
    pa.decimal128(12, 2),
    pa.decimal128(12, 4),
]
EDGES: dict[str, list[Any]] = {
    **{f"int{bits}": [-(2 ** (bits - 1)), -1, 0, 2 ** (bits - 1) - 1] for bits in (8, 16, 32, 64)},
    "float": [0.5, float(2**24 - 1), -0.0],
    "double": [0.1, 1e300, -0.0],
    "string": ["", "a"],
    "binary": [b"", b"\xff"],
    "bool": [True, False],
    "date32[day]": [0, 100_000],
    "timestamp[us]": [0, -1, 2**50],
    "timestamp[us, tz=UTC]": [0, -1, 2**50],
    "decimal128(9, 2)": [Decimal("9999999.99"), Decimal("-0.01")],
    "decimal128(12, 2)": [Decimal("9999999999.99"), Decimal("-0.01")],
    "decimal128(12, 4)": [Decimal("99999999.9999"), Decimal("-0.0001")],
}
names = st.sampled_from("abcd")


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.dictionaries(names, inner, min_size=1, max_size=3)
    return st.one_of(
        structs.map(lambda fields: pa.struct([*fields.items()])),
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    )


types = st.recursive(st.sampled_from(SCALARS), nested, max_leaves=5)
schemas = st.dictionaries(names, types, min_size=1).map(lambda fields: pa.schema([*fields.items()]))


def same(kind: pa.DataType) -> pa.DataType:
    return kind


def merge(table: pa.Schema | None, rows: pa.Schema) -> pa.Schema:
    found = merged_columns(table, rows, same, "t")
    assert isinstance(found, pa.Schema)
    return found


def edges(kind: pa.DataType) -> list[Any]:
    """Return values of a type, its extremes among them."""
    if pa.types.is_struct(kind):
        return [None, *({each.name: edges(each.type)[-1] for each in kind},)]
    if pa.types.is_list(kind):
        return [None, [], edges(kind.value_type)]
    if pa.types.is_map(kind):
        return [None, [], [("k", edges(kind.item_type)[-1])]]
    return [None, *EDGES[str(kind)]]


def table_of(schema: pa.Schema) -> pa.Table:
    columns = [edges(each.type) for each in schema]
    length = max(map(len, columns))
    arrays = [
        pa.array([column[at % len(column)] for at in range(length)], each.type)
        for column, each in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def has(wide: Any, narrow: Any) -> bool:
    """Return whether a value has everything that another has; what it lacks is null."""
    if isinstance(narrow, dict):
        return all(has(wide.get(name), each) for name, each in narrow.items())
    if isinstance(narrow, list | tuple) and not isinstance(narrow, str):
        return len(wide) == len(narrow) and all(map(has, wide, narrow))
    return bool(wide == narrow)


@given(schemas)
def test_a_table_takes_the_rows_that_it_was_made_of(rows: pa.Schema) -> None:
    table = merge(None, rows)
    assert merge(table, rows) == table
    assert plain_columns(table) == table


@given(schemas, schemas)
def test_what_a_table_takes_it_holds_without_a_change(before: pa.Schema, after: pa.Schema) -> None:
    table = merge(None, before)
    try:
        wider = merge(table, after)
    except ConfigError:
        return
    # Nothing is lost of the table, and a second time nothing changes.
    assert [each.name for each in wider][: len(table)] == table.names
    assert merge(wider, after) == merge(wider, before) == wider
    for schema in (before, after):
        rows = table_of(schema)
        fitted = fitted_rows(rows, wider, "t")
        assert fitted.schema == wider
        for one, other in zip(fitted.to_pylist(), rows.to_pylist(), strict=True):
            assert has(one, other)


@pytest.mark.parametrize("table", SCALARS, ids=str)
@pytest.mark.parametrize("row", SCALARS, ids=str)
def test_a_scalar_is_taken_exactly_if_arrow_converts_its_extremes_and_back(
    table: pa.DataType, row: pa.DataType
) -> None:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    is_number = any(is_it(row) for is_it in kinds) and any(is_it(table) for is_it in kinds)
    # Between numbers and decimals, and from floats to integers, nothing is converted.
    crosses = pa.types.is_decimal(row) != pa.types.is_decimal(table) or (
        pa.types.is_floating(row) and pa.types.is_integer(table)
    )
    expected = table == row
    if is_number and not crosses and not expected:
        extremes = [each for each in EDGES[str(row)] if each is not None]
        if pa.types.is_floating(row):
            extremes.append(1e300 if row == pa.float64() else 1e38)
            extremes.append(0.1)
        values = pa.array(extremes, row)
        try:
            expected = values.cast(table).cast(row) == values
        except pa.ArrowInvalid:
            expected = False
    if expected:
        assert merge(pa.schema([("a", table)]), pa.schema([("a", row)])).field("a").type == table
    else:
        with pytest.raises(ConfigError, match="does not hold every"):
            merge(pa.schema([("a", table)]), pa.schema([("a", row)]))


def test_refusals_name_the_table_and_what_to_do() -> None:
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with pytest.raises(ConfigError, match=r"table t can't take .* column id may not be null"):
        merge(required, pa.schema([("a", pa.int64())]))
    with pytest.raises(ConfigError, match=re.escape("1 without a value")):
        fitted_rows(pa.table({"id": [1, None]}), required, "t")
    with pytest.raises(ConfigError, match="several columns are named 'id' but for case"):
        merge(required, pa.schema([("id", pa.int64()), ("Id", pa.int64())]))
    with pytest.raises(ConfigError, match=f"more than {COLUMNS_MAX}"):
        merge(None, pa.schema([(f"c{at}", pa.int8()) for at in range(COLUMNS_MAX + 1)]))
    deep = pa.struct([("b", pa.list_(pa.struct([("c", pa.int64())])))])
    other = pa.struct([("b", pa.list_(pa.struct([("c", pa.string())])))])
    with pytest.raises(ConfigError, match=re.escape("column a.b[].c is int64")):
        merge(pa.schema([("a", deep)]), pa.schema([("a", other)]))
    with pytest.raises(ConfigError, match="a is a struct without fields"):
        merge(None, pa.schema([("a", pa.struct([]))]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)


@given(st.lists(st.dictionaries(names, json_values, max_size=4) | st.none(), min_size=1))
def test_rows_without_a_schema_fit_the_one_that_they_get(
    rows: list[dict[str, Any] | None],
) -> None:
    typed, schema = typed_rows(rows, Schema("struct"))
    assert [row is None for row in typed] == [row is None for row in rows]
    for field in schema.fields:
        column = [None if row is None else row.get(field.name) for row in typed]
        array = pa.array(column, field.schema.to_arrow())
        assert array.to_pylist() == column
        # Where they come again the types are known, and the rows are the same.
    assert typed_rows(rows, schema)[0] == typed


def test_types_of_values() -> None:
    assert schema_of_values([None]) is None
    for values, kind in (([1, None], "int64"), ([1, 2.5], "float64"), (["a"], "string")):
        found = schema_of_values(values)
        assert found is not None
        assert (found.kind, found.logical, found.optional) == (kind, None, True)
    for values in ([1, "a"], [True, 1], [[1]], [{"a": 1}], [2**63]):
        found = schema_of_values(values)
        assert found is not None
        assert found.logical == "json"
