"""Sorted keys with their values, against Python's own sort."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.tables.state.write_buffer import WriteBuffer

KEYS = (
    st.binary(max_size=40)
    | st.binary(max_size=3).map(lambda tail: b"\x06totals" + tail)
    | st.integers(0, 300).map(bytes)
    | st.text("ab\0", max_size=20).map(str.encode)
)


def in_order(keys: list[bytes], values: list[bytes | None]) -> tuple[list[bytes], list[Any]]:
    waiting = WriteBuffer()
    waiting.put_all(keys, values, 0, len(keys))
    return waiting.in_order()


@given(st.lists(KEYS, unique=True, max_size=300))
def test_keys_come_in_order_with_their_values(keys: list[bytes]) -> None:
    rows: dict[bytes, bytes | None] = {key: b"%d" % at for at, key in enumerate(keys)}
    ordered, values = in_order(keys, list(rows.values()))
    assert ordered == sorted(keys)
    assert values == [rows[key] for key in ordered]


@pytest.mark.parametrize("windows", [1, 10])
def test_rows_of_windows_come_in_order(windows: int) -> None:
    keys = [
        b"\x06totals" + struct.pack(">QQ", 10_000 * (window + 1), 10_000 * window) + b"user-%d" % at
        for window in range(windows)
        for at in range(20_000 // windows)
    ]
    random.Random(7).shuffle(keys)
    assert in_order(keys, [b"v"] * len(keys)) == (sorted(keys), [b"v"] * len(keys))


def test_keys_of_zero_bytes_are_ordered_by_length() -> None:
    keys = [bytes(size) for size in range(2_000, 0, -1)]
    assert in_order(keys, [None] * len(keys))[0] == keys[::-1]


def test_keys_must_be_bytes() -> None:
    with pytest.raises(TypeError):
        in_order([b"a", "b"], [None, None])  # type: ignore[list-item]
