"""KeyValueStore, the port of every store, and the layouts of keys.

One store holds the whole state of a task: the named stores of the topology share it, each under its
own prefix, so one atomic write covers all of them and the progress. Keys are ordered bytes, and
their layout is the order in which state is read: a window key begins with the end of the window, so
closing windows is one scan. A key that is followed by other bytes is escaped (00 becomes 00 FF, and
00 01 ends it), so the order of escaped keys is that of the keys. `ordered_serde` encodes numbers
and times as bytes that sort like them, for ranges; on topics keys are Kafka's. Rule of the module:
these layouts are in changelogs and never change. Not done here: caching and rollback
(`tables/state`), values' types.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias

import msgspec

from streamlog.errors import SerdeError, TopologyError
from streamlog.serdes import BytesSerde, FloatSerde, IntSerde, StrSerde, serde_for
from streamlog.serdes.erased_types import AnySerde
from streamlog.tables.folds.folding import let_go

_UNSIGNED = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def ordered_serde(declared: object) -> tuple[AnySerde, bool]:
    """Return the serde for store keys of this type, and whether its bytes sort like the keys.

    Raises:
        SerdeError: there is no serde for the type.
    """
    if declared is datetime:
        return OrderedMoment(), True
    serde = serde_for(declared)
    match serde:
        case IntSerde():
            return OrderedInt(), True
        case FloatSerde():
            return OrderedFloat(), True
        case _:
            return serde, isinstance(serde, StrSerde | BytesSerde)


class OrderedInt:
    """A signed integer of 64 bits, shifted to an unsigned one."""

    def dumps(self, obj: int) -> bytes:
        """Return eight bytes."""
        IntSerde().dumps(obj)  # Refuses anything but an integer of 64 bits.
        return _UNSIGNED.pack(obj + _SIGN)

    def loads(self, data: bytes) -> int:
        """Return the integer."""
        return _unpack(data) - _SIGN


class OrderedFloat:
    """A double: all bits of negative numbers inverted, the sign bit of the others."""

    def dumps(self, obj: float) -> bytes:
        """Return eight bytes; -0.0 becomes 0.0.

        Raises:
            SerdeError: the number is NaN, which has no order.
        """
        data = FloatSerde().dumps(obj)  # Refuses anything but a number.
        number: float = _DOUBLE.unpack(data)[0]
        if math.isnan(number):
            raise SerdeError("nan can't be a key: it equals nothing, not even itself")
        # -0.0 + 0.0 is 0.0: the two are equal, so they must have equal bytes.
        bits: int = _UNSIGNED.unpack(_DOUBLE.pack(number + 0.0))[0]
        return _UNSIGNED.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))

    def loads(self, data: bytes) -> float:
        """Return the double."""
        bits = _unpack(data)
        number: float = _DOUBLE.unpack(_UNSIGNED.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))[0]
        return number


class OrderedMoment:
    """An aware datetime as microseconds since 1970; it is decoded in UTC."""

    def dumps(self, obj: datetime) -> bytes:
        """Return eight bytes."""
        if not isinstance(obj, datetime) or obj.tzinfo is None:
            raise SerdeError(f"the key must be a datetime with a time zone, not {obj!r}")
        return _UNSIGNED.pack((obj - _EPOCH) // _MICROSECOND + _SIGN)

    def loads(self, data: bytes) -> datetime:
        """Return the moment in UTC."""
        return _EPOCH + (_unpack(data) - _SIGN) * _MICROSECOND


def _unpack(data: bytes) -> int:
    if len(data) != _UNSIGNED.size:
        raise SerdeError(f"a key of {_UNSIGNED.size} bytes expected, got {data!r}")
    number: int = _UNSIGNED.unpack(data)[0]
    return number


Change: TypeAlias = tuple[bytes, bytes | None]
"""A key and its new value; None deletes."""

STORE_NAME_BYTES_MAX = 255
"""A store's name precedes each of its keys, after one byte with its length."""

_SPAN = struct.Struct(">QQ")
_END = struct.Struct(">Q")


Run: TypeAlias = tuple[list[bytes], list[bytes | None], int, int]
"""Keys, values, and the index range that belongs to the run: start, and end (exclusive)."""


class Changes:
    """Changes as columns, each key once; iteration yields each one as a `Change`.

    A commit of many rows passes on two lists instead of a tuple for each row. Taking a part, or
    appending one more change, copies nothing: a copy would touch every key and value, most of which
    are no longer in the processor's caches.
    """

    __slots__ = ("_keys", "_start", "_stop", "_values", "head")

    def __init__(
        self,
        keys: list[bytes] | None = None,
        values: list[bytes | None] | None = None,
        head: Changes | None = None,
    ) -> None:
        """Keeps the lists and does not copy them: do not change them afterwards.

        Raises:
            ValueError: the columns differ in length.
        """
        self._keys: list[bytes] = [] if keys is None else keys
        self._values: list[bytes | None] = [] if values is None else values
        if len(self._keys) != len(self._values):
            raise ValueError(f"columns of {len(self._keys)} and {len(self._values)} entries")
        self._start, self._stop = 0, len(self._keys)
        self.head = head
        """Changes that precede these, which are not copied; None if there are none."""

    @classmethod
    def of(cls, changes: Iterable[Change]) -> Changes:
        """Return the changes as columns, the last one of each key; columns are returned as is."""
        if isinstance(changes, Changes):
            return changes
        found = dict(changes)
        return cls(list(found), list(found.values()))

    def __len__(self) -> int:
        own = self._stop - self._start
        return own if self.head is None else own + len(self.head)

    def __iter__(self) -> Iterator[Change]:
        for keys, values, start, stop in self.runs():
            yield from zip(keys[start:stop], values[start:stop], strict=True)

    def runs(self) -> Iterator[Run]:
        """Iterate over all changes in order, as they are stored, without copying."""
        if self.head is not None:
            yield from self.head.runs()
        if self._start < self._stop:
            yield self._keys, self._values, self._start, self._stop

    @property
    def row_keys(self) -> list[bytes]:
        """The keys, as a new list."""
        return [key for keys, _, start, stop in self.runs() for key in keys[start:stop]]

    @property
    def row_values(self) -> list[bytes | None]:
        """The values, as a new list."""
        return [value for _, values, start, stop in self.runs() for value in values[start:stop]]

    @property
    def last_key(self) -> bytes | None:
        """The last key; None if there are no changes."""
        if self._start < self._stop:
            return self._keys[self._stop - 1]
        return None if self.head is None else self.head.last_key

    def part(self, start: int, stop: int) -> Changes:
        """Return the changes from index `start` up to but not including `stop`."""
        # A head of 3 changes and 2 of its own, indexes 0 to 4:
        # 1. part(0, 3) lies within the head, which answers alone.
        # 2. part(2, 4) takes index 2 from the head, and the first of its own.
        # 3. part(3, 5) has no head.
        cut = 0 if self.head is None else len(self.head)
        if self.head is not None and stop <= cut:
            return self.head.part(start, stop)
        own = Changes.__new__(Changes)
        own._keys, own._values = self._keys, self._values  # noqa: SLF001 - its own
        own._start = min(self._start + max(start - cut, 0), self._stop)  # noqa: SLF001 - as above
        own._stop = max(min(self._start + stop - cut, self._stop), own._start)  # noqa: SLF001 - as above
        own.head = None if self.head is None or start >= cut else self.head.part(start, cut)
        return own

    def let_go(self) -> None:
        """Free all keys and values; the length stays known."""
        for keys, values, _, _ in self.runs():
            let_go(keys)
            let_go(values)

    def followed_by(self, key: bytes, value: bytes | None) -> Changes:
        """Return these changes and one more."""
        return Changes([key], [value], head=self)


class KeyValueStore(Protocol):
    """Port: an ordered map of bytes to bytes, the state of one task.

    Keys are compared byte by byte. There is one writer, and no other reader.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None if there is none."""

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key; None for a key that has none."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys from `low` up to but not including `high` (None: to the end), in order.

        The scan shows the store as it was at the call, whatever is written meanwhile.
        """

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high` (None: to the end)."""

    def write(self, changes: Iterable[Change]) -> None:
        """Apply the changes in their order: all of them or, after a crash, none."""

    def close(self) -> None:
        """Release everything; the store can't be used afterwards. Closing twice is harmless."""


class StoreSpec(msgspec.Struct, frozen=True):
    """A named store of a topology; its name is the identity of its state.

    Raises:
        TopologyError: the name is empty or longer than 255 bytes.
    """

    name: str

    def __post_init__(self) -> None:
        if not 0 < len(self.name.encode()) <= STORE_NAME_BYTES_MAX:
            raise TopologyError(
                f"a store needs a name of 1 to {STORE_NAME_BYTES_MAX} bytes, not {self.name!r}"
            )

    @property
    def prefix(self) -> bytes:
        """The prefix of all keys of this store, and of no key of another store."""
        name = self.name.encode()
        return bytes((len(name),)) + name


class NamedStore:
    """One named store inside the store of its task: the same keys without their prefix."""

    __slots__ = ("_end", "_prefix", "_store")

    def __init__(self, store: KeyValueStore, spec: StoreSpec) -> None:
        self._store = store
        self._prefix = spec.prefix
        self._end = prefix_end(self._prefix)

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None if there is none."""
        return self._store.get(self._prefix + key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key; None for a key that has none."""
        return self._store.get_all([self._prefix + key for key in keys])

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self._store.put(self._prefix + key, value)

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._store.delete(self._prefix + key)

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over this store's keys from `low` up to but not including `high`, in order."""
        cut = len(self._prefix)
        pairs = self._store.range(self._prefix + low, self._bound(high))
        return ((key[cut:], value) for key, value in pairs)

    def delete_range(self, low: bytes = b"", high: bytes | None = None) -> None:
        """Remove the keys of this store from `low` up to but not including `high`."""
        self._store.delete_range(self._prefix + low, self._bound(high))

    def _bound(self, high: bytes | None) -> bytes | None:
        return self._end if high is None else self._prefix + high


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the smallest key after all keys with this prefix; None if there is none."""
    # A byte FF has no successor: the last byte below FF is incremented, and the rest dropped.
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None


def window_key(end_ms: int, start_ms: int, key: bytes) -> bytes:
    """Return the key of a window's row, ordered by (end, start, key).

    Both times are milliseconds since the epoch, in [0, 2^63).
    """
    return _SPAN.pack(end_ms, start_ms) + key


def split_window_key(data: bytes) -> tuple[int, int, bytes]:
    """Return end, start and key from the result of `window_key`."""
    end_ms, start_ms = _SPAN.unpack_from(data)
    return end_ms, start_ms, data[_SPAN.size :]


def window_bound(end_ms: int) -> bytes:
    """Return the smallest key of a window that ends at `end_ms` or later; negative counts as 0.

    `range(b"", window_bound(t + 1))` contains the rows of the windows that end at `t` or before.
    """
    return _END.pack(max(end_ms, 0))


TIME_MS_MAX = 2**63 - 1
TIME_MS_MIN = -(2**63)

_TIME = struct.Struct(">Q")
_TIMES = struct.Struct(">QQ")
_SHIFT = 1 << 63
_ZERO, _ESCAPED, _KEY_END = b"\x00", b"\x00\xff", b"\x00\x01"


def escape_key(key: bytes) -> bytes:
    """Return the key as bytes that other bytes may follow."""
    return key.replace(_ZERO, _ESCAPED) + _KEY_END


def unescape_key(data: bytes) -> tuple[bytes, int]:
    """Return the key at the beginning of these bytes, and the index after it."""
    end = data.index(_KEY_END)  # Within the key, FF follows every zero.
    return data[:end].replace(_ESCAPED, _ZERO), end + len(_KEY_END)


def time_bytes(time_ms: int) -> bytes:
    """Return a time as ordered bytes; a time beyond 64 bits is clamped."""
    return _TIME.pack(min(max(time_ms, TIME_MS_MIN), TIME_MS_MAX) + _SHIFT)


def time_at(data: bytes, position: int = 0) -> int:
    """Return the time that `time_bytes` has written at this position."""
    time_ms: int = _TIME.unpack_from(data, position)[0]
    return time_ms - _SHIFT


def span_bytes(first_ms: int, second_ms: int) -> bytes:
    """Return two times as bytes, ordered by both; both have to be within 64 bits."""
    return _TIMES.pack(first_ms + _SHIFT, second_ms + _SHIFT)


def span_at(data: bytes, position: int) -> tuple[int, int]:
    """Return the times that `span_bytes` has written at this position."""
    first, second = _TIMES.unpack_from(data, position)
    return first - _SHIFT, second - _SHIFT
