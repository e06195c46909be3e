"""The rules of requests about transactions: the transactional id's, and the topics' and groups'."""

from __future__ import annotations

from streamlog.broker.security.access import GO_ON, Access, Verdict, split
from streamlog.broker.transaction_answers import (
    code_answer,
    offsets_answer,
    partitions_answer,
)
from streamlog.protocol.acls import Operation
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    PartitionResponse,
    TopicResponse,
    TransactionState,
)
from streamlog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def add_partitions(request: AddPartitionsToTxnRequest, access: Access) -> Verdict:
    """WRITE on the transactional id and on all topics, or nothing is done.

    Of brokers, which ask on behalf of many, CLUSTER_ACTION.
    """
    if request.transactions:
        if access.cluster(Operation.CLUSTER_ACTION):
            return GO_ON
        return Verdict(AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED))
    if not access.transactional_id(Operation.WRITE, request.v3_and_below_transactional_id):
        return Verdict(code_answer(request, access.version, ID_DENIED))
    names = {topic.name for topic in request.v3_and_below_topics}
    denied = {name for name in names if not access.topic(Operation.WRITE, name)}
    if not denied:
        return GO_ON
    return Verdict(
        partitions_answer(
            request,
            lambda topic, _: TOPIC_DENIED if topic in denied else ErrorCode.OPERATION_NOT_ATTEMPTED,
        )
    )


def add_offsets(request: AddOffsetsToTxnRequest, access: Access) -> Verdict:
    """WRITE on the transactional id, READ on the group."""
    code = _refusal(access, request.transactional_id, request.group_id)
    if code is ErrorCode.NONE:
        return GO_ON
    return Verdict(code_answer(request, access.version, code))


def end(request: EndTxnRequest, access: Access) -> Verdict:
    """WRITE on the transactional id."""
    if access.transactional_id(Operation.WRITE, request.transactional_id):
        return GO_ON
    return Verdict(code_answer(request, access.version, ID_DENIED))


def commit_offsets(request: TxnOffsetCommitRequest, access: Access) -> Verdict:
    """WRITE on the transactional id, READ on the group and on each topic."""
    code = _refusal(access, request.transactional_id, request.group_id)
    if code is not ErrorCode.NONE:
        return Verdict(code_answer(request, access.version, code))
    kept, refused = split(request.topics, lambda topic: access.topic(Operation.READ, topic.name))
    if not refused:
        return GO_ON
    request.topics = refused
    answers = offsets_answer(request, lambda *_: TOPIC_DENIED)
    request.topics = kept
    if not kept:
        return Verdict(answers)

    def finish(response: TxnOffsetCommitResponse) -> None:
        response.topics = [*response.topics, *answers.topics]

    return Verdict(finish=finish)


def write_markers(request: WriteTxnMarkersRequest, access: Access) -> Verdict:
    """CLUSTER_ACTION on the cluster."""
    if access.cluster(Operation.CLUSTER_ACTION):
        return GO_ON
    return Verdict(
        WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=each.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=number, error_code=CLUSTER_DENIED
                                )
                                for number in topic.partition_indexes
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for each in request.markers
            ]
        )
    )


def list_transactions(_: ListTransactionsRequest, access: Access) -> Verdict:
    """DESCRIBE on each transactional id; others are not told of."""

    def finish(response: ListTransactionsResponse) -> None:
        response.transaction_states = [
            each
            for each in response.transaction_states
            if access.transactional_id(Operation.DESCRIBE, each.transactional_id)
        ]

    return Verdict(finish=finish)


def describe_transactions(request: DescribeTransactionsRequest, access: Access) -> Verdict:
    """DESCRIBE on each transactional id; its topics are told of to who may DESCRIBE them."""
    request.transactional_ids, refused = split(
        request.transactional_ids, lambda name: access.transactional_id(Operation.DESCRIBE, name)
    )
    answers = [TransactionState(error_code=ID_DENIED, transactional_id=name) for name in refused]

    def finish(response: DescribeTransactionsResponse) -> None:
        for each in response.transaction_states:
            each.topics = [t for t in each.topics if access.topic(Operation.DESCRIBE, t.topic)]
        response.transaction_states = [*response.transaction_states, *answers]

    return Verdict(finish=finish)


def describe_producers(request: DescribeProducersRequest, access: Access) -> Verdict:
    """READ on each topic."""
    request.topics, refused = split(
        request.topics, lambda topic: access.topic(Operation.READ, topic.name)
    )
    answers = [
        TopicResponse(
            name=topic.name,
            partitions=[
                PartitionResponse(partition_index=number, error_code=TOPIC_DENIED)
                for number in topic.partition_indexes
            ],
        )
        for topic in refused
    ]

    def finish(response: DescribeProducersResponse) -> None:
        response.topics = [*response.topics, *answers]

    return Verdict(finish=finish) if answers else GO_ON


def _refusal(access: Access, transactional_id: str, group_id: str) -> ErrorCode:
    if not access.transactional_id(Operation.WRITE, transactional_id):
        return ID_DENIED
    return ErrorCode.NONE if access.group(Operation.READ, group_id) else GROUP_DENIED
