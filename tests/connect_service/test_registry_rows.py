"""Rows in Avro through the service: a table reaches another one, with outages of the registry."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamlog.record import TopicPartition
from tests.connect_service.running import Client, running
from tests.connect_service.test_row_schemas import CAST, until_rows
from tests.connectors.sql.databases import rows, run
from tests.registry_client.stub_registry import StubRegistry

AVRO = "io.confluent.connect.avro.AvroConverter"
JSON_SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"
THOROUGH = pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough", reason="needs STREAMLOG_PROFILE=thorough"
)
LOGIN = {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "me:${env:WORD}"}


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as found:
        # "me:secret": the reference is resolved where the task runs.
        found.auth = "Basic bWU6c2VjcmV0"
        yield found


def converters(name: str, registry: StubRegistry, **own: str) -> dict[str, str]:
    found = {}
    for side in ("key", "value"):
        found[f"{side}.converter"] = name
        settings = {"schema.registry.url": registry.url, **LOGIN, **own}
        found |= {f"{side}.converter.{key}": text for key, text in settings.items()}
    return found


async def asked_again(registry: StubRegistry, question: str) -> None:
    """Wait until the registry was asked in vain, and once more."""
    before = registry.asked[question]
    async with asyncio.timeout(30):
        while registry.asked[question] < before + 2:  # noqa: ASYNC110 - asked by a thread
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (AVRO, ('"name":"Order","namespace":"shop"', '"scale":2,"precision":10')),
        pytest.param(JSON_SCHEMA, ('"title":"shop.Order"', '"scale":"2"'), marks=THOROUGH),
    ],
)
def test_rows_wait_for_a_registry_that_is_away(
    tmp_path: Path, registry: StubRegistry, name: str, parts: tuple[str, ...]
) -> None:
    outside, inside = (f"sqlite:///{tmp_path / name}" for name in ("a.db", "b.db"))
    run(
        outside,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, amount BIGINT NOT NULL, price DECIMAL(10, 2),"
        " paid BOOLEAN NOT NULL, day DATE, part REAL)",
        "INSERT INTO orders VALUES (1, 7, 12.5, 1, '2026-02-03', 0.5)",
        "INSERT INTO orders VALUES (2, 8, NULL, 0, NULL, NULL)",
    )
    both = converters(name, registry)
    # A dead letter would be the loss of a sound record.
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "letters"}
    source = {
        "connector.class": "SqlSource", "url": outside, "tables": "orders", "poll": "50ms",
        "mode": "incrementing", "incrementing.column": "id", **both, **CAST, **letters,
    }  # fmt: skip
    sink = {
        "connector.class": "SqlSink", "topics": "orders", "url": inside, "auto.create": "true",
        "insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "id",
        "flush.every": "50ms", **both, **letters,
    }  # fmt: skip

    async def life(client: Client) -> None:
        registry.is_down = True
        status, body = await client.ask("PUT", "/connectors/in/config", source)
        assert status == 201, body
        await asked_again(registry, "POST /subjects/orders-key/versions")
        registry.is_down = False
        await client.until(lambda: "orders-value" in registry.subjects)
        registry.is_down = True
        status, body = await client.ask("PUT", "/connectors/out/config", sink)
        assert status == 201, body
        await asked_again(registry, "GET /schemas/ids/1")
        await client.until_state("in", "RUNNING", 1)
        await client.until_state("out", "RUNNING", 1)
        registry.is_down = False
        await until_rows(inside, "SELECT id, amount, price, day FROM orders ORDER BY id", [
            (1, 7, "12.50", "2026-02-03"), (2, 8, None, None),
        ])  # fmt: skip

    async def main() -> None:
        async with asyncio.timeout(60), running(tmp_path / "log") as client:
            await life(client)
            assert not [*await client.service.log.read_range(TopicPartition("letters", 0))]

    asyncio.run(main())
    declared = str(rows(inside, "SELECT sql FROM sqlite_master WHERE name = 'orders'")[0][0])
    assert "amount SMALLINT" in declared
    value = registry.schemas[registry.subjects["orders-value"][0] - 1]["schema"]
    assert all(part in value for part in parts)


def test_a_wrong_password_fails_the_task(tmp_path: Path, registry: StubRegistry) -> None:
    (tmp_path / "lines").write_text("one\n")
    both = converters(AVRO, registry, **{"basic.auth.user.info": "me:other"})
    source = {
        "connector.class": "FileStreamSource", "file": str(tmp_path / "lines"), "topic": "lines",
        **both,
    }  # fmt: skip

    async def main() -> None:
        async with asyncio.timeout(60), running(tmp_path / "log") as client:
            status, body = await client.ask("PUT", "/connectors/in/config", source)
            assert status == 201, body
            shown = await failed(client, "in")
            assert "the schema registry refuses the converter" in shown
            assert "other" not in shown

    asyncio.run(main())


async def failed(client: Client, name: str) -> str:
    async with asyncio.timeout(30):
        while True:
            _, body = await client.ask("GET", f"/connectors/{name}/status")
            states = body.get("tasks", [])
            if states and states[0]["state"] == "FAILED":
                return str(states[0]["trace"])
            await asyncio.sleep(0.02)
