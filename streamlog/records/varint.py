"""Zigzag variable-length integers, as in the records of Kafka's format v2 (KIP-98).

Seven bits a byte, the lowest first; the top bit says that another byte follows. Zigzag puts the
sign into the lowest bit, so that small numbers of either sign take one byte. A `varint` holds 32
bits in at most 5 bytes, a `varlong` 64 bits in at most 10.

The rule of the file: it may be compiled, where integers wrap and an index is not checked. So an
over-long number is corrupt, although a sloppier reader would drop its high bits; and a reader does
not look for the end of the data: the caller pads it with ten bytes or more and checks the position
it gets back. The unsigned varints of the protocol (KIP-482) live in `streamlog.protocol`.
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
        CorruptData: it has more than 32 bits.
    """
    raw = data[position]
    if raw < _CONTINUES:  # nearly all have one or two bytes and need no loop
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
        CorruptData: it has more than 64 bits.
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
            if shift == _LAST_SHIFT and byte > 1:
                break
            return ~(raw >> 1) if raw & 1 else raw >> 1, position
    raise CorruptData("a varlong has more than 64 bits")


def append_varint(out: bytearray, value: int) -> None:
    """Append `value`, which the caller has bounded to 64 bits, to `out`.

    The bytes of a 32-bit number are the same whether it is written as varint or as varlong.
    """
    raw = value if value >= 0 else -(value + 1)
    raw = raw << 1 if value >= 0 else raw << 1 | 1
    while raw >= _CONTINUES:
        out.append((raw & _LOW_BITS) | _CONTINUES)
        raw >>= 7
    out.append(raw)


def varint_size(value: int) -> int:
    """How many bytes `append_varint` writes for `value`."""
    raw = value if value >= 0 else -(value + 1)
    size = 1
    while raw >= _CONTINUES >> 1:
        raw >>= 7
        size += 1
    return size
