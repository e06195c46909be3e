"""ShownRecord: a record's bytes as an operator reads them: JSON, text, hex, or framed by a schema.

Rule of the module: what is shown is bounded, and what is left out is named. Not done here: HTML
(`pages.message_pages`), and reading by a schema, for which callers pass a `Decode`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from streamlog.console.record_filter import FilteredRecord
from streamlog.records.log_record import LogRecord

Form: TypeAlias = Literal["auto", "json", "text", "hex"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)
Decode: TypeAlias = Callable[[bytes], bytes | None]
"""Returns framed bytes as JSON; None if their schema is not known, or does not fit."""
SHOWN_BYTES_MAX: Final = 64 * 1024
"""Bytes of one key or value that are shown."""
PAGE_MAX: Final = 1024 * 1024
"""Characters of all keys and values of a page; beyond, each one gets `LEAST_MAX`."""
LEAST_MAX: Final = 1024
HEADER_MAX: Final = 1024
"""Characters of a header's name, and bytes of its value, that are looked at."""
JSON_BYTES_MAX: Final = 1024 * 1024
"""Bytes that are parsed as JSON; more stay text."""
SUMMARY_MAX: Final = 240
HEADERS_MAX: Final = 100
HEX_WIDTH: Final = 16
HEX_LINE: Final = 74
"""The length of a hex line, in characters."""
LETTER_BYTES_MAX: Final = 4
"""Of one letter in UTF-8."""
FRAME_BYTES: Final = 5
"""A magic byte 0 and the id of a schema, before what a serializer of the registry writes."""
MAGIC: Final = 0
_DECODER: Final = codecs.getincrementaldecoder("utf-8")
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
"""A token of what is known to be JSON."""
_BEGINS: Final = frozenset("[{")
_ENDS: Final = frozenset("]}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BLANKS: Final = dict.fromkeys(map(ord, "\n\r\t"))


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
    is_decoded: bool = False
    """Whether it was read by that schema."""


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


def undecoded(_: bytes) -> None:
    """Decode nothing, where there is no registry."""


def schema_id_of(data: bytes) -> int | None:
    """Return the id of the schema in the frame of a value; None if it has none."""
    # A text or a JSON value never begins with a null byte, so this takes nothing away from them.
    if len(data) <= FRAME_BYTES or data[0] != MAGIC:
        return None
    return int.from_bytes(data[1:FRAME_BYTES], "big")


def show(
    partition: int,
    record: LogRecord,
    form: Form = "auto",
    limit: int = SHOWN_BYTES_MAX,
    *,
    decode: Decode = undecoded,
) -> ShownRecord:
    """Return a record as text, its key and value in a form, each up to a limit of characters."""
    # A client may send any number of headers; a page with all of them would be useless.
    headers = record.headers[:HEADERS_MAX]
    return ShownRecord(
        partition,
        record.offset,
        record.timestamp_ms,
        show_bytes(record.key, form, limit, decode=decode),
        show_bytes(record.value, form, limit, decode=decode),
        # Only its summary is shown: a hundred long ones, read as JSON, would hold up the broker.
        tuple((name[:HEADER_MAX], _header(data)) for name, data in headers),
        len(record.headers) - len(headers),
    )


def show_all(
    records: Iterable[tuple[int, LogRecord]], form: Form, decode: Decode = undecoded
) -> Iterator[ShownRecord]:
    """Yield records as text for one page, which holds `PAGE_MAX` characters and a little more."""
    left = PAGE_MAX
    for partition, record in records:
        # The first ones are shown whole: the link of a record leads to a page that begins with it.
        limit = max(LEAST_MAX, min(SHOWN_BYTES_MAX, left))
        shown = show(partition, record, form, limit, decode=decode)
        left -= len(shown.key.text) + len(shown.value.text)
        yield shown


def show_bytes(
    data: bytes | None,
    form: Form = "auto",
    limit: int = SHOWN_BYTES_MAX,
    *,
    decode: Decode = undecoded,
) -> ShownBytes:
    """Return bytes as text in a form; a form that does not fit them becomes hex."""
    if data is None:
        return ShownBytes("null", "", "null", 0)
    if not data:
        return ShownBytes("empty", "", "empty", 0)
    framed = schema_id_of(data) if form in ("auto", "json") else None
    body, is_decoded = data, False
    if framed is not None:
        found = decode(data)
        is_decoded = found is not None
        # Without its schema, what follows the frame is shown as it is.
        body = data[FRAME_BYTES:] if found is None else found
    kind, text, is_cut = _text_of(body, form, limit)
    return ShownBytes(
        kind,
        text,
        _summary(body, kind, text),
        len(data),
        is_cut=is_cut,
        schema_id=framed,
        is_decoded=is_decoded,
    )


def _header(data: bytes | None) -> ShownBytes:
    return show_bytes(data if data is None else data[:HEADER_MAX], "auto", HEADER_MAX)


def _text_of(data: bytes, form: Form, limit: int) -> tuple[str, str, bool]:
    """Return what bytes are, as a text up to a limit, and whether something is left out."""
    if form in ("auto", "json") and len(data) <= JSON_BYTES_MAX:
        # Parsed, so that it is known to be JSON, but shown as it was written.
        try:
            json.loads(data)
            return "JSON", *_laid_out(data.decode(json.detect_encoding(data)), limit)
        # Deep nesting ends json's recursion.
        except (ValueError, RecursionError):
            pass
    if form != "hex":
        try:
            # What is left out needs no decoding; the last letter may be cut in its middle.
            begin = data[: limit * LETTER_BYTES_MAX]
            text = _DECODER().decode(begin, len(begin) == len(data))
        except UnicodeDecodeError:
            pass
        else:
            shown = text[:limit]
            if form == "text" or _is_readable(shown):
                return "text", shown, len(shown.encode()) < len(data)
    rows = max(1, limit // HEX_LINE)
    return "hex", hex_dump(data[: rows * HEX_WIDTH]), len(data) > rows * HEX_WIDTH


def _laid_out(text: str, limit: int) -> tuple[str, bool]:
    """Return JSON with a line for each member, up to a limit, and whether something is left out.

    Numbers and repeated names stay as they were written; only spaces differ.
    """
    parts, size, depth, last = list[str](), 0, 0, ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in _ENDS:
            depth -= 1
            # An empty list or object stays on its line.
            breaks = last not in _BEGINS
        else:
            breaks = last == "," or last in _BEGINS
        space = " " if last == ":" else ""
        parts += f"\n{'  ' * depth}" if breaks else space, _readable(token)
        size += len(parts[-2]) + len(parts[-1])
        # Here, and not at the end: deep nesting makes a gigabyte of indents from a megabyte.
        if size > limit:
            return "".join(parts)[:limit], True
        depth += token in _BEGINS
        last = token
    return "".join(parts), False


def _readable(token: str) -> str:
    """Return a token of JSON, in a string with letters instead of their numbers."""
    if "\\" not in token:
        return token
    shown = json.dumps(json.loads(token), ensure_ascii=False)
    # Half a pair of surrogates is no letter, and no page can hold it.
    return token if _SURROGATE.search(shown) else shown


def _is_readable(text: str) -> bool:
    # Control characters would move a terminal, and hide in a page: their bytes say more.
    return text.translate(_BLANKS).isprintable()


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


def filtered(partition: int, record: LogRecord, decode: Decode = undecoded) -> FilteredRecord:
    """Return a record as a filter sees it."""
    return FilteredRecord(
        _value(record.key, decode),
        _value(record.value, decode),
        {name: _value(data, undecoded) for name, data in record.headers[:HEADERS_MAX]},
        partition,
        record.offset,
        record.timestamp_ms,
    )


def _value(data: bytes | None, decode: Decode) -> object:
    if data is None or len(data) > JSON_BYTES_MAX:
        return None
    if schema_id_of(data) is not None:
        # Bytes grow when they become JSON; what is then too large is no value to a filter.
        data = decode(data) or data
        if len(data) > JSON_BYTES_MAX:
            return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
