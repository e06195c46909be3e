"""CoordinatedTransaction: the state of one transactional id, what may follow it, and its record.

Pure: each method returns another state. `TransactionCoordinator` decides which one is due, and
draws the states. `Ending` is what is left to do for a transaction that was decided.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from streamlog.broker.coordinator.shard import CoordinatorRecord
from streamlog.errors import CorruptData
from streamlog.protocol.api_table import TRANSACTIONS_V2
from streamlog.protocol.codec import decode_versioned, encode_versioned
from streamlog.protocol.messages.transaction_messages import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from streamlog.replace import replace

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


class Ending(NamedTuple):
    """A decided transaction whose markers have to be written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    partitions: frozenset[TransactionPartition]
    client_version: int = 0
    """As in `CoordinatedTransaction`: whether the epoch is the one after the transaction's."""
