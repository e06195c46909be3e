"""Zigzag varints, compared with values that were computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData
from streamlog.records.varint import append_varint, read_varint, read_varlong, varint_size

PADDING = bytes(16)
BY_HAND = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (-8192, "ff7f"),
    (8192, "808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]
BY_HAND_LONG = [
    (2**31, "8080808010"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(("value", "octets"), BY_HAND + BY_HAND_LONG)
def test_varints_have_the_specified_bytes(value: int, octets: str) -> None:
    out = bytearray()
    append_varint(out, value)
    assert out.hex() == octets
    assert varint_size(value) == len(out)
    assert read_varlong(bytes(out) + PADDING, 0) == (value, len(out))


@pytest.mark.parametrize(("value", "octets"), BY_HAND)
def test_a_varint_is_read_at_any_position(value: int, octets: str) -> None:
    data = b"\xff" + bytes.fromhex(octets)
    assert read_varint(data + PADDING, 1) == (value, len(data))


@given(INT32)
def test_every_32_bit_number_round_trips(value: int) -> None:
    out = bytearray()
    append_varint(out, value)
    assert read_varint(bytes(out) + PADDING, 0) == (value, len(out))
    assert varint_size(value) == len(out)


@given(INT64)
def test_every_64_bit_number_round_trips(value: int) -> None:
    out = bytearray()
    append_varint(out, value)
    assert read_varlong(bytes(out) + PADDING, 0) == (value, len(out))
    assert varint_size(value) == len(out)


@pytest.mark.parametrize(
    "octets",
    [
        "8080808010",  # 33 bits
        "ffffffff1f",
        "808080808000",  # zero in six bytes
        "ffffffffffffffffff01",
        "ffffffffffffffffffff01",
    ],
)
def test_a_varint_of_more_than_32_bits_is_corrupt(octets: str) -> None:
    with pytest.raises(CorruptData, match="more than"):
        read_varint(bytes.fromhex(octets) + PADDING, 0)


@pytest.mark.parametrize("octets", ["ffffffffffffffffff03", "8080808080808080808000", "ff" * 16])
def test_a_varlong_of_more_than_64_bits_is_corrupt(octets: str) -> None:
    with pytest.raises(CorruptData, match="64 bits"):
        read_varlong(bytes.fromhex(octets) + PADDING, 0)


def test_a_varint_may_have_redundant_bytes() -> None:
    assert read_varint(b"\x82\x80\x00" + PADDING, 0) == (1, 3)
