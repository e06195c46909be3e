"""Laws of replica plans, for clusters of every shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.admin import replica_plan
from streamlog.client.admin.replica_plan import (
    Moves,
    PlacedPartition,
    ReplicaPlacement,
    cost_of,
    plan_add,
    plan_balance,
    plan_drain,
    replica_counts,
)
from streamlog.errors import UsageError
from streamlog.record import TopicPartition


@st.composite
def placements(
    draw: st.DrawFn, copies: int | None = None, cordons: bool = True, racked: bool = True
) -> ReplicaPlacement:
    count = draw(st.integers(2, 7))
    brokers = list(range(1, count + 1))
    rack = st.sampled_from(["a", "b", "c"]) if racked and draw(st.booleans()) else st.none()
    racks = {each: draw(rack) for each in brokers}
    partitions = {}
    for number in range(draw(st.integers(0, 24))):
        wanted = copies or draw(st.integers(1, min(3, count)))
        row = tuple(draw(st.permutations(brokers))[:wanted])
        size = draw(st.integers(0, 1000))
        partitions[TopicPartition("t", number)] = PlacedPartition(row, size, row[0])
    cordoned = draw(st.sets(st.sampled_from(brokers), max_size=count - 1)) if cordons else ()
    return ReplicaPlacement(partitions, racks, frozenset(cordoned))


def rows_after(placement: ReplicaPlacement, moves: Moves) -> Moves:
    return {key: part.replicas for key, part in placement.partitions.items()} | moves


def check_kept(placement: ReplicaPlacement, moves: Moves) -> None:
    """Check what holds for every plan."""
    for key, row in moves.items():
        before = placement.partitions[key].replicas
        assert len({*row}) == len(row) == len(before)
        assert row != before
        assert not ({*row} - {*before}) & placement.cordoned
        assert {*row} - {*before} <= {*placement.racks}


def racks_of(placement: ReplicaPlacement, row: tuple[int, ...]) -> int:
    return len({placement.racks.get(each) for each in row})


def apart(counts: Counter[int] | dict[int, int]) -> int:
    return max(counts.values()) - min(counts.values())


@given(placements())
def test_a_balance_breaks_no_rule_and_makes_nothing_worse(placement: ReplicaPlacement) -> None:
    moves = plan_balance(placement)
    check_kept(placement, moves)
    for key, row in moves.items():
        assert racks_of(placement, row) >= racks_of(placement, placement.partitions[key].replicas)
    able = {*placement.racks} - placement.cordoned
    before = replica_counts((part.replicas for part in placement.partitions.values()), able)
    after = replica_counts(rows_after(placement, moves).values(), able)
    assert apart(after) <= apart(before)


@given(placements(copies=1, cordons=False, racked=False))
def test_a_balance_moves_no_replica_more_than_needed(placement: ReplicaPlacement) -> None:
    moves = plan_balance(placement)
    counts = replica_counts(
        (part.replicas for part in placement.partitions.values()), placement.racks
    )
    total, brokers = len(placement.partitions), len(placement.racks)
    surplus = sum(max(0, each - ceil(total / brokers)) for each in counts.values())
    lack = sum(max(0, total // brokers - each) for each in counts.values())
    assert cost_of(placement, moves).replicas == max(surplus, lack)
    assert apart(replica_counts(rows_after(placement, moves).values(), placement.racks)) <= 1


@given(placements(cordons=False, racked=False))
def test_a_balanced_cluster_stays_as_it_is(placement: ReplicaPlacement) -> None:
    rows = rows_after(placement, plan_balance(placement))
    partitions = {key: PlacedPartition(row, 1, row[0]) for key, row in rows.items()}
    assert plan_balance(ReplicaPlacement(partitions, placement.racks)) == {}
    assert apart(replica_counts(rows.values(), placement.racks)) <= 1


@given(placements(), st.data())
def test_a_drained_broker_is_empty_and_only_its_replicas_move(
    placement: ReplicaPlacement, data: st.DataObject
) -> None:
    drained = data.draw(st.sampled_from(sorted(placement.racks)))
    try:
        moves = plan_drain(placement, {drained})
    except UsageError:
        able = {*placement.racks} - placement.cordoned - {drained}
        assert any(
            drained in part.replicas and able <= {*part.replicas}
            for part in placement.partitions.values()
        )
        return
    check_kept(placement, moves)
    for key, row in rows_after(placement, moves).items():
        before = placement.partitions[key].replicas
        assert drained not in row
        assert {*before} - {*row} <= {drained}
        able = {*placement.racks} - placement.cordoned - {drained}
        rest = [each for each in before if each != drained]
        if drained in before:
            best = max(racks_of(placement, (*rest, each)) for each in able - {*before})
            assert racks_of(placement, row) == best


@given(placements(cordons=False, racked=False), st.data())
def test_an_added_broker_gets_its_share_and_others_exchange_nothing(
    placement: ReplicaPlacement, data: st.DataObject
) -> None:
    added = data.draw(st.sampled_from(sorted(placement.racks)))
    moves = plan_add(placement, {added})
    check_kept(placement, moves)
    for key, row in moves.items():
        assert {*row} - {*placement.partitions[key].replicas} <= {added}
    counts = replica_counts(rows_after(placement, moves).values(), placement.racks)
    assert counts[added] >= min(
        len(placement.partitions), sum(counts.values()) // len(counts), *counts.values()
    )


def all_plans(placement: ReplicaPlacement, broker: int) -> list[Moves | str]:
    found: list[Moves | str] = [plan_balance(placement)]
    for plan in (plan_drain, plan_add):
        try:
            found.append(plan(placement, {broker}))
        except UsageError as error:
            found.append(str(error))
    return found


def smallest_movable(work: replica_plan._Work, giver: int, taker: int) -> TopicPartition | None:
    """By definition: a look at all partitions of the giver."""
    able = [each for each in work._held[giver] if work._may_move(each, giver, taker)]
    return min(able, key=work.size, default=None)


def first_of_each_taker(
    hands: replica_plan._Hands, leader: int
) -> Iterator[tuple[int, TopicPartition]]:
    """By definition: a look at all partitions."""
    found: dict[int, TopicPartition] = {}
    for partition in hands._among:
        first, *others = hands._replicas[partition]
        for each in others if first == leader else ():
            if each in hands._able:
                found.setdefault(each, partition)
    yield from sorted(found.items())


@given(placements(), st.integers(1, 7))
def test_plans_are_those_of_looks_at_all_partitions(
    placement: ReplicaPlacement, broker: int
) -> None:
    found = all_plans(placement, broker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_plan._Work, "_movable", smallest_movable)
        patch.setattr(replica_plan._Hands, "of", first_of_each_taker)
        assert all_plans(placement, broker) == found


def test_twice_the_partitions_take_twice_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    may_move = replica_plan._Work._may_move

    def counting(
        work: replica_plan._Work, partition: TopicPartition, giver: int, taker: int
    ) -> bool:
        nonlocal looks
        looks += 1
        return may_move(work, partition, giver, taker)

    monkeypatch.setattr(replica_plan._Work, "_may_move", counting)

    def looks_at(partitions: int) -> int:
        nonlocal looks
        rng, looks = Random(1), 0
        brokers = range(1, 9)
        rows = [tuple(rng.sample(brokers[: rng.choice((4, 8))], 3)) for _ in range(partitions)]
        placed = {
            TopicPartition("t", number): PlacedPartition(row, rng.randint(0, 100), row[0])
            for number, row in enumerate(rows)
        }
        racks = {each: "abc"[each % 3] for each in brokers}
        assert plan_balance(ReplicaPlacement(placed, racks))
        return looks

    assert looks_at(1_000) < 2.5 * looks_at(500)


def test_leaders_are_spread_hand_to_hand() -> None:
    rows = [(1, 2), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3)]
    partitions = {TopicPartition("t", n): PlacedPartition(r, 1, r[0]) for n, r in enumerate(rows)}
    placement = ReplicaPlacement(partitions, {1: None, 2: None, 3: None})
    after = rows_after(placement, plan_balance(placement))
    assert Counter(row[0] for row in after.values()) == {1: 2, 2: 2, 3: 2}


def test_the_cost_counts_bytes_of_the_busiest_broker_and_leaders() -> None:
    partitions = {
        TopicPartition("t", 0): PlacedPartition((1,), 100, 1),
        TopicPartition("t", 1): PlacedPartition((1,), 300, 1),
    }
    cost = cost_of(
        ReplicaPlacement(partitions, {1: None, 2: None, 3: None}),
        {TopicPartition("t", 0): (2,), TopicPartition("t", 1): (1, 3)},
    )
    assert (cost.replicas, cost.bytes, cost.busiest_bytes, cost.leaders) == (2, 400, 400, 1)
    assert cost.seconds(200) == 2.0


def test_unknown_and_cordoned_brokers_are_refused() -> None:
    placement = ReplicaPlacement({}, {1: None, 2: None}, frozenset({2}))
    with pytest.raises(UsageError, match="no broker 9"):
        plan_drain(placement, {9})
    with pytest.raises(UsageError, match="uncordon 2"):
        plan_add(placement, {2})
