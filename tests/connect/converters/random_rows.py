"""Random schemas of Connect with values of theirs: nulls, empty, huge, negative, NaN."""

from __future__ import annotations

import math
from base64 import b64encode
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any, Final

from streamlog.connect.row_schema import Field, Kind, Schema
from streamlog.replace import replace

BITS: Final[dict[Kind, int]] = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS: Final = ("", "x", "0", 'é\\"\n', "\U0001f600", "a" * 300, "null")
SCALARS: Final[tuple[Kind, ...]] = (*BITS, "float32", "float64", "boolean", "string", "bytes")
LOGICAL: Final = (
    Schema("bytes", logical="Decimal", parameters=(("scale", "2"),)),
    Schema(
        "bytes",
        logical="Decimal",
        parameters=(("scale", "0"), ("connect.decimal.precision", "9")),
    ),
    Schema("int32", logical="Date"),
    Schema("int32", logical="Time"),
    Schema("int64", logical="Timestamp"),
)
OWN: Final = (Schema("int64", logical="LocalTimestamp"), Schema("string", logical="Decimal"))
"""Logical types of ours, which are plain to other readers."""


class RandomRows:
    """Schemas and values by one chance."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self._structs = 0

    def row(self) -> tuple[Schema, Any]:
        """Return a schema, mostly of a struct, with a value."""
        schema = self.struct(0) if self.chance.random() < 0.8 else self.schema(0)
        if self.chance.random() < 0.2:
            schema = replace(schema, optional=True)
        return schema, self.value(replace(schema, optional=False))

    def schema(self, depth: int) -> Schema:
        chance = self.chance
        inner = ("struct", "array", "map", "entries") if depth < 3 else ()
        match chance.choice([*SCALARS, "logical", "logical", "own", *inner]):
            case "struct":
                found = self.struct(depth + 1)
            case "array":
                found = Schema("array", items=self.schema(depth + 1))
            case "map":
                found = Schema("map", keys=Schema("string"), items=self.schema(depth + 1))
            case "entries":
                # Of two of them the entries would have one name: the second is refused.
                self._structs += 1
                name = f"shop.Entry{self._structs}"
                keys = Schema(chance.choice(("int32", "int64", "boolean")))
                found = Schema("map", keys=keys, items=self.schema(depth + 1), name=name)
            case "logical":
                found = chance.choice(LOGICAL)
            case "own":
                found = chance.choice(OWN)
            case kind:
                found = self.decorated(Schema(kind))
        return replace(found, optional=chance.random() < 0.3)

    def decorated(self, schema: Schema) -> Schema:
        if self.chance.random() < 0.2:
            parameters = (("b", "2"), ("a", "1"))
            return replace(schema, name="shop.Thing", version=3, doc="it", parameters=parameters)
        return schema

    def struct(self, depth: int) -> Schema:
        self._structs += 1
        name = f"shop.Row{self._structs}"
        names = self.chance.sample(("a", "b", "c", "d", "e", "id"), self.chance.randint(0, 5))
        fields = tuple(self.field(name, depth) for name in names)
        version = self.chance.choice((None, 1, 7))
        return Schema("struct", fields=fields, name=name, version=version)

    def field(self, name: str, depth: int) -> Field:
        schema = self.schema(depth + 1)
        default: Any = None
        is_plain = schema.kind in (*BITS, "boolean", "string", "bytes")
        if is_plain and schema.logical is None and self.chance.random() < 0.3:
            default = self.value(replace(schema, optional=False))
            default = b64encode(default).decode() if schema.kind == "bytes" else default
        return Field(name, schema, default)

    def value(self, schema: Schema) -> Any:
        chance = self.chance
        if schema.optional and chance.random() < 0.3:
            return None
        match schema.kind:
            case "struct":
                return {
                    # A null would be written as the default.
                    each.name: self.value(
                        replace(each.schema, optional=False)
                        if each.default is not None
                        else each.schema
                    )
                    for each in schema.fields
                }
            case "array":
                return [self.value(schema.items or Schema("string")) for _ in self.some()]
            case "map":
                keys = [self.value(schema.keys or Schema("string")) for _ in self.some()]
                return {key: self.value(schema.items or Schema("string")) for key in keys}
        return self.logical(schema) if schema.logical else self.scalar(schema.kind)

    def some(self) -> range:
        return range(self.chance.choice((0, 0, 1, 2, 3, 70)) if self.chance.random() < 0.3 else 1)

    def scalar(self, kind: Kind) -> Any:
        chance = self.chance
        if kind in BITS:
            limit = 1 << BITS[kind] - 1
            return chance.choice((0, 1, -1, limit - 1, -limit, 63, 64, -64, -65, 100))
        match kind:
            case "float32":
                return chance.choice((0.0, -0.5, 1.5, math.inf, -math.inf, math.nan, 2.0**100))
            case "float64":
                return chance.choice((0.0, 0.1, -1e300, 5e-324, math.inf, math.nan))
            case "boolean":
                return chance.random() < 0.5
            case "bytes":
                return chance.randbytes(chance.choice((0, 1, 3, 200)))
        return chance.choice(TEXTS)

    def logical(self, schema: Schema) -> Any:
        chance = self.chance
        match schema.logical, schema.kind:
            case "Decimal", "string":
                return chance.choice((Decimal("1.2300"), Decimal(-7), Decimal(f"-1{'0' * 40}")))
            case "Decimal", _:
                scale = int(schema.parameter("scale") or 0)
                number = chance.choice((0, 1, -1, 127, 128, -128, -129, 999_999_999, -255))
                return Decimal(number).scaleb(-scale)
            case "Date", _:
                return date(1970, 1, 1) + timedelta(days=chance.choice((0, -1, 20_000, -400_000)))
            case "Time", _:
                return chance.choice((time(0), time(23, 59, 59, 999_000), time(1, 2, 3)))
            case "Timestamp", _:
                ms = chance.choice((0, -1, 1_700_000_000_123, -62_000_000_000_000))
                return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        return datetime(1970, 1, 1) + timedelta(microseconds=chance.randint(-(10**9), 10**15))  # noqa: DTZ001 - it has no zone
