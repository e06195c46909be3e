"""Accumulator: collects records into batches per partition until the broker acknowledges them.

A state machine without I/O: records and `now_ms` go in, batches to send come out, and the sender
reports the outcome of each batch by one of the `on_…` methods. Rule of the file: within a partition
batches are sent in the order in which they were opened, and with idempotence (KIP-98) each is
written once, whatever requests and answers are lost:

1. A batch gets its sequence numbers when it is first sent and keeps them in every retry, because
   the broker recognizes by them what it has already written.
2. A retry waits until no later batch is in flight; the later ones come back out of sequence. A
   batch that was never sent waits until the retries are done: the broker remembers five batches,
   and would else forget the one that is retried.
3. Only when the *oldest* outstanding batch is out of sequence is there a gap that no retry closes
   (an earlier batch was refused or has expired). The broker then has none of the batches that
   follow, so all of them can be numbered again, under a new producer id for this partition alone
   (where Kafka's clients bump the epoch of theirs, KIP-360).
4. A broker that does not know a producer id accepts any number as its first. So the first batch
   under an id is in flight alone: if it were lost, the second one would be written in its place.
5. In transactions, the identity belongs to the transaction, so nothing is renumbered within one: a
   gap that no retry closes loses the batch, and with it the transaction. The next transaction
   starts with `reset_identity`.

Not done here: the state of the transaction, the choice of a partition, the look-up of its leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import msgspec

from streamlog.client.producer.open_batches import Headers, OpenBatch, UsedBytes, put
from streamlog.errors import MessageTooLarge
from streamlog.record import TopicPartition
from streamlog.records.batch import encode_columns
from streamlog.records.compression import Compression
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns

Fields: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]
"""A record that has no offset yet: timestamp in ms since 1970, key, value, headers."""

Mark: TypeAlias = dict[TopicPartition, int]
"""The number of batches that had been opened in each partition at one moment."""

T = TypeVar("T")  # A receipt: gets the outcome of its records; opaque to this module.

SEQUENCE_MASK = 0x7FFFFFFF
"""Sequence numbers wrap to 0 after 2**31 - 1 (KIP-98)."""


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times that decide when a batch is sent, retried and expired."""

    linger_ms: int
    batch_bytes: int
    delivery_timeout_ms: int
    retry_backoff_ms: int
    """Wait before the first retry; it doubles with each further one."""
    retry_backoff_ms_max: int
    in_flight_max: int
    """Batches of one partition that may be in flight, at most five (KIP-98)."""
    codec: Compression
    idempotent: bool
    transactional: bool = False


class ProducerIdentity(msgspec.Struct, frozen=True):
    """The producer id and epoch under which the broker counts sequence numbers (KIP-98)."""

    producer_id: int
    producer_epoch: int


class AppendedRecord(Enum):
    """The effect of `append`, from which the producer knows whether to wake the sender."""

    JOINED = auto()
    """The record joined an open batch, whose due time the sender already knows."""
    STARTED = auto()
    """The record opened a batch, which is due after the linger time."""
    FILLED = auto()
    """A batch is full, and so due now."""


class ProducerBatchBuffer(OpenBatch, Generic[T]):
    """Records of one partition that are sent as one record batch."""

    __slots__ = (
        "atomic", "attempts", "base_sequence", "created_ms", "data", "not_before_ms", "order",
        "packed", "partition",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, order: tuple[int, ...], created_ms: int) -> None:
        super().__init__()
        self.partition = partition
        self.order = order
        """Sort key among the batches of the partition. The halves of a divided batch append a
        number to its key, so they sort where the batch stood."""
        self.created_ms = created_ms
        self.packed: PackedRecords | None = None
        """The records, if they came packed; then there are no columns."""
        self.atomic = False
        self.attempts = 0
        self.not_before_ms = created_ms
        self.data: bytes | None = None
        self.base_sequence = -1
        """Sequence number of the first record; negative until the batch is first sent."""

    if TYPE_CHECKING:  # A compiled class has no parameters of type.

        @property  # type: ignore[override]
        def receipts(self) -> list[tuple[int, int, T]]:
            """As in `OpenBatch`, with the type of the receipts."""
            ...

        @receipts.setter
        def receipts(self, receipts: list[tuple[int, int, T]]) -> None: ...

    @property
    def records(self) -> FieldColumns | PackedRecords:
        """The records."""
        return self.columns if self.packed is None else self.packed

    def take(self, records: FieldColumns | PackedRecords) -> None:
        """Hold these records, and no others."""
        if isinstance(records, PackedRecords):
            self.packed = records
        else:
            self.columns = records
        self.size_bytes = records.size_bytes()
        self.closed = True


@dataclass(slots=True)
class _Queue(Generic[T]):
    """The batches of one partition that have no outcome yet."""

    waiting: deque[ProducerBatchBuffer[T]] = field(default_factory=deque)
    in_flight: list[ProducerBatchBuffer[T]] = field(default_factory=list)
    begun: int = 0
    identity: ProducerIdentity | None = None
    next_sequence: int = 0
    is_known: bool = False
    """Whether the broker has written a batch under this identity."""
    gap_after: tuple[int, ...] | None = None
    """`order` of a batch that expired or was refused after it had sequence numbers; None if there
    is no such gap."""
    renewing: bool = False
    """Whether the gap can't be closed: nothing is sent until there is a new identity."""


class Accumulator(Generic[T]):
    """The batches of all partitions of one producer; `T` is the type of receipts."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._batch_bytes = limits.batch_bytes
        self._in_flight_max = limits.in_flight_max if limits.idempotent else 1
        self._queues: dict[TopicPartition, _Queue[T]] = {}
        self._identity: ProducerIdentity | None = None
        self.used = UsedBytes()

    @property
    def used_bytes(self) -> int:
        """Bytes of all records without an outcome, before compression."""
        return self.used.value

    def append(
        self,
        partition: TopicPartition,
        record: Fields,
        receipt: T | None,
        *,
        size_bytes: int,
        now_ms: int,
    ) -> AppendedRecord:
        """Add one record to the open batch of its partition.

        Args:
            partition: the partition to write to.
            record: its fields.
            receipt: what to report the outcome to; None if `expect` makes one right after.
            size_bytes: the record's `record_bytes`.
            now_ms: monotonic time in ms.
        """
        queue = self._queues.get(partition) or self._queue(partition)
        batch = queue.waiting[-1] if queue.waiting else None
        if batch is None or batch.closed:
            appended = AppendedRecord.STARTED
            batch = self._begin(partition, queue, now_ms)
        elif batch.size_bytes + size_bytes > self._batch_bytes:
            appended = AppendedRecord.FILLED
            batch = self._begin(partition, queue, now_ms)
        else:
            appended = AppendedRecord.JOINED
        put(batch, record, size_bytes)
        if receipt is not None:
            at = len(batch.columns) - 1
            batch.cover(at, at, receipt)
        self.used.value += size_bytes
        if batch.size_bytes >= self._batch_bytes:
            batch.closed = True
            return AppendedRecord.FILLED
        return appended

    def waiting(self, partition: TopicPartition) -> deque[ProducerBatchBuffer[T]]:
        """Return the waiting batches of a partition; the last one may still take records.

        Right after `append`, that is the batch with the new record.
        """
        return self._queues[partition].waiting

    def append_batch(
        self,
        partition: TopicPartition,
        records: FieldColumns | PackedRecords,
        receipt: T,
        *,
        atomic: bool = False,
        now_ms: int,
    ) -> int:
        """Add records of one partition.

        Columns are copied into the open batch and as many further batches as they need. Packed
        records, and all records that are `atomic`, become one batch that takes no others.

        Args:
            partition: the partition to write to.
            records: at least one record, in order.
            receipt: what to report the outcome to.
            atomic: never divide the batch.
            now_ms: monotonic time in ms.

        Returns:
            The number of batches that hold the receipt. The receipt gets one outcome for each.
        """
        queue = self._queue(partition)
        if not atomic and isinstance(records, FieldColumns):
            return self._append_columns(partition, queue, records, receipt, now_ms)
        batch = self._begin(partition, queue, now_ms)
        batch.take(records)
        batch.receipts = [(0, len(records) - 1, receipt)]
        batch.atomic = atomic
        self.used.value += batch.size_bytes
        return 1

    def _append_columns(
        self,
        partition: TopicPartition,
        queue: _Queue[T],
        records: FieldColumns,
        receipt: T,
        now_ms: int,
    ) -> int:
        start = touched = 0
        while start < len(records):
            batch = queue.waiting[-1] if queue.waiting else None
            if batch is None or batch.closed:
                batch = self._begin(partition, queue, now_ms)
            stop, size_bytes = records.fitting(start, self._batch_bytes - batch.size_bytes)
            if stop == start:
                # Not one more record fits. A batch with records is closed, and the loop opens the
                # next one. In an empty batch nothing will ever fit: the record is larger than
                # `batch_bytes` and is sent alone; only the broker knows the topic's limit.
                if len(batch.records):
                    batch.closed = True
                    continue
                stop += 1
                size_bytes = records.part(start, stop).size_bytes()
            touched += 1
            gathered = batch.columns
            first = len(gathered)
            part = records.part(start, stop)
            gathered.extend(part.timestamps, part.keys, part.values, part.headers)
            batch.cover(first, len(gathered) - 1, receipt)
            batch.size_bytes += size_bytes
            batch.closed = batch.size_bytes >= self._batch_bytes
            self.used.value += size_bytes
            start = stop
        return touched

    def ready(self, now_ms: int) -> tuple[list[TopicPartition], int | None]:
        """Return the partitions with a batch to send now, and the time when the next is due.

        The time is None if no other batch becomes due by time alone. A batch that waits for the
        outcome of one in flight is such a batch: the sender looks again after every outcome.
        """
        due: list[TopicPartition] = []
        next_ms: int | None = None
        for partition, queue in self._queues.items():
            at_ms = self._due_ms(queue)
            if at_ms is None:
                continue
            if at_ms <= now_ms:
                due.append(partition)
            elif next_ms is None or at_ms < next_ms:
                next_ms = at_ms
        return due, next_ms

    def take(self, partition: TopicPartition) -> ProducerBatchBuffer[T]:
        """Take the next batch of a partition that is `ready`; from then on it is in flight."""
        queue = self._queues[partition]
        batch = queue.waiting.popleft()
        batch.closed = True
        queue.in_flight.append(batch)
        return batch

    def encoded(self, batch: ProducerBatchBuffer[T]) -> bytes:
        """Return the batch in flight as bytes, with sequence numbers; a retry has equal bytes.

        Raises:
            MessageTooLarge, TypeError, ValueError: the records can't be encoded. Report the batch
                by `on_refused`.
        """
        if batch.data is None:
            batch.data = self._encode(batch, self._queues[batch.partition])
        return batch.data

    def on_delivered(self, batch: ProducerBatchBuffer[T]) -> None:
        """Complete a batch that the broker has written."""
        queue = self._landed(batch)
        queue.is_known = True
        # A gap that was none:
        # 1. Batch 0 (sequence 0 to 2) is sent; the answer is lost, and the batch expires.
        # 2. Batch 1 (sequence 3 to 5), which was in flight behind it, is accepted.
        # 3. The broker accepts sequence 3 only behind 2: it did write batch 0.
        if queue.gap_after is not None and queue.gap_after < batch.order:
            queue.gap_after = None
        self._done(batch)

    def on_refused(self, batch: ProducerBatchBuffer[T]) -> None:
        """Give up a batch that the broker will never write."""
        queue = self._landed(batch)
        self._note_gap(batch, queue)
        self._done(batch)

    def on_retriable(self, batch: ProducerBatchBuffer[T], *, now_ms: int) -> None:
        """Queue a batch again whose outcome is unknown or whose error may pass.

        The wait doubles with each attempt, from `retry_backoff_ms` up to `retry_backoff_ms_max`.
        """
        queue = self._landed(batch)
        batch.attempts += 1
        wait_ms = self._limits.retry_backoff_ms << min(batch.attempts - 1, 16)
        batch.not_before_ms = now_ms + min(wait_ms, self._limits.retry_backoff_ms_max)
        self._requeue(batch, queue)

    def on_out_of_sequence(self, batch: ProducerBatchBuffer[T], *, now_ms: int) -> bool:
        """Handle an answer that the broker lacks the batches before this one.

        The broker has not written this batch either. It is sent again: behind the earlier ones if
        any is outstanding, else under a new identity.

        Returns:
            Whether the batch is sent again. If not, it is lost (in a transaction): report it by
            `on_refused`.
        """
        queue = self._queues[batch.partition]
        earlier = any(other.order < batch.order for other in queue.in_flight) or any(
            other.order < batch.order for other in queue.waiting
        )
        # A retry that closes the gap:
        # 1. Batches 0, 1 and 2 are in flight; the broker's answer to 0 is a retriable error.
        # 2. 1 and 2 come back out of sequence. 0 waits for its retry, so `earlier` is true.
        # 3. 0, then 1, then 2 are sent again with their old numbers.
        # A gap that stays:
        # 1. Batch 0 is refused for good (too large, say) while 1 is in flight.
        # 2. 1 comes back out of sequence, and no earlier batch is outstanding: no retry of ours
        #    can bring the broker to the sequence number of 1. All is numbered again from 0.
        if self._limits.transactional and not earlier:
            return False
        queue.renewing = queue.renewing or not earlier
        self.on_retriable(batch, now_ms=now_ms)
        return True

    def on_too_large(self, batch: ProducerBatchBuffer[T]) -> list[T]:
        """Divide a batch that is too large for the broker; the halves keep its sequence numbers.

        Returns:
            The receipts that are in both halves, and so get one outcome more than before.

        Raises:
            MessageTooLarge: the batch holds one record, or is atomic.
        """
        if batch.atomic or len(batch.records) == 1:
            what = "an atomic batch" if batch.atomic else "the record"
            raise MessageTooLarge(
                f"{what} for {batch.partition.topic}-{batch.partition.partition} needs about "
                f"{batch.size_bytes} bytes, more than the topic's max.message.bytes: "
                "raise it, or write less at a time"
            )
        queue = self._landed(batch)
        middle = len(batch.records) // 2
        halves = self._part(batch, 0, middle), self._part(batch, middle, len(batch.records))
        if batch.base_sequence >= 0:
            halves[1].base_sequence = (batch.base_sequence + middle) & SEQUENCE_MASK
        for half in halves:
            self._requeue(half, queue)
        return [receipt for first, last, receipt in batch.receipts if first < middle <= last]

    def on_bad_records(
        self, batch: ProducerBatchBuffer[T], bad: Collection[int]
    ) -> list[tuple[int, T]]:
        """Queue a refused batch again without its bad records (KIP-467).

        The batch was sent only once, so the broker has none of its records. Batches in flight
        behind it come back out of sequence, as after any gap.

        Args:
            batch: the refused batch.
            bad: indexes of the bad records in the batch.

        Returns:
            (index, receipt) of each bad record, in order.
        """
        queue = self._landed(batch)
        waiting = {first: receipt for first, _, receipt in batch.receipts}
        good = [at for at in range(len(batch.records)) if at not in bad]
        rest = ProducerBatchBuffer[T](batch.partition, (*batch.order, 0), batch.created_ms)
        rows = enumerate(batch.columns)
        rest.take(FieldColumns.of(row for at, row in rows if at not in bad))
        rest.receipts = [(index, index, waiting[at]) for index, at in enumerate(good)]
        rest.attempts = 1
        if batch.base_sequence >= 0:
            rest.base_sequence = batch.base_sequence
            # If nothing was numbered behind the batch, the counter falls back by the bad records.
            # Else the batches behind have numbers that leave a gap, which they report themselves.
            due = (batch.base_sequence + len(batch.records)) & SEQUENCE_MASK
            if due == queue.next_sequence:
                queue.next_sequence = (batch.base_sequence + len(good)) & SEQUENCE_MASK
        self.used.value += rest.size_bytes - batch.size_bytes
        self._requeue(rest, queue)
        return [(at, waiting[at]) for at in sorted(bad)]

    def expired(self, now_ms: int) -> list[ProducerBatchBuffer[T]]:
        """Take out the waiting batches whose delivery timeout has passed."""
        late: list[ProducerBatchBuffer[T]] = []
        for queue in self._queues.values():
            while queue.waiting and self._is_late(queue.waiting[0], now_ms):
                batch = queue.waiting.popleft()
                self._note_gap(batch, queue)
                self._done(batch)
                late.append(batch)
        return late

    def next_expiry_ms(self) -> int | None:
        """Return when the delivery timeout of the first waiting batch passes; None: none waits."""
        oldest_ms = min(
            (queue.waiting[0].created_ms for queue in self._queues.values() if queue.waiting),
            default=None,
        )
        return None if oldest_ms is None else oldest_ms + self._limits.delivery_timeout_ms

    def withdraw(self, topic: str | None = None) -> list[ProducerBatchBuffer[T]]:
        """Take out all waiting batches, of one topic or of all.

        Batches in flight stay until the sender reports their outcome.
        """
        withdrawn: list[ProducerBatchBuffer[T]] = []
        for partition, queue in self._queues.items():
            while topic in {None, partition.topic} and queue.waiting:
                batch = queue.waiting.popleft()
                self._note_gap(batch, queue)
                self._done(batch)
                withdrawn.append(batch)
        return withdrawn

    def wants_identity(self) -> bool:
        """Whether the sender must request a producer id before it can send more."""
        if not self._limits.idempotent or self._limits.transactional:
            return False
        if self._identity is None:
            return True
        return any(_may_renew(queue) for queue in self._queues.values())

    def on_identity(self, identity: ProducerIdentity) -> None:
        """Use a new producer id for new partitions, and for those whose numbering has a gap."""
        self._identity = identity
        for queue in self._queues.values():
            if _may_renew(queue):
                _number_anew(queue, identity)

    def reset_identity(self, identity: ProducerIdentity) -> None:
        """Use this identity for all partitions, from sequence number 0.

        Call it between transactions, while no batch is in flight.
        """
        self._identity = identity
        for queue in self._queues.values():
            _number_anew(queue, identity)

    @property
    def has_outstanding(self) -> bool:
        """Whether any batch has no outcome yet."""
        return any(queue.in_flight or queue.waiting for queue in self._queues.values())

    def outstanding(self) -> Iterator[ProducerBatchBuffer[T]]:
        """Yield every batch without an outcome, in flight or waiting."""
        for queue in self._queues.values():
            yield from queue.in_flight
            yield from queue.waiting

    def close_open(self) -> Mark:
        """Close all open batches, so that they are due now; return a mark for `is_done`."""
        for queue in self._queues.values():
            if queue.waiting:
                queue.waiting[-1].closed = True
        return {partition: queue.begun for partition, queue in self._queues.items()}

    def is_done(self, mark: Mark) -> bool:
        """Whether every batch that was open at `mark`, or earlier, has its outcome."""
        return all(batch.order[0] >= mark.get(batch.partition, 0) for batch in self.outstanding())

    def _queue(self, partition: TopicPartition) -> _Queue[T]:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _Queue()
        return queue

    def _begin(
        self, partition: TopicPartition, queue: _Queue[T], now_ms: int
    ) -> ProducerBatchBuffer[T]:
        if queue.waiting:
            queue.waiting[-1].closed = True
        batch = ProducerBatchBuffer[T](partition, (queue.begun,), now_ms)
        queue.begun += 1
        queue.waiting.append(batch)
        return batch

    def _due_ms(self, queue: _Queue[T]) -> int | None:
        """Return when the first batch may be sent; None if that does not depend on time alone."""
        # Rule 4 of the head: until the broker knows the identity, one batch at a time.
        in_flight_max = self._in_flight_max if queue.is_known else 1
        if not queue.waiting or len(queue.in_flight) >= in_flight_max:
            return None
        head = queue.waiting[0]
        if self._is_unnumbered(queue, head):
            return None
        if any(_must_land_first(other, head) for other in queue.in_flight):
            return None
        if head.attempts or head.closed:
            return head.not_before_ms
        return head.created_ms + self._limits.linger_ms

    def _is_unnumbered(self, queue: _Queue[T], head: ProducerBatchBuffer[T]) -> bool:
        """Whether the batch can't be sent before there is an identity, or a gap is resolved."""
        if not self._limits.idempotent:
            return False
        if self._identity is None or queue.renewing:
            return True
        return queue.gap_after is not None and head.base_sequence < 0

    def _encode(self, batch: ProducerBatchBuffer[T], queue: _Queue[T]) -> bytes:
        packed = batch.packed
        seal = partial(encode_columns, batch.columns) if packed is None else packed.sealed
        if not self._limits.idempotent:
            return seal(codec=self._limits.codec)
        queue.identity = queue.identity or self._identity
        identity = queue.identity or ProducerIdentity(-1, -1)
        fresh = batch.base_sequence < 0
        base_sequence = queue.next_sequence if fresh else batch.base_sequence
        data = seal(
            codec=self._limits.codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=base_sequence,
            transactional=self._limits.transactional,
        )
        batch.base_sequence = base_sequence
        if fresh:
            queue.next_sequence = (base_sequence + len(batch.records)) & SEQUENCE_MASK
        return data

    def _part(self, batch: ProducerBatchBuffer[T], start: int, stop: int) -> ProducerBatchBuffer[T]:
        part = ProducerBatchBuffer[T](batch.partition, (*batch.order, start), batch.created_ms)
        part.take(batch.records.part(start, stop))
        part.receipts = [
            (max(first, start) - start, min(last, stop - 1) - start, receipt)
            for first, last, receipt in batch.receipts
            if first < stop and last >= start
        ]
        part.attempts = 1
        part.base_sequence = batch.base_sequence
        return part

    def _landed(self, batch: ProducerBatchBuffer[T]) -> _Queue[T]:
        queue = self._queues[batch.partition]
        queue.in_flight.remove(batch)
        return queue

    def _requeue(self, batch: ProducerBatchBuffer[T], queue: _Queue[T]) -> None:
        # By `order`, not in front: of three batches in flight the second may come back before the
        # first.
        position = 0
        for other in queue.waiting:
            if other.order > batch.order:
                break
            position += 1
        queue.waiting.insert(position, batch)

    def _note_gap(self, batch: ProducerBatchBuffer[T], queue: _Queue[T]) -> None:
        # A batch that was never sent has taken no sequence numbers and leaves no gap.
        if self._limits.idempotent and batch.base_sequence >= 0:
            queue.gap_after = batch.order

    def _done(self, batch: ProducerBatchBuffer[T]) -> None:
        self.used.value -= batch.size_bytes

    def _is_late(self, batch: ProducerBatchBuffer[T], now_ms: int) -> bool:
        return now_ms - batch.created_ms >= self._limits.delivery_timeout_ms


def _must_land_first(other: ProducerBatchBuffer[T], head: ProducerBatchBuffer[T]) -> bool:
    """Whether `head` must wait until `other`, which is in flight, has its outcome."""
    # 1. A retry (`head`) waits for later batches: they come back out of sequence, and sent after
    #    it they would meet the broker in the wrong order.
    # 2. A first attempt (`head`) waits for retries: the broker remembers five batches only.
    return other.order > head.order or (other.attempts > 0 and head.attempts == 0)


def _number_anew(queue: _Queue[T], identity: ProducerIdentity) -> None:
    queue.identity, queue.next_sequence = identity, 0
    queue.renewing, queue.gap_after, queue.is_known = False, None, False
    for batch in queue.waiting:
        batch.data, batch.base_sequence = None, -1


def _may_renew(queue: _Queue[T]) -> bool:
    """Whether the partition needs a new identity: it has a gap, and no answer can resolve it.

    Batches that already have sequence numbers are sent under the old identity first: the
    broker's answer to the oldest of them says whether it has the expired batch after all.
    """
    if queue.in_flight:
        return False
    if queue.renewing or queue.gap_after is None:
        return queue.renewing
    return bool(queue.waiting) and queue.waiting[0].base_sequence < 0
