"""BatchBuilder: encodes records as one batch of Kafka's format v2 (KIP-98).

`BatchBuilder` takes records one at a time, or as columns, which is several times as fast: it first
computes the size, then writes by position. `encode_batch` and `encode_columns` encode a whole batch
in one call.

The rule of the file: it may be compiled, and then integers wrap and indexes are not checked. So
every integer is checked before it is used, equally in both builds. Not done here: the offset and
leader epoch of a batch in a log, and decoding (`batch`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from streamlog.errors import MessageTooLarge, UsageError
from streamlog.records import buffer_writes, copying
from streamlog.records.arrow_rows import ArrowRows, BinaryArray
from streamlog.records.compression import Compression, compress
from streamlog.records.record_columns import FieldColumns
from streamlog.records.varint import append_varint, varint_size

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "HEADER_BYTES",
    "RECORDS_MAX",
    "TIMESTAMP_MS_MAX",
    "BatchBuilder",
    "encode_batch",
    "encode_columns",
]

HEADER_BYTES = 61
RECORDS_MAX = 1024 * 1024
"""The most records in one batch, written or read. Without a limit, a small compressed batch could
expand into any number of objects."""
TIMESTAMP_MS_MAX = 2**62 - 1
"""The latest timestamp that is written, and negated the earliest, so that no difference of two
timestamps overflows 64 bits."""

_TIMESTAMP_MS_MIN = -TIMESTAMP_MS_MAX
_COUNT_MAX = RECORDS_MAX  # C integers when compiled, like the other private ones
_STAMP_MAX = TIMESTAMP_MS_MAX
_MAGIC = 2
_PREFIX_BYTES = 12  # base offset and length: what the length does not count
_ATTRIBUTES_AT = 21  # where the bytes under the CRC begin
_BATCH_BYTES_MAX = 2**31 - 1
_FRAME_BYTES = 5  # of a record's length at most
_AHEAD = buffer_writes.AHEAD
_NULL_BYTE = 1  # -1 as a varint
_NO_HEADERS = b"\x00"
_NUMBERS_BYTES_MAX = 31  # of a record: three lengths, its number, attributes and time
_TRANSACTIONAL = 0x10
_HEADER = struct.Struct(">qiibIhiqqqhii")


class BatchBuilder:
    """Collects the records of one batch, which `build` compresses and seals.

    Producer id, epoch and base sequence are -1 unless the producer is idempotent.
    """

    __slots__ = (
        "_attributes",
        "_base_timestamp_ms",
        "_codec",
        "_max_timestamp_ms",
        "_out",
        "_producer",
        "record_count",
        "size_bytes",
    )

    def __init__(
        self,
        *,
        codec: Compression = Compression.NONE,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> None:
        self.identify(
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
        self._out = bytearray(HEADER_BYTES)
        self._base_timestamp_ms = 0
        self._max_timestamp_ms = 0
        self.record_count = 0
        self.size_bytes = HEADER_BYTES

    def identify(
        self,
        *,
        codec: Compression,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        transactional: bool,
    ) -> None:
        """Set the codec and the producer's fields of the header."""
        self._codec = codec
        self._attributes = int(codec) | (_TRANSACTIONAL if transactional else 0)
        self._producer = (producer_id, producer_epoch, base_sequence)

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int:
        """Add a record; return the uncompressed size of the batch in bytes.

        Raises:
            MessageTooLarge: the batch would exceed the limits of the format.
            UsageError: the timestamp is not an int or out of range, or a header's key is not text.
        """
        if not isinstance(timestamp_ms, int):
            raise UsageError(f"timestamp {timestamp_ms!r} is not a whole number of milliseconds")
        if timestamp_ms > TIMESTAMP_MS_MAX or timestamp_ms < _TIMESTAMP_MS_MIN:
            raise UsageError(f"timestamp {timestamp_ms} ms is out of range")
        stamp = timestamp_ms
        out = self._out
        count = self.record_count
        if len(out) != self.size_bytes:
            del out[self.size_bytes :]  # an append that failed left the start of a record
        # The base is the first record's timestamp, not the smallest, so deltas may be negative.
        delta = stamp - self._base_timestamp_ms if count else 0
        encoded = _encoded(headers) if headers else None
        body_bytes = varint_size(delta) + varint_size(count) + _field_size(key) + _field_size(value)
        body_bytes += 2 if encoded is None else len(encoded) + 1
        if count >= _COUNT_MAX or body_bytes > _BATCH_BYTES_MAX - len(out) - _FRAME_BYTES:
            raise MessageTooLarge(
                f"a batch of {count} records and {len(out)} bytes has no room for a record of"
                f" {body_bytes} bytes"
            )
        append_varint(out, body_bytes)
        out.append(0)
        append_varint(out, delta)
        append_varint(out, count)
        _append_field(out, key)
        _append_field(out, value)
        if encoded is None:
            out.append(0)
        else:
            out += encoded
        if count == 0:
            self._base_timestamp_ms = self._max_timestamp_ms = stamp
        elif stamp > self._max_timestamp_ms:
            self._max_timestamp_ms = stamp
        self.record_count = count + 1
        self.size_bytes = len(out)
        return self.size_bytes

    def extend(self, columns: FieldColumns) -> None:
        """Add all records of the columns, or none if one does not fit.

        Raises:
            MessageTooLarge, UsageError: as `append`.
            TypeError: a key or a value is not bytes.
        """
        self.extend_with(columns, 0, len(columns.keys))

    def extend_with(self, columns: FieldColumns, start: int, stop: int) -> None:
        """Add the records from `start` up to but not including `stop`; all of them, or none.

        Raises:
            MessageTooLarge, UsageError, TypeError: as `extend`.
            IndexError: the columns have fewer records.
        """
        timestamps, keys, values = columns.timestamps, columns.keys, columns.values
        if not 0 <= start <= stop <= min(len(timestamps), len(keys), len(values)):
            raise IndexError(f"records {start} to {stop} are not in columns of {len(keys)}")
        key_bytes = buffer_writes.plain_bytes(keys, start, stop)
        value_bytes = buffer_writes.plain_bytes(values, start, stop)
        # Rare: other kinds of buffers are copied to bytes first, which the C functions require.
        if key_bytes < 0 or value_bytes < 0:
            plain = columns.part(start, stop)
            plain.keys, plain.values = _all_bytes(plain.keys), _all_bytes(plain.values)
            self.extend_with(plain, 0, stop - start)
            return
        encoded = None if columns.headers is None else _all_encoded(columns.headers[start:stop])
        newest_ms = _newest_ms(timestamps, start, stop)
        count, size_bytes = self.record_count + stop - start, self.size_bytes
        room_bytes = key_bytes + value_bytes + _room_bytes(stop - start, encoded)
        if count > _COUNT_MAX or room_bytes > _BATCH_BYTES_MAX - size_bytes:
            raise MessageTooLarge(
                f"a batch of {self.record_count} records and {size_bytes} bytes has no room for"
                f" {stop - start} records of up to {room_bytes} bytes"
            )
        if start == stop:
            return
        if self.record_count == 0:
            self._base_timestamp_ms = self._max_timestamp_ms = timestamps[start]
        self._max_timestamp_ms = max(self._max_timestamp_ms, newest_ms)
        if len(self._out) < size_bytes + room_bytes:
            # A bytearray grows by an eighth by itself, and is copied each time if the memory behind
            # it is in use.
            buffer_writes.resize(self._out, max(size_bytes + room_bytes, 2 * size_bytes))
        self.size_bytes = self._put(columns, encoded, start, stop)
        self.record_count = count

    def _put(
        self, columns: FieldColumns, encoded: list[bytes] | None, start: int, stop: int
    ) -> int:
        """Write records into the room that was made for them; return the position behind them."""
        data = self._out
        timestamps, keys, values = columns.timestamps, columns.keys, columns.values
        position, first = self.size_bytes, self.record_count - start
        base_ms = self._base_timestamp_ms
        for at in range(start, stop):
            if (at - start) % _AHEAD == 0:
                buffer_writes.bring_near(keys, at)
                buffer_writes.bring_near(values, at)
            stamp = timestamps[at]
            delta = stamp - base_ms
            key, value = keys[at], values[at]
            headers = _NO_HEADERS if encoded is None else encoded[at - start]
            body_bytes = (
                1 + buffer_writes.varint_bytes(delta) + buffer_writes.varint_bytes(first + at)
            )
            body_bytes += (
                buffer_writes.field_bytes(key) + buffer_writes.field_bytes(value) + len(headers)
            )
            position = buffer_writes.put_varint(data, position, body_bytes)
            data[position] = 0
            position = buffer_writes.put_varint(data, position + 1, delta)
            position = buffer_writes.put_varint(data, position, first + at)
            position = buffer_writes.put_field(data, position, key)
            position = buffer_writes.put_field(data, position, value)
            position = buffer_writes.put_bytes(data, position, headers)
        return position

    def take(self, rows: ArrowRows, first: int, end: int, bytes_max: int) -> int:
        """Add rows from `first` up to but not including `end`, in the order of `ArrowRows.arrange`.

        Stops before the row with which the batch would exceed `bytes_max`, but an empty batch takes
        at least one row.

        Returns:
            The index of the first row that was not added.

        Raises:
            MessageTooLarge, UsageError: as `append`; the rows before the bad one are in the batch.
            ValueError: there are fewer rows.
        """
        if not 0 <= first <= end <= rows.count:
            raise ValueError(f"rows {first} to {end} are not in {rows.count} rows")
        # Often all records share one headers object, which is encoded once.
        own: object = None
        encoded = _NO_HEADERS
        for at in range(first, end):
            row = rows.row(at)
            stamp = rows.time_ms(row)
            if stamp > _STAMP_MAX or stamp < -_STAMP_MAX:
                raise UsageError(f"timestamp {stamp} ms is out of range")
            if rows.headers is not None and rows.headers[row] is not own:
                own = rows.headers[row]
                encoded = bytes(_encoded(own))
            key_bytes = -1 if rows.keys is None else rows.keys.size(row)
            value_bytes = rows.values.size(row)
            room_bytes = _NUMBERS_BYTES_MAX + len(encoded) + max(key_bytes, 0) + max(value_bytes, 0)
            # `room_bytes` is an upper bound, so a batch may end a few bytes before `bytes_max`.
            if self.record_count and room_bytes > bytes_max - self.size_bytes:
                return at
            if self.record_count >= _COUNT_MAX or room_bytes > _BATCH_BYTES_MAX - self.size_bytes:
                raise MessageTooLarge(
                    f"a batch of {self.record_count} records and {self.size_bytes} bytes has no"
                    f" room for a record of up to {room_bytes} bytes"
                )
            if len(self._out) < self.size_bytes + room_bytes:
                buffer_writes.resize(self._out, max(self.size_bytes + room_bytes, bytes_max))
            if self.record_count == 0:
                self._base_timestamp_ms = self._max_timestamp_ms = stamp
            self._max_timestamp_ms = max(self._max_timestamp_ms, stamp)
            self.size_bytes = self._put_row(rows, row, stamp, encoded)
            self.record_count += 1
        return end

    def _put_row(self, rows: ArrowRows, row: int, stamp: int, headers: bytes) -> int:
        """Write one row into the room that was made for it; return the position behind it."""
        data, number = self._out, self.record_count
        delta = stamp - self._base_timestamp_ms
        key_bytes = -1 if rows.keys is None else rows.keys.size(row)
        value_bytes = rows.values.size(row)
        body_bytes = 1 + buffer_writes.varint_bytes(delta) + buffer_writes.varint_bytes(number)
        body_bytes += buffer_writes.varint_bytes(key_bytes) + max(key_bytes, 0)
        body_bytes += buffer_writes.varint_bytes(value_bytes) + max(value_bytes, 0) + len(headers)
        position = buffer_writes.put_varint(data, self.size_bytes, body_bytes)
        data[position] = 0
        position = buffer_writes.put_varint(data, position + 1, delta)
        position = buffer_writes.put_varint(data, position, number)
        position = _put_entry(data, position, rows.keys, row)
        position = _put_entry(data, position, rows.values, row)
        return buffer_writes.put_bytes(data, position, headers)

    def build(self) -> bytes:
        """Return the batch as bytes, with base offset 0 and leader epoch -1.

        Raises:
            UsageError: the batch has no records.
        """
        if self.record_count == 0:
            raise UsageError("a batch needs a record")
        out = self._out
        del out[self.size_bytes :]
        if self._codec is not Compression.NONE:
            payload = compress(self._codec, memoryview(out)[HEADER_BYTES:])
            out = bytearray(HEADER_BYTES) + payload
        header = (
            self._attributes,
            self.record_count - 1,
            self._base_timestamp_ms,
            self._max_timestamp_ms,
            *self._producer,
            self.record_count,
        )
        # Twice: the CRC covers the fields behind it, so they must be written before it is computed.
        prefix = (0, len(out) - _PREFIX_BYTES, -1, _MAGIC)
        _HEADER.pack_into(out, 0, *prefix, 0, *header)
        _HEADER.pack_into(out, 0, *prefix, crc32c(memoryview(out)[_ATTRIBUTES_AT:]), *header)
        return bytes(out)


def _put_entry(data: bytearray, position: int, entries: BinaryArray | None, row: int) -> int:
    size_bytes = -1 if entries is None else entries.size(row)
    position = buffer_writes.put_varint(data, position, size_bytes)
    if entries is None or size_bytes <= 0:
        return position
    copying.put(data, position, entries._data, entries.start(row), size_bytes)  # noqa: SLF001 - the same room
    return position + size_bytes


def _field_size(content: bytes | None) -> int:
    return 1 if content is None else varint_size(len(content)) + len(content)


def _append_field(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out.append(_NULL_BYTE)
    else:
        append_varint(out, len(content))
        out += content


def _all_bytes(contents: list[bytes | None]) -> list[bytes | None]:
    """Return the contents, with other kinds of buffers converted to bytes."""
    return [each if each is None else b"".join((each,)) for each in contents]


def _all_encoded(headers: list[Sequence[tuple[str, bytes | None]]]) -> list[bytes]:
    encoded: list[bytes] = []
    # Often all records share one headers object, which is encoded once.
    own: object = None
    own_bytes = _NO_HEADERS
    for each in headers:
        if each is not own:
            own = each
            own_bytes = bytes(_encoded(each))
        encoded.append(own_bytes)
    return encoded


def _newest_ms(timestamps: list[int], start: int, stop: int) -> int:
    newest_ms = _TIMESTAMP_MS_MIN
    timestamp_ms: object = None
    try:
        for at in range(start, stop):
            timestamp_ms = timestamps[at]
            if not isinstance(timestamp_ms, int):
                raise UsageError(
                    f"timestamp {timestamp_ms!r} is not a whole number of milliseconds"
                )
            stamp = timestamp_ms
            if stamp > TIMESTAMP_MS_MAX or stamp < _TIMESTAMP_MS_MIN:
                raise UsageError(f"timestamp {timestamp_ms} ms is out of range")
            newest_ms = max(newest_ms, stamp)
    except OverflowError:
        raise UsageError(f"timestamp {timestamp_ms} ms is out of range") from None
    return newest_ms


def _room_bytes(count: int, encoded: list[bytes] | None) -> int:
    """Return the most bytes that records need beyond keys and values, with longest varints."""
    room_bytes = count * (_NUMBERS_BYTES_MAX + 1)
    for headers in encoded or ():
        room_bytes += len(headers)
    return room_bytes


def _encoded(headers: Sequence[tuple[str, bytes | None]]) -> bytearray:
    out = bytearray()
    append_varint(out, len(headers))
    for key, value in headers:
        try:
            name = key.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise UsageError(f"a header's key {key!r} can't be written as UTF-8") from error
        _append_field(out, name)
        _append_field(out, value)
    return out


def encode_batch(
    records: Sequence[tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]],
    *,
    codec: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Encode `records`, each (timestamp_ms, key, value, headers), as one batch.

    Raises:
        MessageTooLarge: the records do not fit into one batch.
        UsageError: a timestamp is out of range or a header's key is not a string.
    """
    builder = BatchBuilder(
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    _append_all(builder, records)
    return builder.build()


def _append_all(
    builder: BatchBuilder,
    records: Sequence[tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]],
) -> None:
    for timestamp_ms, key, value, headers in records:
        builder.append(timestamp_ms, key, value, headers)


def encode_columns(
    columns: FieldColumns,
    *,
    codec: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Encode the records of `columns` as one batch, which is faster than `encode_batch`.

    Raises:
        MessageTooLarge: the records do not fit into one batch.
        UsageError: a timestamp is out of range or a header's key is not a string.
        TypeError: a key or a value is not bytes.
    """
    builder = BatchBuilder(
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    builder.extend(columns)
    return builder.build()
