"""GroupRequests: requests about groups, spread over the shards that own them.

A request that changes a group goes to its shard and may wait there. A request that only reads is
answered at once from all shards that it concerns. A request for committed offsets is answered after
proof that this broker is still the coordinator (`Proofs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from streamlog import repeated
from streamlog.broker.coordinator.group.committed_offsets import (
    fetch_group_offsets,
    fetch_offsets,
    join_groups,
    split_by_group,
)
from streamlog.broker.future_responses import Answer, has_failed, is_abandoned
from streamlog.broker.handlers import Handlers, entry, shared_entry
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import consumer_groups as description
from streamlog.protocol.messages.classic_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetDeleteRequest,
)
from streamlog.protocol.messages.transaction_messages import TxnOffsetCommitRequest
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.coordinator.group.group_coordinator import GroupCoordinator
    from streamlog.broker.coordinator.group.group_runtime import CoordinatorRuntime
    from streamlog.broker.security.principals import RequestContext

MANY_GROUPS_VERSION = 8
"""From this OffsetFetch version on, a request names several groups (KIP-709)."""
GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8))
"""All operations on a group, by the numbers of KIP-430; nothing is forbidden here."""

GROUP_ID_NOT_FOUND_VERSION = 6
"""From this DescribeGroups version on, a group that does not exist is an error (KIP-1043)."""

GroupRequest: TypeAlias = (
    JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | ConsumerGroupHeartbeatRequest
    | OffsetCommitRequest
    | OffsetDeleteRequest
    | TxnOffsetCommitRequest
)
"""The requests to one group."""

M = TypeVar("M", bound=Message)

DEAD = "Dead"
"""The state of a group that does not exist."""
REASON_CHARACTERS_MAX = 255
"""Logged characters of the reason that a member gives for joining or leaving."""

_logger = repeated.logger(__name__)


class GroupRequests:
    """All requests of clients about groups."""

    def __init__(self, runtime: CoordinatorRuntime) -> None:
        self._runtime = runtime

    def handlers(self, on_deadline: Callable[[], None]) -> Handlers:
        """Return the handlers.

        `on_deadline` is called when a deadline may be earlier than before.
        """

        def begin(request: GroupRequest, at: RequestContext) -> Answer:
            answer = self.begin(
                request,
                version=at.version,
                client_id=at.client_id or "",
                client_host=at.client_host,
            )
            # The request may have set a deadline before the one that the timer waits for.
            on_deadline()
            return answer

        def look(request: OffsetFetchRequest, at: RequestContext) -> Answer:
            answer = self.positions(request, at.version)
            on_deadline()
            return answer

        return dict(
            [
                shared_entry(JoinGroupRequest, begin),
                shared_entry(SyncGroupRequest, begin),
                shared_entry(HeartbeatRequest, begin),
                shared_entry(LeaveGroupRequest, begin),
                shared_entry(ConsumerGroupHeartbeatRequest, begin),
                shared_entry(OffsetCommitRequest, begin),
                shared_entry(OffsetDeleteRequest, begin),
                shared_entry(OffsetFetchRequest, look),
                entry(
                    DeleteGroupsRequest,
                    lambda request, at: self.delete(
                        request, client_id=at.client_id or "", client_host=at.client_host
                    ),
                ),
                entry(
                    DescribeGroupsRequest, lambda request, at: self.describe(request, at.version)
                ),
                entry(
                    ConsumerGroupDescribeRequest,
                    lambda request, _: self.describe_consumers(request),
                ),
                entry(ListGroupsRequest, lambda request, _: self.list_groups(request)),
            ]
        )

    def begin(
        self, request: GroupRequest, *, version: int, client_id: str, client_host: str
    ) -> Message | asyncio.Future[Message]:
        """Pass a request to its group; return the response, or a future of it."""
        _log_reasons(request)
        return self._runtime.begin(
            request.group_id,
            request,
            version=version,
            client_id=client_id,
            client_host=client_host,
        )

    def partition_of(self, group_id: str) -> tuple[str, int]:
        """See `CoordinatorRuntime.partition_of`."""
        return self._runtime.partition_of(group_id)

    def positions(self, request: OffsetFetchRequest, version: int) -> Answer:
        """Fetch committed offsets, once they are committed and proven to be current."""
        if version < MANY_GROUPS_VERSION:
            return self._look(request.group_id, request, version, fetch_group_offsets)
        reasons = partial(fetch_offsets, version=version)
        answers = [
            self._look(each.groups[0].group_id, each, version, reasons)
            for each in split_by_group(request)
        ]
        return gather_answers(answers, join_groups)

    def _look(
        self,
        group_id: str,
        request: OffsetFetchRequest,
        version: int,
        reasons: Callable[[OffsetFetchRequest, GroupCoordinator], Message],
    ) -> Answer:
        return self._runtime.look(group_id, request, version, partial(reasons, request))

    def delete(
        self, request: DeleteGroupsRequest, *, client_id: str, client_host: str
    ) -> DeleteGroupsResponse | asyncio.Future[DeleteGroupsResponse]:
        """Delete groups, each in its shard.

        The response comes when all tombstones are committed.
        """
        answers = [
            self._runtime.begin(
                name,
                DeleteGroupsRequest(groups_names=[name]),
                version=0,
                client_id=client_id,
                client_host=client_host,
            )
            # Each name once, in the order of the request.
            for name in dict.fromkeys(request.groups_names)
        ]
        return gather_answers(answers, _deletions)

    def describe(self, request: DescribeGroupsRequest, version: int) -> DescribeGroupsResponse:
        """Describe groups of the classic protocol."""
        described = [self._describe(name) for name in request.groups]
        for group in described:
            if group.group_state == DEAD and version >= GROUP_ID_NOT_FOUND_VERSION:
                group.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                group.error_message = f"group {group.group_id!r} does not exist"
        if request.include_authorized_operations:
            for group in described:
                group.authorized_operations = GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=described)

    def _describe(self, name: str) -> DescribedGroup:
        try:
            return self._runtime.groups_of(name).describe(name)
        except LogError as error:
            return DescribedGroup(error_code=error.code, error_message=str(error), group_id=name)

    def describe_consumers(
        self, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        """Describe groups of the consumer protocol."""
        described = [self._describe_consumer_group(name) for name in request.group_ids]
        if request.include_authorized_operations:
            for group in described:
                group.authorized_operations = GROUP_OPERATIONS
        return ConsumerGroupDescribeResponse(groups=described)

    def _describe_consumer_group(self, name: str) -> description.DescribedConsumerGroup:
        try:
            return self._runtime.groups_of(name).describe_consumers(name)
        except LogError as error:
            return description.DescribedConsumerGroup(
                error_code=error.code, error_message=str(error), group_id=name
            )

    def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """List groups, optionally by state and type, without regard to case."""
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        try:
            shards = self._runtime.shards()
        except LogError as error:
            return ListGroupsResponse(error_code=error.code)
        return ListGroupsResponse(
            groups=[
                group
                for shard in shards
                for group in shard.list_groups()
                if (not states or group.group_state.lower() in states)
                and (not types or group.group_type.lower() in types)
            ]
        )


def gather_answers(
    answers: Sequence[Message | asyncio.Future[Message]],
    merge: Callable[[Sequence[Message]], M],
) -> M | asyncio.Future[M]:
    """Merge several responses into one, now or when the last of them is available."""
    waiting = [answer for answer in answers if isinstance(answer, asyncio.Future)]
    if not waiting:
        return merge([answer for answer in answers if not isinstance(answer, asyncio.Future)])
    whole: asyncio.Future[M] = asyncio.get_running_loop().create_future()

    def on_done(done: asyncio.Future[Message]) -> None:
        if is_abandoned(whole, done) or has_failed(whole, done):
            return
        if all(each.done() for each in waiting):
            found = [
                each.result() if isinstance(each, asyncio.Future) else each for each in answers
            ]
            whole.set_result(merge(found))

    for each in waiting:
        each.add_done_callback(on_done)
    return whole


def _deletions(answers: Sequence[Message]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            result
            for answer in answers
            if isinstance(answer, DeleteGroupsResponse)
            for result in answer.results
        ]
    )


def _log_reasons(request: GroupRequest) -> None:
    """Log why members join and leave (KIP-800)."""
    match request:
        case JoinGroupRequest(reason=str(reason)) if reason:
            reasons = [(request.member_id or "a new member", "joins", reason)]
        case LeaveGroupRequest():
            reasons = [(m.member_id, "leaves", m.reason) for m in request.members if m.reason]
        case _:
            return
    for member, action, reason in reasons:
        _logger.info(
            "group %s: %s %s: %.*s",
            request.group_id,
            member,
            action,
            REASON_CHARACTERS_MAX,
            reason,
        )
