"""The lag of groups of librdkafka, against what another consumer reads."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from streamlog.client.admin import NewTopic, PartitionLagDescription
from streamlog.log import Log
from streamlog.record import TopicPartition as Part
from tests.broker.process import BrokerProcess

READ = 500
BEHIND = 1_000


def consumer(address: str, group: str, **options: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )


def write(address: str, topic: str) -> None:
    """Write records whose timestamps do not follow their offsets."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "compression.type": "lz4"})
    now_ms = time.time_ns() // 1_000_000
    for number in range(READ + BEHIND):
        timestamp = now_ms - 3_600_000 + (number * 7_919) % 600_000
        producer.produce(topic, b"v%d" % number, partition=0, timestamp=timestamp)
    assert producer.flush(30) == 0


def read_and_commit(address: str, topic: str, group: str, protocol: str) -> None:
    """Read some records as a member of the group, and commit behind the last one."""
    options = {} if protocol == "classic" else {"group.protocol": protocol}
    member = consumer(address, group, **options)
    member.subscribe([topic])
    read = 0
    give_up_s = time.monotonic() + 60
    while read < READ and time.monotonic() < give_up_s:
        message = member.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            read += 1
            if read == READ:
                member.commit(message=message, asynchronous=False)
    member.close()
    assert read == READ


def next_timestamp_ms(address: str, topic: str) -> int:
    """Read the next record by itself; return its timestamp."""
    reader = consumer(address, f"other-{uuid.uuid4()}")
    reader.assign([TopicPartition(topic, 0, READ)])
    message = reader.poll(30)
    assert message is not None
    assert message.offset() == READ
    reader.close()
    return int(message.timestamp()[1])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_1000_records_behind_lags_by_the_age_of_its_next_record(
    broker: BrokerProcess, protocol: str
) -> None:
    topic, group = f"lag-{uuid.uuid4()}", f"readers-{uuid.uuid4()}"

    async def look() -> PartitionLagDescription:
        async with Log.open(f"kafka://{broker.address}") as log:
            return (await log.admin().describe_group_lag(group))[Part(topic, 0)]

    async def create() -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            await log.admin().create_topics([NewTopic(topic, 1)])

    asyncio.run(create())
    write(broker.address, topic)
    read_and_commit(broker.address, topic, group, protocol)
    before_ms = time.time_ns() // 1_000_000
    found = asyncio.run(look())
    after_ms = time.time_ns() // 1_000_000
    assert (found.offset, found.lag, found.lost) == (READ, BEHIND, 0)
    next_ms = next_timestamp_ms(broker.address, topic)
    assert found.lag_ms is not None
    assert before_ms - next_ms <= found.lag_ms <= after_ms - next_ms
