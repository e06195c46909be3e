"""Converters with a registry: ours live, one with outages, and Confluent's client as a witness."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from streamlog.clock import SystemClock
from streamlog.connect.connector_errors import BadRecord, Retriable
from streamlog.connect.connector_settings import SettingsRefused
from streamlog.connect.converters import converter_of
from streamlog.connect.converters.registry_converter import (
    RegistryConverterSettings,
    TopicConverter,
)
from streamlog.connect.row_schema import Field, Schema
from streamlog.connect_service.converter_serdes import RestConverterRegistry, open_converter
from streamlog.errors import ConfigError
from streamlog.serdes.registered.framing import SchemaKey
from tests.connect.converters.connect_protobuf.compiled import compiled
from tests.registry.running import RunningRegistry, run_registry
from tests.registry_client.stub_registry import StubRegistry

AVRO = "io.confluent.connect.avro.AvroConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
JSON_SCHEMA = "io.confluent.connect.json.JsonSchemaConverter"
FIELDS = (
    Field("id", Schema("int64")),
    Field("note", Schema("string", optional=True)),
    Field("price", Schema("bytes", logical="Decimal", parameters=(("scale", "2"),))),
)
ROW = Schema("struct", fields=FIELDS, name="shop.Order")
ORDER = {"id": 7, "note": None, "price": Decimal("12.50")}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    with run_registry(tmp_path_factory.mktemp("log")) as found:
        yield found


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    with StubRegistry() as found:
        yield found


def opened(url: str, topic: str = "orders", name: str = AVRO, **own: str) -> TopicConverter:
    """Return the converter of a topic's values; `own` has settings with `_` for dots."""
    settings = {"value.converter": name, "value.converter.schema.registry.url": url}
    settings |= {f"value.converter.{key.replace('_', '.')}": text for key, text in own.items()}
    found = open_converter(settings, {}, "value", lambda text: text)
    bound = found.of_topic(topic)  # type: ignore[union-attr]
    assert isinstance(bound, TopicConverter)
    return bound


def test_confluents_client_reads_and_writes_the_same(live: RunningRegistry) -> None:
    converter = opened(live.url)
    data = converter.encode(ROW, ORDER)
    context = SerializationContext("orders", MessageField.VALUE)
    with SchemaRegistryClient({"url": live.url}) as client:
        assert AvroDeserializer(client)(data, context) == ORDER
        latest = client.get_latest_version("orders-value").schema.schema_str
        conf = {"auto.register.schemas": False, "use.latest.version": True}
        assert AvroSerializer(client, latest, conf=conf)(ORDER, context) == data
    found = converter.decode(data)
    assert found == (ROW, ORDER)


def test_confluents_client_reads_and_writes_the_same_json(live: RunningRegistry) -> None:
    converter = opened(live.url, "json-orders", JSON_SCHEMA, decimal_format="NUMERIC")
    data = converter.encode(ROW, ORDER)
    assert data is not None
    context = SerializationContext("json-orders", MessageField.VALUE)
    with SchemaRegistryClient({"url": live.url}) as client:
        latest = client.get_latest_version("json-orders-value").schema.schema_str
        # It validates what it reads and writes.
        found = JSONDeserializer(latest, schema_registry_client=client)(data, context)
        assert found == {"id": 7, "note": None, "price": 12.5}
        conf = {"auto.register.schemas": False, "use.latest.version": True}
        again = JSONSerializer(latest, client, conf=conf)(found, context)
        assert again is not None
        assert again[:5] == data[:5]
    assert converter.decode(data) == converter.decode(again) == (ROW, ORDER)


def test_confluents_client_reads_and_writes_the_same_protobuf(
    live: RunningRegistry, tmp_path: Path
) -> None:
    converter = opened(live.url, "proto-orders", PROTOBUF, optional_for_nullables="true")
    data = converter.encode(ROW, ORDER)
    context = SerializationContext("proto-orders", MessageField.VALUE)
    conf = {"use.deprecated.format": False}
    with SchemaRegistryClient({"url": live.url}) as client:
        latest = client.get_latest_version("proto-orders-value").schema.schema_str
        message = compiled(tmp_path, latest, "shop.Order")
        found = ProtobufDeserializer(message, conf, client)(data, context)
        assert (found.id, found.HasField("note"), found.price.value) == (7, False, b"\x04\xe2")
        # It registers the compiled file, as one more version that fits the first.
        writing = {"skip.known.types": True}
        again = ProtobufSerializer(message, client, {**conf, **writing})(found, context)
    assert data is not None
    assert again is not None
    assert again[5:] == data[5:]
    assert converter.decode(again).value == converter.decode(data).value == ORDER


def test_protobuf_of_others_is_read_by_its_message_indexes(
    live: RunningRegistry, tmp_path: Path
) -> None:
    text = """
        syntax = "proto3";
        message A {}
        message B { message C { optional int64 id = 1; oneof by { string name = 2; } } }
    """
    message = compiled(tmp_path, text, "B.C")
    context = SerializationContext("nested", MessageField.VALUE)
    with SchemaRegistryClient({"url": live.url}) as client:
        serializer = ProtobufSerializer(message, client, {"use.deprecated.format": False})
        data = serializer(message(name="x"), context)
    found = opened(live.url, "nested", PROTOBUF).decode(data)
    assert found.value == {"by_0": {"name": "x"}, "id": None}
    with pytest.raises(BadRecord, match="its schema is PROTOBUF"):
        opened(live.url, "nested", JSON_SCHEMA).decode(data)


def test_json_of_others_has_the_fields_of_its_schema(live: RunningRegistry) -> None:
    schema = {
        "title": "Order", "type": "object",
        "properties": {"zeta": {"type": "integer"}, "tags": {
            "type": "array", "items": {"type": ["string", "null"]},
        }},
    }  # fmt: skip
    context = SerializationContext("others", MessageField.VALUE)
    with SchemaRegistryClient({"url": live.url}) as client:
        data = JSONSerializer(json.dumps(schema), client)({"zeta": 1, "tags": ["a"]}, context)
    found = opened(live.url, "others", JSON_SCHEMA).decode(data)
    assert found.value == {"zeta": 1, "tags": ["a"]}
    assert found.schema is not None
    assert [(each.name, each.schema.kind) for each in found.schema.fields] == [
        ("zeta", "int64"), ("tags", "array"),
    ]  # fmt: skip


@pytest.mark.parametrize("strategy", ["RecordNameStrategy", "TopicRecordNameStrategy"])
def test_a_title_names_the_subject(live: RunningRegistry, strategy: str) -> None:
    converter = opened(live.url, "t", JSON_SCHEMA, value_subject_name_strategy=strategy)
    schema = Schema("struct", fields=FIELDS, name=f"shop.{strategy}")
    assert converter.encode(schema, ORDER)
    subject = schema.name if strategy == "RecordNameStrategy" else f"t-{schema.name}"
    assert live.get(f"/subjects/{subject}/versions")


def test_a_null_of_json_is_a_tombstone_if_it_is_required(live: RunningRegistry) -> None:
    converter = opened(live.url, "nulls", JSON_SCHEMA)
    assert converter.encode(None, None) is None
    assert converter.encode(Schema("string"), None) is None
    data = converter.encode(Schema("string", optional=True), None)
    assert data is not None
    assert data[5:] == b"null"
    assert converter.decode(data) == (Schema("string", optional=True), None)


def test_json_and_avro_are_not_taken_for_each_other(live: RunningRegistry) -> None:
    avro = opened(live.url, "mixed").encode(ROW, ORDER)
    with pytest.raises(BadRecord, match="its schema is AVRO"):
        opened(live.url, "mixed", JSON_SCHEMA).decode(avro)
    own = {"auto_register_schemas": "false", "use_latest_version": "true"}
    with pytest.raises(BadRecord, match="its schema is AVRO"):
        opened(live.url, "mixed", JSON_SCHEMA, **own).encode(ROW, ORDER)


def test_a_second_converter_registers_nothing_new(live: RunningRegistry) -> None:
    data = [opened(live.url, "same").encode(ROW, ORDER) for _ in range(2)]
    assert data[0] == data[1]
    assert live.get("/subjects/same-value/versions") == [1]


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "named-value"), ("RecordNameStrategy", "shop.Order"),
        ("io.confluent.kafka.serializers.subject.TopicRecordNameStrategy", "named-shop.Order"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_optional", [False, True])
def test_a_strategy_names_the_subject(
    live: RunningRegistry, strategy: str, subject: str, *, is_optional: bool
) -> None:
    live.ask("DELETE", f"/subjects/{subject}")
    schema = Schema("struct", fields=FIELDS, name="shop.Order", optional=is_optional)
    converter = opened(live.url, "named", value_subject_name_strategy=strategy)
    assert converter.encode(schema, ORDER)
    assert live.get(f"/subjects/{subject}/versions")


def test_a_record_without_a_name_has_no_subject_of_its_name(live: RunningRegistry) -> None:
    converter = opened(live.url, value_subject_name_strategy="RecordNameStrategy")
    with pytest.raises(ConfigError, match="the name of a record"):
        converter.encode(Schema("string"), "x")


def test_without_registering_a_schema_has_to_be_there(live: RunningRegistry) -> None:
    converter = opened(live.url, "looked-up", auto_register_schemas="false")
    with pytest.raises(BadRecord, match="refuses a schema of subject looked-up-value"):
        converter.encode(ROW, ORDER)
    opened(live.url, "looked-up").encode(ROW, ORDER)
    again = opened(live.url, "looked-up", auto_register_schemas="false")
    assert again.decode(again.encode(ROW, ORDER)).value == ORDER


def test_the_latest_version_is_written(live: RunningRegistry) -> None:
    own = {"auto_register_schemas": "false", "use_latest_version": "true"}
    with pytest.raises(BadRecord, match="the subject latest-value has no version"):
        opened(live.url, "latest", **own).encode(ROW, ORDER)
    latest = {
        "type": "record", "name": "Mine", "fields": [
            {"name": "id", "type": "double"}, {"name": "by", "type": "string", "default": "me"},
        ],
    }  # fmt: skip
    number = live.register("latest-value", latest)
    data = opened(live.url, "latest", **own).encode(ROW, ORDER)
    assert data is not None
    assert int.from_bytes(data[1:5], "big") == number
    plain = fastavro.parse_schema(latest)
    found: Any = fastavro.schemaless_reader(io.BytesIO(data[5:]), plain)  # type: ignore[call-arg]
    assert found == {"id": 7.0, "by": "me"}


def test_references_are_read(live: RunningRegistry) -> None:
    live.register("shop.Price", {"type": "fixed", "name": "shop.Price", "size": 2})
    references = [{"name": "shop.Price", "subject": "shop.Price", "version": 1}]
    node = {"type": "record", "name": "R", "fields": [{"name": "p", "type": "shop.Price"}]}
    number = live.register("referring-value", node, references=references)
    found = opened(live.url).decode(b"\0" + number.to_bytes(4, "big") + b"ab")
    assert found.value == {"p": b"ab"}


def test_references_of_json_are_read(live: RunningRegistry) -> None:
    live.register("price", {"type": "number", "title": "shop.Price"}, schemaType="JSON")
    references = [{"name": "price.json", "subject": "price", "version": 1}]
    node = {"type": "object", "properties": {"p": {"$ref": "price.json"}}}
    number = live.register("priced-value", node, schemaType="JSON", references=references)
    found = opened(live.url, "priced", JSON_SCHEMA).decode(
        b"\0" + number.to_bytes(4, "big") + b'{"p":1.5}'
    )
    assert found.value == {"p": 1.5}
    assert found.schema is not None
    assert found.schema.fields[0].schema.name == "shop.Price"


def test_an_incompatible_schema_is_a_bad_record_and_asked_for_once(stub: StubRegistry) -> None:
    stub.refusals["orders-value"] = ["the field id is gone"]
    converter = opened(stub.url)
    for _ in range(3):
        with pytest.raises(BadRecord, match="refuses a schema of subject orders-value"):
            converter.encode(ROW, ORDER)
    assert stub.asked["POST /subjects/orders-value/versions"] == 1


def test_a_registry_that_is_away_is_waited_for(stub: StubRegistry) -> None:
    converter = opened(stub.url)
    stub.is_down = True
    with pytest.raises(Retriable, match="does not answer"):
        converter.encode(ROW, ORDER)
    stub.is_down = False
    data = converter.encode(ROW, ORDER)
    stub.is_down = True
    # Known schemas need no registry.
    assert converter.encode(ROW, ORDER) == data
    with pytest.raises(Retriable):
        opened(stub.url).decode(data)


def test_a_wrong_password_is_a_wrong_setting(stub: StubRegistry) -> None:
    stub.auth = "Basic bWU6c2VjcmV0"
    with pytest.raises(ConfigError, match="refuses the converter"):
        opened(stub.url).encode(ROW, ORDER)
    own = {"basic_auth_credentials_source": "USER_INFO", "basic_auth_user_info": "me:secret"}
    assert opened(stub.url, **own).encode(ROW, ORDER)


class HastyClock(SystemClock):
    """A clock on which each look takes half a second."""

    ms = 0

    def now_ms(self) -> int:
        self.ms += 500
        return self.ms


def test_an_id_that_the_registry_lacks_is_asked_for_again_for_a_while(stub: StubRegistry) -> None:
    settings = {"value.converter": AVRO, "value.converter.schema.registry.url": stub.url}
    access = converter_of(settings, "value")
    assert isinstance(access, RegistryConverterSettings)
    registry = RestConverterRegistry(access, HastyClock())
    with pytest.raises(BadRecord, match="refuses the schema with id 77"):
        registry.find(SchemaKey(77))
    times = stub.asked["GET /schemas/ids/77"]
    assert times > 1
    with pytest.raises(BadRecord, match="refuses the schema with id 77"):
        registry.find(SchemaKey(77))
    assert stub.asked["GET /schemas/ids/77"] == times


@pytest.mark.parametrize("data", [b"", b"{}", b"\0\0\0"])
def test_bytes_that_name_no_schema_are_a_bad_record(stub: StubRegistry, data: bytes) -> None:
    with pytest.raises(BadRecord, match="it names no schema"):
        opened(stub.url).decode(data)


def test_a_schema_of_another_format_is_a_bad_record(live: RunningRegistry) -> None:
    number = live.register("json-value", {"type": "object"}, schemaType="JSON")
    with pytest.raises(BadRecord, match="its schema is JSON"):
        opened(live.url).decode(b"\0" + number.to_bytes(4, "big") + b"{}")


def test_nulls_are_tombstones_unless_they_are_required(stub: StubRegistry) -> None:
    converter = opened(stub.url)
    assert converter.encode(None, None) is None
    assert converter.encode(Schema("string", optional=True), None) is None
    with pytest.raises(BadRecord, match="required"):
        converter.encode(Schema("string"), None)
    assert converter.decode(None) == (None, None)


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({}, "schema.registry.url is missing"),
        ({"schema.registry.url": "localhost:8081"}, "schema registry"),
        ({"schema.registry.url": "http://a", "auto.register.schemas": "maybe"}, "auto.register"),
        ({"schema.registry.url": "http://a", "value.subject.name.strategy": "Mine"}, "use one of"),
        (
            {"schema.registry.url": "http://a", "basic.auth.credentials.source": "USER_INFO"},
            "needs basic.auth.user.info",
        ),
    ],
)
def test_a_wrong_setting_is_named(own: dict[str, str], why: str) -> None:
    settings = {"value.converter": AVRO, **{f"value.converter.{k}": v for k, v in own.items()}}
    with pytest.raises((SettingsRefused, ConfigError), match=why):
        open_converter(settings, {}, "value", None)


def test_a_schema_is_one_version_for_all_spellings_if_it_is_normalized(
    live: RunningRegistry,
) -> None:
    assert opened(live.url, "spelled").encode(ROW, ORDER)
    text = json.loads(live.get("/subjects/spelled-value/versions/1")["schema"])
    live.ask("DELETE", "/subjects/spelled-value")
    live.register("spelled-value", dict(reversed(text.items())))
    assert opened(live.url, "spelled", normalize_schemas="true").encode(ROW, ORDER)
