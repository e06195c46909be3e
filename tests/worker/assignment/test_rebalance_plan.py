"""Rebalance plans of any group: never two owners, and the rounds end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.worker.assignment.rebalance_plan import (
    UNKNOWN_LAG,
    Candidate,
    MovePart,
    Placement,
    Policy,
    make_units,
    merge_topic_sets,
    plan_round,
)

FAR = 1_000_000
TOPICS = ["t0", "t1", "t2", "t3", "t4"]


@dataclass
class Member:
    """A worker in the simulation."""

    host: str
    owned: set[TopicPartition] = field(default_factory=set)
    lags: dict[TaskId, int] = field(default_factory=dict)
    """The lags of its standbys and of the tasks that it has closed."""
    following: list[TaskId] = field(default_factory=list)


@dataclass
class Group:
    """A group that rebalances round by round."""

    placement: Placement
    policy: Policy
    counts: dict[str, int]
    members: dict[str, Member]
    topics: list[str] = field(default_factory=lambda: list(TOPICS))
    last: dict[str, MovePart] = field(default_factory=dict)

    def round(self) -> None:
        """Plan one round and let every member carry it out."""
        standings = {
            name: Candidate(
                topics=self.topics,
                owned=sorted(each.owned),
                host=each.host,
                lags=dict(each.lags),
                following=each.following,
            )
            for name, each in self.members.items()
        }
        before = {part: name for name, each in self.members.items() for part in each.owned}
        self.last = plan_round(self.placement, self.policy, standings, self.counts)
        given = [part for each in self.last.values() for part in each.partitions]
        assert len(given) == len(set(given)), "two owners"
        for name, part in self.last.items():
            for each in part.partitions:
                assert before.get(each, name) == name, "assigned while another member owns it"
            mine = self.placement.tasks_of(part.partitions)
            assert not mine & {*part.standby, *part.warmup}
            assert not {*part.standby} & {*part.warmup}
        for name, part in self.last.items():
            self._carry_out(self.members[name], part)

    def _carry_out(self, member: Member, part: MovePart) -> None:
        closed = self.placement.tasks_of(member.owned - {*part.partitions})
        member.owned = {*part.partitions}
        # It has the state of its closed tasks for a round, and the state of its standbys on its
        # disk.
        restoring = {task: lag for task, lag in member.lags.items() if task in closed}
        member.lags = dict.fromkeys(member.lags, UNKNOWN_LAG) | dict.fromkeys(closed, 0) | restoring
        for task in self.placement.tasks_of(part.partitions):
            member.lags.pop(task, None)
        member.following = [*part.standby, *part.warmup]
        member.lags |= dict.fromkeys(member.following, 0)

    @property
    def moves(self) -> bool:
        """Return whether another round follows: a member must revoke or is warming up."""
        owned = {part for each in self.members.values() for part in each.owned}
        everything = {part for unit in self.units for part in unit.partitions}
        return owned != everything or any(each.warmup for each in self.last.values())

    @property
    def units(self) -> list[object]:
        return make_units(self.placement.groups, self.counts)  # type: ignore[return-value]

    def settle(self) -> int:
        """Return the number of rounds until nothing moves."""
        for number in range(1, 400):
            self.round()
            if not self.moves:
                return number
        raise AssertionError("the group does not settle")

    def owner(self, part: TopicPartition) -> str:
        (name,) = (name for name, each in self.members.items() if part in each.owned)
        return name


def placed(groups: list[set[str]], stateful: set[int]) -> Placement:
    inputs = {number: tuple(sorted(group)) for number, group in enumerate(groups)}
    return Placement(tuple(merge_topic_sets(groups)), inputs, stateful & inputs.keys())


apps = st.builds(
    placed,
    st.lists(st.sets(st.sampled_from(TOPICS), min_size=1, max_size=2), min_size=1, max_size=4),
    st.sets(st.integers(0, 3)),
)
counts = st.fixed_dictionaries({topic: st.integers(0, 6) for topic in TOPICS})
names = st.lists(st.integers(0, 6).map(lambda n: f"m{n}"), min_size=1, max_size=5, unique=True)
hosts = st.sampled_from(["", "", "here", "there"])
lag = st.sampled_from([UNKNOWN_LAG, 0, 100, 20_000, FAR])
task_ids = st.builds(TaskId, st.integers(0, 3), st.integers(0, 5))
states = st.dictionaries(task_ids, lag, max_size=8)
fresh = st.builds(Member, hosts, st.just(set()), states).map(
    lambda each: Member(each.host, set(), dict(each.lags))
)
policies = st.builds(Policy, warmups_max=st.integers(1, 3), standbys=st.integers(0, 2))


@given(apps, policies, counts, names, st.data())
def test_membership_changes_settle_in_a_balanced_complete_assignment(
    placement: Placement,
    policy: Policy,
    counts: dict[str, int],
    member_names: list[str],
    data: st.DataObject,
) -> None:
    members = {name: data.draw(fresh) for name in member_names}
    group = Group(placement, policy, counts, members)
    bound = 4 + 2 * len(make_units(placement.groups, counts))
    assert group.settle() <= bound
    lost = data.draw(st.sets(st.sampled_from(member_names), max_size=len(member_names) - 1))
    come = data.draw(names)
    group.members = {name: each for name, each in members.items() if name not in lost}
    for name in come:
        group.members.setdefault(name, data.draw(fresh))
    assert group.settle() <= bound
    total = Counter(dict.fromkeys(group.members, 0))
    for topics in placement.groups:
        count = Counter(dict.fromkeys(group.members, 0))
        for unit in make_units([topics], counts):
            (owner,) = {group.owner(part) for part in unit.partitions}
            count[owner] += 1
        assert max(count.values()) - min(count.values()) <= 1
        total += count
    everyone = [total[name] for name in group.members]
    assert max(everyone) - min(everyone) <= 1
    group.round()
    before = group.last
    group.round()
    assert group.last == before
    for unit, tasks in placement.states(make_units(placement.groups, counts)).items():
        for task in tasks:
            followers = sum(task in part.standby for part in group.last.values())
            disks = {name: each.host or name for name, each in group.members.items()}
            others = {*disks.values()} - {disks[group.owner(unit.partitions[0])]}
            assert followers == min(policy.standbys, len(others))


def one_topic(partitions: int, **members: Member) -> Group:
    placement = Placement((("t0",),), {0: ("t0",)}, {0})
    return Group(placement, Policy(), {"t0": partitions}, dict(members), ["t0"])


def numbers(member: Member) -> list[int]:
    return sorted(part.partition for part in member.owned)


def test_state_stays_with_its_owner_until_the_new_owner_has_it() -> None:
    old, new = Member("a"), Member("b")
    group = one_topic(4, old=old)
    group.settle()
    group.members["new"] = new
    group.round()
    # Two tasks warm up at a time; no task has stopped.
    assert numbers(old) == [0, 1, 2, 3]
    assert group.last["new"] == MovePart([], [], [TaskId(0, 2), TaskId(0, 3)])
    group.round()
    assert (numbers(old), numbers(new)) == ([0, 1], [])
    group.round()
    assert (numbers(old), numbers(new)) == ([0, 1], [2, 3])
    assert not group.moves


def test_tasks_without_state_to_copy_move_at_once() -> None:
    group = one_topic(4, old=Member("a"))
    group.settle()
    group.members["new"] = Member("a")
    group.round()
    assert not group.last["new"].warmup
    assert numbers(group.members["old"]) == [0, 1]
    group.round()
    assert numbers(group.members["new"]) == [2, 3]


def test_a_standby_takes_over_from_a_lost_worker() -> None:
    group = one_topic(4, one=Member("a"), two=Member("b"), three=Member("c"))
    group.policy = Policy(standbys=1)
    group.settle()
    lost = group.members.pop("one")
    followers = {
        task.partition: name
        for name, part in group.last.items()
        for task in part.standby
        if task.partition in numbers(lost)
    }
    group.round()
    for number, follower in followers.items():
        assert group.owner(TopicPartition("t0", number)) == follower


def test_a_standby_takes_a_task_that_its_owner_is_still_restoring() -> None:
    back = Member("b", set(), {TaskId(0, 0): 50}, [TaskId(0, 0)])
    # The other worker has just begun to restore it.
    restoring = Member("a", {TopicPartition("t0", 0)}, {TaskId(0, 0): FAR})
    group = one_topic(1, restoring=restoring, back=back)
    group.round()
    assert numbers(restoring) == []
    group.round()
    assert numbers(back) == [0]


def test_after_a_full_restart_tasks_return_to_their_state() -> None:
    lags = {
        name: {TaskId(0, n): UNKNOWN_LAG for n in range(i, 6, 3)} for i, name in enumerate("cab")
    }
    group = one_topic(6, **{name: Member(name, set(), dict(lags[name])) for name in "abc"})
    group.settle()
    assert {name: numbers(each) for name, each in group.members.items()} == {
        name: [task.partition for task in sorted(lags[name])] for name in "abc"
    }


def test_standbys_are_on_other_hosts() -> None:
    group = one_topic(4, a1=Member("a"), a2=Member("a"), b1=Member("b"), b2=Member("b"))
    group.policy = Policy(standbys=3)
    group.settle()
    follower_names = [(task, name) for name, part in group.last.items() for task in part.standby]
    assert sorted(task.partition for task, _ in follower_names) == [0, 1, 2, 3]
    for task, name in follower_names:
        assert group.owner(TopicPartition("t0", task.partition))[0] != name[0]


def test_a_unit_split_between_members_is_revoked_from_all() -> None:
    one = Candidate(topics=["t0", "t1"], owned=[TopicPartition("t0", 0)])
    two = Candidate(topics=["t0", "t1"], owned=[TopicPartition("t1", 0)])
    placement = Placement((("t0", "t1"),), {0: ("t0", "t1")}, {0})
    parts = plan_round(placement, Policy(), {"one": one, "two": two}, {"t0": 1, "t1": 1})
    assert not any(part.partitions for part in parts.values())


@pytest.mark.parametrize("behind", [10_001, 80_000])
def test_a_task_moves_to_its_intended_owner_despite_a_little_lag(
    behind: int,
) -> None:
    group = one_topic(2, old=Member("a", set(), {}), new=Member("b"))
    group.members["old"].owned = {TopicPartition("t0", 0)}
    group.members["old"].lags = {TaskId(0, 1): 0}
    group.members["new"].lags = {TaskId(0, 1): behind}
    group.round()
    assert numbers(group.members["new"]) == [1]
