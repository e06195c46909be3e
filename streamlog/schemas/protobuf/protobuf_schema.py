"""ProtobufSchema: a Protobuf file with the files that it imports, parsed and linked.

A schema is `.proto` text, or a FileDescriptorProto in base64, as Confluent's clients send it.

Rule: an import is a reference by its path, or a file that everybody has. Not done here: encoding
and decoding of values; `files` has all that they need.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from streamlog.errors import InvalidSchema
from streamlog.schemas.json_text import check_size, shown
from streamlog.schemas.protobuf.linked_types import (
    LinkedFile,
    LinkedMessage,
    messages_of,
    read_types,
)
from streamlog.schemas.protobuf.proto_imports import CONFLUENT_FILES
from streamlog.schemas.protobuf.proto_library import (
    Descriptor,
    link_files,
    read_file,
    well_known_file,
)
from streamlog.schemas.protobuf.proto_parser import parse_proto
from streamlog.schemas.protobuf.proto_text import write_proto
from streamlog.schemas.schema import Schema, SchemaLimits, SchemaReference, SchemaType

DEFAULT_NAME: Final = "default.proto"
"""The path of a schema whose text has none of its own."""
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")


class ProtobufSchema(msgspec.Struct, frozen=True, eq=False):
    """A parsed Protobuf schema."""

    references: tuple[SchemaReference, ...]
    file: LinkedFile
    messages: Mapping[str, LinkedMessage]
    """All messages, those of imports among them, by full name with a dot before it."""
    files: tuple[bytes, ...]
    """All files as serialized FileDescriptorProtos, each after those that it imports; the last one
    is the schema's own."""
    canonical: str
    normalized: str
    """With full names of types; imports, options and fields are sorted."""
    type: Final[SchemaType] = SchemaType.PROTOBUF

    @property
    def record_name(self) -> str | None:
        """The full name of the first message; None if there is none."""
        first = next(iter(self.file.messages), None)
        if first is None:
            return None
        return f"{self.file.package}.{first}" if self.file.package else first

    @property
    def serialized(self) -> str:
        """The FileDescriptorProto in base64, as `format=serialized` asks for it."""
        return base64.b64encode(self.files[len(self.files) - 1]).decode()


def parse_protobuf(
    schema: Schema, dependencies: Mapping[str, Schema], limits: SchemaLimits
) -> ProtobufSchema:
    """Parse a Protobuf schema.

    Args:
        schema: the schema.
        dependencies: all schemas that it refers to by import path.
        limits: the limits on its size and depth.

    Raises:
        InvalidSchema: it, or one that it refers to, is no Protobuf schema, or exceeds a limit.
        ConfigError: protobuf is not installed.
    """
    own = _read(schema.text, DEFAULT_NAME, limits)
    if own.name in dependencies:
        # The name of a descriptor is its author's; a reference has the right to its path.
        own.name = f"_{own.name}"
    # A reference is known by the path that imports it, whatever its descriptor says.
    read = {name: _read(each.text, name, limits) for name, each in dependencies.items()}
    for name, each in read.items():
        each.name = name
    files = _in_order(own, read, limits)
    linked = link_files(files)
    if _is_descriptor(schema.text):
        # What is registered is its text, so the text decides, not what it has no words for.
        files[len(files) - 1] = own = parse_proto(write_proto(own), own.name, limits)
        linked = link_files(files)
    # Of all files: a field may have a type of an import's import.
    types = {each.name: read_types(linked[each.name]) for each in files}
    return ProtobufSchema(
        schema.references,
        types[own.name],
        {name: found for each in types.values() for name, found in messages_of(each)},
        tuple(linked[each.name].SerializeToString(deterministic=True) for each in files),
        write_proto(own),
        write_proto(_normalized(linked[own.name])),
    )


def _is_descriptor(text: str) -> bool:
    # No `.proto` text is base64: a statement has a semicolon or a brace.
    return bool(text.strip()) and _BASE64.fullmatch(text) is not None


def _read(text: str, name: str, limits: SchemaLimits) -> Descriptor:
    check_size(text, limits)
    if not _is_descriptor(text):
        return parse_proto(text, name, limits)
    try:
        file = read_file(base64.b64decode("".join(text.split()), validate=True))
    except binascii.Error as error:
        raise InvalidSchema(
            f"The schema is neither Protobuf nor a FileDescriptorProto in base64: {shown(text)}"
        ) from error
    if not file.name:
        file.name = name
    # Comments and columns are not part of the schema.
    file.ClearField("source_code_info")
    return file


def _in_order(
    own: Descriptor, read: Mapping[str, Descriptor], limits: SchemaLimits
) -> list[Descriptor]:
    """Return a file and all that it imports, each after its own imports.

    Raises:
        InvalidSchema: an import is unknown or part of a circle.
    """
    ordered: dict[str, Descriptor] = {}
    # By hand: a chain of imports may be longer than calls can be nested.
    open_names = [own.name]
    waiting: list[tuple[Descriptor, Iterator[str]]] = [(own, iter(own.dependency))]
    while waiting:
        current, imports = waiting[len(waiting) - 1]
        path = next(imports, None)
        if path is None:
            waiting.pop()
            ordered[open_names.pop()] = current
        elif path in open_names:
            circle = " -> ".join([*open_names[open_names.index(path) :], path])
            raise InvalidSchema(f"The imports form a circle: {circle}")
        elif path not in ordered:
            # References first: a registry may hold another release of a well-known file.
            found = read.get(path) or _known(path, limits)
            if found is None:
                raise InvalidSchema(
                    f'The schema imports "{shown(path)}", which is not one of its references'
                )
            open_names.append(path)
            waiting.append((found, iter(found.dependency)))
    return list(ordered.values())


def _known(path: str, limits: SchemaLimits) -> Descriptor | None:
    if path in CONFLUENT_FILES:
        return parse_proto(CONFLUENT_FILES[path], path, limits)
    return well_known_file(path)


def _normalized(file: Descriptor) -> Descriptor:
    """Sort what has no order of its own in a file; full names come with linking."""
    paths = list(file.dependency)
    public = {paths[index] for index in file.public_dependency}
    weak = {paths[index] for index in file.weak_dependency}
    paths.sort()
    file.ClearField("dependency")
    file.ClearField("public_dependency")
    file.ClearField("weak_dependency")
    file.dependency.extend(paths)
    file.public_dependency.extend(n for n, path in enumerate(paths) if path in public)
    file.weak_dependency.extend(n for n, path in enumerate(paths) if path in weak)
    _sort_options(file.options)
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        waiting += message.nested_type
        _sort_options(message.options)
        # Readers go by numbers; the order of messages is kept, since indexes of records count it.
        message.field.sort(key=lambda each: each.number)
        for each in message.field:
            _sort_options(each.options)
    return file


def _sort_options(options: Descriptor) -> None:
    options.uninterpreted_option.sort(key=lambda option: [part.name_part for part in option.name])
