"""Protobuf values: converts values of a described type to messages, and back.

The messages are dynamic: their classes come from the file that `protobuf_derivation` derives, so no
compiler of `.proto` files is needed.

Rule: a field that is absent has the default of the Python field, else the zero of its type, as
proto3 says. A message that is absent, and has neither a default nor None, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Final, TypeAlias, cast
from uuid import UUID

from streamlog.errors import SerdeError
from streamlog.serdes.derived.avro_derivation import is_of, value_of, wrong_zone
from streamlog.serdes.derived.avro_values import record_maker
from streamlog.serdes.derived.protobuf_derivation import (
    IMPORTS,
    ProtoField,
    ProtoFile,
    ProtoMessage,
    enum_members,
    has_presence,
    oneof_fields,
)
from streamlog.serdes.derived.type_description import (
    MISSING,
    ArrayType,
    DecimalType,
    DescribedType,
    EnumType,
    LiteralType,
    MapType,
    PrimitiveType,
    RecordField,
    RecordType,
    UnionType,
)
from streamlog.serdes.erased_types import UserObject, UserValue
from streamlog.serdes.serde import type_name

FILE_NAME: Final = "streamlog/derived.proto"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
Message: TypeAlias = UserObject
"""A message of the library, whose class is made at run time."""
Put: TypeAlias = Callable[[Message, UserValue], None]
"""Writes a value into a message."""
_SCALAR_NUMBERS: Final = {
    "double": 1,
    "int64": 3,
    "bool": 8,
    "string": 9,
    "bytes": 12,
}
"""`FieldDescriptorProto.Type`, by its name in a `.proto` text."""
_MESSAGE_NUMBER, _ENUM_NUMBER = 11, 14
_OPTIONAL, _REPEATED = 1, 3
_KNOWN_FIELDS: Final = {
    "google.type.Date": (("year", 5), ("month", 5), ("day", 5)),
    "google.type.TimeOfDay": (("hours", 5), ("minutes", 5), ("seconds", 5), ("nanos", 5)),
    "confluent.type.Decimal": (("value", 12), ("precision", 13), ("scale", 5)),
}
"""The messages of `IMPORTS` that the library does not bring: their fields with their types."""


def message_class(library: ModuleType, file: ProtoFile) -> UserObject:
    """Return the class of a file's first message.

    Args:
        library: `google.protobuf`, with its modules `descriptor_pb2`, `descriptor_pool`,
            `message_factory`, `timestamp_pb2` and `duration_pb2`.
        file: the file.
    """
    pool = library.descriptor_pool.DescriptorPool()
    for name, path in IMPORTS.items():
        if path in file.imports:
            pool.Add(_known_file(library, name, path))
    pool.Add(file_descriptor(library, file))
    found = pool.FindMessageTypeByName(file.full_name(file.messages[0].name))
    return library.message_factory.GetMessageClass(found)


def _known_file(library: ModuleType, name: str, path: str) -> UserObject:
    proto = library.descriptor_pb2.FileDescriptorProto()
    # The library's own files are copied, because a message of a second definition would not be the
    # one that other programs use.
    if name not in _KNOWN_FIELDS:
        module = path.rpartition("/")[2].replace(".proto", "_pb2")
        getattr(library, module).DESCRIPTOR.CopyToProto(proto)
        return proto
    package, _, short = name.rpartition(".")
    proto.name, proto.package, proto.syntax = path, package, "proto3"
    message = proto.message_type.add(name=short)
    for number, (field, kind) in enumerate(_KNOWN_FIELDS[name], 1):
        message.field.add(name=field, number=number, type=kind, label=_OPTIONAL)
    return proto


def file_descriptor(library: ModuleType, file: ProtoFile) -> UserObject:
    """Return a file as a FileDescriptorProto."""
    proto = library.descriptor_pb2.FileDescriptorProto()
    proto.name, proto.package, proto.syntax = FILE_NAME, file.package, "proto3"
    proto.dependency.extend(file.imports)
    # The order of enums and messages decides message indexes, so it is that of the text.
    for enum in file.enums:
        values = proto.enum_type.add(name=enum.name).value
        for number, member in enumerate(enum.members):
            values.add(name=member, number=number)
    for message in file.messages:
        _add_message(proto.message_type.add(name=message.name), message, file)
    return proto


def _add_message(proto: UserObject, message: ProtoMessage, file: ProtoFile) -> None:
    for name in dict.fromkeys(each.oneof for each in message.fields if each.oneof):
        proto.oneof_decl.add(name=name)
    oneofs = [each.name for each in proto.oneof_decl]
    for each in message.fields:
        added = proto.field.add(name=each.name, number=each.number, label=_OPTIONAL)
        if each.label == "map":
            _add_map(proto, added, each, file.full_name(message.name))
            continue
        _set_type(added, each.type, is_enum=each.is_enum)
        if each.label == "repeated":
            added.label = _REPEATED
        if each.oneof:
            added.oneof_index = oneofs.index(each.oneof)
    # Synthetic oneofs of optional fields follow all others (protobuf, "Implementing proto3
    # presence").
    for each, added in zip(message.fields, proto.field, strict=True):
        if each.label == "optional":
            added.proto3_optional = True
            added.oneof_index = len(proto.oneof_decl)
            proto.oneof_decl.add(name=f"_{each.name}")


def _add_map(proto: UserObject, added: UserObject, each: ProtoField, message: str) -> None:
    parts = each.name.split("_")
    name = "".join(part[:1].upper() + part[1:] for part in parts) + "Entry"
    entry = proto.nested_type.add(name=name)
    entry.options.map_entry = True
    # The wire has no maps: an entry is a message with a key and a value (protobuf, "Maps").
    _set_type(entry.field.add(name="key", number=1, label=_OPTIONAL), each.key_type)
    value = entry.field.add(name="value", number=2, label=_OPTIONAL)
    _set_type(value, each.type, is_enum=each.is_enum)
    added.label, added.type, added.type_name = _REPEATED, _MESSAGE_NUMBER, f".{message}.{name}"


def _set_type(proto: UserObject, kind: str, *, is_enum: bool = False) -> None:
    number = _SCALAR_NUMBERS.get(kind)
    if number is not None:
        proto.type = number
    else:
        proto.type, proto.type_name = _ENUM_NUMBER if is_enum else _MESSAGE_NUMBER, f".{kind}"


class ProtobufValues:
    """The conversions of one described record, compiled once."""

    def __init__(self, described: RecordType) -> None:
        self._putters: dict[int, Put] = {}
        self._readers: dict[int, Callable[[Message], UserValue]] = {}
        self.put = self._record_putter(described)
        """Writes a value into an empty message.

        Raises:
            SerdeError: the value has another type; with the path of the field.
        """
        self.read = self._record_reader(described)
        """Returns the value of a message.

        Raises:
            SerdeError: a field that the type requires is absent.
        """

    def _record_putter(self, described: RecordType) -> Put:
        known = self._putters.get(id(described))
        if known is not None:
            return known
        # A recursive type finds these functions while its fields are compiled.
        self._putters[id(described)] = _late_put(lambda: put)
        fields = [(each, self._field_putter(each)) for each in described.fields]
        python, kind = described.python, described.kind
        expected = dict if kind == "typeddict" else python
        getters = [
            partial(value_of, each, kind=kind) if kind == "typeddict" else attrgetter(each.name)
            for each in described.fields
        ]

        def put(message: Message, value: UserValue) -> None:
            if not isinstance(value, expected):
                raise SerdeError(f"{type_name(python)} expected, got {type(value).__name__}")
            for (each, put_field), read in zip(fields, getters, strict=True):
                part = read(value)
                if part is MISSING:
                    if each.may_be_absent:
                        continue
                    raise SerdeError(f"`{each.path}`: the key is missing")
                try:
                    put_field(message, part)
                except (SerdeError, ValueError, TypeError) as error:
                    raise _at(each, error) from error

        return put

    def _field_putter(self, declared: RecordField) -> Put:
        name, described = declared.wire_name, declared.type
        if isinstance(described, UnionType):
            return self._union_putter(declared, described)
        if isinstance(described, ArrayType):
            return self._array_putter(name, described)
        if isinstance(described, MapType):
            return self._map_putter(name, described)
        return self._single_putter(name, described)

    def _single_putter(self, name: str, described: DescribedType) -> Put:
        into = self._message_putter(described)
        if into is not None:

            def put_message(message: Message, value: UserValue) -> None:
                inner = getattr(message, name)
                # A message of zeros is present too, but setting its fields would not say so.
                inner.SetInParent()
                into(inner, value)

            return put_message
        convert = scalar_writer(described)
        return lambda message, value: setattr(message, name, convert(value))

    def _message_putter(self, described: DescribedType) -> Put | None:
        """Return what writes a type that is a message; None if it is a scalar."""
        if isinstance(described, RecordType):
            return self._record_putter(described)
        if isinstance(described, DecimalType):
            return put_decimal
        if isinstance(described, PrimitiveType):
            return KNOWN_PUTTERS.get(described.python)
        return None

    def _union_putter(self, declared: RecordField, union: UnionType) -> Put:
        if len(union.others) == 1:
            only = self._single_putter(declared.wire_name, union.others[0])
            return lambda message, value: None if value is None else only(message, value)
        members = [
            (member, self._single_putter(name, member))
            for name, member in oneof_fields(declared, union)
        ]

        def put(message: Message, value: UserValue) -> None:
            if value is None and union.is_nullable:
                return
            for member, put_member in members:
                if is_of(member, value):
                    put_member(message, value)
                    return
            raise SerdeError(f"{type(value).__name__} is not a member of the union")

        return put

    def _array_putter(self, name: str, described: ArrayType) -> Put:
        into = self._message_putter(described.item)
        python = described.python
        convert = None if into is not None else scalar_writer(described.item)

        def put(message: Message, value: UserValue) -> None:
            found = getattr(message, name)
            for each in _checked(python, value):
                if into is not None:
                    into(found.add(), each)
                elif convert is not None:
                    found.append(convert(each))

        return put

    def _map_putter(self, name: str, described: MapType) -> Put:
        into = self._message_putter(described.value)
        convert = None if into is not None else scalar_writer(described.value)

        def put(message: Message, value: UserValue) -> None:
            found = getattr(message, name)
            for key, each in _checked(dict, value).items():
                if into is not None:
                    # Reading creates the entry, which may be a message of zeros.
                    into(found[key], each)
                elif convert is not None:
                    found[key] = convert(each)

        return put

    def _record_reader(self, described: RecordType) -> Callable[[Message], UserValue]:
        known = self._readers.get(id(described))
        if known is not None:
            return known
        self._readers[id(described)] = _late_read(lambda: read)
        fields = [(each, self._field_reader(each)) for each in described.fields]
        make = record_maker(described)

        def read(message: Message) -> UserValue:
            parts = {}
            for each, read_field in fields:
                part = read_field(message)
                if part is not MISSING:
                    parts[each] = part
            return make(parts)

        return read

    def _field_reader(self, declared: RecordField) -> Callable[[Message], UserValue]:
        name, described = declared.wire_name, declared.type
        match described:
            case UnionType():
                return self._union_reader(declared, described)
            case ArrayType():
                item, python = self._value_reader(described.item), described.python
                return lambda message: python(map(item, getattr(message, name)))
            case MapType():
                part = self._value_reader(described.value)
                return lambda message: {
                    key: part(each) for key, each in getattr(message, name).items()
                }
        convert, is_message = self._value_reader(described), self._is_message(described)
        # A scalar without presence is its zero when absent, and a message is always optional.
        if not is_message and not has_presence(declared):
            return lambda message: convert(getattr(message, name))

        def read(message: Message) -> UserValue:
            if message.HasField(name):
                return convert(getattr(message, name))
            if has_presence(declared):
                return MISSING
            raise SerdeError(f"{declared.path} is absent, and has no default")

        return read

    def _union_reader(
        self, declared: RecordField, union: UnionType
    ) -> Callable[[Message], UserValue]:
        name = declared.wire_name
        if len(union.others) == 1:
            members = {name: self._value_reader(union.others[0])}
        else:
            found = oneof_fields(declared, union)
            members = {each: self._value_reader(member) for each, member in found}

        def read(message: Message) -> UserValue:
            # At most one member of a oneof is set: the library clears the others.
            for each, convert in members.items():
                if message.HasField(each):
                    return convert(getattr(message, each))
            # None and a default are both absent: the default is written, so None is what is left.
            if union.is_nullable:
                return None
            if has_presence(declared):
                return MISSING
            raise SerdeError(f"{declared.path} is absent, and has no default")

        return read

    def _is_message(self, described: DescribedType) -> bool:
        is_known = isinstance(described, PrimitiveType) and described.python in KNOWN_PUTTERS
        return is_known or isinstance(described, RecordType | DecimalType)

    def _value_reader(self, described: DescribedType) -> Callable[[Message], UserValue]:
        match described:
            case RecordType():
                return self._record_reader(described)
            case DecimalType():
                return read_decimal
            case PrimitiveType(python=python) if python in KNOWN_READERS:
                return KNOWN_READERS[python]
            case EnumType():
                return _enum_reader(described)
            case _:
                return lambda value: value


def _late_put(find: Callable[[], Put]) -> Put:
    def put(message: Message, value: UserValue) -> None:
        find()(message, value)

    return put


def _late_read(
    find: Callable[[], Callable[[Message], UserValue]],
) -> Callable[[Message], UserValue]:
    def read(message: Message) -> UserValue:
        return find()(message)

    return read


def scalar_writer(described: DescribedType) -> Callable[[UserValue], UserValue]:
    """Return the conversion of a value to a scalar field."""
    if isinstance(described, EnumType):
        # Number 0 is the member `..._UNSPECIFIED`, which no value has.
        numbers = {member: at for at, member in enumerate(described.members, 1)}
        return lambda value: numbers[_checked(described.python, value)]
    if isinstance(described, LiteralType):
        values = described.values

        def literal(value: UserValue) -> UserValue:
            if value not in values:
                raise SerdeError(f"{value!r} is not one of {', '.join(map(repr, values))}")
            return value

        return literal
    python = cast("PrimitiveType", described).python
    if python is UUID:
        return lambda value: str(_checked(UUID, value))

    def write(value: UserValue) -> UserValue:
        if not is_of(described, value):
            raise SerdeError(f"{python.__name__} expected, got {type(value).__name__}")
        return value

    return write


def _enum_reader(described: EnumType) -> Callable[[Message], UserValue]:
    members = described.members
    names = enum_members(described)

    def read(number: int) -> UserValue:
        if 1 <= number <= len(members):
            return members[number - 1]
        shown = names[0] if number == 0 else f"the unknown member {number}"
        raise SerdeError(f"{described.name}: the value is {shown}")

    return read


def _put_timestamp(message: Message, value: UserValue) -> None:
    if _checked(datetime, value).tzinfo is None:
        raise SerdeError(wrong_zone(PrimitiveType(datetime)))
    delta = value - _EPOCH
    message.seconds = delta.days * 86_400 + delta.seconds
    message.nanos = delta.microseconds * 1_000


def _read_timestamp(message: Message) -> datetime:
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1_000)


def _put_duration(message: Message, value: UserValue) -> None:
    # Both parts of a Duration have one sign: -1.5 s is -1 s and -500,000,000 ns.
    size = abs(_checked(timedelta, value))
    sign = -1 if value < timedelta() else 1
    message.seconds = sign * (size // _SECOND)
    message.nanos = sign * size.microseconds * 1_000


def _read_duration(message: Message) -> timedelta:
    sign = -1 if message.nanos < 0 else 1
    micros = sign * (abs(message.nanos) // 1_000)
    return timedelta(seconds=message.seconds, microseconds=micros)


def _put_date(message: Message, value: UserValue) -> None:
    if type(value) is not date:
        raise SerdeError(f"date expected, got {type(value).__name__}")
    message.year, message.month, message.day = value.year, value.month, value.day


def _read_date(message: Message) -> date:
    return date(message.year, message.month, message.day)


def _put_time(message: Message, value: UserValue) -> None:
    if _checked(time, value).tzinfo is not None:
        raise SerdeError("the time has a time zone, which schemas of times do not have")
    message.hours, message.minutes, message.seconds = value.hour, value.minute, value.second
    message.nanos = value.microsecond * 1_000


def _read_time(message: Message) -> time:
    return time(message.hours, message.minutes, message.seconds, message.nanos // 1_000)


def put_decimal(message: Message, value: UserValue) -> None:
    """Write a Decimal: its unscaled value as big-endian bytes, its digits, and its scale."""
    sign, digits, exponent = _checked(Decimal, value).as_tuple()
    if not isinstance(exponent, int):
        raise SerdeError(f"{value} is not finite")
    unscaled = int("".join(map(str, digits)))
    unscaled = -unscaled if sign else unscaled
    # 127 needs 8 bits with its sign, 128 needs 9: one byte more than the bits alone would fill.
    message.value = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
    message.precision, message.scale = len(digits), -exponent


def read_decimal(message: Message) -> Decimal:
    """Return the Decimal of a message."""
    unscaled = int.from_bytes(message.value, "big", signed=True)
    sign = 1 if unscaled < 0 else 0
    return Decimal((sign, tuple(map(int, str(abs(unscaled)))), -message.scale))


def _read_uuid(text: str) -> UUID:
    return UUID(text)


KNOWN_PUTTERS: Final[dict[type, Put]] = {
    datetime: _put_timestamp,
    timedelta: _put_duration,
    date: _put_date,
    time: _put_time,
}
"""What writes the messages of `IMPORTS`, by the type in Python."""
KNOWN_READERS: Final[dict[type, Callable[[Message], UserValue]]] = {
    datetime: _read_timestamp,
    timedelta: _read_duration,
    date: _read_date,
    time: _read_time,
    UUID: _read_uuid,
}


def _at(field: RecordField, error: Exception) -> SerdeError:
    """Return an error with the field in front, unless it names one already."""
    text = str(error)
    return SerdeError(text if "`" in text else f"`{field.path}`: {text}")


def _checked(expected: type, value: UserValue) -> UserValue:
    if not isinstance(value, expected):
        raise SerdeError(f"{expected.__name__} expected, got {type(value).__name__}")
    return value
