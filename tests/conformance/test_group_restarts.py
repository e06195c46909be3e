"""The broker is killed during rebalances: members of both protocols recover, with their commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from streamlog.log import Log
from tests.broker.process import BrokerProcess

PARTITIONS = 4
PATIENCE_S = 60
KILLS = 3
QUICK = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "6000",
}
one_process = pytest.mark.xdist_group("conformance")


@pytest.fixture
def killable_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Start a broker with short heartbeat intervals, so that rebalances take less time."""

    async def hurry(address: str) -> None:
        async with Log.open(f"kafka://{address}") as log:
            await log.admin().alter_configs(QUICK)

    with BrokerProcess(tmp_path / "data") as running:
        asyncio.run(hurry(running.address))
        yield running


class Member:
    def __init__(self, address: str, protocol: str) -> None:
        config: dict[str, object] = {
            "bootstrap.servers": address,
            "group.id": "g",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
        }
        if protocol == "classic":
            config |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 300}
        self.consumer = Consumer(config)
        self.consumer.subscribe(["t"])

    def owns(self) -> list[int]:
        return sorted(each.partition for each in self.consumer.assignment())


def until(condition: Callable[[], bool], *members: Member) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [member.owns() for member in members]
        for member in members:
            member.consumer.poll(0.05)


@one_process
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_recover_and_no_commit_is_lost(
    killable_broker: BrokerProcess, protocol: str
) -> None:
    admin = AdminClient({"bootstrap.servers": killable_broker.address})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(PATIENCE_S)
    first = Member(killable_broker.address, protocol)
    until(lambda: first.owns() == [0, 1, 2, 3], first)
    every = [TopicPartition("t", number) for number in range(PARTITIONS)]
    for round_number in range(1, KILLS + 1):
        positions = [TopicPartition("t", n, 10 * round_number + n) for n in range(PARTITIONS)]
        first.consumer.commit(offsets=positions, asynchronous=False)
        second = Member(killable_broker.address, protocol)
        second.consumer.poll(0.1 * round_number)
        killable_broker.kill_and_restart()
        until(lambda: len(first.owns()) == len(second.owns()) == 2, first, second)  # noqa: B023
        assert sorted(first.owns() + second.owns()) == [0, 1, 2, 3]
        found = second.consumer.committed(every, timeout=30)
        assert [each.offset for each in found] == [10 * round_number + n for n in range(PARTITIONS)]
        second.consumer.close()
        until(lambda: first.owns() == [0, 1, 2, 3], first)
    first.consumer.close()
