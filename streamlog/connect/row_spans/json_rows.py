"""JsonForm: writes rows as JSON objects into one buffer, each byte as msgspec writes it.

A driver gives rows as tuples, and a batch of the log takes what lies in one buffer. A dict and a
`bytes` for each row in between would cost more than all other work on it. Whole numbers, texts,
truth values and nulls are written here; every other value is written by msgspec, and copied.

The rule of the file: it may be compiled, and gives equal results in both builds. Only values of
exactly the named classes are read, so no code of the user's runs; the length of a row is checked
before its values are taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlog.connect.row_spans import copied_rows, json_writes
from streamlog.connect.row_spans.copied_rows import CopiedRows, row_bounds
from streamlog.records import buffer_writes, packing
from streamlog.records.arrow_rows import BinaryArray
from streamlog.records.byte_spans import ByteSpans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["JsonForm", "all_of_kinds", "rows_within"]

_ENDS_MAX = 2**31 - 1  # the positions of contents in a buffer have 32 bits
_NUMBER_ROOM = json_writes.NUMBER_ROOM
_ROW_BYTES_MAX = 2048  # of a row, that a buffer has room for before they come
_NONE, _TRUTH, _WHOLE, _FLOAT, _TEXT, _ANY = 1, 2, 4, 8, 16, 32
_COPIED_TEXT, _COPIED_NUMBER = copied_rows.TEXT, copied_rows.WHOLE_NUMBER
_COPIED_TRUTH = copied_rows.TRUTH
_MORE_BYTES = 3  # that a plain value may have more as JSON than as text: quotes, or "true"
_END = b"}"
_NULL, _TRUE, _FALSE = b"null", b"true", b"false"


class _Growing:
    """A buffer that grows; what lies behind the written bytes is undefined."""

    __slots__ = ("data", "room")

    def __init__(self, room: int) -> None:
        self.data = bytearray()
        buffer_writes.resize(self.data, room)
        self.room = room

    def reserve(self, end: int, more: int) -> None:
        """Make room for `more` bytes behind `end`."""
        if more > self.room - end:
            self.room = 2 * (end + more)
            buffer_writes.resize(self.data, self.room)


class JsonForm:
    """The fields of the objects that rows become.

    Args:
        heads: what stands before the value of each field, such as `,"name":`; at least one.
        at: the position of each field's value in a row.
        kinds: of each field, the classes of its values; None: all.
        write: returns a value as JSON, for those that are not written here.

    Raises:
        ValueError: there are not as many heads, positions and kinds, or none at all.
    """

    __slots__ = (
        "_at", "_head_ends", "_heads", "_kinds", "_masks", "_room", "_row_bytes", "_width",
        "_write",
    )  # fmt: skip

    def __init__(
        self,
        heads: Sequence[bytes],
        at: Sequence[int],
        kinds: Sequence[frozenset[type] | None],
        write: Callable[[Any], bytes],
    ) -> None:
        if not heads or not len(heads) == len(at) == len(kinds):
            raise ValueError("each field needs a head, a position and its kinds")
        self._heads = b"".join(heads)
        self._kinds = [*kinds]
        self._head_ends = memoryview(bytearray(4 * len(at) + 4)).cast("i")
        self._at = memoryview(bytearray(4 * len(at))).cast("i")
        self._masks = memoryview(bytearray(4 * len(at))).cast("i")
        self._lay_out([*heads], [*at])
        # What a row takes beside its texts and the values that `write` writes.
        self._room = len(self._heads) + len(at) * _NUMBER_ROOM + 1
        self._row_bytes = self._room
        self._width = max(at) + 1 if min(at) >= 0 else 0
        self._write = write

    def _lay_out(self, heads: list[bytes], at: list[int]) -> None:
        for field in range(len(at)):
            self._head_ends[field + 1] = self._head_ends[field] + len(heads[field])
            self._at[field] = at[field]
            self._masks[field] = _mask_of(self._kinds[field])

    def spans(self, rows: list[tuple[Any, ...]]) -> ByteSpans | None:
        """Return the rows as JSON; None if a value has another class, or there is too much.

        Also None for NaN and infinities, which JSON lacks.

        Raises:
            ValueError: a row has too few values.
            Exception: whatever `write` raises.
        """
        count = len(rows)
        # A guess by the rows before: a buffer that grows is copied.
        out = _Growing(count * self._row_bytes + self._room)
        ends = row_bounds(count)
        end = ends[0] = 0
        for row in range(count):
            end = self._put(out, end, rows[row])
            if end == -1 or end > _ENDS_MAX:
                return None
            ends[row + 1] = end
        if count:
            self._row_bytes = min((end + (end >> 4)) // count + 1, _ROW_BYTES_MAX)
        buffer_writes.resize(out.data, end)
        return ByteSpans(out.data, BinaryArray(0, count, ends, out.data))

    def copied(self, rows: CopiedRows) -> ByteSpans | None:
        """Return rows of COPY as JSON: what `spans` returns for their values.

        Raises:
            ValueError: a row has too few values, or another number than the columns.
            Exception: whatever `write` raises.
        """
        if rows.width < self._width or not self._width:
            raise ValueError(f"a row of {rows.width} values has too few")
        count, fields = rows.count, len(self._kinds)
        row_bytes = len(self._heads) + fields * _MORE_BYTES + 1
        out = _Growing(len(rows.data) + count * row_bytes + self._room)
        ends = row_bounds(count)
        bounds = row_bounds(rows.width)
        at = end = ends[0] = 0
        for row in range(count):
            at = rows.locate(at, bounds)
            out.reserve(end, self._room)
            for field in range(fields):
                end = self._put_copied(out, end, field, rows, bounds)
                if end == -1 or end > _ENDS_MAX:
                    return None
            to = out.data  # a pointer when compiled
            end = buffer_writes.put_bytes(to, end, _END)
            ends[row + 1] = end
        buffer_writes.resize(out.data, end)
        return ByteSpans(out.data, BinaryArray(0, count, ends, out.data))

    def _put_copied(
        self, out: _Growing, end: int, field: int, rows: CopiedRows, bounds: memoryview
    ) -> int:
        """Write a field of a row of COPY; return the position behind it, -1 if it is refused."""
        column, mask = self._at[field], self._masks[field]
        start, stop = bounds[column], bounds[column + 1] - 1
        # As in `_put`: this leaves room for what is left of the row.
        out.reserve(end, stop - start + self._room)
        to = out.data
        end = json_writes.put_part(
            to, end, self._heads, self._head_ends[field], self._head_ends[field + 1]
        )
        kind = rows.kinds[column]
        following = -1
        if kind == _COPIED_TEXT and mask & _TEXT:
            following = json_writes.put_plain_text(to, end, rows.data, start, stop)
        elif kind == _COPIED_NUMBER and mask & _WHOLE:
            following = json_writes.put_plain_number(to, end, rows.data, start, stop)
        elif kind == _COPIED_TRUTH and mask & _TRUTH:
            following = json_writes.put_plain_truth(to, end, rows.data, start, stop)
        if following != -1:
            return following
        value = rows.value(column, start, stop)
        following = self._put_plain(out, end, mask, value)
        return following if following != -1 else self._put_other(out, end, field, value)

    def _put(self, out: _Growing, end: int, row: tuple[Any, ...]) -> int:
        """Write a row; return the position behind it, -1 if one of its values is refused."""
        if len(row) < self._width or not self._width:
            raise ValueError(f"a row of {len(row)} values has too few")
        # Whatever is written of a row leaves this room for what is left of it.
        out.reserve(end, self._room)
        for field in range(len(self._kinds)):
            start, stop = self._head_ends[field], self._head_ends[field + 1]
            to = out.data  # a pointer when compiled
            end = json_writes.put_part(to, end, self._heads, start, stop)
            value = row[self._at[field]]
            following = self._put_plain(out, end, self._masks[field], value)
            if following == -1:
                following = self._put_other(out, end, field, value)
            if following == -1:
                return -1
            end = following
        to = out.data
        return buffer_writes.put_bytes(to, end, _END)

    def _put_plain(self, out: _Growing, end: int, mask: int, value: Any) -> int:  # noqa: ANN401 - a value of the user's
        """Write a value that is written here; return the position behind it, -1 for any other."""
        to = out.data
        if type(value) is str and mask & _TEXT:
            room = json_writes.json_text_room(value)
            out.reserve(end, room + self._room)
            to = out.data
            return json_writes.put_json_text(to, end, value, room)
        if type(value) is int and mask & _WHOLE:
            return json_writes.put_json_number(to, end, value)
        if value is None and mask & _NONE:
            return buffer_writes.put_bytes(to, end, _NULL)
        if type(value) is bool and mask & _TRUTH:
            return buffer_writes.put_bytes(to, end, _TRUE if value is True else _FALSE)
        return -1

    def _put_other(self, out: _Growing, end: int, field: int, value: Any) -> int:  # noqa: ANN401 - a value of the user's
        """Write a value by `write`; return the position behind it, -1 if it is refused."""
        kinds = self._kinds[field]
        if kinds is not None and type(value) not in kinds:
            return -1
        if type(value) is float and not packing.is_finite(value):
            return -1
        written: bytes = self._write(value)
        out.reserve(end, len(written) + self._room)
        to = out.data
        return buffer_writes.put_bytes(to, end, written)


def _mask_of(kinds: frozenset[type] | None) -> int:
    """Return which of the values that are written here a field may have."""
    mask = 0
    for kind, bit in ((type(None), _NONE), (bool, _TRUTH), (int, _WHOLE), (str, _TEXT)):
        if kinds is None or kind in kinds:
            mask |= bit
    return mask


def rows_within(rows: list[tuple[Any, ...]], limit: int, short: frozenset[type]) -> tuple[int, int]:
    """Return how many rows from the first on have at most so much content, and how much they have.

    The content of a row is the characters and bytes of its texts, bytes and nested values; the
    first row counts, however much it has.

    Args:
        rows: the rows.
        limit: the most characters and bytes.
        short: classes whose values count as nothing.
    """
    total = 0
    for at in range(len(rows)):
        size = 0
        for value in rows[at]:
            if type(value) is str or type(value) is bytes:
                size += len(value)
            elif type(value) is not int and value is not None and type(value) not in short:
                size += len(str(value))
        if at and total + size > limit:
            return at, total
        total += size
    return len(rows), total


def all_of_kinds(rows: list[tuple[Any, ...]], at: int, kinds: frozenset[type]) -> bool:
    """Whether the class of each row's value at a position is in `kinds`; subclasses don't count.

    Raises:
        IndexError: a row has no such position.
    """
    known: Any = None  # The class of the entry before: nearly always, all have one class.
    for row in rows:
        if not 0 <= at < len(row):
            raise IndexError(f"a row has no value {at}")
        value = row[at]
        if type(value) is not known:
            known = type(value)
            if known not in kinds:
                return False
    return True
