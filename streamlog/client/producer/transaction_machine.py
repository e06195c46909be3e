"""Transactions: those of one producer, as its side of the protocol decides (KIP-98, 360, 447).

    BEGINNING ─► READY ─► OPEN ─► COMMITTING ─► READY, or RESUMING ─► READY
                            ▼         ▼ unless the commit was asked for
                         FAILED ─► ABORTING ─► READY, or RESUMING ─► READY

Pure: `next` says which request is due, answers come back by `on_…`; `transaction_session.py`
carries them, one at a time. Rules of the file: a partition is added before anything is written to
it. Once a record is lost nothing but an abort is left. A commit that was asked for is never taken
back. After a transaction that leaves something in doubt (a numbered batch, a request without an
answer) the producer asks for its next epoch, by which what is still on its way is refused; so no
late request of one transaction ends the next. DEAD is reached from everywhere. Not here: KIP-890.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from streamlog.client.offset_metadata import (
    GroupMetadata,
    OffsetAndMetadata,
    Offsets,
    with_metadata,
)
from streamlog.client.producer.accumulator import ProducerIdentity
from streamlog.errors import (
    LogError,
    ProducerFenced,
    RequestTimedOut,
    StreamlogError,
    UnsupportedVersion,
    UsageError,
)
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode, describe, error_for, is_retriable
from streamlog.protocol.messages import transaction_messages as wire
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition

RETRY_BACKOFF_MS: Final = 20
"""At first: mostly the coordinator is about to complete the transaction before."""
RETRY_BACKOFF_MS_MAX: Final = 1_000

_LOST: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_FATAL: Final = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)


_NOT_TRIED: Final = ErrorCode.OPERATION_NOT_ATTEMPTED


class TransactionPhase(Enum):
    """Where a producer stands with its transactions."""

    BEGINNING = auto()
    """It asks for its producer id, by which older producers of its name are fenced."""
    READY = auto()
    """A transaction can be begun."""
    OPEN = auto()
    """Records are written and offsets sent."""
    FAILED = auto()
    """Something of the transaction is lost; its owner is yet to abort it."""
    COMMITTING = auto()
    """The owner is done: what is on its way is waited for, then the commit is asked for."""
    ABORTING = auto()
    """What is on its way is waited for, then the abort is asked for."""
    RESUMING = auto()
    """The transaction is over; the next epoch is asked for."""
    DEAD = auto()
    """Another producer has taken over, or this one can't go on for another reason."""


class CoordinatorRole(Enum):
    """What a coordinator coordinates, by Kafka's number."""

    GROUP = 0
    TRANSACTIONS = 1


@dataclass(frozen=True, slots=True)
class TransactionCoordinatorNode:
    """Of a group, or of a transactional id."""

    role: CoordinatorRole
    name: str


@dataclass(frozen=True, slots=True)
class Find:
    """Look up a coordinator, then say so by `on_found`."""

    coordinator: TransactionCoordinatorNode


@dataclass(frozen=True, slots=True)
class AskCoordinator:
    """Send this to a coordinator that was found; the answer goes to `on_answer`."""

    coordinator: TransactionCoordinatorNode
    request: Message


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing is due before this time, unless something happens; None: until then."""

    until_ms: int | None


Action: TypeAlias = Find | AskCoordinator | WaitUntil


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Whose transactions, and for how long what."""

    transactional_id: str
    timeout_ms: int
    """Of a transaction: when it has been open for longer the coordinator aborts it."""
    patience_ms: int
    """So long, from the first trouble on, a request is tried again."""


@dataclass(slots=True)
class OffsetsToSend:
    """Offsets of a group on their way into the transaction."""

    group: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    is_done: bool = False


class TransactionMachine:
    """One producer's transactions.

    Invariants: `may_write` is true of a partition only after the coordinator has said that it is
    in the transaction; a commit is asked for only when every record handed over is written and
    every offset sent; `is_committed` is true only after the coordinator has said so.
    """

    def __init__(self, settings: TransactionSettings) -> None:
        self.phase = TransactionPhase.BEGINNING
        self.identity: ProducerIdentity | None = None
        """What to write with."""
        self.is_committed = False
        """What has become of the last transaction."""
        self.failure: StreamlogError | None = None
        """Why the transaction failed; in phase DEAD, why the producer is over."""
        self.trouble: StreamlogError | None = None
        """Why the request that is due is being tried again."""
        self._settings = settings
        self._id = TransactionCoordinatorNode(
            CoordinatorRole.TRANSACTIONS, settings.transactional_id
        )
        self._found: set[TransactionCoordinatorNode] = set()
        self._wanted: dict[TopicPartition, None] = {}
        self._added: set[TopicPartition] = set()
        self.refused: set[TopicPartition] = set()
        """What the transaction was not allowed to write to."""
        self._sending: list[OffsetsToSend] = []
        self._groups: set[str] = set()
        self._asked: AskCoordinator | None = None
        self._may_be_known = False
        """The coordinator may know of the transaction, so it has to be ended."""
        self._is_decided = False
        """The commit has been asked for."""
        self._may_be_committed = False
        """A commit was asked for and not answered for good: it may have been done."""
        self._in_doubt = False
        """Something of this transaction may still arrive at a broker."""
        self._troubled_since_ms = 0
        self._attempts = 0
        self._not_before_ms = 0

    @property
    def transactional_id(self) -> str:
        """By which other producers of the same name are fenced."""
        return self._settings.transactional_id

    # ---- the owner ----

    def begin(self) -> None:
        """Begin a transaction; the coordinator hears of it with the first partition.

        Raises:
            UsageError: the last one is not over.
        """
        if self.phase is not TransactionPhase.READY:
            raise UsageError(f"{self} can't begin a transaction now")
        self.phase = TransactionPhase.OPEN
        self.is_committed, self.failure = False, None
        self.refused.clear()

    def want(self, partitions: Collection[TopicPartition]) -> bool:
        """These have something to write; whether that was news."""
        if self.phase not in {TransactionPhase.OPEN, TransactionPhase.COMMITTING}:
            return False
        before = len(self._wanted)
        self._wanted.update(dict.fromkeys(each for each in partitions if each not in self._added))
        return len(self._wanted) > before

    def may_write(self, partition: TopicPartition) -> bool:
        """Whether the partition is in the transaction."""
        return partition in self._added and self.phase in {
            TransactionPhase.OPEN,
            TransactionPhase.COMMITTING,
        }

    def send_offsets(self, group: GroupMetadata, offsets: Offsets) -> OffsetsToSend:
        """Offsets become part of the transaction; it is done when the result says so.

        Raises:
            UsageError: no transaction is open.
        """
        if self.phase is not TransactionPhase.OPEN:
            raise UsageError(f"{self} has no transaction for these offsets")
        sending = OffsetsToSend(group, with_metadata(offsets))
        self._sending.append(sending)
        return sending

    def commit(self) -> None:
        """The owner has handed over everything: commit it, or abort it if some of it is lost."""
        if self.phase is TransactionPhase.OPEN:
            self.phase = TransactionPhase.COMMITTING
        elif self.phase is TransactionPhase.FAILED:
            self.phase = TransactionPhase.ABORTING

    def abort(self) -> None:
        """Nothing of the transaction shall count, unless its commit has been asked for."""
        is_undecided = self.phase is TransactionPhase.COMMITTING and not self._is_decided
        if is_undecided or self.phase in {TransactionPhase.OPEN, TransactionPhase.FAILED}:
            self.phase = TransactionPhase.ABORTING
            self._drop()

    @property
    def is_lost(self) -> bool:
        """Whether what was not written yet shall not be written at all."""
        return self.phase in {
            TransactionPhase.FAILED,
            TransactionPhase.ABORTING,
            TransactionPhase.DEAD,
        }

    @property
    def is_over(self) -> bool:
        """Whether the last transaction has ended, one way or the other."""
        return self.phase in {
            TransactionPhase.READY,
            TransactionPhase.RESUMING,
            TransactionPhase.DEAD,
        }

    # ---- the writer ----

    def on_lost(self, error: StreamlogError, *, is_numbered: bool) -> None:
        """A batch was not written, and will not be; numbered if a broker may have seen it."""
        self._in_doubt = self._in_doubt or is_numbered
        self._fail(error)

    # ---- requests ----

    def next(self, now_ms: int, *, is_writing: bool) -> Action:
        """What is due now, while batches are on their way or wait (`is_writing`) or not."""
        late = now_ms - self._troubled_since_ms >= self._settings.patience_ms
        if self.trouble is not None and late:
            self._give_up(self.trouble)
        due = self._due(is_writing=is_writing)
        if due is None:
            return WaitUntil(None)
        if now_ms < self._not_before_ms:
            return WaitUntil(self._not_before_ms)
        if due.coordinator not in self._found:
            return Find(due.coordinator)
        match due.request:
            case wire.AddPartitionsToTxnRequest() | wire.AddOffsetsToTxnRequest():
                self._may_be_known = True
            case wire.EndTxnRequest(committed=True):
                self._is_decided = True
        self._asked = due
        return due

    def on_found(self, coordinator: TransactionCoordinatorNode) -> None:
        """Requests can be sent there."""
        self._found.add(coordinator)

    def on_error(self, error: StreamlogError, now_ms: int) -> None:
        """A coordinator could not be found or asked, or did not answer."""
        asked, self._asked = self._asked, None
        if asked is not None:
            self._found.discard(asked.coordinator)
            self._in_doubt = True
            self._may_be_committed |= _is_commit(asked.request)
        if error.retriable:
            self._retry(error, now_ms)
        else:
            self._refuse(error, asked)

    def on_unresumable(self) -> None:
        """The broker is so old that it gives nobody a next epoch (KIP-360)."""
        if self.is_committed:
            self._in_doubt, self.phase = False, TransactionPhase.READY
        else:
            self._die(UnsupportedVersion(f"{self} can't go on with this broker: open another one"))

    def end(self, error: StreamlogError) -> None:
        """Nothing will be asked any more."""
        if self.phase is not TransactionPhase.DEAD:
            self._die(error)

    def on_answer(self, response: Message, now_ms: int) -> None:
        """A coordinator has answered what was asked last."""
        asked, self._asked = self._asked, None
        if asked is None:
            raise UsageError(f"{self} has asked nothing")
        code, where = _refusal(response)
        if code == ErrorCode.NONE:
            self._calm()
            self._on_done(asked.request, response)
            return
        self.refused |= _denied(response)
        error = error_for(code, f"{self}, {api_of(type(asked.request)).name}{where}")
        if error.retriable:
            self._may_be_committed |= _is_commit(asked.request)
        if _is_no_transaction(asked.request, code):
            self._calm()
            self._in_doubt = True
            self._on_over()
        elif code in _FENCED:
            self._die(self._fenced(code))
        elif code in _LOST:
            self._found.discard(asked.coordinator)
            self._retry(error, now_ms)
        elif error.retriable:
            self._retry(error, now_ms)
        else:
            self._refuse(error, asked)

    def __str__(self) -> str:
        return f"producer {self._settings.transactional_id!r} ({self.phase.name.lower()})"

    # ---- what is due ----

    def _due(self, *, is_writing: bool) -> AskCoordinator | None:
        match self.phase:
            case TransactionPhase.BEGINNING | TransactionPhase.RESUMING:
                return self._init()
            case TransactionPhase.OPEN:
                return self._enlarging()
            case TransactionPhase.COMMITTING if is_writing or self._sending:
                return self._enlarging()
            case TransactionPhase.COMMITTING | TransactionPhase.ABORTING if not is_writing:
                return self._ending()
        return None

    def _init(self) -> AskCoordinator:
        request = InitProducerIdRequest(
            transactional_id=self._settings.transactional_id,
            transaction_timeout_ms=self._settings.timeout_ms,
        )
        if self.identity is not None:
            request.producer_id = self.identity.producer_id
            request.producer_epoch = self.identity.producer_epoch
        return AskCoordinator(self._id, request)

    def _enlarging(self) -> AskCoordinator | None:
        """What belongs to the transaction and is not in it yet."""
        if self._wanted:
            return AskCoordinator(self._id, self._add_partitions())
        if not self._sending:
            return None
        sending = self._sending[0]
        if sending.group.group_id in self._groups:
            group = TransactionCoordinatorNode(CoordinatorRole.GROUP, sending.group.group_id)
            return AskCoordinator(group, self._commit_offsets(sending))
        producer = self._producer()
        request = wire.AddOffsetsToTxnRequest(
            transactional_id=self._settings.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=sending.group.group_id,
        )
        return AskCoordinator(self._id, request)

    def _ending(self) -> AskCoordinator | None:
        if not self._may_be_known:
            self._on_over()  # Nobody has heard of it.
            return self._init() if self.phase is TransactionPhase.RESUMING else None
        producer = self._producer()
        request = wire.EndTxnRequest(
            transactional_id=self._settings.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=self.phase is TransactionPhase.COMMITTING,
        )
        return AskCoordinator(self._id, request)

    def _add_partitions(self) -> wire.AddPartitionsToTxnRequest:
        producer = self._producer()
        return wire.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._settings.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[
                wire.AddPartitionsToTxnTopic(name=name, partitions=numbers)
                for name, numbers in _by_topic(self._wanted).items()
            ],
        )

    def _commit_offsets(self, sending: OffsetsToSend) -> wire.TxnOffsetCommitRequest:
        producer = self._producer()
        return wire.TxnOffsetCommitRequest(
            transactional_id=self._settings.transactional_id,
            group_id=sending.group.group_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            generation_id=sending.group.generation_id,
            member_id=sending.group.member_id,
            group_instance_id=sending.group.instance_id,
            topics=[
                wire.TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        wire.TxnOffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=place.offset,
                            committed_leader_epoch=place.leader_epoch,
                            committed_metadata=place.metadata,
                        )
                        for number in numbers
                        for place in [sending.offsets[TopicPartition(name, number)]]
                    ],
                )
                for name, numbers in _by_topic(sending.offsets).items()
            ],
        )

    def _producer(self) -> ProducerIdentity:
        if self.identity is None:
            raise UsageError(f"{self} has no producer id yet")
        return self.identity

    # ---- what came of it ----

    def _on_done(self, request: Message, response: Message) -> None:
        match request, response:
            case InitProducerIdRequest(), InitProducerIdResponse():
                self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
                self._in_doubt = False
                self.phase = TransactionPhase.READY
            case wire.AddPartitionsToTxnRequest(), _:
                for topic in request.v3_and_below_topics:
                    for number in topic.partitions:
                        self._added.add(TopicPartition(topic.name, number))
                        self._wanted.pop(TopicPartition(topic.name, number), None)
            case wire.AddOffsetsToTxnRequest(), _:
                self._groups.add(request.group_id)
            case wire.TxnOffsetCommitRequest(), _ if self._sending:
                self._sending.pop(0).is_done = True
            case wire.EndTxnRequest(), _:
                self.is_committed = request.committed
                self._on_over()

    def _on_over(self) -> None:
        """The transaction has ended; without a request if there was nothing in it."""
        if self.phase is TransactionPhase.COMMITTING:
            self.is_committed = True
        self.phase = TransactionPhase.RESUMING if self._in_doubt else TransactionPhase.READY
        self._added.clear()
        self._groups.clear()
        self._may_be_known = self._is_decided = self._may_be_committed = False

    def _retry(self, error: StreamlogError, now_ms: int) -> None:
        if self.trouble is None:
            self._troubled_since_ms = now_ms
        self.trouble = error
        wait_ms = RETRY_BACKOFF_MS << min(self._attempts, 16)
        self._not_before_ms = now_ms + min(wait_ms, RETRY_BACKOFF_MS_MAX)
        self._attempts += 1

    def _calm(self) -> None:
        self.trouble = None
        self._attempts = self._not_before_ms = 0

    def _give_up(self, trouble: StreamlogError) -> None:
        """It was tried for long enough."""
        what = f"{self} got no further for {self._settings.patience_ms} ms; last: {trouble}"
        match self.phase:
            case TransactionPhase.COMMITTING if self._is_decided:
                what += "; whether the transaction is committed is not known: look at what is there"
            case TransactionPhase.ABORTING:
                what += "; the coordinator aborts the transaction itself when its time is over"
        self._calm()
        self._refuse(RequestTimedOut(what), None)

    def _refuse(self, error: StreamlogError, asked: AskCoordinator | None) -> None:
        """It can't be done: the transaction fails, or this producer is over."""
        code = error.code if isinstance(error, LogError) else ErrorCode.NONE
        is_forgotten = code == ErrorCode.INVALID_PRODUCER_ID_MAPPING and not self._is_decided
        if is_forgotten:  # There is nothing to end; who has the name now, the next epoch tells.
            self._may_be_known, self._in_doubt = False, True
        is_late = asked is not None and not isinstance(asked.request, wire.EndTxnRequest)
        is_own = error.fatal and code != ErrorCode.FENCED_INSTANCE_ID  # That is the consumer's.
        if is_own or code in _FATAL or self._is_decided:
            self._die(error)
        elif self.phase in {
            TransactionPhase.OPEN,
            TransactionPhase.FAILED,
            TransactionPhase.COMMITTING,
        }:
            self._fail(error)
        elif self.phase is not TransactionPhase.ABORTING or not (is_late or is_forgotten):
            self._die(error)

    def _fail(self, error: StreamlogError) -> None:
        if self.phase in {
            TransactionPhase.OPEN,
            TransactionPhase.FAILED,
            TransactionPhase.COMMITTING,
        }:
            self.failure = self.failure or error
            self.phase = (
                TransactionPhase.ABORTING
                if self.phase is TransactionPhase.COMMITTING
                else TransactionPhase.FAILED
            )
            self._drop()

    def _die(self, error: StreamlogError) -> None:
        error.fatal, error.retriable = True, False
        self.failure, self.phase = error, TransactionPhase.DEAD
        self._drop()

    def _drop(self) -> None:
        """What is not in the transaction yet does not get in any more."""
        self._wanted.clear()
        self._sending.clear()
        self._calm()

    def _fenced(self, code: int) -> ProducerFenced:
        what = "Nothing of an open one counts"
        if self._may_be_committed:
            # It may have been committed, and another producer have taken over, before we asked
            # again: who is shut out is told no more.
            what = (
                "The commit was asked for before, without an answer: whether it counts is not "
                "known, look at what is there"
            )
        fenced = ProducerFenced(
            f"{self} is fenced, {describe(code)}; or a transaction was open for longer than "
            f"transaction_timeout_ms ({self._settings.timeout_ms}) and was aborted. {what}. Close "
            "this producer; if two are meant to run at the same time, give each a "
            "transactional_id of its own",
            code=code,
        )
        fenced.in_doubt = self._may_be_committed
        return fenced


def _refusal(response: Message) -> tuple[int, str]:
    """The reason why it was not done, and where; of several that which matters most."""
    match response:
        case wire.AddPartitionsToTxnResponse():
            return _gravest(
                (each.partition_error_code, f" of {topic.name}-{each.partition_index}")
                for topic in response.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            )
        case wire.TxnOffsetCommitResponse():
            return _gravest(
                (each.error_code, f" of {topic.name}-{each.partition_index}")
                for topic in response.topics
                for each in topic.partitions
            )
        case (
            InitProducerIdResponse(error_code=code)
            | wire.AddOffsetsToTxnResponse(error_code=code)
            | wire.EndTxnResponse(error_code=code)
        ):
            return code, ""
    raise UsageError(f"{type(response).__name__} is no answer of a coordinator of transactions")


def _denied(response: Message) -> set[TopicPartition]:
    """Partitions that this producer may not write to."""
    if not isinstance(response, wire.AddPartitionsToTxnResponse):
        return set()
    return {
        TopicPartition(topic.name, each.partition_index)
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    }


def _gravest(codes: Iterable[tuple[int, str]]) -> tuple[int, str]:
    refused = [each for each in codes if each[0] != ErrorCode.NONE]
    refused.sort(key=lambda each: (each[0] == _NOT_TRIED, is_retriable(each[0])))
    return refused[0] if refused else (ErrorCode.NONE, "")


def _is_commit(request: Message) -> bool:
    return isinstance(request, wire.EndTxnRequest) and request.committed


def _is_no_transaction(request: Message, code: int) -> bool:
    """Whether an abort has found nothing to abort."""
    is_abort = isinstance(request, wire.EndTxnRequest) and not request.committed
    return is_abort and code == ErrorCode.INVALID_TXN_STATE


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in partitions:
        numbers.setdefault(topic, []).append(partition)
    return numbers
