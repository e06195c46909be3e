"""Accumulator: records on their way to the log, gathered into batches per partition.

Pure: records and `now_ms` in, batches to send out; what became of each comes back by one of the
`on_…` methods. Rule of the file: within a partition batches are sent in the order in which they
were begun, and with idempotence (KIP-98) each is written once, whatever is lost on the way:

1. A batch gets its sequence numbers when it is first sent and keeps them in every retry, since
   the broker tells by them what it has already.
2. A retry waits until nothing later is in flight; the later ones come back out of sequence. What
   was never sent waits until the retries are done, or the broker, which remembers five batches,
   would forget the one that is tried again.
3. Only when the *oldest* outstanding batch is out of sequence is there a gap that no retry closes
   (an earlier batch was refused or given up). The broker then has none of what follows, so that
   all of it may be numbered anew, under a new producer id for this partition alone.
4. A broker that knows nothing of a producer id takes any number as its first. So the first batch
   under an id travels alone: were it lost, the second would be written in its place.
5. In transactions the identity is the transaction's, so nothing is renumbered under way: a gap
   that no retry closes loses the batch, and by that the transaction (`begin_anew` comes after).

Not here: which transaction that is, the choice of a partition, which broker leads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar, cast

from streamlog.errors import MessageTooLarge
from streamlog.random_source import Random
from streamlog.record import TopicPartition
from streamlog.records.batch import encode_columns
from streamlog.records.compression import Compression
from streamlog.records.murmur2 import murmur2, partitions_of_keys
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import (
    HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    FieldColumns,
)

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Fields: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]
"""A record that has no offset yet: timestamp in ms, key, value, headers."""

Mark: TypeAlias = dict[TopicPartition, int]
"""How many batches of each partition had been begun at some moment."""

T = TypeVar("T")  # What is told the outcome; opaque here.

SEQUENCE_MASK = 0x7FFFFFFF
"""After 2**31 - 1 sequence numbers start at 0 again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """When a batch is sent, when it is sent again, when it is given up."""

    linger_ms: int
    batch_bytes: int
    delivery_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_ms_max: int
    in_flight_max: int
    codec: Compression
    idempotent: bool
    transactional: bool = False


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """By whom the broker counts sequence numbers."""

    producer_id: int
    producer_epoch: int


class AppendedRecord(Enum):
    """What an append did, so that the sender knows whether to look."""

    JOINED = auto()
    """The batch was there and has room: its time is known already."""
    STARTED = auto()
    """A batch was begun: it is due after the linger time."""
    FILLED = auto()
    """A batch is full: it is due now."""


class ProducerBatchBuffer(Generic[T]):
    """Records of one partition that are written, or not, together."""

    __slots__ = (
        "atomic", "attempts", "base_sequence", "closed", "created_ms", "data", "not_before_ms",
        "order", "partition", "receipts", "records", "size_bytes",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, order: tuple[int, ...], created_ms: int) -> None:
        self.partition = partition
        self.order = order
        """Where it stands among the batches of its partition; halves of a batch sort inside it."""
        self.created_ms = created_ms
        self.records: FieldColumns | PackedRecords = FieldColumns()
        self.receipts: list[tuple[int, int, T]] = []
        """First record, last record, and who waits for them."""
        self.size_bytes = 0
        self.closed = False
        self.atomic = False
        self.attempts = 0
        self.not_before_ms = created_ms
        self.data: bytes | None = None
        self.base_sequence = -1
        """Number of its first record; negative until it is sent for the first time."""


@dataclass(slots=True)
class _Queue(Generic[T]):
    """The batches of one partition that are not done."""

    waiting: deque[ProducerBatchBuffer[T]] = field(default_factory=deque)
    in_flight: list[ProducerBatchBuffer[T]] = field(default_factory=list)
    begun: int = 0
    identity: ProducerIdentity | None = None
    next_sequence: int = 0
    is_known: bool = False
    """The broker has written something under this identity."""
    gap_after: tuple[int, ...] | None = None
    """A batch with sequence numbers was given up here; None if the broker knows all so far."""
    renewing: bool = False
    """The numbering has a gap that stays: nothing is sent before a new identity is there."""


class Accumulator(Generic[T]):
    """Batches of all partitions of one producer."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._batch_bytes = limits.batch_bytes
        self._in_flight_max = limits.in_flight_max if limits.idempotent else 1
        self._queues: dict[TopicPartition, _Queue[T]] = {}
        self._identity: ProducerIdentity | None = None
        self.used_bytes = 0
        """Size of all records that are not done, before compression."""

    def append(
        self,
        partition: TopicPartition,
        record: Fields,
        receipt: T,
        *,
        size_bytes: int,
        now_ms: int,
    ) -> AppendedRecord:
        """Add a record, of `record_bytes`, to the open batch of its partition."""
        queue = self._queues.get(partition) or self._queue(partition)
        batch = queue.waiting[-1] if queue.waiting else None
        appended = AppendedRecord.JOINED
        if batch is None or batch.closed or batch.size_bytes + size_bytes > self._batch_bytes:
            appended = (
                AppendedRecord.STARTED if batch is None or batch.closed else AppendedRecord.FILLED
            )
            batch = self._begin(partition, queue, now_ms)
        records = _open(batch)
        index = len(records)
        records.append(*record)
        batch.receipts.append((index, index, receipt))
        batch.size_bytes += size_bytes
        self.used_bytes += size_bytes
        if batch.size_bytes >= self._batch_bytes:
            batch.closed = True
            return AppendedRecord.FILLED
        return appended

    def newest(self, topic: str, partition: int) -> ProducerBatchBuffer[T]:
        """The batch that the last record of a partition was appended to, a moment ago."""
        return self._queues[TopicPartition(topic, partition)].waiting[-1]

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
        batch.records = records
        batch.receipts = [(0, len(records) - 1, receipt)]
        batch.size_bytes = records.size_bytes()
        batch.closed, batch.atomic = True, atomic
        self.used_bytes += batch.size_bytes
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
                if len(batch.records):
                    batch.closed = True
                    continue
                stop += 1  # A record larger than a batch goes alone.
                size_bytes = records.part(start, stop).size_bytes()
            touched += 1
            gathered = _open(batch)
            first = len(gathered)
            part = records.part(start, stop)
            gathered.extend(part.timestamps, part.keys, part.values, part.headers)
            batch.receipts.append((first, len(gathered) - 1, receipt))
            batch.size_bytes += size_bytes
            batch.closed = batch.size_bytes >= self._batch_bytes
            self.used_bytes += size_bytes
            start = stop
        return touched

    def ready(self, now_ms: int) -> tuple[list[TopicPartition], int | None]:
        """Partitions with a batch to send now, and when to look again at the latest."""
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
        """The batch to send next of a partition that is `ready`; it is in flight now."""
        queue = self._queues[partition]
        batch = queue.waiting.popleft()
        batch.closed = True
        queue.in_flight.append(batch)
        return batch

    def encoded(self, batch: ProducerBatchBuffer[T]) -> bytes:
        """The batch in flight, numbered; a retry is the same bytes.

        Raises:
            MessageTooLarge, TypeError, ValueError: its records are no records. Refuse it.
        """
        if batch.data is None:
            batch.data = self._encode(batch, self._queues[batch.partition])
        return batch.data

    def on_delivered(self, batch: ProducerBatchBuffer[T]) -> None:
        """The broker has written the batch."""
        queue = self._landed(batch)
        queue.is_known = True
        if queue.gap_after is not None and queue.gap_after < batch.order:
            queue.gap_after = None  # So the broker had written what was given up.
        self._done(batch)

    def on_refused(self, batch: ProducerBatchBuffer[T]) -> None:
        """The broker will never write the batch."""
        queue = self._landed(batch)
        self._note_gap(batch, queue)
        self._done(batch)

    def on_retriable(self, batch: ProducerBatchBuffer[T], *, now_ms: int) -> None:
        """Nothing is known, or it may work later: send it again, the later the more often."""
        queue = self._landed(batch)
        batch.attempts += 1
        wait_ms = self._limits.retry_backoff_ms << min(batch.attempts - 1, 16)
        batch.not_before_ms = now_ms + min(wait_ms, self._limits.retry_backoff_ms_max)
        self._requeue(batch, queue)

    def on_out_of_sequence(self, batch: ProducerBatchBuffer[T], *, now_ms: int) -> bool:
        """The broker misses what comes before the batch, so it has not written it.

        Returns:
            Whether it is sent again; if not, it is lost: refuse it.
        """
        queue = self._queues[batch.partition]
        earlier = any(other.order < batch.order for other in queue.in_flight) or any(
            other.order < batch.order for other in queue.waiting
        )
        if self._limits.transactional and not earlier:
            return False
        queue.renewing = queue.renewing or not earlier
        self.on_retriable(batch, now_ms=now_ms)
        return True

    def on_too_large(self, batch: ProducerBatchBuffer[T]) -> list[T]:
        """The broker takes no batch of that size: send it as two, with the same numbers.

        Returns:
            Receipts that stand in both halves, so will be told once more than they knew.

        Raises:
            MessageTooLarge: it can't be divided.
        """
        if batch.atomic or len(batch.records) == 1:
            what = "records that have to be written together" if batch.atomic else "the record"
            raise MessageTooLarge(
                f"{what} for {batch.partition.topic}-{batch.partition.partition} need about "
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
        """The broker refuses the batch for these records: send it again without them.

        It was not sent before, so the broker has none of it. What was sent behind it is out of
        sequence, as after any gap.

        Returns:
            The bad records, by their places in the batch, with who waits for them.
        """
        queue = self._landed(batch)
        waiting = {first: receipt for first, _, receipt in batch.receipts}
        good = [at for at in range(len(batch.records)) if at not in bad]
        rest = ProducerBatchBuffer[T](batch.partition, (*batch.order, 0), batch.created_ms)
        rows = enumerate(_open(batch))
        rest.records = FieldColumns.of(row for at, row in rows if at not in bad)
        rest.receipts = [(place, place, waiting[at]) for place, at in enumerate(good)]
        rest.size_bytes = rest.records.size_bytes()
        rest.closed = True
        rest.attempts = 1
        if batch.base_sequence >= 0:
            rest.base_sequence = batch.base_sequence
            due = (batch.base_sequence + len(batch.records)) & SEQUENCE_MASK
            if due == queue.next_sequence:
                queue.next_sequence = (batch.base_sequence + len(good)) & SEQUENCE_MASK
        self.used_bytes += rest.size_bytes - batch.size_bytes
        self._requeue(rest, queue)
        return [(at, waiting[at]) for at in sorted(bad)]

    def expired(self, now_ms: int) -> list[ProducerBatchBuffer[T]]:
        """Batches that were not delivered in time; they are done."""
        late: list[ProducerBatchBuffer[T]] = []
        for queue in self._queues.values():
            while queue.waiting and self._is_late(queue.waiting[0], now_ms):
                batch = queue.waiting.popleft()
                self._note_gap(batch, queue)
                self._done(batch)
                late.append(batch)
        return late

    def withdraw(self, topic: str | None = None) -> list[ProducerBatchBuffer[T]]:
        """Give up what waits, for a topic or at all; what is in flight comes back by itself."""
        withdrawn: list[ProducerBatchBuffer[T]] = []
        for partition, queue in self._queues.items():
            while topic in {None, partition.topic} and queue.waiting:
                batch = queue.waiting.popleft()
                self._note_gap(batch, queue)
                self._done(batch)
                withdrawn.append(batch)
        return withdrawn

    def wants_identity(self) -> bool:
        """A producer id has to be asked for before more can be sent."""
        if not self._limits.idempotent or self._limits.transactional:
            return False
        if self._identity is None:
            return True
        return any(_may_renew(queue) for queue in self._queues.values())

    def on_identity(self, identity: ProducerIdentity) -> None:
        """A new producer id: for new partitions, and for those whose numbering has a gap."""
        self._identity = identity
        for queue in self._queues.values():
            if _may_renew(queue):
                _number_anew(queue, identity)

    def begin_anew(self, identity: ProducerIdentity) -> None:
        """The identity of the transactions to come. Nothing of an older one is outstanding."""
        self._identity = identity
        for queue in self._queues.values():
            _number_anew(queue, identity)

    @property
    def has_outstanding(self) -> bool:
        """Whether a batch is not done."""
        return any(queue.in_flight or queue.waiting for queue in self._queues.values())

    def outstanding(self) -> Iterator[ProducerBatchBuffer[T]]:
        """Every batch that is not done, in flight or waiting."""
        for queue in self._queues.values():
            yield from queue.in_flight
            yield from queue.waiting

    def close_open(self) -> Mark:
        """Do not linger any more over what is there; returns how far that is."""
        for queue in self._queues.values():
            if queue.waiting:
                queue.waiting[-1].closed = True
        return {partition: queue.begun for partition, queue in self._queues.items()}

    def is_done(self, mark: Mark) -> bool:
        """Whether everything up to `mark` is delivered or given up."""
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
        """When the first batch may go, None if that depends on something else than time."""
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
        """Whether the batch needs an identity, or an answer about a gap, before it can go."""
        if not self._limits.idempotent:
            return False
        if self._identity is None or queue.renewing:
            return True
        return queue.gap_after is not None and head.base_sequence < 0

    def _encode(self, batch: ProducerBatchBuffer[T], queue: _Queue[T]) -> bytes:
        seal = (
            batch.records.sealed
            if isinstance(batch.records, PackedRecords)
            else partial(encode_columns, batch.records)
        )
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
        part.records = batch.records.part(start, stop)
        part.receipts = [
            (max(first, start) - start, min(last, stop - 1) - start, receipt)
            for first, last, receipt in batch.receipts
            if first < stop and last >= start
        ]
        part.size_bytes = part.records.size_bytes()
        part.closed = True
        part.attempts = 1
        part.base_sequence = batch.base_sequence
        return part

    def _landed(self, batch: ProducerBatchBuffer[T]) -> _Queue[T]:
        queue = self._queues[batch.partition]
        queue.in_flight.remove(batch)
        return queue

    def _requeue(self, batch: ProducerBatchBuffer[T], queue: _Queue[T]) -> None:
        position = 0
        for other in queue.waiting:
            if other.order > batch.order:
                break
            position += 1
        queue.waiting.insert(position, batch)

    def _note_gap(self, batch: ProducerBatchBuffer[T], queue: _Queue[T]) -> None:
        if self._limits.idempotent and batch.base_sequence >= 0:
            queue.gap_after = batch.order

    def _done(self, batch: ProducerBatchBuffer[T]) -> None:
        self.used_bytes -= batch.size_bytes

    def _is_late(self, batch: ProducerBatchBuffer[T], now_ms: int) -> bool:
        return now_ms - batch.created_ms >= self._limits.delivery_timeout_ms


def record_bytes(record: Fields) -> int:
    """About what a record takes in a batch before compression."""
    _, key, value, headers = record
    return (
        RECORD_OVERHEAD_BYTES
        + (len(key) if key else 0)
        + (len(value) if value else 0)
        + (_headers_bytes(headers) if headers else 0)
    )


def _headers_bytes(headers: Headers) -> int:
    return sum(HEADER_OVERHEAD_BYTES + len(name) + len(value or b"") for name, value in headers)


def _must_land_first(other: ProducerBatchBuffer[T], head: ProducerBatchBuffer[T]) -> bool:
    """Whether `head` may not go while `other` is in flight."""
    return other.order > head.order or (other.attempts > 0 and head.attempts == 0)


def _open(batch: ProducerBatchBuffer[T]) -> FieldColumns:
    """The records of a batch that is added to; those that are packed are never."""
    return cast("FieldColumns", batch.records)


def _number_anew(queue: _Queue[T], identity: ProducerIdentity) -> None:
    queue.identity, queue.next_sequence = identity, 0
    queue.renewing, queue.gap_after, queue.is_known = False, None, False
    for batch in queue.waiting:
        batch.data, batch.base_sequence = None, -1


def _may_renew(queue: _Queue[T]) -> bool:
    """Whether a new identity is due: there is a gap and nothing can be learnt about it any more.

    Batches that have numbers already are tried under the old identity first: the broker's
    answer to the oldest of them tells whether what was given up is there after all.
    """
    if queue.in_flight:
        return False
    if queue.renewing or queue.gap_after is None:
        return queue.renewing
    return bool(queue.waiting) and queue.waiting[0].base_sequence < 0


__all__ = ["StickyPartitions", "murmur2", "partition_of_key", "partitions_of_keys"]


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of `key` in a topic with that many of them."""
    return partitions_of_keys((key,), partitions)[0]


class Closing(Protocol):
    """A batch, as far as this module knows it."""

    closed: bool
    """It takes no more records: it is full, or has been sent."""


class StickyPartitions:
    """The partition that records without a key go to at the moment, per topic."""

    def __init__(self, chance: Random) -> None:
        """`chance` draws the partition that a topic begins with."""
        self._chance = chance
        self._current: dict[str, int] = {}
        self._begun: dict[str, Closing] = {}
        """The batch that was begun in the current partition for such a record."""

    def choose(self, topic: str, partitions: int) -> int:
        """Where the next record without a key goes."""
        current = self._current.get(topic)
        if current is None:
            current = self._current[topic] = self._chance.randrange(partitions)
        batch = self._begun.get(topic)
        if batch is not None and batch.closed:
            del self._begun[topic]
            current = self._current[topic] = (current + 1) % partitions
        return current % partitions

    def begin(self, topic: str, batch: Closing) -> None:
        """A batch was begun for a record without a key: once it is closed, its turn is over."""
        self._begun[topic] = batch

    def turn(self, topic: str, partition: int, partitions: int) -> None:
        """A batch for `partition` is full: if it is the current one, the next one's turn comes."""
        current = self._current.get(topic)
        if current is not None and current % partitions == partition:
            self._current[topic] = (partition + 1) % partitions
            self._begun.pop(topic, None)
