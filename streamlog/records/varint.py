"""Zigzag variable-length integers, as in the records of Kafka's format v2 (KIP-98).

Seven bits a byte, the lowest first; the top bit says that another byte follows. Zigzag puts the
sign into the lowest bit, so that small numbers of either sign take one byte. A `varint` holds 32
bits in at most 5 bytes, a `varlong` 64 bits in at most 10.

The rule of the file: it may be compiled, and then integers wrap and indexes are not checked. So a
number with too many bits is corrupt, although other readers drop its high bits. A reader does not
check the end of the data: the caller pads it with ten bytes or more, and checks the position that
it gets back. Not done here: the protocol's unsigned varints (KIP-482), see `protocol.codec`.
"""

from __future__ import annotations

from streamlog.errors import CorruptData

_VARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10
_CONTINUES = 0x80
_LOW_BITS = 0x7F
_LAST_SHIFT = 63
_INT32_MIN = -(2**31)
_INT32_MAX = 2**31 - 1


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a 32-bit integer at `position`; return it and the position behind it.

    Raises:
        CorruptData: the number has more than 32 bits.
    """
    # Zigzag: 0, -1, 1, -2, ... are 0, 1, 2, 3, ... So an odd `raw` is the negative ~(raw >> 1).
    raw = data[position]
    if raw < _CONTINUES:  # nearly all numbers have one or two bytes and need no loop
        return ~(raw >> 1) if raw & 1 else raw >> 1, position + 1
    byte = data[position + 1]
    if byte < _CONTINUES:
        raw += (byte << 7) - _CONTINUES
        return ~(raw >> 1) if raw & 1 else raw >> 1, position + 2
    value, after = read_varlong(data, position)
    if value < _INT32_MIN or value > _INT32_MAX or after - position > _VARINT_BYTES_MAX:
        raise CorruptData(f"a varint has {after - position} bytes or more than 32 bits")
    return value, after


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """Read a 64-bit integer at `position`; return it and the position behind it.

    Raises:
        CorruptData: the number has more than 64 bits.
    """
    raw = data[position]
    if raw < _CONTINUES:
        return ~(raw >> 1) if raw & 1 else raw >> 1, position + 1
    byte = data[position + 1]
    if byte < _CONTINUES:
        raw += (byte << 7) - _CONTINUES
        return ~(raw >> 1) if raw & 1 else raw >> 1, position + 2
    raw = 0
    for shift in range(0, 7 * _VARLONG_BYTES_MAX, 7):
        byte = data[position]
        position += 1
        raw |= (byte & _LOW_BITS) << shift
        if byte < _CONTINUES:
            # Nine bytes hold 63 bits, so the tenth may add one bit. A larger one would be a number
            # of 65 bits, which Python holds and C would truncate without an error.
            if shift == _LAST_SHIFT and byte > 1:
                break
            return ~(raw >> 1) if raw & 1 else raw >> 1, position
    raise CorruptData("a varlong has more than 64 bits")


def append_varint(out: bytearray, value: int) -> None:
    """Append `value`, which must have at most 64 bits, to `out`.

    A 32-bit number has equal bytes as a varint and as a varlong.
    """
    # -(value + 1), not ~value or -value: the least 64-bit number has no positive counterpart in C.
    raw = value if value >= 0 else -(value + 1)
    raw = raw << 1 if value >= 0 else raw << 1 | 1
    while raw >= _CONTINUES:
        out.append((raw & _LOW_BITS) | _CONTINUES)
        raw >>= 7
    out.append(raw)


def varint_size(value: int) -> int:
    """Return the number of bytes that `append_varint` writes for `value`."""
    raw = value if value >= 0 else -(value + 1)
    size = 1
    while raw >= _CONTINUES >> 1:
        raw >>= 7
        size += 1
    return size
