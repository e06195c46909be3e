from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData
from streamlog.records.batch import RecordBatch, encode_batch
from streamlog.records.control_batches import (
    ABORT,
    COMMIT,
    TIME_MARK,
    ClockTime,
    Marker,
    TimeMark,
    encode_marker,
    encode_time_mark,
    marker_of,
    time_mark_of,
)


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_has_kafkas_layout(kind: int) -> None:
    data = encode_marker(Marker(kind, 5), (7, 3), timestamp_ms=99)
    batch = RecordBatch(data)
    batch.check_crc()
    assert (batch.size_bytes, batch.record_count) == (78, 1)
    assert (batch.is_control, batch.is_transactional) == (True, True)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, -1)
    (record,) = batch.records()
    assert (record.key, record.value) == (struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 5))
    assert record.timestamp_ms == 99
    assert marker_of(batch) == Marker(kind, 5)


def test_other_control_records_are_no_markers() -> None:
    record = (0, struct.pack(">hh", 0, 2), b"\0", ())
    assert marker_of(RecordBatch(encode_batch([record]))) == Marker(2, -1)


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"\0\0\0", b""), (b"\0\0\0\1", None), (b"\0\0\0\1", b"\0\0\0\0\0")],
)
def test_a_malformed_marker_raises(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptData, match="offset 0"):
        marker_of(RecordBatch(encode_batch([(0, key, value, ())])))


def test_a_time_mark_is_a_control_batch_without_a_producer() -> None:
    batch = RecordBatch(encode_time_mark(5_000, timestamp_ms=99))
    batch.check_crc()
    assert (batch.is_control, batch.is_transactional, batch.record_count) == (True, False, 1)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert batch.max_timestamp_ms == 99
    assert time_mark_of(batch) == TimeMark(0, 5_000)
    assert marker_of(batch) == Marker(TIME_MARK, -1)


def test_other_control_records_are_no_time_marks() -> None:
    assert (
        time_mark_of(RecordBatch(encode_marker(Marker(COMMIT, 5), (7, 3), timestamp_ms=9))) is None
    )


@pytest.mark.parametrize("value", [None, b"", struct.pack(">hq", 0, -1)])
def test_a_malformed_time_mark_raises(value: bytes | None) -> None:
    key = struct.pack(">hh", 0, TIME_MARK)
    with pytest.raises(CorruptData, match="offset 0"):
        time_mark_of(RecordBatch(encode_batch([(0, key, value, ())])))


@given(
    st.integers(0, 1 << 40),
    st.lists(st.tuples(st.text(max_size=20), st.integers(0, 1 << 50)), max_size=5),
)
def test_a_time_mark_gives_each_clock_its_time(
    elapsed_ms: int, clocks: list[tuple[str, int]]
) -> None:
    pairs = [ClockTime(*each) for each in clocks]
    data = encode_time_mark(elapsed_ms, timestamp_ms=-1, reached=pairs)
    mark = time_mark_of(RecordBatch(data))
    assert mark == TimeMark(0, elapsed_ms, tuple(pairs))
    for clock, _ in pairs:
        newest_ms = max(time_ms for name, time_ms in pairs if name == clock)
        assert mark.time_behind(-1, clock) == newest_ms
        assert mark.time_behind(7, clock) == max(newest_ms, 7 + elapsed_ms)
    assert mark.time_behind(-1, "an unknown clock") == -1
    assert mark.time_behind(7, "an unknown clock") == 7 + elapsed_ms
