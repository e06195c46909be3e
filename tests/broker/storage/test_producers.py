from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.producers import (
    BATCHES_REMEMBERED,
    DUPLICATE_SEQUENCE_NUMBER,
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    PRODUCERS_MAX,
    Appended,
    ProducerStates,
)
from streamlog.errors import CorruptData, LogError
from streamlog.records.batch import RecordBatch
from tests.broker.storage.batches import batch


def sent(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> RecordBatch:
    return RecordBatch(batch(count, producer=(producer_id, epoch, sequence)))


def code_of(states: ProducerStates, refused: RecordBatch) -> int:
    with pytest.raises(LogError) as caught:
        states.check(refused)
    return caught.value.code


def test_a_batch_sent_again_is_told_its_offsets() -> None:
    states = ProducerStates()
    for number in range(BATCHES_REMEMBERED):
        assert states.check(sent(number * 2, 2)) is None
        states.replay(sent(number * 2, 2), 100 + number * 2)
    for number in range(BATCHES_REMEMBERED):
        first = number * 2
        assert states.check(sent(first, 2)) == Appended(first, first + 1, 100 + first, 101 + first)


def test_a_batch_sent_again_too_late_is_known_but_not_where() -> None:
    states = ProducerStates()
    for number in range(BATCHES_REMEMBERED + 1):
        states.replay(sent(number), number)
    assert code_of(states, sent(0)) == DUPLICATE_SEQUENCE_NUMBER
    assert states.check(sent(1)) is not None


def test_a_gap_is_refused() -> None:
    states = ProducerStates()
    states.replay(sent(0, 3), 0)
    assert code_of(states, sent(4)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(sent(3)) is None


def test_a_batch_that_only_overlaps_is_refused() -> None:
    states = ProducerStates()
    states.replay(sent(0, 3), 0)
    assert code_of(states, sent(2, 3)) == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_to_zero() -> None:
    states = ProducerStates()
    states.replay(sent(2**31 - 2, 2), 0)
    assert states.check(sent(0)) is None
    assert code_of(states, sent(1)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    states.replay(sent(0), 2)
    assert states.check(sent(2**31 - 2, 2)) == Appended(2**31 - 2, 2**31 - 1, 0, 1)
    across = sent(2**31 - 1, 3, producer_id=8)
    states.replay(across, 3)
    assert states.check(across) == Appended(2**31 - 1, 1, 3, 5)
    assert states.check(sent(2, producer_id=8)) is None


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    states = ProducerStates()
    states.replay(sent(5, epoch=3), 0)
    assert code_of(states, sent(6, epoch=2)) == INVALID_PRODUCER_EPOCH
    assert code_of(states, sent(6, epoch=4)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(sent(0, epoch=4)) is None
    states.replay(sent(0, epoch=4), 1)
    assert code_of(states, sent(6, epoch=3)) == INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerStates().check(sent(123)) is None


def test_producers_that_do_not_number_leave_no_trace() -> None:
    states = ProducerStates()
    plain = RecordBatch(batch())
    assert states.check(plain) is None
    states.replay(plain, 0)
    assert len(states) == 0


def test_the_producer_silent_for_longest_is_forgotten_first() -> None:
    states = ProducerStates()
    for producer_id in range(PRODUCERS_MAX):
        states.replay(sent(0, producer_id=producer_id), producer_id)
    states.replay(sent(1, producer_id=0), PRODUCERS_MAX)
    states.replay(sent(0, producer_id=PRODUCERS_MAX), PRODUCERS_MAX + 1)
    assert len(states) == PRODUCERS_MAX
    assert code_of(states, sent(9, producer_id=0)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(sent(9, producer_id=1)) is None


steps = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=40
)


def states_after(history: list[tuple[int, int, int]]) -> ProducerStates:
    states = ProducerStates()
    sequences: dict[tuple[int, int], int] = {}
    for offset, (producer_id, epoch, count) in enumerate(history):
        sequence = sequences.get((producer_id, epoch), 0)
        sequences[producer_id, epoch] = sequence + count
        states.replay(sent(sequence, count, epoch=epoch, producer_id=producer_id), offset * 4)
    return states


@given(steps)
def test_a_snapshot_restores_the_state(history: list[tuple[int, int, int]]) -> None:
    states = states_after(history)
    restored = ProducerStates.restore(states.snapshot())
    assert restored.snapshot() == states.snapshot()
    assert len(restored) == len(states)


@given(steps, st.data())
def test_a_damaged_snapshot_is_noticed(
    history: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    snapshot = bytearray(states_after(history).snapshot())
    at = data.draw(st.integers(0, len(snapshot) - 1))
    if data.draw(st.booleans()):
        with pytest.raises(CorruptData):
            ProducerStates.restore(bytes(snapshot[:at]))
    else:
        snapshot[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises(CorruptData):
            ProducerStates.restore(bytes(snapshot))
