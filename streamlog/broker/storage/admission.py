"""Admission: which batches a log takes (after Kafka's LogValidator).

A client sends batches that are already encoded; the log keeps their bytes. So everything that
later readers rely on is checked here, once: format, CRC, the size, the count of records against
the offsets they will take, and the records themselves (`validation`). `prepare` does all that
needs no place in the log, so it can be done in a thread before the batches are appended.
`admit_copies` is for batches that another log has placed: they come with their offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from streamlog.broker.config import AS_PRODUCED, TopicConfig
from streamlog.broker.settings import LONG_MAX
from streamlog.broker.storage.appends import Origin
from streamlog.broker.storage.recompression import recompressed
from streamlog.broker.storage.validation import (
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    RecordRules,
    check_newest,
    checked,
)
from streamlog.errors import CorruptData, CorruptMessage, LogError, MessageTooLarge
from streamlog.records.batch import HEADER_BYTES, RecordBatch, place_batch
from streamlog.records.compression import Compression

INVALID_TXN_STATE = 48
UNSUPPORTED_COMPRESSION_TYPE = 76

_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35
_LOG_APPEND_TIME = 0x08
_INT16 = struct.Struct(">h")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_MAGIC = 2
_MAGIC_AT = 16
_CODEC_BITS = 0x07


class Prepared(NamedTuple):
    """Batches of a client that may be appended as soon as their turn comes."""

    data: bytearray | memoryview
    batches: list[RecordBatch]


def prepare(
    data: bytearray | memoryview,
    config: TopicConfig,
    *,
    wall_ms: int | None,
    origin: Origin = Origin.TRANSACTION,
) -> Prepared:
    """Check the batches in `data`, and compress them as the topic wants it.

    Without `wall_ms` timestamps are taken as they are.

    Raises:
        CorruptMessage: bytes have changed on the way, or the last batch is cut off.
        MessageTooLarge: a batch is larger than the topic takes.
        RecordsRefused: records are malformed, or not what the topic takes.
        LogError: with Kafka's code, a client must not send such a batch.
    """
    batches = admit(
        data,
        max_message_bytes=config.max_message_bytes,
        transactional=origin is not Origin.CLIENT,
        numbered=origin is not Origin.COORDINATOR,
    )
    batches = validated(data, batches, config, wall_ms)
    return Prepared(*recompressed(data, batches, config))


def check_transactional(batches: Iterable[RecordBatch]) -> None:
    """Refuse batches of a transaction from a client that has not begun one here.

    Raises:
        LogError: INVALID_TXN_STATE.
    """
    for batch in batches:
        if batch.is_transactional:
            raise _no_transaction()


def admit(
    data: bytearray | memoryview,
    *,
    max_message_bytes: int,
    transactional: bool = False,
    numbered: bool = True,
) -> list[RecordBatch]:
    """The batches in `data`, each of which a client may append.

    Only with `transactional` they may belong to a transaction: the caller knows that one was
    begun here. Without `numbered` they need no sequence numbers.

    Raises:
        CorruptMessage: bytes have changed on the way, or the last batch is cut off.
        MessageTooLarge: a batch is larger than `max_message_bytes`.
        LogError: with Kafka's code, a client must not send such a batch.
    """
    if not len(data):
        raise LogError("a request has no batch for a partition", code=INVALID_RECORD)
    batches = _split(data)
    for batch in batches:
        if batch.size_bytes > max_message_bytes:
            raise MessageTooLarge(
                f"a batch of {batch.size_bytes} bytes is larger than max.message.bytes"
                f" ({max_message_bytes}): send smaller batches, or raise it for the topic"
            )
        _check_client(batch, transactional=transactional)
        if batch.producer_id >= 0 and numbered:
            _check_numbered(batch, alone=len(batches) == 1)
    return batches


def admit_copies(data: bytearray | memoryview, *, next_offset: int) -> list[RecordBatch]:
    """The batches in `data`, which have their offsets and continue a log at `next_offset`.

    Raises:
        CorruptMessage: bytes have changed on the way, or the offsets leave a gap.
    """
    batches = _split(data)
    for batch in batches:
        if batch.base_offset != next_offset or batch.last_offset_delta < 0:
            raise CorruptMessage(
                f"a copied batch begins at offset {batch.base_offset}, {next_offset} is due"
            )
        next_offset = batch.next_offset
    return batches


def stamp(
    data: bytearray | memoryview, batches: Iterable[RecordBatch], *, wall_ms: int
) -> list[RecordBatch]:
    """Give the batches in `data` the time at which they are written (LogAppendTime).

    Readers take it for every record of the batch; the CRC covers it and is computed anew.
    """
    position = 0
    stamped = []
    for batch in batches:
        end = position + batch.size_bytes
        _INT16.pack_into(data, position + _ATTRIBUTES_AT, batch.attributes | _LOG_APPEND_TIME)
        _INT64.pack_into(data, position + _MAX_TIMESTAMP_AT, wall_ms)
        stamped.append(_resealed(data, position, batch.size_bytes))
        position = end
    return stamped


def _resealed(data: bytearray | memoryview, position: int, size_bytes: int) -> RecordBatch:
    """The batch at `position`, whose header has changed, with a CRC that says it is right so."""
    with memoryview(data) as view:
        crc = crc32c(view[position + _ATTRIBUTES_AT : position + size_bytes])
    _UINT32.pack_into(data, position + _CRC_AT, crc)
    return RecordBatch(data, position)


def is_checked(config: TopicConfig) -> bool:
    """Whether the records of batches are looked at."""
    return (
        config.validate_records
        or config.compacts
        or config.compression_type != AS_PRODUCED
        or config.message_timestamp_before_max_ms != LONG_MAX
    )


def validated(
    data: bytearray | memoryview,
    batches: list[RecordBatch],
    config: TopicConfig,
    wall_ms: int | None,
) -> list[RecordBatch]:
    """The batches in `data`, whose records are sound and what the topic asks for.

    Each has its newest timestamp in the header, which indexes and retention go by. Where records
    are not looked at, the header is taken at its word.

    Raises:
        RecordsRefused: a batch is refused.
    """
    rules = RecordRules.of(config, wall_ms)
    if not is_checked(config):
        for batch in batches:
            check_newest(batch, rules)
        return batches
    found = []
    position = 0
    for batch in batches:
        newest_ms = checked(batch, rules).newest_ms
        if newest_ms == batch.max_timestamp_ms:
            found.append(batch)
        else:
            _INT64.pack_into(data, position + _MAX_TIMESTAMP_AT, newest_ms)
            found.append(_resealed(data, position, batch.size_bytes))
        position += batch.size_bytes
    return found


def _split(data: bytearray | memoryview) -> list[RecordBatch]:
    batches: list[RecordBatch] = []
    position = 0
    while position < len(data) or not batches:
        if len(data) - position > _MAGIC_AT and data[position + _MAGIC_AT] != _MAGIC:
            raise LogError(
                f"a message of format v{data[position + _MAGIC_AT]} was sent; only record batches"
                " of format v2 are taken",
                code=INVALID_RECORD,
            )
        try:
            batch = RecordBatch(data, position)
            batch.check_crc()
        except CorruptData as error:
            raise CorruptMessage(f"a batch was refused: {error}") from error
        batches.append(batch)
        position += batch.size_bytes
    return batches


def _check_client(batch: RecordBatch, *, transactional: bool) -> None:
    if not 0 < batch.record_count == batch.last_offset_delta + 1:
        raise LogError(
            f"a batch claims {batch.record_count} records and"
            f" {batch.last_offset_delta + 1} offsets for them",
            code=INVALID_RECORD,
        )
    if batch.is_control:
        raise LogError("a client must not write control batches", code=INVALID_RECORD)
    if batch.attributes & _CODEC_BITS > Compression.ZSTD:
        raise LogError(
            f"a batch is compressed with unknown codec {batch.attributes & _CODEC_BITS}",
            code=UNSUPPORTED_COMPRESSION_TYPE,
        )
    if batch.is_log_append_time:
        raise LogError(
            "a batch claims log append time, which only a log may set", code=INVALID_TIMESTAMP
        )
    if batch.is_transactional and not (transactional and batch.producer_id >= 0):
        raise _no_transaction()
    if batch.size_bytes == HEADER_BYTES:
        raise LogError("a batch claims records and has none", code=INVALID_RECORD)


def _no_transaction() -> LogError:
    return LogError(
        "a batch belongs to a transaction, and none was begun here", code=INVALID_TXN_STATE
    )


def _check_numbered(batch: RecordBatch, *, alone: bool) -> None:
    """An idempotent producer numbers its batches and sends them one at a time."""
    if batch.base_sequence < 0 or batch.producer_epoch < 0:
        raise LogError(
            f"producer {batch.producer_id} sent sequence {batch.base_sequence} in epoch"
            f" {batch.producer_epoch}: neither may be negative",
            code=INVALID_RECORD,
        )
    if not alone:
        raise LogError(
            f"producer {batch.producer_id} sent several batches for one partition at once",
            code=INVALID_RECORD,
        )


def place(
    data: bytearray | memoryview, batches: Iterable[RecordBatch], offset: int, leader_epoch: int
) -> None:
    """Give the batches in `data` their places in a log, one behind the other from `offset` on."""
    position = 0
    for batch in batches:
        place_batch(memoryview(data)[position:] if position else data, offset, leader_epoch)
        position += batch.size_bytes
        offset += batch.last_offset_delta + 1
