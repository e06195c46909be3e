"""Assignors: which member of a group reads which partition.

Pure: members with their topics and partition counts in, an assignment out. The leader of a
group runs one; the broker only carries the result. An assignor is deterministic: the same
input gives the same output whoever computes it, so the order of a mapping must not matter.
All here are Kafka's by name and by what they say on the wire, and may share a group with other
clients: `range` and `roundrobin`; `sticky`, which leaves partitions where they were as far as
balance allows; and `cooperative-sticky` (KIP-429), which moves one only after its owner has given
it up, so that members go on reading what they keep. The streams' placement is another.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from streamlog.errors import CorruptData
from streamlog.record import TopicPartition

Owned = Mapping[str, Collection["TopicPartition"]]
"""Member id to the partitions that it held before this rebalance."""


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


class Memory(NamedTuple):
    """What a member tells an assignor of the past."""

    owned: Collection[TopicPartition]
    generation: int
    """In which it was given them; -1 if it does not say."""


@runtime_checkable
class StickyPort(Protocol):
    """Port: an assignor with something to say to itself on another member, as user data."""

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep what they have while the group is assigned anew."""
        ...

    def user_data(self, owned: Collection[TopicPartition], generation: int) -> bytes | None:
        """What a member tells the leader, besides its topics."""
        ...

    def memory(self, user_data: bytes) -> Memory:
        """What a member has told.

        Raises:
            CorruptData: this is not the user data of such an assignor.
        """
        ...


class Claim(NamedTuple):
    """What one member brings to a round that is directed (see `DirectingPort`)."""

    topics: Sequence[str]
    """What it subscribes to."""
    owned: Collection[TopicPartition]
    """What it had before and nobody else was given since."""
    user_data: bytes
    """What it has `told`; empty if it says nothing."""


class Share(NamedTuple):
    """What one member gets in a round that is directed."""

    partitions: Sequence[TopicPartition]
    user_data: bytes = b""
    """What the leader tells it besides (`heard`)."""


@runtime_checkable
class DirectingPort(Protocol):
    """Port: an assignor whose members and leader tell each other more than partitions."""

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep what they have while the group is assigned anew."""
        ...

    def told(self) -> bytes:
        """What this member tells the leader; asked for whenever it joins."""
        ...

    def direct(
        self, members: Mapping[str, Claim], partitions: Mapping[str, int]
    ) -> Mapping[str, Share]:
        """As the leader: what everybody gets; see `Assignor.assign`."""
        ...

    def heard(self, user_data: bytes) -> None:
        """What the leader has told this member, before its part is carried out."""
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


class StickyAssignor:
    """Kafka's `sticky`: balanced, and of what was owned as much as possible stays.

    A member's past is in its user data, byte for byte as Java's assignor of this name has it.
    """

    name = "sticky"
    is_cooperative = False

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Owned | None = None,
    ) -> dict[str, list[TopicPartition]]:
        """See `Assignor.assign`."""
        return balance(members, partitions, owned or {})

    def user_data(self, owned: Collection[TopicPartition], generation: int) -> bytes | None:
        """See `StickyPort.user_data`: topics with their partitions, and the generation."""
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(owned):
            topics.setdefault(topic, []).append(partition)
        data = struct.pack(">i", len(topics))
        for topic, numbers in topics.items():
            name = topic.encode()
            data += struct.pack(">h", len(name)) + name
            data += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        return data + struct.pack(">i", generation)

    def memory(self, user_data: bytes) -> Memory:
        """See `StickyPort.memory`. Of the first version, without a generation, as well."""
        owned: list[TopicPartition] = []
        try:
            (topics,) = struct.unpack_from(">i", user_data)
            position = 4
            for _ in range(topics):
                (length,) = struct.unpack_from(">h", user_data, position)
                name = user_data[position + 2 : position + 2 + length].decode()
                (count,) = struct.unpack_from(">i", user_data, position + 2 + length)
                position += 6 + length
                if count < 0 or count * 4 > len(user_data):
                    raise CorruptData(f"a member owns {count} partitions of {name!r}?")
                numbers = struct.unpack_from(f">{count}i", user_data, position)
                owned += (TopicPartition(name, number) for number in numbers)
                position += 4 * count
            rest = user_data[position:]
            return Memory(owned, struct.unpack(">i", rest)[0] if rest else -1)
        except (struct.error, UnicodeDecodeError) as error:
            raise CorruptData(f"this is no user data of {self.name!r}: {error}") from error


class CooperativeStickyAssignor(StickyAssignor):
    """Kafka's `cooperative-sticky`: a partition is free before it is given to another member.

    What would move goes to nobody; its owner gives it up and joins again, and then it is given
    away. What members own is in their subscriptions; the user data is the generation alone, as
    Java's assignor of this name has it.
    """

    name = "cooperative-sticky"
    is_cooperative = True

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Owned | None = None,
    ) -> dict[str, list[TopicPartition]]:
        """See `Assignor.assign`."""
        plan = balance(members, partitions, owned or {})
        owner = {each: member for member in owned or {} for each in (owned or {})[member]}
        return {
            member: [each for each in share if owner.get(each, member) == member]
            for member, share in plan.items()
        }

    def user_data(
        self,
        owned: Collection[TopicPartition],  # noqa: ARG002 - it is in the subscription
        generation: int,
    ) -> bytes | None:
        """See `StickyPort.user_data`."""
        return struct.pack(">i", generation)

    def memory(self, user_data: bytes) -> Memory:
        """See `StickyPort.memory`. librdkafka sends what it sends for `sticky`."""
        if len(user_data) == struct.calcsize(">i"):
            return Memory((), struct.unpack(">i", user_data)[0])
        return super().memory(user_data)


def balance(
    members: Mapping[str, Sequence[str]], partitions: Mapping[str, int], owned: Owned
) -> dict[str, list[TopicPartition]]:
    """Spread partitions as evenly as subscriptions allow, and leave what is owned where it is.

    With the same topics for all, totals differ by one at most and nothing moves that need not.
    Otherwise partitions move from a member to one that has two fewer and may read them, until
    there is no such pair.

    Args:
        members: member id to the topics that it subscribes to.
        partitions: topic to its number of partitions.
        owned: what each member has; a partition that several claim stays with the first by name.
    """
    readers = _by_topic(members, partitions)
    shares: dict[str, set[TopicPartition]] = {member: set() for member in sorted(members)}
    free = {TopicPartition(topic, p) for topic in readers for p in range(partitions[topic])}
    for member, share in shares.items():
        for each in owned.get(member, ()):
            if each in free and member in readers[each.topic]:
                share.add(each)
                free.discard(each)
    if len({tuple(names) for names in readers.values()}) == 1:
        subscribers = next(iter(readers.values()))
        _level(subscribers, shares, free)
    else:
        _spread(readers, shares, free)
        _even_out(readers, shares)
    return {member: sorted(share) for member, share in shares.items()}


def _level(
    subscribers: Sequence[str], shares: dict[str, set[TopicPartition]], free: set[TopicPartition]
) -> None:
    """Everybody reads everything: cut down to the quota, then fill up."""
    total = len(free) + sum(map(len, shares.values()))
    least, extra = divmod(total, len(subscribers))
    # Who has most keeps one more, so that fewest partitions move.
    for place, member in enumerate(sorted(subscribers, key=lambda name: -len(shares[name]))):
        surplus = sorted(shares[member])[least + (place < extra) :]
        shares[member].difference_update(surplus)
        free.update(surplus)
    loads = [(len(shares[member]), member) for member in subscribers]
    heapq.heapify(loads)
    for each in sorted(free):
        count, member = heapq.heappop(loads)
        shares[member].add(each)
        heapq.heappush(loads, (count + 1, member))


def _spread(
    readers: Mapping[str, Sequence[str]],
    shares: dict[str, set[TopicPartition]],
    free: set[TopicPartition],
) -> None:
    """Give what nobody has to who has least, the topics with fewest readers first."""
    for each in sorted(free, key=lambda each: (len(readers[each.topic]), each)):
        least = min(readers[each.topic], key=lambda member: len(shares[member]))
        shares[least].add(each)


def _even_out(readers: Mapping[str, Sequence[str]], shares: dict[str, set[TopicPartition]]) -> None:
    """Move single partitions until no move makes two members more alike."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(shares, key=lambda name: -len(shares[name])):
            for each, taker in _moves(giver, readers, shares):
                shares[giver].discard(each)
                shares[taker].add(each)
                moved = True


def _moves(
    giver: str, readers: Mapping[str, Sequence[str]], shares: dict[str, set[TopicPartition]]
) -> Iterator[tuple[TopicPartition, str]]:
    """One after the other, as long as somebody who may read one has two fewer."""
    for topic in sorted({each.topic for each in shares[giver]}):
        for each in sorted(each for each in shares[giver] if each.topic == topic):
            taker = min(readers[topic], key=lambda member: len(shares[member]))
            if len(shares[taker]) + 1 >= len(shares[giver]):
                break
            yield each, taker


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
