"""The scan of records, compared with a slow reader that was written from the specification."""

from __future__ import annotations

from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.errors import CorruptData
from streamlog.records.batch import HEADER_BYTES, TIMESTAMP_MS_MAX, RecordBatch, encode_batch
from streamlog.records.record_scan import RecordScan
from tests.records.slow_reader import Malformed, SlowRecord, read_plain_batch

INT64_MAX = 2**63 - 1

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
blobs = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=2)
times = st.integers(-1, 2**41) | st.just(TIMESTAMP_MS_MAX)
ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.tuples(times, blobs, blobs, headers), min_size=1, max_size=5
)


def sealed(data: bytearray) -> bytes:
    data[8:12] = (len(data) - 12).to_bytes(4)
    data[17:21] = crc32c(data[21:]).to_bytes(4)
    return bytes(data)


def damaged(data: bytes, chance: Random) -> bytes:
    """Return a damaged batch with a matching CRC."""
    header, records = bytearray(data[:HEADER_BYTES]), bytearray(data[HEADER_BYTES:])
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(records) + 1)
        match chance.randrange(6):
            case 0 if at < len(records):
                records[at] = chance.randrange(256)
            case 1 if at < len(records):
                records[at] ^= 1 << chance.randrange(8)
            case 2:
                del records[at : at + chance.randint(1, 3)]
            case 3:
                records[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 3)))
            case 4:
                count = max(int.from_bytes(header[57:61]) + chance.choice([-1, 1]), 1)
                header[57:61], header[23:27] = count.to_bytes(4), (count - 1).to_bytes(4)
            case _:
                header[27:35] = chance.choice([0, 2**63 - 1, 2**40]).to_bytes(8)
    return sealed(header + records)


def expected(data: bytes) -> list[SlowRecord] | None:
    try:
        return read_plain_batch(data)
    except Malformed:
        return None


def scanned(data: bytes, part: int) -> RecordScan | None:
    """Scan a batch in parts of `part` records, or at once if 0; None if it is corrupt."""
    batch = RecordBatch(data)
    scan = RecordScan(batch)
    try:
        if not part:
            scan.read_plain(batch)
        else:
            while scan.read(data[HEADER_BYTES:], part):
                pass
    except CorruptData:
        return None
    return scan


def check(data: bytes, part: int) -> None:
    records, scan = expected(data), scanned(data, part)
    assert (scan is None) == (records is None)
    if scan is None or records is None:
        return
    assert scan.index == len(records)
    assert scan.keyless == sum(record.key is None for record in records)
    assert scan.newest_ms == max([-1, *(record.timestamp_ms for record in records)])
    known = [record.timestamp_ms for record in records if record.timestamp_ms >= 0]
    assert scan.oldest_ms == min([INT64_MAX, *known])
    # Our own reader finds the records of an accepted batch, too.
    assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in RecordBatch(data).records()] == [
        record[1:] for record in records
    ]


@given(rows=ROWS, part=st.integers(0, 3))
def test_a_sound_batch_is_accepted(rows: list[Row], part: int) -> None:
    data = encode_batch(rows)
    assert expected(data) is not None
    check(data, part)


@given(rows=ROWS, seed=st.integers(0, 2**32), part=st.integers(0, 3))
@settings(max_examples=1_000)
def test_a_damaged_batch_is_accepted_only_if_it_is_readable(
    rows: list[Row], seed: int, part: int
) -> None:
    check(damaged(encode_batch(rows), Random(seed)), part)


@given(payload=st.binary(max_size=60), count=st.integers(1, 4), part=st.integers(0, 2))
@settings(max_examples=500)
def test_garbage_is_refused(payload: bytes, count: int, part: int) -> None:
    header = bytearray(encode_batch([(1, None, b"", [])] * count))[:HEADER_BYTES]
    check(sealed(header + payload), part)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_malformed_record_is_named(index: int) -> None:
    data = bytearray(encode_batch([(1, b"k", b"v", [])] * 3))
    size = (len(data) - HEADER_BYTES) // 3
    data[HEADER_BYTES + size * index + 4] = 100  # the size of its key
    batch = RecordBatch(sealed(data))
    scan = RecordScan(batch)
    with pytest.raises(CorruptData, match=f"record {index} of the batch"):
        scan.read_plain(batch)
    assert scan.index == index


def test_a_scan_in_parts_stops_between_records() -> None:
    data = encode_batch([(1, b"k", b"v", [])] * 10)
    scan = RecordScan(RecordBatch(data))
    found = []
    while scan.read(data[HEADER_BYTES:], 4):
        found.append(scan.index)
    assert found == [4, 8]
    assert scan.index == 10
