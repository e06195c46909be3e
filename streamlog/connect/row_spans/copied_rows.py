"""CopiedRows: rows as PostgreSQL's COPY writes them as text, for which no object is made at first.

A snapshot takes millions of rows from COPY to the log. Numbers and texts nearly always stand in a
line just as JSON has them, so `JsonForm.copied` copies them from one buffer to the other; a value
of Python is made for the rest, and for readers that want rows.

The rule of the file: it may be compiled, and gives equal results in both builds. The number of a
line's columns is checked before its values are taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.records import packing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "OTHER", "TEXT", "TRUTH", "WHOLE_NUMBER", "CopiedRows", "copied_fields", "copied_within",
    "read_value", "row_bounds",
]  # fmt: skip

OTHER, TEXT, WHOLE_NUMBER, TRUTH = range(4)
"""How a column is read: by its decoder, or here as `str`, `int` or `bool`."""

_TEXT, _WHOLE_NUMBER, _TRUTH = TEXT, WHOLE_NUMBER, TRUTH  # C integers when compiled
_DATA_BYTES_MAX = 2**31 - 2  # positions in the buffer have 32 bits
_DIGITS_MAX = 18  # of a number that fits into 64 bits whatever its digits are
_LINE_END, _TAB, _BACKSLASH, _MINUS, _ZERO, _TRUE = b"\n\t\\-0t"
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class CopiedRows:
    """The rows of lines of COPY in its text format.

    Args:
        data: the lines, each with its end.
        kinds: how each column is read.
        decoders: for each column, what reads the text of a value; raises nothing.

    Raises:
        ValueError: there are not as many kinds as decoders, or too many lines.
    """

    __slots__ = ("count", "data", "decoders", "kinds", "width")

    def __init__(
        self, data: bytes, kinds: Sequence[int], decoders: Sequence[Callable[[bytes], object]]
    ) -> None:
        size = len(data)
        if len(kinds) != len(decoders) or size > _DATA_BYTES_MAX:
            raise ValueError("each column needs a kind and a decoder, and the lines 2 GiB at most")
        self.data = data
        self.kinds = bytes(kinds)
        self.decoders = [*decoders]
        self.width = len(kinds)
        self.count = packing.count_of(data, _LINE_END, size)
        if size and data[size - 1] != _LINE_END:
            self.count += 1

    def rows(self) -> list[tuple[object, ...]]:
        """Return the rows.

        Raises:
            ValueError: a line has another number of columns.
        """
        found: list[tuple[object, ...]] = []
        bounds = row_bounds(self.width)
        at = 0
        for _ in range(self.count):
            at = self.locate(at, bounds)
            row: list[object] = []
            for column in range(self.width):
                row.append(self.value(column, bounds[column], bounds[column + 1] - 1))  # noqa: PERF401 - a loop of C
            found.append(tuple(row))
        return found

    def column(self, column: int) -> list[object]:
        """Return the values of a column.

        Raises:
            IndexError: there is no such column.
            ValueError: a line has another number of columns.
        """
        if not 0 <= column < self.width:
            raise IndexError(f"there is no column {column}")
        found: list[object] = []
        bounds = row_bounds(self.width)
        at = 0
        for _ in range(self.count):
            at = self.locate(at, bounds)
            found.append(self.value(column, bounds[column], bounds[column + 1] - 1))
        return found

    def locate(self, at: int, bounds: memoryview) -> int:
        """Find the fields of the line at a position: n is `data[bounds[n]:bounds[n + 1] - 1]`.

        Returns:
            Where the next line begins.

        Raises:
            ValueError: the line has another number of columns.
        """
        end = packing.position_of(self.data, _LINE_END, at, len(self.data))
        column = 0
        start = at
        while column < self.width and start <= end:
            bounds[column] = start
            start = packing.position_of(self.data, _TAB, start, end) + 1
            column += 1
        # The last field ends with the line, if there are as many as there have to be.
        if column != self.width or start <= end:
            raise ValueError(f"a line of COPY has not {self.width} columns")
        bounds[column] = start
        return end + 1

    def value(self, column: int, start: int, end: int) -> object:
        """Return the value of a column whose field is `data[start:end]`."""
        kind = self.kinds[column]
        if packing.position_of(self.data, _BACKSLASH, start, end) == end:
            return read_value(kind, self.decoders[column], self.data, start, end)
        content = _unescaped(self.data[start:end])
        if content is None:
            return None
        return read_value(kind, self.decoders[column], content, 0, len(content))


def row_bounds(width: int) -> memoryview:
    """Return room for where the fields of a row begin, and where the last one ends."""
    return memoryview(bytearray(4 * width + 4)).cast("i")


def read_value(
    kind: int, decode: Callable[[bytes], object], data: bytes, start: int, end: int
) -> object:
    """Return the value whose text is `data[start:end]`, which has to be there."""
    if kind == _TEXT:
        return data[start:end].decode("utf-8", "replace")
    if kind == _WHOLE_NUMBER:
        return _whole_number(data, start, end)
    if kind == _TRUTH:
        return end - start == 1 and data[start] == _TRUE
    return decode(data[start:end])


def _whole_number(data: bytes, start: int, end: int) -> object:
    """Return a number; what is none stays text."""
    is_negative = start < end and data[start] == _MINUS
    at = start + 1 if is_negative else start
    number = 0
    if 0 < end - at <= _DIGITS_MAX:
        while at < end and 0 <= data[at] - _ZERO <= 9:  # noqa: PLR2004 - a digit
            number = 10 * number + data[at] - _ZERO
            at += 1
        if at == end:
            return -number if is_negative else number
    text = data[start:end]
    try:
        return int(text)
    except ValueError:
        return text.decode("utf-8", "replace")


def copied_within(data: bytes, limit: int, row_bytes: int) -> tuple[int, int]:
    """Return how many leading lines fit into a number of bytes, and where they end.

    The first line counts, however long it is.

    Args:
        data: the lines, each with its end.
        limit: the most bytes.
        row_bytes: what a row takes beside its line.
    """
    count = at = 0
    size, left = len(data), limit
    while at < size:
        following = packing.position_of(data, _LINE_END, at, size) + 1
        left -= following - at + row_bytes
        if count and left < 0:
            break
        count += 1
        at = following
    return count, min(at, size)


def copied_fields(line: bytes) -> tuple[bytes | None, ...]:
    r"""Return the texts of a line of COPY's text format; \N is None."""
    fields = line.removesuffix(b"\n").split(b"\t")
    return tuple(_unescaped(each) if b"\\" in each else each for each in fields)


def _unescaped(content: bytes) -> bytes | None:
    if content == b"\\N":
        return None
    first, *others = content.split(b"\\")
    found = [first]
    is_escaped = True
    for part in others:
        # Two backslashes are one: the split leaves nothing between them, and what follows is plain.
        if is_escaped:
            found.append(_ESCAPED.get(part[:1], part[:1]) + part[1:] if part else b"\\")
            is_escaped = bool(part)
        else:
            found.append(part)
            is_escaped = True
    return b"".join(found)
