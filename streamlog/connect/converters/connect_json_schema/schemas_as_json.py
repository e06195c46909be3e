"""Connect's schemas as JSON Schemas and back, as Confluent's JsonSchemaConverter has them.

What JSON Schema has no word for stands in keywords that its readers pass over: `connect.type` (the
size of a number, bytes, a map), `connect.index` (the place of a field), `connect.version` and
`connect.parameters`. The name is the title. What may be null is one of null and its type, and one
of several types is a struct with one field for each of them.

Not supported: an object that contains itself, since rows have no such types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.json_schemas import name_and_version, with_name
from streamlog.connect.row_schema import Field, Kind, Schema, part_of
from streamlog.replace import replace
from streamlog.schemas.json_schema.json_types import (
    Criterion,
    JsonBool,
    JsonCombination,
    JsonEnumeration,
    JsonList,
    JsonMapping,
    JsonNull,
    JsonNumber,
    JsonText,
    JsonType,
    follow,
)
from streamlog.serdes.erased_types import JsonValue

NAMESPACE: Final = "io.confluent.connect.json"
ONE_OF: Final = f"{NAMESPACE}.OneOf"
"""The name of a struct that is one of several types: one of its fields has a value."""
ENUM: Final = f"{NAMESPACE}.Enum"
"""The parameter of a text that is an enum in JSON Schema; each symbol has one behind it."""
NULL_SYMBOL: Final = "<NULL>"
"""The symbol that stands for null."""
ENTRY: Final = ("key", "value")
"""The properties of an entry of a map whose keys are not texts."""
TYPE, INDEX = "connect.type", "connect.index"
VERSION, PARAMETERS = "connect.version", "connect.parameters"
_TYPES: Final[Mapping[Kind, str]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), "integer"),
    **dict.fromkeys(("float32", "float64"), "number"),
    "boolean": "boolean",
    "string": "string",
    "bytes": "string",
}
_NUMBERS: Final[Mapping[str, Kind]] = {
    kind: kind for kind in ("int8", "int16", "int32", "int64", "float32", "float64", "bytes")
}
"""The kinds of a number, by `connect.type`; bytes are a Decimal."""
_UNTYPED: Final = ("boolean", "string")
"""The kinds that JSON Schema has itself, so that `connect.type` says nothing about them."""
JsonObject = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class JsonSchemaForm:
    """How schemas are written as JSON Schemas and read, by the settings of the converter."""

    allows_additional: bool = True
    """Whether objects may have other properties (`object.additional.properties`)."""
    is_optional_unless_required: bool = False
    """Whether a property that is not `required` is optional (`use.optional.for.nonrequired`)."""


def is_one_of(schema: Schema) -> bool:
    """Return whether a struct stands for one of several types."""
    return schema.kind == "struct" and schema.name == ONE_OF


def has_text_keys(schema: Schema) -> bool:
    """Return whether a map is an object in JSON; else it is an array of entries."""
    return schema.keys is None or (schema.keys.kind == "string" and not schema.keys.optional)


# ------------------------------------------------------------------------------ to JSON Schema


def json_schema_from(schema: Schema, form: JsonSchemaForm) -> JsonObject:
    """Return the JSON Schema of a schema."""
    return _node(schema, form, None, None)


def _node(
    schema: Schema, form: JsonSchemaForm, default: JsonValue, index: int | None
) -> JsonObject:
    """Return the JSON Schema of a schema; a default and a place belong to the field."""
    where: JsonObject = {} if index is None else {INDEX: index}
    if is_one_of(schema):
        members: list[JsonValue] = [
            _node(replace(each.schema, optional=False), form, None, number)
            for number, each in enumerate(schema.fields)
        ]
        return {"oneOf": [*_null(schema), *members], **where}
    required = {**_base(schema, form), **_notes(schema, default)}
    if not schema.optional:
        return {**required, **where}
    return {"oneOf": [*_null(schema), required], **where}


def _null(schema: Schema) -> list[JsonValue]:
    return [{"type": "null"}] if schema.optional else []


def _base(schema: Schema, form: JsonSchemaForm) -> JsonObject:
    if schema.kind == "struct":
        return _object(schema, form)
    if schema.kind == "array":
        return {"type": "array", "items": _node(part_of(schema.items), form, None, None)}
    if schema.kind == "map":
        return _map(schema, form)
    if schema.parameter(ENUM) is not None and schema.kind == "string":
        return {"enum": list(_symbols(schema))}
    is_decimal = schema.kind == "bytes" and schema.logical == "Decimal"
    found: JsonObject = {"type": "number" if is_decimal else _TYPES[schema.kind]}
    if schema.kind not in _UNTYPED:
        found[TYPE] = schema.kind
    return found


def _object(schema: Schema, form: JsonSchemaForm) -> JsonObject:
    found: JsonObject = {"type": "object"}
    if schema.fields:
        found["properties"] = {
            each.name: _node(each.schema, form, each.default, index)
            for index, each in enumerate(schema.fields)
        }
    if not form.allows_additional:
        found["additionalProperties"] = False
    return found


def _map(schema: Schema, form: JsonSchemaForm) -> JsonObject:
    keys, items = part_of(schema.keys), part_of(schema.items)
    if has_text_keys(schema):
        inner = _node(items, form, None, None)
        return {"type": "object", TYPE: "map", "additionalProperties": inner}
    pairs = enumerate((keys, items))
    entry = {ENTRY[index]: _node(each, form, None, index) for index, each in pairs}
    return {"type": "array", TYPE: "map", "items": {"type": "object", "properties": entry}}


def _symbols(schema: Schema) -> Sequence[JsonValue]:
    prefix = f"{ENUM}."
    names = [key.removeprefix(prefix) for key, _ in schema.parameters if key.startswith(prefix)]
    return [None if each == NULL_SYMBOL else each for each in names]


def _notes(schema: Schema, default: JsonValue) -> JsonObject:
    name, version = name_and_version(schema)
    kept: JsonObject = {
        key: text for key, text in schema.parameters if not key.startswith(NAMESPACE)
    }
    notes = {
        "title": name,
        "description": schema.doc,
        "default": default if _may_default(schema) else None,
        VERSION: version,
        PARAMETERS: kept or None,
    }
    return {key: value for key, value in notes.items() if value is not None}


# ------------------------------------------------------------------------------ from JSON Schema


def schema_from_json_schema(node: JsonType, form: JsonSchemaForm) -> Schema:
    """Return the schema of a JSON Schema.

    Raises:
        BadRecord: Connect has no schema for it.
    """
    return _Reading(form).field("", node).schema


class _Reading:
    """One JSON Schema on its way to Connect."""

    def __init__(self, form: JsonSchemaForm) -> None:
        self._form = form
        self._within: list[JsonType] = []
        """What is being read: a node within itself never ends."""

    def field(self, name: str, given: JsonType, *, is_optional: bool = False) -> Field:
        """Return what a node says as a field, which has its default."""
        node = follow(given)
        if any(each is node for each in self._within):
            raise BadRecord("the JSON Schema contains itself: rows have no such types")
        self._within.append(node)
        found = self._field(name, node, is_optional=is_optional)
        self._within.pop()
        return found

    def _schema(self, node: JsonType, *, is_optional: bool = False) -> Schema:
        return self.field("", node, is_optional=is_optional).schema

    def _field(self, name: str, node: JsonType, *, is_optional: bool) -> Field:
        if isinstance(node, JsonCombination):
            return self._combination(name, node, is_optional=is_optional)
        return _noted(name, node, self._base(node), is_optional=is_optional)

    def _base(self, node: JsonType) -> Schema:
        match node:
            case JsonBool():
                found = Schema("boolean")
            case JsonNumber():
                found = _number(node)
            case JsonText():
                found = Schema("bytes" if node.keywords.get(TYPE) == "bytes" else "string")
            case JsonEnumeration() if "enum" in node.keywords:
                found = _enum(node)
            case JsonList():
                found = self._list(node)
            case JsonMapping() if node.keywords.get(TYPE) == "map":
                items = self._items(node.additional, "values of a map")
                found = Schema("map", keys=Schema("string"), items=items)
            case JsonMapping():
                found = self._struct(node.properties, node.required)
            case _:
                text = str(dict(node.keywords))[:80]
                raise BadRecord(f"Connect has no schema for the JSON Schema {text}")
        return found

    def _items(self, node: JsonType | None, what: str) -> Schema:
        if node is None:
            raise BadRecord(f"a JSON Schema does not say the type of the {what}")
        return self._schema(node)

    def _list(self, node: JsonList) -> Schema:
        items = None if node.items is None else follow(node.items)
        if node.keywords.get(TYPE) != "map" or not isinstance(items, JsonMapping):
            return Schema("array", items=self._items(node.items, "items of an array"))
        keys, values = (self._items(items.properties.get(each), f"{each}s") for each in ENTRY)
        return Schema("map", keys=keys, items=values)

    def _struct(self, properties: Mapping[str, JsonType], required: frozenset[str]) -> Schema:
        placed: list[tuple[int, Field]] = []
        for name, node in properties.items():
            may_lack = self._form.is_optional_unless_required and name not in required
            index = node.keywords.get(INDEX)
            found = self.field(name, node, is_optional=may_lack)
            placed.append((index if isinstance(index, int) else len(placed), found))
        # The places of a schema that was written by hand are those of its text.
        placed.sort(key=lambda each: each[0])
        return Schema("struct", fields=tuple(field for _, field in placed))

    def _combination(self, name: str, node: JsonCombination, *, is_optional: bool) -> Field:
        if node.criterion is Criterion.ALL:
            return self._all_of(name, node, is_optional=is_optional)
        parts = [follow(each) for each in node.parts]
        others = [each for each in parts if not isinstance(each, JsonNull)]
        has_null = len(others) < len(parts)
        if has_null and len(others) == 1:
            return self.field(name, others[0], is_optional=True)
        fields = tuple(
            Field(f"{ONE_OF}.field.{index}", self._schema(each, is_optional=True))
            for index, each in enumerate(others)
        )
        found = Schema("struct", fields=fields, name=ONE_OF)
        return Field(name, replace(found, optional=has_null or is_optional))

    def _all_of(self, name: str, node: JsonCombination, *, is_optional: bool) -> Field:
        """Return what several schemas say together: their properties, or the type among them."""
        properties: dict[str, JsonType] = {}
        required: set[str] = set()
        _collect(node, properties, required, [])
        if properties:
            struct = self._struct(properties, frozenset(required))
            return _noted(name, node, struct, is_optional=is_optional)
        parts = [follow(each) for each in node.parts]
        for wanted in (JsonCombination, JsonEnumeration, JsonText, JsonNumber, JsonBool, JsonList):
            for each in parts:
                is_const = isinstance(each, JsonEnumeration) and "enum" not in each.keywords
                # The symbols of a text count; those of a number do not, nor does a constant.
                is_weak = isinstance(each, JsonEnumeration) and _has(parts, JsonNumber)
                if isinstance(each, wanted) and not is_const and not is_weak:
                    return self.field(name, each, is_optional=is_optional)
        raise BadRecord("Connect has no schema for the allOf of a JSON Schema")


def _has(parts: Sequence[JsonType], kind: type[JsonNumber]) -> bool:
    return any(isinstance(each, kind) for each in parts)


def _collect(
    given: JsonType, properties: dict[str, JsonType], required: set[str], seen: list[JsonType]
) -> None:
    """Add the properties of objects that have to hold together."""
    node = follow(given)
    if any(each is node for each in seen):
        return
    seen.append(node)
    if isinstance(node, JsonMapping):
        properties |= node.properties
        required |= node.required
    elif isinstance(node, JsonCombination) and node.criterion is Criterion.ALL:
        for each in node.parts:
            _collect(each, properties, required, seen)


def _number(node: JsonNumber) -> Schema:
    own = node.keywords.get(TYPE)
    if own is None:
        return Schema("int64" if node.is_integer else "float64")
    if own not in _NUMBERS:
        raise BadRecord(f"{TYPE} of a number in a JSON Schema is {str(own)[:40]!r}")
    return Schema(_NUMBERS[str(own)])


def _enum(node: JsonEnumeration) -> Schema:
    given = node.keywords["enum"]
    symbols = [
        NULL_SYMBOL if each is None else str(each) for each in given if isinstance(given, list)
    ]
    # JSON's enums have no name; the parameter is there, and empty.
    named = [(ENUM, ""), *((f"{ENUM}.{each}", each) for each in symbols)]
    return Schema("string", parameters=tuple(named))


def _noted(name: str, node: JsonType, schema: Schema, *, is_optional: bool) -> Field:
    """Return a field with what the keywords of its node say."""
    version, given = node.keywords.get(VERSION), node.keywords.get(PARAMETERS)
    parameters = dict(schema.parameters)
    if isinstance(given, dict):
        parameters |= {key: str(text) for key, text in given.items()}
    is_number = isinstance(version, int) and not isinstance(version, bool)
    noted = replace(
        schema,
        doc=node.description,
        version=version if is_number else None,
        parameters=tuple(parameters.items()),
        optional=is_optional or schema.optional,
    )
    if node.title is not None:
        noted = with_name(noted, node.title)
    return Field(name, noted, node.default if _may_default(noted) else None)


def _may_default(schema: Schema) -> bool:
    # The entries of such a map stand in another form in the defaults of fields.
    return schema.kind != "map" or has_text_keys(schema)
