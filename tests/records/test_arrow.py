"""Records in Arrow buffers equal the records that the batch decodes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData
from streamlog.records.arrow import ArrowBuffers, BatchPayload, BinaryColumn
from streamlog.records.batch import HEADER_BYTES, RecordBatch, encode_batch
from streamlog.records.compression import Compression

FIELDS = st.none() | st.binary(max_size=20)
RECORDS = st.lists(
    st.tuples(st.integers(-(2**40), 2**40), FIELDS, FIELDS, st.just(())), min_size=1, max_size=30
)


def placed(
    records: list[Any], codec: Compression, base_offset: int, behind: int = 0
) -> RecordBatch:
    data = bytearray(encode_batch(records, codec=codec)) + bytes(behind)
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
    payloads = [BatchPayload(batch) for batch in batches]
    size_bytes = sum(payload.size_bytes for payload in payloads)
    buffers = ArrowBuffers(sum(batch.record_count for batch in batches), size_bytes)
    for payload in payloads:
        buffers.read(payload, start, end)
    return buffers


@given(
    st.lists(
        st.tuples(RECORDS, st.sampled_from(Compression), st.sampled_from([0, 63, 64, 100])),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 40),
    st.integers(0, 90),
)
def test_arrow_buffers_hold_the_records_of_the_batches(
    written: list[tuple[list[Any], Compression, int]], start: int, size: int
) -> None:
    batches, offset = [], 0
    for records, codec, behind in written:
        batches.append(placed(records, codec, offset, behind))
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


@given(RECORDS, st.sampled_from([0, 64]), st.data())
def test_a_changed_byte_raises_or_gives_all_records(
    records: list[Any], behind: int, data: st.DataObject
) -> None:
    written = bytearray(encode_batch(records)) + bytes(behind)
    at = data.draw(st.integers(HEADER_BYTES, len(written) - behind - 1))
    written[at] = data.draw(st.integers(0, 255))
    buffers = ArrowBuffers(len(records), len(written))
    try:
        buffers.read(BatchPayload(RecordBatch(written)), 0, 1 << 62)
    except CorruptData:
        assert buffers.count == 0
    else:
        assert buffers.count == len(records)


def test_arrow_buffers_take_no_more_than_their_capacity() -> None:
    batch = placed([(1, b"k", b"v", ())] * 3, Compression.NONE, 0)
    payload = BatchPayload(batch)
    with pytest.raises(CorruptData, match="no room for 3 records"):
        ArrowBuffers(2, 1_000).read(payload, 0, 9)
    with pytest.raises(CorruptData, match="no room"):
        ArrowBuffers(3, 5).read(payload, 0, 9)
    with pytest.raises(CorruptData, match="do not fit into one array"):
        ArrowBuffers(1, 1 << 31)
