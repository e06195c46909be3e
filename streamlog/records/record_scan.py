"""RecordScan: checks, without decoding, that a batch holds the records that its header promises.

A log keeps the bytes that a producer has sent, and all later readers rely on them. So the scan
checks that there are as many records as the header counts, each of its stated length, with offset
deltas 0, 1, 2, ... (or with gaps, where compaction has removed records), header keys in UTF-8,
timestamps that fit into 64 bits, and nothing behind the last record. It returns the values by which
a topic may refuse a batch: the oldest and the newest timestamp, and the number of records without a
key. It makes no object per record.

The rule of the file: it may be compiled, and then integers wrap and indexes are not checked. So no
byte is read unless it is known to lie before the end, and every size is checked before it is added.
A caller that must not hold the GIL for long scans a large batch in parts (`most`).
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

    When `index` has reached the batch's `record_count`, all records are valid.
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
        """The index of the next record; after an error, of the malformed one."""
        self.keyless = 0
        """The number of records without a key."""
        self.newest_ms = NO_TIME_MS
        """The greatest timestamp."""
        self.oldest_ms = _INT64_MAX
        """The smallest timestamp of the records that have one."""
        self._count = batch.record_count
        # Compaction leaves gaps between the offsets; a producer leaves none. A dense batch has only
        # one valid delta for each record: `_due` and `_last` both begin at 0, and both advance.
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
        """Scan all records of a batch without compression.

        Raises:
            CorruptData: the records differ from what the header promises.
        """
        # By position in the batch's view: a view of the records would cost as much as one record.
        begin = batch._position + _HEADER_BYTES  # noqa: SLF001 - as above
        size_bytes = batch.size_bytes - _HEADER_BYTES
        data = layout.bytes_at(batch._view, begin, size_bytes)  # noqa: SLF001 - as above
        self._walk(data, size_bytes, self._count)

    def read(self, records: bytes, most: int) -> bool:
        """Scan up to `most` further records of `records`, decompressed; return whether more follow.

        Raises:
            CorruptData: the records differ from what the header promises.
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
        """Check a record from its attributes on; return the position behind its headers.

        That position is behind `end` if the headers are malformed.
        """
        delta, position = _long(data, position + 1, end)
        if position > end or delta < self._delta_min or delta > self._delta_max:
            self._refuse("timestamp")
        timestamp_ms = self._base_ms + delta
        if timestamp_ms > self.newest_ms:  # noqa: PLR1730 - compiled, without a call
            self.newest_ms = timestamp_ms
        # -1 is a record without a timestamp, which must not count as the oldest.
        if 0 <= timestamp_ms < self.oldest_ms:
            self.oldest_ms = timestamp_ms
        number, position = _number(data, position, end)
        if position > end or number < self._due or number > self._last:
            self._refuse("offset")
        self._due = number + 1
        self._last += self._step
        # A malformed key leaves the position behind `end`, and then so does the value: one check is
        # enough for both.
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
    """Return the position behind `count` headers; behind `end` if they are malformed."""
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
    """Return the size of a key or value, -1 for null, and the position behind it; see `_number`."""
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
    """Return a 32-bit integer and the position behind it, which is behind `end` if malformed."""
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
    """Return a 64-bit integer and the position behind it, which is behind `end` if malformed."""
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
            # The tenth byte may add one bit to the 63 of the others, see `varint.read_varlong`.
            if shift == _LAST_SHIFT and byte > 1:
                break
            return ~(raw >> 1) if raw & 1 else raw >> 1, position
        shift += 7
    return 0, end + 1
