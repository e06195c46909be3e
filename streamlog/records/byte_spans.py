"""ByteSpans: contents that lie in one buffer, such as the lines of a file.

A source reads a chunk and cuts it into records; a batch then takes them from the chunk, where each
is copied once, and no object is made for it (`arrow_rows`). Everything else sees a sequence of
bytes.

The rule of the file: it may be compiled, and gives equal results in both builds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from streamlog.records import packing
from streamlog.records.arrow_rows import BinaryArray

__all__ = ["ByteSpans", "cut_lines"]

_LINE_END = 10  # \n
_RETURN = 13  # \r
_END_BYTES = 4  # of a position


class ByteSpans(Sequence[bytes | None]):
    """A column of bytes in one buffer; an entry becomes an object only when it is read.

    It equals every sequence of equal contents.

    Attributes:
        array: where they are.
    """

    __slots__ = ("_data", "array")

    def __init__(self, data: bytes | bytearray, array: BinaryArray) -> None:
        """`array` has the positions of the contents in `data`."""
        self._data = data
        self.array = array

    @classmethod
    def nulls(cls, count: int) -> ByteSpans:
        """Return a column of None."""
        ends = bytes(_END_BYTES * count + _END_BYTES)
        return cls(b"", BinaryArray(0, count, ends, b"", bytes((count >> 3) + 1)))

    @property
    def content_bytes(self) -> int:
        """The size of all contents together."""
        return self.array.content_bytes

    def __len__(self) -> int:
        return self.array.count

    @overload
    def __getitem__(self, at: int) -> bytes | None: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes | None]: ...
    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self.array.content(row) for row in range(*at.indices(len(self)))]
        return self.array.content(at if at >= 0 else at + len(self))

    def __iter__(self) -> Iterator[bytes | None]:
        return map(self.array.content, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment] # It equals lists, which have none.

    def __repr__(self) -> str:
        return f"ByteSpans(<{len(self)} contents>)"


def cut_lines(data: bytes, end: int, line_bytes_max: int) -> ByteSpans | None:
    r"""Return the lines of `data[:end]` without their ends, which are \n or \r\n.

    What follows the last line end is a line, too, unless it is empty.

    Returns:
        The lines; None if one is longer than `line_bytes_max`.

    Raises:
        ValueError: the data end before `end`.
    """
    if not 0 <= end <= len(data):
        raise ValueError(f"the end {end} is not in {len(data)} bytes")
    count = packing.count_of(data, _LINE_END, end)
    if end and data[end - 1] != _LINE_END:
        count += 1
    starts = memoryview(bytearray(_END_BYTES * count)).cast("i")
    ends = memoryview(bytearray(_END_BYTES * count + _END_BYTES)).cast("i")
    start = 0
    for row in range(count):
        following = stop = packing.position_of(data, _LINE_END, start, end)
        if stop > start and data[stop - 1] == _RETURN:
            stop -= 1
        if stop - start > line_bytes_max:
            return None
        starts[row], ends[row] = start, stop
        start = following + 1
    return ByteSpans(data, BinaryArray(0, count, ends, data, starts=starts))
