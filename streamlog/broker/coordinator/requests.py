"""GroupRequests: requests about groups, spread over the shards that hold them.

What changes a group goes to its shard and may wait there; what only looks is answered at once,
from as many shards as it asks about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.coordination import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    SyncGroupRequest,
)

if TYPE_CHECKING:
    import asyncio

    from streamlog.broker.coordinator.runtime import CoordinatorRuntime
    from streamlog.protocol.schema import Message

MANY_GROUPS_VERSION = 8
"""From this OffsetFetch version on several groups are asked for at once (KIP-709)."""
GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8))
"""Everything that can be done to a group, by the numbers of KIP-430: nothing is forbidden here."""

GroupRequest: TypeAlias = (
    JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest | OffsetCommitRequest
)
"""What goes to one group."""


class GroupRequests:
    """Everything a client can ask about groups."""

    def __init__(self, runtime: CoordinatorRuntime) -> None:
        self._runtime = runtime

    def begin(
        self, request: GroupRequest, *, version: int, client_id: str, client_host: str
    ) -> Message | asyncio.Future[Message]:
        """Hand a request to its group: the answer, or where it will be."""
        return self._runtime.begin(
            request.group_id,
            request,
            version=version,
            client_id=client_id,
            client_host=client_host,
        )

    def positions(self, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        """Committed offsets. No transaction is ever open, so all of them are stable."""
        if version >= MANY_GROUPS_VERSION:
            found = []
            for asked in request.groups:
                topics = asked.topics
                wanted = None if topics is None else [(t.name, t.partition_indexes) for t in topics]
                positions = self._runtime.groups_of(asked.group_id).positions(
                    asked.group_id, wanted
                )
                found.append(OffsetFetchResponseGroup(group_id=asked.group_id, topics=positions))
            return OffsetFetchResponse(groups=found)
        listed = request.topics
        wanted = None if listed is None else [(t.name, t.partition_indexes) for t in listed]
        positions = self._runtime.groups_of(request.group_id).positions(request.group_id, wanted)
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=each.partition_index,
                            committed_offset=each.committed_offset,
                            committed_leader_epoch=each.committed_leader_epoch,
                            metadata=each.metadata,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in positions
            ]
        )

    def no_positions(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """Nothing can be told: the log of the groups has failed."""
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        groups = [
            OffsetFetchResponseGroup(group_id=asked.group_id, error_code=code)
            for asked in request.groups
        ]
        return OffsetFetchResponse(error_code=code, groups=groups)

    def describe(self, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Groups with their members."""
        described = [self._runtime.groups_of(name).describe(name) for name in request.groups]
        if request.include_authorized_operations:
            for group in described:
                group.authorized_operations = GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=described)

    def listed(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """All groups, or those in the states and of the types asked for, in any case of letters."""
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        return ListGroupsResponse(
            groups=[
                group
                for shard in self._runtime.shards()
                for group in shard.listed()
                if (not states or group.group_state.lower() in states)
                and (not types or group.group_type.lower() in types)
            ]
        )
