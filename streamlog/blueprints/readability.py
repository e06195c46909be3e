"""Readability: whether a serde can read what another has written, and the parts that it can't read.

Two forms of serdes are compared (`serdes.form_of`). A field that is added needs a default, a number
may become wider, a union may gain a member. Each part that can't be read has a path in the value,
such as `customer.street`, `lines[].price` or `rates{}`.

Rule: only forms are compared; no function is called, and nothing is read. Not done here: what
follows from it for state (`topology_difference`) and for other apps (`contracts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from streamlog.serdes.erased_types import JsonValue

Schema = Mapping[str, JsonValue]

WORDS = frozenset({"title", "description", "default", "examples", "$defs", "discriminator"})
"""Keys of a schema that are for people, or resolved before the comparison."""
STRUCTURE = frozenset(
    {"type", "properties", "required", "items", "prefixItems", "additionalProperties", "enum"}
)
"""Keys that are compared part by part; all others have to be equal."""
ANYTHING: Schema = {}
"""The schema that accepts every value."""
SHOWN_CHOICES = 8
"""The most values of an enumeration in a message."""


class UnreadKind(StrEnum):
    """Why a part can't be read."""

    MISSING = "missing"
    """The reader requires a field that is never written."""
    OPTIONAL = "optional"
    """The reader requires a field that the writer's type has with a default, or optionally."""
    UNKNOWN_FIELD = "unknown_field"
    """The reader forbids fields that it does not know, and one is written."""
    TYPE = "type"
    """Values of another type are written."""
    CHOICE = "choice"
    """Values are written that are not among those that the reader accepts."""
    LIMIT = "limit"
    """The reader has a limit or a format that the writer does not have."""
    CODING = "coding"
    """The bytes are of another format."""
    INCOMPARABLE = "incomparable"
    """One of the serdes does not describe its bytes, so nothing is certain."""


@dataclass(frozen=True, slots=True)
class UnreadPart:
    """A part of a value that the reader can't read."""

    path: str
    """Where it is in the value; empty for the whole value."""
    kind: UnreadKind
    reader: str
    """What the reader expects, as text."""
    writer: str
    """What is written, as text; empty if nothing is."""


def is_readable(new: object, old: object, *, is_key: bool = False) -> bool:
    """Return whether a serde of the form `new` can read bytes of the form `old`."""
    return not unread_parts(new, old, is_key=is_key)


def unread_parts(
    new: object, old: object, *, is_key: bool = False, needs_all: bool = False
) -> list[UnreadPart]:
    """Return the parts of bytes of the form `old` that a serde of the form `new` can't read.

    Args:
        new: the form of the reader.
        old: the form of the writer.
        is_key: whether equal values have to have equal bytes, because keys are looked up by them.
        needs_all: whether fields count as required that the reader has a default for.
    """
    if new == old:
        return []
    if _migrates(new) or _migrates(old):
        # 1. Version 1 of a program writes rows as A.
        # 2. Version 2 migrates A to B, and rewrites only some of the rows.
        # 3. Version 3 migrates B to C. Its store has rows of A and B, so it needs a way for each.
        # A key is looked up by its bytes: only the form that is written now finds it.
        ways = _forms(new)[:1] if is_key else _forms(new)
        for form in _forms(old):
            found = [_unread(way, form, is_key=is_key, needs_all=needs_all) for way in ways]
            if all(found):
                return found[0]
        return []
    return _unread(new, old, is_key=is_key, needs_all=needs_all)


def _unread(new: object, old: object, *, is_key: bool, needs_all: bool) -> list[UnreadPart]:
    """As `unread_parts`, for forms without migrations."""
    if new == old:
        return []
    match new, old:
        case {"windowed": here}, {"windowed": there} if _window(new) == _window(old):
            return unread_parts(here, there, is_key=True)
        case {"columns": here, "row": row}, {"columns": there, "row": old_row} if here == there:
            return unread_parts(row, old_row, needs_all=needs_all)
        case {"avro": heads}, {"avro": [head, *_]} if not is_key and head in heads:
            # A schema, and the older ones that it knows; it can read nothing else.
            return []
        case ({"json": here, **extra}, {"json": there, **others}) | (
            {"msgpack": here, **extra},
            {"msgpack": there, **others},
        ) if not extra and not others:
            return _unread_types(_Types(here, there, needs_all=needs_all), is_key=is_key)
    return [_other_coding(new, old)]


def _window(form: object) -> object:
    return form.get("window") if isinstance(form, Mapping) else None


def _unread_types(types: _Types, *, is_key: bool) -> list[UnreadPart]:
    found = types.unread()
    if is_key and not found and not types.alike:
        # Without a difference that a reader notices, the bytes of equal values still differ.
        return [types.differ("", UnreadKind.TYPE, *types.whole)]
    return [] if is_key and types.alike else found


def _other_coding(new: object, old: object) -> UnreadPart:
    # The name of a class stands for a serde that does not describe itself.
    is_open = isinstance(new, str) and isinstance(old, str) and not {new, old} <= PLAIN.keys()
    kind = UnreadKind.INCOMPARABLE if is_open else UnreadKind.CODING
    return UnreadPart("", kind, describe_form(new), describe_form(old))


PLAIN = {
    "StrSerde": "text",
    "BytesSerde": "bytes",
    "IntSerde": "an 8-byte integer",
    "FloatSerde": "an 8-byte float",
}
"""Forms of single values, as text."""
_CODINGS = {"json": "JSON", "msgpack": "MessagePack", "avro": "Avro"}


def describe_form(form: object) -> str:
    """Return what a form describes, as text for a message: "JSON (Order)"."""
    if isinstance(form, str):
        return PLAIN.get(form, f"bytes of {form}")
    if not isinstance(form, Mapping):
        return "bytes of an unknown format"
    if "windowed" in form:
        window = form.get("window")
        layout = "" if window is None else f" ({_describe_layout(window)})"
        return f"windowed keys{layout} of {describe_form(form['windowed'])}"
    for coding, name in _CODINGS.items():
        if coding in form:
            schema = form[coding]
            is_schema = coding != "avro" and isinstance(schema, Mapping | str)
            return f"{name} ({_describe(schema, _definitions(schema))})" if is_schema else name
    return f"bytes of the format {next(iter(form), 'unknown')!r}"


def _describe_layout(window: object) -> str:
    if not isinstance(window, Mapping):
        return str(window)
    return ", ".join(f"{name} {part}" for name, part in window.items())


def _migrates(form: object) -> bool:
    return isinstance(form, Mapping) and "migrates" in form


def _forms(form: object) -> list[object]:
    """Return the form that is written, then the other forms that are read."""
    if not isinstance(form, Mapping) or "migrates" not in form:
        return [form]
    return [{key: part for key, part in form.items() if key != "migrates"}, *form["migrates"]]


class _Types:
    """Two schemas, each with the definitions of its references."""

    def __init__(self, new: object, old: object, *, needs_all: bool) -> None:
        self.whole = (new, old)
        self._needs_all = needs_all
        self._new = _definitions(new)
        self._old = _definitions(old)
        self._known: dict[tuple[str | int, str | int], list[UnreadPart]] = {}
        self.alike = _bare(new) == _bare(old)

    def unread(self) -> list[UnreadPart]:
        """Return the parts of what the old schema describes that the new one does not accept."""
        return self._unread(*self.whole)

    def differ(self, path: str, kind: UnreadKind, new: object, old: object) -> UnreadPart:
        """Return a difference of two schemas."""
        return UnreadPart(path, kind, _describe(new, self._new), _describe(old, self._old))

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

    def _unread_of_any(self, new: Schema, written: object) -> list[UnreadPart]:
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

    def _fields(self, new: Schema, old: Schema) -> Iterator[UnreadPart]:
        written, known = old.get("properties", {}), new.get("properties", {})
        required = {*(known if self._needs_all else new.get("required", ()))}
        required -= {*old.get("required", ())}
        for name in (name for name in known if name in required):
            # A dict without declared fields may have any; a type with fields writes these alone.
            may_have = name in written or "properties" not in old
            there = _describe(written[name], self._old) if name in written else ""
            kind = UnreadKind.OPTIONAL if may_have else UnreadKind.MISSING
            yield UnreadPart(name, kind, _describe(known[name], self._new), there)
        for name in (name for name in written if name in known):
            yield from _inside(name, self._unread(known[name], written[name]))
        yield from self._other_fields(new, old)

    def _other_fields(self, new: Schema, old: Schema) -> Iterator[UnreadPart]:
        """Yield what the reader can't read of the fields that it does not declare."""
        word = "additionalProperties"
        # Without the keyword, the reader accepts anything there.
        accepted = new.get(word, True)
        if accepted is True:
            return
        written, known = old.get("properties", {}), new.get("properties", {})
        for name in (name for name in written if name not in known):
            if accepted is False:
                shown = _describe(written[name], self._old)
                yield UnreadPart(name, UnreadKind.UNKNOWN_FIELD, "", shown)
            else:
                yield from _inside(name, self._unread(accepted, written[name]))
        # A type with declared fields writes these alone; any other object may have more.
        there = old.get(word, "properties" not in old)
        if there is False:
            return
        if accepted is False:
            yield UnreadPart("", UnreadKind.UNKNOWN_FIELD, "", "fields of any name")
        else:
            yield from _inside("{}", self._unread(accepted, ANYTHING if there is True else there))

    def _items(self, new: Schema, old: Schema) -> Iterator[UnreadPart]:
        here, there = new.get("prefixItems", ()), old.get("prefixItems", ())
        if len(here) != len(there):
            yield self.differ("", UnreadKind.TYPE, new, old)
            return
        for at, pair in enumerate(zip(here, there, strict=True)):
            yield from _inside(f"[{at}]", self._unread(*pair))
        if "items" in new:
            yield from _inside("[]", self._unread(new["items"], old.get("items", ANYTHING)))

    def _choices(self, new: object, old: object) -> Iterator[UnreadPart]:
        accepted = cast("Schema", _resolve(new, self._new)).get("enum")
        written = cast("Schema", _resolve(old, self._old)).get("enum")
        if accepted is None:
            return
        if written is None or not {*map(repr, written)} <= {*map(repr, accepted)}:
            # The names of the types say less than their values.
            yield UnreadPart("", UnreadKind.CHOICE, _shown(accepted), _shown(written))

    def _limits(self, new: Schema, old: Schema) -> Iterator[UnreadPart]:
        here, there = (_limits_of(new), _limits_of(old))
        for word in sorted(here.keys() | there.keys()):
            if here.get(word) != there.get(word):
                shown = [f"{word} {e[word]}" if word in e else f"no {word}" for e in (here, there)]
                yield UnreadPart("", UnreadKind.LIMIT, *shown)


def _inside(name: str, parts: list[UnreadPart]) -> Iterator[UnreadPart]:
    for part in parts:
        dot = "." if part.path and part.path[0] not in "[{" else ""
        yield replace(part, path=f"{name}{dot}{part.path}")


def _definitions(schema: object) -> Schema:
    found: Schema = schema.get("$defs", {}) if isinstance(schema, Mapping) else {}
    return found


def _reference(schema: object) -> str:
    return str(schema.get("$ref", "")) if isinstance(schema, Mapping) else ""


def _resolve(schema: object, definitions: Schema) -> object:
    reference = _reference(schema)
    return definitions[reference.rpartition("/")[2]] if reference else schema


def _bare(schema: object) -> object:
    """Return the schema without keys for people; type names stay, as references use them."""
    if isinstance(schema, Mapping):
        words = WORDS - {"$defs"}
        return {key: _bare(value) for key, value in schema.items() if key not in words}
    return [_bare(item) for item in schema] if isinstance(schema, list) else schema


def _limits_of(schema: Schema) -> Schema:
    return {key: schema[key] for key in schema.keys() - STRUCTURE - WORDS}


def _is_widened(new: Schema, old: Schema) -> bool:
    return new.get("type") == "number" and old.get("type") == "integer"


def _kind(schema: object) -> object:
    return schema.get("type") if isinstance(schema, Mapping) else schema


def _name(schema: object, definitions: Schema) -> str:
    resolved = _resolve(schema, definitions)
    return str(resolved.get("title", "")) if isinstance(resolved, Mapping) else ""


def _shown(choices: JsonValue) -> str:
    if choices is None:
        return "any value"
    shown = ", ".join(map(str, choices[:SHOWN_CHOICES]))
    return f"one of {shown}{', ...' if len(choices) > SHOWN_CHOICES else ''}"


_NOUNS = {"object": "an object", "integer": "an integer", "string": "text", "array": "a list"}
_NOUNS |= {"number": "a number", "boolean": "a boolean"}


def _describe(schema: object, definitions: Schema) -> str:
    """Return what a schema describes, as text."""
    match schema:
        case str():
            return schema
        case {"$ref": str(reference)}:
            return _name(schema, definitions) or reference.rpartition("/")[2]
        case {"anyOf": [*members]}:
            return " or ".join(_describe(each, definitions) for each in members)
        case {"enum": choices}:
            return _shown(choices)
        case {"type": kind}:
            return _describe_type(str(kind), cast("Schema", schema), definitions)
    return "any value"


def _describe_type(kind: str, schema: Schema, definitions: Schema) -> str:
    noun = _NOUNS.get(kind, kind)
    parts = schema.get("items" if kind == "array" else "additionalProperties")
    if isinstance(parts, Mapping):
        return f"{noun} of {_describe(parts, definitions)}"
    if kind == "object" and schema.get("title"):
        return str(schema["title"])
    form = schema.get("format") or schema.get("contentEncoding")
    return f"{noun} ({form})" if form else noun
