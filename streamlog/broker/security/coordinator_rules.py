"""Authorization rules of groups and transactions, and of published jobs.

As in Kafka's `KafkaApis`: membership and commits need READ on the group, descriptions need
DESCRIBE, and deletion needs DELETE; offsets also need the right to their topic. A refused group
gets GROUP_AUTHORIZATION_FAILED, and a refused topic in it gets TOPIC_AUTHORIZATION_FAILED.

A Produce request with a transactional batch must name a transactional id. One that does not is
refused as a whole, as in Kafka: before its topics and `acks` are checked, by the header of the
first batch of each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamlog.broker.named_topics import TOPIC_IDS_VERSION, TopicKey, refuse_topic, topic_key
from streamlog.broker.security.acl_authorizer import (
    GO_ON,
    Access,
    Verdict,
    item_errors,
    split,
    withhold,
)
from streamlog.errors import CorruptData
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.error_responses import by_partition, error_response
from streamlog.protocol.messages import consumer_groups as described
from streamlog.protocol.messages.classic_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
)
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
)
from streamlog.protocol.messages.lag_messages import (
    DescribeGroupLagRequest,
    DescribeGroupLagResponse,
)
from streamlog.protocol.messages.publishing import (
    DropStagedRequest,
    PublishRequest,
    StageRequest,
)
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    WriteTxnMarkersRequest,
)
from streamlog.protocol.schema import one_buffer
from streamlog.records.batch import HEADER_BYTES, RecordBatch

if TYPE_CHECKING:
    from streamlog.errors import LogError
    from streamlog.protocol.messages.produce_and_fetch import ProduceRequest
    from streamlog.protocol.schema import Buffer


GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_KEY = 0
MANY_COORDINATORS_VERSION = 4
MANY_GROUPS_VERSION = 8
NO_OFFSET = -1

MembershipRequest = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest


def membership(request: MembershipRequest, access: Access) -> Verdict:
    """Require READ on the group."""
    if access.group(Operation.READ, request.group_id):
        return GO_ON
    return Verdict(error_response(request, GROUP_DENIED))


def heartbeat(request: ConsumerGroupHeartbeatRequest, access: Access) -> Verdict:
    """Require READ on the group, and DESCRIBE on the topics that the member names."""
    if not access.group(Operation.READ, request.group_id):
        return Verdict(error_response(request, GROUP_DENIED))
    # As a whole, as in Kafka: the response has no error per topic.
    for name in request.subscribed_topic_names or ():
        if not access.topic(Operation.DESCRIBE, name):
            return Verdict(error_response(request, TOPIC_DENIED))
    return GO_ON


def find_coordinator(request: FindCoordinatorRequest, access: Access) -> Verdict:
    """Require DESCRIBE on the group or the transactional id."""
    is_group = request.key_type == GROUP_KEY
    code = GROUP_DENIED if is_group else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def may(key: str) -> bool:
        if is_group:
            return access.group(Operation.DESCRIBE, key)
        return access.transactional_id(Operation.DESCRIBE, key)

    if access.version < MANY_COORDINATORS_VERSION:
        if may(request.key):
            return GO_ON
        return Verdict(error_response(request, code))
    return withhold(request, "coordinator_keys", may, code)


def offset_commit(request: OffsetCommitRequest, access: Access) -> Verdict:
    """Require READ on the group and on topics."""
    if not access.group(Operation.READ, request.group_id):
        return Verdict(error_response(request, GROUP_DENIED))

    def may(topic: OffsetCommitRequestTopic) -> bool:
        return _may(Operation.READ, topic, access)

    # As in Kafka: if no topic is allowed, the request as a whole gets the error.
    if request.topics and not any(map(may, request.topics)):
        return Verdict(error_response(request, TOPIC_DENIED))
    return withhold(request, "topics", may, TOPIC_DENIED)


def _may(operation: Operation, topic: TopicKey, access: Access) -> bool:
    """Whether the operation on a topic is allowed; the handler answers an unknown id."""
    name = topic_key(topic, access.name_of)
    is_unknown = not name and access.version >= TOPIC_IDS_VERSION
    return is_unknown or access.topic(operation, name)


def offset_fetch(request: OffsetFetchRequest, access: Access) -> Verdict:
    """Require DESCRIBE on groups and topics; a request for all offsets gets the visible ones."""
    if access.version >= MANY_GROUPS_VERSION:
        return _offset_fetch_many(request, access)
    if not access.group(Operation.DESCRIBE, request.group_id):
        return Verdict(error_response(request, GROUP_DENIED))

    def may(topic: OffsetFetchRequestTopic | OffsetFetchResponseTopic) -> bool:
        return access.topic(Operation.DESCRIBE, topic.name)

    def finish(response: OffsetFetchResponse) -> None:
        response.topics = [each for each in response.topics if may(each)]

    if request.topics is None:
        return Verdict(finish=finish)
    return withhold(request, "topics", may, TOPIC_DENIED, finish=finish)


def _offset_fetch_many(request: OffsetFetchRequest, access: Access) -> Verdict:
    def may(group: OffsetFetchRequestGroup) -> bool:
        return access.group(Operation.DESCRIBE, group.group_id)

    hidden = {each.group_id: _hidden_topics(each, access) for each in request.groups if may(each)}

    def finish(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            # A request for all offsets names no topics: those in the response are judged here.
            seen = [each for each in group.topics if _may(Operation.DESCRIBE, each, access)]
            group.topics = [*seen, *hidden.get(group.group_id, ())]

    return withhold(request, "groups", may, GROUP_DENIED, finish=finish)


def _hidden_topics(
    group: OffsetFetchRequestGroup, access: Access
) -> list[OffsetFetchResponseTopics]:
    """Remove topics that may not be seen, and return the errors for them."""
    if group.topics is None:
        return []
    group.topics, refused = split(group.topics, lambda each: _may(Operation.DESCRIBE, each, access))
    return [refuse_topic(topic, TOPIC_DENIED) for topic in refused]


def describe_groups(request: DescribeGroupsRequest, access: Access) -> Verdict:
    """Require DESCRIBE on groups."""

    def may(name: str) -> bool:
        return access.group(Operation.DESCRIBE, name)

    def finish(response: DescribeGroupsResponse) -> None:
        for group in response.groups if request.include_authorized_operations else ():
            group.authorized_operations = access.operations(ResourceType.GROUP, group.group_id)

    return withhold(request, "groups", may, GROUP_DENIED, finish=finish)


def describe_consumer_groups(
    request: described.ConsumerGroupDescribeRequest, access: Access
) -> Verdict:
    """Require DESCRIBE on groups, and on all topics of a group; otherwise the group is hidden."""

    def may(name: str) -> bool:
        return access.group(Operation.DESCRIBE, name)

    def shown(group: described.DescribedConsumerGroup) -> described.DescribedConsumerGroup:
        if not all(access.topic(Operation.DESCRIBE, name) for name in _topics_of(group)):
            return described.DescribedConsumerGroup(
                group_id=group.group_id, error_code=TOPIC_DENIED
            )
        if request.include_authorized_operations:
            group.authorized_operations = access.operations(ResourceType.GROUP, group.group_id)
        return group

    def finish(response: described.ConsumerGroupDescribeResponse) -> None:
        response.groups = [*map(shown, response.groups)]

    return withhold(request, "group_ids", may, GROUP_DENIED, finish=finish)


def _topics_of(group: described.DescribedConsumerGroup) -> set[str]:
    names: set[str] = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            if assignment is not None:
                names.update(each.topic_name for each in assignment.topic_partitions)
    return names


def describe_lag(request: DescribeGroupLagRequest, access: Access) -> Verdict:
    """Require DESCRIBE on groups; topics without DESCRIBE are left out."""

    def may(name: str) -> bool:
        return access.group(Operation.DESCRIBE, name)

    def finish(response: DescribeGroupLagResponse) -> None:
        for group in response.groups:
            group.topics = [t for t in group.topics if access.topic(Operation.DESCRIBE, t.name)]

    return withhold(request, "groups", may, GROUP_DENIED, finish=finish)


def list_groups(request: ListGroupsRequest, access: Access) -> Verdict:  # noqa: ARG001 - as all rules
    """List all groups with DESCRIBE on the cluster, otherwise those with DESCRIBE."""
    if access.cluster(Operation.DESCRIBE):
        return GO_ON

    def finish(response: ListGroupsResponse) -> None:
        response.groups = [
            each for each in response.groups if access.group(Operation.DESCRIBE, each.group_id)
        ]

    return Verdict(finish=finish)


def delete_groups(request: DeleteGroupsRequest, access: Access) -> Verdict:
    """Require DELETE on groups."""

    def may(name: str) -> bool:
        return access.group(Operation.DELETE, name)

    return withhold(request, "groups_names", may, GROUP_DENIED)


def offset_delete(request: OffsetDeleteRequest, access: Access) -> Verdict:
    """Require DELETE on the group, and READ on topics."""
    if not access.group(Operation.DELETE, request.group_id):
        return Verdict(error_response(request, GROUP_DENIED))

    def may(topic: OffsetDeleteRequestTopic) -> bool:
        return access.topic(Operation.READ, topic.name)

    return withhold(request, "topics", may, TOPIC_DENIED)


ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def publish_job(request: PublishRequest, access: Access) -> Verdict:
    """Require WRITE on the job's id and all topics, and READ on groups and their topics."""
    if not access.transactional_id(Operation.WRITE, request.job_id):
        return _refuse_job(
            request, ID_DENIED, f"{Operation.WRITE.name} on transactional id {request.job_id}"
        )
    for topic in request.topics:
        if not access.topic(Operation.WRITE, topic.name):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _refuse_job(request, denied, f"{Operation.WRITE.name} on topic {topic.name}")
    for group in request.groups:
        if not access.group(Operation.READ, group.group_id):
            denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return _refuse_job(request, denied, f"{Operation.READ.name} on group {group.group_id}")
        for placed in group.topics:
            if not access.topic(Operation.READ, placed.name):
                denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                return _refuse_job(request, denied, f"{Operation.READ.name} on topic {placed.name}")
    return GO_ON


def stage_batches(request: StageRequest, access: Access) -> Verdict:
    """Require WRITE on the job's id."""
    if access.transactional_id(Operation.WRITE, request.job_id):
        return GO_ON
    return Verdict(error_response(request, ID_DENIED))


def drop_batches(request: DropStagedRequest, access: Access) -> Verdict:
    """Require WRITE on the job's id."""
    if access.transactional_id(Operation.WRITE, request.job_id):
        return GO_ON
    return Verdict(error_response(request, ID_DENIED))


def _refuse_job(request: PublishRequest, code: ErrorCode, what: str) -> Verdict:
    return Verdict(error_response(request, code, f"{what} is not allowed"))


CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def add_partitions(request: AddPartitionsToTxnRequest, access: Access) -> Verdict:
    """Require WRITE on the transactional id and all topics; otherwise nothing is added.

    Brokers, which ask on behalf of many producers, need CLUSTER_ACTION.
    """
    if request.transactions:
        if access.cluster(Operation.CLUSTER_ACTION):
            return GO_ON
        return Verdict(AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED))
    if not access.transactional_id(Operation.WRITE, request.v3_and_below_transactional_id):
        return Verdict(error_response(request, ID_DENIED))
    names = {topic.name for topic in request.v3_and_below_topics}
    denied = {name for name in names if not access.topic(Operation.WRITE, name)}
    if not denied:
        return GO_ON
    # All or nothing, as in Kafka: the allowed partitions are reported as not attempted.
    code_of = by_partition(
        lambda topic, _: TOPIC_DENIED if topic in denied else ErrorCode.OPERATION_NOT_ATTEMPTED
    )
    return Verdict(item_errors(request, code_of))


def add_offsets(request: AddOffsetsToTxnRequest, access: Access) -> Verdict:
    """Require WRITE on the transactional id, and READ on the group."""
    code = _refusal(access, request.transactional_id, request.group_id)
    if code is ErrorCode.NONE:
        return GO_ON
    return Verdict(error_response(request, code))


def end_transaction(request: EndTxnRequest, access: Access) -> Verdict:
    """Require WRITE on the transactional id."""
    if access.transactional_id(Operation.WRITE, request.transactional_id):
        return GO_ON
    return Verdict(error_response(request, ID_DENIED))


def commit_offsets(request: TxnOffsetCommitRequest, access: Access) -> Verdict:
    """Require WRITE on the transactional id, and READ on the group and on each topic."""
    code = _refusal(access, request.transactional_id, request.group_id)
    if code is not ErrorCode.NONE:
        return Verdict(error_response(request, code))

    def may(topic: TxnOffsetCommitRequestTopic) -> bool:
        return access.topic(Operation.READ, topic.name)

    if request.topics and not any(map(may, request.topics)):
        return Verdict(error_response(request, TOPIC_DENIED))
    return withhold(request, "topics", may, TOPIC_DENIED)


def write_markers(request: WriteTxnMarkersRequest, access: Access) -> Verdict:
    """Require CLUSTER_ACTION on the cluster."""
    if access.cluster(Operation.CLUSTER_ACTION):
        return GO_ON
    return Verdict(error_response(request, CLUSTER_DENIED))


def list_transactions(_: ListTransactionsRequest, access: Access) -> Verdict:
    """List the transactional ids with DESCRIBE."""

    def finish(response: ListTransactionsResponse) -> None:
        response.transaction_states = [
            each
            for each in response.transaction_states
            if access.transactional_id(Operation.DESCRIBE, each.transactional_id)
        ]

    return Verdict(finish=finish)


def describe_transactions(request: DescribeTransactionsRequest, access: Access) -> Verdict:
    """Require DESCRIBE on each transactional id; topics without DESCRIBE are left out."""

    def may(name: str) -> bool:
        return access.transactional_id(Operation.DESCRIBE, name)

    def finish(response: DescribeTransactionsResponse) -> None:
        for each in response.transaction_states:
            each.topics = [t for t in each.topics if access.topic(Operation.DESCRIBE, t.topic)]

    return withhold(request, "transactional_ids", may, ID_DENIED, finish=finish)


def describe_producers(request: DescribeProducersRequest, access: Access) -> Verdict:
    """Require READ on each topic."""

    def may(topic: DescribeProducersTopic) -> bool:
        return access.topic(Operation.READ, topic.name)

    return withhold(request, "topics", may, TOPIC_DENIED)


def _refusal(access: Access, transactional_id: str, group_id: str) -> ErrorCode:
    if not access.transactional_id(Operation.WRITE, transactional_id):
        return ID_DENIED
    return ErrorCode.NONE if access.group(Operation.READ, group_id) else GROUP_DENIED


_ATTRIBUTES_LOW_AT: Final = 22
"""The position of the second byte of a batch's attributes."""
_TRANSACTIONAL: Final = 0x10
"""The bit of that byte that marks a transactional batch."""


def refusal_without_id(request: ProduceRequest) -> LogError | None:
    """Return the error of a request with transactional batches and no transactional id, if any."""
    if request.transactional_id is not None:
        return None
    pieces = (one_buffer(p.records) for t in request.topic_data for p in t.partition_data)
    return next(filter(None, map(refusal_of_transactional, pieces)), None)


def refusal_of_transactional(records: Buffer) -> LogError | None:
    """Return the error of a transactional first batch without a transactional id, if it is one."""
    # The bit is checked before the batch is decoded, because almost no batch has it.
    if len(records) < HEADER_BYTES or not records[_ATTRIBUTES_LOW_AT] & _TRANSACTIONAL:
        return None
    try:
        if not RecordBatch(records).is_transactional:
            return None
    except CorruptData:
        return None  # The append reports what is wrong.
    return error_for(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "a transactional batch was sent in a request without a transactional id",
    )
