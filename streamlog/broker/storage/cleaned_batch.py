"""Batches as a cleaning writes them: fewer records, the same place in the log (KIP-534).

A batch that loses records keeps its offsets, its sequence numbers and its codec; the bytes of
the records that stay are copied, not encoded anew. The first cleaning that meets a tombstone
writes down until when it stays: in the batch's base timestamp, with bit 6 of the attributes
saying so; the records' own times, which are told relative to that, stay what they were.
Rule of the file: no offset goes missing. Where Kafka leaves a gap between batches there is a
batch without records here that spans it, legal for every client, so that a scan can go on
taking a gap for damage.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from streamlog.errors import CorruptData
from streamlog.records.batch import (
    HEADER_BYTES,
    UNCOMPRESSED_BYTES_MAX,
    Record,
    RecordBatch,
)
from streamlog.records.compression import Compression, compress, decompress
from streamlog.records.varint import append_varint, read_varint, read_varlong

DELETE_HORIZON = 0x40
"""Attribute: the base timestamp is when tombstones and markers in the batch may go."""

_CODEC_BITS = 0x07
_CRC_FROM = 21
_LENGTH_FROM = 12
_MAGIC = 2
_NO_PRODUCER = (-1, -1, -1)
_NO_TIME_MS = -1
_HEADER = struct.Struct(">qiibIhiqqqhii")
_PADDING = bytes(64)


class Unpacked:
    """One batch with its records, and where each of them stands in the bytes.

    Raises:
        CorruptData: its content is malformed.
    """

    def __init__(self, batch: RecordBatch) -> None:
        self.batch = batch
        payload: bytes | memoryview = batch.data[HEADER_BYTES:]
        if batch.codec is not Compression.NONE and len(payload):
            payload = decompress(batch.codec, payload, size_bytes_max=UNCOMPRESSED_BYTES_MAX)
        self._payload = bytes(payload)
        plain = batch.attributes & ~_CODEC_BITS
        copy = _sealed(batch, self._payload, attributes=plain, record_count=batch.record_count)
        self.records: list[Record] = RecordBatch(copy).records()

    @property
    def delete_horizon_ms(self) -> int | None:
        """When its tombstones may go; None before a cleaning has met them."""
        return delete_horizon_ms(self.batch)

    def only(self, kept: Sequence[bool], *, horizon_ms: int | None) -> bytes:
        """The batch with the records that are `kept`, one at least; with a horizon if given."""
        batch = self.batch
        survivors = [record for record, keep in zip(self.records, kept, strict=True) if keep]
        attributes, base_ms = batch.attributes, batch.base_timestamp_ms
        if horizon_ms is not None:
            attributes, base_ms = attributes | DELETE_HORIZON, horizon_ms
        max_ms = batch.max_timestamp_ms
        if not batch.is_log_append_time:
            max_ms = max(record.timestamp_ms for record in survivors)
        if base_ms == batch.base_timestamp_ms:
            payload = self._copied(kept)
        else:
            payload = self._moved(kept, base_ms - batch.base_timestamp_ms)
        if batch.codec is not Compression.NONE:
            payload = compress(batch.codec, payload)
        return _sealed(
            batch,
            payload,
            attributes=attributes,
            base_ms=base_ms,
            max_ms=max_ms,
            record_count=len(survivors),
        )

    def _copied(self, kept: Sequence[bool]) -> bytes:
        data = self._payload + _PADDING
        parts: list[bytes] = []
        position = 0
        for keep in kept:
            size_bytes, body = read_varint(data, position)
            if keep:
                parts.append(data[position : body + size_bytes])
            position = body + size_bytes
        return b"".join(parts)

    def _moved(self, kept: Sequence[bool], by_ms: int) -> bytes:
        """The records with their times told relative to a base that is later by so much."""
        data = self._payload + _PADDING
        out = bytearray()
        position = 0
        for keep in kept:
            size_bytes, body = read_varint(data, position)
            position = body + size_bytes
            if keep:
                delta_ms, rest = read_varlong(data, body + 1)
                moved = bytearray(data[body : body + 1])
                append_varint(moved, delta_ms - by_ms)
                moved += data[rest:position]
                append_varint(out, len(moved))
                out += moved
        return bytes(out)


def delete_horizon_ms(batch: RecordBatch) -> int | None:
    """When the tombstones of a batch may go; None before a cleaning has met them."""
    return batch.base_timestamp_ms if batch.attributes & DELETE_HORIZON else None


def emptied(batch: RecordBatch) -> bytes:
    """The batch without its records: it tells the offsets, and the producer's sequence."""
    attributes = batch.attributes & ~(_CODEC_BITS | DELETE_HORIZON)
    return _sealed(batch, b"", attributes=attributes, base_ms=_NO_TIME_MS)


def filler(first_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """A batch without records that spans these offsets.

    Raises:
        CorruptData: they are more than a batch can span.
    """
    delta = last_offset - first_offset
    if not 0 <= delta < 2**31:
        raise CorruptData(f"no batch spans the offsets {first_offset} to {last_offset}")
    times = (_NO_TIME_MS, _NO_TIME_MS)
    return _packed(first_offset, leader_epoch, (0, delta, *times, *_NO_PRODUCER, 0), b"")


def _sealed(
    batch: RecordBatch,
    payload: bytes,
    *,
    attributes: int,
    base_ms: int | None = None,
    max_ms: int | None = None,
    record_count: int = 0,
) -> bytes:
    fields = (
        attributes,
        batch.last_offset_delta,
        batch.base_timestamp_ms if base_ms is None else base_ms,
        batch.max_timestamp_ms if max_ms is None else max_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        record_count,
    )
    return _packed(batch.base_offset, batch.leader_epoch, fields, payload)


def _packed(base_offset: int, leader_epoch: int, fields: tuple[int, ...], payload: bytes) -> bytes:
    out = bytearray(HEADER_BYTES) + payload
    prefix = (base_offset, len(out) - _LENGTH_FROM, leader_epoch, _MAGIC)
    _HEADER.pack_into(out, 0, *prefix, 0, *fields)
    _HEADER.pack_into(out, 0, *prefix, crc32c(memoryview(out)[_CRC_FROM:]), *fields)
    return bytes(out)
