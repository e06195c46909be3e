"""Conventions of Confluent's ProtobufConverter: what stands for the types that Protobuf lacks.

| Connect | Protobuf |
|---|---|
| int8, int16 | int32, with `connect.type` in the option `confluent.field_meta` |
| Decimal | `confluent.type.Decimal`, with `precision` and `scale` in that option |
| Date, Time, Timestamp | `google.type.Date`, `google.type.TimeOfDay`, `google.protobuf.Timestamp` |
| a text with the parameter `io.confluent.connect.protobuf.Enum` | an enum |
| a struct named `io.confluent.connect.protobuf.Union.NAME` | the oneof NAME of its message |
| the parameter `io.confluent.connect.protobuf.Tag` of a field | its number |
| the parameter `io.confluent.connect.protobuf.Type` of a number | its type, such as sint32 |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streamlog.connect.converters.connect_avro.avro_conventions import scrub
from streamlog.connect.converters.json_schemas import is_connect_logical
from streamlog.connect.row_schema import Kind, Schema

NAMESPACE: Final = "io.confluent.connect.protobuf"
ENUM: Final = f"{NAMESPACE}.Enum"
"""The parameter with the name of an enum; each symbol has one behind it, with its number."""
ONEOF: Final = f"{NAMESPACE}.Union."
"""Before the name of a struct that stands for a oneof."""
TAG: Final = f"{NAMESPACE}.Tag"
NUMBER_TYPE: Final = f"{NAMESPACE}.Type"
CONNECT_TYPE: Final = "connect.type"
PRECISION: Final = "connect.decimal.precision"
DEFAULT_NAME: Final = "ConnectDefault"
"""The name of a struct without one, with a number behind it."""
MESSAGES: Final[Mapping[str, str]] = {
    "Decimal": "confluent.type.Decimal",
    "Date": "google.type.Date",
    "Time": "google.type.TimeOfDay",
    "Timestamp": "google.protobuf.Timestamp",
}
"""The messages of Connect's logical types."""
LOGICAL: Final = {message: logical for logical, message in MESSAGES.items()}
WRAPPED: Final[Mapping[str, Kind]] = {
    "google.protobuf.DoubleValue": "float64",
    "google.protobuf.FloatValue": "float32",
    "google.protobuf.Int64Value": "int64",
    "google.protobuf.UInt64Value": "int64",
    "google.protobuf.Int32Value": "int32",
    "google.protobuf.UInt32Value": "int64",
    "google.protobuf.BoolValue": "boolean",
    "google.protobuf.StringValue": "string",
    "google.protobuf.BytesValue": "bytes",
}
"""The kind of the value in each wrapper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufForm:
    """How schemas and rows are written and read, by the settings of the converter."""

    is_enhanced: bool
    """Whether schemas have full names (`enhanced.protobuf.schema.support`)."""
    has_index: bool
    """Whether the field of a oneof ends in its number (`generate.index.for.unions`)."""
    is_flat: bool
    """Whether the fields of a oneof are those of the struct itself (`flatten.unions`)."""
    has_int_enums: bool
    """Whether enums are read as numbers (`int.for.enums`)."""
    uses_optional: bool
    """Whether `optional` says that a field may be null (`optional.for.nullables`)."""
    has_proto2_optional: bool
    """Whether a field of proto2 that is absent is null (`optional.for.proto2`)."""
    uses_wrappers: bool
    """Whether wrappers are numbers and texts that may be null (`wrapper.for.nullables`)."""
    unwraps_root: bool
    """Whether a wrapper alone is its value (`wrapper.for.raw.primitives`)."""
    scrubs_names: bool
    """Whether names become such as Protobuf allows (`scrub.invalid.names`)."""

    def named(self, name: str) -> str:
        """Return a name as it is written."""
        return scrub_name(name) if self.scrubs_names else name

    def is_wrapped(self, schema: Schema) -> bool:
        """Return whether a scalar is written as a wrapper."""
        return self.uses_wrappers and schema.optional


def scrub_name(name: str) -> str:
    """Return a name as Protobuf allows it: `a name` is `a_name`, and `_a` is `x_a`."""
    return f"x{scrub(name)}" if name.startswith("_") else scrub(name)


def map_name(entry: str) -> str:
    """Return the name of a map, by that of its entries: `unit_prices` for `UnitPricesEntry`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", entry.removesuffix("Entry")).lower()


def message_of(schema: Schema) -> str | None:
    """Return the message of a schema that is one of Connect's logical types; None for others."""
    return MESSAGES.get(schema.logical or "") if is_connect_logical(schema) else None


def is_oneof(schema: Schema) -> bool:
    """Return whether a struct stands for a oneof."""
    return schema.kind == "struct" and (schema.name or "").startswith(ONEOF)
