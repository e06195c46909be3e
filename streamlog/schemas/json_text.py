"""JSON text of schemas: read within limits, and written without spaces.

Rule: depth is measured on the text, before a decoder follows it. Nothing else decodes JSON that
came with a schema.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, TypeAlias

from streamlog.errors import InvalidSchema
from streamlog.schemas.schema import DEFAULT_LIMITS, SchemaLimits

JsonValue: TypeAlias = Any
"""Decoded JSON: None, a bool, a number, text, a list, or a mapping by text.

A schema's JSON is whatever its author has written; code that reads it checks each part's type.
"""

BRACKETS_PER_TYPE = 4
"""How many brackets one level of types takes at most: a field's type, in a list, in a record."""
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""Strings, with or without their end, and brackets: each character is looked at once."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN_CHARACTERS = 60


def check_size(text: str, limits: SchemaLimits = DEFAULT_LIMITS) -> None:
    """Raise InvalidSchema if a schema's text is larger than the limit, or is not Unicode."""
    # A text with more characters than bytes allowed need not be encoded to be refused.
    if len(text) > limits.text_bytes:
        raise too_large(limits)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidSchema(
            f"The schema has half of a surrogate pair at character {error.start}, which is not "
            "Unicode text"
        ) from error
    if size > limits.text_bytes:
        raise too_large(limits)


def too_large(limits: SchemaLimits) -> InvalidSchema:
    """Return the error for a text that is larger than the limit."""
    return InvalidSchema(f"The schema is larger than {limits.text_bytes} bytes, which is the limit")


def load_json(text: str, limits: SchemaLimits = DEFAULT_LIMITS) -> JsonValue:
    """Decode JSON text.

    Raises:
        InvalidSchema: it is no JSON, exceeds a limit, or has numbers or characters that JSON lacks.
    """
    check_size(text, limits)
    depth = 0
    for found in _STRUCTURE.finditer(text):
        depth += (found[0] in "[{") - (found[0] in "]}")
        if depth > limits.depth * BRACKETS_PER_TYPE:
            raise too_deep(limits)
    try:
        value = json.loads(text, parse_constant=_refuse_number, parse_float=_finite)
    except ValueError as error:
        raise InvalidSchema(f"The schema is not JSON: {error}: {shown(text)}") from error
    # Only an escape can bring half of a pair: the text itself has been encoded.
    if "\\u" in text and _SURROGATE.search(dump_json(value)):
        raise InvalidSchema("The schema has half of a surrogate pair, which is not Unicode text")
    return value


def too_deep(limits: SchemaLimits) -> InvalidSchema:
    """Return the error for a schema that is nested deeper than the limit."""
    return InvalidSchema(f"The schema is nested deeper than {limits.depth} types, the limit")


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{shown(text)} is not a number of JSON, or is too large")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        _refuse_number(text)
    return number


def dump_json(value: JsonValue) -> str:
    """Encode a value as JSON text without spaces, its keys in their own order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shown(value: JsonValue) -> str:
    """Return a value as the text that an error shows: JSON, cut to one line."""
    text = value if isinstance(value, str) else dump_json(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
