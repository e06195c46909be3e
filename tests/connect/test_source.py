"""Reads: their records, whichever way they were given."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from streamlog.connect import Read, Schema, Source
from streamlog.connect.source import READ_BYTES_MAX, ReadColumns
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


def test_columns_have_their_schemas_and_what_follows_a_commit() -> None:
    text, number, acknowledged = Schema("string"), Schema("int64"), list[int]()

    def acknowledge() -> None:
        acknowledged.append(1)

    read = Read.columns(
        [1, None], OFFSET, keys=["a", "b"], timestamps_ms=[0, 1], topic="t", schema=number,
        key_schema=text, committed=acknowledge,
    )  # fmt: skip
    assert (read.schema, read.key_schema, read.offset, read.committed) == (
        number, text, OFFSET, acknowledge,
    )  # fmt: skip
    assert read.read_columns is not None
    assert not read.read_columns.is_raw
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert read.records(NOW) == [
        Record("a", 1, epoch, (), "t"),
        Record("b", None, epoch + timedelta(milliseconds=1), (), "t"),
    ]
    raw = Read.raw([b"x"], OFFSET, committed=acknowledge).read_columns
    assert raw is not None
    assert raw.is_raw, "its bytes go to the log as they are"


def test_a_read_may_have_16_mib_as_the_documentation_says() -> None:
    assert READ_BYTES_MAX == 16_777_216


def test_no_columns_are_no_records() -> None:
    for read in (Read.raw([], OFFSET, keys=[], headers=[]), Read.columns([], OFFSET), Read([], {})):
        assert (len(read), [*read.records(NOW)]) == (0, [])


@pytest.mark.parametrize("column", ["keys", "timestamps_ms", "headers"])
def test_each_column_has_a_row_for_each_value(column: str) -> None:
    for number in (0, 1, 3):
        with pytest.raises(ValueError, match="2 values with"):
            Read.columns([1, 2], OFFSET, **{column: [0] * number})  # type: ignore[arg-type]


def test_records_are_made_once_at_the_first_time_that_is_asked() -> None:
    rows = pa.RecordBatch.from_pylist([{"a": 1}, {"a": 2}])
    for read in (Read.raw([b"x", b"y"], OFFSET), Read.arrow(rows, OFFSET)):
        assert (len(read), repr(read)) == (2, "Read(<2 records>, {'at': 1})")
        made = read.records(NOW)
        assert [each.timestamp for each in made] == [NOW, NOW]
        assert read.records(THEN) is made
        assert len(read) == 2


def test_rows_have_the_topic_and_what_follows_a_commit() -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 7}])
    read = Read.arrow(rows, OFFSET, key=["id"], topic="tables", committed=list)
    assert (read.committed, read.records(NOW)) == (list, [Record(7, {"id": 7}, NOW, (), "tables")])
    with pytest.raises(ConfigError, match="no column b; they have id"):
        Read.arrow(rows, OFFSET, key=["id", "b"]).records(NOW)


@pytest.mark.parametrize(
    ("kind", "python"),
    [
        (pa.timestamp("ns", tz="UTC"), THEN),
        (pa.timestamp("us", tz="UTC"), THEN),
        (pa.timestamp("ns"), THEN.replace(tzinfo=None)),
        (pa.duration("ns"), timedelta(hours=1)),
        (pa.duration("s"), timedelta(hours=1)),
        (pa.int64(), 5),
    ],
)
def test_values_of_rows_are_of_pythons_own_classes(kind: pa.DataType, python: object) -> None:
    """With pandas, pyarrow gives nanoseconds as `pandas.Timestamp`, which is a datetime as well."""
    column = pa.array([python], kind)
    metadata = {"pandas": "{}"}
    rows = pa.RecordBatch.from_arrays([column], schema=pa.schema([("a", kind)], metadata=metadata))
    (found,) = Read.arrow(rows, OFFSET).records(NOW)
    assert found.value == {"a": python}
    assert type(found.value["a"]) is type(python)


def test_a_time_without_a_zone_is_no_point_in_time() -> None:
    rows = pa.RecordBatch.from_pylist([{"at": THEN.replace(tzinfo=None)}])
    with pytest.raises(ConfigError, match="no point in time"):
        Read.arrow(rows, OFFSET, timestamp="at").records(NOW)


def test_a_source_that_says_nothing_has_one_part_without_a_name_and_keeps_nothing_outside() -> None:
    class Plain(Source[None, str], frozen=True, kw_only=True):
        pass

    assert (Plain.guarantee, [*Plain().topic_names()]) == ("exactly_once", [])
    assert asyncio.run(Plain().partitions(None)) == [{}]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Plain: there is nothing outside to be released"):
        asyncio.run(Plain().release(None))  # type: ignore[arg-type]


def test_a_nanosecond_is_cut_off_a_time() -> None:
    kind = pa.timestamp("ns", tz="UTC")
    rows = pa.RecordBatch.from_pydict({"at": pa.array([1_704_067_200_000_000_999], kind)})
    (found,) = Read.arrow(rows, OFFSET, timestamp="at").records(NOW)
    assert (found.timestamp, found.value) == (THEN, {"at": THEN})


def test_columns_of_other_lengths_make_no_records() -> None:
    for keys, headers in (([1], None), (None, [(), (), ()])):
        columns = ReadColumns([1, 2], keys, None, headers, "", is_raw=False)
        with pytest.raises(ValueError, match="zip"):
            columns.records(NOW)
