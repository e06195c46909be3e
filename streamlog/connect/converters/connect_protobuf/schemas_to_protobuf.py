"""Schemas of Connect as Protobuf, as Confluent's ProtobufConverter writes them.

A struct is a message, and the types within it are nested there. A scalar alone is the wrapper of
its type, in Google's own file.

Rule: what Protobuf can't hold is refused, with the path of the field: lists of lists, maps of
lists, and types that have one name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_protobuf.protobuf_conventions import (
    CONNECT_TYPE,
    DEFAULT_NAME,
    ENUM,
    NUMBER_TYPE,
    ONEOF,
    PRECISION,
    TAG,
    ProtobufForm,
    is_oneof,
    message_of,
)
from streamlog.connect.row_schema import Field, Kind, Schema, part_of
from streamlog.errors import InvalidSchema
from streamlog.replace import replace
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas import SchemaType
from streamlog.schemas.protobuf.proto_library import well_known_file
from streamlog.schemas.protobuf.proto_text import write_proto
from streamlog.schemas.protobuf.protobuf_schema import parse_protobuf
from streamlog.schemas.schema import DEFAULT_LIMITS
from streamlog.serdes.derived.protobuf_derivation import IMPORTS

META_FILE: Final = "confluent/meta.proto"
WRAPPERS_FILE: Final = "google/protobuf/wrappers.proto"
_SCALARS: Final[Mapping[Kind, str]] = {
    "int8": "int32",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "float32": "float",
    "float64": "double",
    "boolean": "bool",
    "string": "string",
    "bytes": "bytes",
}
_WRAPPERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "Int32Value"),
    **dict.fromkeys(("uint32", "fixed32"), "UInt32Value"),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), "Int64Value"),
    **dict.fromkeys(("uint64", "fixed64"), "UInt64Value"),
    "float": "FloatValue",
    "double": "DoubleValue",
    "bool": "BoolValue",
    "string": "StringValue",
    "bytes": "BytesValue",
}
_NUMBER_TYPES: Final = ("32", "64")
_SHORT_KINDS: Final = ("int8", "int16")


class WrittenSchema(NamedTuple):
    """A schema as the registry keeps it."""

    schema: RegistrySchema
    message: str
    """The full name of the message that rows are."""


def protobuf_of(schema: Schema, form: ProtobufForm) -> WrittenSchema:
    """Return a schema as Protobuf.

    Raises:
        BadRecord: Protobuf can't hold it.
    """
    if schema.kind != "struct":
        return _wrapper(schema)
    if is_oneof(schema):
        raise BadRecord(f"the oneof {schema.name} is a part of a message, and stands alone")
    file = _ProtoText(form, schema.name)
    package, name = file.package, file.name
    body = _Message(file, name).lines(schema)
    head = ['syntax = "proto3";', *([f"package {package};"] if package else [])]
    text = "\n".join([*head, *(f'import "{each}";' for each in sorted(file.imports)), *body])
    try:
        given = RegistrySchema(SchemaType.PROTOBUF, text)
        parsed = parse_protobuf(given, {}, DEFAULT_LIMITS)
    except InvalidSchema as error:
        raise BadRecord(
            f"Protobuf has no such schema: {error}; names that Protobuf does not allow need "
            "scrub.invalid.names=true"
        ) from None
    # As the registry would write it, so that a schema has one text.
    described = RegistrySchema(SchemaType.PROTOBUF, parsed.canonical)
    return WrittenSchema(described, f"{package}.{name}" if package else name)


def _wrapper(schema: Schema) -> WrittenSchema:
    scalar = _SCALARS.get(schema.kind)
    if scalar is None:
        raise BadRecord(f"an {schema.kind} alone has no equivalent in Protobuf: put it in a struct")
    if message_of(schema) is not None:
        raise BadRecord(f"a {schema.logical} alone is no message: put it in a struct")
    text = write_proto(well_known_file(WRAPPERS_FILE))
    message = f"google.protobuf.{_WRAPPERS[scalar]}"
    return WrittenSchema(RegistrySchema(SchemaType.PROTOBUF, text), message)


class _ProtoText:
    """What the messages of one file share."""

    def __init__(self, form: ProtobufForm, name: str | None) -> None:
        self.form = form
        self._defaults = 0
        self.package, _, short = self.name_of(name).rpartition(".")
        self.name = form.named(short)
        self.imports: set[str] = set()

    def name_of(self, name: str | None) -> str:
        """Return a name, or the next one for what has none."""
        if name:
            return name
        self._defaults += 1
        return f"{DEFAULT_NAME}{self._defaults}"

    def short_name(self, name: str | None) -> str:
        """Return a name without its namespace."""
        return self.form.named(self.name_of(name).rpartition(".")[2])

    def message_type(self, message: str) -> str:
        """Return the name of a message of a file that everybody has, and import it."""
        is_wrapper = message.rpartition(".")[2] in _WRAPPERS.values()
        self.imports.add(WRAPPERS_FILE if is_wrapper else IMPORTS[message])
        # From the root: within the package `shop.google`, `google.type` is another one.
        is_hidden = message.partition(".")[0] in self.package.split(".")[1:]
        return f".{message}" if is_hidden else message


@dataclass(slots=True)
class _Message:
    """One message on its way to text."""

    file: _ProtoText
    name: str
    nested: dict[str, Schema] = field(default_factory=dict)
    """The schemas of nested types, by name."""
    types: list[str] = field(default_factory=list)
    """The lines of nested types."""

    def lines(self, schema: Schema) -> list[str]:
        """Return the lines of a struct as a message."""
        numbers = _numbers(schema)
        found: list[str] = []
        for each in schema.fields:
            try:
                found += self._field(each, numbers)
            # The path is put together on the way out.
            except BadRecord as error:
                raise BadRecord(f"field {each.name}: {error}") from None
        return [f"message {self.name} {{", *found, *self.types, "}"]

    def _field(self, given: Field, numbers: Iterator[int]) -> list[str]:
        if not is_oneof(given.schema):
            return [self._line(given, numbers, is_member=False)]
        if not given.schema.fields:
            raise BadRecord("a oneof has no fields")
        name = self.file.short_name(str(given.schema.name).removeprefix(ONEOF))
        members = [self._line(each, numbers, is_member=True) for each in given.schema.fields]
        return [f"oneof {name} {{", *members, "}"]

    def _line(self, given: Field, numbers: Iterator[int], *, is_member: bool) -> str:
        """Return the line of a field."""
        form, schema = self.file.form, given.schema
        name = form.named(given.name)
        tag = schema.parameter(TAG)
        number = next(numbers) if tag is None else _whole(tag, TAG)
        if schema.kind in ("array", "map") and is_member:
            raise BadRecord("a oneof has a list or a map: Protobuf allows neither")
        if schema.kind == "map":
            return f"{self._map(name, schema)} {name} = {number};"
        label = ""
        if schema.kind == "array":
            label, schema = "repeated ", part_of(schema.items)
        elif form.uses_optional and schema.optional and not is_member:
            label = "optional "
        kind = self._type(name, schema)
        return f"{label}{kind} {name} = {number}{self._options(schema)};"

    def _map(self, name: str, schema: Schema) -> str:
        # Kafka Connect counts the name of each map that has none, so those of structs follow.
        self.file.name_of(schema.name)
        keys, items = replace(part_of(schema.keys), optional=False), part_of(schema.items)
        return f"map<{self._type(name, keys)}, {self._type(name, items)}>"

    def _type(self, name: str, schema: Schema) -> str:
        """Return the type of a field, of items, or of keys; nested types are added."""
        if schema.kind in ("array", "map"):
            raise BadRecord(f"an {schema.kind} in a list or map: put it in a struct")
        message = message_of(schema)
        if message is not None:
            return self.file.message_type(message)
        if schema.kind == "struct":
            return self._struct(name, schema)
        enum = schema.parameter(ENUM)
        if enum is not None and schema.kind in ("string", "int32"):
            return self._enum(enum, schema)
        scalar = schema.parameter(NUMBER_TYPE) or _SCALARS[schema.kind]
        if scalar not in _WRAPPERS or scalar[-2:] not in _NUMBER_TYPES:
            scalar = _SCALARS[schema.kind]
        if self.file.form.is_wrapped(schema):
            return self.file.message_type(f"google.protobuf.{_WRAPPERS[scalar]}")
        return scalar

    def _struct(self, field_name: str, schema: Schema) -> str:
        if is_oneof(schema):
            raise BadRecord("a oneof in a list or map: put it in a struct")
        name = self.file.short_name(schema.name)
        if name == field_name:
            # A message and a field of one name can't stand in one message.
            name += "Message"
        if self._is_new(name, schema):
            self.types += _Message(self.file, name).lines(schema)
        return name

    def _enum(self, given: str, schema: Schema) -> str:
        name = self.file.form.named(given)
        if self._is_new(name, schema):
            prefix = f"{ENUM}."
            symbols = {
                key.removeprefix(prefix): _whole(text, key)
                for key, text in schema.parameters
                if key.startswith(prefix)
            }
            self.types += [f"enum {name} {{"]
            if len(set(symbols.values())) < len(symbols):
                self.types += ["option allow_alias = true;"]
            # proto3 begins with number 0; the others keep their order.
            ordered = sorted(symbols.items(), key=lambda each: each[1] != 0)
            self.types += [f"{symbol} = {number};" for symbol, number in ordered] + ["}"]
        return name

    def _is_new(self, name: str, schema: Schema) -> bool:
        """Return whether a nested type is not there yet."""
        # What belongs to the field that has the type is no part of the type.
        own = [each for each in schema.parameters if each[0] != TAG]
        kept = replace(schema, optional=False, doc=None, version=None, parameters=tuple(own))
        if self.nested.setdefault(name, kept) != kept:
            raise BadRecord(f"two types of one message have the name {name}")
        return self.nested[name] is kept

    def _options(self, schema: Schema) -> str:
        """Return what Confluent's converter notes of a field, as its option."""
        noted: list[tuple[str, str | None]] = []
        if schema.kind in _SHORT_KINDS:
            noted = [(CONNECT_TYPE, schema.kind)]
        elif schema.logical == "Decimal" and message_of(schema) is not None:
            scale = schema.parameter("scale")
            noted = [("precision", schema.parameter(PRECISION)), ("scale", scale)]
        pairs = [f'{{key: "{key}", value: "{text}"}}' for key, text in noted if text is not None]
        if not pairs:
            return ""
        self.file.imports.add(META_FILE)
        return f" [(confluent.field_meta) = {{params: [{', '.join(pairs)}]}}]"


def _numbers(schema: Schema) -> Iterator[int]:
    """Yield the numbers for fields without one of their own: those that no other field has."""
    used = {
        int(tag)
        for each in schema.fields
        for part in (each, *(each.schema.fields if is_oneof(each.schema) else ()))
        if (tag := part.schema.parameter(TAG)) is not None and tag.isdecimal()
    }
    number = 0
    while True:
        number += 1
        if number not in used:
            yield number


def _whole(text: str, name: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise BadRecord(f"the parameter {name} is a number, not {text[:40]!r}")
    return int(text)
