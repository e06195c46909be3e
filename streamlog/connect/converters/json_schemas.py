"""JSON schemas of Connect: the form in which JsonConverter writes a schema beside its payload.

Also the values of logical types as the kinds below them: Decimal as bytes, Date as days, Time and
Timestamp as milliseconds. Java has one class for the latter three, Python has one for each.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Final, get_args
from uuid import UUID

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.java_values import (
    DAY_MS,
    EPOCH,
    moment_ms,
    moment_of,
    parse_decimal,
    signed_bytes,
    time_of,
)
from streamlog.connect.row_schema import Field, Kind, Schema, part_of
from streamlog.replace import replace
from streamlog.serdes.erased_types import JsonValue

CONNECT_LOGICAL: Final = "org.apache.kafka.connect.data."
OWN_LOGICAL: Final = "streamlog."
"""Before the names of our logical types, which are plain kinds to everyone else."""
CONNECT_NAMES: Final = frozenset({"Decimal", "Date", "Time", "Timestamp"})
OWN_NAMES: Final = frozenset({"LocalTimestamp", "Duration", "uuid", "json", "Decimal"})
"""Kafka Connect's Decimal has a scale for all values; one without is text, and ours."""
DEPTH_MAX: Final = 100
"""How deep a schema may be nested."""
_FLOATS: Final[Mapping[str, Kind]] = {"float": "float32", "double": "float64"}
_FLOAT_NAMES: Final = {kind: name for name, kind in _FLOATS.items()}
_KINDS: Final[Mapping[str, Kind]] = {
    **{kind: kind for kind in get_args(Kind) if not kind.startswith("float")},
    **_FLOATS,
}
_MICROSECOND: Final = timedelta(microseconds=1)
_EXACT: Final = Context(prec=10_000)
"""Enough digits for any number that a record holds."""

JsonSchema = dict[str, JsonValue]


def schema_to_json(schema: Schema, default: JsonValue = None) -> JsonSchema:
    """Return a schema as JsonConverter writes it, with the default of the field that has it."""
    found: JsonSchema = {"type": _FLOAT_NAMES.get(schema.kind, schema.kind)}
    if schema.kind == "array":
        found["items"] = schema_to_json(part_of(schema.items))
    elif schema.kind == "map":
        found["keys"] = schema_to_json(part_of(schema.keys))
        found["values"] = schema_to_json(part_of(schema.items))
    elif schema.kind == "struct":
        found["fields"] = [
            {**schema_to_json(each.schema, each.default), "field": each.name}
            for each in schema.fields
        ]
    found["optional"] = schema.optional
    name, version = name_and_version(schema)
    for key, value in (("name", name), ("version", version), ("doc", schema.doc)):
        if value is not None:
            found[key] = value
    if schema.parameters:
        found["parameters"] = dict(schema.parameters)
    if default is not None:
        found["default"] = default
    return found


def name_and_version(schema: Schema) -> tuple[str | None, int | None]:
    """Return the name and version of a schema as Kafka Connect has them."""
    # Kafka's logical types are named schemas of version 1; their scale is among the parameters.
    if is_connect_logical(schema):
        return f"{CONNECT_LOGICAL}{schema.logical}", 1
    if schema.logical is not None:
        return f"{OWN_LOGICAL}{schema.logical}", schema.version
    return schema.name, schema.version


def with_name(schema: Schema, name: str) -> Schema:
    """Return a schema with a name of Kafka Connect's, which may be that of a logical type."""
    # Kafka Connect has no logical type that is text; with us, a Decimal without a scale is.
    is_text = schema.kind == "string"
    connect_names = frozenset[str]() if is_text else CONNECT_NAMES
    for prefix, names in ((CONNECT_LOGICAL, connect_names), (OWN_LOGICAL, OWN_NAMES)):
        logical = name.removeprefix(prefix)
        if name.startswith(prefix) and logical in names:
            return replace(schema, logical=logical, version=None)
    return replace(schema, name=name)


def is_connect_logical(schema: Schema) -> bool:
    """Return whether a schema is one of Kafka Connect's own logical types."""
    return schema.logical in CONNECT_NAMES and schema.kind != "string"


def schema_from_json(found: JsonValue, depth: int = 0) -> Schema | None:
    """Return the schema that JSON describes; None for null.

    Raises:
        BadRecord: it describes none; the message says what is wrong with it.
    """
    if found is None:
        return None
    if depth > DEPTH_MAX:
        raise BadRecord(f"a schema is nested deeper than {DEPTH_MAX} levels")
    if not isinstance(found, dict) or not isinstance(found.get("type"), str):
        raise BadRecord("Schema must contain 'type' field")
    kind = _KINDS.get(str(found["type"]))
    if kind is None:
        raise BadRecord(f"Unknown schema type: {found['type']}")
    schema = Schema(kind, optional=found.get("optional") is True)
    if kind == "array":
        schema = replace(schema, items=_inner(found, "items", "Array", depth))
    elif kind == "map":
        keys, items = (_inner(found, each, "Map", depth) for each in ("keys", "values"))
        schema = replace(schema, keys=keys, items=items)
    elif kind == "struct":
        schema = replace(schema, fields=_fields(found, depth))
    return _named(schema, found)


def _named(schema: Schema, found: Mapping[str, JsonValue]) -> Schema:
    name, version, doc = found.get("name"), found.get("version"), found.get("doc")
    parameters = found.get("parameters")
    pairs = list(parameters.items()) if isinstance(parameters, dict) else []
    texts = [(key, value) for key, value in pairs if isinstance(value, str)]
    if len(texts) < len(pairs):
        raise BadRecord("Schema parameters must have string values.")
    schema = replace(
        schema,
        parameters=tuple(texts),
        doc=doc if isinstance(doc, str) else None,
        version=version if type(version) is int else None,
    )
    return with_name(schema, name) if isinstance(name, str) else schema


def _inner(found: Mapping[str, JsonValue], key: str, of: str, depth: int) -> Schema:
    inner = schema_from_json(found.get(key), depth + 1)
    if inner is None:
        raise BadRecord(f"{of} schema did not specify its {key}")
    return inner


def _fields(found: Mapping[str, JsonValue], depth: int) -> tuple[Field, ...]:
    listed = found.get("fields")
    if not isinstance(listed, list):
        raise BadRecord('Struct schema\'s "fields" argument is not an array.')
    fields = []
    for each in listed:
        name = each.get("field") if isinstance(each, dict) else None
        inner = schema_from_json(each, depth + 1)
        if not isinstance(name, str) or inner is None or not isinstance(each, dict):
            raise BadRecord("Struct schema's field name not specified properly")
        fields.append(Field(name, inner, each.get("default")))
    return tuple(fields)


# ------------------------------------------------------------------------------ logical values


def to_base(schema: Schema, value: object) -> object:
    """Return the value of a logical type as its kind.

    Raises:
        BadRecord: it is no value of the type.
    """
    convert = _TO_BASE.get(schema.logical or "")
    if convert is None:
        return value
    try:
        return convert(schema, value)
    except (TypeError, AttributeError, ValueError) as error:
        raise _mismatch(schema, value) from error


def from_base(schema: Schema, value: object) -> object:
    """Return the value of a logical type, from its kind.

    Raises:
        BadRecord: it is no value of the type.
    """
    convert = _FROM_BASE.get(schema.logical or "")
    if convert is None:
        return value
    try:
        return convert(schema, value)
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        raise _mismatch(schema, value) from error


def _mismatch(schema: Schema, value: object) -> BadRecord:
    return BadRecord(f"Invalid type for {schema.logical}: {type(value).__name__}")


def scale_of(schema: Schema) -> int:
    """Return the digits behind the point of a Decimal.

    Raises:
        BadRecord: the schema does not say.
    """
    text = schema.parameter("scale") or ""
    if not text.removeprefix("-").isdecimal():
        raise BadRecord("Invalid Decimal schema: scale parameter not found.")
    return int(text)


def unscaled_bytes(schema: Schema, value: object) -> bytes:
    """Return a Decimal as the bytes of its digits, a signed number of Java, highest byte first."""
    if not isinstance(value, Decimal) or not value.is_finite():
        raise _mismatch(schema, value)
    scale = scale_of(schema)
    if -int(value.as_tuple().exponent) != scale:
        raise BadRecord(
            f"Decimal value has mismatching scale for given Decimal schema. Schema has scale"
            f" {scale}, value has scale {-int(value.as_tuple().exponent)}."
        )
    return signed_bytes(int(value.scaleb(scale, _EXACT)))


def _decimal_text(schema: Schema, value: object) -> str:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise _mismatch(schema, value)
    return format(value, "f")


def _decimal(schema: Schema, value: object) -> Decimal:
    if isinstance(value, str):
        return parse_decimal(value)
    if isinstance(value, bytes):
        number = Decimal(int.from_bytes(value, "big", signed=True))
        return number.scaleb(-scale_of(schema), _EXACT)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value)
    raise _mismatch(schema, value)


def whole_days(value: object) -> int:
    """Return the days of a date since 1970.

    Raises:
        BadRecord: it is no date, or has a time of day.
    """
    days, rest = divmod(moment_ms(value), DAY_MS)
    if rest:
        raise BadRecord(
            "Kafka Connect Date type should not have any time fields set to non-zero values."
        )
    return days


def day_ms(value: object) -> int:
    """Return the milliseconds of a time of day.

    Raises:
        BadRecord: it is none.
    """
    ms = moment_ms(value)
    if not 0 <= ms < DAY_MS:
        raise BadRecord("Kafka Connect Time type must have a time of day, without a date")
    return ms


def _int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TypeError


def _json_text(_schema: Schema, value: object) -> str:
    return msgspec.json.encode(value).decode()


def _timedelta_us(_schema: Schema, value: object) -> object:
    return value // _MICROSECOND if isinstance(value, timedelta) else value


def _local_us(_schema: Schema, value: object) -> object:
    if not isinstance(value, datetime):
        return value
    return (value.replace(tzinfo=None) - EPOCH.replace(tzinfo=None)) // _MICROSECOND


_TO_BASE: Final[Mapping[str, Callable[[Schema, object], object]]] = {
    "Decimal": lambda schema, value: (
        _decimal_text(schema, value) if schema.kind == "string" else unscaled_bytes(schema, value)
    ),
    "Date": lambda _schema, value: whole_days(value),
    "Time": lambda _schema, value: day_ms(value),
    "Timestamp": lambda _schema, value: moment_ms(value),
    "uuid": lambda _schema, value: str(value),
    "json": _json_text,
    "Duration": _timedelta_us,
    "LocalTimestamp": _local_us,
}
_FROM_BASE: Final[Mapping[str, Callable[[Schema, object], object]]] = {
    "Decimal": _decimal,
    "Date": lambda _schema, value: _day(_int(value)),
    "Time": lambda _schema, value: _time(_int(value)),
    "Timestamp": lambda _schema, value: moment_of(_int(value)),
    "uuid": lambda _schema, value: UUID(str(value)),
    "json": lambda _schema, value: msgspec.json.decode(str(value)),
    "Duration": lambda _schema, value: _int(value) * _MICROSECOND,
    "LocalTimestamp": lambda _schema, value: (
        EPOCH.replace(tzinfo=None) + _int(value) * _MICROSECOND
    ),
}


def _day(days: int) -> date:
    return moment_of(days * DAY_MS).date()


def _time(ms: int) -> time:
    # Kafka Connect refuses them as well: as a time of day they would be another value.
    if not 0 <= ms < DAY_MS:
        raise BadRecord(f"{ms} ms is no time of day: it is not in the range 0 to {DAY_MS - 1}")
    return time_of(ms)


def bytes_from_json(value: JsonValue) -> bytes:
    """Return bytes that JSON has as base64.

    Raises:
        BadRecord: it is no base64.
    """
    try:
        return b64decode(str(value), validate=True)
    except ValueError:
        raise BadRecord("Invalid bytes field") from None


def bytes_to_json(value: object) -> str:
    """Return bytes as the base64 that JSON has.

    Raises:
        BadRecord: they are no bytes.
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise BadRecord(f"Invalid type for bytes type: {type(value).__name__}")
    return b64encode(value).decode()
