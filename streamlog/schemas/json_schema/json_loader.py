"""Reads JSON Schemas of the drafts 4, 6, 7, 2019-09 and 2020-12 into nodes.

A schema with keywords of several kinds is all of them combined; without a `type`, the keywords tell
the kind. Later drafts' keywords are read as the earlier ones that they replace.

Rule: a keyword that has another form than the drafts give it is refused, with its path. Unknown
keywords are left out, as the drafts say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypedDict

import msgspec

from streamlog.errors import InvalidSchema
from streamlog.schemas.json_schema.json_documents import JsonDocuments, join_uri
from streamlog.schemas.json_schema.json_types import (
    Criterion,
    JsonAnything,
    JsonBool,
    JsonCombination,
    JsonCondition,
    JsonEnumeration,
    JsonLink,
    JsonList,
    JsonMapping,
    JsonNegation,
    JsonNothing,
    JsonNull,
    JsonNumber,
    JsonText,
    JsonType,
    follow,
)
from streamlog.schemas.json_text import JsonValue, dump_json, shown, too_deep
from streamlog.schemas.schema import DEFAULT_LIMITS, SchemaLimits

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_TEXT = frozenset(("minLength", "maxLength", "pattern"))
_NUMBER = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_LIST = frozenset(
    (
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems"),
        *("uniqueItems", "contains", "minContains", "maxContains"),
    )
)
_MAPPING = frozenset(
    (
        *("properties", "required", "patternProperties", "additionalProperties", "propertyNames"),
        *("unevaluatedProperties", "minProperties", "maxProperties"),
        *("dependencies", "dependentRequired", "dependentSchemas"),
    )
)
_KEYWORDS = {"object": _MAPPING, "array": _LIST, "string": _TEXT, "number": _NUMBER}
_SIBLINGS = _TEXT | _NUMBER | _LIST | _MAPPING | {"type", "enum", "const", "not", "if", *Criterion}
Keywords = Mapping[str, JsonValue]


class _Notes(TypedDict, total=False):
    """What every node may have, as arguments of its class."""

    id: str | None
    title: str | None
    description: str | None
    default: JsonValue
    has_default: bool
    keywords: Keywords


class _Position(msgspec.Struct, frozen=True):
    """Where a schema stands."""

    path: str
    base: str
    depth: int

    def inside(self, *keys: str | int) -> _Position:
        """Return the place of a schema inside this one."""
        return _Position("/".join((self.path, *map(str, keys))), self.base, self.depth + 1)


@dataclass(slots=True)
class JsonLoader:
    """Reads one schema with the documents that it refers to."""

    documents: JsonDocuments
    limits: SchemaLimits = DEFAULT_LIMITS
    reads_siblings: bool = False
    """Whether keywords beside a `$ref` count, as from draft 2019-09 on."""
    _links: dict[int, JsonLink] = field(default_factory=dict)
    """Links by the identity of what they refer to, which the documents keep alive."""

    def load(self, value: JsonValue, base: str) -> JsonType:
        """Return what a schema says.

        Raises:
            InvalidSchema: it is no JSON Schema.
        """
        # A recursive schema refers to "#": it is this node, not a copy of it.
        found = self._links[id(value)] = JsonLink()
        found.target = self._schema(value, _Position("#", base, 0))
        for link in self._links.values():
            _check_chain(link)
        return follow(found)

    def _schema(self, value: JsonValue, position: _Position) -> JsonType:
        if position.depth > self.limits.depth:
            raise too_deep(self.limits)
        if value is True:
            return JsonAnything()
        if value is False:
            return JsonNothing()
        if not isinstance(value, dict):
            raise InvalidSchema(f"{shown(value)} is not a JSON Schema", path=position.path)
        own = value.get("$id", value.get("id"))
        if isinstance(own, str):
            position = _Position(position.path, join_uri(position.base, own), position.depth)
        if "$ref" not in value:
            return self._combined(value, [*self._parts(value, position)], position)
        link = self._link(value["$ref"], position)
        if not self.reads_siblings or not value.keys() & _SIBLINGS:
            return link
        return self._combined(value, [link, *self._parts(value, position)], position)

    def _combined(self, value: Keywords, parts: list[JsonType], position: _Position) -> JsonType:
        notes = _notes(value, position)
        if not parts:
            return JsonAnything(**notes)
        if len(parts) == 1:
            return parts[0]
        return JsonCombination(criterion=Criterion.ALL, parts=tuple(parts), **notes)

    def _link(self, reference: JsonValue, position: _Position) -> JsonLink:
        if not isinstance(reference, str):
            raise InvalidSchema("$ref is not a text", path=f"{position.path}/$ref")
        target, base = self.documents.find(position.base, reference)
        if not isinstance(target, dict):
            return JsonLink(target=self._schema(target, position.inside("$ref")))
        link = self._links.get(id(target))
        if link is None:
            link = self._links[id(target)] = JsonLink()
            link.target = self._schema(target, _Position(reference, base, position.depth + 1))
        return link

    def _parts(self, value: Keywords, position: _Position) -> Iterator[JsonType]:
        notes = _notes(value, position)
        if "enum" in value:
            values = _list(value, "enum", position)
            yield JsonEnumeration(values=frozenset(map(_value_text, values)), **notes)
        for criterion in Criterion:
            if criterion in value:
                # As in Confluent's registry, a part that stands twice counts once.
                texts = map(dump_json, _list(value, criterion, position))
                parts = dict(
                    zip(texts, self._all(value, criterion, position), strict=True)
                ).values()
                yield JsonCombination(criterion=criterion, parts=tuple(parts), **notes)
        if "not" in value:
            inner = self._schema(value["not"], position.inside("not"))
            yield JsonNegation(inner=inner, **notes)
        if "const" in value:
            yield JsonEnumeration(values=frozenset((_value_text(value["const"]),)), **notes)
        if "if" in value:
            for key in ("if", "then", "else"):
                # Read for what may be wrong with them; they are not compared.
                self._schema(value.get(key, True), position.inside(key))
            yield JsonCondition(**notes)
        yield from self._typed(value, position)

    def _typed(self, value: Keywords, position: _Position) -> Iterator[JsonType]:
        match value.get("type"):
            case None:
                for kind, keywords in _KEYWORDS.items():
                    if value.keys() & keywords:
                        yield self._of_type(kind, value, position)
            case str(kind):
                yield self._of_type(kind, value, position)
            case list() as kinds:
                if len(kinds) > len(_TYPES):
                    raise InvalidSchema("A type is listed twice", path=f"{position.path}/type")
                parts = tuple(self._of_type(kind, value, position) for kind in kinds)
                notes = _notes(value, position)
                yield JsonCombination(criterion=Criterion.ANY, parts=parts, **notes)
            case other:
                raise InvalidSchema(f"{shown(other)} is not a type", path=f"{position.path}/type")

    def _of_type(self, kind: JsonValue, value: Keywords, position: _Position) -> JsonType:
        notes = _notes(value, position)
        match kind:
            case "object":
                return self._mapping(value, position)
            case "array":
                return self._array(value, position)
            case "string":
                return _text(value, position)
            case "number" | "integer":
                return _number(value, position, is_integer=kind == "integer")
            case "boolean":
                return JsonBool(**notes)
            case "null":
                return JsonNull(**notes)
            case _:
                raise InvalidSchema(
                    f"{shown(kind)} is not a type: {', '.join(_TYPES)}",
                    path=f"{position.path}/type",
                )

    def _mapping(self, value: Keywords, position: _Position) -> JsonMapping:
        required_with, schema_with = self._dependencies(value, position)
        return JsonMapping(
            properties=self._named(value, "properties", position),
            required=_names(value, "required", position),
            patterns=self._named(value, "patternProperties", position),
            additional=self._rest(value, "additionalProperties", position),
            unevaluated=self._unevaluated(value, "additionalProperties", position),
            required_with=required_with,
            schema_with=schema_with,
            min_properties=_count(value, "minProperties", position),
            max_properties=_count(value, "maxProperties", position),
            **_notes(value, position),
        )

    def _dependencies(
        self, value: Keywords, position: _Position
    ) -> tuple[dict[str, frozenset[str]], dict[str, JsonType]]:
        names: dict[str, frozenset[str]] = {}
        schemas = self._named(value, "dependentSchemas", position)
        required = _object(value, "dependentRequired", position)
        for key in required:
            names[key] = _names(required, key, position.inside("dependentRequired"))
        both = _object(value, "dependencies", position)
        for key, each in both.items():
            if isinstance(each, list):
                names[key] = _names(both, key, position.inside("dependencies"))
            else:
                schemas[key] = self._schema(each, position.inside("dependencies", key))
        return names, schemas

    def _array(self, value: Keywords, position: _Position) -> JsonList:
        items, rest = value.get("items"), "additionalItems"
        first = "prefixItems" if "prefixItems" in value else "items"
        if "prefixItems" in value:
            # Draft 2020-12: `items` is what `additionalItems` was before.
            items, rest = None, "items"
        if isinstance(items, list) or first == "prefixItems":
            first_items, all_items = self._all(value, first, position), None
        else:
            first_items, all_items = (), self._one(value, "items", position)
        return JsonList(
            items=all_items,
            first_items=first_items,
            additional=self._rest(value, rest, position),
            unevaluated=self._unevaluated(value, rest, position),
            min_items=_count(value, "minItems", position),
            max_items=_count(value, "maxItems", position),
            min_contains=_count(value, "minContains", position),
            max_contains=_count(value, "maxContains", position),
            is_unique=value.get("uniqueItems") is True,
            **_notes(value, position),
        )

    def _one(self, value: Keywords, key: str, position: _Position) -> JsonType | None:
        return self._schema(value[key], position.inside(key)) if key in value else None

    def _rest(self, value: Keywords, key: str, position: _Position) -> JsonType | None:
        # True says what its absence says.
        return None if value.get(key, True) is True else self._one(value, key, position)

    def _unevaluated(self, value: Keywords, rest: str, position: _Position) -> JsonType | None:
        # What the keyword for the rest allows has been evaluated: nothing is left for this one.
        key = "unevaluatedProperties" if rest == "additionalProperties" else "unevaluatedItems"
        return None if rest in value else self._one(value, key, position)

    def _all(self, value: Keywords, key: str, position: _Position) -> tuple[JsonType, ...]:
        inside = enumerate(_list(value, key, position))
        return tuple(self._schema(each, position.inside(key, number)) for number, each in inside)

    def _named(self, value: Keywords, key: str, position: _Position) -> dict[str, JsonType]:
        return {
            name: self._schema(each, position.inside(key, name))
            for name, each in _object(value, key, position).items()
        }


def _check_chain(link: JsonLink) -> None:
    """Refuse links that lead to one another and to nothing else."""
    seen: set[int] = set()
    found: JsonType | None = link
    while isinstance(found, JsonLink):
        if id(found) in seen:
            raise InvalidSchema("A $ref refers to itself, directly or through others")
        seen.add(id(found))
        found = found.target


def _notes(value: Keywords, position: _Position) -> _Notes:
    texts = {}
    for key in ("title", "description"):
        texts[key] = value.get(key)
        if texts[key] is not None and not isinstance(texts[key], str):
            raise InvalidSchema(f"{key} is not a text", path=f"{position.path}/{key}")
    own = value.get("$id", value.get("id"))
    return {
        "id": own if isinstance(own, str) else None,
        "title": texts["title"],
        "description": texts["description"],
        "default": value.get("default"),
        "has_default": "default" in value,
        "keywords": value,
    }


def _text(value: Keywords, position: _Position) -> JsonText:
    pattern = value.get("pattern")
    if pattern is not None and not isinstance(pattern, str):
        raise InvalidSchema("pattern is not a text", path=f"{position.path}/pattern")
    return JsonText(
        min_length=_count(value, "minLength", position),
        max_length=_count(value, "maxLength", position),
        pattern=pattern,
        **_notes(value, position),
    )


def _number(value: Keywords, position: _Position, *, is_integer: bool) -> JsonNumber:
    found = JsonNumber(is_integer=is_integer, **_notes(value, position))
    found.minimum = _limit(value, "minimum", position)
    found.maximum = _limit(value, "maximum", position)
    if isinstance(value.get("exclusiveMinimum"), bool):
        # Draft 4: whether the limit itself is excluded.
        if value["exclusiveMinimum"]:
            found.exclusive_minimum, found.minimum = found.minimum, None
    else:
        found.exclusive_minimum = _limit(value, "exclusiveMinimum", position)
    if isinstance(value.get("exclusiveMaximum"), bool):
        if value["exclusiveMaximum"]:
            found.exclusive_maximum, found.maximum = found.maximum, None
    else:
        found.exclusive_maximum = _limit(value, "exclusiveMaximum", position)
    found.multiple_of = _limit(value, "multipleOf", position)
    if found.multiple_of is not None and found.multiple_of <= 0:
        raise InvalidSchema("multipleOf is not above 0", path=f"{position.path}/multipleOf")
    return found


def _limit(value: Keywords, key: str, position: _Position) -> Fraction | None:
    found = value.get(key)
    if found is None:
        return None
    if type(found) not in {int, float}:
        raise InvalidSchema(f"{key} is not a number", path=f"{position.path}/{key}")
    return Fraction(str(found))


def _count(value: Keywords, key: str, position: _Position) -> Fraction | None:
    found = _limit(value, key, position)
    if found is not None and (found < 0 or found.denominator != 1):
        raise InvalidSchema(f"{key} is not a count", path=f"{position.path}/{key}")
    return found


def _list(value: Keywords, key: str, position: _Position) -> list[JsonValue]:
    found = value.get(key, [])
    if not isinstance(found, list):
        raise InvalidSchema(f"{key} is not a list", path=f"{position.path}/{key}")
    return found


def _object(value: Keywords, key: str, position: _Position) -> dict[str, JsonValue]:
    found = value.get(key, {})
    if not isinstance(found, dict):
        raise InvalidSchema(f"{key} is not an object", path=f"{position.path}/{key}")
    return found


def _names(value: Keywords, key: str, position: _Position) -> frozenset[str]:
    # Draft 3 has true here, for the property itself; as in Everit's library, it says nothing.
    if isinstance(value.get(key), bool):
        return frozenset()
    names = _list(value, key, position)
    if not all(isinstance(each, str) for each in names):
        raise InvalidSchema(f"{key} is not a list of names", path=f"{position.path}/{key}")
    return frozenset(names)


def _value_text(value: JsonValue) -> str:
    return dump_json(_plain(value))


def _plain(value: JsonValue) -> JsonValue:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {key: _plain(each) for key, each in sorted(value.items())}
        case _:
            return value
