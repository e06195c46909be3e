"""Moves: who runs and who follows what in the next round, on the way to the placement.

Pure, and decided anew in every round from what the members say, so the leader may change at any
time. A task with state goes on where it is until the one that is to have it has nearly as much
of it (KIP-441): until then that one follows the changelog as a warm-up, and asks for another
round when it is ready. What is to move is first given to nobody: its owner commits, closes it
and joins again, and in that round it is given away (KIP-429); so no round ever gives a task to
one member while another one has it. Standbys follow the changelogs of tasks that others run, to
take over at once; never two on one disk, and none beside the owner's, from which everybody
there can go on anyway. All of it converges: `tests/worker/assignment/test_rebalance_plan.py` has
rounds of any group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.worker.assignment.task_placement import Placement, Unit, units

UNKNOWN_LAG = -1
"""There is state on disk, but nobody has looked how old it is."""

AT_HAND, SOME, UNTOLD, NOTHING = range(4)
"""How much of a unit's state a member has; with less behind the comma if it lags less."""


MERCY = 8
"""What its owner has given up is given to whom it was meant for, though he may lag more by now, by
so many times of what is acceptable: else a busy task would go back and forth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How tasks move, and what they leave behind."""

    acceptable_lag: int = 10_000
    """So many records of the changelog behind, a member may take a task over."""
    warmups_max: int = 2
    """So many units at once get ready for a move: each reads a changelog from somewhere."""
    standbys: int = 0
    """Followers of each task, besides who runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one member brings to a round."""

    topics: Sequence[str]
    owned: Collection[TopicPartition] = ()
    """What it runs, and nobody else was given since."""
    host: str = ""
    """Members with the same one share a state directory; nobody, if it is empty."""
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    """How far the state is behind that it has of tasks, open ones excepted."""
    following: Collection[TaskId] = ()
    """Those of them that it follows."""


@dataclass(frozen=True, slots=True)
class MovePart:
    """What one member gets in a round."""

    partitions: list[TopicPartition] = field(default_factory=list)
    """What it runs from now on."""
    standby: list[TaskId] = field(default_factory=list)
    warmup: list[TaskId] = field(default_factory=list)
    """What it follows until it may have it."""


def next_round(
    placement: Placement,
    policy: Policy,
    members: Mapping[str, Candidate],
    partitions: Mapping[str, int],
) -> dict[str, MovePart]:
    """What each member gets, given what all of them have."""
    return _Round(placement, policy, members, partitions).decide()


class _Round:
    """One round in the making."""

    def __init__(
        self,
        placement: Placement,
        policy: Policy,
        members: Mapping[str, Candidate],
        partitions: Mapping[str, int],
    ) -> None:
        self._placement = placement
        self._policy = policy
        self._members = members
        self._topics = {member: each.topics for member, each in members.items()}
        self._partitions = partitions
        self._units = units(placement.groups, partitions)
        self._state = {unit: placement.state_of(unit) for unit in self._units}
        owner = {part: member for member in sorted(members) for part in members[member].owned}
        self._owners = {
            unit: sorted({owner[part] for part in unit.partitions if part in owner})
            for unit in self._units
        }
        self._parts = {member: MovePart() for member in sorted(members)}
        self._load = Counter[str]()
        self._nearness = self._distance(MERCY * policy.acceptable_lag) - SOME

    def decide(self) -> dict[str, MovePart]:
        """See `next_round`."""
        target = self._placement.spread(self._topics, self._partitions, self._holders(), self._rank)
        running: dict[Unit, str | None] = {}
        warming: list[tuple[Unit, str]] = []
        for unit, member in target.items():
            running[unit] = self._runner(unit, member)
            if running[unit] not in {None, member}:
                warming.append((unit, member))
        # The nearest first: they are soon done and make room for others.
        warming.sort(key=lambda each: (self._rank(*each), each[0].topics, each[0].partition))
        warming = warming[: self._policy.warmups_max]
        for unit, runner in running.items():
            if runner is not None:
                self._parts[runner].partitions.extend(unit.partitions)
                self._load[runner] += 1
        # Who is about to have it follows it until then, and so knows how near it is.
        warming += [
            (unit, target[unit])
            for unit, runner in running.items()
            if runner is None and self._follows(unit, target[unit])
        ]
        for unit, member in warming:
            self._parts[member].warmup.extend(self._state[unit])
        self._place_standbys(running, dict(warming))
        for part in self._parts.values():
            part.partitions.sort()
            part.standby.sort()
            part.warmup.sort()
        return self._parts

    def _owner(self, unit: Unit) -> str | None:
        """Who runs all of it; nobody, if several have parts, as after a change of the app."""
        owners = self._owners[unit]
        return owners[0] if len(owners) == 1 else None

    def _holders(self) -> dict[Unit, str]:
        """Where each unit may stay: not where it is still being restored, if it is elsewhere."""
        holders = {}
        for unit in self._units:
            owner = self._owner(unit)
            if owner is not None and (self._is_open(unit, owner) or not self._is_anywhere(unit)):
                holders[unit] = owner
        return holders

    def _runner(self, unit: Unit, target: str) -> str | None:
        """Who runs the unit from now on, if `target` is to have it in the end."""
        owners = self._owners[unit]
        able = self._placement.able(unit.topics, self._topics)
        if owners == [target]:
            return target
        if owners:
            is_free = len(owners) > 1 or owners[0] not in able or self._is_ready(unit, target)
            # Nobody, until they have given it up.
            return None if is_free else owners[0]
        if self._rank(unit, target) <= SOME + self._nearness:
            return target
        ready = [member for member in able if self._is_ready(unit, member)]
        return min(ready, key=lambda member: self._rank(unit, member), default=target)

    def _is_open(self, unit: Unit, owner: str) -> bool:
        """Whether the owner has nearly all of the state."""
        lags = self._members[owner].lags
        return all(
            0 <= lags.get(task, 0) <= self._policy.acceptable_lag for task in self._state[unit]
        )

    def _is_anywhere(self, unit: Unit) -> bool:
        """Whether somebody else could run it at once."""
        able = self._placement.able(unit.topics, self._topics)
        owner = self._owner(unit)
        return any(self._is_ready(unit, member) for member in able if member != owner)

    def _follows(self, unit: Unit, member: str) -> bool:
        return {*self._state[unit]} <= {*self._members[member].following}

    def _is_ready(self, unit: Unit, member: str) -> bool:
        return self._rank(unit, member) < SOME

    def _rank(self, unit: Unit, member: str) -> float:
        """How far a member is from running a unit: its class, and within it its lag."""
        return max(
            (self._distance(self._lag(task, unit, member)) for task in self._state[unit]), default=0
        )

    def _lag(self, task: TaskId, unit: Unit, member: str) -> int | None:
        """How far the state is behind that a member can open; None if there is none."""
        here = self._members[member]
        found = [here.lags.get(task, 0 if member == self._owner(unit) else None)]
        if here.host:
            # It opens what others close that have the same disk.
            found += [
                each.lags.get(task, 0 if other == self._owner(unit) else None)
                for other, each in self._members.items()
                if each.host == here.host
            ]
        known = [lag for lag in found if lag is not None]
        told = [lag for lag in known if lag != UNKNOWN_LAG]
        return min(told, default=min(known, default=None))

    def _distance(self, lag: int | None) -> float:
        if lag is None:
            return NOTHING
        if lag == UNKNOWN_LAG:
            return UNTOLD
        behind = lag / (lag + self._policy.acceptable_lag + 1)
        return behind if lag <= self._policy.acceptable_lag else SOME + behind

    def _place_standbys(
        self, running: Mapping[Unit, str | None], warming: Mapping[Unit, str]
    ) -> None:
        """Followers for every task, as even as their state lets them be."""
        count = Counter[str]()
        wanted = [unit for unit in running if self._state[unit]]
        total = self._policy.standbys * len(wanted)
        quota = -(-total // max(len(self._members), 1))
        for _ in range(self._policy.standbys):
            for unit in wanted:
                self._place_standby(unit, running[unit], warming.get(unit), count, quota)

    def _place_standby(
        self, unit: Unit, runner: str | None, warming: str | None, count: Counter[str], quota: int
    ) -> None:
        tasks = self._state[unit]
        others = {runner, warming, *(self._owners[unit])} - {None}
        others |= {member for member, part in self._parts.items() if tasks[0] in part.standby}
        hosts = {self._members[member].host for member in others if member is not None} - {""}
        able = [
            member
            for member in self._placement.able(unit.topics, self._topics)
            if member not in others and self._members[member].host not in hosts
        ]
        chosen = min(
            able,
            key=lambda member: (
                count[member] >= quota,
                not self._follows(unit, member),
                max(self._rank(unit, member), SOME),
                count[member] + self._load[member],
                member,
            ),
            default=None,
        )
        if chosen is not None:
            count[chosen] += 1
            self._parts[chosen].standby.extend(tasks)
