"""ShownRecord: a record's bytes as an operator reads them: JSON, text, hex, or framed by a schema.

Rule of the module: what is shown is bounded, and what is left out is named. Not done here: HTML
(`pages.message_pages`), and decoding by a schema, which needs the registry.
"""

from __future__ import annotations

import json
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from streamlog.console.record_filter import FilteredRecord
from streamlog.records.log_record import LogRecord

Form: TypeAlias = Literal["auto", "json", "text", "hex"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)
SHOWN_BYTES_MAX: Final = 64 * 1024
"""Bytes of one key or value that are shown."""
JSON_BYTES_MAX: Final = 1024 * 1024
"""Bytes that are parsed as JSON; more stay text."""
SUMMARY_MAX: Final = 240
HEADERS_MAX: Final = 100
HEX_WIDTH: Final = 16
FRAME_BYTES: Final = 5
"""A magic byte 0 and the id of a schema, before what a serializer of the registry writes."""
MAGIC: Final = 0


class ShownBytes(msgspec.Struct, frozen=True):
    """A key, a value or a header as text."""

    kind: str
    """"null", "empty", "JSON", "text" or "hex"."""
    text: str
    summary: str
    """Its beginning, on one line."""
    size: int
    is_cut: bool = False
    schema_id: int | None = None
    """The id in its frame, if it has one."""


class ShownRecord(msgspec.Struct, frozen=True):
    """A record as text."""

    partition: int
    offset: int
    timestamp_ms: int
    key: ShownBytes
    value: ShownBytes
    headers: tuple[tuple[str, ShownBytes], ...]
    more_headers: int = 0
    """Headers that are not shown."""


def show(partition: int, record: LogRecord, form: Form = "auto") -> ShownRecord:
    """Return a record as text, its key and value in a form."""
    # A client may send any number of headers; a page with all of them would be useless.
    headers = record.headers[:HEADERS_MAX]
    return ShownRecord(
        partition,
        record.offset,
        record.timestamp_ms,
        show_bytes(record.key, form),
        show_bytes(record.value, form),
        tuple((name, show_bytes(data, "auto")) for name, data in headers),
        len(record.headers) - len(headers),
    )


def show_bytes(data: bytes | None, form: Form = "auto") -> ShownBytes:
    """Return bytes as text in a form; a form that does not fit them becomes hex."""
    if data is None:
        return ShownBytes("null", "", "null", 0)
    if not data:
        return ShownBytes("empty", "", "empty", 0)
    framed = None
    body = data
    # A text or a JSON value never begins with a null byte, so this takes nothing away from them.
    if form == "auto" and len(data) > FRAME_BYTES and data[0] == MAGIC:
        framed, body = int.from_bytes(data[1:FRAME_BYTES], "big"), data[FRAME_BYTES:]
    kind, text = _text_of(body, form)
    shown = text[:SHOWN_BYTES_MAX]
    return ShownBytes(
        kind,
        shown,
        _summary(body, kind, shown),
        len(data),
        is_cut=len(text) > len(shown) or (kind == "hex" and len(body) > SHOWN_BYTES_MAX // 4),
        schema_id=framed,
    )


def _text_of(data: bytes, form: Form) -> tuple[str, str]:
    if form in ("auto", "json") and len(data) <= JSON_BYTES_MAX:
        try:
            return "JSON", json.dumps(json.loads(data), indent=2, ensure_ascii=False)
        # Deep nesting ends json's recursion; surrogates are text that no page can hold.
        except (ValueError, RecursionError):
            pass
    if form != "hex":
        try:
            text = data.decode()
        except UnicodeDecodeError:
            pass
        else:
            if form == "text" or _is_readable(text):
                return "text", text
    return "hex", hex_dump(data[: SHOWN_BYTES_MAX // 4])


def _is_readable(text: str) -> bool:
    # Control characters would move a terminal, and hide in a page: their bytes say more.
    return all(letter.isprintable() or letter in "\n\r\t" for letter in text[:SHOWN_BYTES_MAX])


def hex_dump(data: bytes) -> str:
    """Return bytes in lines of 16: their place, in hex, and as ASCII."""
    lines = []
    for at in range(0, len(data), HEX_WIDTH):
        part = data[at : at + HEX_WIDTH]
        ascii_part = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in part)  # noqa: PLR2004 - ASCII
        lines.append(f"{at:06x}  {part.hex(' '):<47}  {ascii_part}")
    return "\n".join(lines)


def _summary(data: bytes, kind: str, text: str) -> str:
    if kind == "hex":
        return data[: SUMMARY_MAX // 4].hex(" ")
    # JSON as it was written is shorter than with indents.
    # A cut in the middle of a letter would be an error of decoding.
    source = data[: 4 * SUMMARY_MAX].decode(errors="replace") if kind == "JSON" else text
    return " ".join(source[: 2 * SUMMARY_MAX].split())[:SUMMARY_MAX]


def filtered(partition: int, record: LogRecord) -> FilteredRecord:
    """Return a record as a filter sees it."""
    return FilteredRecord(
        _value(record.key),
        _value(record.value),
        {name: _value(data) for name, data in record.headers[:HEADERS_MAX]},
        partition,
        record.offset,
        record.timestamp_ms,
    )


def _value(data: bytes | None) -> object:
    if data is None or len(data) > JSON_BYTES_MAX:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
