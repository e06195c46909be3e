"""Random questions: JSON for JsonConverter, with a schema or without, some of it spoiled."""

from __future__ import annotations

import copy
import json
from base64 import b64encode
from collections.abc import Sequence
from random import Random
from typing import Any, Final

DATA: Final = "org.apache.kafka.connect.data."
SCALARS: Final = ("int8", "int16", "int32", "int64", "float", "double", "boolean", "string")
CASTS: Final = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
TEXTS: Final = (
    *("", "x", "12", "-7", "+5", "007", "true", "TRUE", "3.5", "1e3", ".5", "5.", "1.5f", "2D"),
    *("300", "-129", "2147483648", "9223372036854775808", "NaN", "-Infinity", " 4", "4\n"),
    *('é"\\', "\U0001f600", "null", "1_000", "٣", "1e400", "-", "1e", "++1", "12abc"),
)
WHOLE: Final = (0, 1, -1, 127, 128, -128, -129, 32_767, 32_768, 70_000, 2**31 - 1, 2**31, -(2**31))
LONG: Final = (2**32 - 1, 2**53 + 1, 2**63 - 1, -(2**63))
FRACTIONS: Final = (
    *(0.0, -0.0, 0.5, -1.5, 2.5, 1e-3, 9.5e-4, 1e7, 9999999.5, 1e21, 3e9, -3e9, 1e300, -1e300),
    *(0.1, 1234.5678, 1e-7, 5e-324, 100.0, 1e10, 16777217.0, 3.4e38, 1e39, 127.9, -128.9, 2e19),
)
DAY_MS: Final = 86_400_000
MOMENTS: Final = (
    *(0, 1, -1, 999, 1000, DAY_MS - 1, DAY_MS, DAY_MS + 1, -DAY_MS, 1_700_000_000_123),
    *(20_000 * DAY_MS, -62_135_596_800_000, 253_402_300_799_999),
)
Json = Any
Question = dict[str, Any]


def question(seed: int) -> Question:
    """Return the question of a number."""
    chance = Random(seed)
    made = RandomJson(chance)
    settings: dict[str, str] = {}
    if chance.random() < 0.25:
        settings["decimal.format"] = "NUMERIC"
        made.is_numeric = True
    if chance.random() < 0.25:
        settings["replace.null.with.default"] = "false"
    kind = chance.choice(("plain", "plain", "content", *["envelope"] * 7))
    if kind == "plain":
        settings["schemas.enable"] = "false"
        whole = made.free(0)
        return _asked(settings, whole, _casts(whole, chance))
    schema, value = made.schema(0)
    envelope = {"schema": schema, "payload": value}
    if chance.random() < 0.3:
        spoil(envelope, chance)
    casts = _casts(envelope.get("payload"), chance)
    if kind == "content" and envelope.get("schema") is not None and "payload" in envelope:
        settings["schema.content"] = json.dumps(envelope["schema"])
        settings["schemas.enable"] = chance.choice(("true", "true", "true", "false"))
        return _asked(settings, envelope["payload"], casts)
    return _asked(settings, envelope, casts)


def _asked(settings: dict[str, str], whole: Json, casts: Sequence[str]) -> Question:
    return {"settings": settings, "data": json.dumps(whole), "casts": casts}


def _casts(payload: Json, chance: Random) -> Sequence[str]:
    """Return some types for a scalar: Cast takes nothing else."""
    return () if isinstance(payload, dict | list) else chance.sample(CASTS, 3)


class RandomJson:
    """Schemas of Connect as JSON, with payloads."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.is_numeric = False
        """Whether Decimals are numbers."""

    def free(self, depth: int) -> Json:  # noqa: PLR0911 - a case for each kind
        """Return JSON without a schema."""
        chance = self.chance
        match chance.randrange(9 if depth < 2 else 7):
            case 0:
                return None
            case 1:
                return chance.random() < 0.5
            case 2 | 3:
                return chance.choice(WHOLE + LONG)
            case 4:
                return chance.choice(FRACTIONS)
            case 5 | 6:
                return chance.choice(TEXTS)
            case 7:
                return {name: self.free(depth + 1) for name in self.some("xyz")}
        return [self.free(depth + 1) for _ in self.some("xyz")]

    def some(self, names: str) -> list[str]:
        """Return none, some or all of the letters, in order."""
        return [each for each in names if self.chance.random() < 0.5]

    def schema(self, depth: int) -> tuple[dict[str, Json], Json]:
        """Return a schema with a payload."""
        chance = self.chance
        nested = ("struct", "struct", "array", "map", "entries") if depth < 2 else ()
        kind = chance.choice((*SCALARS, *SCALARS, "bytes", "Decimal", "moment", "moment", *nested))
        schema, value = self.of_kind(kind, depth)
        if chance.random() < 0.4:
            schema["optional"] = chance.random() < 0.7
        if chance.random() < 0.15 and "name" not in schema:
            schema |= {"name": "shop.Thing", "version": 3, "doc": "a thing"}
            schema["parameters"] = {"a": "1"}
        return schema, None if schema.get("optional") and chance.random() < 0.2 else value

    def of_kind(  # noqa: PLR0911 - a case for each kind
        self, kind: str, depth: int
    ) -> tuple[dict[str, Json], Json]:
        """Return a schema of a kind with a payload."""
        chance = self.chance
        match kind:
            case "struct":
                return self.struct(depth)
            case "array":
                items, value = self.schema(depth + 1)
                return {"type": "array", "items": items}, [value] * chance.randrange(3)
            case "map":
                values, value = self.schema(depth + 1)
                keys = {"type": "string", "optional": False}
                made = dict.fromkeys(self.some("xyz"), value)
                return {"type": "map", "keys": keys, "values": values}, made
            case "entries":
                values, value = self.schema(depth + 1)
                keys, key = self.of_kind(chance.choice(("int32", "boolean", "int64")), depth + 1)
                return {"type": "map", "keys": keys, "values": values}, [[key, value]]
            case "Decimal":
                return self.decimal()
            case "moment":
                return self.moment()
            case "bytes":
                return {"type": "bytes"}, b64encode(chance.randbytes(chance.randrange(4))).decode()
        return {"type": kind}, self.scalar(kind)

    def scalar(self, kind: str) -> Json:
        """Return a payload that mostly fits a kind."""
        match kind:
            case "boolean":
                return self.chance.random() < 0.5
            case "string":
                return self.chance.choice(TEXTS)
            case "float" | "double":
                return self.chance.choice((*FRACTIONS, *WHOLE, 2**63 - 1))
        bits = int(kind[3:])
        fit = [each for each in WHOLE + LONG if -(1 << bits - 1) <= each < 1 << bits - 1]
        return self.chance.choice(WHOLE + LONG if self.chance.random() < 0.1 else fit)

    def struct(self, depth: int) -> tuple[dict[str, Json], Json]:
        """Return a struct whose fields are there, are null or lack."""
        fields, row = [], {}
        for name in self.some("abcd"):
            schema, value = self.schema(depth + 1)
            if value is not None and self.chance.random() < 0.25:
                schema["default"] = value
                value = self.chance.choice((value, None))
            fields.append({**schema, "field": name})
            if value is not None or self.chance.random() < 0.5:
                row[name] = value
        return {"type": "struct", "fields": fields}, row

    def decimal(self) -> tuple[dict[str, Json], Json]:
        """Return a decimal in the form that the setting asks for, mostly."""
        chance = self.chance
        number, scale = chance.choice((0, 1, -1, 127, 128, -128, -129, 10**18)), chance.randrange(4)
        schema = {"type": "bytes", "name": f"{DATA}Decimal", "version": 1}
        schema["parameters"] = {"scale": str(scale)}
        if self.is_numeric or chance.random() < 0.2:
            return schema, number if scale == 0 else number / 10**scale
        size = ((number if number >= 0 else ~number).bit_length() + 8) // 8
        return schema, b64encode(number.to_bytes(size, "big", signed=True)).decode()

    def moment(self) -> tuple[dict[str, Json], Json]:
        """Return a date, a time of day or a timestamp."""
        chance = self.chance
        name = chance.choice(("Date", "Time", "Timestamp"))
        schema = {"type": "int64" if name == "Timestamp" else "int32", "version": 1}
        schema["name"] = f"{DATA}{name}"
        ms: int = chance.choice(MOMENTS)
        if name == "Timestamp":
            return schema, ms
        if name == "Date":
            return schema, ms // DAY_MS
        return schema, ms if chance.random() < 0.05 and abs(ms) < 2**31 else ms % DAY_MS


ODD: Final = (None, "x", 7, -1, True, {}, [], [[1]], [1, 2], 2.5, "int9", "string", "AA=", "1")


def spoil(envelope: dict[str, Json], chance: Random) -> None:
    """Change one place of an envelope so that it may be none."""
    places: list[tuple[Any, Any]] = []
    _collect(envelope, places)
    inside, key = chance.choice(places)
    if chance.random() < 0.4:
        del inside[key]
    else:
        inside[key] = copy.deepcopy(chance.choice(ODD))


def _collect(node: Json, places: list[tuple[Any, Any]]) -> None:
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    for key in keys:
        places.append((node, key))
        if isinstance(node[key], dict | list):
            _collect(node[key], places)
