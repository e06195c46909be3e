"""Four client libraries behind one small interface, so that each can be tried with each."""

from __future__ import annotations

import asyncio
import ssl
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import aiokafka
import confluent_kafka
from aiokafka.abc import AbstractTokenProvider as AioKafkaTokenProvider
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioKafkaRange

from streamlog.assignors import RangeAssignor
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.transport.security import Security

with warnings.catch_warnings():
    # kafka-python reads its own files in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

PATIENCE_S = 100
KAFKA_PYTHON_POLL_MS = 10_000
"""A poll returns as soon as there is a record.

A poll that ends in the middle of a SyncGroup loses the assignment (kafka-python 3.0.12): the member
has no partitions, and never asks again.
"""
PARTITIONS = 4
"""The partitions of a topic that the broker creates automatically."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Enough = Callable[[int], bool]
Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """A record as a writer sends it and a reader gets it."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


@dataclass(frozen=True)
class Access:
    """The credentials and the security protocol for a listener."""

    protocol: str
    authority: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    """The token for OAUTHBEARER."""

    @property
    def confluent(self) -> dict[str, Any]:
        """The settings for librdkafka."""
        settings: dict[str, Any] = {
            "security.protocol": self.protocol,
            "ssl.ca.location": self.authority,
        }
        if self.token:
            settings["oauth_cb"] = lambda _: (self.token, time.time() + 3600)
        if self.mechanism:
            settings["sasl.mechanism"] = self.mechanism
        if self.user:
            settings |= {"sasl.username": self.user, "sasl.password": self.password}
        return settings

    @property
    def kafka_python(self) -> dict[str, Any]:
        """The settings for kafka-python."""
        settings: dict[str, Any] = {
            "security_protocol": self.protocol,
            "ssl_cafile": self.authority if "SSL" in self.protocol else None,
        }
        return settings | self._of_python(KafkaPythonToken)

    @property
    def aiokafka(self) -> dict[str, Any]:
        """The settings for aiokafka."""
        settings: dict[str, Any] = {"security_protocol": self.protocol}
        if "SSL" in self.protocol:
            settings["ssl_context"] = ssl.create_default_context(cafile=self.authority)
        return settings | self._of_python(AioKafkaToken)

    @property
    def streamlog(self) -> Security:
        """The settings for streamlog."""
        return Security(
            protocol=self.protocol,
            ca_file=self.authority,
            mechanism=self.mechanism,
            user=self.user,
            password=self.password,
            token=self.token,
        )

    def _of_python(self, provider: Callable[[str], object]) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        if self.mechanism:
            settings["sasl_mechanism"] = self.mechanism
        if self.user:
            settings["sasl_plain_username"] = self.user
            settings["sasl_plain_password"] = self.password
        if self.token:
            settings["sasl_oauth_token_provider"] = provider(self.token)
        return settings


class KafkaPythonToken(KafkaPythonTokenProvider):
    """Provides a token to kafka-python."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


class AioKafkaToken(AioKafkaTokenProvider):
    """Provides a token to aiokafka."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


OPEN = Access("PLAINTEXT", "")


class Client(Protocol):
    """A client library."""

    name: str

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        """Write the records and wait until all are acknowledged."""
        ...

    def consume(
        self, address: str, topics: Sequence[str], group: str, enough: Enough
    ) -> dict[str, list[Sent]]:
        """Read as a group member until `enough` accepts the record count, commit, and leave."""
        ...


class Confluent:
    """confluent-kafka, on librdkafka."""

    name = "confluent-kafka"

    def __init__(self, access: Access = OPEN) -> None:
        self.access = access

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "enable.idempotence": True,
                **self.access.confluent,
            }
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
                **self.access.confluent,
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

    def __init__(self, access: Access = OPEN) -> None:
        self.access = access

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            **self.access.kafka_python,
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
            **self.access.kafka_python,
        )
        found: dict[str, list[Sent]] = {topic: [] for topic in topics}
        got, until = 0, time.monotonic() + PATIENCE_S
        while not enough(got) and time.monotonic() < until:
            for partition, records in consumer.poll(KAFKA_PYTHON_POLL_MS).items():
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

    def __init__(self, access: Access = OPEN) -> None:
        self.access = access

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        async def main() -> None:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=True,
                **self.access.aiokafka,
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
                    **self.access.aiokafka,
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
    """Our own client."""

    name = "streamlog"

    def __init__(self, access: Access = OPEN) -> None:
        self.access = access

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        async def main() -> None:
            async with (
                Log.open(f"kafka://{address}", security=self.access.streamlog) as log,
                log.admin() as admin,
                log.producer(compression=codec) as producer,
            ):
                # Unlike the others, it does not create a topic by asking for one.
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
                Log.open(f"kafka://{address}", security=self.access.streamlog) as log,
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
