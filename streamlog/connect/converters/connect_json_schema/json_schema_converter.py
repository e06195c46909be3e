"""JsonSchemaConverter: its settings, and JSON with JSON Schemas as a format of registry converters.

What it reads and writes is what `io.confluent.connect.json.JsonSchemaConverter` does. Scalars are
JSON as `JsonConverter` has it; maps whose keys are not texts are arrays of entries.

Rule: a value of another type is refused; nothing is rounded, cut or made a text.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Final, Literal

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_json_schema.schemas_as_json import (
    ENTRY,
    ENUM,
    NULL_SYMBOL,
    JsonSchemaForm,
    has_text_keys,
    is_one_of,
    json_schema_from,
    schema_from_json_schema,
)
from streamlog.connect.converters.json_converter import (
    ConvertedValue,
    JsonConverter,
    parsed_json,
)
from streamlog.connect.converters.registry_converter import (
    ReadRow,
    RegistryConverterSettings,
    WriteRow,
)
from streamlog.connect.java_values import INTEGER_BITS
from streamlog.connect.row_schema import Field, Schema, fields_of, part_of
from streamlog.errors import InvalidSchema
from streamlog.schemas import JsonSchema, SchemaType, parse_schema
from streamlog.schemas import Schema as RegistrySchema
from streamlog.serdes.erased_types import JsonValue
from streamlog.serdes.registered.schema_source import RegisteredSchema

_KEY, _VALUE = ENTRY
_LEFT_OUT: Final = object()
"""What stands for a property that is not written."""
_NESTED: Final = ("array", "map", "struct")
_DIGITS_MAX: Final = 20
"""The most digits of an integer that is written with a fraction."""
_WHOLLY: Final = sys.maxsize
"""How well a value fits a type that its own type names; more than any number of properties."""


class JsonSchemaConverter(RegistryConverterSettings, frozen=True, kw_only=True):
    """Rows as JSON, with JSON Schemas in a schema registry.

    Attributes:
        object_additional_properties: whether objects may have properties that their schema lacks.
        use_optional_for_nonrequired: whether a property that a schema does not list as required is
            optional.
        decimal_format: whether Decimals are base64 or numbers.
        ignore_default_for_nullables: whether null stays null in an optional field that has a
            default.
    """

    object_additional_properties: bool = True
    use_optional_for_nonrequired: bool = False
    decimal_format: Literal["BASE64", "NUMERIC"] = "BASE64"
    ignore_default_for_nullables: bool = False

    def format(self) -> JsonSchemaFormat:
        """Return how rows are written with these settings."""
        form = JsonSchemaForm(
            allows_additional=self.object_additional_properties,
            is_optional_unless_required=self.use_optional_for_nonrequired,
        )
        scalars = JsonConverter(decimal_format=self.decimal_format)
        rows = _JsonRows(scalars, ignores_default=self.ignore_default_for_nullables)
        return JsonSchemaFormat(form, rows)


class JsonSchemaFormat:
    """JSON with JSON Schemas, as registry converters write and read it; a `RegistryFormat`."""

    def __init__(self, form: JsonSchemaForm, rows: _JsonRows) -> None:
        self._form, self._rows = form, rows

    def described(self, schema: Schema | None) -> tuple[RegistrySchema, str | None]:
        """Return a schema as JSON Schema, and its title; see `RegistryFormat`."""
        if schema is None:
            raise BadRecord(
                "JsonSchemaConverter writes values that have a schema, and this one has none: use "
                "JsonConverter, or a source or a transform that gives one"
            )
        text = msgspec.json.encode(json_schema_from(schema, self._form)).decode()
        # That of an optional one does not stand at the top; the subject has its name nevertheless.
        return RegistrySchema(SchemaType.JSON, text), schema.name

    def writer(self, schema: Schema | None, found: RegisteredSchema) -> WriteRow:
        """Return what writes values by their schema; see `RegistryFormat`."""
        if found.schema.type is not SchemaType.JSON:
            raise _other_format(found)
        return lambda value: msgspec.json.encode(self._rows.write(schema, value))

    def reader(self, found: RegisteredSchema) -> ReadRow:
        """Return what reads values of a registered JSON Schema; see `RegistryFormat`."""
        schema = schema_from_json_schema(_parsed(found).root, self._form)

        def read(data: bytes, start: int) -> ConvertedValue:
            return ConvertedValue(schema, self._rows.read(schema, parsed_json(data[start:])))

        return read

    def is_tombstone(self, schema: Schema | None) -> bool:
        """Return whether a null has no bytes: that of an optional schema is null in JSON."""
        return schema is None or not schema.optional


def _parsed(found: RegisteredSchema) -> JsonSchema:
    try:
        parsed = parse_schema(found.schema, found.referenced)
    except InvalidSchema as error:
        raise BadRecord(f"no JSON Schema: {error}") from None
    if not isinstance(parsed, JsonSchema):
        raise _other_format(found)
    return parsed


def _other_format(found: RegisteredSchema) -> BadRecord:
    return BadRecord(f"its schema is {found.schema.type}, and JsonSchemaConverter takes JSON alone")


class _JsonRows:
    """Rows as parsed JSON, and back."""

    def __init__(self, scalars: JsonConverter, *, ignores_default: bool) -> None:
        self._scalars, self._ignores_default = scalars, ignores_default

    # ---------------------------------------------------------------------------- writing

    def write(self, schema: Schema | None, value: object) -> object:
        """Return a value as msgspec writes it as JSON; raises BadRecord if it does not fit."""
        if schema is None or value is None or schema.kind not in _NESTED:
            return None if _is_null_symbol(schema, value) else self._scalars.to_json(schema, value)
        if schema.kind == "struct":
            return (self._write_one_of if is_one_of(schema) else self._write_struct)(schema, value)
        if schema.kind == "map":
            return self._write_map(schema, value)
        if not isinstance(value, list | tuple):
            raise _no("array", value)
        items = part_of(schema.items)
        return [self.write(items, each) for each in value]

    def _write_map(self, schema: Schema, value: object) -> object:
        if not isinstance(value, Mapping):
            raise _no("map", value)
        keys, items = part_of(schema.keys), part_of(schema.items)
        if not has_text_keys(schema):
            return [
                {_KEY: self.write(keys, key), _VALUE: self.write(items, each)}
                for key, each in value.items()
            ]
        if not all(isinstance(key, str) for key in value):
            raise BadRecord("a map with keys of texts has another key")
        return {key: self.write(items, each) for key, each in value.items()}

    def _write_one_of(self, schema: Schema, value: object) -> object:
        row = fields_of(value)
        # The first field with a value is the one: Confluent's converter looks no further.
        for each in schema.fields:
            if (found := row.get(each.name)) is not None:
                return self.write(each.schema, found)
        return self._scalars.to_json(schema, None)

    def _write_struct(self, schema: Schema, value: object) -> object:
        row, name = fields_of(value), ""
        written: dict[str, object] = {}
        try:
            for each in schema.fields:
                name = each.name
                found = self._write_field(each, row.get(name))
                if found is not _LEFT_OUT:
                    written[name] = found
        # The path is put together on the way out, so a sound record does not pay for it.
        except BadRecord as error:
            raise BadRecord(f"field {name}: {error}") from None
        return written

    def _write_field(self, field: Field, value: object) -> object:
        # Java's converters write the default for null in an optional field, unless told not to.
        keeps_null = self._ignores_default and field.schema.optional
        if value is None and field.default is not None and not keeps_null:
            value = self._scalars.from_json(field.schema, field.default)
        # As in Java: what a row that was read from JSON lacks is lacking again.
        if value is None and not field.schema.optional and not _is_null_symbol(field.schema, value):
            return _LEFT_OUT
        return self.write(field.schema, value)

    # ---------------------------------------------------------------------------- reading

    def read(self, schema: Schema, value: JsonValue) -> object:
        """Return what parsed JSON holds; raises BadRecord if it does not fit."""
        if value is None or schema.kind not in _NESTED:
            is_null = _is_null_symbol(schema, value)
            return None if is_null else self._scalars.from_json(schema, _whole(schema, value))
        if schema.kind == "struct":
            return (self._read_one_of if is_one_of(schema) else self._read_struct)(schema, value)
        if schema.kind == "map":
            return self._read_map(schema, value)
        if not isinstance(value, list):
            raise _no("array", value)
        items = part_of(schema.items)
        return [self.read(items, each) for each in value]

    def _read_map(self, schema: Schema, value: JsonValue) -> object:
        items = part_of(schema.items)
        if has_text_keys(schema):
            if not isinstance(value, dict):
                raise _no("map", value)
            return {key: self.read(items, each) for key, each in value.items()}
        if not isinstance(value, list):
            raise _no("map with other keys than texts", value)
        return dict(self._entry(schema, each) for each in value)

    def _entry(self, schema: Schema, value: JsonValue) -> tuple[object, object]:
        if not isinstance(value, dict) or value.keys() != {_KEY, _VALUE}:
            raise BadRecord(f"{str(value)[:40]!r} is no entry of a map, with key and value")
        # Java's maps take any key; Python's take what has a hash.
        key = self.read(part_of(schema.keys), value[_KEY])
        if isinstance(key, dict | list):
            raise BadRecord("keys of maps that are arrays, maps or structs are not supported")
        return key, self.read(part_of(schema.items), value[_VALUE])

    def _read_struct(self, schema: Schema, value: JsonValue) -> object:
        if not isinstance(value, dict):
            raise _no("struct", value)
        found: dict[str, object] = {}
        name = ""
        try:
            for each in schema.fields:
                name = each.name
                found[name] = self._read_field(each, value)
        except BadRecord as error:
            raise BadRecord(f"field {name}: {error}") from None
        return found

    def _read_field(self, field: Field, row: Mapping[str, JsonValue]) -> object:
        value = row.get(field.name)
        if value is None and field.default is not None:
            return self._scalars.from_json(field.schema, field.default)
        # Schemas seldom say what is required: as in Java, any property may be missing.
        return None if field.name not in row else self.read(field.schema, value)

    def _read_one_of(self, schema: Schema, value: JsonValue) -> object:
        found: dict[str, object] = dict.fromkeys(each.name for each in schema.fields)
        fits = [
            (fit, each) for each in schema.fields if (fit := _fit(each.schema, value)) is not None
        ]
        if not fits:
            raise _no("value of one of several types", value)
        # The first one of those that fit equally well.
        _, best = max(fits, key=lambda pair: pair[0])
        found[best.name] = self.read(best.schema, value)
        return found


def _whole(schema: Schema, value: JsonValue | Decimal) -> JsonValue | Decimal:
    """Return a number such as 1.0, which is an integer to JSON Schema, as one."""
    is_fraction = isinstance(value, Decimal) and schema.kind in INTEGER_BITS
    # The digits are bounded before they are counted: a short text may stand for a million of them.
    if is_fraction and value.adjusted() < _DIGITS_MAX and value == value.to_integral_value():
        return int(value)
    return value


def _is_null_symbol(schema: Schema | None, value: object) -> bool:
    """Return whether a value is the null that an enum lists."""
    return (
        value is None
        and schema is not None
        and schema.parameter(f"{ENUM}.{NULL_SYMBOL}") is not None
    )


def _fit(schema: Schema, value: JsonValue | Decimal) -> int | None:
    """Return how well JSON fits one of several types: `_WHOLLY`, by its properties, or None."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if schema.kind == "struct":
        own = {each.name for each in schema.fields}
        return len(own & value.keys()) if isinstance(value, dict) else None
    if schema.kind == "bytes" and isinstance(value, str):
        # Base64 is a text as well, and rather that.
        return 0
    fits = {
        "boolean": isinstance(value, bool),
        "string": isinstance(value, str),
        "float32": is_whole or isinstance(value, Decimal),
        "float64": is_whole or isinstance(value, Decimal),
        "bytes": schema.logical == "Decimal" and (is_whole or isinstance(value, Decimal)),
        "array": isinstance(value, list),
        "map": isinstance(value, dict if has_text_keys(schema) else list),
    }
    return _WHOLLY if fits.get(schema.kind, is_whole) else None


def _no(kind: str, value: object) -> BadRecord:
    return BadRecord(f"{type(value).__name__} {str(value)[:40]!r} is no {kind}")
