"""RowReader: reads the rows of one table, from the stream and from COPY, without a step between.

Nearly all frames of a stream are new and changed rows, and nearly all values are numbers and short
texts. Those are read here in one pass; for every other frame `rows` ends, and `pgoutput` reads it.
What is read is the same in both: `tests/connectors/postgres_cdc/test_row_reader.py`.

The rule of the file: it may be compiled, and gives equal results in both builds. Every length is
checked before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["OTHER", "TEXT", "TRUTH", "WHOLE_NUMBER", "RowReader", "copied_fields"]

OTHER, TEXT, WHOLE_NUMBER, TRUTH = range(4)
"""How a column is read: by its decoder, or here as `str`, `int` or `bool`."""

_TEXT, _WHOLE_NUMBER, _TRUTH = TEXT, WHOLE_NUMBER, TRUTH  # C integers when compiled
_XLOG_HEAD = 25
_ROW_AT = 33  # behind the head: kind, relation, "N", number of columns
_LENGTH_BYTES = 4
_DIGITS_MAX = 18  # of a number that fits into 64 bits whatever its digits are
_FRAME, _INSERT, _UPDATE, _NEW = b"wIUN"
_NULL, _SENT, _TRUE = b"ntt"
_TAB, _BACKSLASH, _MINUS, _ZERO = b"\t\\-0"
_LINE_END = 10
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class RowReader:
    """Reads the rows of a table.

    Args:
        relation: the number of the table in the stream.
        kinds: how each of its columns is read.
        decoders: for each column, what reads the text of a value; raises nothing.
    """

    __slots__ = ("_decoders", "_kinds", "_relation")

    def __init__(
        self,
        relation: int,
        kinds: Sequence[int],
        decoders: Sequence[Callable[[bytes], object]],
    ) -> None:
        self._relation = relation
        self._kinds = [*kinds]
        self._decoders = [*decoders]

    def rows(self, frames: list[bytes], start: int) -> list[tuple[object, ...]]:
        """Return the rows of the frames from `start` on, up to one that has something else.

        A row is that of an insert, or of an update that says nothing of the row before. Rows with
        values that were not sent, and malformed frames, count as something else.
        """
        found: list[tuple[object, ...]] = []
        for at in range(max(start, 0), len(frames)):
            row = self._row(frames[at])
            if row is None:
                break
            found.append(row)
        return found

    def _row(self, frame: bytes) -> tuple[object, ...] | None:
        if not self._has_new_row(frame):
            return None
        row: list[object] = []
        at, size = _ROW_AT, len(frame)
        for column in range(len(self._kinds)):
            if at >= size:
                return None
            if frame[at] == _NULL:
                row.append(None)
                at += 1
                continue
            if frame[at] != _SENT or size - at <= _LENGTH_BYTES:
                return None
            length = _number_at(frame, at + 1)
            at += 1 + _LENGTH_BYTES
            if length > size - at:
                return None
            row.append(self._value(column, frame, at, at + length))
            at += length
        return tuple(row) if at == size else None

    def _has_new_row(self, frame: bytes) -> bool:
        if len(frame) < _ROW_AT or frame[0] != _FRAME or frame[_ROW_AT - 3] != _NEW:
            return False
        kind = frame[_XLOG_HEAD]
        if kind != _INSERT and kind != _UPDATE:  # noqa: PLR1714 - in C, no set
            return False
        count = frame[_ROW_AT - 2] << 8 | frame[_ROW_AT - 1]
        relation = _number_at(frame, _XLOG_HEAD + 1)
        return count == len(self._kinds) and relation == self._relation

    def copied(self, lines: list[bytes]) -> list[tuple[object, ...]]:
        """Return the rows of lines of COPY in its text format.

        Raises:
            ValueError: a line has another number of columns.
        """
        return [self._copied(line) for line in lines]

    def _copied(self, line: bytes) -> tuple[object, ...]:
        size = len(line)
        if size and line[size - 1] == _LINE_END:
            size -= 1
        data = line  # a pointer when compiled
        row: list[object] = []
        count = len(self._kinds)
        at = column = 0
        while at <= size and column < count:
            end = at
            is_plain = True
            while end < size and data[end] != _TAB:
                is_plain = is_plain and data[end] != _BACKSLASH
                end += 1
            if is_plain:
                row.append(self._value(column, line, at, end))
            else:
                content = _unescaped(line[at:end])
                value = None if content is None else self._value(column, content, 0, len(content))
                row.append(value)
            column += 1
            at = end + 1
        if column != count or at <= size:
            raise ValueError(f"a line of COPY has not {count} columns")
        return tuple(row)

    def _value(self, column: int, data: bytes, start: int, end: int) -> object:
        kind = self._kinds[column]
        if kind == _TEXT:
            return data[start:end].decode("utf-8", "replace")
        if kind == _WHOLE_NUMBER:
            return _whole_number(data, start, end)
        if kind == _TRUTH:
            return end - start == 1 and data[start] == _TRUE
        return self._decoders[column](data[start:end])


def _number_at(data: bytes, at: int) -> int:
    """Return 32 bits without a sign; does not check that they are there."""
    # Before the shift, each byte is as wide as the sum in C.
    number = data[at]
    for each in range(at + 1, at + 4):
        number = number << 8 | data[each]
    return number


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
