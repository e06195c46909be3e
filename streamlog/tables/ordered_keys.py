"""Keys whose bytes are in the order of the keys, so that a range of keys is a range of bytes.

Text as UTF-8 and bytes are in order as they are. Numbers and times are not, as the wire has
them (a negative integer comes after all others): here the sign is turned round. Rule of the
file: these bytes are for stores, which nobody else reads; on topics keys are Kafka's. Keys of
any other type have no order that could be told: one key is found, a range is refused.
"""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

from streamlog.errors import SerdeError
from streamlog.serdes import BytesSerde, FloatSerde, IntSerde, Serde, StrSerde, serde_for

_UNSIGNED = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def ordered(declared: object) -> tuple[Serde[Any], bool]:
    """The serde for keys of this type in a store, and whether its bytes are in their order.

    Raises:
        SerdeError: the type can't be written down.
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
        """Eight bytes."""
        IntSerde().dumps(obj)  # Refuses what is no integer of 64 bits.
        return _UNSIGNED.pack(obj + _SIGN)

    def loads(self, data: bytes) -> int:
        """The integer."""
        return _unpacked(data) - _SIGN


class OrderedFloat:
    """A double: bits of negative ones turned round, the sign of the others."""

    def dumps(self, obj: float) -> bytes:
        """Eight bytes; -0.0 is 0.0, and what is no number has no place in an order."""
        data = FloatSerde().dumps(obj)  # Refuses what is no number.
        number: float = _DOUBLE.unpack(data)[0]
        if math.isnan(number):
            raise SerdeError("nan can't be a key: it equals nothing, not even itself")
        bits: int = _UNSIGNED.unpack(_DOUBLE.pack(number + 0.0))[0]
        return _UNSIGNED.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))

    def loads(self, data: bytes) -> float:
        """The double."""
        bits = _unpacked(data)
        number: float = _DOUBLE.unpack(_UNSIGNED.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))[0]
        return number


class OrderedMoment:
    """An aware datetime as microseconds since 1970; it comes back in UTC."""

    def dumps(self, obj: datetime) -> bytes:
        """Eight bytes."""
        if not isinstance(obj, datetime) or obj.tzinfo is None:
            raise SerdeError(f"a datetime with a time zone is expected as the key, not {obj!r}")
        return _UNSIGNED.pack((obj - _EPOCH) // _MICROSECOND + _SIGN)

    def loads(self, data: bytes) -> datetime:
        """The same moment."""
        return _EPOCH + (_unpacked(data) - _SIGN) * _MICROSECOND


def _unpacked(data: bytes) -> int:
    if len(data) != _UNSIGNED.size:
        raise SerdeError(f"a key of {_UNSIGNED.size} bytes expected, not {data!r}")
    number: int = _UNSIGNED.unpack(data)[0]
    return number
