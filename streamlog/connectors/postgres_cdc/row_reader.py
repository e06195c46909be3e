"""RowReader: reads the rows of one table from the stream, without a step between.

Nearly all frames of a stream are new and changed rows, and nearly all values are numbers and short
texts. Those are read here in one pass; for every other frame `rows` ends, and `pgoutput` reads it.
What is read is the same in both: `tests/connectors/postgres_cdc/test_row_reader.py`.

The rule of the file: it may be compiled, and gives equal results in both builds. Every length is
checked before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.connect.row_spans.copied_rows import read_value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RowReader"]

_XLOG_HEAD = 25
_ROW_AT = 33  # behind the head: kind, relation, "N", number of columns
_LENGTH_BYTES = 4
_FRAME, _INSERT, _UPDATE, _NEW = b"wIUN"
_NULL, _SENT = b"nt"


class RowReader:
    """Reads the rows of a table.

    Args:
        relation: the number of the table in the stream.
        kinds: how each of its columns is read, as of `CopiedRows`.
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
            kind, decode = self._kinds[column], self._decoders[column]
            row.append(read_value(kind, decode, frame, at, at + length))
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


def _number_at(data: bytes, at: int) -> int:
    """Return 32 bits without a sign; does not check that they are there."""
    # Before the shift, each byte is as wide as the sum in C.
    number = data[at]
    for each in range(at + 1, at + 4):
        number = number << 8 | data[each]
    return number
