"""Transactions of a producer: each request is correct. `test_transaction_laws` has the laws."""

from __future__ import annotations

import pytest

from streamlog.client.offset_metadata import GroupMetadata
from streamlog.client.producer.accumulator import ProducerIdentity
from streamlog.client.producer.transaction_machine import (
    AskCoordinator,
    CoordinatorRole,
    Find,
    TransactionCoordinatorNode,
    TransactionMachine,
    TransactionPhase,
    TransactionSettings,
    WaitUntil,
)
from streamlog.errors import (
    ConnectionLost,
    LogError,
    MessageTooLarge,
    NotAuthorized,
    ProducerFenced,
    RequestTimedOut,
    UsageError,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.produce_and_fetch import ProduceRequest
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OFFSETS = TopicPartition("__consumer_offsets", 0)
ID = TransactionCoordinatorNode(CoordinatorRole.TRANSACTIONS, "x")
G = TransactionCoordinatorNode(CoordinatorRole.GROUP, "g")
GROUP = GroupMetadata(group_id="g", generation_id=3, member_id="m", instance_id="i")
PATIENCE_MS = 60_000
TIMEOUT_MS = 30_000


def fresh() -> TransactionMachine:
    return TransactionMachine(
        TransactionSettings(transactional_id="x", timeout_ms=TIMEOUT_MS, patience_ms=PATIENCE_MS)
    )


def next_request(one: TransactionMachine, now_ms: int = 0, *, is_writing: bool = False) -> Message:
    """Return the request that is due, after finding its coordinator."""
    action = one.next(now_ms, is_writing=is_writing)
    if isinstance(action, Find):
        one.on_found(action.coordinator)
        action = one.next(now_ms, is_writing=is_writing)
    assert isinstance(action, AskCoordinator), action
    return action.request


def added(code: int, *partitions: TopicPartition) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=code
                    )
                ],
            )
            for topic, number in partitions
        ]
    )


def offsets_committed(code: int) -> TxnOffsetCommitResponse:
    each = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
    return TxnOffsetCommitResponse(
        topics=[TxnOffsetCommitResponseTopic(name="t", partitions=[each])]
    )


def ready() -> TransactionMachine:
    one = fresh()
    assert isinstance(next_request(one), InitProducerIdRequest)
    one.on_answer(InitProducerIdResponse(producer_id=7, producer_epoch=1), 0)
    return one


def open_transaction(*partitions: TopicPartition) -> TransactionMachine:
    """Return a machine with an open transaction that contains these partitions."""
    one = ready()
    one.begin()
    if partitions:
        assert one.want(partitions)
        assert isinstance(next_request(one), AddPartitionsToTxnRequest)
        one.on_answer(added(0, *partitions), 0)
    return one


def test_a_producer_starts_with_its_transactional_id_and_gets_a_producer_id() -> None:
    one = fresh()
    assert one.next(0, is_writing=False) == Find(ID)
    request = next_request(one)
    assert isinstance(request, InitProducerIdRequest)
    assert (request.transactional_id, request.transaction_timeout_ms) == ("x", TIMEOUT_MS)
    assert (request.producer_id, request.producer_epoch) == (-1, -1)
    one.on_answer(InitProducerIdResponse(producer_id=7, producer_epoch=1), 0)
    assert (one.phase, one.identity) == (TransactionPhase.READY, ProducerIdentity(7, 1))
    assert one.next(0, is_writing=False) == WaitUntil(None)


def test_a_partition_is_added_before_its_first_write() -> None:
    one = ready()
    assert not one.want([T0]), "no transaction is open"
    one.begin()
    assert one.want([T0, T1])
    assert not one.want([T0])
    assert not one.may_write(T0)
    request = next_request(one, is_writing=True)
    assert isinstance(request, AddPartitionsToTxnRequest)
    assert (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch) == (7, 1)
    assert [each.partitions for each in request.v3_and_below_topics] == [[0, 1]]
    one.on_answer(added(0, T0, T1), 0)
    assert one.may_write(T0)
    assert not one.want([T0, T1])


def test_a_commit_waits_for_records_in_flight() -> None:
    one = open_transaction(T0)
    one.commit()
    assert one.next(0, is_writing=True) == WaitUntil(None)
    assert one.want([T1]), "its records were sent before the commit"
    assert isinstance(next_request(one, is_writing=True), AddPartitionsToTxnRequest)
    one.on_answer(added(0, T1), 0)
    request = next_request(one)
    assert isinstance(request, EndTxnRequest)
    assert request.committed
    one.on_answer(EndTxnResponse(), 0)
    assert (one.phase, one.is_committed) == (TransactionPhase.READY, True)


def test_an_empty_transaction_sends_no_request() -> None:
    one = open_transaction()
    one.commit()
    assert one.next(0, is_writing=False) == WaitUntil(None)
    assert (one.phase, one.is_committed) == (TransactionPhase.READY, True)
    one.begin()
    one.abort()
    assert one.next(0, is_writing=False) == WaitUntil(None)
    assert (one.phase, one.is_committed) == (TransactionPhase.READY, False)


def test_offsets_are_sent_after_their_group_is_added() -> None:
    one = open_transaction()
    sending = one.send_offsets(GROUP, {T0: 5})
    one.commit()
    request = next_request(one)
    assert isinstance(request, AddOffsetsToTxnRequest)
    assert request.group_id == "g"
    one.on_answer(AddOffsetsToTxnResponse(), 0)
    assert one.next(0, is_writing=False) == Find(G)
    commit = next_request(one)
    assert isinstance(commit, TxnOffsetCommitRequest)
    assert (commit.generation_id, commit.member_id, commit.group_instance_id) == (3, "m", "i")
    assert commit.topics[0].partitions[0].committed_offset == 5
    assert not sending.is_done
    one.on_answer(offsets_committed(0), 0)
    assert sending.is_done
    assert isinstance(next_request(one), EndTxnRequest)


@pytest.mark.parametrize("code", [22, 25, 82, 27, 30, 120])
def test_offsets_that_the_group_refuses_fail_the_transaction(code: int) -> None:
    one = open_transaction()
    sending = one.send_offsets(GROUP, {T0: 5})
    next_request(one)
    one.on_answer(AddOffsetsToTxnResponse(), 0)
    next_request(one)
    one.on_answer(offsets_committed(code), 0)
    assert (one.phase, sending.is_done) == (TransactionPhase.FAILED, False)
    assert isinstance(one.failure, LogError)
    assert one.failure.code == code
    assert "TxnOffsetCommit of t-0" in str(one.failure)


def test_a_lost_batch_allows_only_an_abort_with_a_new_epoch() -> None:
    one = open_transaction(T0)
    first = MessageTooLarge("first")
    one.on_lost(first, is_numbered=True)
    one.on_lost(RequestTimedOut("second"), is_numbered=True)
    assert (one.phase, one.failure) == (TransactionPhase.FAILED, first)
    assert not one.may_write(T0)
    with pytest.raises(UsageError, match="failed"):
        one.send_offsets(GROUP, {T0: 1})
    one.commit()
    request = next_request(one)
    assert isinstance(request, EndTxnRequest)
    assert not request.committed
    one.on_answer(EndTxnResponse(), 0)
    assert (one.phase, one.is_committed, one.is_over) == (TransactionPhase.RESUMING, False, True)
    resumed = next_request(one)
    assert isinstance(resumed, InitProducerIdRequest)
    assert (resumed.producer_id, resumed.producer_epoch) == (7, 1)
    one.on_answer(InitProducerIdResponse(producer_id=7, producer_epoch=2), 0)
    assert (one.phase, one.identity) == (TransactionPhase.READY, ProducerIdentity(7, 2))


def test_a_batch_lost_before_the_commit_aborts_the_transaction() -> None:
    one = open_transaction(T0)
    one.commit()
    one.on_lost(MessageTooLarge("no"), is_numbered=False)
    request = next_request(one)
    assert isinstance(request, EndTxnRequest)
    assert not request.committed
    one.on_answer(EndTxnResponse(), 0)
    assert (one.phase, one.is_committed) == (TransactionPhase.READY, False)


def test_a_commit_in_flight_is_not_revoked() -> None:
    one = open_transaction(T0)
    one.commit()
    assert isinstance(next_request(one), EndTxnRequest)
    one.abort()
    one.on_error(ConnectionLost("gone"), 0)
    request = next_request(one, 1_000)
    assert isinstance(request, EndTxnRequest)
    assert request.committed
    one.on_answer(EndTxnResponse(), 1_000)
    assert one.is_committed
    assert one.phase is TransactionPhase.RESUMING, "the first request may still arrive"


def test_a_commit_without_a_response_is_fatal() -> None:
    one = open_transaction(T0)
    one.commit()
    next_request(one)
    one.on_error(ConnectionLost("gone"), 0)
    one.next(PATIENCE_MS, is_writing=False)
    assert one.phase is TransactionPhase.DEAD
    assert isinstance(one.failure, RequestTimedOut)
    assert one.failure.fatal
    assert not one.failure.retriable
    assert "may or may not be committed" in str(one.failure)
    assert "gone" in str(one.failure)


@pytest.mark.parametrize(
    ("failure_kind", "message"),
    [
        (None, "An open transaction is aborted"),
        ("error", "may or may not"),
        ("code", "may or may not"),
    ],
)
def test_a_producer_fenced_during_a_retried_commit_does_not_know_the_outcome(
    failure_kind: str | None, message: str
) -> None:
    one = open_transaction(T0)
    one.commit()
    next_request(one)
    if failure_kind == "error":
        one.on_error(ConnectionLost("gone"), 0)
    elif failure_kind == "code":
        one.on_answer(EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE), 0)
    if failure_kind is not None:
        next_request(one, 1_000)
    one.on_answer(EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED), 1_000)
    assert isinstance(one.failure, ProducerFenced)
    assert message in str(one.failure)
    assert one.failure.in_doubt == (failure_kind is not None)


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_learns_what_to_do(code: ErrorCode) -> None:
    one = open_transaction()
    one.want([T0])
    next_request(one)
    one.on_answer(added(code, T0), 0)
    assert one.phase is TransactionPhase.DEAD
    assert isinstance(one.failure, ProducerFenced)
    assert one.failure.fatal
    assert "transactional_id of its own" in str(one.failure)
    assert one.next(0, is_writing=True) == WaitUntil(None)


@pytest.mark.parametrize(
    "code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_retriable_errors_are_retried_for_a_bounded_time(code: ErrorCode) -> None:
    one = open_transaction()
    one.want([T0])
    now_ms = 0
    waits: list[int] = []
    while one.phase is TransactionPhase.OPEN:
        assert isinstance(next_request(one, now_ms), AddPartitionsToTxnRequest)
        one.on_answer(added(code, T0), now_ms)
        action = one.next(now_ms, is_writing=True)
        assert isinstance(action, WaitUntil)
        assert action.until_ms is not None
        waits.append(action.until_ms - now_ms)
        now_ms = action.until_ms
        one.next(now_ms, is_writing=True)
    assert waits[:4] == [20, 40, 80, 160]
    assert max(waits) == 1_000
    assert now_ms >= PATIENCE_MS
    assert one.phase is TransactionPhase.FAILED
    assert code.name in str(one.failure)


def test_a_moved_coordinator_is_looked_up() -> None:
    one = open_transaction()
    one.want([T0])
    next_request(one)
    one.on_answer(added(ErrorCode.NOT_COORDINATOR, T0), 0)
    assert one.next(20, is_writing=True) == Find(ID)


def test_an_unauthorized_transactional_id_is_fatal() -> None:
    one = fresh()
    next_request(one)
    one.on_answer(InitProducerIdResponse(error_code=53), 0)
    assert one.phase is TransactionPhase.DEAD
    assert isinstance(one.failure, NotAuthorized)


def test_an_unauthorized_topic_fails_the_transaction() -> None:
    one = open_transaction()
    one.want([T0, T1])
    next_request(one)
    refused = added(ErrorCode.OPERATION_NOT_ATTEMPTED, T0)
    refused.results_by_topic_v3_and_below += added(29, T1).results_by_topic_v3_and_below
    one.on_answer(refused, 0)
    assert one.phase is TransactionPhase.FAILED
    assert isinstance(one.failure, NotAuthorized)
    assert "t-1" in str(one.failure)


def test_an_unknown_producer_id_mapping_is_initialized_again() -> None:
    one = open_transaction()
    one.want([T0])
    next_request(one)
    one.on_answer(added(ErrorCode.INVALID_PRODUCER_ID_MAPPING, T0), 0)
    assert one.phase is TransactionPhase.FAILED
    one.abort()
    resumed = next_request(one)
    assert isinstance(resumed, InitProducerIdRequest)
    one.on_answer(InitProducerIdResponse(producer_id=8, producer_epoch=0), 0)
    assert one.identity == ProducerIdentity(8, 0)


def test_a_broker_without_epoch_bumps_can_continue() -> None:
    one = open_transaction(T0)
    one.commit()
    next_request(one)
    one.on_error(ConnectionLost("gone"), 0)
    next_request(one, 1_000)
    one.on_answer(EndTxnResponse(), 1_000)
    assert one.phase is TransactionPhase.RESUMING
    one.on_unresumable()
    assert one.phase is TransactionPhase.READY, "no epoch bump is possible on this broker"
    one.begin()
    one.want([T0])
    next_request(one)
    one.on_answer(added(0, T0), 0)
    one.on_lost(MessageTooLarge("no"), is_numbered=True)
    one.abort()
    next_request(one)
    one.on_answer(EndTxnResponse(), 0)
    one.on_unresumable()
    assert one.phase is TransactionPhase.DEAD


def test_a_second_transaction_cannot_begin() -> None:
    one = open_transaction()
    with pytest.raises(UsageError, match="can't begin"):
        one.begin()


# ---- transactions v2 ----


def ready_v2() -> TransactionMachine:
    one = fresh()
    one.is_v2 = True
    next_request(one)
    one.on_answer(InitProducerIdResponse(producer_id=7, producer_epoch=1), 0)
    one.begin()
    return one


def test_a_transaction_v2_only_writes_and_ends() -> None:
    one = ready_v2()
    assert not one.want([T0]), "no request is due"
    assert one.may_write(T0)
    sending = one.send_offsets(GROUP, {T0: 5})
    one.commit()
    assert one.next(0, is_writing=True) == Find(G)
    assert isinstance(next_request(one, is_writing=True), TxnOffsetCommitRequest)
    one.on_answer(offsets_committed(0), 0)
    assert sending.is_done
    request = next_request(one)
    assert isinstance(request, EndTxnRequest)
    assert (request.producer_id, request.producer_epoch) == (7, 1)
    one.on_answer(EndTxnResponse(producer_id=7, producer_epoch=2), 0)
    assert (one.phase, one.identity) == (TransactionPhase.READY, ProducerIdentity(7, 2))


def test_a_lost_record_needs_no_further_epoch_in_v2() -> None:
    one = ready_v2()
    one.want([T0])
    one.on_lost(MessageTooLarge("no"), is_numbered=True)
    one.abort()
    request = next_request(one)
    assert isinstance(request, EndTxnRequest)
    assert not request.committed
    one.on_error(RequestTimedOut("no answer"), 0)
    assert isinstance(next_request(one, 50), EndTxnRequest)
    one.on_answer(EndTxnResponse(producer_id=8, producer_epoch=0), 50)
    assert (one.phase, one.identity) == (TransactionPhase.READY, ProducerIdentity(8, 0))


def test_an_empty_transaction_v2_sends_no_request() -> None:
    one = ready_v2()
    one.commit()
    assert one.next(0, is_writing=False) == WaitUntil(None)
    assert (one.phase, one.is_committed) == (TransactionPhase.READY, True)


@pytest.mark.parametrize("is_v2", [False, True])
def test_older_versions_have_the_older_meaning(is_v2: bool) -> None:
    one = fresh()
    one.is_v2 = is_v2
    newest = [one.version_max(kind) for kind in (ProduceRequest, EndTxnRequest)]
    assert newest == ([None, None] if is_v2 else [11, 4])
    assert one.version_max(InitProducerIdRequest) is None
