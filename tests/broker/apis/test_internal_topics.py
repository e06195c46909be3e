"""Internal topics, API by API: clients may do with them what Kafka allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from streamlog.broker.apis.publish import PUBLICATIONS_TOPIC
from streamlog.broker.broker import Broker
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from streamlog.protocol.messages.cluster_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from streamlog.protocol.messages.publishing import (
    PublishPartition,
    PublishRequest,
    PublishResponse,
    PublishTopic,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from streamlog.protocol.messages.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from tests.broker.node import Node, ask, at, batch, create, fetch_request
from tests.broker.node import produce as produce_batch

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
SHARE, CLUSTER = "__share_group_state", "__cluster_metadata"
EXISTING = (OFFSETS, TRANSACTIONS, PUBLICATIONS_TOPIC)
TOPIC_RESOURCE, SET = 2, 0


async def metadata(broker: Broker, name: str) -> int:
    """Ask for a topic as a producer does, which may create it."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    response = await ask(broker, request, MetadataResponse)
    return response.topics[0].error_code


async def create_topic(broker: Broker, name: str) -> int:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
    return (await ask(broker, request, CreateTopicsResponse)).topics[0].error_code


async def delete_topic(broker: Broker, name: str) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1_000)
    return (await ask(broker, request, DeleteTopicsResponse)).responses[0].error_code


async def create_partitions(broker: Broker, name: str) -> int:
    topic = CreatePartitionsTopic(name=name, count=10, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=1_000)
    return (await ask(broker, request, CreatePartitionsResponse)).results[0].error_code


async def delete_records(broker: Broker, name: str) -> int:
    partition = DeleteRecordsPartition(partition_index=0, offset=-1)
    topic = DeleteRecordsTopic(name=name, partitions=[partition])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=1_000)
    response = await ask(broker, request, DeleteRecordsResponse)
    return response.topics[0].partitions[0].error_code


async def alter_configs(broker: Broker, name: str) -> int:
    config = AlterableConfig(name="segment.bytes", config_operation=SET, value="20000000")
    resource = AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=name, configs=[config]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    response = await ask(broker, request, IncrementalAlterConfigsResponse)
    return response.responses[0].error_code


async def produce(broker: Broker, name: str) -> int:
    return (await produce_batch(broker, batch(b"a"), topic=name)).error_code


async def read(broker: Broker, name: str) -> int:
    response = await ask(broker, fetch_request(at(0), topic=name), FetchResponse)
    return response.responses[0].partitions[0].error_code


async def publish(broker: Broker, name: str) -> int:
    partition = PublishPartition(partition_index=0, records=batch(b"a"))
    request = PublishRequest(
        job_id=f"job-{name}", topics=[PublishTopic(name=name, partitions=[partition])]
    )
    return (await ask(broker, request, PublishResponse)).error_code


async def add_to_transaction(broker: Broker, name: str) -> int:
    return (await add_partitions(broker, name))[name]


async def add_partitions(broker: Broker, *names: str) -> dict[str, int]:
    """Add partition 0 of each topic to a new transaction, and end it."""
    init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=10_000)
    producer = await ask(broker, init, InitProducerIdResponse)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=each, partitions=[0]) for each in names],
    )
    response = await ask(broker, request, AddPartitionsToTxnResponse, version=3)
    end = EndTxnRequest(
        transactional_id="tx",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    await ask(broker, end, EndTxnResponse)
    return {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in response.results_by_topic_v3_and_below
    }


async def make_internal_topics(broker: Broker) -> None:
    for key_type in (0, 1):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["key"])
        await ask(broker, request, FindCoordinatorResponse)
    create(broker, "u")
    assert await publish(broker, "u") == ErrorCode.NONE


Call = Callable[[Broker, str], Awaitable[int]]
NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
DENIED, CONTRADICTORY = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST
TABLE: list[tuple[Call, ErrorCode, ErrorCode, ErrorCode]] = [
    # Each call, and its error code for the existing internal topics, for `__share_group_state`,
    # and for the log of the controllers. The last two do not exist here.
    (metadata, NONE, UNKNOWN, UNKNOWN),
    (read, NONE, UNKNOWN, UNKNOWN),
    (alter_configs, NONE, UNKNOWN, UNKNOWN),
    (delete_topic, INVALID, UNKNOWN, UNKNOWN),
    (create_partitions, INVALID, UNKNOWN, UNKNOWN),
    (delete_records, INVALID, UNKNOWN, UNKNOWN),
    (produce, INVALID, INVALID, UNKNOWN),
    (publish, CONTRADICTORY, CONTRADICTORY, UNKNOWN),
    (add_to_transaction, DENIED, DENIED, UNKNOWN),
    (create_topic, ErrorCode.TOPIC_ALREADY_EXISTS, NONE, CONTRADICTORY),
]


@pytest.mark.parametrize(
    ("call", "existing", "share", "cluster"), TABLE, ids=[row[0].__name__ for row in TABLE]
)
def test_clients_may_do_to_internal_topics_what_kafka_allows(
    node: Node, call: Call, existing: ErrorCode, share: ErrorCode, cluster: ErrorCode
) -> None:
    expected = {**dict.fromkeys(EXISTING, existing), SHARE: share, CLUSTER: cluster}

    async def story(broker: Broker) -> None:
        await make_internal_topics(broker)
        answers = {name: ErrorCode(await call(broker, name)) for name in expected}
        assert answers == expected
        assert CLUSTER not in broker.directory.topics
        assert {*EXISTING} <= {*broker.directory.topics}

    node.run(story)


def test_a_refused_internal_topic_leaves_the_other_topics_out_of_the_transaction(
    node: Node,
) -> None:
    async def story(broker: Broker) -> None:
        await make_internal_topics(broker)
        refused = {OFFSETS: DENIED, "u": ErrorCode.OPERATION_NOT_ATTEMPTED}
        assert await add_partitions(broker, OFFSETS, "u") == refused
        assert await add_partitions(broker, "u") == {"u": NONE}

    node.run(story)


def test_a_user_topic_may_begin_with_two_underscores(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, "__mine")
        for call in (produce, publish, add_to_transaction, delete_records, delete_topic):
            assert await call(broker, "__mine") == NONE, call

    node.run(story)
