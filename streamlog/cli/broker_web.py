"""A broker's HTTP server: liveness, readiness, and metrics for Prometheus.

It uses the workers' HTTP server (`worker/web`), the extra `[web]`. Metrics have the names that
Prometheus' JMX exporter gives Kafka's, so that dashboards and alerts made for Kafka work with this
broker. Metrics that Kafka does not have begin with `streamlog_`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from streamlog.broker.cluster.figures import (
    BROKER_STATES,
    ELECTION_BOUNDS_MS,
    BrokerStatus,
    ClusterFigures,
    ConnectionCounts,
)
from streamlog.worker.health.worker_health import HealthReport
from streamlog.worker.web.web_server import listen, make_site, serve

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_REPLICAS = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"
_ELECTIONS = "kafka_controller_controllerstats_"
_RAFT = "kafka_server_raftmetrics_"
NO_NODE = -1


@asynccontextmanager
async def serve_health(broker: Broker, address: str) -> AsyncIterator[str]:
    """Serve at `address` in the block; yields the address with the port that was picked.

    Raises:
        ConfigError: the address is not HOST:PORT.
        ListenError: the address is taken, or does not belong to this machine.
    """
    with listen(address) as listener:
        site = make_site(BrokerHealth(broker), BrokerExposition(broker), hosts=listener.hosts)
        async with serve(site, listener):
            yield listener.endpoint


class BrokerHealth:
    """Answers the health checks of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def live(self) -> HealthReport:
        """Report that the broker runs: one whose disk has failed ends, and does not answer."""
        return HealthReport(is_well=True, facts={"live": True, **_facts(self._broker.status())})

    def ready(self) -> HealthReport:
        """Report whether the broker is registered and unfenced with a controller that it knows.

        Lagging replicas are reported, but don't make it unready: clients need it all the more.
        """
        standing = self._broker.status()
        lacking = standing.partitions.under_replicated
        is_well = standing.is_ready
        facts = {"ready": is_well, **_facts(standing), "under_replicated": lacking}
        return HealthReport(is_well=is_well, facts=facts)


def _facts(standing: BrokerStatus) -> dict[str, object]:
    return {
        "node": standing.node_id,
        "state": standing.state.value,
        "controller": standing.quorum.leader_id,
        "epoch": standing.quorum.epoch,
    }


class BrokerExposition:
    """The content of `/metrics`."""

    def __init__(self, broker: Broker) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_BrokerCollector(broker))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return the current metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _BrokerCollector(Collector):
    """Collects a broker's figures as metrics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value."""
        standing = self._broker.status()
        yield _gauge(
            "kafka_server_kafkaserver_brokerstate",
            "1: starting, 2: registered and fenced, 3: running, 6: controlled shutdown, 7: ended.",
            BROKER_STATES[standing.state],
        )
        yield from _of_replicas(standing)
        yield from _of_throttles(*self._broker.throttled_rates())
        copies = CounterMetricFamily(
            "streamlog_follower_read_bytes",
            "Bytes read from this broker of partitions that other brokers lead (KIP-392).",
        )
        copies.add_metric([], self._broker.copy_bytes_read)
        yield copies
        yield from _of_the_controller(standing)
        yield from _of_the_quorum(standing)
        yield from _counters(self._broker.figures)
        yield from _of_connections(self._broker.figures.connections())


def _of_replicas(standing: BrokerStatus) -> Iterator[Metric]:
    counts = standing.partitions
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
    ):
        yield _gauge(_REPLICAS + name, text, value)
    lag = GaugeMetricFamily(
        "streamlog_follower_lag_records",
        "Lag of a follower behind this leader, in the partition where it lags most.",
        labels=["follower"],
    )
    for broker, records in standing.follower_lag.items():
        lag.add_metric([str(broker)], records)
    yield lag


def _of_throttles(sent: float, fetched: float) -> Iterator[Metric]:
    yield _gauge(
        "kafka_server_leaderreplication_byte_rate",
        "Bytes per second sent to followers of throttled replicas that this broker leads.",
        sent,
    )
    yield _gauge(
        "kafka_server_followerreplication_byte_rate",
        "Bytes per second that throttled replicas on this broker fetch.",
        fetched,
    )


def _of_the_controller(standing: BrokerStatus) -> Iterator[Metric]:
    """Yield the controller's metrics; 0 on other nodes, so that sums over brokers are right."""
    cluster = standing.cluster
    for name, text, value in (
        ("activecontrollercount", "1 on the active controller.", int(cluster is not None)),
        (
            "activebrokercount",
            "Registered brokers that are not fenced.",
            cluster.brokers if cluster else 0,
        ),
        (
            "fencedbrokercount",
            "Registered brokers that are fenced.",
            cluster.fenced if cluster else 0,
        ),
        ("globaltopiccount", "Topics.", cluster.topics if cluster else 0),
        ("globalpartitioncount", "Partitions.", cluster.partitions if cluster else 0),
        (
            "offlinepartitionscount",
            "Partitions without a leader, which can't be read or written.",
            cluster.offline if cluster else 0,
        ),
        (
            "preferredreplicaimbalancecount",
            "Partitions whose leader is not the preferred replica.",
            cluster.preferred_replica_imbalance if cluster else 0,
        ),
    ):
        yield _gauge(_CONTROLLER + name, text, value)


def _of_the_quorum(standing: BrokerStatus) -> Iterator[Metric]:
    view = standing.quorum
    leader = NO_NODE if view.leader_id is None else view.leader_id
    # The first voter is this node; only the leader knows the others.
    own = view.voters[0].end_offset
    yield _gauge(_RAFT + "current_leader", "Node that leads the quorum; -1: none.", leader)
    yield _gauge(_RAFT + "current_epoch", "Leader epoch of the quorum.", view.epoch)
    yield _gauge(
        _RAFT + "high_watermark", "Offset after the last committed entry.", view.high_watermark
    )
    yield _gauge(_RAFT + "log_end_offset", "Offset after the last entry of this node's log.", own)
    lag = GaugeMetricFamily(
        "streamlog_quorum_lag_records",
        "Entries of the metadata log that a node lacks, as far as the leader knows.",
        labels=["node", "role"],
    )
    for role, nodes in (("voter", view.voters[1:]), ("observer", view.observers)):
        for each in nodes:
            lag.add_metric([str(each.node_id), role], max(own - max(each.end_offset, 0), 0))
    yield lag


def _counters(figures: ClusterFigures) -> Iterator[Metric]:
    for name, text, value in (
        (
            _REPLICAS + "isrshrinks",
            "Times that a partition led by this broker lost a replica from its in-sync set.",
            figures.isr_shrinks,
        ),
        (
            _REPLICAS + "isrexpands",
            "Times that a partition led by this broker gained a replica in its in-sync set.",
            figures.isr_expands,
        ),
        (
            _ELECTIONS + "uncleanleaderelections",
            "Elections, decided by this controller, of leaders that may lack acknowledged records.",
            figures.unclean_elections,
        ),
        (
            "streamlog_cleaner_unreadable_batches",
            "Unreadable batches that the log cleaner left unchanged.",
            figures.unreadable_batches(),
        ),
    ):
        counter = CounterMetricFamily(name, text)
        counter.add_metric([], value)
        yield counter
    elections = HistogramMetricFamily(
        _ELECTIONS + "leaderelection_seconds",
        "Time of an election decided by this controller, from its cause to its commit.",
    )
    buckets, below = [], 0
    ends = [*(str(bound_ms / 1000) for bound_ms in ELECTION_BOUNDS_MS), "+Inf"]
    # Prometheus' buckets are cumulative: each counts all elections up to its bound.
    for end, count in zip(ends, figures.elections.counts, strict=True):
        below += count
        buckets.append((end, float(below)))
    elections.add_metric([], buckets, figures.elections.sum_ms / 1000)
    yield elections


def _of_connections(counts: ConnectionCounts) -> Iterator[Metric]:
    yield _gauge("streamlog_connections", "Connections to this broker.", counts.open)
    for name, text, value in (
        ("refused", "Connections refused because of a limit.", counts.refused),
        ("evicted", "Half-open connections closed to make room for new ones.", counts.evicted),
    ):
        counter = CounterMetricFamily(f"streamlog_connections_{name}", text)
        counter.add_metric([], value)
        yield counter


def _gauge(name: str, text: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(name, text)
    gauge.add_metric([], value)
    return gauge
