"""Figures: counters of a cluster's events, and the state of one of its brokers, as numbers.

Events come from the changes of the committed metadata, and the state of a broker is computed on
request. Names and meanings are those of Kafka's metrics; `broker_state` describes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from streamlog.broker.quorum.broker_lifecycle import State
from streamlog.broker.quorum.metadata.cluster_metadata import (
    ClusterMetadata,
    MetadataChange,
    PartitionChanged,
)
from streamlog.broker.quorum.metadata.registrations import NO_LEADER, PartitionRegistration
from streamlog.broker.quorum.raft.raft_machine import QuorumView
from streamlog.metrics.instruments import Histogram
from streamlog.metrics.registry import ITEMS_PER_STEP, Look, Registry

if TYPE_CHECKING:
    from streamlog.broker.config.broker import TopicConfig

ELECTION_BOUNDS_S = (
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
"""The upper bounds of the histogram of election times, in seconds."""
BROKER_STATES: Mapping[State, int] = {
    State.STARTING: 1,
    State.RECOVERING: 2,
    State.RUNNING: 3,
    State.SHUTTING_DOWN: 6,
    State.NOT_RUNNING: 7,
}
"""Kafka's numbers for the states of a broker (`BrokerState`)."""


class ClusterEvents:
    """Counts what the changes of committed metadata say, since the start of this process.

    Sums over all brokers are right: only the leader of a partition counts a change of its in-sync
    set, and only the node that decided an election counts that.
    """

    def __init__(self, node_id: int, registry: Registry) -> None:
        self._node_id = node_id
        self.isr_shrinks = registry.counter(
            "kafka_server_replicamanager_isrshrinks_total",
            "Times that a partition led by this broker lost a replica from its in-sync set.",
        )
        self.isr_expands = registry.counter(
            "kafka_server_replicamanager_isrexpands_total",
            "Times that a partition led by this broker gained a replica in its in-sync set.",
        )
        self.unclean_elections = registry.counter(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "Elections, decided by this controller, of leaders that may lack acknowledged records.",
        )
        self.elections = registry.histogram(
            "kafka_controller_controllerstats_leaderelection_seconds",
            "Time of an election decided by this controller, from its cause to its commit.",
            bounds=ELECTION_BOUNDS_S,
        )

    def on_changes(self, changes: Iterable[MetadataChange], deciding_ms: int | None) -> None:
        """Count a committed batch, decided within `deciding_ms` by this node; None by another."""
        for change in changes:
            if isinstance(change, PartitionChanged) and change.before is not None:
                self._on_partition(change.before, change.after, deciding_ms)

    def _on_partition(
        self, before: PartitionRegistration, after: PartitionRegistration, deciding_ms: int | None
    ) -> None:
        if self._node_id in (before.leader, after.leader):
            # One change may shrink and expand the set at once; it then counts for both.
            self.isr_shrinks.add(bool({*before.isr} - {*after.isr}))
            self.isr_expands.add(bool({*after.isr} - {*before.isr}))
        # Only the node that decided an election counts it, so that sums over all nodes are right.
        if deciding_ms is None or after.leader_epoch == before.leader_epoch:
            return
        # A new epoch without a leader is the beginning of an outage, not an election.
        if after.leader != NO_LEADER:
            self.elections.record(deciding_ms / 1000)
            self.unclean_elections.add(after.last_unclean_epoch == after.leader_epoch)


class PartitionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the partitions of a broker."""

    held: int
    led: int
    under_replicated: int
    """Led, with replicas that are not in sync."""
    under_min_isr: int
    """Led, with fewer in-sync replicas than acks=all needs."""
    at_min_isr: int
    """Led, with just as many in-sync replicas as acks=all needs."""
    reassigning: int
    """Led, and being moved to other brokers."""
    offline: int
    """Assigned to this broker, which has no log for them: their disk is away, for example."""


class ControllerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the whole cluster; only the active controller reports them, so sums are right."""

    brokers: int
    """Registered and not fenced."""
    fenced: int
    topics: int
    partitions: int
    offline: int
    """Without a leader."""
    preferred_replica_imbalance: int
    """Led by another replica than the preferred one."""


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a broker."""

    node_id: int
    state: State
    is_broker: bool
    """Whether it has to be registered to be ready."""
    quorum: QuorumView
    partitions: PartitionCounts
    cluster: ControllerCounts | None
    """None if this node is not the active controller."""
    follower_lag: Mapping[int, int]
    """The largest lag of each follower's partitions led here, in records, by broker."""
    applied_offset: int
    """The offset before which everything is in this broker's metadata."""
    controller_times: tuple[Histogram, Histogram]
    """How long requests to this controller waited, and how long its decisions took, in seconds."""
    waiting_decisions: int
    """The requests that wait for this controller."""
    wall_ms: int
    """When this was looked at."""

    @property
    def is_ready(self) -> bool:
        """Whether a controller is known, and counts the broker as running."""
        return self.quorum.leader_id is not None and (
            self.state is State.RUNNING or not self.is_broker
        )


HasLog = Callable[[str, int], bool]
"""Whether this broker has a log of a partition."""


def count_figures(
    metadata: ClusterMetadata, node_id: int, configs: Mapping[str, TopicConfig], has_log: HasLog
) -> Look[PartitionCounts]:
    """Count a broker's partitions; `configs` has at least the settings of its own topics."""
    counts: Counter[str] = Counter()
    for number, (name, index, each) in enumerate(_partitions(metadata), 1):
        if number % ITEMS_PER_STEP == 0:
            yield
        if node_id not in each.replicas:
            continue
        counts["held"] += 1
        if not has_log(name, index):
            counts["offline"] += 1
        if each.leader != node_id:
            continue
        counts["led"] += 1
        counts["under_replicated"] += len(each.isr) < each.replication_factor
        counts["reassigning"] += each.is_reassigning
        # A topic can be in the metadata before its log is created here: it has no settings yet.
        config = configs.get(name)
        if config is not None:
            spare = len(each.isr) - config.min_insync(each.replication_factor)
            counts["under_min_isr"] += spare < 0
            counts["at_min_isr"] += spare == 0
    return PartitionCounts(
        **{each.name: counts[each.name] for each in msgspec.structs.fields(PartitionCounts)},
    )


def count_by_controller(metadata: ClusterMetadata) -> Look[ControllerCounts]:
    """Count the whole cluster."""
    partitions = offline = imbalanced = 0
    for _, _, each in _partitions(metadata):
        partitions += 1
        if partitions % ITEMS_PER_STEP == 0:
            yield
        offline += each.leader == NO_LEADER
        imbalanced += each.leader != each.replicas[0]
    fenced = sum(each.is_fenced for each in metadata.brokers.values())
    return ControllerCounts(
        brokers=len(metadata.brokers) - fenced,
        fenced=fenced,
        topics=len(metadata.topics),
        partitions=partitions,
        offline=offline,
        preferred_replica_imbalance=imbalanced,
    )


def _partitions(metadata: ClusterMetadata) -> Iterator[tuple[str, int, PartitionRegistration]]:
    """Iterate over all partitions, which may change meanwhile."""
    # Copies, one topic at a time: a look pauses, and a topic may be created or deleted meanwhile.
    for topic in [*metadata.topics.values()]:
        for index, partition in [*topic.partitions.items()]:
            yield topic.name, index, partition
