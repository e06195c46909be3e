from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from streamlog.broker.storage.validator import (
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    INVALID_TXN_STATE,
    UNSUPPORTED_COMPRESSION_TYPE,
    stamp,
    validate,
    validate_copies,
)
from streamlog.errors import CorruptMessage, LogError, MessageTooLarge
from streamlog.records.batch import HEADER_BYTES, encode_batch, set_offset_and_epoch, split_batches
from streamlog.records.compression import Compression
from tests.broker.storage.batches import batch

ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
COUNT_AT = 57


def changed(data: bytes, at: int, layout: str, value: int) -> bytearray:
    """Return the batch with one field changed and a matching CRC."""
    changed_data = bytearray(data)
    struct.pack_into(layout, changed_data, at, value)
    struct.pack_into(">I", changed_data, 17, crc32c(changed_data[ATTRIBUTES_AT:]))
    return changed_data


def code_of(data: bytes | bytearray) -> int:
    with pytest.raises(LogError) as caught:
        validate(bytearray(data), max_message_bytes=1000)
    return caught.value.code


def test_sound_batches_are_accepted() -> None:
    taken = validate(bytearray(batch(2) + batch(3)), max_message_bytes=1000)
    assert [found.record_count for found in taken] == [2, 3]


@pytest.mark.parametrize("missing", [1, 20, HEADER_BYTES + 10])
def test_a_truncated_batch_is_refused(missing: int) -> None:
    for data in (batch(3)[:-missing], batch() + batch(3)[:-missing]):
        with pytest.raises(CorruptMessage):
            validate(bytearray(data), max_message_bytes=1000)


def test_an_empty_records_field_is_an_invalid_record() -> None:
    """As in Kafka: with `CORRUPT_MESSAGE`, clients would send it again."""
    assert code_of(b"") == INVALID_RECORD


def test_a_batch_with_a_wrong_checksum_is_refused() -> None:
    data = bytearray(batch())
    data[-1] ^= 1
    with pytest.raises(CorruptMessage, match="CRC"):
        validate(data, max_message_bytes=1000)


def test_a_batch_may_be_as_large_as_the_topic_allows() -> None:
    data = batch(value=bytes(100))
    validate(bytearray(data), max_message_bytes=len(data))
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
        validate(bytearray(data), max_message_bytes=len(data) - 1)


def test_invalid_header_fields_are_refused() -> None:
    data = batch(2)
    assert code_of(changed(data, 16, ">b", 1)) == INVALID_RECORD
    assert code_of(changed(data, COUNT_AT, ">i", 3)) == INVALID_RECORD
    assert code_of(changed(data, COUNT_AT, ">i", 0)) == INVALID_RECORD
    assert code_of(changed(data, LAST_OFFSET_DELTA_AT, ">i", -1)) == INVALID_RECORD
    assert code_of(changed(data, ATTRIBUTES_AT, ">h", 0x20)) == INVALID_RECORD
    assert code_of(changed(data, ATTRIBUTES_AT, ">h", 0x10)) == INVALID_TXN_STATE
    assert code_of(changed(data, ATTRIBUTES_AT, ">h", 0x08)) == INVALID_TIMESTAMP
    assert code_of(changed(data, ATTRIBUTES_AT, ">h", 5)) == UNSUPPORTED_COMPRESSION_TYPE


def test_an_idempotent_producer_sends_one_numbered_batch() -> None:
    assert code_of(batch(producer=(1, 0, -1))) == INVALID_RECORD
    assert code_of(batch(producer=(1, -1, 0))) == INVALID_RECORD
    assert code_of(batch(producer=(1, 0, 0)) + batch(producer=(1, 0, 1))) == INVALID_RECORD


def test_replicated_batches_must_continue_the_log() -> None:
    data = bytearray(batch(2))
    set_offset_and_epoch(data, 10, 0)
    assert validate_copies(data, next_offset=10)[0].next_offset == 12
    for other in (9, 11):
        with pytest.raises(CorruptMessage, match="instead of"):
            validate_copies(data, next_offset=other)


def test_replicated_batches_may_hold_control_records() -> None:
    data = changed(encode_batch([(0, b"k", b"v", ())]), ATTRIBUTES_AT, ">h", 0x20)
    assert validate_copies(data, next_offset=0)[0].is_control


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_log_append_time_is_written_into_batches(codec: Compression) -> None:
    sent = encode_batch([(5, None, b"a", ()), (900, None, b"b", ())], codec=codec)
    data = bytearray(sent + sent)
    stamped = stamp(data, validate(data, max_message_bytes=1000), wall_ms=700)
    assert [(each.max_timestamp_ms, each.is_log_append_time) for each in stamped] == [
        (700, True)
    ] * 2
    for each in split_batches(bytes(data)):
        each.check_crc()
        assert each.codec is codec
        assert [record.timestamp_ms for record in each.records()] == [700, 700]
