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

Not done here: the state of one transactional id, with its record (`coordinated_transaction`), and
which marker goes to which broker, when (`marker_queue`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from streamlog.broker.coordinator.transaction.coordinated_transaction import (
    NO_PRODUCER,
    CoordinatedTransaction,
    Ending,
    Producer,
    TransactionPartition,
    TransactionState,
    decode_record,
    record_of,
    tombstone_of,
)
from streamlog.protocol.api_table import TRANSACTIONS_V2, TRANSACTIONS_V2_SINCE
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import by_partition, response_by_item
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
)
from streamlog.replace import replace

if TYPE_CHECKING:
    from streamlog.broker.config.coordinators import TransactionConfig
    from streamlog.protocol.schema import Message

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
        if known is not None and self._has_its_end(known, producer, committed=request.committed):
            code = _repeated_end_code(known.state, committed=request.committed)
            if code is ErrorCode.NONE:
                return _outcome(None, caller, _with_next_producer(known))
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

    def _has_its_end(
        self, known: CoordinatedTransaction, producer: Producer, *, committed: bool
    ) -> bool:
        """Whether the transaction that a producer v2 ends was ended, and its epoch raised, before.

        Either its response was missed, or the transaction has timed out. A producer that aborts
        what was aborted has lost nothing more, so it continues with the next epoch, as in Kafka
        (KAFKA-19367) and as one of transactions v1 does by InitProducerId (`_resume`). One that
        commits must learn that it is fenced.
        """
        if known.is_ended_by == producer:
            return True
        was_aborted = self._fenced.get(known.transactional_id) == producer
        return was_aborted and not committed and not known.is_exhausted


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
    return _with_next_producer(known)


def _with_next_producer(known: CoordinatedTransaction) -> EndTxnResponse:
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
