"""Record batches: the 61-byte header of Kafka's format v2 and the records behind it (KIP-98).

`RecordBatch` is a view over one batch in someone's buffer: it reads the header and leaves the
records alone until asked, for a broker rarely is. `BatchBuilder` collects records one at a time,
`encode_batch` many at once; `place_batch` is what a log does to a batch it takes in, and the CRC
stays valid, since it covers only what follows the leader epoch.

The rule of the file: it may be compiled, where integers wrap and an index is not checked. So every
integer is bounded before it is used, the same for both builds, and bytes that lie end in
`CorruptData`. What a control batch's records mean is not decided here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from streamlog.errors import CorruptData, MessageTooLarge, UsageError
from streamlog.records import header as layout
from streamlog.records import record as rows
from streamlog.records.compression import Compression, compress, decompress
from streamlog.records.record import Record
from streamlog.records.varint import (
    append_varint,
    read_varint,
    read_varlong,
    varint_size,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "BatchBuilder",
    "Record",
    "RecordBatch",
    "count_offsets",
    "encode_batch",
    "newest_timestamp_ms",
    "place_batch",
    "split_batches",
]

HEADER_BYTES = 61
UNCOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""The most that the records of one batch may take when decompressed."""
RECORDS_MAX = 1024 * 1024
"""The most records in one batch, written or read: small compressed ones are a bomb of objects."""
TIMESTAMP_MS_MAX = 2**62 - 1
"""The latest timestamp written (and, negated, the earliest): no difference of two overflows."""

_TIMESTAMP_MS_MIN = -TIMESTAMP_MS_MAX
_COUNT_MAX = RECORDS_MAX  # a C integer when compiled, like the other private ones
_MAGIC = 2
_PREFIX_BYTES = 12  # base offset and length: what the length does not count
_MAGIC_AT = 16
_ATTRIBUTES_AT = 21  # where the bytes under the CRC begin
_RECORD_BYTES_MIN = 7
_HEADER_BYTES_MIN = 2  # of a record's header
_BATCH_BYTES_MAX = 2**31 - 1
_FRAME_BYTES = 5  # of a record's length at most
_NULL = -1
_NULL_BYTE = 1  # -1 as a varint
_INT64_MAX = 2**63 - 1
_OFFSET_MAX = 2**62  # so that no offset in a batch overflows
_INT64_MIN = -_INT64_MAX - 1
_CODEC_BITS = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_PADDING = bytes(64)  # more than three numbers of ten bytes
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults


class RecordBatch:
    """A view over one batch that begins at `position` of `buffer`; nothing is copied.

    Raises:
        CorruptData: the buffer ends before the batch does, or the batch is not of format v2.
    """

    __slots__ = (
        "_position",
        "_view",
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp_ms",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "max_timestamp_ms",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    def __init__(self, buffer: bytes | bytearray | memoryview, position: int = 0) -> None:
        view = memoryview(buffer)
        room_bytes = len(view) - position
        if position < 0 or room_bytes < HEADER_BYTES:
            raise CorruptData(f"no room for a batch header at byte {position} of {len(view)}")
        (
            self.base_offset,
            length,
            self.leader_epoch,
            magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = layout.read_header(view, position)
        _check_format(magic, length, position)
        if length > room_bytes - _PREFIX_BYTES:
            raise CorruptData(
                f"the batch at byte {position} claims {length + _PREFIX_BYTES} bytes;"
                f" {room_bytes} are left"
            )
        if self.base_offset < -_OFFSET_MAX or self.base_offset > _OFFSET_MAX:
            raise CorruptData(f"the batch at byte {position} claims offset {self.base_offset}")
        self.size_bytes = length + _PREFIX_BYTES
        self._view = view
        self._position = position

    @property
    def last_offset(self) -> int:
        """The offset of the last record written into the batch, even if compacted away."""
        last_offset: int = self.base_offset + self.last_offset_delta
        return last_offset

    @property
    def next_offset(self) -> int:
        """The offset that follows the batch."""
        return self.last_offset + 1

    @property
    def codec(self) -> Compression:
        """How the records are compressed.

        Raises:
            CorruptData: the attributes name a codec that does not exist.
        """
        number = self.attributes & _CODEC_BITS
        if number > Compression.ZSTD:
            raise CorruptData(f"the batch at offset {self.base_offset} has unknown codec {number}")
        return Compression(number)

    @property
    def is_control(self) -> bool:
        """Whether it holds control records (transaction markers), not the user's."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have the time at which the log took the batch in."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def data(self) -> memoryview:
        """The whole batch, as it lies in the buffer."""
        return self._view[self._position : self._position + self.size_bytes]

    def check_crc(self) -> None:
        """Compare the checksum in the header with the bytes behind it.

        Raises:
            CorruptData: they differ.
        """
        begin = self._position + _ATTRIBUTES_AT
        actual = crc32c(self._view[begin : self._position + self.size_bytes])
        if actual != self.crc:
            raise CorruptData(
                f"the batch at offset {self.base_offset} has CRC {actual:#010x},"
                f" its header says {self.crc:#010x}"
            )

    def records(self) -> list[Record]:
        """Decompress and decode the records, in order of offset.

        Raises:
            CorruptData: they are malformed, too many or too large; see `UNCOMPRESSED_BYTES_MAX`.
        """
        payload: bytes | memoryview = self.data[HEADER_BYTES:]
        if self.record_count == 0 and not payload:
            return []  # compaction keeps such a batch for its producer's sequence numbers
        if self.attributes & _CODEC_BITS:
            payload = decompress(self.codec, payload, size_bytes_max=UNCOMPRESSED_BYTES_MAX)
        size_bytes = len(payload)
        if not 0 <= self.record_count <= min(RECORDS_MAX, size_bytes // _RECORD_BYTES_MIN):
            raise CorruptData(
                f"the batch at offset {self.base_offset} claims {self.record_count} records"
                f" in {size_bytes} bytes"
            )
        return _decode(self, b"".join((payload, _PADDING)), size_bytes)


def split_batches(buffer: bytes | bytearray | memoryview) -> Iterator[RecordBatch]:
    """The whole batches in `buffer`, in order; a partial one at its end is legal and left out.

    Raises:
        CorruptData: what should be a batch is not one.
    """
    view = memoryview(buffer)
    end = len(view)
    position = 0
    while end - position > _MAGIC_AT:
        (length,) = _INT32.unpack_from(view, position + _BASE_OFFSET.size)
        _check_format(view[position + _MAGIC_AT], length, position)
        if length > end - position - _PREFIX_BYTES:
            return
        batch = RecordBatch(view, position)
        position += batch.size_bytes
        yield batch


def count_offsets(batches: Iterable[RecordBatch]) -> int:
    """How many offsets the batches take, which may be more than they have records."""
    offsets = 0
    for batch in batches:
        offsets += batch.last_offset_delta
        offsets += 1
    return offsets


def newest_timestamp_ms(batches: Iterable[RecordBatch]) -> int:
    """The greatest of the timestamps in the headers."""
    newest_ms = _INT64_MIN
    for batch in batches:
        newest_ms = max(newest_ms, batch.max_timestamp_ms)
    return newest_ms


def _check_format(magic: int, length: int, position: int) -> None:
    if magic != _MAGIC:
        raise CorruptData(f"the batch at byte {position} has format v{magic}; only v2 is read")
    if length < HEADER_BYTES - _PREFIX_BYTES:
        raise CorruptData(f"the batch at byte {position} claims a length of {length} bytes")


def _decode(batch: RecordBatch, data: bytes, end: int) -> list[Record]:
    """Decode the records in `data[:end]`; the header's integers are bounded already.

    What follows `end` is padding: up to three numbers are read without a look at the end, and
    the check of the next size finds that they went too far.
    """
    append_time = batch.is_log_append_time
    timestamp_ms = batch.max_timestamp_ms
    base_ms = batch.base_timestamp_ms
    delta_min = _INT64_MIN - base_ms if base_ms < 0 else _INT64_MIN
    delta_max = _INT64_MAX - base_ms if base_ms > 0 else _INT64_MAX
    records: list[Record] = []
    position, previous = 0, -1
    for _ in range(batch.record_count):
        size, position = read_varint(data, position)
        if size < _RECORD_BYTES_MIN - 1 or size > end - position:
            raise CorruptData(_outside("a record", size, end - position))
        record_end = position + size
        delta, position = read_varlong(data, position + 1)
        if delta < delta_min or delta > delta_max:
            raise CorruptData(f"a record's timestamp delta {delta} overflows")
        if not append_time:
            timestamp_ms = base_ms + delta
        offset_delta, position = read_varint(data, position)
        if offset_delta <= previous or offset_delta > batch.last_offset_delta:
            raise CorruptData(f"a record's offset delta {offset_delta} follows {previous}")
        previous = offset_delta
        size, position = read_varint(data, position)
        if size < _NULL or size > record_end - position:
            raise CorruptData(_outside("a key", size, record_end - position))
        key = data[position : position + size] if size >= 0 else None
        position += size if size != _NULL else 0
        size, position = read_varint(data, position)
        if size < _NULL or size > record_end - position:
            raise CorruptData(_outside("a value", size, record_end - position))
        value = data[position : position + size] if size >= 0 else None
        position += size if size != _NULL else 0
        offset = batch.base_offset + offset_delta
        if data[position] == 0 and position == record_end - 1:
            records.append(rows.new_record(Record, offset, timestamp_ms, key, value))
        else:
            headers = _read_headers(data, position, record_end)
            records.append(_new_tuple(Record, (offset, timestamp_ms, key, value, headers)))
        position = record_end
    if position != end:
        raise CorruptData(f"{end - position} bytes follow the last record of a batch")
    return records


def _read_headers(data: bytes, position: int, end: int) -> tuple[tuple[str, bytes | None], ...]:
    """Read the headers, which reach exactly to `end`."""
    count, position = read_varint(data, position)
    if count < 0 or count > (end - position) // _HEADER_BYTES_MIN:
        raise CorruptData(f"a record claims {count} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0 or size > end - position:
            raise CorruptData(_outside("a header's key", size, end - position))
        key = data[position : position + size]
        position += size
        size, position = read_varint(data, position)
        if size < _NULL or size > end - position:
            raise CorruptData(_outside("a header's value", size, end - position))
        value = data[position : position + size] if size >= 0 else None
        position += size if size != _NULL else 0
        headers.append((_decoded(key), value))
    if position != end:
        raise CorruptData(f"a record ends {end - position} bytes before its length")
    return tuple(headers)


def _outside(what: str, size: int, room: int) -> str:
    return f"{what} claims {size} bytes; {room} are left"


def _decoded(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"a header's key is not UTF-8: {error}") from error


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
        self._codec = codec
        self._attributes = int(codec) | (_TRANSACTIONAL if transactional else 0)
        self._producer = (producer_id, producer_epoch, base_sequence)
        self._out = bytearray(HEADER_BYTES)
        self._base_timestamp_ms = 0
        self._max_timestamp_ms = 0
        self.record_count = 0
        self.size_bytes = HEADER_BYTES

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int:
        """Add a record; return the size of the batch so far in bytes, not compressed.

        Raises:
            MessageTooLarge: the batch would be larger than the format allows.
            UsageError: the timestamp is no int or out of range, or a header's key is no string.
        """
        if not isinstance(timestamp_ms, int):
            raise UsageError(f"timestamp {timestamp_ms!r} is not a whole number of milliseconds")
        if timestamp_ms > TIMESTAMP_MS_MAX or timestamp_ms < _TIMESTAMP_MS_MIN:
            raise UsageError(f"timestamp {timestamp_ms} ms is out of range")
        stamp = timestamp_ms
        out = self._out
        count = self.record_count
        if len(out) != self.size_bytes:
            del out[self.size_bytes :]  # what an append that failed half-way left behind
        delta = stamp - self._base_timestamp_ms if count else 0
        encoded = _encoded(headers) if headers else None
        body_bytes = varint_size(delta) + varint_size(count) + _field_size(key) + _field_size(value)
        body_bytes += 2 if encoded is None else len(encoded) + 1
        if count >= _COUNT_MAX or body_bytes > _BATCH_BYTES_MAX - len(out) - _FRAME_BYTES:
            raise MessageTooLarge(
                f"a batch of {count} records and {len(out)} bytes can't take a record of"
                f" {body_bytes} bytes more"
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

    def build(self) -> bytes:
        """The batch as bytes, with base offset 0 and leader epoch -1.

        Raises:
            UsageError: it has no records.
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
        prefix = (0, len(out) - _PREFIX_BYTES, -1, _MAGIC)
        _HEADER.pack_into(out, 0, *prefix, 0, *header)
        _HEADER.pack_into(out, 0, *prefix, crc32c(memoryview(out)[_ATTRIBUTES_AT:]), *header)
        return bytes(out)


def _field_size(content: bytes | None) -> int:
    return 1 if content is None else varint_size(len(content)) + len(content)


def _append_field(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out.append(_NULL_BYTE)
    else:
        append_varint(out, len(content))
        out += content


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
    """One batch of `records`: (timestamp_ms, key, value, headers) each.

    Raises:
        MessageTooLarge: they do not fit into one batch.
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


def place_batch(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in a log; its CRC does not cover the two and stays valid.

    Raises:
        CorruptData: there is no room for a batch header.
    """
    if len(batch) < HEADER_BYTES:
        raise CorruptData(f"{len(batch)} bytes hold no batch header")
    layout.write_place(batch, base_offset, leader_epoch)
