"""Registry serdes: subjects, evolution, headers, and errors."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, make_dataclass
from typing import Any

import pytest

from streamlog.errors import ConfigError, SerdeError
from streamlog.processing.inputs.schema_headers import absorb_headers
from streamlog.records.record_columns import RecordColumns
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.plain import StrSerde
from streamlog.serdes.registered import (
    MEMORY_REGISTRY,
    RegistrySerde,
    SchemaAccess,
    SchemaKey,
    TopicSchema,
    registry_serde,
    subject_name,
)
from streamlog.serdes.registered.framing import schema_keys


@dataclass
class Sale:
    shop: str
    amount: int


def serde_of(given: TopicSchema, declared: Any = Sale) -> RegistrySerde[Any]:
    access = SchemaAccess()
    access.use(MEMORY_REGISTRY)
    return registry_serde(given, declared, "sales", "value", access)


@pytest.mark.parametrize(
    ("names", "subject"),
    [("topic", "sales-value"), ("record", "acme.Sale"), ("topic_record", "sales-acme.Sale")],
)
def test_subjects_have_the_names_of_the_strategies(names: Any, subject: str) -> None:
    assert subject_name(names, "sales", "value", "acme.Sale") == subject


def test_a_subject_by_record_needs_a_record() -> None:
    with pytest.raises(ConfigError, match="topic 'sales': subjects='record' needs the name"):
        serde_of(TopicSchema("avro", subjects="record"), int)


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
def test_older_and_newer_values_are_read(form: Any) -> None:
    newer = make_dataclass(
        "Sale", [("shop", str), ("amount", int), ("note", str, "none"), ("more", int | None, None)]
    )
    old, new = serde_of(TopicSchema(form)), serde_of(TopicSchema(form), newer)
    assert new.loads(old.dumps(Sale("ulm", 3))) == newer("ulm", 3)
    assert old.loads(new.dumps(newer("ulm", 3, "x", 4))) == Sale("ulm", 3)


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0\0\0", b"\1abc", b"{}", b"\0\0\0\0\1", b"\0\0\0\0\1\xff\xff\xff"]
)
def test_damaged_bytes_are_refused(form: Any, data: bytes) -> None:
    serde = serde_of(TopicSchema(form))
    head = serde.dumps(Sale("ulm", 3))[:5]
    with pytest.raises(SerdeError, match="not Sale: "):
        serde.loads(data.replace(b"\0\0\0\0\1", head) if len(data) >= 5 else data)


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
def test_values_of_another_type_are_refused(form: Any) -> None:
    with pytest.raises(SerdeError):
        serde_of(TopicSchema(form)).dumps({"shop": "ulm", "amount": 3})


def test_a_schema_of_another_format_is_refused() -> None:
    data = serde_of(TopicSchema("json")).dumps(Sale("ulm", 3))
    with pytest.raises(SerdeError, match="its schema is JSON, but the topic declares avro"):
        serde_of(TopicSchema("avro")).loads(data)


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(SerdeError, match="no schema with id 4000000000"):
        serde_of(TopicSchema("avro")).loads(b"\0" + (4_000_000_000).to_bytes(4) + b"\6ulm\6")


def test_a_schema_by_hand_is_used_as_it_is() -> None:
    text = '{"type":"record","name":"S","fields":[{"name":"shop","type":"string"}]}'
    given = TopicSchema("avro", schema=Schema(SchemaType.AVRO, text))
    serde = serde_of(given, dict)
    assert serde.schema.text == text
    assert serde.loads(serde.dumps({"shop": "ulm"})) == {"shop": "ulm"}


def test_dicts_are_checked_against_a_json_schema_by_hand() -> None:
    text = '{"type":"object","properties":{"n":{"type":"integer","minimum":3}}}'
    serde = serde_of(TopicSchema("json", schema=Schema(SchemaType.JSON, text)), dict)
    assert serde.loads(serde.dumps({"n": 3})) == {"n": 3}
    with pytest.raises(SerdeError, match=r"`\$\.n`: 2 is less than the minimum of 3"):
        serde.dumps({"n": 2})


@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
def test_a_serde_works_in_another_process(form: Any) -> None:
    serde = serde_of(TopicSchema(form))
    data = serde.dumps(Sale("ulm", 3))
    copy = pickle.loads(pickle.dumps(serde))  # noqa: S301 - its own bytes
    # Another process has another registry in memory: what matters is the declaration.
    copy._access.use(MEMORY_REGISTRY)
    assert copy.loads(data) == Sale("ulm", 3)


def test_headers_are_put_before_the_values_that_they_describe() -> None:
    serde = serde_of(TopicSchema("avro", ids="header"))
    whole = serde.dumps(Sale("ulm", 3))
    head, rest = whole[:17], whole[17:]
    records = RecordColumns()
    records.add(5, 1, b"k", rest, (("trace", b"t"), ("__value_schema_id", head)))
    records.add(6, 1, b"k", None, (("__value_schema_id", head),))
    records.add(7, 1, b"k", whole, ())
    found = absorb_headers(StrSerde(), serde, records)
    assert found.values == [whole, None, whole]
    assert found.headers == [(("trace", b"t"),), (), ()]
    assert records.values[0] == rest


def test_the_headers_of_other_topics_stay() -> None:
    records = RecordColumns()
    records.add(5, 1, b"k", b"v", (("__value_schema_id", b"\1"),))
    assert absorb_headers(StrSerde(), StrSerde(), records) is records


def test_the_schemas_of_a_column_are_listed_once() -> None:
    serde = serde_of(TopicSchema("avro"))
    guid = b"\1" + bytes(range(16))
    column = [b"\0\0\0\0\7a", b"\0\0\0\0\7b", b"\0\0\0\0\10c", None, b"x", guid + b"v"]
    headers = [(("__value_schema_id", b"\0\0\0\0\11"),)]
    assert schema_keys(serde, column, headers, "__value_schema_id") == {
        SchemaKey(7),
        SchemaKey(8),
        SchemaKey(9),
        SchemaKey(None, bytes(range(16)).hex()),
    }
