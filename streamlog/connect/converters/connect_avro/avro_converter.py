"""AvroConverter: its settings, and Avro as a format of registry converters.

What it reads and writes is what `io.confluent.connect.avro.AvroConverter` does.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_conventions import AvroForm
from streamlog.connect.converters.connect_avro.avro_decoding import AvroBytes, avro_reader
from streamlog.connect.converters.connect_avro.avro_encoding import avro_writer, long_bytes
from streamlog.connect.converters.connect_avro.schemas_from_avro import schema_from_avro
from streamlog.connect.converters.connect_avro.schemas_to_avro import avro_of
from streamlog.connect.converters.json_converter import ConvertedValue
from streamlog.connect.converters.registry_converter import (
    ReadRow,
    RegistryConverterSettings,
    WriteRow,
)
from streamlog.connect.row_schema import Schema
from streamlog.errors import InvalidSchema
from streamlog.schemas import AvroSchema, SchemaType, parse_schema
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas.avro_schemas.avro_types import AvroType
from streamlog.serdes.registered.schema_source import RegisteredSchema


class AvroConverter(RegistryConverterSettings, frozen=True, kw_only=True):
    """Rows as Avro, with schemas in a schema registry.

    Attributes:
        enhanced_avro_schema_support: whether enums stay enums, and fields of unions have full
            names.
        connect_meta_data: whether names, versions, parameters and documentation of schemas are
            written and read.
        scrub_invalid_names: whether characters that Avro does not allow in names become `_`.
        allow_optional_map_keys: whether a map whose keys are optional texts is a map in Avro.
        ignore_default_for_nullables: whether null stays null in an optional field that has a
            default.
    """

    enhanced_avro_schema_support: bool = False
    connect_meta_data: bool = True
    scrub_invalid_names: bool = False
    allow_optional_map_keys: bool = False
    ignore_default_for_nullables: bool = False

    def format(self) -> AvroFormat:
        """Return how rows are written with these settings."""
        return AvroFormat(
            AvroForm(
                has_meta_data=self.connect_meta_data,
                is_enhanced=self.enhanced_avro_schema_support,
                scrubs_names=self.scrub_invalid_names,
                has_optional_keys=self.allow_optional_map_keys,
                ignores_default=self.ignore_default_for_nullables,
            )
        )


class AvroFormat:
    """Avro, as registry converters write and read it; a `RegistryFormat`."""

    def __init__(self, form: AvroForm) -> None:
        self._form = form

    def described(self, schema: Schema | None) -> tuple[RegistrySchema, str | None]:
        """Return a schema as Avro, and the full name of its record; see `RegistryFormat`."""
        text = msgspec.json.encode(avro_of(schema, self._form)).decode()
        described = RegistrySchema(SchemaType.AVRO, text)
        name = _parsed(described, {}).record_name
        # An optional record is a union in Avro, and is named as its record is.
        if name is None and schema is not None and schema.kind == "struct":
            name = schema.name
        return described, name

    def writer(self, schema: Schema | None, found: RegisteredSchema) -> WriteRow:
        """Return what writes values as a registered Avro schema; see `RegistryFormat`."""
        node = _parsed(found.schema, found.referenced).root
        write_avro = avro_writer(schema, node, self._form)

        def write(value: object) -> bytes:
            out = bytearray()
            write_avro(out, value)
            return bytes(out)

        def write_without_size(value: object) -> bytes:
            sized = AvroBytes(write(value))
            return sized.take(sized.long())

        return write_without_size if _has_no_size(node) else write

    def reader(self, found: RegisteredSchema) -> ReadRow:
        """Return what reads values of a registered Avro schema; see `RegistryFormat`."""
        node = _parsed(found.schema, found.referenced).root
        schema = schema_from_avro(node, self._form)
        read_avro, has_no_size = avro_reader(schema, node), _has_no_size(node)

        def read(data: bytes, start: int) -> ConvertedValue:
            left = AvroBytes(data, start)
            if has_no_size:
                # With a size in front it is read as bytes within a record are.
                left = AvroBytes(long_bytes(left.left) + data[start:])
            value = read_avro(left)
            # Bytes that another schema wrote may begin like a value of this one.
            if left.left:
                raise BadRecord(f"{left.left} bytes are left behind the value")
            return ConvertedValue(schema, value)

        return read

    def is_tombstone(self, schema: Schema | None) -> bool:
        """Return whether a null of a schema has no bytes; one that is required is refused."""
        return schema is None or schema.optional


def _has_no_size(node: AvroType) -> bool:
    """Return whether values are bytes alone, which Confluent's serializer writes without a size."""
    return node.kind == "bytes"


def _parsed(schema: RegistrySchema, referenced: Mapping[str, RegistrySchema]) -> AvroSchema:
    try:
        parsed = parse_schema(schema, referenced, is_new=False)
    except InvalidSchema as error:
        raise BadRecord(
            f"no schema for Avro: {error}; names that Avro does not allow need "
            "scrub.invalid.names=true"
        ) from None
    if not isinstance(parsed, AvroSchema):
        raise BadRecord(f"its schema is {schema.type}, and AvroConverter reads Avro alone")
    return parsed
