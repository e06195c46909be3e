"""Commits in transactions: TxnOffsetCommit in the words of OffsetCommit, and back.

Pure. What is committed and who may is the same, with two exceptions: a producer that says nothing
of its group, as all did before KIP-447, is let in whatever members there are, and epochs of
members are generations to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.coordinator.shard import Answer, Outcome
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.coordination import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from streamlog.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from streamlog.protocol.schema import Message

COMMIT_VERSION = 9
"""Of the commit that it is taken for: the newest, in which members have epochs."""


def names_nobody(request: TxnOffsetCommitRequest) -> bool:
    """Whether it says nothing of a member of the group."""
    return request.generation_id < 0 and not request.member_id and request.group_instance_id is None


def as_commit(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """The same commit without a transaction."""
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=-1,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        committed_metadata=each.committed_metadata,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def in_transaction(outcome: Outcome, request: TxnOffsetCommitRequest) -> Outcome:
    """What a commit leads to, as part of the producer's transaction."""
    answers = tuple(Answer(each.ticket, _response(each.response)) for each in outcome.answers)
    return Outcome(outcome.records, answers, (request.producer_id, request.producer_epoch))


def _response(response: Message) -> Message:
    if not isinstance(response, OffsetCommitResponse):
        return response
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=_code(each.error_code)
                    )
                    for each in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )


def _code(code: int) -> int:
    return ErrorCode.ILLEGAL_GENERATION if code == ErrorCode.STALE_MEMBER_EPOCH else code
