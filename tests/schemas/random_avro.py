"""Random Avro schemas, changes of them as people make them, and values of them, by a seed."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEFAULTS = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 0.5,
    "double": 1.5,
    "bytes": "b",
    "string": "s",
}
SYMBOLS = ("A", "B", "C", "D")
MAX_DEPTH = 3


def random_pair(seed: int) -> tuple[Any, Any]:
    """Return a reader's and a writer's schema: often the writer's with a few changes."""
    chance = Random(seed)
    writer = RandomSchema(chance).record(0)
    if chance.random() < 0.1:
        return RandomSchema(chance).record(0), writer
    reader = copy.deepcopy(writer)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 5))):
        change(reader, chance)
    return reader, writer


class RandomSchema:
    """Makes one schema after another out of one source of chance."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.names: list[str] = []

    def record(self, depth: int) -> dict[str, Any]:
        name = self.name("R")
        fields = [self.field(number, depth) for number in range(self.chance.randint(0, 4))]
        return {"type": "record", "name": name, "fields": fields}

    def name(self, letter: str) -> str:
        space = self.chance.choice(("n.", "m."))
        self.names.append(f"{space}{letter}{len(self.names)}")
        return self.names[-1]

    def field(self, number: int, depth: int) -> dict[str, Any]:
        kind = self.type(depth + 1)
        found = {"name": f"f{number}", "type": kind}
        if self.chance.random() < 0.3 and isinstance(kind, str) and kind in DEFAULTS:
            found["default"] = DEFAULTS[kind]
        return found

    def type(self, depth: int, *, in_union: bool = False) -> Any:  # noqa: PLR0911 - one return for each kind
        chance = self.chance
        choices = ["primitive"] * 4
        if depth < MAX_DEPTH:
            choices += ["array", "map", "record", "enum", "fixed", "recursive"]
            choices += [] if in_union else ["union", "union"]
        match chance.choice(choices):
            case "array":
                return {"type": "array", "items": self.type(depth + 1)}
            case "map":
                return {"type": "map", "values": self.type(depth + 1)}
            case "record":
                return self.record(depth)
            case "enum":
                found = {
                    "type": "enum",
                    "name": self.name("E"),
                    "symbols": sorted(chance.sample(SYMBOLS, chance.randint(1, 4))),
                }
                if chance.random() < 0.3:
                    found["default"] = found["symbols"][0]
                return found
            case "fixed":
                return {"type": "fixed", "name": self.name("F"), "size": chance.randint(0, 3)}
            case "recursive":
                records = [each for each in self.names if "R" in each]
                return ["null", chance.choice(records)]
            case "union":
                return self.union(depth)
            case _:
                return chance.choice(PRIMITIVES)

    def union(self, depth: int) -> list[Any]:
        branches: dict[str, Any] = {}
        for _ in range(self.chance.randint(1, 4)):
            branch = self.type(depth + 1, in_union=True)
            for each in branch if isinstance(branch, list) else [branch]:
                branches.setdefault(branch_key(each), each)
        return list(branches.values())


def branch_key(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return str(branch.get("name", branch["type"]))


def walk(schema: Any) -> list[dict[str, Any]]:
    """Return all types that are objects, and all fields."""
    match schema:
        case list():
            return [found for each in schema for found in walk(each)]
        case {"fields": fields}:
            return [schema, *fields, *(found for each in fields for found in walk(each["type"]))]
        case {"items": inner} | {"values": inner}:
            return [schema, *walk(inner)]
        case dict():
            return [schema]
        case _:
            return []


def change(schema: Any, chance: Random) -> None:
    """Change one part of a schema in place."""
    part = chance.choice(walk(schema))
    if part.get("type") == "record":
        _change_fields(part["fields"], chance)
    elif part.get("type") == "enum":
        _change_enum(part, chance)
    elif part.get("type") == "fixed":
        part["size"] = chance.randint(0, 3)
    elif "items" in part or "values" in part:
        key = "items" if "items" in part else "values"
        part[key] = _changed_type(part[key], chance)
    elif "name" in part:
        part.pop("default", None)
        part["type"] = _changed_type(part["type"], chance)
    if chance.random() < 0.1 and part.get("type") in ("record", "enum", "fixed"):
        part["aliases"] = [part["name"], "other.Name"]


def _change_fields(fields: list[Any], chance: Random) -> None:
    match chance.randint(0, 4):
        case 0 if fields:
            _remove(fields, chance)
        case 1 if fields:
            field = chance.choice(fields)
            aliases = [field["name"]] if chance.random() < 0.7 else []
            field.update(name=f"{field['name']}x", aliases=aliases)
        case 2:
            chance.shuffle(fields)
        case _:
            kind = chance.choice(PRIMITIVES)
            name = f"g{chance.randint(0, 99)}"
            if all(each["name"] != name for each in fields):
                default = {"default": DEFAULTS[kind]} if chance.random() < 0.7 else {}
                fields.append({"name": name, "type": kind, **default})


def _remove(fields: list[Any], chance: Random) -> None:
    # A type that is defined in the field may be used by name elsewhere.
    simple = [each for each in fields if isinstance(each["type"], str)]
    if simple:
        fields.remove(chance.choice(simple))


def _change_enum(part: dict[str, Any], chance: Random) -> None:
    part["symbols"] = sorted(chance.sample(SYMBOLS, chance.randint(1, 4)))
    part.pop("default", None)
    if chance.random() < 0.5:
        part["default"] = part["symbols"][-1]


def _changed_type(kind: Any, chance: Random) -> Any:  # noqa: PLR0911 - one return for each kind
    match kind:
        case list() if chance.random() < 0.5 and "string" not in kind:
            return [*kind, "string"]
        case list() if len(kind) > 1:
            simple = [each for each in kind if isinstance(each, str) and each in PRIMITIVES]
            gone = chance.choice(simple) if simple else None
            return [each for each in kind if each != gone] or kind
        case list():
            return kind
        case "int" | "long" | "float" if chance.random() < 0.5:
            return chance.choice(("long", "float", "double"))
        case str() if chance.random() < 0.3 and kind in PRIMITIVES:
            return chance.choice(PRIMITIVES)
        case _ if kind != "null":
            return ["null", kind] if chance.random() < 0.5 else [kind, "null"]
        case _:
            return kind


def random_value(schema: Any, chance: Random, names: dict[str, Any], depth: int = 0) -> Any:  # noqa: PLR0911 - one return for each kind
    """Return a value of a schema; `names` has its named types by name."""
    match schema:
        case list():
            # A value of a union with its branch: fastavro must not choose another one.
            branch = "null" if depth > 6 and "null" in schema else chance.choice(schema)
            value = random_value(branch, chance, names, depth + 1)
            return value if branch == "null" else (branch_key(branch), value)
        case {"type": "record", "fields": fields}:
            return {
                each["name"]: random_value(each["type"], chance, names, depth + 1)
                for each in fields
            }
        case {"type": "enum", "symbols": symbols}:
            return chance.choice(symbols)
        case {"type": "fixed", "size": size}:
            return chance.randbytes(size)
        case {"type": "array", "items": items}:
            count = chance.randint(0, 2)
            return [random_value(items, chance, names, depth + 1) for _ in range(count)]
        case {"type": "map", "values": values}:
            count = chance.randint(0, 2)
            return {f"k{n}": random_value(values, chance, names, depth + 1) for n in range(count)}
        case _ if schema in names:
            return random_value(names[schema], chance, names, depth + 1)
        case _:
            return _primitive(schema, chance)


def _primitive(kind: str, chance: Random) -> Any:  # noqa: PLR0911 - one return for each kind
    match kind:
        case "null":
            return None
        case "boolean":
            return chance.random() < 0.5
        case "int":
            return chance.randint(-(1 << 31), (1 << 31) - 1)
        case "long":
            return chance.randint(-(1 << 63), (1 << 63) - 1)
        case "float" | "double":
            return float(chance.randint(-1000, 1000)) / 4
        case "bytes":
            return bytes(chance.choices(range(128), k=3))
        case _:
            return "".join(chance.choices("abäö", k=3))


def spoil(schema: Any, chance: Random) -> Any:
    """Return a schema of which one part is changed so that it may be none."""
    part = chance.choice(walk(schema))
    key = chance.choice(sorted(part))
    match chance.randint(0, 5):
        case 0:
            del part[key]
        case 1:
            part[key] = chance.choice((None, 1, "", "x", "n.R0", "a-b", [], {}, True))
        case 2:
            part["name"] = chance.choice(("int", "1a", "a..b", ".a", "a.", "a.b-c", "é", "a$"))
        case 3:
            part["default"] = chance.choice((None, 1, -1, 1.5, "s", "é", "€", True, [], [1], {}))
        case 4:
            part["aliases"] = chance.choice(("a", ["a"], [1], ["a b"], None, []))
        case _:
            part["type"] = ["int", part["type"]] if "type" in part else ["int"]
    return schema
