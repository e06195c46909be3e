"""Which worker runs which task.

Pure: members and partition counts in, an assignment out. What moves between workers is a
`Unit`: the partitions with one number of all topics that are read together, because a join
or a shared store needs them in one place. Three rules, in this order: a unit is never split;
every set of topics, and then everything together, is spread so that two workers differ by at
most one unit; a unit stays where it ran, since moving it means restoring its state. Standby
copies and load by bytes are not considered. The idea is Kafka Streams' sticky assignor
(KIP-54, KIP-441) without its warm-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streamlog.assignors import TopicPartition
from streamlog.processing.task import TaskId


@dataclass(frozen=True, slots=True)
class Unit:
    """Partitions that have to be read by the same worker."""

    topics: tuple[str, ...]
    """The whole set of topics that belong together, sorted."""
    partition: int
    """The number that all its partitions have."""
    partitions: tuple[TopicPartition, ...]
    """Those of the topics that have a partition of this number."""


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
    """The assignor of an app: its topic sets, and which member held what until now."""

    groups: tuple[tuple[str, ...], ...]
    """Topics that are read together (see `together`)."""
    inputs: Mapping[int, Collection[str]] = field(default_factory=dict)
    """By number of a sub-topology: the topics that its tasks read."""
    name: str = "streamlog"

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
        spread = _Spread(members)
        for topics in self.groups:
            able = [member for member in sorted(members) if {*topics} <= {*members[member]}]
            if able:
                spread.place(units([topics], partitions), able, held)
        spread.level()
        return {member: spread.partitions_of(member) for member in members}

    def tasks_of(self, partitions: Collection[TopicPartition]) -> set[TaskId]:
        """The tasks that read one of these partitions."""
        return {
            TaskId(number, partition)
            for number, topics in self.inputs.items()
            for topic, partition in partitions
            if topic in topics
        }


class _Spread:
    """An assignment in the making."""

    def __init__(self, members: Iterable[str]) -> None:
        self._units: dict[str, list[Unit]] = {member: [] for member in sorted(members)}
        self._able: dict[tuple[str, ...], list[str]] = {}

    def place(self, found: list[Unit], able: list[str], held: Mapping[TopicPartition, str]) -> None:
        """Give out the units of one topic set: first to their holders, then evenly."""
        if not found:
            return
        self._able[found[0].topics] = able
        share, extra = divmod(len(found), len(able))
        count = Counter[str]()
        homeless = []
        for unit in found:
            holder = next((held[p] for p in unit.partitions if held.get(p) in able), None)
            if holder is not None and count[holder] < share:
                self._give(holder, unit, count)
            elif holder is not None and count[holder] == share and extra > 0:
                extra -= 1
                self._give(holder, unit, count)
            else:
                homeless.append(unit)
        for unit in homeless:
            # By load in this set, then by load over all, then by name: the same everywhere.
            lightest = min(
                able, key=lambda member: (count[member], len(self._units[member]), member)
            )
            self._give(lightest, unit, count)

    def level(self) -> None:
        """Even out the totals without making any one topic set uneven.

        Two members that differ by two units in total differ by one in some set that both
        may run; handing that one over swaps the difference there. Each step shrinks the sum
        of squares of the totals, so it ends.
        """
        while self._hand_over():
            pass

    def partitions_of(self, member: str) -> list[TopicPartition]:
        """All partitions of the member's units, sorted."""
        return sorted(part for unit in self._units[member] for part in unit.partitions)

    def _give(self, member: str, unit: Unit, count: Counter[str]) -> None:
        self._units[member].append(unit)
        count[member] += 1

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
        """A unit of `heavy` in a set of which `light` has fewer."""
        heavy_count = Counter(unit.topics for unit in self._units[heavy])
        light_count = Counter(unit.topics for unit in self._units[light])
        for unit in reversed(self._units[heavy]):
            able = light in self._able[unit.topics]
            if able and heavy_count[unit.topics] > light_count[unit.topics]:
                return unit
        return None
