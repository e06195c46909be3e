"""Whole numbers beyond 64 bits, which MessagePack does not have: they are an extension of ours.

A value that has none is written as it was before. One that has starts with a byte that begins no
MessagePack; behind it stand dicts, lists and plain values, which msgspec makes the declared type
of again. Rule of the file: what is read equals what was written, number by number.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec

from streamlog.errors import SerdeError

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
        return dict(_decode(data))
    raise SerdeError(f"unknown extension {code} in a packed value")


_decode = msgspec.msgpack.Decoder(ext_hook=read_extension).decode


def dump_wide(value: object) -> bytes:
    """A value with whole numbers of any size in it; `encode` of MessagePack has refused it."""
    return HEAD + _encode(_marked(msgspec.to_builtins(value, builtin_types=_KEPT)))


def load_wide(data: bytes, declared: type[T]) -> T:
    """What `dump_wide` wrote, as this type.

    Raises:
        MsgspecError: it is not of the type.
    """
    return msgspec.convert(_decode(data[len(HEAD) :]), declared)


def decoder(declared: object) -> Callable[[bytes], Any]:
    """Reads MessagePack as this type, with or without wide numbers."""
    plain = msgspec.msgpack.Decoder(cast("type[Any]", declared)).decode

    def loads(data: bytes) -> Any:  # noqa: ANN401 - of the type
        return load_wide(data, cast("type[Any]", declared)) if data[:1] == HEAD else plain(data)

    return loads


def _marked(plain: object) -> object:
    if isinstance(plain, int):
        return wide_number(plain) if is_wide(plain) else plain
    if isinstance(plain, list | tuple):
        return [_marked(part) for part in plain]
    if isinstance(plain, dict):
        if any(isinstance(key, int) and is_wide(key) for key in plain):
            # An extension can't be a key.
            pairs = [(_marked(key), _marked(part)) for key, part in plain.items()]
            return msgspec.msgpack.Ext(PAIRS, _encode(pairs))
        return {key: _marked(part) for key, part in plain.items()}
    return plain
