"""The admin clients of other libraries: topics, groups, settings and the cluster."""

from __future__ import annotations

import asyncio
import warnings

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioKafkaTopic
from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    ResourceType,
)
from confluent_kafka.admin import NewTopic as ConfluentTopic

from streamlog.broker.config.broker import TOPIC_SETTINGS
from tests.broker.process import BrokerProcess
from tests.conformance.clients import PATIENCE_S, Confluent, KafkaPython, Sent

with warnings.catch_warnings():
    # kafka-python reads its own files in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import TopicPartition as KafkaPythonPartition
    from kafka.admin import ConfigResource as KafkaPythonResource
    from kafka.admin import ConfigResourceType, KafkaAdminClient
    from kafka.admin import NewPartitions as KafkaPythonPartitions
    from kafka.admin import NewTopic as KafkaPythonTopic

RECORDS = [Sent(0, None, str(number).encode(), 1_000 + number) for number in range(3)]


def test_confluent_manages_topics(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = ConfluentTopic("admin.a", 3, 1, config={"max.message.bytes": "5000"})
    admin.create_topics([topic])["admin.a"].result(PATIENCE_S)
    with pytest.raises(KafkaException, match="exists already"):
        admin.create_topics([topic])["admin.a"].result(PATIENCE_S)
    wrong = ConfluentTopic("admin.b", 1, 1, config={"segment.byte": "1"})
    with pytest.raises(KafkaException, match=r"segment\.bytes"):
        admin.create_topics([wrong])["admin.b"].result(PATIENCE_S)
    assert len(admin.list_topics(timeout=PATIENCE_S).topics["admin.a"].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, "admin.a")
    (settings,) = (each.result(PATIENCE_S) for each in admin.describe_configs([resource]).values())
    assert settings["max.message.bytes"].value == "5000"
    cluster = admin.describe_cluster().result(PATIENCE_S)
    assert [node.id for node in cluster.nodes] == [cluster.controller.id]
    assert admin.list_consumer_groups().result(PATIENCE_S).errors == []
    admin.delete_topics(["admin.a"])["admin.a"].result(PATIENCE_S)
    assert "admin.a" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_kafka_python_manages_topics(broker: BrokerProcess) -> None:
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


def test_aiokafka_manages_topics(broker: BrokerProcess) -> None:
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


def confluent_settings(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    (settings,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    found: dict[str, ConfigEntry] = settings.result(PATIENCE_S)
    return found


def test_confluent_alters_settings_incrementally(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([ConfluentTopic("settings.c", 1, 1)])["settings.c"].result(PATIENCE_S)

    def alter(*changes: tuple[str, str | None, AlterConfigOpType]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=operation)
            for name, value, operation in changes
        ]
        resource = ConfigResource(ResourceType.TOPIC, "settings.c", incremental_configs=entries)
        (done,) = admin.incremental_alter_configs([resource]).values()
        done.result(PATIENCE_S)

    alter(
        ("retention.ms", "60000", AlterConfigOpType.SET),
        ("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    )
    shown = confluent_settings(admin, ResourceType.TOPIC, "settings.c")
    assert shown["retention.ms"].value == "60000"
    assert shown["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert shown["cleanup.policy"].value == "delete,compact"
    assert [*shown["segment.bytes"].synonyms] == ["log.segment.bytes"]
    assert shown["segment.bytes"].is_default
    alter(("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
    alter(("retention.ms", None, AlterConfigOpType.DELETE))
    shown = confluent_settings(admin, ResourceType.TOPIC, "settings.c")
    assert (shown["retention.ms"].value, shown["cleanup.policy"].value) == ("-1", "compact")
    with pytest.raises(KafkaException, match=r"did you mean 'retention\.ms'"):
        alter(("retention.mss", "1", AlterConfigOpType.SET))
    own = confluent_settings(admin, ResourceType.BROKER, "1")
    assert own["advertised.listeners"].is_read_only
    assert own["log.retention.ms"].value == "-1"


def test_confluent_replaces_settings_with_the_old_request(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = ConfluentTopic("settings.o", 1, 1, config={"retention.ms": "5"})
    admin.create_topics([topic])["settings.o"].result(PATIENCE_S)
    resource = ConfigResource(ResourceType.TOPIC, "settings.o", set_config={"segment.ms": "7"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        (done,) = admin.alter_configs([resource]).values()
    done.result(PATIENCE_S)
    shown = confluent_settings(admin, ResourceType.TOPIC, "settings.o")
    assert (shown["segment.ms"].value, shown["retention.ms"].value) == ("7", "-1")


def test_confluent_deletes_records(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([ConfluentTopic("deleted.c", 1, 1)])["deleted.c"].result(PATIENCE_S)
    Confluent().produce(broker.address, "deleted.c", "none", RECORDS)
    (deleted,) = admin.delete_records([TopicPartition("deleted.c", 0, 2)]).values()
    assert deleted.result(PATIENCE_S).low_watermark == 2
    got = Confluent().consume(broker.address, ["deleted.c"], "deleted.c", lambda count: count >= 1)
    assert [record.value for record in got["deleted.c"]] == [b"2"]
    (deleted,) = admin.delete_records([TopicPartition("deleted.c", 0, -1)]).values()
    assert deleted.result(PATIENCE_S).low_watermark == 3
    (refused,) = admin.delete_records([TopicPartition("deleted.c", 0, 9)]).values()
    with pytest.raises(KafkaException):
        refused.result(PATIENCE_S)


def test_kafka_python_alters_settings_and_deletes_records(broker: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics([KafkaPythonTopic("settings.k", 1, 1)])

    def resource(*configs: tuple[str, str]) -> KafkaPythonResource:
        return KafkaPythonResource(ConfigResourceType.TOPIC, "settings.k", dict(configs) or None)

    def shown() -> dict[str, object]:
        described = admin.describe_configs([resource()], config_filter="all")
        return dict(described["topic"]["settings.k"])

    assert {*TOPIC_SETTINGS} == {*shown()}
    admin.alter_configs([resource(("retention.ms", "60000"))])
    assert "60000" in str(shown()["retention.ms"])
    admin.reset_configs([resource(("retention.ms", ""))])
    assert "60000" not in str(shown()["retention.ms"])
    own = admin.describe_configs(
        [KafkaPythonResource(ConfigResourceType.BROKER, "1")], config_filter="all"
    )
    assert "advertised.listeners" in str(own)
    KafkaPython().produce(broker.address, "settings.k", "none", RECORDS)
    partition = KafkaPythonPartition("settings.k", 0)
    deleted = admin.delete_records({partition: 2})
    assert deleted[partition]["low_watermark"] == 2
    admin.close()


def test_confluent_adds_partitions(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([ConfluentTopic("grown.c", 1, 1)])["grown.c"].result(PATIENCE_S)
    admin.create_partitions([NewPartitions("grown.c", 3)])["grown.c"].result(PATIENCE_S)
    admin.create_partitions([NewPartitions("grown.c", 4, [[1]])])["grown.c"].result(PATIENCE_S)
    assert len(admin.list_topics("grown.c", timeout=10).topics["grown.c"].partitions) == 4
    with pytest.raises(KafkaException, match="it can only grow"):
        admin.create_partitions([NewPartitions("grown.c", 4)])["grown.c"].result(PATIENCE_S)


def test_kafka_python_adds_partitions_and_reads_their_sizes(broker: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics([KafkaPythonTopic("grown.k", 1, 1)])
    admin.create_partitions({"grown.k": KafkaPythonPartitions(3)})
    (described,) = admin.describe_topics(["grown.k"])
    assert len(described["partitions"]) == 3
    KafkaPython().produce(broker.address, "grown.k", "none", RECORDS)
    sizes = str(admin.describe_log_dirs())
    assert "grown.k" in sizes
    admin.close()


def test_confluent_elects_leaders(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([ConfluentTopic("elected.c", 2, 1)])["elected.c"].result(PATIENCE_S)
    partitions = [TopicPartition("elected.c", 1), TopicPartition("elected.c", 2)]
    found = admin.elect_leaders(ElectionType.PREFERRED, partitions).result(PATIENCE_S)
    codes = {each.partition: error.code() for each, error in found.items()}
    assert codes == {
        1: KafkaError.ELECTION_NOT_NEEDED,
        2: KafkaError.UNKNOWN_TOPIC_OR_PART,
    }


def test_kafka_python_elects_leaders_and_reassigns_partitions(broker: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics([KafkaPythonTopic("replicas.k", 2, 1)])
    elected = admin.elect_leaders(0, {"replicas.k": [0, 1]})
    (topic,) = elected.replica_election_results
    assert [each.error_code for each in topic.partition_result] == [84, 84]
    assert "replicas.k" in {each.topic for each in admin.elect_leaders(0).replica_election_results}
    first, second = (KafkaPythonPartition("replicas.k", number) for number in (0, 1))
    moved = admin.alter_partition_reassignments({first: [1], second: [7]})
    assert moved[first] is None
    assert moved[second].errno == 39
    cancelled = admin.alter_partition_reassignments({first: None})
    assert cancelled[first].errno == 85
    assert admin.list_partition_reassignments() == {}
    assert admin.list_partition_reassignments([first]) == {}
    admin.close()


def test_kafka_python_pages_through_topics_and_lists_config_resources(
    broker: BrokerProcess,
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics([KafkaPythonTopic("pages.k", 3, 1)])
    page = admin.describe_topic_partitions(["pages.k"], response_partition_limit=2)
    assert page["next_cursor"] == {"topic_name": "pages.k", "partition_index": 2}
    rest = admin.describe_topic_partitions(["pages.k"], cursor=page["next_cursor"])
    assert rest["next_cursor"] is None
    numbers = [
        partition["partition_index"]
        for each in (page, rest)
        for topic in each["topics"]
        for partition in topic["partitions"]
    ]
    assert numbers == [0, 1, 2]
    resources = admin.list_config_resources()
    assert "pages.k" in resources["topic"]
    assert resources["broker"] == ["1"]
    assert admin.list_config_resources(["GROUP"]) == {}
    admin.close()
