"""Assignors: which member of a group reads which partition.

Pure: members with their topics and partition counts in, an assignment out. The leader of a
group runs one; the broker only carries the result. An assignor is deterministic: the same
input gives the same output whoever computes it, so the order of a mapping must not matter.
The two here are Kafka's `range` and `roundrobin` and may share a group with other clients.
Stickiness is left to assignors that look at `owned` (the streams' placement is one), and so
are cooperative rebalances (KIP-429).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

Owned = Mapping[str, Collection["TopicPartition"]]
"""Member id to the partitions that it held before this rebalance."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class Assignor(Protocol):
    """Port: a way to spread partitions over the members of a group."""

    @property
    def name(self) -> str:
        """What members agree on: a group uses an assignor that all its members offer."""
        ...

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Owned | None = None,
    ) -> dict[str, list[TopicPartition]]:
        """Spread the partitions over the members.

        Args:
            members: member id to the topics that it subscribes to.
            partitions: topic to its number of partitions; a topic that the log does not
                have is absent.
            owned: what each member held before; a hint that may be ignored.

        Returns:
            An entry for every member, each partition with at most one of them.
        """
        ...


class RangeAssignor:
    """Kafka's `range`: topic by topic, neighbouring partitions to members in order.

    Topics with the same number of partitions and the same members are assigned alike, so that
    partition 3 of both lands on one member.

    Example:
        >>> RangeAssignor().assign({"a": ["t"], "b": ["t"]}, {"t": 3})["a"]
        [TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=1)]
    """

    name = "range"

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Owned | None = None,  # noqa: ARG002 - the port's hint; this one has no memory
    ) -> dict[str, list[TopicPartition]]:
        """See `Assignor.assign`."""
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
        for topic, subscribers in _by_topic(members, partitions).items():
            share, extra = divmod(partitions[topic], len(subscribers))
            start = 0
            for position, member in enumerate(subscribers):
                end = start + share + (position < extra)
                assignment[member] += [TopicPartition(topic, p) for p in range(start, end)]
                start = end
        return assignment


class RoundRobinAssignor:
    """Kafka's `roundrobin`: all partitions in order, dealt like cards to who subscribes.

    Members' totals differ by at most one if all of them subscribe to the same topics.
    """

    name = "roundrobin"

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Owned | None = None,  # noqa: ARG002 - the port's hint; this one has no memory
    ) -> dict[str, list[TopicPartition]]:
        """See `Assignor.assign`."""
        order = sorted(members)
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in order}
        turn = 0
        for topic, subscribers in _by_topic(members, partitions).items():
            wanted = set(subscribers)
            for partition in range(partitions[topic]):
                while order[turn % len(order)] not in wanted:
                    turn += 1
                assignment[order[turn % len(order)]].append(TopicPartition(topic, partition))
                turn += 1
        return assignment


def _by_topic(
    members: Mapping[str, Sequence[str]], partitions: Mapping[str, int]
) -> dict[str, list[str]]:
    """Topics that exist, sorted, each with the sorted members that subscribe to it."""
    subscribers: dict[str, list[str]] = {}
    for member in sorted(members):
        for topic in sorted(set(members[member])):
            if partitions.get(topic, 0) > 0:
                subscribers.setdefault(topic, []).append(member)
    return dict(sorted(subscribers.items()))
