"""Columns of a batch: equal to what the rows give one by one, whatever they are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.connect import BadRecords, Batch, Schema, TopicPartition
from streamlog.connect.arrow_columns import plain_array, plainer, times_array
from streamlog.connect.row_schema import Field
from streamlog.connect.sink_rows import SinkRow, SinkRows
from streamlog.durations import EPOCH, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN, moment
from streamlog.errors import ConfigError
from streamlog.record import Record
from streamlog.records.record_columns import RecordColumns
from streamlog.replace import replace
from streamlog.serdes.derived.type_description import Digits

AT = TopicPartition("rows", 0)
few = settings(max_examples=settings().max_examples // 3)
"""Each example is of several rows, and makes several batches."""


class Land(Enum):
    DE = "de"
    FR = "fr"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Part(msgspec.Struct):
    sku: str
    count: int | None = None


class Order(msgspec.Struct):
    id: int | None
    land: Land | None
    level: Level
    note: str | None
    ratio: float | None
    paid: bool
    price: Annotated[Decimal, Digits(12, 2)]
    token: UUID
    took: timedelta
    parts: list[Part]
    blob: bytes | None


@dataclass
class Narrow:
    """Another class of rows, with fields that `Order` has, in another order."""

    note: Any
    id: Any


SCHEMA = Schema.of(Order)
numbers = st.sampled_from([0, -1, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
huge = st.sampled_from([2**63, -(2**63) - 1, 10**30])
texts = st.text() | st.just("") | st.just("x" * 3_000)
parts = st.builds(Part, sku=texts, count=st.none() | numbers)


def orders(*, may_misfit: bool) -> st.SearchStrategy[Order]:
    found = st.none() | numbers
    note = st.none() | texts
    if may_misfit:
        found |= huge | st.just("text")
        note |= st.just("\ud800") | st.just(7)
    return st.builds(
        Order,
        id=found,
        land=st.none() | st.sampled_from(Land),
        level=st.sampled_from(Level),
        note=note,
        ratio=st.none() | st.floats(),
        paid=st.booleans(),
        price=st.decimals("-9999999999.99", "9999999999.99", places=2),
        token=st.uuids(),
        took=st.timedeltas(timedelta(days=-999), timedelta(days=999)),
        parts=st.lists(parts, max_size=2),
        blob=st.none() | st.binary(),
    )


def as_dict(order: Order) -> dict[str, Any]:
    return {name: getattr(order, name) for name in order.__struct_fields__}


def given_as(order: Order) -> st.SearchStrategy[Any]:
    """Return an order as itself, as a dict that lacks fields or has more, or as another class."""
    fields = st.sets(st.sampled_from(order.__struct_fields__))
    partial = fields.map(lambda kept: {"extra": 1} | {name: getattr(order, name) for name in kept})
    narrow = st.just(Narrow(order.note, order.id))
    return st.just(order) | st.just(as_dict(order)) | partial | narrow


def values(*, may_misfit: bool) -> st.SearchStrategy[list[Any]]:
    each = orders(may_misfit=may_misfit)
    alike = st.lists(each, max_size=4) | st.lists(each.map(as_dict), max_size=4)
    with_nulls = st.lists(st.none() | each, max_size=4)
    return alike | with_nulls | st.lists(st.none() | each.flatmap(given_as), max_size=4)


def batches(column: Sequence[Any], times: Sequence[int]) -> list[Batch[Any, Any]]:
    """Return the values as records, as columns of the log, and as transforms leave them."""
    keys = [None if at % 3 == 2 else f"k{at}" for at in range(len(column))]
    log = RecordColumns()
    records = list[Record[Any, Any]]()
    for at, (value, time_ms) in enumerate(zip(column, times, strict=True)):
        # Offsets with gaps.
        log.add(at * 2, time_ms, b"", b"", None)
        records.append(Record(keys[at], value, moment(time_ms), (), *AT, at * 2))
    end = len(column) * 2
    made = SinkRows.of(AT, [SinkRow(each, b"", b"", 0) for each in records])
    shape: Any = {"first_offset": 0, "next_offset": end, "schema": SCHEMA, "key_schema": None}
    return [
        Batch(AT, records, next_offset=end, schema=SCHEMA),
        Batch.of_rows(SinkRows(AT, log, keys, column), **shape),
        Batch.of_rows(made, **shape),
    ]


def field_of(value: Any, name: str) -> Any:
    found = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    if isinstance(found, Enum):
        return found.value
    if isinstance(found, UUID):
        return str(found)
    if isinstance(found, timedelta):
        return found // timedelta(microseconds=1)
    return [as_dict_of_part(each) for each in found] if name == "parts" and found else found


def as_dict_of_part(part: Part) -> dict[str, Any]:
    return {"sku": part.sku, "count": part.count}


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and math.isnan(found):
        return isinstance(expected, float) and math.isnan(expected)
    return bool(found == expected) and type(found) is type(expected)


times = st.lists(st.integers(TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX), min_size=4, max_size=4)


@few
@given(values(may_misfit=False), times)
def test_columns_are_the_fields_of_the_rows(column: list[Any], some: list[int]) -> None:
    some = some[: len(column)]
    for batch in batches(column, some):
        found = batch.arrow()
        assert found.schema.names == [*Order.__struct_fields__, "_key", "_timestamp", "_offset"]
        assert [*found.schema][:-3] == [
            pa.field(each.name, each.schema.to_arrow()) for each in SCHEMA.fields
        ]
        for name in Order.__struct_fields__:
            expected = [field_of(value, name) for value in column]
            got = found.column(name).to_pylist()
            assert all(map(same, got, expected)), (name, got, expected)
        assert found.column("_offset").to_pylist() == [*range(0, 2 * len(column), 2)]
        assert found.column("_timestamp").to_pylist() == [*map(moment, some)]
        assert found.column("_key").to_pylist() == list(batch.keys)


@few
@given(values(may_misfit=True))
def test_a_row_that_does_not_fit_is_named_by_its_index(column: list[Any]) -> None:
    # Each row alone says whether it fits.
    alone = [refused(batches([value], [0])[0]) for value in column]
    expected = {at for at, found in enumerate(alone) if found}
    for batch in batches(column, [0] * len(column)):
        # A column names its rows; the first column with such rows ends the batch.
        named = refused(batch)
        assert named <= expected
        assert bool(named) is bool(expected)


def refused(batch: Batch[Any, Any]) -> set[int]:
    try:
        batch.arrow()
    except BadRecords as error:
        return {*error.why}
    return set()


@pytest.mark.parametrize("column", [[1, None], ["text"], [Land.DE]])
def test_values_without_fields_are_named(column: list[Any]) -> None:
    for batch in batches(column, [0] * len(column)):
        assert refused(batch) == {0}


def test_a_time_that_no_datetime_holds_is_an_error() -> None:
    log = RecordColumns()
    log.add(0, TIMESTAMP_MS_MAX + 1, None, None, None)
    batch = Batch.of_rows(
        SinkRows(AT, log, [None], [None]),
        first_offset=0,
        next_offset=1,
        schema=SCHEMA,
        key_schema=None,
    )
    with pytest.raises(ConfigError, match="outside the years"):
        batch.arrow()


def test_the_time_that_a_transform_has_set_counts() -> None:
    later = EPOCH + timedelta(days=1, microseconds=7)
    record = replace(Record(None, None, later, (), *AT, 5), topic="elsewhere")
    rows = SinkRows.of(AT, [SinkRow(record, None, None, 0)])
    batch = Batch.of_rows(rows, first_offset=5, next_offset=6, schema=SCHEMA, key_schema=None)
    assert batch.arrow().column("_timestamp").to_pylist() == [later]
    assert batch.topics == ["elsewhere"]


def test_no_records_are_columns_without_rows() -> None:
    assert [each.arrow().num_rows for each in batches([], [])] == [0, 0, 0]


def a_batch(values: list[Any], schema: Schema | None, **more: Any) -> Batch[Any, Any]:
    keys = more.pop("keys", [None] * len(values))
    records = [
        Record(key, value, EPOCH, (), *AT, 0) for key, value in zip(keys, values, strict=True)
    ]
    return Batch(AT, records, next_offset=1, schema=schema, **more)


def column(kind: Any, values: list[Any]) -> Any:
    schema = Schema("struct", fields=(Field("a", replace(kind, optional=True)),))
    return a_batch([{"a": each} for each in values], schema).arrow().column("a")


LINES = Schema("array", items=Schema("string", optional=True))
PLACE = Schema("struct", fields=(Field("city", Schema("string")), Field("at", LINES)))


@pytest.mark.parametrize(
    ("kind", "values", "arrow", "stored"),
    [
        (Schema("string", logical="uuid"), [UUID(int=5), None], pa.string(),
         [str(UUID(int=5)), None]),
        (Schema("string", logical="json"), [{"a": [1, "é"]}, [], "x", None], pa.string(),
         ['{"a":[1,"é"]}', "[]", '"x"', None]),
        (Schema("int64", logical="Duration"), [timedelta(seconds=2), None], pa.int64(),
         [2_000_000, None]),
        (Schema("bytes", logical="Decimal"), [Decimal("1.50"), None], pa.string(), ["1.50", None]),
        (Schema("bytes", logical="Decimal", parameters=(("scale", "2"),)), [Decimal("1.5")], None,
         [Decimal("1.50")]),
        (LINES, [["a", Land.DE, None], (), None], None, [["a", "de", None], [], None]),
        (Schema("array", items=Schema("int64")), [[Level.LOW, 5]], None, [[1, 5]]),
        (Schema("array", items=Schema("boolean")), [(True,)], None, [[True]]),
        (Schema("map", keys=Schema("string"), items=Schema("string", logical="uuid")),
         [{"k": UUID(int=1)}, {}, None], None, [[("k", str(UUID(int=1)))], [], None]),
        (Schema("map", keys=Schema("string"), items=Schema("boolean")), [{"k": True}], None,
         [[("k", True)]]),
        (PLACE, [{"city": Land.FR, "at": None}, None, {"city": "x", "at": ["y"]}], None,
         [{"city": "fr", "at": None}, None, {"city": "x", "at": ["y"]}]),
        (Schema("int8"), [127, -128, None], pa.int8(), [127, -128, None]),
        (Schema("int16"), [2**15 - 1], pa.int16(), [2**15 - 1]),
        (Schema("int32"), [-(2**31)], pa.int32(), [-(2**31)]),
        (Schema("int64"), [Level.HIGH, 7, None], pa.int64(), [2, 7, None]),
        (Schema("float32"), [0.5, None], pa.float32(), [0.5, None]),
        (Schema("boolean"), [True, None], pa.bool_(), [True, None]),
        (Schema("bytes"), [b"x", bytearray(b"y"), None], pa.binary(), [b"x", b"y", None]),
        (Schema("string"), [Land.DE, "x", None], pa.string(), ["de", "x", None]),
    ],
)  # fmt: skip
def test_a_column_has_what_arrow_can_hold(
    kind: Schema, values: list[Any], arrow: Any, stored: list[Any]
) -> None:
    found = column(kind, values)
    assert found.type == (arrow or kind.to_arrow())
    assert found.to_pylist() == stored
    # Each by itself, as a batch of one class takes another way than one of several.
    assert [column(kind, [each]).to_pylist() for each in values] == [[each] for each in stored]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("int8", 128), ("int16", -(2**15) - 1), ("int32", 2**31), ("int64", 2**63), ("int8", "x"),
     ("boolean", 1), ("string", 5), ("string", "\ud800"), ("float64", "x"), ("bytes", 5)],
)  # fmt: skip
def test_a_value_that_no_column_of_its_kind_holds_is_named(kind: Any, wrong: object) -> None:
    right: Any = {"boolean": True, "string": "x", "bytes": b"x"}.get(kind, 1)
    with pytest.raises(BadRecords) as failed:
        column(Schema(kind), [right, wrong, right, wrong])
    assert [*failed.value.why] == [1, 3]
    assert failed.value.why[1].startswith(f"a is no {Schema(kind).to_arrow()}: ")


def test_values_and_keys_without_a_schema_are_bytes_and_text_by_the_first_key() -> None:
    found = a_batch([b"x", None], None, keys=[None, "k"]).arrow()
    assert found.schema.names == ["value", "_key", "_timestamp", "_offset"]
    assert [found.column(at).type for at in (0, 1)] == [pa.binary(), pa.string()]
    assert [found.column(at).to_pylist() for at in (0, 1)] == [[b"x", None], [None, "k"]]
    assert a_batch([b"x"], None, keys=[b"k"]).arrow().column("_key").type == pa.binary()
    assert a_batch([b"x"], None).arrow().column("_key").type == pa.binary()
    numbers = a_batch([5], Schema("int64"), keys=[7], key_schema=Schema("int32")).arrow()
    assert [numbers.column(at).to_pylist() for at in (0, 1)] == [[5], [7]]
    assert [numbers.column(at).type for at in (0, 1)] == [pa.int64(), pa.int32()]


def test_a_field_that_a_class_lacks_is_null() -> None:
    schema = Schema("struct", fields=(
        Field("note", Schema("string", optional=True)), Field("x", Schema("int64", optional=True)),
    ))  # fmt: skip
    for rows in ([Narrow("a", 1), Narrow("b", 2)], [Narrow("a", 1), None], [{"note": "a"}, {}]):
        found = a_batch([*rows], schema).arrow()
        assert found.column("x").to_pylist() == [None, None]
        assert found.column("note").to_pylist() == [field_of(each, "note") for each in rows]
    with pytest.raises(BadRecords) as failed:
        a_batch([Narrow("a", 1), "text", None, 5], schema).arrow()
    assert [*failed.value.why] == [1, 3]
    assert "has no fields" in failed.value.why[1]


def test_times_reach_to_the_first_and_last_moment_of_a_datetime() -> None:
    for time_ms in (TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX):
        assert times_array(pa, [time_ms]).to_pylist() == [moment(time_ms)]
    for time_ms in (TIMESTAMP_MS_MIN - 1, TIMESTAMP_MS_MAX + 1):
        with pytest.raises(ConfigError, match="outside the years"):
            times_array(pa, [0, time_ms])
    assert times_array(pa, []).type == pa.timestamp("us", tz="UTC")
    later = EPOCH + timedelta(microseconds=7)
    assert times_array(pa, [later]).to_pylist() == [later]


PLAIN: dict[Any, tuple[list[Any], list[Any]]] = {
    "int8": ([1, None], [Level.LOW, 128, "x", 1.5, True]),
    "int16": ([-(2**15), None], [2**15]),
    "int32": ([2**31 - 1, None], [2**31]),
    "int64": ([2**63 - 1, None], [2**63, Level.LOW]),
    "float32": ([0.5, None], [1, "x"]),
    "float64": ([0.1, float("inf"), None], [1]),
    "boolean": ([True, False, None], [1, "x"]),
    "string": (["é", "", None], [Land.DE, 5, "\ud800"]),
    "bytes": ([b"x", b"", None], [bytearray(b"x"), "x"]),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_a_column_of_plain_values_is_made_of_buffers_and_any_other_is_left_to_arrow(
    kind: Any,
) -> None:
    """Arrow's own conversion imports pandas, which takes longer than a million records."""
    plain, others = PLAIN[kind]
    schema = Schema(kind, optional=True)
    found: Any = plain_array(pa, plain, schema)
    assert found.equals(pa.array(plain, schema.to_arrow()))
    assert plain_array(pa, [], schema) is not None
    for other in others:
        assert plain_array(pa, [*plain, other], schema) is None, other
    assert plain_array(pa, plain, replace(schema, logical="json")) is None


def test_only_what_arrow_does_not_take_as_it_is_is_converted() -> None:
    for kind in ("int8", "int16", "int32", "float32", "float64", "boolean", "bytes"):
        assert plainer(Schema(kind)) is None  # type: ignore[arg-type]
    for schema in (
        Schema("int32", logical="Date"),
        Schema("int64", logical="Timestamp"),
        Schema("bytes", logical="Decimal", parameters=(("scale", "2"),)),
    ):
        assert plainer(schema) is None
    for schema in (Schema("string"), Schema("int64"), LINES, PLACE):
        convert = plainer(schema)
        assert convert is not None
        assert convert(None) is None
