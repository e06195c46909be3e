"""Replica plan: which replicas move when a cluster is balanced, drained or grown, and the cost.

A plan is a function of what the cluster has; it does no I/O. Rules of this module:

- No broker is twice in the replicas of a partition, and their number does not change.
- The replicas of a partition are in no fewer racks than before, unless a drained broker leaves no
  choice.
- A cordoned broker gets no replicas, and keeps those that it has.
- Every move is needed: it empties a drained broker, or goes from a broker that has at least two
  replicas more than its target. The smallest partitions move first.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

import msgspec

from streamlog.errors import UsageError
from streamlog.record import TopicPartition

Replicas = tuple[int, ...]
Moves = dict[TopicPartition, Replicas]
"""Partition to its new replicas, the preferred leader first."""
Sized = tuple[int, TopicPartition]
"""A partition with its size in bytes, by which partitions are sorted."""


class PlacedPartition(msgspec.Struct, frozen=True):
    """A partition as it is placed now."""

    replicas: Replicas
    """The preferred leader first."""
    size_bytes: int = 0
    leader: int = -1
    """The broker that leads now; -1 while none does."""


class ReplicaPlacement(msgspec.Struct, frozen=True):
    """What a plan is made from."""

    partitions: Mapping[TopicPartition, PlacedPartition]
    racks: Mapping[int, str | None]
    """Live broker to its rack."""
    cordoned: frozenset[int] = frozenset()


class PlanCost(msgspec.Struct, frozen=True):
    """What the moves of a plan cost."""

    replicas: int
    """Replicas that are copied."""
    bytes: int
    """Bytes that are copied in all."""
    busiest_bytes: int
    """Bytes that the busiest broker sends or receives; a throttle limits each broker."""
    leaders: int
    """Partitions whose preferred leader will not be the broker that leads now."""

    def seconds(self, bytes_per_s: int) -> float:
        """Return how long the copying takes at least, at this rate of each broker."""
        return self.busiest_bytes / bytes_per_s


def plan_balance(placement: ReplicaPlacement) -> Moves:
    """Return the moves after which no broker has two replicas, or leads, more than another."""
    work = _Work(placement)
    work.level(work.open, work.open)
    work.spread_leaders(placement.partitions)
    return work.moves()


def plan_drain(placement: ReplicaPlacement, drained: Collection[int]) -> Moves:
    """Return the moves after which these brokers have no replicas.

    Raises:
        UsageError: a broker is unknown, or too few others are left for some partition.
    """
    holders = {each for part in placement.partitions.values() for each in part.replicas}
    _check_known(drained, holders | {*placement.racks})
    work = _Work(placement, closed=drained)
    # Largest first, as in bin packing: the small ones even out what the large ones leave.
    for partition in sorted(placement.partitions, key=work.size, reverse=True):
        # Sorted, so that two runs over one cluster print the same plan.
        for broker in sorted({*work.replicas[partition]} & {*drained}):
            work.replace(partition, broker, work.substitute(partition, broker))
    work.spread_leaders(work.moves())
    return work.moves()


def plan_add(placement: ReplicaPlacement, added: Collection[int]) -> Moves:
    """Return the moves that give these brokers their share, and move nothing between others.

    Raises:
        UsageError: a broker is unknown, not alive, or cordoned.
    """
    _check_known(added, placement.racks)
    if cordoned := sorted({*added} & placement.cordoned):
        raise UsageError(
            f"broker {cordoned[0]} is cordoned: `streamlog cluster uncordon {cordoned[0]}` first"
        )
    work = _Work(placement)
    # Only new brokers take, so nothing moves between the old ones: each copy of a plan costs
    # bandwidth, and this one has the fewest that give the new brokers their share.
    work.level({*placement.racks} - {*added}, {*added})
    work.spread_leaders(work.moves())
    return work.moves()


def cost_of(placement: ReplicaPlacement, moves: Mapping[TopicPartition, Replicas]) -> PlanCost:
    """Return what moves cost; replicas are copied from the leader."""
    received: Counter[int] = Counter()
    sent: Counter[int] = Counter()
    copies = leaders = 0
    for partition, replicas in moves.items():
        now = placement.partitions[partition]
        coming = [each for each in replicas if each not in now.replicas]
        copies += len(coming)
        leaders += replicas[0] != now.leader
        # A follower fetches from the leader whatever other replica is nearer (KIP-392 is for
        # consumers), so a leader may be the busiest without a replica that moves.
        sent[now.leader] += now.size_bytes * len(coming)
        for broker in coming:
            received[broker] += now.size_bytes
    busiest = max([*received.values(), *sent.values()], default=0)
    return PlanCost(copies, sum(received.values()), busiest, leaders)


def replica_counts(replicas: Iterable[Replicas], brokers: Iterable[int]) -> dict[int, int]:
    """Return how many replicas each of these brokers has."""
    counts = Counter(each for row in replicas for each in row)
    return {broker: counts[broker] for broker in brokers}


def _check_known(named: Collection[int], known: Collection[int]) -> None:
    for broker in sorted(named):
        if broker not in known:
            there = ", ".join(map(str, sorted(known)))
            raise UsageError(f"there is no broker {broker} in the cluster: name one of {there}")


class _Givable:
    """The partitions that one broker may give to another, the smallest first; a heap."""

    __slots__ = ("heap", "read")

    def __init__(self, heap: list[Sized], read: int) -> None:
        self.heap = heap
        self.read = read
        """How many changes of the giver's partitions are in the heap."""
        heapify(heap)


class _Hands:
    """Which partition could pass its leadership from a broker to another: the first of them."""

    def __init__(self, among: Iterable[TopicPartition], replicas: Moves, able: set[int]) -> None:
        """`replicas` are those of now, at any time; only `able` brokers are handed leaderships."""
        self._replicas = replicas
        self._able = able
        self._among = [*among]
        self._index = {partition: index for index, partition in enumerate(self._among)}
        self._heaps: dict[int, dict[int, list[int]]] = {}
        """By leader and follower, the indexes of partitions; some have another leader by now."""
        for partition in self._among:
            self.add(partition)

    def add(self, partition: TopicPartition) -> None:
        """Note the present leader of a partition."""
        leader, *others = self._replicas[partition]
        heaps = self._heaps.setdefault(leader, {})
        for each in others:
            if each in self._able:
                heappush(heaps.setdefault(each, []), self._index[partition])

    def of(self, leader: int) -> Iterator[tuple[int, TopicPartition]]:
        """Yield each broker that the leader could hand a partition to, with the partition."""
        for taker, heap in sorted(self._heaps.get(leader, {}).items()):
            while heap and self._replicas[self._among[heap[0]]][0] != leader:
                heappop(heap)
            if heap:
                yield taker, self._among[heap[0]]


class _Work:
    """A placement while it is changed."""

    def __init__(self, placement: ReplicaPlacement, closed: Collection[int] = ()) -> None:
        self._before = placement.partitions
        self._racks = placement.racks
        self.replicas = {key: part.replicas for key, part in placement.partitions.items()}
        self.open = {*placement.racks} - placement.cordoned - {*closed}
        """Brokers that may get replicas."""
        self._held: dict[int, set[TopicPartition]] = {each: set() for each in placement.racks}
        for key, row in self.replicas.items():
            for broker in row:
                self._held.setdefault(broker, set()).add(key)
        self._sized = {key: (part.size_bytes, key) for key, part in placement.partitions.items()}
        self._changed: defaultdict[int, list[Sized]] = defaultdict(list)
        """By broker, its partitions whose replicas have changed since, in that order."""
        self._givable: dict[tuple[int, int], _Givable] = {}
        """By giver and taker."""
        self._bytes = Counter(
            {broker: sum(map(self._size, held)) for broker, held in self._held.items()}
        )

    def moves(self) -> Moves:
        """Return the partitions whose replicas, or their order, have changed."""
        before = self._before
        return {
            key: row for key, row in sorted(self.replicas.items()) if row != before[key].replicas
        }

    def size(self, partition: TopicPartition) -> Sized:
        """Return the sort key of partitions by size."""
        return self._sized[partition]

    def substitute(self, partition: TopicPartition, broker: int) -> int:
        """Return the broker that takes a replica over: in a rack of its own, with the least."""
        row = self.replicas[partition]
        others = [self._racks.get(each) for each in row if each != broker]
        able = self.open - {*row}
        if not able:
            raise UsageError(
                f"{partition.topic}-{partition.partition} has {len(row)} replicas, and no other"
                f" broker can take the one on broker {broker}: add a broker, uncordon one, or"
                " reassign the partition with fewer replicas"
            )
        # In this order: 1. A rack that has no replica of this partition yet, because the loss of a
        # rack must not cost two of them. 2. The fewest replicas, which is what a plan balances.
        # 3. The fewest bytes. 4. The id, so that a plan can be repeated.
        return min(
            able,
            key=lambda each: (
                self._racks[each] is not None and self._racks[each] in others,
                len(self._held[each]),
                self._bytes[each],
                each,
            ),
        )

    def replace(self, partition: TopicPartition, old: int, new: int) -> None:
        """Put `new` in the place of `old`."""
        row = self.replicas[partition]
        self.replicas[partition] = tuple(new if each == old else each for each in row)
        self._held[old].discard(partition)
        self._held[new].add(partition)
        self._bytes[old] -= self._size(partition)
        self._bytes[new] += self._size(partition)
        for each in self.replicas[partition]:
            self._changed[each].append(self._sized[partition])

    def level(self, givers: Collection[int], takers: Collection[int]) -> None:
        """Move replicas from the fullest givers to the emptiest takers, while two apart."""
        while True:
            full = sorted(givers, key=lambda each: (-len(self._held[each]), each))
            empty = sorted(takers, key=lambda each: (len(self._held[each]), each))
            # "Two apart": with 5 and 4 replicas, a move gives 4 and 5, and the next one would undo
            # it. With 5 and 3 it gives 4 and 4. So each move lowers the sum of the squares of the
            # counts, and the loop ends.
            pairs = (
                (giver, taker)
                for giver in full
                for taker in empty
                if len(self._held[giver]) - len(self._held[taker]) > 1
            )
            found = next(
                (
                    (partition, giver, taker)
                    for giver, taker in pairs
                    if (partition := self._movable(giver, taker)) is not None
                ),
                None,
            )
            if found is None:
                return
            self.replace(*found)

    def spread_leaders(self, among: Iterable[TopicPartition]) -> None:
        """Reorder the replicas of these partitions until the brokers lead equally many."""
        hands = _Hands(among, self.replicas, self.open)
        # Another order can't help a broker that has no replicas of these partitions.
        leads = Counter(dict.fromkeys(self.open, 0))
        leads.update(row[0] for row in self.replicas.values())
        while True:
            # A broker that leads too much may have no partition that the emptiest one follows.
            # Leadership then passes from hand to hand: 1. A leads 3, B 2, C 1. 2. A and C share no
            # partition. 3. B follows one of A's, and C one of B's. 4. A hands to B and B to C: 2,
            # 2, 2.
            for first in sorted(leads, key=lambda each: (-leads[each], each)):
                path = _lead_path(first, leads, hands)
                if path:
                    break
            else:
                return
            for partition, broker in path:
                row = self.replicas[partition]
                self.replicas[partition] = (broker, *(each for each in row if each != broker))
                hands.add(partition)
            leads[first] -= 1
            leads[path[-1][1]] += 1

    def _movable(self, giver: int, taker: int) -> TopicPartition | None:
        """Return the smallest partition that the giver may give to the taker."""
        changed = self._changed[giver]
        found = self._givable.get((giver, taker))
        if found is None:
            found = _Givable([self._sized[each] for each in self._held[giver]], len(changed))
            self._givable[giver, taker] = found
        for each in changed[found.read :]:
            heappush(found.heap, each)
        found.read = len(changed)
        # Whether it may move depends on its replicas alone. So what can't is dropped for good, and
        # comes back with the next change of its replicas: in all, each change costs one look per
        # pair of brokers, and not one look at all partitions per move.
        while found.heap:
            _, partition = found.heap[0]
            if partition in self._held[giver] and self._may_move(partition, giver, taker):
                return partition
            heappop(found.heap)
        return None

    def _may_move(self, partition: TopicPartition, giver: int, taker: int) -> bool:
        row = self.replicas[partition]
        if taker in row:
            return False
        after = [taker if each == giver else each for each in row]
        # Equal is enough: a partition whose replicas share a rack already may move within it.
        return self._spread(after) >= self._spread(row)

    def _spread(self, row: Iterable[int]) -> int:
        return len({self._racks.get(each) for each in row})

    def _size(self, partition: TopicPartition) -> int:
        return self._before[partition].size_bytes


def _lead_path(
    first: int, leads: Mapping[int, int], hands: _Hands
) -> list[tuple[TopicPartition, int]]:
    """Return how leadership passes from `first`, hand to hand, to a broker with less."""
    # Breadth first: the shortest path changes the fewest leaders, and each change is a short pause
    # for the clients of a partition.
    came: dict[int, tuple[int, TopicPartition] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        at = waiting.popleft()
        if leads[first] - leads[at] > 1:
            return _path(came, at)
        for taker, partition in hands.of(at):
            if taker not in came:
                came[taker] = at, partition
                waiting.append(taker)
    return []


def _path(
    came: Mapping[int, tuple[int, TopicPartition] | None], end: int
) -> list[tuple[TopicPartition, int]]:
    path = []
    at = end
    while (step := came[at]) is not None:
        before, partition = step
        path.append((partition, at))
        at = before
    return path[::-1]
