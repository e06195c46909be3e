"""Schemas of rows: from types, to Arrow and back, and values under them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from streamlog.connect import BadRecord, BadRecords, Batch, Field, Schema, TopicPartition, fields_of
from streamlog.connect.row_schema import decimal_schema
from streamlog.record import Record
from streamlog.replace import replace
from streamlog.serdes.derived.type_description import Digits

AT = TopicPartition("rows", 0)
NOW = datetime(2025, 1, 31, 12, tzinfo=UTC)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    sku: str
    count: int


@dataclass
class Row:
    number: int
    ratio: float
    flag: bool
    text: str | None
    blob: bytes
    price: Annotated[Decimal, Digits(12, 2)]
    at: datetime
    local: Annotated[datetime, msgspec.Meta(tz=False)]
    day: date
    clock: time
    took: timedelta
    id: UUID
    color: Color
    item: Item
    items: list[Item] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    either: int | str = 0


class Model(BaseModel):
    sku: str
    count: int = 1


class Struct(msgspec.Struct):
    sku: str
    count: int = 1


rows = st.builds(
    Row,
    number=st.integers(-(2**63), 2**63 - 1),
    ratio=st.floats(allow_nan=False),
    flag=st.booleans(),
    text=st.none() | st.text(),
    blob=st.binary(),
    price=st.decimals("-9999999999.99", "9999999999.99", places=2),
    at=st.datetimes(min_value=datetime(1700, 1, 1), max_value=datetime(2200, 1, 1)).map(  # noqa: DTZ001
        lambda at: at.replace(tzinfo=UTC)
    ),
    local=st.datetimes(min_value=datetime(1700, 1, 1), max_value=datetime(2200, 1, 1)),  # noqa: DTZ001
    day=st.dates(),
    clock=st.times(),
    took=st.timedeltas(timedelta(days=-90_000), timedelta(days=90_000)),
    id=st.uuids(),
    color=st.sampled_from(Color),
    item=st.builds(Item, st.text(), st.integers(0, 9)),
    items=st.lists(st.builds(Item, st.text(), st.integers(0, 9)), max_size=3),
    counts=st.dictionaries(st.text(), st.integers(0, 9), max_size=3),
    either=st.integers(0, 9) | st.text(),
)


def batch_of(values: list[Any], schema: Schema | None, key: Any = "k") -> Batch[Any, Any]:
    records = [Record(key, value, NOW, (), "rows", 0, at) for at, value in enumerate(values)]
    return Batch(AT, records, next_offset=len(values), schema=schema)


@given(st.lists(rows, min_size=1, max_size=3))
def test_rows_of_a_declared_type_are_equal_in_arrow(values: list[Row]) -> None:
    found = batch_of(values, Schema.of(Row)).arrow().to_pylist()
    for row, value in zip(found, values, strict=True):
        assert row["number"] == value.number
        assert row["ratio"] == value.ratio
        assert row["flag"] is value.flag
        assert row["text"] == value.text
        assert row["blob"] == value.blob
        assert row["price"] == value.price
        assert row["at"] == value.at
        assert row["local"] == value.local
        assert row["day"] == value.day
        assert row["clock"] == value.clock
        assert row["took"] == value.took // timedelta(microseconds=1)
        assert row["id"] == str(value.id)
        assert row["color"] == value.color.value
        assert row["item"] == {"sku": value.item.sku, "count": value.item.count}
        assert [Item(**item) for item in row["items"]] == value.items
        assert dict(row["counts"]) == value.counts
        assert msgspec.json.decode(row["either"]) == value.either
        assert (row["_key"], row["_timestamp"]) == ("k", NOW)


@pytest.mark.parametrize(
    "kind", [Row, Item, Model, Struct, list[int], dict[str, float], str | None]
)
def test_a_schema_comes_back_from_arrow(kind: Any) -> None:
    schema = Schema.of(kind)
    assert Schema.of_arrow(schema.to_arrow()).to_arrow() == schema.to_arrow()


@pytest.mark.parametrize(
    "declared",
    [
        pa.int8(),
        pa.uint8(),
        pa.uint16(),
        pa.float16(),
        pa.large_string(),
        pa.large_binary(),
        pa.binary(4),
        pa.timestamp("ms"),
        pa.timestamp("ns", "Europe/Berlin"),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.field("item", pa.int32(), nullable=False)),
        pa.map_(pa.string(), pa.date32()),
        pa.decimal128(10, 3),
        pa.null(),
    ],
    ids=str,
)
def test_every_type_of_arrow_has_a_schema_that_arrow_takes(declared: Any) -> None:
    assert Schema.of_arrow(Schema.of_arrow(declared).to_arrow()) is not None


def test_a_recursive_type_is_json_where_it_repeats() -> None:
    assert Schema.of(Tree).field("left") == Field("left", Schema("string", True, logical="json"))


@dataclass
class Tree:
    name: str
    left: Tree | None = None


def test_a_decimal_without_digits_is_text_in_arrow() -> None:
    schema = Schema("struct", fields=(Field("price", Schema.of(Decimal)),))
    assert batch_of([{"price": Decimal("1.50")}], schema).arrow().to_pylist()[0]["price"] == "1.50"


@pytest.mark.parametrize(
    "value", [{"sku": "a", "count": 2}, Item("a", 2), Model(sku="a", count=2), Struct("a", 2)]
)
def test_fields_of_every_kind_of_row_come_in_order(value: object) -> None:
    assert [*fields_of(value).items()] == [("sku", "a"), ("count", 2)]


@pytest.mark.parametrize("value", [None, 1, "a", [1]])
def test_what_has_no_fields_is_a_bad_record(value: object) -> None:
    with pytest.raises(BadRecord, match="has no fields"):
        fields_of(value)


def test_new_fields_are_those_that_the_target_lacks() -> None:
    wide, narrow = Schema.of(Row), Schema.of(Item)
    assert [each.name for each in narrow.newer_than(wide)] == ["sku", "count"]
    assert wide.newer_than(wide) == []


def test_bytes_are_a_column_of_their_own() -> None:
    found = batch_of([b"a", None], None, key=b"k").arrow()
    assert found.schema.names == ["value", "_key", "_timestamp", "_offset"]
    assert [row["value"] for row in found.to_pylist()] == [b"a", None]


def test_columns_do_not_depend_on_the_values() -> None:
    schema = Schema.of(Item)
    full, empty = batch_of([Item("a", 1)], schema), batch_of([None], schema)
    assert full.arrow().schema == empty.arrow().schema


def test_values_that_do_not_fit_are_named_by_index() -> None:
    values = [{"sku": "a", "count": 1}, {"sku": "b", "count": "many"}, {"sku": "c", "count": 2**70}]
    with pytest.raises(BadRecords) as failed:
        batch_of(values, Schema.of(Item)).arrow()
    assert [*failed.value.why] == [1, 2]
    assert "count is no int64" in failed.value.why[1]


def test_a_value_without_fields_in_a_batch_of_rows_is_named_by_index() -> None:
    with pytest.raises(BadRecords) as failed:
        batch_of([Item("a", 1), 7], Schema.of(Item)).arrow()
    assert [*failed.value.why] == [1]


class Loose(TypedDict):
    sku: str
    count: NotRequired[int]


def test_a_key_that_may_be_absent_is_optional() -> None:
    fields = (Field("sku", Schema("string")), Field("count", Schema("int64", optional=True)))
    assert Schema.of(Loose) == Schema("struct", fields=fields, name="Loose")


class Mixed(Enum):
    ONE = 1
    TEXT = "x"


JSON_TEXT = Schema("string", logical="json")


@pytest.mark.parametrize(
    ("declared", "schema"),
    [
        (None, replace(JSON_TEXT, optional=True)), (str | None, Schema("string", optional=True)),
        (int | str, JSON_TEXT), (int | str | None, replace(JSON_TEXT, optional=True)),
        (Literal["a", "b"], Schema("string")), (Literal[1, 2], Schema("int64")),
        (Literal[True], Schema("boolean")), (Mixed, JSON_TEXT), (Color, Schema("string")),
        (dict[int, bool], Schema("map", keys=Schema("int64"), items=Schema("boolean"))),
        (list[float], Schema("array", items=Schema("float64"))),
        (Annotated[datetime, msgspec.Meta(tz=False)], Schema("int64", logical="LocalTimestamp")),
        (Annotated[Decimal, Digits(9, 2)], decimal_schema(9, 2)),
    ],
)  # fmt: skip
def test_declared_types_have_the_schemas_of_connect(declared: Any, schema: Schema) -> None:
    assert Schema.of(declared) == schema


@pytest.mark.parametrize(
    ("schema", "declared"),
    [
        (decimal_schema(38, 3), pa.decimal128(38, 3)), (decimal_schema(39, 3), pa.string()),
        (Schema("bytes", logical="Decimal", parameters=(("scale", "2"),)), pa.decimal128(38, 2)),
        (Schema("bytes", logical="Decimal"), pa.string()),
        (
            Schema("map", items=Schema("int8")),
            pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)),
        ),
        (
            Schema("map", keys=Schema("int64"), items=Schema("int8", optional=True)),
            pa.map_(pa.int64(), pa.int8()),
        ),
        (Schema("array", items=Schema("boolean", optional=True)), pa.list_(pa.bool_())),
        (Schema("array"), pa.list_(pa.field("item", pa.string(), nullable=False))),
        (Schema("map"), pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))),
        (Schema("float32"), pa.float32()), (Schema("bytes"), pa.binary()),
    ],
)  # fmt: skip
def test_schemas_have_the_types_of_arrow(schema: Schema, declared: pa.DataType) -> None:
    assert schema.to_arrow() == declared


@pytest.mark.parametrize(
    ("declared", "schema"),
    [
        (pa.int8(), Schema("int8")), (pa.uint8(), Schema("int16")), (pa.uint16(), Schema("int32")),
        (pa.uint32(), Schema("int64")), (pa.float16(), Schema("float32")),
        (pa.dictionary(pa.int8(), pa.string()), Schema("string")), (pa.null(), JSON_TEXT),
        (pa.list_(pa.int16()), Schema("array", items=Schema("int16", optional=True))),
        (pa.large_list(pa.int16()), Schema("array", items=Schema("int16", optional=True))),
        (pa.list_(pa.int16(), 2), Schema("array", items=Schema("int16", optional=True))),
        (pa.duration("s"), Schema("int64", logical="Duration")),
        (pa.timestamp("s"), Schema("int64", logical="LocalTimestamp")),
        (pa.timestamp("s", "UTC"), Schema("int64", logical="Timestamp")),
        (
            pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.time32("s"))]),
            Schema("struct", fields=(
                Field("a", Schema("int32")),
                Field("b", Schema("int32", optional=True, logical="Time")),
            )),
        ),
        (
            pa.map_(pa.string(), pa.binary()),
            Schema("map", keys=Schema("string"), items=Schema("bytes", optional=True)),
        ),
    ],
)  # fmt: skip
def test_types_of_arrow_have_the_schemas_of_connect(declared: Any, schema: Schema) -> None:
    assert Schema.of_arrow(declared) == schema


def test_a_row_is_a_view_of_a_dict() -> None:
    with pytest.raises(TypeError):
        fields_of({"a": 1})["a"] = 2  # type: ignore[index]


def test_parts_of_a_schema_are_found_by_name() -> None:
    schema = Schema("struct", fields=(Field("a", Schema("int8")),), parameters=(("p", "1"),))
    assert schema.field("a") == Field("a", Schema("int8"))
    assert schema.field("b") is None
    assert (schema.parameter("p"), schema.parameter("q")) == ("1", None)


def test_schemas_with_defaults_that_have_no_hash_are_keys_of_caches() -> None:
    whole = [Schema("struct", fields=(Field("a", Schema("array"), ["x"]),)) for _ in range(2)]
    assert hash(whole[0]) == hash(whole[1])
    other = Schema("struct", fields=(Field("a", Schema("array"), ["y"]),))
    assert whole[0] == whole[1] != other
