"""The parts of JSON that a reader can't read, by the JSON Schemas of two types.

A field that is added needs a default, a number may become wider, a union may gain a member.

Rule: schemas are those of types, by msgspec, pydantic or `serdes/derived`: a record has the fields
that it declares. Keywords that are no structure have to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from streamlog.blueprints.unread_part import UnreadKind, UnreadPart, parts_inside
from streamlog.serdes.erased_types import JsonValue

JsonSchema = Mapping[str, JsonValue]

_FOR_PEOPLE = frozenset({"title", "description", "default", "examples", "discriminator", "$schema"})
WORDS = _FOR_PEOPLE | {"$defs", "definitions"}
"""Keys of a schema that are for people, or resolved before the comparison."""
STRUCTURE = frozenset(
    {"type", "properties", "required", "items", "prefixItems", "additionalProperties", "enum"}
)
"""Keys that are compared part by part; all others have to be equal."""
ANYTHING: JsonSchema = {}
"""The schema that accepts every value."""
SHOWN_CHOICES = 8
"""The most values of an enumeration in a message."""


class JsonTypes:
    """Two schemas, each with the definitions of its references."""

    def __init__(self, new: object, old: object, *, needs_all: bool) -> None:
        self.whole = (new, old)
        self._needs_all = needs_all
        self._new = definitions_of(new)
        self._old = definitions_of(old)
        self._known: dict[tuple[str | int, str | int], list[UnreadPart]] = {}
        self.alike = _bare(new) == _bare(old)

    def unread(self) -> list[UnreadPart]:
        """Return the parts of what the old schema describes that the new one does not accept."""
        return self._unread(*self.whole)

    def differ(self, path: str, kind: UnreadKind, new: object, old: object) -> UnreadPart:
        """Return a difference of two schemas."""
        return UnreadPart(path, kind, describe_json(new, self._new), describe_json(old, self._old))

    def _unread(self, new: object, old: object) -> list[UnreadPart]:
        # By its reference, or else by its identity: `A | null` and null are not one schema.
        met = (_reference(new) or id(new), _reference(old) or id(old))
        if met not in self._known:
            # A type that contains itself is compared at its first occurrence.
            self._known[met] = []
            self._known[met] = self._compare(new, old)
        return self._known[met]

    def _compare(self, given: object, written: object) -> list[UnreadPart]:
        new, old = _resolve(given, self._new), _resolve(written, self._old)
        if new in ({}, True):
            return []
        if not isinstance(new, Mapping) or not isinstance(old, Mapping):
            return [] if new == old else [self.differ("", UnreadKind.TYPE, given, written)]
        # The old union first: each of its members has to find one in the new union. The other way
        # round, one member of the new union would have to accept the whole old union.
        if "anyOf" in old:
            parts = (part for each in old["anyOf"] for part in self._unread(given, each))
            return [*dict.fromkeys(parts)]
        if "anyOf" in new:
            return self._unread_of_any(new, written)
        if new.get("type") != old.get("type") and not _is_widened(new, old):
            return [self.differ("", UnreadKind.TYPE, given, written)]
        return [
            *self._fields(new, old),
            *self._items(new, old),
            *self._choices(given, written),
            *self._limits(new, old),
        ]

    def _unread_of_any(self, new: JsonSchema, written: object) -> list[UnreadPart]:
        # The reader accepts `Paid | Open | None`, and `Paid` is written without a field that it
        # requires. The message names the field of `Paid`, not that no member accepts the value.
        members = new["anyOf"]
        unread = [self._unread(each, written) for each in members]
        if not all(unread):
            return []
        # The member that is meant: the one of this name, else the only one of this type.
        name = _name(written, self._old)
        kind = _kind(_resolve(written, self._old))
        named = [at for at, each in enumerate(members) if name and _name(each, self._new) == name]
        alike = [at for at, e in enumerate(members) if _kind(_resolve(e, self._new)) == kind]
        for meant in (named, alike):
            if len(meant) == 1:
                return unread[meant[0]]
        return [self.differ("", UnreadKind.TYPE, new, written)]

    def _fields(self, new: JsonSchema, old: JsonSchema) -> Iterator[UnreadPart]:
        written, known = old.get("properties", {}), new.get("properties", {})
        required = {*(known if self._needs_all else new.get("required", ()))}
        required -= {*old.get("required", ())}
        for name in (name for name in known if name in required):
            # A dict without declared fields may have any; a type with fields writes these alone.
            may_have = name in written or "properties" not in old
            there = describe_json(written[name], self._old) if name in written else ""
            kind = UnreadKind.OPTIONAL if may_have else UnreadKind.MISSING
            yield UnreadPart(name, kind, describe_json(known[name], self._new), there)
        for name in (name for name in written if name in known):
            yield from parts_inside(name, self._unread(known[name], written[name]))
        yield from self._other_fields(new, old)

    def _other_fields(self, new: JsonSchema, old: JsonSchema) -> Iterator[UnreadPart]:
        """Yield what the reader can't read of the fields that it does not declare."""
        word = "additionalProperties"
        # Without the keyword, the reader accepts anything there.
        accepted = new.get(word, True)
        if accepted is True:
            return
        written, known = old.get("properties", {}), new.get("properties", {})
        for name in (name for name in written if name not in known):
            if accepted is False:
                shown = describe_json(written[name], self._old)
                yield UnreadPart(name, UnreadKind.UNKNOWN_FIELD, "", shown)
            else:
                yield from parts_inside(name, self._unread(accepted, written[name]))
        # A type with declared fields writes these alone; any other object may have more.
        there = old.get(word, "properties" not in old)
        if there is False:
            return
        if accepted is False:
            yield UnreadPart("", UnreadKind.UNKNOWN_FIELD, "", "fields of any name")
        else:
            yield from parts_inside(
                "{}", self._unread(accepted, ANYTHING if there is True else there)
            )

    def _items(self, new: JsonSchema, old: JsonSchema) -> Iterator[UnreadPart]:
        here, there = new.get("prefixItems", ()), old.get("prefixItems", ())
        if len(here) != len(there):
            yield self.differ("", UnreadKind.TYPE, new, old)
            return
        for at, pair in enumerate(zip(here, there, strict=True)):
            yield from parts_inside(f"[{at}]", self._unread(*pair))
        if "items" in new:
            yield from parts_inside("[]", self._unread(new["items"], old.get("items", ANYTHING)))

    def _choices(self, new: object, old: object) -> Iterator[UnreadPart]:
        accepted = cast("JsonSchema", _resolve(new, self._new)).get("enum")
        written = cast("JsonSchema", _resolve(old, self._old)).get("enum")
        if accepted is None:
            return
        if written is None or not {*map(repr, written)} <= {*map(repr, accepted)}:
            # The names of the types say less than their values.
            yield UnreadPart("", UnreadKind.CHOICE, _shown(accepted), _shown(written))

    def _limits(self, new: JsonSchema, old: JsonSchema) -> Iterator[UnreadPart]:
        here, there = (_limits_of(new), _limits_of(old))
        for word in sorted(here.keys() | there.keys()):
            if here.get(word) != there.get(word):
                shown = [f"{word} {e[word]}" if word in e else f"no {word}" for e in (here, there)]
                yield UnreadPart("", UnreadKind.LIMIT, *shown)


def definitions_of(schema: object) -> JsonSchema:
    """Return the definitions that references of a schema name."""
    if not isinstance(schema, Mapping):
        return {}
    # Draft 7 has another word, and `#` is the schema itself.
    return {"#": schema, **schema.get("definitions", {}), **schema.get("$defs", {})}


def bundle_json(schema: JsonValue, documents: Mapping[str, JsonValue]) -> JsonValue:
    """Return a schema with the parts of other documents that it refers to in its definitions.

    Args:
        schema: the schema.
        documents: the documents by the URI that a `$ref` names them by.

    Raises:
        KeyError: a `$ref` leads to nothing in a document.
    """
    if not documents or not isinstance(schema, Mapping):
        return schema
    added: dict[str, JsonValue] = {}

    def moved(part: JsonValue, around: str) -> JsonValue:
        """Return a part of a document with `$ref`s as they are in the bundle."""
        if isinstance(part, list):
            return [moved(each, around) for each in part]
        if not isinstance(part, Mapping):
            return part
        found = {key: moved(each, around) for key, each in part.items()}
        reference = part.get("$ref")
        if isinstance(reference, str):
            uri, _, pointer = reference.partition("#")
            target = uri or around
            if target in documents:
                # 1. `address.json#/$defs/Zip` becomes the definition `address.json~$defs~Zip`.
                # 2. It refers to `#/$defs/Area`, which is one of that document as well.
                name = f"{target}{pointer}".replace("/", "~")
                # Noted before it is moved: a document may refer to itself.
                if name not in added:
                    added[name] = None
                    added[name] = moved(_pointed(documents[target], pointer), target)
                found["$ref"] = f"#/$defs/{name}"
        return found

    whole = moved(schema, "")
    return {**whole, "$defs": {**whole.get("$defs", {}), **added}}


def _pointed(document: JsonValue, pointer: str) -> JsonValue:
    found = document
    for step in pointer.split("/")[1:]:
        found = found[step.replace("~1", "/").replace("~0", "~")]
    return found


def _reference(schema: object) -> str:
    return str(schema.get("$ref", "")) if isinstance(schema, Mapping) else ""


def _resolve(schema: object, definitions: JsonSchema) -> object:
    reference = _reference(schema)
    found = definitions[reference.rpartition("/")[2]] if reference else schema
    # Types of a union exclude each other, so both words mean one thing.
    return {"anyOf": found["oneOf"]} if isinstance(found, Mapping) and "oneOf" in found else found


def _bare(schema: object) -> object:
    """Return the schema without keys for people; type names stay, as references use them."""
    if isinstance(schema, Mapping):
        return {key: _bare(value) for key, value in schema.items() if key not in _FOR_PEOPLE}
    return [_bare(item) for item in schema] if isinstance(schema, list) else schema


def _limits_of(schema: JsonSchema) -> JsonSchema:
    return {key: schema[key] for key in schema.keys() - STRUCTURE - WORDS}


def _is_widened(new: JsonSchema, old: JsonSchema) -> bool:
    return new.get("type") == "number" and old.get("type") == "integer"


def _kind(schema: object) -> object:
    return schema.get("type") if isinstance(schema, Mapping) else schema


def _name(schema: object, definitions: JsonSchema) -> str:
    resolved = _resolve(schema, definitions)
    return str(resolved.get("title", "")) if isinstance(resolved, Mapping) else ""


def _shown(choices: JsonValue) -> str:
    if choices is None:
        return "any value"
    shown = ", ".join(map(str, choices[:SHOWN_CHOICES]))
    return f"one of {shown}{', ...' if len(choices) > SHOWN_CHOICES else ''}"


_NOUNS = {"object": "an object", "integer": "an integer", "string": "text", "array": "a list"}
_NOUNS |= {"number": "a number", "boolean": "a boolean"}


def describe_json(schema: object, definitions: JsonSchema) -> str:
    """Return what a schema describes, as text."""
    match schema:
        case str():
            return schema
        case {"$ref": str(reference)}:
            return _name(schema, definitions) or reference.rpartition("/")[2]
        case {"anyOf": [*members]}:
            return " or ".join(describe_json(each, definitions) for each in members)
        case {"enum": choices}:
            return _shown(choices)
        case {"type": kind}:
            return _describe_type(str(kind), cast("JsonSchema", schema), definitions)
    return "any value"


def _describe_type(kind: str, schema: JsonSchema, definitions: JsonSchema) -> str:
    noun = _NOUNS.get(kind, kind)
    parts = schema.get("items" if kind == "array" else "additionalProperties")
    if isinstance(parts, Mapping):
        return f"{noun} of {describe_json(parts, definitions)}"
    if kind == "object" and schema.get("title"):
        return str(schema["title"])
    form = schema.get("format") or schema.get("contentEncoding")
    return f"{noun} ({form})" if form else noun


def open_records(schema: JsonValue) -> JsonValue:
    """Return a JSON Schema whose records may have other fields."""
    if isinstance(schema, list):
        return [open_records(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    word = "additionalProperties"
    return {k: open_records(each) for k, each in schema.items() if (k, each) != (word, False)}
