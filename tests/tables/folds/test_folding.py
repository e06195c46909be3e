from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.processing.windows.window_fold import Arrived, ResultColumns, Window, WindowFold
from streamlog.tables.folds.folding import (
    Column,
    Columns,
    Row,
    take_up,
    write_down,
    write_down_dirty,
    written,
)


def rows(count: int) -> list[Row]:
    return [Row([at, "x"], at - 1, b"k%d" % at) for at in range(count)]


@pytest.mark.parametrize("count", [0, 1, 32, 100])
def test_rows_are_serialized_as_time_and_state(count: int) -> None:
    found = written(rows(count), lambda state: b"%d" % state[0])
    assert found == [struct.pack(">q", at - 1) + b"%d" % at for at in range(count)]


def test_a_serde_must_return_bytes() -> None:
    with pytest.raises(TypeError):
        written(rows(1), lambda _: "text")  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("count", [0, 1, 32, 100])
def test_rows_are_written_as_changes(count: int) -> None:
    some = rows(count)
    for _ in range(2):
        for row in some:
            row.dirty = True
        keys, values = [b"before"], list[bytes | None]([None])
        write_down(some, b"p/", lambda state: b"%d" % state[0], keys, values)
        assert keys == [b"before", *(b"p/k%d" % at for at in range(count))]
        assert values == [None, *written(some, lambda state: b"%d" % state[0])]
        assert not any(row.dirty for row in some)


@pytest.mark.parametrize("count", [0, 1, 33, 6_000])
def test_dirty_rows_are_written_in_dictionary_order(count: int) -> None:
    some = {row.raw: row for row in rows(count)}
    for _ in range(2):
        for raw in list(some)[1::7]:
            some[raw] = some.pop(raw)  # Leaves holes in the dictionary's entries.
        dirty = [row for at, row in enumerate(some.values()) if at % 3]
        for row in dirty:
            row.dirty = True
        keys, values = [b"before"], list[bytes | None]([None])
        write_down_dirty(some, b"p/", lambda state: b"%d" % state[0], keys, values)
        assert keys == [b"before", *(b"p/" + row.raw for row in dirty)]
        assert values == [None, *written(dirty, lambda state: b"%d" % state[0])]
        assert not any(row.dirty for row in some.values())


def test_rows_after_one_that_fails_stay_dirty() -> None:
    some = {row.raw: row for row in rows(5)}
    for row in some.values():
        row.dirty = True

    def dumped(state: list[int]) -> bytes:
        if state[0] == 3:
            raise TypeError("no bytes for 3")
        return b"%d" % state[0]

    keys, values = list[bytes](), list[bytes | None]()
    with pytest.raises(TypeError, match="no bytes for 3"):
        write_down_dirty(some, b"", dumped, keys, values)
    assert keys == [b"k0", b"k1", b"k2"]
    assert len(values) == 3
    assert [row.dirty for row in some.values()] == [False, False, False, True, True]


NUMBERS = (
    st.integers()
    | st.integers(-300, 300)
    | st.sampled_from(
        [
            sign * 2**bits + by
            for sign in (-1, 1)
            for bits in (5, 7, 8, 15, 16, 31, 32, 63)
            for by in (-1, 0, 1)
        ]
    )
)


@given(
    st.lists(
        NUMBERS | st.booleans() | st.floats(allow_nan=False) | st.none() | st.text(), max_size=20
    )
)
def test_packed_states_equal_messagepack(state: list[object]) -> None:
    pack = msgspec.msgpack.Encoder().encode
    try:
        expected = struct.pack(">q", 7) + pack(state)
    except OverflowError:
        return
    values: list[bytes | None] = []
    write_down([Row(state, 7, b"k")], b"", pack, [], values, packs=True)
    assert values == [expected]


PACKED_NUMBERS = NUMBERS.filter(lambda number: -(2**63) <= number < 2**64)
STORED = st.lists(
    PACKED_NUMBERS | st.booleans() | st.none() | st.text(max_size=3), max_size=17
).map(msgspec.msgpack.Encoder().encode) | st.lists(PACKED_NUMBERS, max_size=4).map(
    msgspec.msgpack.Encoder().encode
)
"""States as bytes."""


@given(
    st.lists(st.none() | st.tuples(st.integers(-(2**63), 2**63 - 1), STORED), max_size=5),
    st.integers(0, 2),
    st.booleans(),
)
def test_rows_are_taken_up_as_messagepack_reads_them(
    stored: list[tuple[int, bytes] | None], start: int, are_numbers: bool
) -> None:
    raws = [b"k%d" % at for at in range(len(stored))]
    found = [None if each is None else struct.pack(">q", each[0]) + each[1] for each in stored]

    def loads(data: bytes, raw: bytes) -> Row:
        return Row(msgspec.msgpack.decode(data[8:]), struct.unpack_from(">q", data)[0], raw)

    rows = {b"before": Row([0], 1)}
    before: list[bytes | None] = [b"other"] * start
    absent = take_up(raws, before + found, start, rows, loads, are_numbers=are_numbers)
    assert absent == [raw for raw, each in zip(raws, stored, strict=True) if each is None]
    del rows[b"before"]
    read = [(repr(row.state), row.timestamp_ms, row.raw, row.dirty) for row in rows.values()]
    assert read == [
        (repr(msgspec.msgpack.decode(each[1])), each[0], raw, False)
        for raw, each in zip(raws, stored, strict=True)
        if each is not None
    ]


@given(st.binary(max_size=30) | STORED.map(lambda state: bytes(8) + state[:-1]))
def test_only_whole_short_lists_of_numbers_are_read_without_the_serde(data: bytes) -> None:
    asked: list[bytes] = []

    def loads(data: bytes, raw: bytes) -> Row:
        asked.append(data)
        return Row(None, 0, raw)

    rows: dict[bytes, Row] = {}
    take_up([b"k"], [data], 0, rows, loads, are_numbers=True)
    if not asked:
        state = msgspec.msgpack.decode(data[8:], type=list[int], strict=True)
        assert rows[b"k"].state == state
        assert all(-(2**63) <= number < 2**63 for number in state)


def test_each_key_that_is_taken_up_was_looked_up() -> None:
    for start in (-1, 1):
        with pytest.raises(IndexError, match=f"no 1 values from {start} on, of 1"):
            take_up([b"k"], [None], start, {}, lambda _data, raw: Row(None, 0, raw))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_row_has_the_results_of_its_columns(count: int, by_name: bool) -> None:
    names = [f"c{at}" for at in range(count)]
    kinds = ["sum", "count", "max", "mean", "min"][:count]

    def into(*found: object, **named: object) -> object:
        return named if by_name else found

    columns = Columns(
        [Column(kind, None if kind == "count" else float) for kind in kinds],
        into,
        names if by_name else None,
    )
    state = columns.initial()
    for value in ("1", "4"):
        state = columns.add(state, value)
    results = [5.0, 2, 4.0, 2.5, 1.0][:count]
    expected = dict(zip(names, results, strict=True)) if by_name else tuple(results)
    assert columns.result(state) == expected


LARGE = st.integers(-(2**64), 2**64) | st.integers(-9, 9) | st.sampled_from([2**63 - 1, -(2**63)])
TAKEN = LARGE | st.booleans() | st.floats(allow_nan=False)


class Into(NamedTuple):
    """The results of any number of columns."""

    results: tuple[object, ...]

    @classmethod
    def of(cls, *results: object) -> Into:
        return cls(results)


@given(
    st.lists(st.sampled_from(["count", "sum", "min", "max", "mean"]), min_size=1, max_size=6),
    st.lists(LARGE, min_size=1, max_size=8) | st.lists(TAKEN, min_size=1, max_size=8),
)
def test_a_folded_row_equals_its_column_states(kinds: list[str], values: list[object]) -> None:
    columns = Columns(
        [Column(kind, None if kind == "count" else lambda value: value) for kind in kinds],
        Into.of,
        None,
    )
    state = columns.initial()
    for value in values:
        state = columns.add(state, value)
    for initial in (columns.initial, columns.initial().copy):
        row = folded(columns, initial, values)
        assert [(type(each), each) for each in row.state] == [(type(each), each) for each in state]
        assert columns.result_of(row) == columns.result(state)
        pack = msgspec.msgpack.Encoder().encode
        with suppress(OverflowError):
            expected = struct.pack(">q", 1) + pack(state)
            found: list[bytes | None] = []
            write_down([row], b"", pack, [], found, packs=True)
            assert found == [expected]


def folded(columns: Columns, initial: Callable[[], list[object]], values: list[object]) -> Row:
    """Fold the values into a window's row, which starts with the state from `initial`."""

    def opened(start_ms: int, end_ms: int) -> Window:
        window = fold.windows[end_ms] = Window(start_ms, end_ms, is_whole=True)
        return window

    fold = WindowFold(
        columns.add,
        columns.result,
        initial,
        open_window=opened,
        load_row=lambda _, raw: Row(initial(), -1, raw),
        size_ms=1_000,
        grace_ms=0,
    )
    raws, times = [b"k"] * len(values), [1] * len(values)
    fold.run(0, Arrived(raws, values, times, times, None), (1, 1, 1), ResultColumns())
    return fold.windows[1_000].rows[b"k"]


def test_an_assigned_state_replaces_the_row_s_state() -> None:
    columns = Columns([Column("count", None), Column("sum", abs)], tuple, None)
    row = folded(columns, columns.initial, [2, 3])
    assert row.state == [2, 5]
    row.state = [2, 5.5]
    assert row.state == [2, 5.5]
