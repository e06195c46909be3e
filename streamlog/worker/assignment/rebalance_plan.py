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

import msgspec

from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition


class Unit(msgspec.Struct, frozen=True):
    """Partitions that have to be read by the same worker."""

    topics: tuple[str, ...]
    """All topics that are read together, sorted."""
    partition: int
    """The partition number that all partitions of the unit share."""
    partitions: tuple[TopicPartition, ...]
    """One partition of each topic that has this number."""


Rank = Callable[[Unit, str], float]
"""The distance of a member from running a unit; 0 if it has all of the unit's state."""


def no_rank(_unit: Unit, _member: str) -> float:
    """Rank all members equally, as without state."""
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
    """Return the units of these topic sets, given the partition count of every topic."""
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
    """The inputs and tasks of an app, which are spread over its workers."""

    groups: tuple[tuple[str, ...], ...]
    """Sets of topics that are read together (see `merge_topic_sets`)."""
    inputs: Mapping[int, Collection[str]] = field(default_factory=dict)
    """Sub-topology number to the topics that its tasks read."""
    stateful: Collection[int] = ()
    """The sub-topologies whose tasks have state."""
    is_exact: bool = False
    """Whether a member that reads topics which are unknown here gets nothing.

    1. A worker has found a new topic of a pattern, and joins the group with it. 2. The leader has
    not found it yet, and its tasks lack an input that the other's have. 3. The other gets no task
    until the leader has looked, too.
    """

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Mapping[str, Collection[TopicPartition]] | None = None,
    ) -> dict[str, list[TopicPartition]]:
        """Spread the units over the members.

        Args:
            members: member id to the topics that it subscribes to. Only a member that reads all
                topics of a unit can get the unit, so two versions of an app may share a group.
            partitions: topic to partition count.
            owned: member id to the partitions that it held before this rebalance.
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
        """Return the target member of each unit: balanced, with as few moves as possible.

        Args:
            members: member id to the topics that it subscribes to.
            partitions: topic to partition count.
            holders: the member that each unit may stay with.
            rank: ranks the members for a unit that moves; the smallest rank gets it.
        """
        spread = _Spread(members, rank)
        for topics, able in self.able(members).items():
            if able:
                spread.add_set(make_units([topics], partitions), able, holders)
        spread.level()
        return spread.members_of_units

    def able(self, members: Mapping[str, Sequence[str]]) -> dict[tuple[str, ...], list[str]]:
        """Return, for each set of topics, the members that read all of it, sorted."""
        read = {member: {*members[member]} for member in sorted(members)}
        if self.is_exact:
            known = {topic for group in self.groups for topic in group}
            read = {member: topics for member, topics in read.items() if topics <= known}
        return {
            topics: [member for member, has in read.items() if has.issuperset(topics)]
            for topics in self.groups
        }

    def tasks_of(self, partitions: Collection[TopicPartition]) -> set[TaskId]:
        """Return the tasks that read at least one of these partitions."""
        return _tasks_of(partitions, self._readers(self.inputs))

    def states(self, units: Iterable[Unit]) -> dict[Unit, list[TaskId]]:
        """Return the stateful tasks of each unit, sorted."""
        # By topic, found once: there may be a thousand topics, and as many units.
        readers = self._readers(self.stateful)
        return {unit: sorted(_tasks_of(unit.partitions, readers)) for unit in units}

    def _readers(self, numbers: Iterable[int]) -> dict[str, list[int]]:
        """Return, for each topic, those of the sub-topologies that read it."""
        found: dict[str, list[int]] = {}
        for number in numbers:
            for topic in self.inputs.get(number, ()):
                found.setdefault(topic, []).append(number)
        return found


def _tasks_of(
    partitions: Iterable[TopicPartition], readers: Mapping[str, Sequence[int]]
) -> set[TaskId]:
    return {
        TaskId(number, partition)
        for topic, partition in partitions
        for number in readers.get(topic, ())
    }


class _Spread:
    """A placement under construction: topic sets are added one by one, then the totals levelled."""

    def __init__(self, members: Iterable[str], rank: Rank) -> None:
        self._units: dict[str, list[Unit]] = {member: [] for member in sorted(members)}
        self._counts = {member: Counter[tuple[str, ...]]() for member in self._units}
        """How many units of each topic set a member has."""
        self._able: dict[tuple[str, ...], list[str]] = {}
        self._rank = rank

    def add_set(self, units: list[Unit], able: list[str], holders: Mapping[Unit, str]) -> None:
        """Give the units of one topic set to their holders, and the rest to the nearest members."""
        if not units:
            return
        self._able[units[0].topics] = able
        quota = _Quota(len(units), able)
        unplaced = []
        # A holder over its quota keeps the units that are expensive to move: a unit that another
        # member has the state of comes last here, so it is the first that no longer fits.
        for unit in sorted(units, key=lambda unit: -self._nearest(unit, able, holders.get(unit))):
            holder = holders.get(unit)
            if holder in able and quota.has_room(holder):
                self._give(holder, unit, quota)
            else:
                unplaced.append(unit)
        unplaced.sort(key=lambda unit: (self._nearest(unit, able, None), unit.partition))
        for unit in unplaced:
            # The name breaks the last tie, so that any leader computes the same placement.
            nearest = min(
                (member for member in able if quota.has_room(member)),
                key=lambda member: (
                    self._rank(unit, member),
                    quota.count[member],
                    len(self._units[member]),
                    member,
                ),
            )
            self._give(nearest, unit, quota)

    def level(self) -> None:
        """Even out the totals and keep every topic set even.

        Two members whose totals differ by two differ by one in some set that both can run. Moving
        one unit of that set reverses the difference there. Each step shrinks the sum of the
        squares of the totals, so the loop ends.
        """
        while self._move_one():
            pass

    @property
    def members_of_units(self) -> dict[Unit, str]:
        """The member of each unit."""
        return {unit: member for member, many in self._units.items() for unit in many}

    def _nearest(self, unit: Unit, able: list[str], holder: str | None) -> float:
        """Return the smallest rank among the members other than the holder."""
        ranks = (self._rank(unit, member) for member in able if member != holder)
        return min(ranks, default=float("inf"))

    def _give(self, member: str, unit: Unit, quota: _Quota) -> None:
        self._units[member].append(unit)
        self._counts[member][unit.topics] += 1
        quota.take(member)

    def _move_one(self) -> bool:
        """Move one unit from a member to one that has two fewer; False if there is no such pair."""
        by_load = sorted(self._units, key=lambda member: (len(self._units[member]), member))
        for heavy in reversed(by_load):
            for light in by_load:
                if len(self._units[heavy]) - len(self._units[light]) < 2:  # noqa: PLR2004 - a difference of one is even
                    break
                unit = self._movable(heavy, light)
                if unit is not None:
                    self._units[heavy].remove(unit)
                    self._units[light].append(unit)
                    self._counts[heavy][unit.topics] -= 1
                    self._counts[light][unit.topics] += 1
                    return True
        return False

    def _movable(self, heavy: str, light: str) -> Unit | None:
        """Return the unit of `heavy` nearest to `light`, from a set of which `light` has fewer."""
        heavy_count, light_count = self._counts[heavy], self._counts[light]
        movable = [
            unit
            for unit in reversed(self._units[heavy])
            if light in self._able[unit.topics]
            and heavy_count[unit.topics] > light_count[unit.topics]
        ]
        return min(movable, key=lambda unit: self._rank(unit, light), default=None)


class _Quota:
    """The number of units of one topic set that each member may have: two differ by at most one."""

    def __init__(self, number: int, able: list[str]) -> None:
        self.count = Counter[str]()
        self._share, self._extra = divmod(number, len(able))

    def has_room(self, member: str) -> bool:
        """Return whether the member may have one more."""
        count = self.count[member]
        return count < self._share or (count == self._share and self._extra > 0)

    def take(self, member: str) -> None:
        """Count one more unit of the member."""
        # A unit beyond the equal share uses up one of the `number % members` extra ones.
        self._extra -= self.count[member] == self._share
        self.count[member] += 1


UNKNOWN_LAG = -1
"""A lag that is not known: the member has state on disk, but has not compared it with the log."""

CAUGHT_UP, SOME_STATE, UNKNOWN_STATE, NO_STATE = range(4)
"""How much of a unit's state a member has. The fraction of a rank grows with the lag."""


RELEASED_LAG_FACTOR = 8
"""A released unit goes to its target even if the target lags by up to this many times the
acceptable lag. Between release and assignment a busy changelog grows; without this tolerance its
task would return to the old owner, and move back and forth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits on moves of tasks, and the number of standbys (KIP-441)."""

    acceptable_lag: int = 10_000
    """The largest lag, in changelog records, at which a member may take over a task."""
    warmups_max: int = 2
    """The largest number of units, over all workers, that warm up at the same time."""
    standbys: int = 0
    """The number of standbys of each stateful task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A member of the group with the state that it has, as input of a rebalance."""

    topics: Sequence[str]
    owned: Collection[TopicPartition] = ()
    """The partitions that it reads and that no later rebalance gave to another member."""
    host: str = ""
    """Names the state directory: members with equal hosts share one. Empty: shared with no one."""
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    """Task to the lag of its state, in changelog records, or `UNKNOWN_LAG`. Running tasks whose
    restore is complete are absent."""
    following: Collection[TaskId] = ()
    """The tasks among `lags` whose changelog it follows, as a standby or a warm-up."""


@dataclass(frozen=True, slots=True)
class MovePart:
    """What one member gets in a rebalance."""

    partitions: list[TopicPartition] = field(default_factory=list)
    """The partitions that it reads from now on."""
    standby: list[TaskId] = field(default_factory=list)
    """The tasks that it follows as a standby."""
    warmup: list[TaskId] = field(default_factory=list)
    """The tasks that it follows until they can move to it."""


def plan_round(
    placement: Placement,
    policy: Policy,
    members: Mapping[str, Candidate],
    partitions: Mapping[str, int],
) -> dict[str, MovePart]:
    """Plan one rebalance.

    Args:
        placement: the inputs and tasks of the app.
        policy: the limits on moves, and the number of standbys.
        members: member id to what the member has.
        partitions: topic to partition count.

    Returns:
        An entry for every member.
    """
    return _Round(placement, policy, members, partitions).decide()


class _Round:
    """The plan of one rebalance.

    A move of a stateful task from A to B takes several rebalances:

    1. The placement names B as target, but B lags. A keeps the task; B gets a warm-up.
    2. B's lag becomes acceptable and B asks for a rebalance. A no longer gets the task, and no
       other member does; B keeps following it. A closes the task and joins again.
    3. The partitions have no owner. B gets them and opens the state that it has followed.

    If B leaves in between, the next plan has another target, and A still runs the task (1), or the
    task goes to the member whose state is nearest (2, 3).
    """

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
        self._state = placement.states(self._units)
        self._able = placement.able(self._topics)
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
        # The smallest lags first: those warm-ups end soonest and let the next ones begin.
        warming.sort(key=lambda each: (self._rank(*each), each[0].topics, each[0].partition))
        warming = warming[: self._policy.warmups_max]
        for unit, runner in running.items():
            if runner is not None:
                self._parts[runner].partitions.extend(unit.partitions)
                self._load[runner] += 1
        # A target that waits for the release keeps following: it stays up to date, and its lag is
        # known in the rebalance that assigns the unit. These don't count against `warmups_max`.
        warming += [
            (unit, target[unit])
            for unit, runner in running.items()
            if runner is None and self._follows(unit, target[unit])
        ]
        for unit, member in warming:
            self._parts[member].warmup.extend(self._state[unit])
        self._assign_standbys(running, dict(warming))
        for part in self._parts.values():
            part.partitions.sort()
            part.standby.sort()
            part.warmup.sort()
        return self._parts

    def _owner(self, unit: Unit) -> str | None:
        """Return the member that runs the whole unit, or None.

        After a change of the app several members may own parts of one unit.
        """
        owners = self._owners[unit]
        return owners[0] if len(owners) == 1 else None

    def _holders(self) -> dict[Unit, str]:
        """Return the members that keep their units if the balance allows it.

        An owner that is still restoring doesn't count if another member could run the unit now.
        """
        holders = {}
        for unit in self._units:
            owner = self._owner(unit)
            if owner is not None and (self._is_open(unit, owner) or not self._is_anywhere(unit)):
                holders[unit] = owner
        return holders

    def _runner(self, unit: Unit, target: str) -> str | None:
        """Return the member that runs the unit after this rebalance; None while it is revoked."""
        owners = self._owners[unit]
        able = self._able[unit.topics]
        if owners == [target]:
            return target
        if owners:
            is_free = len(owners) > 1 or owners[0] not in able or self._is_ready(unit, target)
            # KIP-429: a unit that moves is revoked here and assigned in the next rebalance. If it
            # were assigned at once, the target could begin before the owner's last commit.
            return None if is_free else owners[0]
        if self._rank(unit, target) <= SOME_STATE + self._nearness:
            return target
        # The target lost its state meanwhile: a member that is caught up runs the unit first, and
        # the next rebalances move it on.
        ready = [member for member in able if self._is_ready(unit, member)]
        return min(ready, key=lambda member: self._rank(unit, member), default=target)

    def _is_open(self, unit: Unit, owner: str) -> bool:
        """Return whether the owner runs the unit's tasks, or has almost restored them."""
        lags = self._members[owner].lags
        return all(
            0 <= lags.get(task, 0) <= self._policy.acceptable_lag for task in self._state[unit]
        )

    def _is_anywhere(self, unit: Unit) -> bool:
        """Return whether a member other than the owner could run the unit now."""
        able = self._able[unit.topics]
        owner = self._owner(unit)
        return any(self._is_ready(unit, member) for member in able if member != owner)

    def _follows(self, unit: Unit, member: str) -> bool:
        return {*self._state[unit]} <= {*self._members[member].following}

    def _is_ready(self, unit: Unit, member: str) -> bool:
        return self._rank(unit, member) < SOME_STATE

    def _rank(self, unit: Unit, member: str) -> float:
        """Return the distance of a member from running a unit: the worst of the unit's tasks.

        The integer part is one of `CAUGHT_UP` to `NO_STATE`, the fraction grows with the lag.
        """
        # Without a loop for slots of connectors, which have no state: this is asked most often.
        tasks = self._state[unit]
        if not tasks:
            return CAUGHT_UP
        return max(self._distance(self._lag(task, unit, member)) for task in tasks)

    def _lag(self, task: TaskId, unit: Unit, member: str) -> int | None:
        """Return the lag of the state that a member could open, or None if it has no state."""
        here = self._members[member]
        # An owner that names no lag runs the task with complete state: lag 0.
        found = [here.lags.get(task, 0 if member == self._owner(unit) else None)]
        if here.host:
            # A member can open the state of the others on its host once they have closed it.
            found += [
                each.lags.get(task, 0 if other == self._owner(unit) else None)
                for other, each in self._members.items()
                if each.host == here.host
            ]
        known = [lag for lag in found if lag is not None]
        measured = [lag for lag in known if lag != UNKNOWN_LAG]
        return min(measured, default=min(known, default=None))

    def _distance(self, lag: int | None) -> float:
        if lag is None:
            return NO_STATE
        if lag == UNKNOWN_LAG:
            return UNKNOWN_STATE
        # Below 1 for every lag and growing with it, so a fraction never reaches the next class.
        behind = lag / (lag + self._policy.acceptable_lag + 1)
        return behind if lag <= self._policy.acceptable_lag else SOME_STATE + behind

    def _assign_standbys(
        self, running: Mapping[Unit, str | None], warming: Mapping[Unit, str]
    ) -> None:
        """Choose the standbys of every stateful unit, spread as evenly as their state allows."""
        count = Counter[str]()
        wanted = [unit for unit in running if self._state[unit]]
        total = self._policy.standbys * len(wanted)
        quota = -(-total // max(len(self._members), 1))
        for _ in range(self._policy.standbys):
            for unit in wanted:
                self._assign_standby(unit, running[unit], warming.get(unit), count, quota)

    def _assign_standby(
        self, unit: Unit, runner: str | None, warming: str | None, count: Counter[str], quota: int
    ) -> None:
        tasks = self._state[unit]
        others = {runner, warming, *(self._owners[unit])} - {None}
        others |= {member for member, part in self._parts.items() if tasks[0] in part.standby}
        hosts = {self._members[member].host for member in others if member is not None} - {""}
        able = [
            member
            for member in self._able[unit.topics]
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
