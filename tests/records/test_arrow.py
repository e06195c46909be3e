"""Records as Arrow buffers are the records that the batch itself decodes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData
from streamlog.records.arrow import ArrowBuffers, BinaryColumn, payload_of
from streamlog.records.batch import RecordBatch, encode_batch
from streamlog.records.compression import Compression

FIELDS = st.none() | st.binary(max_size=20)
RECORDS = st.lists(
    st.tuples(st.integers(-(2**40), 2**40), FIELDS, FIELDS, st.just(())), min_size=1, max_size=30
)


def placed(records: list[Any], codec: Compression, base_offset: int) -> RecordBatch:
    data = bytearray(encode_batch(records, codec=codec))
    struct.pack_into(">q", data, 0, base_offset)
    return RecordBatch(data)


def column(found: BinaryColumn, count: int) -> list[bytes | None]:
    ends = struct.unpack_from(f"<{count + 1}i", found.ends)
    values = [
        bytes(found.data[ends[at] : ends[at + 1]]) if found.valid[at >> 3] >> (at & 7) & 1 else None
        for at in range(count)
    ]
    assert found.null_count == values.count(None)
    return values


def filled(batches: list[RecordBatch], start: int, end: int) -> ArrowBuffers:
    payloads = [payload_of(batch) for batch in batches]
    buffers = ArrowBuffers(sum(b.record_count for b in batches), sum(map(len, payloads)))
    for batch, payload in zip(batches, payloads, strict=True):
        buffers.read(batch, payload, start, end)
    return buffers


@given(
    st.lists(st.tuples(RECORDS, st.sampled_from(Compression)), min_size=1, max_size=3),
    st.integers(0, 40),
    st.integers(0, 90),
)
def test_they_are_the_records(
    written: list[tuple[list[Any], Compression]], start: int, size: int
) -> None:
    batches, offset = [], 0
    for records, codec in written:
        batches.append(placed(records, codec, offset))
        offset += len(records)
    buffers = filled(batches, start, start + size)
    records = [r for b in batches for r in b.records() if start <= r.offset < start + size]
    count = buffers.count
    assert count == len(records)
    assert [*struct.unpack_from(f"<{count}q", buffers.offsets)] == [r.offset for r in records]
    times = [*struct.unpack_from(f"<{count}q", buffers.timestamps)]
    assert times == [r.timestamp_ms for r in records]
    assert column(buffers.keys, count) == [r.key for r in records]
    assert column(buffers.values, count) == [r.value for r in records]


@given(RECORDS, st.data())
def test_bytes_that_lie_end_in_an_error(records: list[Any], data: st.DataObject) -> None:
    batch = placed(records, Compression.NONE, 5)
    payload = bytearray(payload_of(batch))
    at = data.draw(st.integers(0, len(payload) - 65))
    payload[at] = data.draw(st.integers(0, 255))
    buffers = ArrowBuffers(len(records), len(payload))
    try:
        buffers.read(batch, bytes(payload), 0, 1 << 62)
    except CorruptData:
        assert buffers.count == 0
    else:
        assert buffers.count == len(records)


def test_there_is_room_for_what_was_said_and_no_more() -> None:
    batch = placed([(1, b"k", b"v", ())] * 3, Compression.NONE, 0)
    payload = payload_of(batch)
    with pytest.raises(CorruptData, match="no room for 3 records"):
        ArrowBuffers(2, 1_000).read(batch, payload, 0, 9)
    with pytest.raises(CorruptData, match="no room"):
        ArrowBuffers(3, 5).read(batch, payload, 0, 9)
    with pytest.raises(CorruptData, match="do not fit into one array"):
        ArrowBuffers(1, 1 << 31)
