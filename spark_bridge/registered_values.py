"""Registered values: columns of values whose schemas a registry keeps.

With `valueFormat=registry`, the columns follow from the latest version of `<topic>-value`, in Avro
(`avro_columns`), JSON Schema (`json_columns`) or Protobuf (`message_columns`).

Rule: Spark's processes import no app and no JVM client; each asks the registry once per schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from spark_bridge.avro_columns import AvroColumns
from spark_bridge.json_columns import JsonColumns
from spark_bridge.message_columns import MessageColumns
from streamlog.errors import ConfigError
from streamlog.registry_client import RegistrySettings, SchemaBook
from streamlog.schemas import SchemaType

WAIT_MS: Final = 30_000
"""How long a task of Spark waits for a registry that does not answer."""


class RegisteredColumns(Protocol):
    """Port: the values of one topic in one format."""

    def spark_type(self, topic: str) -> str:
        """Return the Spark type of values; `topic` is for messages.

        Raises:
            ConfigError: Spark has no such type.
        """

    def decode(self, data: bytes) -> object:
        """Return a value.

        Raises:
            SerdeError: it can't be read.
        """


def registered_columns(settings: RegistrySettings, topics: Iterable[str]) -> str:
    """Return the Spark type of the topics' values.

    Raises:
        ConfigError: a topic has no schema, Spark has no such type, or the topics have different
            types.
    """
    book = SchemaBook(settings, wait_ms=WAIT_MS)
    found = {topic: _columns_of(book, topic).spark_type(topic) for topic in sorted(topics)}
    if len({*found.values()}) > 1:
        types = "; ".join(f"{topic}: {columns}" for topic, columns in found.items())
        raise ConfigError(
            f"the topics have values of different types, read them separately: {types}"
        )
    return next(iter(found.values()), "binary")


def registered_decoder(settings: RegistrySettings, topic: str) -> Callable[[bytes], object]:
    """Return a function from bytes to a value for `registered_columns`; it raises SerdeError.

    Raises:
        ConfigError: as `registered_columns`.
    """
    return _columns_of(SchemaBook(settings, wait_ms=WAIT_MS), topic).decode


def _columns_of(book: SchemaBook, topic: str) -> RegisteredColumns:
    latest = book.client.latest(f"{topic}-value")
    if latest is None:
        raise ConfigError(
            f"the schema registry {book.settings} has no subject {topic}-value: read bytes, or "
            "give the option 'app'"
        )
    schema = latest.schema
    referenced = book.client.referenced(schema)
    match schema.type:
        case SchemaType.AVRO:
            return AvroColumns(book, schema, referenced)
        case SchemaType.JSON:
            return JsonColumns(schema, referenced)
        case SchemaType.PROTOBUF:
            return MessageColumns(book, schema, referenced)
