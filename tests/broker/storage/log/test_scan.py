from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.files import File, write_whole
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.batch_headers import Headers, header_at, last_whole
from streamlog.broker.storage.log.scan import CHUNK_BYTES, Scan, sound_position
from streamlog.errors import CorruptData
from streamlog.records.batch import HEADER_BYTES, RecordBatch, set_offset_and_epoch
from tests.broker.storage.batches import batch

ANYWHERE = range(2**31)


def placed(*counts: int, offset: int = 0, value: bytes = b"value") -> bytes:
    parts = []
    for count in counts:
        data = bytearray(batch(count, value=value))
        set_offset_and_epoch(data, offset, 0)
        offset += count
        parts.append(bytes(data))
    return b"".join(parts)


def file_of(data: bytes) -> File:
    file = MemoryFiles().open("log", writable=True)
    write_whole(file, data, 0)
    return file


def whole_bytes(data: bytes, offset: int, chunk_bytes: int = 4096) -> int:
    file = file_of(data)
    try:
        first = header_at(file, 0, offset, end=len(data))
    except CorruptData:
        return 0
    end = len(data)
    last, following = last_whole(file, first, end=end, log_end=end, chunk_bytes=chunk_bytes)
    assert following is None
    return last.position + last.size_bytes


@given(st.lists(st.integers(1, 5), min_size=1, max_size=10), st.integers(0, 800))
def test_last_whole_also_finds_the_batch_that_does_not_fit(counts: list[int], end: int) -> None:
    data = placed(*counts)
    file = file_of(data)
    batches = list(Headers(file, end=len(data), chunk_bytes=HEADER_BYTES).walk(0, 0))
    last, following = last_whole(
        file, batches[0], end=min(end, len(data)), log_end=len(data), chunk_bytes=100
    )
    fitting = [each for each in batches if each.position + each.size_bytes <= end] or batches[:1]
    assert last == fitting[-1]
    assert following in {None, *batches[len(fitting) : len(fitting) + 1]}
    if end - last.position - last.size_bytes >= HEADER_BYTES and len(batches) > len(fitting):
        assert following is not None


@given(st.lists(st.integers(1, 5), max_size=10), st.integers(1, 200))
def test_headers_and_scan_agree_on_the_batches(counts: list[int], chunk_bytes: int) -> None:
    data = placed(*counts, offset=7)
    headers = Headers(file_of(data), end=len(data), chunk_bytes=chunk_bytes).walk(0, 7)
    walked = [(header.position, header.base_offset, header.next_offset) for header in headers]
    scan = Scan(file_of(data), position=0, next_offset=7, end=len(data))
    assert [(at, found.base_offset, found.next_offset) for at, found in scan] == walked
    assert (scan.position, scan.next_offset, scan.reason) == (len(data), 7 + sum(counts), "")
    assert whole_bytes(data, 7, chunk_bytes) == len(data)


@given(st.integers(0, 400))
def test_a_scan_stops_at_the_first_truncated_batch(size_bytes: int) -> None:
    data = placed(2, 1, 3)[:size_bytes]
    scan = Scan(file_of(data), position=0, next_offset=0, end=len(data))
    found = [batch_found for _, batch_found in scan]
    assert sum(one.size_bytes for one in found) == scan.position == whole_bytes(data, 0)
    assert bool(scan.reason) == (scan.position < len(data))


def test_a_gap_between_offsets_ends_the_scan() -> None:
    data = placed(2) + placed(1, offset=3)
    scan = Scan(file_of(data), position=0, next_offset=0, end=len(data))
    assert len(list(scan)) == 1
    assert "base offset 3 instead of 2" in scan.reason
    headers = Headers(file_of(data), end=len(data), chunk_bytes=4096)
    with pytest.raises(CorruptData, match="instead of 2"):
        list(headers.walk(0, 0))
    assert headers.position == scan.position
    assert whole_bytes(data, 0) == scan.position


def test_a_sound_batch_is_found_behind_garbage() -> None:
    garbage = b"\x02" * 100
    data = placed(2) + garbage + placed(1, 1, offset=9)
    position = len(placed(2)) + len(garbage)
    assert sound_position(file_of(data), position=0, end=len(data), offsets=range(2, 100)) == (
        position,
        9,
    )
    assert sound_position(file_of(data), position=0, end=len(data), offsets=range(2, 9)) is None
    assert sound_position(file_of(data), position=0, end=len(data) - 1, offsets=range(10)) == (
        position,
        9,
    )


@pytest.mark.parametrize("before", [0, 1, 15, 16, 17, 60, 61])
def test_a_sound_batch_across_two_chunks_is_found(before: int) -> None:
    data = bytes(CHUNK_BYTES + 1 - before) + placed(1, offset=5)
    found = sound_position(file_of(data), position=0, end=len(data), offsets=ANYWHERE)
    assert found == (CHUNK_BYTES + 1 - before, 5)


def test_a_batch_larger_than_a_chunk_is_scanned() -> None:
    data = placed(1, 1, 1, value=bytes(CHUNK_BYTES))
    scan = Scan(file_of(data), position=0, next_offset=0, end=len(data))
    assert [found.base_offset for _, found in scan] == [0, 1, 2]


def test_a_false_length_ends_the_scan() -> None:
    data = bytearray(placed(1, 1))
    data[8:12] = (2**31 - 1).to_bytes(4, "big")
    scan = Scan(file_of(bytes(data)), position=0, next_offset=0, end=len(data))
    assert list(scan) == []
    assert "length" in scan.reason
    assert RecordBatch(data, len(placed(1))).base_offset == 1
