"""The parts of Protobuf data that a reader's schema can't read.

Rule: how two schemas differ is decided by `schemas/compatibility`. Of these differences, those
count here that change what a reader gets: it skips fields and messages that it does not know, so
one that only the writer has is no reason, unlike for a registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamlog.blueprints.unread_part import UnreadKind, UnreadPart
from streamlog.schemas.compatibility.protobuf_compatibility import protobuf_differences
from streamlog.schemas.protobuf.linked_types import LinkedField, LinkedMessage
from streamlog.schemas.protobuf.protobuf_schema import ProtobufSchema

NAMED_TYPE = "FIELD_NAMED_TYPE_CHANGED"
"""Another message, or the message of an import with differences of its own."""
KINDS: Mapping[str, UnreadKind] = {
    "REQUIRED_FIELD_ADDED": UnreadKind.MISSING,
    "FIELD_KIND_CHANGED": UnreadKind.TYPE,
    "FIELD_SCALAR_KIND_CHANGED": UnreadKind.TYPE,
    NAMED_TYPE: UnreadKind.TYPE,
    "FIELD_NUMERIC_LABEL_CHANGED": UnreadKind.TYPE,
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": UnreadKind.TYPE,
    "FIELD_MOVED_TO_EXISTING_ONEOF": UnreadKind.TYPE,
}
"""The differences that a reader notices."""
ADDED = "FIELD_ADDED"
"""A field that only the reader has: it reads the default of its type."""


def unread_protobuf(
    reader: ProtobufSchema, writer: ProtobufSchema, *, needs_all: bool = False
) -> list[UnreadPart]:
    """Return the parts of a writer's data that a reader can't read.

    Args:
        reader: the reader's schema.
        writer: the writer's schema.
        needs_all: whether all fields of the reader count as required.

    Raises:
        InvalidSchema: the schemas are nested too deep to be compared.
    """
    return list(_unread(reader, writer, needs_all=needs_all))


def _unread(
    reader: ProtobufSchema, writer: ProtobufSchema, *, needs_all: bool
) -> Iterator[UnreadPart]:
    root = (reader.record_name or "").rpartition(".")[2]
    for each in protobuf_differences(reader, writer):
        names = each.path.removeprefix("#/").split("/")
        here, there = (_find(_roots(schema), names) for schema in (reader, writer))
        # A field of the first message is known by its name alone.
        path = ".".join(part for part in here[0] if part != root)
        texts = (_describe(here[1]), _describe(there[1]))
        # 1. The writer has a message `Note` that the reader lacks: its registry would refuse the
        #    reader as a next version, but records without what `Note` says are read as before.
        # 2. The writer has `id` as text where the reader has a number: the bytes are refused.
        # 3. Both have `Address` of an import, whose `zip` differs: `zip` is the part, not the field
        #    that has the address.
        if each.kind == NAMED_TYPE and texts[0] == texts[1]:
            continue
        if each.kind in KINDS:
            yield UnreadPart(path, KINDS[each.kind], *texts)
        elif needs_all and each.kind == ADDED and there[1] is None:
            yield UnreadPart(path, UnreadKind.MISSING, texts[0], "")


def _roots(schema: ProtobufSchema) -> dict[str, LinkedMessage]:
    """Return the outermost messages by name, those of imports among them."""
    imported = {
        each.name: each for each in schema.messages.values() if each.name == each.local_name
    }
    return imported | schema.file.messages


def _find(
    messages: Mapping[str, LinkedMessage], names: list[str]
) -> tuple[list[str], LinkedField | None]:
    """Return the names on a path of a schema, with those of fields, and the field at its end."""
    found: list[str] = []
    message: LinkedMessage | None = None
    # A path has names of messages, then perhaps of a oneof, then the number of a field.
    for name in names:
        if name.isdecimal() and message is not None:
            field = message.fields.get(int(name))
            return [*found, name if field is None else field.name], field
        inner = messages.get(name)
        # The name of a oneof is no message.
        if inner is not None:
            message, messages = inner, inner.messages
        found.append(name)
    return found, None


def _describe(field: LinkedField | None) -> str:
    if field is None:
        return "nothing"
    if field.entry is not None:
        return f"a map of {_describe(field.entry[1])}"
    name = field.scalar or field.message.rpartition(".")[2]
    return f"repeated {name}" if field.is_repeated else name
