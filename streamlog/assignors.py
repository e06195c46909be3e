"""Assignors: which member of a group reads which partition.

Rule: pure. Members with their topics, and partition counts, go in; an assignment comes out. The
group's leader runs the assignor, and the broker only distributes the result. An assignor is
deterministic: equal input gives equal output on every member, so the order of a mapping must not
matter.

All assignors here have Kafka's names and Kafka's bytes, so they may share a group with other
clients: `range` and `roundrobin`; `sticky`, which leaves partitions with their owners as far as
balance allows; and `cooperative-sticky` (KIP-429), which assigns a partition to another member only
after its owner has given it up, so that members keep reading the partitions that they keep.

Not done here: the assignor of workers (`worker/assignment/streams_assignor`).
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
        """The name of the assignor. A group uses an assignor that all its members offer."""
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
            partitions: topic to its number of partitions. Topics that the log does not have are
                absent.
            owned: member id to the partitions that it held before; a hint that may be ignored.

        Returns:
            An entry for every member. Each partition is in at most one entry.
        """
        ...


class Memory(NamedTuple):
    """The partitions that a member owned, decoded from its user data."""

    owned: Collection[TopicPartition]
    generation: int
    """The generation that assigned them; -1 if the member does not send it."""


@runtime_checkable
class StickyPort(Protocol):
    """Port: an assignor whose members send the partitions that they own, as user data."""

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep their partitions while the group rebalances (KIP-429)."""
        ...

    def user_data(self, owned: Collection[TopicPartition], generation: int) -> bytes | None:
        """Return the user data of a member's subscription, or None for none."""
        ...

    def memory(self, user_data: bytes) -> Memory:
        """Decode the user data of a member's subscription.

        Raises:
            CorruptData: these bytes are not the user data of this assignor.
        """
        ...


class Claim(NamedTuple):
    """What one member sends to the leader of a group with a `DirectingPort`."""

    topics: Sequence[str]
    """The topics that it subscribes to."""
    owned: Collection[TopicPartition]
    """The partitions that it had and that no later rebalance gave to another member."""
    user_data: bytes
    """Its `subscription_data`; empty if it sent none."""


class Share(NamedTuple):
    """What one member gets from the leader of a group with a `DirectingPort`."""

    partitions: Sequence[TopicPartition]
    user_data: bytes = b""
    """Data for the member's `on_assignment`."""


@runtime_checkable
class DirectingPort(Protocol):
    """Port: an assignor whose members and leader exchange data besides partitions."""

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep their partitions while the group rebalances (KIP-429)."""
        ...

    @property
    def withholds(self) -> bool:
        """Whether the last `direct` left to the next rebalance what only the user data names."""
        ...

    def subscription_data(self) -> bytes:
        """Return the data that this member sends to the leader; called each time it joins."""
        ...

    def direct(
        self, members: Mapping[str, Claim], partitions: Mapping[str, int]
    ) -> Mapping[str, Share]:
        """Return the share of every member; called on the leader. See `Assignor.assign`."""
        ...

    def on_assignment(self, user_data: bytes) -> None:
        """Take the leader's data for this member; called before the assignment takes effect."""
        ...


class RangeAssignor:
    """Kafka's `range`: topic by topic, neighbouring partitions to members in order.

    Two topics with equal partition counts and equal subscribers are assigned alike: partition 3 of
    both goes to one member.

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
    """Kafka's `roundrobin`: all partitions in order, dealt in turn to the subscribers.

    If all members subscribe to the same topics, their totals differ by at most one.
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
                # Ends, as every topic here has a subscriber.
                while order[turn % len(order)] not in wanted:
                    turn += 1
                assignment[order[turn % len(order)]].append(TopicPartition(topic, partition))
                turn += 1
        return assignment


class StickyAssignor:
    """Kafka's `sticky`: balanced, with as few moves as possible (KIP-54).

    A member sends the partitions that it owned as user data, in the format of Java's assignor.
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
        """Return topics with their partitions, and the generation; see `StickyPort.user_data`."""
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
        """See `StickyPort.memory`; also reads the format's first version, without a generation."""
        owned: list[TopicPartition] = []
        try:
            (topics,) = struct.unpack_from(">i", user_data)
            position = 4
            for _ in range(topics):
                (length,) = struct.unpack_from(">h", user_data, position)
                name = user_data[position + 2 : position + 2 + length].decode()
                (count,) = struct.unpack_from(">i", user_data, position + 2 + length)
                # Two bytes for the length of the name, and four for the count.
                position += 6 + length
                # Checked before unpacking: a forged count must not allocate gigabytes.
                if count < 0 or count * 4 > len(user_data):
                    raise CorruptData(
                        f"the user data of {self.name!r} holds an impossible number of partitions "
                        f"of {name!r}: {count}"
                    )
                numbers = struct.unpack_from(f">{count}i", user_data, position)
                owned += (TopicPartition(name, number) for number in numbers)
                position += 4 * count
            rest = user_data[position:]
            return Memory(owned, struct.unpack(">i", rest)[0] if rest else -1)
        except (struct.error, UnicodeDecodeError) as error:
            raise CorruptData(f"the user data of {self.name!r} is malformed: {error}") from error


class CooperativeStickyAssignor(StickyAssignor):
    """Kafka's `cooperative-sticky` (KIP-429): a moving partition has no owner for one rebalance.

    A partition that has to move is assigned to no member. Its owner revokes it and joins again, and
    the next rebalance assigns it. The partitions that members own are in their subscriptions; the
    user data is the generation alone, as in Java's assignor.
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
        # 1. The plan moves t-0 from a to b. a still reads it, so neither gets it here.
        # 2. a sees that t-0 is gone, commits, and joins again.
        # 3. t-0 has no owner, so the next plan's choice stands.
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
        """See `StickyPort.memory`; also reads the format of `sticky`, which librdkafka sends."""
        if len(user_data) == struct.calcsize(">i"):
            return Memory((), struct.unpack(">i", user_data)[0])
        return super().memory(user_data)


def balance(
    members: Mapping[str, Sequence[str]], partitions: Mapping[str, int], owned: Owned
) -> dict[str, list[TopicPartition]]:
    """Spread partitions as evenly as subscriptions allow, with as few moves as possible.

    If all members subscribe to the same topics, totals differ by at most one, and the number of
    moves is minimal. Otherwise partitions move from a member to one that has two fewer and may read
    them, until there is no such pair.

    Args:
        members: member id to the topics that it subscribes to.
        partitions: topic to its number of partitions.
        owned: member id to its partitions. A partition that several members claim stays with the
            first of them by name.
    """
    readers = _by_topic(members, partitions)
    shares: dict[str, set[TopicPartition]] = {member: set() for member in sorted(members)}
    free = {TopicPartition(topic, p) for topic in readers for p in range(partitions[topic])}
    for member, share in shares.items():
        for each in owned.get(member, ()):
            # A partition that was claimed before, or that the member no longer reads, is not kept.
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
    """Balance members that all read the same topics: cut down to the quota, then fill up."""
    total = len(free) + sum(map(len, shares.values()))
    least, extra = divmod(total, len(subscribers))
    # `extra` members may have one more than `least`. Those that own most get the larger quota, so
    # that the fewest partitions move.
    for index, member in enumerate(sorted(subscribers, key=lambda name: -len(shares[name]))):
        surplus = sorted(shares[member])[least + (index < extra) :]
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
    """Give each free partition to its reader with the fewest, topics with few readers first."""
    for each in sorted(free, key=lambda each: (len(readers[each.topic]), each)):
        least = min(readers[each.topic], key=lambda member: len(shares[member]))
        shares[least].add(each)


def _even_out(readers: Mapping[str, Sequence[str]], shares: dict[str, set[TopicPartition]]) -> None:
    """Move single partitions until no move reduces the difference between two members.

    Each move shrinks the sum of the squares of the totals, so the loop ends.
    """
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
    """Yield each partition that a reader with at least two fewer can take, and that reader.

    The caller moves a partition before it asks for the next one, so counts are current.
    """
    for topic in sorted({each.topic for each in shares[giver]}):
        for each in sorted(each for each in shares[giver] if each.topic == topic):
            taker = min(readers[topic], key=lambda member: len(shares[member]))
            if len(shares[taker]) + 1 >= len(shares[giver]):
                break
            yield each, taker


def _by_topic(
    members: Mapping[str, Sequence[str]], partitions: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return the existing topics, sorted, each with its subscribers, sorted."""
    subscribers: dict[str, list[str]] = {}
    for member in sorted(members):
        for topic in sorted(set(members[member])):
            if partitions.get(topic, 0) > 0:
                subscribers.setdefault(topic, []).append(member)
    return dict(sorted(subscribers.items()))
