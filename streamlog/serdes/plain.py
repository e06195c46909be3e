"""Text, bytes and numbers, as Kafka's own serializers write them.

`str` is UTF-8, `bytes` is itself, `int` and `float` are 8 bytes big-endian (LongSerializer,
DoubleSerializer).
"""

from __future__ import annotations

import struct
from typing import cast

from streamlog.errors import SerdeError
from streamlog.serdes.serde import unreadable_error, wrong_type_error

_LONG = struct.Struct(">q")
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
_DOUBLE = struct.Struct(">d")


class StrSerde:
    """Text as UTF-8.

    `encode` and `decode` are the same for whole columns (`processing/column_batch`): right for what
    `exact` names, and no more than an error for anything else.
    """

    encode = staticmethod(str.encode)
    decode = staticmethod(bytes.decode)
    exact = frozenset({str})
    declared = str

    def dumps(self, obj: str) -> bytes:
        """The text as UTF-8."""
        if not isinstance(obj, str):
            raise wrong_type_error("str", obj)
        try:
            return obj.encode()
        except UnicodeEncodeError as error:
            raise SerdeError(f"text can't be written as UTF-8: {error}") from error

    def loads(self, data: bytes) -> str:
        """The text; bytes that are not UTF-8 are refused."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise unreadable_error("str", data, str(error)) from error


class BytesSerde:
    """Bytes as they are."""

    declared = bytes

    def dumps(self, obj: bytes) -> bytes:
        """The same bytes."""
        if not isinstance(obj, bytes):
            raise wrong_type_error("bytes", obj)
        return obj

    def loads(self, data: bytes) -> bytes:
        """The same bytes."""
        return data


class IntSerde:
    """A signed integer of 64 bits in 8 bytes, big-endian: Kafka's LongSerializer."""

    encode = staticmethod(_LONG.pack)
    exact = frozenset({int})
    declared = int

    def dumps(self, obj: int) -> bytes:
        """Eight bytes; `bool` is refused, and so is what needs more than 64 bits."""
        if not isinstance(obj, int) or isinstance(obj, bool):
            raise wrong_type_error("int", obj)
        try:
            return _LONG.pack(obj)
        except struct.error as error:
            raise SerdeError(
                f"an int of {obj.bit_length()} bits does not fit into the 8 bytes of int"
            ) from error

    def loads(self, data: bytes) -> int:
        """The integer in exactly eight bytes."""
        if len(data) != _LONG.size:
            raise unreadable_error("int", data, f"{_LONG.size} bytes expected, got {len(data)}")
        return cast("int", _LONG.unpack(data)[0])


class WideIntSerde(IntSerde):
    """The state of an aggregation that is an int: of any size, as sums grow.

    In 64 bits it is what `IntSerde` writes; beyond, as many bytes more as it takes.
    """

    form = "IntSerde"
    """What is stored already can be read."""

    def dumps(self, obj: int) -> bytes:
        """Eight bytes or more; `bool` is refused."""
        if type(obj) is int and not LONG_MIN <= obj <= LONG_MAX:
            return obj.to_bytes(obj.bit_length() // 8 + 1, "big", signed=True)
        return super().dumps(obj)

    def loads(self, data: bytes) -> int:
        """The integer in eight bytes or more."""
        if len(data) > _LONG.size:
            return int.from_bytes(data, "big", signed=True)
        return super().loads(data)


class FloatSerde:
    """A double in 8 bytes, big-endian: Kafka's DoubleSerializer."""

    declared = float

    def dumps(self, obj: float) -> bytes:
        """Eight bytes; an `int` counts as the float it equals."""
        if not isinstance(obj, float | int) or isinstance(obj, bool):
            raise wrong_type_error("float", obj)
        try:
            return _DOUBLE.pack(obj)
        except struct.error as error:
            raise SerdeError("an int this large does not fit into a float") from error

    def loads(self, data: bytes) -> float:
        """The double in exactly eight bytes."""
        if len(data) != _DOUBLE.size:
            raise unreadable_error("float", data, f"{_DOUBLE.size} bytes expected, got {len(data)}")
        return cast("float", _DOUBLE.unpack(data)[0])
