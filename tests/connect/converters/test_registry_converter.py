"""Registry converters: the id before each value, and which schema of which subject it names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.connector_settings import read_settings
from streamlog.connect.converters.connect_avro.avro_converter import AvroConverter
from streamlog.connect.converters.registry_converter import (
    RegistryConverter,
    RegistryUse,
    TopicConverter,
)
from streamlog.connect.row_schema import Field, Schema
from streamlog.errors import ConfigError
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas import SchemaType
from streamlog.serdes.registered.framing import SchemaKey
from streamlog.serdes.registered.schema_source import RegisteredSchema

ROW = Schema("struct", name="shop.Order", fields=(Field("id", Schema("int32")),))
WIDER = Schema("struct", name="shop.Order", fields=(*ROW.fields, Field("n", Schema("int32"), 7)))


@dataclass
class InMemory:
    """A registry's four calls, by Confluent's description of its API."""

    schemas: list[RegistrySchema] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    normalized: set[bool] = field(default_factory=set)

    def find(self, key: SchemaKey, /) -> RegisteredSchema:
        self.asked["find"] += 1
        assert key.id is not None
        return RegisteredSchema(key.id, None, self.schemas[key.id - 1])

    def register(
        self, subject: str, schema: RegistrySchema, /, *, normalize: bool
    ) -> RegisteredSchema:
        self.asked["register"] += 1
        self.normalized.add(normalize)
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return RegisteredSchema(number, None, schema)

    def lookup(
        self, subject: str, schema: RegistrySchema, /, *, normalize: bool
    ) -> RegisteredSchema:
        self.asked["lookup"] += 1
        self.normalized.add(normalize)
        for number in self.subjects.get(subject, ()):
            if self.schemas[number - 1] == schema:
                return RegisteredSchema(number, None, schema)
        raise BadRecord(f"{subject} has no such schema")

    def latest(self, subject: str, /) -> RegisteredSchema:
        self.asked["latest"] += 1
        number = self.subjects[subject][-1]
        return RegisteredSchema(number, None, self.schemas[number - 1])


def settings(**own: str) -> AvroConverter:
    named = {key.replace("_", "."): text for key, text in own.items()}
    return read_settings(AvroConverter, {"schema.registry.url": "http://none", **named})


def converter(registry: InMemory, side: Any = "value", **own: str) -> RegistryConverter:
    made = settings(**own)
    return RegistryConverter(made.format(), registry, made.use(side))


def test_before_a_value_stands_the_id_of_its_schema() -> None:
    registry = InMemory()
    found = converter(registry)
    # Confluent's format: a zero byte, and four bytes of the id.
    assert found.encode("orders", ROW, {"id": 3}) == b"\0\0\0\0\1\x06"
    assert found.encode("orders", WIDER, {"id": 3, "n": 1}) == b"\0\0\0\0\2\x06\x02"
    assert found.decode(b"\0\0\0\0\1\x06") == (ROW, {"id": 3})
    assert found.decode(None) == (None, None)
    assert registry.subjects == {"orders-value": [1, 2]}


def test_a_schema_is_asked_for_once() -> None:
    registry = InMemory()
    found = converter(registry)
    for number in range(3):
        data = found.encode("orders", ROW, {"id": number})
        assert found.decode(data).value == {"id": number}
    assert registry.asked == {"register": 1, "find": 1}
    found.encode("returns", ROW, {"id": 1})
    assert registry.asked == {"register": 2, "find": 1}


def test_without_registration_the_subject_has_to_have_the_schema() -> None:
    registry = InMemory()
    looks_up = converter(registry, auto_register_schemas="false")
    with pytest.raises(BadRecord, match="orders-value has no such schema"):
        looks_up.encode("orders", ROW, {"id": 3})
    converter(registry).encode("orders", ROW, {"id": 3})
    converter(registry).encode("orders", WIDER, {"id": 3, "n": 0})
    assert looks_up.encode("orders", ROW, {"id": 3}) == b"\0\0\0\0\1\x06"
    latest = converter(registry, auto_register_schemas="false", use_latest_version="true")
    assert latest.encode("orders", ROW, {"id": 3}) == b"\0\0\0\0\2\x06\x0e"
    # Who registers does not write with the latest version.
    both = converter(registry, use_latest_version="true")
    assert both.encode("orders", ROW, {"id": 3}) == b"\0\0\0\0\1\x06"


@pytest.mark.parametrize(
    ("own", "normalized"), [({}, {False}), ({"normalize_schemas": "true"}, {True})]
)
def test_schemas_are_normalized_if_the_settings_say_so(
    own: dict[str, str], normalized: set[bool]
) -> None:
    registry = InMemory()
    converter(registry, **own).encode("orders", ROW, {"id": 1})
    converter(registry, auto_register_schemas="false", **own).encode("orders", ROW, {"id": 1})
    assert registry.normalized == normalized
    assert registry.asked == {"register": 1, "lookup": 1}


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "orders-key"), ("RecordNameStrategy", "shop.Order"),
        ("TopicRecordNameStrategy", "orders-shop.Order"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "shop.Order"),
    ],
)  # fmt: skip
def test_strategies_name_the_subject(strategy: str, subject: str) -> None:
    registry = InMemory()
    converter(registry, "key", key_subject_name_strategy=strategy).encode("orders", ROW, {"id": 1})
    assert [*registry.subjects] == [subject]
    # The strategy of values is another setting.
    assert settings(key_subject_name_strategy=strategy).subjects("value") == "topic"
    assert settings(value_subject_name_strategy=strategy).subjects("key") == "topic"


def test_the_converter_of_a_topic_knows_its_topic() -> None:
    registry = InMemory()
    whole = converter(registry)
    orders = whole.of_topic("orders")
    assert isinstance(orders, TopicConverter)
    assert whole.of_topic("orders") is orders
    assert whole.may_block
    assert orders.may_block
    data = orders.encode(ROW, {"id": 1})
    assert [*registry.subjects] == ["orders-value"]
    assert orders.decode(data) == (ROW, {"id": 1})


def test_a_null_without_bytes_asks_no_registry() -> None:
    registry = InMemory()
    found = converter(registry).of_topic("orders")
    assert found.encode(None, None) is None
    assert found.encode(Schema("string", optional=True), None) is None
    assert not registry.asked
    assert found.is_tombstone(None)
    assert converter(registry).is_tombstone(None)
    assert not found.is_tombstone(ROW)
    # A value is written whatever its schema says of null.
    assert found.encode(Schema("string", optional=True), "x") == b"\0\0\0\0\1\x02\x02x"
    with pytest.raises(BadRecord, match="null"):
        found.encode(ROW, None)


@pytest.mark.parametrize("data", [b"", b"\1\0\0\0\1\6", b"{}", b"\0\0\0"])
def test_bytes_without_an_id_are_a_bad_record(data: bytes) -> None:
    with pytest.raises(BadRecord, match="a value with a schema in a registry"):
        converter(InMemory()).decode(data)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"basic\.auth\.user\.info=USER:PASSWORD"):
        settings(basic_auth_credentials_source="USER_INFO").check()
    settings(basic_auth_credentials_source="USER_INFO", basic_auth_user_info="u:p").check()
    settings(basic_auth_user_info="u:p").check()
    for side in ("key", "value"):
        with pytest.raises(
            ConfigError, match=rf"{side}\.subject\.name\.strategy: use one of Topic"
        ):
            settings(**{f"{side}_subject_name_strategy": "MyStrategy"}).check()


def test_without_settings_schemas_are_registered_under_the_topic() -> None:
    assert settings().use("key") == RegistryUse("key")
    registry = InMemory()
    RegistryConverter(settings().format(), registry, RegistryUse("value")).encode(
        "t", ROW, {"id": 1}
    )
    assert registry.subjects == {"t-value": [1]}
    assert registry.normalized == {False}


def test_the_last_1000_topics_and_schemas_are_kept() -> None:
    registry = InMemory([RegistrySchema(SchemaType.AVRO, '"int"')] * 1_001)
    whole = converter(registry)
    topics = [whole.of_topic(f"t{number}") for number in range(1_000)]
    for number in range(1_000):
        whole.decode(b"\0" + (number + 1).to_bytes(4, "big") + b"\2")
    assert whole.of_topic("t0") is topics[0]
    whole.decode(b"\0\0\0\0\1\2")
    assert registry.asked["find"] == 1_000
    # One more, and what was not asked for the longest is gone.
    whole.of_topic("new")
    assert whole.of_topic("t0") is topics[0]
    assert whole.of_topic("t1") is not topics[1]
    whole.decode(b"\0" + (1_001).to_bytes(4, "big") + b"\2")
    whole.decode(b"\0\0\0\0\2\2")
    assert registry.asked["find"] == 1_002
