"""TransactionCoordinator: all transactional ids of a partition of `__transaction_state` (KIP-98).

It follows Kafka's coordinator before KIP-890: a producer adds the partitions that it is about to
write to, then commits or aborts. Epochs fence older instances, by InitProducerId and when a
transaction times out; a producer that has lost its state asks for the next epoch by its old one
(KIP-360). A request that arrives late, on a connection that its producer has replaced, is refused:
before KIP-890 nothing else tells it from a request of the transaction that is open now.

Prepared transactions come out of `take_endings`, also after a restart, and end with `on_ended`;
EndTxn is answered then, so that a producer that commits and reads sees its own records.
`CoordinatedTransaction` is the state of one transactional id, with its record. `MarkerQueue`
decides which marker goes to which broker, and when to try again.

Rule: in one partition there is at most one try per transaction. A second one could reach the
leader when the producer is in its next transaction, and end that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.coordinator.shard import (
    Answer,
    Caller,
    CoordinatorRecord,
    Instant,
    ShardOutcome,
    refuse,
)
from streamlog.errors import CorruptData
from streamlog.protocol.codec import decode_versioned, encode_versioned
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import by_partition, response_by_item
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

if TYPE_CHECKING:
    from streamlog.broker.config.coordinators import TransactionConfig
    from streamlog.protocol.schema import Message


NO_EPOCH = -1
NO_PRODUCER = -1
NO_TIME_MS = -1
EPOCH_MAX = 2**15 - 1
"""The last one is kept for fencing: no producer writes with it."""
KEY_VERSION = 0
VALUE_VERSION = 1

TransactionPartition = tuple[str, int]


class TransactionState(IntEnum):
    """Where a transactional id stands, by the numbers of its records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """What admins call it."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """Whether markers are on their way."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def outcome(self) -> TransactionState:
        """What a prepared one becomes."""
        committed = self is TransactionState.PREPARE_COMMIT
        return TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT

    @property
    def is_abort(self) -> bool:
        """Whether the transaction is being aborted, or has been."""
        return self in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether there is no transaction."""
        return not self.is_prepared and self is not TransactionState.ONGOING


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedTransaction:
    """A transactional id, the producer that has it, and its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    previous_producer_id: int = NO_PRODUCER
    """Of who asked for this epoch by the one before (KIP-360), mostly the same."""
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TransactionPartition] = frozenset()
    start_ms: int = NO_TIME_MS
    update_ms: int = NO_TIME_MS

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a producer to write with."""
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def is_resumed_by(self) -> tuple[int, int] | None:
        """Producer id and epoch that asked for these ones, if somebody did and has not used them.

        Who asked may not have heard the answer, and ask again, also after a restart.
        """
        if self.state is not TransactionState.EMPTY or self.previous_producer_id == NO_PRODUCER:
            return None
        is_same = self.previous_producer_id == self.producer_id
        return self.previous_producer_id, self.producer_epoch - 1 if is_same else EPOCH_MAX - 1

    def restart(self, *, epoch: int, timeout_ms: int, wall_ms: int) -> CoordinatedTransaction:
        """A producer begins, with the same producer id."""
        return replace(
            self,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=NO_TIME_MS,
            update_ms=wall_ms,
        )

    def with_partitions(
        self, added: frozenset[TransactionPartition], wall_ms: int
    ) -> CoordinatedTransaction:
        """The producer writes to these, too; a transaction begins unless there is one."""
        begins = self.state.is_idle
        return replace(
            self,
            state=TransactionState.ONGOING,
            partitions=added if begins else self.partitions | added,
            start_ms=wall_ms if begins else self.start_ms,
            update_ms=wall_ms,
        )

    def prepared(self, *, committed: bool, fenced: bool, wall_ms: int) -> CoordinatedTransaction:
        """It is decided; with `fenced` its producer is shut out by an epoch that nobody has."""
        kind = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        epoch = self.producer_epoch + 1 if fenced else self.producer_epoch
        return replace(self, state=kind, producer_epoch=epoch, update_ms=wall_ms)

    def completed(self, wall_ms: int) -> CoordinatedTransaction:
        """All markers are written."""
        return replace(
            self,
            state=self.state.outcome,
            partitions=frozenset(),
            start_ms=NO_TIME_MS,
            update_ms=wall_ms,
        )


def record_of(transaction: CoordinatedTransaction) -> CoordinatorRecord:
    """What is written when a transactional id has become this."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=[
            PartitionsSchema(topic=topic, partition_ids=numbers)
            for topic, numbers in topics.items()
        ],
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    return CoordinatorRecord(
        _key(transaction.transactional_id), encode_versioned(value, VALUE_VERSION)
    )


def tombstone_of(transactional_id: str) -> CoordinatorRecord:
    """What is written when a transactional id is forgotten."""
    return CoordinatorRecord(_key(transactional_id), None)


def decode_record(record: CoordinatorRecord) -> tuple[str, CoordinatedTransaction | None]:
    """The transactional id of a record, and what has become of it; None for forgotten.

    Raises:
        CorruptData: it is cut short, or in a state that is not known here.
    """
    transactional_id = decode_versioned(TransactionLogKey, record.key).transactional_id
    if record.value is None:
        return transactional_id, None
    value = decode_versioned(TransactionLogValue, record.value)
    try:
        state = TransactionState(value.transaction_status)
    except ValueError as error:
        raise CorruptData(
            f"the transactional id {transactional_id!r} is in state {value.transaction_status},"
            " which is not known"
        ) from error
    return transactional_id, CoordinatedTransaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        previous_producer_id=value.previous_producer_id,
        state=state,
        partitions=frozenset(
            (each.topic, number)
            for each in value.transaction_partitions or ()
            for number in each.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
    )


def _key(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


ID_BYTES_MAX = 32_767
"""What a string of two bytes' length can hold: the record has to name the transactional id."""
TIMEOUT_CHECK_MS = 1_000
"""How often it is looked for transactions that have been open for too long."""
MARKERS_TIMEOUT_MS = 5_000
"""How long EndTxn waits for markers; the next transaction has to wait for them in any case."""
EXPIRY_CHECK_MS = 60 * 60 * 1000
"""How often, at least, for transactional ids that nobody uses any more."""

Producer = tuple[int, int]
"""Producer id and epoch."""


class TransactionDeps(NamedTuple):
    """What a coordinator asks of others."""

    new_producer_id: Callable[[], int]
    """A producer id that nobody has had."""
    partition_exists: Callable[[str, int], bool]
    offsets_partition: Callable[[str], TransactionPartition]
    """Where the offsets of a group are kept."""


class Ending(NamedTuple):
    """A transaction that is decided: its markers are to be written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[TransactionPartition]


class TransactionCoordinator:
    """The `Shard` of transactional ids."""

    def __init__(self, config: TransactionConfig, around: TransactionDeps) -> None:
        self._config = config
        self._around = around
        self._transactions: dict[str, CoordinatedTransaction] = {}
        self._ongoing: set[str] = set()
        self._endings: dict[str, None] = {}
        self._fenced: dict[str, tuple[int, int]] = {}
        """Producers, by transactional id, whose transaction was given up by a newer epoch."""
        self._tickets: dict[str, tuple[int, int]] = {}
        """Who has asked for the end of a transaction, and until when to wait with the answer."""
        self._carriers: dict[str, int] = {}
        """The connection by which a transactional id was heard of last."""
        self._timeout_check_ms = 0
        self._expiry_check_ms = 0

    def configure(self, config: TransactionConfig) -> None:
        """Go on with other settings."""
        self._config = config

    # ---- Shard ----

    def handle(self, request: Message, caller: Caller, at: Instant) -> ShardOutcome:
        """Decide on a request for one transactional id."""
        match request:
            case InitProducerIdRequest():
                return self._init(request, caller, at)
            case AddPartitionsToTxnRequest():
                return self._add_partitions(request, caller, at)
            case AddOffsetsToTxnRequest():
                added = frozenset({self._around.offsets_partition(request.group_id)})
                producer = (request.producer_id, request.producer_epoch)
                name = request.transactional_id
                code, changed = self._added(name, producer, added, caller=caller, at=at)
                return _outcome(changed, caller, refuse(request, caller.version, code))
            case EndTxnRequest():
                return self._end(request, caller, at)
            case _:
                raise TypeError(f"no request of a transaction: {request!r}")

    def replay(self, record: CoordinatorRecord, *, now_ms: int) -> None:
        """See `Shard.replay`. What is due by the clock is found by the next tick."""
        self._timeout_check_ms = min(self._timeout_check_ms, now_ms + TIMEOUT_CHECK_MS)
        transactional_id, transaction = decode_record(record)
        self._endings.pop(transactional_id, None)
        self._ongoing.discard(transactional_id)
        self._note_fencing(transactional_id, transaction)
        if transaction is None:
            self._transactions.pop(transactional_id, None)
            self._carriers.pop(transactional_id, None)
            return
        self._transactions[transactional_id] = transaction
        if transaction.state.is_prepared:
            self._endings[transactional_id] = None
        elif transaction.state is TransactionState.ONGOING:
            self._ongoing.add(transactional_id)

    def _note_fencing(self, transactional_id: str, after: CoordinatedTransaction | None) -> None:
        before = self._transactions.get(transactional_id)
        if after is None or not after.state.is_abort:
            self._fenced.pop(transactional_id, None)
        elif before is not None and before.state is TransactionState.ONGOING:
            producer = (before.producer_id, before.producer_epoch)
            if (after.producer_id, after.producer_epoch - 1) == producer:
                self._fenced[transactional_id] = producer

    def on_tick(self, at: Instant) -> ShardOutcome:
        """Abort what has been open for too long, forget who has been silent for too long."""
        changed: list[CoordinatorRecord] = []
        answers: tuple[Answer, ...] = ()
        if self._timeout_check_ms <= at.now_ms:
            self._timeout_check_ms = at.now_ms + TIMEOUT_CHECK_MS
            for known in [self._transactions[each] for each in self._ongoing]:
                if known.start_ms + known.timeout_ms <= at.wall_ms:
                    given_up = known.prepared(committed=False, fenced=True, wall_ms=at.wall_ms)
                    changed.append(record_of(given_up))
            answers = self._take_late(at.now_ms)
        if self._expiry_check_ms <= at.now_ms:
            kept_ms = self._config.id_expiration_ms
            self._expiry_check_ms = at.now_ms + min(EXPIRY_CHECK_MS, kept_ms)
            for transactional_id, known in self._transactions.items():
                if known.state.is_idle and known.update_ms + kept_ms <= at.wall_ms:
                    changed.append(tombstone_of(transactional_id))
        return ShardOutcome(tuple(changed), answers)

    def next_deadline_ms(self) -> int | None:
        """See `Shard.next_deadline_ms`."""
        if not self._transactions:
            return None
        is_due = self._ongoing or self._tickets
        return self._timeout_check_ms if is_due else self._expiry_check_ms

    # ---- the end of transactions ----

    def take_endings(self) -> list[Ending]:
        """What is decided and was not taken before."""
        taken, self._endings = list(self._endings), {}
        found = [self._transactions[transactional_id] for transactional_id in taken]
        return [
            Ending(
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.state is TransactionState.PREPARE_COMMIT,
                each.partitions,
            )
            for each in found
        ]

    def on_ended(self, ending: Ending, at: Instant) -> ShardOutcome:
        """All markers are written and on disk."""
        known = self._transactions.get(ending.transactional_id)
        asked = self._tickets.pop(ending.transactional_id, None)
        answers = () if asked is None else (Answer(asked[0], EndTxnResponse()),)
        if known is None or not known.state.is_prepared:
            return ShardOutcome(answers=answers)
        return ShardOutcome((record_of(known.completed(at.wall_ms)),), answers)

    def forget_ticket(self, ticket: int) -> None:
        """It has been answered by somebody else."""
        self._tickets = {name: each for name, each in self._tickets.items() if each[0] != ticket}

    def _take_late(self, now_ms: int) -> tuple[Answer, ...]:
        """The answers for who has waited long enough for the end of a transaction."""
        late = [name for name, (_, due_ms) in self._tickets.items() if due_ms <= now_ms]
        return tuple(Answer(self._tickets.pop(name)[0], EndTxnResponse()) for name in late)

    # ---- reading ----

    def verify(
        self, transactional_id: str, producer: Producer, partition: TransactionPartition
    ) -> ErrorCode:
        """Whether the producer may write to the partition in its transaction now."""
        known = self._transactions.get(transactional_id)
        if known is None or known.producer_id != producer[0]:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.producer_epoch != producer[1]:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if known.state is not TransactionState.ONGOING or partition not in known.partitions:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def transaction(self, transactional_id: str) -> CoordinatedTransaction | None:
        """What is known of a transactional id."""
        return self._transactions.get(transactional_id)

    def transactions(self) -> Iterable[CoordinatedTransaction]:
        """Every transactional id."""
        return self._transactions.values()

    # ---- requests ----

    def _init(self, request: InitProducerIdRequest, caller: Caller, at: Instant) -> ShardOutcome:
        code, changed = self._begun(request, at)
        if code is not ErrorCode.NONE:
            return _outcome(changed, caller, refuse(request, caller.version, code))
        # Another instance may begin by a connection that it had before this one was made.
        self._carriers[request.transactional_id or ""] = caller.connection
        current = changed or self._transactions[request.transactional_id or ""]
        response = InitProducerIdResponse(
            producer_id=current.producer_id, producer_epoch=current.producer_epoch
        )
        return _outcome(changed, caller, response)

    def _begun(
        self, request: InitProducerIdRequest, at: Instant
    ) -> tuple[ErrorCode, CoordinatedTransaction | None]:
        name = request.transactional_id or ""
        refused = self._malformed(name, request)
        if refused is not ErrorCode.NONE:
            return refused, None
        known = self._transactions.get(name)
        if known is None:
            return ErrorCode.NONE, CoordinatedTransaction(
                transactional_id=name,
                producer_id=self._around.new_producer_id(),
                producer_epoch=0,
                timeout_ms=request.transaction_timeout_ms,
                update_ms=at.wall_ms,
            )
        if known.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS, None
        old = (request.producer_id, request.producer_epoch)
        resumes = request.producer_id != NO_PRODUCER
        if resumes and old != (known.producer_id, known.producer_epoch):
            return self._resumed(known, request, at)
        if known.state is TransactionState.ONGOING:
            # By this epoch the older instance is fenced; the next one is for whoever asks again.
            # Who resumes is the instance itself: it has ended its transaction, and a request of it
            # that was late has begun another one.
            given_up = known.prepared(committed=False, fenced=not resumes, wall_ms=at.wall_ms)
            return ErrorCode.CONCURRENT_TRANSACTIONS, given_up
        return ErrorCode.NONE, self._next(known, request, at)

    def _resumed(
        self, known: CoordinatedTransaction, request: InitProducerIdRequest, at: Instant
    ) -> tuple[ErrorCode, CoordinatedTransaction | None]:
        """A producer asks to resume by an epoch that is not the current one."""
        old = (request.producer_id, request.producer_epoch)
        if old == self._fenced.get(known.transactional_id) and not known.is_exhausted:
            return ErrorCode.NONE, _recover_epoch(known, request, at)
        # It may not have heard the answer to the same request.
        is_again = old == known.is_resumed_by
        return (ErrorCode.NONE if is_again else ErrorCode.PRODUCER_FENCED), None

    def _malformed(self, name: str, request: InitProducerIdRequest) -> ErrorCode:
        resumes = request.producer_id != NO_PRODUCER
        if not 0 < len(name.encode()) <= ID_BYTES_MAX or resumes != (request.producer_epoch >= 0):
            return ErrorCode.INVALID_REQUEST
        if not 0 < request.transaction_timeout_ms <= self._config.timeout_ms_max:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _next(
        self, known: CoordinatedTransaction, request: InitProducerIdRequest, at: Instant
    ) -> CoordinatedTransaction:
        epoch = 0 if known.is_exhausted else known.producer_epoch + 1
        begun = known.restart(
            epoch=epoch, timeout_ms=request.transaction_timeout_ms, wall_ms=at.wall_ms
        )
        return replace(
            begun,
            producer_id=self._around.new_producer_id() if known.is_exhausted else known.producer_id,
            previous_producer_id=request.producer_id,
        )

    def _add_partitions(
        self, request: AddPartitionsToTxnRequest, caller: Caller, at: Instant
    ) -> ShardOutcome:
        added = frozenset(
            (topic.name, number)
            for topic in request.v3_and_below_topics
            for number in topic.partitions
        )
        unknown = {each for each in added if not self._around.partition_exists(*each)}
        if unknown:
            code_of = by_partition(
                lambda topic, number: (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    if (topic, number) in unknown
                    else ErrorCode.OPERATION_NOT_ATTEMPTED
                )
            )
            response = response_by_item(request, AddPartitionsToTxnResponse, code_of)
            return _outcome(None, caller, response)
        name = request.v3_and_below_transactional_id
        producer = (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        code, changed = self._added(name, producer, added, caller=caller, at=at)
        return _outcome(changed, caller, refuse(request, caller.version, code))

    def _added(
        self,
        name: str,
        producer: Producer,
        added: frozenset[TransactionPartition],
        *,
        caller: Caller,
        at: Instant,
    ) -> tuple[ErrorCode, CoordinatedTransaction | None]:
        code = self._refused(name, producer, caller)
        if code is not ErrorCode.NONE:
            return code, None
        known = self._transactions[name]
        if known.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS, None
        if known.state is TransactionState.ONGOING and added <= known.partitions:
            return ErrorCode.NONE, None
        return ErrorCode.NONE, known.with_partitions(added, at.wall_ms)

    def _refused(self, name: str, producer: Producer, caller: Caller) -> ErrorCode:
        """Whether this is not the producer of the transactional id, or no more by this connection.

        A asks by one connection to commit, hears nothing, connects again and asks again: that is
        done, and A begins the next transaction, when the first request arrives at last. By what it
        says it could be of that transaction, and would commit the half of it. Who asks by the
        older connection is told to look for its coordinator, in case somebody still listens.
        """
        code = _mismatch(self._transactions.get(name), producer)
        if code is not ErrorCode.NONE or not caller.connection:
            return code
        if caller.connection < self._carriers.get(name, 0):
            return ErrorCode.NOT_COORDINATOR
        self._carriers[name] = caller.connection
        return ErrorCode.NONE

    def _end(self, request: EndTxnRequest, caller: Caller, at: Instant) -> ShardOutcome:
        name, committed = request.transactional_id, request.committed
        code = self._refused(name, (request.producer_id, request.producer_epoch), caller)
        if code is ErrorCode.NONE:
            known = self._transactions[name]
            if known.state is TransactionState.ONGOING:
                self._tickets[name] = caller.ticket, at.now_ms + MARKERS_TIMEOUT_MS
                decided = known.prepared(committed=committed, fenced=False, wall_ms=at.wall_ms)
                return ShardOutcome((record_of(decided),))
            code = _end_code(known.state, committed=committed)
        return _outcome(None, caller, refuse(request, caller.version, code))


def _mismatch(known: CoordinatedTransaction | None, producer: Producer) -> ErrorCode:
    """Whether this is another producer than the one that has the transactional id."""
    if known is None or known.producer_id != producer[0]:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer[1]:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _end_code(state: TransactionState, *, committed: bool) -> ErrorCode:
    """The answer to EndTxn where no transaction is open: it may have been asked before."""
    asked = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    if state is asked:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if state is asked.outcome:
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def _recover_epoch(
    known: CoordinatedTransaction, request: InitProducerIdRequest, at: Instant
) -> CoordinatedTransaction:
    """The producer goes on with the epoch by which its own transaction was given up (KIP-588).

    No other producer has that epoch: an instance that begins gets the one after it, and takes the
    transactional id out of its aborted state.
    """
    begun = known.restart(
        epoch=known.producer_epoch, timeout_ms=request.transaction_timeout_ms, wall_ms=at.wall_ms
    )
    return replace(begun, previous_producer_id=request.producer_id)


def _outcome(
    changed: CoordinatedTransaction | None, caller: Caller, response: Message
) -> ShardOutcome:
    records = () if changed is None else (record_of(changed),)
    return ShardOutcome(records, (Answer(caller.ticket, response),))


RETRY_MS = 50
"""Before the second try to write a marker; each time it takes twice as long,"""
RETRY_MS_MAX = 1_000
"""but no longer than this."""
NEEDLESS = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""There is nothing left to decide: a newer instance of the producer, or of its coordinator, was
faster."""

LeaderOf = Callable[[TransactionPartition], int | None]
"""Who leads a partition: negative if nobody does, None if it is gone."""


class MarkerJob(NamedTuple):
    """A transaction that is decided, and by whom."""

    ending: Ending
    shard: int
    """The coordinator's partition."""
    coordinator_epoch: int


class Try(NamedTuple):
    """Markers that go to one broker."""

    number: int
    """Of the job."""
    job: MarkerJob
    node_id: int
    places: tuple[TransactionPartition, ...]


@dataclass(slots=True)
class _Due:
    """When a marker is tried next, and how often it was tried."""

    at_ms: int
    tries: int = 0


@dataclass(slots=True)
class _Open:
    """What is left of a job."""

    job: MarkerJob
    due: dict[TransactionPartition, _Due]
    under_way: dict[TransactionPartition, _Due] = field(default_factory=dict)


class MarkerQueue:
    """All markers that this broker has to see to."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._numbers = 0

    def __len__(self) -> int:
        """How many transactions are not complete."""
        return len(self._open)

    def add(self, job: MarkerJob, now_ms: int) -> None:
        """A transaction was decided, durably."""
        self._numbers += 1
        places = sorted(job.ending.partitions)
        self._open[self._numbers] = _Open(job, {place: _Due(now_ms) for place in places})

    def forget(self, index: int) -> None:
        """Another coordinator sees to the transactions of a partition: it begins anew."""
        self._open = {n: each for n, each in self._open.items() if each.job.shard != index}

    def take(self, leader_of: LeaderOf, now_ms: int) -> list[Try]:
        """What is to be tried now; each try ends with `on_code` for each of its places."""
        return [
            each for number in list(self._open) for each in self._tries(number, leader_of, now_ms)
        ]

    def on_code(self, number: int, place: TransactionPartition, code: int, now_ms: int) -> None:
        """What has become of a try; what was not heard of may be REQUEST_TIMED_OUT."""
        known = self._open.get(number)
        if known is None:
            return  # The job was forgotten.
        due = known.under_way.pop(place)
        if code != ErrorCode.NONE and code not in NEEDLESS:
            self._put_off(known, place, due, now_ms)

    def take_done(self) -> list[MarkerJob]:
        """The jobs of which nothing is left, and were not taken before."""
        done = [n for n, each in self._open.items() if not each.due and not each.under_way]
        return [self._open.pop(number).job for number in done]

    def next_deadline_ms(self) -> int | None:
        """When `take` has something to do; None while nothing waits for time to pass."""
        waiting = (due.at_ms for each in self._open.values() for due in each.due.values())
        return min(waiting, default=None)

    def _tries(self, number: int, leader_of: LeaderOf, now_ms: int) -> list[Try]:
        known = self._open[number]
        places: dict[int, list[TransactionPartition]] = {}
        for place in [place for place, due in known.due.items() if due.at_ms <= now_ms]:
            due = known.due.pop(place)
            leader = leader_of(place)
            if leader is None:
                continue
            if leader < 0:
                self._put_off(known, place, due, now_ms)
                continue
            known.under_way[place] = due
            places.setdefault(leader, []).append(place)
        return [Try(number, known.job, node_id, tuple(own)) for node_id, own in places.items()]

    def _put_off(self, known: _Open, place: TransactionPartition, due: _Due, now_ms: int) -> None:
        pause_ms = min(RETRY_MS << min(due.tries, 10), RETRY_MS_MAX)
        known.due[place] = _Due(now_ms + pause_ms, due.tries + 1)
