"""Authorization rules of transactions: the transactional id, topics, groups, and published jobs.

A Produce request with a transactional batch must name a transactional id. One that does not is
refused as a whole, as in Kafka: before its topics and `acks` are looked at, by the header of the
first batch of each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamlog.broker.security.access_checks import GO_ON, Access, Verdict, item_errors, withhold
from streamlog.errors import CorruptData
from streamlog.protocol.acls import Operation
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.error_responses import by_partition, error_response
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


ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def publish_job(request: PublishRequest, access: Access) -> Verdict:
    """WRITE on the job's id and on all topics, READ on groups and their topics; or nothing."""
    if not access.transactional_id(Operation.WRITE, request.job_id):
        return _refused(
            request, ID_DENIED, f"transactional id {request.job_id}: {Operation.WRITE.name}"
        )
    for topic in request.topics:
        if not access.topic(Operation.WRITE, topic.name):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _refused(request, denied, f"topic {topic.name}: {Operation.WRITE.name}")
    for group in request.groups:
        if not access.group(Operation.READ, group.group_id):
            denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return _refused(request, denied, f"group {group.group_id}: {Operation.READ.name}")
        for placed in group.topics:
            if not access.topic(Operation.READ, placed.name):
                denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                return _refused(request, denied, f"topic {placed.name}: {Operation.READ.name}")
    return GO_ON


def stage_batches(request: StageRequest, access: Access) -> Verdict:
    """WRITE on the job's id."""
    if access.transactional_id(Operation.WRITE, request.job_id):
        return GO_ON
    return Verdict(error_response(request, ID_DENIED))


def drop_batches(request: DropStagedRequest, access: Access) -> Verdict:
    """WRITE on the job's id."""
    if access.transactional_id(Operation.WRITE, request.job_id):
        return GO_ON
    return Verdict(error_response(request, ID_DENIED))


def _refused(request: PublishRequest, code: ErrorCode, what: str) -> Verdict:
    return Verdict(error_response(request, code, f"not allowed: {what}"))


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
        return Verdict(error_response(request, ID_DENIED))
    names = {topic.name for topic in request.v3_and_below_topics}
    denied = {name for name in names if not access.topic(Operation.WRITE, name)}
    if not denied:
        return GO_ON
    code_of = by_partition(
        lambda topic, _: TOPIC_DENIED if topic in denied else ErrorCode.OPERATION_NOT_ATTEMPTED
    )
    return Verdict(item_errors(request, code_of))


def add_offsets(request: AddOffsetsToTxnRequest, access: Access) -> Verdict:
    """WRITE on the transactional id, READ on the group."""
    code = _refusal(access, request.transactional_id, request.group_id)
    if code is ErrorCode.NONE:
        return GO_ON
    return Verdict(error_response(request, code))


def end(request: EndTxnRequest, access: Access) -> Verdict:
    """WRITE on the transactional id."""
    if access.transactional_id(Operation.WRITE, request.transactional_id):
        return GO_ON
    return Verdict(error_response(request, ID_DENIED))


def commit_offsets(request: TxnOffsetCommitRequest, access: Access) -> Verdict:
    """WRITE on the transactional id, READ on the group and on each topic."""
    code = _refusal(access, request.transactional_id, request.group_id)
    if code is not ErrorCode.NONE:
        return Verdict(error_response(request, code))

    def may(topic: TxnOffsetCommitRequestTopic) -> bool:
        return access.topic(Operation.READ, topic.name)

    if request.topics and not any(map(may, request.topics)):
        return Verdict(error_response(request, TOPIC_DENIED))
    return withhold(request, "topics", may, TOPIC_DENIED)


def write_markers(request: WriteTxnMarkersRequest, access: Access) -> Verdict:
    """CLUSTER_ACTION on the cluster."""
    if access.cluster(Operation.CLUSTER_ACTION):
        return GO_ON
    return Verdict(error_response(request, CLUSTER_DENIED))


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

    def may(name: str) -> bool:
        return access.transactional_id(Operation.DESCRIBE, name)

    def finish(response: DescribeTransactionsResponse) -> None:
        for each in response.transaction_states:
            each.topics = [t for t in each.topics if access.topic(Operation.DESCRIBE, t.topic)]

    return withhold(request, "transactional_ids", may, ID_DENIED, finish=finish)


def describe_producers(request: DescribeProducersRequest, access: Access) -> Verdict:
    """READ on each topic."""

    def may(topic: DescribeProducersTopic) -> bool:
        return access.topic(Operation.READ, topic.name)

    return withhold(request, "topics", may, TOPIC_DENIED)


def _refusal(access: Access, transactional_id: str, group_id: str) -> ErrorCode:
    if not access.transactional_id(Operation.WRITE, transactional_id):
        return ID_DENIED
    return ErrorCode.NONE if access.group(Operation.READ, group_id) else GROUP_DENIED


_ATTRIBUTES_LOW_AT: Final = 22
"""The second byte of a batch's attributes."""
_TRANSACTIONAL: Final = 0x10
"""The bit of it that says that a transaction has written the batch."""


def refusal_without_id(request: ProduceRequest) -> LogError | None:
    """Why a request is refused that has transactional batches and no transactional id."""
    if request.transactional_id is not None:
        return None
    pieces = (one_buffer(p.records) for t in request.topic_data for p in t.partition_data)
    return next(filter(None, map(refusal_of_transactional, pieces)), None)


def refusal_of_transactional(records: Buffer) -> LogError | None:
    """Why a request without a transactional id is refused: its first batch is transactional."""
    if len(records) < HEADER_BYTES or not records[_ATTRIBUTES_LOW_AT] & _TRANSACTIONAL:
        return None
    try:
        if not RecordBatch(records).is_transactional:
            return None
    except CorruptData:
        return None  # The log says what is wrong with it.
    return error_for(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "a transactional batch was sent in a request without a transactional id",
    )
