"""Tables: rows as files of Parquet, JSON lines or CSV, for every connector that writes files.

A `TableFile` collects `pyarrow.RecordBatch`es and returns the bytes of one file. Rule of the room:
the columns of a file are those of all its batches, in the order in which they first appear; so the
same rows give the same file, however they were cut into batches. No I/O.
"""

from __future__ import annotations

import gzip
from importlib import import_module
from typing import Literal, TypeAlias

from streamlog.connectors.tables.text_rows import csv_text, json_lines
from streamlog.serdes.erased_types import UserObject

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

    def add(self, rows: UserObject) -> None:
        """Append the rows of a `pyarrow.RecordBatch`."""
        self._batches.append(rows)

    def finish(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            pyarrow.ArrowException: a column has types that no type holds both.
        """
        pa: UserObject = import_module("pyarrow")
        tables = [pa.Table.from_batches([each]) for each in self._batches]
        # A schema that has evolved within the file: rows before lack its new columns.
        rows = pa.concat_tables(tables, promote_options="permissive")
        if self._kind == "parquet":
            return self._parquet(pa, rows)
        text = json_lines(rows) if self._kind == "jsonl" else csv_text(rows)
        # Without the time of day in its header: equal rows are equal files.
        return gzip.compress(text, mtime=0) if self._compression == "gzip" else text

    def _parquet(self, pa: UserObject, rows: UserObject) -> bytes:
        parquet: UserObject = import_module("pyarrow.parquet")
        to = pa.BufferOutputStream()
        parquet.write_table(rows, to, compression=self._compression)
        found: bytes = to.getvalue().to_pybytes()
        return found
