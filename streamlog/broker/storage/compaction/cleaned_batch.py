"""Batches as a cleaning writes them: fewer records, the same offsets (KIP-534).

A batch that loses records keeps its offsets, its sequence numbers and its codec; the bytes of the
remaining records are copied, not encoded again. The first cleaning that finds a tombstone writes
the time until which it stays: it goes into the batch's base timestamp, and bit 6 of the attributes
says so. The records' timestamps are relative to the base; they are adjusted, so that their times do
not change.

Rules of this module: no offset is left out. Where Kafka leaves a gap between batches, this log has
a batch without records that spans it. Such a batch is valid for every client, and a scan can treat
each gap as damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from crc32c import crc32c

from streamlog.errors import CorruptData
from streamlog.records.batch import (
    HEADER_BYTES,
    RECORDS_MAX,
    UNCOMPRESSED_BYTES_MAX,
    LogRecord,
    RecordBatch,
)
from streamlog.records.compression import Compression, compress, decompress
from streamlog.records.varint import append_varint, read_varint, read_varlong

DELETE_HORIZON = 0x40
"""Attribute: the base timestamp is the delete horizon of the batch (KIP-534)."""

SLICE_RECORDS = 250
SLICE_BYTES = 256 * 1024
"""Bytes per decoding step, which takes about half a millisecond."""

_CODEC_BITS = 0x07
_TRANSACTIONAL = 0x10
_CRC_FROM = 21
_LENGTH_FROM = 12
_MAGIC = 2
_NO_PRODUCER = (-1, -1, -1)
_NO_TIME_MS = -1
_HEADER = struct.Struct(">qiibIhiqqqhii")
_NUMBER_BYTES = 5
_PADDING = bytes(64)


class UnpackedBatch:
    """The records of one batch, decoded in slices; `payload` is the result of `decompress_payload`.

    First iterate over `slices`; then `copy_kept` or `shift_kept`, by slice if needed, return the
    bytes of the records that stay, and `seal` makes a batch of them.
    """

    def __init__(self, batch: RecordBatch, payload: bytes) -> None:
        self.batch = batch
        self._size_bytes = len(payload)
        self._data = payload + _PADDING
        self._ends = [0]
        """The ends of records, relative to the payload's beginning."""

    def slices(self) -> Iterator[list[LogRecord]]:
        """Iterate over the records in order, some hundred at a time.

        Raises:
            CorruptData: the records are malformed.
        """
        left = self.batch.record_count
        if not 0 <= left <= min(RECORDS_MAX, self._size_bytes):
            raise CorruptData(f"the {self._label} claims {left} records")
        previous = self.batch.base_offset - 1
        while left:
            records = self._decode(left)
            left -= len(records)
            if records[0].offset <= previous:
                raise CorruptData(f"records are out of order in the {self._label}")
            previous = records[-1].offset
            yield records
        if self._ends[-1] != self._size_bytes:
            raise CorruptData(f"bytes follow the last record of the {self._label}")

    def copy_kept(self, kept: Sequence[bool], numbers: range) -> list[memoryview]:
        """Return the bytes of the kept records among these numbers, unchanged."""
        view, ends = memoryview(self._data), self._ends
        parts: list[memoryview] = []
        begin: int | None = None
        for number in numbers:
            # Neighbours are copied as one piece: `begin` is the first of the current run.
            if kept[number]:
                begin = ends[number] if begin is None else begin
            elif begin is not None:
                parts.append(view[begin : ends[number]])
                begin = None
        if begin is not None:
            parts.append(view[begin : ends[numbers.stop]])
        return parts

    def shift_kept(self, kept: Sequence[bool], numbers: range, *, by_ms: int) -> bytes:
        """Return the bytes of the kept records, relative to a base timestamp `by_ms` later."""
        data, ends = self._data, self._ends
        out = bytearray()
        for number in numbers:
            if kept[number]:
                # A record is its length, one byte of attributes, the timestamp delta, and the rest.
                # Another delta may have another number of bytes, and so may the length.
                _, body = read_varint(data, ends[number])
                delta_ms, rest = read_varlong(data, body + 1)
                moved = bytearray(data[body : body + 1])
                append_varint(moved, delta_ms - by_ms)
                moved += data[rest : ends[number + 1]]
                append_varint(out, len(moved))
                out += moved
        return bytes(out)

    def seal(
        self,
        parts: Iterable[bytes | memoryview],
        *,
        horizon_ms: int | None,
        max_ms: int,
        record_count: int,
    ) -> bytes:
        """Return the batch with these bytes as its records; `max_ms` is their maximum timestamp."""
        batch = self.batch
        attributes, base_ms = batch.attributes, batch.base_timestamp_ms
        if horizon_ms is not None:
            attributes, base_ms = attributes | DELETE_HORIZON, horizon_ms
        payload = b"".join(parts)
        if batch.codec is not Compression.NONE:
            payload = compress(batch.codec, payload)
        return _seal(
            batch,
            payload,
            attributes=attributes,
            base_ms=base_ms,
            max_ms=batch.max_timestamp_ms if batch.is_log_append_time else max_ms,
            record_count=record_count,
        )

    def _decode(self, left: int) -> list[LogRecord]:
        data, ends = self._data, self._ends
        begin = position = ends[-1]
        count = 0
        while count < min(left, SLICE_RECORDS) and position - begin < SLICE_BYTES:
            size_bytes, body = read_varint(data, position)
            position = body + size_bytes
            if size_bytes < 0 or position > self._size_bytes:
                raise CorruptData(f"a record claims {size_bytes} bytes in the {self._label}")
            ends.append(position)
            count += 1
        # The usual decoder takes batches: the slice becomes an uncompressed batch of its own.
        plain = self.batch.attributes & ~_CODEC_BITS
        part = _seal(self.batch, data[begin:position], attributes=plain, record_count=count)
        records: list[LogRecord] = RecordBatch(part).records()
        return records

    @property
    def _label(self) -> str:
        return f"batch at offset {self.batch.base_offset}"


def decompress_payload(batch: RecordBatch) -> bytes:
    """Return the bytes of a batch's records.

    Raises:
        CorruptData: they can't be decompressed, or are too many.
    """
    payload = batch.data[HEADER_BYTES:]
    if batch.codec is Compression.NONE or not len(payload):
        return bytes(payload)
    return bytes(decompress(batch.codec, payload, size_bytes_max=UNCOMPRESSED_BYTES_MAX))


def with_horizon(batch: RecordBatch, horizon_ms: int) -> bytes:
    """Return a small batch with all its records and a delete horizon.

    Raises:
        CorruptData: its content is malformed.
    """
    unpacked = UnpackedBatch(batch, decompress_payload(batch))
    records = [record for records in unpacked.slices() for record in records]
    by_ms = horizon_ms - batch.base_timestamp_ms
    moved = unpacked.shift_kept([True] * len(records), range(len(records)), by_ms=by_ms)
    max_ms = max(record.timestamp_ms for record in records)
    return unpacked.seal([moved], horizon_ms=horizon_ms, max_ms=max_ms, record_count=len(records))


def delete_horizon_ms(batch: RecordBatch) -> int | None:
    """Return the time at which tombstones of a batch may be removed; None before a cleaning."""
    return batch.base_timestamp_ms if batch.attributes & DELETE_HORIZON else None


def without_records(batch: RecordBatch) -> bytes:
    """Return the batch without records: it keeps offsets, and the producer's sequence or epoch.

    A data batch loses its transactional bit, because its marker may be removed, and a reader must
    not wait for one.
    """
    # Without records there is nothing to decompress, and nothing that could expire.
    attributes = batch.attributes & ~(_CODEC_BITS | DELETE_HORIZON)
    if not batch.is_control:
        attributes &= ~_TRANSACTIONAL
    return _seal(batch, b"", attributes=attributes, base_ms=_NO_TIME_MS)


def filler(first_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """Return a batch without records that spans these offsets.

    Raises:
        CorruptData: one batch can't span so many offsets.
    """
    delta = last_offset - first_offset
    if not 0 <= delta < 2**31:
        raise CorruptData(f"no batch spans the offsets {first_offset} to {last_offset}")
    times = (_NO_TIME_MS, _NO_TIME_MS)
    return _pack(first_offset, leader_epoch, (0, delta, *times, *_NO_PRODUCER, 0), b"")


def _seal(
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
    return _pack(batch.base_offset, batch.leader_epoch, fields, payload)


def _pack(base_offset: int, leader_epoch: int, fields: tuple[int, ...], payload: bytes) -> bytes:
    out = bytearray(HEADER_BYTES) + payload
    prefix = (base_offset, len(out) - _LENGTH_FROM, leader_epoch, _MAGIC)
    _HEADER.pack_into(out, 0, *prefix, 0, *fields)
    # Packed twice, because the CRC covers the fields after it in the header, and the records.
    _HEADER.pack_into(out, 0, *prefix, crc32c(memoryview(out)[_CRC_FROM:]), *fields)
    return bytes(out)
