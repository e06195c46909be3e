"""The largest matching of two sets: the parts of two choices that can be put together in pairs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


def match_most(edges: Sequence[Sequence[int]], others: int) -> dict[int, int]:
    """Return as many pairs as there can be, each index and each other one used once.

    Args:
        edges: for each index, the other ones that it may be put together with.
        others: how many other ones there are.
    """
    partner: list[int | None] = [None] * others
    matched: dict[int, int] = {}
    for start in range(len(edges)):
        # One more at a time: what is matched stays matched, with another partner at most.
        _augment(start, edges, partner, matched)
    return matched


def _augment(
    start: int, edges: Sequence[Sequence[int]], partner: list[int | None], matched: dict[int, int]
) -> None:
    """Match one more index, if matched ones can change their partners for it."""
    came_from: dict[int, int] = {}
    # In breadth: the chain of changes may be longer than calls can be nested.
    waiting = deque([start])
    while waiting:
        index = waiting.popleft()
        for other in edges[index]:
            # Reached before, by a chain that is no longer.
            if other in came_from:
                continue
            came_from[other] = index
            taken = partner[other]
            # Its partner may find another one.
            if taken is not None:
                waiting.append(taken)
                continue
            # Back along the chain, each takes the partner that it was found by.
            free: int | None = other
            while free is not None:
                taker = came_from[free]
                following = matched.get(taker)
                matched[taker], partner[free] = free, taker
                free = following
            return
