"""Four clients of the protocol behind one small face, so that each can be tried with each."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioKafkaRange

from streamlog.assignors import RangeAssignor
from streamlog.client.admin import NewTopic
from streamlog.log import Log

with warnings.catch_warnings():
    # It reads its own files in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor

PATIENCE_S = 100
PARTITIONS = 4
"""What the broker gives to a topic that it makes on the way."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Enough = Callable[[int], bool]
Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """A record as a writer gives it and a reader gets it."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


class Client(Protocol):
    """One library."""

    name: str

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        """Write and wait until everything is acknowledged."""
        ...

    def consume(
        self, address: str, topics: Sequence[str], group: str, enough: Enough
    ) -> dict[str, list[Sent]]:
        """Read as a member of a group until `enough` is true of how many, commit, leave."""
        ...


class Confluent:
    """librdkafka."""

    name = "confluent-kafka"

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": True}
        )
        refused: list[object] = []
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
        assert producer.flush(PATIENCE_S) == 0
        assert not refused

    def consume(
        self, address: str, topics: Sequence[str], group: str, enough: Enough
    ) -> dict[str, list[Sent]]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "range",
            }
        )
        consumer.subscribe(list(topics))
        found: dict[str, list[Sent]] = {topic: [] for topic in topics}
        got, until = 0, time.monotonic() + PATIENCE_S
        while not enough(got) and time.monotonic() < until:
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None, message.error()
                got += 1
                found[message.topic()].append(
                    Sent(
                        message.partition(),
                        message.key(),
                        message.value(),
                        message.timestamp()[1],
                        tuple(message.headers() or ()),
                    )
                )
        consumer.commit(asynchronous=False)
        consumer.close()
        return found


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=address, compression_type=None if codec == "none" else codec
        )
        receipts = [
            producer.send(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        for receipt in receipts:
            receipt.get(PATIENCE_S)
        producer.close()

    def consume(
        self, address: str, topics: Sequence[str], group: str, enough: Enough
    ) -> dict[str, list[Sent]]:
        consumer = kafka.KafkaConsumer(
            *topics,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        found: dict[str, list[Sent]] = {topic: [] for topic in topics}
        got, until = 0, time.monotonic() + PATIENCE_S
        while not enough(got) and time.monotonic() < until:
            for partition, records in consumer.poll(100).items():
                got += len(records)
                found[partition.topic] += (
                    Sent(r.partition, r.key, r.value, r.timestamp, tuple(r.headers))
                    for r in records
                )
        consumer.commit()
        consumer.close()
        return found


class AioKafka:
    """aiokafka."""

    name = "aiokafka"

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        async def main() -> None:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=True,
            ) as producer:
                receipts = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                for receipt in receipts:
                    await receipt

        asyncio.run(main())

    def consume(
        self, address: str, topics: Sequence[str], group: str, enough: Enough
    ) -> dict[str, list[Sent]]:
        async def main() -> dict[str, list[Sent]]:
            found: dict[str, list[Sent]] = {topic: [] for topic in topics}
            got = 0
            async with (
                asyncio.timeout(PATIENCE_S),
                aiokafka.AIOKafkaConsumer(
                    *topics,
                    bootstrap_servers=address,
                    group_id=group,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    partition_assignment_strategy=(AioKafkaRange,),
                ) as consumer,
            ):
                while not enough(got):
                    for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                        got += len(records)
                        found[partition.topic] += (
                            Sent(r.partition, r.key, r.value, r.timestamp, tuple(r.headers))
                            for r in records
                        )
                await consumer.commit()
            return found

        return asyncio.run(main())


class Streamlog:
    """Our own."""

    name = "streamlog"

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        async def main() -> None:
            async with (
                Log.open(f"kafka://{address}") as log,
                log.admin() as admin,
                log.producer(compression=codec) as producer,
            ):
                # Unlike the others it makes no topic by asking for one.
                await admin.create_topics([NewTopic(topic, PARTITIONS)])
                receipts = [
                    await producer.send(
                        topic,
                        record.value,
                        key=record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=record.headers,
                    )
                    for record in records
                ]
                for receipt in receipts:
                    await receipt

        asyncio.run(main())

    def consume(
        self, address: str, topics: Sequence[str], group: str, enough: Enough
    ) -> dict[str, list[Sent]]:
        async def main() -> dict[str, list[Sent]]:
            found: dict[str, list[Sent]] = {topic: [] for topic in topics}
            got = 0
            async with (
                asyncio.timeout(PATIENCE_S),
                Log.open(f"kafka://{address}") as log,
                log.consumer(
                    group_id=group,
                    auto_offset_reset="earliest",
                    auto_commit=False,
                    assignor=RangeAssignor(),
                ) as consumer,
            ):
                await consumer.subscribe(topics)
                while not enough(got):
                    for partition, records in (await consumer.poll(timeout_ms=100)).items():
                        got += len(records)
                        found[partition.topic] += (
                            Sent(partition.partition, r.key, r.value, r.timestamp_ms, r.headers)
                            for r in records
                        )
                await consumer.commit()
            return found

        return asyncio.run(main())


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka(), Streamlog())
