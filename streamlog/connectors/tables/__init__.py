"""Tables: rows as files of Parquet, JSON lines or CSV, for every connector that writes files.

A `TableFile` collects `pyarrow.RecordBatch`es and returns the bytes of one file. Rule of the room:
the columns of a file are those of all its batches, in the order in which they first appear, of the
widest type (`column_types`); so the same rows give the same file, however they were cut into
batches. Rows that no common type holds belong in another file. No I/O.

Neither text format has bytes: a column of bytes is text where they are UTF-8, else base64, as bytes
within other values always are. What is nested is JSON in a field of CSV. A value that is missing is
null, or an empty field; an empty text is `""`.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from typing import Final, Literal, TypeAlias, cast

import msgspec

from streamlog.connect import Schema
from streamlog.connect.arrow_columns import plain_array, times_array
from streamlog.connectors.tables.array_values import texts_of, values_of
from streamlog.connectors.tables.column_types import (
    fitted_batch,
    is_binary,
    is_text,
    united_columns,
)
from streamlog.connectors.tables.row_types import RowTypes
from streamlog.serdes.erased_types import UserObject, UserValue

TableFormat: TypeAlias = Literal["parquet", "jsonl", "csv"]
TableCompression: TypeAlias = Literal["none", "gzip", "snappy", "zstd"]

SUFFIXES = {"parquet": ".parquet", "jsonl": ".jsonl", "csv": ".csv"}
TEXT_COMPRESSIONS = ("none", "gzip")
"""The compressions of formats other than Parquet, which has its own."""
_ROWS_AT_ONCE = 10_000
_SECOND_US = 1_000_000
_MILLISECONDS: Final[Mapping[int, str]] = {
    0: "Z",
    **{1_000 * at: f".{at:03}000Z" for at in range(1, 1_000)},
}
"""By microseconds of a second: the end of a time's text. Times of records have milliseconds."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - written with a Z behind it
UNIQUE_COLUMN: Final = "_offset"
"""The column whose values never repeat."""
TIME_COLUMN: Final = "_timestamp"
"""The column of the records' times."""
_SAMPLE_ROWS: Final = range(4_096, 65_536)
"""How many rows say whether a column repeats itself: an eighth of them, but at least and at most
these."""
_UNIQUE_SHARE: Final = 0.75
"""With more distinct values than this in the sample, a column has no dictionary: it would outgrow
its 1 MiB, and all values would be written again without it."""


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
        self._parts: list[UserObject] = []
        """Batches, or lists of rows as dicts."""
        self._columns: UserObject = None
        """The columns of all batches, as a `pyarrow.Schema`; None if there is no batch."""
        self._newest: UserObject = None
        """The columns of the newest batch, which are nearly always those of the next one."""
        self._has_dicts = False
        self._types = RowTypes()
        """Of rows without a schema."""

    def misfits(self, rows: Sequence[Mapping[str, object]]) -> dict[int, str]:
        """Return which rows without a schema the file can't take, by index, and why.

        Those that it takes have to be added next; after a misfit the file is of no use any more.
        """
        # JSON needs no types, so rows whose fields differ are no error there.
        return {} if self._kind == "jsonl" else self._types.take(rows)

    def takes(self, columns: UserObject | None) -> bool:
        """Return whether the file may have such rows as well.

        Args:
            columns: a `pyarrow.Schema`; None for rows without a schema.
        """
        if columns is None:
            return self._columns is None
        if self._columns is None:
            return not self._has_dicts
        if self._newest is not None and self._newest.equals(columns):
            return True
        return united_columns(self._columns, columns) is not None

    def add(self, rows: UserObject) -> None:
        """Append rows that the file takes.

        Args:
            rows: a `pyarrow.RecordBatch`; or a list of dicts without a schema, whose columns get
                types from all rows of the file.

        Raises:
            ValueError: it does not take them.
        """
        if isinstance(rows, list):
            self._has_dicts = True
        elif self._newest is None or not self._newest.equals(rows.schema):
            known = rows.schema if self._columns is None else self._columns
            columns = united_columns(known, rows.schema)
            if columns is None or self._has_dicts:
                raise ValueError(f"a file of {known} takes no rows of {rows.schema}")
            self._columns, self._newest = columns, rows.schema
        self._parts.append(rows)

    def add_nulls(self, rows: list[Mapping[str, object]]) -> None:
        """Append rows of records without a value, as dicts; every file takes them."""
        self._parts.append(rows)

    def finish(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            pyarrow.ArrowException: rows without a schema have values of a class that Arrow lacks.
        """
        pa: UserObject = import_module("pyarrow")
        if self._columns is not None:
            rows = self._typed_rows(pa)
        else:
            dicts = [row for part in self._parts for row in part]
            if self._kind == "jsonl":
                return self._text(_json.encode_lines(dicts))
            # Not by batch: a field may be null in all rows of one, and has no type there.
            names = dict.fromkeys(name for row in dicts for name in row)
            columns = [self._plain_column(pa, name, dicts) for name in names]
            rows = pa.Table.from_arrays(columns, [*names])
        if self._kind == "parquet":
            return self._parquet(pa, rows)
        return self._text(_json_lines(rows) if self._kind == "jsonl" else _csv_text(rows))

    def _plain_column(
        self, pa: UserObject, name: str, rows: Sequence[Mapping[str, object]]
    ) -> UserObject:
        values = self._types.plain(name, [row.get(name) for row in rows])
        # Not any column of that name: a row may have such a field of its own.
        if name == TIME_COLUMN and all(isinstance(each, datetime) for each in values):
            return times_array(pa, cast("Sequence[datetime]", values))
        schema = self._types.schema(name)
        found = None if schema is None else plain_array(pa, values, schema)
        return pa.array(values) if found is None else found

    def _typed_rows(self, pa: UserObject) -> UserObject:
        columns = pa.schema(
            [pa.field(each.name, self._known_type(pa, each)) for each in self._columns]
        )
        batches = [
            pa.RecordBatch.from_pylist(part, schema=columns)
            if isinstance(part, list)
            else fitted_batch(part, columns)
            for part in self._parts
        ]
        return pa.Table.from_batches(batches, schema=columns)

    def _known_type(self, pa: UserObject, column: UserObject) -> UserObject:
        """Return the type of a column; if the batches have no value for it, text or bytes."""
        if not pa.types.is_null(column.type):
            return column.type
        rows = (row for part in self._parts if isinstance(part, list) for row in part)
        values = (row.get(column.name) for row in rows)
        is_text = any(isinstance(each, str) for each in values)
        return pa.string() if is_text else pa.binary()

    def _text(self, text: bytes) -> bytes:
        # Without the time of day in its header: equal rows are equal files.
        return gzip.compress(text, mtime=0) if self._compression == "gzip" else text

    def _parquet(self, pa: UserObject, rows: UserObject) -> bytes:
        parquet: UserObject = import_module("pyarrow.parquet")
        to = pa.BufferOutputStream()
        parquet.write_table(
            rows, to, compression=self._compression, use_dictionary=_repeating(parquet, rows)
        )
        found: bytes = to.getvalue().to_pybytes()
        return found


def _repeating(parquet: UserObject, rows: UserObject) -> list[str]:
    """Return the columns whose values may repeat, by Parquet's paths: those within others, too.

    A dictionary of values that do not repeat makes a file larger, and takes half of the time.
    """
    pa: UserObject = import_module("pyarrow")
    to = pa.BufferOutputStream()
    # Which paths an Arrow type has, only a file says.
    parquet.write_table(rows.slice(0, 0), to)
    columns = parquet.ParquetFile(to.getvalue()).schema
    paths = [columns.column(at).path for at in range(len(columns))]
    unique = {name for name in rows.column_names if _is_unique(pa, name, rows.column(name))}
    return [path for path in paths if path not in unique]


def _is_unique(pa: UserObject, name: str, column: UserObject) -> bool:
    """Whether a column is one of scalars that hardly repeat, by its first rows."""
    if name == UNIQUE_COLUMN:
        return True
    of, kind = pa.types, column.type
    is_number = of.is_integer(kind) or of.is_float32(kind) or of.is_float64(kind)
    if not (is_number or of.is_timestamp(kind) or is_text(of, kind) or is_binary(of, kind)):
        return False
    compute: UserObject = import_module("pyarrow.compute")
    rows = min(max(len(column) // 8, _SAMPLE_ROWS.start), _SAMPLE_ROWS.stop)
    sample = column.slice(0, rows)
    distinct: int = compute.count_distinct(sample).as_py()
    present: int = len(sample) - sample.null_count
    return distinct > _UNIQUE_SHARE * present


def _json_lines(rows: UserObject) -> bytes:
    """Return a `pyarrow.Table` as JSON objects, one a line."""
    pa: UserObject = import_module("pyarrow")
    row_of = _row_class(rows.column_names)
    texts: list[bytes] = []
    # In parts: as Python's objects, rows take many times the room that they have as columns.
    for part in rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
        columns = [_json_values(pa, column) for column in part.columns]
        texts.append(_json.encode_lines([*map(row_of, *columns)]))
    return b"".join(texts)


def _row_class(names: Sequence[str]) -> Callable[..., object]:
    """Return what makes a row of values in the order of the columns."""
    # msgspec refuses such names in a Struct, which is made and written in a third of a dict's time.
    if any(msgspec.json.encode(name) != f'"{name}"'.encode() for name in names):
        return lambda *values: dict(zip(names, values, strict=True))
    renamed = {f"column{at}": name for at, name in enumerate(names)}
    made: Callable[..., object] = msgspec.defstruct("Row", [*renamed], rename=renamed, gc=False)
    return made


def _json_values(pa: UserObject, column: UserObject) -> Sequence[UserValue]:
    """Return a column as values that msgspec writes as JSON."""
    if column.type == pa.timestamp("us", tz="UTC"):
        return _moments(values_of(column.cast(pa.int64())))
    return texts_of(column) if pa.types.is_binary(column.type) else values_of(column)


def _moments(times_us: Sequence[int | None]) -> list[str | None]:
    """Return microseconds since 1970 as msgspec writes a datetime in UTC."""
    # Arrow's own datetimes cost ten times as much. Records of one second follow each other.
    known: dict[int, str] = {}
    found: list[str | None] = []
    last_us: int | None = None
    for time_us in times_us:
        if time_us is None:
            found.append(None)
            last_us = None
            continue
        # Those of one request have one time.
        if time_us == last_us:
            found.append(found[-1])
            continue
        last_us = time_us
        second, micros = divmod(time_us, _SECOND_US)
        text = known.get(second)
        if text is None:
            text = known[second] = (_EPOCH + timedelta(seconds=second)).isoformat()
        behind = _MILLISECONDS.get(micros)
        found.append(text + (f".{micros:06}Z" if behind is None else behind))
    return found


def _csv_text(rows: UserObject) -> bytes:
    """Return a `pyarrow.Table` as CSV (RFC 4180) with a line of names."""
    pa: UserObject = import_module("pyarrow")
    csv: UserObject = import_module("pyarrow.csv")
    flat = _without_zones(pa, _without_bytes(rows))
    # Arrow writes no nested columns as CSV.
    for at, field in enumerate(flat.schema):
        if pa.types.is_nested(field.type):
            column = flat.column(at).to_pylist()
            texts = [None if each is None else _json.encode(each).decode() for each in column]
            flat = flat.set_column(at, field.name, _texts(pa, texts))
    to = pa.BufferOutputStream()
    csv.write_csv(flat, to)
    text: bytes = to.getvalue().to_pybytes()
    return text


def _without_zones(pa: UserObject, rows: UserObject) -> UserObject:
    """Return rows whose times in UTC are the text that Arrow writes for them.

    It asks the zone of each value, which is most of the time that a file takes.
    """
    compute: UserObject = import_module("pyarrow.compute")
    zone = _texts(pa, ["Z", ""])
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz == "UTC":
            plain = rows.column(at).cast(pa.timestamp(field.type.unit)).cast(pa.string())
            text = compute.binary_join_element_wise(plain, zone[0], zone[1])
            rows = rows.set_column(at, field.name, text)
    return rows


def _without_bytes(rows: UserObject) -> UserObject:
    pa: UserObject = import_module("pyarrow")
    for at, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type):
            chunks = rows.column(at).chunks
            texts = [text for chunk in chunks for text in texts_of(chunk)]
            rows = rows.set_column(at, field.name, _texts(pa, texts))
    return rows


def _texts(pa: UserObject, texts: Sequence[str | None]) -> UserObject:
    return plain_array(pa, texts, Schema("string"))


# msgspec has its own form for all else that Arrow returns.
_json = msgspec.json.Encoder(enc_hook=str)
