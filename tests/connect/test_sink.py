"""Batches, and the errors of connectors."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from streamlog.connect import (
    BadRecords,
    Batch,
    ConnectError,
    Flush,
    Retriable,
    Schema,
    Sink,
    SinkTask,
    TopicPartition,
)
from streamlog.connect.sink_rows import SinkRow, SinkRows
from streamlog.errors import ConfigError
from streamlog.record import Record
from streamlog.records.record_columns import RecordColumns

NOW = datetime(2025, 1, 31, 12, tzinfo=UTC)
NOW_MS = 1_738_324_800_000
AT = TopicPartition("rows", 3)


def record(offset: int, value: object) -> Record[object, object]:
    return Record("k", value, NOW, (), "rows", 3, offset)


def test_a_batch_begins_at_its_first_record_and_may_end_behind_its_last() -> None:
    batch = Batch(AT, [record(5, 1), record(9, 2)], next_offset=12)
    assert (batch.first_offset, batch.next_offset, len(batch)) == (5, 12, 2)
    assert (batch.keys, batch.values) == (["k", "k"], [1, 2])


def test_an_empty_batch_stands_at_its_next_offset() -> None:
    assert Batch(AT, [], next_offset=12).first_offset == 12


def test_raw_pairs_are_those_of_the_log_or_the_bytes_themselves() -> None:
    values: list[Record[bytes | None, bytes | None]] = [
        Record(b"k", b"v", NOW, (), "rows", 3, 0),
        Record(None, None, NOW, (), "rows", 3, 1),
    ]
    assert Batch(AT, values, next_offset=2).raw() == [(b"k", b"v"), (None, None)]
    assert Batch(AT, [record(0, 1)], next_offset=1, raw=[(b"k", b"1")]).raw() == [(b"k", b"1")]
    with pytest.raises(ConnectError, match="has no bytes"):
        Batch(AT, [record(0, 1)], next_offset=1).raw()


def test_bad_records_tell_the_first_reason() -> None:
    assert (
        str(BadRecords({4: "too long", 7: "empty"}))
        == "2 bad records in a batch: record 4: too long"
    )


def test_a_retry_has_its_wait_in_milliseconds() -> None:
    assert Retriable("busy", after="2s").after_ms == 2_000
    assert Retriable("busy").after_ms is None
    with pytest.raises(ConfigError, match="no unit"):
        Retriable("busy", after="2")


def test_a_sink_is_a_value_with_its_flush() -> None:
    class Nowhere(Sink[str, object], frozen=True, kw_only=True):
        path: str

    assert Nowhere(path="a") == Nowhere(path="a", flush=Flush())
    assert Nowhere(path="a") != Nowhere(path="a", flush=Flush(records=1))


def either_way(records: list[Record[Any, Any]]) -> list[Batch[Any, Any]]:
    """Return a batch of records, of rows that a transform has made, and of rows of the log."""
    log = RecordColumns()
    for each in records:
        log.add(each.offset, NOW_MS, b"k", b"1", each.headers or None)
    made = SinkRows.of(AT, [SinkRow(each, b"k", b"1", NOW_MS) for each in records])
    rows = SinkRows(AT, log, [each.key for each in records], [each.value for each in records])
    shape: Any = {"first_offset": 4, "next_offset": 12, "schema": TEXT, "key_schema": NUMBER}
    of_records = Batch(AT, records, **shape)
    return [of_records, Batch.of_rows(made, **shape), Batch.of_rows(rows, **shape)]


TEXT, NUMBER = Schema("string"), Schema("int64")


def test_columns_of_a_batch_are_those_of_its_records() -> None:
    headers = (("h", b"1"),)
    for given in (
        [record(5, 1), record(9, 2)],
        [Record("k", 1, NOW, headers, "rows", 3, 5)],
        list[Record[Any, Any]](),
    ):
        for batch in either_way(given):
            assert [*batch.keys] == [each.key for each in given]
            assert [*batch.values] == [each.value for each in given]
            assert [*batch.topics] == [each.topic for each in given]
            assert [*batch.headers] == [each.headers for each in given]
            assert [*batch.offsets] == [each.offset for each in given]
            assert [*batch.times] in ([NOW] * len(given), [NOW_MS] * len(given))
            assert [*batch.records] == given
            assert (batch.schema, batch.key_schema) == (TEXT, NUMBER)
            assert repr(batch) == f"Batch(rows-3, [4, 12), <{len(given)}>)"


def test_a_decoded_batch_has_everything_but_its_bytes() -> None:
    given = [record(5, 1), record(9, 2)]
    of_records, *of_rows = either_way(given)
    assert of_records.decoded() is of_records
    for batch in of_rows:
        assert batch.raw() == [(b"k", b"1")] * 2
        kept = batch.decoded()
        assert [*kept.records] == given
        assert (kept.schema, kept.key_schema) == (TEXT, NUMBER)
        assert (kept.first_offset, kept.next_offset) == (4, 12)
        with pytest.raises(ConnectError, match="has no bytes"):
            kept.raw()


def test_rows_whose_columns_differ_in_length_have_no_bytes() -> None:
    log = RecordColumns()
    log.add(0, NOW_MS, b"k", b"1", None)
    log.values.append(b"2")
    rows = SinkRows(AT, log, ["k"], [1])
    shape: Any = {"first_offset": 0, "next_offset": 1, "schema": None, "key_schema": None}
    with pytest.raises(ValueError, match="zip"):
        Batch.of_rows(rows, **shape).raw()


@pytest.mark.parametrize(("key", "value"), [("k", b"v"), (b"k", 1)])
def test_a_key_or_value_that_was_decoded_is_no_bytes(key: object, value: object) -> None:
    with pytest.raises(ConnectError, match="has no bytes"):
        Batch(AT, [Record(key, value, NOW, (), "rows", 3, 0)], next_offset=1).raw()


def test_a_sink_promises_only_what_it_says() -> None:
    """Whatever a class leaves out, it gets decoded records, at a flush, at least once."""

    class Nowhere(Sink[str, object], frozen=True, kw_only=True):
        pass

    assert (Nowhere.effect, Nowhere.streams, Nowhere.takes_bytes) == ("appending", False, False)
    with pytest.raises(TypeError, match="Nowhere has no method open"):
        Nowhere().open(None)  # type: ignore[arg-type]


def test_a_flush_waits_for_5000_records_8_mib_or_half_a_second() -> None:
    assert msgspec.to_builtins(Flush()) == {
        "records": 5_000,
        "size_bytes": 8_388_608,
        "every": "500ms",
        "stream_time": None,
    }


def test_a_task_has_to_write_and_may_leave_out_the_rest() -> None:
    class Careless(SinkTask[str, object]):
        pass

    async def run() -> None:
        async with Careless() as task:
            assert isinstance(task, Careless)
            assert await task.recover([AT]) == {}
            await task.begin()
            with pytest.raises(TypeError, match="Careless has no method write"):
                await task.write(Batch(AT, [record(0, 1)], next_offset=1))
            await task.commit({AT: 1})

    asyncio.run(run())
