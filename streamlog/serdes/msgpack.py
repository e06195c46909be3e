"""Plain values as MessagePack, for what is serialized without a declared type.

Whole numbers beyond 64 bits, which MessagePack lacks, are an extension: such a value begins with a
byte that begins no MessagePack. Rule: values are read back exactly as they were, number by number;
a value that cannot be is refused with advice, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TypeVar, cast

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes.erased_types import UserObject, UserValue

T = TypeVar("T")
"""What is read."""

WIDE = 2
"""The code of the extension: a signed integer, big-endian."""
PAIRS = 3
"""A dict with such a number for a key, as a list of pairs."""
HEAD = b"\xc1"
"""MessagePack never uses this byte."""
_BITS = 64
_KEPT = (bytes, bytearray, datetime)
"""What MessagePack writes by itself."""

_encode = msgspec.msgpack.Encoder().encode


def wide_number(number: int) -> msgspec.msgpack.Ext:
    """A number of any size."""
    size_bytes = number.bit_length() // 8 + 1
    return msgspec.msgpack.Ext(WIDE, number.to_bytes(size_bytes, "big", signed=True))


def is_wide(number: int) -> bool:
    """Whether MessagePack does not have it."""
    return not -(1 << (_BITS - 1)) <= number < 1 << _BITS


def read_extension(code: int, data: memoryview) -> object:
    """The number, or the dict with such numbers for keys; for msgspec's `ext_hook`.

    Raises:
        SerdeError: it is an extension of somebody else.
    """
    if code == WIDE:
        return int.from_bytes(data, "big", signed=True)
    if code == PAIRS:
        return dict(_decode_wide(data))
    raise SerdeError(f"unknown extension {code} in a packed value")


_decode_wide = msgspec.msgpack.Decoder(ext_hook=read_extension).decode


def dump_wide(value: object) -> bytes:
    """A value with whole numbers of any size in it; `encode` of MessagePack has refused it."""
    return HEAD + _encode(_mark_wide(msgspec.to_builtins(value, builtin_types=_KEPT)))


def load_wide(data: bytes, declared: type[T]) -> T:
    """What `dump_wide` wrote, as this type.

    Raises:
        MsgspecError: it is not of the type.
    """
    return msgspec.convert(_decode_wide(data[len(HEAD) :]), declared)


def decoder(declared: object) -> Callable[[bytes], UserValue]:
    """Reads MessagePack as this type, with or without wide numbers."""
    kind = cast("type[UserObject]", declared)
    plain = msgspec.msgpack.Decoder(kind).decode

    def loads(data: bytes) -> UserValue:
        return load_wide(data, kind) if data[:1] == HEAD else plain(data)

    return loads


def _mark_wide(plain: object) -> object:
    if isinstance(plain, int):
        return wide_number(plain) if is_wide(plain) else plain
    if isinstance(plain, list | tuple):
        return [_mark_wide(part) for part in plain]
    if isinstance(plain, dict):
        if any(isinstance(key, int) and is_wide(key) for key in plain):
            # An extension can't be a key.
            pairs = [(_mark_wide(key), _mark_wide(part)) for key, part in plain.items()]
            return msgspec.msgpack.Ext(PAIRS, _encode(pairs))
        return {key: _mark_wide(part) for key, part in plain.items()}
    return plain


_TUPLE = 1
"""MessagePack has no tuples: they are an extension, so that they come back as tuples."""
_SET, _FROZENSET = 4, 5
_AS_TEXT: dict[type, tuple[int, Callable[[str], object]]] = {
    Decimal: (6, Decimal),
    datetime: (7, datetime.fromisoformat),
    date: (8, date.fromisoformat),
    time: (9, time.fromisoformat),
}
"""Types that are an extension with their text in it; a datetime only if it has no zone."""
_TIMEDELTA = 10
_READ_TEXT = dict(_AS_TEXT.values())
PACKABLE: tuple[type, ...] = (
    str,
    bytes,
    int,
    float,
    bool,
    type(None),
    tuple,
    list,
    dict,
    set,
    frozenset,
    timedelta,
    *_AS_TEXT,
)
"""What comes back as it was without a declared type."""

_PLAIN = frozenset({str, bytes, float, bool, type(None)})
"""Types of which MessagePack has every value."""


class PackedSerde:
    """Plain values of any kind: text, bytes, numbers, times, tuples, lists, sets, dicts.

    `encode` is `dumps` for values of the `exact` types, and `decode` is `loads`; both tell less
    when they fail.
    """

    exact = frozenset({str, bytes, int, float, bool, type(None)})
    form = "PackedSerde"

    def __init__(self, maker: str = "") -> None:
        """`maker` tells which function the values come from, for messages."""
        self._maker = maker

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedSerde)

    def __hash__(self) -> int:
        return hash(PackedSerde)

    encode = staticmethod(_encode)

    @property
    def decode(self) -> Callable[[bytes], UserValue]:
        """See `loads`."""
        return _decode

    def dumps(self, obj: object) -> bytes:
        """The value as MessagePack."""
        try:
            return _encode(obj if type(obj) in _PLAIN else _packable(obj))
        except _UndeclaredError as error:
            maker = self._maker or "the function before"
            raise SerdeError(
                f"a {error} has to be written down here, but its type is not known: annotate what "
                f"{maker} returns, as in `def to_sale(...) -> Sale` (a lambda can't be "
                "annotated), or send it through a topic with declared types"
            ) from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SerdeError(f"a {type(obj).__name__} can't be written: {error}") from error

    def loads(self, data: bytes) -> UserValue:
        """The value, as it was."""
        try:
            return _decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise SerdeError(f"not a packed value: {error}; the data is {data[:48]!r}") from error


PACKED = PackedSerde()


@lru_cache(maxsize=256)
def msgpack_serde_of(maker: str) -> PackedSerde:
    """The serde of values that come from a function whose type is not known."""
    return PackedSerde(maker)


class _UndeclaredError(Exception):
    """A value would not come back as it was; the name of its class."""


def _packable(obj: object) -> object:
    """The value with its tuples marked; refused if it would come back as something else."""
    kind = type(obj)
    if kind in _PLAIN:
        return obj
    if kind is int:
        number = cast("int", obj)
        return wide_number(number) if is_wide(number) else number
    if isinstance(obj, datetime) and obj.tzinfo is not None:
        return obj
    make = _PACKED_BY.get(kind)
    if make is not None:
        return make(obj)
    raise _UndeclaredError(kind.__name__)


def _packable_dict(obj: dict[object, object]) -> object:
    pairs = [(_packable(key), _packable(value)) for key, value in obj.items()]
    if any(isinstance(key, msgspec.msgpack.Ext) for key, _ in pairs):
        # An extension (a tuple, a wide number) can't be a key.
        return msgspec.msgpack.Ext(PAIRS, _encode(pairs))
    return dict(pairs)


def _packable_tuple(obj: tuple[object, ...]) -> object:
    return msgspec.msgpack.Ext(_TUPLE, _encode([_packable(item) for item in obj]))


def _packable_set(obj: AbstractSet[object]) -> object:
    """In the order of the bytes: equal sets are the same key."""
    items = sorted(_encode(_packable(item)) for item in obj)
    code = _FROZENSET if isinstance(obj, frozenset) else _SET
    return msgspec.msgpack.Ext(code, _encode(items))


def _packable_timedelta(obj: timedelta) -> object:
    return msgspec.msgpack.Ext(_TIMEDELTA, _encode((obj.days, obj.seconds, obj.microseconds)))


def _packable_text(obj: object) -> object:
    code, _ = _AS_TEXT[type(obj)]
    text = str(obj) if isinstance(obj, Decimal) else cast("date", obj).isoformat()
    return msgspec.msgpack.Ext(code, text.encode())


_PACKED_BY: dict[type, Callable[[UserValue], object]] = {
    tuple: _packable_tuple,
    list: lambda obj: [_packable(item) for item in obj],
    dict: _packable_dict,
    set: _packable_set,
    frozenset: _packable_set,
    timedelta: _packable_timedelta,
    **dict.fromkeys(_AS_TEXT, _packable_text),
}


def _unpack(code: int, data: memoryview) -> object:
    if code == _TUPLE:
        return tuple(_decode(data))
    if code == PAIRS:
        return dict(_decode(data))
    if code in (_SET, _FROZENSET):
        items = map(_decode, _decode(data))
        return set(items) if code == _SET else frozenset(items)
    if code == _TIMEDELTA:
        return timedelta(*_decode(data))
    read = _READ_TEXT.get(code)
    return read_extension(code, data) if read is None else read(bytes(data).decode())


_decode = msgspec.msgpack.Decoder(ext_hook=_unpack).decode
