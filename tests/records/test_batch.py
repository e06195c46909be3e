"""Record batches: the header, the records, the offset in a log, and malformed bytes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData, MessageTooLarge, UsageError
from streamlog.records import batch as batches
from streamlog.records.batch import (
    BatchBuilder,
    LogRecord,
    RecordBatch,
    encode_batch,
    set_offset_and_epoch,
    split_batches,
)
from streamlog.records.compression import Compression, compress

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[int, bytes | None, bytes | None, Headers]

HEADER = struct.Struct(">qiibIhiqqqhii")
FIELDS = [
    *("base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta"),
    *("base_timestamp_ms", "max_timestamp_ms", "producer_id", "producer_epoch", "base_sequence"),
    "record_count",
]
NOW_MS = 1_700_000_000_000
CONTROL = bytes.fromhex(  # a commit marker: key = version 0, type 1; value = version 0, epoch 5
    "20 00 00 00 08 00 00 00 01 0c 00 00 00 00 00 05 00"
)

content = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=8), content), max_size=3).map(tuple)
rows = st.lists(
    st.tuples(st.integers(-(2**62) + 1, 2**62 - 1), content, content, headers),
    min_size=1,
    max_size=12,
)
every_codec = pytest.mark.parametrize("codec", Compression)


def batch_of(payload: bytes, **fields: int) -> bytes:
    """Return a batch with these header fields and records, and a matching CRC."""
    values = dict.fromkeys(FIELDS, 0) | {
        "length": HEADER.size - 12 + len(payload),
        "magic": 2,
        "record_count": 1,
        "base_timestamp_ms": NOW_MS,
        "max_timestamp_ms": NOW_MS,
    }
    packed = bytearray(HEADER.pack(*(values | fields).values()) + payload)
    struct.pack_into(">I", packed, 17, crc32c(packed[21:]))
    return bytes(packed)


def records_of(coded: bytes) -> list[Row]:
    return [tuple(record[1:]) for record in RecordBatch(coded).records()]


@every_codec
@given(records=rows)
def test_any_records_round_trip(codec: Compression, records: list[Row]) -> None:
    coded = encode_batch(records, codec=codec)
    batch = RecordBatch(coded)
    batch.check_crc()
    assert batch.codec is codec
    assert batch.records() == [LogRecord(offset, *row) for offset, row in enumerate(records)]
    assert (batch.base_offset, batch.last_offset) == (0, len(records) - 1)
    assert batch.base_timestamp_ms == records[0][0]
    assert batch.max_timestamp_ms == max(row[0] for row in records)


@every_codec
@given(records=rows)
def test_appending_one_by_one_equals_encoding_together(
    codec: Compression, records: list[Row]
) -> None:
    builder = BatchBuilder(codec=codec, producer_id=7, producer_epoch=1, base_sequence=9)
    sizes = [builder.append(*row) for row in records]
    assert builder.size_bytes == sizes[-1]
    assert builder.record_count == len(records)
    assert builder.build() == encode_batch(
        records, codec=codec, producer_id=7, producer_epoch=1, base_sequence=9
    )
    if codec is Compression.NONE:
        assert sizes[-1] == len(builder.build())


def test_the_header_has_kafkas_layout() -> None:
    coded = encode_batch(
        [(NOW_MS + 5, b"k", b"v", ()), (NOW_MS, None, b"", (("h", b"1"), ("n", None)))],
        producer_id=2**40,
        producer_epoch=3,
        base_sequence=77,
        transactional=True,
    )
    values = dict(zip(FIELDS, HEADER.unpack_from(coded), strict=True))
    crc = crc32c(coded[21:])
    assert values == {
        "base_offset": 0,
        "length": len(coded) - 12,
        "leader_epoch": -1,
        "magic": 2,
        "crc": crc,
        "attributes": 0x10,
        "last_offset_delta": 1,
        "base_timestamp_ms": NOW_MS + 5,
        "max_timestamp_ms": NOW_MS + 5,
        "producer_id": 2**40,
        "producer_epoch": 3,
        "base_sequence": 77,
        "record_count": 2,
    }
    batch = RecordBatch(b"before" + coded + b"after", 6)
    assert {name: getattr(batch, name) for name in values if name not in {"length", "magic"}} == {
        name: value for name, value in values.items() if name not in {"length", "magic"}
    }
    assert batch.size_bytes == len(coded)
    assert batch.data == coded
    assert batch.is_transactional
    assert not batch.is_control
    assert not batch.is_log_append_time


def test_records_have_kafkas_layout() -> None:
    coded = encode_batch([(NOW_MS, b"k", None, ()), (NOW_MS - 1, None, b"ab", (("h", b"x"),))])
    first = "0e 00 00 00 02 6b 01 00"
    second = "1a 00 01 02 01 04 61 62 02 02 68 02 78"
    second = second.replace("1a", f"{(len(bytes.fromhex(second)) - 1) * 2:02x}")
    assert coded[61:].hex(" ") == f"{first} {second}"


def test_a_builder_without_records_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a record"):
        BatchBuilder().build()


@pytest.mark.parametrize("timestamp_ms", [2**62, -(2**62), 2**64, -(2**64)])
def test_a_timestamp_out_of_range_is_refused(timestamp_ms: int) -> None:
    with pytest.raises(UsageError, match="out of range"):
        encode_batch([(timestamp_ms, None, None, ())])


@pytest.mark.parametrize("timestamp_ms", [None, 1.5, "5"])
def test_a_timestamp_must_be_a_whole_number(timestamp_ms: int) -> None:
    with pytest.raises(UsageError, match="not a whole number"):
        encode_batch([(timestamp_ms, None, None, ())])


@pytest.mark.parametrize("name", ["\ud800", b"bytes", None, 5])
def test_a_header_key_must_be_text(name: str) -> None:
    with pytest.raises(UsageError, match="header's key"):
        encode_batch([(NOW_MS, None, None, ((name, b""),))])


def test_a_failed_append_leaves_the_builder_unchanged() -> None:
    builder = BatchBuilder()
    builder.append(NOW_MS, b"a", b"1")
    wrong: list[tuple[object, object, object]] = [
        ("text", b"", ()),
        (b"", "text", ()),
        (b"", b"", ((b"name", b""),)),
        (b"", b"", (("name", "text"),)),
        (5, b"", ()),
    ]
    for key, value, several in wrong:
        with pytest.raises((TypeError, UsageError)):
            builder.append(NOW_MS, key, value, several)  # type: ignore[arg-type]
    assert builder.record_count == 1
    builder.append(NOW_MS, b"b", b"2")
    assert [record.key for record in RecordBatch(builder.build()).records()] == [b"a", b"b"]


def test_the_number_of_records_in_a_batch_is_bounded() -> None:
    row: Row = (NOW_MS, None, None, ())
    coded = encode_batch([row] * batches.RECORDS_MAX, codec=Compression.ZSTD)
    assert RecordBatch(coded).record_count == batches.RECORDS_MAX
    with pytest.raises(MessageTooLarge, match="1048576 records"):
        encode_batch([row] * (batches.RECORDS_MAX + 1))


@pytest.mark.parametrize("kind", [bytearray, lambda data: memoryview(bytearray(data))])
def test_setting_the_offset_keeps_the_crc(kind: Callable[[bytes], bytearray]) -> None:
    buffer = kind(encode_batch([(NOW_MS, b"k", b"v", ()), (NOW_MS, b"l", b"w", ())]))
    set_offset_and_epoch(buffer, 2**40, 12)
    batch = RecordBatch(buffer)
    batch.check_crc()
    assert (batch.base_offset, batch.leader_epoch) == (2**40, 12)
    assert (batch.last_offset, batch.next_offset) == (2**40 + 1, 2**40 + 2)
    assert [record.offset for record in batch.records()] == [2**40, 2**40 + 1]


def test_setting_the_offset_needs_a_header() -> None:
    with pytest.raises(CorruptData, match="60 bytes hold no batch header"):
        set_offset_and_epoch(bytearray(60), 0, 0)


@pytest.mark.parametrize("position", [21, 61, -1])
def test_a_changed_byte_fails_the_crc(position: int) -> None:
    coded = bytearray(encode_batch([(NOW_MS, b"k", b"v", ())]))
    coded[position] ^= 1
    with pytest.raises(CorruptData, match="CRC"):
        RecordBatch(coded).check_crc()


def test_log_append_time_applies_to_every_record() -> None:
    payload = encode_batch([(1, b"a", None, ()), (2, b"b", None, (("h", b""),))])[61:]
    coded = batch_of(
        payload, attributes=0x08, record_count=2, last_offset_delta=1, max_timestamp_ms=99
    )
    assert RecordBatch(coded).is_log_append_time
    assert [record.timestamp_ms for record in RecordBatch(coded).records()] == [99, 99]


def test_a_compacted_batch_keeps_its_offset_range() -> None:
    records = encode_batch([(NOW_MS, b"%d" % n, b"", ()) for n in range(5)])[61:]
    size_bytes = len(records) // 5
    kept = records[size_bytes : 2 * size_bytes] + records[3 * size_bytes : 4 * size_bytes]
    batch = RecordBatch(batch_of(kept, base_offset=100, last_offset_delta=4, record_count=2))
    assert [record.offset for record in batch.records()] == [101, 103]
    assert batch.next_offset == 105


@every_codec
def test_a_batch_emptied_by_compaction_has_no_records(codec: Compression) -> None:
    coded = batch_of(b"", attributes=codec, base_offset=7, last_offset_delta=2, record_count=0)
    batch = RecordBatch(coded)
    batch.check_crc()
    assert batch.records() == []
    assert batch.next_offset == 10


def test_a_control_batch_is_recognized() -> None:
    batch = RecordBatch(batch_of(CONTROL, attributes=0x30))
    assert batch.is_control
    assert batch.is_transactional
    assert batch.records() == [
        LogRecord(0, NOW_MS, bytes.fromhex("00000001"), bytes.fromhex("000000000005"))
    ]


@given(st.lists(rows, max_size=4), st.floats(0, 1, exclude_max=True))
def test_a_partial_batch_at_the_end_is_left_out(parts: list[list[Row]], share: float) -> None:
    coded = [encode_batch(part) for part in parts]
    last = encode_batch([(NOW_MS, b"key", b"value", ())])
    whole = b"".join(coded) + last[: int(share * len(last))]
    assert [bytes(batch.data) for batch in split_batches(whole)] == coded
    assert [records_of(bytes(batch.data)) for batch in split_batches(memoryview(whole))] == parts


def test_splitting_raises_at_bytes_that_are_no_batch() -> None:
    coded = encode_batch([(NOW_MS, None, b"v", ())])
    found = split_batches(coded + bytes(80))
    assert next(found).record_count == 1
    with pytest.raises(CorruptData, match="format v0; only v2 is read"):
        next(found)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"magic": 1}, "format v1"),
        ({"magic": -1}, "format v"),
        ({"length": 48}, "length of 48"),
        ({"length": -1}, "length of -1"),
        ({"length": -(2**31)}, "length of -2147483648"),
        ({"base_offset": 2**62 + 1}, "claims offset"),
        ({"base_offset": -(2**62) - 1}, "claims offset"),
    ],
)
def test_an_inconsistent_header_is_refused(fields: dict[str, int], complaint: str) -> None:
    coded = batch_of(b"", **fields)
    with pytest.raises(CorruptData, match=complaint):
        RecordBatch(coded)
    with pytest.raises(CorruptData, match=complaint):
        list(split_batches(coded))


@pytest.mark.parametrize("position", [0, 1, -1, 2**70])
def test_a_truncated_batch_is_refused(position: int) -> None:
    coded = encode_batch([(NOW_MS, None, b"v", ())])
    with pytest.raises(CorruptData):
        RecordBatch(coded[:-1], position)
    with pytest.raises(CorruptData):
        RecordBatch(coded[:60], position)


ONE = "0e 00 00 00 02 6b 01 00"  # one record: key "k", value null


@pytest.mark.parametrize(
    ("payload", "fields", "complaint"),
    [
        (ONE, {"record_count": -1}, "claims -1 records"),
        (ONE, {"record_count": 2}, "claims 2 records"),
        (ONE, {"record_count": 2**31 - 1}, "claims 2147483647 records"),
        (ONE, {"record_count": 0}, "8 bytes follow the last record"),
        (ONE, {"last_offset_delta": -1}, "offset delta 0 follows -1"),
        (ONE + ONE, {}, "8 bytes follow the last record"),
        (ONE + ONE, {"record_count": 2, "last_offset_delta": 9}, "offset delta 0 follows 0"),
        (ONE, {"attributes": 5}, "unknown codec 5"),
        (ONE, {"attributes": 1}, "gzip data of 8 bytes is malformed"),
        ("10 00 00 00 02 6b 01 00", {}, "a record claims 8 bytes; 7 are left"),
        ("0a 00 00 00 02 6b 01 00", {}, "a record claims 5 bytes"),
        ("01 00 00 00 02 6b 01 00", {}, "a record claims -1 bytes"),
        ("0e 00 00 01 02 6b 01 00", {}, "offset delta -1"),
        ("0e 00 00 02 02 6b 01 00", {}, "offset delta 1"),
        ("0e 00 00 00 08 6b 01 00", {}, "a key claims 4 bytes; 3 are left"),
        ("0e 00 00 00 03 6b 01 00", {}, "a key claims -2 bytes"),
        ("0e 00 00 00 02 6b 04 00", {}, "a value claims 2 bytes; 1 are left"),
        ("0e 00 00 00 02 6b 03 00", {}, "a value claims -2 bytes"),
        ("0e 00 00 00 02 6b 01 02", {}, "claims 1 headers in 0 bytes"),
        ("0e 00 00 00 02 6b 01 01", {}, "claims -1 headers in 0 bytes"),
        ("0e 00 00 00 02 6b 02 00", {}, "headers in -1 bytes"),
        ("0c 00 00 00 02 6b 01", {}, "headers in -1 bytes"),
        ("0e 00 00 00 01 01 00 00", {}, "ends 1 bytes before its length"),
        ("12 00 00 00 01 01 02 01 01 00", {"record_count": 1}, "header's key claims -1 bytes"),
        ("14 00 00 00 01 01 02 02 ff 01 00", {}, "not UTF-8"),
        ("14 00 00 00 01 01 02 02 61 03 00", {}, "header's value claims -2 bytes"),
        ("1e 00 ff ff ff ff ff ff ff ff ff 03 00 01 01 00", {}, "more than 64 bits"),
        ("1e 00 fe ff ff ff ff ff ff ff ff 01 00 01 01 00", {}, "overflows"),
        ("10 ff 80 80 80 80 80 80 80 80", {}, "more than 64 bits|claims|follows|ends"),
    ],
)
def test_malformed_records_are_refused(
    payload: str, fields: dict[str, int], complaint: str
) -> None:
    batch = RecordBatch(batch_of(bytes.fromhex(payload), **fields))
    batch.check_crc()
    with pytest.raises(CorruptData, match=complaint):
        batch.records()
    for byte in (b"\x00", b"\x01", b"\x02", b"\x80", b"\xff"):
        with pytest.raises(CorruptData):
            RecordBatch(batch_of(bytes.fromhex(payload), **fields) + 100 * byte).records()


@given(rows, st.binary(min_size=64, max_size=80))
def test_bytes_around_a_batch_do_not_affect_it(records: list[Row], behind: bytes) -> None:
    coded = encode_batch(records)
    found = RecordBatch(coded).records()
    assert RecordBatch(coded + behind).records() == found
    assert RecordBatch(bytearray(behind + coded + behind), len(behind)).records() == found
    assert RecordBatch(memoryview(behind + coded)[len(behind) :]).records() == found


@pytest.mark.parametrize("base_timestamp_ms", [-(2**63), -1, 0, 1, 2**63 - 1])
@pytest.mark.parametrize("delta", [-(2**63), -1, 0, 1, 2**63 - 1])
def test_a_timestamp_is_exact_or_refused(base_timestamp_ms: int, delta: int) -> None:
    number = bytearray()
    raw = delta << 1 if delta >= 0 else ~(delta << 1)
    while raw > 0x7F:
        number.append(raw & 0x7F | 0x80)
        raw >>= 7
    number.append(raw)
    body = b"\x00" + number + b"\x00\x01\x01\x00"
    coded = batch_of(bytes([len(body) * 2]) + body, base_timestamp_ms=base_timestamp_ms)
    if -(2**63) <= base_timestamp_ms + delta < 2**63:
        assert RecordBatch(coded).records()[0].timestamp_ms == base_timestamp_ms + delta
    else:
        with pytest.raises(CorruptData, match="overflows"):
            RecordBatch(coded).records()


def test_a_decompression_bomb_is_refused() -> None:
    payload = compress(Compression.ZSTD, bytes(batches.UNCOMPRESSED_BYTES_MAX + 1))
    assert len(payload) < 50_000
    batch = RecordBatch(batch_of(payload, attributes=Compression.ZSTD))
    with pytest.raises(CorruptData, match="more than 134217728 bytes"):
        batch.records()


@every_codec
@given(records=rows, position=st.integers(0), noise=st.binary(min_size=1, max_size=6))
def test_broken_bytes_are_records_or_corrupt(
    codec: Compression, records: list[Row], position: int, noise: bytes
) -> None:
    coded = bytearray(encode_batch(records, codec=codec))
    position %= len(coded)
    coded[position : position + len(noise)] = noise
    with contextlib.suppress(CorruptData):
        for batch in split_batches(coded):
            assert all(isinstance(record, LogRecord) for record in batch.records())


@given(payload=st.binary(max_size=120), count=st.integers(0, 20), delta=st.integers(0, 40))
def test_noise_is_records_or_corrupt(payload: bytes, count: int, delta: int) -> None:
    coded = batch_of(payload, record_count=count, last_offset_delta=delta)
    with contextlib.suppress(CorruptData):
        assert len(RecordBatch(coded).records()) == count


def test_equal_headers_of_consecutive_records_are_shared() -> None:
    own, other = (("epoch", b"\x01"),), (("epoch", b"\x02"),)
    order = [own, own, (), own, other, other, own]
    batch = RecordBatch(encode_batch([(0, b"k", b"v", headers) for headers in order]))
    found = [record.headers for record in batch.records()]
    assert found == order
    assert found[0] is found[1] is found[3]
    assert found[4] is found[5]
