"""Assignors: every partition once, balanced, whatever the order of the members."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    Memory,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    balance,
)
from streamlog.errors import CorruptData
from streamlog.record import TopicPartition

ASSIGNORS: list[Assignor] = [
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
]
topics = st.sampled_from(["a", "b", "c", "d"])
groups = st.dictionaries(
    st.text("xyz", min_size=1, max_size=3), st.lists(topics, unique=True), min_size=1, max_size=6
)
counts = st.dictionaries(topics, st.integers(min_value=0, max_value=9))
every_assignor = pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda one: one.name)


def of(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def test_range_gives_consecutive_partitions_and_keeps_topics_together() -> None:
    members = {"m2": ["t", "u"], "m1": ["t", "u"]}
    assert RangeAssignor().assign(members, {"t": 3, "u": 3}) == {
        "m1": of("t", 0, 1) + of("u", 0, 1),
        "m2": of("t", 2) + of("u", 2),
    }


def test_round_robin_continues_across_topics() -> None:
    members = {"m1": ["t", "u"], "m2": ["t", "u"]}
    assert RoundRobinAssignor().assign(members, {"t": 3, "u": 3}) == {
        "m1": of("t", 0, 2) + of("u", 1),
        "m2": of("t", 1) + of("u", 0, 2),
    }


def test_round_robin_skips_members_without_a_subscription() -> None:
    members = {"m1": ["t"], "m2": ["t", "u"]}
    assert RoundRobinAssignor().assign(members, {"t": 1, "u": 2}) == {
        "m1": of("t", 0),
        "m2": of("u", 0, 1),
    }


@every_assignor
def test_a_missing_topic_is_assigned_to_no_member(assignor: Assignor) -> None:
    assert assignor.assign({"m": ["absent"]}, {}) == {"m": []}


@every_assignor
@given(members=groups, partitions=counts)
def test_each_partition_goes_to_one_subscribed_member(
    assignor: Assignor, members: dict[str, list[str]], partitions: dict[str, int]
) -> None:
    assignment = assignor.assign(members, partitions)
    assert assignment.keys() == members.keys()
    assigned = [(part, who) for who, parts in assignment.items() for part in parts]
    assert all(part.topic in members[who] for part, who in assigned)
    subscribed = {topic for wanted in members.values() for topic in wanted}
    counted = {topic: partitions.get(topic, 0) for topic in subscribed}
    expected = [part for topic in counted for part in of(topic, *range(counted[topic]))]
    assert sorted(part for part, _ in assigned) == sorted(expected)


@every_assignor
@given(members=groups, partitions=counts)
def test_the_order_of_members_does_not_matter(
    assignor: Assignor, members: dict[str, list[str]], partitions: dict[str, int]
) -> None:
    backwards = {member: wanted[::-1] for member, wanted in reversed(members.items())}
    assert assignor.assign(members, partitions) == assignor.assign(backwards, partitions)


@every_assignor
@given(count=st.integers(0, 30), size=st.integers(1, 7))
def test_equal_members_differ_by_at_most_one_partition(
    assignor: Assignor, count: int, size: int
) -> None:
    assignment = assignor.assign({f"m{n}": ["t"] for n in range(size)}, {"t": count})
    loads = [len(parts) for parts in assignment.values()]
    assert max(loads) - min(loads) <= 1


# ---- stickiness ----

Shares = dict[str, list[TopicPartition]]


def moved(before: Shares, after: Shares) -> set[TopicPartition]:
    """Return the partitions with a changed owner, except those whose owner has left."""
    owner = {each: member for member, share in before.items() for each in share}
    return {
        each
        for member, share in after.items()
        for each in share
        if owner.get(each, member) not in (member, *(before.keys() - after.keys()))
    }


@given(members=groups, partitions=counts)
def test_a_balanced_assignment_stays(
    members: dict[str, list[str]], partitions: dict[str, int]
) -> None:
    once = balance(members, partitions, {})
    assert balance(members, partitions, once) == once


@given(count=st.integers(0, 40), size=st.integers(1, 6), leaver=st.integers(0, 6))
def test_remaining_members_keep_their_partitions_when_one_leaves(
    count: int, size: int, leaver: int
) -> None:
    names = [f"m{n}" for n in range(size + 1)]
    before = balance({name: ["t"] for name in names}, {"t": count}, {})
    names.pop(leaver % len(names))
    after = balance({name: ["t"] for name in names}, {"t": count}, before)
    assert not moved(before, after)


@given(count=st.integers(0, 40), size=st.integers(1, 6))
def test_only_the_share_of_a_new_member_moves(count: int, size: int) -> None:
    names = [f"m{n}" for n in range(size)]
    before = balance({name: ["t"] for name in names}, {"t": count}, {})
    after = balance({name: ["t"] for name in [*names, "new"]}, {"t": count}, before)
    assert moved(before, after) == set(after["new"])
    assert len(after["new"]) == count // (size + 1)


@given(members=groups, partitions=counts, owned=st.data())
def test_no_further_move_would_improve_the_balance(
    members: dict[str, list[str]], partitions: dict[str, int], owned: st.DataObject
) -> None:
    every = [each for topic, count in partitions.items() for each in of(topic, *range(count))]
    past = {
        name: [each for each in every if owned.draw(st.integers(0, 3)) == 0] for name in members
    }
    shares = balance(members, partitions, past)
    assigned = sorted(each for share in shares.values() for each in share)
    subscribed = {topic for wanted in members.values() for topic in wanted}
    assert assigned == sorted(each for each in every if each.topic in subscribed)
    for giver, share in shares.items():
        for each in share:
            assert each.topic in members[giver]
            takers = [len(shares[m]) for m in members if each.topic in members[m]]
            assert len(share) - min(takers) <= 1


@given(members=groups, partitions=counts, later=groups)
def test_a_cooperative_move_takes_two_rounds(
    members: dict[str, list[str]], partitions: dict[str, int], later: dict[str, list[str]]
) -> None:
    assignor = CooperativeStickyAssignor()
    before = assignor.assign(members, partitions)
    owned = {name: before.get(name, []) for name in later}
    first = assignor.assign(later, partitions, owned)
    owner = {each: name for name, share in owned.items() for each in share}
    for name, share in first.items():
        assert all(owner.get(each, name) == name for each in share)
    # Every member revokes what it has lost, and joins again.
    second = assignor.assign(later, partitions, first)
    assert second == assignor.assign(later, partitions, second)
    assert second == balance(later, partitions, first)


# ---- user data ----

owned_partitions = st.lists(
    st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 2**31 - 1)), unique=True
)


@given(owned=owned_partitions, generation=st.integers(-1, 2**31 - 1))
def test_sticky_user_data_round_trips(owned: list[TopicPartition], generation: int) -> None:
    sticky = StickyAssignor()
    data = sticky.user_data(owned, generation)
    assert data is not None
    assert sticky.memory(data) == Memory(sorted(owned), generation)
    # The first version of the format ended before the generation.
    assert sticky.memory(data[:-4]) == Memory(sorted(owned), -1)


def test_sticky_user_data_has_javas_bytes() -> None:
    data = StickyAssignor().user_data(of("top", 3, 1) + of("a", 0), 7)
    assert data == bytes.fromhex(
        "00000002 0001 61 00000001 00000000 0003 746f70 00000002 00000001 00000003 00000007"
    )
    assert CooperativeStickyAssignor().user_data(of("top", 3), 7) == bytes.fromhex("00000007")


def test_cooperative_user_data_is_a_generation_or_librdkafkas_format() -> None:
    assignor = CooperativeStickyAssignor()
    assert assignor.memory(bytes.fromhex("00000007")) == Memory((), 7)
    theirs = StickyAssignor().user_data(of("t", 2), 5)
    assert theirs is not None
    assert assignor.memory(theirs) == Memory(of("t", 2), 5)


@given(st.binary(max_size=40))
def test_malformed_user_data_is_refused(data: bytes) -> None:
    try:
        StickyAssignor().memory(data)
    except CorruptData:
        return
