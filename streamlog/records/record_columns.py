"""Records as columns, one list per field, and functions over a column.

Where thousands of records pass, an object for each costs more than the work on it. So batches are
decoded to columns and encoded from columns, and the code in between passes columns on; a single
record is made on demand. Sizes in bytes are those before compression.

The rule of the file: it may be compiled, and gives equal results in both builds. It only checks
whether a content is None and how long it is: comparing contents might run the user's code.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

from streamlog.records import buffer_writes, packing
from streamlog.records.log_record import LogRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "FieldColumns",
    "RecordColumns",
    "all_ascii",
    "all_of_type",
    "called",
    "first_outside",
    "has_none",
    "record_bytes",
    "running_max",
    "suffixed",
    "total_bytes",
]

RECORD_OVERHEAD_BYTES = 21
"""The most bytes of a record beyond its contents: length, attributes, deltas, three lengths."""
HEADER_OVERHEAD_BYTES = 10
"""The most bytes of a record's header beyond name and value: two lengths."""

_RECORD_BYTES = RECORD_OVERHEAD_BYTES  # C integers when compiled
_HEADER_BYTES = HEADER_OVERHEAD_BYTES
_AHEAD = buffer_writes.AHEAD


class RecordColumns:
    """Records of one partition in offset order; iteration and indexes give `LogRecord`s."""

    __slots__ = ("_first", "_offsets", "headers", "keys", "timestamps", "values")

    def __init__(self) -> None:
        self.timestamps: list[int] = []
        """Milliseconds since 1970."""
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[tuple[tuple[str, bytes | None], ...]] | None = None
        """Headers of each record; None if no record has any."""
        # Offsets are mostly consecutive: the first one is enough until there is a gap.
        self._first = 0
        self._offsets: list[int] | None = None

    @classmethod
    def of(cls, records: Iterable[LogRecord]) -> RecordColumns:
        """Convert records to columns; columns are returned as they are."""
        if isinstance(records, RecordColumns):
            return records
        columns = cls()
        for offset, timestamp_ms, key, value, headers in records:
            columns.add(offset, timestamp_ms, key, value, headers or None)
        return columns

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets: a range, or a list if there are gaps."""
        if self._offsets is None:
            return range(self._first, self._first + len(self.keys))
        return self._offsets

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, at: Any) -> Any:  # noqa: ANN401 - a record, or columns for a slice
        if isinstance(at, slice):
            return self._part(at)
        headers = () if self.headers is None else self.headers[at]
        return LogRecord(
            self.offsets[at], self.timestamps[at], self.keys[at], self.values[at], headers
        )

    def __iter__(self) -> Iterator[LogRecord]:
        headers = [()] * len(self.keys) if self.headers is None else self.headers
        columns = zip(self.offsets, self.timestamps, self.keys, self.values, headers, strict=True)
        return map(
            partial(tuple.__new__, LogRecord), columns
        )  # Half the cost of `Record(*fields)`.

    def __iadd__(self, more: RecordColumns) -> Self:
        """Append records with larger offsets."""
        # A range is kept while the offsets continue without a gap; empty columns fit anywhere.
        offsets, following = self.offsets, more.offsets
        if (
            isinstance(offsets, range)
            and isinstance(following, range)
            and (not following or not offsets or offsets.stop == following.start)
        ):
            self._first = offsets.start if offsets else following.start
        elif self._offsets is None:
            self._offsets = [*offsets, *following]
        else:
            self._offsets.extend(following)
        if self.headers is not None or more.headers is not None:
            self.headers = [
                *(self.headers or [()] * len(self.keys)),
                *(more.headers or [()] * len(more.keys)),
            ]
        self.timestamps += more.timestamps
        self.keys += more.keys
        self.values += more.values
        return self

    def add(
        self,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...] | None,
    ) -> None:
        """Append one record; `headers` is None if it has none."""
        count = len(self.keys)
        if self._offsets is not None:
            self._offsets.append(offset)
        elif count == 0:
            self._first = offset
        elif offset != self._first + count:
            self._offsets = [*range(self._first, self._first + count), offset]
        self.timestamps.append(timestamp_ms)
        self.keys.append(key)
        self.values.append(value)
        # The first record with headers: those before it have none.
        if headers is not None and self.headers is None:
            self.headers = [()] * count
        if self.headers is not None:
            self.headers.append(headers if headers is not None else ())

    def _part(self, run: slice) -> RecordColumns:
        part = RecordColumns()
        offsets = self.offsets[run]
        # A slice with a step has gaps.
        if isinstance(offsets, range) and offsets.step == 1:
            part._first = offsets.start
        else:
            part._offsets = list(offsets)
        part.timestamps = self.timestamps[run]
        part.keys = self.keys[run]
        part.values = self.values[run]
        part.headers = None if self.headers is None else self.headers[run]
        return part


class FieldColumns:
    """Records that have no offset yet; iteration gives (timestamp_ms, key, value, headers)."""

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(self) -> None:
        self.timestamps: list[int] = []
        """Milliseconds since 1970."""
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Sequence[tuple[str, bytes | None]]] | None = None
        """Headers of each record; None if no record has any."""

    @classmethod
    def of(cls, records: Iterable[tuple[Any, ...]]) -> FieldColumns:
        """Convert records, each (timestamp_ms, key, value, headers), to columns."""
        columns = cls()
        columns._gather(records)
        return columns

    @classmethod
    def alike(
        cls,
        timestamp_ms: int,
        keys: list[Any],
        values: list[bytes | None],
        headers: Sequence[tuple[str, bytes | None]],
    ) -> FieldColumns:
        """Make columns from keys and values; all records have one timestamp and one headers object.

        The lists are not copied, so the caller must not change them.

        Raises:
            ValueError: the lists differ in length.
        """
        if len(keys) != len(values):
            raise ValueError(f"the columns have different lengths: {len(keys)} and {len(values)}")
        columns = cls()
        columns.timestamps = [timestamp_ms] * len(keys)
        columns.keys, columns.values = keys, values
        columns.headers = [headers] * len(keys) if headers else None
        return columns

    def _gather(self, records: Iterable[tuple[Any, ...]]) -> None:
        for timestamp_ms, key, value, headers in records:
            self.append(timestamp_ms, key, value, headers)

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        headers = [()] * len(self.keys) if self.headers is None else self.headers
        return zip(self.timestamps, self.keys, self.values, headers, strict=True)

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Append one record."""
        if headers and self.headers is None:
            self.headers = [()] * len(self.keys)
        self.timestamps.append(timestamp_ms)
        self.keys.append(key)
        self.values.append(value)
        if self.headers is not None:
            self.headers.append(headers)

    def extend(
        self,
        timestamps: Sequence[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
    ) -> None:
        """Append many records; `headers` is None if none of them has any.

        Raises:
            ValueError: the columns differ in length.
        """
        count = len(keys)
        if len(timestamps) != count or len(values) != count or len(headers or keys) != count:
            raise ValueError(
                f"the columns have different lengths: {len(timestamps)}, {count} and {len(values)}"
            )
        if headers is not None and self.headers is None:
            self.headers = [()] * len(self.keys)
        if self.headers is not None:
            self.headers.extend([()] * count if headers is None else headers)
        self.timestamps.extend(timestamps)
        self.keys.extend(keys)
        self.values.extend(values)

    def part(self, start: int, stop: int) -> FieldColumns:
        """Return the records from `start` up to but not including `stop`."""
        part = FieldColumns()
        part.timestamps = self.timestamps[start:stop]
        part.keys = self.keys[start:stop]
        part.values = self.values[start:stop]
        part.headers = None if self.headers is None else self.headers[start:stop]
        return part

    def parted(self, indexes: Sequence[int], count: int) -> list[FieldColumns | None]:
        """Divide the records by index.

        Args:
            indexes: the index of each record, from 0 up to but not including `count`.
            count: the number of parts.

        Returns:
            The records of each index; None for an index without records.
        """
        parts: list[FieldColumns | None] = [None] * count
        for at in range(len(self.keys)):
            index = indexes[at]
            part = parts[index]
            if part is None:
                part = parts[index] = FieldColumns()
            part.append(
                self.timestamps[at],
                self.keys[at],
                self.values[at],
                () if self.headers is None else self.headers[at],
            )
        return parts

    def size_bytes(self) -> int:
        """Return the most bytes that the records need in a batch."""
        return self._sized(0, len(self.keys), -1)[1]

    def fitting(self, start: int, room_bytes: int) -> tuple[int, int]:
        """Return where the records from `start` on exceed `room_bytes`, and their size up to it."""
        return self._sized(start, len(self.keys), max(room_bytes, 0))

    def _sized(self, start: int, stop: int, room_bytes: int) -> tuple[int, int]:
        """Add up sizes while there is room for one more record; negative room means no limit."""
        total = 0
        # Often all records share one headers object, whose size is computed once.
        own: Any = None
        own_bytes = 0
        for at in range(start, stop):
            if self.headers is not None and self.headers[at] is not own:
                own = self.headers[at]
                own_bytes = 0
                for name, content in own or ():
                    own_bytes += _HEADER_BYTES + len(name)
                    own_bytes += len(content) if content else 0
            if at % _AHEAD == 0:
                buffer_writes.bring_near(self.keys, at)
                buffer_writes.bring_near(self.values, at)
            size = _RECORD_BYTES + own_bytes
            size += buffer_writes.content_bytes(self.keys[at]) + buffer_writes.content_bytes(
                self.values[at]
            )
            # Sizes are upper bounds: the batch of these records may be smaller than `room_bytes`.
            if room_bytes >= 0 and total + size > room_bytes:
                return at, total
            total += size
        return stop, total


def record_bytes(key: bytes | None, value: bytes | None, headers: Iterable[Any]) -> int:
    """Return the most bytes that a record needs in a batch, before compression."""
    found = _RECORD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        found += _HEADER_BYTES + len(name) + (len(content) if content else 0)
    return found


def has_none(column: Sequence[Any]) -> bool:
    """Whether an entry is None."""
    for entry in column:  # noqa: SIM110 - compiled, the loop makes no generator
        if entry is None:
            return True
    return False


def all_ascii(column: Sequence[bytes | None]) -> bool:
    """Whether every entry is None, or bytes below 128."""
    for entry in column:  # noqa: SIM110 - compiled, the loop makes no generator
        if entry is not None and not packing.is_ascii(entry):
            return False
    return True


def all_of_type(column: Sequence[Any], kinds: frozenset[type]) -> bool:
    """Whether the type of each entry is in `kinds`; subclasses don't count."""
    known: Any = None  # The type of the entry before: nearly always, all entries have one type.
    for entry in column:
        if type(entry) is not known:
            known = type(entry)
            if known not in kinds:
                return False
    return True


def called(fn: Callable[[Any], Any], column: Sequence[Any]) -> list[Any]:
    """Return the function's result for each entry; None stays None."""
    found: list[Any] = []
    for entry in column:
        found.append(None if entry is None else fn(entry))  # noqa: PERF401 - compiled, it is faster
    return found


def total_bytes(column: Iterable[bytes | None]) -> int:
    """Return the total size of the entries; None counts 0."""
    if type(column) is list:
        found = buffer_writes.plain_bytes(column, 0, len(column))
        if found >= 0:
            return found
    found = 0
    for entry in column:
        if entry is not None:
            found += len(entry)
    return found


def suffixed(
    column: Sequence[bytes], owners: Sequence[Any], of: Callable[[bytes], bytes]
) -> list[bytes]:
    """Return each entry followed by `of(owner.suffix)`, where `owner` is its entry in `owners`.

    Results of `of` are remembered: many owners share a suffix.
    """
    made: dict[bytes, bytes] = {}
    found: list[bytes] = []
    last: Any = None
    suffix: Any = b""
    for at in range(len(column)):
        owner = owners[at]
        # By identity: consecutive entries often have one owner.
        if owner is not last:
            last = owner
            whole = owner.suffix
            suffix = made.get(whole)
            if suffix is None:
                suffix = made[whole] = of(whole)
        found.append(packing.joined(column[at], suffix))
    return found


def first_outside(numbers: Sequence[int], lowest: int, highest: int) -> int:
    """Return the index of the first number outside of lowest..highest; -1 if there is none."""
    for at in range(len(numbers)):
        number = numbers[at]
        if number < lowest or number > highest:
            return at
    return -1


def running_max(numbers: Sequence[int], initial: int) -> list[int]:
    """Return, for each index, the largest number up to there, or `initial` if that is larger."""
    try:
        return _running_max(numbers, initial)
    except OverflowError:  # The compiled loop counts with 64 bits.
        return list(accumulate(numbers, max, initial=initial))[1:]


def _running_max(numbers: Sequence[int], initial: int) -> list[int]:
    found: list[int] = []
    largest = initial
    # The int object of the largest is reused: a new one for each index would cost an allocation.
    holder: Any = initial
    for number in numbers:
        value = number
        if value > largest:
            largest = value
            holder = number
        found.append(holder)
    return found
