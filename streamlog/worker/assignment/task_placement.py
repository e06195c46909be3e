"""Which worker runs which task, once nothing is on its way.

Pure: members, partition counts and who has what in, an assignment out. What moves between workers
is a `Unit`: the partitions with one number of all topics that are read together, because a join
or a shared store needs them in one place. Three rules, in this order: a unit is never split;
every set of topics, and then everything together, is spread so that two workers differ by at
most one unit; a unit stays where it ran, and one that has to go goes where its state is. The idea
is Kafka Streams' sticky assignor (KIP-54, KIP-441); load by bytes is not considered. How to get
there without a gap is said in `moves`.
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


def together(groups: Iterable[Collection[str]]) -> list[tuple[str, ...]]:
    """Merge groups that share a topic, until every topic is in exactly one.

    Example:
        >>> together([{"orders", "users"}, {"users"}, {"clicks"}])
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


def units(groups: Iterable[tuple[str, ...]], partitions: Mapping[str, int]) -> list[Unit]:
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
    """Topics that are read together (see `together`)."""
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
        for unit in units(self.groups, partitions):
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
                spread.place(units([topics], partitions), able, holders)
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
