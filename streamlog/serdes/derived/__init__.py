"""Derived schemas: Avro, JSON Schema and Protobuf out of declared Python types.

`type_description` reads a type; one module for each format turns the description into a schema
(`avro_derivation`, `json_derivation`, `protobuf_derivation`) and converts values (`avro_values`,
`protobuf_values`; JSON is read and written by msgspec and pydantic themselves).

Rule: pure functions of the declaration. Equal declarations have equal schemas, byte for byte, in
every run and version of Python, because a schema that changes by itself is a new version in the
registry.
"""

from __future__ import annotations

from streamlog.serdes.derived.avro_derivation import avro_schema_of
from streamlog.serdes.derived.json_derivation import json_schema_of
from streamlog.serdes.derived.type_description import Digits, FieldNumber, describe_type

__all__ = ["Digits", "FieldNumber", "avro_schema_of", "describe_type", "json_schema_of"]
