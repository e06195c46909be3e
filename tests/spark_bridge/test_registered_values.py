"""Values as columns of the schema that a registry keeps for the topic."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import pyarrow as pa
import pytest

from spark_bridge.registered_values import registered_columns, registered_decoder
from spark_bridge.source_options import parse_options
from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.errors import ConfigError, SerdeError
from streamlog.log import Log
from streamlog.registry_client import RegistryClient, RegistrySettings
from streamlog.schemas import Schema, SchemaReference, SchemaType
from streamlog.serdes import Digits
from streamlog.serdes.registered import RegistrySerde, TopicSchema
from tests.registry_client.stub_registry import StubRegistry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime(2026, 11, 22, 5, tzinfo=UTC)


class Kind(Enum):
    WEB = 1


@dataclass
class Line:
    sku: str
    price: float | None


@dataclass
class Sale:
    at: datetime
    day: date
    clock: time
    number: UUID
    kind: Kind
    total: Annotated[Decimal, Digits(10, 2)]
    lines: list[Line]
    counts: dict[str, int]
    first: Line | None = None


SALE = Sale(AT, AT.date(), time(0, 0, 1), UUID(int=7), Kind.WEB, Decimal("1.50"), [], {"a": 1})


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as found:
        yield found


def serde_of(registry: StubRegistry, value: Any, schema: Any = "avro") -> RegistrySerde[Any]:
    app = App("shop", schema_registry=registry.url)
    serde = app.topic("sales", key=str, value=value, schema=schema).spec.value
    assert isinstance(serde, RegistrySerde)
    RegistryClient(RegistrySettings.of(registry.url)).register("sales-value", serde.schema)
    return serde


def test_the_latest_schema_becomes_spark_columns(registry: StubRegistry) -> None:
    serde_of(registry, Sale)
    assert registered_columns(RegistrySettings.of(registry.url), ["sales"]) == (
        "struct<`at`: timestamp, `day`: date, `clock`: bigint, `number`: string, `kind`: string, "
        "`total`: decimal(10, 2), `lines`: array<struct<`sku`: string, `price`: double>>, "
        "`counts`: map<string, bigint>, `first`: struct<`sku`: string, `price`: double>>"
    )


def test_values_are_read_by_their_own_schema(registry: StubRegistry) -> None:
    older = make_dataclass("Sale", [("at", datetime), ("gone", int)])
    old = serde_of(registry, older).dumps(older(AT, 3))
    latest = make_dataclass("Sale", [("at", datetime), ("note", str, "none")])
    serde_of(registry, latest)
    decode = registered_decoder(RegistrySettings.of(registry.url), "sales")
    assert decode(old) == {"at": AT, "note": "none"}
    assert registry.asked["GET /schemas/ids/1"] == 1
    with pytest.raises(SerdeError, match="it names no schema"):
        decode(b"plain")
    with pytest.raises(SerdeError, match="Error: "):
        decode(old[:6])


def test_a_topic_without_avro_is_refused(registry: StubRegistry) -> None:
    settings = RegistrySettings.of(registry.url)
    with pytest.raises(ConfigError, match="has no subject sales-value"):
        registered_columns(settings, ["sales"])
    serde_of(registry, make_dataclass("Sale", [("a", int | str)]))
    with pytest.raises(ConfigError, match=r"sales\.a has a type that Spark lacks \(a union\)"):
        registered_columns(settings, ["sales"])


def test_a_json_schema_becomes_spark_columns(registry: StubRegistry) -> None:
    settings = RegistrySettings.of(registry.url)
    serde = serde_of(registry, Sale, "json")
    assert registered_columns(settings, ["sales"]) == (
        "struct<`at`: string, `day`: string, `clock`: string, `number`: string, `kind`: bigint, "
        "`total`: string, `lines`: array<struct<`sku`: string, `price`: double>>, "
        "`counts`: map<string, bigint>, `first`: struct<`sku`: string, `price`: double>>"
    )
    found: Any = registered_decoder(settings, "sales")(serde.dumps(SALE))
    assert (found["kind"], found["total"]) == (1, "1.50")
    with pytest.raises(SerdeError, match="it names no schema"):
        registered_decoder(settings, "sales")(b"{}")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('{"type":"object"}', "an object without properties"),
        ('{"properties":{"a":{}}}', "sales.a has a type that Spark lacks (anything)"),
        ('{"properties":{"a":{"type":["string","integer"]}}}', "a union"),
        ('{"properties":{"a":{"enum":["x",1]}}}', "values of several types"),
        ('{"properties":{"a":{"$ref":"#"}}}', "no types that contain themselves"),
    ],
)
def test_json_schemas_that_are_no_columns_are_refused(
    registry: StubRegistry, schema: str, reason: str
) -> None:
    client = RegistryClient(RegistrySettings.of(registry.url))
    client.register("sales-value", Schema(SchemaType.JSON, schema))
    with pytest.raises(ConfigError, match=re.escape(reason)):
        registered_columns(client.settings, ["sales"])


def test_a_protobuf_message_becomes_spark_columns(registry: StubRegistry) -> None:
    settings = RegistrySettings.of(registry.url)
    serde = serde_of(registry, Sale, "protobuf")
    assert registered_columns(settings, ["sales"]) == (
        "struct<`at`: timestamp, `day`: date, `clock`: bigint, `number`: string, `kind`: string, "
        "`total`: string, `lines`: array<struct<`sku`: string, `price`: double>>, "
        "`counts`: map<string, bigint>, `first`: struct<`sku`: string, `price`: double>>"
    )
    found: Any = registered_decoder(settings, "sales")(serde.dumps(SALE))
    assert (found["at"], found["kind"]) == (SALE.at, "KIND_WEB")
    assert (found["total"], found["clock"], found["counts"]) == ("1.50", 1_000_000, [("a", 1)])


EVERY = """
syntax = "proto3";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
import "item.proto";
message Every {
  sint32 i = 1; fixed32 u = 2; uint64 l = 3; float f = 4; bytes b = 5; bool o = 6;
  google.protobuf.Duration d = 7; google.protobuf.Struct s = 8; google.protobuf.Int32Value w = 9;
  map<int32, Item> items = 10; repeated uint64 ls = 11;
  Item none = 12;
}
message Other { int32 a = 1; }
"""


def test_every_kind_of_field_is_a_column_that_arrow_takes(registry: StubRegistry) -> None:
    settings = RegistrySettings.of(registry.url)
    client = RegistryClient(settings)
    item = Schema(SchemaType.PROTOBUF, 'syntax = "proto3"; message Item { string sku = 1; }')
    client.register("item", item)
    references = (SchemaReference("item.proto", "item", 1),)
    schema = Schema(SchemaType.PROTOBUF, EVERY, references)
    given = TopicSchema("protobuf", schema=schema, referenced={"item.proto": item})
    serde = serde_of(registry, dict, given)
    assert registered_columns(settings, ["sales"]) == (
        "struct<`i`: int, `u`: bigint, `l`: decimal(20, 0), `f`: float, `b`: binary, `o`: boolean, "
        "`d`: interval day to second, `s`: string, `w`: int, "
        "`items`: map<int, struct<`sku`: string>>, `ls`: array<decimal(20, 0)>, "
        "`none`: struct<`sku`: string>>"
    )
    value = {
        "i": -1, "u": 2**32 - 1, "l": 2**64 - 1, "f": 1.5, "b": b"x", "o": True,
        "d": timedelta(seconds=1), "s": {"a": 1}, "w": 0, "items": {1: {"sku": "a"}}, "ls": [1],
    }  # fmt: skip
    decode = registered_decoder(settings, "sales")
    found: Any = decode(serde.dumps(value))
    assert (found["l"], found["s"], found["w"]) == (Decimal(2**64 - 1), '{"a":1.0}', 0)
    item_type = pa.struct([("sku", pa.string())])
    types = {
        "i": pa.int32(), "u": pa.int64(), "l": pa.decimal128(20, 0), "f": pa.float32(),
        "b": pa.binary(), "o": pa.bool_(), "d": pa.duration("us"), "s": pa.string(),
        "w": pa.int32(), "items": pa.map_(pa.int32(), item_type),
        "ls": pa.list_(pa.decimal128(20, 0)), "none": item_type,
    }  # fmt: skip
    (row,) = pa.array([found], pa.struct([*types.items()])).to_pylist()
    assert row == found
    other = serde_of(
        registry,
        dict,
        TopicSchema("protobuf", schema=schema, referenced={"item.proto": item}, message="Other"),
    )
    with pytest.raises(SerdeError, match="it is a Other, and not a Every"):
        decode(other.dumps({"a": 1}))
    with pytest.raises(SerdeError, match="pars"):
        decode(serde.dumps(value)[:9])


def test_messages_that_contain_themselves_are_no_columns(registry: StubRegistry) -> None:
    client = RegistryClient(RegistrySettings.of(registry.url))
    text = 'syntax = "proto3"; message A { A a = 1; }'
    client.register("sales-value", Schema(SchemaType.PROTOBUF, text))
    with pytest.raises(ConfigError, match="no types that contain themselves"):
        registered_columns(client.settings, ["sales"])


def test_options_name_the_registry() -> None:
    base = {"path": "x", "subscribe": "sales"}
    given = {"valueFormat": "registry", "schema.registry.url": "http://a:1"}
    assert str(parse_options({**base, **given}).registry) == "http://a:1"
    assert parse_options(base).registry is None
    with pytest.raises(ConfigError, match="give one of 'valueFormat'"):
        parse_options({**base, **given, "app": "m"})
    with pytest.raises(ConfigError, match="need 'valueFormat'"):
        parse_options({**base, "schema.registry.url": "http://a:1"})


async def write(url: str, serde: RegistrySerde[Any]) -> None:
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("sales", 1)])
        async with log.producer() as producer:
            await producer.send("sales", serde.dumps(SALE), key=b"a")
            # The same in a header, as other programs write it.
            whole = serde.dumps(SALE)
            size = serde.head_size(whole)
            header = ("__value_schema_id", whole[:size])
            await producer.send("sales", whole[size:], key=b"a", headers=(header,))
            await producer.send("sales", None, key=b"a")


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_values_are_columns_of_the_registered_schema(
    spark: SparkSession, tmp_path: Path, registry: StubRegistry, form: str
) -> None:
    asyncio.run(write(f"embedded:{tmp_path / 'log'}", serde_of(registry, Sale, form)))
    reader = spark.read.format("streamlog").option("path", str(tmp_path / "log"))
    reader = reader.option("subscribe", "sales").option("valueFormat", "registry")
    reader = reader.option("schema.registry.url", registry.url)
    first, second, third = reader.load().select("value").collect()
    assert third.value is None
    assert second.value == first.value
    assert first.value.at.astimezone(UTC) == AT
    found = (first.value["counts"], first.value.clock, first.value.first)
    assert found == ({"a": 1}, 1_000_000, None)
