"""Random questions: a row with a schema to write as Avro, or an Avro schema with bytes to read."""

from __future__ import annotations

import io
import json
import math
from random import Random
from typing import Any, Final

import fastavro

from streamlog.connect.converters import JsonConverter
from streamlog.connect.converters.connect_avro.avro_conventions import ENUM, FIXED_SIZE, UNION
from streamlog.connect.row_schema import Field, Kind, Schema
from tests.connect.converters.random_rows import RandomRows
from tests.schemas.random_avro import (
    DEFAULTS,
    MAX_DEPTH,
    RandomSchema,
    branch_key,
    random_value,
    walk,
)

SETTINGS: Final = (
    "enhanced.avro.schema.support",
    "scrub.invalid.names",
    "allow.optional.map.keys",
    "ignore.default.for.nullables",
)
ROWS: Final = JsonConverter()
Question = dict[str, Any]


def question(seed: int) -> Question:
    """Return the question of a number."""
    chance = Random(seed)
    settings = {name: "true" for name in SETTINGS if chance.random() < 0.25}
    if chance.random() < 0.2:
        settings["connect.meta.data"] = "false"
    return {"settings": settings, **(_row(seed) if seed % 2 else _avro(seed))}


def _row(seed: int) -> Question:
    schema, value = RowsWithAvro(seed).row()
    data = ROWS.encode(schema, value)
    assert data is not None
    return {"row": data.decode()}


class RowsWithAvro(RandomRows):
    """Rows of which some stand for what Avro has and Connect has not; numbers are JSON's."""

    def schema(self, depth: int) -> Schema:
        if self.chance.random() < 0.8:
            return super().schema(depth)
        self._structs += 1
        optional = self.chance.random() < 0.3
        match self.chance.choice(("enum", "fixed", "union" if depth < 2 else "enum", "odd")):
            case "enum":
                symbols = tuple((f"{ENUM}.{each}", each) for each in ("RED", "BLUE"))
                name = f"shop.Hue{self._structs}"
                given = ((ENUM, name), *symbols)
                return Schema("string", name=name, parameters=given, optional=optional)
            case "fixed":
                given = ((FIXED_SIZE, "3"),)
                name = f"shop.Three{self._structs}"
                return Schema("bytes", name=name, parameters=given, optional=optional)
            case "union":
                kinds: list[tuple[str, Kind]] = [("int", "int32"), ("string", "string")]
                fields = [Field(name, Schema(kind, optional=True)) for name, kind in kinds]
                return Schema("struct", name=UNION, fields=tuple(fields), optional=optional)
        # The port scrubs as older releases of Confluent do; newer ones keep more of other names.
        fields = [Field(name, Schema("int32")) for name in ("a b", "1st", "c-d")]
        name = f"shop.Odd-{self._structs}"
        return Schema("struct", name=name, fields=tuple(fields), optional=optional)

    def value(self, schema: Schema) -> Any:
        if schema.optional and self.chance.random() < 0.3:
            return None
        if schema.name == UNION:
            chosen = self.chance.choice(schema.fields)
            return {
                each.name: self.scalar(each.schema.kind) if each is chosen else None
                for each in schema.fields
            }
        if schema.parameter(ENUM):
            return self.chance.choice(("RED", "BLUE"))
        if schema.parameter(FIXED_SIZE):
            return self.chance.randbytes(3)
        return super().value(schema)

    def field(self, name: str, depth: int) -> Field:
        found = super().field(name, depth)
        schema = found.schema
        items = schema.items
        is_plain = items is not None and items.kind in ("int32", "string") and not items.logical
        if schema.kind == "array" and is_plain and self.chance.random() < 0.5:
            return Field(name, schema, self.chance.choice(([], None)))
        if schema.kind in ("float32", "float64") and self.chance.random() < 0.3:
            return Field(name, schema, 1.5)
        if schema.logical in ("Date", "Time", "Timestamp") and self.chance.random() < 0.3:
            return Field(name, schema, 1_000)
        if schema.logical == "Decimal" and schema.kind == "bytes" and self.chance.random() < 0.3:
            return Field(name, schema, "AQI=")
        return found

    def scalar(self, kind: Kind) -> Any:
        found = super().scalar(kind)
        # JSON, in which the rows travel, has neither NaN nor infinity.
        return 0.25 if isinstance(found, float) and not math.isfinite(found) else found


# ------------------------------------------------------------------------------ Avro


LOGICAL: Final = {
    "int": ("date", "time-millis"),
    "long": ("timestamp-millis", "timestamp-micros"),
    "bytes": ("decimal",),
    "fixed": ("decimal",),
    "string": ("uuid",),
}
_RANGES: Final = {
    "date": 30_000,
    "time-millis": 86_400_000,
    "timestamp-millis": 10**13,
    "timestamp-micros": 10**16,
}


def _avro(seed: int) -> Question:
    chance = Random(seed)
    schemas = RandomSchema(chance)
    node: Any = schemas.record(0)
    match chance.randrange(20):
        case 0:
            node = ["null", node]
        case 1:
            node = {"type": "array", "items": node}
        case 2:
            node = schemas.type(MAX_DEPTH)
    names = {each["name"]: each for each in walk(node) if "fields" in each or _is_named(each)}
    value = random_value(node, chance, names)
    decorated = _decorated(node, chance)
    out = io.BytesIO()
    plain = fastavro.parse_schema(json.loads(json.dumps(node)))
    fastavro.schemaless_writer(out, plain, _tamed(decorated, value))
    written = out.getvalue()
    # Confluent's serializer writes bytes that are the whole value without their size of one byte.
    data = written[1:] if node == "bytes" else written
    return {"avro": json.dumps(decorated), "data": data.hex()}


def _tamed(node: Any, value: Any) -> Any:  # noqa: PLR0911 - one return for each kind
    """Return a value whose dates and times are mostly in the years that Python has."""
    match node, value:
        case list(), (str() as name, inner):
            branch = next((each for each in node if branch_key(each) == name), None)
            return name, _tamed(branch, inner)
        case {"fields": fields}, dict():
            return {each["name"]: _tamed(each["type"], value[each["name"]]) for each in fields}
        case {"type": "array", "items": items}, list():
            return [_tamed(items, each) for each in value]
        case {"type": "map", "values": values}, dict():
            return {key: _tamed(values, each) for key, each in value.items()}
        case {"connect.type": "int8" | "int16"}, int():
            return value % 100
        case {"logicalType": str() as logical}, int() if value % 10:
            return value % _RANGES[logical]
    return value


def _is_named(node: dict[str, Any]) -> bool:
    return node.get("type") in ("enum", "fixed")


def _decorated(node: Any, chance: Random) -> Any:
    """Return a schema with documentation, logical types and properties of Connect's."""
    match node:
        case list():
            return [_decorated(each, chance) for each in node]
        case str() if node in LOGICAL and node != "fixed" and chance.random() < 0.2:
            return _with_logical({"type": node}, chance)
        case str() if node in ("int", "string", "long") and chance.random() < 0.1:
            return {"type": node, **_properties(node, chance)}
        case dict():
            found = {
                key: _decorated(each, chance) if key in ("type", "items", "values") else each
                for key, each in node.items()
            }
            if "fields" in node:
                found["fields"] = [_decorated(each, chance) for each in node["fields"]]
            if "name" in node and chance.random() < 0.2:
                found["doc"] = "what it is"
            if not _MISSING & node.keys() and chance.random() < 0.5:
                found |= _default(node["type"])
            if node.get("type") == "fixed" and node["size"] and chance.random() < 0.3:
                found = _with_logical(found, chance)
            return found
    return node


_MISSING: Final = {"fields", "symbols", "size", "items", "values", "default"}
"""What a field of a record does not have."""


def _default(node: Any) -> dict[str, Any]:  # noqa: PLR0911 - one return for each kind
    """Return the default of a field, where its type has a simple one."""
    match node:
        case ["null", *_]:
            return {"default": None}
        case [str() as first, *_] if first in DEFAULTS:
            return {"default": DEFAULTS[first]}
        case {"type": "array"}:
            return {"default": []}
        case {"type": "map"}:
            return {"default": {}}
        case {"symbols": symbols}:
            return {"default": symbols[0]}
        case {"size": size}:
            return {"default": "x" * size}
    return {}


def _with_logical(node: dict[str, Any], chance: Random) -> dict[str, Any]:
    logical = chance.choice(LOGICAL[node["type"]])
    digits = {}
    if logical == "decimal":
        digits = {"precision": chance.choice((2, 4)), "scale": chance.choice((0, 2))}
    return {**node, "logicalType": logical, **digits}


def _properties(kind: str, chance: Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if kind == "int" and chance.random() < 0.5:
        found["connect.type"] = chance.choice(("int8", "int16"))
    if chance.random() < 0.5:
        found["connect.version"] = 3
        found["connect.doc"] = "its doc"
        found["connect.name"] = "shop.Number"
        found["connect.parameters"] = {"a": "1", "b": "2"}
    if kind == "string" and chance.random() < 0.5:
        found["avro.java.string"] = "String"
    return found
