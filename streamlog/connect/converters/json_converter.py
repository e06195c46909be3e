"""JsonConverter: rows as JSON, with their schema beside them or without.

What it reads and writes is what `org.apache.kafka.connect.json.JsonConverter` does. One difference:
where Java makes 0, false or null of JSON that does not fit its schema, this converter refuses the
record, as nothing says that a wrong value is wrong once it is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.json_schemas import (
    bytes_from_json,
    bytes_to_json,
    from_base,
    schema_from_json,
    schema_to_json,
    to_base,
)
from streamlog.connect.java_values import INTEGER_BITS, kind_of, single, single_text, wrapped
from streamlog.connect.row_schema import Field, Schema, fields_of
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import JsonValue

SCHEMAS_CACHED: Final = 1_000
"""How many schemas a process keeps, of those that it met last."""
_DECODER: Final = msgspec.json.Decoder(float_hook=Decimal)
"""Keeps the digits of numbers: a schema may say Decimal."""
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
"""Numbers that JSON does not have, as Jackson writes them."""


class ConvertedValue(NamedTuple):
    """A key or value with its schema; None: there is none."""

    schema: Schema | None
    value: object


class JsonConverter(msgspec.Struct, frozen=True, kw_only=True):
    """Converts between JSON and rows.

    Attributes:
        schemas_enable: whether bytes are an envelope of schema and payload.
        decimal_format: how a Decimal is written: base64 of its digits, or a number.
        replace_null_with_default: whether null becomes the default of its field (KIP-1040).
        schemas_cache_size: accepted; a process keeps the last 1,000 schemas.
        schema_content: the schema of all values, as JSON: with `schemas_enable`, bytes are the
            payload alone (KIP-1054).
    """

    schemas_enable: bool = True
    decimal_format: Literal["BASE64", "NUMERIC"] = "BASE64"
    replace_null_with_default: bool = True
    schemas_cache_size: int = SCHEMAS_CACHED
    schema_content: str | None = None

    def check(self) -> None:
        """Raise ConfigError if `schema_content` is no schema."""
        if self.schema_content:
            try:
                _schema_of(self.schema_content.encode())
            except (BadRecord, msgspec.MsgspecError) as error:
                raise ConfigError(f"schema.content is no schema of Connect: {error}") from None

    def is_tombstone(self, schema: Schema | None) -> bool:
        """Return whether a null of a schema has no bytes: one with a schema is JSON's null."""
        return schema is None

    def decode(self, data: bytes | None) -> ConvertedValue:
        """Return what bytes of a topic hold.

        Raises:
            BadRecord: they are no JSON, or JSON that does not fit its schema.
        """
        if data is None:
            return ConvertedValue(None, None)
        if not self.schemas_enable or self.schema_content:
            # As in Java, a converter without schemas does not look at the one of its settings.
            text = self.schema_content if self.schemas_enable else None
            schema = _schema_of(text.encode()) if text else None
            return ConvertedValue(schema, self.from_json(schema, parsed_json(data)))
        try:
            envelope = msgspec.json.decode(data, type=_Envelope)
        except msgspec.ValidationError:
            raise BadRecord(
                'JsonConverter with schemas.enable requires "schema" and "payload"'
                " fields and may not contain additional fields. If you are trying to deserialize"
                " plain JSON data, set schemas.enable=false in your converter configuration."
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _no_json(error) from None
        # Schemas are kept by their bytes: a topic repeats the same one in every record, and parsing
        # it would cost more than the row.
        schema = _schema_of(bytes(envelope.schema))
        return ConvertedValue(schema, self.from_json(schema, parsed_json(bytes(envelope.payload))))

    def encode(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the bytes of a value; None for a null without a schema.

        Raises:
            BadRecord: the value does not fit its schema.
        """
        if schema is None and value is None:
            return None
        payload = self.to_json(schema, value)
        if not self.schemas_enable:
            return msgspec.json.encode(payload)
        shown = None if schema is None else _schema_text(schema)
        return msgspec.json.encode({"schema": shown, "payload": payload})

    # ---------------------------------------------------------------------------- reading

    def from_json(self, schema: Schema | None, value: JsonValue | Decimal) -> object:
        """Return what parsed JSON holds, by its schema.

        Raises:
            BadRecord: it does not fit.
        """
        if schema is None:
            return _plain(value)
        if value is None:
            if schema.optional:
                return None
            raise BadRecord("Invalid null value for required field")
        is_decimal = schema.logical == "Decimal" and schema.kind == "bytes"
        if is_decimal and isinstance(value, int | float | Decimal):
            return from_base(schema, Decimal(str(value)) if isinstance(value, float) else value)
        return from_base(schema, self._of_kind(schema, value))

    def _of_kind(self, schema: Schema, value: JsonValue | Decimal) -> object:
        match schema.kind, value:
            case "array", list():
                return [self.from_json(schema.items, each) for each in value]
            case "map", dict() if _has_text_keys(schema):
                return {key: self.from_json(schema.items, each) for key, each in value.items()}
            case "map", list() if not _has_text_keys(schema):
                return dict(self._pair(schema, each) for each in value)
            case "struct", dict():
                return {
                    each.name: self._field(each, value.get(each.name)) for each in schema.fields
                }
        return _scalar_of(schema, value)

    def _pair(self, schema: Schema, pair: JsonValue) -> tuple[object, object]:
        if not isinstance(pair, list) or len(pair) != 2:  # noqa: PLR2004 - a pair
            raise BadRecord("Found invalid map entry instead of array tuple of length 2")
        # Java's maps take any key; Python's take what has a hash.
        key = self.from_json(schema.keys, pair[0])
        if isinstance(key, dict | list):
            raise BadRecord("keys of maps that are arrays, maps or structs are not supported")
        return key, self.from_json(schema.items, pair[1])

    def _field(self, field: Field, value: JsonValue) -> object:
        # A null is replaced even where null is allowed: so says KIP-1040's default.
        if value is None and field.default is not None and self.replace_null_with_default:
            value = field.default
        return self.from_json(field.schema, value)

    # ---------------------------------------------------------------------------- writing

    def to_json(self, schema: Schema | None, value: object) -> object:
        """Return a value as msgspec writes it as JSON, by its schema.

        Raises:
            BadRecord: it does not fit.
        """
        if schema is None:
            return _written(value)
        if value is None:
            if schema.optional:
                return None
            raise BadRecord(
                "Conversion error: null value for field that is required and has no default value"
            )
        is_decimal = schema.logical == "Decimal" and schema.kind == "bytes"
        if is_decimal and self.decimal_format == "NUMERIC":
            return _number(value)
        return self._written_base(schema, to_base(schema, value))

    def _written_base(self, schema: Schema, value: object) -> object:
        if schema.kind == "array" and isinstance(value, list | tuple):
            return [self.to_json(schema.items, each) for each in value]
        if schema.kind == "map" and isinstance(value, Mapping):
            return self._written_map(schema, value)
        if schema.kind == "struct":
            row = fields_of(value)
            return {each.name: self._written_field(each, row) for each in schema.fields}
        return _written_scalar(schema, value)

    def _written_map(self, schema: Schema, value: Mapping[object, object]) -> object:
        if _has_text_keys(schema):
            return {str(key): self.to_json(schema.items, each) for key, each in value.items()}
        return [
            [self.to_json(schema.keys, key), self.to_json(schema.items, each)]
            for key, each in value.items()
        ]

    def _written_field(self, field: Field, row: Mapping[str, object]) -> object:
        value = row.get(field.name)
        if value is None and field.default is not None and self.replace_null_with_default:
            return field.default
        return self.to_json(field.schema, value)


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    schema: msgspec.Raw
    payload: msgspec.Raw


_DEFAULTS: Final = JsonConverter()


def default_of(field: Field) -> object:
    """Return the default of a field as a value of its schema; None if it has none.

    Raises:
        BadRecord: the default does not fit the schema.
    """
    return None if field.default is None else _DEFAULTS.from_json(field.schema, field.default)


def with_default(field: Field, row: Mapping[str, object]) -> object:
    """Return the value of a field in a row; its default for null, as Java's structs do.

    Raises:
        BadRecord: the default does not fit the schema.
    """
    value = row.get(field.name)
    return default_of(field) if value is None else value


def with_defaults(fields: Sequence[Field], row: Mapping[str, object]) -> dict[str, object]:
    """Return the values of fields; their defaults where the row has null."""
    return {each.name: with_default(each, row) for each in fields}


def parsed_json(data: bytes) -> JsonValue:
    """Return bytes as JSON, whose numbers with a fraction are Decimals.

    Raises:
        BadRecord: they are no JSON.
    """
    try:
        found: JsonValue = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(error) from None
    return found


def _no_json(error: Exception) -> BadRecord:
    return BadRecord(f"the bytes are no JSON: {error}")


@lru_cache(SCHEMAS_CACHED)
def _schema_of(text: bytes) -> Schema | None:
    return schema_from_json(msgspec.json.decode(text))


@lru_cache(SCHEMAS_CACHED)
def _schema_text(schema: Schema) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(schema_to_json(schema)))


def _plain(value: JsonValue | Decimal) -> object:
    """Return JSON without a schema: Java's Long, Double, String, Boolean, List and Map."""
    if isinstance(value, Decimal):
        # Jackson reads a BigDecimal, which has no -0.0.
        return float(value) + 0.0
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _written(value: object) -> object:
    if value is None:
        return None
    kind = kind_of(value)
    if kind == "float64":
        return _finite(value)
    if isinstance(value, list | tuple):
        return [_written(each) for each in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _written(each) for key, each in value.items()}
        return [[_written(key), _written(each)] for key, each in value.items()]
    # Dates as well: without a schema nothing says whether a number of JSON was one.
    if kind is None:
        raise BadRecord(f"{type(value).__name__} has no corresponding schema type")
    return bytes_to_json(value) if kind == "bytes" else value


def _scalar_of(schema: Schema, value: JsonValue | Decimal) -> object:
    """Return the scalar that JSON holds."""
    kind = schema.kind
    # Numbers of a payload are int or Decimal; those of a schema, its defaults, may be float.
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if kind in ("float32", "float64") and (is_number or value in _NOT_FINITE):
        # Jackson reads a BigDecimal, which has no -0.0.
        number = float(value) + 0.0
        return single(number) if kind == "float32" else number
    # Too large a number keeps its low bits, as Jackson's intValue does.
    if kind in INTEGER_BITS and is_number and isinstance(value, int):
        return wrapped(value, kind)
    if kind == "bytes" and isinstance(value, str):
        return bytes_from_json(value)
    if isinstance(value, {"boolean": bool, "string": str}.get(kind, ())):
        return value
    raise BadRecord(f"{_shown(value)} is no {kind}")


def _written_scalar(schema: Schema, value: object) -> object:
    kind = schema.kind
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind == "bytes":
        return bytes_to_json(value)
    if kind in INTEGER_BITS and isinstance(value, int) and is_whole:
        fits = wrapped(value, kind) == value
    elif kind in ("float32", "float64"):
        if isinstance(value, float) and kind == "float32" and math.isfinite(value):
            # As a float64 it would show digits that it does not have: 5.239999771118164 for 5.24.
            return msgspec.Raw(single_text(value).encode())
        fits = is_whole or isinstance(value, float)
    else:
        fits = isinstance(value, {"boolean": bool, "string": str}.get(kind, ()))
    if not fits:
        raise BadRecord(f"Invalid value for {kind}: {_shown(value)}")
    return _finite(value)


def _finite(value: object) -> object:
    # JSON has no such numbers; Jackson quotes their names.
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value == math.inf else "-Infinity"
    return value


def _number(value: object) -> object:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise BadRecord(f"Invalid type for Decimal: {type(value).__name__}")
    return msgspec.Raw(format(value, "f").encode())


def _has_text_keys(schema: Schema) -> bool:
    return schema.keys is None or schema.keys.kind == "string"


def _shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"
