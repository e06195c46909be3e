"""File rows: the rows of one file in chunks, from a row on.

Rule of the module: a chunk depends on the file and its first row alone, so rows come in the same
order in every life. Errors name the file and the row.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeAlias

from streamlog.allowed_paths import opener
from streamlog.connect import ConnectError
from streamlog.serdes.erased_types import UserObject

FileFormat: TypeAlias = Literal["lines", "jsonl", "csv", "parquet"]
ColumnType: TypeAlias = Literal["string", "int64", "float64", "boolean"]

CHUNK_ROWS = 1_000
LINE_BYTES_MAX = 8 * 1024 * 1024
"""The longest line: a Read holds at most 16 MiB."""
CHUNK_BYTES_MAX = 4 * 1024 * 1024


class Rows(NamedTuple):
    """Consecutive rows: as bytes, as dicts, or as a `pyarrow.RecordBatch`.

    Attributes:
        lines: the bytes of lines; None for other formats.
        dicts: rows of CSV; None for other formats.
        batch: rows of Parquet; None for other formats.
        end: the number of the row behind the last one.
    """

    lines: list[bytes] | None
    dicts: list[dict[str, object]] | None
    batch: UserObject
    end: int


class CsvOptions(NamedTuple):
    """How CSV is read.

    Attributes:
        delimiter: the character between fields.
        columns: the types of columns; text for those that are not named.
    """

    delimiter: str
    columns: Mapping[str, ColumnType]


def read_rows(path: Path, kind: FileFormat, first: int, options: CsvOptions) -> Iterator[Rows]:
    """Yield the rows of a file from row `first` on; at the end of the file it returns.

    Raises:
        ConnectError: the file has another format, or a field is none of its type.
    """
    match kind:
        case "lines" | "jsonl":
            return _line_rows(path, first, skips_blank=kind == "jsonl")
        case "csv":
            return _csv_rows(path, first, options)
        case "parquet":
            return _parquet_rows(path, first)


def _open(path: Path) -> BinaryIO:
    file: BinaryIO = open(path, "rb", opener=opener)  # noqa: SIM115 - the caller closes it
    if path.suffix != ".gz":
        return file
    # The type of gzip's file is one of its own, with the methods that are used here.
    unpacked: UserObject = _Unpacked(file)
    rows: BinaryIO = unpacked
    return rows


class _Unpacked(gzip.GzipFile):
    """The content of a compressed file, which is closed with it."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__(fileobj=packed)
        self._packed = packed

    def close(self) -> None:
        """Close both."""
        super().close()
        self._packed.close()


def _line_rows(path: Path, first: int, *, skips_blank: bool) -> Iterator[Rows]:
    with _open(path) as file:
        row, lines, size = 0, list[bytes](), 0
        while line := file.readline(LINE_BYTES_MAX + 1):
            if len(line) > LINE_BYTES_MAX:
                raise ConnectError(f"{path}, row {row}: longer than {LINE_BYTES_MAX} bytes")
            row += 1
            if row <= first or (skips_blank and not line.strip()):
                continue
            lines.append(line.removesuffix(b"\n").removesuffix(b"\r"))
            size += len(line)
            if len(lines) >= CHUNK_ROWS or size >= CHUNK_BYTES_MAX:
                yield Rows(lines, None, None, row)
                lines, size = [], 0
        if lines:
            yield Rows(lines, None, None, row)


def _csv_rows(path: Path, first: int, options: CsvOptions) -> Iterator[Rows]:
    row = first
    try:
        with _open(path) as file, TextIOWrapper(file, "utf-8-sig", newline="") as text:
            reader = csv.DictReader(text, delimiter=options.delimiter, strict=True)
            missing = options.columns.keys() - set(reader.fieldnames or ())
            if missing:
                raise ConnectError(f"{path} has no column {', '.join(sorted(missing))}")
            rows = islice(_strict_rows(path, reader), first, None)
            while chunk := list(islice(rows, CHUNK_ROWS)):
                dicts = [_typed(path, row + at, each, options) for at, each in enumerate(chunk)]
                row += len(chunk)
                yield Rows(None, dicts, None, row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConnectError(f"{path} is no CSV in UTF-8 behind row {row}: {error}") from error


def _strict_rows(path: Path, reader: csv.DictReader[str]) -> Iterator[dict[str, str | None]]:
    for row, each in enumerate(reader):
        # csv has the surplus of a row under the key None, and None for fields that it lacks.
        if None in each or None in each.values():
            names = len(reader.fieldnames or ())
            raise ConnectError(f"{path}, row {row} has not {names} fields, as the header has")
        yield {**each}


def _typed(
    path: Path, row: int, texts: Mapping[str, str | None], options: CsvOptions
) -> dict[str, object]:
    typed: dict[str, object] = {**texts}
    for name, kind in options.columns.items():
        text = texts[name]
        try:
            # CSV has no null: an empty field is one, except of text.
            typed[name] = _CONVERSIONS[kind](text) if text or kind == "string" else None
        except (KeyError, ValueError) as error:
            raise ConnectError(
                f"{path}, row {row}: {name} is {text!r}, which is no {kind}"
            ) from error
    return typed


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_CONVERSIONS: Mapping[str, Callable[..., object]] = {
    "string": str,
    "int64": int,
    "float64": float,
    "boolean": lambda text: _BOOLEANS[text.lower()],
}


def _parquet_rows(path: Path, first: int) -> Iterator[Rows]:
    pa: UserObject = import_module("pyarrow")
    try:
        yield from _batches(path, first)
    except pa.ArrowException as error:
        raise ConnectError(f"{path} is no Parquet file: {error}") from error


def _batches(path: Path, first: int) -> Iterator[Rows]:
    parquet: UserObject = import_module("pyarrow.parquet")
    with _open(path) as opened, parquet.ParquetFile(opened) as file:
        row = 0
        for batch in file.iter_batches(batch_size=CHUNK_ROWS):
            # Batches that are skipped are read as well: the row need not begin a row group.
            begin, row = row, row + batch.num_rows
            if row > first:
                yield Rows(None, None, batch.slice(max(0, first - begin)), row)
