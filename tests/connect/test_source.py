"""Reads: their records, whichever way they were given."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from streamlog.connect import Read, Source
from streamlog.errors import ConfigError
from streamlog.record import Record

NOW = datetime(2025, 1, 31, 12, tzinfo=UTC)
THEN = datetime(2024, 1, 1, tzinfo=UTC)
OFFSET = {"at": 1}


def test_records_are_as_given() -> None:
    records = [Record("a", 1, THEN), Record("b", 2, THEN)]
    read = Read(iter(records), OFFSET)
    assert read.records(NOW) == records
    assert len(read) == 2


def test_raw_records_have_bytes_and_the_time_of_now() -> None:
    read = Read.raw([b"x", None], OFFSET, keys=[b"a", b"b"], topic="lines")
    assert read.records(NOW) == [
        Record(b"a", b"x", NOW, (), "lines"),
        Record(b"b", None, NOW, (), "lines"),
    ]


def test_raw_records_keep_their_times_and_headers() -> None:
    headers = [(("id", b"1"),)]
    read = Read.raw([b"x"], OFFSET, timestamps_ms=[1_704_067_200_000], headers=headers)
    assert read.records(NOW) == [Record(None, b"x", THEN, (("id", b"1"),))]


def test_raw_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values with 1 keys"):
        Read.raw([b"x", b"y"], OFFSET, keys=[b"a"])


def test_rows_of_arrow_are_dicts_with_a_schema() -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 1, "at": THEN}, {"id": 2, "at": THEN}])
    read = Read.arrow(rows, OFFSET, key=["id"], timestamp="at")
    assert [(record.key, record.timestamp) for record in read.records(NOW)] == [
        (1, THEN),
        (2, THEN),
    ]
    assert read.schema is not None
    assert [field.name for field in read.schema.fields] == ["id", "at"]


def test_several_key_columns_make_a_key_of_fields() -> None:
    rows = pa.RecordBatch.from_pylist([{"a": 1, "b": "x", "c": 2.0}])
    assert Read.arrow(rows, OFFSET, key=["a", "b"]).records(NOW)[0].key == {"a": 1, "b": "x"}
    assert Read.arrow(rows, OFFSET).records(NOW)[0].key is None


@pytest.mark.parametrize(("column", "message"), [("no", "no column no"), ("a", "no point in time")])
def test_a_column_that_is_no_time_is_refused_by_name(column: str, message: str) -> None:
    rows = pa.RecordBatch.from_pylist([{"a": 1}])
    with pytest.raises(ConfigError, match=message):
        Read.arrow(rows, OFFSET, timestamp=column).records(NOW)


def test_a_source_without_read_says_so() -> None:
    class Empty(Source[None, str], frozen=True, kw_only=True):
        pass

    with pytest.raises(TypeError, match="Empty has no method read"):
        Empty().read({}, None, None)  # type: ignore[arg-type]
