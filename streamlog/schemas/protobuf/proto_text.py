"""Writes descriptors as `.proto` text, in the form of Confluent's registry.

Rule: equal descriptors have equal texts. Inside a message, options, fields, oneofs, ranges and
types follow one another in this order; within each kind, their order is that of the descriptor.
Comments are not written: a descriptor has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from streamlog.schemas.json_text import dump_json
from streamlog.schemas.protobuf.proto_library import Descriptor
from streamlog.schemas.protobuf.proto_options import camel_case
from streamlog.schemas.protobuf.proto_parser import GROUP, LABELS, MAX_NUMBER, SCALARS

_WORDS: Final = {number: word for word, number in SCALARS.items()}
_LABEL_WORDS: Final = {number: word for word, number in LABELS.items()}
_EDITION_NAMES: Final = {1000: "2023", 1001: "2024"}
_MAX_VALUE: Final = (1 << 31) - 1
_INDENT: Final = "  "
_QUOTED: Final = (9, 12)
"""Kinds of fields whose defaults are texts."""


def write_proto(file: Descriptor) -> str:
    """Return the text of a file."""
    writer = _Writer(file.syntax)
    sections = [
        [writer.syntax_line(file), *([f"package {file.package};"] if file.package else [])],
        [*_imports(file)],
        [f"option {each};" for each in _options(file.options)],
        *([*writer.message(each)] for each in file.message_type),
        *([*writer.enum(each)] for each in file.enum_type),
        [*writer.extensions(file)],
        *([*_service(each)] for each in file.service),
    ]
    return "\n".join("".join(f"{line}\n" for line in lines) for lines in sections if lines)


def _imports(file: Descriptor) -> Iterator[str]:
    for index, path in enumerate(file.dependency):
        word = "public " if index in file.public_dependency else ""
        word = "weak " if index in file.weak_dependency else word
        yield f"import {word}{dump_json(path)};"


class _Writer:
    """Writes parts of one file, whose syntax decides on labels."""

    def __init__(self, syntax: str) -> None:
        self.has_labels = syntax in {"", "proto2"}

    def syntax_line(self, file: Descriptor) -> str:
        if file.syntax == "editions":
            return f'edition = "{_EDITION_NAMES.get(file.edition, file.edition)}";'
        return f'syntax = "{file.syntax or "proto2"}";'

    def message(self, message: Descriptor) -> Iterator[str]:
        yield f"message {message.name} {{"
        yield from _indented(self._members(message))
        yield "}"

    def _members(self, message: Descriptor) -> Iterator[str]:
        # Written with the field that they belong to.
        entries = {each.name: each for each in message.nested_type if each.options.map_entry}
        groups = {
            each.type_name.rpartition(".")[2]
            for each in (*message.field, *message.extension)
            if each.type == GROUP
        }
        types = {each.name: each for each in message.nested_type}
        sections = [
            [*_reserved(message, MAX_NUMBER, 1)],
            [f"option {each};" for each in _options(message.options) if each != "map_entry = true"],
            [
                line
                for each in message.field
                if not _is_in_oneof(each)
                for line in self._field(each, entries, types)
            ],
            *(
                [*self._oneof(message, index, types)]
                for index, each in enumerate(message.oneof_decl)
                if any(_is_in_oneof(x) and x.oneof_index == index for x in message.field)
            ),
            [*_extension_ranges(message)],
            [*self.extensions(message)],
            *(
                [*self.message(each)]
                for each in message.nested_type
                if each.name not in entries and each.name not in groups
            ),
            *([*self.enum(each)] for each in message.enum_type),
        ]
        for number, lines in enumerate(each for each in sections if each):
            if number:
                yield ""
            yield from lines

    def _field(
        self, found: Descriptor, entries: dict[str, Descriptor], types: dict[str, Descriptor]
    ) -> Iterator[str]:
        entry = entries.get(found.type_name.rpartition(".")[2])
        if entry is not None and found.label == LABELS["repeated"]:
            key, value = entry.field
            yield f"map<{_type(key)}, {_type(value)}> {_tail(found)};"
            return
        # proto3 has no word for a single field; editions have none either.
        label = f"{_LABEL_WORDS[found.label]} "
        if _is_in_oneof(found) or (
            not self.has_labels and found.label == LABELS["optional"] and not found.proto3_optional
        ):
            label = ""
        if found.type == GROUP:
            name = found.type_name.rpartition(".")[2]
            yield f"{label}group {name} = {found.number}{_field_options(found)} {{"
            yield from _indented(self._members(types[name]))
            yield "}"
            return
        yield f"{label}{_type(found)} {_tail(found)};"

    def _oneof(
        self, message: Descriptor, index: int, types: dict[str, Descriptor]
    ) -> Iterator[str]:
        oneof = message.oneof_decl[index]
        yield f"oneof {oneof.name} {{"
        yield from _indented(f"option {each};" for each in _options(oneof.options))
        for each in message.field:
            if _is_in_oneof(each) and each.oneof_index == index:
                yield from _indented(self._field(each, {}, types))
        yield "}"

    def enum(self, enum: Descriptor) -> Iterator[str]:
        yield f"enum {enum.name} {{"
        yield from _indented(_reserved(enum, _MAX_VALUE, 0))
        yield from _indented(f"option {each};" for each in _options(enum.options))
        for value in enum.value:
            options = ", ".join(_options(value.options))
            yield f"{_INDENT}{value.name} = {value.number}{f' [{options}]' if options else ''};"
        yield "}"

    def extensions(self, owner: Descriptor) -> Iterator[str]:
        """Write the extensions that a file or a message declares, one by one."""
        nested = owner.nested_type if hasattr(owner, "nested_type") else owner.message_type
        types = {each.name: each for each in nested}
        for each in owner.extension:
            yield f"extend {each.extendee} {{"
            yield from _indented(self._field(each, {}, types))
            yield "}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"{_INDENT}{line}" if line else ""


def _is_in_oneof(found: Descriptor) -> bool:
    """Whether a field is in a oneof that stands in the text."""
    return found.HasField("oneof_index") and not found.proto3_optional


def _type(found: Descriptor) -> str:
    return str(found.type_name) or _WORDS[found.type]


def _tail(found: Descriptor) -> str:
    return f"{found.name} = {found.number}{_field_options(found)}"


def _field_options(found: Descriptor) -> str:
    options = []
    if found.HasField("default_value"):
        is_text = found.type in _QUOTED
        options.append(f"default = {_quoted(found) if is_text else found.default_value}")
    # protoc fills in what follows from the name; only another one is written.
    if found.json_name not in {"", camel_case(found.name)} and found.type != GROUP:
        options.append(f"json_name = {dump_json(found.json_name)}")
    options += _options(found.options)
    return f" [{', '.join(options)}]" if options else ""


def _quoted(found: Descriptor) -> str:
    # Bytes are escaped in descriptors already.
    if found.type == SCALARS["bytes"]:
        return f'"{found.default_value}"'
    return _text(found.default_value.encode())


def _text(data: bytes) -> str:
    text = data.decode(errors="surrogateescape")
    return '"' + "".join(_character(each) for each in text) + '"'


def _character(each: str) -> str:
    code = ord(each)
    if each in '\\"':
        return f"\\{each}"
    # Whatever an editor shows is written as it is.
    if each.isprintable():
        return each
    # A byte that is not UTF-8 has been decoded to a surrogate.
    data = each.encode(errors="surrogateescape")
    return "".join(f"\\{byte:03o}" for byte in data) if code else "\\000"


def _options(options: Descriptor) -> Iterator[str]:
    for known, value in options.ListFields():
        # An extension is only known where its module has been imported: the text must not depend on
        # that.
        if known.is_extension or known.type == _MESSAGE:
            continue
        for each in value if known.is_repeated else (value,):
            yield f"{known.name} = {_option_value(known, each)}"
    for each in options.uninterpreted_option:
        name = ".".join(
            f"({part.name_part})" if part.is_extension else part.name_part for part in each.name
        )
        yield f"{name} = {_uninterpreted(each)}"


def _option_value(known: Descriptor, value: bool | int | str) -> str:  # noqa: FBT001 - any of these
    if known.enum_type is not None:
        named = known.enum_type.values_by_number.get(value)
        return str(value) if named is None else str(named.name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value.encode()) if isinstance(value, str) else str(value)


_MESSAGE: Final = 11


def _uninterpreted(option: Descriptor) -> str:
    for attribute in ("identifier_value", "positive_int_value", "negative_int_value"):
        if option.HasField(attribute):
            return str(getattr(option, attribute))
    if option.HasField("aggregate_value"):
        return f"{{ {option.aggregate_value} }}"
    if option.HasField("double_value"):
        return repr(option.double_value)
    return _text(option.string_value)


def _reserved(owner: Descriptor, maximum: int, past: int) -> Iterator[str]:
    """Write reserved numbers, whose ends are `past` the last one, and names."""
    if owner.reserved_range:
        ranges = (_range(each.start, each.end - past, maximum) for each in owner.reserved_range)
        yield f"reserved {', '.join(ranges)};"
    if owner.reserved_name:
        yield f"reserved {', '.join(dump_json(each) for each in owner.reserved_name)};"


def _range(first: int, last: int, maximum: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last >= maximum else last}"


def _extension_ranges(message: Descriptor) -> Iterator[str]:
    for each in message.extension_range:
        options = ", ".join(_options(each.options))
        tail = f" [{options}]" if options else ""
        yield f"extensions {_range(each.start, each.end - 1, MAX_NUMBER)}{tail};"


def _service(service: Descriptor) -> Iterator[str]:
    yield f"service {service.name} {{"
    yield from _indented(f"option {each};" for each in _options(service.options))
    for method in service.method:
        request = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
        answer = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
        head = f"{_INDENT}rpc {method.name} ({request}) returns ({answer})"
        options = [f"option {each};" for each in _options(method.options)]
        yield f"{head} {{" if options else f"{head};"
        if options:
            yield from _indented(_indented(options))
            yield f"{_INDENT}}}"
    yield "}"
