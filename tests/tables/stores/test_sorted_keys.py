"""SortedKeys against a sorted set, and its cost at large sizes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.tables.stores import memory_store
from streamlog.tables.stores.memory_store import SortedKeys

steps = st.lists(
    st.tuples(st.sampled_from(["toggle", "toggle", "toggle", "range"]), st.integers(0, 60)),
    max_size=150,
)


@given(steps)
def test_sorted_keys_equal_a_sorted_set(steps: list[tuple[str, int]]) -> None:
    # Tiny blocks, so that they split, empty and are rebuilt within a few steps.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_store, "BLOCK_KEYS_MAX", 4)
        keys, oracle = SortedKeys(), set[bytes]()
        for action, number in steps:
            key = bytes([number])
            if action == "range":
                high = bytes([number + 20])
                assert list(keys.range(key, high)) == sorted(k for k in oracle if key <= k < high)
                assert list(keys.range(key, None)) == sorted(k for k in oracle if key <= k)
            elif key in oracle:
                keys.remove(key)
                oracle.remove(key)
            else:
                keys.add(key)
                oracle.add(key)
        assert list(keys.range(b"", None)) == sorted(oracle)
        keys.clear()
        assert list(keys.range(b"", None)) == []


def test_scans_between_writes_do_not_resort_all_keys() -> None:
    drawn = random.Random(7).sample(range(1 << 32), 60_000)
    keys = SortedKeys()
    for number in drawn:
        key = number.to_bytes(4)
        keys.add(key)
        assert next(keys.range(key, None)) == key
    assert list(keys.range(b"", None)) == sorted(number.to_bytes(4) for number in drawn)
    assert max(map(len, keys._blocks)) <= memory_store.BLOCK_KEYS_MAX
    assert len(keys._blocks) < 4 * len(drawn) // memory_store.BLOCK_KEYS_MAX
