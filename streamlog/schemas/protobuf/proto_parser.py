"""Reads `.proto` text into a FileDescriptorProto, as protoc does before it links files.

Rule: what the grammar of proto2, proto3 and editions allows is read; names are not looked up, and
numbers not compared: the library does that (`proto_library`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from streamlog.errors import InvalidSchema
from streamlog.schemas.json_text import shown
from streamlog.schemas.protobuf.proto_library import Descriptor, load_library, new_file
from streamlog.schemas.protobuf.proto_options import add_option, camel_case, take_option
from streamlog.schemas.protobuf.proto_tokens import ProtoTokens
from streamlog.schemas.schema import DEFAULT_LIMITS, SchemaLimits

LABELS: Final = {"optional": 1, "required": 2, "repeated": 3}
SCALARS: Final = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
"""The numbers of FieldDescriptorProto.Type by the words of `.proto` text."""
GROUP: Final = 10
MESSAGE: Final = 11
ENUM: Final = 14
MAX_NUMBER: Final = (1 << 29) - 1
_MAX_VALUE: Final = (1 << 31) - 1
_PRINTABLE: Final = range(0x20, 0x7F)
_EDITIONS: Final = {"2023": 1000, "2024": 1001}


@dataclass(slots=True)
class ProtoParser:
    """Reads one file."""

    tokens: ProtoTokens
    file: Descriptor
    limits: SchemaLimits = DEFAULT_LIMITS
    is_proto3: bool = False
    has_labels: bool = True
    """Whether fields have labels: in an edition, only `repeated` is one."""
    _seen: set[str] = field(default_factory=set)

    def parse(self) -> Descriptor:
        """Return the descriptor of the file.

        Raises:
            InvalidSchema: the text does not follow the grammar.
        """
        self._syntax()
        while self.tokens.kind:
            self._top_level()
        return self.file

    def _syntax(self) -> None:
        tokens = self.tokens
        if tokens.take("edition"):
            tokens.expect("=")
            edition = tokens.string()
            if edition not in _EDITIONS:
                raise tokens.error(f"the edition {shown(edition)} is not known")
            self.file.syntax, self.file.edition = "editions", _EDITIONS[edition]
            self.has_labels = False
        elif tokens.take("syntax"):
            tokens.expect("=")
            syntax = tokens.string()
            if syntax not in {"proto2", "proto3"}:
                raise tokens.error(f"the syntax {shown(syntax)} is not proto2 or proto3")
            self.is_proto3 = syntax == "proto3"
            if self.is_proto3:
                self.file.syntax = syntax
        else:
            return
        tokens.expect(";")

    def _top_level(self) -> None:
        tokens = self.tokens
        word = tokens.word
        match word:
            case "package":
                self._once(word)
                tokens.advance()
                self.file.package = tokens.full_name()
                tokens.expect(";")
            case "import":
                self._import()
            case "option":
                take_option(tokens, self.file.options)
            case "message":
                tokens.advance()
                self._message(self.file.message_type.add(), 0)
            case "enum":
                tokens.advance()
                self._enum(self.file.enum_type.add())
            case "extend":
                self._extend(self.file, self.file.message_type, 0)
            case "service":
                self._service(self.file.service.add())
            case ";":
                tokens.advance()
            case _:
                raise tokens.unexpected("message, enum, service, extend, import, option or package")

    def _once(self, word: str) -> None:
        if word in self._seen:
            raise self.tokens.error(f"{word} stands twice")
        self._seen.add(word)

    def _import(self) -> None:
        tokens = self.tokens
        tokens.advance()
        # Public and weak imports are known by their index among all imports.
        index = len(self.file.dependency)
        if tokens.take("public"):
            self.file.public_dependency.append(index)
        elif tokens.take("weak"):
            self.file.weak_dependency.append(index)
        self.file.dependency.append(tokens.string())
        tokens.expect(";")

    def _message(self, message: Descriptor, depth: int) -> None:
        message.name = self.tokens.name()
        self._message_body(message, depth)

    def _message_body(self, message: Descriptor, depth: int) -> None:
        tokens = self.tokens
        # Checked before the brace: what is inside is not looked at.
        if depth >= self.limits.depth:
            raise tokens.error(f"messages are nested deeper than {self.limits.depth}, the limit")
        tokens.expect("{")
        while not tokens.take("}"):
            self._member(message, depth)
        if self.is_proto3:
            _add_synthetic_oneofs(message)

    def _member(self, message: Descriptor, depth: int) -> None:
        tokens = self.tokens
        # These words are names of types as well: a field of a type `message` has another name next.
        match tokens.word:
            case "message":
                tokens.advance()
                self._message(message.nested_type.add(), depth + 1)
            case "enum":
                tokens.advance()
                self._enum(message.enum_type.add())
            case "extend":
                self._extend(message, message.nested_type, depth)
            case "oneof":
                self._oneof(message, depth)
            case "option":
                take_option(tokens, message.options)
            case "extensions":
                self._extensions(message)
            case "reserved":
                self._reserved(message, MAX_NUMBER)
            case ";":
                tokens.advance()
            case _:
                self._field(message.field.add(), message.nested_type, depth)

    def _field(self, found: Descriptor, nested: Descriptor, depth: int) -> None:
        """Read a field; its group or map has a type of its own in `nested`."""
        tokens = self.tokens
        label = tokens.word
        if label in LABELS:
            if not self.has_labels and label != "repeated":
                raise tokens.error(f"an edition has no {label}: it is a feature")
            if self.is_proto3 and label == "required":
                raise tokens.error("proto3 has no required fields")
            tokens.advance()
            # In proto3, `optional` says that presence is tracked, by a oneof of its own.
            found.label = LABELS[label]
            found.proto3_optional = self.is_proto3 and label == "optional"
            if not found.proto3_optional:
                found.ClearField("proto3_optional")
        elif tokens.word == "map":
            tokens.advance()
            self._map(found, nested)
            return
        else:
            if not self.is_proto3 and self.has_labels:
                raise tokens.unexpected("optional, required or repeated")
            found.label = LABELS["optional"]
        if tokens.word == "group" and not self.is_proto3:
            self._group(found, nested, depth)
            return
        self._type(found)
        self._name_and_number(found)
        tokens.expect(";")

    def _type(self, found: Descriptor) -> None:
        name = self.tokens.full_name()
        # As protoc has it, a scalar's name is none of a message.
        if name in SCALARS:
            found.type = SCALARS[name]
        else:
            # Whether it is a message or an enum is known when files are linked.
            found.type_name = name

    def _name_and_number(self, found: Descriptor) -> None:
        tokens = self.tokens
        found.name = tokens.name()
        found.json_name = camel_case(found.name)
        tokens.expect("=")
        found.number = self._number(MAX_NUMBER)
        self._field_options(found)

    def _number(self, maximum: int, minimum: int = 1) -> int:
        start = self.tokens.start
        number = self.tokens.integer()
        if not minimum <= number <= maximum:
            self.tokens.start = start
            raise self.tokens.error(f"{number} is not between {minimum} and {maximum}")
        return number

    def _field_options(self, found: Descriptor) -> None:
        tokens = self.tokens
        if not tokens.take("["):
            return
        while True:
            if tokens.word == "default":
                tokens.advance()
                tokens.expect("=")
                found.default_value = self._default(found)
            elif tokens.word == "json_name":
                tokens.advance()
                tokens.expect("=")
                found.json_name = tokens.string()
            else:
                add_option(tokens, found.options)
            if not tokens.take(","):
                break
        tokens.expect("]")

    def _default(self, found: Descriptor) -> str:
        tokens = self.tokens
        if tokens.kind == "text":
            data = tokens.text()
            # As in descriptors: bytes with escapes, text as it is.
            is_bytes = found.type == SCALARS["bytes"]
            # Text that is no Unicode is refused when files are linked.
            return _escaped(data) if is_bytes else data.decode(errors="replace")
        sign = "-" if tokens.take("-") else ""
        if tokens.kind == "number" and not {".", "e", "E"} & set(tokens.word):
            return f"{sign}{tokens.integer()}"
        if tokens.kind not in {"name", "number"}:
            raise tokens.unexpected("a default")
        return sign + tokens.advance()

    def _map(self, found: Descriptor, nested: Descriptor) -> None:
        tokens = self.tokens
        tokens.expect("<")
        # A map is a repeated message with a key and a value; descriptors know nothing else.
        entry = nested.add()
        key, value = entry.field.add(), entry.field.add()
        for number, name, each in ((1, "key", key), (2, "value", value)):
            each.name = each.json_name = name
            each.number, each.label = number, LABELS["optional"]
            self._type(each)
            tokens.expect("," if name == "key" else ">")
        entry.options.map_entry = True
        self._name_and_number(found)
        entry.name = f"{camel_case(f'_{found.name}')}Entry"
        found.label, found.type_name = LABELS["repeated"], entry.name
        tokens.expect(";")

    def _group(self, found: Descriptor, nested: Descriptor, depth: int) -> None:
        tokens = self.tokens
        tokens.advance()
        group = nested.add()
        group.name = tokens.name()
        if not group.name[0].isupper():
            raise tokens.error(f"the group {group.name} does not begin with a capital letter")
        # A group is a message and a field at once.
        found.name = found.json_name = group.name.lower()
        found.type, found.type_name = GROUP, group.name
        tokens.expect("=")
        found.number = self._number(MAX_NUMBER)
        self._field_options(found)
        self._message_body(group, depth + 1)

    def _oneof(self, message: Descriptor, depth: int) -> None:
        tokens = self.tokens
        tokens.advance()
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=tokens.name())
        tokens.expect("{")
        while not tokens.take("}"):
            if tokens.word == "option":
                take_option(tokens, oneof.options)
            elif not tokens.take(";"):
                # Fields of a oneof are fields of the message, with its index.
                found = message.field.add(label=LABELS["optional"], oneof_index=index)
                if tokens.word in LABELS or tokens.word == "map":
                    raise tokens.error("a oneof has fields without a label, and no maps")
                if tokens.word == "group" and not self.is_proto3:
                    self._group(found, message.nested_type, depth)
                else:
                    self._type(found)
                    self._name_and_number(found)
                    tokens.expect(";")

    def _extend(self, owner: Descriptor, nested: Descriptor, depth: int) -> None:
        tokens = self.tokens
        tokens.advance()
        extendee = tokens.full_name()
        tokens.expect("{")
        while not tokens.take("}"):
            if not tokens.take(";"):
                self._field(owner.extension.add(extendee=extendee), nested, depth)

    def _ranges(self, maximum: int, minimum: int = 1) -> list[tuple[int, int]]:
        ranges = []
        while True:
            first = last = self._number(maximum, minimum)
            if self.tokens.take("to"):
                last = maximum if self.tokens.take("max") else self._number(maximum, minimum)
            ranges.append((first, last))
            if not self.tokens.take(","):
                return ranges

    def _extensions(self, message: Descriptor) -> None:
        tokens = self.tokens
        tokens.advance()
        found = [
            # Ends of ranges of messages are exclusive.
            message.extension_range.add(start=first, end=last + 1)
            for first, last in self._ranges(MAX_NUMBER)
        ]
        if tokens.take("["):
            # The options of a statement are those of each of its ranges.
            options = load_library().ExtensionRangeOptions()
            while True:
                add_option(tokens, options)
                if not tokens.take(","):
                    break
            for each in found:
                each.options.CopyFrom(options)
            tokens.expect("]")
        tokens.expect(";")

    def _reserved(self, owner: Descriptor, maximum: int, minimum: int = 1) -> None:
        tokens = self.tokens
        tokens.advance()
        if tokens.kind in {"text", "name"}:
            # Names in quotes; without them in editions.
            while True:
                name = tokens.string() if tokens.kind == "text" else tokens.name()
                owner.reserved_name.append(name)
                if not tokens.take(","):
                    break
        else:
            # Ends of ranges of enums are inclusive, since they may reach the largest number.
            past = 0 if minimum < 0 else 1
            for first, last in self._ranges(maximum, minimum):
                owner.reserved_range.add(start=first, end=last + past)
        tokens.expect(";")

    def _enum(self, enum: Descriptor) -> None:
        tokens = self.tokens
        enum.name = tokens.name()
        tokens.expect("{")
        while not tokens.take("}"):
            match tokens.word:
                case "option":
                    take_option(tokens, enum.options)
                case "reserved":
                    self._reserved(enum, _MAX_VALUE, -_MAX_VALUE - 1)
                case ";":
                    tokens.advance()
                case _:
                    self._enum_value(enum.value.add(name=tokens.name()))

    def _enum_value(self, value: Descriptor) -> None:
        tokens = self.tokens
        tokens.expect("=")
        value.number = self._number(_MAX_VALUE, -_MAX_VALUE - 1)
        if tokens.take("["):
            while True:
                add_option(tokens, value.options)
                if not tokens.take(","):
                    break
            tokens.expect("]")
        tokens.expect(";")

    def _service(self, service: Descriptor) -> None:
        tokens = self.tokens
        tokens.advance()
        service.name = tokens.name()
        tokens.expect("{")
        while not tokens.take("}"):
            match tokens.word:
                case "option":
                    take_option(tokens, service.options)
                case "rpc":
                    self._method(service.method.add())
                case ";":
                    tokens.advance()
                case _:
                    raise tokens.unexpected("rpc or option")

    def _method(self, method: Descriptor) -> None:
        tokens = self.tokens
        tokens.advance()
        method.name = tokens.name()
        for part in ("client_streaming", "server_streaming"):
            tokens.expect("(")
            if tokens.take("stream"):
                setattr(method, part, True)
            name = tokens.full_name()
            tokens.expect(")")
            if part == "client_streaming":
                method.input_type = name
                tokens.expect("returns")
            else:
                method.output_type = name
        if not tokens.take("{"):
            tokens.expect(";")
            return
        while not tokens.take("}"):
            if not tokens.take(";"):
                take_option(tokens, method.options)


def _add_synthetic_oneofs(message: Descriptor) -> None:
    """Give each optional field of proto3 the oneof that says whether it is there."""
    # As protoc names them: an underscore before the name, and an X while it is taken.
    names = {each.name for each in message.field} | {each.name for each in message.oneof_decl}
    for each in message.field:
        if each.proto3_optional:
            name = f"_{each.name.lstrip('_')}" if not each.name.startswith("_") else each.name
            while name in names:
                name = f"X{name}"
            names.add(name)
            each.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)


def _escaped(data: bytes) -> str:
    return "".join(
        chr(byte) if byte in _PRINTABLE and byte not in b"\\\"'" else f"\\{byte:03o}"
        for byte in data
    )


def parse_proto(text: str, name: str, limits: SchemaLimits = DEFAULT_LIMITS) -> Descriptor:
    """Return the descriptor of a file from its text.

    Args:
        text: the text.
        name: the path by which other files import it.
        limits: how deep messages may be nested.

    Raises:
        InvalidSchema: the text is no Protobuf.
        ConfigError: protobuf is not installed.
    """
    try:
        return ProtoParser(ProtoTokens(text), new_file(name), limits).parse()
    except ValueError as error:
        # The library refuses a value that does not fit its field.
        raise InvalidSchema(f"The schema is no Protobuf: {error}") from error
