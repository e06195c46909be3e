"""Header transforms: headers that are dropped, added, or made out of fields.

A header in a topic is bytes. What Kafka Connect keeps as a value until its header converter writes
it (SimpleHeaderConverter by default) is written here at once, in that converter's form.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Final, Literal

import msgspec

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.json_converter import with_default, with_defaults
from streamlog.connect.header_values import header_bytes
from streamlog.connect.java_values import float_text, parse_decimal, single
from streamlog.connect.row_schema import Schema
from streamlog.connect.schema_record import SchemaRecord, with_headers, with_schemas
from streamlog.connect.transforms.key_or_value import (
    KeyOrValue,
    require_row,
    struct_of_fields,
)
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.erased_types import AnyRecord

INT64: Final = range(-(2**63), 2**63)
AnySchemaRecord = SchemaRecord[object, object]


class DropHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """Removes headers.

    Attributes:
        headers: their names.
    """

    headers: tuple[str, ...]

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record without them."""
        kept = tuple(each for each in record.headers if each[0] not in self.headers)
        return with_headers(record, kept)


class InsertHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Adds a header.

    Attributes:
        header: its name.
        value_literal: its value, as text; numbers and JSON are written as Kafka Connect does.
    """

    header: str
    value_literal: str

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with the header behind those it has."""
        return with_headers(
            record, (*record.headers, (self.header, literal_bytes(self.value_literal)))
        )


class HeaderFrom(KeyOrValue, frozen=True, kw_only=True):
    """Makes headers out of fields.

    Attributes:
        fields: the names of the fields.
        headers: the names of the headers, in the same order.
        operation: "move" takes the fields out of the row, "copy" leaves them in.
        replace_null_with_default: whether null becomes the default of the field.
    """

    fields: tuple[str, ...]
    headers: tuple[str, ...]
    operation: Literal["move", "copy"]
    replace_null_with_default: bool = True

    def check(self) -> None:
        """Raise ConfigError unless there is a header for each field."""
        if len(self.headers) != len(self.fields):
            raise ConfigError(
                "'fields' config must have the same number of elements as 'headers' config."
            )

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record with its new headers."""
        whole = with_schemas(record)
        schema, value = self.operand(whole)
        row = require_row(schema, value, f"header {self.operation}")
        added = tuple(
            (header, self._bytes(schema, row.get(name), name))
            for name, header in zip(self.fields, self.headers, strict=True)
        )
        whole = replace(whole, headers=(*whole.headers, *added))
        if self.operation == "copy":
            return self.with_operand(whole, schema, value)
        left = {name: each for name, each in row.items() if name not in self.fields}
        if schema is not None:
            kept = [each for each in schema.fields if each.name not in self.fields]
            schema = struct_of_fields(schema, kept)
            left = with_defaults(kept, left) if self.replace_null_with_default else left
        return self.with_operand(whole, schema, left)

    def _bytes(self, schema: Schema | None, value: object, name: str) -> bytes | None:
        if schema is None:
            return header_bytes(value)
        field = schema.field(name)
        if field is None:
            raise BadRecord(f"Unknown field: {name}")
        found = with_default(field, {name: value}) if self.replace_null_with_default else value
        return header_bytes(found, field.schema)


def literal_bytes(text: str) -> bytes | None:
    """Return a literal as Kafka Connect reads it and writes it into a header again."""
    if text == "null":
        return None
    try:
        number = parse_decimal(text)
    except BadRecord:
        return _structured(text).encode()
    return _number_text(number).encode()


def _number_text(number: Decimal) -> str:
    if number == number.to_integral_value() and int(number) in INT64:
        return str(int(number))
    # 1. Kafka reads "0.1" as the first type that holds it: a float32 or a float64 that is finite,
    # then a decimal. 2. It writes that type's text again. So digits beyond a float32 are lost here
    # as they are there. Digits alone, without a point or an exponent, are no float to it.
    if number.as_tuple().exponent != 0:
        value = float(number)
        for is_single, found in ((True, single(value)), (False, value)):
            if math.isfinite(found):
                return float_text(found, is_single=is_single)
    return str(number)


def _structured(text: str) -> str:
    """Return JSON without spaces around its parts; any other text as it is."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    except ValueError:
        return text
