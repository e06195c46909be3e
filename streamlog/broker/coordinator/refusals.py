"""Refusals: for each request about a group the response that carries nothing but an error.

Needed where a request is refused as a whole: by the group, or by the runtime when the log of
the groups could not take what was decided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlog.broker.coordinator.commits import commit_response
from streamlog.broker.coordinator.position_answers import no_positions
from streamlog.broker.transaction_answers import offsets_answer
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from streamlog.protocol.messages.coordination import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from streamlog.protocol.messages.group_admin import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from streamlog.protocol.messages.transactions import TxnOffsetCommitRequest
from streamlog.protocol.schema import Message

_REFUSALS: dict[type[Message], Callable[[Any, int], Message]] = {
    JoinGroupRequest: lambda request, code: JoinGroupResponse(
        error_code=code, protocol_name="", member_id=request.member_id
    ),
    SyncGroupRequest: lambda _, code: SyncGroupResponse(error_code=code),
    HeartbeatRequest: lambda _, code: HeartbeatResponse(error_code=code),
    LeaveGroupRequest: lambda _, code: LeaveGroupResponse(error_code=code),
    ConsumerGroupHeartbeatRequest: lambda _, code: ConsumerGroupHeartbeatResponse(error_code=code),
    OffsetCommitRequest: lambda request, code: commit_response(request, lambda *_: code),
    OffsetFetchRequest: no_positions,
    TxnOffsetCommitRequest: lambda request, code: offsets_answer(
        request, lambda *_: ErrorCode(code)
    ),
    OffsetDeleteRequest: lambda _, code: OffsetDeleteResponse(error_code=code),
    DeleteGroupsRequest: lambda request, code: DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=name, error_code=code) for name in request.groups_names
        ]
    ),
}


def refuse(request: Message, code: int) -> Message:
    """The response to `request` that says `code`."""
    return _REFUSALS[type(request)](request, code)
