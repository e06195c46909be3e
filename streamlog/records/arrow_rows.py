"""ArrowRows: records in Arrow arrays, from which their contents are copied once, into a batch.

`ArrowRows` holds keys, values and times in Arrow's buffers, and orders the rows by partition;
`BatchBuilder.take` encodes them. No object is made for a record. Entries may also lie apart in
their buffer, as the lines of a file do between their ends (`byte_spans`).

The rule of the file: it may be compiled, and then indexes are not checked. So the ends of all
entries are checked before any entry is read, and an array with false ends raises `CorruptData`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from streamlog.errors import CorruptData
from streamlog.records import header as layout
from streamlog.records.murmur2 import hashed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ArrowRows", "BinaryArray"]

_NOTHING = b"\x00"
_POSITIVE = 0x7FFFFFFF


class BinaryArray:
    """An Arrow array of type binary; its entry n is entry `first + n` of the buffers.

    Attributes:
        count: the number of entries.
        content_bytes: the size of all entries together.
    """

    __slots__ = (
        "_data", "_ends", "_first", "_has_none", "_held", "_starts", "_valid",
        "content_bytes", "count",
    )  # fmt: skip

    def __init__(
        self,
        first: int,
        count: int,
        ends: Any,  # noqa: ANN401 - a buffer
        data: Any,  # noqa: ANN401 - a buffer
        valid: Any = None,  # noqa: ANN401 - a buffer; None if no entry is null
        *,
        starts: Any = None,  # noqa: ANN401 - a buffer
    ) -> None:
        """Check the ends of the entries.

        Args:
            first: the entry of the buffers that is the first one here.
            count: the number of entries.
            ends: with `starts`, the end of each entry; else, as in Arrow, the start of the first
                entry and the end of each. All are int32.
            data: the contents.
            valid: a bit for each entry, 0 for null.
            starts: the start of each entry; None: each one starts at the end of the one before.

        Raises:
            CorruptData: an entry ends behind the data, or the buffers have fewer entries.
        """
        size_bytes = len(data)
        all_ends = memoryview(ends).cast("B").cast("i")
        if starts is None:  # n entries have n + 1 ends.
            self._starts, self._ends = all_ends, all_ends[1:]
        else:
            self._starts, self._ends = memoryview(starts).cast("B").cast("i"), all_ends
        self._first, self.count = first, count
        found = min(len(self._starts), len(self._ends))
        if first < 0 or count < 0 or first + count > found or not len(all_ends):
            raise CorruptData(f"{len(all_ends)} ends are too few for {count} entries from {first}")
        if valid is not None and len(valid) * 8 < first + count:
            raise CorruptData(f"{count} entries from {first} need more than {len(valid)} bytes")
        self._check(size_bytes)
        self._has_none = valid is not None
        # Held, because in C the two fields below are pointers into these buffers.
        self._held = (data or _NOTHING, valid or _NOTHING)
        self._data = layout.bytes_at(self._held[0], 0, len(self._held[0]))
        self._valid = layout.bytes_at(self._held[1], 0, len(self._held[1]))

    def _check(self, size_bytes: int) -> None:
        total = 0
        for at in range(self._first, self._first + self.count):
            start, end = self._starts[at], self._ends[at]
            if start < 0 or end < start or end > size_bytes:
                raise CorruptData(f"an entry spans bytes {start} to {end} of {size_bytes}")
            total += end - start
        self.content_bytes = total

    def content(self, row: int) -> bytes | None:
        """Return an entry; None for null.

        Raises:
            IndexError: there is no such entry.
        """
        if not 0 <= row < self.count:
            raise IndexError(f"entry {row} is not in {self.count} entries")
        size, start = self.size(row), self.start(row)
        return None if size < 0 else self._data[start : start + size]

    def start(self, row: int) -> int:
        """Return the position of an entry; does not check the row, nor does `size`."""
        return self._starts[self._first + row]

    def size(self, row: int) -> int:
        """Return the size of an entry in bytes; -1 for null."""
        at = self._first + row
        if self._has_none and not self._valid[at >> 3] >> (at & 7) & 1:
            return -1
        return self._ends[at] - self._starts[at]


class ArrowRows:
    """Keys (None if no record has one), values, and times in milliseconds since 1970, as int64."""

    __slots__ = ("_order", "_times", "count", "headers", "keys", "values")

    def __init__(
        self,
        keys: BinaryArray | None,
        values: BinaryArray,
        times: Any,  # noqa: ANN401 - a buffer
        headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
    ) -> None:
        """Combine the columns; `headers` is None if no record has any.

        Raises:
            ValueError: the columns differ in length.
        """
        self.keys, self.values, self.headers = keys, values, headers
        self.count = values.count
        self._times = memoryview(times).cast("B").cast("q")
        counts = {self.count, len(self._times)}
        if keys is not None:
            counts.add(keys.count)
        if headers is not None:
            counts.add(len(headers))
        if len(counts) > 1:
            raise ValueError(f"the columns have different lengths: {sorted(counts)}")
        self._order = memoryview(bytearray(8 * self.count)).cast("q")
        for row in range(self.count):
            self._order[row] = row

    def partitions_by_key(self, partitions: int, otherwise: int) -> list[int]:
        """Return the partition of each record, by the murmur2 hash of its key.

        Args:
            partitions: the topic's number of partitions, 1 or more.
            otherwise: the partition of records without a key.
        """
        count, keys = max(partitions, 1), self.keys
        if keys is None:
            return [otherwise] * self.count
        found: list[int] = []
        for row in range(self.count):
            size = keys.size(row)
            # An empty key is a key: only null ones get `otherwise`.
            if size < 0:
                found.append(otherwise)
            else:
                found.append((hashed(keys._data, keys.start(row), size) & _POSITIVE) % count)  # noqa: SLF001 - the same room
        return found

    def arrange(self, partitions: Sequence[int], count: int) -> list[int]:
        """Order the records by partition, and keep the order of records in each.

        Args:
            partitions: the partition of each record, from 0 up to but not including `count`.
            count: the number of partitions.

        Returns:
            The position of each partition's first record in this order, and the end of the order.

        Raises:
            ValueError: a partition is out of range, or there is not one for each record.
        """
        if len(partitions) != self.count:
            raise ValueError(f"{len(partitions)} partitions for {self.count} records")
        # A counting sort: it takes one pass to count, and one to assign the rows, and is stable.
        starts = [0] * (count + 1)
        for each in partitions:
            if not 0 <= each < count:
                raise ValueError(f"partition {each} is not from 0 to {count - 1}")
            starts[each + 1] += 1
        starts = [*accumulate(starts)]
        free = [*starts]
        for row in range(self.count):
            partition = partitions[row]
            self._order[free[partition]] = row
            free[partition] += 1
        return starts

    def row(self, at: int) -> int:
        """Return the row at a position of the order; does not check the position."""
        return self._order[at]

    def time_at(self, at: int) -> int:
        """Return the time of the row at a position of the order, in ms since 1970.

        Raises:
            IndexError: there is no such position.
        """
        if not 0 <= at < self.count:
            raise IndexError(f"position {at} is not in {self.count} rows")
        return self.time_ms(self.row(at))

    def time_ms(self, row: int) -> int:
        """Return the time of a row, in ms since 1970; does not check the row."""
        return self._times[row]
