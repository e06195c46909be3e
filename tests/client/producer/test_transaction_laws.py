"""A transaction counts whole or not, whatever its network does.

Producers of transactions v1 and v2 run against the broker's own coordinator, behind a network that
loses requests and responses, and delivers some of them, and some records, much later.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.coordinators import TransactionConfig
from streamlog.broker.coordinator.shard import Caller, CoordinatorRecord, Instant, ShardOutcome
from streamlog.broker.coordinator.transaction.transaction_coordinator import (
    TransactionCoordinator,
    TransactionDeps,
    TransactionRules,
)
from streamlog.client.producer.transaction_machine import (
    AskCoordinator,
    Find,
    OffsetsToSend,
    TransactionMachine,
    TransactionPhase,
    WaitUntil,
)
from streamlog.errors import (
    ConnectionLost,
    ProducerFenced,
    RequestTimedOut,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest
from streamlog.protocol.messages.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition
from tests.client.producer.test_transaction_machine import (
    GROUP,
    OFFSETS,
    T0,
    T1,
    TIMEOUT_MS,
    fresh,
    offsets_committed,
)

KEEPING_SEED = 47


@dataclass
class World:
    """The broker's coordinator, two partitions and a group's offsets, behind a faulty network."""

    chance: Random
    is_v2: bool
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(100))
    tickets: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    log: list[CoordinatorRecord] = field(default_factory=list)
    now_ms: int = 1_000
    written: dict[TopicPartition, list[tuple[int, int, int | bool]]] = field(default_factory=dict)
    """Producer, epoch, and the record's number or the marker's kind."""
    late: list[Message] = field(default_factory=list)
    late_records: list[tuple[TopicPartition, tuple[int, int], int]] = field(default_factory=list)
    """Records that a leader gets only after their producer has given them up."""

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
            code = self.write(OFFSETS, producer, number)
            is_busy = code == ErrorCode.CONCURRENT_TRANSACTIONS
            return offsets_committed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_busy else code)
        ticket = next(self.tickets)
        caller = Caller(ticket, 5 if self.is_v2 else 4, "", "", "")
        answers = self.apply(self.coordinator.handle(request, caller, self.at))
        if self.chance.random() < 0.8:
            answers |= self.finish()
        return answers.get(ticket)

    def write(self, partition: TopicPartition, producer: tuple[int, int], number: int) -> int:
        code = self.add(partition, producer) if self.is_v2 else self.verify(partition, producer)
        if code is ErrorCode.NONE:
            self.written[partition].append((*producer, number))
        return code

    def verify(self, partition: TopicPartition, producer: tuple[int, int]) -> int:
        return self.coordinator.verify("x", producer, partition)

    def add(self, partition: TopicPartition, producer: tuple[int, int]) -> int:
        """Add a partition as its leader does, unless the producer has begun in its log."""
        own = [each for each in self.written[partition] if each[0] == producer[0]]
        if own and own[-1][1] == producer[1] and not isinstance(own[-1][2], bool):
            return ErrorCode.NONE
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])
            ],
        )
        ticket = next(self.tickets)
        caller = Caller(ticket, 5, "", "", "")
        answer = self.apply(self.coordinator.handle(request, caller, self.at))[ticket]
        assert isinstance(answer, AddPartitionsToTxnResponse)
        (topic,) = answer.results_by_topic_v3_and_below
        code = topic.results_by_partition[0].partition_error_code
        fenced = code == ErrorCode.PRODUCER_FENCED
        return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else code

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
    one: TransactionMachine
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
                world.late_records.append((partition, self.producer, self.number))
                one.on_lost(RequestTimedOut("given up"), is_numbered=True)
            else:
                code = world.write(partition, self.producer, self.number)
                if code == ErrorCode.CONCURRENT_TRANSACTIONS:
                    continue
                assert code in {ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH}
                if code:
                    one.on_lost(ProducerFenced("refused"), is_numbered=True)
            self.outstanding.remove(partition)

    @property
    def producer(self) -> tuple[int, int]:
        assert self.one.identity is not None
        return self.one.identity.producer_id, self.one.identity.producer_epoch

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
        elif world.late_records and dice < 0.2:
            at = world.chance.randrange(len(world.late_records))
            world.write(*world.late_records.pop(at))
        elif dice < 0.23:
            world.restart()
        elif rivals and dice < 0.24:
            world.deliver(
                InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=TIMEOUT_MS)
            )


def is_first(request: Message) -> bool:
    """Return whether a producer without an id requests one."""
    return isinstance(request, InitProducerIdRequest) and request.producer_id < 0


def live(chance: Random, *, rivals: bool, is_v2: bool) -> Story:
    """Run a while with faults, then without them until the producer has settled."""
    story = Story(World(chance, is_v2), fresh())
    story.one.is_v2 = is_v2
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


def check(story: Story, *, rivals: bool) -> None:
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


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_a_transaction_counts_whole_or_not_at_all(seed: int, rivals: bool, is_v2: bool) -> None:
    check(live(Random(seed), rivals=rivals, is_v2=is_v2), rivals=rivals)


def test_a_coordinator_that_keeps_the_epoch_is_found() -> None:
    """A record that is late is in the next transaction: it counts, though its own was aborted."""
    check(live(Random(KEEPING_SEED), rivals=False, is_v2=True), rivals=False)
    with (
        patch.object(TransactionCoordinator, "rules", TransactionRules(keeps_epoch=True)),
        pytest.raises(AssertionError, match="TopicPartition"),
    ):
        check(live(Random(KEEPING_SEED), rivals=False, is_v2=True), rivals=False)
