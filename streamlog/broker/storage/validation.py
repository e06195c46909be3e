"""Validation: whether a client's batches hold the records that they promise (Kafka's LogValidator).

A log keeps the bytes of a batch as they come, so a batch whose records can't be read would be
acknowledged, and then stop everybody who reads, cleans or copies the partition. So each batch is
scanned before it is appended (`records.record_scan`), decompressed if need be, up to the topic's
`max.decompressed.bytes`. What the topic asks of its records is judged by the result of that scan.

Rule of the file: a large batch is scanned in parts, so that whoever does this in a thread does not
hold the interpreter for long; only a batch that is refused is decoded, to name its bad records.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from streamlog.broker.config import LOG_APPEND_TIME, TopicConfig
from streamlog.broker.settings import LONG_MAX
from streamlog.durations import TIMESTAMP_MS_MAX, moment
from streamlog.errors import CorruptData, DecompressedTooLarge, RecordsRefused
from streamlog.records.batch import (
    HEADER_BYTES,
    RECORDS_MAX,
    UNCOMPRESSED_BYTES_MAX,
    Record,
    RecordBatch,
)
from streamlog.records.compression import Compression, decompress
from streamlog.records.record_scan import RecordScan

INVALID_RECORD: Final = 87
INVALID_TIMESTAMP: Final = 32
SCAN_RECORDS: Final = 16 * 1024
"""Records that are scanned at a time: well below a millisecond."""
PLAIN_BYTES_MAX: Final = 1024 * 1024
"""Batches up to this size are scanned at once if they are not compressed."""
RECORD_ERRORS_MAX: Final = 1_000
"""Bad records that one answer names."""


class RecordRules(NamedTuple):
    """What a topic asks of the records of a batch."""

    needs_keys: bool
    oldest_ms: int
    newest_ms: int
    decompressed_bytes_max: int

    @classmethod
    def of(cls, config: TopicConfig, wall_ms: int | None) -> RecordRules:
        """The rules of a topic at that time; without a time, timestamps have no bounds."""
        oldest_ms, newest_ms = 0, LONG_MAX
        if wall_ms is not None and config.message_timestamp_type != LOG_APPEND_TIME:
            oldest_ms = max(wall_ms - config.message_timestamp_before_max_ms, 0)
            newest_ms = min(wall_ms + config.message_timestamp_after_max_ms, LONG_MAX)
        return cls(config.compacts, oldest_ms, newest_ms, config.max_decompressed_bytes)


def checked(batch: RecordBatch, rules: RecordRules) -> RecordScan:
    """The scan of a batch whose records are sound and what the topic asks for.

    Raises:
        RecordsRefused: they are not; names the bad records as far as they can be told apart.
    """
    scan = _scanned(batch, rules)
    no_key = rules.needs_keys and scan.keyless > 0
    if no_key or scan.oldest_ms < rules.oldest_ms or scan.newest_ms > rules.newest_ms:
        raise _refusal(batch.records(), rules)
    return scan


def check_newest(batch: RecordBatch, rules: RecordRules) -> None:
    """Judge a batch by the newest timestamp in its header.

    Raises:
        RecordsRefused: it is later than the topic takes.
    """
    newest_ms = batch.max_timestamp_ms
    if newest_ms > rules.newest_ms:
        raise RecordsRefused(
            f"a batch was refused: its newest {_too_late(newest_ms, rules)}", code=INVALID_TIMESTAMP
        )


def readable(batch: RecordBatch, size_bytes_max: int) -> bytes:
    """The decompressed records of a batch, all of them sound.

    Raises:
        CorruptData: they are malformed, or take more than `size_bytes_max` bytes.
    """
    records = decompress(batch.codec, batch.data[HEADER_BYTES:], size_bytes_max=size_bytes_max)
    scan_all(RecordScan(batch), records)
    return records


def unreadable(batch: RecordBatch) -> str:
    """Why nobody can read the records of a batch whose checksum is right; empty if they can."""
    if batch.record_count == 0 and batch.size_bytes == HEADER_BYTES:
        return ""
    if not 0 <= batch.record_count <= RECORDS_MAX:
        return f"the batch claims {batch.record_count} records"
    try:
        readable(batch, UNCOMPRESSED_BYTES_MAX)
    except CorruptData as error:
        return str(error)
    return ""


def scan_all(scan: RecordScan, records: bytes) -> None:
    """Scan `records`, part after part.

    Raises:
        CorruptData: they are malformed.
    """
    while scan.read(records, SCAN_RECORDS):
        pass


def _scanned(batch: RecordBatch, rules: RecordRules) -> RecordScan:
    if batch.record_count > RECORDS_MAX:
        raise RecordsRefused(
            f"a batch holds {batch.record_count} records; at most {RECORDS_MAX} are taken",
            code=INVALID_RECORD,
        )
    scan = RecordScan(batch)
    bytes_max = max(rules.decompressed_bytes_max, batch.size_bytes)
    try:
        if batch.codec is Compression.NONE and batch.size_bytes <= PLAIN_BYTES_MAX:
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
        # In a plain batch the scan has come to the record; what can't be decompressed has none.
        is_plain = batch.codec is Compression.NONE
        raise _malformed(scan, batch, error, is_named=is_plain) from error
    try:
        scan_all(scan, records)
    except CorruptData as error:
        raise _malformed(scan, batch, error, is_named=True) from error
    return scan


def _malformed(
    scan: RecordScan, batch: RecordBatch, error: CorruptData, *, is_named: bool
) -> RecordsRefused:
    is_named = is_named and scan.index < batch.record_count
    return RecordsRefused(
        f"a batch was refused: {error}",
        code=INVALID_RECORD,
        record_errors={scan.index: str(error)} if is_named else {},
    )


def _refusal(records: list[Record], rules: RecordRules) -> RecordsRefused:
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
                f"its timestamp {_shown(record.timestamp_ms)} is earlier than"
                f" {_shown(rules.oldest_ms)}, the earliest that the topic takes now"
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
        f"timestamp {_shown(timestamp_ms)} is later than {_shown(rules.newest_ms)}, the latest that"
        " the topic takes now (message.timestamp.after.max.ms)"
    )


def _shown(timestamp_ms: int) -> str:
    """As it is, and for people where there is such a date."""
    if timestamp_ms > TIMESTAMP_MS_MAX:
        return str(timestamp_ms)
    return f"{timestamp_ms} ({moment(timestamp_ms):%Y-%m-%d %H:%M:%S} UTC)"
