"""What a cluster says of itself: its brokers, partitions and quorum, and each broker of itself.

Values alone, for the rooms of `Admin` that ask for them and for `cluster_evidence`, which judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlog.assignors import TopicPartition


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker, and where clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster."""

    cluster_id: str
    controller: int
    """The broker that manages topics; -1 while none does."""
    brokers: tuple[BrokerDescription, ...]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition: who leads it, who holds it."""

    topic: str
    partition: int
    leader: int
    """-1 while nobody leads it."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """The preferred leader first."""
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """How far a node is in the metadata log, as its leader knows."""

    node_id: int
    end_offset: int
    """-1 while it has not asked for anything."""
    caught_up_ms: int | None
    """When it last had everything, by the leader's wall clock; None if that is not known."""
    fetched_ms: int | None = None
    """When it last fetched, by the leader's wall clock; None if that is not known."""
    is_rejoining: bool = False
    """Whether it is a voter that does not vote: its disk was replaced or damaged."""


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum of controllers."""

    leader: int
    """The active controller."""
    epoch: int
    high_watermark: int
    """What is before it is on the disks of a majority of the voters."""
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    """Brokers that follow, and do not vote."""

    def lag(self, replica: QuorumReplica) -> int:
        """Entries that a node lacks of what the leader has."""
        ends = [each.end_offset for each in self.voters if each.node_id == self.leader]
        return max(0, max(ends, default=self.high_watermark) - max(replica.end_offset, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A broker as the metadata of the cluster has it."""

    epoch: int
    is_fenced: bool
    directories: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """A replica as its own broker knows it."""

    leader_epoch: int
    in_sync: tuple[int, ...] | None
    """The in-sync replicas if this one leads; None if it follows."""
    high_watermark: int
    end_offset: int
    """The end of what is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A broker process as it knows itself."""

    node_id: int
    epoch: int
    """Of its registration; -1 while it has none."""
    directory: bytes
    applied_offset: int
    """The end of what it has applied of the metadata log."""
    quorum_leader: int
    quorum_epoch: int
    is_rejoining: bool = False
    """Whether it is a voter that does not vote yet."""
    strays: int = 0
    """Folders that were set aside because the cluster does not know their topics."""
    registrations: Mapping[int, Registration] = field(default_factory=dict)
    replicas: Mapping[TopicPartition, ReplicaReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reports:
    """What the brokers have answered, by number."""

    told: Mapping[int, NodeReport] = field(default_factory=dict)
    silent: Mapping[int, str] = field(default_factory=dict)
    """Brokers that gave no answer, and why. Those of other makes, which do not know the question,
    are in neither."""
