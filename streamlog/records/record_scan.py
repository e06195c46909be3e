"""RecordScan: whether a batch holds the records that its header promises, without decoding them.

A log keeps the bytes that a producer has sent, and everybody who reads them later depends on what
they promise: as many records as the header counts, each as long as it says, offset deltas 0, 1,
2, ... (with gaps where compaction has removed records), header keys of UTF-8, timestamps that fit
into 64 bits, nothing behind the last record. The scan checks all of that and returns what a topic
may judge by: the oldest and the newest timestamp and the number of records without a key. It makes
no object per record.

The rule of the file: it may be compiled, where integers wrap and an index is not checked. So no
byte is read that is not known to lie before the end, and every size is bounded before it is added.
A caller that must not hold the interpreter for long scans a large batch in parts (`most`).
"""

from __future__ import annotations

from streamlog.errors import CorruptData
from streamlog.records import header as layout
from streamlog.records.batch import HEADER_BYTES, RecordBatch

NO_TIME_MS = -1
"""The timestamp of a record without one (Kafka's NO_TIMESTAMP)."""

# C integers when compiled.
_HEADER_BYTES = HEADER_BYTES
_CONTINUES = 0x80
_LOW_BITS = 0x7F
_ASCII_END = 0x80
_NULL = -1
_INT32_MIN = -(2**31)
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_INT64_MIN = -_INT64_MAX - 1
_LAST_SHIFT = 63
_INT32_BYTES = 5


class RecordScan:
    """A pass over the records of one batch.

    Once `index` is `record_count` of the batch, all of them are sound.
    """

    __slots__ = (
        "_base_ms",
        "_count",
        "_delta_max",
        "_delta_min",
        "_due",
        "_last",
        "_position",
        "_step",
        "index",
        "keyless",
        "newest_ms",
        "oldest_ms",
    )

    def __init__(self, batch: RecordBatch) -> None:
        self.index = 0
        """Of the next record; after an error, of the one that is malformed."""
        self.keyless = 0
        """How many records have no key."""
        self.newest_ms = NO_TIME_MS
        """The greatest timestamp."""
        self.oldest_ms = _INT64_MAX
        """The smallest timestamp of the records that have one."""
        self._count = batch.record_count
        # Compaction leaves gaps between the offsets; a producer leaves none.
        is_dense = batch.last_offset_delta + 1 == self._count
        self._due = 0
        self._last = 0 if is_dense else batch.last_offset_delta
        self._step = 1 if is_dense else 0
        base_ms = batch.base_timestamp_ms
        self._base_ms = base_ms
        # Deltas beyond these would overflow.
        self._delta_min = _INT64_MIN - base_ms if base_ms < 0 else _INT64_MIN
        self._delta_max = _INT64_MAX - base_ms if base_ms > 0 else _INT64_MAX
        self._position = 0

    def read_plain(self, batch: RecordBatch) -> None:
        """Scan all records of a batch that is not compressed.

        Raises:
            CorruptData: they are not what the header promises.
        """
        # Where the records lie: making a view of them would cost as much as a record does.
        begin = batch._position + _HEADER_BYTES  # noqa: SLF001 - as above
        size_bytes = batch.size_bytes - _HEADER_BYTES
        data = layout.bytes_at(batch._view, begin, size_bytes)  # noqa: SLF001 - as above
        self._walk(data, size_bytes, self._count)

    def read(self, records: bytes, most: int) -> bool:
        """Scan up to `most` further records of the decompressed `records`.

        Returns whether there are more.

        Raises:
            CorruptData: they are not what the header promises.
        """
        size_bytes = len(records)
        self._walk(layout.bytes_at(records, 0, size_bytes), size_bytes, most)
        return self.index < self._count

    def _walk(self, data: bytes, end: int, most: int) -> None:
        position = self._position
        stop = self._count
        if most < stop - self.index:
            stop = self.index + most
        while self.index < stop:
            size, position = _number(data, position, end)
            if position > end or size <= 0 or size > end - position:
                self._refuse("length")
            record_end = position + size
            position = self._record(data, position, record_end)
            if position != record_end:
                self._refuse("headers")
            self.index += 1
        self._position = position
        if self.index == self._count and position != end:
            raise CorruptData(f"{end - position} bytes follow the last record of the batch")

    def _record(self, data: bytes, position: int, end: int) -> int:
        """Where a record ends that begins with its attributes, if its headers are sound."""
        delta, position = _long(data, position + 1, end)
        if position > end or delta < self._delta_min or delta > self._delta_max:
            self._refuse("timestamp")
        timestamp_ms = self._base_ms + delta
        if timestamp_ms > self.newest_ms:  # noqa: PLR1730 - compiled, without a call
            self.newest_ms = timestamp_ms
        if 0 <= timestamp_ms < self.oldest_ms:
            self.oldest_ms = timestamp_ms
        number, position = _number(data, position, end)
        if position > end or number < self._due or number > self._last:
            self._refuse("offset")
        self._due = number + 1
        self._last += self._step
        number, position = _text(data, position, end)
        if number == _NULL:
            self.keyless += 1
        number, position = _text(data, position, end)
        if position > end:
            self._refuse("key or value")
        number, position = _number(data, position, end)
        if position > end or number != 0:
            position = _headers(data, position, end, number)
        return position

    def _refuse(self, part: str) -> None:
        raise CorruptData(f"record {self.index} of the batch is malformed ({part})")


def _headers(data: bytes, position: int, end: int, count: int) -> int:
    """Where `count` headers end; behind `end` if they are malformed."""
    if position > end or count < 0:
        return end + 1
    for _ in range(count):
        size, position = _text(data, position, end)
        if position > end or size == _NULL or not _is_text(data, position - size, position):
            return end + 1
        size, position = _text(data, position, end)
        if position > end:
            return end + 1
    return position


def _text(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Size of a key or value, -1 for null, and the position behind it; see `_number`."""
    size, position = _number(data, position, end)
    if position > end or size < _NULL or size > end - position:
        return 0, end + 1
    return size, position + size if size > 0 else position


def _is_text(data: bytes, begin: int, end: int) -> bool:
    """Whether the bytes are UTF-8."""
    for position in range(begin, end):
        if data[position] >= _ASCII_END:
            return _decodes(data[begin:end])
    return True


def _decodes(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _number(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A 32-bit integer and the position behind it, which is behind `end` if it is malformed."""
    if position >= end:
        return 0, end + 1
    raw = data[position]
    if raw < _CONTINUES:
        return ~(raw >> 1) if raw & 1 else raw >> 1, position + 1
    if end - position > 1 and data[position + 1] < _CONTINUES:
        raw += (data[position + 1] << 7) - _CONTINUES
        return ~(raw >> 1) if raw & 1 else raw >> 1, position + 2
    value, after = _long(data, position, end)
    if after - position > _INT32_BYTES or value < _INT32_MIN or value > _INT32_MAX:
        return 0, end + 1
    return value, after


def _long(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A 64-bit integer and the position behind it, which is behind `end` if it is malformed."""
    raw = 0
    shift = 0
    if end - position > 1 and data[position] < _CONTINUES:
        raw = data[position]
        return ~(raw >> 1) if raw & 1 else raw >> 1, position + 1
    while position < end and shift <= _LAST_SHIFT:
        byte = data[position]
        position += 1
        raw |= (byte & _LOW_BITS) << shift
        if byte < _CONTINUES:
            if shift == _LAST_SHIFT and byte > 1:
                break
            return ~(raw >> 1) if raw & 1 else raw >> 1, position
        shift += 7
    return 0, end + 1
