"""Placement of replicas on brokers and racks."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.quorum.controller.topic_control import (
    assign_in_order,
    assign_replicas,
    racks_of,
)


@given(st.integers(1, 9), st.integers(1, 30), st.data())
def test_leaders_and_replicas_are_spread_evenly(
    brokers: int, partitions: int, data: st.DataObject
) -> None:
    copies = data.draw(st.integers(1, brokers))
    start = data.draw(st.integers(0, 100))
    row = assign_in_order(range(brokers), {})
    placed = assign_replicas(row, {}, range(partitions), copies, start)
    assert all(len({*each}) == copies for each in placed)
    assert [each[0] for each in placed] == [(start + i) % brokers for i in range(partitions)]
    assert all(each[j] == (each[0] + j) % brokers for each in placed for j in range(copies))
    held = Counter(broker for each in placed for broker in each)
    assert max(held.values()) - min(held[broker] for broker in range(brokers)) <= copies


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), st.data())
def test_no_rack_has_two_replicas_while_another_has_none(
    of: list[str], data: st.DataObject
) -> None:
    racks = dict(enumerate(of))
    copies = data.draw(st.integers(1, len(of)))
    row = assign_in_order(range(len(of)), racks)
    assert sorted(row) == list(range(len(of)))
    for replicas in assign_replicas(
        row, racks, range(len(of)), copies, data.draw(st.integers(0, 9))
    ):
        assert len({*replicas}) == copies
        used = {racks[broker] for broker in replicas}
        assert len(used) == min(copies, len({*of}))


def test_assign_in_order_alternates_racks() -> None:
    assert assign_in_order([1, 2, 3, 4, 5], {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}) == [
        1,
        3,
        5,
        2,
        4,
    ]


def test_racks_count_only_if_every_broker_has_one() -> None:
    assert racks_of([(1, "a"), (2, None)]) == {}
    assert racks_of([(1, "a"), (2, "b")]) == {1: "a", 2: "b"}
