"""Matching: as many pairs as trying all of them finds."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.schemas.compatibility.matching import match_most


@given(st.lists(st.lists(st.integers(0, 3), unique=True, max_size=4), max_size=4))
def test_no_other_choice_of_pairs_has_more(edges: list[list[int]]) -> None:
    found = match_most(edges, 4)
    assert len(set(found.values())) == len(found)
    assert all(to in edges[index] for index, to in found.items())
    most = max(
        sum(to in each for each, to in zip(edges, order, strict=False))
        for order in permutations(range(4))
    )
    assert len(found) == most


def test_a_long_chain_of_changes_is_no_chain_of_calls() -> None:
    # Each takes the next one's partner, and the last one is free.
    count = 5_000
    edges = [[n, n + 1] for n in range(count)] + [[0]]
    assert len(match_most(edges, count + 1)) == count + 1
