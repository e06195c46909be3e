"""Written values: reads what any program wrote, by the schema that the value itself names.

A serde reads what one program expects. This module reads records whose types only the registry
knows, to show them. Avro gives dicts, lists and numbers, Protobuf a dict with the names of the
fields, and JSON its text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from streamlog.errors import SerdeError
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.erased_types import UserValue
from streamlog.serdes.registered.avro_codec import AvroCodec
from streamlog.serdes.registered.framing import after_indexes
from streamlog.serdes.registered.message_dicts import MessageDicts
from streamlog.serdes.registered.protobuf_codec import (
    load_protobuf,
    message_at,
    registered_message,
)
from streamlog.serdes.registered.schema_source import RegisteredSchema
from streamlog.serdes.registered.topic_schema import TopicSchema

Read = Callable[[bytes, int], bytes]
MESSAGES_MAX: Final = 100
"""Messages of one Protobuf schema whose readers are kept."""


def json_reader(written: RegisteredSchema) -> Read:
    """Return what reads a value, from a position on, and returns it as JSON.

    What it returns raises a SerdeError for bytes that the schema does not describe.

    Raises:
        SerdeError: the schema is invalid.
        ConfigError: the library of its format is not installed.
    """
    match written.schema.type:
        case SchemaType.AVRO:
            return _avro_reader(written)
        case SchemaType.PROTOBUF:
            return _ProtobufReader(written)
        case SchemaType.JSON:
            # The text that was written, which a schema does not change.
            return lambda data, start: data[start:]


def _avro_reader(written: RegisteredSchema) -> Read:
    # The reader's schema is the writer's, so that nothing is resolved, and no field left out.
    given = TopicSchema("avro", schema=written.schema, referenced=written.referenced)
    codec = AvroCodec(given, dict, written.schema, None)
    read_value = codec.reader(written)

    def read(data: bytes, start: int) -> bytes:
        try:
            return _as_json(read_value(data, start))
        except codec.errors as error:
            raise _unreadable(written.schema, error) from error

    return read


class _ProtobufReader:
    """Reads the messages of one schema: each value names its own."""

    def __init__(self, written: RegisteredSchema) -> None:
        self._written = written
        self._errors = (
            SerdeError,
            ValueError,
            TypeError,
            LookupError,
            OverflowError,
            RecursionError,
            load_protobuf().message.DecodeError,
        )
        self._messages: dict[bytes, Callable[[bytes], UserValue]] = {}

    def __call__(self, data: bytes, start: int) -> bytes:
        try:
            begin = after_indexes(data, start)
            return _as_json(self._message(data[start:begin])(data[begin:]))
        except self._errors as error:
            raise _unreadable(self._written.schema, error) from error

    def _message(self, indexes: bytes) -> Callable[[bytes], UserValue]:
        found = self._messages.get(indexes)
        if found is None:
            schema, referenced = self._written.schema, self._written.referenced
            message = registered_message(
                schema, referenced, message_at(schema, referenced, indexes)
            )
            dicts = MessageDicts(message.DESCRIPTOR)

            def found(data: bytes) -> UserValue:
                return dicts.read(message.FromString(data))

            # One message may be named in several ways, and damaged bytes name many.
            if len(self._messages) < MESSAGES_MAX:
                self._messages[indexes] = found
        return found


def _as_json(value: UserValue) -> bytes:
    # Bytes become Base64 here, and moments ISO 8601: JSON has neither.
    return msgspec.json.encode(value, enc_hook=str)


def _unreadable(schema: Schema, error: Exception) -> SerdeError:
    return SerdeError(f"it is not what its schema ({schema.type}) describes: {error}")
