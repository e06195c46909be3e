"""Avro values: converts values of a described type to what fastavro takes, and back.

fastavro knows dicts, lists and logical types. This module adds what they lack: Enum, unions that
tell their members apart, timedelta, and the classes of the records.

Rule: a value that another member of a union would also take is written as the member of its class,
whose name fastavro gets with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Final, TypeAlias, cast

from streamlog.errors import SerdeError
from streamlog.serdes.derived.avro_derivation import avro_type, full_name, is_of, wrong_zone
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
)
from streamlog.serdes.erased_types import UserObject, UserValue
from streamlog.serdes.serde import type_name

Convert: TypeAlias = Callable[[UserValue], UserValue]
"""From a value to what fastavro takes, or back."""

_MICROSECOND: Final = timedelta(microseconds=1)


def _same(value: UserValue) -> UserValue:
    return value


def _late(find: Callable[[], Convert]) -> Convert:
    """Return a conversion that is found when it is first called."""

    def convert(value: UserValue) -> UserValue:
        return find()(value)

    return convert


class AvroValues:
    """The conversions of one described type, compiled once."""

    def __init__(self, described: DescribedType) -> None:
        self._namespace = described.namespace if isinstance(described, RecordType) else ""
        self._writers: dict[int, Convert] = {}
        self._readers: dict[int, Convert] = {}
        self.to_avro = self._writer(described)
        """From a value to what fastavro writes.

        Raises:
            SerdeError: the value has another type; with the path of the field.
        """
        self.from_avro = self._reader(described)
        """From what fastavro reads to a value; fastavro has to be called with
        `return_named_type=True`."""

    def _writer(self, described: DescribedType) -> Convert:
        match described:
            case RecordType():
                convert = self._record_writer(described)
            case EnumType():
                convert = _enum_writer(described)
            case ArrayType():
                convert = _array_writer(self._writer(described.item), described.python)
            case MapType():
                convert = _map_writer(self._writer(described.value))
            case UnionType():
                convert = self._union_writer(described)
            case PrimitiveType(python=python) if python is datetime:
                convert = _datetime_writer(described)
            case PrimitiveType(python=python) if python is time:
                convert = _write_time
            case PrimitiveType(python=python) if python is timedelta:
                convert = _write_duration
            case _:
                convert = _checker(described)
        return convert

    def _record_writer(self, described: RecordType) -> Convert:
        known = self._writers.get(id(described))
        if known is not None:
            return known
        # A recursive type finds this function while its fields are compiled.
        self._writers[id(described)] = _late(lambda: write)
        fields = [(each, self._writer(each.type)) for each in described.fields]
        if described.kind == "typeddict":
            write = _typeddict_writer(described, fields)
        else:
            write = _object_writer(described, fields)
        return write

    def _union_writer(self, described: UnionType) -> Convert:
        others = described.others
        # `X | None`, by far the most common union, has nothing to tell apart. The name still goes
        # with the value: without it, fastavro validates the whole value to find the member, which
        # costs time, and its validation (1.13) refuses the name of an enum in a union further in.
        if len(others) == 1:
            only, only_name = self._writer(others[0]), avro_type(others[0], self._namespace)
            return lambda value: None if value is None else (only_name, only(value))
        members = [(each, avro_type(each, self._namespace), self._writer(each)) for each in others]
        is_nullable = described.is_nullable

        def write(value: UserValue) -> UserValue:
            if value is None and is_nullable:
                return None
            # 1. `date | int`: fastavro would also write 5 as a date, which is an int there.
            # 2. Two records with equal fields: it would take the first one.
            # The name beside the value decides both (fastavro, "Using the tuple notation").
            for member, name, convert in members:
                if is_of(member, value):
                    return name, convert(value)
            raise SerdeError(f"{type(value).__name__} is not a member of the union")

        return write

    def _reader(self, described: DescribedType) -> Convert:
        match described:
            case RecordType():
                convert = self._record_reader(described)
            case EnumType():
                convert = _enum_reader(described)
            case ArrayType():
                convert = _array_reader(self._reader(described.item), described.python)
            case MapType():
                convert = _map_reader(self._reader(described.value))
            case UnionType():
                convert = self._union_reader(described)
            case PrimitiveType(python=python) if python is timedelta:
                convert = _read_duration
            case PrimitiveType(python=python) if python is float:
                convert = _read_float
            case _:
                convert = _checker(described)
        return convert

    def _record_reader(self, described: RecordType) -> Convert:
        known = self._readers.get(id(described))
        if known is not None:
            return known
        self._readers[id(described)] = _late(lambda: read)
        fields = [(each, self._reader(each.type)) for each in described.fields]
        make = record_maker(described)

        def read(value: UserValue) -> UserValue:
            found = _untagged(value)
            parts = {}
            for each, convert in fields:
                part = found[each.wire_name]
                # Its schema is a union with null, and null stands for the missing key.
                if part is None and each.may_be_absent:
                    continue
                parts[each] = convert(part)
            return make(parts)

        return read

    def _union_reader(self, described: UnionType) -> Convert:
        others = described.others
        if len(others) == 1:
            only = self._reader(others[0])
            return lambda value: None if value is None else only(value)
        named = {
            full_name(each, self._namespace): self._reader(each)
            for each in others
            if isinstance(each, RecordType | EnumType)
        }
        # A writer's union names its records and enums, so a text or dict without a name is rather a
        # str or map; a record or enum comes without one only if the writer had no union here.
        by_name_last = sorted(others, key=lambda each: isinstance(each, RecordType | EnumType))
        unnamed = [(_raw_check(each), self._reader(each)) for each in by_name_last]

        def read(value: UserValue) -> UserValue:
            if value is None:
                return None
            # `return_named_type` makes a pair out of each record and enum in a union.
            if isinstance(value, tuple):
                name, inner = value
                return _by_name(named, name)(inner)
            for is_it, convert in unnamed:
                if is_it(value):
                    return convert(value)
            raise SerdeError(f"{type(value).__name__} is not a member of the union")

        return read


def record_maker(described: RecordType) -> Callable[[dict[RecordField, UserValue]], UserValue]:
    """Return the function that makes a record out of the values of its fields.

    A field that is left out gets the default of the class.
    """
    python = described.python
    if described.kind == "typeddict":
        return lambda parts: {each.name: part for each, part in parts.items()}
    # A validator of a model may change a value, so a model is never made without validation.
    if described.kind == "model":
        validate = python.model_validate
        return lambda parts: validate({each.wire_name: part for each, part in parts.items()})
    return lambda parts: python(**{each.name: part for each, part in parts.items()})


def _by_name(named: Mapping[str, Convert], name: str) -> Convert:
    # 1. The writer's namespace is the reader's: the full name is known. 2. It is another one: the
    # part after the last dot decides, as in the resolution of records outside unions.
    found = named.get(name)
    if found is not None:
        return found
    # Readers resolve records by their names without the namespace.
    short = name.rpartition(".")[2]
    for full, convert in named.items():
        if full.rpartition(".")[2] == short:
            return convert
    raise SerdeError(f"{name} is not a member of the union")


def _object_writer(described: RecordType, fields: list[tuple[RecordField, Convert]]) -> Convert:
    python: UserObject = described.python
    compiled = [(each, attrgetter(each.name), convert) for each, convert in fields]

    def write(value: UserValue) -> UserValue:
        if not isinstance(value, python):
            raise SerdeError(f"{type_name(python)} expected, got {type(value).__name__}")
        found = {}
        for each, read, convert in compiled:
            # A `try` costs nothing until it fails, and the error names the field without a path
            # that would have to be carried along for each value.
            try:
                found[each.wire_name] = convert(read(value))
            except SerdeError as error:
                raise _at(each, error) from error
        return found

    return write


def _typeddict_writer(described: RecordType, fields: list[tuple[RecordField, Convert]]) -> Convert:
    names = {each.name for each, _ in fields}

    def write(value: UserValue) -> UserValue:
        unknown = next((key for key in _checked(dict, value) if key not in names), None)
        if unknown is not None:
            raise SerdeError(f"{type_name(described.python)} has no key {unknown!r}")
        found = {}
        for each, convert in fields:
            part = value.get(each.name, MISSING)
            if part is MISSING and not each.may_be_absent:
                raise SerdeError(f"{each.path}: the key is missing")
            try:
                found[each.wire_name] = None if part is MISSING else convert(part)
            except SerdeError as error:
                raise _at(each, error) from error
        return found

    return write


def _at(field: RecordField, error: SerdeError) -> SerdeError:
    """Return an error with the field in front, unless it names one already."""
    text = str(error)
    return error if "`" in text else SerdeError(f"`{field.path}`: {text}")


def _enum_writer(described: EnumType) -> Convert:
    python = described.python
    return lambda value: _checked(python, value).name


def _datetime_writer(described: PrimitiveType) -> Convert:
    has_zone = described.has_zone

    def write(value: UserValue) -> UserValue:
        if (_checked(datetime, value).tzinfo is not None) != has_zone:
            raise SerdeError(wrong_zone(described))
        return value

    return write


def _array_writer(item: Convert, python: type) -> Convert:
    return lambda value: [item(each) for each in _checked(python, value)]


def _map_writer(part: Convert) -> Convert:
    return lambda value: {
        _checked(str, key): part(each) for key, each in _checked(dict, value).items()
    }


def _write_time(value: UserValue) -> UserValue:
    if _checked(time, value).tzinfo is not None:
        raise SerdeError("the time has a time zone, which schemas of times do not have")
    return value


def _write_duration(value: UserValue) -> UserValue:
    return _checked(timedelta, value) // _MICROSECOND


def _enum_reader(described: EnumType) -> Convert:
    members = {each.name: each for each in described.members}
    return lambda value: members[_untagged(value)]


def _array_reader(item: Convert, python: type) -> Convert:
    if python is list:
        return lambda value: [item(each) for each in value]
    return lambda value: python(item(each) for each in value)


def _map_reader(part: Convert) -> Convert:
    return lambda value: {key: part(each) for key, each in value.items()}


def _read_duration(value: UserValue) -> UserValue:
    return timedelta(microseconds=_checked(int, value))


def _read_float(value: UserValue) -> UserValue:
    return float(_checked((float, int), value))


def _checker(described: DescribedType) -> Convert:
    """Return the function that passes a value on if it has the type."""
    if isinstance(described, NullType):
        return _same
    if isinstance(described, LiteralType):
        python, values = described.python, frozenset(described.values)

        def literal(value: UserValue) -> UserValue:
            if type(value) is not python or value not in values:
                raise SerdeError(f"{value!r} is not one of {', '.join(map(repr, values))}")
            return value

        return literal
    if isinstance(described, DecimalType):
        return lambda value: _checked(Decimal, value)
    expected = cast("PrimitiveType", described).python

    def check(value: UserValue) -> UserValue:
        # The first comparison answers almost always; the second one knows subclasses.
        if type(value) is not expected and not is_of(described, value):
            raise SerdeError(f"{expected.__name__} expected, got {type(value).__name__}")
        return value

    return check


def _raw_check(described: DescribedType) -> Callable[[UserValue], bool]:
    """Return whether what fastavro has read may be of a member of a union.

    Records and enums have no name here if the writer's schema has no union.
    """
    match described:
        case PrimitiveType(python=python) if python is timedelta:
            return lambda value: type(value) is int
        case ArrayType():
            return lambda value: isinstance(value, list)
        case EnumType():
            return lambda value: isinstance(value, str)
        case RecordType():
            names = {each.wire_name for each in described.fields}
            return lambda value: isinstance(value, dict) and value.keys() == names
        case _:
            return lambda value: is_of(described, value)


def _checked(expected: type | tuple[type, ...], value: UserValue) -> UserValue:
    if not isinstance(value, expected):
        names = expected if isinstance(expected, tuple) else (expected,)
        wanted = " or ".join(each.__name__ for each in names)
        raise SerdeError(f"{wanted} expected, got {type(value).__name__}")
    return value


def _untagged(value: UserValue) -> UserValue:
    """Return a named value of a union without the name that fastavro puts before it."""
    return value[1] if isinstance(value, tuple) else value
