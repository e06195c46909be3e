"""Metadata, topics, coordinators, producer ids and DeleteRecords through `Broker.handle`."""

from __future__ import annotations

import errno

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from streamlog.protocol.schema import ZERO_UUID
from tests.broker.node import Node, ask, at, batch, create, delete, fetch, produce, values


async def metadata(
    broker: Broker, *names: str, create_them: bool = True, version: int = 12
) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create_them)
    return await ask(broker, request, MetadataResponse, version)


async def make(broker: Broker, topic: CreatableTopic, **settings: bool) -> CreatableTopicResult:
    request = CreateTopicsRequest(topics=[topic], **settings)
    return (await ask(broker, request, CreateTopicsResponse)).topics[0]


def test_api_versions_reports_the_supported_ranges(node: Node) -> None:
    async def story(broker: Broker) -> None:
        response = await ask(broker, ApiVersionsRequest(), ApiVersionsResponse)
        ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        assert ranges[0][0] == 0, "old librdkafkas would not compress (KAFKA-18659)"
        assert ranges[1] == (4, 16)
        (finalized,) = response.finalized_features
        assert (finalized.name, finalized.max_version_level) == ("transaction.version", 2)
        assert response.finalized_features_epoch >= 0, "clients ignore features without an epoch"

    node.run(story)


def test_the_controller_is_one_of_the_brokers(node: Node) -> None:
    async def story(broker: Broker) -> None:
        broker.listens("log.example", 9092)
        response = await metadata(broker)
        assert response.topics == []
        (one,) = response.brokers
        assert (one.node_id, one.host, one.port) == (response.controller_id, "log.example", 9092)
        described = await ask(broker, DescribeClusterRequest(), DescribeClusterResponse)
        assert described.cluster_id == response.cluster_id == broker.cluster_id
        assert described.controller_id == described.brokers[0].broker_id == one.node_id
        other = DescribeClusterRequest(endpoint_type=2)
        refused = await ask(broker, other, DescribeClusterResponse)
        assert refused.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE

    node.run(story)


def test_metadata_describes_all_none_or_the_named_topics(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, "a", 2)
        create(broker, "b")
        every = await ask(broker, MetadataRequest(topics=None), MetadataResponse)
        assert [(t.name, len(t.partitions)) for t in every.topics] == [("a", 2), ("b", 1)]
        assert (await metadata(broker)).topics == []
        assert len((await metadata(broker, version=0)).topics) == 2
        (one,) = (await metadata(broker, "b")).topics
        (partition,) = one.partitions
        assert partition.leader_epoch >= 0
        assert partition.replica_nodes == partition.isr_nodes == [partition.leader_id]

    node.run(story)


def test_metadata_creates_a_missing_topic_on_request(node: Node) -> None:
    async def story(broker: Broker) -> None:
        (missing,) = (await metadata(broker, "new", create_them=False)).topics
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (made,) = (await metadata(broker, "new")).topics
        assert (made.error_code, len(made.partitions)) == (ErrorCode.NONE, 4)
        (bad,) = (await metadata(broker, "no such name!")).topics
        assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        (own,) = (await metadata(broker, "__consumer_offsets")).topics
        assert own.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert own.is_internal

    node.run(story)


def test_auto_creation_of_topics_can_be_disabled(node: Node) -> None:
    async def story(broker: Broker) -> None:
        (missing,) = (await metadata(broker, "new")).topics
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    node.config = BrokerConfig(auto_create_topics=False)
    node.run(story)


def test_metadata_finds_a_topic_by_its_id(node: Node) -> None:
    async def story(broker: Broker) -> bytes:
        topic_id = (
            await make(broker, CreatableTopic(name="t", num_partitions=1, replication_factor=1))
        ).topic_id
        by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
        (found,) = (await ask(broker, by_id, MetadataResponse)).topics
        assert (found.name, found.topic_id) == ("t", topic_id)
        other = MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"x" * 16, name=None)])
        (missing,) = (await ask(broker, other, MetadataResponse)).topics
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        return topic_id

    async def with_name(broker: Broker, name: str | None) -> None:
        """Java sends an empty name with the id; the id decides, whatever the name is."""
        asked = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=name)])
        (found,) = (await ask(broker, asked, MetadataResponse)).topics
        assert (found.error_code, found.name, found.topic_id) == (ErrorCode.NONE, "t", topic_id)
        for version in (10, 11):
            (refused,) = (await ask(broker, asked, MetadataResponse, version)).topics
            assert refused.error_code == ErrorCode.INVALID_REQUEST

    async def after(broker: Broker) -> None:
        assert (await metadata(broker, "t")).topics[0].topic_id == topic_id
        delete(broker)
        (again,) = (await metadata(broker, "t")).topics
        assert again.topic_id not in (topic_id, ZERO_UUID)

    topic_id = node.run(story)
    for name in ("", "t", "another", None):
        node.run(lambda broker, name=name: with_name(broker, name))
    node.run(after)


def test_create_topics_reports_the_created_topic(node: Node) -> None:
    async def story(broker: Broker) -> None:
        topic = CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name="max.message.bytes", value="1000")],
        )
        tried = await make(broker, topic, validate_only=True)
        assert (tried.error_code, tried.topic_id) == (ErrorCode.NONE, ZERO_UUID)
        assert "t" not in broker.directory.topics
        made = await make(broker, topic)
        assert (made.num_partitions, made.replication_factor) == (4, 1)
        assert ("max.message.bytes", "1000") in [(c.name, c.value) for c in made.configs or []]
        assert (await make(broker, topic)).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        large = await produce(broker, batch(b"x" * 1_000))
        assert large.error_code == ErrorCode.MESSAGE_TOO_LARGE

    node.run(story)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (
            CreatableTopic(name="", num_partitions=1, replication_factor=1),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ),
        (
            CreatableTopic(name="..", num_partitions=1, replication_factor=1),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ),
        (
            CreatableTopic(name="a/b", num_partitions=1, replication_factor=1),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ),
        (
            CreatableTopic(name="t\n", num_partitions=1, replication_factor=1),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ),
        (
            CreatableTopic(name="x" * 250, num_partitions=1, replication_factor=1),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ),
        (
            CreatableTopic(name="t", num_partitions=0, replication_factor=1),
            ErrorCode.INVALID_PARTITIONS,
        ),
        (
            CreatableTopic(name="t", num_partitions=10**6, replication_factor=1),
            ErrorCode.INVALID_PARTITIONS,
        ),
        (
            CreatableTopic(name="t", num_partitions=1, replication_factor=3),
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ),
        (
            CreatableTopic(
                name="t",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])],
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            CreatableTopic(
                name="t",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=1, broker_ids=[1])],
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            CreatableTopic(
                name="t",
                num_partitions=1,
                replication_factor=1,
                configs=[CreatableTopicConfig(name="segment.bytes", value="many")],
            ),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            CreatableTopic(
                name="t",
                num_partitions=1,
                replication_factor=1,
                configs=[CreatableTopicConfig(name="segment.bytes", value=None)],
            ),
            ErrorCode.INVALID_CONFIG,
        ),
    ],
    ids=lambda value: value.name[:10] if isinstance(value, ErrorCode) else "",
)
def test_an_invalid_topic_is_refused(node: Node, topic: CreatableTopic, code: ErrorCode) -> None:
    async def story(broker: Broker) -> None:
        refused = await make(broker, topic)
        assert refused.error_code == code
        assert refused.error_message
        assert not broker.directory.topics

    node.run(story)


def test_partitions_may_be_assigned_to_this_broker(node: Node) -> None:
    async def story(broker: Broker) -> None:
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in (1, 0, 2)
        ]
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        assert (await make(broker, topic)).num_partitions == 3

    node.run(story)


def test_an_unknown_setting_is_refused_with_a_suggestion(node: Node) -> None:
    async def story(broker: Broker) -> None:
        configs = [CreatableTopicConfig(name="segment.byte", value="1")]
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
        refused = await make(broker, topic)
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert "'segment.bytes'" in (refused.error_message or "")

    node.run(story)


def test_two_new_topics_of_one_name_are_both_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        twice = [CreatableTopic(name="t", num_partitions=1, replication_factor=1) for _ in range(2)]
        response = await ask(broker, CreateTopicsRequest(topics=twice), CreateTopicsResponse)
        assert [t.error_code for t in response.topics] == [ErrorCode.INVALID_REQUEST] * 2

    node.run(story)


def test_topics_are_deleted_by_name_and_by_id(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, "a")
        create(broker, "b")
        await produce(broker, batch(b"old"), topic="a")
        old = DeleteTopicsRequest(topic_names=["a", "nowhere"])
        answers = (await ask(broker, old, DeleteTopicsResponse, 5)).responses
        codes = [answer.error_code for answer in answers]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        topic_id = broker.directory.topics["b"].topic_id
        new = DeleteTopicsRequest(
            topics=[DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=b"x" * 16)]
        )
        answers = (await ask(broker, new, DeleteTopicsResponse)).responses
        codes = [answer.error_code for answer in answers]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]
        assert not broker.directory.topics
        create(broker, "t")
        await produce(broker, batch(b"new"))
        assert values((await fetch(broker, at(0)))[0]) == [b"new"]

    node.run(story)


def test_find_coordinator_returns_this_broker(node: Node) -> None:
    async def story(broker: Broker) -> None:
        broker.listens("log.example", 9092)
        one = FindCoordinatorRequest(key="g")
        found = await ask(broker, one, FindCoordinatorResponse, 3)
        assert (found.error_code, found.node_id, found.host, found.port) == (
            0,
            1,
            "log.example",
            9092,
        )
        many = FindCoordinatorRequest(coordinator_keys=["g", "h", ""])
        response = await ask(broker, many, FindCoordinatorResponse)
        answers = [(each.key, each.error_code) for each in response.coordinators]
        assert answers == [("g", 0), ("h", 0), ("", ErrorCode.INVALID_GROUP_ID)]
        transaction = FindCoordinatorRequest(key="x", key_type=1)
        found = await ask(broker, transaction, FindCoordinatorResponse, 3)
        assert (found.error_code, found.port) == (0, 9092)
        for key, key_type in (("", 1), ("x", 9)):
            invalid = FindCoordinatorRequest(key=key, key_type=key_type)
            refused = await ask(broker, invalid, FindCoordinatorResponse, 3)
            assert refused.error_code == ErrorCode.INVALID_REQUEST

    node.run(story)


def test_producer_ids_are_never_reused(node: Node) -> None:
    async def story(broker: Broker) -> list[int]:
        return [
            (
                await ask(
                    broker, InitProducerIdRequest(transactional_id=None), InitProducerIdResponse
                )
            ).producer_id
            for _ in range(3)
        ]

    given = node.run(story) + node.run(story)
    assert len(set(given)) == 6
    assert min(given) >= 0


async def delete_before(
    broker: Broker, offset: int, *, topic: str = "t", index: int = 0
) -> tuple[int, int]:
    wanted = DeleteRecordsPartition(partition_index=index, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])])
    answer = (await ask(broker, request, DeleteRecordsResponse)).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def test_records_are_deleted_up_to_an_offset(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a", b"b", b"c"))
        assert await delete_before(broker, 2) == (0, 2)
        (gone, left) = [await fetch(broker, at(offset)) for offset in (1, 2)]
        assert gone[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert left[0].log_start_offset == 2
        assert values(left[0])[2:] == [b"c"], "batches come whole, and clients skip earlier records"
        assert await delete_before(broker, 1) == (0, 2)
        assert await delete_before(broker, 4) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert await delete_before(broker, -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)

    async def again(broker: Broker) -> None:
        assert (await fetch(broker, at(2)))[0].log_start_offset == 2
        assert await delete_before(broker, -1) == (0, 3)
        assert (await produce(broker, batch(b"d"))).base_offset == 3

    node.run(story)
    node.files.crash(keep_bytes=None)
    node.run(again)


def test_delete_records_reports_why_it_fails(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, cleanup_policy="compact")
        assert await delete_before(broker, 0) == (ErrorCode.POLICY_VIOLATION, -1)
        missing = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert await delete_before(broker, 0, index=1) == missing
        assert await delete_before(broker, 0, topic="u") == missing
        create(broker, "__consumer_offsets")
        internal = (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
        assert await delete_before(broker, 0, topic="__consumer_offsets") == internal
        create(broker, "d")
        await produce(broker, batch(b"a"), topic="d")
        node.files.fail_next_write(errno.EIO)
        assert await delete_before(broker, 1, topic="d") == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert await delete_before(broker, 1, topic="d") == (0, 1)

    node.run(story)
