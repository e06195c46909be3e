"""ValueBuffers: a column of plain Python values as the buffers of an Arrow array.

Arrow's own conversion of Python values imports pandas wherever that is installed, which takes
longer than a million records, and looks at each value for what it may be. Here a column is one
class of values, or it is left to Arrow.

The rule of the file: it may be compiled, and gives equal results in both builds. Only values of
exactly the named class are read, so no code of the user's runs; the room is computed before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlog.records import buffer_writes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ValueBuffers", "contents", "floats", "texts", "truths", "whole_numbers"]

_ENDS_MAX = 2**31 - 1  # an Arrow array of texts counts its bytes with 32 bits
_INT64_MAX = 2**63 - 1
_INT64_MIN = -_INT64_MAX - 1


class ValueBuffers:
    """The buffers of one array, little-endian.

    Attributes:
        data: the values: 64 bits each, one bit for each truth value, or contents one after another.
        ends: of contents: the end of each as int32, with a 0 in front; else None.
        valid: one bit for each value, 0 for null; None if no value is null.
        null_count: the number of nulls.
    """

    __slots__ = ("_count", "data", "ends", "null_count", "valid")

    def __init__(self, count: int, data: bytearray, ends: bytearray | None) -> None:
        self.data, self.ends = data, ends
        self.valid: bytearray | None = None
        self.null_count = 0
        self._count = count

    def set_null(self, at: int) -> None:
        """Make the value at an index null."""
        if self.valid is None:
            self.valid = bytearray(b"\xff" * ((self._count + 7) >> 3))
        self.valid[at >> 3] &= ~(1 << (at & 7)) & 0xFF
        self.null_count += 1


def whole_numbers(column: Sequence[Any]) -> ValueBuffers | None:
    """Return `int`s of 64 bits and nulls; None if there is any other value."""
    try:
        return _whole_numbers(column)
    except OverflowError:  # The compiled loop reads 64 bits.
        return None


def _whole_numbers(column: Sequence[Any]) -> ValueBuffers | None:
    found = ValueBuffers(len(column), bytearray(8 * len(column)), None)
    numbers = memoryview(found.data).cast("q")
    at = 0
    for entry in column:
        if entry is None:
            found.set_null(at)
        elif type(entry) is int:
            number = entry
            if number < _INT64_MIN or number > _INT64_MAX:
                return None
            numbers[at] = number
        else:
            return None
        at += 1  # noqa: SIM113 - compiled, it is no object
    return found


def floats(column: Sequence[Any]) -> ValueBuffers | None:
    """Return `float`s and nulls; None if there is any other value."""
    found = ValueBuffers(len(column), bytearray(8 * len(column)), None)
    numbers = memoryview(found.data).cast("d")
    at = 0
    for entry in column:
        if entry is None:
            found.set_null(at)
        elif type(entry) is float:
            numbers[at] = entry
        else:
            return None
        at += 1  # noqa: SIM113 - compiled, it is no object
    return found


def truths(column: Sequence[Any]) -> ValueBuffers | None:
    """Return `bool`s and nulls; None if there is any other value."""
    found = ValueBuffers(len(column), bytearray((len(column) + 7) >> 3), None)
    bits = found.data
    at = 0
    for entry in column:
        if entry is True:
            bits[at >> 3] |= 1 << (at & 7)
        elif entry is None:
            found.set_null(at)
        elif entry is not False:
            return None
        at += 1  # noqa: SIM113 - compiled, it is no object
    return found


def texts(column: Sequence[Any]) -> ValueBuffers | None:
    """Return `str`s as UTF-8, and nulls; None if there is any other value, or too much text.

    Raises:
        UnicodeEncodeError: a text has half of a surrogate pair.
    """
    size_bytes = 0
    for entry in column:
        if type(entry) is str:
            size_bytes += buffer_writes.text_bytes(entry)
        elif entry is not None:
            return None
    if size_bytes > _ENDS_MAX:
        return None
    ends = bytearray(4 * (len(column) + 1))
    found = ValueBuffers(len(column), bytearray(size_bytes), ends)
    to, numbers = found.data, memoryview(ends).cast("i")
    at, end = 0, 0
    for entry in column:
        if entry is None:
            found.set_null(at)
        else:
            end = buffer_writes.put_text(to, end, entry)
        at += 1  # noqa: SIM113 - compiled, it is no object
        numbers[at] = end
    return found


def contents(column: Sequence[Any]) -> ValueBuffers | None:
    """Return `bytes` and nulls; None if there is any other value, or too many bytes."""
    size_bytes = 0
    for entry in column:
        if type(entry) is bytes:
            size_bytes += len(entry)
        elif entry is not None:
            return None
    if size_bytes > _ENDS_MAX:
        return None
    ends = bytearray(4 * (len(column) + 1))
    found = ValueBuffers(len(column), bytearray(size_bytes), ends)
    to, numbers = found.data, memoryview(ends).cast("i")
    at, end = 0, 0
    for entry in column:
        if entry is None:
            found.set_null(at)
        else:
            end = buffer_writes.put_bytes(to, end, entry)
        at += 1  # noqa: SIM113 - compiled, it is no object
        numbers[at] = end
    return found
