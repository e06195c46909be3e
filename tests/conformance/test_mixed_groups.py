"""One KIP-848 group of our consumer and librdkafka's, on a broker that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as Theirs

from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
QUICK = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "6000",
}
one_process = pytest.mark.xdist_group("conformance")


@pytest.fixture
def killable_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", flush="os") as running:
        yield running


def their_member(address: str) -> Theirs:
    theirs = Theirs(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
        }
    )
    theirs.subscribe(["t"])
    return theirs


def owns(theirs: Theirs) -> set[TopicPartition]:
    return {TopicPartition(each.topic, each.partition) for each in theirs.assignment()}


async def until(condition: Callable[[], bool], ours: Consumer, theirs: Theirs) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await ours.poll(timeout_ms=20)
            await asyncio.to_thread(theirs.poll, 0.05)


@one_process
def test_both_clients_share_a_group_through_a_restart(killable_broker: BrokerProcess) -> None:
    async def main() -> None:
        async with Log.open(f"kafka://{killable_broker.address}") as log:
            await log.admin().create_topics([NewTopic("t", len(PARTITIONS))])
            await log.admin().alter_configs(QUICK)
            theirs = their_member(killable_broker.address)
            options = {"group_id": "g", "group_protocol": "consumer"}
            async with log.consumer(**options) as ours:  # type: ignore[arg-type]
                await ours.subscribe(["t"])

                def shared() -> bool:
                    mine, others = ours.assignment(), owns(theirs)
                    return len(mine) == len(others) == 2 and mine | others == set(PARTITIONS)

                await until(shared, ours, theirs)
                await ours.commit({each: 10 + each.partition for each in PARTITIONS})
                await asyncio.to_thread(killable_broker.kill_and_restart)
                await until(lambda: ours.is_member and shared(), ours, theirs)
                found = await ours.committed(PARTITIONS)
                assert found == {each: 10 + each.partition for each in PARTITIONS}
                await asyncio.to_thread(theirs.close)
                async with asyncio.timeout(60):
                    while len(ours.assignment()) < len(PARTITIONS):
                        await ours.poll(timeout_ms=100)

    asyncio.run(main())
