"""The admin sides of the other clients: topics, groups, settings, the cluster."""

from __future__ import annotations

import asyncio
import warnings

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioKafkaTopic
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.admin import NewTopic as ConfluentTopic

from tests.broker.process import BrokerProcess

with warnings.catch_warnings():
    # It reads its own files in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.admin import KafkaAdminClient
    from kafka.admin import NewTopic as KafkaPythonTopic

one_process = pytest.mark.xdist_group("conformance")


@one_process
def test_confluent(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = ConfluentTopic("admin.a", 3, 1, config={"max.message.bytes": "5000"})
    admin.create_topics([topic])["admin.a"].result(10)
    with pytest.raises(KafkaException, match="is there already"):
        admin.create_topics([topic])["admin.a"].result(10)
    wrong = ConfluentTopic("admin.b", 1, 1, config={"segment.byte": "1"})
    with pytest.raises(KafkaException, match=r"segment\.bytes"):
        admin.create_topics([wrong])["admin.b"].result(10)
    assert len(admin.list_topics(timeout=10).topics["admin.a"].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, "admin.a")
    (settings,) = (each.result(10) for each in admin.describe_configs([resource]).values())
    assert settings["max.message.bytes"].value == "5000"
    cluster = admin.describe_cluster().result(10)
    assert [node.id for node in cluster.nodes] == [cluster.controller.id]
    assert admin.list_consumer_groups().result(10).errors == []
    admin.delete_topics(["admin.a"])["admin.a"].result(10)
    assert "admin.a" not in admin.list_topics(timeout=10).topics


@one_process
def test_kafka_python(broker: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics([KafkaPythonTopic("admin.k", 2, 1)])
    assert "admin.k" in admin.list_topics()
    (described,) = admin.describe_topics(["admin.k"])
    assert len(described["partitions"]) == 2
    assert admin.describe_cluster()["cluster_id"]
    admin.list_groups()
    admin.delete_topics(["admin.k"])
    assert "admin.k" not in admin.list_topics()
    admin.close()


@one_process
def test_aiokafka(broker: BrokerProcess) -> None:
    async def main() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        await admin.create_topics([AioKafkaTopic("admin.i", 2, 1)])
        assert "admin.i" in await admin.list_topics()
        (described,) = await admin.describe_topics(["admin.i"])
        assert len(described["partitions"]) == 2
        await admin.describe_cluster()
        await admin.list_consumer_groups()
        await admin.delete_topics(["admin.i"])
        assert "admin.i" not in await admin.list_topics()
        await admin.close()

    asyncio.run(main())
