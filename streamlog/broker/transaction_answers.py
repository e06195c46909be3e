"""The answers of a transaction coordinator, by request and version.

Pure. Clients before KIP-588 do not know PRODUCER_FENCED: to them it is INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.coordination import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamlog.protocol.schema import Message

FENCED_INIT_VERSION = 4
"""From this InitProducerId version on PRODUCER_FENCED is known."""
FENCED_VERSION = 2
"""The same for AddPartitionsToTxn, AddOffsetsToTxn and EndTxn."""


def code_answer(request: Message, version: int, code: ErrorCode) -> Message:
    """The response that carries nothing but a code."""
    match request:
        case InitProducerIdRequest():
            told = _for(version, FENCED_INIT_VERSION, code)
            return InitProducerIdResponse(error_code=told, producer_epoch=-1)
        case AddPartitionsToTxnRequest():
            told = _for(version, FENCED_VERSION, code)
            return partitions_answer(request, lambda _topic, _partition: told)
        case AddOffsetsToTxnRequest():
            return AddOffsetsToTxnResponse(error_code=_for(version, FENCED_VERSION, code))
        case EndTxnRequest():
            return EndTxnResponse(error_code=_for(version, FENCED_VERSION, code))
        case TxnOffsetCommitRequest():
            return offsets_answer(request, lambda _topic, _partition: code)
        case _:
            raise TypeError(f"no request of a transaction: {request!r}")


def partitions_answer(
    request: AddPartitionsToTxnRequest, code_of: Callable[[str, int], ErrorCode]
) -> AddPartitionsToTxnResponse:
    """The response in which each partition has its code."""
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_topic_results(request.v3_and_below_topics, code_of),
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=_topic_results(each.topics, code_of),
            )
            for each in request.transactions
        ],
    )


def _topic_results(
    topics: list[AddPartitionsToTxnTopic], code_of: Callable[[str, int], ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=code_of(topic.name, number)
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


def offsets_answer(
    request: TxnOffsetCommitRequest, code_of: Callable[[str, int], ErrorCode]
) -> TxnOffsetCommitResponse:
    """The response in which each position has its code."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=code_of(topic.name, each.partition_index),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _for(version: int, fenced_from: int, code: ErrorCode) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
