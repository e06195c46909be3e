"""TransactionCoordinator: all transactional ids of a partition of `__transaction_state` (KIP-98).

Partitions are added to a transaction, then the producer commits or aborts it. Epochs fence older
instances, in InitProducerId and when a transaction times out; a producer that has lost its state
asks for the next epoch with its old one (KIP-360). Both generations of clients are served, side by
side:

- Transactions v2 (KIP-890, part 2): the leaders that the producer writes to add their partitions,
  and the end of a transaction raises the epoch. So producer id and epoch identify a transaction,
  and whatever arrives after its end is fenced. A producer id without epochs left is replaced.
- Transactions v1: the producer adds partitions itself, and keeps its epoch. A request that arrives
  late, on a connection that its producer has replaced, is refused: nothing else tells it from a
  request of the transaction that is open now.

    EMPTY ──add partitions──▸ ONGOING ──EndTxn──▸ PREPARE_COMMIT ──markers──▸ COMPLETE_COMMIT
      ▴                         │ ▴                                              │
      │                         │ └──────────── add partitions ──────────────────┤
      │                         └─EndTxn, time-out, fencing──▸ PREPARE_ABORT ──▸ COMPLETE_ABORT
      └───────────────────────────────── InitProducerId ─────────────────────────┘

`take_endings` returns prepared transactions, also after a restart, and `on_ended` completes them.
EndTxn is answered then, so that a producer that commits and reads sees its own records.
`CoordinatedTransaction` is the state of one transactional id, with its record. `MarkerQueue`
decides which marker goes to which broker, and when to try again.

Rules of this module: in one partition, at most one attempt to write a transaction's marker is open.
A second one could reach the leader when the producer is in its next transaction, and end that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from streamlog.broker.coordinator.shard import (
    Answer,
    Caller,
    CoordinatorRecord,
    Instant,
    ShardOutcome,
    refuse,
)
from streamlog.errors import CorruptData
from streamlog.protocol.api_table import TRANSACTIONS_V2, TRANSACTIONS_V2_SINCE
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
from streamlog.replace import replace

if TYPE_CHECKING:
    from streamlog.broker.config.coordinators import TransactionConfig
    from streamlog.protocol.schema import Message


NO_EPOCH = -1
NO_PRODUCER = -1
NO_TIME_MS = -1
EPOCH_MAX = 2**15 - 1
"""The last epoch is kept for fencing: no producer writes with it."""
KEY_VERSION = 0
VALUE_VERSION = 1

TransactionPartition = tuple[str, int]
Producer = tuple[int, int]
"""Producer id and producer epoch."""


class TransactionState(IntEnum):
    """The state of a transactional id, by Kafka's numbers in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """The name in Kafka's admin API."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def outcome(self) -> TransactionState:
        """The state that a prepared transaction reaches when its markers are written."""
        committed = self is TransactionState.PREPARE_COMMIT
        return TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT

    @property
    def is_abort(self) -> bool:
        """Whether the transaction is being aborted, or was."""
        return self in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or being ended."""
        return not self.is_prepared and self is not TransactionState.ONGOING


class CoordinatedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id, its current producer, and its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    previous_producer_id: int = NO_PRODUCER
    """The producer id that asked for this epoch with the one before (KIP-360)."""
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TransactionPartition] = frozenset()
    start_ms: int = NO_TIME_MS
    update_ms: int = NO_TIME_MS
    next_producer_id: int = NO_PRODUCER
    """The producer id that replaces this one when the transaction is completed."""
    client_version: int = 0
    """`TRANSACTIONS_V2` if the end of the last transaction raised its producer's epoch."""

    @property
    def next_producer(self) -> Producer:
        """The producer id and epoch of the next transaction, as far as it is decided."""
        if self.next_producer_id != NO_PRODUCER:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch

    @property
    def is_ended_by(self) -> Producer | None:
        """The producer id and epoch whose EndTxn raised the epoch, until the next transaction.

        The producer may have missed the response and ask again, also after a restart.
        """
        if self.client_version < TRANSACTIONS_V2 or self.state in _UNENDED:
            return None
        # Epoch 0 follows the last epoch of the producer id before.
        if self.producer_epoch == 0:
            return self.previous_producer_id, EPOCH_MAX - 1
        return self.producer_id, self.producer_epoch - 1

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left that a producer may write with."""
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def is_resumed_by(self) -> Producer | None:
        """The producer id and epoch that asked for the current ones, until these are used.

        The producer may have missed the response and ask again, also after a restart.
        """
        if self.state is not TransactionState.EMPTY or self.previous_producer_id == NO_PRODUCER:
            return None
        # Either the epoch was raised by one, or it was exhausted and the id is a new one.
        is_same = self.previous_producer_id == self.producer_id
        return self.previous_producer_id, self.producer_epoch - 1 if is_same else EPOCH_MAX - 1

    def restart(self, *, epoch: int, timeout_ms: int, wall_ms: int) -> CoordinatedTransaction:
        """Return the state in which a producer begins with a new epoch."""
        return replace(
            self,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=NO_TIME_MS,
            update_ms=wall_ms,
            client_version=0,
        )

    def with_partitions(
        self, added: frozenset[TransactionPartition], wall_ms: int
    ) -> CoordinatedTransaction:
        """Return the state with more partitions; a transaction begins unless one is open."""
        begins = self.state.is_idle
        return replace(
            self,
            state=TransactionState.ONGOING,
            partitions=added if begins else self.partitions | added,
            start_ms=wall_ms if begins else self.start_ms,
            update_ms=wall_ms,
        )

    def prepare(self, *, committed: bool, fenced: bool, wall_ms: int) -> CoordinatedTransaction:
        """Return the state in which the outcome is decided.

        With `fenced`, it has an epoch that no producer has, which fences the current one.
        """
        kind = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        epoch = self.producer_epoch + 1 if fenced else self.producer_epoch
        return replace(self, state=kind, producer_epoch=epoch, update_ms=wall_ms, client_version=0)

    def prepare_raised(
        self, *, committed: bool, next_producer_id: int, wall_ms: int
    ) -> CoordinatedTransaction:
        """Return the state in which the outcome is decided, with the epoch that follows.

        The markers carry it, so that partitions refuse what is late of this transaction. If it is
        the last one, `next_producer_id` takes over when they are written.
        """
        return replace(
            self,
            state=TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            producer_epoch=self.producer_epoch + 1,
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if self.start_ms != NO_TIME_MS else wall_ms,
            update_ms=wall_ms,
            client_version=TRANSACTIONS_V2,
        )

    def complete(self, wall_ms: int) -> CoordinatedTransaction:
        """Return the state in which all markers are written."""
        producer_id, epoch = self.next_producer
        is_replaced = producer_id != self.producer_id
        return replace(
            self,
            producer_id=producer_id,
            producer_epoch=epoch,
            previous_producer_id=self.producer_id if is_replaced else self.previous_producer_id,
            next_producer_id=NO_PRODUCER,
            state=self.state.outcome,
            partitions=frozenset(),
            start_ms=NO_TIME_MS,
            update_ms=wall_ms,
        )


_UNENDED = frozenset({TransactionState.EMPTY, TransactionState.ONGOING})
"""The states in which nothing is left of the end of a transaction."""


def record_of(transaction: CoordinatedTransaction) -> CoordinatorRecord:
    """Return the record of a transactional id's state."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=[
            PartitionsSchema(topic=topic, partition_ids=numbers)
            for topic, numbers in topics.items()
        ],
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
    )
    return CoordinatorRecord(
        _key(transaction.transactional_id), encode_versioned(value, VALUE_VERSION)
    )


def tombstone_of(transactional_id: str) -> CoordinatorRecord:
    """Return the record that deletes a transactional id."""
    return CoordinatorRecord(_key(transactional_id), None)


def decode_record(record: CoordinatorRecord) -> tuple[str, CoordinatedTransaction | None]:
    """Return a record's transactional id, and its state or None if it is deleted.

    Raises:
        CorruptData: it is cut off, or has an unknown state.
    """
    transactional_id = decode_versioned(TransactionLogKey, record.key).transactional_id
    if record.value is None:
        return transactional_id, None
    value = decode_versioned(TransactionLogValue, record.value)
    try:
        state = TransactionState(value.transaction_status)
    except ValueError as error:
        raise CorruptData(
            f"the record of transactional id {transactional_id!r} has the unknown state"
            f" {value.transaction_status}"
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
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )


def _key(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)


ID_BYTES_MAX = 32_767
"""The longest string with a two-byte length: the record has to name the transactional id."""
TIMEOUT_CHECK_MS = 1_000
"""The interval of checks for transactions that are open for too long."""
MARKERS_TIMEOUT_MS = 5_000
"""How long EndTxn waits for markers; the next transaction waits for them in any case."""
EXPIRY_CHECK_MS = 60 * 60 * 1000
"""The longest interval of checks for expired transactional ids."""


class TransactionRules(msgspec.Struct, frozen=True):
    """Faults that a test can plant."""

    keeps_epoch: bool = False
    """The end of a transaction v2 raises no epoch, so that late records join the next one."""


class TransactionDeps(NamedTuple):
    """What a coordinator needs from other components."""

    new_producer_id: Callable[[], int]
    """Returns an unused producer id."""
    partition_exists: Callable[[str, int], bool]
    offsets_partition: Callable[[str], TransactionPartition]
    """Returns the partition that stores the offsets of a group."""


class Ending(NamedTuple):
    """A decided transaction whose markers have to be written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[TransactionPartition]
    client_version: int = 0
    """As in `CoordinatedTransaction`: whether the epoch is the one after the transaction's."""


class TransactionCoordinator:
    """The `Shard` of transactional ids."""

    rules: ClassVar[TransactionRules] = TransactionRules()

    def __init__(self, config: TransactionConfig, deps: TransactionDeps) -> None:
        self._config = config
        self._deps = deps
        self._transactions: dict[str, CoordinatedTransaction] = {}
        self._ongoing: set[str] = set()
        self._endings: dict[str, None] = {}
        self._fenced: dict[str, tuple[int, int]] = {}
        """Producers whose transaction a newer epoch has aborted, by transactional id."""
        self._tickets: dict[str, tuple[int, int]] = {}
        """The ticket of the EndTxn of a transactional id, and when its wait ends."""
        self._carriers: dict[str, int] = {}
        """The connection of the last accepted request of a transactional id."""
        self._timeout_check_ms = 0
        self._expiry_check_ms = 0

    def configure(self, config: TransactionConfig) -> None:
        """Use other settings."""
        self._config = config

    # Shard.

    def handle(self, request: Message, caller: Caller, at: Instant) -> ShardOutcome:
        """Decide on a request of one transactional id."""
        match request:
            case InitProducerIdRequest():
                return self._init(request, caller, at)
            case AddPartitionsToTxnRequest():
                return self._add_partitions(request, caller, at)
            case AddOffsetsToTxnRequest():
                added = frozenset({self._deps.offsets_partition(request.group_id)})
                producer = (request.producer_id, request.producer_epoch)
                name = request.transactional_id
                code, changed = self._add(name, producer, added, caller=caller, at=at)
                return _outcome(changed, caller, refuse(request, caller.version, code))
            case EndTxnRequest() if caller.version >= TRANSACTIONS_V2_SINCE[EndTxnRequest]:
                return self._end_raising(request, caller, at)
            case EndTxnRequest():
                return self._end(request, caller, at)
            case _:
                raise TypeError(f"not a request of a transaction: {request!r}")

    def replay(self, record: CoordinatorRecord, *, now_ms: int) -> None:
        """See `Shard.replay`. The next tick finds what is due by the clock."""
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
            self._endings[transactional_id] = None  # Markers must be written, perhaps again.
        elif transaction.state is TransactionState.ONGOING:
            self._ongoing.add(transactional_id)

    def _note_fencing(self, transactional_id: str, after: CoordinatedTransaction | None) -> None:
        before = self._transactions.get(transactional_id)
        if after is None or not after.state.is_abort:
            self._fenced.pop(transactional_id, None)
        # Only an abort that raised the epoch by one fences, and only its own producer may recover
        # with that epoch (KIP-588). A producer of transactions v2 that ends its own transaction
        # gets the epoch in the response.
        elif (
            before is not None
            and before.state is TransactionState.ONGOING
            and after.client_version < TRANSACTIONS_V2
        ):
            producer = (before.producer_id, before.producer_epoch)
            if (after.producer_id, after.producer_epoch - 1) == producer:
                self._fenced[transactional_id] = producer

    def on_tick(self, at: Instant) -> ShardOutcome:
        """Abort transactions that timed out, and delete expired transactional ids."""
        changed: list[CoordinatorRecord] = []
        answers: tuple[Answer, ...] = ()
        if self._timeout_check_ms <= at.now_ms:
            self._timeout_check_ms = at.now_ms + TIMEOUT_CHECK_MS
            for known in [self._transactions[each] for each in self._ongoing]:
                if known.start_ms + known.timeout_ms <= at.wall_ms:
                    # The new epoch fences the producer: 1. Its transaction is aborted by time-out.
                    # 2. It wakes up and writes the rest of its records with the old epoch. 3.
                    # Partitions refuse them, because the abort marker carries the new epoch.
                    given_up = known.prepare(committed=False, fenced=True, wall_ms=at.wall_ms)
                    changed.append(record_of(given_up))
            answers = self._take_late(at.now_ms)
        if self._expiry_check_ms <= at.now_ms:
            kept_ms = self._config.id_expiration_ms
            self._expiry_check_ms = at.now_ms + min(EXPIRY_CHECK_MS, kept_ms)
            for transactional_id, known in self._transactions.items():
                # An open or prepared transaction never expires: its partitions still need a marker.
                if known.state.is_idle and known.update_ms + kept_ms <= at.wall_ms:
                    changed.append(tombstone_of(transactional_id))
        return ShardOutcome(tuple(changed), answers)

    def next_deadline_ms(self) -> int | None:
        """See `Shard.next_deadline_ms`."""
        if not self._transactions:
            return None
        is_due = self._ongoing or self._tickets
        return self._timeout_check_ms if is_due else self._expiry_check_ms

    # The end of transactions.

    def take_endings(self) -> list[Ending]:
        """Take the decided transactions that were not taken before."""
        taken, self._endings = list(self._endings), {}
        found = [self._transactions[transactional_id] for transactional_id in taken]
        return [
            Ending(
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.state is TransactionState.PREPARE_COMMIT,
                each.partitions,
                0 if self.rules.keeps_epoch else each.client_version,
            )
            for each in found
        ]

    def on_ended(self, ending: Ending, at: Instant) -> ShardOutcome:
        """Complete a transaction whose markers are all committed."""
        known = self._transactions.get(ending.transactional_id)
        asked = self._tickets.pop(ending.transactional_id, None)
        answers = () if asked is None else (Answer(asked[0], _ended(known)),)
        if known is None or not known.state.is_prepared:
            return ShardOutcome(answers=answers)
        return ShardOutcome((record_of(known.complete(at.wall_ms)),), answers)

    def forget_ticket(self, ticket: int) -> None:
        """Drop a ticket that was answered otherwise."""
        self._tickets = {name: each for name, each in self._tickets.items() if each[0] != ticket}

    def _take_late(self, now_ms: int) -> tuple[Answer, ...]:
        """Take the answers of EndTxn requests that have waited long enough."""
        late = [name for name, (_, due_ms) in self._tickets.items() if due_ms <= now_ms]
        return tuple(
            Answer(self._tickets.pop(name)[0], _ended(self._transactions.get(name)))
            for name in late
        )

    # Reads.

    def verify(
        self, transactional_id: str, producer: Producer, partition: TransactionPartition
    ) -> ErrorCode:
        """Check that the producer may write to the partition in its transaction now."""
        known = self._transactions.get(transactional_id)
        if known is None or known.producer_id != producer[0]:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.producer_epoch != producer[1]:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if known.state is not TransactionState.ONGOING or partition not in known.partitions:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def transaction(self, transactional_id: str) -> CoordinatedTransaction | None:
        """Return the state of a transactional id; None if it is unknown."""
        return self._transactions.get(transactional_id)

    def transactions(self) -> Iterable[CoordinatedTransaction]:
        """Return all transactional ids with their states."""
        return self._transactions.values()

    # Requests.

    def _init(self, request: InitProducerIdRequest, caller: Caller, at: Instant) -> ShardOutcome:
        code, changed = self._begin(request, at)
        if code is not ErrorCode.NONE:
            return _outcome(changed, caller, refuse(request, caller.version, code))
        # A new instance may use a connection that is older than the previous instance's.
        self._carriers[request.transactional_id or ""] = caller.connection
        current = changed or self._transactions[request.transactional_id or ""]
        response = InitProducerIdResponse(
            producer_id=current.producer_id, producer_epoch=current.producer_epoch
        )
        return _outcome(changed, caller, response)

    def _begin(
        self, request: InitProducerIdRequest, at: Instant
    ) -> tuple[ErrorCode, CoordinatedTransaction | None]:
        name = request.transactional_id or ""
        refused = self._check_init(name, request)
        if refused is not ErrorCode.NONE:
            return refused, None
        known = self._transactions.get(name)
        if known is None:
            return ErrorCode.NONE, CoordinatedTransaction(
                transactional_id=name,
                producer_id=self._deps.new_producer_id(),
                producer_epoch=0,
                timeout_ms=request.transaction_timeout_ms,
                update_ms=at.wall_ms,
            )
        if known.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS, None
        old = (request.producer_id, request.producer_epoch)
        resumes = request.producer_id != NO_PRODUCER
        if resumes and old != (known.producer_id, known.producer_epoch):
            return self._resume(known, request, at)
        if known.state is TransactionState.ONGOING:
            # The new epoch fences the older instance; the caller gets the one after it when it
            # retries. A producer that resumes is that instance itself: it has ended its
            # transaction, and a late request of it has begun another one, so no fencing is needed.
            given_up = known.prepare(committed=False, fenced=not resumes, wall_ms=at.wall_ms)
            return ErrorCode.CONCURRENT_TRANSACTIONS, given_up
        return ErrorCode.NONE, self._next(known, request, at)

    def _resume(
        self, known: CoordinatedTransaction, request: InitProducerIdRequest, at: Instant
    ) -> tuple[ErrorCode, CoordinatedTransaction | None]:
        """Handle a producer that resumes with an epoch that is not the current one."""
        old = (request.producer_id, request.producer_epoch)
        if old == self._fenced.get(known.transactional_id) and not known.is_exhausted:
            return ErrorCode.NONE, _recover_epoch(known, request, at)
        # It may have missed the response to the same request.
        is_again = old == known.is_resumed_by
        return (ErrorCode.NONE if is_again else ErrorCode.PRODUCER_FENCED), None

    def _check_init(self, name: str, request: InitProducerIdRequest) -> ErrorCode:
        resumes = request.producer_id != NO_PRODUCER
        if not 0 < len(name.encode()) <= ID_BYTES_MAX or resumes != (request.producer_epoch >= 0):
            return ErrorCode.INVALID_REQUEST
        if not 0 < request.transaction_timeout_ms <= self._config.timeout_ms_max:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _next(
        self, known: CoordinatedTransaction, request: InitProducerIdRequest, at: Instant
    ) -> CoordinatedTransaction:
        # 1. Epochs 0 to 32766 are for producers; 32767 only fences. 2. A producer id whose epoch
        # reaches 32766 is exhausted: the next instance gets a new producer id and epoch 0.
        epoch = 0 if known.is_exhausted else known.producer_epoch + 1
        begun = known.restart(
            epoch=epoch, timeout_ms=request.transaction_timeout_ms, wall_ms=at.wall_ms
        )
        return replace(
            begun,
            producer_id=self._deps.new_producer_id() if known.is_exhausted else known.producer_id,
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
        # All or nothing, as in Kafka: if one partition is unknown, none is added.
        unknown = {each for each in added if not self._deps.partition_exists(*each)}
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
        code, changed = self._add(name, producer, added, caller=caller, at=at)
        return _outcome(changed, caller, refuse(request, caller.version, code))

    def _add(
        self,
        name: str,
        producer: Producer,
        added: frozenset[TransactionPartition],
        *,
        caller: Caller,
        at: Instant,
    ) -> tuple[ErrorCode, CoordinatedTransaction | None]:
        code = self._check_producer(name, producer, caller)
        if code is not ErrorCode.NONE:
            return code, None
        known = self._transactions[name]
        if known.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS, None
        # A retry, or a partition that is known: no record is needed.
        if known.state is TransactionState.ONGOING and added <= known.partitions:
            return ErrorCode.NONE, None
        return ErrorCode.NONE, known.with_partitions(added, at.wall_ms)

    def _check_producer(self, name: str, producer: Producer, caller: Caller) -> ErrorCode:
        """Return why a request is not the current producer's, or comes by an outdated connection.

        1. Producer A sends EndTxn by connection 1 and gets no response. 2. It connects again
           (connection 2), and its second EndTxn succeeds. 3. A begins its next transaction. 4. Now
           the first EndTxn arrives: id and epoch match, and it would commit the half-written
           transaction. So a request by an older connection gets NOT_COORDINATOR, which makes a
           client that still waits find its coordinator again.
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
        code = self._check_producer(name, (request.producer_id, request.producer_epoch), caller)
        if code is ErrorCode.NONE:
            known = self._transactions[name]
            if known.state is TransactionState.ONGOING:
                # The response waits for the markers (`on_ended`), or for `MARKERS_TIMEOUT_MS`.
                self._tickets[name] = caller.ticket, at.now_ms + MARKERS_TIMEOUT_MS
                decided = known.prepare(committed=committed, fenced=False, wall_ms=at.wall_ms)
                return ShardOutcome((record_of(decided),))
            code = _end_code(known.state, committed=committed)
        return _outcome(None, caller, refuse(request, caller.version, code))

    def _end_raising(self, request: EndTxnRequest, caller: Caller, at: Instant) -> ShardOutcome:
        """Handle the end of a transaction v2.

        The connection does not matter: a request that is late has an epoch that has passed.
        """
        name, known = request.transactional_id, self._transactions.get(request.transactional_id)
        producer = (request.producer_id, request.producer_epoch)
        code = _mismatch(known, producer)
        if known is not None and known.is_ended_by == producer:
            code = _repeated_end_code(known.state, committed=request.committed)
            if code is ErrorCode.NONE:
                return _outcome(None, caller, _ended(known))
        elif known is not None and code is ErrorCode.NONE:
            code = _raising_end_code(known.state, committed=request.committed)
            if code is ErrorCode.NONE:
                self._tickets[name] = caller.ticket, at.now_ms + MARKERS_TIMEOUT_MS
                new_id = self._deps.new_producer_id() if known.is_exhausted else NO_PRODUCER
                decided = known.prepare_raised(
                    committed=request.committed, next_producer_id=new_id, wall_ms=at.wall_ms
                )
                if self.rules.keeps_epoch:
                    decided = replace(decided, producer_epoch=known.producer_epoch)
                return ShardOutcome((record_of(decided),))
        return _outcome(None, caller, refuse(request, caller.version, code))


def _mismatch(known: CoordinatedTransaction | None, producer: Producer) -> ErrorCode:
    """Return the error if this is not the producer of the transactional id."""
    if known is None or known.next_producer[0] != producer[0]:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.next_producer[1] != producer[1]:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _ended(known: CoordinatedTransaction | None) -> EndTxnResponse:
    """Return the response to the end of a transaction, with the identity for the next one."""
    if known is None or known.client_version < TRANSACTIONS_V2:
        return EndTxnResponse()
    producer_id, epoch = known.next_producer
    return EndTxnResponse(producer_id=producer_id, producer_epoch=epoch)


def _raising_end_code(state: TransactionState, *, committed: bool) -> ErrorCode:
    """Return the result of EndTxn by the present producer; NONE if it is to be done."""
    if state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    # 1. A producer writes, and the leader's question to this coordinator gets lost. 2. The producer
    # aborts. 3. Nothing is open here; but the leader asks again. So the epoch is raised, and the
    # question is about a transaction that has ended.
    if state is TransactionState.ONGOING or not committed:
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def _repeated_end_code(state: TransactionState, *, committed: bool) -> ErrorCode:
    """Return the result of EndTxn with the epoch before: the response to it has been missed."""
    code = _end_code(state, committed=committed)
    return ErrorCode.CONCURRENT_TRANSACTIONS if state.is_prepared else code


def _end_code(state: TransactionState, *, committed: bool) -> ErrorCode:
    """Return the result of EndTxn without an open transaction; it may be a retry."""
    asked = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    # EndTxn of a transaction that is being ended: the client retries until the markers are written.
    if state is asked:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if state is asked.outcome:
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def _recover_epoch(
    known: CoordinatedTransaction, request: InitProducerIdRequest, at: Instant
) -> CoordinatedTransaction:
    """Let a producer continue with the epoch that aborted its own transaction (KIP-588).

    No other producer has that epoch: a new instance gets the one after it, and takes the
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
"""The pause before the second attempt to write a marker; it doubles with each attempt,"""
RETRY_MS_MAX = 1_000
"""up to this limit."""
NEEDLESS = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.POLICY_VIOLATION,
    }
)
"""Nothing is left to decide: a newer instance of the producer, or of its coordinator, has written
already; or the topic has become a mirror, and the cluster that it follows has decided."""

LeaderOf = Callable[[TransactionPartition], int | None]
"""Returns the leader of a partition; negative if there is none, None if the partition is gone."""


class MarkerJob(NamedTuple):
    """A decided transaction, and the coordinator that decided it."""

    ending: Ending
    shard: int
    """The coordinator's partition of `__transaction_state`."""
    coordinator_epoch: int


class Try(NamedTuple):
    """The markers of one job that go to one broker."""

    number: int
    """The number of the job."""
    job: MarkerJob
    node_id: int
    partitions: tuple[TransactionPartition, ...]


@dataclass(slots=True)
class _Attempt:
    """When a marker is attempted next, and how many attempts it had."""

    at_ms: int
    tries: int = 0


@dataclass(slots=True)
class _OpenJob:
    """A job with the partitions that are not done."""

    job: MarkerJob
    due: dict[TransactionPartition, _Attempt]
    in_flight: dict[TransactionPartition, _Attempt] = field(default_factory=dict)


class MarkerQueue:
    """All markers that this broker, as a coordinator, has to have written."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenJob] = {}
        self._numbers = 0

    def __len__(self) -> int:
        """The number of incomplete transactions."""
        return len(self._open)

    def add(self, job: MarkerJob, now_ms: int) -> None:
        """Add a transaction whose decision is durable."""
        self._numbers += 1
        partitions = sorted(job.ending.partitions)
        self._open[self._numbers] = _OpenJob(
            job, {partition: _Attempt(now_ms) for partition in partitions}
        )

    def forget(self, index: int) -> None:
        """Drop the jobs of a partition, because another coordinator takes over and starts again."""
        self._open = {n: each for n, each in self._open.items() if each.job.shard != index}

    def take(self, leader_of: LeaderOf, now_ms: int) -> list[Try]:
        """Take the markers to write now.

        Each try must be followed by `on_code` for each partition.
        """
        return [
            each for number in list(self._open) for each in self._tries(number, leader_of, now_ms)
        ]

    def on_code(self, number: int, partition: TransactionPartition, code: int, now_ms: int) -> None:
        """Note the result of a try; REQUEST_TIMED_OUT if it is unknown."""
        known = self._open.get(number)
        if known is None:
            return  # The job was dropped.
        due = known.in_flight.pop(partition)
        if code != ErrorCode.NONE and code not in NEEDLESS:
            self._put_off(known, partition, due, now_ms)

    def take_complete(self) -> list[MarkerJob]:
        """Take the jobs that are complete."""
        done = [n for n, each in self._open.items() if not each.due and not each.in_flight]
        return [self._open.pop(number).job for number in done]

    def next_deadline_ms(self) -> int | None:
        """When `take` has something to do; None if it never has without other events."""
        waiting = (due.at_ms for each in self._open.values() for due in each.due.values())
        return min(waiting, default=None)

    def _tries(self, number: int, leader_of: LeaderOf, now_ms: int) -> list[Try]:
        known = self._open[number]
        # A marker that is under way is in `in_flight` and not in `due`, so it is never attempted
        # twice at the same time.
        partitions: dict[int, list[TransactionPartition]] = {}
        for partition in [partition for partition, due in known.due.items() if due.at_ms <= now_ms]:
            due = known.due.pop(partition)
            leader = leader_of(partition)
            if leader is None:
                continue  # The partition was deleted: nothing to end there.
            if leader < 0:
                self._put_off(known, partition, due, now_ms)
                continue
            known.in_flight[partition] = due
            partitions.setdefault(leader, []).append(partition)
        return [Try(number, known.job, node_id, tuple(own)) for node_id, own in partitions.items()]

    def _put_off(
        self, known: _OpenJob, partition: TransactionPartition, due: _Attempt, now_ms: int
    ) -> None:
        # Doubles from 50 ms to 1 s; the shift is bounded so that the number stays small.
        pause_ms = min(RETRY_MS << min(due.tries, 10), RETRY_MS_MAX)
        known.due[partition] = _Attempt(now_ms + pause_ms, due.tries + 1)
