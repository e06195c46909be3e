"""ProtobufConverter: its settings, and Protobuf as a format of registry converters.

What it reads and writes is what `io.confluent.connect.protobuf.ProtobufConverter` does. Behind the
id of the schema stand message indexes, which say which of the schema's messages a record is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Final

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_protobuf.protobuf_conventions import ProtobufForm
from streamlog.connect.converters.connect_protobuf.protobuf_rows import row_reader, row_writer
from streamlog.connect.converters.connect_protobuf.schemas_from_protobuf import (
    ProtobufReading,
    notes_of,
)
from streamlog.connect.converters.connect_protobuf.schemas_to_protobuf import protobuf_of
from streamlog.connect.converters.json_converter import ConvertedValue
from streamlog.connect.converters.registry_converter import (
    ReadRow,
    RegistryConverterSettings,
    WriteRow,
)
from streamlog.connect.row_schema import Schema
from streamlog.errors import InvalidSchema, SerdeError
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas import parse_schema
from streamlog.schemas.protobuf.protobuf_schema import ProtobufSchema
from streamlog.serdes.erased_types import UserObject
from streamlog.serdes.registered.framing import after_indexes, index_bytes
from streamlog.serdes.registered.protobuf_codec import (
    load_protobuf,
    message_at,
    message_indexes,
    registered_message,
)
from streamlog.serdes.registered.schema_source import RegisteredSchema

MESSAGES_CACHED: Final = 100
"""The most messages of one schema whose readers a converter keeps."""


class ProtobufConverter(RegistryConverterSettings, frozen=True, kw_only=True):
    """Rows as Protobuf, with schemas in a schema registry.

    Attributes:
        enhanced_protobuf_schema_support: whether schemas have the full names of messages.
        generate_index_for_unions: whether the field of a oneof ends in the number of the oneof.
        flatten_unions: whether the fields of a oneof are fields of the struct itself.
        int_for_enums: whether enums are read as numbers.
        optional_for_nullables: whether fields that may be null are `optional` in Protobuf, and only
            those are read as such.
        optional_for_proto2: whether a field of proto2 that is absent is null.
        wrapper_for_nullables: whether fields that may be null are wrappers in Protobuf, such as
            `google.protobuf.Int64Value`, and only those are read as such.
        wrapper_for_raw_primitives: whether a wrapper alone is read as its value.
        scrub_invalid_names: whether characters that Protobuf does not allow in names become `_`.
    """

    enhanced_protobuf_schema_support: bool = False
    generate_index_for_unions: bool = True
    flatten_unions: bool = False
    int_for_enums: bool = False
    optional_for_nullables: bool = False
    optional_for_proto2: bool = True
    wrapper_for_nullables: bool = False
    wrapper_for_raw_primitives: bool = True
    scrub_invalid_names: bool = False

    def format(self) -> ProtobufFormat:
        """Return how rows are written with these settings."""
        return ProtobufFormat(
            ProtobufForm(
                is_enhanced=self.enhanced_protobuf_schema_support,
                has_index=self.generate_index_for_unions,
                is_flat=self.flatten_unions,
                has_int_enums=self.int_for_enums,
                uses_optional=self.optional_for_nullables,
                has_proto2_optional=self.optional_for_proto2,
                uses_wrappers=self.wrapper_for_nullables,
                unwraps_root=self.wrapper_for_raw_primitives,
                scrubs_names=self.scrub_invalid_names,
            )
        )


class ProtobufFormat:
    """Protobuf, as registry converters write and read it; a `RegistryFormat`."""

    def __init__(self, form: ProtobufForm) -> None:
        self._form = form

    def described(self, schema: Schema | None) -> tuple[RegistrySchema, str | None]:
        """Return a schema as Protobuf, and the full name of its message; see `RegistryFormat`."""
        found = protobuf_of(_given(schema), self._form)
        return found.schema, found.message

    def writer(self, schema: Schema | None, found: RegisteredSchema) -> WriteRow:
        """Return what writes values as a registered schema; see `RegistryFormat`."""
        schema = _given(schema)
        message = _message(found, protobuf_of(schema, self._form).message)
        library = load_protobuf()
        head = index_bytes(message_indexes(message.DESCRIPTOR))
        write_row = row_writer(schema, message.DESCRIPTOR, self._form)

        def write(value: object) -> bytes:
            row = message()
            try:
                write_row(row, value)
                # Deterministic: maps have an order, so equal keys of records are equal bytes.
                data: bytes = row.SerializeToString(deterministic=True)
            except (TypeError, ValueError, library.message.EncodeError) as error:
                raise BadRecord(f"it does not fit {message.DESCRIPTOR.name}: {error}") from None
            return head + data

        return write

    def reader(self, found: RegisteredSchema) -> ReadRow:
        """Return what reads values of a registered schema; see `RegistryFormat`."""
        reading = ProtobufReading(self._form, notes_of(_parsed(found).files))
        library = load_protobuf()

        @lru_cache(MESSAGES_CACHED)
        def reader_of(indexes: bytes) -> Callable[[bytes], ConvertedValue]:
            return _message_reader(found, indexes, reading, self._form, library)

        def read(data: bytes, start: int) -> ConvertedValue:
            try:
                at = after_indexes(data, start)
            except ValueError as error:
                raise BadRecord(str(error)) from None
            return reader_of(data[start:at])(data[at:])

        return read

    def is_tombstone(self, _schema: Schema | None) -> bool:
        """Return whether a null has no bytes: Protobuf has no message for it, whatever its type."""
        return True


def _given(schema: Schema | None) -> Schema:
    if schema is None:
        raise BadRecord(
            "ProtobufConverter writes values that have a schema, and this one has none: use "
            "JsonConverter, or a source or a transform that gives one"
        )
    return schema


def _message_reader(
    found: RegisteredSchema,
    indexes: bytes,
    reading: ProtobufReading,
    form: ProtobufForm,
    library: ModuleType,
) -> Callable[[bytes], ConvertedValue]:
    """Return what reads the messages that some indexes name."""
    try:
        name = message_at(found.schema, found.referenced, indexes)
    except (SerdeError, ValueError) as error:
        raise BadRecord(f"no message of its schema: {error}") from None
    message = _message(found, name)
    schema = reading.root(message.DESCRIPTOR)
    read_row = row_reader(schema, message.DESCRIPTOR, form)

    def read(data: bytes) -> ConvertedValue:
        try:
            row = message.FromString(data)
        except library.message.DecodeError as error:
            raise BadRecord(f"no {message.DESCRIPTOR.full_name} of Protobuf: {error}") from None
        return ConvertedValue(schema, read_row(row))

    return read


def _message(found: RegisteredSchema, name: str) -> UserObject:
    """Return the class of a message in a registered schema."""
    _parsed(found)
    try:
        return registered_message(found.schema, found.referenced, name)
    except SerdeError as error:
        raise BadRecord(f"no message of its schema: {error}") from None


def _parsed(found: RegisteredSchema) -> ProtobufSchema:
    try:
        parsed = parse_schema(found.schema, found.referenced)
    except InvalidSchema as error:
        raise BadRecord(f"no schema of Protobuf: {error}") from None
    if not isinstance(parsed, ProtobufSchema):
        kind = found.schema.type
        raise BadRecord(f"its schema is {kind}, and ProtobufConverter takes PROTOBUF alone")
    return parsed
