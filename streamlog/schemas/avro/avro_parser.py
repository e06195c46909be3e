"""Reads Avro schemas: names, types, and what Avro 1.12 demands of them.

Rule: what Apache Avro's Java parser refuses is refused here, with the path to it. A name is known
from where it is defined on, in the order of the text; names of references are known from the start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from streamlog.errors import InvalidSchema
from streamlog.schemas.avro.avro_defaults import default_problem
from streamlog.schemas.avro.avro_types import (
    NO_DEFAULT,
    PRIMITIVES,
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroNamed,
    AvroPrimitive,
    AvroRecord,
    AvroType,
    AvroUnion,
    parts_of,
    split_name,
)
from streamlog.schemas.json_text import JsonValue, shown, too_deep
from streamlog.schemas.schema import DEFAULT_LIMITS, SchemaLimits

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ORDERS = frozenset(("ascending", "descending", "ignore"))
_MAX_FIXED_BYTES = (1 << 31) - 1
_COMMON = frozenset(("type", "name", "namespace", "doc", "aliases"))
_DEFINED = {
    "record": _COMMON | {"fields"},
    "error": _COMMON | {"fields"},
    "enum": _COMMON | {"symbols", "default"},
    "fixed": _COMMON | {"size"},
    "array": {"type", "items"},
    "map": {"type", "values"},
}
_FIELD_DEFINED = frozenset(("type", "name", "doc", "default", "order", "aliases"))


@dataclass(slots=True)
class AvroParser:
    """Reads one schema.

    Args:
        names: the named types that are known, by full name; those that the schema defines are
            added.
        limits: how deep types may be nested.
        checks_defaults: whether a default that does not fit its field's type is refused. Avro
            refuses it in new schemas only.
    """

    names: dict[str, AvroNamed] = field(default_factory=dict)
    limits: SchemaLimits = DEFAULT_LIMITS
    checks_defaults: bool = True
    _unchecked: list[tuple[AvroField, str]] = field(default_factory=list)

    def parse(self, value: JsonValue) -> AvroType:
        """Return the type that decoded JSON describes.

        Raises:
            InvalidSchema: it is no Avro schema.
        """
        found = self._type(value, "", "", 0)
        self._check_depth(found)
        for each, path in self._unchecked if self.checks_defaults else ():
            problem = default_problem(each.type, each.default)
            if problem:
                raise InvalidSchema(f"The default of field '{each.name}' {problem}", path=path)
        # The parser may be used for one schema after another.
        self._unchecked.clear()
        return found

    def _type(self, value: JsonValue, namespace: str, path: str, depth: int) -> AvroType:
        if depth > self.limits.depth:
            raise too_deep(self.limits)
        match value:
            case str():
                return self._by_name(value, namespace, path)
            case list():
                return self._union(value, namespace, path, depth)
            case {"type": str(kind)} if kind in PRIMITIVES:
                return AvroPrimitive(kind, _rest(value, {"type"}))
            case {"type": str(kind)} if kind in _DEFINED:
                return self._complex(kind, value, namespace, path, depth)
            # A name with attributes of its own: Avro ignores them.
            case {"type": str(kind)}:
                return self._by_name(kind, namespace, f"{path}/type")
            case {"type": inner}:
                # {"type": {"type": ...}}: Avro's Java parser reads through it.
                return self._type(inner, namespace, f"{path}/type", depth + 1)
            case dict():
                raise InvalidSchema('A schema has no "type"', path=path or "/")
            case _:
                raise InvalidSchema(f"{shown(value)} is not an Avro schema", path=path or "/")

    def _by_name(self, name: str, namespace: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroPrimitive(name)
        # As in Java: a name without dots is looked for in the namespace around it, then in none.
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self.names.get(full) or self.names.get(name)
        if found is None:
            raise InvalidSchema(
                f'"{shown(name)}" is not a defined name: define the type before its use, or pass a '
                "reference with this name",
                path=path or "/",
            )
        return found

    def _union(self, branches: list[JsonValue], namespace: str, path: str, depth: int) -> AvroUnion:
        found: list[AvroType] = []
        seen: set[str] = set()
        for number, each in enumerate(branches):
            branch = self._type(each, namespace, f"{path}/{number}", depth + 1)
            if isinstance(branch, AvroUnion):
                raise InvalidSchema("A union contains a union", path=f"{path}/{number}")
            name = getattr(branch, "name", branch.kind)
            # Named types differ by name, all others by kind: two arrays can't be told apart.
            if name in seen:
                raise InvalidSchema(f'A union has "{name}" twice', path=f"{path}/{number}")
            seen.add(name)
            found.append(branch)
        return AvroUnion(tuple(found))

    def _complex(
        self, kind: str, value: Mapping[str, JsonValue], namespace: str, path: str, depth: int
    ) -> AvroType:
        properties = _rest(value, _DEFINED[kind])
        match kind:
            case "array":
                items = self._inner(value, "items", namespace, path, depth)
                return AvroArray(items, properties)
            case "map":
                values = self._inner(value, "values", namespace, path, depth)
                return AvroMap(values, properties)
        name = _full_name(value, namespace, path)
        space, _ = split_name(name)
        doc, aliases = _doc(value), _aliases(value, space, path)
        if kind == "enum":
            symbols = _symbols(value, path)
            default = _enum_default(value, symbols, path)
            return self._define(AvroEnum(name, symbols, default, doc, aliases, properties), path)
        if kind == "fixed":
            size = value.get("size")
            # JSON's true is an int for isinstance.
            if type(size) is not int or not 0 <= size <= _MAX_FIXED_BYTES:
                raise InvalidSchema(
                    f'The "size" of fixed {name} is not a number of bytes', path=f"{path}/size"
                )
            return self._define(AvroFixed(name, size, doc, aliases, properties), path)
        # The name is known before the fields are read, which may refer to it.
        record = AvroRecord(name, (), doc, aliases, kind == "error", properties)
        self._define(record, path)
        record.fields = self._fields(record, value.get("fields"), path, depth)
        return record

    def _inner(
        self, value: Mapping[str, JsonValue], key: str, namespace: str, path: str, depth: int
    ) -> AvroType:
        if key not in value:
            raise InvalidSchema(f'An {value["type"]} has no "{key}"', path=path or "/")
        return self._type(value[key], namespace, f"{path}/{key}", depth + 1)

    def _define(self, found: AvroNamed, path: str) -> AvroNamed:
        if found.name in self.names:
            raise InvalidSchema(f'"{found.name}" is defined twice', path=path or "/")
        self.names[found.name] = found
        return found

    def _fields(
        self, record: AvroRecord, fields: JsonValue, path: str, depth: int
    ) -> tuple[AvroField, ...]:
        if not isinstance(fields, list):
            raise InvalidSchema(f'Record {record.name} has no list of "fields"', path=path or "/")
        namespace, _ = split_name(record.name)
        found: dict[str, AvroField] = {}
        for number, each in enumerate(fields):
            here = f"{path}/fields/{number}"
            one = self._field(each, namespace, here, depth)
            if one.name in found:
                raise InvalidSchema(f'Record {record.name} has "{one.name}" twice', path=here)
            found[one.name] = one
        return tuple(found.values())

    def _field(self, value: JsonValue, namespace: str, path: str, depth: int) -> AvroField:
        if not isinstance(value, dict):
            raise InvalidSchema(f"{shown(value)} is not a field", path=path)
        name = value.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidSchema(f"{shown(name)} is not a name for a field", path=f"{path}/name")
        if "type" not in value:
            raise InvalidSchema(f"Field '{name}' has no \"type\"", path=path)
        order = value.get("order", "ascending")
        # Java reads the order in any case.
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            raise InvalidSchema(
                f"The order of field '{name}' is not ascending, descending or ignore",
                path=f"{path}/order",
            )
        found = AvroField(
            name,
            self._type(value["type"], namespace, f"{path}/type", depth + 1),
            value.get("default", NO_DEFAULT),
            _doc(value),
            order.lower(),
            _strings(value, "aliases", path),
            _rest(value, _FIELD_DEFINED),
        )
        if found.default is not NO_DEFAULT:
            # The types of later fields, and of this one's record, may be incomplete until the end.
            self._unchecked.append((found, f"{path}/default"))
        return found

    def _check_depth(self, root: AvroType) -> None:
        """Bound the chains of names, which text nested within the limit can make long."""
        heights: dict[int, int] = {}
        # By hand, not by calls: this is what bounds the calls of everything that follows.
        waiting = [(root, iter(parts_of(root)))]
        open_types = {id(root)}
        while waiting:
            found, parts = waiting[len(waiting) - 1]
            part = next(parts, None)
            if part is None:
                waiting.pop()
                # A type that is still open contains this one: a recursion, which ends in values.
                inner = (heights.get(id(each), -1) for each in parts_of(found))
                heights[id(found)] = 1 + max(inner, default=-1)
                if heights[id(found)] > self.limits.depth:
                    raise too_deep(self.limits)
            elif id(part) not in open_types:
                open_types.add(id(part))
                waiting.append((part, iter(parts_of(part))))


def _rest(value: Mapping[str, JsonValue], defined: AbstractSet[str]) -> dict[str, JsonValue]:
    return {key: each for key, each in value.items() if key not in defined}


def _doc(value: Mapping[str, JsonValue]) -> str | None:
    # As in Java, a doc that is no text is left out.
    doc = value.get("doc")
    return doc if isinstance(doc, str) else None


def _full_name(value: Mapping[str, JsonValue], namespace: str, path: str) -> str:
    name = value.get("name")
    if not isinstance(name, str):
        raise InvalidSchema(f'A {value["type"]} has no "name"', path=path or "/")
    own = value.get("namespace")
    # A name with dots brings its own namespace, whatever stands under "namespace".
    if "." not in name:
        space = own if isinstance(own, str) else namespace
        name = f"{space}.{name}" if space else name
    if not all(_NAME.fullmatch(part) for part in name.removeprefix(".").split(".")):
        raise InvalidSchema(
            f'"{shown(name)}" is not a name: letters, digits and _ with dots between them',
            path=f"{path}/name",
        )
    _, last = split_name(name)
    # Such a name could never be referred to.
    if last in PRIMITIVES:
        raise InvalidSchema(f'"{last}" is the name of a primitive type', path=f"{path}/name")
    return name.removeprefix(".")


def _aliases(value: Mapping[str, JsonValue], namespace: str, path: str) -> tuple[str, ...]:
    return tuple(
        each if "." in each or not namespace else f"{namespace}.{each}"
        for each in _strings(value, "aliases", path)
    )


def _strings(value: Mapping[str, JsonValue], key: str, path: str) -> tuple[str, ...]:
    found = value.get(key)
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidSchema(f'"{key}" is not a list of names', path=f"{path}/{key}")
    return tuple(found)


def _symbols(value: Mapping[str, JsonValue], path: str) -> tuple[str, ...]:
    if "symbols" not in value:
        raise InvalidSchema('An enum has no "symbols"', path=path or "/")
    symbols = _strings(value, "symbols", path)
    seen: set[str] = set()
    # One pass for both: a schema of the largest size has some 200,000 symbols.
    for number, each in enumerate(symbols):
        if not _NAME.fullmatch(each):
            raise InvalidSchema(
                f'"{shown(each)}" is not a symbol: letters, digits and _',
                path=f"{path}/symbols/{number}",
            )
        if each in seen:
            raise InvalidSchema(f'An enum has "{each}" twice', path=f"{path}/symbols/{number}")
        seen.add(each)
    return symbols


def _enum_default(
    value: Mapping[str, JsonValue], symbols: tuple[str, ...], path: str
) -> str | None:
    default = value.get("default")
    if default is None:
        return None
    if not isinstance(default, str) or default not in symbols:
        raise InvalidSchema(
            f"The default {shown(default)} of an enum is none of its symbols",
            path=f"{path}/default",
        )
    return default
