"""Reads Avro schemas: names, types, and what Avro 1.12 demands of them.

Rule: what Apache Avro's Java parser refuses is refused here, with the path to it. A name may be
used before the text defines it, as in Avro since 1.12. Names of references are known at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from streamlog.errors import InvalidSchema
from streamlog.schemas.avro_schemas.avro_defaults import default_problem
from streamlog.schemas.avro_schemas.avro_types import (
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

_ORDERS = frozenset(("ascending", "descending", "ignore"))
_MAX_FIXED_BYTES = (1 << 31) - 1
_DEFINED = frozenset(
    (
        *("type", "name", "namespace", "doc", "aliases", "fields", "symbols", "size", "items"),
        "values",
    )
)
"""What Avro defines for one type or another; in no type is it an attribute of a user's."""
_COMPLEX = frozenset(("record", "error", "enum", "fixed", "array", "map"))
_FIELD_DEFINED = frozenset(("type", "name", "doc", "default", "order", "aliases"))


class _ForwardUse(AvroRecord, eq=False, kw_only=True):
    """A name that is used before its type is defined; it is gone when the schema has been read."""

    bare_name: str = ""
    """As it stands in the text."""
    path: str = ""


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
    _unchecked: list[tuple[AvroField, str, frozenset[AvroRecord]]] = field(default_factory=list)
    _has_forward_uses: bool = False
    _open: list[AvroRecord] = field(default_factory=list)
    """The records whose fields are being read."""

    def parse(self, value: JsonValue) -> AvroType:
        """Return the type that decoded JSON describes.

        Raises:
            InvalidSchema: it is no Avro schema.
        """
        found = self._type(value, "", "", 0)
        if self._has_forward_uses:
            found = self._resolved(found)
        self._check_depth(found)
        for each, path, around in self._unchecked if self.checks_defaults else ():
            problem = default_problem(each.type, each.default, around)
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
                return AvroPrimitive(kind, _rest(value, _DEFINED))
            case {"type": str(kind)} if kind in _COMPLEX:
                return self._complex(kind, value, namespace, path, depth)
            # A name with attributes of its own: Avro ignores them.
            case {"type": str(kind)}:
                return self._by_name(kind, namespace, f"{path}/type")
            case dict():
                raise InvalidSchema('A schema has no "type" that is a text', path=path or "/")
            case _:
                raise InvalidSchema(f"{shown(value)} is not an Avro schema", path=path or "/")

    def _by_name(self, name: str, namespace: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroPrimitive(name)
        # As in Java: a name without dots is looked for in the namespace around it, then in none.
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self.names.get(full) or self.names.get(name)
        if found is None:
            self._has_forward_uses = True
            return _ForwardUse(full, bare_name=name, path=path or "/")
        return found

    def _resolved(self, root: AvroType) -> AvroType:
        """Put the types that are defined after their use in the place of their names."""
        root = self._defined(root)
        seen = {id(root)}
        waiting = [root]
        while waiting:
            found = waiting.pop()
            match found:
                case AvroArray():
                    found.items = self._defined(found.items)
                case AvroMap():
                    found.values = self._defined(found.values)
                case AvroUnion():
                    found.branches = tuple(map(self._defined, found.branches))
                case AvroRecord():
                    for each in found.fields:
                        each.type = self._defined(each.type)
            fresh = [part for part in parts_of(found) if id(part) not in seen]
            seen.update(map(id, fresh))
            waiting += fresh
        return root

    def _defined(self, found: AvroType) -> AvroType:
        if not isinstance(found, _ForwardUse):
            return found
        known = self.names.get(found.name) or self.names.get(found.bare_name)
        if known is None:
            raise InvalidSchema(
                f'"{shown(found.bare_name)}" is not a defined name: define the type, or pass a '
                "reference with this name",
                path=found.path,
            )
        return known

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
        properties = _rest(value, _DEFINED | {"default"} if kind == "enum" else _DEFINED)
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
        self._open.append(record)
        record.fields = self._fields(record, value.get("fields"), path, depth)
        self._open.pop()
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
        if not isinstance(name, str) or not _is_name(name):
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
            self._unchecked.append((found, f"{path}/default", frozenset(self._open)))
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
    _check_name(name, f"{path}/name")
    # Such a name could never be referred to, unless a namespace tells it from the type's.
    if name in PRIMITIVES:
        raise InvalidSchema(f'"{name}" is the name of a primitive type', path=f"{path}/name")
    return name.removeprefix(".")


def _is_name(name: str) -> bool:
    # Letters of all languages, as in Avro's Java library; the specification has those of ASCII.
    return (
        name[:1] != ""
        and not name[0].isdecimal()
        and all(each.isalpha() or each.isdecimal() or each == "_" for each in name)
    )


def _check_name(name: str, path: str) -> None:
    if not all(map(_is_name, name.removeprefix(".").split("."))):
        raise InvalidSchema(
            f'"{shown(name)}" is not a name: letters, digits and _ with dots between them',
            path=path,
        )


def _qualified(name: str, namespace: str, path: str) -> str:
    _check_name(name, path)
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _aliases(value: Mapping[str, JsonValue], namespace: str, path: str) -> tuple[str, ...]:
    return tuple(
        _qualified(each, namespace, f"{path}/aliases") for each in _strings(value, "aliases", path)
    )


def _strings(value: Mapping[str, JsonValue], key: str, path: str) -> tuple[str, ...]:
    if key not in value:
        return ()
    found = value[key]
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
        if not _is_name(each):
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
    if not isinstance(default, str):
        # As in Java, a default that is no text is none.
        return None
    if default not in symbols:
        raise InvalidSchema(
            f"The default {shown(default)} of an enum is none of its symbols",
            path=f"{path}/default",
        )
    return default
