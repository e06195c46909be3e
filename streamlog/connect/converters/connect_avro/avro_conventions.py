"""Avro conventions: what stands in Avro for what only Connect knows, by Confluent's names.

What Avro has no word for stands in properties: `connect.name`, `connect.version`,
`connect.parameters`, `connect.doc`, `connect.default`, and `connect.type` for int8 and int16. A map
whose keys are not text is an array of entries, a union of several types a struct with one field for
each of them, and an enum a text whose parameters name its symbols.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from streamlog.connect.converters.json_schemas import is_connect_logical, name_and_version
from streamlog.connect.row_schema import Kind, Schema

NAMESPACE: Final = "io.confluent.connect.avro"
UNION: Final = f"{NAMESPACE}.Union"
"""The name of a struct that is a union in Avro: one of its fields has a value."""
ENUM: Final = f"{NAMESPACE}.Enum"
"""The parameter of a text that is an enum in Avro; each symbol has one behind it."""
FIXED_SIZE: Final = "connect.fixed.size"
"""The parameter of bytes that are a fixed in Avro."""
ANYTHING: Final = f"{NAMESPACE}.Anything"
"""The record that holds a value without a schema."""
MAP_ENTRY: Final = "MapEntry"
"""The record of an entry of a map whose keys are not texts."""
DEFAULT_NAME: Final = "ConnectDefault"
"""The name of a record whose schema has none."""
RECORD_DOC: Final = f"{NAMESPACE}.record.doc"
FIELD_DOC: Final = f"{NAMESPACE}.field.doc."
ENUM_DOC: Final = f"{NAMESPACE}.enum.doc."
ENUM_DEFAULT: Final = f"{NAMESPACE}.enum.default."
"""The parameters that keep what Avro's `doc` and `default` say."""
FIELD_DEFAULT: Final = f"{NAMESPACE}.field.default"
"""The parameter that says that a default was Avro's own, not one of Connect."""
PRECISION: Final = "connect.decimal.precision"
PRECISION_DEFAULT: Final = 64
AVRO_KINDS: Final[Mapping[Kind, str]] = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
    "array": "array",
    "map": "map",
}
"""Avro's types of Connect's kinds; a struct is a record."""
_REFUSED: Final = re.compile(r"[^A-Za-z0-9_]")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPACE: Final = ord(" ")
_PLAIN_BYTES: Final = re.compile(rb"[A-Za-z0-9*._-]")


@dataclass(frozen=True, slots=True)
class AvroForm:
    """How schemas are written as Avro, by the settings of the converter."""

    has_meta_data: bool = True
    """Whether names, versions, parameters and documentation are kept (`connect.meta.data`)."""
    is_enhanced: bool = False
    """Whether enums are enums again, and fields of unions have full names."""
    scrubs_names: bool = False
    """Whether characters that Avro does not allow in names become `_`."""
    has_optional_keys: bool = False
    """Whether a map whose keys are optional texts is a map in Avro."""
    ignores_default: bool = False
    """Whether null stays null in an optional field that has a default."""


def scrub(name: str) -> str:
    """Return a name as Avro allows it: `a name` is `a_name`, and `1a` is `x1a`."""
    if not name or _NAME.fullmatch(name):
        return name
    # As Java's URLEncoder writes it, with `_` for what is still refused.
    encoded = "".join(map(_url_encoded, name.encode(errors="replace")))
    encoded = f"x{encoded}" if encoded[0].isdecimal() else encoded
    return _REFUSED.sub("_", encoded)


def _url_encoded(byte: int) -> str:
    if byte == _SPACE:
        return "+"
    return chr(byte) if _PLAIN_BYTES.fullmatch(bytes((byte,))) else f"%{byte:02X}"


def scrub_full(name: str) -> str:
    """Return a name with a namespace as Avro allows it."""
    return ".".join(map(scrub, name.split(".")))


def is_text_map(schema: Schema, form: AvroForm) -> bool:
    """Return whether a map of Connect is a map of Avro, whose keys are texts."""
    keys = schema.keys
    return keys is None or (keys.kind == "string" and (form.has_optional_keys or not keys.optional))


def is_union(schema: Schema) -> bool:
    """Return whether a struct stands for a union of Avro."""
    return schema.kind == "struct" and schema.name == UNION


def is_enum(schema: Schema) -> bool:
    """Return whether a text stands for a symbol of an enum of Avro."""
    return schema.kind == "string" and schema.parameter(ENUM) is not None


def is_fixed(schema: Schema) -> bool:
    """Return whether bytes stand for a fixed of Avro."""
    has_name = schema.name is not None or is_connect_logical(schema)
    return schema.kind == "bytes" and has_name and schema.parameter(FIXED_SIZE) is not None


def member_name(schema: Schema, form: AvroForm) -> str:
    """Return the name of the field that holds one type of a union."""
    if schema.kind == "struct" or is_enum(schema) or is_fixed(schema):
        name = name_and_version(schema)[0] or ""
        if form.is_enhanced:
            return scrub_full(name) if form.scrubs_names else name
        return name.rpartition(".")[2]
    return AVRO_KINDS[schema.kind]
