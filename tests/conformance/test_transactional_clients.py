"""Transactions of other projects' clients: aborted records are never returned."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable

import aiokafka
import confluent_kafka
import pytest

from tests.broker.process import BrokerProcess
from tests.conformance.clients import PATIENCE_S

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

Story = Callable[[str, str], None]
"""Writes b"1" and b"3" in committed transactions to a topic, and b"2" in an aborted one."""


def by_confluent(address: str, topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": f"{topic}-id"}
    )
    producer.init_transactions(PATIENCE_S)
    for value, committed in ((b"1", True), (b"2", False), (b"3", True)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(PATIENCE_S)
        if committed:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)


def by_aiokafka(address: str, topic: str) -> None:
    async def main() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, transactional_id=f"{topic}-id"
        )
        await producer.start()
        for value, committed in ((b"1", True), (b"2", False), (b"3", True)):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, value, partition=0)
            await (producer.commit_transaction() if committed else producer.abort_transaction())
        await producer.stop()

    asyncio.run(main())


def by_kafka_python(address: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address, transactional_id=f"{topic}-id")
    producer.init_transactions()
    for value, committed in ((b"1", True), (b"2", False), (b"3", True)):
        producer.begin_transaction()
        producer.send(topic, value, partition=0).get(PATIENCE_S)
        if committed:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()


def read_by_confluent(address: str, topic: str, isolation: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    until = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    return found


def read_by_aiokafka(address: str, topic: str, isolation: str, count: int) -> list[bytes]:
    async def main() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, isolation_level=isolation, auto_offset_reset="earliest"
        )
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
        found = []
        while len(found) < count:
            found.append((await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value)
        await consumer.stop()
        return found

    return asyncio.run(main())


def read_by_kafka_python(address: str, topic: str, isolation: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_S * 1000,
    )
    consumer.assign([kafka.TopicPartition(topic, 0)])
    found = []
    for message in consumer:
        found.append(message.value)
        if len(found) == count:
            break
    consumer.close()
    return found


WRITERS: dict[str, Story] = {
    "confluent-kafka": by_confluent,
    "aiokafka": by_aiokafka,
    "kafka-python": by_kafka_python,
}
READERS = {
    "confluent-kafka": read_by_confluent,
    "aiokafka": read_by_aiokafka,
    "kafka-python": read_by_kafka_python,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_committed_records_are_read_and_aborted_ones_are_not(
    broker: BrokerProcess, writer: str
) -> None:
    topic = f"transactions-{writer}"
    WRITERS[writer](broker.address, topic)
    for reader in READERS.values():
        assert reader(broker.address, topic, "read_committed", 2) == [b"1", b"3"]
        assert reader(broker.address, topic, "read_uncommitted", 3) == [b"1", b"2", b"3"]


def test_offsets_are_committed_with_the_transaction(broker: BrokerProcess) -> None:
    by_confluent(broker.address, "in")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "exactly-once",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["in"])
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.address, "transactional.id": "copier"}
    )
    producer.init_transactions(PATIENCE_S)
    for committed in (False, True):
        producer.begin_transaction()
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        producer.produce("out", message.value(), partition=0)
        topic_partition = confluent_kafka.TopicPartition("in", 0, message.offset() + 1)
        producer.send_offsets_to_transaction(
            [topic_partition], consumer.consumer_group_metadata(), PATIENCE_S
        )
        if committed:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
            assert consumer.committed([topic_partition], PATIENCE_S)[0].offset < 0
            consumer.seek(confluent_kafka.TopicPartition("in", 0, 0))
    assert consumer.committed([topic_partition], PATIENCE_S)[0].offset == 1
    consumer.close()
    assert read_by_confluent(broker.address, "out", "read_committed", 1) == [b"1"]


def test_a_killed_broker_continues_the_transaction(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("killed") / "data") as broker:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.address, "transactional.id": "survivor"}
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("t", b"before", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        broker.kill_and_restart()
        producer.produce("t", b"after", partition=0)
        producer.commit_transaction(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("t", b"lost", partition=0)
        assert producer.flush(PATIENCE_S) == 0
        broker.kill_and_restart()
        # Another instance: the open transaction of the first one is aborted.
        successor = confluent_kafka.Producer(
            {"bootstrap.servers": broker.address, "transactional.id": "survivor"}
        )
        successor.init_transactions(PATIENCE_S)
        successor.begin_transaction()
        successor.produce("t", b"last", partition=0)
        successor.commit_transaction(PATIENCE_S)
        found = read_by_confluent(broker.address, "t", "read_committed", 3)
        assert found == [b"before", b"after", b"last"]
