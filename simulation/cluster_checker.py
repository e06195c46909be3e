"""ClusterChecker: what must hold of the replicas of all brokers, looked at from outside.

It reads the logs from the disks by itself, knows of a batch where it is and what it is, and
believes no broker about another one. Names (P1 to P8, Q7, L1) are those of docs/replication.md.
Rule of the file: it changes nothing, and what it finds is told once.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from simulation.load.mix import PARTITIONS
from simulation.node import DIRECTORY
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.broker.storage.disk.files import names_in

if TYPE_CHECKING:
    from simulation.history import Place
    from simulation.loop import SimulatedLoop
    from simulation.node import Node
    from streamlog.broker.broker import Broker
    from streamlog.broker.cluster.node import ClusterNode
    from streamlog.broker.replication.partition_replica import PartitionReplica

LOOK_S: Final = 0.2
WHOLE_EVERY: Final = 10
"""At every so-manieth look, logs are read from their beginning."""
REST_S: Final = 60.0
"""So long after everything is healed all replicas are in sync and equal (L1)."""
TOLD_MAX: Final = 5
HEADER: Final = struct.Struct(">qiiBIHi")
"""Of a batch: base offset, length, leader epoch, magic, checksum, attributes, last offset delta."""
MAGIC: Final = 2
PREFIX_BYTES: Final = 12
"""What the length does not count."""


class Batch(NamedTuple):
    """One as it is on a disk."""

    base_offset: int
    next_offset: int
    epoch: int
    """Of the leader that wrote it."""
    digest: int


class Commit(NamedTuple):
    """A batch that a replica knew to be committed."""

    batch: Batch
    leader_epoch: int
    """In which that was so; the earliest that anybody was in. Later leaders have the batch."""


class ClusterChecker:
    """The checker of one life."""

    def __init__(self, nodes: Sequence[Node], loop: SimulatedLoop) -> None:
        self.found: list[str] = []
        self.counts: Counter[str] = Counter()
        self._nodes = nodes
        self._loop = loop
        self._committed: dict[Place, dict[int, Commit]] = {}
        """Every batch that was ever below a high watermark, by its base offset."""
        self._leaders: dict[tuple[Place, int], str] = {}
        self._marks: dict[tuple[str, Place], tuple[int, int, int]] = {}
        """By replica: its broker's life and leader epoch, and the high watermark in these."""
        self._images: dict[int, tuple[str, str]] = {}
        self._offsets: dict[str, int] = {}

    async def run(self) -> None:
        """See `Watch`."""
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            looks += 1
            self.look(whole=looks % WHOLE_EVERY == 0)

    async def rested(self) -> list[str]:
        """See `Watch`."""
        end_s = self._loop.time() + REST_S
        while (waits := self._unrest()) and self._loop.time() < end_s:  # noqa: ASYNC110 - simulated
            await asyncio.sleep(LOOK_S)
        if waits:
            self._violate("L1", f"no rest {REST_S:.0f} s after everything was healed: {waits}")
        self.look(whole=True)
        return self.found

    def look(self, *, whole: bool) -> None:
        """At everything, at one moment."""
        for place in _places():
            replicas = {
                node: replica
                for node in self._nodes
                if (replica := _replica(node, place)) is not None
            }
            for node, replica in replicas.items():
                self._look_at_leader(place, node, replica)
                self._look_at_mark(place, node, replica)
                if whole:
                    self._compare(place, node, replica)
            self._look_at_sync(place, replicas)
        self._look_at_images()

    # ---- one replica ----

    def _look_at_leader(self, place: Place, node: Node, replica: PartitionReplica) -> None:
        leader = replica.machine.leader
        if leader is None:
            return
        name, key = node.machine.name, (place, leader.epoch)
        known = self._leaders.get(key)
        if known is not None and known != name:
            self._violate("P1", f"{place} is led by {known} and {name} in epoch {leader.epoch}")
        if known is None:
            self._leaders[key] = name
            self.counts["leaderships"] += 1
            has = {each.base_offset: each for each in self._read(node, place)}
            start = replica.facts.start_offset
            for each, by_epoch in self._committed.get(place, {}).values():
                # Looked at late, a leader may have been replaced by one that commits already,
                # what the one before it has left included.
                is_before = start <= each.base_offset and by_epoch < leader.epoch
                if is_before and has.get(each.base_offset) != each:
                    self._violate(
                        "P3",
                        f"{name} leads {place} in epoch {leader.epoch} and has"
                        f" {has.get(each.base_offset)} where {each} is committed",
                    )
                    return

    def _look_at_mark(self, place: Place, node: Node, replica: PartitionReplica) -> None:
        facts = replica.facts
        epoch = replica.machine.leader_epoch
        now = (node.disk.life, -1 if epoch is None else epoch, facts.high_watermark)
        key = (node.machine.name, place)
        before = self._marks.get(key)
        if before is not None and before[:2] == now[:2] and now[2] < before[2]:
            self._violate("P5", f"the high watermark of {key} falls from {before} to {now}")
        if facts.high_watermark > facts.end_offset:
            self._violate("P5", f"the high watermark of {key} is {now[2]}, its end {facts}")
        self._marks[key] = now

    def _compare(self, place: Place, node: Node, replica: PartitionReplica) -> None:
        """P4 and P8, of what is on this replica's disk."""
        committed = self._committed.setdefault(place, {})
        epoch = replica.machine.leader_epoch
        now = sys.maxsize if epoch is None else epoch
        end = None
        for each in self._read(node, place):
            if end is not None and each.base_offset != end:
                self._violate("P8", f"{node.machine.name}: {place} goes on at {each}, after {end}")
            end = each.next_offset
            if each.next_offset > replica.facts.high_watermark:
                return
            known, by_epoch = committed.get(each.base_offset, Commit(each, now))
            committed[each.base_offset] = Commit(known, min(by_epoch, now))
            if known != each:
                self._violate("P4", f"{node.machine.name}: {place} has {each}, and not {known}")

    # ---- all of them ----

    def _look_at_sync(self, place: Place, replicas: dict[Node, PartitionReplica]) -> None:
        """P6: who is in sync has what is committed on its disk."""
        by_id = {node.node_id: replica for node, replica in replicas.items()}
        for node, replica in replicas.items():
            leader = replica.machine.leader
            if leader is None or leader.epoch != max(
                each.machine.leader_epoch or 0 for each in replicas.values()
            ):
                continue
            self.counts["one in sync"] += len(leader.isr) == 1
            mark = replica.facts.high_watermark
            for member in leader.isr & by_id.keys():
                has = by_id[member].facts.flushed_offset
                if has < mark:
                    self._violate(
                        "P6",
                        f"{member} is in sync with {node.machine.name} for {place} and has {has}"
                        f" of {mark} on its disk",
                    )

    def _look_at_images(self) -> None:
        """Q7: brokers that have applied the same records know the same."""
        for node in self._nodes:
            broker = node.broker
            if broker is None:
                continue
            metadata, name = _member(broker).metadata, node.machine.name
            if self._offsets.get(name) == metadata.offset:
                continue
            self._offsets[name] = metadata.offset
            digest = metadata.digest()
            known = self._images.setdefault(metadata.offset, (digest, name))
            if known[0] != digest:
                self._violate("Q7", f"{name} and {known[1]} differ at offset {metadata.offset}")

    def _unrest(self) -> str:
        """What is not at rest yet; empty if everything is."""
        for place in _places():
            ends = set()
            for node in self._nodes:
                replica = _replica(node, place)
                if node.broker is None or replica is None:
                    return f"{node.machine.name} has no replica of {place}"
                facts = replica.facts
                topic = _member(node.broker).metadata.topic(place[0])
                state = None if topic is None else topic.partitions[place[1]]
                if state is None or len(state.isr) < len(self._nodes) or state.leader < 0:
                    return f"{place} for {node.machine.name}: {state}"
                ends.add((facts.high_watermark, facts.end_offset))
                ends.add((facts.end_offset, facts.flushed_offset))
            if len(ends) != 1:
                return f"{place} ends and is committed at {sorted(ends)}"
        return ""

    # ---- disks ----

    def _read(self, node: Node, place: Place) -> Iterator[Batch]:
        """The batches on a node's disk, from the first on, as far as they are whole."""
        broker = node.broker
        topic = None if broker is None else _member(broker).metadata.topic(place[0])
        if topic is None:
            return
        folder = f"{DIRECTORY}/{partition_folder(topic.topic_id, place[1])}"
        # The first record makes the folder.
        for name in names_in(node.disk, folder):
            if name.endswith(".log"):
                file = node.disk.open(f"{folder}/{name}")
                yield from _batches(file.read(file.size(), 0))

    def _violate(self, name: str, what: str) -> None:
        self._loop.tell("violation", name, what)
        if len(self.found) < TOLD_MAX:
            self.found.append(f"{name}: {what} (at {self._loop.time():.3f} s)")


def _batches(data: bytes) -> Iterator[Batch]:
    position = 0
    while position + HEADER.size <= len(data):
        base_offset, length, epoch, magic, _, _, delta = HEADER.unpack_from(data, position)
        end = position + PREFIX_BYTES + length
        if magic != MAGIC or length <= 0 or end > len(data):
            return
        digest = zlib.crc32(data[position:end])
        yield Batch(base_offset, base_offset + delta + 1, epoch, digest)
        position = end


def _places() -> Iterator[Place]:
    for topic, count in PARTITIONS.items():
        for number in range(count):
            yield topic, number


def _replica(node: Node, place: Place) -> PartitionReplica | None:
    broker = node.broker
    return None if broker is None else broker._replicas.get(*place)


def _member(broker: Broker) -> ClusterNode:
    return broker._member
