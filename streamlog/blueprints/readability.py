"""Readability: whether a serde can read what another has written, and the parts that it can't read.

Two forms of serdes are compared (`serdes.form_of`): types as JSON or MessagePack
(`json_readability`), Avro and Protobuf (`avro_readability`, `protobuf_readability`), windowed
keys, states of columns. Each part that
can't be read has a path in the value, such as `customer.street`, `lines[].price` or `rates{}`.

Rule: only forms are compared; no function is called, and nothing is read. Not done here: what
follows from it for state (`topology_difference`) and for other apps (`contracts`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from streamlog.blueprints.avro_readability import unread_avro
from streamlog.blueprints.json_readability import (
    JsonTypes,
    bundle_json,
    definitions_of,
    describe_json,
    open_records,
)
from streamlog.blueprints.protobuf_readability import unread_protobuf
from streamlog.blueprints.unread_part import UnreadKind, UnreadPart
from streamlog.errors import InvalidSchema
from streamlog.schemas import (
    AvroSchema,
    ParsedSchema,
    ProtobufSchema,
    Schema,
    SchemaReference,
    SchemaType,
    parse_schema,
)
from streamlog.serdes.erased_types import JsonValue


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
        case {"columns": columns, "row": row}, {"columns": old_columns, "row": old_row} if (
            columns == old_columns
        ):
            return unread_parts(row, old_row, needs_all=needs_all)
        case {"avro": heads}, {"avro": [head, *_]} if not is_key and head in heads:
            # A schema, and the older ones that it knows; it can read nothing else.
            return []
        case ({"json": here, **extra}, {"json": there, **others}) | (
            {"msgpack": here, **extra},
            {"msgpack": there, **others},
        ) if not extra and not others:
            return _unread_types(JsonTypes(here, there, needs_all=needs_all), is_key=is_key)
    return _unread_registered(new, old, is_key=is_key, needs_all=needs_all)


def _unread_registered(
    new: object, old: object, *, is_key: bool, needs_all: bool
) -> list[UnreadPart]:
    """As `_unread`, for schemas that a registry keeps; other forms have nothing in common."""
    match new, old:
        case (
            {"registry": {"type": str(kind), "text": str()} as here},
            {"registry": {"type": str(other), "text": str()} as there},
        ) if kind == other:
            found = _unread_schemas(SchemaType(kind), here, there, needs_all=needs_all)
            # The id of the schema is a part of the bytes.
            return found or [_other_coding(new, old)] if is_key else found
    return [_other_coding(new, old)]


def _unread_schemas(
    kind: SchemaType, new: JsonValue, old: JsonValue, *, needs_all: bool
) -> list[UnreadPart]:
    if kind is SchemaType.JSON:
        # Readers skip fields that they do not know, although registered records are closed.
        here, there = open_records(_bundle(new)), _bundle(old)
        return JsonTypes(here, there, needs_all=needs_all).unread()
    try:
        schemas = [_parse(kind, form) for form in (new, old)]
    except InvalidSchema:
        # Such as one with a reference that its program does not give.
        schemas = []
    # Schemas of two formats never get here: their bytes differ from the first one on.
    match schemas:
        case [AvroSchema() as reader, AvroSchema() as writer]:
            return unread_avro(reader.root, writer.root, needs_all=needs_all)
        case [ProtobufSchema() as reader, ProtobufSchema() as writer]:
            return unread_protobuf(reader, writer, needs_all=needs_all)
    shown = f"a registered schema ({kind.capitalize()})"
    return [UnreadPart("", UnreadKind.INCOMPARABLE, shown, shown)]


def _parse(kind: SchemaType, form: JsonValue) -> ParsedSchema:
    """Return the schema of a form, with those that it refers to."""
    # Each text comes after those that it refers to. Subjects matter to a registry alone.
    referenced = {name: Schema(kind, text) for name, text in form.get("references", ())}
    references = tuple(SchemaReference(name, "", 0) for name in referenced)
    return parse_schema(Schema(kind, form["text"], references), referenced, is_new=False)


def _bundle(form: JsonValue) -> JsonValue:
    """Return a JSON Schema with those that it refers to in its definitions."""
    documents = {name: msgspec.json.decode(text) for name, text in form.get("references", ())}
    return bundle_json(msgspec.json.decode(form["text"]), documents)


def _window(form: object) -> object:
    return form.get("window") if isinstance(form, Mapping) else None


def _unread_types(types: JsonTypes, *, is_key: bool) -> list[UnreadPart]:
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
    registered = form.get("registry")
    if isinstance(registered, Mapping):
        return f"a registered schema ({str(registered.get('type')).capitalize()})"
    for coding, name in _CODINGS.items():
        if coding in form:
            schema = form[coding]
            is_schema = coding != "avro" and isinstance(schema, Mapping | str)
            return (
                f"{name} ({describe_json(schema, definitions_of(schema))})" if is_schema else name
            )
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
