"""Avro codec: values of one type in Avro, read by the schema that they were written with.

Rule: what is read is resolved to the own schema by Avro's rules (fields with defaults, promoted
numbers, aliases). A type of plain parts is converted by msgspec, as `AvroSerde` does; one with
enums, moments, durations or unions by conversions that are compiled for it (`derived.avro_values`).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from types import ModuleType
from typing import Final
from uuid import UUID

import msgspec

from streamlog.errors import SerdeError, quantity
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.avro import load_fastavro
from streamlog.serdes.derived.avro_derivation import avro_schema
from streamlog.serdes.derived.avro_values import AvroValues
from streamlog.serdes.derived.type_description import (
    DescribedType,
    EnumType,
    PrimitiveType,
    RecordType,
    UnionType,
    describe_type,
    types_of,
)
from streamlog.serdes.erased_types import JsonValue, TypeForm, UserObject, UserValue
from streamlog.serdes.json_values import is_model, without_none
from streamlog.serdes.registered.framing import head_size
from streamlog.serdes.registered.schema_source import RegisteredSchema
from streamlog.serdes.registered.topic_schema import TopicSchema
from streamlog.serdes.serde import type_name

Convert = Callable[[UserValue], UserValue]
_PLAIN: Final = frozenset((bool, int, float, str, bytes, date, UUID))
"""Types that msgspec and fastavro pass to each other unchanged."""
_KEPT: Final = (bytes, bytearray, date, Decimal, UUID)


class AvroCodec:
    """Values of one type in Avro."""

    needs_writer_schema = True

    def __init__(
        self,
        given: TopicSchema,
        declared: TypeForm,
        schema: Schema,
        described: DescribedType | None,
    ) -> None:
        """Compile the conversions of a type; `described` is None for a schema written by hand."""
        self.given = given
        self.schema = schema
        self.referenced = given.referenced
        self._library = load_fastavro()
        given.require_references()
        own = RegisteredSchema(0, None, schema, given.referenced)
        self._parsed = _parse(self._library, own)
        named = isinstance(self._parsed, Mapping)
        self.record_name: str | None = self._parsed.get("name") if named else None
        self._type_name = type_name(declared)
        self._to_avro, self._from_avro = _conversions(declared, described)
        self._is_named = described is not None and not is_plain(described)
        self.errors: tuple[type[Exception], ...] = (
            SerdeError,
            TypeError,
            ValueError,
            LookupError,
            ArithmeticError,
            AttributeError,
            EOFError,
            RecursionError,
            struct.error,
            self._library.read.SchemaResolutionError,
        )
        """Damaged bytes make fastavro raise errors of many kinds."""

    def write(self, head: bytes, value: UserValue) -> bytes:
        """Return the head, followed by the value; see `SchemaCodec`."""
        buffer = io.BytesIO()
        buffer.write(head)
        try:
            self._library.schemaless_writer(buffer, self._parsed, self._to_avro(value), strict=True)
        except self.errors as error:
            raise SerdeError(f"{self._type_name} can't be written as Avro: {error}") from error
        return buffer.getvalue()

    def reader(self, writer: RegisteredSchema | None) -> Callable[[bytes, int], UserValue]:
        """Return what reads bytes of a schema; see `SchemaCodec`."""
        if writer is None or writer.schema.type is not SchemaType.AVRO:
            kind = "unknown" if writer is None else str(writer.schema.type)
            raise SerdeError(f"its schema is {kind}, but the topic declares avro")
        # 1. A record of the writer has another namespace: fastavro compares names without it.
        # 2. The writer has a field that this program lacks: it is skipped. 3. This program has a
        # field that the writer lacks: it gets its default, or each value is an error.
        is_own = writer.schema == self.schema
        parsed = self._parsed if is_own else _parse(self._library, writer)
        # Without a target, fastavro reads the value as it was written, which is faster.
        target = None if parsed == self._parsed else self._parsed
        read_avro, convert = self._library.schemaless_reader, self._from_avro
        is_named = self._is_named

        def read(data: bytes, start: int) -> UserValue:
            buffer = io.BytesIO(data)
            buffer.seek(start)
            found = read_avro(buffer, parsed, target, return_named_type=is_named)
            # Avro has no length of its own: bytes that are left over show a wrong schema or damage.
            if buffer.tell() != len(data):
                raise ValueError(f"{quantity(len(data) - buffer.tell(), 'byte')} left over")
            return convert(found)

        return read

    def head_size(self, data: bytes) -> int:
        """Return the size of the id or GUID."""
        return head_size(data)


def avro_codec(given: TopicSchema, declared: TypeForm) -> AvroCodec:
    """Return the codec of a type.

    Raises:
        SerdeError: the type has no equivalent in Avro, or the schema is invalid.
        ConfigError: fastavro is not installed.
    """
    declared = without_none(declared)
    if given.schema is not None:
        return AvroCodec(given, declared, given.schema, None)
    described = describe_type(declared)
    # Compact, and in the order of the derivation: equal types have equal texts.
    text = msgspec.json.encode(avro_schema(described)).decode()
    return AvroCodec(given, declared, Schema(SchemaType.AVRO, text), described)


def is_plain(described: DescribedType) -> bool:
    """Return whether msgspec converts values of a type as they are written."""
    return all(map(_is_plain_part, types_of(described)))


def _is_plain_part(described: DescribedType) -> bool:
    match described:
        case PrimitiveType(python=python):
            return python in _PLAIN
        case RecordType():
            config = getattr(described.python, "__struct_config__", None)
            may_be_absent = any(each.may_be_absent for each in described.fields)
            omits = config is not None and config.omit_defaults
            # msgspec writes tags as fields and arrays without names, and leaves defaults out.
            is_special = described.tag is not None or described.is_array or omits
            return described.kind != "model" and not may_be_absent and not is_special
        case UnionType():
            return len(described.others) == 1
        case EnumType():
            return False
        case _:
            return True


def _conversions(declared: TypeForm, described: DescribedType | None) -> tuple[Convert, Convert]:
    """Return the functions from a value to what fastavro takes, and back."""
    if described is not None and not is_plain(described):
        values = AvroValues(described)
        return values.to_avro, values.from_avro
    if is_model(declared):
        # Only of a schema written by hand, whose names need not be those of the model's JSON.
        return _checked(declared, _dump_model), declared.model_validate
    # A TypedDict is a dict, which msgspec passes on as it is, and checks when it reads.
    if declared is dict or hasattr(declared, "__total__"):
        is_dict = declared is dict
        return _checked(dict, _same), _same if is_dict else _converter(declared)
    expected = declared if isinstance(declared, type) else object
    return _checked(expected, _to_builtins), _converter(declared)


def _same(value: UserValue) -> UserValue:
    return value


def _to_builtins(value: UserValue) -> UserValue:
    return msgspec.to_builtins(value, builtin_types=_KEPT)


def _dump_model(value: UserObject) -> UserValue:
    return value.model_dump()


def _checked(expected: type, convert: Convert) -> Convert:
    def checked(value: UserValue) -> UserValue:
        if not isinstance(value, expected):
            raise SerdeError(f"{type_name(expected)} expected, got {type(value).__name__}")
        return convert(value)

    return checked


def _converter(declared: TypeForm) -> Convert:
    def convert(value: UserValue) -> UserValue:
        return msgspec.convert(value, declared, builtin_types=_KEPT)

    return convert


def _parse(library: ModuleType, registered: RegisteredSchema) -> JsonValue:
    """Return a schema as fastavro takes it, with the schemas that it refers to."""
    named: dict[str, JsonValue] = {}
    try:
        # Each schema after those that it refers to, which is the order of the source.
        for each in registered.referenced.values():
            library.parse_schema(msgspec.json.decode(each.text), named)
        return library.parse_schema(_data_of(registered.schema.text), named)
    except (
        ValueError,
        TypeError,
        LookupError,
        library.schema.SchemaParseException,
        library.schema.UnknownType,
    ) as error:
        raise SerdeError(
            f"its schema is not one of Avro: {type(error).__name__}: {error}"
        ) from error


def _data_of(text: str) -> JsonValue:
    # A registry may store the name of a primitive type with or without quotes.
    return msgspec.json.decode(text) if text[:1] in '{["' else text
