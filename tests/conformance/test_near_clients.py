"""Other projects' clients send their rack, and read from a follower there (KIP-392)."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable

import aiokafka
import confluent_kafka

from streamlog.client.admin import NewTopic
from streamlog.client.admin.cluster_descriptions import PartitionDescription
from streamlog.log import Log
from streamlog.replace import replace
from tests.broker.three_brokers import Cluster, run_cluster

with warnings.catch_warnings():
    # kafka-python reads its own files in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

RACKS = "abc"
COUNT = 500
WAIT_S = 60


def three_racks() -> Cluster:
    cluster = Cluster(**{"replica.selector.class": "rack"})
    for number, node in cluster.nodes.items():
        node.config = replace(node.config, rack=RACKS[number - 1])
    return cluster


def by_librdkafka(address: str, rack: str) -> int:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "g", "client.rack": rack}
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    found = 0
    while found < COUNT:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"no record arrived after {found} records"
        assert message.error() is None
        found += 1
    consumer.close()
    return found


def by_kafka_python(address: str, rack: str) -> int:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, client_rack=rack)
    partition = kafka.TopicPartition("t", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found = 0
    while found < COUNT:
        records = consumer.poll(timeout_ms=WAIT_S * 1000).get(partition, [])
        assert records, f"no record arrived after {found} records"
        found += len(records)
    consumer.close()
    return found


def by_aiokafka(address: str, rack: str) -> int:
    async def main() -> int:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address, client_rack=rack)
        await consumer.start()
        partition = aiokafka.TopicPartition("t", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found = 0
        while found < COUNT:
            records = (await consumer.getmany(timeout_ms=WAIT_S * 1000)).get(partition, [])
            assert records, f"no record arrived after {found} records"
            found += len(records)
        await consumer.stop()
        return found

    return asyncio.run(main())


CLIENTS: tuple[Callable[[str, str], int], ...] = (by_librdkafka, by_kafka_python, by_aiokafka)


async def write_topic(address: str) -> tuple[PartitionDescription, int]:
    """Write a topic, and return its description and its minimum size in bytes."""
    async with Log.open(f"kafka://{address}") as log:
        await log.admin().create_topics([NewTopic("t", 1, 3)])
        async with log.producer() as producer:
            for _ in range(COUNT):
                await producer.send("t", bytes(100))
        descriptions = await log.admin().describe_partitions()
    return next(each for each in descriptions if each.topic == "t"), COUNT * 100


def test_a_client_reads_all_records_from_a_follower_in_its_rack() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        address = f"127.0.0.1:{cluster.nodes[1].port}"
        partition, size_bytes = await write_topic(address)
        near = next(each for each in partition.replicas if each != partition.leader)
        broker = cluster.nodes[near].broker
        assert broker is not None
        for read in CLIENTS:
            before = broker.copy_bytes_read
            assert await asyncio.to_thread(read, address, RACKS[near - 1]) == COUNT
            assert broker.copy_bytes_read - before >= size_bytes, read.__name__

    run_cluster(three_racks, story)
