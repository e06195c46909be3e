"""RULES: for every request what its sender has to be allowed; a test finds one that has none.

Here is the table, and the rules of requests about the cluster itself: settings, partitions,
quotas, users, ACLs. A request without a rule is refused whoever sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from streamlog.broker.resource_config import GROUP_RESOURCE
from streamlog.broker.security import (
    group_rules,
    page_rules,
    publishing_rules,
    quorum_rules,
    topic_rules,
    transaction_rules,
)
from streamlog.broker.security.access import GO_ON, Access, Verdict, split
from streamlog.protocol.acls import Operation
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.admin import (
    AlterConfigsResourceResponse,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from streamlog.protocol.messages.brokers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from streamlog.protocol.messages.cluster import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from streamlog.protocol.messages.config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from streamlog.protocol.messages.consumer_group_description import ConsumerGroupDescribeRequest
from streamlog.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from streamlog.protocol.messages.coordination import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from streamlog.protocol.messages.data import FetchRequest, ListOffsetsRequest, ProduceRequest
from streamlog.protocol.messages.group_admin import DeleteGroupsRequest, OffsetDeleteRequest
from streamlog.protocol.messages.partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from streamlog.protocol.messages.publishing import (
    DropStagedRequest,
    PublishRequest,
    StageRequest,
)
from streamlog.protocol.messages.quorum import (
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    VoteRequest,
)
from streamlog.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from streamlog.protocol.messages.replace_configs import AlterConfigsRequest, AlterConfigsResponse
from streamlog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from streamlog.protocol.messages.security import (
    AclCreationResult,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from streamlog.protocol.messages.topic_partitions import DescribeTopicPartitionsRequest
from streamlog.protocol.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
)
from streamlog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from streamlog.protocol.schema import Message

TOPIC_RESOURCE = 2
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
WHY = "not allowed by any ACL, or forbidden by one"

# A rule takes the request that it stands for in the table.
Rule = Callable[[Any, Access], Verdict]


def for_everybody(_: Message, __: Access) -> Verdict:
    """Nothing has to be allowed."""
    return GO_ON


def on_cluster(operation: Operation, refusal: Callable[[Any], Message]) -> Rule:
    """A rule: this has to be allowed on the cluster, or nothing is done."""

    def rule(request: Message, access: Access) -> Verdict:
        return GO_ON if access.cluster(operation) else Verdict(refusal(request))

    return rule


def init_producer_id(request: InitProducerIdRequest, access: Access) -> Verdict:
    """WRITE on the transactional id; without one on any topic, or IDEMPOTENT_WRITE (KIP-679)."""
    name = request.transactional_id
    if name is not None:
        if access.transactional_id(Operation.WRITE, name):
            return GO_ON
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return Verdict(InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))
    if access.cluster(Operation.IDEMPOTENT_WRITE) or access.some_topic(Operation.WRITE):
        return GO_ON
    return Verdict(InitProducerIdResponse(error_code=DENIED, producer_id=-1, producer_epoch=-1))


def create_partitions(request: CreatePartitionsRequest, access: Access) -> Verdict:
    """ALTER on topics."""
    request.topics, refused = split(
        request.topics, lambda each: access.topic(Operation.ALTER, each.name)
    )
    answers = [
        CreatePartitionsTopicResult(name=each.name, error_code=TOPIC_DENIED, error_message=WHY)
        for each in refused
    ]

    def finish(response: CreatePartitionsResponse) -> None:
        response.results = [*response.results, *answers]

    return Verdict(finish=finish) if answers else GO_ON


# ---- settings ----


def _may_configure(operation: Operation, access: Access, kind: int, name: str) -> bool:
    if kind == TOPIC_RESOURCE:
        return access.topic(operation, name)
    if kind == GROUP_RESOURCE:
        return access.group(operation, name)
    return access.cluster(operation)


def describe_configs(request: DescribeConfigsRequest, access: Access) -> Verdict:
    """DESCRIBE_CONFIGS on topics, on the cluster for the broker's."""
    operation = Operation.DESCRIBE_CONFIGS
    request.resources, refused = split(
        request.resources,
        lambda each: _may_configure(operation, access, each.resource_type, each.resource_name),
    )
    answers = [
        DescribeConfigsResult(
            error_code=TOPIC_DENIED if each.resource_type == TOPIC_RESOURCE else DENIED,
            error_message=WHY,
            resource_type=each.resource_type,
            resource_name=each.resource_name,
        )
        for each in refused
    ]

    def finish(response: DescribeConfigsResponse) -> None:
        response.results = [*response.results, *answers]

    return Verdict(finish=finish) if answers else GO_ON


def alter_configs(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest, access: Access
) -> Verdict:
    """ALTER_CONFIGS on topics, on the cluster for the broker's."""
    operation = Operation.ALTER_CONFIGS
    resources: list[Any] = [*request.resources]
    kept, refused = split(
        resources,
        lambda each: _may_configure(operation, access, each.resource_type, each.resource_name),
    )
    request.resources = kept
    answers = [
        AlterConfigsResourceResponse(
            error_code=TOPIC_DENIED if each.resource_type == TOPIC_RESOURCE else DENIED,
            error_message=WHY,
            resource_type=each.resource_type,
            resource_name=each.resource_name,
        )
        for each in refused
    ]

    def finish(response: AlterConfigsResponse | IncrementalAlterConfigsResponse) -> None:
        response.responses = [*response.responses, *answers]

    return Verdict(finish=finish) if answers else GO_ON


# ---- refusals ----


def _no_quotas_altered(request: AlterClientQuotasRequest) -> Message:
    return AlterClientQuotasResponse(
        entries=[
            AlteredQuota(error_code=DENIED, error_message=WHY, entity=each.entity)
            for each in request.entries
        ]
    )


def _no_users_altered(request: AlterUserScramCredentialsRequest) -> Message:
    names = [each.name for each in request.deletions]
    names += [each.name for each in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=DENIED, error_message=WHY)
            for name in dict.fromkeys(names)
        ]
    )


def _no_acls_created(request: CreateAclsRequest) -> Message:
    results = [AclCreationResult(error_code=DENIED, error_message=WHY) for _ in request.creations]
    return CreateAclsResponse(results=results)


def _no_acls_deleted(request: DeleteAclsRequest) -> Message:
    results = [
        DeleteAclsFilterResult(error_code=DENIED, error_message=WHY) for _ in request.filters
    ]
    return DeleteAclsResponse(filter_results=results)


def not_elected(
    request: ElectLeadersRequest, code: ErrorCode = DENIED, message: str = WHY
) -> ElectLeadersResponse:
    """The same refusal for every partition that is named."""
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=asked.topic,
                partition_result=[
                    PartitionResult(partition_id=number, error_code=code, error_message=message)
                    for number in asked.partitions
                ],
            )
            for asked in request.topic_partitions or ()
        ],
    )


RULES: Final[Mapping[type[Message], Rule]] = {
    ProduceRequest: topic_rules.produce,
    FetchRequest: topic_rules.fetch,
    ListOffsetsRequest: topic_rules.list_offsets,
    MetadataRequest: topic_rules.metadata,
    OffsetCommitRequest: group_rules.offset_commit,
    OffsetFetchRequest: group_rules.offset_fetch,
    FindCoordinatorRequest: group_rules.find_coordinator,
    JoinGroupRequest: group_rules.membership,
    HeartbeatRequest: group_rules.membership,
    LeaveGroupRequest: group_rules.membership,
    SyncGroupRequest: group_rules.membership,
    DescribeGroupsRequest: group_rules.describe_groups,
    ListGroupsRequest: group_rules.list_groups,
    SaslHandshakeRequest: for_everybody,
    ApiVersionsRequest: for_everybody,
    CreateTopicsRequest: topic_rules.create_topics,
    DeleteTopicsRequest: topic_rules.delete_topics,
    DeleteRecordsRequest: topic_rules.delete_records,
    InitProducerIdRequest: init_producer_id,
    OffsetForLeaderEpochRequest: topic_rules.epoch_ends,
    AddPartitionsToTxnRequest: transaction_rules.add_partitions,
    AddOffsetsToTxnRequest: transaction_rules.add_offsets,
    EndTxnRequest: transaction_rules.end,
    WriteTxnMarkersRequest: transaction_rules.write_markers,
    TxnOffsetCommitRequest: transaction_rules.commit_offsets,
    DescribeProducersRequest: transaction_rules.describe_producers,
    DescribeTransactionsRequest: transaction_rules.describe_transactions,
    ListTransactionsRequest: transaction_rules.list_transactions,
    DescribeAclsRequest: on_cluster(
        Operation.DESCRIBE, lambda _: DescribeAclsResponse(error_code=DENIED, error_message=WHY)
    ),
    CreateAclsRequest: on_cluster(Operation.ALTER, _no_acls_created),
    DeleteAclsRequest: on_cluster(Operation.ALTER, _no_acls_deleted),
    DescribeConfigsRequest: describe_configs,
    AlterConfigsRequest: alter_configs,
    DescribeLogDirsRequest: on_cluster(
        Operation.DESCRIBE, lambda _: DescribeLogDirsResponse(error_code=DENIED)
    ),
    SaslAuthenticateRequest: for_everybody,
    CreatePartitionsRequest: create_partitions,
    DeleteGroupsRequest: group_rules.delete_groups,
    IncrementalAlterConfigsRequest: alter_configs,
    OffsetDeleteRequest: group_rules.offset_delete,
    DescribeClientQuotasRequest: on_cluster(
        Operation.DESCRIBE_CONFIGS,
        lambda _: DescribeClientQuotasResponse(error_code=DENIED, error_message=WHY, entries=None),
    ),
    AlterClientQuotasRequest: on_cluster(Operation.ALTER_CONFIGS, _no_quotas_altered),
    DescribeUserScramCredentialsRequest: on_cluster(
        Operation.DESCRIBE,
        lambda _: DescribeUserScramCredentialsResponse(error_code=DENIED, error_message=WHY),
    ),
    AlterUserScramCredentialsRequest: on_cluster(Operation.ALTER, _no_users_altered),
    DescribeClusterRequest: topic_rules.describe_cluster,
    ConsumerGroupHeartbeatRequest: group_rules.heartbeat,
    ConsumerGroupDescribeRequest: group_rules.describe_consumer_groups,
    ElectLeadersRequest: on_cluster(Operation.ALTER, not_elected),
    UnregisterBrokerRequest: on_cluster(
        Operation.ALTER, lambda _: UnregisterBrokerResponse(error_code=DENIED, error_message=WHY)
    ),
    DescribeQuorumRequest: quorum_rules.describe,
    # What only brokers of the cluster send to each other.
    VoteRequest: quorum_rules.act,
    BeginQuorumEpochRequest: quorum_rules.act,
    EndQuorumEpochRequest: quorum_rules.act,
    FetchSnapshotRequest: quorum_rules.act,
    BrokerRegistrationRequest: on_cluster(
        Operation.CLUSTER_ACTION, lambda _: BrokerRegistrationResponse(error_code=DENIED)
    ),
    BrokerHeartbeatRequest: on_cluster(
        Operation.CLUSTER_ACTION, lambda _: BrokerHeartbeatResponse(error_code=DENIED)
    ),
    AlterPartitionRequest: on_cluster(
        Operation.CLUSTER_ACTION, lambda _: AlterPartitionResponse(error_code=DENIED)
    ),
    AllocateProducerIdsRequest: on_cluster(
        Operation.CLUSTER_ACTION, lambda _: AllocateProducerIdsResponse(error_code=DENIED)
    ),
    AlterPartitionReassignmentsRequest: on_cluster(
        Operation.ALTER,
        lambda _: AlterPartitionReassignmentsResponse(error_code=DENIED, error_message=WHY),
    ),
    ListPartitionReassignmentsRequest: on_cluster(
        Operation.DESCRIBE,
        lambda _: ListPartitionReassignmentsResponse(error_code=DENIED, error_message=WHY),
    ),
    ListConfigResourcesRequest: on_cluster(
        Operation.DESCRIBE_CONFIGS, lambda _: ListConfigResourcesResponse(error_code=DENIED)
    ),
    DescribeTopicPartitionsRequest: page_rules.describe_topic_partitions,
    PublishRequest: publishing_rules.publish,
    StageRequest: publishing_rules.stage,
    DropStagedRequest: publishing_rules.drop,
}
