"""WriteBuffer against a dictionary."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.tables.state.write_buffer import WriteBuffer

OBJECTS = [b"k%d" % at for at in range(60)]
KEYS = st.sampled_from(OBJECTS) | st.sampled_from(OBJECTS).map(lambda key: bytes(bytearray(key)))
"""Identical objects, and equal copies of them."""
VALUES = st.binary(max_size=2) | st.none()
COMMITS = st.lists(
    st.lists(st.tuples(KEYS, VALUES), max_size=80)
    | st.lists(st.booleans(), min_size=60, max_size=60).map(
        lambda kept: [(key, b"v") for key, is_in in zip(OBJECTS, kept, strict=True) if is_in]
    ),
    max_size=6,
)


def put(buffer: WriteBuffer, changes: list[tuple[bytes, bytes | None]]) -> None:
    buffer.put_all([key for key, _ in changes], [value for _, value in changes], 0, len(changes))


@given(COMMITS, st.integers(0, 5))
def test_the_buffer_holds_the_last_value_of_each_key(
    commits: list[list[tuple[bytes, bytes | None]]], cleared: int
) -> None:
    buffer = WriteBuffer()
    expected: dict[bytes, bytes | None] = {}
    for number, changes in enumerate(commits):
        if number == cleared:
            buffer.clear()
            expected.clear()
        before = len(expected)
        put(buffer, changes)
        expected.update(changes)
        assert len(buffer) == len(expected)
        assert buffer.keys_from(before) == list(expected)[before:]
        assert buffer.columns() == (list(expected), list(expected.values()))
        assert buffer.in_order() == (sorted(expected), [expected[key] for key in sorted(expected)])
        wanted = [*OBJECTS, b"other"]
        found = buffer.read_through(wanted, lambda keys: [b"read " + key for key in keys])
        assert found == [expected.get(key, b"read " + key) for key in wanted]
        for key in OBJECTS:
            assert buffer.get(key, b"absent") == expected.get(key, b"absent")
            if key in expected:
                assert buffer[key] == expected[key]
            else:
                with pytest.raises(KeyError):
                    _ = buffer[key]


def test_a_read_of_missing_keys_has_a_value_for_each() -> None:
    buffer = WriteBuffer()
    put(buffer, [(b"a", b"1")])
    assert buffer.read_through([b"a"], list[bytes | None]) == [b"1"]
    with pytest.raises(ValueError, match="1 values of 2 keys"):
        buffer.read_through([b"b", b"a", b"c"], lambda keys: [*keys[1:]])


@pytest.mark.parametrize("count", [1, 33, 6_000, 70_000])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_many_keys_are_buffered_in_any_order(count: int, is_shuffled: bool) -> None:
    buffer = WriteBuffer()
    expected: dict[bytes, bytes | None] = {}
    keys = [b"%d" % at for at in range(count)]
    for number in range(4):
        some = [key for at, key in enumerate(keys) if number == 0 or (at * 7919 + number) % 3]
        if is_shuffled:
            random.Random(number).shuffle(some)
        changes: list[tuple[bytes, bytes | None]] = [(key, b"%d" % number) for key in some]
        put(buffer, changes)
        expected.update(changes)
    assert buffer.columns() == (list(expected), list(expected.values()))


def test_a_slice_of_columns_is_put() -> None:
    buffer = WriteBuffer()
    keys, values = [b"a", b"b", b"c", b"d"], list[bytes | None]([b"1", None, b"3", b"4"])
    buffer.put_all(keys, values, 1, 3)
    assert buffer.columns() == ([b"b", b"c"], [None, b"3"])
    for start, stop in ((-1, 2), (0, 5)):
        with pytest.raises(IndexError, match=f"no entries {start} to {stop} of 4 and 4"):
            buffer.put_all(keys, values, start, stop)
    with pytest.raises(IndexError):
        buffer.put_all(keys, values[:3], 0, 4)


@given(st.dictionaries(st.sampled_from(OBJECTS), VALUES), KEYS, KEYS, KEYS)
def test_deleted_keys_of_a_range_can_be_dropped(
    initial: dict[bytes, bytes | None], low: bytes, high: bytes, later: bytes
) -> None:
    buffer = WriteBuffer()
    put(buffer, [*initial.items()])
    assert buffer.removed() == [key for key, value in initial.items() if value is None]
    buffer.drop_removed([(low, high), (later, later + b"\x00")])
    expected = {
        key: value
        for key, value in initial.items()
        if value is not None or not (low <= key < high or key == later)
    }
    assert buffer.columns() == (list(expected), list(expected.values()))
    put(buffer, [(later, b"new")])
    assert dict(zip(*buffer.columns(), strict=True)) == {**expected, later: b"new"}


def test_copied_columns_do_not_change() -> None:
    buffer = WriteBuffer()
    put(buffer, [(b"a", b"1"), (b"b", b"2")])
    copied_columns = buffer.columns()
    put(buffer, [(b"a", b"3"), (b"c", b"4")])
    buffer.clear()
    assert copied_columns == ([b"a", b"b"], [b"1", b"2"])
    assert buffer.columns() == ([], [])
