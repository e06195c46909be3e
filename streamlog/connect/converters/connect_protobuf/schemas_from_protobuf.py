"""Schemas of Connect from Protobuf, as Confluent's ProtobufConverter reads them.

Not supported: a message that contains itself, since rows have no such types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Final

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_protobuf.protobuf_conventions import (
    CONNECT_TYPE,
    ENUM,
    LOGICAL,
    NUMBER_TYPE,
    ONEOF,
    PRECISION,
    TAG,
    WRAPPED,
    ProtobufForm,
    map_name,
)
from streamlog.connect.row_schema import Field, Kind, Schema
from streamlog.replace import replace
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas import SchemaType
from streamlog.schemas.protobuf.proto_imports import CONFLUENT_FILES
from streamlog.schemas.protobuf.proto_library import load_library, read_file
from streamlog.serdes.erased_types import UserObject
from streamlog.serdes.registered.message_dicts import is_map
from streamlog.serdes.registered.protobuf_codec import registered_message

Descriptor = UserObject
"""A descriptor of the protobuf library."""
META: Final = "confluent.field_meta"
_KINDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "int32"),
    **dict.fromkeys(("uint32", "fixed32"), "int64"),
    **dict.fromkeys(("int64", "uint64", "sint64", "fixed64", "sfixed64"), "int64"),
    "float": "float32",
    "double": "float64",
    "bool": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_PLAIN: Final = ("int32", "int64")
"""The numbers whose type in Protobuf follows from the kind."""
_LOGICAL_KINDS: Final[Mapping[str, Kind]] = {
    "Decimal": "bytes",
    "Date": "int32",
    "Time": "int32",
    "Timestamp": "int64",
}
_SHORT: Final[Mapping[str, Kind]] = {"int8": "int8", "int16": "int16"}
Notes = Mapping[str, Mapping[str, str]]
"""The parameters of `confluent.field_meta`, by the full names of fields."""


def scalar_name(field: Descriptor) -> str:
    """Return the word of a scalar field's type in `.proto` text, such as sint32."""
    return next(each for each in _KINDS if field.type == getattr(field, f"TYPE_{each.upper()}"))


class ProtobufReading:
    """The schemas of one file's messages."""

    def __init__(self, form: ProtobufForm, notes: Notes) -> None:
        self._form, self._notes = form, notes
        self._within: list[str] = []

    def root(self, message: Descriptor) -> Schema:
        """Return the schema of a message.

        Raises:
            BadRecord: Connect has no schema for it.
        """
        wrapped = WRAPPED.get(message.full_name) if self._form.unwraps_root else None
        return self._struct(message) if wrapped is None else Schema(wrapped)

    def _struct(self, message: Descriptor) -> Schema:
        name = message.full_name
        if name in self._within:
            raise BadRecord(f"the message {name} contains itself: rows have no such types")
        self._within.append(name)
        fields: list[Field] = []
        if not self._form.is_flat:
            fields += [self._oneof(each) for each in real_oneofs(message)]
        fields += [
            Field(each.name, self._field(each))
            for each in message.fields
            if self._form.is_flat or not is_member(each)
        ]
        self._within.pop()
        return Schema("struct", fields=tuple(fields), name=self._name(message))

    def _name(self, described: Descriptor) -> str:
        name: str = described.full_name if self._form.is_enhanced else described.name
        return name

    def _oneof(self, oneof: Descriptor) -> Field:
        fields = tuple(Field(each.name, self._field(each)) for each in oneof.fields)
        name = f"{ONEOF}{self._name(oneof)}"
        found = Schema("struct", optional=True, fields=fields, name=name)
        return Field(oneof_field(oneof, self._form), found)

    def _field(self, field: Descriptor) -> Schema:
        form, schema = self._form, self._type(field)
        is_optional = schema.optional
        if field.is_repeated and schema.kind != "map":
            schema = Schema("array", items=replace(schema, optional=True))
            is_optional = True
        if form.uses_optional:
            is_optional = is_optional or is_marked(field)
        elif not form.uses_wrappers:
            is_optional = True
        parameters = (*schema.parameters, (TAG, str(field.number)))
        return replace(schema, optional=is_optional, parameters=parameters)

    def _type(self, field: Descriptor) -> Schema:
        if is_map(field):
            parts = field.message_type.fields_by_name
            keys, items = (self._field(parts[each]) for each in ("key", "value"))
            name = map_name(self._name(field.message_type))
            return Schema("map", optional=True, keys=keys, items=items, name=name)
        if field.message_type is not None:
            return replace(self._message(field), optional=True)
        if field.enum_type is not None:
            return self._enum(field.enum_type)
        scalar = scalar_name(field)
        own = _SHORT.get(self._noted(field).get(CONNECT_TYPE, ""))
        if own is not None and _KINDS[scalar] == "int32":
            return Schema(own)
        is_number = _KINDS[scalar] in _PLAIN and scalar not in _PLAIN
        return Schema(_KINDS[scalar], parameters=((NUMBER_TYPE, scalar),) if is_number else ())

    def _message(self, field: Descriptor) -> Schema:
        name = field.message_type.full_name
        logical = LOGICAL.get(name)
        if logical is not None:
            parameters = self._decimal(field) if logical == "Decimal" else ()
            return Schema(_LOGICAL_KINDS[logical], logical=logical, parameters=parameters)
        wrapped = WRAPPED.get(name) if self._form.uses_wrappers else None
        return self._struct(field.message_type) if wrapped is None else Schema(wrapped)

    def _decimal(self, field: Descriptor) -> tuple[tuple[str, str], ...]:
        noted = self._noted(field)
        scale, precision = (_number(noted.get(each)) for each in ("scale", "precision"))
        found = [("scale", scale or "0")]
        return (*found, (PRECISION, precision)) if precision is not None else tuple(found)

    def _noted(self, field: Descriptor) -> Mapping[str, str]:
        return self._notes.get(field.full_name, {})

    def _enum(self, enum: Descriptor) -> Schema:
        symbols = [(f"{ENUM}.{each.name}", str(each.number)) for each in enum.values]
        kind: Kind = "int32" if self._form.has_int_enums else "string"
        parameters = ((ENUM, enum.name), *symbols)
        return Schema(kind, optional=True, name=self._name(enum), parameters=parameters)


def _number(text: str | None) -> str | None:
    """Return a text that is a number, as Java would write it."""
    is_number = text is not None and text.removeprefix("-").isdecimal()
    return str(int(text)) if text is not None and is_number else None


def optional_names(message: Descriptor) -> frozenset[str]:
    """Return the names of the fields of proto3 that are marked `optional`."""
    # The library's descriptors do not tell their oneofs, of one field each, from those of the text.
    proto = load_library().DescriptorProto()
    message.CopyToProto(proto)
    return frozenset(each.name for each in proto.field if each.proto3_optional)


def is_marked(field: Descriptor, form: ProtobufForm | None = None) -> bool:
    """Return whether a scalar field may be absent, by its mark `optional`.

    Args:
        field: the field.
        form: None: marks of proto2 count as well, whatever the settings say.
    """
    if field.message_type is not None or field.is_repeated or not field.has_presence:
        return False
    if field.containing_oneof is not None:
        return field.name in optional_names(field.containing_type)
    return not field.is_required and (form is None or form.has_proto2_optional)


def is_member(field: Descriptor) -> bool:
    """Return whether a field belongs to a oneof of the text."""
    oneof = field.containing_oneof
    return oneof is not None and field.name not in optional_names(field.containing_type)


def real_oneofs(message: Descriptor) -> list[Descriptor]:
    """Return the oneofs of a message that its text has."""
    return [each for each in message.oneofs if is_member(each.fields[0])]


def oneof_field(oneof: Descriptor, form: ProtobufForm) -> str:
    """Return the name of the field that stands for a oneof."""
    index = real_oneofs(oneof.containing_type).index(oneof)
    return f"{oneof.name}_{index}" if form.has_index else str(oneof.name)


# ------------------------------------------------------------------------------ notes


def notes_of(files: Iterable[bytes]) -> Notes:
    """Return what the options `confluent.field_meta` of some files say.

    Args:
        files: FileDescriptorProtos, whose options of others are not interpreted.
    """
    return {
        name: noted
        for data in files
        for name, field in _fields_of(read_file(data))
        if (noted := _params(field.options.uninterpreted_option))
    }


def _fields_of(file: Descriptor) -> Iterator[tuple[str, Descriptor]]:
    """Yield the fields of a FileDescriptorProto with their full names."""
    waiting = [(file.package, each) for each in file.message_type]
    while waiting:
        around, message = waiting.pop()
        name = f"{around}.{message.name}" if around else message.name
        waiting += [(name, each) for each in message.nested_type]
        yield from ((f"{name}.{each.name}", each) for each in message.field)


def _params(options: Iterable[Descriptor]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in options:
        first, *rest = [part.name_part.lstrip(".") for part in each.name]
        if first != META or not each.aggregate_value:
            continue
        # `(confluent.field_meta).params = {...}` sets one field of the message.
        text = f"{rest[0]} {{ {each.aggregate_value} }}" if rest else each.aggregate_value
        meta = _meta_class()()
        # What is no note of Confluent's is an option like any other.
        with suppress(load_library("text_format").ParseError):
            load_library("text_format").Parse(text, meta)
            found |= dict(meta.params)
    return found


@cache
def _meta_class() -> UserObject:
    schema = RegistrySchema(SchemaType.PROTOBUF, CONFLUENT_FILES["confluent/meta.proto"])
    return registered_message(schema, {}, "confluent.Meta")
