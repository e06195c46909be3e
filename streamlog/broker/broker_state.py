"""Broker state: what a broker is now, as metrics under the names of Kafka's JMX exporter.

Computed at each look from `BrokerStatus`, so that serving records updates none of it. Metrics that
Kafka does not have begin with `streamlog_`. The controller's metrics are 0 on other nodes, so that
sums over all nodes are right.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamlog.broker.cluster.figures import BROKER_STATES, BrokerStatus, ControllerCounts
from streamlog.metrics.registry import Kind, Metric, number, timer

_REPLICAS = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"
_EVENTS = "kafka_controller_controllereventmanager_"
_RAFT = "kafka_server_raftmetrics_"
NO_NODE = -1
NOT_CONTROLLING = ControllerCounts(
    brokers=0, fenced=0, topics=0, partitions=0, offline=0, preferred_replica_imbalance=0
)
"""The counts of a node that is not the active controller."""


def status_metrics(status: BrokerStatus) -> Iterator[Metric]:
    """Yield the metrics of a broker's status."""
    yield number(
        "kafka_server_kafkaserver_brokerstate",
        "1: starting, 2: registered and fenced, 3: running, 6: controlled shutdown, 7: ended.",
        BROKER_STATES[status.state],
    )
    yield from _replica_metrics(status)
    yield from _controller_metrics(status)
    yield from _quorum_metrics(status)


def purgatory_metrics(*, fetches: int, produces: int) -> Iterator[Metric]:
    """Yield how many requests wait: for records, or for in-sync replicas."""
    yield Metric(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "Requests that wait: Fetch for enough records, Produce for in-sync replicas.",
        Kind.GAUGE,
        ("delayedoperation",),
        [(("Fetch",), fetches), (("Produce",), produces)],
    )


def throttle_metrics(sent: float, fetched: float) -> Iterator[Metric]:
    """Yield the rates of throttled replicas, in bytes per second, sent and fetched."""
    yield number(
        "kafka_server_leaderreplication_byte_rate",
        "Bytes per second sent to followers of throttled replicas that this broker leads.",
        sent,
    )
    yield number(
        "kafka_server_followerreplication_byte_rate",
        "Bytes per second that throttled replicas on this broker fetch.",
        fetched,
    )


def _replica_metrics(status: BrokerStatus) -> Iterator[Metric]:
    counts = status.partitions
    for name, text, value in (
        ("partitioncount", "Partitions with a replica on this broker.", counts.held),
        ("leadercount", "Partitions that this broker leads.", counts.led),
        (
            "underreplicatedpartitions",
            "Partitions that this broker leads with replicas out of sync.",
            counts.under_replicated,
        ),
        (
            "underminisrpartitioncount",
            "Partitions that this broker leads with too few replicas in sync for acks=all.",
            counts.under_min_isr,
        ),
        (
            "atminisrpartitioncount",
            "Partitions that this broker leads that would refuse acks=all with one replica less.",
            counts.at_min_isr,
        ),
        (
            "reassigningpartitions",
            "Partitions that this broker leads that are moving to other brokers.",
            counts.reassigning,
        ),
        (
            "offlinereplicacount",
            "Partitions with a replica on this broker whose log is not here: its disk is away.",
            counts.offline,
        ),
    ):
        yield number(_REPLICAS + name, text, value)
    yield Metric(
        "streamlog_follower_lag_records",
        "Lag of a follower behind this leader, in the partition where it lags most.",
        Kind.GAUGE,
        ("follower",),
        [((str(broker),), records) for broker, records in status.follower_lag.items()],
    )


def _controller_metrics(status: BrokerStatus) -> Iterator[Metric]:
    cluster = status.cluster or NOT_CONTROLLING
    for name, text, value in (
        ("activecontrollercount", "1 on the active controller.", int(status.cluster is not None)),
        ("activebrokercount", "Registered brokers that are not fenced.", cluster.brokers),
        ("fencedbrokercount", "Registered brokers that are fenced.", cluster.fenced),
        ("globaltopiccount", "Topics.", cluster.topics),
        ("globalpartitioncount", "Partitions.", cluster.partitions),
        (
            "offlinepartitionscount",
            "Partitions without a leader, which can't be read or written.",
            cluster.offline,
        ),
        (
            "preferredreplicaimbalancecount",
            "Partitions whose leader is not the preferred replica.",
            cluster.preferred_replica_imbalance,
        ),
    ):
        yield number(_CONTROLLER + name, text, value)
    waited, took = status.controller_times
    yield from timer(
        _EVENTS + "eventqueuetimems",
        "streamlog_controller_queue_seconds",
        "Time for which requests to this controller waited for earlier decisions.",
        waited,
    )
    yield from timer(
        _EVENTS + "eventqueueprocessingtimems",
        "streamlog_controller_decision_seconds",
        "Time of decisions of this controller, until they were committed.",
        took,
    )
    yield number(_EVENTS + "eventqueuesize", "Requests that wait here.", status.waiting_decisions)


def _quorum_metrics(status: BrokerStatus) -> Iterator[Metric]:
    view = status.quorum
    leader = NO_NODE if view.leader_id is None else view.leader_id
    # The first voter is this node; only the leader knows the others.
    own = view.voters[0].end_offset
    yield number(_RAFT + "current_leader", "Node that leads the quorum; -1: none.", leader)
    yield number(_RAFT + "current_epoch", "Leader epoch of the quorum.", view.epoch)
    yield number(
        _RAFT + "high_watermark", "Offset after the last committed entry.", view.high_watermark
    )
    yield number(_RAFT + "log_end_offset", "Offset after the last entry of this node's log.", own)
    yield number(
        "kafka_server_broker_metadata_metrics_last_applied_record_offset",
        "Offset of the last entry of the metadata log that this node acts on; -1: none.",
        status.applied_offset - 1,
    )
    yield Metric(
        "streamlog_quorum_lag_seconds",
        "Time since a node had all of the metadata log, as far as the leader knows.",
        Kind.GAUGE,
        ("node", "role"),
        [
            ((str(each.node_id), role), max(status.wall_ms - each.caught_up_wall_ms, 0) / 1000)
            for role, nodes in (("voter", view.voters[1:]), ("observer", view.observers))
            for each in nodes
            if each.caught_up_wall_ms is not None
        ],
    )
    yield Metric(
        "streamlog_quorum_lag_records",
        "Entries of the metadata log that a node lacks, as far as the leader knows.",
        Kind.GAUGE,
        ("node", "role"),
        [
            ((str(each.node_id), role), max(own - max(each.end_offset, 0), 0))
            for role, nodes in (("voter", view.voters[1:]), ("observer", view.observers))
            for each in nodes
        ],
    )
