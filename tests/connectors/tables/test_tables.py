from __future__ import annotations

import csv
import gzip
import io
import json
import random
from datetime import UTC
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.connectors.tables import TableCompression, TableFile, TableFormat, table_suffix

ROWS: list[dict[str, Any]] = [
    {"name": "a", "count": 1, "tags": ["x", "y"], "raw": b"text", "none": None},
    {"name": 'b,"c"\n', "count": None, "tags": [], "raw": b"\xff", "none": None},
    {"name": "", "count": 3, "tags": None, "raw": None, "none": None},
]
TEXTS = [{**row, "raw": raw} for row, raw in zip(ROWS, ("text", "/w==", None), strict=True)]
FORMATS: list[TableFormat] = ["parquet", "jsonl", "csv"]


def written(kind: TableFormat, *parts: Any, compression: TableCompression = "none") -> bytes:
    file = TableFile(kind, compression)
    for part in parts:
        file.add(part)
    return file.finish()


def batch(rows: list[dict[str, Any]]) -> Any:
    return pa.RecordBatch.from_pylist(rows)


def test_parquet_has_the_rows() -> None:
    table = pq.read_table(io.BytesIO(written("parquet", batch(ROWS), compression="zstd")))
    assert table.to_pylist() == ROWS


def test_json_lines_have_the_rows_with_bytes_as_text() -> None:
    lines = written("jsonl", batch(ROWS)).splitlines()
    assert [json.loads(line) for line in lines] == TEXTS


def test_csv_has_the_rows_and_what_is_nested_as_json() -> None:
    text = written("csv", batch(ROWS)).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["name"] for row in rows] == ["a", 'b,"c"\n', ""]
    assert [row["count"] for row in rows] == ["1", "", "3"]
    assert [row["raw"] for row in rows] == ["text", "/w==", ""]
    assert [row["tags"] for row in rows] == ['["x","y"]', "[]", ""]
    assert '"",3' in text, "an empty text is not a missing one"


@given(st.lists(st.none() | st.datetimes(timezones=st.just(UTC)), max_size=5))
def test_times_in_csv_are_what_arrow_writes(times: list[Any]) -> None:
    rows = pa.RecordBatch.from_pydict({"at": pa.array(times, pa.timestamp("us", tz="UTC"))})
    to = pa.BufferOutputStream()
    arrow_csv.write_csv(rows, to)
    expected = to.getvalue().to_pybytes().decode()
    found = written("csv", rows).decode()
    assert [*csv.reader(found.splitlines())] == [*csv.reader(expected.splitlines())]


columns: Any = st.one_of(
    *(
        st.tuples(st.just(kind), st.lists(st.none() | values, min_size=4, max_size=4))
        for kind, values in (
            (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
            (pa.float64(), st.floats()),
            (pa.bool_(), st.booleans()),
            (pa.string(), st.text()),
            (pa.binary(), st.binary()),
            (pa.date32(), st.dates()),
            (pa.decimal128(6, 2), st.decimals("-9999.99", "9999.99", places=2)),
            (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(UTC))),
            (pa.timestamp("us"), st.datetimes()),
            (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=2)),
            (pa.struct([("a", pa.binary())]), st.fixed_dictionaries({"a": st.binary()})),
        )
    )
)


@settings(max_examples=settings().max_examples // 3)
@given(st.dictionaries(st.text(), columns, min_size=1, max_size=4))
def test_json_lines_are_what_the_rows_are_as_dicts(given_columns: dict[str, Any]) -> None:
    part = pa.RecordBatch.from_pydict(
        {name: pa.array(column, kind) for name, (kind, column) in given_columns.items()}
    )
    rows = [{name: utf8_or_bytes(value) for name, value in row.items()} for row in part.to_pylist()]
    encoder = msgspec.json.Encoder(enc_hook=str)
    assert written("jsonl", part) == b"".join(encoder.encode(row) + b"\n" for row in rows)


def utf8_or_bytes(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def test_offsets_have_no_dictionary_in_parquet_and_other_columns_do() -> None:
    rows = batch([{"a": {"_offset": at % 2}, "b": ["x"], "_offset": at} for at in range(99)])
    columns = pq.ParquetFile(io.BytesIO(written("parquet", rows))).metadata.row_group(0)
    found = {columns.column(at).path_in_schema: columns.column(at) for at in range(3)}
    assert [name for name, each in found.items() if not each.has_dictionary_page] == ["_offset"]


def test_columns_whose_values_hardly_repeat_have_no_dictionary_in_parquet() -> None:
    chance = random.Random(1)
    rows = [
        {
            "unique": at,
            "text": f"{at:x}",
            "random": chance.random(),
            "often": at % 900,
            "name": f"customer-{chance.randrange(500)}",
            "null": None if at % 2 else 1,
        }
        for at in range(5_000)
    ]
    file = pq.ParquetFile(io.BytesIO(written("parquet", batch(rows))))
    columns = file.metadata.row_group(0)
    found = {columns.column(at).path_in_schema: columns.column(at) for at in range(6)}
    without = [name for name, each in found.items() if not each.has_dictionary_page]
    assert without == ["unique", "text", "random"]
    assert file.read().to_pylist() == rows


@pytest.mark.parametrize("kind", FORMATS)
def test_a_column_that_comes_later_is_empty_before(kind: TableFormat) -> None:
    parts = batch([{"a": 1}]), batch([{"a": 2, "b": "x"}]), batch([{"b": "y", "a": None}])
    data = written(kind, *parts)
    match kind:
        case "parquet":
            rows = pq.read_table(io.BytesIO(data)).to_pylist()
        case "jsonl":
            rows = [json.loads(line) for line in data.splitlines()]
        case "csv":
            rows = [
                {"a": int(row["a"] or 0) or None, "b": row["b"] or None}
                for row in csv.DictReader(io.StringIO(data.decode()))
            ]
    assert rows == [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": None, "b": "y"}]


@given(
    st.lists(st.tuples(st.text(max_size=5), st.integers(-9, 9)), min_size=1, max_size=20),
    st.lists(st.integers(1, 5), max_size=10),
    st.sampled_from(FORMATS),
)
def test_the_rows_of_a_file_do_not_depend_on_batches(
    rows: list[tuple[str, int]], sizes: list[int], kind: TableFormat
) -> None:
    whole = batch([{"name": name, "count": count} for name, count in rows])
    parts, at = [], 0
    for size in [*sizes, len(rows)]:
        parts.append(whole.slice(at, size))
        at = min(at + size, len(rows))
    if kind == "parquet":
        tables = [pq.read_table(io.BytesIO(written(kind, *each))) for each in ([whole], parts)]
        assert tables[0].equals(tables[1])
    else:
        assert written(kind, *parts) == written(kind, whole)


def test_equal_rows_are_equal_bytes_when_compressed() -> None:
    data = [written("jsonl", batch(ROWS), compression="gzip") for _ in range(2)]
    assert data[0] == data[1]
    assert gzip.decompress(data[0]) == written("jsonl", batch(ROWS))


def test_names_end_with_the_format() -> None:
    assert table_suffix("parquet", "gzip") == ".parquet"
    assert table_suffix("csv", "gzip") == ".csv.gz"
    assert table_suffix("jsonl", "none") == ".jsonl"
