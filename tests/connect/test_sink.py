"""Batches, and the errors of connectors."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from streamlog.connect import (
    BadRecords,
    Batch,
    ConnectError,
    Flush,
    Retriable,
    Sink,
    TopicPartition,
)
from streamlog.errors import ConfigError
from streamlog.record import Record

NOW = datetime(2025, 1, 31, 12, tzinfo=UTC)
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
