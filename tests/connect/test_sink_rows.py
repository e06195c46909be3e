"""Rows of a sink as columns, held against a plain list of records."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.row_schema import Schema
from streamlog.connect.schema_record import SchemaRecord
from streamlog.connect.sink_rows import SinkRow, SinkRows, schema_runs
from streamlog.durations import moment
from streamlog.record import Record, TopicPartition
from streamlog.records.record_columns import RecordColumns

PART = TopicPartition("t", 3)
Fields = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Gap before the offset, milliseconds, key, value, headers."""
BYTES = st.none() | st.binary(max_size=3)
FIELDS = st.tuples(
    st.integers(1, 3),
    st.integers(0, 10**6),
    BYTES,
    BYTES,
    st.just(()) | st.tuples(st.tuples(st.just("h"), BYTES)),
)
STEPS = st.lists(
    st.tuples(st.just("more"), st.lists(FIELDS, max_size=4), st.booleans())
    | st.tuples(st.just("slice"), st.integers(0, 4), st.integers(0, 9))
    | st.tuples(st.just("without"), st.sets(st.integers(0, 20), max_size=4), st.booleans()),
    max_size=8,
)


def columns(rows: list[SinkRow], *, with_records: bool) -> SinkRows:
    """Return rows as they come from the log, or as a transform has made them."""
    if with_records:
        return SinkRows.of(PART, rows)
    log = RecordColumns()
    for record, key, value, time_ms in rows:
        log.add(record.offset, time_ms, key, value, record.headers or None)
    return SinkRows(PART, log, [r.record.key for r in rows], [r.record.value for r in rows])


def check(rows: SinkRows, expected: list[SinkRow]) -> None:
    records = [each.record for each in expected]
    assert len(rows) == len(expected)
    assert [*rows.offsets] == [each.offset for each in expected]
    # Before the records are made, and after: the same answers.
    for _ in range(2):
        assert [*rows.topics] == [each.topic for each in records]
        assert [*rows.times] in (
            [each.time_ms for each in expected],
            [each.timestamp for each in records],
        )
        assert [*rows.keys] == [each.key for each in records]
        assert [*rows.values] == [each.value for each in records]
        assert [rows.row(at) for at in range(len(rows))] == expected
        assert [*rows.records] == records
    without_bytes = rows.decoded()
    assert [*without_bytes.records] == records
    assert (without_bytes.partition, [*without_bytes.values]) == (PART, [*rows.values])
    assert (without_bytes.size_bytes, [*without_bytes.times]) == (0, [*rows.times])
    assert [*without_bytes.log.keys] == [*without_bytes.log.values] == [None] * len(expected)
    assert [*(rows.log.headers or [()] * len(rows))] == [each.headers for each in records]
    assert rows.size_bytes == sum(len(r.key or b"") + len(r.value or b"") for r in expected)
    for offset in range(-1, 30):
        behind = [at for at, each in enumerate(expected) if each.offset >= offset]
        assert rows.position(offset) == min(behind, default=len(expected))
    assert schema_runs(rows, (None, None)) == [(rows, (None, None))]


@given(STEPS)
def test_columns_do_as_a_list_of_rows_does(steps: list[tuple[str, Any, Any]]) -> None:
    rows, expected, next_offset = SinkRows(PART), list[SinkRow](), 0
    for what, first, second in steps:
        if what == "slice":
            at = slice(first, max(first, second))
            rows, expected = rows[at], expected[at]
        elif what == "without":
            if second:
                check(rows, expected)
            rows = rows.without(first)
            expected = [each for each in expected if each.offset not in first]
        else:
            more = []
            for gap, time_ms, key, value, headers in first:
                next_offset += gap
                decoded = (key and key.hex(), value and len(value))
                topic = "elsewhere" if second else PART.topic
                record = Record(*decoded, moment(time_ms), headers, topic, 3, next_offset)
                more.append(SinkRow(record, key, value, time_ms))
            following = columns(more, with_records=second)
            rows = rows.with_more(following)
            expected = [*expected, *more]
            # What has come can be used further: it does not grow with the rows that it joined.
            rows.with_more(columns([], with_records=True))
            check(following, more)
    check(rows, expected)


def test_columns_grow_in_place_whatever_a_decoder_gives() -> None:
    def rows(offset: int, *keys: str) -> SinkRows:
        log = RecordColumns()
        for at, key in enumerate(keys):
            log.add(offset + at, 0, key.encode(), None, None)
        return SinkRows(PART, log, keys, (None,) * len(keys))

    grown = rows(0, "a", "b").with_more(rows(2, "c"))
    assert (grown.keys, grown.values) == (["a", "b", "c"], [None] * 3)
    # A copy for each fetch would take the square of the time for a flush of many.
    keys, values = grown.keys, grown.values
    again = grown.with_more(rows(3, "d"))
    assert (again.keys is keys, again.values is values, [*again.offsets]) == (
        True,
        True,
        [0, 1, 2, 3],
    )


def test_a_transform_gives_a_record_another_time() -> None:
    later = moment(5) + timedelta(hours=1)
    record = Record("k", "v", later, (), "t", 3, 7)
    rows = SinkRows.of(PART, [SinkRow(record, b"k", b"v", 5)])
    assert [*rows.times] == [later]
    assert rows.row(0) == SinkRow(record, b"k", b"v", 5), "the log has its own time"


def test_records_without_schemas_have_the_declared_ones_and_nulls_have_none() -> None:
    text, number = Schema("string"), Schema("int64")
    time = moment(0)
    plain = Record("k", "v", time, (), "t", 3, 0)
    own = SchemaRecord("k", 1, time, (), "t", 3, 1, key_schema=text, value_schema=number)
    gone: Any = SchemaRecord("k", None, time, (), "t", 3, 2, key_schema=text)
    bare = Record(None, "v", time, (), "t", 3, 3)
    given_rows = [SinkRow(each, b"", b"", 0) for each in (plain, own, gone, bare)]
    runs = schema_runs(SinkRows.of(PART, given_rows), (text, text))
    found = [([*some.offsets], schemas) for some, schemas in runs]
    assert found == [([0], (text, text)), ([1, 2], (text, number)), ([3], (text, text))]
    # Without declared schemas a null joins any run; a value without a schema is a run of its own.
    runs = schema_runs(SinkRows.of(PART, given_rows), (None, None))
    found = [([*some.offsets], schemas) for some, schemas in runs]
    assert found == [([0], (None, None)), ([1, 2], (text, number)), ([3], (None, None))]


def test_a_value_without_a_schema_and_one_with_it_are_two_runs() -> None:
    text, number = Schema("string"), Schema("int64")
    time = moment(0)
    with_key, with_value = Record("k", None, time), Record(None, 1, time)
    own = SchemaRecord("k", 1, time, key_schema=text, value_schema=number)
    for first in (with_key, with_value):
        for records in ((first, own), (own, first)):
            rows = SinkRows.of(PART, [SinkRow(each, b"", b"", 0) for each in records])
            schemas = [found for _, found in schema_runs(rows, (None, None))]
            expected = [(None, None) if each is first else (text, number) for each in records]
            assert schemas == expected


def test_columns_of_other_lengths_make_no_records() -> None:
    log = RecordColumns()
    for at in range(2):
        log.add(at, 0, b"k", b"v", None)
    for keys, values in ((["k"], ["v"] * 2), (["k"] * 2, ["v"] * 3)):
        with pytest.raises(ValueError, match="zip"):
            list(SinkRows(PART, log, keys, values).records)
