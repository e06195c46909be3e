"""Every API with and without the ACL that its rule requires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.security.principals import ANONYMOUS, IN_PROCESS, RequestContext
from streamlog.broker.security.rules import RULES
from streamlog.broker.server.socket_server import Acceptor
from streamlog.errors import ConfigError, NotAuthorized
from streamlog.protocol.acls import Operation, Pattern, Permission, ResourceType
from streamlog.protocol.api_table import APIS, api_of
from streamlog.protocol.codec import decode, encode
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    UnregisterBrokerRequest,
)
from streamlog.protocol.messages.classic_groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
)
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    OffsetDeleteRequest,
)
from streamlog.protocol.messages.consumer_groups import (
    OffsetDeleteRequestPartition as DeletedPartition,
)
from streamlog.protocol.messages.consumer_groups import OffsetDeleteRequestTopic as DeletedTopic
from streamlog.protocol.messages.lag_messages import (
    DescribeGroupLagRequest,
    FindNextRecordsRequest,
)
from streamlog.protocol.messages.mirror_messages import (
    AlterLinkAclsRequest,
    AlterLinkRequest,
    AlterMirrorPartitionRequest,
    AlterMirrorsRequest,
    AlterSealsRequest,
    CreateLinkRequest,
    CreateMirrorsRequest,
    DeleteLinkRequest,
    DescribeMirrorsRequest,
    FailBackRequest,
    MarkAppsRequest,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from streamlog.protocol.messages.partitions_and_replicas import TopicRequest as NamedTopic
from streamlog.protocol.messages.produce_and_fetch import (
    FetchingReplica,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ProduceResponse,
)
from streamlog.protocol.messages.publishing import (
    DropStagedRequest,
    PublishGroup,
    PublishOffset,
    PublishOffsetTopic,
    PublishPartition,
    PublishRequest,
    PublishResponse,
    PublishTopic,
    StageRequest,
)
from streamlog.protocol.messages.quorum_messages import (
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    VoteRequest,
)
from streamlog.protocol.messages.registry_messages import WriteToRegistryRequest
from streamlog.protocol.messages.sasl_acls_quotas import (
    AclCreation,
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    QuotaAlteration,
    QuotaEntity,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    ScramCredentialDeletion,
)
from streamlog.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    PushTelemetryRequest,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from streamlog.protocol.messages.topics_and_configs import (
    ReplaceConfigsResource as ReplacedResource,
)
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from streamlog.protocol.schema import Message, Struct
from tests.broker.node import Node, at, batch, create, fetch_request, produce_request
from tests.broker.server.test_socket_server import peer

TOPIC, GROUP, CLUSTER, TRANSACTION = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
OP = Operation
Need = tuple[ResourceType, str, Operation]
T = (TOPIC, "t")
G = (GROUP, "g")
C = (CLUSTER, "kafka-cluster")


def node(**security: Any) -> Node:
    settings = {"authorizer": "standard", **security}
    return Node(
        config=BrokerConfig(
            flush="os",
            group=GroupConfig(initial_rebalance_delay_ms=0),
            security=SecurityConfig(**settings),
        )
    )


async def ask_as(
    broker: Broker,
    request: Message,
    *,
    principal: str = "User:alice",
    version: int | None = None,
) -> Any:
    newest = api_of(type(request)).max_version
    context = RequestContext(
        newest if version is None else version, "c", "/10.0.0.1", principal=principal
    )
    return await asyncio.wait_for(broker.handle(request, context), 10)


def creation(kind: ResourceType, name: str, operation: Operation, **more: Any) -> AclCreation:
    given = {
        "principal": "User:alice",
        "host": "*",
        "permission_type": Permission.ALLOW,
        "resource_pattern_type": Pattern.LITERAL,
        **more,
    }
    return AclCreation(resource_type=kind, resource_name=name, operation=operation, **given)


async def allow(broker: Broker, *needs: Need) -> None:
    request = CreateAclsRequest(creations=[creation(*need) for need in needs])
    response = await ask_as(broker, request, principal=IN_PROCESS)
    assert isinstance(response, CreateAclsResponse)
    assert [each.error_message for each in response.results] == [None] * len(needs)


def codes(value: object) -> set[int]:
    """Collect every error code in a response."""
    if isinstance(value, list):
        return {code for each in value for code in codes(each)}
    if not isinstance(value, Struct):
        return set()
    found = {int(value.error_code)} if hasattr(value, "error_code") else set()
    for field in value.__fields__:
        found |= codes(getattr(value, field.name))
    return found


REFUSED = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

MATRIX: list[tuple[Callable[[], Message], Need]] = [
    (lambda: produce_request(batch(b"x")), (*T, OP.WRITE)),
    (lambda: fetch_request(at(0)), (*T, OP.READ)),
    (
        lambda: ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0)])
            ]
        ),
        (*T, OP.DESCRIBE),
    ),
    (lambda: MetadataRequest(topics=[MetadataRequestTopic(name="t")]), (*T, OP.DESCRIBE)),
    (
        lambda: OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=0)])
            ]
        ),
        (*T, OP.DESCRIBE),
    ),
    (
        lambda: CreateTopicsRequest(
            topics=[CreatableTopic(name="n", num_partitions=1, replication_factor=1)]
        ),
        (TOPIC, "n", OP.CREATE),
    ),
    (
        lambda: CreateTopicsRequest(
            topics=[CreatableTopic(name="n", num_partitions=1, replication_factor=1)]
        ),
        (*C, OP.CREATE),
    ),
    (lambda: DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), (*T, OP.DELETE)),
    (
        lambda: DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition()])]
        ),
        (*T, OP.DELETE),
    ),
    (
        lambda: CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="t", count=2, assignments=None)]
        ),
        (*T, OP.ALTER),
    ),
    (
        lambda: DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=2, resource_name="t")]
        ),
        (*T, OP.DESCRIBE_CONFIGS),
    ),
    (
        lambda: DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=4, resource_name="1")]
        ),
        (*C, OP.DESCRIBE_CONFIGS),
    ),
    (
        lambda: IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=2, resource_name="t")]
        ),
        (*T, OP.ALTER_CONFIGS),
    ),
    (
        lambda: AlterConfigsRequest(
            resources=[ReplacedResource(resource_type=4, resource_name="1")]
        ),
        (*C, OP.ALTER_CONFIGS),
    ),
    (lambda: FindCoordinatorRequest(coordinator_keys=["g"]), (*G, OP.DESCRIBE)),
    (
        lambda: FindCoordinatorRequest(coordinator_keys=["x"], key_type=1),
        (TRANSACTION, "x", OP.DESCRIBE),
    ),
    (lambda: JoinGroupRequest(group_id="g"), (*G, OP.READ)),
    (lambda: SyncGroupRequest(group_id="g"), (*G, OP.READ)),
    (lambda: HeartbeatRequest(group_id="g"), (*G, OP.READ)),
    (lambda: LeaveGroupRequest(group_id="g"), (*G, OP.READ)),
    (
        lambda: ConsumerGroupHeartbeatRequest(group_id="g", subscribed_topic_names=[]),
        (*G, OP.READ),
    ),
    (lambda: DescribeGroupsRequest(groups=["g"]), (*G, OP.DESCRIBE)),
    (lambda: ConsumerGroupDescribeRequest(group_ids=["g"]), (*G, OP.DESCRIBE)),
    (lambda: DescribeGroupLagRequest(groups=["g"]), (*G, OP.DESCRIBE)),
    (FindNextRecordsRequest, (*C, OP.CLUSTER_ACTION)),
    (WriteToRegistryRequest, (*C, OP.CLUSTER_ACTION)),
    (CreateLinkRequest, (*C, OP.ALTER)),
    (AlterLinkRequest, (*C, OP.ALTER)),
    (DeleteLinkRequest, (*C, OP.ALTER)),
    (AlterMirrorsRequest, (*C, OP.ALTER)),
    (FailBackRequest, (*C, OP.ALTER)),
    (AlterSealsRequest, (*C, OP.ALTER)),
    (DescribeMirrorsRequest, (*C, OP.DESCRIBE)),
    (CreateMirrorsRequest, (*C, OP.CLUSTER_ACTION)),
    (AlterMirrorPartitionRequest, (*C, OP.CLUSTER_ACTION)),
    (AlterLinkAclsRequest, (*C, OP.CLUSTER_ACTION)),
    (MarkAppsRequest, (*C, OP.CLUSTER_ACTION)),
    (lambda: DeleteGroupsRequest(groups_names=["g"]), (*G, OP.DELETE)),
    (lambda: OffsetDeleteRequest(group_id="g"), (*G, OP.DELETE)),
    (lambda: InitProducerIdRequest(transactional_id=None), (*C, OP.IDEMPOTENT_WRITE)),
    (lambda: InitProducerIdRequest(transactional_id="x"), (TRANSACTION, "x", OP.WRITE)),
    (lambda: EndTxnRequest(transactional_id="x"), (TRANSACTION, "x", OP.WRITE)),
    (lambda: PublishRequest(job_id="x"), (TRANSACTION, "x", OP.WRITE)),
    (
        lambda: StageRequest(job_id="x", name="a", is_last=True, records=batch(b"x")),
        (TRANSACTION, "x", OP.WRITE),
    ),
    (lambda: DropStagedRequest(job_id="x"), (TRANSACTION, "x", OP.WRITE)),
    (
        lambda: DescribeTransactionsRequest(transactional_ids=["x"]),
        (TRANSACTION, "x", OP.DESCRIBE),
    ),
    (
        lambda: DescribeProducersRequest(
            topics=[DescribeProducersTopic(name="t", partition_indexes=[0])]
        ),
        (*T, OP.READ),
    ),
    (
        lambda: WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=5,
                    topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
                )
            ]
        ),
        (*C, OP.CLUSTER_ACTION),
    ),
    (
        lambda: AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path="d", topics=[AlterReplicaLogDirTopic(name="t", partitions=[0])]
                )
            ]
        ),
        (*C, OP.ALTER),
    ),
    (lambda: DescribeLogDirsRequest(topics=None), (*C, OP.DESCRIBE)),
    (DescribeClientQuotasRequest, (*C, OP.DESCRIBE_CONFIGS)),
    (
        lambda: AlterClientQuotasRequest(
            entries=[
                QuotaAlteration(entity=[QuotaEntity(entity_type="user", entity_name="u")], ops=[])
            ]
        ),
        (*C, OP.ALTER_CONFIGS),
    ),
    (lambda: DescribeUserScramCredentialsRequest(users=None), (*C, OP.DESCRIBE)),
    (
        lambda: AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name="u", mechanism=1)]
        ),
        (*C, OP.ALTER),
    ),
    (
        lambda: DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
        (*C, OP.DESCRIBE),
    ),
    (lambda: CreateAclsRequest(creations=[creation(*T, OP.READ)]), (*C, OP.ALTER)),
    (lambda: DeleteAclsRequest(filters=[anything()]), (*C, OP.ALTER)),
    (
        lambda: ElectLeadersRequest(
            topic_partitions=[ElectedTopicPartitions(topic="t", partitions=[0])]
        ),
        (*C, OP.ALTER),
    ),
    (AlterPartitionReassignmentsRequest, (*C, OP.ALTER)),
    (UnregisterBrokerRequest, (*C, OP.ALTER)),
    (BrokerRegistrationRequest, (*C, OP.CLUSTER_ACTION)),
    (BrokerHeartbeatRequest, (*C, OP.CLUSTER_ACTION)),
    (AlterPartitionRequest, (*C, OP.CLUSTER_ACTION)),
    (AllocateProducerIdsRequest, (*C, OP.CLUSTER_ACTION)),
    (lambda: ListPartitionReassignmentsRequest(topics=None), (*C, OP.DESCRIBE)),
    (ListConfigResourcesRequest, (*C, OP.DESCRIBE_CONFIGS)),
    (VoteRequest, (*C, OP.CLUSTER_ACTION)),
    (BeginQuorumEpochRequest, (*C, OP.CLUSTER_ACTION)),
    (EndQuorumEpochRequest, (*C, OP.CLUSTER_ACTION)),
    (FetchSnapshotRequest, (*C, OP.CLUSTER_ACTION)),
    (DescribeQuorumRequest, (*C, OP.DESCRIBE)),
    (
        lambda: DescribeTopicPartitionsRequest(topics=[NamedTopic(name="t")]),
        (*T, OP.DESCRIBE),
    ),
]


def anything(**wanted: Any) -> DeleteAclsFilter:
    given = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **wanted,
    }
    return DeleteAclsFilter(**given)


def test_every_api_has_a_rule() -> None:
    """A new API needs a line in `streamlog/broker/security/rules.py`, and one in the matrix."""
    assert {api.request for api in APIS.values()} == set(RULES)
    elsewhere = {
        ApiVersionsRequest,
        SaslHandshakeRequest,
        SaslAuthenticateRequest,
        DescribeClusterRequest,
        ListGroupsRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        AddPartitionsToTxnRequest,
        AddOffsetsToTxnRequest,
        TxnOffsetCommitRequest,
        ListTransactionsRequest,
        GetTelemetrySubscriptionsRequest,
        PushTelemetryRequest,
    }
    assert {type(make()) for make, _ in MATRIX} | elsewhere == set(RULES)


@pytest.mark.parametrize(
    ("make", "need"),
    MATRIX,
    ids=[f"{type(make()).__name__}-{need[2].name}" for make, need in MATRIX],
)
def test_each_api_needs_the_acl_of_its_rule(make: Callable[[], Message], need: Need) -> None:
    kind = need[0]
    # CREATE on the cluster also allows it; the refusal is the topic's in both cases.
    refused = REFUSED[TOPIC if isinstance(make(), CreateTopicsRequest) else kind]

    async def story(broker: Broker) -> None:
        create(broker)
        assert refused in codes(await ask_as(broker, make())), "no ACL allows it"
        wrong = (kind, "other" if kind is not CLUSTER else need[1], need[2])
        if kind is not CLUSTER:
            await allow(broker, wrong)
            if not isinstance(make(), InitProducerIdRequest):
                assert refused in codes(await ask_as(broker, make())), "another resource"
        await allow(broker, need)
        assert refused in codes(await ask_as(broker, make(), principal="User:bob")), "another user"
        assert refused not in codes(await ask_as(broker, make()))

    node().run(story)


def test_a_publication_needs_acls_for_its_job_topics_and_group() -> None:
    def publishing() -> PublishRequest:
        offsets = [PublishOffsetTopic(name="u", partitions=[PublishOffset(committed_offset=0)])]
        published = [PublishPartition(records=batch(b"x"))]
        return PublishRequest(
            job_id="x",
            topics=[PublishTopic(name="t", partitions=published)],
            groups=[PublishGroup(group_id="g", topics=offsets)],
        )

    async def refusal(broker: Broker) -> int:
        answer = await ask_as(broker, publishing())
        assert isinstance(answer, PublishResponse)
        return answer.error_code

    async def story(broker: Broker) -> None:
        create(broker)
        create(broker, "u")
        for need, without in [
            ((TRANSACTION, "x", OP.WRITE), TRANSACTION),
            ((*T, OP.WRITE), TOPIC),
            ((GROUP, "g", OP.READ), GROUP),
            ((TOPIC, "u", OP.READ), TOPIC),
        ]:
            assert await refusal(broker) == REFUSED[without]
            await allow(broker, need)
        assert await refusal(broker) == 0

    node().run(story)


def test_a_transaction_needs_acls_for_its_id_topics_and_group() -> None:
    x = (TRANSACTION, "x")
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def adding() -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("t", "u")
            ],
        )

    async def added(broker: Broker) -> list[int]:
        answer = await ask_as(broker, adding())
        topics = answer.results_by_topic_v3_and_below
        return [topic.results_by_partition[0].partition_error_code for topic in topics]

    def committing() -> TxnOffsetCommitRequest:
        partitions = [TxnOffsetCommitRequestPartition(committed_offset=1)]
        return TxnOffsetCommitRequest(
            transactional_id="x",
            group_id="g",
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=partitions) for name in ("t", "u")
            ],
        )

    async def story(broker: Broker) -> None:
        create(broker)
        create(broker, "u")
        offsets = AddOffsetsToTxnRequest(transactional_id="x", group_id="g")
        assert await added(broker) == [REFUSED[TRANSACTION]] * 2
        assert codes(await ask_as(broker, offsets)) == {REFUSED[TRANSACTION]}
        assert codes(await ask_as(broker, committing())) == {REFUSED[TRANSACTION]}
        await allow(broker, (*x, OP.WRITE))
        assert await added(broker) == [denied] * 2
        assert codes(await ask_as(broker, offsets)) == {REFUSED[GROUP]}
        assert codes(await ask_as(broker, committing())) == {REFUSED[GROUP]}
        await allow(broker, (*T, OP.WRITE), (*G, OP.READ))
        assert await added(broker) == [ErrorCode.OPERATION_NOT_ATTEMPTED, denied]
        unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert codes(await ask_as(broker, offsets)) == {unknown}
        assert codes(await ask_as(broker, committing())) == {denied}
        await allow(broker, (*T, OP.READ), (TOPIC, "u", OP.WRITE))
        assert await added(broker) == [unknown] * 2
        assert codes(await ask_as(broker, committing())) == {unknown, denied}

    node().run(story)


def test_list_transactions_shows_only_describable_ids() -> None:
    async def story(broker: Broker) -> None:
        for name in ("x", "y"):
            begin = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000)
            await ask_as(broker, begin, principal=IN_PROCESS)
        assert (await ask_as(broker, ListTransactionsRequest())).transaction_states == []
        await allow(broker, (TRANSACTION, "y", OP.DESCRIBE))
        listed = (await ask_as(broker, ListTransactionsRequest())).transaction_states
        assert [each.transactional_id for each in listed] == ["y"]

    node().run(story)


def test_an_unauthorized_topic_does_not_affect_an_authorized_one() -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        create(broker, "u")
        await allow(broker, (*T, OP.WRITE), (*T, OP.READ))
        request = produce_request(batch(b"x"))
        request.topic_data += produce_request(batch(b"x"), topic="u").topic_data
        produced = await ask_as(broker, request)
        assert isinstance(produced, ProduceResponse)
        assert {each.name: codes(each) for each in produced.responses} == {
            "t": {0},
            "u": {ErrorCode.TOPIC_AUTHORIZATION_FAILED},
        }
        wanted = fetch_request(at(0), max_wait_ms=60_000)
        wanted.topics.append(FetchTopic(topic="u", partitions=[at(0)]))
        fetched = await ask_as(broker, wanted, version=12)
        assert isinstance(fetched, FetchResponse)
        assert fetched.session_id == 0, "no session was requested"
        assert {each.topic: codes(each) for each in fetched.responses} == {
            "t": {0},
            "u": {ErrorCode.TOPIC_AUTHORIZATION_FAILED},
        }

    node().run(story)


def test_incremental_fetches_check_acls_for_all_session_partitions() -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    async def story(broker: Broker) -> None:
        for name in ("t", "u"):
            create(broker, name)
        read_u = (TOPIC, "u", OP.READ)
        await allow(broker, (*T, OP.READ), read_u)
        first = fetch_request(at(0))
        first.topics.append(FetchTopic(topic="u", partitions=[at(0)]))
        first.session_epoch = 0
        begun = await ask_as(broker, first, version=12)
        assert begun.session_id > 0
        epoch = 0

        async def news(principal: str = "User:alice") -> dict[str, set[int]]:
            nonlocal epoch
            epoch += 1
            request = FetchRequest(
                session_id=begun.session_id, session_epoch=epoch, max_bytes=1 << 20
            )
            answer = await ask_as(broker, request, version=12, principal=principal)
            assert answer.error_code == 0
            return {each.topic: codes(each) for each in answer.responses}

        assert await news() == {}
        await ask_as(broker, produce_request(batch(b"x"), topic="u"), principal=IN_PROCESS)
        filters = [anything(principal_filter="User:alice", resource_name_filter="u")]
        await ask_as(broker, DeleteAclsRequest(filters=filters), principal=IN_PROCESS)
        assert await news() == {"u": {denied}}, "the new record is not readable"
        await ask_as(broker, produce_request(batch(b"x")), principal=IN_PROCESS)
        assert await news() == {"t": {0}, "u": {denied}}
        assert await news("User:bob") == {"t": {denied}, "u": {denied}}, "the session is alice's"
        await allow(broker, read_u)
        assert await news() == {"t": {0}, "u": {0}}

    node().run(story)


def test_a_session_without_readable_partitions_is_answered_at_once() -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        request = fetch_request(at(0), max_wait_ms=60_000)
        request.session_epoch = 0
        answer = await ask_as(broker, request, version=12)
        assert codes(answer.responses) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    node().run(story)


@pytest.mark.parametrize("state", [False, True])
def test_a_replica_fetch_needs_cluster_action(state: bool) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await allow(broker, (*T, OP.READ))
        request = fetch_request(at(0))
        if state:  # as from version 15 (KIP-903)
            request.replica_state = FetchingReplica(replica_id=1)
        else:
            request.replica_id = 1
        answer = await ask_as(broker, request, version=12)
        assert codes(answer.responses) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    node().run(story)


def test_an_authorized_fetch_can_wait_for_records() -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await allow(broker, (*G, OP.READ))
        joining = JoinGroupRequest(group_id="g", protocol_type="consumer")
        context = RequestContext(3, "c", "/10.0.0.1", principal="User:alice")
        await asyncio.wait_for(broker.handle(joining, context), 10)
        await allow(broker, (*T, OP.READ), (*T, OP.WRITE), (*G, OP.DESCRIBE))
        waiting = broker.begin(
            fetch_request(at(0), max_wait_ms=60_000),
            RequestContext(12, "c", "/10.0.0.1", principal="User:alice"),
        )
        assert isinstance(waiting, asyncio.Future)
        await ask_as(broker, produce_request(batch(b"x")))
        assert codes(await asyncio.wait_for(waiting, 60)) == {0}

    node().run(story)


def test_a_refusal_by_topic_id_does_not_reveal_the_name() -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        topic_id = broker.directory.topics["t"].topic_id
        wanted = fetch_request(at(0))
        wanted.topics = [FetchTopic(topic_id=topic_id, partitions=[at(0)])]
        (refused,) = (await ask_as(broker, wanted)).responses
        assert refused.topic_id == topic_id
        assert codes(refused) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
        (hidden,) = (await ask_as(broker, by_id)).topics
        assert (hidden.name, hidden.topic_id) == (None, topic_id)
        assert hidden.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        deleted = await ask_as(
            broker, DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)])
        )
        assert codes(deleted) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert "t" in broker.directory.topics

    node().run(story)


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_topic_id_is_an_invalid_request_before_version_12(version: int) -> None:
    """Kafka refuses the request before it checks ACLs; the response keeps the request's names."""

    async def story(broker: Broker) -> None:
        create(broker)
        topic_id = broker.directory.topics["t"].topic_id
        by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
        answer = await ask_as(broker, by_id, version=version)
        assert codes(answer.topics) == {ErrorCode.INVALID_REQUEST}
        assert decode(MetadataResponse, version, encode(answer, version)) == answer

    node().run(story)


@pytest.mark.parametrize("version", [0, 12])
def test_metadata_hides_topics_without_describe_access(version: int) -> None:
    async def story(broker: Broker) -> None:
        for name in ("t", "u", "v"):
            create(broker, name)
        everything = [] if version == 0 else None
        await allow(broker, (*T, OP.READ), (TOPIC, "u", OP.WRITE))
        seen = await ask_as(broker, MetadataRequest(topics=everything), version=version)
        assert sorted(each.name for each in seen.topics) == ["t", "u"]
        hidden = MetadataRequest(topics=[MetadataRequestTopic(name="v")])
        (refused,) = (await ask_as(broker, hidden, version=version)).topics
        assert (refused.name, refused.partitions) == ("v", [])
        assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    node().run(story)


def test_metadata_creates_a_topic_only_with_create_access() -> None:
    async def story(broker: Broker) -> None:
        await allow(broker, (TOPIC, "new", OP.READ))
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
        assert codes((await ask_as(broker, request)).topics) == {
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
        }
        assert "new" not in broker.directory.topics
        await allow(broker, (TOPIC, "new", OP.CREATE))
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
        assert codes(await ask_as(broker, request)) == {0}
        assert "new" in broker.directory.topics

    node().run(story)


def test_authorized_operations_are_reported_on_request() -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await allow(broker, (*T, OP.WRITE), (*G, OP.READ))

        async def reported() -> tuple[int, int, int, int]:
            topics = MetadataRequest(
                topics=[MetadataRequestTopic(name="t")],
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            )
            metadata = await ask_as(broker, topics, version=10)
            cluster = await ask_as(
                broker, DescribeClusterRequest(include_cluster_authorized_operations=True)
            )
            groups = await ask_as(
                broker,
                DescribeGroupsRequest(groups=["g"], include_authorized_operations=True),
            )
            return (
                metadata.topics[0].topic_authorized_operations,
                metadata.cluster_authorized_operations,
                cluster.cluster_authorized_operations,
                groups.groups[0].authorized_operations,
            )

        assert await reported() == (1 << 4 | 1 << 8, 0, 0, 1 << 3 | 1 << 8)
        await allow(broker, (*C, OP.DESCRIBE))
        assert (await reported())[1:3] == (1 << 8, 1 << 8)

    node().run(story)


def test_committed_offsets_need_acls_for_the_group_and_the_topic() -> None:
    def commit(*topics: str) -> OffsetCommitRequest:
        return OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
                    ],
                )
                for name in topics
            ],
        )

    def positions(*topics: str) -> OffsetFetchRequest:
        wanted = [OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in topics]
        return OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted or None)]
        )

    async def story(broker: Broker) -> None:
        create(broker)
        create(broker, "u")
        group, topic = REFUSED[GROUP], REFUSED[TOPIC]
        assert codes(await ask_as(broker, commit("t"))) == {group}
        assert group in codes(await ask_as(broker, positions("t")))
        await allow(broker, (*G, OP.READ), (*T, OP.READ))
        committed = await ask_as(broker, commit("t", "u"))
        assert {each.name: codes(each) for each in committed.topics} == {"t": {0}, "u": {topic}}
        await ask_as(broker, commit("u"), principal=IN_PROCESS)
        named = (await ask_as(broker, positions("t", "u"))).groups[0]
        assert {each.name: codes(each) for each in named.topics} == {"t": {0}, "u": {topic}}
        every = (await ask_as(broker, positions())).groups[0]
        assert [each.name for each in every.topics] == ["t"]
        forgotten = OffsetDeleteRequest(
            group_id="g",
            topics=[DeletedTopic(name="u", partitions=[DeletedPartition(partition_index=0)])],
        )
        await allow(broker, (*G, OP.DELETE))
        assert topic in codes(await ask_as(broker, forgotten))

    node().run(story)


def test_committed_offsets_by_topic_id_need_acls_for_group_and_topic() -> None:
    """An unknown id is answered as an unknown topic; an unauthorized one is refused by its id."""
    nowhere = b"\xff" * 16

    def commit(*ids: bytes) -> OffsetCommitRequest:
        each = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        return OffsetCommitRequest(
            group_id="g",
            topics=[OffsetCommitRequestTopic(topic_id=at, partitions=[each]) for at in ids],
        )

    def positions(*ids: bytes) -> OffsetFetchRequest:
        wanted = [OffsetFetchRequestTopics(topic_id=at, partition_indexes=[0]) for at in ids]
        return OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted or None)]
        )

    async def story(broker: Broker) -> None:
        create(broker)
        create(broker, "u")
        listed = await ask_as(broker, MetadataRequest(topics=None), principal=IN_PROCESS)
        ids = {each.name: each.topic_id for each in listed.topics}
        t, u = ids["t"], ids["u"]
        group, topic, unknown = REFUSED[GROUP], REFUSED[TOPIC], int(ErrorCode.UNKNOWN_TOPIC_ID)
        refused = await ask_as(broker, commit(t, nowhere))
        assert {each.topic_id: codes(each) for each in refused.topics} == {
            t: {group},
            nowhere: {group},
        }
        await allow(broker, (*G, OP.READ), (*T, OP.READ))
        reported = {t: {0}, u: {topic}, nowhere: {unknown}}
        committed = await ask_as(broker, commit(t, u, nowhere))
        assert {each.topic_id: codes(each) for each in committed.topics} == reported
        await ask_as(broker, commit(u), principal=IN_PROCESS)
        found = (await ask_as(broker, positions(t, u, nowhere))).groups[0]
        assert {each.topic_id: codes(each) for each in found.topics} == reported
        every = (await ask_as(broker, positions())).groups[0]
        assert [each.topic_id for each in every.topics] == [t]

    node().run(story)


def test_list_groups_shows_only_describable_groups() -> None:
    async def story(broker: Broker) -> None:
        for name in ("g", "h"):
            joined = JoinGroupRequest(
                group_id=name, protocol_type="consumer", session_timeout_ms=10_000
            )
            await ask_as(broker, joined, principal=IN_PROCESS, version=3)
        await allow(broker, (*G, OP.DESCRIBE))
        listed = await ask_as(broker, ListGroupsRequest())
        assert {each.group_id for each in listed.groups} <= {"g"}
        await allow(broker, (*C, OP.DESCRIBE))
        all_of_them = await ask_as(broker, ListGroupsRequest())
        every = await ask_as(broker, ListGroupsRequest(), principal=IN_PROCESS)
        assert all_of_them == every

    node().run(story)


def test_the_lag_of_a_group_leaves_out_topics_without_describe_access() -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        create(broker, "u")
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=0)],
            )
            for name in ("t", "u")
        ]
        commit = OffsetCommitRequest(group_id="g", topics=topics)
        await ask_as(broker, commit, principal=IN_PROCESS, version=9)
        asked = DescribeGroupLagRequest(groups=["g"])
        assert codes(await ask_as(broker, asked)) == {REFUSED[GROUP]}
        await allow(broker, (*G, OP.DESCRIBE), (*T, OP.DESCRIBE))
        (group,) = (await ask_as(broker, DescribeGroupLagRequest(groups=["g"]))).groups
        assert [each.name for each in group.topics] == ["t"]

    node().run(story)


def test_an_unauthorized_produce_with_acks_0_raises() -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        request = produce_request(batch(b"x"))
        request.acks = 0
        with pytest.raises(NotAuthorized, match="User:alice may not write to t"):
            await ask_as(broker, request)

    node().run(story)


def test_write_access_to_any_topic_allows_a_producer_id() -> None:
    async def story(broker: Broker) -> None:
        await allow(broker, (TOPIC, "whatever", OP.WRITE))
        response = await ask_as(broker, InitProducerIdRequest(transactional_id=None))
        assert response.error_code == 0

    node().run(story)


def test_acls_survive_a_restart_and_can_be_deleted() -> None:
    one = node(super_users="User:root")

    async def before(broker: Broker) -> None:
        create(broker)
        request = CreateAclsRequest(
            creations=[
                creation(*T, OP.READ),
                creation(TOPIC, "t", OP.ALL, resource_pattern_type=Pattern.PREFIXED),
            ]
        )
        assert codes(await ask_as(broker, request, principal="User:root")) == {0}
        assert codes(await ask_as(broker, request, principal="User:root")) == {0}, (
            "creating an ACL twice has no effect"
        )

    async def after(broker: Broker) -> None:
        assert codes(await ask_as(broker, produce_request(batch(b"x")))) == {0}
        everything = DescribeAclsRequest(
            resource_type_filter=2,
            resource_name_filter="toy",
            pattern_type_filter=Pattern.MATCH,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        described = await ask_as(broker, everything, principal="User:root")
        assert isinstance(described, DescribeAclsResponse)
        (resource,) = described.resources
        assert (resource.resource_name, resource.pattern_type) == ("t", Pattern.PREFIXED)
        (acl,) = resource.acls
        assert (acl.principal, acl.operation) == ("User:alice", OP.ALL)
        gone = await ask_as(
            broker,
            DeleteAclsRequest(filters=[anything(pattern_type_filter=4)]),
            principal="User:root",
        )
        assert isinstance(gone, DeleteAclsResponse)
        assert [each.resource_name for each in gone.filter_results[0].matching_acls] == ["t"]
        refused = await ask_as(broker, produce_request(batch(b"x")))
        assert ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes(refused)

    one.run(before)
    one.run(after)


@pytest.mark.parametrize(
    ("kind", "name", "operation", "more"),
    [
        (1, "t", OP.READ, {}),
        (9, "t", OP.READ, {}),
        (TOPIC, "", OP.READ, {}),
        (TOPIC, "t", 1, {}),
        (TOPIC, "t", 77, {}),
        (TOPIC, "t", OP.CLUSTER_ACTION, {}),
        (CLUSTER, "mine", OP.ALTER, {}),
        (TOPIC, "t", OP.READ, {"host": ""}),
        (TOPIC, "t", OP.READ, {"principal": "alice"}),
        (TOPIC, "t", OP.READ, {"permission_type": 1}),
        (TOPIC, "t", OP.READ, {"resource_pattern_type": Pattern.MATCH}),
    ],
)
def test_an_invalid_acl_is_refused(kind: int, name: str, operation: int, more: Any) -> None:
    async def story(broker: Broker) -> None:
        request = CreateAclsRequest(
            creations=[creation(kind, name, operation, **more)]  # type: ignore[arg-type]  # any values of a request
        )
        response = await ask_as(broker, request, principal=IN_PROCESS)
        assert codes(response) == {ErrorCode.INVALID_REQUEST}
        assert response.results[0].error_message
        authorizer = broker.authorizer
        assert authorizer is not None
        assert authorizer.acls.all == frozenset()

    node().run(story)


def test_without_an_authorizer_acl_requests_are_refused() -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        for request in (
            CreateAclsRequest(creations=[creation(*T, OP.READ)]),
            DeleteAclsRequest(filters=[anything()]),
            DescribeAclsRequest(
                resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
            ),
        ):
            assert codes(await ask_as(broker, request)) == {ErrorCode.SECURITY_DISABLED}
        assert codes(await ask_as(broker, produce_request(batch(b"x")))) == {0}

    node(authorizer="none").run(story)


def test_a_super_user_must_be_a_principal() -> None:
    with pytest.raises(ConfigError, match=r"super\.users: 'root'"):
        node(super_users="root").run(lambda _: asyncio.sleep(0))


def test_a_deleted_acl_applies_to_the_next_identical_request() -> None:
    """The shortcut for requests that repeat the one before must not skip the authorizer."""

    async def story(broker: Broker) -> None:
        create(broker)
        for operation in (OP.READ, OP.WRITE):
            await ask_as(
                broker,
                CreateAclsRequest(creations=[creation(*T, operation, principal=ANONYMOUS)]),
                principal=IN_PROCESS,
            )
        async with Acceptor(broker) as server, peer(server) as one:

            async def twice() -> set[int]:
                found: set[int] = set()
                for _ in range(3):
                    for request in (produce_request(batch(b"x")), fetch_request(at(0))):
                        version = 12 if isinstance(request, FetchRequest) else None
                        one.ask(request, 1, version)
                        _, response = await one.answer(type(request), version)
                        found |= codes(response)
                return found

            assert await twice() == {0}
            await ask_as(broker, DeleteAclsRequest(filters=[anything()]), principal=IN_PROCESS)
            assert await twice() == {0, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            assert broker.directory.log("t", 0).log_end_offset == 3

    node().run(story)
