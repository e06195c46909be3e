"""Row values: PostgreSQL's text of a value as the value of Python that it stands for.

A stream and a query give the same text for the same value, as both sessions have the settings in
`SESSION`, so a row of a snapshot and a row of a change are decoded alike.

Rule: pure, and total. What a type of Python can't hold (`infinity`, years before 1, types of
extensions) stays text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from streamlog.connect import Schema
from streamlog.connect.row_spans.copied_rows import OTHER, TEXT, TRUTH, WHOLE_NUMBER
from streamlog.replace import replace

Decoder: TypeAlias = Callable[[bytes], object]

SESSION: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
}
"""Settings of every session, so that the same value has one text."""
ARRAY_DEPTH_MAX: Final = 6
"""PostgreSQL's own limit of dimensions."""


def _boolean(text: bytes) -> object:
    return text == b"t"


def _text(text: bytes) -> object:
    return text.decode(errors="replace")


def _decimal(text: bytes) -> object:
    return Decimal(text.decode())


def _bytes(text: bytes) -> object:
    return bytes.fromhex(text[2:].decode())


def _date(text: bytes) -> object:
    return date.fromisoformat(text.decode())


def _time(text: bytes) -> object:
    return time.fromisoformat(text.decode())


def _timestamp(text: bytes) -> object:
    return datetime.fromisoformat(text.decode())


def _uuid(text: bytes) -> object:
    return UUID(text.decode())


def _json(text: bytes) -> object:
    found: object = msgspec.json.decode(text)
    return found


_INT16: Final = Schema("int16")
_INT32: Final = Schema("int32")
_INT64: Final = Schema("int64")
_STRING: Final = Schema("string")
_BASE: Final[Mapping[int, tuple[Decoder, Schema]]] = {
    16: (_boolean, Schema("boolean")),
    17: (_bytes, Schema("bytes")),
    18: (_text, _STRING),
    19: (_text, _STRING),
    20: (int, _INT64),
    21: (int, _INT16),
    23: (int, _INT32),
    25: (_text, _STRING),
    26: (int, _INT64),
    114: (_json, Schema("string", logical="json")),
    700: (float, Schema("float32")),
    701: (float, Schema("float64")),
    1042: (_text, _STRING),
    1043: (_text, _STRING),
    1082: (_date, Schema("int32", logical="Date")),
    1083: (_time, Schema("int32", logical="Time")),
    1114: (_timestamp, Schema("int64", logical="LocalTimestamp")),
    1184: (_timestamp, Schema("int64", logical="Timestamp")),
    1700: (_decimal, Schema("string", logical="Decimal")),
    2950: (_uuid, Schema("string", logical="uuid")),
    3802: (_json, Schema("string", logical="json")),
}
"""Built-in types by their oid, which no release has changed."""
_KINDS: Final[Mapping[Decoder, int]] = {_text: TEXT, int: WHOLE_NUMBER, _boolean: TRUTH}
_TOTAL_DECODERS: Final = (_boolean, _text)
"""Decoders that read every text."""
_ARRAYS: Final[Mapping[int, int]] = {
    199: 114, 1000: 16, 1001: 17, 1002: 18, 1003: 19, 1005: 21, 1007: 23, 1009: 25, 1014: 1042,
    1015: 1043, 1016: 20, 1021: 700, 1022: 701, 1028: 26, 1115: 1114, 1182: 1082, 1183: 1083,
    1185: 1184, 1231: 1700, 2951: 2950, 3807: 3802,
}  # fmt: skip
"""Built-in array types, by the oid of their elements."""
NUMERIC: Final = 1700
_TIMES: Final = (1083, 1114)
"""Times of day and timestamps without a zone, whose values may have fewer digits."""
PRECISION: Final = "streamlog.precision"
"""The parameter of a schema with the digits of its seconds, of a column that limits them."""


@dataclass(frozen=True, slots=True)
class TypeCatalogue:
    """The types of a database that are not built in.

    Attributes:
        bases: of each domain, the type that it restricts.
        elements: of each array type, the type of its elements.
        texts: the types whose values are text by nature: enums.
    """

    bases: Mapping[int, int] = field(default_factory=dict)
    elements: Mapping[int, int] = field(default_factory=dict)
    texts: frozenset[int] = frozenset()

    def knows(self, oid: int) -> bool:
        """Whether values of a type are more than text that it does not understand."""
        base = self._base(oid)
        return base in _BASE or base in self.texts or self._element(base) is not None

    def _base(self, oid: int) -> int:
        # A domain over a domain over ...: as long as the chain is, it ends in a base type.
        for _ in range(len(self.bases) + 1):
            if oid not in self.bases:
                break
            oid = self.bases[oid]
        return oid

    def _element(self, oid: int) -> int | None:
        return _ARRAYS.get(oid, self.elements.get(oid))

    def decoder(self, oid: int) -> Decoder:
        """Return what decodes the text of a value of a type; it raises nothing."""
        base = self._base(oid)
        element = self._element(base)
        if element is not None:
            inner = self.decoder(element)
            return _total(lambda text: parse_array(text.decode(), inner))
        decode = _BASE.get(base, (_text, _STRING))[0]
        return decode if decode in _TOTAL_DECODERS else _total(decode)

    def kind(self, oid: int) -> int:
        """Return how `RowReader` reads a value of a type, as `decoder` does."""
        base = self._base(oid)
        if self._element(base) is not None:
            return OTHER
        return _KINDS.get(_BASE.get(base, (_text, _STRING))[0], OTHER)

    def schema(self, oid: int, modifier: int, *, optional: bool) -> Schema:
        """Return the schema of a column.

        Args:
            oid: its type.
            modifier: the type's modifier, which has the digits of a numeric, or of a second.
            optional: whether it may be null.
        """
        base = self._base(oid)
        element = self._element(base)
        if element is not None:
            found = Schema("array", items=self.schema(element, modifier, optional=True))
        # The modifier has 4 bytes of a header, then 16 bits of digits and 11 of scale.
        elif base == NUMERIC and modifier >= 0:
            precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
            parameters = (("scale", str(scale)), ("connect.decimal.precision", str(precision)))
            found = Schema("bytes", logical="Decimal", parameters=parameters)
        elif base in _TIMES and modifier >= 0:
            digits = ((PRECISION, str(modifier)),)
            found = replace(_BASE[base][1], parameters=digits)
        else:
            found = _BASE.get(base, (_text, _STRING))[1]
        return replace(found, optional=optional)


def _total(decode: Decoder) -> Decoder:
    def decoded(text: bytes) -> object:
        try:
            return decode(text)
        except (ValueError, ArithmeticError, msgspec.DecodeError):
            return text.decode(errors="replace")

    return decoded


def parse_array(text: str, decode: Decoder) -> object:
    """Return the values of an array's text, such as `{1,NULL,"a b"}`; dimensions are nested lists.

    Raises:
        ValueError: the text is no array.
    """
    # Bounds other than 1 stand before it: [0:1]={1,2}
    start = text.find("=") + 1 if text.startswith("[") else 0
    tokens = _tokens(text, start)
    if next(tokens, "") != "{":
        raise ValueError(f"{text[:40]!r} is no array")
    found = _items(tokens, decode, 1)
    if next(tokens, None) is not None:
        raise ValueError(f"{text[:40]!r} has more behind its end")
    return found


def _items(tokens: Iterator[str | bytes], decode: Decoder, depth: int) -> list[object]:
    if depth > ARRAY_DEPTH_MAX:
        raise ValueError(f"an array has more than {ARRAY_DEPTH_MAX} dimensions")
    found: list[object] = []
    for part in tokens:
        if part == "}":
            return found
        if part == "{":
            found.append(_items(tokens, decode, depth + 1))
        elif isinstance(part, bytes):
            found.append(decode(part))
        elif part != ",":
            # Without quotes, NULL is none; with them, it is text.
            found.append(None if part.upper() == "NULL" else decode(part.encode()))
    raise ValueError("an array has no end")


def _tokens(text: str, at: int) -> Iterator[str | bytes]:
    """Yield braces, commas and bare elements as str, and quoted elements as bytes."""
    while at < len(text):
        letter = text[at]
        if letter in "{},":
            yield letter
            at += 1
        elif letter == '"':
            parts: list[str] = []
            at += 1
            while text[at : at + 1] not in {'"', ""}:
                at += text[at] == "\\"
                parts.append(text[at : at + 1])
                at += 1
            yield "".join(parts).encode()
            at += 1
        else:
            end = at
            # A bare element has no quotes, braces or commas: those would be quoted.
            while end < len(text) and text[end] not in "{},":
                end += 1
            yield text[at:end].strip()
            at = end
