"""Groups whose coordinator assigns (KIP-848), as librdkafka sees them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from streamlog.log import Log
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from streamlog.transport.client_connection import TcpTransport
from tests.broker.process import BrokerProcess
from tests.conformance.clients import PATIENCE_S

PARTITIONS = 4
QUICK = {
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "6000",
}


@pytest.fixture(scope="module")
def quick(broker: BrokerProcess) -> BrokerProcess:
    """Configure short heartbeat intervals, so that rebalances take less time."""

    async def main() -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            await log.admin().alter_configs(QUICK)

    asyncio.run(main())
    return broker


def create(broker: BrokerProcess, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        created.result(PATIENCE_S)


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


class Member:
    """A consumer that is polled while a test waits."""

    def __init__(
        self, broker: BrokerProcess, group: str, *topics: str, instance: str | None = None
    ) -> None:
        config: dict[str, object] = {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
        }
        if instance is not None:
            config["group.instance.id"] = instance
        self.consumer = Consumer(config)
        self.consumer.subscribe(list(topics))
        self.values: list[bytes] = []

    def poll(self) -> None:
        for message in self.consumer.consume(1000, 0.05):
            assert isinstance(message, Message)
            assert message.error() is None, message.error()
            value = message.value()
            assert isinstance(value, bytes)
            self.values.append(value)

    def owns(self) -> list[tuple[str, int]]:
        return sorted((each.topic, each.partition) for each in self.consumer.assignment())

    def close(self) -> None:
        self.consumer.close()


@contextmanager
def members(*many: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for member in many:
            member.close()


def until(condition: Callable[[], bool], *polled: Member) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [member.owns() for member in polled]
        for member in polled:
            member.poll()


def described(broker: BrokerProcess, group: str) -> DescribedConsumerGroup:
    async def main() -> DescribedConsumerGroup:
        transport = await TcpTransport.connect(
            "127.0.0.1", broker.port, client_id="test", timeout_ms=PATIENCE_S * 1000
        )
        request = ConsumerGroupDescribeRequest(group_ids=[group])
        response = await transport.call(request, timeout_ms=PATIENCE_S * 1000)
        await transport.close()
        assert isinstance(response, ConsumerGroupDescribeResponse)
        return response.groups[0]

    return asyncio.run(main())


def every(topic: str) -> list[tuple[str, int]]:
    return [(topic, number) for number in range(PARTITIONS)]


def test_two_members_share_partitions_and_one_takes_over(quick: BrokerProcess) -> None:
    create(quick, "k848")
    produce(quick, "k848", 100)
    first = Member(quick, "g848", "k848")
    until(lambda: len(first.values) == 100, first)
    assert first.owns() == every("k848")
    first.consumer.commit(asynchronous=False)
    second = Member(quick, "g848", "k848")
    until(lambda: len(first.owns()) == len(second.owns()) == 2, first, second)
    produce(quick, "k848", 100)
    until(lambda: len(first.values) + len(second.values) == 200, first, second)
    assert sorted(first.owns() + second.owns()) == every("k848")
    shown = described(quick, "g848")
    assert (shown.group_state, shown.assignor_name, len(shown.members)) == ("Stable", "uniform", 2)
    second.consumer.commit(asynchronous=False)
    second.close()
    with members(first):
        until(lambda: first.owns() == every("k848"), first)
        produce(quick, "k848", 4)
        until(lambda: len(first.values) + len(second.values) >= 204, first)


def test_a_static_member_returns_to_its_partitions(quick: BrokerProcess) -> None:
    create(quick, "k848.static")
    one = Member(quick, "g848.static", "k848.static", instance="one")
    two = Member(quick, "g848.static", "k848.static", instance="two")
    until(lambda: len(one.owns()) == len(two.owns()) == 2, one, two)
    before, epoch = two.owns(), described(quick, "g848.static").group_epoch
    two.close()
    again = Member(quick, "g848.static", "k848.static", instance="two")
    with members(one, again):
        until(lambda: again.owns() == before, one, again)
        assert described(quick, "g848.static").group_epoch == epoch


def test_a_regular_expression_finds_new_topics(quick: BrokerProcess) -> None:
    create(quick, "k848.regex.a", "k848.other")
    member = Member(quick, "g848.regex", "^k848\\.regex\\..*")
    with members(member):
        until(lambda: member.owns() == every("k848.regex.a"), member)
        create(quick, "k848.regex.b")
        until(lambda: len(member.owns()) == 2 * PARTITIONS, member)
        produce(quick, "k848.regex.b", 8)
        until(lambda: len(member.values) == 8, member)


KILLED = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.protocol": "consumer",
})
consumer.subscribe([sys.argv[3]])
while len(consumer.assignment()) < 2:
    consumer.poll(0.1)
print("ready", flush=True)
while True:
    consumer.poll(0.1)
"""


def test_a_killed_members_partitions_go_to_the_others(quick: BrokerProcess) -> None:
    create(quick, "k848.kill")
    arguments = [sys.executable, "-c", KILLED, quick.address, "g848.kill", "k848.kill"]
    member = Member(quick, "g848.kill", "k848.kill")
    with members(member), subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as other:
        try:
            until(lambda: len(member.owns()) == 2, member)
        finally:
            other.kill()
        until(lambda: member.owns() == every("k848.kill"), member)


def test_a_kip_848_group_is_listed_and_its_offsets_are_altered(quick: BrokerProcess) -> None:
    create(quick, "k848.admin")
    produce(quick, "k848.admin", 8)
    member = Member(quick, "g848.admin", "k848.admin")
    until(lambda: len(member.values) == 8, member)
    member.consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": quick.address})
    listing = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(PATIENCE_S)
    listed = {each.group_id: each for each in listing.valid}
    assert listed["g848.admin"].type is ConsumerGroupType.CONSUMER
    assert listed["g848.admin"].state is ConsumerGroupState.STABLE
    deleting = admin.delete_consumer_groups(["g848.admin"])["g848.admin"]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        deleting.result(PATIENCE_S)
    member.close()
    until(lambda: described(quick, "g848.admin").group_state == "Empty")
    committed = member_positions(admin, "g848.admin")
    assert committed == {("k848.admin", number): 2 for number in range(PARTITIONS)}
    admin.delete_consumer_groups(["g848.admin"])["g848.admin"].result(PATIENCE_S)
    assert member_positions(admin, "g848.admin") == {}


def member_positions(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    wanted = [ConsumerGroupTopicPartitions(group)]
    (answer,) = admin.list_consumer_group_offsets(wanted).values()
    found: list[TopicPartition] = answer.result(PATIENCE_S).topic_partitions
    return {(each.topic, each.partition): each.offset for each in found}
