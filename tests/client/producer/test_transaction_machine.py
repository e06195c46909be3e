"""Transactions of a producer: each request as it should be, and all or nothing whatever is lost.

The property test drives them against the coordinator that the broker runs, with a network between
that loses requests and answers, and delivers some of them much later.
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


def asked(one: TransactionMachine, now_ms: int = 0, *, is_writing: bool = False) -> Message:
    """The request that is due, after its coordinator was found."""
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
    assert isinstance(asked(one), InitProducerIdRequest)
    one.on_answer(InitProducerIdResponse(producer_id=7, producer_epoch=1), 0)
    return one


def begun(*partitions: TopicPartition) -> TransactionMachine:
    """With a transaction that has these partitions in it."""
    one = ready()
    one.begin()
    if partitions:
        assert one.want(partitions)
        assert isinstance(asked(one), AddPartitionsToTxnRequest)
        one.on_answer(added(0, *partitions), 0)
    return one


def test_a_producer_begins_with_its_name_and_is_known_by_its_id() -> None:
    one = fresh()
    assert one.next(0, is_writing=False) == Find(ID)
    request = asked(one)
    assert isinstance(request, InitProducerIdRequest)
    assert (request.transactional_id, request.transaction_timeout_ms) == ("x", TIMEOUT_MS)
    assert (request.producer_id, request.producer_epoch) == (-1, -1)
    one.on_answer(InitProducerIdResponse(producer_id=7, producer_epoch=1), 0)
    assert (one.phase, one.identity) == (TransactionPhase.READY, ProducerIdentity(7, 1))
    assert one.next(0, is_writing=False) == WaitUntil(None)


def test_a_partition_is_added_once_before_it_may_be_written_to() -> None:
    one = ready()
    assert not one.want([T0]), "no transaction is open"
    one.begin()
    assert one.want([T0, T1])
    assert not one.want([T0])
    assert not one.may_write(T0)
    request = asked(one, is_writing=True)
    assert isinstance(request, AddPartitionsToTxnRequest)
    assert (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch) == (7, 1)
    assert [each.partitions for each in request.v3_and_below_topics] == [[0, 1]]
    one.on_answer(added(0, T0, T1), 0)
    assert one.may_write(T0)
    assert not one.want([T0, T1])


def test_a_commit_waits_for_what_is_on_its_way() -> None:
    one = begun(T0)
    one.commit()
    assert one.next(0, is_writing=True) == WaitUntil(None)
    assert one.want([T1]), "its records were handed over in time"
    assert isinstance(asked(one, is_writing=True), AddPartitionsToTxnRequest)
    one.on_answer(added(0, T1), 0)
    request = asked(one)
    assert isinstance(request, EndTxnRequest)
    assert request.committed
    one.on_answer(EndTxnResponse(), 0)
    assert (one.phase, one.is_committed) == (TransactionPhase.READY, True)


def test_nobody_is_asked_about_a_transaction_with_nothing_in_it() -> None:
    one = begun()
    one.commit()
    assert one.next(0, is_writing=False) == WaitUntil(None)
    assert (one.phase, one.is_committed) == (TransactionPhase.READY, True)
    one.begin()
    one.abort()
    assert one.next(0, is_writing=False) == WaitUntil(None)
    assert (one.phase, one.is_committed) == (TransactionPhase.READY, False)


def test_offsets_go_to_the_group_after_the_transaction_knows_of_it() -> None:
    one = begun()
    sending = one.send_offsets(GROUP, {T0: 5})
    one.commit()
    request = asked(one)
    assert isinstance(request, AddOffsetsToTxnRequest)
    assert request.group_id == "g"
    one.on_answer(AddOffsetsToTxnResponse(), 0)
    assert one.next(0, is_writing=False) == Find(G)
    commit = asked(one)
    assert isinstance(commit, TxnOffsetCommitRequest)
    assert (commit.generation_id, commit.member_id, commit.group_instance_id) == (3, "m", "i")
    assert commit.topics[0].partitions[0].committed_offset == 5
    assert not sending.is_done
    one.on_answer(offsets_committed(0), 0)
    assert sending.is_done
    assert isinstance(asked(one), EndTxnRequest)


@pytest.mark.parametrize("code", [22, 25, 82, 27, 30, 120])
def test_offsets_that_the_group_refuses_fail_the_transaction(code: int) -> None:
    one = begun()
    sending = one.send_offsets(GROUP, {T0: 5})
    asked(one)
    one.on_answer(AddOffsetsToTxnResponse(), 0)
    asked(one)
    one.on_answer(offsets_committed(code), 0)
    assert (one.phase, sending.is_done) == (TransactionPhase.FAILED, False)
    assert isinstance(one.failure, LogError)
    assert one.failure.code == code
    assert "TxnOffsetCommit of t-0" in str(one.failure)


def test_a_lost_batch_leaves_nothing_but_an_abort_and_a_new_epoch() -> None:
    one = begun(T0)
    first = MessageTooLarge("first")
    one.on_lost(first, is_numbered=True)
    one.on_lost(RequestTimedOut("second"), is_numbered=True)
    assert (one.phase, one.failure) == (TransactionPhase.FAILED, first)
    assert not one.may_write(T0)
    with pytest.raises(UsageError, match="failed"):
        one.send_offsets(GROUP, {T0: 1})
    one.commit()
    request = asked(one)
    assert isinstance(request, EndTxnRequest)
    assert not request.committed
    one.on_answer(EndTxnResponse(), 0)
    assert (one.phase, one.is_committed, one.is_over) == (TransactionPhase.RESUMING, False, True)
    resumed = asked(one)
    assert isinstance(resumed, InitProducerIdRequest)
    assert (resumed.producer_id, resumed.producer_epoch) == (7, 1)
    one.on_answer(InitProducerIdResponse(producer_id=7, producer_epoch=2), 0)
    assert (one.phase, one.identity) == (TransactionPhase.READY, ProducerIdentity(7, 2))


def test_a_batch_that_is_lost_while_the_commit_waits_aborts() -> None:
    one = begun(T0)
    one.commit()
    one.on_lost(MessageTooLarge("no"), is_numbered=False)
    request = asked(one)
    assert isinstance(request, EndTxnRequest)
    assert not request.committed
    one.on_answer(EndTxnResponse(), 0)
    assert (one.phase, one.is_committed) == (TransactionPhase.READY, False)


def test_a_commit_that_was_asked_for_is_not_taken_back() -> None:
    one = begun(T0)
    one.commit()
    assert isinstance(asked(one), EndTxnRequest)
    one.abort()
    one.on_error(ConnectionLost("gone"), 0)
    request = asked(one, 1_000)
    assert isinstance(request, EndTxnRequest)
    assert request.committed
    one.on_answer(EndTxnResponse(), 1_000)
    assert one.is_committed
    assert one.phase is TransactionPhase.RESUMING, "the first request may still arrive"


def test_a_commit_without_an_answer_is_the_end_of_the_producer() -> None:
    one = begun(T0)
    one.commit()
    asked(one)
    one.on_error(ConnectionLost("gone"), 0)
    one.next(PATIENCE_MS, is_writing=False)
    assert one.phase is TransactionPhase.DEAD
    assert isinstance(one.failure, RequestTimedOut)
    assert one.failure.fatal
    assert not one.failure.retriable
    assert "may or may not be committed" in str(one.failure)
    assert "gone" in str(one.failure)


@pytest.mark.parametrize(
    ("doubt", "told"),
    [
        (None, "An open transaction is aborted"),
        ("error", "may or may not"),
        ("code", "may or may not"),
    ],
)
def test_who_is_shut_out_while_it_commits_again_does_not_know(doubt: str | None, told: str) -> None:
    one = begun(T0)
    one.commit()
    asked(one)
    if doubt == "error":
        one.on_error(ConnectionLost("gone"), 0)
    elif doubt == "code":
        one.on_answer(EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE), 0)
    if doubt is not None:
        asked(one, 1_000)
    one.on_answer(EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED), 1_000)
    assert isinstance(one.failure, ProducerFenced)
    assert told in str(one.failure)
    assert one.failure.in_doubt == (doubt is not None)


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_is_told_what_to_do(code: ErrorCode) -> None:
    one = begun()
    one.want([T0])
    asked(one)
    one.on_answer(added(code, T0), 0)
    assert one.phase is TransactionPhase.DEAD
    assert isinstance(one.failure, ProducerFenced)
    assert one.failure.fatal
    assert "transactional_id of its own" in str(one.failure)
    assert one.next(0, is_writing=True) == WaitUntil(None)


@pytest.mark.parametrize(
    "code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_what_will_work_later_is_tried_again_but_not_for_ever(code: ErrorCode) -> None:
    one = begun()
    one.want([T0])
    now_ms = 0
    waits: list[int] = []
    while one.phase is TransactionPhase.OPEN:
        assert isinstance(asked(one, now_ms), AddPartitionsToTxnRequest)
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


def test_a_coordinator_that_has_moved_is_looked_for() -> None:
    one = begun()
    one.want([T0])
    asked(one)
    one.on_answer(added(ErrorCode.NOT_COORDINATOR, T0), 0)
    assert one.next(20, is_writing=True) == Find(ID)


def test_without_the_right_to_the_name_there_is_no_producer() -> None:
    one = fresh()
    asked(one)
    one.on_answer(InitProducerIdResponse(error_code=53), 0)
    assert one.phase is TransactionPhase.DEAD
    assert isinstance(one.failure, NotAuthorized)


def test_without_the_right_to_a_topic_the_transaction_fails() -> None:
    one = begun()
    one.want([T0, T1])
    asked(one)
    refused = added(ErrorCode.OPERATION_NOT_ATTEMPTED, T0)
    refused.results_by_topic_v3_and_below += added(29, T1).results_by_topic_v3_and_below
    one.on_answer(refused, 0)
    assert one.phase is TransactionPhase.FAILED
    assert isinstance(one.failure, NotAuthorized)
    assert "t-1" in str(one.failure)


def test_a_name_that_was_forgotten_is_taken_anew() -> None:
    one = begun()
    one.want([T0])
    asked(one)
    one.on_answer(added(ErrorCode.INVALID_PRODUCER_ID_MAPPING, T0), 0)
    assert one.phase is TransactionPhase.FAILED
    one.abort()
    resumed = asked(one)
    assert isinstance(resumed, InitProducerIdRequest)
    one.on_answer(InitProducerIdResponse(producer_id=8, producer_epoch=0), 0)
    assert one.identity == ProducerIdentity(8, 0)


def test_a_broker_without_next_epochs() -> None:
    one = begun(T0)
    one.commit()
    asked(one)
    one.on_error(ConnectionLost("gone"), 0)
    asked(one, 1_000)
    one.on_answer(EndTxnResponse(), 1_000)
    assert one.phase is TransactionPhase.RESUMING
    one.on_unresumable()
    assert one.phase is TransactionPhase.READY, "it is as safe as others are there"
    one.begin()
    one.want([T0])
    asked(one)
    one.on_answer(added(0, T0), 0)
    one.on_lost(MessageTooLarge("no"), is_numbered=True)
    one.abort()
    asked(one)
    one.on_answer(EndTxnResponse(), 0)
    one.on_unresumable()
    assert one.phase is TransactionPhase.DEAD


def test_only_one_at_a_time() -> None:
    one = begun()
    with pytest.raises(UsageError, match="can't begin"):
        one.begin()


# ---- all or nothing ----


@dataclass
class World:
    """The broker's coordinator, two partitions and the offsets of a group, behind a bad network."""

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
        """Write the markers of what is decided."""
        answers: dict[int, Message] = {}
        for ending in self.coordinator.take_endings():
            for place in sorted(ending.partitions):
                marker = (ending.producer_id, ending.producer_epoch, ending.committed)
                self.written[TopicPartition(*place)].append(marker)
            answers |= self.apply(self.coordinator.on_ended(ending, self.at))
        return answers

    @property
    def at(self) -> Instant:
        return Instant(self.now_ms, self.now_ms)

    def deliver(self, request: Message) -> Message | None:
        """What the coordinator answers, None if it does not answer yet."""
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

    def write(self, place: TopicPartition, producer: tuple[int, int], number: int) -> int:
        code = self.coordinator.verify("x", producer, place)
        if code is ErrorCode.NONE:
            self.written[place].append((*producer, number))
        return code

    def committed(self, place: TopicPartition) -> list[int]:
        """What a reader of committed records sees, by now."""
        open_ones: dict[int, list[int]] = {}
        seen: list[int] = []
        for producer_id, _, what in self.written[place]:
            if isinstance(what, bool):
                seen += open_ones.pop(producer_id, []) if what else []
                open_ones[producer_id] = []
            else:
                open_ones.setdefault(producer_id, []).append(what)
        return seen


@dataclass
class Story:
    """An owner with its producer: what it has been told, and what is on its way."""

    world: World
    one: TransactionMachine = field(default_factory=fresh)
    number: int = 0
    """Of the transaction; every record and the offset of a transaction are this number."""
    places: set[TopicPartition] = field(default_factory=set)
    outstanding: list[TopicPartition] = field(default_factory=list)
    sending: OffsetsToSend | None = None
    told: dict[int, tuple[str, set[TopicPartition]]] = field(default_factory=dict)
    was_decided: bool = False

    def own(self) -> None:
        """The owner does something."""
        one, chance = self.one, self.world.chance
        match one.phase:
            case TransactionPhase.READY:
                self.note()
                self.number += 1
                self.places, self.outstanding, self.was_decided = set(), [], False
                one.begin()
            case TransactionPhase.OPEN if chance.random() < 0.5:
                place = chance.choice([T0, T1])
                self.places.add(place)
                self.outstanding.append(place)
            case TransactionPhase.OPEN if chance.random() < 0.3 and OFFSETS not in self.places:
                self.places.add(OFFSETS)
                one.send_offsets(GROUP, {T0: self.number})
            case TransactionPhase.OPEN | TransactionPhase.FAILED if chance.random() < 0.7:
                one.commit()
            case TransactionPhase.OPEN | TransactionPhase.FAILED | TransactionPhase.COMMITTING:
                one.abort()

    def note(self) -> None:
        """What has become of the transaction, as far as the owner is told."""
        if not self.number or self.number in self.told:
            return
        verdict = "committed" if self.one.is_committed else "aborted"
        if (
            self.one.phase is TransactionPhase.DEAD
            and self.was_decided
            and not self.one.is_committed
        ):
            verdict = "unknown"
        self.told[self.number] = verdict, self.places

    def write(self) -> None:
        """The sender does something."""
        one, world = self.one, self.world
        one.want(self.outstanding)
        for place in list(self.outstanding):
            if one.is_lost:
                one.on_lost(ConnectionLost("given up"), is_numbered=False)
            elif not one.may_write(place) or world.chance.random() < 0.3:
                continue
            elif world.chance.random() < 0.05:
                one.on_lost(MessageTooLarge("refused"), is_numbered=True)
            else:
                assert one.identity is not None
                producer = (one.identity.producer_id, one.identity.producer_epoch)
                code = world.write(place, producer, self.number)
                assert code in {ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH}
                if code:
                    one.on_lost(ProducerFenced("refused"), is_numbered=True)
            self.outstanding.remove(place)

    def carry(self, *, is_calm: bool) -> None:
        """The shell does something."""
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
        """Something happens that nobody here has asked for."""
        world, dice = self.world, self.world.chance.random()
        if world.late and dice < 0.1:
            late = world.late.pop(world.chance.randrange(len(world.late)))
            if rivals or not is_first(late):  # By that it would be its own rival.
                world.deliver(late)
        elif dice < 0.13:
            world.restart()
        elif rivals and dice < 0.14:
            world.deliver(
                InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=TIMEOUT_MS)
            )


def is_first(request: Message) -> bool:
    """Whether a producer asks for its id as one that has none yet."""
    return isinstance(request, InitProducerIdRequest) and request.producer_id < 0


def live(chance: Random, *, rivals: bool) -> Story:
    """A while of trouble, then quiet until the producer has come to rest."""
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
def test_all_of_a_transaction_counts_or_nothing_of_it(seed: int, rivals: bool) -> None:
    story = live(Random(seed), rivals=rivals)
    assert story.one.phase in {TransactionPhase.READY, TransactionPhase.DEAD}, story.one
    if not rivals:
        assert story.one.phase is TransactionPhase.READY, story.one.failure
    for place in (T0, T1, OFFSETS):
        seen = story.world.committed(place)
        assert seen == sorted(seen)
        for number, (verdict, places) in story.told.items():
            if verdict == "committed":
                assert (number in seen) == (place in places), (place, number)
            elif verdict == "aborted":
                assert number not in seen, (place, number)
    unknown = [number for number, (verdict, _) in story.told.items() if verdict == "unknown"]
    for number in unknown:
        places = story.told[number][1]
        assert len({number in story.world.committed(place) for place in places}) <= 1
