"""Telemetry: what our clients count appears at the broker, if it asks for it (KIP-714)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.metrics.prometheus import exposition
from streamlog.record import TopicPartition

SUBSCRIPTION = {"metrics": "org.apache.kafka.", "interval.ms": "100"}


async def values(log: Log, name: str) -> list[float]:
    """The values of a metric that clients have pushed, at the broker's `/metrics`."""
    assert log._broker is not None
    text = (await exposition(log._broker.directory.metrics)).decode()
    return [float(each) for each in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)]


async def shows(log: Log, name: str, value: float) -> None:
    while value not in await values(log, name):  # noqa: ASYNC110 - the broker's state, polled
        await asyncio.sleep(0.05)


def test_the_broker_shows_what_our_clients_count(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as served:
            await served.admin().create_topics([NewTopic("t", 1)])
            await served.admin().alter_client_metrics("all", SUBSCRIPTION)
            assert served.address is not None
            host, port = served.address
            async with (
                Log.open(f"kafka://{host}:{port}", client_id="tester") as log,
                log.consumer(auto_offset_reset="earliest") as consumer,
                log.producer(linger_ms=0, enable_metrics_push=False) as silent,
            ):
                consumer.assign([TopicPartition("t", 0)])
                async with log.producer(linger_ms=0, transactional_id="x") as producer:
                    for _ in range(5):
                        async with producer.transaction():
                            await producer.send("t", b"v")
                    await consumer.poll(timeout_ms=5_000)
                    await shows(served, "org_apache_kafka_producer_record_send_total", 5)
                    async with producer.transaction():
                        await producer.send("t", b"v")
                    # The last push is sent at once, whatever the interval.
                assert 6 in await values(served, "org_apache_kafka_producer_record_send_total")
                read = consumer.metrics().value("records-consumed-total")
                assert read >= 1
                await shows(
                    served, "org_apache_kafka_consumer_fetch_manager_records_consumed_total", read
                )
                assert silent.metrics()

    asyncio.run(asyncio.wait_for(main(), 60))
