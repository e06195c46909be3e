"""ArrowBuffers: records as the buffers of Arrow arrays, decoded straight from their batches.

No object is made for a record. Keys and values are copied from the batch into one buffer each, one
after the other, and their ends are stored: that is the layout of Arrow's binary arrays. A caller
that has Arrow can make arrays from the buffers without a copy; this module does not import Arrow.

The rule of the file: it may be compiled, and then indexes are not checked. So it first allocates
room for all that the header of a batch claims, and a record that claims more raises `CorruptData`,
as in `batch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from streamlog.errors import CorruptData
from streamlog.records import copying
from streamlog.records import header as layout
from streamlog.records.batch import UNCOMPRESSED_BYTES_MAX, RecordBatch
from streamlog.records.builder import HEADER_BYTES, RECORDS_MAX
from streamlog.records.compression import decompress
from streamlog.records.record_scan import RecordScan
from streamlog.records.varint import read_varint, read_varlong

if TYPE_CHECKING:
    from collections.abc import Callable

    Allocate: TypeAlias = Callable[[int], Any]
    """Returns writable memory of a size in bytes."""

__all__ = ["ArrowBuffers", "BatchPayload", "BinaryColumn"]

_RECORD_BYTES_MIN = 7
_NULL = -1
_OFFSET_BYTES_MAX = 2**31 - 1  # an Arrow binary array counts with 32 bits
_INT64_MAX = 2**63 - 1
_INT64_MIN = -_INT64_MAX - 1
_PADDING = bytes(64)  # more than three numbers of ten bytes
_PADDING_BYTES = len(_PADDING)


class BatchPayload:
    """The decompressed records of a batch; `size_bytes` is their size."""

    __slots__ = ("_data", "batch", "size_bytes")

    def __init__(self, batch: RecordBatch) -> None:
        """Decompress the records. Those of a batch without compression are not copied.

        Raises:
            CorruptData: they are too large, or fewer than the header claims.
        """
        data: bytes | memoryview = batch.data[HEADER_BYTES:]
        if batch.is_compressed:
            data = decompress(batch.codec, data, size_bytes_max=UNCOMPRESSED_BYTES_MAX)
        size_bytes = len(data)
        if not 0 <= batch.record_count <= min(RECORDS_MAX, size_bytes // _RECORD_BYTES_MIN):
            raise CorruptData(
                f"the batch at offset {batch.base_offset} claims {batch.record_count} records"
                f" in {size_bytes} bytes"
            )
        self.batch = batch
        self.size_bytes = size_bytes
        self._data = data

    def padded(self) -> tuple[bytes | memoryview, int]:
        """Return a buffer with `_PADDING_BYTES` behind the records, and their position in it."""
        # Any bytes serve as padding, so those behind the batch do, and nothing is copied.
        lies = None if self.batch.is_compressed else self.batch.data_and(_PADDING_BYTES)
        return (b"".join((self._data, _PADDING)), 0) if lies is None else (lies, HEADER_BYTES)

    def check(self) -> None:
        """Check every record, headers included.

        Raises:
            CorruptData: a record is malformed.
        """
        scan = RecordScan(self.batch)
        if self.batch.is_compressed:
            scan.read(bytes(self._data), self.batch.record_count)
        else:
            scan.read_plain(self.batch)


class BinaryColumn:
    """Keys or values, as the buffers of an Arrow binary array, all little-endian.

    `data` holds the contents one after the other, `ends` their ends as int32, with a 0 in front,
    and `valid` one bit per row, which is 0 for null.
    """

    __slots__ = ("_data", "_ends", "data", "ends", "null_count", "size_bytes", "valid")

    def __init__(self, rows_max: int, bytes_max: int, allocate: Allocate = bytearray) -> None:
        self.data = allocate(bytes_max)
        self.ends = bytearray(4 * (rows_max + 1))
        self.valid = bytearray((rows_max >> 3) + 1)
        self.size_bytes = self.null_count = 0
        self._data = memoryview(self.data).cast("B")
        self._ends = memoryview(self.ends).cast("i")

    def take(self, data: bytes, spans: Any, first: int, end: int) -> None:  # noqa: ANN401 - a view of numbers
        """Append the contents of the rows from `first` up to but not including `end`.

        Row n lies at `spans[2 * n]` in `data` and has `spans[2 * n + 1]` bytes, or -1 for null.
        """
        out, valid, ends = self._data, self.valid, self._ends
        size_bytes = self.size_bytes
        for at in range(first, end):
            size = spans[2 * at + 1]
            if size >= 0:
                valid[at >> 3] |= 1 << (at & 7)
                copying.put_into(out, size_bytes, data, spans[2 * at], size)
                size_bytes += size
            else:
                self.null_count += 1
            ends[at + 1] = size_bytes
        self.size_bytes = size_bytes


class ArrowBuffers:
    """Room for up to `rows_max` records with up to `bytes_max` bytes of keys, and of values.

    `read` fills it. `offsets` and `timestamps` (milliseconds since 1970) are int64, little-endian.
    `allocate` returns writable memory for keys and for values. Memory from a pool need not be
    zeroed, unlike a new bytearray.
    """

    __slots__ = (
        "_bytes_max",
        "_has_headers",
        "_key_spans",
        "_offsets",
        "_rows_max",
        "_timestamps",
        "_value_spans",
        "count",
        "keys",
        "offsets",
        "timestamps",
        "values",
    )

    def __init__(self, rows_max: int, bytes_max: int, allocate: Allocate = bytearray) -> None:
        if bytes_max > _OFFSET_BYTES_MAX:
            raise CorruptData(f"{bytes_max} bytes of keys or values do not fit into one array")
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._has_headers = False
        self.count = 0
        self.offsets = bytearray(8 * rows_max)
        self.timestamps = bytearray(8 * rows_max)
        self.keys = BinaryColumn(rows_max, bytes_max, allocate)
        self.values = BinaryColumn(rows_max, bytes_max, allocate)
        self._offsets = memoryview(self.offsets).cast("q")
        self._timestamps = memoryview(self.timestamps).cast("q")
        self._key_spans = memoryview(bytearray(16 * rows_max)).cast("q")
        self._value_spans = memoryview(bytearray(16 * rows_max)).cast("q")

    def read(self, payload: BatchPayload, start: int, end: int) -> None:
        """Append the records of a batch with offsets from `start` up to but not including `end`.

        Raises:
            CorruptData: they are malformed, or there is no room for them.
        """
        batch, size_bytes = payload.batch, payload.size_bytes
        # The size of all records bounds that of their keys, and that of their values.
        taken_bytes = max(self.keys.size_bytes, self.values.size_bytes)
        if (
            batch.record_count > self._rows_max - self.count
            or size_bytes > self._bytes_max - taken_bytes
        ):
            raise CorruptData(
                f"the columns have no room for {batch.record_count} records of {size_bytes} bytes"
            )
        # Two passes: all records are decoded and checked before any content is copied, so that a
        # malformed record leaves the columns and `count` as they were.
        first = self.count
        buffer, position = payload.padded()
        data = layout.bytes_at(buffer, position, size_bytes + _PADDING_BYTES)
        count = self._decode(batch, data, size_bytes, (start, end))
        # Arrow has no column for headers, but malformed ones must not pass unnoticed.
        if self._has_headers:
            payload.check()
        self.keys.take(data, self._key_spans, first, count)
        self.values.take(data, self._value_spans, first, count)
        self.count = count

    def _decode(self, batch: RecordBatch, data: bytes, end: int, wanted: tuple[int, int]) -> int:
        """Decode the records in `data[:end]`, which is followed by padding, see `batch._decode`.

        For keys and values, store only their positions and sizes. For headers, set `_has_headers`
        if there may be any, which includes malformed ones.

        Returns:
            The number of records, including those of earlier batches.
        """
        first_wanted, end_wanted = wanted
        at, append_time = self.count, batch.is_log_append_time
        timestamp_ms, base_ms = batch.max_timestamp_ms, batch.base_timestamp_ms
        delta_min = _INT64_MIN - base_ms if base_ms < 0 else _INT64_MIN
        delta_max = _INT64_MAX - base_ms if base_ms > 0 else _INT64_MAX
        position, previous, others = 0, -1, 0
        for _ in range(batch.record_count):
            copying.bring_ahead(data, position)
            size, position = read_varint(data, position)
            if size < _RECORD_BYTES_MIN - 1 or size > end - position:
                raise CorruptData(_outside("a record", size, end - position))
            record_end = position + size
            # + 1 skips the record's attributes, which have no meaning yet.
            delta, position = read_varlong(data, position + 1)
            if delta < delta_min or delta > delta_max:
                raise CorruptData(f"a record's timestamp delta {delta} overflows")
            if not append_time:
                timestamp_ms = base_ms + delta
            offset_delta, position = read_varint(data, position)
            if offset_delta <= previous or offset_delta > batch.last_offset_delta:
                raise CorruptData(f"a record's offset delta {offset_delta} follows {previous}")
            previous = offset_delta
            key_size, key_at = read_varint(data, position)
            if key_size < _NULL or key_size > record_end - key_at:
                raise CorruptData(_outside("a key", key_size, record_end - key_at))
            position = key_at if key_size < 0 else key_at + key_size
            value_size, position = read_varint(data, position)
            if value_size < _NULL or value_size > record_end - position:
                raise CorruptData(_outside("a value", value_size, record_end - position))
            value_end = position if value_size < 0 else position + value_size
            # Without headers, exactly one byte is left: 0, their number. A bitwise or over all
            # records costs less than a branch in each. `value_end` may lie in the padding.
            others |= (record_end - value_end - 1) | data[value_end]
            offset = batch.base_offset + offset_delta
            # A fetch returns whole batches, so the first may begin before the wanted offset.
            if first_wanted <= offset < end_wanted:
                self._offsets[at], self._timestamps[at] = offset, timestamp_ms
                self._key_spans[2 * at], self._key_spans[2 * at + 1] = key_at, key_size
                self._value_spans[2 * at], self._value_spans[2 * at + 1] = position, value_size
                at += 1
            position = record_end
        if position != end:
            raise CorruptData(f"{end - position} bytes follow the last record of a batch")
        self._has_headers = others != 0
        return at


def _outside(what: str, size: int, room: int) -> str:
    return f"{what} claims {size} bytes; {room} are left"
