"""Schemas to Avro: Connect's schemas as Avro schemas, as Confluent's AvroConverter writes them.

Rule: properties stand in the order in which the Java class adds them, so that a registry knows the
schema of a connector that ran in Java before.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Final

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_conventions import (
    AVRO_KINDS,
    DEFAULT_NAME,
    ENUM,
    ENUM_DEFAULT,
    ENUM_DOC,
    FIELD_DEFAULT,
    FIELD_DOC,
    FIXED_SIZE,
    MAP_ENTRY,
    NAMESPACE,
    PRECISION,
    PRECISION_DEFAULT,
    RECORD_DOC,
    AvroForm,
    is_enum,
    is_fixed,
    is_text_map,
    is_union,
    scrub,
    scrub_full,
)
from streamlog.connect.converters.json_schemas import (
    is_connect_logical,
    name_and_version,
    scale_of,
    schema_to_json,
)
from streamlog.connect.row_schema import Field, Schema, part_of
from streamlog.replace import replace
from streamlog.serdes.erased_types import JsonValue

_AVRO_LOGICAL: Final = {
    "Decimal": "decimal",
    "Date": "date",
    "Time": "time-millis",
    "Timestamp": "timestamp-millis",
}
AvroNode = dict[str, JsonValue]


def avro_of(schema: Schema | None, form: AvroForm) -> JsonValue:
    """Return the Avro schema of a schema; without one, that of a value of any type.

    Raises:
        BadRecord: Avro has no schema for it.
    """
    return _anything() if schema is None else _Writing(form).node(schema, None, None)


def _anything() -> JsonValue:
    # Confluent's record for values without a schema: nine fields, one of which has the value.
    def optional(name: str, kind: JsonValue) -> JsonValue:
        return {"name": name, "type": ["null", kind], "default": None}

    kinds = ("boolean", "bytes", "double", "float", "int", "long", "string")
    entry: AvroNode = {
        "type": "record",
        "name": MAP_ENTRY,
        "fields": [{"name": name, "type": "Anything"} for name in ("key", "value")],
    }
    fields = [
        *(optional(kind, kind) for kind in kinds),
        optional("array", {"type": "array", "items": "Anything"}),
        optional("map", {"type": "array", "items": entry}),
    ]
    return {"type": "record", "name": "Anything", "namespace": NAMESPACE, "fields": fields}


class _Writing:
    """One schema on its way to Avro, with the names that it has defined."""

    def __init__(self, form: AvroForm) -> None:
        self._form = form
        self._defined: dict[bytes, str] = {}
        """The full names of structs, enums, fixeds and entries, by their schemas."""
        self._taken: dict[str, bytes] = {}
        self._unnamed = 0

    def node(self, schema: Schema, default: JsonValue, space: str | None) -> JsonValue:
        """Return the node of a schema inside a namespace; a default belongs to the field."""
        if is_union(schema):
            members = [replace(each.schema, optional=False) for each in schema.fields]
            nodes = [self.node(each, None, space) for each in members]
            return ["null", *nodes] if schema.optional else nodes
        base = self._base(replace(schema, optional=False), default, space)
        if not schema.optional:
            return base
        # Avro's rule: a default is of the first type of its union.
        return [base, "null"] if default is not None and schema.kind != "struct" else ["null", base]

    def _base(self, schema: Schema, default: JsonValue, space: str | None) -> JsonValue:
        form = self._form
        if schema.kind == "struct":
            return self._named(schema, default, space)
        if schema.kind == "string" and form.is_enhanced and is_enum(schema):
            return self._named(schema, default, space)
        if is_fixed(schema):
            return self._named(schema, default, space)
        node: AvroNode = {"type": AVRO_KINDS[schema.kind]}
        if schema.kind == "array":
            node["items"] = self.node(part_of(schema.items), None, space)
        elif schema.kind == "map" and is_text_map(schema, form):
            node["values"] = self.node(part_of(schema.items), None, space)
        elif schema.kind == "map":
            node = {"type": "array", "items": self._entry(schema, space)}
        node |= self._properties(schema, default)
        return node["type"] if len(node) == 1 else node

    def _named(self, schema: Schema, default: JsonValue, space: str | None) -> JsonValue:
        # Two fields of one struct define it once; the second one has its name. With a default it
        # is written as often, as properties differ, and a registry refuses it as Java's does.
        key = msgspec.json.encode([schema_to_json(schema), default])
        known = self._defined.get(key)
        if known is not None:
            own, _, name = known.rpartition(".")
            return name if own in ("", space) else known
        full = schema.parameter(ENUM) if is_enum(schema) else name_and_version(schema)[0]
        own, name = self._define(key, full)
        kind = {"struct": "record", "string": "enum"}.get(schema.kind, "fixed")
        node: AvroNode = {"type": kind, "name": name, **_namespace(own, space)}
        if kind == "record":
            if doc := schema.parameter(RECORD_DOC):
                node["doc"] = doc
            node["fields"] = [self._field(schema, each, own) for each in schema.fields]
        elif kind == "enum":
            node |= _enum(schema, name)
        else:
            node["size"] = _number(schema, FIXED_SIZE, "")
        return node | self._properties(schema, default)

    def _define(self, key: bytes, full: str | None) -> tuple[str, str]:
        # Avro's records have a name each; those of rows may lack it.
        if full is None:
            self._unnamed += 1
            number = "" if self._unnamed == 1 else str(self._unnamed)
            full = f"{NAMESPACE}.{DEFAULT_NAME}{number}"
        elif self._form.scrubs_names:
            full = scrub_full(full)
        # Avro knows a type by its name alone: the second would be read as the first.
        if self._taken.setdefault(full, key) != key:
            raise BadRecord(f"two different schemas have the name {full}, which Avro refuses")
        self._defined[key] = full
        own, _, name = full.rpartition(".")
        return own, name

    def _field(self, schema: Schema, field: Field, space: str | None) -> JsonValue:
        name = scrub(field.name) if self._form.scrubs_names else field.name
        node: AvroNode = {"name": name, "type": self.node(field.schema, field.default, space)}
        if doc := schema.parameter(f"{FIELD_DOC}{field.name}"):
            node["doc"] = doc
        default = _default_to_avro(field.schema, field.default)
        # A default is of the first type of a union, and that of an optional struct is null.
        if field.schema.optional and (field.default is None or field.schema.kind == "struct"):
            node["default"] = None
        elif field.default is not None:
            node["default"] = default
        return node

    def _entry(self, schema: Schema, space: str | None) -> JsonValue:
        full = schema.name or f"{NAMESPACE}.{MAP_ENTRY}"
        key = msgspec.json.encode(["entry", schema_to_json(schema)])
        if key in self._defined:
            return self._defined[key]
        own, name = self._define(key, full)
        fields = [
            self._field(schema, Field("key", part_of(schema.keys)), own),
            self._field(schema, Field("value", part_of(schema.items)), own),
        ]
        node: AvroNode = {"type": "record", "name": name, **_namespace(own, space)}
        node["fields"] = fields
        if schema.name is not None:
            node["connect.internal.type"] = MAP_ENTRY
        return node

    def _properties(self, schema: Schema, default: JsonValue) -> AvroNode:
        name, version = name_and_version(schema)
        is_logical = is_connect_logical(schema)
        found: AvroNode = {}
        if is_logical and schema.logical == "Decimal":
            found["scale"] = scale_of(schema)
            found["precision"] = _number(schema, PRECISION, str(PRECISION_DEFAULT))
        if self._form.has_meta_data:
            # What Avro does not have itself goes into properties, which its readers pass over.
            kept = {key: text for key, text in schema.parameters if key != FIELD_DEFAULT}
            is_own = default is not None and schema.parameter(FIELD_DEFAULT) is None
            shown = _default_to_avro(schema, default) if is_own else None
            for key, value in (
                ("connect.doc", schema.doc),
                ("connect.version", version),
                ("connect.parameters", kept or None),
                ("connect.default", shown),
                ("connect.name", name),
                ("connect.type", schema.kind if schema.kind in ("int8", "int16") else None),
            ):
                if value is not None:
                    found[key] = value
        if is_logical:
            found["logicalType"] = _AVRO_LOGICAL[schema.logical or ""]
        found |= {key: text for key, text in schema.parameters if key.startswith("avro")}
        return found


def _number(schema: Schema, name: str, default: str) -> int:
    text = schema.parameter(name) or default
    if not text.isdecimal():
        raise BadRecord(f"the parameter {name} is a number, not {text[:40]!r}")
    return int(text)


def _namespace(own: str, space: str | None) -> AvroNode:
    """Return the namespace of a name, unless it is the one around it."""
    return {} if own == (space or "") else {"namespace": own}


def _enum(schema: Schema, name: str) -> AvroNode:
    found: AvroNode = {}
    if doc := schema.parameter(f"{ENUM_DOC}{name}"):
        found["doc"] = doc
    prefix = f"{ENUM}."
    found["symbols"] = [
        key.removeprefix(prefix) for key, _ in schema.parameters if key.startswith(prefix)
    ]
    if default := schema.parameter(f"{ENUM_DEFAULT}{name}"):
        found["default"] = default
    return found


def _default_to_avro(schema: Schema, default: JsonValue) -> JsonValue:
    """Return a default as Avro has it: bytes are text, a character for each."""
    if default is None:
        return None
    match schema.kind, default:
        case "bytes", str():
            return b64decode(default).decode("latin-1")
        case "array", list():
            return [_default_to_avro(part_of(schema.items), each) for each in default]
        case "map", dict():
            items = part_of(schema.items)
            return {key: _default_to_avro(items, each) for key, each in default.items()}
        case "struct", dict():
            fields = {each.name: each for each in schema.fields}
            return {
                key: _default_to_avro(fields[key].schema, each) if key in fields else each
                for key, each in default.items()
            }
    return default
