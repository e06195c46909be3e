"""Values as columns of the schema that a registry keeps for the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import pytest

from spark_bridge.registered_values import registered_columns, registered_decoder
from spark_bridge.source_options import parse_options
from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.errors import ConfigError, SerdeError
from streamlog.log import Log
from streamlog.registry_client import RegistryClient, RegistrySettings
from streamlog.serdes import Digits
from streamlog.serdes.registered import RegistrySerde
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
    serde_of(registry, Line, "json")
    with pytest.raises(ConfigError, match="sales-value is JSON; valueFormat=registry reads Avro"):
        registered_columns(settings, ["sales"])


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
            await producer.send("sales", None, key=b"a")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_values_are_columns_of_the_registered_schema(
    spark: SparkSession, tmp_path: Path, registry: StubRegistry
) -> None:
    asyncio.run(write(f"embedded:{tmp_path / 'log'}", serde_of(registry, Sale)))
    reader = spark.read.format("streamlog").option("path", str(tmp_path / "log"))
    reader = reader.option("subscribe", "sales").option("valueFormat", "registry")
    reader = reader.option("schema.registry.url", registry.url)
    first, second = reader.load().select("value").collect()
    assert second.value is None
    assert first.value.at.astimezone(UTC) == AT
    found = (first.value.kind, first.value.total, first.value["counts"], first.value.clock)
    assert found == ("WEB", Decimal("1.50"), {"a": 1}, 1_000_000)
