"""Plain values as MessagePack, for values that are serialized without a declared type.

MessagePack lacks whole numbers beyond 64 bits, which are an extension here. A value of a declared
type that contains one begins with a byte that no MessagePack begins with. Tuples, sets and times
are extensions too.

Rule: a value is read back with its exact types and numbers; a value for which that is impossible is
refused with advice. Extension codes are on disk and never change.
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
"""The type of a value that is read."""

WIDE = 2
"""The extension for a whole number beyond 64 bits: a signed integer, big-endian."""
PAIRS = 3
"""The extension for a dict with an extension among its keys: a list of pairs."""
HEAD = b"\xc1"
"""The first byte of a value with wide numbers; MessagePack never uses it."""
_BITS = 64
_KEPT = (bytes, bytearray, datetime)
"""Types that MessagePack has, in addition to those of JSON."""

_encode = msgspec.msgpack.Encoder().encode


def wide_number(number: int) -> msgspec.msgpack.Ext:
    """Return the extension that holds a number of any size."""
    # A signed number needs one bit more than `bit_length` counts: 2**63 takes nine bytes.
    size_bytes = number.bit_length() // 8 + 1
    return msgspec.msgpack.Ext(WIDE, number.to_bytes(size_bytes, "big", signed=True))


def is_wide(number: int) -> bool:
    """Return whether a number is beyond the 64 bits of MessagePack."""
    return not -(1 << (_BITS - 1)) <= number < 1 << _BITS


def read_extension(code: int, data: memoryview) -> object:
    """Return the number, or the dict, that an extension holds; for msgspec's `ext_hook`.

    Raises:
        SerdeError: the code is of an extension that is not ours.
    """
    if code == WIDE:
        return int.from_bytes(data, "big", signed=True)
    if code == PAIRS:
        return dict(_decode_wide(data))
    raise SerdeError(f"unknown extension {code} in a packed value")


_decode_wide = msgspec.msgpack.Decoder(ext_hook=read_extension).decode


def dump_wide(value: object) -> bytes:
    """Serialize a value that MessagePack has refused because of a whole number beyond 64 bits."""
    return HEAD + _encode(_mark_wide(msgspec.to_builtins(value, builtin_types=_KEPT)))


def load_wide(data: bytes, declared: type[T]) -> T:
    """Deserialize a value that `dump_wide` has written, as this type.

    Raises:
        MsgspecError: the value is not of the type.
    """
    return msgspec.convert(_decode_wide(data[len(HEAD) :]), declared)


def decoder(declared: object) -> Callable[[bytes], UserValue]:
    """Return a function that reads MessagePack as this type, with or without wide numbers."""
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
        # `True` is an int too, but never wide.
        if any(isinstance(key, int) and is_wide(key) for key in plain):
            # An extension can't be a key.
            pairs = [(_mark_wide(key), _mark_wide(part)) for key, part in plain.items()]
            return msgspec.msgpack.Ext(PAIRS, _encode(pairs))
        return {key: _mark_wide(part) for key, part in plain.items()}
    return plain


_TUPLE = 1
"""The extension for a tuple, which MessagePack would read back as a list."""
_SET, _FROZENSET = 4, 5
_AS_TEXT: dict[type, tuple[int, Callable[[str], object]]] = {
    Decimal: (6, Decimal),
    datetime: (7, datetime.fromisoformat),
    date: (8, date.fromisoformat),
    time: (9, time.fromisoformat),
}
"""Extensions that hold the text of a value, by type. MessagePack itself has aware datetimes."""
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
"""Types whose values are read back without a declared type."""

_PLAIN = frozenset({str, bytes, float, bool, type(None)})
"""Types whose values MessagePack writes all exactly, so that none needs a mark."""


class PackedSerde:
    """Plain values of any kind: text, bytes, numbers, times, tuples, lists, sets, dicts.

    `encode` is `dumps` for values of the `exact` types, and `decode` is `loads`, for whole columns;
    their errors name neither type nor data.
    """

    exact = frozenset({str, bytes, int, float, bool, type(None)})
    form = "PackedSerde"

    def __init__(self, maker: str = "") -> None:
        """`maker` names the function that returns the values, for messages."""
        self._maker = maker

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedSerde)

    def __hash__(self) -> int:
        return hash(PackedSerde)

    encode = staticmethod(_encode)

    @property
    def decode(self) -> Callable[[bytes], UserValue]:
        """Like `loads`, with the errors of msgspec."""
        return _decode

    def dumps(self, obj: object) -> bytes:
        """Serialize a value, with marks for the types that MessagePack lacks."""
        try:
            return _encode(obj if type(obj) in _PLAIN else _packable(obj))
        except _UndeclaredError as error:
            maker = self._maker or "the function before"
            raise SerdeError(
                f"a value of type {error} must be stored here, but its type is not declared: "
                f"annotate what {maker} returns, as in `def to_sale(...) -> Sale` (a lambda can't "
                "be annotated), or send it through a topic with declared types"
            ) from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SerdeError(
                f"a value of type {type(obj).__name__} can't be written: {error}"
            ) from error

    def loads(self, data: bytes) -> UserValue:
        """Deserialize a value, with its exact types."""
        try:
            return _decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise SerdeError(f"not a packed value: {error}; the data is {data[:48]!r}") from error


PACKED = PackedSerde()


@lru_cache(maxsize=256)
def msgpack_serde_of(maker: str) -> PackedSerde:
    """Return the serde for results of a function without a known return type."""
    return PackedSerde(maker)


class _UndeclaredError(Exception):
    """A value could not be read back with its type; the message is the name of its class."""


def _packable(obj: object) -> object:
    """Return a value for MessagePack, with marks for types that it lacks.

    Raises:
        _UndeclaredError: the class of a part would be lost.
    """
    kind = type(obj)
    if kind in _PLAIN:
        return obj
    if kind is int:
        number = cast("int", obj)
        return wide_number(number) if is_wide(number) else number
    # MessagePack's timestamp is a moment, and is read back with a time zone; a datetime without one
    # is written as text.
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
    """Return a set with its items in the order of their bytes, so that equal sets have equal bytes.

    A set may be a part of a key.
    """
    # Items of different types can't be compared, but their bytes can.
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
