"""Rebalance plan: which worker runs which task, and what each rebalance changes on the way there.

The placement is the target. It moves a `Unit` as a whole: the partitions of one number of all
topics that are read together. Each set of topics, and the total, is spread so that two workers
differ by at most one unit. A unit stays with its owner, and otherwise goes to a worker that has its
state, as in the sticky assignor of Kafka Streams (KIP-54, KIP-441).

The plan leads to the placement in steps. A task with state stays with its owner until the new owner
has nearly all of the state; until then the new owner follows the changelog as a warm-up. A task
that moves is revoked in one rebalance and assigned in the next (KIP-429), so two members never own
it at the same time. A standby never lies on the disk of the owner or of another standby.

Rule: pure. Every rebalance decides anew from the members' data, so the leader may change at any
time, and all plans converge. Not done here: the protocol of the group (`streams_assignor`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition


@dataclass(frozen=True, slots=True)
class Unit:
    """Partitions that have to be read by the same worker."""

    topics: tuple[str, ...]
    """The whole set of topics that belong together, sorted."""
    partition: int
    """The number that all its partitions have."""
    partitions: tuple[TopicPartition, ...]
    """Those of the topics that have a partition of this number."""


Rank = Callable[[Unit, str], float]
"""How far a member is from running a unit; 0: its state is at hand."""


def no_rank(_unit: Unit, _member: str) -> float:
    """Nothing is known of any state."""
    return 0


def merge_topic_sets(groups: Iterable[Collection[str]]) -> list[tuple[str, ...]]:
    """Merge groups that share a topic, until every topic is in exactly one.

    Example:
        >>> merge_topic_sets([{"orders", "users"}, {"users"}, {"clicks"}])
        [('clicks',), ('orders', 'users')]
    """
    merged: list[set[str]] = []
    for group in groups:
        joined = set(group)
        apart = []
        for other in merged:
            if joined & other:
                joined |= other
            else:
                apart.append(other)
        merged = [*apart, joined] if joined else apart
    return sorted(tuple(sorted(group)) for group in merged)


def make_units(groups: Iterable[tuple[str, ...]], partitions: Mapping[str, int]) -> list[Unit]:
    """The units of these topic sets, given the partition count of every topic."""
    found = []
    for topics in groups:
        for partition in range(max((partitions.get(topic, 0) for topic in topics), default=0)):
            parts = tuple(
                TopicPartition(topic, partition)
                for topic in topics
                if partition < partitions.get(topic, 0)
            )
            found.append(Unit(topics, partition, parts))
    return found


@dataclass(frozen=True)
class Placement:
    """What an app has to share out among its workers."""

    groups: tuple[tuple[str, ...], ...]
    """Topics that are read together (see `merge_topic_sets`)."""
    inputs: Mapping[int, Collection[str]] = field(default_factory=dict)
    """By number of a sub-topology: the topics that its tasks read."""
    stateful: Collection[int] = ()
    """The sub-topologies whose tasks have state."""

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Mapping[str, Collection[TopicPartition]] | None = None,
    ) -> dict[str, list[TopicPartition]]:
        """Spread the units over the members.

        Args:
            members: member id to the topics it subscribes to. A unit goes only to a member
                that reads all of its topics, so two versions of an app may share a group.
            partitions: topic to partition count.
            owned: member id to what it held before this rebalance.
        """
        held = {part: member for member, parts in (owned or {}).items() for part in parts}
        holders = {}
        for unit in make_units(self.groups, partitions):
            holder = next((held[part] for part in unit.partitions if part in held), None)
            if holder is not None:
                holders[unit] = holder
        found: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for unit, member in self.spread(members, partitions, holders).items():
            found[member] += unit.partitions
        return {member: sorted(parts) for member, parts in found.items()}

    def spread(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        holders: Mapping[Unit, str],
        rank: Rank = no_rank,
    ) -> dict[Unit, str]:
        """The member that is to have each unit: even, and as few as possible somewhere else.

        Args:
            members: as in `assign`.
            partitions: as in `assign`.
            holders: where each unit is and may stay.
            rank: which member is nearest to running a unit that has to go somewhere.
        """
        spread = _Spread(members, rank)
        for topics in self.groups:
            able = self.able(topics, members)
            if able:
                spread.place(make_units([topics], partitions), able, holders)
        spread.level()
        return spread.members_of_units

    def able(self, topics: tuple[str, ...], members: Mapping[str, Sequence[str]]) -> list[str]:
        """The members that read all of these topics."""
        return [member for member in sorted(members) if {*topics} <= {*members[member]}]

    def tasks_of(self, partitions: Collection[TopicPartition]) -> set[TaskId]:
        """The tasks that read one of these partitions."""
        return {
            TaskId(number, partition)
            for number, topics in self.inputs.items()
            for topic, partition in partitions
            if topic in topics
        }

    def state_of(self, unit: Unit) -> list[TaskId]:
        """The tasks of a unit that have state."""
        tasks = self.tasks_of(unit.partitions)
        return sorted(task for task in tasks if task.subtopology in self.stateful)


class _Spread:
    """An assignment in the making."""

    def __init__(self, members: Iterable[str], rank: Rank) -> None:
        self._units: dict[str, list[Unit]] = {member: [] for member in sorted(members)}
        self._able: dict[tuple[str, ...], list[str]] = {}
        self._rank = rank

    def place(self, found: list[Unit], able: list[str], holders: Mapping[Unit, str]) -> None:
        """Give out the units of one topic set: first to their holders, then evenly."""
        if not found:
            return
        self._able[found[0].topics] = able
        room = _Room(len(found), able)
        homeless = []
        # What is at hand somewhere else is the first to go, if some have to.
        for unit in sorted(found, key=lambda unit: -self._nearest(unit, able, holders.get(unit))):
            holder = holders.get(unit)
            if holder in able and room.has(holder):
                self._give(holder, unit, room)
            else:
                homeless.append(unit)
        homeless.sort(key=lambda unit: (self._nearest(unit, able, None), unit.partition))
        for unit in homeless:
            # By its state, load in this set, load over all, and name: the same everywhere.
            nearest = min(
                (member for member in able if room.has(member)),
                key=lambda member: (
                    self._rank(unit, member),
                    room.count[member],
                    len(self._units[member]),
                    member,
                ),
            )
            self._give(nearest, unit, room)

    def level(self) -> None:
        """Even out the totals without making any one topic set uneven.

        Two members that differ by two units in total differ by one in some set that both
        may run; handing that one over swaps the difference there. Each step shrinks the sum
        of squares of the totals, so it ends.
        """
        while self._hand_over():
            pass

    @property
    def members_of_units(self) -> dict[Unit, str]:
        """Where each unit is."""
        return {unit: member for member, many in self._units.items() for unit in many}

    def _nearest(self, unit: Unit, able: list[str], holder: str | None) -> float:
        """How near the nearest one is, besides its holder."""
        ranks = (self._rank(unit, member) for member in able if member != holder)
        return min(ranks, default=float("inf"))

    def _give(self, member: str, unit: Unit, room: _Room) -> None:
        self._units[member].append(unit)
        room.take(member)

    def _hand_over(self) -> bool:
        by_load = sorted(self._units, key=lambda member: (len(self._units[member]), member))
        for heavy in reversed(by_load):
            for light in by_load:
                if len(self._units[heavy]) - len(self._units[light]) < 2:  # noqa: PLR2004 - a difference of one is even
                    break
                unit = self._movable(heavy, light)
                if unit is not None:
                    self._units[heavy].remove(unit)
                    self._units[light].append(unit)
                    return True
        return False

    def _movable(self, heavy: str, light: str) -> Unit | None:
        """A unit of `heavy` in a set of which `light` has fewer: the one that is nearest to it."""
        heavy_count = Counter(unit.topics for unit in self._units[heavy])
        light_count = Counter(unit.topics for unit in self._units[light])
        movable = [
            unit
            for unit in reversed(self._units[heavy])
            if light in self._able[unit.topics]
            and heavy_count[unit.topics] > light_count[unit.topics]
        ]
        return min(movable, key=lambda unit: self._rank(unit, light), default=None)


class _Room:
    """How many units of one topic set each member may have, so that two differ by one at most."""

    def __init__(self, number: int, able: list[str]) -> None:
        self.count = Counter[str]()
        self._share, self._extra = divmod(number, len(able))

    def has(self, member: str) -> bool:
        """Whether it may have one more."""
        count = self.count[member]
        return count < self._share or (count == self._share and self._extra > 0)

    def take(self, member: str) -> None:
        """It has one more."""
        self._extra -= self.count[member] == self._share
        self.count[member] += 1


UNKNOWN_LAG = -1
"""There is state on disk, but nobody has looked how old it is."""

CAUGHT_UP, SOME_STATE, UNKNOWN_STATE, NO_STATE = range(4)
"""How much of a unit's state a member has; with less behind the comma if it lags less."""


RELEASED_LAG_FACTOR = 8
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


def plan_round(
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
        self._units = make_units(placement.groups, partitions)
        self._state = {unit: placement.state_of(unit) for unit in self._units}
        owner = {part: member for member in sorted(members) for part in members[member].owned}
        self._owners = {
            unit: sorted({owner[part] for part in unit.partitions if part in owner})
            for unit in self._units
        }
        self._parts = {member: MovePart() for member in sorted(members)}
        self._load = Counter[str]()
        self._nearness = self._distance(RELEASED_LAG_FACTOR * policy.acceptable_lag) - SOME_STATE

    def decide(self) -> dict[str, MovePart]:
        """See `plan_round`."""
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
        if self._rank(unit, target) <= SOME_STATE + self._nearness:
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
        return self._rank(unit, member) < SOME_STATE

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
            return NO_STATE
        if lag == UNKNOWN_LAG:
            return UNKNOWN_STATE
        behind = lag / (lag + self._policy.acceptable_lag + 1)
        return behind if lag <= self._policy.acceptable_lag else SOME_STATE + behind

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
                max(self._rank(unit, member), SOME_STATE),
                count[member] + self._load[member],
                member,
            ),
            default=None,
        )
        if chosen is not None:
            count[chosen] += 1
            self._parts[chosen].standby.extend(tasks)
