"""TransactionCoordinator: all transactional ids of one partition of `__transaction_state` (KIP-98).

Pure, and run as any `Shard`. After Kafka's TransactionCoordinator in the form before KIP-890: a
producer adds the partitions that it is about to write to, then commits or aborts; epochs fence
older instances, by InitProducerId and when a transaction is aborted for being too old; a producer
that is lost after an error asks for the next epoch by its old one (KIP-360).
A request that was late, on a connection that its producer has replaced, is refused: before KIP-890
nothing else tells it from one of the transaction that is open by now.
What is prepared comes out of `take_endings`, also after a restart; whoever has written the markers
says so by `on_ended`. EndTxn is answered then: who commits and reads sees what it has written. If a
partition is not to be had for long, it is answered before, for nothing changes what is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.coordinator.shard import (
    Answer,
    Caller,
    CoordinatorRecord,
    Instant,
    Outcome,
    refuse,
)
from streamlog.broker.coordinator.transaction import (
    NO_PRODUCER,
    TopicPartition,
    Transaction,
    TransactionState,
    decode_record,
    record_of,
    tombstone_of,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import by_partition, response_by_item
from streamlog.protocol.messages.coordination import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
)

if TYPE_CHECKING:
    from streamlog.broker.transaction_config import TransactionConfig
    from streamlog.protocol.schema import Message

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


class Surroundings(NamedTuple):
    """What a coordinator asks of others."""

    new_producer_id: Callable[[], int]
    """A producer id that nobody has had."""
    partition_exists: Callable[[str, int], bool]
    offsets_partition: Callable[[str], TopicPartition]
    """Where the offsets of a group are kept."""


class Ending(NamedTuple):
    """A transaction that is decided: its markers are to be written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[TopicPartition]


class TransactionCoordinator:
    """The `Shard` of transactional ids."""

    def __init__(self, config: TransactionConfig, around: Surroundings) -> None:
        self._config = config
        self._around = around
        self._transactions: dict[str, Transaction] = {}
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

    def handle(self, request: Message, caller: Caller, at: Instant) -> Outcome:
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

    def _note_fencing(self, transactional_id: str, after: Transaction | None) -> None:
        before = self._transactions.get(transactional_id)
        if after is None or not after.state.is_abort:
            self._fenced.pop(transactional_id, None)
        elif before is not None and before.state is TransactionState.ONGOING:
            producer = (before.producer_id, before.producer_epoch)
            if (after.producer_id, after.producer_epoch - 1) == producer:
                self._fenced[transactional_id] = producer

    def on_tick(self, at: Instant) -> Outcome:
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
        return Outcome(tuple(changed), answers)

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

    def on_ended(self, ending: Ending, at: Instant) -> Outcome:
        """All markers are written and on disk."""
        known = self._transactions.get(ending.transactional_id)
        asked = self._tickets.pop(ending.transactional_id, None)
        answers = () if asked is None else (Answer(asked[0], EndTxnResponse()),)
        if known is None or not known.state.is_prepared:
            return Outcome(answers=answers)
        return Outcome((record_of(known.completed(at.wall_ms)),), answers)

    def forget_ticket(self, ticket: int) -> None:
        """It has been answered by somebody else."""
        self._tickets = {name: each for name, each in self._tickets.items() if each[0] != ticket}

    def _take_late(self, now_ms: int) -> tuple[Answer, ...]:
        """The answers for who has waited long enough for the end of a transaction."""
        late = [name for name, (_, due_ms) in self._tickets.items() if due_ms <= now_ms]
        return tuple(Answer(self._tickets.pop(name)[0], EndTxnResponse()) for name in late)

    # ---- reading ----

    def verify(
        self, transactional_id: str, producer: Producer, partition: TopicPartition
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

    def transaction(self, transactional_id: str) -> Transaction | None:
        """What is known of a transactional id."""
        return self._transactions.get(transactional_id)

    def transactions(self) -> Iterable[Transaction]:
        """Every transactional id."""
        return self._transactions.values()

    # ---- requests ----

    def _init(self, request: InitProducerIdRequest, caller: Caller, at: Instant) -> Outcome:
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
    ) -> tuple[ErrorCode, Transaction | None]:
        name = request.transactional_id or ""
        refused = self._malformed(name, request)
        if refused is not ErrorCode.NONE:
            return refused, None
        known = self._transactions.get(name)
        if known is None:
            return ErrorCode.NONE, Transaction(
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
        self, known: Transaction, request: InitProducerIdRequest, at: Instant
    ) -> tuple[ErrorCode, Transaction | None]:
        """A producer asks to resume by an epoch that is not the current one."""
        old = (request.producer_id, request.producer_epoch)
        if old == self._fenced.get(known.transactional_id) and not known.is_exhausted:
            return ErrorCode.NONE, _recovered(known, request, at)
        # It may not have heard the answer to the same request.
        is_again = old == known.resumed_by
        return (ErrorCode.NONE if is_again else ErrorCode.PRODUCER_FENCED), None

    def _malformed(self, name: str, request: InitProducerIdRequest) -> ErrorCode:
        resumes = request.producer_id != NO_PRODUCER
        if not 0 < len(name.encode()) <= ID_BYTES_MAX or resumes != (request.producer_epoch >= 0):
            return ErrorCode.INVALID_REQUEST
        if not 0 < request.transaction_timeout_ms <= self._config.timeout_ms_max:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _next(self, known: Transaction, request: InitProducerIdRequest, at: Instant) -> Transaction:
        epoch = 0 if known.is_exhausted else known.producer_epoch + 1
        begun = known.begun_anew(
            epoch=epoch, timeout_ms=request.transaction_timeout_ms, wall_ms=at.wall_ms
        )
        return replace(
            begun,
            producer_id=self._around.new_producer_id() if known.is_exhausted else known.producer_id,
            previous_producer_id=request.producer_id,
        )

    def _add_partitions(
        self, request: AddPartitionsToTxnRequest, caller: Caller, at: Instant
    ) -> Outcome:
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
        added: frozenset[TopicPartition],
        *,
        caller: Caller,
        at: Instant,
    ) -> tuple[ErrorCode, Transaction | None]:
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

    def _end(self, request: EndTxnRequest, caller: Caller, at: Instant) -> Outcome:
        name, committed = request.transactional_id, request.committed
        code = self._refused(name, (request.producer_id, request.producer_epoch), caller)
        if code is ErrorCode.NONE:
            known = self._transactions[name]
            if known.state is TransactionState.ONGOING:
                self._tickets[name] = caller.ticket, at.now_ms + MARKERS_TIMEOUT_MS
                decided = known.prepared(committed=committed, fenced=False, wall_ms=at.wall_ms)
                return Outcome((record_of(decided),))
            code = _again(known.state, committed=committed)
        return _outcome(None, caller, refuse(request, caller.version, code))


def _mismatch(known: Transaction | None, producer: Producer) -> ErrorCode:
    """Whether this is another producer than the one that has the transactional id."""
    if known is None or known.producer_id != producer[0]:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer[1]:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _again(state: TransactionState, *, committed: bool) -> ErrorCode:
    """The answer to EndTxn where no transaction is open: it may have been asked before."""
    asked = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    if state is asked:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if state is asked.outcome:
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def _recovered(known: Transaction, request: InitProducerIdRequest, at: Instant) -> Transaction:
    """The producer goes on with the epoch by which its own transaction was given up (KIP-588).

    No other producer has that epoch: an instance that begins gets the one after it, and takes the
    transactional id out of its aborted state.
    """
    begun = known.begun_anew(
        epoch=known.producer_epoch, timeout_ms=request.transaction_timeout_ms, wall_ms=at.wall_ms
    )
    return replace(begun, previous_producer_id=request.producer_id)


def _outcome(changed: Transaction | None, caller: Caller, response: Message) -> Outcome:
    records = () if changed is None else (record_of(changed),)
    return Outcome(records, (Answer(caller.ticket, response),))
