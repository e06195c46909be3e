"""The rules of requests about groups and what coordinates them.

Membership and commits are READ, looking is DESCRIBE, deleting DELETE; positions are of topics as
well. As `KafkaApis` has them: a group that may not be used is GROUP_AUTHORIZATION_FAILED, a topic
in it TOPIC_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from streamlog.broker.named_topics import TOPIC_IDS_VERSION, TopicKey, refuse_topic, topic_key
from streamlog.broker.security.access_checks import GO_ON, Access, Verdict, split, withhold
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_response
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

DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_KEY = 0
MANY_COORDINATORS_VERSION = 4
MANY_GROUPS_VERSION = 8
NO_OFFSET = -1

MembershipRequest = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest


def membership(request: MembershipRequest, access: Access) -> Verdict:
    """READ on the group."""
    if access.group(Operation.READ, request.group_id):
        return GO_ON
    return Verdict(error_response(request, DENIED))


def heartbeat(request: ConsumerGroupHeartbeatRequest, access: Access) -> Verdict:
    """READ on the group, DESCRIBE on the topics that a member names."""
    if not access.group(Operation.READ, request.group_id):
        return Verdict(error_response(request, DENIED))
    for name in request.subscribed_topic_names or ():
        if not access.topic(Operation.DESCRIBE, name):
            return Verdict(error_response(request, TOPIC_DENIED))
    return GO_ON


def find_coordinator(request: FindCoordinatorRequest, access: Access) -> Verdict:
    """DESCRIBE on the group or the transactional id."""
    is_group = request.key_type == GROUP_KEY
    code = DENIED if is_group else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

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
    """READ on the group and on topics."""
    if not access.group(Operation.READ, request.group_id):
        return Verdict(error_response(request, DENIED))

    def may(topic: OffsetCommitRequestTopic) -> bool:
        return _may(Operation.READ, topic, access)

    if request.topics and not any(map(may, request.topics)):
        return Verdict(error_response(request, TOPIC_DENIED))
    return withhold(request, "topics", may, TOPIC_DENIED)


def _may(operation: Operation, topic: TopicKey, access: Access) -> bool:
    """Whether this may be done to a topic; one with an unknown id is for whoever answers."""
    name = topic_key(topic, access.name_of)
    is_unknown = not name and access.version >= TOPIC_IDS_VERSION
    return is_unknown or access.topic(operation, name)


def offset_fetch(request: OffsetFetchRequest, access: Access) -> Verdict:
    """DESCRIBE on groups and on topics; of all positions those that may be seen."""
    if access.version >= MANY_GROUPS_VERSION:
        return _offset_fetch_many(request, access)
    if not access.group(Operation.DESCRIBE, request.group_id):
        return Verdict(error_response(request, DENIED))

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
            seen = [each for each in group.topics if _may(Operation.DESCRIBE, each, access)]
            group.topics = [*seen, *hidden.get(group.group_id, ())]

    return withhold(request, "groups", may, DENIED, finish=finish)


def _hidden_topics(
    group: OffsetFetchRequestGroup, access: Access
) -> list[OffsetFetchResponseTopics]:
    """Topics that were asked for by name and may not be seen; they are taken out."""
    if group.topics is None:
        return []
    group.topics, refused = split(group.topics, lambda each: _may(Operation.DESCRIBE, each, access))
    return [refuse_topic(topic, TOPIC_DENIED) for topic in refused]


def describe_groups(request: DescribeGroupsRequest, access: Access) -> Verdict:
    """DESCRIBE on groups."""

    def may(name: str) -> bool:
        return access.group(Operation.DESCRIBE, name)

    def finish(response: DescribeGroupsResponse) -> None:
        for group in response.groups if request.include_authorized_operations else ():
            group.authorized_operations = access.operations(ResourceType.GROUP, group.group_id)

    return withhold(request, "groups", may, DENIED, finish=finish)


def describe_consumer_groups(
    request: described.ConsumerGroupDescribeRequest, access: Access
) -> Verdict:
    """DESCRIBE on groups, and on all topics of a group: else it is not shown."""

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

    return withhold(request, "group_ids", may, DENIED, finish=finish)


def _topics_of(group: described.DescribedConsumerGroup) -> set[str]:
    names: set[str] = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            if assignment is not None:
                names.update(each.topic_name for each in assignment.topic_partitions)
    return names


def list_groups(request: ListGroupsRequest, access: Access) -> Verdict:  # noqa: ARG001 - as all rules
    """DESCRIBE on the cluster: all; else those groups on which it may be done."""
    if access.cluster(Operation.DESCRIBE):
        return GO_ON

    def finish(response: ListGroupsResponse) -> None:
        response.groups = [
            each for each in response.groups if access.group(Operation.DESCRIBE, each.group_id)
        ]

    return Verdict(finish=finish)


def delete_groups(request: DeleteGroupsRequest, access: Access) -> Verdict:
    """DELETE on groups."""

    def may(name: str) -> bool:
        return access.group(Operation.DELETE, name)

    return withhold(request, "groups_names", may, DENIED)


def offset_delete(request: OffsetDeleteRequest, access: Access) -> Verdict:
    """DELETE on the group, READ on topics."""
    if not access.group(Operation.DELETE, request.group_id):
        return Verdict(error_response(request, DENIED))

    def may(topic: OffsetDeleteRequestTopic) -> bool:
        return access.topic(Operation.READ, topic.name)

    return withhold(request, "topics", may, TOPIC_DENIED)
