"""Records as columns: what was read of a partition, what is to be written, and looks at a column.

A record as an object of its own costs more than what is done with it, wherever thousands pass by.
So a batch is decoded to columns and encoded from columns, and what is in between may hand them on
as they are; whoever wants one record asks for it. `sizes` in bytes are those before compression.

The rule of the file: it may be compiled, and says the same in both builds; of content it asks for
no more than whether it is there and how long it is, as `==` and the like may be the user's.
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
    "running_max",
    "suffixed",
    "total_bytes",
]

RECORD_OVERHEAD_BYTES = 21
"""Most that a record needs beside its bytes: length, attributes, deltas, three lengths."""
HEADER_OVERHEAD_BYTES = 10

_RECORD_BYTES = RECORD_OVERHEAD_BYTES  # C integers when compiled
_HEADER_BYTES = HEADER_OVERHEAD_BYTES
_AHEAD = buffer_writes.AHEAD


class RecordColumns:
    """Records of one partition in offset order; iterated over or indexed, it gives `Record`s."""

    __slots__ = ("_first", "_offsets", "headers", "keys", "timestamps", "values")

    def __init__(self) -> None:
        self.timestamps: list[int] = []
        """Milliseconds since 1970."""
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[tuple[tuple[str, bytes | None], ...]] | None = None
        """None: no record has any."""
        # Offsets mostly follow on each other, and are no list as long as they do.
        self._first = 0
        self._offsets: list[int] | None = None

    @classmethod
    def of(cls, records: Iterable[LogRecord]) -> RecordColumns:
        """The records as columns; columns are given back as they are."""
        if isinstance(records, RecordColumns):
            return records
        columns = cls()
        for offset, timestamp_ms, key, value, headers in records:
            columns.add(offset, timestamp_ms, key, value, headers or None)
        return columns

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets: a range, or a list if some are missing between them."""
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
        """Those that follow, behind these."""
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
        """One record more; None for no headers."""
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
        if headers is not None and self.headers is None:
            self.headers = [()] * count
        if self.headers is not None:
            self.headers.append(headers if headers is not None else ())

    def _part(self, run: slice) -> RecordColumns:
        part = RecordColumns()
        offsets = self.offsets[run]
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
    """Records that have no offset yet; iterated over, it gives (timestamp, key, value, headers)."""

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(self) -> None:
        self.timestamps: list[int] = []
        """Milliseconds since 1970."""
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Sequence[tuple[str, bytes | None]]] | None = None
        """None: no record has any."""

    @classmethod
    def of(cls, records: Iterable[tuple[Any, ...]]) -> FieldColumns:
        """The records as columns."""
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
        """Records of keys and values, all of one time and with the same headers.

        The lists are not copied: whoever gives them leaves them as they are.

        Raises:
            ValueError: the columns are not of one length.
        """
        if len(keys) != len(values):
            raise ValueError(f"columns of {len(keys)} and {len(values)} entries")
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
        """One record more."""
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
        """Many records more; None for no headers at all.

        Raises:
            ValueError: the columns are not of one length.
        """
        count = len(keys)
        if len(timestamps) != count or len(values) != count or len(headers or keys) != count:
            raise ValueError(f"columns of {len(timestamps)}, {count} and {len(values)} entries")
        if headers is not None and self.headers is None:
            self.headers = [()] * len(self.keys)
        if self.headers is not None:
            self.headers.extend([()] * count if headers is None else headers)
        self.timestamps.extend(timestamps)
        self.keys.extend(keys)
        self.values.extend(values)

    def part(self, start: int, stop: int) -> FieldColumns:
        """The records from `start` up to but not including `stop`."""
        part = FieldColumns()
        part.timestamps = self.timestamps[start:stop]
        part.keys = self.keys[start:stop]
        part.values = self.values[start:stop]
        part.headers = None if self.headers is None else self.headers[start:stop]
        return part

    def parted(self, places: Sequence[int], count: int) -> list[FieldColumns | None]:
        """The records by the place that each has been given, 0 up to `count`; None for none."""
        parts: list[FieldColumns | None] = [None] * count
        for at in range(len(self.keys)):
            place = places[at]
            part = parts[place]
            if part is None:
                part = parts[place] = FieldColumns()
            part.append(
                self.timestamps[at],
                self.keys[at],
                self.values[at],
                () if self.headers is None else self.headers[at],
            )
        return parts

    def size_bytes(self) -> int:
        """About what all of them take in a batch."""
        return self._sized(0, len(self.keys), -1)[1]

    def fitting(self, start: int, room_bytes: int) -> tuple[int, int]:
        """Up to where the records from `start` on fit in, and what these take."""
        return self._sized(start, len(self.keys), max(room_bytes, 0))

    def _sized(self, start: int, stop: int, room_bytes: int) -> tuple[int, int]:
        """Sizes added up until there is no room for one more; negative room has no end."""
        total = 0
        # Often all have the same headers, the very same object.
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
            if room_bytes >= 0 and total + size > room_bytes:
                return at, total
            total += size
        return stop, total


def has_none(column: Sequence[Any]) -> bool:
    """Whether an entry is None."""
    for entry in column:  # noqa: SIM110 - compiled, the loop makes no generator
        if entry is None:
            return True
    return False


def all_ascii(column: Sequence[bytes | None]) -> bool:
    """Whether no entry has a byte beyond 127, nor is anything but bytes or None."""
    for entry in column:  # noqa: SIM110 - compiled, the loop makes no generator
        if entry is not None and not packing.is_ascii(entry):
            return False
    return True


def all_of_type(column: Sequence[Any], kinds: frozenset[type]) -> bool:
    """Whether each entry is of one of the types themselves, and of none derived from them."""
    known: Any = None  # The one before: nearly always, all are of one type.
    for entry in column:
        if type(entry) is not known:
            known = type(entry)
            if known not in kinds:
                return False
    return True


def called(fn: Callable[[Any], Any], column: Sequence[Any]) -> list[Any]:
    """What the function gives for each entry that is not None; None stays None."""
    found: list[Any] = []
    for entry in column:
        found.append(None if entry is None else fn(entry))  # noqa: PERF401 - compiled, it is faster
    return found


def total_bytes(column: Iterable[bytes | None]) -> int:
    """What the entries take together."""
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
    """Each entry with what `of` makes of its owner's `suffix` behind it.

    Many have the same one, if not their neighbours.
    """
    made: dict[bytes, bytes] = {}
    found: list[bytes] = []
    last: Any = None
    suffix: Any = b""
    for at in range(len(column)):
        owner = owners[at]
        if owner is not last:
            last = owner
            whole = owner.suffix
            suffix = made.get(whole)
            if suffix is None:
                suffix = made[whole] = of(whole)
        found.append(packing.joined(column[at], suffix))
    return found


def first_outside(numbers: Sequence[int], lowest: int, highest: int) -> int:
    """Where the first number stands that is not in lowest..highest; -1 if there is none."""
    for at in range(len(numbers)):
        number = numbers[at]
        if number < lowest or number > highest:
            return at
    return -1


def running_max(numbers: Sequence[int], initial: int) -> list[int]:
    """The largest so far at each place, `initial` included."""
    try:
        return _running_max(numbers, initial)
    except OverflowError:  # beyond what the compiled loop counts with
        return list(accumulate(numbers, max, initial=initial))[1:]


def _running_max(numbers: Sequence[int], initial: int) -> list[int]:
    found: list[int] = []
    largest = initial
    # The object is handed on, not made anew for each place.
    holder: Any = initial
    for number in numbers:
        value = number
        if value > largest:
            largest = value
            holder = number
        found.append(holder)
    return found
