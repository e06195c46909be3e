"""Avro schemas of declared types: what each type becomes, and that all of them work."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID, uuid4

import fastavro
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from streamlog.errors import SerdeError
from streamlog.serdes.derived import Digits, avro_schema_of, describe_type
from streamlog.serdes.derived.avro_values import AvroValues
from tests.serdes.derived.typed_values import Typed, records

T = TypeVar("T")
Sku = NewType("Sku", str)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    sku: Sku
    count: int = 1


@dataclass
class Order:
    __schema_name__ = "com.acme.Order"
    id: UUID
    placed: datetime
    items: list[Item]
    total: Annotated[Decimal, Digits(12, 2)]
    color: Color = Color.BLUE
    note: str | None = None
    parent: Order | None = None
    fee: int | str = "none"
    tags: dict[str, float] = field(default_factory=dict)
    token: UUID = field(default_factory=uuid4)


class Entry(TypedDict):
    name: str
    age: NotRequired[int]


class Struct(msgspec.Struct, rename="camel", tag="s"):
    shop_name: str
    at: Annotated[datetime, msgspec.Meta(tz=False)]


class Model(BaseModel):
    shop: str = Field(alias="shopName")
    price: Decimal = Field(max_digits=8, decimal_places=3)


@dataclass
class Page(Generic[T]):
    rows: list[T]


def written_and_read(declared: Any, value: Any) -> Any:
    schema = fastavro.parse_schema(avro_schema_of(declared))
    values = AvroValues(describe_type(declared))
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, values.to_avro(value), strict=True)
    buffer.seek(0)
    return values.from_avro(fastavro.schemaless_reader(buffer, schema, return_named_type=True))


def test_a_record_lists_its_fields_with_logical_types_and_defaults() -> None:
    color = {"type": "enum", "name": "Color", "namespace": "com.acme", "symbols": ["RED", "BLUE"]}
    item = {
        "type": "record",
        "name": "Item",
        "namespace": "com.acme",
        "fields": [
            {"name": "sku", "type": "string"},
            {"name": "count", "type": "long", "default": 1},
        ],
    }
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    assert avro_schema_of(Order) == {
        "type": "record",
        "name": "Order",
        "namespace": "com.acme",
        "fields": [
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "items", "type": {"type": "array", "items": item}},
            {"name": "total", "type": decimal},
            {"name": "color", "type": color, "default": "BLUE"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "parent", "type": ["null", "com.acme.Order"], "default": None},
            {"name": "fee", "type": ["string", "long"], "default": "none"},
            {"name": "tags", "type": {"type": "map", "values": "double"}, "default": {}},
            {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
        ],
    }


@pytest.mark.parametrize(
    ("declared", "fields"),
    [
        (Entry, [("name", "string"), ("age", ["null", "long"])]),
        (
            Struct,
            [
                ("shopName", "string"),
                ("at", {"type": "long", "logicalType": "local-timestamp-micros"}),
            ],
        ),
        (
            Model,
            [
                ("shopName", "string"),
                ("price", {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 3}),
            ],
        ),
        (Page[int], [("rows", {"type": "array", "items": "long"})]),
    ],
)
def test_every_kind_of_class_has_a_schema_with_the_names_that_it_writes(
    declared: Any, fields: Any
) -> None:
    found = avro_schema_of(declared)
    assert [(each["name"], each["type"]) for each in found["fields"]] == fields


def test_an_instance_of_a_generic_class_is_named_by_its_arguments() -> None:
    assert avro_schema_of(Page[Item])["name"] == "Page_Item"


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Entry, {"name": "ann"}),
        (Entry, {"name": "ann", "age": 3}),
        (Struct, Struct("ulm", datetime(2024, 2, 29, 1, 2, 3, 4))),  # noqa: DTZ001 - by its type
        (Model, Model(shopName="ulm", price=Decimal("1.250"))),
        (Page[Item], Page([Item(Sku("a"), 2)])),
        (int, 3),
        (list[str], ["a"]),
        (Order, Order(UUID(int=1), datetime(1960, 1, 1, tzinfo=UTC), [], Decimal("-1.50"))),
    ],
)
def test_values_of_every_kind_of_class_come_back(declared: Any, value: Any) -> None:
    assert written_and_read(declared, value) == value


class Nested(msgspec.Struct):
    """A union in a record in a union, and members that look alike without their names."""

    inner: Shaded | None
    text: int | Shade | str
    row: Item | dict[str, int]


class Shade(Enum):
    LIGHT = 1


class Shaded(msgspec.Struct):
    shade: int | Shade
    shades: list[int | Shade] | None = None


@pytest.mark.parametrize("text", ["", "LIGHT", Shade.LIGHT, 5])
def test_members_of_nested_unions_come_back_as_what_they_are(text: int | Shade | str) -> None:
    inner = Shaded(Shade.LIGHT, [1, Shade.LIGHT])
    value = Nested(inner, text, {"sku": 1, "count": 2})
    assert written_and_read(Nested, value) == value
    value = Nested(None, text, Item(Sku("a"), 2))
    assert written_and_read(Nested, value) == value


@given(typed=records(nests=True, unions=True), data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_values_of_random_types_come_back(typed: Typed, data: st.DataObject) -> None:
    declared, values = typed
    value = data.draw(values)
    assert written_and_read(declared, value) == value


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (object, "Order.f: object has no equivalent in a schema"),
        (list, r"Order.f: list does not say what it contains: write list\[int\]"),
        (tuple[int, str], r"Order.f: tuple\[int, str\] has a type for each position"),
        (dict[int, str], "Order.f: the keys of a map in Avro are always str"),
        (Decimal, "Order.f: Avro needs the number of digits of a Decimal: write Annotated"),
        (str | UUID, "Order.f: two members of the union are 'string' in Avro"),
        (list[dict[str, set]], r"Order.f\[\]\[...\]: set does not say what it contains"),
        (complex, "Order.f: complex has no equivalent"),
        (T, "Order.f: ~T has no equivalent"),
    ],
)
def test_what_has_no_equivalent_is_refused_with_the_field(kind: Any, reason: str) -> None:
    declared = msgspec.defstruct("Order", [("f", kind)])
    with pytest.raises(SerdeError, match=reason):
        avro_schema_of(declared)


def test_two_types_of_one_name_are_refused() -> None:
    one = msgspec.defstruct("Same", [("a", int)])
    other = msgspec.defstruct("Same", [("b", int)])
    both = msgspec.defstruct("Both", [("x", one), ("y", other)])
    with pytest.raises(SerdeError, match=r"Both.y: two types have the name 'Same'"):
        avro_schema_of(both)


def test_not_required_keys_can_not_be_none_as_well() -> None:
    class Declared(TypedDict):
        a: NotRequired[int | None]

    with pytest.raises(SerdeError, match="a missing key from None"):
        avro_schema_of(Declared)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"at": datetime(2024, 1, 1)}, "`Moment.at`: the datetime has no time zone"),  # noqa: DTZ001
        ({"at": date(2024, 1, 1)}, "`Moment.at`: datetime expected, got date"),
        ({"clock": time(1, tzinfo=UTC)}, "`Moment.clock`: the time has a time zone"),
        ({"kind": "red"}, "`Moment.kind`: Color expected, got str"),
        ({"items": [3]}, "`Moment.items`: Item expected, got int"),
    ],
)
def test_values_of_another_type_are_refused_with_the_field(value: Any, reason: str) -> None:
    good = {
        "at": datetime(2024, 1, 1, tzinfo=UTC),
        "clock": time(1),
        "kind": Color.RED,
        "items": [],
    }
    with pytest.raises(SerdeError, match=reason):
        AvroValues(describe_type(Moment)).to_avro(Moment(**{**good, **value}))


@dataclass
class Moment:
    at: datetime
    clock: time
    kind: Color
    items: list[Item]
    lasted: timedelta = timedelta(microseconds=-1)


def test_a_schema_does_not_depend_on_the_run() -> None:
    """Sets have another order in each run; the hash of texts is seeded anew."""
    program = (
        "import json\n"
        "from dataclasses import dataclass, field\n"
        "from streamlog.serdes.derived import avro_schema_of, json_schema_of\n"
        "@dataclass\n"
        "class A:\n"
        "    a: frozenset[str] = frozenset({'x', 'y', 'zz', 'w'})\n"
        "    b: set[int] | None = None\n"
        "print(json.dumps([avro_schema_of(A), json_schema_of(A)]))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
