"""TransactionMachine: the producer's side of transactions, as a state machine.

It follows KIP-98, 360 and 447, and on clusters with transactions v2, part 2 of KIP-890.

    BEGINNING ─► READY ─► OPEN ─► COMMITTING ─► READY, or RESUMING ─► READY
                            ▼         ▼ unless the commit was requested
                         FAILED ─► ABORTING ─► READY, or RESUMING ─► READY

A state machine without I/O: `next` returns the request that is due, and `transaction_session.py`
sends the requests one at a time and reports the answers by `on_…`. Rules of the file: a partition
is added to the transaction before a record is written to it; in transactions v2, its leader does
that. Once a record is lost, the only way out is an abort. A commit that was requested is never
withdrawn. No late request of one transaction belongs to the next one, since each has an epoch of
its own: the answer to EndTxn has the next one. In transactions v1 the producer requests it, after a
transaction that leaves something in doubt (a numbered batch, or a request without an answer). DEAD
is reached from every phase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

import msgspec

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
from streamlog.protocol.api_table import TRANSACTIONS_V2_SINCE, api_of
from streamlog.protocol.error_codes import ErrorCode, describe, error_for, is_retriable
from streamlog.protocol.messages import transaction_messages as wire
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.produce_and_fetch import ProduceRequest
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition

RETRY_BACKOFF_MS: Final = 20
"""The first wait; short, because the coordinator is mostly about to complete the transaction
before this one (CONCURRENT_TRANSACTIONS)."""
RETRY_BACKOFF_MS_MAX: Final = 1_000

_REQUESTS: Final[tuple[type[Message], ...]] = (
    wire.EndTxnRequest,
    wire.TxnOffsetCommitRequest,
    ProduceRequest,
)
V1_UP_TO: Final[Mapping[type[Message], int]] = {
    kind: TRANSACTIONS_V2_SINCE[kind] - 1 for kind in _REQUESTS
}
"""The last version of a request in transactions v1."""

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


NO_PRODUCER: Final = -1
"""The producer id in the answer of a coordinator that raises no epochs."""
_NOT_TRIED: Final = ErrorCode.OPERATION_NOT_ATTEMPTED


class TransactionPhase(Enum):
    """The phase of a producer's present transaction."""

    BEGINNING = auto()
    """The producer requests its producer id, which fences older producers of its name."""
    READY = auto()
    """No transaction is open; one can begin."""
    OPEN = auto()
    """Records and offsets become part of the transaction."""
    FAILED = auto()
    """A record or an offset is lost; the caller must abort."""
    COMMITTING = auto()
    """The caller commits: the producer waits for batches in flight, then requests the commit."""
    ABORTING = auto()
    """The producer waits for batches in flight, then requests the abort."""
    RESUMING = auto()
    """The transaction has ended; the producer requests its next epoch (KIP-360)."""
    DEAD = auto()
    """Another producer has fenced this one, or a fatal error has ended it."""


class CoordinatorRole(Enum):
    """The kind of a coordinator, with its number in FindCoordinator."""

    GROUP = 0
    TRANSACTIONS = 1


class TransactionCoordinatorNode(msgspec.Struct, frozen=True):
    """The coordinator of a group, or of a transactional id."""

    role: CoordinatorRole
    name: str


class Find(msgspec.Struct, frozen=True):
    """Look up a coordinator, then call `on_found`."""

    coordinator: TransactionCoordinatorNode


class AskCoordinator(msgspec.Struct, frozen=True):
    """Send the request to its coordinator; pass the answer to `on_answer`."""

    coordinator: TransactionCoordinatorNode
    request: Message


class WaitUntil(msgspec.Struct, frozen=True):
    """Wait until this monotonic time in ms, or until a call changes the state; None: no time."""

    until_ms: int | None


Action: TypeAlias = Find | AskCoordinator | WaitUntil


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The transactional id and the time limits."""

    transactional_id: str
    timeout_ms: int
    """Milliseconds after which the coordinator aborts an open transaction."""
    patience_ms: int
    """Milliseconds, from the first failure of a request, for which it is retried."""


@dataclass(slots=True)
class OffsetsToSend:
    """A group's offsets on their way into the transaction."""

    group: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    is_done: bool = False


class TransactionMachine:
    """One producer's transactions.

    Invariants: `may_write` is true for a partition only after the coordinator has added it to the
    transaction. A commit is requested only after every record is written and every offset sent.
    `is_committed` is true only after the coordinator has confirmed the commit.
    """

    def __init__(self, settings: TransactionSettings) -> None:
        self.phase = TransactionPhase.BEGINNING
        self.identity: ProducerIdentity | None = None
        """The producer id and epoch to write with; None in phase BEGINNING."""
        self.is_committed = False
        """Whether the last transaction was committed."""
        self.failure: StreamlogError | None = None
        """Why the transaction failed; in phase DEAD, why the producer has ended."""
        self.trouble: StreamlogError | None = None
        """Why the present request is being retried."""
        self._settings = settings
        self._id = TransactionCoordinatorNode(
            CoordinatorRole.TRANSACTIONS, settings.transactional_id
        )
        self._found: set[TransactionCoordinatorNode] = set()
        self._wanted: dict[TopicPartition, None] = {}
        self._added: set[TopicPartition] = set()
        self.refused: set[TopicPartition] = set()
        """Partitions that the producer is not authorized to write to."""
        self._sending: list[OffsetsToSend] = []
        self._groups: set[str] = set()
        self._asked: AskCoordinator | None = None
        self._may_be_known = False
        """Whether the coordinator may know of the transaction, so that it must be ended."""
        self._is_decided = False
        """Whether the commit was requested."""
        self._may_be_committed = False
        """Whether a commit was requested whose outcome is unknown."""
        self._in_doubt = False
        """Whether a batch or a request of this transaction may still arrive at a broker."""
        self.is_v2 = False
        """Whether the cluster has transactions v2; set it before the producer id is requested."""
        self._troubled_since_ms = 0
        self._attempts = 0
        self._not_before_ms = 0

    @property
    def transactional_id(self) -> str:
        """The name under which the producer fences older ones."""
        return self._settings.transactional_id

    def version_max(self, kind: type[Message]) -> int | None:
        """Return the newest version of a request that may be sent; None if there is no limit."""
        return None if self.is_v2 else V1_UP_TO.get(kind)

    # ---- the owner ----

    def begin(self) -> None:
        """Begin a transaction; the coordinator learns of it with the first partition.

        Raises:
            UsageError: the previous transaction has not ended.
        """
        if self.phase is not TransactionPhase.READY:
            raise UsageError(
                f"{self} can't begin a transaction now: the one before has to end first, by a "
                "commit or an abort"
            )
        self.phase = TransactionPhase.OPEN
        self.is_committed, self.failure = False, None
        self.refused.clear()

    def want(self, partitions: Collection[TopicPartition]) -> bool:
        """Request that partitions be added to the transaction; return whether any is new."""
        if self.phase not in {TransactionPhase.OPEN, TransactionPhase.COMMITTING}:
            return False
        if self.is_v2:
            # The leaders add them, at the first record. From then on the transaction has to be
            # ended, even if no record arrives: a late one would begin it.
            self._added.update(partitions)
            self._may_be_known = self._may_be_known or bool(partitions)
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
        """Queue offsets for the transaction; the result's `is_done` says when they are in it.

        Raises:
            UsageError: no transaction is open.
        """
        if self.phase is not TransactionPhase.OPEN:
            raise UsageError(f"{self} has no open transaction for these offsets")
        sending = OffsetsToSend(group, with_metadata(offsets))
        self._sending.append(sending)
        return sending

    def commit(self) -> None:
        """Commit when all batches have their outcome; abort if a record is lost already."""
        if self.phase is TransactionPhase.OPEN:
            self.phase = TransactionPhase.COMMITTING
        elif self.phase is TransactionPhase.FAILED:
            self.phase = TransactionPhase.ABORTING

    def abort(self) -> None:
        """Abort the transaction, unless its commit was requested."""
        is_undecided = self.phase is TransactionPhase.COMMITTING and not self._is_decided
        if is_undecided or self.phase in {TransactionPhase.OPEN, TransactionPhase.FAILED}:
            self.phase = TransactionPhase.ABORTING
            self._drop()

    @property
    def is_lost(self) -> bool:
        """Whether the transaction will not be committed, so that waiting batches are given up."""
        return self.phase in {
            TransactionPhase.FAILED,
            TransactionPhase.ABORTING,
            TransactionPhase.DEAD,
        }

    @property
    def is_over(self) -> bool:
        """Whether the last transaction has ended, committed or aborted."""
        return self.phase in {
            TransactionPhase.READY,
            TransactionPhase.RESUMING,
            TransactionPhase.DEAD,
        }

    # ---- the writer ----

    def on_lost(self, error: StreamlogError, *, is_numbered: bool) -> None:
        """Fail the transaction: a batch is lost.

        Args:
            error: why it is lost.
            is_numbered: whether the batch has sequence numbers, so that a broker may have it.
        """
        # 1. Batch 0 is sent with sequence numbers; the answer is lost, and the batch expires.
        # 2. The transaction is aborted, and the next one begins.
        # 3. The old request of batch 0 arrives at the broker only now. Under the old epoch the
        #    broker would take it for a record of the new transaction.
        # So the next epoch is requested in between (RESUMING): the broker refuses the late batch.
        self._in_doubt = self._in_doubt or is_numbered
        self._fail(error)

    # ---- requests ----

    def next(self, now_ms: int, *, is_writing: bool) -> Action:
        """Return what to do now.

        Args:
            now_ms: monotonic time in ms.
            is_writing: whether batches are waiting or in flight.
        """
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
        # Noted before the request is sent: even without an answer, the coordinator may have it.
        match due.request:
            case (
                wire.AddPartitionsToTxnRequest()
                | wire.AddOffsetsToTxnRequest()
                | wire.TxnOffsetCommitRequest()
            ):
                self._may_be_known = True
            case wire.EndTxnRequest(committed=True):
                self._is_decided = True
        self._asked = due
        return due

    def on_found(self, coordinator: TransactionCoordinatorNode) -> None:
        """Note that requests can be sent to this coordinator."""
        self._found.add(coordinator)

    def on_error(self, error: StreamlogError, now_ms: int) -> None:
        """Handle a failed look-up, a failed connection, or a missing answer."""
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
        """Handle a broker that is too old to give a producer its next epoch (before KIP-360)."""
        if self.is_committed:
            self._in_doubt, self.phase = False, TransactionPhase.READY
        else:
            self._die(
                UnsupportedVersion(
                    f"{self} can't continue: this broker gives a producer no next epoch "
                    "(KIP-360); open another producer"
                )
            )

    def end(self, error: StreamlogError) -> None:
        """End the producer: no further request will be sent."""
        if self.phase is not TransactionPhase.DEAD:
            self._die(error)

    def on_answer(self, response: Message, now_ms: int) -> None:
        """Handle the answer to the last request."""
        asked, self._asked = self._asked, None
        if asked is None:
            raise UsageError(f"{self}: an answer arrived without a request")
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

    # ---- the next request ----

    def _due(self, *, is_writing: bool) -> AskCoordinator | None:
        match self.phase:
            case TransactionPhase.BEGINNING | TransactionPhase.RESUMING:
                return self._init()
            case TransactionPhase.OPEN:
                return self._enlarging()
            # Batches that are not written yet may need further partitions in the transaction.
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
        # With the present identity, the answer is its next epoch (KIP-360). Without, it is a new
        # epoch of the name, which fences older producers.
        if self.identity is not None:
            request.producer_id = self.identity.producer_id
            request.producer_epoch = self.identity.producer_epoch
        return AskCoordinator(self._id, request)

    def _enlarging(self) -> AskCoordinator | None:
        """Return the next request that adds partitions or offsets to the transaction."""
        if self._wanted:
            return AskCoordinator(self._id, self._add_partitions())
        if not self._sending:
            return None
        # In transactions v1 two requests: the transaction's coordinator learns of the group, then
        # the group's coordinator gets the offsets.
        sending = self._sending[0]
        if self.is_v2 or sending.group.group_id in self._groups:
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
            self._on_over()  # No coordinator knows of the transaction: there is nothing to end.
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
                for name, numbers in _by_topic(sorted(self._wanted)).items()
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
                            committed_offset=committed.offset,
                            committed_leader_epoch=committed.leader_epoch,
                            committed_metadata=committed.metadata,
                        )
                        for number in numbers
                        for committed in [sending.offsets[TopicPartition(name, number)]]
                    ],
                )
                for name, numbers in _by_topic(sending.offsets).items()
            ],
        )

    def _producer(self) -> ProducerIdentity:
        if self.identity is None:
            raise UsageError(f"{self} has no producer id yet")
        return self.identity

    # ---- outcomes ----

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
            case wire.EndTxnRequest(), wire.EndTxnResponse():
                self.is_committed = request.committed
                if response.producer_id != NO_PRODUCER:
                    # What is still in flight has the epoch before.
                    identity = ProducerIdentity(response.producer_id, response.producer_epoch)
                    self.identity, self._in_doubt = identity, False
                self._on_over()

    def _on_over(self) -> None:
        """Note the end of the transaction; an empty one ends without a request."""
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
        """Stop retrying: `patience_ms` have passed since the first failure."""
        what = f"{self}: no progress for {self._settings.patience_ms} ms; last error: {trouble}"
        match self.phase:
            case TransactionPhase.COMMITTING if self._is_decided:
                what += "; the transaction may or may not be committed: check the topics"
            case TransactionPhase.ABORTING:
                what += "; the coordinator aborts the transaction after its timeout"
        self._calm()
        self._refuse(RequestTimedOut(what), None)

    def _refuse(self, error: StreamlogError, asked: AskCoordinator | None) -> None:
        """Fail the transaction, or end the producer, for an error that no retry cures."""
        code = error.code if isinstance(error, LogError) else ErrorCode.NONE
        is_forgotten = code == ErrorCode.INVALID_PRODUCER_ID_MAPPING and not self._is_decided
        if is_forgotten:
            # The coordinator has forgotten the transactional id: there is nothing to end. Whether
            # another producer has the name by now, the request for the next epoch finds out.
            self._may_be_known, self._in_doubt = False, True
        is_late = asked is not None and not isinstance(asked.request, wire.EndTxnRequest)
        # FENCED_INSTANCE_ID ends the consumer whose offsets were sent, not this producer.
        is_own = error.fatal and code != ErrorCode.FENCED_INSTANCE_ID
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
        """Drop requests for partitions and offsets that are not yet in the transaction."""
        self._wanted.clear()
        self._sending.clear()
        self._calm()

    def _fenced(self, code: int) -> ProducerFenced:
        what = "An open transaction is aborted"
        if self._may_be_committed:
            # 1. The commit is requested; the coordinator commits, and its answer is lost.
            # 2. Another producer opens the transactional id: this one is fenced.
            # 3. The commit is requested again, and the answer is only that this producer is fenced.
            what = (
                "The commit was requested, but not answered: the transaction may or may not be "
                "committed; check the topics"
            )
        fenced = ProducerFenced(
            f"{self} is fenced: {describe(code)}; or a transaction was open for longer than "
            f"transaction_timeout_ms ({self._settings.timeout_ms}) and was aborted. {what}. Close "
            "this producer; if two are meant to run at the same time, give each a "
            "transactional_id of its own",
            code=code,
        )
        fenced.in_doubt = self._may_be_committed
        return fenced


def _refusal(response: Message) -> tuple[int, str]:
    """Return the error code of an answer, and the partition; of several, the gravest."""
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
    raise UsageError(f"{type(response).__name__} is not an answer of a transaction coordinator")


def _denied(response: Message) -> set[TopicPartition]:
    """Return the partitions that the producer is not authorized to write to."""
    if not isinstance(response, wire.AddPartitionsToTxnResponse):
        return set()
    return {
        TopicPartition(topic.name, each.partition_index)
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    }


def _gravest(codes: Iterable[tuple[int, str]]) -> tuple[int, str]:
    # Errors that no retry cures first; OPERATION_NOT_ATTEMPTED last, which only says that another
    # partition had an error.
    refused = [each for each in codes if each[0] != ErrorCode.NONE]
    refused.sort(key=lambda each: (each[0] == _NOT_TRIED, is_retriable(each[0])))
    return refused[0] if refused else (ErrorCode.NONE, "")


def _is_commit(request: Message) -> bool:
    return isinstance(request, wire.EndTxnRequest) and request.committed


def _is_no_transaction(request: Message, code: int) -> bool:
    """Whether an abort was refused because there is no transaction to abort."""
    is_abort = isinstance(request, wire.EndTxnRequest) and not request.committed
    return is_abort and code == ErrorCode.INVALID_TXN_STATE


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in partitions:
        numbers.setdefault(topic, []).append(partition)
    return numbers
