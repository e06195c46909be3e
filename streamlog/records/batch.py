"""RecordBatch: the 61-byte header of Kafka's format v2 and the records behind it (KIP-98).

`RecordBatch` is a view over one batch in a buffer. It reads the header, and decodes the records
only on demand, as `LogRecord`s or as columns: a broker rarely needs them. `set_offset_and_epoch`
sets the offset and leader epoch of a batch that a log appends; the CRC stays valid, because it
covers only what follows these fields. `builder` makes batches, and its names are exported here,
too.

The rule of the file: it may be compiled, and then integers wrap and indexes are not checked. So
every integer is checked before it is used, equally in both builds, and bytes with false lengths
raise `CorruptData`. Not done here: the meaning of control batches (`control_batches`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from streamlog.errors import CorruptData
from streamlog.records import header as layout
from streamlog.records import log_record as rows
from streamlog.records.builder import (
    HEADER_BYTES,
    RECORDS_MAX,
    TIMESTAMP_MS_MAX,
    BatchBuilder,
    encode_batch,
    encode_columns,
)
from streamlog.records.compression import Compression, decompress
from streamlog.records.log_record import LogRecord
from streamlog.records.record_columns import RecordColumns
from streamlog.records.varint import read_varint, read_varlong

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "HEADER_BYTES",
    "RECORDS_MAX",
    "TIMESTAMP_MS_MAX",
    "BatchBuilder",
    "LogRecord",
    "RecordBatch",
    "count_offsets",
    "encode_batch",
    "encode_columns",
    "newest_timestamp_ms",
    "set_offset_and_epoch",
    "split_batches",
]

UNCOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""The most that the records of one batch may take when decompressed."""

_MAGIC = 2
_PREFIX_BYTES = 12  # base offset and length: what the length does not count
_MAGIC_AT = 16
_ATTRIBUTES_AT = 21  # where the bytes under the CRC begin
_RECORD_BYTES_MIN = 7
_HEADER_BYTES_MIN = 2  # of a record's header
_NULL = -1
_INT64_MAX = 2**63 - 1
_OFFSET_MAX = 2**62  # so that no offset in a batch overflows
_INT64_MIN = -_INT64_MAX - 1
_CODEC_BITS = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_PADDING = bytes(64)  # more than three numbers of ten bytes
_PADDING_BYTES = len(_PADDING)
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
        """The offset of the last record, even if compaction has removed that record."""
        last_offset: int = self.base_offset + self.last_offset_delta
        return last_offset

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last one."""
        return self.last_offset + 1

    @property
    def codec(self) -> Compression:
        """The codec of the records.

        Raises:
            CorruptData: the attributes hold the number of an unknown codec.
        """
        number = self.attributes & _CODEC_BITS
        if number > Compression.ZSTD:
            raise CorruptData(f"the batch at offset {self.base_offset} has unknown codec {number}")
        return Compression(number)

    @property
    def is_compressed(self) -> bool:
        """Whether the batch has records, and they are compressed."""
        return bool(self.attributes & _CODEC_BITS) and self.record_count != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds control records, such as transaction markers."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have the time at which the log appended the batch."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def data(self) -> memoryview:
        """The bytes of the whole batch; a view, not a copy."""
        return self._view[self._position : self._position + self.size_bytes]

    def data_and(self, more_bytes: int) -> memoryview | None:
        """Return the batch and the next `more_bytes` of the buffer; None if it ends before that."""
        end = self._position + self.size_bytes + more_bytes
        return self._view[self._position : end] if end <= len(self._view) else None

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

    def records(self) -> list[LogRecord]:
        """Decompress and decode the records, in order of offset.

        Raises:
            CorruptData: they are malformed, too many or too large; see `UNCOMPRESSED_BYTES_MAX`.
        """
        records: list[LogRecord] = []
        self._read(records, None)
        return records

    def columns(self) -> RecordColumns:
        """Decompress and decode the records as columns, which costs less than `records`.

        Raises:
            CorruptData: as `records`.
        """
        columns = RecordColumns()
        self._read([], columns)
        return columns

    def first_from(self, offset: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after `offset`, if there is one.

        Creates no object per record.

        Raises:
            CorruptData: the records up to that one are malformed, or too large.
        """
        payload: bytes | memoryview = self.data[HEADER_BYTES:]
        if self.attributes & _CODEC_BITS:
            payload = decompress(self.codec, payload, size_bytes_max=UNCOMPRESSED_BYTES_MAX)
        return _seek(self, b"".join((payload, _PADDING)), len(payload), offset)

    def _read(self, records: list[LogRecord], columns: RecordColumns | None) -> None:
        payload: bytes | memoryview = self.data[HEADER_BYTES:]
        if self.record_count == 0 and not payload:
            return  # compaction keeps such a batch for its producer's sequence numbers
        if self.attributes & _CODEC_BITS:
            payload = decompress(self.codec, payload, size_bytes_max=UNCOMPRESSED_BYTES_MAX)
        size_bytes = len(payload)
        # Bounds the loop of `_decode`, and the memory of the objects that it creates.
        if not 0 <= self.record_count <= min(RECORDS_MAX, size_bytes // _RECORD_BYTES_MIN):
            raise CorruptData(
                f"the batch at offset {self.base_offset} claims {self.record_count} records"
                f" in {size_bytes} bytes"
            )
        begin, room_bytes = self._position + HEADER_BYTES, size_bytes + _PADDING_BYTES
        if not self.attributes & _CODEC_BITS and room_bytes <= len(self._view) - begin:
            # The decoder may read up to `_PADDING_BYTES` beyond the end. Any bytes serve as
            # padding, so the rest of the buffer does, and nothing is copied.
            data = layout.bytes_at(self._view, begin, room_bytes)
            _decode(self, data, size_bytes, records, columns)
        else:
            _decode(self, b"".join((payload, _PADDING)), size_bytes, records, columns)


def split_batches(buffer: bytes | bytearray | memoryview) -> Iterator[RecordBatch]:
    """Yield the whole batches in `buffer`, in order.

    A partial batch at the end is left out: a fetch that reaches its size limit cuts one off.

    Raises:
        CorruptData: a header is malformed.
    """
    view = memoryview(buffer)
    end = len(view)
    position = 0
    while end - position > _MAGIC_AT:
        (length,) = _INT32.unpack_from(view, position + _BASE_OFFSET.size)
        # Before the end is checked: bytes of another format must not pass as a partial batch.
        _check_format(view[position + _MAGIC_AT], length, position)
        if length > end - position - _PREFIX_BYTES:
            return
        batch = RecordBatch(view, position)
        position += batch.size_bytes
        yield batch


def count_offsets(batches: Iterable[RecordBatch]) -> int:
    """Return the number of offsets in the batches; compaction leaves fewer records than offsets."""
    offsets = 0
    for batch in batches:
        offsets += batch.last_offset_delta
        offsets += 1
    return offsets


def newest_timestamp_ms(batches: Iterable[RecordBatch]) -> int:
    """Return the greatest timestamp of the headers, in ms since 1970."""
    newest_ms = _INT64_MIN
    for batch in batches:
        newest_ms = max(newest_ms, batch.max_timestamp_ms)
    return newest_ms


def _check_format(magic: int, length: int, position: int) -> None:
    if magic != _MAGIC:
        raise CorruptData(f"the batch at byte {position} has format v{magic}; only v2 is read")
    if length < HEADER_BYTES - _PREFIX_BYTES:
        raise CorruptData(f"the batch at byte {position} claims a length of {length} bytes")


def _decode(
    batch: RecordBatch,
    data: bytes,
    end: int,
    records: list[LogRecord],
    columns: RecordColumns | None,
) -> None:
    """Decode the records in `data[:end]`, into `columns` if given, else into `records`.

    The header is already checked. `data` continues behind `end`: up to three numbers are read
    without a check of the end, and the check of the next size detects that they went beyond it.
    """
    # The deltas are relative to the base timestamp; these bounds keep base + delta in 64 bits. In
    # the compiled build the sum would wrap without an error.
    append_time = batch.is_log_append_time
    timestamp_ms = batch.max_timestamp_ms
    base_ms = batch.base_timestamp_ms
    delta_min = _INT64_MIN - base_ms if base_ms < 0 else _INT64_MIN
    delta_max = _INT64_MAX - base_ms if base_ms > 0 else _INT64_MAX
    position, previous, seen = 0, -1, _Headers()
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
        # Strictly increasing, as a log's readers rely on; gaps come from compaction.
        if offset_delta <= previous or offset_delta > batch.last_offset_delta:
            raise CorruptData(f"a record's offset delta {offset_delta} follows {previous}")
        previous = offset_delta
        size, position = read_varint(data, position)
        _check_size("a key", size, record_end - position)
        key = data[position : position + size] if size >= 0 else None
        position += size if size != _NULL else 0
        size, position = read_varint(data, position)
        _check_size("a value", size, record_end - position)
        value = data[position : position + size] if size >= 0 else None
        position += size if size != _NULL else 0
        offset = batch.base_offset + offset_delta
        bare = data[position] == 0 and position == record_end - 1
        headers = None if bare else seen.read(data, position, record_end)
        if columns is not None:
            columns.add(offset, timestamp_ms, key, value, headers)
        elif headers is None:
            records.append(rows.new_record(LogRecord, offset, timestamp_ms, key, value))
        else:
            records.append(_new_tuple(LogRecord, (offset, timestamp_ms, key, value, headers)))
        position = record_end
    if position != end:
        raise CorruptData(f"{end - position} bytes follow the last record of a batch")


def _seek(batch: RecordBatch, data: bytes, end: int, offset: int) -> tuple[int, int] | None:
    """Find the first record at or after `offset` in `data[:end]`; see `_decode`."""
    base_ms = batch.base_timestamp_ms
    delta_min = _INT64_MIN - base_ms if base_ms < 0 else _INT64_MIN
    delta_max = _INT64_MAX - base_ms if base_ms > 0 else _INT64_MAX
    position, previous = 0, -1
    # Each round consumes bytes or raises, so that a false count of records ends with the data.
    for _ in range(batch.record_count):
        size, position = read_varint(data, position)
        if size < _RECORD_BYTES_MIN - 1 or size > end - position:
            raise CorruptData(_outside("a record", size, end - position))
        record_end = position + size
        delta, position = read_varlong(data, position + 1)
        offset_delta, position = read_varint(data, position)
        if offset_delta <= previous or offset_delta > batch.last_offset_delta:
            raise CorruptData(f"a record's offset delta {offset_delta} follows {previous}")
        previous = offset_delta
        if batch.base_offset + offset_delta >= offset:
            if delta < delta_min or delta > delta_max:
                raise CorruptData(f"a record's timestamp delta {delta} overflows")
            timestamp_ms = batch.max_timestamp_ms if batch.is_log_append_time else base_ms + delta
            return batch.base_offset + offset_delta, timestamp_ms
        position = record_end
    return None


class _Headers:
    """Reads headers of consecutive records; equal bytes as before give the tuple from before."""

    __slots__ = ("_headers", "_written")

    def __init__(self) -> None:
        self._headers: tuple[tuple[str, bytes | None], ...] = ()
        self._written: bytes | None = None

    def read(self, data: bytes, position: int, end: int) -> tuple[tuple[str, bytes | None], ...]:
        """Return the headers, which must end exactly at `end`."""
        if position >= end:  # The position is in the next record, or behind all of them.
            raise CorruptData(f"a record claims headers in {end - position - 1} bytes")
        written = data[position:end]
        if written != self._written:
            self._headers = _read_headers(data, position, end)
            self._written = written
        return self._headers


def _read_headers(data: bytes, position: int, end: int) -> tuple[tuple[str, bytes | None], ...]:
    """Decode the headers, which must end exactly at `end`."""
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
        _check_size("a header's value", size, end - position)
        value = data[position : position + size] if size >= 0 else None
        position += size if size != _NULL else 0
        headers.append((_decoded(key), value))
    if position != end:
        raise CorruptData(f"a record ends {end - position} bytes before its length")
    return tuple(headers)


def _check_size(what: str, size: int, room: int) -> None:
    if size < _NULL or size > room:
        raise CorruptData(_outside(what, size, room))


def _outside(what: str, size: int, room: int) -> str:
    return f"{what} claims {size} bytes; {room} are left"


def _decoded(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"a header's key is not UTF-8: {error}") from error


def set_offset_and_epoch(
    batch: bytearray | memoryview, base_offset: int, leader_epoch: int
) -> None:
    """Set a batch's base offset and leader epoch; its CRC covers neither, and stays valid.

    Raises:
        CorruptData: there is no room for a batch header.
    """
    if len(batch) < HEADER_BYTES:
        raise CorruptData(f"{len(batch)} bytes hold no batch header")
    layout.write_offset_and_epoch(batch, base_offset, leader_epoch)
