"""The most frequent items in bounded memory, against exact counts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.metrics.heavy_hitters import HeavyHitters


@given(
    batches=st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=20),
    capacity=st.integers(1, 12),
)
def test_counts_are_never_too_small_and_too_large_by_at_most_the_error(
    batches: list[list[int]], capacity: int
) -> None:
    hitters = HeavyHitters[int](capacity)
    for batch in batches:
        hitters.add(batch)
    exact = Counter(item for batch in batches for item in batch)
    found = {hitter.item: hitter for hitter in hitters.top(capacity)}
    assert hitters.total == exact.total()
    assert len(found) <= capacity
    for item, hitter in found.items():
        assert hitter.count - hitter.error <= exact[item] <= hitter.count
    frequent = {item for item, count in exact.items() if count * capacity > hitters.total}
    assert frequent <= found.keys()
    counts = [hitter.count for hitter in hitters.top(capacity)]
    assert counts == sorted(counts, reverse=True)


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="the capacity is 0"):
        HeavyHitters[int](0)
