"""Metrics that other clients push while the leader of their partition is killed (KIP-714)."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL
from collections.abc import Callable
from threading import Event

import confluent_kafka
import pytest

from conformance import kafka
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.broker.test_three_brokers import create, wait_for_topic
from tests.broker.three_brokers import Cluster, call, run_cluster, until

CLIENT_METRICS = 16
SESSION_MS = 4_000
TIMEOUT_MS = 1_000
PRODUCER = "org_apache_kafka_producer_"


def pushed(cluster: Cluster, name: str, **labels: str) -> float:
    """The sum of a metric over all brokers; -1 without a series."""
    found: list[float] = []
    for broker in cluster.brokers:
        for metric in broker.directory.metrics.metrics():
            for values, value in metric.points if metric.name == PRODUCER + name else ():
                own = dict(zip(metric.labels, values, strict=True))
                if labels.items() <= own.items() and isinstance(value, int | float):
                    found.append(value)
    return sum(found) if found else -1


async def subscribed(cluster: Cluster) -> str:
    """Create a topic, and ask all clients for all metrics; return the brokers' addresses."""
    await cluster.ready()
    broker = cluster.brokers[0]
    await create(broker, "t")
    await wait_for_topic(cluster, "t")
    settings = {"metrics": "*", "interval.ms": "500"}
    resource = AlterConfigsResource(
        resource_type=CLIENT_METRICS,
        resource_name="all",
        configs=[AlterableConfig(name=name, value=value) for name, value in settings.items()],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = await call(broker, request, IncrementalAlterConfigsResponse)
    assert not answer.responses[0].error_code
    return ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())


def leader(cluster: Cluster) -> int:
    topic = cluster.brokers[0]._member.metadata.topic("t")
    assert topic is not None
    return topic.partitions[0].leader


def slow_to_replace() -> Cluster:
    """Three brokers; another leader takes over later than clients give up a record."""
    return Cluster(**{"broker.session.timeout.ms": str(SESSION_MS), "min.insync.replicas": "1"})


def test_errors_and_latency_of_javas_producer_appear_when_a_leader_is_killed() -> None:
    if not (kafka.CACHE / "fetched").exists():
        pytest.skip("Apache Kafka's jars are not here: make conformance-kafka fetches them")

    async def story(cluster: Cluster) -> None:
        settings = (
            f"bootstrap.servers={await subscribed(cluster)}",
            "client.id=java",
            f"request.timeout.ms={TIMEOUT_MS}",
            f"delivery.timeout.ms={TIMEOUT_MS}",
            "linger.ms=0",
        )
        options = ("--topic", "t", "--num-records", "1000000", "--record-size", "100")
        tool = await asyncio.create_subprocess_exec(
            *kafka.java("org.apache.kafka.tools.ProducerPerformance", *options),
            *("--throughput", "1000", "--producer-props", *settings),
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        try:
            await until(lambda: pushed(cluster, "record_send_total", client_id="java") > 0)
            assert pushed(cluster, "record_error_total", client_id="java") == 0
            await cluster.nodes[leader(cluster)].kill()
            await until(lambda: pushed(cluster, "record_error_total", client_id="java") > 0)
            assert pushed(cluster, "record_retry_total", client_id="java") >= 0
            assert pushed(cluster, "request_latency_max", client_id="java") > 0
        finally:
            if tool.returncode is None:
                tool.kill()
            await tool.wait()

    run_cluster(slow_to_replace, story)


def test_latency_of_librdkafkas_producer_appears_when_a_leader_is_killed() -> None:
    def write(settings: dict[str, str], is_over: Callable[[], bool]) -> None:
        producer = confluent_kafka.Producer(settings)
        while not is_over():
            producer.produce("t", b"x")
            producer.poll(0.01)
        producer.purge()
        producer.flush(1)

    async def story(cluster: Cluster) -> None:
        over = Event()
        settings = {"bootstrap.servers": await subscribed(cluster), "client.id": "librdkafka"}
        writing = asyncio.create_task(asyncio.to_thread(write, settings, over.is_set))
        try:
            first = leader(cluster)
            latency, client = "node_request_latency_max", {"client_id": "librdkafka"}
            await until(lambda: pushed(cluster, latency, node_id=str(first), **client) > 0)
            connected = pushed(cluster, "connection_creation_total", **client)
            await cluster.nodes[first].kill()
            await until(lambda: leader(cluster) not in (first, -1))
            now = str(leader(cluster))
            await until(lambda: pushed(cluster, latency, node_id=now, **client) > 0)
            assert connected >= 0
        finally:
            over.set()
            await writing

    run_cluster(slow_to_replace, story)
