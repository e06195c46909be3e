"""Columns that hold the rows of two schemas, and nothing that they would change."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamlog.connectors.tables.column_types import fitted_batch, united_columns

INNER = pa.struct([pa.field("x", pa.int32(), nullable=False), ("y", pa.string())])
WIDER = pa.struct([("z", pa.bool_()), ("x", pa.int64())])


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.int64(), pa.string(), None),
        (pa.string(), pa.binary(), None),
        (pa.bool_(), pa.int64(), None),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), None),
        (pa.decimal128(6, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.decimal128(6, 4), pa.decimal128(12, 2), None),
        (pa.null(), INNER, pa.struct([("x", pa.int32()), ("y", pa.string())])),
        (INNER, WIDER, pa.struct([("x", pa.int64()), ("y", pa.string()), ("z", pa.bool_())])),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int32()), pa.int32(), None),
        (pa.map_(pa.string(), INNER), pa.map_(pa.string(), pa.string()), None),
    ],
)
def test_types_of_both(one: pa.DataType, other: pa.DataType, both: pa.DataType | None) -> None:
    for first, second in ((one, other), (other, one)):
        found = united_columns(pa.schema([("a", first)]), pa.schema([("a", second)]))
        if both is None or found is None:
            assert found is both
        elif first is one:
            assert found.field("a").type == both


def test_columns_are_in_the_order_in_which_they_appear() -> None:
    one, other = pa.schema([("b", pa.int64()), ("a", pa.int32())]), pa.schema([("c", pa.int8())])
    columns = united_columns(one, other)
    assert columns is not None
    assert columns.names == ["b", "a", "c"]
    rows = pa.RecordBatch.from_pylist([{"c": 5}], schema=other)
    assert fitted_batch(rows, columns).to_pylist() == [{"b": None, "a": None, "c": 5}]
