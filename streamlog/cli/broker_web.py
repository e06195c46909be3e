"""A broker's HTTP server: whether it lives, whether it is ready, and its figures for Prometheus.

Carried and answered by what workers have for theirs (`worker/web`), which is the extra `[web]`.
Metrics have the names that Kafka's have behind Prometheus' exporter for Java, so that dashboards
and alarms which were made for Kafka show this broker; what Kafka has no name for is `streamlog_`.
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
from streamlog.worker.web.web_server import listening, make_site, serving

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_REPLICAS = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"
_ELECTIONS = "kafka_controller_controllerstats_"
_RAFT = "kafka_server_raftmetrics_"
NOBODY = -1


@asynccontextmanager
async def serve_health(broker: Broker, address: str) -> AsyncIterator[str]:
    """Answer at HOST:PORT as long as the block lasts; what is given is where that is.

    Raises:
        ConfigError: it is not of that form.
        ListenError: it is taken, or not one of this machine's.
    """
    with listening(address) as listener:
        site = make_site(BrokerHealth(broker), BrokerExposition(broker), hosts=listener.hosts)
        async with serving(site, listener):
            yield listener.endpoint


class BrokerHealth:
    """How a broker is."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def live(self) -> HealthReport:
        """It answers, so it works; one whose disk has failed has ended."""
        return HealthReport(is_well=True, facts={"live": True, **_facts(self._broker.status())})

    def ready(self) -> HealthReport:
        """Whether it does all of its share: it is alive to a controller that it knows.

        That replicas lag is told, and does not make it unready: its clients need it all the more.
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
    """What `/metrics` answers."""

    def __init__(self, broker: Broker) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_BrokerCollector(broker))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics as they are now, in Prometheus' text format."""
        return generate_latest(self._registry)


class _BrokerCollector(Collector):
    """The figures as metrics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        """All of them, as they are now."""
        standing = self._broker.status()
        yield _gauge(
            "kafka_server_kafkaserver_brokerstate",
            "1 starting, 2 registered and fenced, 3 running, 6 shutting down in order, 7 ended.",
            BROKER_STATES[standing.state],
        )
        yield from _of_replicas(standing)
        yield from _of_throttles(*self._broker.throttled_rates())
        copies = CounterMetricFamily(
            "streamlog_follower_read_bytes",
            "Bytes that readers were given of partitions that other brokers lead.",
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
        ("partitioncount", "Partitions of which this broker has a replica.", counts.held),
        ("leadercount", "Partitions that it leads.", counts.led),
        (
            "underreplicatedpartitions",
            "Partitions that it leads with replicas that are not in sync.",
            counts.under_replicated,
        ),
        (
            "underminisrpartitioncount",
            "Partitions that it leads and that take no acks=all: too few replicas are in sync.",
            counts.under_min_isr,
        ),
        (
            "atminisrpartitioncount",
            "Partitions that it leads and that would take none with one replica fewer.",
            counts.at_min_isr,
        ),
        (
            "reassigningpartitions",
            "Partitions that it leads and that are on their way to other brokers.",
            counts.reassigning,
        ),
    ):
        yield _gauge(_REPLICAS + name, text, value)
    lag = GaugeMetricFamily(
        "streamlog_follower_lag_records",
        "Records by which a follower is behind this leader, in the partition where it is so most.",
        labels=["follower"],
    )
    for broker, records in standing.follower_lag.items():
        lag.add_metric([str(broker)], records)
    yield lag


def _of_throttles(sent: float, fetched: float) -> Iterator[Metric]:
    yield _gauge(
        "kafka_server_leaderreplication_byte_rate",
        "Bytes a second to followers of throttled replicas that this broker leads.",
        sent,
    )
    yield _gauge(
        "kafka_server_followerreplication_byte_rate",
        "Bytes a second that throttled replicas of this broker fetch.",
        fetched,
    )


def _of_the_controller(standing: BrokerStatus) -> Iterator[Metric]:
    """Those of who is not the active controller are 0, so that sums over brokers are right."""
    cluster = standing.cluster
    for name, text, value in (
        ("activecontrollercount", "1 for the active controller.", int(cluster is not None)),
        ("activebrokercount", "Brokers that live.", cluster.brokers if cluster else 0),
        ("fencedbrokercount", "Brokers that do not.", cluster.fenced if cluster else 0),
        ("globaltopiccount", "Topics.", cluster.topics if cluster else 0),
        ("globalpartitioncount", "Partitions.", cluster.partitions if cluster else 0),
        (
            "offlinepartitionscount",
            "Partitions without a leader: nobody can read or write them.",
            cluster.offline if cluster else 0,
        ),
        (
            "preferredreplicaimbalancecount",
            "Partitions that another replica than the preferred one leads.",
            cluster.preferred_replica_imbalance if cluster else 0,
        ),
    ):
        yield _gauge(_CONTROLLER + name, text, value)


def _of_the_quorum(standing: BrokerStatus) -> Iterator[Metric]:
    view = standing.quorum
    leader = NOBODY if view.leader_id is None else view.leader_id
    own = view.voters[0].end_offset
    yield _gauge(_RAFT + "current_leader", "Who leads the quorum; -1 if nobody.", leader)
    yield _gauge(_RAFT + "current_epoch", "Of the quorum.", view.epoch)
    yield _gauge(_RAFT + "high_watermark", "Committed entries end here.", view.high_watermark)
    yield _gauge(_RAFT + "log_end_offset", "This node's log ends here.", own)
    lag = GaugeMetricFamily(
        "streamlog_quorum_lag_records",
        "Entries of the metadata log that a node has not, as its leader knows.",
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
            "In-sync sets of partitions that this broker led, which lost somebody.",
            figures.isr_shrinks,
        ),
        (_REPLICAS + "isrexpands", "Likewise, which won somebody.", figures.isr_expands),
        (
            _ELECTIONS + "uncleanleaderelections",
            "Elections, decided here, of leaders that may lack acknowledged records.",
            figures.unclean_elections,
        ),
        (
            "streamlog_cleaner_unreadable_batches",
            "Batches that can't be read and that the log cleaner left as they are.",
            figures.unreadable_batches(),
        ),
    ):
        counter = CounterMetricFamily(name, text)
        counter.add_metric([], value)
        yield counter
    elections = HistogramMetricFamily(
        _ELECTIONS + "leaderelection_seconds",
        "Elections decided here: from what led to them until they were committed.",
    )
    buckets, below = [], 0
    ends = [*(str(bound_ms / 1000) for bound_ms in ELECTION_BOUNDS_MS), "+Inf"]
    for end, count in zip(ends, figures.elections.counts, strict=True):
        below += count
        buckets.append((end, float(below)))
    elections.add_metric([], buckets, figures.elections.sum_ms / 1000)
    yield elections


def _of_connections(counts: ConnectionCounts) -> Iterator[Metric]:
    yield _gauge("streamlog_connections", "Connections to this broker.", counts.open)
    for name, text, value in (
        ("refused", "Connections that were one too many.", counts.refused),
        ("evicted", "Half-open connections that were closed to make room.", counts.evicted),
    ):
        counter = CounterMetricFamily(f"streamlog_connections_{name}", text)
        counter.add_metric([], value)
        yield counter


def _gauge(name: str, text: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(name, text)
    gauge.add_metric([], value)
    return gauge
