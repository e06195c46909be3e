"""TimestampConverter: a time as text, as a Unix time, or as one of Connect's three types."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, Literal

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.json_converter import with_default
from streamlog.connect.java_values import DAY_MS, is_moment, moment_ms, moment_of, time_of
from streamlog.connect.row_schema import Schema
from streamlog.connect.schema_record import with_schemas
from streamlog.connect.transforms.date_formats import DateFormat
from streamlog.connect.transforms.key_or_value import (
    KeyOrValue,
    require_row,
    require_row_or_none,
    struct_of_fields,
)
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

Precision = Literal["seconds", "milliseconds", "microseconds", "nanoseconds"]
TargetType = Literal["string", "unix", "Date", "Time", "Timestamp"]
_PER_MS: Final = {"microseconds": 1_000, "nanoseconds": 1_000_000}
_SCHEMAS: Final[dict[TargetType, Schema]] = {
    "string": Schema("string"),
    "unix": Schema("int64"),
    "Date": Schema("int32", logical="Date"),
    "Time": Schema("int32", logical="Time"),
    "Timestamp": Schema("int64", logical="Timestamp"),
}


class TimestampConverter(KeyOrValue, frozen=True, kw_only=True):
    """Converts the whole, or a field, from one form of time to another.

    Attributes:
        target_type: string, unix, Date, Time or Timestamp.
        field: the name of the field; empty for the whole.
        format: the text's pattern, as Java's SimpleDateFormat has it; UTC.
        unix_precision: of Unix times: seconds, milliseconds, microseconds or nanoseconds.
        replace_null_with_default: whether null becomes the default of the field.
    """

    target_type: TargetType
    field: str = ""
    format: str = ""
    unix_precision: Precision = "milliseconds"
    replace_null_with_default: bool = True

    def check(self) -> None:
        """Raise ConfigError if the format is malformed, or missing where it is needed."""
        if self.target_type == "string" and not self.format.strip():
            raise ConfigError(
                "TimestampConverter requires format option to be specified when using string"
                " timestamps"
            )
        DateFormat(self.format)

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with its time in the new form."""
        whole = with_schemas(record)
        schema, value = self.operand(whole)
        # Java counts years of two digits from now. The record's time is as near, and does not
        # change when the record is read again.
        changed_schema, changed = self._changed(schema, value, whole.timestamp.year)
        return self.with_operand(whole, changed_schema, changed)

    def _changed(
        self, schema: Schema | None, value: object, year: int
    ) -> tuple[Schema | None, object]:
        if schema is None:
            if value is None or not self.field:
                return None, self._converted(None, value, year)
            row = require_row(None, value, "converting timestamp formats")
            return None, {**row, self.field: self._converted(None, row.get(self.field), year)}
        if not self.field:
            new = replace(_SCHEMAS[self.target_type], optional=schema.optional)
            return new, self._converted(schema, value, year)
        found = require_row_or_none(schema, value, "converting timestamp formats")
        fields = [
            # Its default was of the old type, so it goes.
            replace(each, schema=self._schema(each.schema), default=None)
            if each.name == self.field
            else each
            for each in schema.fields
        ]
        struct = struct_of_fields(schema, fields, optional=schema.optional)
        if found is None:
            return struct, None
        changed: dict[str, object] = {}
        for each in schema.fields:
            inside = (
                with_default(each, found)
                if self.replace_null_with_default
                else found.get(each.name)
            )
            is_it = each.name == self.field
            changed[each.name] = self._converted(each.schema, inside, year) if is_it else inside
        return struct, changed

    def _schema(self, schema: Schema) -> Schema:
        return replace(_SCHEMAS[self.target_type], optional=schema.optional)

    def _converted(self, schema: Schema | None, value: object, year: int) -> object:
        if schema is not None:
            _check_kind(schema)
        return None if value is None else self._to_target(self._to_ms(value, year))

    def _to_ms(self, value: object, year: int) -> int:
        if is_moment(value):
            return moment_ms(value)
        if isinstance(value, str):
            # Without a format Java ends with a null pointer.
            if not self.format:
                raise BadRecord("a text as a time needs the setting format")
            return DateFormat(self.format).milliseconds(value, year)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadRecord(
                f"TimestampConverter does not support {type(value).__name__} objects as timestamps"
            )
        if self.unix_precision == "seconds":
            return value * 1000
        return _toward_zero(value, _PER_MS.get(self.unix_precision, 1))

    def _to_target(self, ms: int) -> object:
        match self.target_type:
            case "string":
                return DateFormat(self.format).text(ms)
            case "unix" if self.unix_precision == "seconds":
                return _toward_zero(ms, 1000)
            case "unix":
                return ms * _PER_MS.get(self.unix_precision, 1)
            case "Date":
                return moment_of(ms // DAY_MS * DAY_MS).date()
            case "Time":
                return time_of(ms)
            case "Timestamp":
                return moment_of(ms)


def _check_kind(schema: Schema) -> None:
    # By the schema and not by the value: an int32 that is no Date has no unit.
    is_known = schema.logical in ("Date", "Time", "Timestamp") or (
        schema.logical is None and schema.kind in ("string", "int64")
    )
    if not is_known:
        raise BadRecord(
            f"Schema {schema.kind} does not correspond to a known timestamp type format"
        )


def _toward_zero(number: int, by: int) -> int:
    # Java's division cuts; Python's goes down: -1 ms is 0 s there.
    return math.trunc(Fraction(number, by))
