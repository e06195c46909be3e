"""Figures: what has happened in a cluster, and where one of its brokers stands, as plain numbers.

Nothing here counts while records are served: what has happened is read off the changes of the
committed metadata, and where a broker stands is looked up when somebody asks. Names and meanings
are those of Kafka's metrics; how they are shown is others' business (`cli/broker_web`). Counters
only grow, from the start of the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.quorum.broker_lifecycle import State
from streamlog.broker.quorum.metadata.cluster_metadata import (
    ClusterMetadata,
    MetadataChange,
    PartitionChanged,
)
from streamlog.broker.quorum.metadata.registrations import NO_LEADER, PartitionRegistration
from streamlog.broker.quorum.raft.raft_machine import QuorumView

if TYPE_CHECKING:
    from streamlog.broker.config.broker import TopicConfig

ELECTION_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)
"""Upper ends of the classes that elections are counted in."""
BROKER_STATES: Mapping[State, int] = {
    State.STARTING: 1,
    State.RECOVERING: 2,
    State.RUNNING: 3,
    State.SHUTTING_DOWN: 6,
    State.NOT_RUNNING: 7,
}
"""Kafka's numbers for where a broker is in its life (`BrokerState`)."""


class ElectionTimes:
    """How long elections took: how often within each bound, and in sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(ELECTION_BOUNDS_MS) + 1)
        """Per bound those that it holds and no smaller one does; the last is of all above."""
        self.sum_ms = 0

    def add(self, took_ms: int) -> None:
        """One more."""
        self.counts[bisect_left(ELECTION_BOUNDS_MS, took_ms)] += 1
        self.sum_ms += took_ms


class ConnectionCounts(NamedTuple):
    """The connections of one broker."""

    open: int = 0
    refused: int = 0
    """Since the start, as one too many."""
    evicted: int = 0
    """Half-open ones that gave way to others, since the start."""


class ClusterFigures:
    """What has happened since the start of this process, as far as it was committed here."""

    def __init__(self, node_id: int) -> None:
        self.isr_shrinks = self.isr_expands = 0
        """Of partitions that this broker led: in-sync sets that lost, that won somebody."""
        self.elections = ElectionTimes()
        """Of partitions, while this node was the active controller: from the moment that it took
        up what led to them until they were committed."""
        self.connections: Callable[[], ConnectionCounts] = ConnectionCounts
        """Those of this broker."""
        self.unreadable_batches: Callable[[], int] = int
        """Batches that cleanings of this broker's logs have left as they are."""
        self.unclean_elections = 0
        """Those of them whose leader may lack acknowledged records."""
        self._node_id = node_id

    def on_changes(self, changes: Iterable[MetadataChange], deciding_ms: int | None) -> None:
        """A batch is committed; who has decided it took so long, None if another node has."""
        for change in changes:
            if isinstance(change, PartitionChanged) and change.before is not None:
                self._on_partition(change.before, change.after, deciding_ms)

    def _on_partition(
        self, before: PartitionRegistration, after: PartitionRegistration, deciding_ms: int | None
    ) -> None:
        if self._node_id in (before.leader, after.leader):
            self.isr_shrinks += bool({*before.isr} - {*after.isr})
            self.isr_expands += bool({*after.isr} - {*before.isr})
        if deciding_ms is None or after.leader_epoch == before.leader_epoch:
            return
        if after.leader != NO_LEADER:
            self.elections.add(deciding_ms)
            self.unclean_elections += after.last_unclean_epoch == after.leader_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCounts:
    """Of the partitions of a broker, those that it leads included."""

    held: int
    led: int
    under_replicated: int
    """Led, with replicas that are not in sync."""
    under_min_isr: int
    """Led, with fewer in sync than acks=all takes."""
    at_min_isr: int
    """Led, and with one fewer in sync acks=all would be refused."""
    reassigning: int
    """Led, and on their way to other brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerCounts:
    """Of the whole cluster; the active controller alone tells them, so that sums are right."""

    brokers: int
    """Alive."""
    fenced: int
    topics: int
    partitions: int
    offline: int
    """Without a leader."""
    preferred_replica_imbalance: int
    """Led by another replica than the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStanding:
    """Where a broker stands."""

    node_id: int
    state: State
    is_broker: bool
    """Whether it has to be registered, to be ready."""
    quorum: QuorumView
    partitions: PartitionCounts
    cluster: ControllerCounts | None
    """None: this node is not the active controller."""
    follower_lag: Mapping[int, int]
    """Records by which a follower is behind this broker, where it is so most, by broker."""

    @property
    def is_ready(self) -> bool:
        """Whether it does all of its share: a controller is known, and it is alive to that."""
        return self.quorum.leader_id is not None and (
            self.state is State.RUNNING or not self.is_broker
        )


def count_figures(
    metadata: ClusterMetadata, node_id: int, configs: Mapping[str, TopicConfig]
) -> PartitionCounts:
    """The partitions of a broker; `configs` are the settings of topics, of its own at least."""
    of = [
        (topic.name, partition)
        for topic in metadata.topics.values()
        for partition in topic.partitions.values()
        if node_id in partition.replicas
    ]
    led = [(name, each) for name, each in of if each.leader == node_id]
    spare = [
        len(each.isr) - configs[name].min_insync(each.replication_factor)
        for name, each in led
        if name in configs
    ]
    return PartitionCounts(
        held=len(of),
        led=len(led),
        under_replicated=sum(len(each.isr) < each.replication_factor for _, each in led),
        under_min_isr=sum(each < 0 for each in spare),
        at_min_isr=sum(each == 0 for each in spare),
        reassigning=sum(each.is_reassigning for _, each in led),
    )


def count_by_controller(metadata: ClusterMetadata) -> ControllerCounts:
    """The whole cluster."""
    partitions = [each for topic in metadata.topics.values() for each in topic.partitions.values()]
    fenced = sum(each.is_fenced for each in metadata.brokers.values())
    return ControllerCounts(
        brokers=len(metadata.brokers) - fenced,
        fenced=fenced,
        topics=len(metadata.topics),
        partitions=len(partitions),
        offline=sum(each.leader == NO_LEADER for each in partitions),
        preferred_replica_imbalance=sum(each.leader != each.replicas[0] for each in partitions),
    )
