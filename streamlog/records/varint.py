"""Zigzag variable-length integers, as in the records of Kafka's format v2 (KIP-98).

Seven bits a byte, the lowest first; the top bit says that another byte follows. Zigzag puts the
sign into the lowest bit, so that small numbers of either sign take one byte. A `varint` holds 32
bits in at most 5 bytes, a `varlong` 64 bits in at most 10.

The rule of the file: it may be compiled, where integers wrap. So each value is bounded before the
arithmetic that could wrap, every read is bounded by `end`, and an over-long number is corrupt
although a sloppier reader would drop its high bits. The unsigned varints of the protocol's
flexible versions (KIP-482) are another kind of number and live in `streamlog.protocol`.
"""

from __future__ import annotations

from streamlog.errors import CorruptData

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read a 32-bit integer at `position`; return it and the position behind it.

    Raises:
        CorruptData: it does not end before `end`, or has more than 32 bits.
    """
    raw = 0
    shift = 0
    while position < end and shift < 35:  # 5 bytes of 7 bits
        byte = data[position]
        position += 1
        if byte < 0x80:
            if shift == 28 and byte > 0x0F:
                break
            raw |= byte << shift
            return (raw >> 1) ^ -(raw & 1), position
        raw |= (byte & 0x7F) << shift
        shift += 7
    raise CorruptData(_broken("varint", VARINT_BYTES_MAX))


def read_varlong(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read a 64-bit integer at `position`; return it and the position behind it.

    Raises:
        CorruptData: it does not end before `end`, or has more than 64 bits.
    """
    raw = 0
    shift = 0
    while position < end and shift < 70:  # 10 bytes of 7 bits
        byte = data[position]
        position += 1
        if byte < 0x80:
            if shift == 63 and byte > 0x01:
                break
            raw |= byte << shift
            return (raw >> 1) ^ -(raw & 1), position
        raw |= (byte & 0x7F) << shift
        shift += 7
    raise CorruptData(_broken("varlong", VARLONG_BYTES_MAX))


def append_varint(out: bytearray, value: int) -> None:
    """Append `value`, which the caller has bounded to 64 bits, to `out`.

    The bytes of a 32-bit number are the same whether it is written as varint or as varlong.
    """
    raw = (value << 1) if value >= 0 else (-(value + 1) << 1) + 1
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def varint_size(value: int) -> int:
    """How many bytes `append_varint` writes for `value`."""
    magnitude = value if value >= 0 else -(value + 1)
    size = 1
    while magnitude > 0x3F:
        magnitude >>= 7
        size += 1
    return size


def _broken(kind: str, size_bytes_max: int) -> str:
    return f"a {kind} is cut short or has more than {size_bytes_max} bytes or too many bits"
