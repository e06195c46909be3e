"""Tables: rows as files of Parquet, JSON lines or CSV, for every connector that writes files.

A `TableFile` collects `pyarrow.RecordBatch`es and returns the bytes of one file. Rule of the room:
the columns of a file are those of all its batches, in the order in which they first appear; so the
same rows give the same file, however they were cut into batches. No I/O.

In text formats, bytes are written as text if they are UTF-8, else in base64, as neither format has
bytes; what is nested is JSON in a field of CSV. A value that is missing is null, or an empty field;
an empty text is `""`.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Literal, TypeAlias

import msgspec

from streamlog.serdes.erased_types import UserObject, UserValue

TableFormat: TypeAlias = Literal["parquet", "jsonl", "csv"]
TableCompression: TypeAlias = Literal["none", "gzip", "snappy", "zstd"]

SUFFIXES = {"parquet": ".parquet", "jsonl": ".jsonl", "csv": ".csv"}
TEXT_COMPRESSIONS = ("none", "gzip")
"""The compressions of formats other than Parquet, which has its own."""


def table_suffix(kind: TableFormat, compression: TableCompression) -> str:
    """Return the end of a file's name: its format and, of a compressed text, `.gz`."""
    is_zipped = kind != "parquet" and compression == "gzip"
    return SUFFIXES[kind] + (".gz" if is_zipped else "")


class TableFile:
    """One file that is being filled.

    Args:
        kind: the format.
        compression: of Parquet's pages, or of the whole text: "none" or "gzip".
    """

    def __init__(self, kind: TableFormat, compression: TableCompression) -> None:
        self._kind = kind
        self._compression = compression
        self._batches: list[UserObject] = []
        self._dicts: list[Mapping[str, object]] = []

    def add(self, rows: UserObject) -> None:
        """Append the rows of a `pyarrow.RecordBatch`."""
        self._batches.append(rows)

    def add_dicts(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append rows without a schema; their columns get types from all rows of the file."""
        self._dicts += rows

    def finish(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            pyarrow.ArrowException: a column has types that no type holds both.
        """
        pa: UserObject = import_module("pyarrow")
        if self._kind == "jsonl" and not self._batches:
            # JSON needs no types, so rows whose fields differ are no error here.
            return self._text(_json.encode_lines(self._dicts))
        tables = [pa.Table.from_batches([each]) for each in self._batches]
        if self._dicts:
            # Not by batch: a field may be null in all rows of one, and has no type there.
            names = dict.fromkeys(name for row in self._dicts for name in row)
            tables.append(
                pa.table({name: [row.get(name) for row in self._dicts] for name in names})
            )
        # A schema that has evolved within the file: rows before lack its new columns.
        rows = pa.concat_tables(tables, promote_options="permissive")
        if self._kind == "parquet":
            return self._parquet(pa, rows)
        return self._text(_json_lines(rows) if self._kind == "jsonl" else _csv_text(rows))

    def _text(self, text: bytes) -> bytes:
        # Without the time of day in its header: equal rows are equal files.
        return gzip.compress(text, mtime=0) if self._compression == "gzip" else text

    def _parquet(self, pa: UserObject, rows: UserObject) -> bytes:
        parquet: UserObject = import_module("pyarrow.parquet")
        to = pa.BufferOutputStream()
        parquet.write_table(rows, to, compression=self._compression)
        found: bytes = to.getvalue().to_pybytes()
        return found


def _json_lines(rows: UserObject) -> bytes:
    """Return a `pyarrow.Table` as JSON objects, one a line."""
    return _json.encode_lines(_without_bytes(rows).to_pylist())


def _csv_text(rows: UserObject) -> bytes:
    """Return a `pyarrow.Table` as CSV (RFC 4180) with a line of names."""
    pa: UserObject = import_module("pyarrow")
    csv: UserObject = import_module("pyarrow.csv")
    flat = _without_bytes(rows)
    # Arrow writes no nested columns as CSV.
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
