"""Schema: what the rows of a connector look like, as a value (Connect's schemas).

A schema comes from a declared type (`Schema.of`), from Arrow (`Schema.of_arrow`), from a source
that reads it outside (a table's columns), or from a converter of the service. Sinks make tables and
files of it.

Rule: a schema has Connect's kinds and logical types alone, plus a few logical types of ours where
Connect has none. A value of Python that no kind fits is JSON text (`logical="json"`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.replace import replace
from streamlog.serdes.derived.type_description import (
    ArrayType,
    DecimalType,
    DescribedType,
    EnumType,
    LiteralType,
    MapType,
    NullType,
    PrimitiveType,
    RecordType,
    UnionType,
    describe_type,
    without_null,
)
from streamlog.serdes.erased_types import JsonValue, TypeForm, UserObject
from streamlog.serdes.json_values import is_model
from streamlog.serdes.serde import type_name

Kind: TypeAlias = Literal[
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "boolean",
    "string",
    "bytes",
    "array",
    "map",
    "struct",
]
"""Connect's types, in lower case."""

DECIMAL_DIGITS_MAX: Final = 38
"""The precision of a decimal column in Arrow, Parquet and most databases."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct.

    Attributes:
        name: its name.
        schema: what it holds.
        default: the value where a row lacks the field; None: it has no default.
    """

    name: str
    schema: Schema
    # Not in the hash: a default may be a list or a dict, and schemas are keys of caches.
    default: JsonValue = dataclasses.field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """One of Connect's schemas, as a value.

    Attributes:
        kind: the type.
        optional: whether None is allowed.
        fields: of a struct: its fields, in order.
        items: of an array: its items; of a map: its values.
        keys: of a map: its keys; None for text.
        name: the name of the type, such as `shop.Order`.
        version: the version of the type.
        logical: what the kind stands for. Connect's own are Decimal, Date, Time and Timestamp; ours
            are LocalTimestamp (without a zone), Duration, uuid and json. Rows hold the values of
            Python: Decimal, date, time, datetime, timedelta, UUID, and for json whatever it is.
        parameters: names and texts, such as the "scale" and "connect.decimal.precision" of a
            Decimal. A Decimal without a scale is of kind "string".
        doc: what it is, for people.
    """

    kind: Kind
    optional: bool = False
    fields: tuple[Field, ...] = ()
    items: Schema | None = None
    keys: Schema | None = None
    name: str | None = None
    version: int | None = None
    logical: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    doc: str | None = None

    @classmethod
    def of(cls, declared: TypeForm) -> Schema:
        """Return the schema of a declared type: a dataclass, Struct, TypedDict, model, or a part.

        Raises:
            SerdeError: the type has no equivalent; the message names the type and the field.
        """
        return schema_of(describe_type(declared))

    @classmethod
    def of_arrow(cls, declared: UserObject) -> Schema:
        """Return the schema of a `pyarrow.Schema` or `pyarrow.DataType`."""
        return _schema_of_arrow(declared)

    def to_arrow(self) -> UserObject:
        """Return the `pyarrow.DataType`; `pyarrow.schema(...)` of a struct's gives columns."""
        return _to_arrow(self)

    def parameter(self, name: str) -> str | None:
        """Return a parameter by its name, or None."""
        return next((text for key, text in self.parameters if key == name), None)

    def field(self, name: str) -> Field | None:
        """Return a field by its name, or None."""
        return next((each for each in self.fields if each.name == name), None)

    def newer_than(self, before: Schema) -> Sequence[Field]:
        """Return the fields that `before` lacks, in order: what a target has to add."""
        known = {each.name for each in before.fields}
        return [each for each in self.fields if each.name not in known]


def part_of(schema: Schema | None) -> Schema:
    """Return the schema of keys or items; rows of ours have none for maps of text."""
    return Schema("string") if schema is None else schema


def _find_attributes(kind: type) -> tuple[str, ...] | None:
    """Return the names of a class's fields, in order; None if it declares none."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(each.name for each in dataclasses.fields(kind))
    if is_model(kind):
        models: UserObject = kind
        return tuple(models.model_fields)
    return None


attributes_of: Final[Callable[[type], tuple[str, ...] | None]] = cache(_find_attributes)
"""The names of a class's fields, in order; None if it declares none. Which fields a class has never
changes, and each row of a batch asks for them."""


def fields_of(value: object) -> Mapping[str, object]:
    """Return the fields of a dict, dataclass, Struct or model, in order; values stay as they are.

    Raises:
        BadRecord: the value has no fields.
    """
    if isinstance(value, Mapping):
        # A view: a sink that adds a column of its own must not change the record.
        return MappingProxyType(value)
    names = attributes_of(type(value))
    if names is None:
        raise BadRecord(
            f"{type_name(type(value))} has no fields: a row is a dict, dataclass, Struct or model"
        )
    return {name: getattr(value, name) for name in names}


_PRIMITIVES: Final[Mapping[type, Schema]] = {
    bool: Schema("boolean"),
    int: Schema("int64"),
    float: Schema("float64"),
    str: Schema("string"),
    bytes: Schema("bytes"),
    date: Schema("int32", logical="Date"),
    datetime: Schema("int64", logical="Timestamp"),
    time: Schema("int32", logical="Time"),
    timedelta: Schema("int64", logical="Duration"),
    UUID: Schema("string", logical="uuid"),
}
_JSON: Final = Schema("string", logical="json")
_LOCAL: Final = Schema("int64", logical="LocalTimestamp")


def schema_of(described: DescribedType, within: tuple[RecordType, ...] = ()) -> Schema:
    """Return the schema of a described type.

    Args:
        described: the type.
        within: the records around it; one of them again is a recursive type, which becomes JSON.
    """
    match described:
        case PrimitiveType():
            is_local = described.python is datetime and not described.has_zone
            found = _LOCAL if is_local else _PRIMITIVES[described.python]
        case DecimalType():
            found = _decimal(described)
        case EnumType():
            found = _of_values([member.value for member in described.members])
        case LiteralType():
            found = _of_values(list(described.values))
        case ArrayType():
            found = Schema("array", items=schema_of(described.item, within))
        case MapType():
            keys, values = schema_of(described.key, within), schema_of(described.value, within)
            found = Schema("map", keys=keys, items=values)
        case UnionType():
            found = _union(described, within)
        case RecordType():
            found = _JSON if described in within else _record(described, within)
        case NullType():
            found = replace(_JSON, optional=True)
    return found


def _decimal(described: DecimalType) -> Schema:
    if described.digits is None:
        # Without a scale each value has its own, which only text can hold.
        return Schema("string", logical="Decimal")
    return decimal_schema(described.digits.precision, described.digits.scale)


def decimal_schema(precision: int, scale: int) -> Schema:
    """Return the schema of decimals with `precision` digits, `scale` of them after the point."""
    parameters = (("scale", str(scale)), ("connect.decimal.precision", str(precision)))
    return Schema("bytes", logical="Decimal", parameters=parameters)


def _of_values(values: Sequence[object]) -> Schema:
    # By type, not by isinstance: True is an int, and would make a boolean enum a number.
    kinds = {type(value) for value in values}
    return _PRIMITIVES.get(kinds.pop(), _JSON) if len(kinds) == 1 else _JSON


def _union(described: UnionType, within: tuple[RecordType, ...]) -> Schema:
    only = without_null(described)
    # Connect has no unions: what may be one of several types is JSON.
    found = _JSON if isinstance(only, UnionType) else schema_of(only, within)
    return replace(found, optional=described.is_nullable)


def _record(described: RecordType, within: tuple[RecordType, ...]) -> Schema:
    fields = []
    for each in described.fields:
        found = schema_of(each.type, (*within, described))
        # Connect does not tell a missing key from null.
        if each.may_be_absent:
            found = replace(found, optional=True)
        fields.append(Field(each.name, found))
    return Schema("struct", fields=tuple(fields), name=described.name)


_ARROW_KINDS: Final[Mapping[str, str]] = {
    "boolean": "bool_",
    "bytes": "binary",
    **{kind: kind for kind in ("int8", "int16", "int32", "int64", "float32", "float64", "string")},
}


def _to_arrow(schema: Schema) -> UserObject:
    pa: UserObject = import_module("pyarrow")
    # A logical type comes first: a Decimal is bytes to Connect, but not to Arrow.
    match schema:
        case Schema(logical="Decimal"):
            found = _decimal_to_arrow(pa, schema)
        case Schema(logical="Date"):
            found = pa.date32()
        case Schema(logical="Time"):
            found = pa.time64("us")
        case Schema(logical="Timestamp"):
            found = pa.timestamp("us", tz="UTC")
        case Schema(logical="LocalTimestamp"):
            found = pa.timestamp("us")
        case Schema(kind="struct"):
            found = pa.struct([_arrow_field(pa, each.name, each.schema) for each in schema.fields])
        case Schema(kind="array"):
            found = pa.list_(_arrow_field(pa, "item", schema.items or _JSON))
        case Schema(kind="map"):
            keys = pa.string() if schema.keys is None else _to_arrow(schema.keys)
            found = pa.map_(keys, _arrow_field(pa, "value", schema.items or _JSON))
        case _:
            found = getattr(pa, _ARROW_KINDS[schema.kind])()
    return found


def _decimal_to_arrow(pa: UserObject, schema: Schema) -> UserObject:
    scale = schema.parameter("scale")
    precision = int(schema.parameter("connect.decimal.precision") or DECIMAL_DIGITS_MAX)
    # Without a scale each value has its own, which only text can hold.
    fits = scale is not None and precision <= DECIMAL_DIGITS_MAX
    return pa.decimal128(precision, int(scale or 0)) if fits else pa.string()


def _arrow_field(pa: UserObject, name: str, schema: Schema) -> UserObject:
    return pa.field(name, _to_arrow(schema), nullable=schema.optional)


def _schema_of_arrow(declared: UserObject) -> Schema:
    pa: UserObject = import_module("pyarrow")
    if isinstance(declared, pa.Schema):
        declared = pa.struct(list(declared))
    of = pa.types
    if of.is_struct(declared):
        fields = [
            Field(each.name, replace(_schema_of_arrow(each.type), optional=each.nullable))
            for each in declared
        ]
        found = Schema("struct", fields=tuple(fields))
    elif of.is_map(declared):
        keys = _schema_of_arrow(declared.key_type)
        found = Schema("map", keys=keys, items=_of_arrow_field(declared.item_field))
    elif of.is_list(declared) or of.is_large_list(declared) or of.is_fixed_size_list(declared):
        found = Schema("array", items=_of_arrow_field(declared.value_field))
    elif of.is_dictionary(declared):
        found = _schema_of_arrow(declared.value_type)
    elif of.is_decimal(declared):
        found = decimal_schema(declared.precision, declared.scale)
    else:
        found = _scalar_of_arrow(of, declared)
    return found


def _of_arrow_field(field: UserObject) -> Schema:
    return replace(_schema_of_arrow(field.type), optional=field.nullable)


def _scalar_of_arrow(of: UserObject, declared: UserObject) -> Schema:
    # The narrow tests come before the wide ones: an int8 is an integer as well, and Connect has no
    # unsigned types, so those take the next larger kind.
    if of.is_timestamp(declared):
        return _LOCAL if declared.tz is None else _PRIMITIVES[datetime]
    for is_it, schema in (
        (of.is_boolean, _PRIMITIVES[bool]),
        (of.is_date, _PRIMITIVES[date]),
        (of.is_time, _PRIMITIVES[time]),
        (of.is_duration, _PRIMITIVES[timedelta]),
        (of.is_binary, _PRIMITIVES[bytes]),
        (of.is_large_binary, _PRIMITIVES[bytes]),
        (of.is_fixed_size_binary, _PRIMITIVES[bytes]),
        (of.is_string, _PRIMITIVES[str]),
        (of.is_large_string, _PRIMITIVES[str]),
        (of.is_int8, Schema("int8")),
        (of.is_int16, Schema("int16")),
        (of.is_uint8, Schema("int16")),
        (of.is_int32, Schema("int32")),
        (of.is_uint16, Schema("int32")),
        (of.is_integer, Schema("int64")),
        (of.is_float16, Schema("float32")),
        (of.is_float32, Schema("float32")),
        (of.is_floating, Schema("float64")),
    ):
        if is_it(declared):
            return schema
    return _JSON
