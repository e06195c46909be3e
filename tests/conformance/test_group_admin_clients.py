"""The admin clients of other libraries with groups: list, describe, alter and delete."""

from __future__ import annotations

import asyncio
import warnings

import pytest
from aiokafka import TopicPartition as AioKafkaPartition
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.process import BrokerProcess
from tests.conformance.clients import PATIENCE_S, Confluent, Sent

with warnings.catch_warnings():
    # kafka-python reads its own files in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import TopicPartition as KafkaPythonPartition
    from kafka.admin import KafkaAdminClient
    from kafka.structs import OffsetAndMetadata

one_process = pytest.mark.xdist_group("conformance")


def read(broker: BrokerProcess, name: str) -> None:
    """Create a topic and a group of this name: 3 records in one partition, read and committed."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE_S)
    records = [Sent(0, None, str(number).encode(), 1_000 + number) for number in range(3)]
    Confluent().produce(broker.address, name, "none", records)
    Confluent().consume(broker.address, [name], name, lambda count: count >= 3)


@one_process
def test_confluent_manages_groups(broker: BrokerProcess) -> None:
    name = "groups.confluent"
    read(broker, name)
    admin = AdminClient({"bootstrap.servers": broker.address})
    listing = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(PATIENCE_S)
    assert name in {each.group_id for each in listing.valid}
    described = admin.describe_consumer_groups([name])[name].result(PATIENCE_S)
    assert (described.state, list(described.members)) == (ConsumerGroupState.EMPTY, [])
    moved = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 1)])
    (altered,) = admin.alter_consumer_group_offsets([moved]).values()
    assert altered.result(PATIENCE_S).topic_partitions[0].error is None
    (offsets,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]).values()
    assert [each.offset for each in offsets.result(PATIENCE_S).topic_partitions] == [1]
    admin.delete_consumer_groups([name])[name].result(PATIENCE_S)
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([name])[name].result(PATIENCE_S)


@one_process
def test_kafka_python_manages_groups(broker: BrokerProcess) -> None:
    name = "groups.kafka-python"
    read(broker, name)
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    assert name in str(admin.list_groups())
    assert "Empty" in str(admin.describe_groups([name]))
    partition = KafkaPythonPartition(name, 0)
    admin.alter_group_offsets(name, {partition: OffsetAndMetadata(2, "", -1)})
    assert "offset=2" in str(admin.list_group_offsets({name: None}))
    admin.delete_group_offsets(name, [partition])
    assert "offset=2" not in str(admin.list_group_offsets({name: None}))
    admin.close()


@one_process
def test_aiokafka_lists_and_describes_groups(broker: BrokerProcess) -> None:
    name = "groups.aiokafka"
    read(broker, name)

    async def main() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        try:
            assert name in {each[0] for each in await admin.list_consumer_groups()}
            assert "Empty" in str(await admin.describe_consumer_groups([name]))
            offsets = await admin.list_consumer_group_offsets(name)
            assert offsets[AioKafkaPartition(name, 0)].offset == 3
        finally:
            await admin.close()

    asyncio.run(main())
