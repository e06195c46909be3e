"""RULES: what the sender of each request must be allowed to do.

This module has the table, and the rules of requests about the cluster itself: settings, partitions,
quotas, users, ACLs, and the controller quorum, whose members need CLUSTER_ACTION to vote or lead. A
request without a rule is refused for every principal; a test finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from streamlog.broker.config.resources import GROUP_RESOURCE
from streamlog.broker.security import coordinator_rules, topic_rules
from streamlog.broker.security.acl_authorizer import GO_ON, Access, Verdict, withhold
from streamlog.broker.security.coordinator_rules import (
    add_offsets,
    add_partitions,
    commit_offsets,
    describe_producers,
    describe_transactions,
    drop_batches,
    end_transaction,
    list_transactions,
    publish_job,
    stage_batches,
    write_markers,
)
from streamlog.broker.security.topic_rules import describe_topic_partitions
from streamlog.protocol.acls import Operation
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_response
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
    OffsetFetchRequest,
    SyncGroupRequest,
)
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    OffsetDeleteRequest,
)
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
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from streamlog.protocol.messages.publishing import (
    DropStagedRequest,
    PublishRequest,
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
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from streamlog.protocol.messages.telemetry import (
    GetTelemetrySubscriptionsRequest,
    PushTelemetryRequest,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from streamlog.protocol.schema import Message

DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def act_as_member(request: Message, access: Access) -> Verdict:
    """Require CLUSTER_ACTION on the cluster."""
    return _on_cluster(Operation.CLUSTER_ACTION, request, access)


def describe_quorum(request: DescribeQuorumRequest, access: Access) -> Verdict:
    """Require DESCRIBE on the cluster."""
    return _on_cluster(Operation.DESCRIBE, request, access)


def _on_cluster(operation: Operation, request: Message, access: Access) -> Verdict:
    return GO_ON if access.cluster(operation) else Verdict(error_response(request, DENIED))


TOPIC_RESOURCE = 2
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
WHY = "not allowed by any ACL, or forbidden by one"


class Resource(Protocol):
    """Something that has settings."""

    resource_type: int
    resource_name: str


# A rule gets the request that it stands for in the table.
Rule = Callable[[Any, Access], Verdict]


def for_everybody(_: Message, __: Access) -> Verdict:
    """Allow everyone."""
    return GO_ON


def on_cluster(operation: Operation) -> Rule:
    """Return a rule that requires the operation on the cluster."""

    def rule(request: Message, access: Access) -> Verdict:
        if access.cluster(operation):
            return GO_ON
        return Verdict(error_response(request, DENIED, WHY))

    return rule


def init_producer_id(request: InitProducerIdRequest, access: Access) -> Verdict:
    """Require WRITE on the transactional id; without an id, see KIP-679.

    A producer without a transactional id needs IDEMPOTENT_WRITE, or WRITE on any topic.
    """
    name = request.transactional_id
    if name is not None:
        if access.transactional_id(Operation.WRITE, name):
            return GO_ON
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return Verdict(error_response(request, code))
    may_all = access.cluster(Operation.IDEMPOTENT_WRITE, logs_denied=False)
    # The second call logs that the principal has neither right.
    if may_all or access.some_topic(Operation.WRITE) or access.cluster(Operation.IDEMPOTENT_WRITE):
        return GO_ON
    return Verdict(error_response(request, DENIED))


def create_partitions(request: CreatePartitionsRequest, access: Access) -> Verdict:
    """Require ALTER on topics."""

    def may(topic: CreatePartitionsTopic) -> bool:
        return access.topic(Operation.ALTER, topic.name)

    return withhold(request, "topics", may, TOPIC_DENIED, message=WHY)


# Settings.


def _configure(
    operation: Operation,
    request: DescribeConfigsRequest | AlterConfigsRequest | IncrementalAlterConfigsRequest,
    access: Access,
) -> Verdict:
    def may(resource: Resource) -> bool:
        kind, name = resource.resource_type, resource.resource_name
        if kind == TOPIC_RESOURCE:
            return access.topic(operation, name)
        if kind == GROUP_RESOURCE:
            return access.group(operation, name)
        return access.cluster(operation)

    def code_of(resource: Resource) -> ErrorCode:
        return TOPIC_DENIED if resource.resource_type == TOPIC_RESOURCE else DENIED

    return withhold(request, "resources", may, code_of, message=WHY)


def describe_configs(request: DescribeConfigsRequest, access: Access) -> Verdict:
    """Require DESCRIBE_CONFIGS on topics and groups, or on the cluster for brokers."""
    return _configure(Operation.DESCRIBE_CONFIGS, request, access)


def alter_configs(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest, access: Access
) -> Verdict:
    """Require ALTER_CONFIGS on topics and groups, or on the cluster for brokers."""
    return _configure(Operation.ALTER_CONFIGS, request, access)


RULES: Final[Mapping[type[Message], Rule]] = {
    ProduceRequest: topic_rules.produce,
    FetchRequest: topic_rules.fetch,
    ListOffsetsRequest: topic_rules.list_offsets,
    MetadataRequest: topic_rules.metadata,
    OffsetCommitRequest: coordinator_rules.offset_commit,
    OffsetFetchRequest: coordinator_rules.offset_fetch,
    FindCoordinatorRequest: coordinator_rules.find_coordinator,
    JoinGroupRequest: coordinator_rules.membership,
    HeartbeatRequest: coordinator_rules.membership,
    LeaveGroupRequest: coordinator_rules.membership,
    SyncGroupRequest: coordinator_rules.membership,
    DescribeGroupsRequest: coordinator_rules.describe_groups,
    DescribeGroupLagRequest: coordinator_rules.describe_lag,
    FindNextRecordsRequest: act_as_member,
    WriteToRegistryRequest: act_as_member,
    CreateLinkRequest: on_cluster(Operation.ALTER),
    AlterLinkRequest: on_cluster(Operation.ALTER),
    DeleteLinkRequest: on_cluster(Operation.ALTER),
    AlterMirrorsRequest: on_cluster(Operation.ALTER),
    FailBackRequest: on_cluster(Operation.ALTER),
    AlterSealsRequest: on_cluster(Operation.ALTER),
    DescribeMirrorsRequest: on_cluster(Operation.DESCRIBE),
    CreateMirrorsRequest: on_cluster(Operation.CLUSTER_ACTION),
    AlterMirrorPartitionRequest: on_cluster(Operation.CLUSTER_ACTION),
    MarkAppsRequest: on_cluster(Operation.CLUSTER_ACTION),
    AlterLinkAclsRequest: on_cluster(Operation.CLUSTER_ACTION),
    ListGroupsRequest: coordinator_rules.list_groups,
    SaslHandshakeRequest: for_everybody,
    ApiVersionsRequest: for_everybody,
    CreateTopicsRequest: topic_rules.create_topics,
    DeleteTopicsRequest: topic_rules.delete_topics,
    DeleteRecordsRequest: topic_rules.delete_records,
    InitProducerIdRequest: init_producer_id,
    OffsetForLeaderEpochRequest: topic_rules.epoch_ends,
    AddPartitionsToTxnRequest: add_partitions,
    AddOffsetsToTxnRequest: add_offsets,
    EndTxnRequest: end_transaction,
    WriteTxnMarkersRequest: write_markers,
    TxnOffsetCommitRequest: commit_offsets,
    DescribeProducersRequest: describe_producers,
    DescribeTransactionsRequest: describe_transactions,
    ListTransactionsRequest: list_transactions,
    DescribeAclsRequest: on_cluster(Operation.DESCRIBE),
    CreateAclsRequest: on_cluster(Operation.ALTER),
    DeleteAclsRequest: on_cluster(Operation.ALTER),
    DescribeConfigsRequest: describe_configs,
    AlterConfigsRequest: alter_configs,
    AlterReplicaLogDirsRequest: on_cluster(Operation.ALTER),
    DescribeLogDirsRequest: on_cluster(Operation.DESCRIBE),
    SaslAuthenticateRequest: for_everybody,
    CreatePartitionsRequest: create_partitions,
    DeleteGroupsRequest: coordinator_rules.delete_groups,
    IncrementalAlterConfigsRequest: alter_configs,
    OffsetDeleteRequest: coordinator_rules.offset_delete,
    DescribeClientQuotasRequest: on_cluster(Operation.DESCRIBE_CONFIGS),
    AlterClientQuotasRequest: on_cluster(Operation.ALTER_CONFIGS),
    DescribeUserScramCredentialsRequest: on_cluster(Operation.DESCRIBE),
    AlterUserScramCredentialsRequest: on_cluster(Operation.ALTER),
    DescribeClusterRequest: topic_rules.describe_cluster,
    ConsumerGroupHeartbeatRequest: coordinator_rules.heartbeat,
    ConsumerGroupDescribeRequest: coordinator_rules.describe_consumer_groups,
    ElectLeadersRequest: on_cluster(Operation.ALTER),
    UnregisterBrokerRequest: on_cluster(Operation.ALTER),
    DescribeQuorumRequest: describe_quorum,
    # Requests between brokers of the cluster.
    VoteRequest: act_as_member,
    BeginQuorumEpochRequest: act_as_member,
    EndQuorumEpochRequest: act_as_member,
    FetchSnapshotRequest: act_as_member,
    BrokerRegistrationRequest: on_cluster(Operation.CLUSTER_ACTION),
    BrokerHeartbeatRequest: on_cluster(Operation.CLUSTER_ACTION),
    AlterPartitionRequest: on_cluster(Operation.CLUSTER_ACTION),
    AllocateProducerIdsRequest: on_cluster(Operation.CLUSTER_ACTION),
    AlterPartitionReassignmentsRequest: on_cluster(Operation.ALTER),
    ListPartitionReassignmentsRequest: on_cluster(Operation.DESCRIBE),
    # As in Kafka: a client that may connect may push its metrics.
    GetTelemetrySubscriptionsRequest: for_everybody,
    PushTelemetryRequest: for_everybody,
    ListConfigResourcesRequest: on_cluster(Operation.DESCRIBE_CONFIGS),
    DescribeTopicPartitionsRequest: describe_topic_partitions,
    PublishRequest: publish_job,
    StageRequest: stage_batches,
    DropStagedRequest: drop_batches,
}
