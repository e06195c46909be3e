"""Accumulator: when batches are sent, how they are divided, and exactly one copy of each record."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.producer.accumulator import (
    SEQUENCE_MASK,
    Accumulator,
    AppendedRecord,
    BatchLimits,
    Fields,
    ProducerBatchBuffer,
    ProducerIdentity,
)
from streamlog.errors import MessageTooLarge
from streamlog.record import TopicPartition
from streamlog.records.batch import RecordBatch
from streamlog.records.compression import Compression
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import (
    RECORD_OVERHEAD_BYTES,
    FieldColumns,
    record_bytes,
)

PART = TopicPartition("t", 0)
RECORD_BYTES = RECORD_OVERHEAD_BYTES + 10


def accumulator(
    *,
    batch_records: int = 3,
    idempotent: bool = True,
    delivery_timeout_ms: int = 1_000,
    known: bool = True,
    transactional: bool = False,
) -> Accumulator[int]:
    one = Accumulator[int](
        BatchLimits(
            linger_ms=5,
            batch_bytes=batch_records * RECORD_BYTES,
            delivery_timeout_ms=delivery_timeout_ms,
            retry_backoff_ms=10,
            retry_backoff_ms_max=40,
            in_flight_max=5,
            codec=Compression.NONE,
            idempotent=idempotent,
            transactional=transactional,
        )
    )
    if idempotent:
        one.on_identity(ProducerIdentity(7, 0))
    # As if the broker had accepted a batch of this producer already.
    one._queue(PART).is_known = known
    return one


def record(number: int) -> Fields:
    return number, None, b"%010d" % number, ()


def fill(
    one: Accumulator[int], count: int, *, start: int = 0, now_ms: int = 0
) -> list[AppendedRecord]:
    return [
        one.append(PART, record(n), n, size_bytes=record_bytes(*record(n)[1:]), now_ms=now_ms)
        for n in range(start, start + count)
    ]


def take(one: Accumulator[int], now_ms: int) -> ProducerBatchBuffer[int] | None:
    due, _ = one.ready(now_ms)
    if PART not in due:
        return None
    batch = one.take(PART)
    one.encoded(batch)
    return batch


def numbers(batch: ProducerBatchBuffer[int] | None) -> list[int]:
    assert batch is not None
    return [each[0] for each in batch.records]


def test_an_open_batch_lingers_for_more_records() -> None:
    one = accumulator()
    assert fill(one, 2) == [AppendedRecord.STARTED, AppendedRecord.JOINED]
    assert one.ready(4) == ([], 5)
    assert numbers(take(one, 5)) == [0, 1]


def test_a_full_batch_is_sent_at_once_and_the_next_one_lingers() -> None:
    one = accumulator()
    assert fill(one, 4)[2:] == [AppendedRecord.FILLED, AppendedRecord.STARTED]
    assert numbers(take(one, 0)) == [0, 1, 2]
    assert take(one, 0) is None
    assert numbers(take(one, 5)) == [3]


def test_flushing_closes_open_batches_and_marks_their_records() -> None:
    one = accumulator()
    fill(one, 1)
    mark = one.close_open()
    fill(one, 1, start=1)
    batch = take(one, 0)
    assert numbers(batch) == [0]
    assert not one.is_done(mark)
    assert batch is not None
    one.on_delivered(batch)
    assert one.is_done(mark)


def test_a_bulk_is_divided_like_single_records() -> None:
    records = [record(n) for n in range(8)]
    one = accumulator()
    fill(one, 1, start=100)
    touched = one.append_batch(PART, FieldColumns.of(records), 1, now_ms=0)
    batches = [numbers(take(one, 5)) for _ in range(touched)]
    assert batches == [[100, 0, 1], [2, 3, 4], [5, 6, 7]]


def test_a_record_larger_than_a_batch_is_sent_alone() -> None:
    one = accumulator(batch_records=2)
    large: Fields = (1, None, b"x" * 500, ())
    records = [record(0), large, record(2)]
    assert one.append_batch(PART, FieldColumns.of(records), 1, now_ms=0) == 3


def test_an_atomic_batch_takes_no_other_records_and_is_not_divided() -> None:
    one = accumulator()
    fill(one, 1)
    few = FieldColumns.of(record(n) for n in range(1, 9))
    one.append_batch(PART, few, 1, atomic=True, now_ms=0)
    fill(one, 1, start=9)
    assert [numbers(take(one, 5)) for _ in range(2)] == [[0], list(range(1, 9))]
    atomic = next(batch for batch in one.outstanding() if batch.atomic)
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
        one.on_too_large(atomic)


def test_a_gap_in_a_transaction_fails_the_batch_without_renumbering() -> None:
    one = accumulator(transactional=True)
    fill(one, 6)
    first, second = take(one, 0), take(one, 0)
    assert first is not None
    assert second is not None
    assert RecordBatch(one.encoded(first)).is_transactional
    assert one.on_out_of_sequence(second, now_ms=0), "the first may still be written"
    assert not one.on_out_of_sequence(first, now_ms=0)
    one.on_refused(first)
    again = take(one, 50)
    assert again is second
    assert not one.on_out_of_sequence(second, now_ms=50)
    one.on_refused(second)
    fill(one, 3, start=6, now_ms=50)
    assert take(one, 50) is None, "there is a gap"
    assert not one.wants_identity(), "the transaction handles the gap"
    assert numbers(one.withdraw()[0]) == [6, 7, 8]
    assert not one.has_outstanding
    one.reset_identity(ProducerIdentity(7, 1))
    fill(one, 3, start=9, now_ms=50)
    assert one.has_outstanding
    batch = take(one, 50)
    assert batch is not None
    assert batch.base_sequence == 0
    assert RecordBatch(one.encoded(batch)).producer_epoch == 1


def test_sequence_numbers_continue_and_a_retry_keeps_them() -> None:
    one = accumulator()
    fill(one, 6)
    first, second = take(one, 0), take(one, 0)
    assert first is not None
    assert second is not None
    assert (first.base_sequence, second.base_sequence) == (0, 3)
    data = one.encoded(first)
    one.on_retriable(first, now_ms=0)
    assert take(one, 50) is None, "a later batch is in flight"
    one.on_out_of_sequence(second, now_ms=0)
    again = take(one, 50)
    assert again is first
    assert one.encoded(again) == data
    assert take(one, 50) is second
    assert not one.wants_identity()


def test_sequence_numbers_wrap_around() -> None:
    one = accumulator()
    one._queue(PART).next_sequence = SEQUENCE_MASK - 1
    fill(one, 4)
    first, second = take(one, 5), take(one, 5)
    assert first is not None
    assert second is not None
    assert (first.base_sequence, second.base_sequence) == (SEQUENCE_MASK - 1, 1)


def test_the_first_batch_of_a_producer_id_is_sent_alone() -> None:
    one = accumulator(known=False)
    fill(one, 9)
    first = take(one, 0)
    assert first is not None
    assert take(one, 0) is None
    one.on_delivered(first)
    assert [numbers(take(one, 0)) for _ in range(2)] == [[3, 4, 5], [6, 7, 8]]


def test_a_gap_before_the_oldest_batch_requests_a_new_producer_id() -> None:
    one = accumulator()
    fill(one, 6)
    first, second = take(one, 0), take(one, 0)
    assert first is not None
    assert second is not None
    one.on_refused(first)
    one.on_out_of_sequence(second, now_ms=0)
    assert one.wants_identity()
    assert take(one, 50) is None
    one.on_identity(ProducerIdentity(8, 0))
    assert take(one, 50) is second
    batch = RecordBatch(one.encoded(second))
    assert (batch.producer_id, batch.base_sequence) == (8, 0)


def test_the_first_waiting_batch_has_the_next_deadline() -> None:
    one = accumulator()
    assert one.next_expiry_ms() is None
    fill(one, 3)
    deadline_ms = one.next_expiry_ms()
    assert deadline_ms is not None
    assert one.expired(deadline_ms - 1) == []
    batch = take(one, 0)
    assert batch is not None
    assert one.next_expiry_ms() is None
    one.on_retriable(batch, now_ms=500)
    assert one.next_expiry_ms() == deadline_ms
    assert one.expired(deadline_ms) == [batch]


def test_a_gap_closes_when_a_later_batch_was_written() -> None:
    one = accumulator()
    fill(one, 6)
    first, second = take(one, 0), take(one, 0)
    assert first is not None
    assert second is not None
    one.on_retriable(first, now_ms=0)
    assert one.expired(1_000) == [first]
    one.on_delivered(second)
    fill(one, 3, start=6)
    assert not one.wants_identity()
    assert numbers(take(one, 0)) == [6, 7, 8]


def test_without_idempotence_one_batch_is_in_flight() -> None:
    one = accumulator(idempotent=False)
    fill(one, 6)
    first = take(one, 0)
    assert first is not None
    assert take(one, 0) is None
    one.on_retriable(first, now_ms=0)
    assert take(one, 0) is None
    assert take(one, 10) is first
    assert RecordBatch(one.encoded(first)).producer_id == -1


def test_retries_back_off_up_to_a_bound() -> None:
    one = accumulator()
    fill(one, 3)
    waits = []
    now_ms = 0
    for _ in range(5):
        batch = take(one, now_ms)
        assert batch is not None
        one.on_retriable(batch, now_ms=now_ms)
        waits.append((one.ready(now_ms)[1] or 0) - now_ms)
        now_ms += waits[-1]
    assert waits == [10, 20, 40, 40, 40]


def test_a_batch_that_is_too_large_is_split_with_its_sequence_numbers() -> None:
    one = accumulator(batch_records=4)
    records = [record(n) for n in range(8)]
    one.append_batch(PART, FieldColumns.of(records), 1, now_ms=0)
    first, second = take(one, 0), take(one, 0)
    assert first is not None
    assert second is not None
    assert one.on_too_large(first) == [1]
    one.on_out_of_sequence(second, now_ms=0)
    halves = [take(one, 50) for _ in range(3)]
    assert [numbers(half) for half in halves] == [[0, 1], [2, 3], [4, 5, 6, 7]]
    assert [half and half.base_sequence for half in halves] == [0, 2, 4]


def test_packed_records_form_their_own_batch_and_can_be_divided() -> None:
    one = accumulator(batch_records=4)
    fill(one, 2)
    packs = [PackedRecords(), PackedRecords()]
    for at, pack in enumerate(packs):
        pack.extend(FieldColumns.of([record(n) for n in range(4 * at + 2, 4 * at + 6)]))
        one.append_batch(PART, pack, 9, now_ms=0)
    fill(one, 1, start=10)
    assert numbers(take(one, 0)) == [0, 1]
    first, second = take(one, 0), take(one, 0)
    assert first is not None
    assert second is not None
    assert [first.base_sequence, second.base_sequence] == [2, 6]
    assert RecordBatch(one.encoded(first)).base_sequence == 2
    assert one.on_too_large(first) == [9]
    one.on_out_of_sequence(second, now_ms=0)
    halves = [take(one, 50), take(one, 50)]
    assert [numbers(half) for half in halves] == [[2, 3], [4, 5]]
    assert [half and half.base_sequence for half in halves] == [2, 4]
    third = take(one, 50)
    assert third is second
    assert one.encoded(second) == one.encoded(third)
    assert RecordBatch(one.encoded(second)).record_count == 4
    for batch in (*halves, second):
        assert batch is not None
        one.on_delivered(batch)
    last = take(one, 50)
    assert numbers(last) == [10]
    assert last is not None
    assert last.base_sequence == 10


def test_buffer_bytes_are_released() -> None:
    one = accumulator()
    fill(one, 7)
    assert one.used_bytes == 7 * RECORD_BYTES
    while batch := take(one, 5):
        one.on_delivered(batch)
    assert one.used_bytes == 0


@dataclass
class Broker:
    """One partition of a broker, with the rules of KIP-98 only."""

    written: list[int] = field(default_factory=list)
    last: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def append(self, data: bytes) -> str:
        batch = RecordBatch(data)
        known = self.last.setdefault(batch.producer_id, [])
        span = (batch.base_sequence, batch.base_sequence + batch.record_count)
        if span in known[-5:]:
            return "duplicate"
        if batch.base_sequence != (known[-1][1] if known else batch.base_sequence):
            return "out of sequence"
        known.append(span)
        self.written += [each.timestamp_ms for each in batch.records()]
        return "written"


class Run:
    """A producer and a broker with every loss that can occur between them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.one = accumulator(delivery_timeout_ms=400, known=False)
        self.broker = Broker()
        self.now_ms = 0
        self.sent = 0
        self.identities = 7
        self.wire: list[ProducerBatchBuffer[int]] = []
        self.delivered: list[int] = []
        self.failed: list[int] = []

    def note(self, batch: ProducerBatchBuffer[int], outcome: list[int]) -> None:
        outcome += [receipt for _, _, receipt in batch.receipts]

    def step(self, *, faults: bool) -> None:
        self.now_ms += self.rng.randrange(20)
        for batch in self.one.expired(self.now_ms):
            self.note(batch, self.failed)
        if self.one.wants_identity() and self.rng.random() < 0.5:
            self.identities += 1
            self.one.on_identity(ProducerIdentity(self.identities, 0))
        if self.rng.random() < 0.5 and self.sent < 60:
            fill(self.one, self.rng.randint(1, 4), start=self.sent, now_ms=self.now_ms)
            self.sent = sum(1 for _ in self._all())
        elif (taken := take(self.one, self.now_ms)) is not None:
            self.wire.append(taken)
        if self.wire and self.rng.random() < 0.6:
            self.arrive(self.wire.pop(0), faults=faults)

    def _all(self) -> list[int]:
        waiting = [r for batch in self.one.outstanding() for _, _, r in batch.receipts]
        return [*self.delivered, *self.failed, *waiting]

    def arrive(self, batch: ProducerBatchBuffer[int], *, faults: bool) -> None:
        chance = self.rng.random() if faults else 1.0
        # A broker that has accepted a batch does not refuse it later.
        is_new = not {each[0] for each in batch.records} & set(self.broker.written)
        if chance < 0.15:  # Lost before the broker received it.
            self.one.on_retriable(batch, now_ms=self.now_ms)
        elif chance < 0.22 and is_new:
            self.one.on_refused(batch)
            self.note(batch, self.failed)
        elif chance < 0.28 and is_new and len(batch.records) > 1:
            self.one.on_too_large(batch)
        else:
            self.answer(batch, self.broker.append(self.one.encoded(batch)), lost=chance < 0.45)

    def answer(self, batch: ProducerBatchBuffer[int], answer: str, *, lost: bool) -> None:
        if lost:
            self.one.on_retriable(batch, now_ms=self.now_ms)
        elif answer == "out of sequence":
            self.one.on_out_of_sequence(batch, now_ms=self.now_ms)
        else:
            self.one.on_delivered(batch)
            self.note(batch, self.delivered)


@given(seed=st.integers(0, 2**32))
def test_every_record_is_written_once_in_order_despite_faults(seed: int) -> None:
    run = Run(seed)
    for _ in range(250):
        run.step(faults=True)
    for _ in range(400):
        run.step(faults=False)
    assert run.one.used_bytes == 0, "a batch was neither delivered nor failed"
    assert sorted(run.delivered + run.failed) == list(range(run.sent))
    assert run.broker.written == sorted(set(run.broker.written)), "doubled or out of order"
    assert set(run.delivered) <= set(run.broker.written), "an acknowledged record is missing"
