"""Protobuf schema: derives a file of proto3 from a described type.

| Python | proto3 |
|---|---|
| bool, int, float, str, bytes | bool, int64, double, string, bytes |
| datetime; timedelta | google.protobuf.Timestamp; google.protobuf.Duration |
| date; time | google.type.Date; google.type.TimeOfDay |
| Decimal; UUID | confluent.type.Decimal; string |
| Enum; Literal | enum with a first member `..._UNSPECIFIED`; the type of its values |
| list, set, tuple[X, ...]; dict | repeated; map |
| X or None, and fields with a default | optional |
| X or Y | oneof |

The file's first message is the declared type itself, so its message index is 0.

Rule: fields are numbered in the order of their declaration, from 1. `FieldNumber` sets the number
of one, and the fields after it count on from there. A field has to keep its number for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Final
from uuid import UUID

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes.derived.type_description import (
    MISSING,
    ArrayType,
    DecimalType,
    DescribedType,
    EnumType,
    LiteralType,
    MapType,
    NullType,
    PrimitiveType,
    RecordField,
    RecordType,
    UnionType,
    describe_type,
    types_of,
)
from streamlog.serdes.erased_types import TypeForm
from streamlog.serdes.serde import type_name

NUMBER_MAX: Final = (1 << 29) - 1
RESERVED_NUMBERS: Final = range(19_000, 20_000)
"""The numbers that Protobuf keeps for itself."""
TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
DATE: Final = "google.type.Date"
TIME_OF_DAY: Final = "google.type.TimeOfDay"
DECIMAL: Final = "confluent.type.Decimal"
IMPORTS: Final[Mapping[str, str]] = {
    DECIMAL: "confluent/type/decimal.proto",
    DURATION: "google/protobuf/duration.proto",
    TIMESTAMP: "google/protobuf/timestamp.proto",
    DATE: "google/type/date.proto",
    TIME_OF_DAY: "google/type/timeofday.proto",
}
"""The files of the messages that every registry knows, by message."""
SCALARS: Final[Mapping[type, str]] = {
    bool: "bool",
    int: "int64",
    float: "double",
    str: "string",
    bytes: "bytes",
    UUID: "string",
    datetime: TIMESTAMP,
    timedelta: DURATION,
    date: DATE,
    time: TIME_OF_DAY,
}
_IDENTIFIER = re.compile(r"[A-Za-z]\w*", re.ASCII)
_KEYS = frozenset((bool, int, str))


class ProtoField(msgspec.Struct, frozen=True):
    """A field of a message."""

    name: str
    number: int
    type: str
    """A scalar type, or the full name of a message or enum."""
    label: str = ""
    """"", "optional", "repeated" or "map"."""
    key_type: str = ""
    """Of a map: the type of its keys."""
    oneof: str = ""
    """The oneof that it belongs to."""
    is_enum: bool = False


class ProtoMessage(msgspec.Struct, frozen=True):
    """A message."""

    name: str
    fields: tuple[ProtoField, ...]


class ProtoEnum(msgspec.Struct, frozen=True):
    """An enum; its members are numbered from 0."""

    name: str
    members: tuple[str, ...]


@dataclass(slots=True)
class ProtoFile:
    """A file of proto3; its first message is the declared type."""

    package: str
    messages: list[ProtoMessage] = field(default_factory=list)
    enums: list[ProtoEnum] = field(default_factory=list)

    @property
    def imports(self) -> list[str]:
        """The files that its fields refer to, sorted."""
        types = {each.type for message in self.messages for each in message.fields}
        return sorted(path for name, path in IMPORTS.items() if name in types)

    def full_name(self, name: str) -> str:
        """Return the full name of one of its types."""
        return f"{self.package}.{name}" if self.package else name

    @property
    def text(self) -> str:
        """The file as a `.proto` text."""
        blocks = ['syntax = "proto3";\n']
        if self.package:
            blocks.append(f"package {self.package};\n")
        if self.imports:
            blocks.append("".join(f'import "{path}";\n' for path in self.imports))
        blocks += ["".join(_message_lines(message)) for message in self.messages]
        blocks += ["".join(_enum_lines(enum)) for enum in self.enums]
        return "\n".join(blocks)


def protobuf_file_of(declared: TypeForm) -> ProtoFile:
    """Return the file of a declared type.

    Raises:
        SerdeError: the type, or one of its fields, has no equivalent in proto3.
    """
    return protobuf_file(describe_type(declared), declared)


def protobuf_file(described: DescribedType, declared: TypeForm) -> ProtoFile:
    """Return the file of a described type; see `protobuf_file_of`."""
    if not isinstance(described, RecordType):
        raise SerdeError(
            f"{type_name(declared)} has no equivalent in Protobuf, whose outermost type is a "
            "message: use a dataclass, Struct, TypedDict or model"
        )
    file = ProtoFile(described.namespace)
    names: dict[str, str] = {}
    # Breadth does not matter, but the first one does: it has the message index 0.
    for found in types_of(described):
        if not isinstance(found, RecordType | EnumType):
            continue
        name = found.name.rpartition(".")[2]
        if names.setdefault(name, found.name) != found.name:
            raise SerdeError(f"{found.name} and {names[name]} are both {name} in the .proto file")
        if isinstance(found, RecordType):
            file.messages.append(ProtoMessage(name, tuple(_Numbering(file, found).fields())))
        elif name not in {each.name for each in file.enums}:
            file.enums.append(ProtoEnum(name, tuple(enum_members(found))))
    return file


def enum_members(described: EnumType) -> list[str]:
    """Return the members of an enum in Protobuf, which share one scope with those of others."""
    name = described.name.rpartition(".")[2]
    # Members are siblings of their enum in C++, and so in the scope of names of every .proto file:
    # without the prefix, two enums could not both have a member NONE.
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    members = [f"{prefix}_UNSPECIFIED", *(f"{prefix}_{each.name}" for each in described.members)]
    for each in members:
        if not _IDENTIFIER.fullmatch(each) or members.count(each) > 1:
            raise SerdeError(f"{described.name}: {each!r} can't be a member of an enum in Protobuf")
    return members


def oneof_fields(declared: RecordField, union: UnionType) -> list[tuple[str, DescribedType]]:
    """Return the fields of a oneof, by the members of the union."""
    found: list[tuple[str, DescribedType]] = []
    for member in union.others:
        match member:
            case PrimitiveType(python=python) | LiteralType(python=python):
                kind = python.__name__.lower()
            case DecimalType():
                kind = "decimal"
            case RecordType() | EnumType():
                short = member.name.rpartition(".")[2]
                kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", short).lower()
            case _:
                raise SerdeError(
                    f"{declared.path}: a union in Protobuf (oneof) can't contain lists, sets or "
                    "dicts: put them into a dataclass"
                )
        found.append((f"{declared.wire_name}_{kind}", member))
    names = [name for name, _ in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SerdeError(f"{declared.path}: two members of the union are called {twice!r}")
    return found


def has_presence(declared: RecordField) -> bool:
    """Return whether a field of its own type tells "absent" from the type's zero."""
    return declared.default is not MISSING or declared.has_factory or declared.may_be_absent


class _Numbering:
    """The fields of one message, with their numbers."""

    def __init__(self, file: ProtoFile, described: RecordType) -> None:
        self._file = file
        self._described = described
        self._next = 1
        self._used: dict[int, str] = {}

    def fields(self) -> Iterator[ProtoField]:
        for declared in self._described.fields:
            if not _IDENTIFIER.fullmatch(declared.wire_name):
                raise SerdeError(
                    f"{declared.path}: {declared.wire_name!r} can't be the name of a field in "
                    "Protobuf: it begins with a letter, followed by a-z, A-Z, 0-9 and '_'"
                )
            if declared.number is not None:
                self._next = declared.number
            yield from self._of(declared)

    def _of(self, declared: RecordField) -> Iterator[ProtoField]:
        described, path = declared.type, declared.path
        name = declared.wire_name
        # A union of several classes is a oneof, whose members are fields of the message itself.
        if isinstance(described, UnionType):
            if len(described.others) > 1:
                for member_name, member in oneof_fields(declared, described):
                    kind = self._type(member, path)
                    yield ProtoField(
                        member_name,
                        self._number(path),
                        kind,
                        oneof=name,
                        is_enum=isinstance(member, EnumType),
                    )
                return
            (described,) = described.others
            if isinstance(described, ArrayType | MapType):
                raise SerdeError(
                    f"{path}: Protobuf can't tell an empty list or dict from None: drop `| None`"
                )
            yield self._single(declared, described, is_optional=True)
            return
        if isinstance(described, ArrayType):
            kind = self._type(described.item, f"{path}[]")
            is_enum = isinstance(described.item, EnumType)
            yield ProtoField(name, self._number(path), kind, "repeated", is_enum=is_enum)
            return
        if isinstance(described, MapType):
            yield self._map(declared, described)
            return
        yield self._single(declared, described, is_optional=has_presence(declared))

    def _single(
        self, declared: RecordField, described: DescribedType, *, is_optional: bool
    ) -> ProtoField:
        kind = self._type(described, declared.path)
        # A message tells absent from empty by itself; `optional` would only add a synthetic oneof.
        is_message = isinstance(described, RecordType) or kind in IMPORTS
        label = "optional" if is_optional and not is_message else ""
        number = self._number(declared.path)
        is_enum = isinstance(described, EnumType)
        return ProtoField(declared.wire_name, number, kind, label, is_enum=is_enum)

    def _map(self, declared: RecordField, described: MapType) -> ProtoField:
        key = described.key
        if not isinstance(key, PrimitiveType | LiteralType) or key.python not in _KEYS:
            raise SerdeError(f"{declared.path}: the keys of a map in Protobuf are str, int or bool")
        return ProtoField(
            declared.wire_name,
            self._number(declared.path),
            self._type(described.value, f"{declared.path}[...]"),
            "map",
            SCALARS[key.python],
            is_enum=isinstance(described.value, EnumType),
        )

    def _type(self, described: DescribedType, path: str) -> str:
        match described:
            case PrimitiveType(python=python) | LiteralType(python=python):
                if isinstance(described, PrimitiveType) and not described.has_zone:
                    raise SerdeError(
                        f"{path}: Protobuf has no datetime without a time zone: drop Meta(tz=False)"
                    )
                return SCALARS[python]
            case DecimalType():
                return DECIMAL
            case RecordType() | EnumType():
                return self._file.full_name(described.name.rpartition(".")[2])
            case NullType():
                raise SerdeError(f"{path}: None alone has no equivalent in Protobuf")
            case _:
                raise SerdeError(
                    f"{path}: a list, dict or union inside a list or dict has no equivalent in "
                    "Protobuf: put it into a dataclass"
                )

    def _number(self, path: str) -> int:
        number = self._next
        if not 1 <= number <= NUMBER_MAX or number in RESERVED_NUMBERS:
            raise SerdeError(
                f"{path}: {number} can't be the number of a field: use 1 to {NUMBER_MAX}, without "
                f"{RESERVED_NUMBERS[0]} to {RESERVED_NUMBERS[-1]}"
            )
        other = self._used.setdefault(number, path)
        if other != path:
            raise SerdeError(f"{path}: the number {number} belongs to {other} already")
        self._next += 1
        return number


def _message_lines(message: ProtoMessage) -> Iterator[str]:
    yield f"message {message.name} {{\n"
    oneof = ""
    # The fields of a oneof follow each other, so one pass opens and closes its block.
    for each in message.fields:
        if each.oneof != oneof:
            if oneof:
                yield "  }\n"
            if each.oneof:
                yield f"  oneof {each.oneof} {{\n"
            oneof = each.oneof
        # A leading dot marks a full name: without it, a message called `google` would hide the
        # package.
        kind = each.type if "." not in each.type else f".{each.type}"
        if each.label == "map":
            kind = f"map<{each.key_type}, {kind}>"
        elif each.label:
            kind = f"{each.label} {kind}"
        yield f"{'    ' if oneof else '  '}{kind} {each.name} = {each.number};\n"
    if oneof:
        yield "  }\n"
    yield "}\n"


def _enum_lines(enum: ProtoEnum) -> Iterator[str]:
    yield f"enum {enum.name} {{\n"
    for number, member in enumerate(enum.members):
        yield f"  {member} = {number};\n"
    yield "}\n"
