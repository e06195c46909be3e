"""Site: one of the two clusters: its brokers, and its controller over an ideal metadata log.

What the shipped `Controller` decides is committed at once and sent to the brokers. The metadata
log's own faults are those of the levels `raft`, `quorum` and `controller`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from simulation.mirror.broker import SiteBroker
from streamlog.broker.config.cluster import ClusterConfig
from streamlog.broker.mirroring.link_plan import KnownMirror, SourceTopicFacts
from streamlog.broker.quorum.controller.cluster_controller import Controller
from streamlog.broker.quorum.controller.decision import ControllerContext, Decision
from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
from streamlog.broker.quorum.metadata.mirror_topics import ERA_DISTANCE
from streamlog.broker.replication.replica_state import ReplicaState
from streamlog.protocol.messages.metadata_log import PartitionChangeRecord
from streamlog.protocol.messages.mirror_messages import AlterSealsRequest

if TYPE_CHECKING:
    from random import Random

    from simulation.mirror.world import TwoClusters
    from streamlog.protocol.schema import Message

SESSION_MS = 600
Place = tuple[bytes, int]
"""A partition: the topic's id, and its number."""


class News(NamedTuple):
    """What is committed as of `offset`."""

    offset: int
    states: Mapping[Place, ReplicaState]
    copied: frozenset[bytes]
    """The mirror topics that are neither paused nor stopped."""
    alive: Mapping[int, int]


class Site:
    """One cluster."""

    def __init__(self, world: TwoClusters, name: str, size: int, ahead_ms: int) -> None:
        self.name = name
        self.size = size
        self.metadata = ClusterMetadata()
        self.unclean: set[tuple[bytes, int, int]] = set()
        """Partitions and their leader epochs that were begun to lose records."""
        self.brokers = [SiteBroker(world, self, number) for number in range(size)]
        self._world = world
        self._ahead_ms = ahead_ms
        self._news: News | None = None
        self._controller = Controller(
            ControllerContext(
                metadata=self.metadata,
                cluster_id=name,
                node_id=100,
                chance=_Chance(world.chance, continues_era=world.plan.continues_era),
                cluster=ClusterConfig(session_timeout_ms=SESSION_MS),
            )
        )

    @property
    def now_ms(self) -> int:
        """The time of this cluster's clocks."""
        return self._world.now_ms + self._ahead_ms

    @property
    def min_insync(self) -> int:
        """How many replicas have a record before it is committed."""
        return min(self.size, 2)

    def begin(self) -> None:
        """Start the controller, then the brokers."""
        self._commit(self._controller.on_active(self.now_ms))
        for broker in self.brokers:
            broker.start()

    def tick(self) -> None:
        """Let the controller decide what is due."""
        due = self._controller.next_deadline_ms()
        while due is not None and due <= self.now_ms:
            decision = self._controller.on_tick(self.now_ms)
            if decision is None:
                break
            self._commit(decision)

    def ask(self, request: Message) -> Message | None:
        """Return what the controller answers."""
        decision = self._controller.decide(request, 99, self.now_ms)
        if self._world.plan.seals_without_epoch and isinstance(request, AlterSealsRequest):
            kept = [e for e in decision.records if not isinstance(e, PartitionChangeRecord)]
            decision = Decision(tuple(kept), decision.answer)
        self._commit(decision)
        return None if decision.answer is None else decision.answer()

    def news(self) -> News:
        """Return what is committed."""
        if self._news is None or self._news.offset != self.metadata.offset:
            self._news = self._read_news()
        return self._news

    def facts(self) -> list[SourceTopicFacts]:
        """Return what the other cluster's link finds here, as `LinkRunner` reads it."""
        found = []
        for topic in self.metadata.topics.values():
            mirror = self.metadata.mirrors.get(topic.topic_id)
            eras = () if mirror is None else mirror.eras
            is_mirror = mirror is not None and mirror.is_mirror
            found.append(
                SourceTopicFacts(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=len(topic.partitions),
                    eras=eras,
                    mirrors_cluster=eras[-1].cluster_id if is_mirror and eras else "",
                )
            )
        return found

    def known(self, link_id: bytes) -> list[KnownMirror]:
        """Return the mirror topics of a link."""
        return [
            KnownMirror(
                name=self.metadata.topics[topic_id].name,
                partitions=len(self.metadata.topics[topic_id].partitions),
                mirror=mirror,
            )
            for topic_id, mirror in self.metadata.mirrors.items()
            if mirror.link_id == link_id and topic_id in self.metadata.topics
        ]

    def _read_news(self) -> News:
        metadata = self.metadata
        states = {}
        for topic, number, partition in metadata.partitions():
            mirror, seal = metadata.mirrors.get(topic.topic_id), metadata.seals.get(topic.topic_id)
            states[topic.topic_id, number] = ReplicaState(
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                elr=partition.elr,
                last_unclean_epoch=partition.last_unclean_epoch,
                mirror_of=None if mirror is None else mirror.mirror_of,
                sealed_for=seal.target_cluster_id if seal is not None and seal.is_closed else "",
            )
        return News(
            metadata.offset,
            states,
            frozenset(topic_id for topic_id, mirror in metadata.mirrors.items() if mirror.copies),
            {each.broker_id: each.epoch for each in metadata.brokers.values() if each.is_active},
        )

    def _commit(self, decision: Decision[Message] | None) -> None:
        if decision is None or not decision.records:
            return
        elected = []
        for record in decision.records:
            self.metadata.replay(record, self.metadata.offset + 1)
            if isinstance(record, PartitionChangeRecord):
                elected.append((record.topic_id, record.partition_id, record.is_unclean))
        self._world.on_committed(self)
        for topic_id, number, is_unclean in elected:
            partition = self.metadata.partition(topic_id, number)
            if partition is not None:
                if is_unclean:
                    self.unclean.add((topic_id, number, partition.leader_epoch))
                self._world.checker.on_elected(self, (topic_id, number), partition)
        news = self.news()
        for broker in self.brokers:
            self._world.carry(self.controller, broker.address, broker.delivery_of(news))

    @property
    def controller(self) -> str:
        """The controller's address."""
        return f"{self.name}c"


class _Chance:
    """The controller's chance; with a planted fault, the next era is the next leader epoch."""

    def __init__(self, chance: Random, *, continues_era: bool) -> None:
        self._chance = chance
        self._continues_era = continues_era

    def randbytes(self, n: int, /) -> bytes:
        """See `ControllerChance`."""
        return self._chance.randbytes(n)

    def randrange(self, stop: int, /) -> int:
        """See `ControllerChance`."""
        if self._continues_era and stop == ERA_DISTANCE:
            return -1
        return self._chance.randrange(stop)
