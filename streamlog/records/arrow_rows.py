"""Arrow arrays as the records of batches: what they hold is copied once, from there into a batch.

`ArrowRows` are keys, values and times as they lie in Arrow's buffers, put into the order of their
partitions; `BatchBuilder.take` writes them. No object is made for a record.

The rule of the file: it may be compiled, where an index is not checked. So where entries end is
looked at before anything is read, and an array that lies ends in `CorruptData`.
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
    """An Arrow array of the type binary: entry `n` is the one at `first + n` of its buffers."""

    __slots__ = ("_data", "_ends", "_first", "_has_none", "_held", "_valid", "count")

    def __init__(
        self,
        first: int,
        count: int,
        ends: Any,  # noqa: ANN401 - a buffer
        data: Any,  # noqa: ANN401 - the same
        valid: Any = None,  # noqa: ANN401 - the same, None if all entries are there
    ) -> None:
        """Look where the entries lie.

        Raises:
            CorruptData: beyond the end of the data, or there are fewer of them.
        """
        size_bytes = len(data)
        self._ends = memoryview(ends).cast("B").cast("i")
        self._first, self.count = first, count
        if first < 0 or count < 0 or first + count >= len(self._ends):
            raise CorruptData(
                f"{len(self._ends)} ends are too few for {count} entries from {first}"
            )
        if valid is not None and len(valid) * 8 < first + count:
            raise CorruptData(f"{count} entries from {first} need more than {len(valid)} bytes")
        self._check(size_bytes)
        self._has_none = valid is not None
        self._held = (data or _NOTHING, valid or _NOTHING)  # They are read through pointers.
        self._data = layout.bytes_at(self._held[0], 0, len(self._held[0]))
        self._valid = layout.bytes_at(self._held[1], 0, len(self._held[1]))

    def _check(self, size_bytes: int) -> None:
        before = 0
        for at in range(self._first, self._first + self.count + 1):
            end = self._ends[at]
            if end < before or end > size_bytes:
                raise CorruptData(f"an entry from {before} to {end} of {size_bytes} bytes")
            before = end

    def start(self, row: int) -> int:
        """Where an entry begins. Nobody looks whether there is such a row, here and in `size`."""
        return self._ends[self._first + row]

    def size(self, row: int) -> int:
        """How long it is; -1 for null."""
        at = self._first + row
        if self._has_none and not self._valid[at >> 3] >> (at & 7) & 1:
            return -1
        return self._ends[at + 1] - self._ends[at]


class ArrowRows:
    """Keys (None: no record has one), values, and times in milliseconds since 1970, as int64."""

    __slots__ = ("_order", "_times", "count", "headers", "keys", "values")

    def __init__(
        self,
        keys: BinaryArray | None,
        values: BinaryArray,
        times: Any,  # noqa: ANN401 - a buffer
        headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
    ) -> None:
        """Put them side by side; None for no headers at all.

        Raises:
            ValueError: the columns are not of one length.
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
            raise ValueError(f"columns of {sorted(counts)} entries")
        self._order = memoryview(bytearray(8 * self.count)).cast("q")
        for row in range(self.count):
            self._order[row] = row

    def places(self, partitions: int, otherwise: int) -> list[int]:
        """The partition of each record by its key, of 1 or more; `otherwise` without a key."""
        count, keys = max(partitions, 1), self.keys
        if keys is None:
            return [otherwise] * self.count
        found: list[int] = []
        for row in range(self.count):
            size = keys.size(row)
            if size < 0:
                found.append(otherwise)
            else:
                found.append((hashed(keys._data, keys.start(row), size) & _POSITIVE) % count)  # noqa: SLF001 - the same room
        return found

    def arrange(self, places: Sequence[int], partitions: int) -> list[int]:
        """Put the records into the order of their places, 0 up to `partitions`.

        Returns:
            Where those of each place begin, and where the last ones end.

        Raises:
            ValueError: a place is none of them, or there is not one for each record.
        """
        if len(places) != self.count:
            raise ValueError(f"{len(places)} places for {self.count} records")
        starts = [0] * (partitions + 1)
        for each in places:
            if not 0 <= each < partitions:
                raise ValueError(f"{each} is none of {partitions} places")
            starts[each + 1] += 1
        starts = [*accumulate(starts)]
        free = [*starts]
        for row in range(self.count):
            place = places[row]
            self._order[free[place]] = row
            free[place] += 1
        return starts

    def row(self, at: int) -> int:
        """Which record is at that place of the order. Nobody looks whether there is one."""
        return self._order[at]

    def time_ms(self, row: int) -> int:
        """When it was. Nobody looks whether there is such a row."""
        return self._times[row]
