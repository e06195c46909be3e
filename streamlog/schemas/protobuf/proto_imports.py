"""Files that a schema may import without a reference, beside those of the protobuf library.

Rule: these are the files that Confluent's registry brings along: a client of it does not register
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_OPTIONS = ("File", "Message", "Field", "Enum", "EnumValue")
_FIELDS = ("file", "message", "field", "enum", "enum_value")
_EXTENSIONS = "".join(
    f"extend google.protobuf.{options}Options {{ Meta {name}_meta = 1088; }}\n"
    for options, name in zip(_OPTIONS, _FIELDS, strict=True)
)
CONFLUENT_FILES: Final[Mapping[str, str]] = {
    "confluent/meta.proto": f"""
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta {{
          string doc = 1;
          map<string, string> params = 2;
          repeated string tags = 3;
        }}
        {_EXTENSIONS}
    """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal {
          bytes value = 1;
          uint32 precision = 2;
          int32 scale = 3;
        }
    """,
}
"""Their texts by import path."""
