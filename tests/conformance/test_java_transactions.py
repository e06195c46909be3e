"""Java's producer has transactions v2 at our brokers (KIP-890, part 2).

Apache's performance tool writes in transactions. It says nothing about their version, but the
coordinator does: only a client of transactions v2 ends them with epochs that rise.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, STDOUT

import pytest

from conformance import kafka
from streamlog.broker.coordinator.transaction.coordinated_transaction import (
    CoordinatedTransaction,
    TransactionState,
)
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.three_brokers import Cluster, run_cluster

RECORDS = 2_000
PARTITIONS = 3


def known(cluster: Cluster, name: str) -> CoordinatedTransaction:
    """Return the state of a transactional id at its coordinator."""
    for broker in cluster.brokers:
        try:
            found = broker._transactions.transaction(name)
        except LogError:
            continue
        if found is not None:
            return found
    raise AssertionError(f"no broker coordinates {name}")


async def perform(addresses: str, name: str) -> str:
    """Write records in many small transactions, by Apache's tool; return what it prints."""
    tool = await asyncio.create_subprocess_exec(
        *kafka.java("org.apache.kafka.tools.ProducerPerformance", "--topic", "t"),
        *("--num-records", str(RECORDS), "--record-size", "10", "--throughput", "1000"),
        *("--transactional-id", name, "--transaction-duration-ms", "100"),
        *("--producer-props", f"bootstrap.servers={addresses}", "linger.ms=0"),
        stdout=PIPE,
        stderr=STDOUT,
    )
    printed, _ = await tool.communicate()
    assert tool.returncode == 0, printed.decode()
    return printed.decode()


async def visible(addresses: str) -> int:
    """Return how many records a reader of committed records gets, up to the log's ends."""
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    async with (
        Log.open(f"kafka://{addresses}") as log,
        log.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign(partitions)
        ends, count = await consumer.end_offsets(partitions), 0
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            polled = await consumer.poll(timeout_ms=100)
            count += sum(map(len, polled.values()))
        return count


def test_javas_producer_ends_each_transaction_in_an_epoch_of_its_own() -> None:
    if not (kafka.CACHE / "fetched").exists():
        pytest.skip("Apache Kafka's jars are not here: make conformance-kafka fetches them")

    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        addresses = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())
        async with Log.open(f"kafka://{addresses}") as log, log.admin() as admin:
            await admin.create_topics([NewTopic("t", PARTITIONS, 3, {})])
        epochs = []
        for _ in range(2):
            await perform(addresses, "java")
            last = known(cluster, "java")
            assert last.state is TransactionState.COMPLETE_COMMIT
            assert last.client_version == 2
            epochs.append(last.producer_epoch)
        assert epochs[0] >= 5, "two seconds, in transactions of 100 ms"
        assert epochs[1] > epochs[0] + 5
        assert await visible(addresses) == 2 * RECORDS

    run_cluster(Cluster, story)
