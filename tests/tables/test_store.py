"""Keys: their order is the order in which state is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import TopologyError
from streamlog.tables.store import (
    StoreSpec,
    prefix_end,
    split_window_key,
    window_bound,
    window_key,
)

times = st.integers(0, (1 << 63) - 1)
rows = st.tuples(times, times, st.binary(max_size=6))


@given(rows, rows)
def test_window_keys_are_ordered_by_end_start_and_key(
    one: tuple[int, int, bytes], other: tuple[int, int, bytes]
) -> None:
    assert (window_key(*one) < window_key(*other)) is (one < other)
    assert split_window_key(window_key(*one)) == one


@given(rows, times)
def test_a_bound_lies_below_all_windows_that_end_there_or_later(
    row: tuple[int, int, bytes], end_ms: int
) -> None:
    assert (window_key(*row) >= window_bound(end_ms)) is (row[0] >= end_ms)


def test_before_the_epoch_no_window_ends() -> None:
    assert window_bound(-7) == window_bound(0) <= window_key(0, 0, b"")


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_the_end_of_a_prefix_lies_above_exactly_its_keys(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    within = key >= prefix and (end is None or key < end)
    assert within is key.startswith(prefix)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_no_store_has_keys_under_the_prefix_of_another(one: str, other: str) -> None:
    first, second = (StoreSpec(name.encode(errors="replace").decode()) for name in (one, other))
    assert first.prefix.startswith(second.prefix) is (first.name == second.name)
    assert first.prefix[0] > 0


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 128])
def test_names_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(TopologyError, match="1 to 255 bytes"):
        StoreSpec(name)
