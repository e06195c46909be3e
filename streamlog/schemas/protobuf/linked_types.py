"""What a linked Protobuf file says, as far as readers depend on it: messages, fields, enums.

Rule: read from descriptors that the library has linked, so every name is full and every kind known.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from streamlog.schemas.protobuf.proto_library import Descriptor
from streamlog.schemas.protobuf.proto_parser import ENUM, LABELS, SCALARS

_WORDS = {number: word for word, number in SCALARS.items()}


class LinkedField(msgspec.Struct, eq=False):
    """A field, or the key or value of a map."""

    name: str
    number: int
    scalar: str = ""
    """int32, string and so on; "enum" for an enum; "" for a message."""
    message: str = ""
    """The full name of its message, with a dot before it."""
    is_repeated: bool = False
    is_required: bool = False
    oneof: str = ""
    """The name of its oneof."""
    entry: tuple[LinkedField, LinkedField] | None = None
    """The key and the value of a map."""


class LinkedEnum(msgspec.Struct, eq=False):
    """An enum."""

    name: str
    values: dict[int, str] = msgspec.field(default_factory=dict)
    """The first name of each number."""


class LinkedMessage(msgspec.Struct, eq=False):
    """A message."""

    name: str
    local_name: str
    """The names of the messages around it and its own, with dots, without the package."""
    file: str
    """The path of the file that defines it."""
    fields: dict[int, LinkedField] = msgspec.field(default_factory=dict)
    """By number."""
    oneofs: list[str] = msgspec.field(default_factory=list)
    messages: dict[str, LinkedMessage] = msgspec.field(default_factory=dict)
    """Inside it, by name."""
    enums: dict[str, LinkedEnum] = msgspec.field(default_factory=dict)


class LinkedFile(msgspec.Struct, eq=False):
    """A file: a message without fields of its own, around all others."""

    path: str
    package: str
    messages: dict[str, LinkedMessage]
    enums: dict[str, LinkedEnum]


def read_types(file: Descriptor) -> LinkedFile:
    """Return what a linked file says."""
    return LinkedFile(
        file.name,
        file.package,
        {each.name: _message(each, "", file.name) for each in file.message_type},
        {each.name: _enum(each) for each in file.enum_type},
    )


def _message(found: Descriptor, around: str, file: str) -> LinkedMessage:
    local_name = f"{around}.{found.name}" if around else found.name
    # The message of a map's entries is no type of its own.
    entries = {each.name: each for each in found.nested_type if each.options.map_entry}
    message = LinkedMessage(found.name, local_name, file)
    for each in found.field:
        entry = entries.get(each.type_name.rpartition(".")[2])
        oneof = ""
        if each.HasField("oneof_index") and not each.proto3_optional:
            oneof = found.oneof_decl[each.oneof_index].name
        message.fields[each.number] = _field(each, oneof, entry)
    # A oneof that tracks the presence of one field is none in the text.
    names = (each.oneof for each in message.fields.values() if each.oneof)
    message.oneofs = list(dict.fromkeys(names))
    message.messages = {
        each.name: _message(each, local_name, file)
        for each in found.nested_type
        if each.name not in entries
    }
    message.enums = {each.name: _enum(each) for each in found.enum_type}
    return message


def _field(found: Descriptor, oneof: str = "", entry: Descriptor | None = None) -> LinkedField:
    scalar = "enum" if found.type == ENUM else _WORDS.get(found.type, "")
    return LinkedField(
        found.name,
        found.number,
        scalar,
        "" if scalar else found.type_name,
        found.label == LABELS["repeated"],
        found.label == LABELS["required"],
        oneof,
        None if entry is None else (_field(entry.field[0]), _field(entry.field[1])),
    )


def _enum(found: Descriptor) -> LinkedEnum:
    enum = LinkedEnum(found.name)
    for value in found.value:
        # With allow_alias, a number has several names.
        enum.values.setdefault(value.number, value.name)
    return enum


def messages_of(file: LinkedFile) -> Iterator[tuple[str, LinkedMessage]]:
    """Yield all messages of a file with their full names, a dot before them."""
    package = f".{file.package}" if file.package else ""
    waiting = list(file.messages.values())
    while waiting:
        message = waiting.pop()
        yield f"{package}.{message.local_name}", message
        waiting += message.messages.values()
