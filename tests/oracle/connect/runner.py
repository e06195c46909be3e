"""ConnectJava and `ours`: one question about a record, answered by Kafka Connect and by us.

A question names a class with its settings, and a record as JSON; an answer has the record behind
it, `dropped`, `holds` for a predicate, or `error`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from conformance.kafka import fetched
from streamlog.connect.connector_settings import read_settings
from streamlog.connect.converters import JsonConverter
from streamlog.connect.schema_record import SchemaRecord, with_schemas
from streamlog.connect.transforms.transform_chain import chain_of
from streamlog.errors import StreamlogError
from tests.oracle.java import JavaProgram

VERSION: Final = "4.4.0"
DEBEZIUM_VERSION: Final = "3.0.8.Final"
"""The last one that Maven Central has whole."""
SOURCE: Final = Path(__file__).parent / "TransformRunner.java"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
PREDICATES: Final = "org.apache.kafka.connect.transforms.predicates."
Question = dict[str, Any]


class ConnectJava(JavaProgram):
    """Kafka Connect's classes.

    Raises:
        Unavailable: there is no Maven, no JDK, or no network.
    """

    def __init__(self) -> None:
        artifacts = ("connect-transforms", "connect-json", "connect-runtime")
        debezium = f"debezium-{DEBEZIUM_VERSION}"
        super().__init__(
            SOURCE,
            fetched(f"connect-{VERSION}", artifacts, VERSION),
            fetched(debezium, ["debezium-core"], DEBEZIUM_VERSION, group="io.debezium"),
        )


def ours(asked: Question) -> dict[str, Any]:
    """Return our answer to a question."""
    try:
        return _answer(asked)
    except StreamlogError as error:
        return {"error": str(error)}


def _answer(asked: Question) -> dict[str, Any]:
    converter = read_settings(JsonConverter, asked["converter"])
    key, value = (converter.decode(_bytes(asked[side])) for side in ("key", "value"))
    record: SchemaRecord[object, object] = SchemaRecord(
        key=key.value,
        value=value.value,
        timestamp=EPOCH + timedelta(milliseconds=asked["timestamp"]),
        headers=tuple((name, _bytes(text)) for name, text in asked["headers"]),
        topic=asked["topic"],
        partition=asked["partition"],
        offset=asked["offset"],
        key_schema=key.schema,
        value_schema=value.schema,
    )
    if asked["class"].startswith(PREDICATES):
        own = {f"predicates.p.{name}": text for name, text in asked["config"].items()}
        filtered = {"transforms": "f", "predicates": "p", "transforms.f.type": "Filter"}
        named = {"predicates.p.type": asked["class"], "transforms.f.predicate": "p"}
        return {"holds": chain_of({**own, **filtered, **named})(record) is None}
    own = {f"transforms.t.{name}": text for name, text in asked["config"].items()}
    chain = chain_of({"transforms": "t", "transforms.t.type": asked["class"], **own})
    changed = chain(record)
    if changed is None:
        return {"dropped": True}
    whole = with_schemas(changed)
    return {
        "topic": whole.topic,
        "key": _text(converter.encode(whole.key_schema, whole.key)),
        "value": _text(converter.encode(whole.value_schema, whole.value)),
        "headers": [[name, _text(data)] for name, data in whole.headers],
    }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
