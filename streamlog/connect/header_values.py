"""Header values: a value as the text that Connect's SimpleHeaderConverter writes into a header."""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.connect.converters.json_converter import with_default
from streamlog.connect.java_values import java_text
from streamlog.connect.row_schema import Schema, fields_of


def header_bytes(value: object, schema: Schema | None = None) -> bytes | None:
    """Return a value as Connect's SimpleHeaderConverter writes it into a header."""
    if value is None:
        return None
    # Only within another value do texts and bytes have quotes.
    if isinstance(value, str | bytes | bytearray | memoryview):
        return java_text(value).encode()
    return _embedded(value, schema).encode()


def _embedded(value: object, schema: Schema | None) -> str:
    if value is None:
        return "null"
    if schema is not None and schema.kind == "struct":
        row = fields_of(value)
        fields = (
            f"{_quoted(each.name)}:{_embedded(with_default(each, row), each.schema)}"
            for each in schema.fields
        )
        return f"{{{','.join(fields)}}}"
    inner = None if schema is None else schema.items
    if isinstance(value, Mapping):
        pairs = (f"{_embedded(key, None)}:{_embedded(each, inner)}" for key, each in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(_embedded(each, inner) for each in value)}]"
    text = java_text(value, None if schema is None else schema.kind)
    return _quoted(text) if isinstance(value, str | bytes | bytearray | memoryview) else text


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
