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

    `encode` and `decode` are `dumps` and `loads` without their checks, for whole columns
    (`processing/column_batch`). They are correct for values of the types in `exact`; for any other
    value they raise an error that names neither type nor data.
    """

    encode = staticmethod(str.encode)
    decode = staticmethod(bytes.decode)
    exact = frozenset({str})
    declared = str

    def dumps(self, obj: str) -> bytes:
        """Encode text; lone surrogates, which UTF-8 lacks, are refused."""
        if not isinstance(obj, str):
            raise wrong_type_error("str", obj)
        try:
            return obj.encode()
        except UnicodeEncodeError as error:
            raise SerdeError(f"text can't be written as UTF-8: {error}") from error

    def loads(self, data: bytes) -> str:
        """Decode text; bytes that are not UTF-8 are refused."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise unreadable_error("str", data, str(error)) from error


class BytesSerde:
    """Bytes, written without a change."""

    declared = bytes

    def dumps(self, obj: bytes) -> bytes:
        """Return the object itself; anything but `bytes`, such as a bytearray, is refused."""
        if not isinstance(obj, bytes):
            raise wrong_type_error("bytes", obj)
        return obj

    def loads(self, data: bytes) -> bytes:
        """Return the data itself."""
        return data


class IntSerde:
    """A signed integer of 64 bits in 8 bytes, big-endian: Kafka's LongSerializer."""

    encode = staticmethod(_LONG.pack)
    exact = frozenset({int})
    declared = int

    def dumps(self, obj: int) -> bytes:
        """Return eight bytes; a `bool` and an integer beyond 64 bits are refused."""
        if not isinstance(obj, int) or isinstance(obj, bool):
            raise wrong_type_error("int", obj)
        try:
            return _LONG.pack(obj)
        except struct.error as error:
            raise SerdeError(
                f"an int of {obj.bit_length()} bits does not fit into the 8 bytes of int"
            ) from error

    def loads(self, data: bytes) -> int:
        """Return the integer that exactly eight bytes hold."""
        if len(data) != _LONG.size:
            raise unreadable_error("int", data, f"{_LONG.size} bytes expected, got {len(data)}")
        return cast("int", _LONG.unpack(data)[0])


class WideIntSerde(IntSerde):
    """An integer of any size: the state of an aggregation, because sums grow.

    An integer within 64 bits has the bytes of `IntSerde`; a larger one has nine or more, so the
    length tells them apart.
    """

    form = "IntSerde"
    """Equal to that of `IntSerde`, because it reads all that `IntSerde` has written."""

    def dumps(self, obj: int) -> bytes:
        """Return eight bytes or more; a `bool` is refused."""
        if type(obj) is int and not LONG_MIN <= obj <= LONG_MAX:
            # One bit more than the number has, for the sign: 2**63 takes nine bytes.
            return obj.to_bytes(obj.bit_length() // 8 + 1, "big", signed=True)
        return super().dumps(obj)

    def loads(self, data: bytes) -> int:
        """Return the integer that eight or more bytes hold."""
        if len(data) > _LONG.size:
            return int.from_bytes(data, "big", signed=True)
        return super().loads(data)


class FloatSerde:
    """A double in 8 bytes, big-endian: Kafka's DoubleSerializer."""

    declared = float

    def dumps(self, obj: float) -> bytes:
        """Return eight bytes; an `int` is written as the nearest float."""
        if not isinstance(obj, float | int) or isinstance(obj, bool):
            raise wrong_type_error("float", obj)
        try:
            return _DOUBLE.pack(obj)
        except struct.error as error:
            raise SerdeError("an int this large does not fit into a float") from error

    def loads(self, data: bytes) -> float:
        """Return the float that exactly eight bytes hold."""
        if len(data) != _DOUBLE.size:
            raise unreadable_error("float", data, f"{_DOUBLE.size} bytes expected, got {len(data)}")
        return cast("float", _DOUBLE.unpack(data)[0])
