"""Validator: which batches a log accepts (after Kafka's LogValidator).

A client sends batches that are already encoded, and the log keeps their bytes. So this module
checks, once, everything that readers rely on: format, CRC, size, the record count against the
offsets of the batch, and the records themselves, which are scanned (`records.record_scan`) and if
necessary decompressed, up to the topic's `max.decompressed.bytes`. `prepare` does everything that
needs no offset, so a thread can run it before the append. `validate_copies` checks batches that
have offsets from another log. If `compression.type` is not `producer`, batches with another codec
are decompressed, checked and compressed again; records and all other header fields stay.

Rules of this module: a large batch is scanned in parts, so that a scan in a thread never holds the
interpreter for long; a batch is decoded only if it is refused, to name its bad records; an
unreadable batch is never recompressed, because the new checksum would make it look sound.

Not done here: producer sequences (`log.producer_states`) and the append (`log.partition_log`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from crc32c import crc32c

from streamlog.broker.config.broker import AS_PRODUCED, LOG_APPEND_TIME, UNCOMPRESSED, TopicConfig
from streamlog.broker.config.settings import LONG_MAX
from streamlog.durations import TIMESTAMP_MS_MAX, moment
from streamlog.errors import (
    CorruptData,
    CorruptMessage,
    DecompressedTooLarge,
    LogError,
    MessageTooLarge,
    RecordsRefused,
)
from streamlog.records.batch import (
    HEADER_BYTES,
    RECORDS_MAX,
    UNCOMPRESSED_BYTES_MAX,
    LogRecord,
    RecordBatch,
    set_offset_and_epoch,
)
from streamlog.records.compression import Compression, compress, decompress
from streamlog.records.record_scan import RecordScan


class AppendOrigin(Enum):
    """The origin of batches, which decides what they are checked for."""

    CLIENT = "client"
    """A client without an open transaction."""
    TRANSACTION = "transaction"
    """A client whose transaction the coordinator has confirmed."""
    COORDINATOR = "coordinator"
    """The broker: batches that it writes for a producer have no sequence numbers."""
    COPY = "copy"
    """Another log: batches have their offsets."""


class AppendResult(NamedTuple):
    """The offsets of a client's batches in the log."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 if records keep the timestamps of their producer."""
    size_bytes: int
    """Bytes added to the log; 0 for a duplicate, which is at these offsets already."""

    @property
    def duplicate(self) -> bool:
        """Whether the batch is a duplicate that was not appended again."""
        return self.size_bytes == 0


_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults
INVALID_RECORD: Final = 87
INVALID_TIMESTAMP: Final = 32
SCAN_RECORDS: Final = 16 * 1024
"""Records per step of a scan, which takes well below a millisecond."""
PLAIN_BYTES_MAX: Final = 1024 * 1024
"""Uncompressed batches up to this size are scanned in one step, as are those of few records."""
RECORD_ERRORS_MAX: Final = 1_000
"""Bad records that one response names."""


class RecordRules(NamedTuple):
    """What a topic requires of the records of a batch."""

    needs_keys: bool
    oldest_ms: int
    newest_ms: int
    decompressed_bytes_max: int

    @classmethod
    def of(cls, config: TopicConfig, wall_ms: int | None) -> RecordRules:
        """Return a topic's rules at `wall_ms`; without a time, timestamps have no bounds."""
        # With LogAppendTime the producer's timestamps are overwritten, so they need no bounds.
        oldest_ms, newest_ms = 0, LONG_MAX
        if wall_ms is not None and config.message_timestamp_type != LOG_APPEND_TIME:
            oldest_ms = max(wall_ms - config.message_timestamp_before_max_ms, 0)
            newest_ms = min(wall_ms + config.message_timestamp_after_max_ms, LONG_MAX)
        limits = (config.compacts, oldest_ms, newest_ms, config.max_decompressed_bytes)
        return _new_tuple(cls, limits)


def validate_records(batch: RecordBatch, rules: RecordRules) -> RecordScan:
    """Scan a batch, and check that its records are sound and what the topic requires.

    Raises:
        RecordsRefused: they are not; it names the bad records as far as possible.
    """
    scan = _scan(batch, rules)
    no_key = rules.needs_keys and scan.keyless > 0
    # The scan only counts and compares. A batch that fails is decoded once more, to name its
    # records.
    if no_key or scan.oldest_ms < rules.oldest_ms or scan.newest_ms > rules.newest_ms:
        # Only now decode the batch: the scan has no record numbers for these.
        raise _refusal(batch.records(), rules)
    return scan


def check_newest(batch: RecordBatch, rules: RecordRules) -> None:
    """Check a batch by the maximum timestamp in its header.

    Raises:
        RecordsRefused: it is later than the topic accepts.
    """
    newest_ms = batch.max_timestamp_ms
    if newest_ms > rules.newest_ms:
        raise RecordsRefused(
            f"a batch was refused: its newest {_too_late(newest_ms, rules)}", code=INVALID_TIMESTAMP
        )


def decompress_records(batch: RecordBatch, size_bytes_max: int) -> bytes:
    """Return the decompressed records of a batch, all of them sound.

    Raises:
        CorruptData: they are malformed, or take more than `size_bytes_max` bytes.
    """
    records = decompress(batch.codec, batch.data[HEADER_BYTES:], size_bytes_max=size_bytes_max)
    scan_all(RecordScan(batch), records)
    return records


def unreadable_reason(batch: RecordBatch) -> str:
    """Return why the records of a batch with a correct CRC are unreadable; "" if they are not."""
    # A batch that compaction has emptied, or that replaces lost offsets, is readable: it has
    # nothing.
    if batch.record_count == 0 and batch.size_bytes == HEADER_BYTES:
        return ""
    if not 0 <= batch.record_count <= RECORDS_MAX:
        return f"the batch claims {batch.record_count} records"
    try:
        decompress_records(batch, UNCOMPRESSED_BYTES_MAX)
    except CorruptData as error:
        return str(error)
    return ""


def scan_all(scan: RecordScan, records: bytes) -> None:
    """Scan `records`, part by part.

    Raises:
        CorruptData: they are malformed.
    """
    while scan.read(records, SCAN_RECORDS):
        pass


def _scan(batch: RecordBatch, rules: RecordRules) -> RecordScan:
    if batch.record_count > RECORDS_MAX:
        raise RecordsRefused(
            f"a batch holds {batch.record_count} records; at most {RECORDS_MAX} are accepted",
            code=INVALID_RECORD,
        )
    scan = RecordScan(batch)
    bytes_max = max(rules.decompressed_bytes_max, batch.size_bytes)
    # A batch that was accepted compressed may not expand beyond the bound; one that is not
    # compressed is as large as it is.
    try:
        is_short = batch.size_bytes <= PLAIN_BYTES_MAX or batch.record_count <= SCAN_RECORDS
        if batch.codec is Compression.NONE and is_short:
            scan.read_plain(batch)
            return scan
        payload = batch.data[HEADER_BYTES:]
        records = decompress(batch.codec, payload, size_bytes_max=bytes_max)
    except DecompressedTooLarge as error:
        raise RecordsRefused(
            f"a batch of {batch.size_bytes} bytes ({batch.codec.name.lower()}) was refused: its"
            f" records take more than {bytes_max} bytes decompressed; send smaller batches, or"
            " raise max.decompressed.bytes for the topic (message.max.decompressed.bytes for the"
            " broker)",
            code=INVALID_RECORD,
        ) from error
    except CorruptData as error:
        # In a plain batch, the scan has reached the bad record. If decompression failed, no record
        # can be named.
        is_plain = batch.codec is Compression.NONE
        raise _malformed_error(scan, batch, error, is_named=is_plain) from error
    try:
        scan_all(scan, records)
    except CorruptData as error:
        raise _malformed_error(scan, batch, error, is_named=True) from error
    return scan


def _malformed_error(
    scan: RecordScan, batch: RecordBatch, error: CorruptData, *, is_named: bool
) -> RecordsRefused:
    is_named = is_named and scan.index < batch.record_count
    return RecordsRefused(
        f"a batch was refused: {error}",
        code=INVALID_RECORD,
        record_errors={scan.index: str(error)} if is_named else {},
    )


def _refusal(records: list[LogRecord], rules: RecordRules) -> RecordsRefused:
    errors: dict[int, str] = {}
    code = INVALID_RECORD
    for number, record in enumerate(records):
        if rules.needs_keys and record.key is None:
            errors[number] = "it has no key, and the topic is compacted (cleanup.policy)"
        elif record.timestamp_ms > rules.newest_ms:
            code = INVALID_TIMESTAMP
            errors[number] = f"its {_too_late(record.timestamp_ms, rules)}"
        elif 0 <= record.timestamp_ms < rules.oldest_ms:
            code = INVALID_TIMESTAMP
            errors[number] = (
                f"its timestamp {_format_timestamp(record.timestamp_ms)} is earlier than"
                f" {_format_timestamp(rules.oldest_ms)}, the earliest that the topic accepts now"
                " (message.timestamp.before.max.ms)"
            )
        if len(errors) == RECORD_ERRORS_MAX:
            break
    first, reason = next(iter(errors.items()))
    others = f" ({len(errors)} records are refused)" if len(errors) > 1 else ""
    return RecordsRefused(
        f"record {first} of a batch was refused: {reason}{others}", code=code, record_errors=errors
    )


def _too_late(timestamp_ms: int, rules: RecordRules) -> str:
    return (
        f"timestamp {_format_timestamp(timestamp_ms)} is later than"
        f" {_format_timestamp(rules.newest_ms)}, the latest that"
        " the topic accepts now (message.timestamp.after.max.ms)"
    )


def _format_timestamp(timestamp_ms: int) -> str:
    """Format a timestamp as a number, and as a date if there is one."""
    if timestamp_ms > TIMESTAMP_MS_MAX:
        return str(timestamp_ms)
    return f"{timestamp_ms} ({moment(timestamp_ms):%Y-%m-%d %H:%M:%S} UTC)"


_LENGTH_AT = 8
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_NOT_IN_LENGTH = 12
_CODEC_BITS = 0x07
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")


def recompress(
    data: bytearray | memoryview, batches: list[RecordBatch], config: TopicConfig
) -> tuple[bytearray | memoryview, list[RecordBatch]]:
    """Return batches and the bytes that hold them; both are new if a batch was recompressed.

    Raises:
        CorruptMessage: a batch does not contain the records that its header claims.
        MessageTooLarge: after recompression, a batch is larger than the topic accepts.
    """
    if config.compression_type == AS_PRODUCED:
        return data, batches
    codec = Compression.NONE
    if config.compression_type != UNCOMPRESSED:
        codec = Compression.parse(config.compression_type)
    # Almost always true: a topic's producers use its codec. Then nothing is decompressed here.
    if all(batch.codec is codec or batch.is_control for batch in batches):
        return data, batches
    level = {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }.get(codec)
    rewritten = bytearray().join(_rewrite(batches, codec, level, config.max_decompressed_bytes))
    views = []
    position = 0
    while position < len(rewritten):
        views.append(RecordBatch(rewritten, position))
        position += views[-1].size_bytes
    for view in views:
        # The limit holds for the bytes on disk, and another codec may make a batch larger.
        if view.size_bytes > config.max_message_bytes:
            raise MessageTooLarge(
                f"a batch of {view.size_bytes} bytes, with the topic's compression.type"
                f" {config.compression_type}, is larger than max.message.bytes"
                f" ({config.max_message_bytes}): send smaller batches, or raise it for the topic"
            )
    return rewritten, views


def _rewrite(
    batches: Iterable[RecordBatch], codec: Compression, level: int | None, bytes_max: int
) -> Iterable[bytearray | memoryview]:
    for batch in batches:
        if batch.codec is codec or batch.is_control:
            yield batch.data
            continue
        records = _records(batch, bytes_max)
        if codec is not Compression.NONE:
            records = compress(codec, records, level=level)
        yield _with_records(batch, records, codec)


def _records(batch: RecordBatch, bytes_max: int) -> bytes:
    """Return the uncompressed bytes of the records, which are sound."""
    try:
        return decompress_records(batch, max(bytes_max, batch.size_bytes))
    except CorruptData as error:
        raise CorruptMessage(f"a batch was refused: {error}") from error


def _with_records(batch: RecordBatch, records: bytes, codec: Compression) -> bytearray:
    """Return a copy of a batch with other bytes as its records."""
    rewritten = bytearray(batch.data[:HEADER_BYTES])
    rewritten += records
    _INT32.pack_into(rewritten, _LENGTH_AT, len(rewritten) - _NOT_IN_LENGTH)
    _INT16.pack_into(rewritten, _ATTRIBUTES_AT, batch.attributes & ~_CODEC_BITS | codec)
    with memoryview(rewritten) as view:
        crc = crc32c(view[_ATTRIBUTES_AT:])
    _UINT32.pack_into(rewritten, _CRC_AT, crc)
    return rewritten


INVALID_TXN_STATE = 48
UNSUPPORTED_COMPRESSION_TYPE = 76

_MAX_TIMESTAMP_AT = 35
_LOG_APPEND_TIME = 0x08
_INT64 = struct.Struct(">q")
_MAGIC = 2
_MAGIC_AT = 16


class Prepared(NamedTuple):
    """Validated batches of a client, ready to be appended."""

    data: bytearray | memoryview
    batches: list[RecordBatch]


def prepare(
    data: bytearray | memoryview,
    config: TopicConfig,
    *,
    wall_ms: int | None,
    origin: AppendOrigin = AppendOrigin.TRANSACTION,
) -> Prepared:
    """Validate the batches in `data`, and compress them as the topic requires.

    Without `wall_ms`, any timestamp is accepted.

    Raises:
        CorruptMessage: bytes have changed in transit, or the last batch is cut off.
        MessageTooLarge: a batch is larger than the topic accepts.
        RecordsRefused: records are malformed, or the topic does not accept them.
        LogError: with Kafka's code, a client must not send such a batch.
    """
    batches = validate(
        data,
        max_message_bytes=config.max_message_bytes,
        transactional=origin is not AppendOrigin.CLIENT,
        has_sequence=origin is not AppendOrigin.COORDINATOR,
    )
    batches = validate_batches(data, batches, config, wall_ms)
    return Prepared(*recompress(data, batches, config))


def check_transactional(batches: Iterable[RecordBatch]) -> None:
    """Refuse transactional batches from a client without an open transaction here.

    Raises:
        LogError: INVALID_TXN_STATE.
    """
    for batch in batches:
        if batch.is_transactional:
            raise _no_transaction()


def validate(
    data: bytearray | memoryview,
    *,
    max_message_bytes: int,
    transactional: bool = False,
    has_sequence: bool = True,
) -> list[RecordBatch]:
    """Split `data` into batches, and check each as a client's.

    Transactional batches need `transactional`: the caller knows that a transaction is open here.
    Without `has_sequence`, batches need no sequence numbers.

    Raises:
        CorruptMessage: bytes have changed in transit, or the last batch is cut off.
        MessageTooLarge: a batch is larger than `max_message_bytes`.
        LogError: with Kafka's code, a client must not send such a batch.
    """
    if not len(data):
        raise LogError("the request contains no batch for the partition", code=INVALID_RECORD)
    batches = _split(data)
    for batch in batches:
        if batch.size_bytes > max_message_bytes:
            raise MessageTooLarge(
                f"a batch of {batch.size_bytes} bytes is larger than max.message.bytes"
                f" ({max_message_bytes}): send smaller batches, or raise it for the topic"
            )
        _check_client(batch, transactional=transactional)
        if batch.producer_id >= 0 and has_sequence:
            _check_sequence(batch, alone=len(batches) == 1)
    return batches


def validate_copies(data: bytearray | memoryview, *, next_offset: int) -> list[RecordBatch]:
    """Split `data` into batches that have offsets, and check that they continue at `next_offset`.

    Raises:
        CorruptMessage: bytes have changed in transit, or the offsets leave a gap.
    """
    batches = _split(data)
    for batch in batches:
        if batch.base_offset != next_offset or batch.last_offset_delta < 0:
            raise CorruptMessage(
                f"a copied batch begins at offset {batch.base_offset} instead of {next_offset}"
            )
        next_offset = batch.next_offset
    return batches


def stamp(
    data: bytearray | memoryview, batches: Iterable[RecordBatch], *, wall_ms: int
) -> list[RecordBatch]:
    """Set the time of the append in the batches of `data` (LogAppendTime).

    Readers use it for every record of a batch. The CRC covers it, so it is computed again.
    """
    position = 0
    stamped = []
    for batch in batches:
        end = position + batch.size_bytes
        _INT16.pack_into(data, position + _ATTRIBUTES_AT, batch.attributes | _LOG_APPEND_TIME)
        _INT64.pack_into(data, position + _MAX_TIMESTAMP_AT, wall_ms)
        stamped.append(_reseal(data, position, batch.size_bytes))
        position = end
    return stamped


def _reseal(data: bytearray | memoryview, position: int, size_bytes: int) -> RecordBatch:
    """Return the batch at `position`, whose header has changed, with a new CRC."""
    with memoryview(data) as view:
        crc = crc32c(view[position + _ATTRIBUTES_AT : position + size_bytes])
    _UINT32.pack_into(data, position + _CRC_AT, crc)
    return RecordBatch(data, position)


def is_checked(config: TopicConfig) -> bool:
    """Whether the records of batches are scanned."""
    return (
        config.validate_records
        or config.compacts
        or config.compression_type != AS_PRODUCED
        or config.message_timestamp_before_max_ms != LONG_MAX
    )


def validate_batches(
    data: bytearray | memoryview,
    batches: list[RecordBatch],
    config: TopicConfig,
    wall_ms: int | None,
) -> list[RecordBatch]:
    """Check that the records in `batches`, which lie in `data`, are what the topic accepts.

    Returns the batches with the true maximum timestamp in each header, because indexes and
    retention rely on it. If the topic's records are not scanned, the header is trusted.


    Raises:
        RecordsRefused: a batch is refused.
    """
    rules = RecordRules.of(config, wall_ms)
    # The producer set the header's maximum; a wrong one would mislead the time index and
    # retention. Correct it, and compute the CRC again.
    if not is_checked(config):
        for batch in batches:
            check_newest(batch, rules)
        return batches
    found = []
    position = 0
    for batch in batches:
        newest_ms = validate_records(batch, rules).newest_ms
        if newest_ms == batch.max_timestamp_ms:
            found.append(batch)
        else:
            _INT64.pack_into(data, position + _MAX_TIMESTAMP_AT, newest_ms)
            found.append(_reseal(data, position, batch.size_bytes))
        position += batch.size_bytes
    return found


def _split(data: bytearray | memoryview) -> list[RecordBatch]:
    batches: list[RecordBatch] = []
    position = 0
    while position < len(data) or not batches:
        # The magic byte stands at the same position in formats v0 to v2 (KIP-32, KIP-98), so it can
        # be checked before anything else is decoded.
        if len(data) - position > _MAGIC_AT and data[position + _MAGIC_AT] != _MAGIC:
            raise LogError(
                f"a message of format v{data[position + _MAGIC_AT]} was sent; only record batches"
                " of format v2 are accepted",
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
    # A client's batch uses each of its offsets. Only compaction makes batches with fewer records.
    if not 0 < batch.record_count == batch.last_offset_delta + 1:
        raise LogError(
            f"a batch claims {batch.record_count} records, but spans"
            f" {batch.last_offset_delta + 1} offsets",
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
    # A transactional batch without a producer id could never be ended by a marker.
    if batch.is_transactional and not (transactional and batch.producer_id >= 0):
        raise _no_transaction()
    if batch.size_bytes == HEADER_BYTES:
        raise LogError("a batch claims records, but contains none", code=INVALID_RECORD)


def _no_transaction() -> LogError:
    return LogError(
        "a batch belongs to a transaction that is not open in this partition",
        code=INVALID_TXN_STATE,
    )


def _check_sequence(batch: RecordBatch, *, alone: bool) -> None:
    """Check the sequence number of an idempotent producer's batch, which must be the only one."""
    if batch.base_sequence < 0 or batch.producer_epoch < 0:
        raise LogError(
            f"producer {batch.producer_id} sent sequence number {batch.base_sequence} in epoch"
            f" {batch.producer_epoch}: neither may be negative",
            code=INVALID_RECORD,
        )
    # As in Kafka: the duplicate check answers for one batch, and a request has one answer per
    # partition.
    if not alone:
        raise LogError(
            f"producer {batch.producer_id} sent several batches for one partition in one request",
            code=INVALID_RECORD,
        )


def assign_offsets(
    data: bytearray | memoryview, batches: Iterable[RecordBatch], offset: int, leader_epoch: int
) -> None:
    """Set offsets from `offset` on, and the leader epoch, in the batches of `data`."""
    position = 0
    for batch in batches:
        set_offset_and_epoch(
            memoryview(data)[position:] if position else data, offset, leader_epoch
        )
        position += batch.size_bytes
        offset += batch.last_offset_delta + 1
