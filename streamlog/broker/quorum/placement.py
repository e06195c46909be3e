"""Placement: which brokers hold the partitions of a topic.

Of n brokers in a row the first replica of partition i is on broker i mod n, counted from a start
that chance has chosen, and the j-th on broker (i + j) mod n: leaders and copies are spread evenly.
With racks the row goes from rack to rack, and a replica passes over brokers in racks that have one
while there are racks that have none, so that a rack can burn down. Where only some brokers say in
which rack they are, nobody's counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest


def place(
    row: Sequence[int], racks: Mapping[int, str], partitions: Iterable[int], copies: int, start: int
) -> list[tuple[int, ...]]:
    """The replicas of each partition, of brokers in a row as `in_a_row` gives it.

    `copies` is at most the number of brokers.
    """
    return [_replicas(row, racks, start + partition, copies) for partition in partitions]


def in_a_row(brokers: Iterable[int], racks: Mapping[int, str]) -> list[int]:
    """The brokers in order; with racks, one of each, then the next of each."""
    known = sorted(brokers)
    if not racks:
        return known
    by_rack: dict[str, list[int]] = {}
    for broker in known:
        by_rack.setdefault(racks[broker], []).append(broker)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for one in rounds for broker in one if broker is not None]


def racks_of(brokers: Iterable[tuple[int, str | None]]) -> dict[int, str]:
    """The rack of each broker; empty if one does not say."""
    racks = dict(brokers)
    return {} if None in racks.values() else {b: rack for b, rack in racks.items() if rack}


def _replicas(
    row: Sequence[int], racks: Mapping[int, str], first: int, copies: int
) -> tuple[int, ...]:
    count = len(row)
    order = [row[(first + step) % count] for step in range(count)]
    chosen: list[int] = []
    taken: set[str] = set()
    while len(chosen) < copies:
        left = [broker for broker in order if broker not in chosen]
        elsewhere = [broker for broker in left if racks.get(broker) not in taken]
        if racks and not elsewhere:
            taken.clear()  # Every rack has one: the next round of them.
            continue
        broker = elsewhere[0] if racks else left[0]
        chosen.append(broker)
        if racks:
            taken.add(racks[broker])
    return tuple(chosen)
