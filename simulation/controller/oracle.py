"""Oracle: what the metadata log has ever said, what was ever acknowledged, and what must hold."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Protocol

from streamlog.broker.quorum.metadata.cluster_metadata import (
    ClusterMetadata,
    PartitionChanged,
    TopicDeleted,
)
from streamlog.broker.quorum.metadata.metadata_records import decode_record
from streamlog.broker.quorum.metadata.registrations import NO_LEADER, BrokerRegistration

Place = tuple[bytes, int]
"""Topic id and number of a partition."""
Entry = tuple[int, int]
"""The epoch of the leader that has appended it, and a number of its own."""


class Violation(Exception):
    """What must not happen has happened."""


class Holder(Protocol):
    """A broker's disk."""

    directory: bytes
    lives: list[bytes]
    """Starts that may have been the last to register."""
    broken: dict[Place, int]
    """Where it has found damage that the controller does not know of."""

    def log(self, place: Place) -> list[Entry]:
        """What it has of a partition."""
        ...


class Oracle:
    """Sees everything at once, and changes nothing."""

    def __init__(self, holders: dict[int, Holder], counts: Counter[str]) -> None:
        self.image = ClusterMetadata()
        self._holders = holders
        self._counts = counts
        self._committed: dict[Place, list[Entry]] = {}
        self._leaders: dict[tuple[Place, int], int] = {}
        self._hash = sha256()

    def trace(self) -> str:
        """A digest of all that has happened."""
        return self._hash.hexdigest()[:16]

    def on_record(self, value: bytes, offset: int) -> None:
        """A record is committed at an offset.

        Raises:
            Violation: it should not be.
        """
        self._hash.update(value)
        change = self.image.replay(decode_record(value), offset)
        if isinstance(change, TopicDeleted):
            for number in change.partitions:
                self._committed.pop((change.topic_id, number), None)
        elif isinstance(change, PartitionChanged):
            self._on_partition(change)

    def _on_partition(self, change: PartitionChanged) -> None:
        now, before = change.after, change.before
        place = change.topic_id, change.partition
        where = f"{change.topic}-{change.partition}, epoch {now.leader_epoch}"
        known = self._leaders.setdefault((place, now.leader_epoch), now.leader)
        if known != now.leader:
            raise Violation(f"P1: {where} is led by {known} and by {now.leader}")
        if before is not None and before.partition_epoch >= now.partition_epoch:
            raise Violation(f"P1: the partition epoch of {where} does not grow")
        if not {*now.isr} <= {*now.replicas} or {*now.elr} & {*now.isr}:
            raise Violation(f"{where}: in sync {now.isr}, eligible {now.elr} of {now.replicas}")
        self._counts["alone in sync"] += len(now.isr) == 1 < len(now.replicas)
        self._counts["eligible"] += bool(now.elr)
        self._counts["moved"] += before is not None and before.is_reassigning > now.is_reassigning
        if now.leader == NO_LEADER:
            self._counts["without a leader"] += 1
        elif before is None or before.leader_epoch != now.leader_epoch:
            is_unclean = now.last_unclean_epoch == now.leader_epoch
            self._on_elected(place, now.leader, where, is_unclean=is_unclean)

    def _on_elected(self, place: Place, leader: int, where: str, *, is_unclean: bool) -> None:
        self._counts["elections"] += 1
        if not self._counts_on(leader, place):
            return  # It will not lead, but say why.
        has = self._holders[leader].log(place)
        committed = self._committed.setdefault(place, [])
        same = agreed(has, committed)
        if is_unclean:
            self._counts["unclean elections"] += 1
            del committed[same:]
        elif same < len(committed):
            raise Violation(
                f"P3: broker {leader} leads {where} with {same} of {len(committed)} acknowledged"
                " records"
            )

    def _counts_on(self, broker_id: int, place: Place) -> bool:
        """Whether the controller knows the disk that a broker has."""
        disk, broker = self._holders[broker_id], self.image.brokers.get(broker_id)
        is_known = broker is not None and is_of(disk, broker)
        return is_known and place not in disk.broken

    def is_whole(self, broker_id: int) -> bool:
        """Whether a broker has everything again that it should have."""
        held = [p for _, _, p in self.image.partitions() if broker_id in p.replicas]
        disk, broker = self._holders[broker_id], self.image.brokers.get(broker_id)
        is_known = broker is not None and is_of(disk, broker)
        is_held = all(broker_id in each.isr and len(each.isr) > 1 for each in held)
        return is_known and is_held and not disk.broken

    def on_committed(self, place: Place, epoch: int, log: list[Entry], end: int) -> None:
        """A leader takes what is before `end` for committed, and acknowledges it.

        Raises:
            Violation: it contradicts what was committed before.
        """
        partition = self.image.partition(*place)
        if partition is None or epoch < partition.last_unclean_epoch:
            return  # It is gone; or somebody has ordered that its records may be.
        committed = self._committed.setdefault(place, [])
        same = min(end, agreed(log, committed))
        if same < min(end, len(committed)):
            raise Violation(f"P4: offset {same} of {place[1]} was committed with another record")
        if end > len(committed):
            self._counts["acknowledged"] += end - len(committed)
            committed += log[len(committed) : end]

    def check_image(self, image: ClusterMetadata) -> None:
        """A node's own image, as it would be at the same offset.

        Raises:
            Violation: it is another one.
        """
        if image.offset == self.image.offset and image.digest() != self.image.digest():
            raise Violation(f"Q7: two images of offset {image.offset} differ")


def is_of(disk: Holder, broker: BrokerRegistration) -> bool:
    """Whether a disk is the one that a broker has registered, and no older copy of it."""
    return disk.directory in broker.directories and broker.life in disk.lives


def agreed(one: list[Entry], other: list[Entry]) -> int:
    """How many entries two logs have in common, from their beginning."""
    end = min(len(one), len(other))
    if one[:end] == other[:end]:
        return end
    return next(place for place in range(end) if one[place] != other[place])
