"""Rows as messages of Protobuf, and back.

What writes and reads is compiled once for each message. A row is written by the descriptor of the
registered schema, which may have other types than the row's own schema.

Rule: a value of another type is refused; nothing is rounded, cut or made a text. Null is an absent
field, so it is refused within lists and maps, which have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Final

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_protobuf.protobuf_conventions import (
    ENUM,
    LOGICAL,
    WRAPPED,
    ProtobufForm,
    is_oneof,
    message_of,
)
from streamlog.connect.converters.connect_protobuf.schemas_from_protobuf import (
    Descriptor,
    is_marked,
    is_member,
    oneof_field,
    real_oneofs,
    scalar_name,
)
from streamlog.connect.converters.json_converter import default_of
from streamlog.connect.converters.json_schemas import day_ms, to_base, whole_days
from streamlog.connect.java_values import (
    DAY_MS,
    INTEGER_BITS,
    moment_ms,
    moment_of,
    signed_bytes,
    time_of,
    wrapped,
)
from streamlog.connect.row_schema import Field, Kind, Schema, fields_of, part_of
from streamlog.serdes.derived.protobuf_values import Message
from streamlog.serdes.erased_types import UserValue
from streamlog.serdes.registered.message_dicts import is_map

Write = Callable[[Message, object], None]
"""Writes a value that is not None into a message."""
Convert = Callable[[object], object]
"""Returns a scalar as the library takes it, or as rows have it."""
SCALE_MAX: Final = 10_000
"""The most digits behind the point of a Decimal, or zeros before it."""
_UNSIGNED: Final = ("uint64", "fixed64")
_MS: Final = 1_000_000
"""Nanoseconds."""


def _no(what: str, value: object) -> BadRecord:
    return BadRecord(f"{type(value).__name__} {str(value)[:40]!r} is no {what}")


# ------------------------------------------------------------------------------ writing


def row_writer(schema: Schema, message: Descriptor, form: ProtobufForm) -> Write:
    """Return what writes rows of a schema into empty messages.

    Raises:
        BadRecord: the message can't hold them. The function that is returned raises it as well.
    """
    if message.full_name in WRAPPED and schema.kind != "struct":
        return _field_writer(schema, message.fields_by_name["value"], form)
    return _struct_writer(schema, message, form)


def _struct_writer(schema: Schema, message: Descriptor, form: ProtobufForm) -> Write:
    if schema.kind != "struct":
        raise BadRecord(f"{message.full_name} holds structs, not {schema.kind}")
    writers: list[tuple[Field, Write]] = []
    for each in schema.fields:
        field = message.fields_by_name.get(form.named(each.name))
        if is_oneof(each.schema):
            writers.append((each, _oneof_writer(each.schema, message, form)))
        # What the latest version of a subject lacks is left out.
        elif field is not None:
            writers.append((each, _within(each.name, _field_writer, each.schema, field, form)))

    def write(into: Message, value: object) -> None:
        row, name = fields_of(value), ""
        # A message without fields is there as well.
        into.SetInParent()
        try:
            for each, write_field in writers:
                name = each.name
                found = row.get(name)
                if found is None and each.default is not None:
                    found = default_of(each)
                if found is not None:
                    write_field(into, found)
        # The path is put together on the way out, so a sound record does not pay for it.
        except BadRecord as error:
            raise BadRecord(f"field {name}: {error}") from None

    return write


def _within(
    name: str,
    make: Callable[[Schema, Descriptor, ProtobufForm], Write],
    schema: Schema,
    field: Descriptor,
    form: ProtobufForm,
) -> Write:
    try:
        return make(schema, field, form)
    except BadRecord as error:
        raise BadRecord(f"field {name}: {error}") from None


def _oneof_writer(schema: Schema, message: Descriptor, form: ProtobufForm) -> Write:
    members = []
    for each in schema.fields:
        field = message.fields_by_name.get(form.named(each.name))
        if field is not None:
            members.append((each.name, _within(each.name, _field_writer, each.schema, field, form)))

    def write(into: Message, value: object) -> None:
        row = fields_of(value)
        # The first field with a value is the one: Confluent's converter looks no further.
        for name, write_member in members:
            found = row.get(name)
            if found is not None:
                write_member(into, found)
                return
        raise BadRecord("none of the fields of a oneof has a value")

    return write


def _field_writer(schema: Schema, field: Descriptor, form: ProtobufForm) -> Write:
    name = field.name
    if is_map(field):
        return _map_writer(schema, field, form)
    if field.is_repeated:
        return _list_writer(schema, field, form)
    if schema.kind in ("array", "map"):
        raise BadRecord(f"{field.full_name} holds no {schema.kind}")
    into_message = _message_writer(schema, field, form)
    if into_message is not None:
        return lambda into, value: into_message(getattr(into, name), value)
    convert = _scalar_writer(schema, field)
    return lambda into, value: setattr(into, name, convert(value))


def _message_writer(schema: Schema, field: Descriptor, form: ProtobufForm) -> Write | None:
    """Return what writes a value into a message; None for scalars."""
    message = field.message_type
    if message is None:
        return None
    logical = LOGICAL.get(message.full_name)
    if logical is not None:
        if message_of(schema) != message.full_name:
            raise BadRecord(f"{field.full_name} holds a {logical}, not {schema.kind}")
        return _PUTTERS[logical]
    if message.full_name in WRAPPED and schema.kind != "struct":
        convert = _scalar_writer(schema, message.fields_by_name["value"])

        def put(into: Message, value: object) -> None:
            into.value = convert(value)

        return put
    return _struct_writer(schema, message, form)


def _list_writer(schema: Schema, field: Descriptor, form: ProtobufForm) -> Write:
    if schema.kind != "array":
        raise BadRecord(f"{field.full_name} holds lists, not {schema.kind}")
    name, items = field.name, part_of(schema.items)
    put = _message_writer(items, field, form)
    convert = _scalar_writer(items, field) if put is None else None

    def write(into: Message, value: object) -> None:
        if not isinstance(value, list | tuple):
            raise _no("array", value)
        if any(each is None for each in value):
            raise BadRecord("a list has a null, and Protobuf has none there")
        found = getattr(into, name)
        if convert is not None:
            found.extend([convert(each) for each in value])
        elif put is not None:
            for each in value:
                put(found.add(), each)

    return write


def _map_writer(schema: Schema, field: Descriptor, form: ProtobufForm) -> Write:
    if schema.kind != "map":
        raise BadRecord(f"{field.full_name} holds maps, not {schema.kind}")
    name = field.name
    key, item = (field.message_type.fields_by_name[each] for each in ("key", "value"))
    convert_key = _scalar_writer(part_of(schema.keys), key)
    items = part_of(schema.items)
    put = _message_writer(items, item, form)
    convert = _scalar_writer(items, item) if put is None else None

    def write(into: Message, value: object) -> None:
        if not isinstance(value, Mapping):
            raise _no("map", value)
        found = getattr(into, name)
        for each, part in value.items():
            if each is None or part is None:
                raise BadRecord("a map has a null, and Protobuf has none there")
            if convert is not None:
                found[convert_key(each)] = convert(part)
            elif put is not None:
                put(found[convert_key(each)], part)

    return write


def _scalar_writer(schema: Schema, field: Descriptor) -> Convert:
    """Return what gives a value to a scalar or an enum of the library."""
    if field.message_type is not None or schema.kind in ("struct", "array", "map"):
        raise BadRecord(f"{field.full_name} holds no {schema.kind}")
    if field.enum_type is not None:
        return partial(_enum_number, field.enum_type, schema)
    word, kind = scalar_name(field), schema.kind
    is_unsigned = word in _UNSIGNED
    expected = _TYPES[word]

    def convert(value: object) -> object:
        base = to_base(schema, value)
        if isinstance(base, bytearray | memoryview):
            base = bytes(base)
        if not isinstance(base, expected) or (isinstance(base, bool) and word != "bool"):
            raise _no(kind, value)
        if not isinstance(base, int):
            return base
        if kind in INTEGER_BITS and wrapped(base, kind) != base:
            raise _no(kind, value)
        # Java has no unsigned numbers: the upper half of them are its negative ones.
        return base % (1 << 64) if is_unsigned else base

    return convert


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("int32", "sint32", "sfixed32", "uint32", "fixed32"), (int,)),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint64", "fixed64"), (int,)),
    "float": (float, int),
    "double": (float, int),
    "bool": (bool,),
    "string": (str,),
    "bytes": (bytes,),
}


def _enum_number(enum: Descriptor, schema: Schema, value: object) -> int:
    if isinstance(value, str):
        # The schema of the row first: the registered one may have other symbols.
        own = schema.parameter(f"{ENUM}.{value}")
        found = enum.values_by_name.get(value)
        if found is not None:
            return int(found.number)
        if own is not None and own.removeprefix("-").isdecimal():
            return int(own)
        raise BadRecord(f"{value[:40]!r} is no symbol of the enum {enum.name}")
    if not isinstance(value, int) or isinstance(value, bool):
        raise _no(f"number of the enum {enum.name}", value)
    return value


def _put_decimal(into: Message, value: object) -> None:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise _no("Decimal", value)
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    if abs(scale) > SCALE_MAX:
        raise BadRecord(f"a Decimal has {scale} digits behind the point; {SCALE_MAX} is the limit")
    into.value = signed_bytes(int(Decimal((int(value.is_signed()), digits, 0))))
    into.precision, into.scale = len(digits), scale


def _put_date(into: Message, value: object) -> None:
    day = moment_of(whole_days(value) * DAY_MS)
    into.year, into.month, into.day = day.year, day.month, day.day


def _put_time(into: Message, value: object) -> None:
    ms = day_ms(value)
    found = time_of(ms)
    into.hours, into.minutes, into.seconds = found.hour, found.minute, found.second
    into.nanos = ms % 1000 * _MS


def _put_timestamp(into: Message, value: object) -> None:
    into.seconds, rest_ms = divmod(moment_ms(value), 1000)
    into.nanos = rest_ms * _MS


_PUTTERS: Final[Mapping[str, Write]] = {
    "Decimal": _put_decimal,
    "Date": _put_date,
    "Time": _put_time,
    "Timestamp": _put_timestamp,
}

# ------------------------------------------------------------------------------ reading

ReadMessage = Callable[[Message], object]


def row_reader(schema: Schema, message: Descriptor, form: ProtobufForm) -> ReadMessage:
    """Return what reads messages as rows of a schema, which is `ProtobufReading`'s of the message.

    The function that is returned raises BadRecord for a message whose date, time or number there is
    not.
    """
    if schema.kind != "struct":
        convert = _scalar_reader(schema, message.fields_by_name["value"])
        return lambda found: convert(found.value)
    return _struct_reader(schema, message, form)


def _struct_reader(schema: Schema, message: Descriptor, form: ProtobufForm) -> ReadMessage:
    schemas = {each.name: each.schema for each in schema.fields}
    readers: dict[str, ReadMessage] = {}
    if not form.is_flat:
        for oneof in real_oneofs(message):
            name = oneof_field(oneof, form)
            readers[name] = _oneof_reader(schemas[name], oneof, form)
    for field in message.fields:
        if form.is_flat or not is_member(field):
            readers[field.name] = _field_reader(schemas[field.name], field, form)

    def read(found: Message) -> object:
        return {name: read_field(found) for name, read_field in readers.items()}

    return read


def _oneof_reader(schema: Schema, oneof: Descriptor, form: ProtobufForm) -> ReadMessage:
    schemas = {each.name: each.schema for each in schema.fields}
    readers = {each.name: _field_reader(schemas[each.name], each, form) for each in oneof.fields}
    name = oneof.name

    def read(found: Message) -> object:
        chosen = found.WhichOneof(name)
        if chosen is None:
            return None
        return {**dict.fromkeys(readers), chosen: readers[chosen](found)}

    return read


def _field_reader(schema: Schema, field: Descriptor, form: ProtobufForm) -> ReadMessage:
    name = field.name
    if is_map(field):
        parts = field.message_type.fields_by_name
        key = _value_reader(part_of(schema.keys), parts["key"], form)
        item = _value_reader(part_of(schema.items), parts["value"], form)
        return lambda found: {key(each): item(part) for each, part in getattr(found, name).items()}
    if field.is_repeated:
        item = _value_reader(part_of(schema.items), field, form)
        return lambda found: [item(each) for each in getattr(found, name)]
    read = _value_reader(schema, field, form)
    if field.message_type is not None or is_member(field) or is_marked(field, form):
        return lambda found: read(getattr(found, name)) if found.HasField(name) else None
    return lambda found: read(getattr(found, name))


def _value_reader(schema: Schema, field: Descriptor, form: ProtobufForm) -> ReadMessage:
    """Return what reads a value of a field, or one of several."""
    message = field.message_type
    if message is None:
        return _scalar_reader(schema, field)
    logical = LOGICAL.get(message.full_name)
    if logical is not None:
        return partial(_checked, _READERS[logical], logical)
    if schema.kind != "struct":
        convert = _scalar_reader(schema, message.fields_by_name["value"])
        return lambda found: convert(found.value)
    return _struct_reader(schema, message, form)


def _scalar_reader(schema: Schema, field: Descriptor) -> Convert:
    if field.enum_type is not None:
        if schema.kind != "string":
            return lambda value: value
        # An alias has a number of another name: the first name stands for both.
        names = {each.number: each.name for each in reversed(field.enum_type.values)}
        unknown = f"UNKNOWN_ENUM_VALUE_{field.enum_type.name}_"
        return lambda number: names.get(number, f"{unknown}{number}")
    kind = schema.kind
    if kind in ("int8", "int16") or scalar_name(field) in _UNSIGNED:
        return partial(_wrapped, kind)
    return lambda value: value


def _wrapped(kind: Kind, value: UserValue) -> int:
    return wrapped(value, kind)


def _checked(read: ReadMessage, logical: str, found: Message) -> object:
    try:
        return read(found)
    except (ValueError, OverflowError) as error:
        raise BadRecord(f"it holds no {logical}: {error}") from None


def _read_decimal(found: Message) -> Decimal:
    if abs(found.scale) > SCALE_MAX:
        raise BadRecord(f"a Decimal has the scale {found.scale}; {SCALE_MAX} is the limit")
    number = Decimal(int.from_bytes(found.value, "big", signed=True))
    sign, digits, _ = number.as_tuple()
    return Decimal((sign, digits, -found.scale))


def _read_date(found: Message) -> date:
    return date(found.year, found.month, found.day)


def _read_time(found: Message) -> time:
    # Connect's times have milliseconds.
    return time(found.hours, found.minutes, found.seconds, found.nanos // _MS * 1000)


def _read_timestamp(found: Message) -> datetime:
    if not 0 <= found.nanos < 1000 * _MS:
        raise BadRecord(f"a Timestamp has {found.nanos} ns beside its seconds")
    return moment_of(found.seconds * 1000 + found.nanos // _MS).astimezone(UTC)


_READERS: Final[Mapping[str, ReadMessage]] = {
    "Decimal": _read_decimal,
    "Date": _read_date,
    "Time": _read_time,
    "Timestamp": _read_timestamp,
}
