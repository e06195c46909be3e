"""Schemas from Avro: Avro schemas as Connect's, as Confluent's AvroConverter reads them.

Not supported: a record that contains itself, since rows have no such types.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Final, TypeAlias

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_conventions import (
    ANYTHING,
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
    UNION,
    AvroForm,
    member_name,
)
from streamlog.connect.converters.json_schemas import with_name
from streamlog.connect.row_schema import Field, Kind, Schema, part_of
from streamlog.replace import replace
from streamlog.schemas.avro_schemas.avro_types import (
    NAMED,
    NO_DEFAULT,
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroRecord,
    AvroType,
    AvroUnion,
    Properties,
)
from streamlog.serdes.erased_types import JsonValue

_KINDS: Final[Mapping[str, Kind]] = {
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "boolean",
    "string": "string",
}
_SHORT: Final[Mapping[str, Kind]] = {"int8": "int8", "int16": "int16"}
"""Kinds that are an int in Avro, by `connect.type`."""
_LOGICAL: Final = {
    ("int", "date"): "Date",
    ("int", "time-millis"): "Time",
    ("long", "timestamp-millis"): "Timestamp",
}


_Single: TypeAlias = AvroPrimitive | AvroArray | AvroMap | AvroEnum | AvroFixed | AvroRecord
"""Every type but a union."""


def schema_from_avro(node: AvroType, form: AvroForm) -> Schema | None:
    """Return the schema of an Avro schema; None for that of values without one.

    Raises:
        BadRecord: Connect has no schema for it.
    """
    if isinstance(node, AvroRecord) and node.name == ANYTHING:
        return None
    return _Reading(form).schema(node)


def is_null(node: AvroType) -> bool:
    """Return whether a type is Avro's null."""
    return isinstance(node, AvroPrimitive) and node.kind == "null"


def entry_of(node: AvroType) -> tuple[AvroType, AvroType] | None:
    """Return the types of key and value, if a type is that of the entries of a map.

    Raises:
        BadRecord: it is named as one, and has other fields.
    """
    if not isinstance(node, AvroRecord):
        return None
    is_named = node.name == f"{NAMESPACE}.{MAP_ENTRY}"
    if not is_named and node.properties.get("connect.internal.type") != MAP_ENTRY:
        return None
    if [each.name for each in node.fields] != ["key", "value"]:
        raise BadRecord(f"{node.name} is an entry of a map with other fields than key and value")
    return node.fields[0].type, node.fields[1].type


class _Reading:
    """One Avro schema on its way to Connect."""

    def __init__(self, form: AvroForm) -> None:
        self._form = form
        self._within: list[str] = []
        """The names of the records around what is read."""

    def schema(self, node: AvroType, *, is_optional: bool = False) -> Schema:
        """Return the schema of a type."""
        return self.field("", node, None, is_optional=is_optional).schema

    def field(
        self, name: str, node: AvroType, default: JsonValue, *, is_optional: bool = False
    ) -> Field:
        """Return a type as a field, which has the default."""
        if isinstance(node, AvroUnion):
            return self._union(name, node)
        schema, kept = self._described(self._base(node), node, default)
        return Field(name, replace(schema, optional=is_optional or schema.optional), kept)

    def _union(self, name: str, node: AvroUnion) -> Field:
        others = [each for each in node.branches if not is_null(each)]
        is_optional = len(others) < len(node.branches)
        if len(others) == 1 and is_optional:
            # The default of the union is not that of its type; `connect.default` is.
            return self.field(name, others[0], None, is_optional=True)
        # One member has the value, so each of them may be null.
        members = [self.schema(each, is_optional=True) for each in others]
        fields = tuple(Field(member_name(each, self._form), each) for each in members)
        if len({each.name for each in fields}) < len(fields):
            raise BadRecord("several types of a union have the same name in Connect")
        return Field(name, Schema("struct", optional=is_optional, fields=fields, name=UNION))

    def _base(self, node: _Single) -> Schema:
        match node:
            case AvroPrimitive(kind="bytes") | AvroFixed():
                return _bytes(node)
            case AvroPrimitive():
                return _scalar(node)
            case AvroArray():
                return self._array(node)
            case AvroMap():
                return Schema("map", keys=Schema("string"), items=self.schema(node.values))
            case AvroEnum():
                return self._enum(node)
            case AvroRecord():
                return self._record(node)

    def _array(self, node: AvroArray) -> Schema:
        entry = entry_of(node.items)
        if entry is None:
            return Schema("array", items=self.schema(node.items))
        keys, values = entry
        return Schema("map", keys=self.schema(keys), items=self.schema(values))

    def _enum(self, node: AvroEnum) -> Schema:
        name = node.name.rpartition(".")[2]
        parameters: list[tuple[str, str]] = []
        for prefix, text in ((ENUM_DOC, node.doc), (ENUM_DEFAULT, node.default)):
            if self._form.has_meta_data and text is not None:
                parameters.append((f"{prefix}{name}", text))
        # Connect has no enums: the parameters of the text lead back to the enum.
        parameters.append((ENUM, node.name))
        parameters += [(f"{ENUM}.{each}", each) for each in node.symbols]
        return Schema("string", parameters=tuple(parameters))

    def _record(self, node: AvroRecord) -> Schema:
        # A schema of rows is a tree, and this one would never end.
        if node.name in self._within:
            raise BadRecord(f"the Avro record {node.name} contains itself: rows have no such types")
        self._within.append(node.name)
        has_docs = self._form.has_meta_data
        parameters = []
        if has_docs and node.doc:
            parameters.append((RECORD_DOC, node.doc))
        fields = []
        for each in node.fields:
            if has_docs and each.doc:
                parameters.append((f"{FIELD_DOC}{each.name}", each.doc))
            default = None if each.default is NO_DEFAULT else each.default
            field = self.field(each.name, each.type, default)
            if has_docs and each.default is None and field.schema.name == UNION:
                # As in Java: the null of a union of several types was Avro's own default.
                marked = replace(field.schema, parameters=((FIELD_DEFAULT, "true"),))
                field = replace(field, schema=marked)
            fields.append(field)
        self._within.pop()
        return Schema("struct", fields=tuple(fields), parameters=tuple(parameters))

    def _described(
        self, schema: Schema, node: _Single, default: JsonValue
    ) -> tuple[Schema, JsonValue]:
        """Return a schema with what the properties of its type say, and its default."""
        has_meta_data = self._form.has_meta_data
        properties = node.properties
        doc, version, own, given = (
            properties.get(f"connect.{key}") for key in ("doc", "version", "default", "parameters")
        )
        parameters = dict(schema.parameters)
        if has_meta_data and isinstance(given, dict):
            parameters |= {key: str(text) for key, text in given.items()}
        # Java's hints, such as `avro.java.string`, are kept for Java's readers.
        parameters |= {key: str(text) for key, text in properties.items() if key[:4] == "avro"}
        kept = own if default is None else default
        if default is not None and own is None and has_meta_data:
            parameters[FIELD_DEFAULT] = "true"
        is_number = isinstance(version, int) and not isinstance(version, bool)
        schema = replace(
            schema,
            doc=doc if has_meta_data and isinstance(doc, str) else None,
            version=version if is_number and schema.logical is None else None,
            parameters=tuple(parameters.items()),
        )
        return _named(schema, node), default_from_avro(schema, kept)


def _named(schema: Schema, node: _Single) -> Schema:
    name = node.properties.get("connect.name")
    if name is None and isinstance(node, NAMED):
        name = node.name
    # A decimal in a fixed is named as the fixed is, and has its own name in Connect.
    if not isinstance(name, str) or schema.logical is not None:
        return schema
    return schema if name.startswith(f"{NAMESPACE}.{DEFAULT_NAME}") else with_name(schema, name)


def _scalar(node: AvroPrimitive) -> Schema:
    kind, logical = node.kind, node.properties.get("logicalType")
    if kind not in _KINDS:
        raise BadRecord(f"Connect has no schema for Avro's type {kind}, but in a union")
    own = str(node.properties.get("connect.type"))
    # Avro's int is the smallest there is; the property has what it was in Connect.
    if kind == "int" and logical is None and own in _SHORT:
        return Schema(_SHORT[own])
    return Schema(_KINDS[kind], logical=_LOGICAL.get((kind, str(logical))))


def _bytes(node: AvroPrimitive | AvroFixed) -> Schema:
    parameters: list[tuple[str, str]] = []
    is_decimal = node.properties.get("logicalType") == "decimal"
    if is_decimal:
        parameters.append(("scale", str(_number(node.properties, "scale", 0))))
        precision = _number(node.properties, "precision", PRECISION_DEFAULT)
        # Connect knows no precision; a parameter keeps one that Confluent's default is not.
        if precision != PRECISION_DEFAULT:
            parameters.append((PRECISION, str(precision)))
    if isinstance(node, AvroFixed):
        parameters.append((FIXED_SIZE, str(node.size)))
    return Schema("bytes", logical="Decimal" if is_decimal else None, parameters=tuple(parameters))


def _number(properties: Properties, name: str, default: int) -> int:
    found = properties.get(name, default)
    if not isinstance(found, int):
        raise BadRecord(f"{name} of a decimal in an Avro schema is no whole number")
    return found


def default_from_avro(schema: Schema, default: JsonValue) -> JsonValue:
    """Return a default as fields have it: bytes are base64."""
    match schema.kind, default:
        case "bytes", str():
            return b64encode(default.encode("latin-1", "replace")).decode()
        case "array", list():
            return [default_from_avro(part_of(schema.items), each) for each in default]
        case "map", dict():
            items = part_of(schema.items)
            return {key: default_from_avro(items, each) for key, each in default.items()}
        case "struct", dict():
            fields = {each.name: each.schema for each in schema.fields}
            return {
                key: default_from_avro(fields[key], each) if key in fields else each
                for key, each in default.items()
            }
    return default
