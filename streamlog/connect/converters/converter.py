"""Converter: the port of converters, the small ones, and the table of Kafka Connect's names.

The settings `key.converter` and `value.converter` name a class; settings behind that prefix are its
own (`value.converter.schemas.enable`). A connector's win over the worker's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import ClassVar, Final, Literal, Protocol, TypeAlias

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.connector_settings import read_settings, unknown_settings
from streamlog.connect.converters.connect_avro.avro_converter import AvroConverter
from streamlog.connect.converters.connect_json_schema.json_schema_converter import (
    JsonSchemaConverter,
)
from streamlog.connect.converters.connect_protobuf.protobuf_converter import ProtobufConverter
from streamlog.connect.converters.json_converter import ConvertedValue, JsonConverter
from streamlog.connect.java_values import (
    INTEGER_BITS,
    date_text,
    is_moment,
    java_text,
    moment_ms,
    wrapped,
)
from streamlog.connect.row_schema import Kind, Schema
from streamlog.errors import ConfigError

Side = Literal["key", "value", "header"]


class Converter(Protocol):
    """Converts the bytes of a topic's keys or values."""

    def is_tombstone(self, schema: Schema | None, /) -> bool:
        """Return whether a null of a schema has no bytes."""

    def decode(self, data: bytes | None, /) -> ConvertedValue:
        """Return what bytes hold; raises BadRecord if they are malformed."""

    def encode(self, schema: Schema | None, value: object, /) -> bytes | None:
        """Return the bytes of a value; raises BadRecord if it does not fit."""


class _WithoutNull(msgspec.Struct, frozen=True, kw_only=True):
    """A converter whose bytes can't say null, whatever the schema."""

    def is_tombstone(self, _schema: Schema | None) -> bool:
        """Return whether a null of a schema has no bytes: always."""
        return True


class StringConverter(_WithoutNull, frozen=True, kw_only=True):
    """Text in UTF-8; what is no text is written as Java's `toString` would."""

    def decode(self, data: bytes | None) -> ConvertedValue:
        """Return the text of bytes."""
        # Java replaces what is no UTF-8; a record must not stop a sink for it.
        return ConvertedValue(
            Schema("string", optional=True),
            None if data is None else data.decode("utf-8", "replace"),
        )

    def encode(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the bytes of a value's text."""
        return None if value is None else _text(value, schema).encode()


class ByteArrayConverter(_WithoutNull, frozen=True, kw_only=True):
    """Bytes as they are."""

    def decode(self, data: bytes | None) -> ConvertedValue:
        """Return the bytes."""
        return ConvertedValue(Schema("bytes", optional=True), data)

    def encode(self, _schema: Schema | None, value: object) -> bytes | None:
        """Return the bytes; they have no need of a schema.

        Raises:
            BadRecord: the value is something else.
        """
        if value is None:
            return None
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise BadRecord(f"ByteArrayConverter takes bytes, not {type(value).__name__}")


class _Packed(_WithoutNull, frozen=True, kw_only=True):
    """A number of fixed size, highest byte first."""

    kind: ClassVar[Kind]
    form: ClassVar[str]

    def decode(self, data: bytes | None) -> ConvertedValue:
        """Return the value of bytes.

        Raises:
            BadRecord: there are more or fewer of them than the type has.
        """
        if data is None:
            return ConvertedValue(Schema(self.kind, optional=True), None)
        size = struct.calcsize(self.form)
        if len(data) != size:
            raise BadRecord(f"{self.kind} has {size} bytes, not {len(data)}")
        return ConvertedValue(Schema(self.kind, optional=True), struct.unpack(self.form, data)[0])

    def encode(self, _schema: Schema | None, value: object) -> bytes | None:
        """Return the bytes of a value.

        Raises:
            BadRecord: it is none of the type.
        """
        if value is None:
            return None
        if not self._fits(value):
            raise BadRecord(f"{str(value)[:40]!r} is no {self.kind}")
        return struct.pack(self.form, value)

    def _fits(self, value: object) -> bool:
        if self.kind == "boolean" or isinstance(value, bool):
            return self.kind == "boolean" and isinstance(value, bool)
        if self.kind in INTEGER_BITS:
            return isinstance(value, int) and wrapped(value, self.kind) == value
        return isinstance(value, int | float)


class ShortConverter(_Packed, frozen=True):
    """An int16."""

    kind: ClassVar[Kind] = "int16"
    form: ClassVar[str] = ">h"


class IntegerConverter(_Packed, frozen=True):
    """An int32."""

    kind: ClassVar[Kind] = "int32"
    form: ClassVar[str] = ">i"


class LongConverter(_Packed, frozen=True):
    """An int64."""

    kind: ClassVar[Kind] = "int64"
    form: ClassVar[str] = ">q"


class FloatConverter(_Packed, frozen=True):
    """A float32."""

    kind: ClassVar[Kind] = "float32"
    form: ClassVar[str] = ">f"


class DoubleConverter(_Packed, frozen=True):
    """A float64."""

    kind: ClassVar[Kind] = "float64"
    form: ClassVar[str] = ">d"


class BooleanConverter(_Packed, frozen=True):
    """A boolean: one byte, 0 or 1."""

    kind: ClassVar[Kind] = "boolean"
    form: ClassVar[str] = ">?"

    def decode(self, data: bytes | None) -> ConvertedValue:
        """Return the value of a byte.

        Raises:
            BadRecord: it is neither 0 nor 1.
        """
        if data not in (None, b"\0", b"\1"):
            raise BadRecord("a boolean is the byte 0 or 1")
        return super().decode(data)


def _text(value: object, schema: Schema | None) -> str:
    """Return a value as Java shows it: `{a=1, b=2}` for a map, `Struct{a=1,b=2}` for a struct."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        if schema is not None and schema.kind == "struct":
            shown = [
                f"{each.name}={_text(value[each.name], each.schema)}"
                for each in schema.fields
                if value.get(each.name) is not None
            ]
            return f"Struct{{{','.join(shown)}}}"
        inner = None if schema is None else schema.items
        return f"{{{', '.join(f'{_text(k, None)}={_text(v, inner)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        inner = None if schema is None else schema.items
        return f"[{', '.join(_text(each, inner) for each in value)}]"
    if is_moment(value):
        return date_text(moment_ms(value))
    return java_text(value, None if schema is None else schema.kind)


AnyConverter: TypeAlias = (
    JsonConverter
    | AvroConverter
    | JsonSchemaConverter
    | ProtobufConverter
    | StringConverter
    | ByteArrayConverter
    | ShortConverter
    | IntegerConverter
    | LongConverter
    | FloatConverter
    | DoubleConverter
    | BooleanConverter
)
CONVERTERS: Final[Mapping[str, type[AnyConverter]]] = {
    "org.apache.kafka.connect.json.JsonConverter": JsonConverter,
    "org.apache.kafka.connect.storage.StringConverter": StringConverter,
    "io.confluent.connect.avro.AvroConverter": AvroConverter,
    "io.confluent.connect.json.JsonSchemaConverter": JsonSchemaConverter,
    "io.confluent.connect.protobuf.ProtobufConverter": ProtobufConverter,
    **{
        f"org.apache.kafka.connect.converters.{each.__name__}": each
        for each in (
            ByteArrayConverter,
            ShortConverter,
            IntegerConverter,
            LongConverter,
            FloatConverter,
            DoubleConverter,
            BooleanConverter,
        )
    },
}
"""Every converter, by the name of its class in Java."""
_SHORT: Final = {name.rpartition(".")[2]: made for name, made in CONVERTERS.items()}


def converter_names() -> list[tuple[str, str]]:
    """Return the names of the converters in Java, with the type that its API gives them."""
    return [(name, "converter") for name in sorted(CONVERTERS)]


def converter_of(
    settings: Mapping[str, str], side: Side, *, default: AnyConverter | None = None
) -> AnyConverter:
    """Return the converter that settings name.

    One that needs a schema registry (`RegistryConverterSettings`) is its settings alone.

    Args:
        settings: of a connector, or of a worker.
        side: whether it is for keys or for values.
        default: what to return if the settings name none.

    Raises:
        ConfigError: there is no such class, or one of its settings is wrong.
    """
    prefix = f"{side}.converter"
    name = settings.get(prefix)
    if name is None:
        if default is None:
            raise ConfigError(f"{prefix} is missing: it names a converter, such as JsonConverter")
        return default
    made = _class_of(name)
    if made is None:
        raise ConfigError(
            f"{prefix}={name}: there is no such converter; there are {', '.join(sorted(_SHORT))}"
        )
    return read_settings(made, _own_settings(settings, prefix))


def unknown_converter_settings(settings: Mapping[str, str], side: Side) -> list[str]:
    """Return the names behind a converter's prefix that are no settings of it.

    Without a converter beside them, all of them: those of the worker's stand in its own settings.
    """
    prefix = f"{side}.converter"
    made = _class_of(settings.get(prefix, ""))
    own = _own_settings(settings, prefix)
    unknown = own if made is None else unknown_settings([made], own)
    return [f"{prefix}.{name}" for name in unknown]


def _class_of(name: str) -> type[AnyConverter] | None:
    return CONVERTERS.get(name) or _SHORT.get(name)


def _own_settings(settings: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the settings of a converter by their own names: `schemas.enable`."""
    return {
        key.removeprefix(f"{prefix}."): text
        for key, text in settings.items()
        if key.startswith(f"{prefix}.")
    }
