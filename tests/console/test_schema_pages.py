"""Schemas in the console: pages of a real registry, and records that other libraries wrote."""

from __future__ import annotations

import asyncio
import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.schema_service import RegistryConfig
from streamlog.console.shown_records import show_bytes
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.registered.schema_source import RegisteredSchema
from streamlog.serdes.registered.written_values import json_reader
from tests.console.consoles import Page, console, console_and_registry, fill

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "n", "type": "long"}, {"name": "who", "type": "string"}],
}
NEXT = ORDER | {
    "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}],
}
PROTO = """syntax = "proto3";
message First { int32 n = 1; }
message Second { string who = 1; repeated int32 ns = 2; }
"""
CONFIG = BrokerConfig(registry=RegistryConfig(listener="127.0.0.1:0"))


def avro(schema: Any, value: object, id_: int) -> bytes:
    buffer = io.BytesIO(b"")
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return struct.pack(">BI", 0, id_) + buffer.getvalue()


async def register(
    registry: httpx.AsyncClient, subject: str, schema: str, kind: str = "AVRO"
) -> int:
    """Register a schema by the REST API, as a producer does."""
    answer = await registry.post(
        f"/subjects/{subject}/versions", json={"schema": schema, "schemaType": kind}
    )
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


def test_values_are_shown_and_filtered_by_their_schemas() -> None:
    async def main() -> None:
        async with console_and_registry(CONFIG) as (browser, log, registry):
            order = await register(registry, "orders-value", json.dumps(ORDER))
            proto = await register(registry, "b-value", PROTO, "PROTOBUF")
            plain = await register(registry, "c-value", '{"type": "object"}', "JSON")
            heads = [struct.pack(">BI", 0, each) for each in (proto, plain, 999)]
            # The second message (2, index 1), and its fields by hand: who="ann", ns=[1, 2].
            message = b"\x02\x02" + b"\x0a\x03ann" + b"\x12\x02\x01\x02"
            await fill(
                log,
                "orders",
                *(avro(ORDER, {"n": n, "who": "ann"}, order) for n in (1, 2, 3)),
                heads[0] + message,
                heads[1] + b'{"n": 7}',
                heads[2] + b"\x00\x01",
                avro(ORDER, {"n": 1, "who": "ben"}, order)[:-2],
            )
            shown = Page((await browser.get("/console/topics/orders?begin=oldest")).text)
            assert '{"n":1,"who":"ann"}' in shown.text
            assert '{"who":"ann","ns":[1,2]}' in shown.text
            assert '{"n": 7}' in shown.text
            assert "schema 999, not read" in shown.text
            # Damaged: bytes that the schema does not describe stay bytes.
            assert shown.text.count(f"schema {order}, not read") == 1
            found = Page((await browser.get("/console/topics/orders?q=value.n+>+1")).text)
            ids = [f["id"] for tag, f in found.tags if tag == "details"]
            assert ids == ["r-0-4", "r-0-2", "r-0-1"]

    asyncio.run(main())


def test_subjects_versions_and_what_changed_between_them() -> None:
    async def main() -> None:
        async with console_and_registry(CONFIG) as (browser, _, registry):
            empty = Page((await browser.get("/console/schemas")).text)
            assert "There is no schema yet" in empty.text
            await register(registry, "orders-value", json.dumps(ORDER))
            second = await register(registry, "orders-value", json.dumps(NEXT))
            listed = Page((await browser.get("/console/schemas?q=ORDERS")).text)
            assert "orders-value Avro 2" in listed.text
            page = Page((await browser.get("/console/schemas/orders-value")).text)
            assert "field note is new (string)" in page.text
            assert '+ "name": "note"' in page.text
            assert "Backward of all subjects" in page.text
            same = Page(
                (await browser.get("/console/schemas/orders-value?version=1&against=1")).text
            )
            assert "The two are equal" in same.text
            by_id = Page((await browser.get(f"/console/schemas?id={second}")).text)
            assert '"default": ""' in by_id.text
            for path in ("none", "orders-value?version=9"):
                assert (await browser.get(f"/console/schemas/{path}")).status_code == 404

    asyncio.run(main())


def test_a_pasted_schema_is_checked_and_not_registered() -> None:
    async def main() -> None:
        async with console_and_registry(CONFIG) as (browser, _, registry):
            await register(registry, "orders-value", json.dumps(ORDER))

            async def check(schema: str) -> str:
                answer = await browser.get(
                    "/console/schemas/orders-value", params={"schema": schema}
                )
                return Page(answer.text).text

            assert "Compatible." in await check(json.dumps(NEXT))
            gone = ORDER | {"fields": [{"name": "m", "type": "long"}]}
            assert "Not compatible." in await check(json.dumps(gone))
            assert "Compatible" not in (await check("{")).replace("Compatibility", "")
            assert (await registry.get("/subjects/orders-value/versions")).json() == [1]

    asyncio.run(main())


def test_without_a_registry_the_page_says_how_to_get_one() -> None:
    async def main() -> None:
        async with console() as (browser, _):
            page = Page((await browser.get("/console/schemas")).text)
            assert "--registry" in page.text

    asyncio.run(main())


def test_a_registry_that_is_down_hides_no_record() -> None:
    async def main() -> None:
        config = BrokerConfig(web_registry="http://127.0.0.1:9")
        async with console(config) as (browser, log):
            await fill(log, "orders", avro(ORDER, {"n": 1, "who": "ann"}, 1))
            page = Page((await browser.get("/console/topics/orders")).text)
            assert "schema 1, not read" in page.text
            assert (await browser.get("/console/schemas")).status_code == 503

    asyncio.run(main())


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text())


@given(st.dictionaries(st.text(), SCALARS))
def test_what_fastavro_writes_is_shown_as_the_value_that_it_was(value: dict[str, object]) -> None:
    schema = {"type": "map", "values": ["null", "boolean", "long", "string"]}
    read = json_reader(RegisteredSchema(1, None, Schema(SchemaType.AVRO, json.dumps(schema))))
    data = avro(schema, value, 1)
    assert json.loads(read(data, 5)) == value
    shown = show_bytes(data, decode=lambda given: read(given, 5))
    assert (shown.schema_id, shown.is_decoded, shown.kind) == (1, True, "JSON")
    assert json.loads(shown.text) == value


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ({"type": "bytes"}, b"\x00\xff", "AP8="),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
         Decimal("12.34"), "12.34"),
        ("string", "x", "x"),
        ({"type": "array", "items": "double"}, [1.5, float("nan")], [1.5, None]),
    ],
)  # fmt: skip
def test_values_that_json_lacks_have_a_text(schema: Any, value: object, shown: object) -> None:
    registered = RegisteredSchema(1, None, Schema(SchemaType.AVRO, json.dumps(schema)))
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    assert json.loads(json_reader(registered)(buffer.getvalue(), 0)) == shown
