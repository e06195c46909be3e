"""Slots in the rounds of the group: even, sticky, never two owners, over joins and zombies."""

from __future__ import annotations

from random import Random

import pytest

from streamlog.assignors import Claim
from streamlog.record import TopicPartition
from streamlog.worker.assignment.rebalance_plan import Placement
from streamlog.worker.assignment.streams_assignor import (
    SLOT_PREFIX,
    MemberInfo,
    StreamsAssignor,
    decode_directory,
    decode_member_info,
    encode_member_info,
)

PLACEMENT = Placement((("orders",),), {0: ("orders",)})


class Group:
    """Members that carry out their rounds as workers do."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.members: dict[str, StreamsAssignor] = {}
        self.owned: dict[str, list[TopicPartition]] = {}
        self.running: dict[str, set[tuple[str, int]]] = {}
        self.generation = 0

    def join(self, name: str, *, takes_slots: bool = True) -> None:
        member = StreamsAssignor(PLACEMENT, process=name)
        member.takes_slots = takes_slots
        member.slot_counts = lambda: (self.counts, 7)
        self.members[name], self.owned[name], self.running[name] = member, [], set()

    def leave(self, name: str) -> None:
        del self.members[name], self.owned[name], self.running[name]

    def settle(self) -> int:
        """Rounds until one moves nothing; returns their number."""
        for number in range(10):
            if not self.round():
                return number
        raise AssertionError("the rounds do not end")

    def round(self) -> bool:
        """One round; returns whether a slot was given up or given."""
        self.generation += 1
        claims = {
            name: Claim(["orders"], self.owned[name], member.subscription_data())
            for name, member in self.members.items()
        }
        leader = next(iter(self.members.values()))
        shares = leader.direct(claims, {"orders": 6})
        is_moved = False
        for name, share in shares.items():
            assert all(":" not in at.topic for at in share.partitions), "slots are no partitions"
            member = self.members[name]
            member.on_assignment(share.user_data)
            assert member.configs_until == 7
            given = {(c, n) for c, many in member.given_slots.items() for n in many}
            is_moved |= given != self.running[name] or [*share.partitions] != self.owned[name]
            self.running[name], self.owned[name] = given, [*share.partitions]
            member.own_slots = member.given_slots
            member.own_slots_generation = self.generation
        everything = [slot for slots in self.running.values() for slot in slots]
        assert len(everything) == len({*everything}), "a slot has two owners"
        if any(member.takes_slots for member in self.members.values()):
            is_complete = len(everything) == sum(self.counts.values())
            assert leader.withholds == (not is_complete), "the next round assigns the others"
        return is_moved


def test_a_leader_that_has_read_less_counts_what_others_have_counted() -> None:
    group = Group({"c": 2})
    for name in ("a", "b"):
        group.join(name)
    group.settle()
    group.members["b"].configs_until = 9
    claims = {
        name: Claim(["orders"], group.owned[name], member.subscription_data())
        for name, member in group.members.items()
    }
    for share in group.members["a"].direct(claims, {"orders": 6}).values():
        directory = decode_directory(share.user_data)
        assert (directory.configs_until, directory.leader) == (9, "a")
    assert group.members["b"].peers.leader == group.members["b"].peers.all[0]


def test_slots_are_spread_evenly_and_stay_over_joins_and_leaves() -> None:
    group = Group({f"c{number}": 50 for number in range(20)})
    for name in ("a", "b", "c"):
        group.join(name)
    group.settle()
    sizes = [len(slots) for slots in group.running.values()]
    assert sum(sizes) == 1_000
    assert max(sizes) - min(sizes) <= 1
    before = {name: {*slots} for name, slots in group.running.items()}
    group.join("d")
    group.settle()
    for name, slots in before.items():
        assert len(group.running[name] & slots) >= 249, "what stays is what was there"
    group.leave("a")
    group.settle()
    assert sum(len(slots) for slots in group.running.values()) == 1_000


@pytest.mark.parametrize("seed", range(20))
def test_in_any_story_no_slot_has_two_owners_and_all_have_one_in_the_end(seed: int) -> None:
    random = Random(seed)
    group = Group({"x": 5, "y": 1, "z": 12})
    group.join("w0")
    for number in range(1, 12):
        event = random.random()
        if event < 0.4:
            group.join(f"w{number}")
        elif event < 0.6 and len(group.members) > 1:
            group.leave(random.choice([*group.members]))
        elif event < 0.8:
            group.counts[random.choice("xyz")] = random.randint(0, 15)
        group.round()
    group.settle()
    running = sorted(slot for slots in group.running.values() for slot in slots)
    assert running == sorted((c, n) for c, count in group.counts.items() for n in range(count))


def test_a_slot_that_moves_is_given_up_one_round_before() -> None:
    group = Group({"x": 4})
    group.join("a")
    group.settle()
    group.join("b")
    group.round()
    assert len(group.running["a"]) == 2
    assert group.running["b"] == set(), "first the owner's last commit"
    group.round()
    assert len(group.running["b"]) == 2


def test_a_zombie_that_joins_again_does_not_get_a_slot_back_from_its_owner() -> None:
    group = Group({"x": 1})
    group.join("a")
    group.settle()
    zombie = group.members["a"]
    stale = {**zombie.own_slots}, zombie.own_slots_generation
    group.leave("a")
    group.join("b")
    group.settle()
    group.join("a")
    group.members["a"].own_slots, group.members["a"].own_slots_generation = stale
    group.round()
    assert group.running["b"] == {("x", 0)}
    assert group.running["a"] == set()


def test_a_worker_of_an_earlier_release_gets_no_slots() -> None:
    group = Group({"x": 3})
    group.join("new")
    group.join("old", takes_slots=False)
    group.settle()
    assert group.running["old"] == set()
    assert len(group.running["new"]) == 3


def test_the_data_of_members_and_leaders_survive_the_wire() -> None:
    info = MemberInfo(process="p", slots={"x": [0, 2]}, slots_generation=4, takes_slots=True)
    assert decode_member_info(encode_member_info(info)) == info
    assert decode_member_info(encode_member_info(MemberInfo(process="p"))).slots == {}
    assert decode_directory(b"").slots == {}
    assert SLOT_PREFIX not in "a-topic.name_1"
