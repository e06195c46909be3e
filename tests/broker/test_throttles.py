"""Throttled reassignments between three brokers (KIP-73), in simulated time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamlog.client.admin.cluster_admin import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
)
from streamlog.record import TopicPartition
from tests.broker.simulated_brokers import Brokers, run_brokers

MOVED = TopicPartition("t", 0)
SIZE_BYTES = 500_000
FETCH_BYTES = 16_384
SETTINGS = {"replica.fetch.max.bytes": str(FETCH_BYTES)}
RATE = 50_000
SLOW = 5_000
SIDES = {
    LEADER_RATE: (LEADER_RATE, LEADER_REPLICAS),
    FOLLOWER_RATE: (FOLLOWER_RATE, FOLLOWER_REPLICAS),
}


async def fill_topic(brokers: Brokers) -> list[int]:
    """Create a topic on two brokers; return the target of its reassignment."""
    await brokers.create("t", replicas=2, configs={"max.message.bytes": str(FETCH_BYTES)})
    async with brokers.log.producer(batch_bytes=FETCH_BYTES // 2) as producer:
        for _ in range(SIZE_BYTES // 5_000):
            await producer.send("t", bytes(5_000))
        await producer.flush()
    layout = await brokers.layout("t")
    (free,) = {*brokers.nodes} - {*layout.replicas}
    return [layout.leader, free]


async def reassign(brokers: Brokers, target: Sequence[int]) -> float:
    """Reassign the partition; return the duration in seconds."""
    admin = brokers.log.admin()
    begun_s = brokers.now_s()
    (refused,) = (await admin.alter_partition_reassignments({MOVED: target})).values()
    assert refused is None
    await wait_for_reassignment(brokers)
    assert {*(await brokers.layout("t")).in_sync} == {*target}
    return brokers.now_s() - begun_s


async def wait_for_reassignment(brokers: Brokers) -> None:
    admin = brokers.log.admin()
    while await admin.list_partition_reassignments():
        await brokers.pause()


@pytest.mark.parametrize("side", [LEADER_RATE, FOLLOWER_RATE, ""])
def test_a_reassignment_takes_as_long_as_its_throttle_allows(side: str) -> None:
    async def story(brokers: Brokers) -> float:
        target = await fill_topic(brokers)
        if side:
            rate, replicas = SIDES[side]
            admin = brokers.log.admin()
            await admin.alter_configs({replicas: "*"}, topic="t")
            await admin.alter_configs({rate: str(RATE)}, broker="all")
        return await reassign(brokers, target)

    took_s = run_brokers(story, settings=SETTINGS)
    if side:
        # One second's worth may pass at once, plus the response that exceeds it.
        least_s = (SIZE_BYTES - FETCH_BYTES) / RATE - 1
        assert least_s <= took_s <= 1.5 * SIZE_BYTES / RATE
    else:
        assert took_s < 2


def test_a_throttle_is_set_raised_and_removed_for_a_reassignment() -> None:
    async def story(brokers: Brokers) -> float:
        admin = brokers.log.admin()
        target = await fill_topic(brokers)
        layout = await brokers.layout("t")
        assert await admin.throttle_moves(SLOW, {MOVED: target}) == sorted(
            {*layout.replicas, target[1]}
        )
        begun_s = brokers.now_s()
        await admin.alter_partition_reassignments({MOVED: target})
        settings = await admin.describe_configs(topic="t")
        assert settings[LEADER_REPLICAS].value == ",".join(f"0:{each}" for each in layout.replicas)
        assert settings[FOLLOWER_REPLICAS].value == f"0:{target[1]}"
        async with brokers.log.producer() as producer:
            while brokers.now_s() < begun_s + 10:
                sent_s = brokers.now_s()
                await (await producer.send("t", b"from a leader to who is in sync"))
                assert brokers.now_s() - sent_s < 0.5, "in-sync replicas are not throttled"
                await brokers.pause()
        assert MOVED in await admin.list_partition_reassignments()
        await admin.throttle_moves(10 * RATE)
        await wait_for_reassignment(brokers)
        took_s = brokers.now_s() - begun_s
        assert await admin.remove_throttles() == ["t"]
        assert await admin.remove_throttles() == []
        settings = await admin.describe_configs(topic="t")
        assert not settings[LEADER_REPLICAS].value
        assert not settings[FOLLOWER_REPLICAS].value
        for broker in brokers.nodes:
            rate = (await admin.describe_configs(broker=broker))[LEADER_RATE]
            assert (rate.value, rate.source) == (str(2**63 - 1), "default")
        return took_s

    assert 10 <= run_brokers(story, settings=SETTINGS) < 20 < SIZE_BYTES / SLOW


def test_removing_throttles_keeps_wildcard_replica_lists() -> None:
    async def story(brokers: Brokers) -> None:
        admin = brokers.log.admin()
        target = await fill_topic(brokers)
        await admin.alter_configs({LEADER_REPLICAS: "*"}, topic="t")
        await admin.throttle_moves(100 * RATE, {MOVED: target})
        await reassign(brokers, target)
        assert await admin.remove_throttles() == ["t"]
        assert (await admin.describe_configs(topic="t"))[LEADER_REPLICAS].value == "*"
        rate = (await admin.describe_configs(broker=target[0]))[LEADER_RATE].value
        assert rate == str(100 * RATE)

    run_brokers(story, settings=SETTINGS)
