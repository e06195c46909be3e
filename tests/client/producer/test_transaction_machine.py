"""Transactions of a producer: each request is correct, and a transaction counts whole or not.

The property test runs them against the broker's own coordinator, behind a network that loses
requests and responses and delivers some of them much later.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.coordinators import TransactionConfig
from streamlog.broker.coordinator.shard import Caller, CoordinatorRecord, Instant, ShardOutcome
from streamlog.broker.coordinator.transaction.transaction_coordinator import (
    TransactionCoordinator,
    TransactionDeps,
)
from streamlog.client.offset_metadata import GroupMetadata
from streamlog.client.producer.accumulator import ProducerIdentity
from streamlog.client.producer.transaction_machine import (
    AskCoordinator,
    CoordinatorRole,
    Find,
    OffsetsToSend,
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


# ---- all or nothing ----


@dataclass
class World:
    """The broker's coordinator, two partitions and a group's offsets, behind a faulty network."""

    chance: Random
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(100))
    tickets: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    log: list[CoordinatorRecord] = field(default_factory=list)
    now_ms: int = 1_000
    written: dict[TopicPartition, list[tuple[int, int, int | bool]]] = field(default_factory=dict)
    """Producer, epoch, and the record's number or the marker's kind."""
    late: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.written = {T0: [], T1: [], OFFSETS: []}
        self.restart()

    def restart(self) -> None:
        around = TransactionDeps(lambda: next(self.ids), lambda *_: True, lambda _: OFFSETS)
        self.coordinator = TransactionCoordinator(TransactionConfig(), around)
        for record in self.log:
            self.coordinator.replay(record, now_ms=self.now_ms)
        self.finish()

    def apply(self, outcome: ShardOutcome) -> dict[int, Message]:
        for record in outcome.records:
            self.log.append(record)
            self.coordinator.replay(record, now_ms=self.now_ms)
        return {each.ticket: each.response for each in outcome.answers}

    def finish(self) -> dict[int, Message]:
        """Write the markers of decided transactions."""
        answers: dict[int, Message] = {}
        for ending in self.coordinator.take_endings():
            for partition in sorted(ending.partitions):
                marker = (ending.producer_id, ending.producer_epoch, ending.committed)
                self.written[TopicPartition(*partition)].append(marker)
            answers |= self.apply(self.coordinator.on_ended(ending, self.at))
        return answers

    @property
    def at(self) -> Instant:
        return Instant(self.now_ms, self.now_ms)

    def deliver(self, request: Message) -> Message | None:
        """Return the coordinator's response, or None if it does not respond yet."""
        if isinstance(request, TxnOffsetCommitRequest):
            producer = (request.producer_id, request.producer_epoch)
            number = request.topics[0].partitions[0].committed_offset
            return offsets_committed(self.write(OFFSETS, producer, number))
        ticket = next(self.tickets)
        caller = Caller(ticket, 4, "", "", "")
        answers = self.apply(self.coordinator.handle(request, caller, self.at))
        if self.chance.random() < 0.8:
            answers |= self.finish()
        return answers.get(ticket)

    def write(self, partition: TopicPartition, producer: tuple[int, int], number: int) -> int:
        code = self.coordinator.verify("x", producer, partition)
        if code is ErrorCode.NONE:
            self.written[partition].append((*producer, number))
        return code

    def committed(self, partition: TopicPartition) -> list[int]:
        """Return what a read_committed reader has seen so far."""
        open_ones: dict[int, list[int]] = {}
        seen: list[int] = []
        for producer_id, _, what in self.written[partition]:
            if isinstance(what, bool):
                seen += open_ones.pop(producer_id, []) if what else []
                open_ones[producer_id] = []
            else:
                open_ones.setdefault(producer_id, []).append(what)
        return seen


@dataclass
class Story:
    """An application with its producer: the outcomes it knows, and the requests in flight."""

    world: World
    one: TransactionMachine = field(default_factory=fresh)
    number: int = 0
    """The number of the transaction; its records and its offset have this number, too."""
    topic_partitions: set[TopicPartition] = field(default_factory=set)
    outstanding: list[TopicPartition] = field(default_factory=list)
    sending: OffsetsToSend | None = None
    known_outcomes: dict[int, tuple[str, set[TopicPartition]]] = field(default_factory=dict)
    was_decided: bool = False

    def own(self) -> None:
        """Perform an action of the application."""
        one, chance = self.one, self.world.chance
        match one.phase:
            case TransactionPhase.READY:
                self.note()
                self.number += 1
                self.topic_partitions, self.outstanding, self.was_decided = set(), [], False
                one.begin()
            case TransactionPhase.OPEN if chance.random() < 0.5:
                partition = chance.choice([T0, T1])
                self.topic_partitions.add(partition)
                self.outstanding.append(partition)
            case TransactionPhase.OPEN if (
                chance.random() < 0.3 and OFFSETS not in self.topic_partitions
            ):
                self.topic_partitions.add(OFFSETS)
                one.send_offsets(GROUP, {T0: self.number})
            case TransactionPhase.OPEN | TransactionPhase.FAILED if chance.random() < 0.7:
                one.commit()
            case TransactionPhase.OPEN | TransactionPhase.FAILED | TransactionPhase.COMMITTING:
                one.abort()

    def note(self) -> None:
        """Note the transaction's outcome as far as the application knows it."""
        if not self.number or self.number in self.known_outcomes:
            return
        verdict = "committed" if self.one.is_committed else "aborted"
        if (
            self.one.phase is TransactionPhase.DEAD
            and self.was_decided
            and not self.one.is_committed
        ):
            verdict = "unknown"
        self.known_outcomes[self.number] = verdict, self.topic_partitions

    def write(self) -> None:
        """Perform an action of the sender."""
        one, world = self.one, self.world
        one.want(self.outstanding)
        for partition in list(self.outstanding):
            if one.is_lost:
                one.on_lost(ConnectionLost("given up"), is_numbered=False)
            elif not one.may_write(partition) or world.chance.random() < 0.3:
                continue
            elif world.chance.random() < 0.05:
                one.on_lost(MessageTooLarge("refused"), is_numbered=True)
            else:
                assert one.identity is not None
                producer = (one.identity.producer_id, one.identity.producer_epoch)
                code = world.write(partition, producer, self.number)
                assert code in {ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH}
                if code:
                    one.on_lost(ProducerFenced("refused"), is_numbered=True)
            self.outstanding.remove(partition)

    def carry(self, *, is_calm: bool) -> None:
        """Perform an action of the shell."""
        one, world = self.one, self.world
        match one.next(world.now_ms, is_writing=bool(self.outstanding)):
            case WaitUntil(None):
                world.now_ms += 1
            case WaitUntil(until_ms) if until_ms is not None:
                world.now_ms = until_ms
            case Find() if not is_calm and world.chance.random() < 0.1:
                one.on_error(ConnectionLost("nobody knows"), world.now_ms)
            case Find(coordinator):
                one.on_found(coordinator)
            case AskCoordinator(_, request):
                self.ask(request, is_calm=is_calm)

    def ask(self, request: Message, *, is_calm: bool) -> None:
        one, world = self.one, self.world
        self.was_decided |= isinstance(request, EndTxnRequest) and request.committed
        dice = 1.0 if is_calm else world.chance.random()
        if dice < 0.1:
            world.late.append(request)
            one.on_error(ConnectionLost("gone"), world.now_ms)
            return
        answer = world.deliver(request)
        if dice < 0.2:
            answer = None
        if answer is None:
            one.on_error(RequestTimedOut("no answer"), world.now_ms)
            world.finish()
        else:
            one.on_answer(answer, world.now_ms)

    def disturb(self, *, rivals: bool) -> None:
        """Let an external event happen, such as a late request or a rival producer."""
        world, dice = self.world, self.world.chance.random()
        if world.late and dice < 0.1:
            late = world.late.pop(world.chance.randrange(len(world.late)))
            if rivals or not is_first(late):  # It would be its own rival.
                world.deliver(late)
        elif dice < 0.13:
            world.restart()
        elif rivals and dice < 0.14:
            world.deliver(
                InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=TIMEOUT_MS)
            )


def is_first(request: Message) -> bool:
    """Return whether a producer without an id requests one."""
    return isinstance(request, InitProducerIdRequest) and request.producer_id < 0


def live(chance: Random, *, rivals: bool) -> Story:
    """Run a while with faults, then without them until the producer has settled."""
    story = Story(World(chance))
    for _ in range(chance.randint(1, 120)):
        for step in chance.sample([story.own, story.write, story.own], 2):
            step()
        story.carry(is_calm=False)
        story.disturb(rivals=rivals)
    for _ in range(300):
        if story.one.phase in {TransactionPhase.READY, TransactionPhase.DEAD}:
            break
        story.one.commit()
        story.write()
        story.carry(is_calm=True)
    story.note()
    for late in story.world.late:
        if not is_first(late):
            story.world.deliver(late)
    story.world.finish()
    return story


@given(st.integers(0, 2**32), st.booleans())
def test_a_transaction_counts_whole_or_not_at_all(seed: int, rivals: bool) -> None:
    story = live(Random(seed), rivals=rivals)
    assert story.one.phase in {TransactionPhase.READY, TransactionPhase.DEAD}, story.one
    if not rivals:
        assert story.one.phase is TransactionPhase.READY, story.one.failure
    for partition in (T0, T1, OFFSETS):
        seen = story.world.committed(partition)
        assert seen == sorted(seen)
        for number, (verdict, topic_partitions) in story.known_outcomes.items():
            if verdict == "committed":
                assert (number in seen) == (partition in topic_partitions), (partition, number)
            elif verdict == "aborted":
                assert number not in seen, (partition, number)
    unknown = [
        number for number, (verdict, _) in story.known_outcomes.items() if verdict == "unknown"
    ]
    for number in unknown:
        topic_partitions = story.known_outcomes[number][1]
        assert (
            len({number in story.world.committed(partition) for partition in topic_partitions}) <= 1
        )
