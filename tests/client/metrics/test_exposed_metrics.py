"""Exposed metrics: Prometheus reads the metrics of clients under the JMX exporter's names."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from streamlog.client.admin import NewTopic
from streamlog.client.metrics.exposed_metrics import client_collector, exposed_name
from streamlog.client.metrics.metric_names import DEFINITIONS
from streamlog.log import Log
from streamlog.metrics.prometheus import exposition
from streamlog.metrics.registry import Registry
from streamlog.record import TopicPartition


def test_clients_of_one_process_differ_by_their_client_id(tmp_path: Path) -> None:
    async def main() -> str:
        async with Log.open(f"embedded:{tmp_path}") as log:
            await log.admin().create_topics([NewTopic("t", 1)])
            async with (
                log.producer() as one,
                log.producer() as other,
                log.consumer(auto_offset_reset="earliest") as consumer,
            ):
                for _ in range(3):
                    await (await one.send("t", b"v"))
                await (await other.send("t", b"v"))
                consumer.assign([TopicPartition("t", 0)])
                await consumer.poll(timeout_ms=5_000, max_records=1)
                registry = Registry()
                clients = [("one", one), ("other", other), ("reader", consumer)]
                registry.collect(client_collector(lambda: iter(clients)))
                return (await exposition(registry)).decode()

    found = {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if v))): sample.value
        for family in text_string_to_metric_families(asyncio.run(main()))
        for sample in family.samples
    }
    sent = "kafka_producer_producer_metrics_record_send_total"
    assert found[sent, (("client_id", "one"),)] == 3
    assert found[sent, (("client_id", "other"),)] == 1
    topic = "kafka_producer_producer_topic_metrics_record_send_total"
    assert found[topic, (("client_id", "one"), ("topic", "t"))] == 3
    lag = "kafka_consumer_consumer_fetch_manager_metrics_records_lag"
    reader = (("client_id", "reader"), ("partition", "0"), ("topic", "t"))
    assert found[lag, reader] == 3
    read = "kafka_consumer_consumer_fetch_manager_metrics_records_consumed_total"
    assert found[read, (("client_id", "reader"),)] == 1
    assert found[read, (("client_id", "reader"), ("topic", "t"))] == 1
    # The consumer has no group: nothing is known of commits, so there is no series.
    assert not [each for each, _ in found if each.endswith("commit_latency_avg")]


def test_every_metric_has_a_name_of_its_own_in_prometheus() -> None:
    names = {(each.group, each.name): exposed_name(each.group, each.name) for each in DEFINITIONS}
    assert len(set(names.values())) == len(names)
    assert (
        names["admin-client-node-metrics", "request-total"]
        == "kafka_admin_client_admin_client_node_metrics_request_total"
    )
