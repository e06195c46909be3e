"""Readers that are sent to a replica in their rack (KIP-392), in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import pytest

from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.record import TopicPartition
from tests.broker.simulated_brokers import Brokers, run_brokers

RACKS = ("a", "b", "c")
NEAR = {"replica.selector.class": "rack"}
BY_KAFKAS_NAME = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"
}
T0 = TopicPartition("t", 0)


async def create_topic(brokers: Brokers) -> tuple[int, int]:
    """Create a topic on all brokers; return its leader and one follower."""
    await brokers.create("t", replicas=3, configs={})
    layout = await brokers.layout("t")
    return layout.leader, next(each for each in layout.replicas if each != layout.leader)


async def send(brokers: Brokers, *values: bytes) -> None:
    async with brokers.log.producer() as producer:
        for value in values:
            await producer.send("t", value)


async def read(consumer: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    async with asyncio.timeout(60):
        while len(values) < count:
            for records in (await consumer.poll(timeout_ms=1_000)).values():
                values += (each.value for each in records)
    return values


def bytes_read(brokers: Brokers) -> Mapping[int, int]:
    """Return the bytes that each broker has served as a follower."""
    return {
        number: node.broker.copy_bytes_read
        for number, node in brokers.nodes.items()
        if node.broker is not None
    }


@pytest.mark.parametrize("settings", [NEAR, BY_KAFKAS_NAME])
def test_a_follower_in_the_reader_s_rack_serves_records_once_committed(
    settings: dict[str, str],
) -> None:
    async def story(brokers: Brokers) -> None:
        _, near = await create_topic(brokers)
        await send(brokers, *(b"%d" % number for number in range(1_000)))
        rack = RACKS[near - 1]
        async with brokers.log.consumer(client_rack=rack, auto_offset_reset="earliest") as consumer:
            consumer.assign([T0])
            assert await read(consumer, 1_000) == [b"%d" % number for number in range(1_000)]
            served = bytes_read(brokers)
            assert served[near] > 1_000
            assert sum(served.values()) == served[near]
            async with brokers.log.producer() as producer:
                for _ in range(5):
                    # The reader waits at the end; the follower learns of new commits at once.
                    await brokers.pause()
                    acknowledged = await producer.send("t", b"more")
                    await acknowledged
                    acknowledged_s = brokers.now_s()
                    assert await read(consumer, 1) == [b"more"]
                    assert brokers.now_s() - acknowledged_s < 0.1
            assert bytes_read(brokers)[near] > served[near]

    run_brokers(story, racks=RACKS, settings=settings)


@pytest.mark.parametrize(
    ("settings", "rack"), [({}, "follower"), (NEAR, "leader"), (NEAR, "elsewhere"), (NEAR, "")]
)
def test_readers_without_a_selector_or_near_follower_use_the_leader(
    settings: dict[str, str], rack: str
) -> None:
    of_all = ("a", "a", "a") if rack == "leader" else RACKS

    async def story(brokers: Brokers) -> None:
        leader, near = await create_topic(brokers)
        racks = {"leader": of_all[leader - 1], "follower": of_all[near - 1]}
        await send(brokers, b"a", b"b")
        async with brokers.log.consumer(
            client_rack=racks.get(rack, rack), auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([T0])
            assert await read(consumer, 2) == [b"a", b"b"]
        assert not any(bytes_read(brokers).values())

    run_brokers(story, racks=of_all, settings=settings)


def test_losing_the_follower_returns_the_reader_to_the_leader_without_gaps() -> None:
    async def story(brokers: Brokers) -> None:
        _, near = await create_topic(brokers)
        await send(brokers, b"0")
        async with brokers.log.consumer(
            client_rack=RACKS[near - 1], auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([T0])
            assert await read(consumer, 1) == [b"0"]
            assert bytes_read(brokers)[near]
            brokers.nodes[near].kill(power=False)
            await send(brokers, b"1", b"2")
            assert await read(consumer, 2) == [b"1", b"2"]
            brokers.nodes[near].start()
            number = 3
            while not bytes_read(brokers).get(near):
                await send(brokers, b"%d" % number)
                assert await read(consumer, 1) == [b"%d" % number]
                number += 1
                await asyncio.sleep(1)  # simulated time, until the reader asks the leader again
            assert number > 3

    run_brokers(story, racks=RACKS, settings=NEAR | {"broker.session.timeout.ms": "3000"})


class Aborted(Exception):
    """Raised to abort a transaction."""


async def in_transaction(producer: Producer, number: int) -> None:
    async with producer.transaction():
        await producer.send("t", b"%d" % number)
        if number % 2:
            raise Aborted


def test_a_follower_hides_aborted_records_from_readers() -> None:
    async def story(brokers: Brokers) -> None:
        _, near = await create_topic(brokers)
        async with brokers.log.producer(transactional_id="x") as producer:
            for number in range(6):
                with suppress(Aborted):
                    await in_transaction(producer, number)
        async with brokers.log.consumer(
            client_rack=RACKS[near - 1],
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            consumer.assign([T0])
            assert await read(consumer, 3) == [b"0", b"2", b"4"]
        assert bytes_read(brokers)[near]

    run_brokers(story, racks=RACKS, settings=NEAR)
