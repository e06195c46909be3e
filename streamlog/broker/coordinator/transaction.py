"""Transaction: one transactional id as its coordinator keeps it (KIP-98), and its records.

    EMPTY ─────────► ONGOING ──► PREPARE_COMMIT ──► COMPLETE_COMMIT
      ▲               ▲  │                               │
      │               │  └─────► PREPARE_ABORT ───► COMPLETE_ABORT
      │               └──── a partition is added ────────┤
      └──────────────────── a producer begins anew ──────┘

What a transaction comes to is decided by the record that prepares it; then markers are written,
and when all of them are, it is complete. Pure: a value that is never changed, only replaced. The
records are those of Kafka's `__transaction_state`, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from streamlog.broker.coordinator.shard import CoordinatorRecord
from streamlog.errors import CorruptData
from streamlog.protocol.codec import decode_versioned, encode_versioned
from streamlog.protocol.messages.transactions import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

NO_EPOCH = -1
NO_PRODUCER = -1
NO_TIME_MS = -1
EPOCH_MAX = 2**15 - 1
"""The last one is kept for fencing: no producer writes with it."""
KEY_VERSION = 0
VALUE_VERSION = 1

TopicPartition = tuple[str, int]


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
class Transaction:
    """A transactional id, the producer that has it, and its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    previous_producer_id: int = NO_PRODUCER
    """Of who asked for this epoch by the one before (KIP-360), mostly the same."""
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME_MS
    update_ms: int = NO_TIME_MS

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a producer to write with."""
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def resumed_by(self) -> tuple[int, int] | None:
        """Producer id and epoch that asked for these ones, if somebody did and has not used them.

        Who asked may not have heard the answer, and ask again, also after a restart.
        """
        if self.state is not TransactionState.EMPTY or self.previous_producer_id == NO_PRODUCER:
            return None
        is_same = self.previous_producer_id == self.producer_id
        return self.previous_producer_id, self.producer_epoch - 1 if is_same else EPOCH_MAX - 1

    def begun_anew(self, *, epoch: int, timeout_ms: int, wall_ms: int) -> Transaction:
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

    def with_partitions(self, added: frozenset[TopicPartition], wall_ms: int) -> Transaction:
        """The producer writes to these, too; a transaction begins unless there is one."""
        begins = self.state.is_idle
        return replace(
            self,
            state=TransactionState.ONGOING,
            partitions=added if begins else self.partitions | added,
            start_ms=wall_ms if begins else self.start_ms,
            update_ms=wall_ms,
        )

    def prepared(self, *, committed: bool, fenced: bool, wall_ms: int) -> Transaction:
        """It is decided; with `fenced` its producer is shut out by an epoch that nobody has."""
        kind = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        epoch = self.producer_epoch + 1 if fenced else self.producer_epoch
        return replace(self, state=kind, producer_epoch=epoch, update_ms=wall_ms)

    def completed(self, wall_ms: int) -> Transaction:
        """All markers are written."""
        return replace(
            self,
            state=self.state.outcome,
            partitions=frozenset(),
            start_ms=NO_TIME_MS,
            update_ms=wall_ms,
        )


def record_of(transaction: Transaction) -> CoordinatorRecord:
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


def decode_record(record: CoordinatorRecord) -> tuple[str, Transaction | None]:
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
    return transactional_id, Transaction(
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
