"""The rules of requests about groups and what coordinates them.

Membership and commits are READ, looking is DESCRIBE, deleting DELETE; positions are of topics as
well. As `KafkaApis` has them: a group that may not be used is GROUP_AUTHORIZATION_FAILED, a topic
in it TOPIC_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from typing import Any

from streamlog.broker.named_topics import TOPIC_IDS_VERSION, Named, named, nowhere
from streamlog.broker.security.access import GO_ON, Access, Verdict, split
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import consumer_group_description as described
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from streamlog.protocol.messages.coordination import (
    Coordinator,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
    SyncGroupResponse,
)
from streamlog.protocol.messages.group_admin import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from streamlog.protocol.schema import Message

DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_KEY = 0
MANY_COORDINATORS_VERSION = 4
MANY_GROUPS_VERSION = 8
NO_OFFSET = -1

_MEMBERSHIP: dict[type[Message], type[Any]] = {
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
}

MembershipRequest = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest


def membership(request: MembershipRequest, access: Access) -> Verdict:
    """READ on the group."""
    if access.group(Operation.READ, request.group_id):
        return GO_ON
    return Verdict(_MEMBERSHIP[type(request)](error_code=DENIED))


def heartbeat(request: ConsumerGroupHeartbeatRequest, access: Access) -> Verdict:
    """READ on the group, DESCRIBE on the topics that a member names."""
    if not access.group(Operation.READ, request.group_id):
        return Verdict(ConsumerGroupHeartbeatResponse(error_code=DENIED))
    for name in request.subscribed_topic_names or ():
        if not access.topic(Operation.DESCRIBE, name):
            return Verdict(ConsumerGroupHeartbeatResponse(error_code=TOPIC_DENIED))
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
        return Verdict(FindCoordinatorResponse(error_code=code, node_id=-1, port=-1))
    request.coordinator_keys, refused = split(request.coordinator_keys, may)
    answers = [Coordinator(key=key, node_id=-1, port=-1, error_code=code) for key in refused]

    def finish(response: FindCoordinatorResponse) -> None:
        response.coordinators = [*response.coordinators, *answers]

    return Verdict(finish=finish) if answers else GO_ON


def offset_commit(request: OffsetCommitRequest, access: Access) -> Verdict:
    """READ on the group and on topics."""
    if not access.group(Operation.READ, request.group_id):
        return Verdict(OffsetCommitResponse(topics=_not_committed(request.topics, DENIED)))
    kept, refused = split(request.topics, lambda each: _may(Operation.READ, each, access))
    if not refused:
        return GO_ON
    answers = _not_committed(refused, TOPIC_DENIED)
    if not kept:
        return Verdict(OffsetCommitResponse(topics=answers))
    request.topics = kept

    def finish(response: OffsetCommitResponse) -> None:
        response.topics = [*response.topics, *answers]

    return Verdict(finish=finish)


def _may(operation: Operation, topic: Named, access: Access) -> bool:
    """Whether this may be done to a topic; one with an unknown id is for whoever answers."""
    name = named(topic, access.name_of)
    is_unknown = not name and access.version >= TOPIC_IDS_VERSION
    return is_unknown or access.topic(operation, name)


def _not_committed(
    topics: list[OffsetCommitRequestTopic], code: int
) -> list[OffsetCommitResponseTopic]:
    return [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                for each in topic.partitions
            ],
        )
        for topic in topics
    ]


def offset_fetch(request: OffsetFetchRequest, access: Access) -> Verdict:
    """DESCRIBE on groups and on topics; of all positions those that may be seen."""
    if access.version >= MANY_GROUPS_VERSION:
        return _offset_fetch_many(request, access)
    if not access.group(Operation.DESCRIBE, request.group_id):
        # Old versions have no place for it but the partitions.
        topics = [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[_no_position(index, DENIED) for index in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ]
        return Verdict(OffsetFetchResponse(error_code=DENIED, topics=topics))
    answers: list[OffsetFetchResponseTopic] = []
    if request.topics is not None:
        request.topics, refused = split(
            request.topics, lambda each: access.topic(Operation.DESCRIBE, each.name)
        )
        answers = [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[_no_position(index, TOPIC_DENIED) for index in topic.partition_indexes],
            )
            for topic in refused
        ]

    def finish(response: OffsetFetchResponse) -> None:
        seen = [each for each in response.topics if access.topic(Operation.DESCRIBE, each.name)]
        response.topics = [*seen, *answers]

    return Verdict(finish=finish)


def _no_position(index: int, code: int) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code
    )


def _offset_fetch_many(request: OffsetFetchRequest, access: Access) -> Verdict:
    request.groups, refused = split(
        request.groups, lambda each: access.group(Operation.DESCRIBE, each.group_id)
    )
    answers = [
        OffsetFetchResponseGroup(group_id=each.group_id, error_code=DENIED) for each in refused
    ]
    hidden = {each.group_id: _hidden_topics(each, access) for each in request.groups}

    def finish(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            seen = [each for each in group.topics if _may(Operation.DESCRIBE, each, access)]
            group.topics = [*seen, *hidden.get(group.group_id, ())]
        response.groups = [*response.groups, *answers]

    return Verdict(finish=finish)


def _hidden_topics(
    group: OffsetFetchRequestGroup, access: Access
) -> list[OffsetFetchResponseTopics]:
    """Topics that were asked for by name and may not be seen; they are taken out."""
    if group.topics is None:
        return []
    group.topics, refused = split(group.topics, lambda each: _may(Operation.DESCRIBE, each, access))
    return [nowhere(topic, TOPIC_DENIED) for topic in refused]


def describe_groups(request: DescribeGroupsRequest, access: Access) -> Verdict:
    """DESCRIBE on groups."""
    request.groups, refused = split(
        request.groups, lambda name: access.group(Operation.DESCRIBE, name)
    )
    answers = [DescribedGroup(group_id=name, error_code=DENIED) for name in refused]

    def finish(response: DescribeGroupsResponse) -> None:
        for group in response.groups if request.include_authorized_operations else ():
            group.authorized_operations = access.operations(ResourceType.GROUP, group.group_id)
        response.groups = [*response.groups, *answers]

    return Verdict(finish=finish)


def describe_consumer_groups(
    request: described.ConsumerGroupDescribeRequest, access: Access
) -> Verdict:
    """DESCRIBE on groups, and on all topics of a group: else it is not shown."""
    request.group_ids, refused = split(
        request.group_ids, lambda name: access.group(Operation.DESCRIBE, name)
    )
    answers = [described.DescribedGroup(group_id=name, error_code=DENIED) for name in refused]

    def shown(group: described.DescribedGroup) -> described.DescribedGroup:
        if not all(access.topic(Operation.DESCRIBE, name) for name in _topics_of(group)):
            return described.DescribedGroup(group_id=group.group_id, error_code=TOPIC_DENIED)
        if request.include_authorized_operations:
            group.authorized_operations = access.operations(ResourceType.GROUP, group.group_id)
        return group

    def finish(response: described.ConsumerGroupDescribeResponse) -> None:
        response.groups = [*map(shown, response.groups), *answers]

    return Verdict(finish=finish)


def _topics_of(group: described.DescribedGroup) -> set[str]:
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
    request.groups_names, refused = split(
        request.groups_names, lambda name: access.group(Operation.DELETE, name)
    )
    answers = [DeletableGroupResult(group_id=name, error_code=DENIED) for name in refused]

    def finish(response: DeleteGroupsResponse) -> None:
        response.results = [*response.results, *answers]

    return Verdict(finish=finish) if answers else GO_ON


def offset_delete(request: OffsetDeleteRequest, access: Access) -> Verdict:
    """DELETE on the group, READ on topics."""
    if not access.group(Operation.DELETE, request.group_id):
        return Verdict(OffsetDeleteResponse(error_code=DENIED))
    request.topics, refused = split(
        request.topics, lambda each: access.topic(Operation.READ, each.name)
    )
    answers = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(
                    partition_index=each.partition_index, error_code=TOPIC_DENIED
                )
                for each in topic.partitions
            ],
        )
        for topic in refused
    ]

    def finish(response: OffsetDeleteResponse) -> None:
        response.topics = [*response.topics, *answers]

    return Verdict(finish=finish) if answers else GO_ON
