"""Value transforms: Cast, which changes types, and MaskField, which hides what fields hold."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Final, get_args

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.json_converter import with_default
from streamlog.connect.converters.json_schemas import to_base
from streamlog.connect.java_values import (
    EPOCH,
    INTEGER_BITS,
    is_moment,
    java_text,
    kind_of,
    parse_decimal,
    parse_float,
    parse_integer,
    single,
    truncated,
    wrapped,
)
from streamlog.connect.row_schema import Field, Kind, Schema
from streamlog.connect.schema_record import SchemaRecord
from streamlog.connect.transforms.key_or_value import (
    KeyOrValue,
    default_as,
    require_row,
    struct_of_fields,
)
from streamlog.errors import ConfigError
from streamlog.replace import replace

_TARGETS: Final = frozenset({*INTEGER_BITS, "float32", "float64", "boolean", "string"})
_NESTED: Final = frozenset({"array", "map", "struct"})
AnySchemaRecord = SchemaRecord[object, object]


class Cast(KeyOrValue, frozen=True, kw_only=True):
    """Changes the type of the whole or of fields.

    Attributes:
        spec: a type for the whole, or "field:type,field:type": int8, int16, int32, int64, float32,
            float64, boolean or string.
        replace_null_with_default: whether null becomes the default of the field.
    """

    spec: tuple[str, ...]
    replace_null_with_default: bool = True

    def check(self) -> None:
        """Raise ConfigError if `spec` is malformed."""
        if not self.spec:
            raise ConfigError("spec: Must specify at least one field to cast.")
        for each in self.spec:
            name, colon, kind = each.rpartition(":")
            if kind.strip().lower() not in _TARGETS or (colon and (not name or ":" in name)):
                raise ConfigError(
                    f"spec: {each!r} is neither a type nor FIELD:TYPE; types are"
                    f" {', '.join(sorted(_TARGETS))}"
                )
        if len(self.spec) > 1 and any(":" not in each for each in self.spec):
            raise ConfigError(
                "spec: Cast transformations that specify a type to cast the entire value to may"
                " ONLY specify a single cast in their spec"
            )

    def change(self, schema: Schema | None, value: object) -> tuple[Schema | None, object]:
        """Return the value with its new types."""
        if value is None:
            return schema, None
        if ":" not in self.spec[0]:
            target = _kind(self.spec[0])
            changed = cast_value(schema, value, target)
            return None if schema is None else _recast(schema, target), changed
        row = require_row(schema, value, "cast types")
        casts = {name: _kind(kind) for name, _, kind in (s.rpartition(":") for s in self.spec)}
        if schema is None:
            cast = {name: cast_value(None, row.get(name), casts[name]) for name in casts}
            return None, {**row, **cast}
        changed_row: dict[str, object] = {}
        fields: list[Field] = []
        for each in schema.fields:
            found = (
                with_default(each, row) if self.replace_null_with_default else row.get(each.name)
            )
            goal = casts.get(each.name)
            if goal is not None:
                # The default is cast as well: a reader that fills it in must get the new type.
                found = cast_value(each.schema, found, goal)
                default = default_as(cast_value(each.schema, each.default, goal))
                of = Schema(goal, optional=each.schema.optional)
                fields.append(Field(each.name, of, default))
            else:
                fields.append(each)
            changed_row[each.name] = found
        return struct_of_fields(schema, fields, optional=schema.optional), changed_row


def _kind(text: str) -> Kind:
    found: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    return found[text.strip().lower()]


def _recast(schema: Schema, target: Kind) -> Schema:
    """Return the schema of a whole that was cast: its name and the like stay."""
    if schema.logical is not None:
        return Schema(target, optional=schema.optional)
    return replace(schema, kind=target, items=None, keys=None, fields=())


def cast_value(schema: Schema | None, value: object, target: Kind) -> object:
    """Return a value as another type, as Kafka's Cast does.

    Raises:
        BadRecord: it can't be.
    """
    if value is None:
        return None
    kind = kind_of(value) if schema is None else schema.kind
    if kind is None and not is_moment(value) and not isinstance(value, Decimal):
        raise BadRecord(f"Cast transformation was passed a value of type {type(value).__name__}")
    if kind in _NESTED:
        raise BadRecord(f"Cast transformation does not support casting to/from {str(kind).upper()}")
    # Before the logical types are undone: a Date as text is a date, and not a number of days.
    if target == "string":
        return java_text(value, kind)
    if schema is not None and is_moment(value):
        value = to_base(schema, value)
    if isinstance(value, str):
        return _parsed(value, target)
    if not isinstance(value, bool | int | float | Decimal):
        raise BadRecord(f"Unexpected type in Cast transformation: {type(value).__name__}")
    return _number(value, target)


def _parsed(text: str, target: Kind) -> object:
    if target == "boolean":
        return text.lower() == "true"
    if target in INTEGER_BITS:
        return parse_integer(text, target)
    number = parse_float(text)
    return single(number) if target == "float32" else number


def _number(value: float | Decimal, target: Kind) -> object:
    # A double stops at the limits of int64 (1e300 is 2**63 - 1), an integer keeps its low bits:
    # these are two different conversions of Java.
    whole = truncated(value, "int64") if isinstance(value, float) else int(value)
    if target == "boolean":
        return wrapped(whole, "int64") != 0
    if target in INTEGER_BITS:
        return truncated(value, target) if isinstance(value, float) else wrapped(whole, target)
    number = float(value)
    return single(number) if target == "float32" else number


class MaskField(KeyOrValue, frozen=True, kw_only=True):
    """Replaces what fields hold by the empty value of their type, or by a text.

    Attributes:
        fields: the names of the fields.
        replacement: what to put there instead; a number for fields that are numbers.
        replace_null_with_default: whether null becomes the default of the field.
    """

    fields: tuple[str, ...]
    replacement: str | None = None
    replace_null_with_default: bool = True

    def check(self) -> None:
        """Raise ConfigError if there are no fields, or the replacement is empty."""
        if not self.fields:
            raise ConfigError("fields: names at least one field to mask")
        if self.replacement == "":
            raise ConfigError("replacement: must be non-empty")

    def change(self, schema: Schema | None, value: object) -> tuple[Schema | None, object]:
        """Return the row with its fields masked."""
        row = require_row(schema, value, "mask fields")
        if schema is None:
            masked = {name: self._masked(None, row.get(name)) for name in self.fields}
            return None, {**row, **masked}
        changed: dict[str, object] = {}
        for each in schema.fields:
            found = (
                with_default(each, row) if self.replace_null_with_default else row.get(each.name)
            )
            is_masked = each.name in self.fields
            changed[each.name] = self._masked(each.schema, found) if is_masked else found
        return schema, changed

    def _masked(self, schema: Schema | None, value: object) -> object:
        if value is None:
            return None
        # A struct is no map of Java, so there is no empty one.
        if schema is not None and schema.kind == "struct":
            raise BadRecord("Cannot mask value of type: struct")
        if self.replacement is None:
            return _empty(value)
        if isinstance(value, str):
            return self.replacement
        if isinstance(value, Decimal):
            return parse_decimal(self.replacement)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadRecord(
                f"Cannot mask value of type {type(value).__name__} with custom replacement."
            )
        # Any number will do for any type: "12.7" masks an integer as 12, since Kafka reads it as a
        # decimal first.
        number = parse_decimal(self.replacement.strip())
        if isinstance(value, float):
            is_single = schema is not None and schema.kind == "float32"
            return single(float(number)) if is_single else float(number)
        return wrapped(int(number), "int64" if schema is None else schema.kind)


def _empty(value: object) -> object:
    for python, empty in _EMPTY:
        if isinstance(value, python):
            return empty
    if isinstance(value, list | tuple):
        return []
    if isinstance(value, Mapping):
        return {}
    raise BadRecord(f"Cannot mask value of type: {type(value).__name__}")


_EMPTY: Final[tuple[tuple[type, object], ...]] = (
    (bool, False),
    (int, 0),
    (float, 0.0),
    (Decimal, Decimal(0)),
    (str, ""),
    (datetime, EPOCH),
    (date, EPOCH.date()),
    (time, time(0)),
)
