"""ClusterEvents, and the counts of partitions that a broker reports."""

from __future__ import annotations

from streamlog.broker.cluster.figures import (
    ClusterEvents,
    PartitionCounts,
    count_by_controller,
    count_figures,
)
from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.quorum.metadata.cluster_metadata import (
    ClusterMetadata,
    PartitionChanged,
    TopicRegistration,
)
from streamlog.broker.quorum.metadata.registrations import BrokerRegistration, PartitionRegistration
from streamlog.metrics.registry import Registry, at_once
from streamlog.replace import replace

WHOLE = PartitionRegistration(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=4)


def changed(before: PartitionRegistration, after: PartitionRegistration) -> list[PartitionChanged]:
    return [PartitionChanged(b"t" * 16, "t", 0, before, after)]


def test_the_leader_counts_isr_shrinks_and_expands() -> None:
    leader, other = ClusterEvents(1, Registry()), ClusterEvents(2, Registry())
    less = replace(WHOLE, isr=(1, 2))
    for figures in (leader, other):
        figures.on_changes(changed(WHOLE, less), None)
        figures.on_changes(changed(less, WHOLE), None)
        figures.on_changes(changed(WHOLE, replace(WHOLE, partition_epoch=9)), None)
    assert (leader.isr_shrinks.value, leader.isr_expands.value) == (1, 1)
    assert (other.isr_shrinks.value, other.isr_expands.value) == (0, 0)


def test_the_deciding_controller_counts_elections() -> None:
    controller, other = ClusterEvents(3, Registry()), ClusterEvents(2, Registry())
    elected = replace(WHOLE, leader=2, leader_epoch=5, isr=(2, 3))
    leaderless = replace(WHOLE, leader=-1, leader_epoch=6)
    unclean = replace(WHOLE, leader=3, leader_epoch=7, isr=(3,), last_unclean_epoch=7)
    for before, after in ((WHOLE, elected), (elected, leaderless), (leaderless, unclean)):
        controller.on_changes(changed(before, after), 30)
        other.on_changes(changed(before, after), None)
    assert (controller.elections.count, controller.elections.sum) == (2, 0.06)
    assert (controller.unclean_elections.value, other.unclean_elections.value) == (1, 0)
    assert other.elections.count == 0
    assert other.isr_shrinks.value == 1  # Broker 2 led when the ISR shrank to 3.


def test_count_figures_counts_partitions_by_state() -> None:
    metadata = ClusterMetadata()
    partitions = {
        0: WHOLE,
        1: replace(WHOLE, isr=(1, 2)),
        2: replace(WHOLE, isr=(1,)),
        3: replace(WHOLE, leader=2, isr=(2, 3)),
        4: replace(WHOLE, leader=-1, isr=(3,)),
        5: replace(WHOLE, replicas=(2, 3), isr=(2,), leader=2),
        6: replace(WHOLE, replicas=(1, 2, 3, 4), adding=(4,), removing=(2,)),
    }
    metadata.topics[b"t" * 16] = TopicRegistration("t", b"t" * 16, partitions)
    for number in (1, 2, 3):
        metadata.brokers[number] = BrokerRegistration(
            broker_id=number, epoch=1, incarnation_id=b"", is_fenced=number == 3
        )

    def own_counts(config: TopicConfig) -> PartitionCounts:
        return at_once(count_figures(metadata, 1, {"t": config}, lambda _, index: index != 3))

    own = own_counts(TopicConfig())
    assert (own.held, own.led, own.reassigning, own.offline) == (6, 4, 1, 1)
    assert (own.under_replicated, own.under_min_isr, own.at_min_isr) == (2, 1, 1)
    # With two replicas, one in sync is enough for acks=all unless the topic says otherwise.
    metadata.topics[b"t" * 16].partitions[0] = replace(WHOLE, replicas=(1, 2), isr=(1,))
    assert own_counts(TopicConfig()).under_min_isr == 1
    assert own_counts(TopicConfig(min_insync_replicas=2)).under_min_isr == 2
    metadata.topics[b"t" * 16].partitions[0] = WHOLE
    cluster = at_once(count_by_controller(metadata))
    assert (cluster.brokers, cluster.fenced, cluster.topics, cluster.partitions) == (2, 1, 1, 7)
    assert (cluster.offline, cluster.preferred_replica_imbalance) == (1, 2)
