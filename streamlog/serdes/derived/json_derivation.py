"""JSON schema: derives a JSON Schema (draft 7) from a described type.

The schema describes the JSON that msgspec and pydantic write for the type: dates, times, UUIDs and
durations are texts with a `format`, a Decimal is a text, and bytes are base64 (text in a pydantic
model, unless its `ser_json_bytes` says otherwise).

Rule: records are closed (`additionalProperties: false`). With an open record, a field that is added
later might already stand in older data with another type, so a registry refuses each addition.
Readers skip unknown fields nevertheless. Draft 7 is what registries and their clients have in
common.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from math import isfinite
from typing import Final
from uuid import UUID

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes.derived.type_description import (
    MISSING,
    ArrayType,
    DecimalType,
    DescribedType,
    EnumType,
    LiteralType,
    MapType,
    NullType,
    PrimitiveType,
    RecordField,
    RecordType,
    UnionType,
    describe_type,
    types_of,
)
from streamlog.serdes.erased_types import JsonValue, TypeForm, UserObject

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_PRIMITIVES: Final[Mapping[type, Mapping[str, JsonValue]]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
    datetime: {"type": "string", "format": "date-time"},
    timedelta: {"type": "string", "format": "duration"},
    UUID: {"type": "string", "format": "uuid"},
}
_DECIMAL: Final = {"type": "string", "format": "decimal"}
_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", bool: "boolean"}
_LIMITS: Final[Mapping[str, str]] = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}
_LENGTHS: Final[Mapping[str, str]] = {"string": "Length", "array": "Items", "object": "Properties"}


def json_schema_of(declared: TypeForm) -> JsonValue:
    """Return the JSON Schema of a declared type, as data.

    Raises:
        SerdeError: the type, or one of its fields, has no equivalent in JSON.
    """
    return json_schema(describe_type(declared))


def json_schema(described: DescribedType) -> JsonValue:
    """Return the JSON Schema of a described type, as data; see `json_schema_of`.

    A record that contains itself refers to the whole schema (`#`), other named types stand in
    `definitions`.
    """
    return _Deriver(described).whole()


class _Deriver:
    """Derives one schema."""

    def __init__(self, described: DescribedType) -> None:
        self._outer = described
        self._definitions: dict[str, JsonValue] = {}

    def whole(self) -> JsonValue:
        outer = self._outer
        is_named = isinstance(outer, RecordType | EnumType)
        body = self._body(outer) if is_named else self.schema(outer)
        # In the order of their declaration, so that equal types have equal schemas.
        for found in types_of(outer):
            if isinstance(found, RecordType | EnumType) and found is not outer:
                self._definitions.setdefault(found.name, self._body(found))
        definitions = {"definitions": self._definitions} if self._definitions else {}
        return {"$schema": DRAFT, **body, **definitions}

    def schema(self, described: DescribedType) -> JsonValue:
        schema: JsonValue
        match described:
            case RecordType() | EnumType():
                is_outer = described is self._outer
                schema = {"$ref": "#" if is_outer else f"#/definitions/{described.name}"}
            case NullType():
                schema = {"type": "null"}
            case LiteralType():
                schema = {"type": _TYPES[described.python], "enum": [*described.values]}
            case DecimalType():
                schema = dict(_DECIMAL)
            case ArrayType():
                unique = {"uniqueItems": True} if described.python in {set, frozenset} else {}
                item = self.schema(described.item)
                schema = _limited({"type": "array", "items": item, **unique}, described.constraints)
            case MapType():
                found = {"type": "object", "additionalProperties": self.schema(described.value)}
                schema = _limited({**found, **_key_names(described)}, described.constraints)
            case UnionType():
                # A whole number is a number too, and an enum a text: then two members may match.
                key = "oneOf" if len(described.others) == 1 else "anyOf"
                schema = {key: [self.schema(member) for member in described.members]}
            case PrimitiveType():
                schema = _limited(dict(_PRIMITIVES[described.python]), described.constraints)
        return schema

    def _body(self, described: DescribedType) -> JsonValue:
        """Return the schema of a named type itself, where others refer to it."""
        if isinstance(described, EnumType):
            return _enum(described)
        if not isinstance(described, RecordType):
            return self.schema(described)
        if described.is_array:
            raise SerdeError(
                f"{described.name} is written as an array (array_like), whose fields have no names "
                "in a JSON Schema"
            )
        # Pydantic's JSON of bytes depends on the model, not on the field.
        writes_text = _writes_text(described)
        properties: dict[str, JsonValue] = {}
        required = []
        if described.tag is not None:
            name, tag = described.tag
            properties[name] = {"const": tag}
            required.append(name)
        for each in described.fields:
            properties[each.wire_name] = self._field(each, writes_text=writes_text)
            if each.default is MISSING and not each.may_be_absent and not each.has_factory:
                required.append(each.wire_name)
        return {
            "title": described.name,
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }

    def _field(self, declared: RecordField, *, writes_text: bool) -> JsonValue:
        schema = self.schema(declared.type)
        if writes_text and schema == _PRIMITIVES[bytes]:
            schema = {"type": "string"}
        if declared.default is MISSING or "$ref" in schema:
            # Draft 7 ignores what stands beside a reference.
            return schema
        if writes_text and isinstance(declared.default, bytes):
            return {**schema, "default": declared.default.decode(errors="replace")}
        return {**schema, "default": _default(declared)}


def _limited(schema: dict[str, JsonValue], constraints: Mapping[str, JsonValue]) -> JsonValue:
    for name, value in constraints.items():
        if name in _LIMITS:
            schema[_LIMITS[name]] = value
        elif schema["type"] in _LENGTHS:
            schema[f"{name.removesuffix('_length')}{_LENGTHS[schema['type']]}"] = value
    return schema


def _key_names(described: MapType) -> dict[str, JsonValue]:
    match described.key:
        case PrimitiveType(python=python) if python in {str, int, float}:
            return {}
        case PrimitiveType(python=python) if "format" in _PRIMITIVES[python]:
            return {"propertyNames": {"format": _PRIMITIVES[python]["format"]}}
        case EnumType(members=members) if all(isinstance(each.value, str) for each in members):
            return {"propertyNames": {"enum": [each.value for each in members]}}
        case LiteralType(values=values) if described.key.python is str:
            return {"propertyNames": {"enum": [*values]}}
        case _:
            return {}


def _enum(described: EnumType) -> JsonValue:
    values = [member.value for member in described.members]
    kinds = {type(value) for value in values}
    for value in values:
        if type(value) not in {str, int}:
            raise SerdeError(
                f"{described.name}: the values of an Enum in JSON are texts or whole numbers, not "
                f"{value!r}"
            )
    # A set of types has no order that is equal in each run.
    names = sorted(_TYPES[kind] for kind in kinds)
    return {
        "title": described.name,
        "type": names[0] if len(names) == 1 else names,
        "enum": values,
    }


def _writes_text(described: RecordType) -> bool:
    """Return whether pydantic writes bytes as text."""
    if described.kind != "model":
        return False
    return str(described.python.model_config.get("ser_json_bytes", "utf8")) == "utf8"


def _default(declared: RecordField) -> JsonValue:
    value: UserObject = declared.default
    if isinstance(value, float) and not isfinite(value):
        raise SerdeError(f"{declared.path}: the default {value} can't be written in JSON")
    try:
        # Sets have an order that differs between runs; a schema must not.
        return msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=_plain)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise SerdeError(
            f"{declared.path}: its default {value!r} can't be written in a schema: {error}"
        ) from error


def _plain(value: UserObject) -> object:
    """Return a default that is a pydantic model as plain data."""
    if hasattr(value, "__pydantic_validator__"):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} is not JSON")
