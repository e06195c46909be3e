"""Avro: bytes as in the specification and registries, and schema evolution."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel

from streamlog import App
from streamlog.blueprints.readability import is_readable
from streamlog.errors import ConfigError, SerdeError
from streamlog.serdes import AvroSerde, form_of


@dataclass
class Sale:
    shop: str
    amount: int


class Dict(TypedDict):
    shop: str
    amount: int


class Model(BaseModel):
    shop: str
    amount: int


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    listed = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "Sale", "fields": [*listed, *more.get("also", ())]}


SALE = record(("shop", "string"), ("amount", "long"))
OLDER = record(("shop", "string"), ("amount", "int"), ("gone", "string"))
NEWER = record(("shop", "string"), also=[{"name": "amount", "type": "long", "default": 1}])


@pytest.mark.parametrize(
    ("into", "value"),
    [
        (Sale, Sale("ulm", 3)),
        (Dict, {"shop": "ulm", "amount": 3}),
        (dict, {"shop": "ulm", "amount": 3}),
        (Model, Model(shop="ulm", amount=3)),
    ],
)
def test_avro_values_have_their_declared_type(into: Any, value: Any) -> None:
    serde = AvroSerde(SALE, into)
    assert serde.loads(serde.dumps(value)) == value
    with pytest.raises(SerdeError, match="expected, got str"):
        serde.dumps("ulm")


def test_single_object_encoding_follows_the_specification() -> None:
    # Fingerprint of "null": 0x63DD24E7CC258F8A, little-endian.
    nothing: Any = AvroSerde({"type": "null"}, dict)
    assert form_of(nothing) == {"avro": ["c3018a8f25cce724dd63"]}
    assert AvroSerde(SALE, Sale).dumps(Sale("ulm", 3))[10:] == b"\x06ulm\x06"


def test_registered_schemas_use_the_registry_s_wire_format() -> None:
    serde = AvroSerde.registered({258: SALE, 7: OLDER}, Sale)
    assert serde.dumps(Sale("ulm", 3)) == b"\x00\x00\x00\x01\x02\x06ulm\x06"
    assert serde.loads(b"\x00\x00\x00\x00\x07\x06ulm\x06\x02x") == Sale("ulm", 3)
    with pytest.raises(ConfigError, match="at least one schema with its id"):
        AvroSerde.registered({}, Sale)


def test_records_of_an_older_schema_are_read_if_it_is_given() -> None:
    written = AvroSerde(OLDER, dict).dumps({"shop": "ulm", "amount": 3, "gone": "x"})
    assert AvroSerde(SALE, Sale, older=[OLDER]).loads(written) == Sale("ulm", 3)
    with pytest.raises(SerdeError, match="a schema that is not known here: pass it in `older`"):
        AvroSerde(SALE, Sale).loads(written)
    without = AvroSerde(record(("shop", "string")), dict)
    assert AvroSerde(NEWER, Sale, older=[record(("shop", "string"))]).loads(
        without.dumps({"shop": "ulm"})
    ) == Sale("ulm", 1)
    with pytest.raises(SerdeError, match="No default value for field amount"):
        AvroSerde(SALE, Sale, older=[record(("shop", "string"))]).loads(
            without.dumps({"shop": "ulm"})
        )


def test_state_is_readable_if_its_schema_is_given() -> None:
    old, new = form_of(AvroSerde(OLDER, Sale)), form_of(AvroSerde(SALE, Sale, older=[OLDER]))
    assert is_readable(new, old)
    assert not is_readable(old, new)
    assert not is_readable(new, old, is_key=True)
    assert not is_readable(new, {"json": {}})


@dataclass
class Typed:
    id: UUID
    at: datetime
    price: Decimal
    day: date


def test_logical_types_round_trip() -> None:
    kinds = {
        "id": {"type": "string", "logicalType": "uuid"},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "day": {"type": "int", "logicalType": "date"},
    }
    serde = AvroSerde(record(*kinds.items()), Typed)
    at = datetime(2025, 1, 1, 12, 0, 0, 7, tzinfo=UTC)
    value = Typed(UUID(int=7), at, Decimal("1.50"), at.date())
    assert serde.loads(serde.dumps(value)) == value


def test_a_schema_may_be_json_text() -> None:
    stamp = {"type": "long", "logicalType": "timestamp-millis"}
    schema = json.dumps(record(("shop", "string"), ("at", stamp)))
    at = datetime(2025, 1, 1, 12, tzinfo=UTC)
    serde: AvroSerde[Any] = AvroSerde(schema, dict)
    assert serde.loads(serde.dumps({"shop": "ulm", "at": at})) == {"shop": "ulm", "at": at}


@pytest.mark.parametrize("schema", [{"type": "recordd"}, "{", "[1]", {}])
def test_an_invalid_schema_is_refused(schema: Any) -> None:
    with pytest.raises(SerdeError, match="not an Avro schema"):
        AvroSerde(schema, dict)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("Sale", "'Sale' is a name, not an Avro schema: give the schema itself"),
        ("schemas/sale.avsc", r"Path\('NAME.avsc'\).read_text\(\)"),
        (record(("sale", "Other")), "names the type 'Other', which is neither one of Avro's"),
        ({"type": "record", "name": "A", "fields": [{"name": "x"}]}, "missing 'type'"),
        (["null", "Sale"], "names the type 'Sale'"),
        (7, "a dict, a list .* or JSON text, not int"),
        (Path("sale.avsc"), "or JSON text, not .*Path"),
    ],
)
def test_a_refused_schema_is_reported_with_the_remedy(schema: Any, message: str) -> None:
    with pytest.raises(SerdeError, match=message):
        AvroSerde(schema, dict)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_schema_may_be_a_union(as_text: bool) -> None:
    union: Any = ["null", record(("shop", "string"))]
    serde: AvroSerde[Any] = AvroSerde(json.dumps(union) if as_text else union, dict)
    assert serde.loads(serde.dumps({"shop": "ulm"})) == {"shop": "ulm"}


@pytest.mark.parametrize("schema", ["string", '"string"'])
def test_a_schema_may_be_the_name_of_a_primitive_type(schema: str) -> None:
    serde = AvroSerde(schema, str)
    assert serde.loads(serde.dumps("ulm")) == "ulm"


def test_trailing_bytes_are_refused() -> None:
    serde = AvroSerde(SALE, Sale)
    with pytest.raises(SerdeError, match="1 byte left over"):
        serde.loads(serde.dumps(Sale("ulm", 3)) + b"x")


def test_a_missing_extra_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamlog-py\[avro\]'"):
        AvroSerde(SALE, Sale)


def test_a_topic_can_have_avro_values() -> None:
    app = App("avro")
    sales = app.topic("sales", key=str, value=Sale, value_serde=AvroSerde(SALE, Sale))
    largest = (
        app.stream(sales)
        .group_by_key()
        .reduce(
            lambda first_sale, second_sale: max(first_sale, second_sale, key=lambda s: s.amount),
            name="largest",
        )
    )
    with app.test() as t:
        for amount in (3, 5, 4):
            t.input(sales).send(Sale("ulm", amount), key="x")
        assert t.table(largest) == {"x": Sale("ulm", 5)}
