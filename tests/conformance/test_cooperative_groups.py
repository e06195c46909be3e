"""One `cooperative-sticky` group of librdkafka's consumer and ours, with either as leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import confluent_kafka
import pytest

from streamlog.assignors import CooperativeStickyAssignor
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess

PATIENCE_S = 60
PARTITIONS = 4

Moves = list[tuple[str, int]]


class Theirs:
    """librdkafka's consumer, with the number of partitions in each rebalance."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self.moves: Moves = []
        self.values: list[int] = []
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "heartbeat.interval.ms": 200,
                "session.timeout.ms": 10_000,
                "auto.offset.reset": "earliest",
            }
        )
        self.consumer.subscribe(
            [topic],
            on_assign=lambda _, parts: self.moves.append(("+", len(parts))),
            on_revoke=lambda _, parts: self.moves.append(("-", len(parts))),
        )

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None:
            assert message.error() is None, message.error()
            self.values.append(int(message.value() or b""))

    def owns(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}


class Ours:
    """Our consumer, with the number of partitions in each rebalance."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.moves: Moves = []
        self.values: list[int] = []

    async def subscribe(self, topic: str) -> None:
        async def on_assigned(partitions: frozenset[TopicPartition]) -> None:
            self.moves.append(("+", len(partitions)))

        async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
            self.moves.append(("-", len(partitions)))

        await self.consumer.subscribe([topic], on_assigned=on_assigned, on_revoked=on_revoked)

    async def poll(self) -> None:
        for records in (await self.consumer.poll(timeout_ms=20)).values():
            self.values += (int(record.value or b"") for record in records)

    def owns(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}


async def until(condition: Callable[[], bool], ours: Ours | None, theirs: Theirs | None) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            if ours is not None:
                await ours.poll()
            if theirs is not None:
                theirs.poll()
            await asyncio.sleep(0)


async def fill(log: Log, topic: str, numbers: range) -> None:
    async with log.producer() as producer:
        for number in numbers:
            partition = number % PARTITIONS
            sent = await producer.send(topic, b"%d" % number, partition=partition)
            await sent


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_both_clients_share_a_group_and_revoke_only_moved_partitions(
    broker: BrokerProcess, first: str
) -> None:
    topic = group = f"cooperative.{first}"

    async def main() -> None:
        async with (
            Log.open(f"kafka://{broker.address}") as log,
            log.consumer(
                group_id=group,
                assignor=CooperativeStickyAssignor(),
                heartbeat_interval_ms=200,
                session_timeout_ms=10_000,
                auto_offset_reset="earliest",
                auto_commit=True,
            ) as consumer,
        ):
            await log.admin().create_topics([NewTopic(topic, PARTITIONS)])
            ours, theirs = Ours(consumer), None
            if first == "ours":
                await ours.subscribe(topic)
                await until(lambda: len(ours.owns()) == PARTITIONS, ours, None)
                theirs = Theirs(broker.address, group, topic)
            else:
                theirs = Theirs(broker.address, group, topic)
                alone = theirs
                await until(lambda: len(alone.owns()) == PARTITIONS, None, theirs)
                await ours.subscribe(topic)
            other = theirs
            await until(lambda: len(ours.owns()) == len(other.owns()) == 2, ours, theirs)
            assert ours.owns() | other.owns() == set(range(PARTITIONS))
            before = ours if first == "ours" else other
            assert ("-", 2) in before.moves
            assert ("-", PARTITIONS) not in before.moves
            await fill(log, topic, range(40))
            await until(lambda: len(ours.values) + len(other.values) >= 40, ours, theirs)
            assert sorted(ours.values + other.values) == list(range(40))
            other.consumer.close()
            await until(lambda: len(ours.owns()) == PARTITIONS, ours, None)
            await fill(log, topic, range(40, 48))
            await until(lambda: set(range(40, 48)) <= set(ours.values), ours, None)
            # Nothing is read twice: each has committed what it revoked.
            assert sorted(ours.values + other.values) == list(range(48))

    asyncio.run(main())
