"""The AsyncAPI document of contracts, held against AsyncAPI's own JSON Schema.

`asyncapi-3.0.0.json` is the schema of the npm package @asyncapi/specs 6.11.1 (Apache License 2.0,
github.com/asyncapi/spec-json-schemas), without descriptions, examples and the bindings of protocols
other than Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft7Validator
from pydantic import BaseModel

from streamlog import App
from streamlog.contracts.async_api import async_api, read_document
from streamlog.contracts.contract import Contract, TopicType, TopicUse
from streamlog.errors import CorruptData
from tests.contracts.apps import CONTRACTS, Card, Line, Order, OrderId, contract

SCHEMA = Path(__file__).parent / "asyncapi-3.0.0.json"


@cache
def validator() -> Draft7Validator:
    return Draft7Validator(json.loads(SCHEMA.read_text()))


def document(*contracts: Contract, **options: Any) -> Any:
    made = async_api(contracts, title="shop", version="1.0.0", **options)
    return json.loads(msgspec.json.encode(made))


def problems(made: Any) -> list[str]:
    return [f"{[*error.path]}: {error.message[:200]}" for error in validator().iter_errors(made)]


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        found = part.get("$ref")
        yield from [found] if isinstance(found, str) else []
        part = [*part.values()]
    if isinstance(part, list):
        for each in part:
            yield from references(each)


def resolve(made: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for part in reference[2:].split("/"):
        made = made[part]
    return made


def test_the_document_follows_the_official_schema() -> None:
    made = document(*CONTRACTS, host="localhost:9092", partitions={"orders": 4})
    assert problems(made) == []
    assert problems(made | {"channels": {"orders": {"address": 1}}}) != []


def test_every_reference_is_resolved_in_the_document() -> None:
    # Anywhere in it, extensions included: AsyncAPI's own parser follows those as well.
    made = document(*CONTRACTS)
    found = [*references(made)]
    assert len(found) > 20
    for reference in found:
        resolve(made, reference)


def test_channels_messages_and_operations_say_who_sends_and_receives_what() -> None:
    made = document(*CONTRACTS, partitions={"orders": 4})
    orders = made["channels"]["orders"]
    assert orders["bindings"]["kafka"] == {
        "topic": "orders",
        "partitions": 4,
        "bindingVersion": "0.5.0",
    }
    # One message per type: billing reads the type that shop writes, fraud a part of it.
    assert {*orders["messages"]} == {"Order", "OrderId"}
    sent = made["operations"]["shop.send.orders"]
    received = made["operations"]["fraud.receive.orders"]
    assert (sent["action"], received["action"]) == ("send", "receive")
    assert resolve(made, sent["messages"][0]["$ref"]) == orders["messages"]["Order"]
    assert received["bindings"]["kafka"]["groupId"]["enum"] == ["fraud"]


def test_the_payload_schema_accepts_what_the_app_writes() -> None:
    made = document(*CONTRACTS)
    payload = made["components"]["messages"]["orders.Order"]["payload"]
    order = Order(1, [Line("a", 2)], "2025-01-01T00:00:00Z", Card("1"))  # type: ignore[arg-type]
    written = json.loads(msgspec.json.encode(order))
    written["lines"][0]["price"] = "2"
    check = Draft7Validator({**payload, "components": made["components"]})
    assert [*check.iter_errors(written)] == []
    assert [*check.iter_errors(written | {"size": ["x", "a"]})] != []
    assert [*check.iter_errors({})] != []


def test_models_of_pydantic_and_registered_schemas_are_included() -> None:
    class Item(BaseModel):
        sku: str

    class Basket(BaseModel):
        items: list[Item]

    app = App("web")
    app.topic("baskets", key=OrderId, value=Basket)
    avro = {"type": "record", "name": "Sale", "fields": [{"name": "shop", "type": "string"}]}
    text = json.dumps(avro)
    types = [
        TopicType("Sale", {"registry": {"type": kind, "text": schema}})
        for kind, schema in (
            ("AVRO", text),
            ("JSON", '{"type": "object"}'),
            ("PROTOBUF", 'syntax = "proto3"; message Sale {}'),
        )
    ]
    key = TopicType("str", "StrSerde")
    uses = {f"t{at}": TopicUse(key=key, value=each) for at, each in enumerate(types)}
    uses |= {"t9": TopicUse(key=types[0], value=TopicType("odd[x, y]", "OddSerde"))}
    written = {name: msgspec.structs.replace(use, written_by=["a"]) for name, use in uses.items()}
    made = document(contract(app), Contract("other", written))
    assert problems(made) == []
    assert made["components"]["messages"]["t0.Sale"]["payload"] == {
        "schemaFormat": "application/vnd.apache.avro+json;version=1.9.0",
        "schema": avro,
    }
    assert "odd_x_y" in made["channels"]["t9"]["messages"]


def test_contracts_come_back_from_a_document() -> None:
    made = json.dumps(document(*CONTRACTS, partitions={"orders": 4})).encode()
    found, partitions = read_document(made, "contracts.json")
    assert found == {each.app: each for each in CONTRACTS}
    assert partitions == {"orders": 4}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is no document of contracts"),
        (b"[]", "is no document of contracts"),
        (b'{"asyncapi": "3.0.0"}', "streamlog contracts export"),
        (b'{"x-streamlog-contracts": {"a": 1}}', "is no document of contracts"),
        (b'{"x-streamlog-contracts": {"a": "{}"}}', "a stored contract is not readable"),
        (b"[" * 100_000, "is no document of contracts"),
    ],
)
def test_another_document_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptData, match=reason):
        read_document(data, "contracts.json")
