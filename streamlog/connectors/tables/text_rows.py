"""Rows as text: JSON lines and CSV.

Rules: bytes are written as text if they are UTF-8, else in base64, as neither format has bytes;
what is nested is JSON in a field of CSV. A value that is missing is null, or an empty field; an
empty text is `""`.
"""

from __future__ import annotations

import base64
from importlib import import_module

import msgspec

from streamlog.serdes.erased_types import UserObject, UserValue


def json_lines(rows: UserObject) -> bytes:
    """Return a `pyarrow.Table` as JSON objects, one a line."""
    return _json.encode_lines(_without_bytes(rows).to_pylist())


def csv_text(rows: UserObject) -> bytes:
    """Return a `pyarrow.Table` as CSV (RFC 4180) with a line of names."""
    pa: UserObject = import_module("pyarrow")
    csv: UserObject = import_module("pyarrow.csv")
    flat = _without_bytes(rows)
    for at, field in enumerate(flat.schema):
        if pa.types.is_nested(field.type):
            column = flat.column(at).to_pylist()
            texts = [None if each is None else _json.encode(each).decode() for each in column]
            flat = flat.set_column(at, field.name, pa.array(texts, pa.string()))
    to = pa.BufferOutputStream()
    csv.write_csv(flat, to)
    text: bytes = to.getvalue().to_pybytes()
    return text


def _without_bytes(rows: UserObject) -> UserObject:
    pa: UserObject = import_module("pyarrow")
    for at, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type):
            texts = [_text(each) for each in rows.column(at).to_pylist()]
            rows = rows.set_column(at, field.name, pa.array(texts, pa.string()))
    return rows


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _plain(value: UserValue) -> UserValue:
    # Bytes within a struct or a list; msgspec has its own form for all else that Arrow returns.
    return _text(value) if isinstance(value, bytes) else str(value)


_json = msgspec.json.Encoder(enc_hook=_plain)
