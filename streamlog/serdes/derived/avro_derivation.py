"""Avro schema: derives a schema of Avro 1.11 from a described type.

| Python | Avro |
|---|---|
| bool, int, float, str, bytes | boolean, long, double, string, bytes |
| date; time; datetime | int `date`; long `time-micros`; long `timestamp-micros` |
| datetime with `Meta(tz=False)` | long `local-timestamp-micros` |
| Decimal with `Digits`; UUID | bytes `decimal`; string `uuid` |
| timedelta | long `timedelta-micros`: microseconds |
| Enum; Literal | enum of the members' names; the type of its values |
| list, set, tuple[X, ...]; dict[str, X] | array; map |
| X or Y; NotRequired[X] | union; union of null and X |

Avro's own `duration` has no sign, counts months and cuts to milliseconds, so it can't hold a
timedelta. Programs that do not know `timedelta-micros` read a long, as the specification says.

Rule: a union has at most one member of each Avro type, as the specification demands, and begins
with the member that the field's default belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Final, cast
from uuid import UUID

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
)
from streamlog.serdes.erased_types import JsonValue, TypeForm, UserObject
from streamlog.serdes.serde import type_name

_SYMBOL = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PRIMITIVES: Final[Mapping[type, JsonValue]] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    date: {"type": "int", "logicalType": "date"},
    time: {"type": "long", "logicalType": "time-micros"},
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
    timedelta: {"type": "long", "logicalType": "timedelta-micros"},
    UUID: {"type": "string", "logicalType": "uuid"},
}
_LOCAL: Final = {"type": "long", "logicalType": "local-timestamp-micros"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
LONG_MAX: Final = (1 << 63) - 1


def avro_schema_of(declared: TypeForm) -> JsonValue:
    """Return the Avro schema of a declared type, as data.

    Raises:
        SerdeError: the type, or one of its fields, has no equivalent in Avro.
    """
    return avro_schema(describe_type(declared))


def avro_schema(described: DescribedType) -> JsonValue:
    """Return the Avro schema of a described type, as data; see `avro_schema_of`."""
    namespace = described.namespace if isinstance(described, RecordType) else ""
    return _Deriver(namespace).schema(described, "the type")


def full_name(described: RecordType | EnumType, namespace: str) -> str:
    """Return the full name of a type inside a schema whose outermost type has `namespace`."""
    # A name without a namespace gets that of the type around it (Avro 1.11, "Names"). So that a
    # type has one name wherever it stands first, all of them get the namespace of the outermost
    # type.
    is_full = "." in described.name or not namespace
    return described.name if is_full else f"{namespace}.{described.name}"


def avro_type(described: DescribedType, namespace: str) -> str:
    """Return the name by which fastavro finds a type in a union."""
    if isinstance(described, RecordType | EnumType):
        return full_name(described, namespace)
    schema = _Deriver(namespace).schema(described, "")
    return cast("str", schema["type"] if isinstance(schema, dict) else schema)


class _Deriver:
    """Derives one schema; a named type is written out where it comes first."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._defined: set[str] = set()

    def schema(self, described: DescribedType, path: str) -> JsonValue:
        match described:
            case PrimitiveType(python=python):
                is_local = python is datetime and not described.has_zone
                found = _LOCAL if is_local else _PRIMITIVES[python]
                schema = dict(found) if isinstance(found, Mapping) else found
            case NullType():
                schema = "null"
            case LiteralType():
                schema = _PRIMITIVES[described.python]
            case DecimalType():
                schema = _decimal(described)
            case ArrayType():
                schema = {"type": "array", "items": self.schema(described.item, f"{path}[]")}
            case MapType():
                if not is_text(described.key):
                    raise SerdeError(f"{path}: the keys of a map in Avro are always str")
                schema = {"type": "map", "values": self.schema(described.value, f"{path}[...]")}
            case UnionType():
                schema = self._union(described.members, path)
            case _:
                schema = self._named(described)
        return schema

    def _named(self, described: RecordType | EnumType) -> JsonValue:
        name = full_name(described, self._namespace)
        if name in self._defined:
            return name
        # 1. The first time, a named type is written out. 2. Afterwards its name stands for it, also
        # inside of itself: the name is known before its fields are.
        self._defined.add(name)
        namespace, _, short = name.rpartition(".")
        head = {"name": short, **({"namespace": namespace} if namespace else {})}
        if isinstance(described, EnumType):
            return {"type": "enum", **head, "symbols": _symbols(described)}
        fields = [self._field(each) for each in described.fields]
        return {"type": "record", **head, "fields": fields}

    def _field(self, declared: RecordField) -> JsonValue:
        name = declared.wire_name
        if not _SYMBOL.fullmatch(name):
            raise SerdeError(
                f"{declared.path}: {name!r} can't be the name of a field in Avro: it may have the "
                "characters a-z, A-Z, 0-9 and '_'"
            )
        members = _members(declared.type)
        if declared.may_be_absent:
            schema = self._union((NullType(), *members), declared.path)
            return {"name": name, "type": schema, "default": None}
        if declared.default is MISSING:
            return {"name": name, "type": self.schema(declared.type, declared.path)}
        # `int | None = None` becomes ["null", "long"], and `int | None = 3` ["long", "null"].
        first = next((each for each in members if is_of(each, declared.default)), None)
        if first is None:
            raise SerdeError(
                f"{declared.path}: its default {declared.default!r} is not of the declared type"
            )
        # A default belongs to the first member of a union (Avro 1.11, "Complex types").
        rest = [each for each in members if each is not first]
        schema = self._union((first, *rest), declared.path) if rest else None
        if schema is None:
            schema = self.schema(first, declared.path)
        return {
            "name": name,
            "type": schema,
            "default": _default(first, declared.default, declared.path),
        }

    def _union(self, members: tuple[DescribedType, ...], path: str) -> JsonValue:
        schemas, seen = [], set()
        for member in members:
            schema = self.schema(member, path)
            kind = schema["type"] if isinstance(schema, dict) else schema
            # Names distinguish named types; their Avro type alone tells all others apart (Avro
            # 1.11, "Unions").
            if kind in {"record", "enum"}:
                kind = full_name(cast("RecordType | EnumType", member), self._namespace)
            if kind in seen:
                raise SerdeError(
                    f"{path}: two members of the union are {kind!r} in Avro, which can't tell them "
                    "apart: put one of them into a dataclass"
                )
            seen.add(kind)
            schemas.append(schema)
        return schemas


def is_text(described: DescribedType) -> bool:
    """Return whether values of a type are str."""
    return isinstance(described, PrimitiveType | LiteralType) and described.python is str


def is_of(described: DescribedType, value: object) -> bool:
    """Return whether a value is one of a member of a union, by its class."""
    match described:
        case PrimitiveType():
            found = _is_primitive(described.python, value)
        case LiteralType():
            found = type(value) is described.python and value in described.values
        case RecordType(kind="typeddict"):
            names = {each.name for each in described.fields}
            found = isinstance(value, dict) and value.keys() <= names
        case UnionType():
            found = any(is_of(member, value) for member in described.members)
        case NullType():
            found = value is None
        case DecimalType():
            found = isinstance(value, Decimal)
        case MapType():
            found = isinstance(value, dict)
        case _:
            found = isinstance(value, described.python)
    return found


def _is_primitive(python: type, value: object) -> bool:
    if type(value) is python:
        return True
    # A bool is an int, and a datetime is a date, but not here; as for type checkers, an int is a
    # float.
    if python in {int, date}:
        return False
    kinds = (float, int) if python is float else python
    return isinstance(value, kinds) and not isinstance(value, Enum | bool)


def value_of(found: RecordField, obj: UserObject, kind: str) -> object:
    """Return the value of a field of a record; `MISSING` if the key is absent."""
    return obj.get(found.name, MISSING) if kind == "typeddict" else getattr(obj, found.name)


def _members(described: DescribedType) -> tuple[DescribedType, ...]:
    return described.members if isinstance(described, UnionType) else (described,)


def _decimal(described: DecimalType) -> JsonValue:
    if described.digits is None:
        raise SerdeError(
            f"{described.path}: Avro needs the number of digits of a Decimal: write "
            "Annotated[Decimal, Digits(12, 2)], for 12 digits, 2 of them after the point"
        )
    precision, scale = described.digits.precision, described.digits.scale
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _symbols(described: EnumType) -> list[str]:
    names = [member.name for member in described.members]
    for name in names:
        if not _SYMBOL.fullmatch(name):
            raise SerdeError(
                f"{type_name(described.python)}.{name} can't be a symbol in Avro: it may have the "
                "characters a-z, A-Z, 0-9 and '_'"
            )
    return names


def _default(described: DescribedType, value: UserObject, path: str) -> JsonValue:
    """Return a default as JSON, by the table of Avro's specification."""
    match described:
        case NullType():
            written = None
        case EnumType():
            written = value.name
        case DecimalType():
            written = _decimal_bytes(value, described, path).decode("latin-1")
        case ArrayType():
            # Sets have an order that differs between runs; a schema must not.
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            written = [_default_of(described.item, each, path) for each in items]
        case MapType():
            written = {key: _default_of(described.value, each, path) for key, each in value.items()}
        case RecordType():
            parts = ((each, value_of(each, value, described.kind)) for each in described.fields)
            written = {
                each.wire_name: None if part is MISSING else _default_of(each.type, part, each.path)
                for each, part in parts
            }
        case PrimitiveType():
            written = _primitive_default(described, value, path)
        case _:
            written = value
    return written


def _default_of(described: DescribedType, value: object, path: str) -> JsonValue:
    """Return a part of a default, which has to belong to the first member of a union."""
    first = _members(described)[0]
    if not is_of(first, value):
        raise SerdeError(
            f"{path}: the default {value!r} can't be written in a schema of Avro, because it must "
            "be of the first member of each union inside it"
        )
    return _default(first, value, path)


def _primitive_default(described: PrimitiveType, value: UserObject, path: str) -> JsonValue:
    python = described.python
    if python is datetime and (value.tzinfo is not None) != described.has_zone:
        raise SerdeError(f"{path}: {wrong_zone(described)}")
    if python is float and not isfinite(value):
        raise SerdeError(f"{path}: the default {value} can't be written in a schema, which is JSON")
    if python is int and not -LONG_MAX - 1 <= value <= LONG_MAX:
        raise SerdeError(f"{path}: the default {value} has more than 64 bits")
    convert = _DEFAULTS.get(python)
    return value if convert is None else convert(value)


def _clock_micros(value: time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


_DEFAULTS: Final[Mapping[type, Callable[[UserObject], JsonValue]]] = {
    float: float,
    bytes: lambda value: value.decode("latin-1"),
    UUID: str,
    date: lambda value: value.toordinal() - date(1970, 1, 1).toordinal(),
    time: _clock_micros,
    datetime: lambda value: (value.replace(tzinfo=value.tzinfo or UTC) - _EPOCH) // _MICROSECOND,
    timedelta: lambda value: value // _MICROSECOND,
}
"""Defaults as JSON, by their types in Python."""


def wrong_zone(described: PrimitiveType) -> str:
    """Return the reason why a datetime is refused."""
    if described.has_zone:
        return (
            "the datetime has no time zone, so it is no moment: use datetime.now(UTC), or declare "
            "Annotated[datetime, msgspec.Meta(tz=False)]"
        )
    return "the datetime has a time zone, but the field is declared with Meta(tz=False)"


def _decimal_bytes(value: Decimal, described: DecimalType, path: str) -> bytes:
    digits = described.digits
    # With scale 1, 1.50 is 15, but 1.55 would lose a digit: a default is never rounded.
    scaled = None if digits is None else value.scaleb(digits.scale)
    if scaled is None or scaled != scaled.to_integral_value():
        raise SerdeError(f"{path}: the default {value} has more digits than declared")
    unscaled = int(scaled)
    return unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
