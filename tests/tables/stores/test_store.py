"""Changes, and keys of windows and stores: their order is the order of scans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import TopologyError
from streamlog.tables.stores.store import (
    Changes,
    StoreSpec,
    prefix_end,
    split_window_key,
    window_bound,
    window_key,
)

times = st.integers(0, (1 << 63) - 1)
rows = st.tuples(times, times, st.binary(max_size=6))


changes = st.lists(st.tuples(st.binary(max_size=4), st.none() | st.binary(max_size=4)), max_size=12)
cuts = st.integers(0, 20)


@given(changes, st.lists(st.tuples(cuts, cuts, changes), max_size=3))
def test_slices_and_extensions_of_changes_equal_those_of_lists(
    first: list[tuple[bytes, bytes | None]],
    steps: list[tuple[int, int, list[tuple[bytes, bytes | None]]]],
) -> None:
    made = Changes([key for key, _ in first], [value for _, value in first])
    model = list(first)
    for start, stop, more in steps:
        made, model = made.part(start, max(start, stop)), model[start : max(start, stop)]
        for key, value in more:
            head = made
            made, model = made.followed_by(key, value), [*model, (key, value)]
            assert made.head is head
        assert list(made) == model == list(zip(made.row_keys, made.row_values, strict=True))
        assert len(made) == len(model)
        assert made.last_key == (model[-1][0] if model else None)
        runs = [(keys[a:b], values[a:b]) for keys, values, a, b in made.runs()]
        assert [pair for keys, values in runs for pair in zip(keys, values, strict=True)] == model


def test_released_changes_keep_their_count() -> None:
    keys = [b"%d" % number for number in range(1_000)]
    made = Changes(keys, [*keys]).followed_by(b"last", None)
    made.let_go()
    assert (len(made), keys) == (1_001, [])


def test_keys_and_values_of_changes_must_match_in_number() -> None:
    with pytest.raises(ValueError, match="columns of 2 and 1 entries"):
        Changes([b"a", b"b"], [b"1"])


@given(rows, rows)
def test_window_keys_are_ordered_by_end_start_and_key(
    one: tuple[int, int, bytes], other: tuple[int, int, bytes]
) -> None:
    assert (window_key(*one) < window_key(*other)) is (one < other)
    assert split_window_key(window_key(*one)) == one


@given(rows, times)
def test_a_window_bound_is_below_all_windows_that_end_later(
    row: tuple[int, int, bytes], end_ms: int
) -> None:
    assert (window_key(*row) >= window_bound(end_ms)) is (row[0] >= end_ms)


def test_a_bound_before_the_epoch_is_the_bound_at_the_epoch() -> None:
    assert window_bound(-7) == window_bound(0) <= window_key(0, 0, b"")


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_a_prefix_end_bounds_exactly_the_prefix_s_keys(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    within = key >= prefix and (end is None or key < end)
    assert within is key.startswith(prefix)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_store_prefixes_never_overlap(one: str, other: str) -> None:
    first, second = (StoreSpec(name.encode(errors="replace").decode()) for name in (one, other))
    assert first.prefix.startswith(second.prefix) is (first.name == second.name)
    assert first.prefix[0] > 0


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 128])
def test_store_names_of_wrong_length_are_refused(name: str) -> None:
    with pytest.raises(TopologyError, match="1 to 255 bytes"):
        StoreSpec(name)
