from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.compaction.cleaned_batch import without_records
from streamlog.broker.storage.log.producer_states import (
    BATCHES_REMEMBERED,
    DUPLICATE_SEQUENCE_NUMBER,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    LOOKS_MAX,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    PRODUCERS_MAX,
    TRANSACTION_COORDINATOR_FENCED,
    EndedTransaction,
    OpenTransactions,
    ProducerBatch,
    ProducerStates,
)
from streamlog.errors import CorruptData, LogError
from streamlog.records.batch import RecordBatch, encode_batch
from streamlog.records.control_batches import ABORT, COMMIT, Marker, encode_marker
from tests.broker.storage.batches import batch


def sent(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> RecordBatch:
    return RecordBatch(batch(count, producer=(producer_id, epoch, sequence)))


def code_of(states: ProducerStates, refused: RecordBatch) -> int:
    with pytest.raises(LogError) as caught:
        states.check(refused)
    return caught.value.code


def test_a_repeated_batch_finds_its_offsets() -> None:
    states = ProducerStates()
    for number in range(BATCHES_REMEMBERED):
        assert states.check(sent(number * 2, 2)) is None
        states.replay(sent(number * 2, 2), 100 + number * 2)
    for number in range(BATCHES_REMEMBERED):
        first = number * 2
        assert states.check(sent(first, 2)) == ProducerBatch(
            first, first + 1, 100 + first, 101 + first
        )


def test_a_repeat_of_a_forgotten_batch_is_a_duplicate_error() -> None:
    states = ProducerStates()
    for number in range(BATCHES_REMEMBERED + 1):
        states.replay(sent(number), number)
    assert code_of(states, sent(0)) == DUPLICATE_SEQUENCE_NUMBER
    assert states.check(sent(1)) is not None


def test_a_gap_in_sequence_numbers_is_refused() -> None:
    states = ProducerStates()
    states.replay(sent(0, 3), 0)
    assert code_of(states, sent(4)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(sent(3)) is None


def test_a_partly_repeated_batch_is_refused() -> None:
    states = ProducerStates()
    states.replay(sent(0, 3), 0)
    assert code_of(states, sent(2, 3)) == OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequence_numbers_wrap_to_zero() -> None:
    states = ProducerStates()
    states.replay(sent(2**31 - 2, 2), 0)
    assert states.check(sent(0)) is None
    assert code_of(states, sent(1)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    states.replay(sent(0), 2)
    assert states.check(sent(2**31 - 2, 2)) == ProducerBatch(2**31 - 2, 2**31 - 1, 0, 1)
    across = sent(2**31 - 1, 3, producer_id=8)
    states.replay(across, 3)
    assert states.check(across) == ProducerBatch(2**31 - 1, 1, 3, 5)
    assert states.check(sent(2, producer_id=8)) is None


def test_an_old_epoch_is_fenced_and_a_new_one_starts_at_zero() -> None:
    states = ProducerStates()
    states.replay(sent(5, epoch=3), 0)
    assert code_of(states, sent(6, epoch=2)) == INVALID_PRODUCER_EPOCH
    assert code_of(states, sent(6, epoch=4)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(sent(0, epoch=4)) is None
    states.replay(sent(0, epoch=4), 1)
    assert code_of(states, sent(6, epoch=3)) == INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_start_at_any_sequence() -> None:
    assert ProducerStates().check(sent(123)) is None


def test_batches_without_a_producer_id_leave_no_state() -> None:
    states = ProducerStates()
    plain = RecordBatch(batch())
    assert states.check(plain) is None
    states.replay(plain, 0)
    assert len(states) == 0


def test_the_longest_silent_producer_is_evicted_first() -> None:
    states = ProducerStates()
    for producer_id in range(PRODUCERS_MAX):
        states.replay(sent(0, producer_id=producer_id), producer_id)
    states.replay(sent(1, producer_id=0), PRODUCERS_MAX)
    states.replay(sent(0, producer_id=PRODUCERS_MAX), PRODUCERS_MAX + 1)
    assert len(states) == PRODUCERS_MAX
    assert code_of(states, sent(9, producer_id=0)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(sent(9, producer_id=1)) is None


SILENT_MS = 80_000
EIGHTH_MS = SILENT_MS // LOOKS_MAX


def known_after_expiry(states: ProducerStates, end_offset: int, now_ms: int) -> set[int]:
    """Forget silent producers; return the ids of the others."""
    states.forget_silent(end_offset=end_offset, now_ms=now_ms, silent_ms=SILENT_MS)
    return set(dict(states))


def test_only_silent_producers_expire() -> None:
    states = ProducerStates()
    states.replay(sent(0, producer_id=1), 0)
    states.replay(sent(0, producer_id=2), 1)
    states.replay(transactional(0, producer_id=3), 2)
    assert known_after_expiry(states, 3, 0) == {1, 2, 3}
    states.replay(sent(1, producer_id=2), 3)
    assert known_after_expiry(states, 4, SILENT_MS - 1) == {1, 2, 3}
    assert known_after_expiry(states, 4, SILENT_MS) == {2, 3}
    states.replay(marker(COMMIT, producer_id=3), 4)
    assert known_after_expiry(states, 5, 2 * SILENT_MS) == {3}
    assert known_after_expiry(states, 5, 4 * SILENT_MS) == set()
    assert states.check(sent(9, producer_id=2)) is None


histories = st.tuples(st.integers(0, 3), st.integers(0, EIGHTH_MS), st.booleans())


@given(st.lists(histories, min_size=20, max_size=80))
def test_producers_expire_neither_too_early_nor_too_late(life: list[tuple[int, int, bool]]) -> None:
    states = ProducerStates()
    used_ms: dict[int, int] = {}
    now_ms = 0
    for offset, (producer_id, pause_ms, writes) in enumerate(life):
        now_ms += pause_ms
        known = known_after_expiry(states, offset, now_ms)
        for each, at_ms in used_ms.items():
            silent_ms = now_ms - at_ms
            # A use is noted up to two eighths late, and the next check is up to one eighth later.
            assert silent_ms >= SILENT_MS if each not in known else silent_ms < 12 * EIGHTH_MS
        if writes:
            states.replay(sent(0, producer_id=producer_id, epoch=offset), offset)
            used_ms[producer_id] = now_ms


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
def test_a_snapshot_restores_the_producer_states(history: list[tuple[int, int, int]]) -> None:
    states = states_after(history)
    restored = ProducerStates.restore(states.snapshot())
    assert restored.snapshot() == states.snapshot()
    assert len(restored) == len(states)


@given(steps, st.data())
def test_a_damaged_snapshot_raises(
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


# ---- transactions ----


def transactional(
    sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7
) -> RecordBatch:
    records = [(0, b"k", b"v", ())] * count
    return RecordBatch(
        encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


def marker(
    kind: int, *, epoch: int = 0, coordinator_epoch: int = 0, producer_id: int = 7
) -> RecordBatch:
    data = encode_marker(
        Marker(kind, coordinator_epoch),
        (producer_id, epoch),
        timestamp_ms=5,
    )
    return RecordBatch(data)


def marker_code(states: ProducerStates, epoch: int, coordinator_epoch: int) -> int:
    with pytest.raises(LogError) as caught:
        states.check_marker(7, epoch, Marker(ABORT, coordinator_epoch))
    return caught.value.code


def test_a_transaction_lasts_from_its_first_batch_to_its_marker() -> None:
    states = ProducerStates()
    assert states.replay(transactional(0, 2), 10) is None
    assert states.replay(transactional(2), 12) is None
    assert list(states.transactions) == [(7, 10)]
    decided = states.replay(marker(ABORT), 13)
    assert decided == EndedTransaction(7, 10, 13, 14, aborted=True)
    assert states.transactions.first_open_offset is None
    assert states.replay(marker(ABORT), 14) is None


def test_an_ended_transaction_knows_the_next_open_offset() -> None:
    states = ProducerStates()
    states.replay(transactional(0), 0)
    states.replay(transactional(0, producer_id=8), 1)
    assert states.replay(marker(COMMIT, producer_id=8), 2) == EndedTransaction(
        8, 1, 2, 0, aborted=False
    )
    states.replay(transactional(0, producer_id=9), 3)
    assert states.replay(marker(COMMIT), 4) == EndedTransaction(7, 0, 4, 3, aborted=False)


def test_an_unsynced_marker_holds_the_last_stable_offset() -> None:
    transactions = OpenTransactions()
    transactions.begin(7, 3)
    decided = transactions.end(7, 5, aborted=False)
    assert decided is not None
    transactions.hold(decided)
    assert (transactions.first_open_offset, transactions.first_unstable_offset) == (None, 3)
    transactions.begin(8, 6)
    transactions.settle(5)
    assert transactions.first_unstable_offset == 3
    transactions.settle(6)
    assert transactions.first_unstable_offset == 6


def test_plain_data_within_an_open_transaction_is_refused() -> None:
    states = ProducerStates()
    states.replay(transactional(0), 0)
    assert code_of(states, sent(1)) == INVALID_TXN_STATE
    assert states.check(transactional(1)) is None
    states.replay(marker(COMMIT), 1)
    assert states.check(sent(1)) is None


def test_a_marker_with_a_newer_epoch_fences_the_producer() -> None:
    states = ProducerStates()
    states.replay(transactional(4), 0)
    states.replay(marker(ABORT, epoch=1), 1)
    assert code_of(states, transactional(5)) == INVALID_PRODUCER_EPOCH
    assert code_of(states, transactional(5, epoch=1)) == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(transactional(0, epoch=1)) is None
    with pytest.raises(LogError) as caught:
        states.check(transactional(-1), has_sequence=False)
    assert caught.value.code == INVALID_PRODUCER_EPOCH
    assert states.check(transactional(-1, epoch=1), has_sequence=False) is None


def test_a_marker_of_an_older_coordinator_is_fenced() -> None:
    states = ProducerStates()
    states.check_marker(7, 0, Marker(COMMIT, 0))
    states.replay(marker(COMMIT, epoch=2, coordinator_epoch=3), 0)
    assert marker_code(states, 2, 2) == TRANSACTION_COORDINATOR_FENCED
    assert marker_code(states, 1, 3) == INVALID_PRODUCER_EPOCH
    states.check_marker(7, 2, Marker(COMMIT, 3))
    states.replay(transactional(0, epoch=2), 1)
    assert marker_code(states, 2, 2) == TRANSACTION_COORDINATOR_FENCED


def test_a_producer_with_an_open_transaction_is_not_evicted() -> None:
    states = ProducerStates()
    states.replay(transactional(0, producer_id=PRODUCERS_MAX), 0)
    for producer_id in range(PRODUCERS_MAX):
        states.replay(sent(0, producer_id=producer_id), 1 + producer_id)
    assert len(states) == PRODUCERS_MAX
    assert PRODUCERS_MAX in dict(states)
    assert 0 not in dict(states)


def test_coordinator_batches_open_transactions_without_sequences() -> None:
    states = ProducerStates()
    states.replay(transactional(-1), 0)
    states.replay(transactional(-1), 1)
    ((producer_id, known),) = states
    assert (producer_id, known.last_sequence, known.last_offset) == (7, -1, 1)
    assert list(states.transactions) == [(7, 0)]


def test_an_emptied_marker_still_carries_the_epoch() -> None:
    states = ProducerStates()
    empty = RecordBatch(without_records(marker(COMMIT, epoch=4)))
    assert (empty.is_control, empty.record_count) == (True, 0)
    assert states.replay(empty, 0) is None
    assert code_of(states, sent(0, epoch=3)) == INVALID_PRODUCER_EPOCH


txn_steps = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["data", "broker", "abort", "commit", "bump"])),
    max_size=40,
)


@given(history=txn_steps, cut=st.integers(0, 40))
def test_a_snapshot_with_transactions_equals_a_replay(
    history: list[tuple[int, str]], cut: int
) -> None:
    batches = []
    epochs = dict.fromkeys(range(4), 0)
    for producer_id, what in history:
        epoch = epochs[producer_id]
        match what:
            case "data":
                batches.append(transactional(0, producer_id=producer_id, epoch=epoch))
            case "broker":
                batches.append(transactional(-1, producer_id=producer_id, epoch=epoch))
            case "bump":
                epochs[producer_id] = epoch + 1
                batches.append(marker(ABORT, producer_id=producer_id, epoch=epoch + 1))
            case _:
                kind = ABORT if what == "abort" else COMMIT
                batches.append(marker(kind, producer_id=producer_id, epoch=epoch))
    whole, begun = ProducerStates(), ProducerStates()
    expected = [whole.replay(each, offset) for offset, each in enumerate(batches)]
    for offset, each in enumerate(batches[:cut]):
        begun.replay(each, offset)
    again = ProducerStates.restore(begun.snapshot())
    tail = [again.replay(each, cut + number) for number, each in enumerate(batches[cut:])]
    assert tail == expected[cut:]
    assert dict(again) == dict(whole)
    assert list(again.transactions) == list(whole.transactions)
    assert again.snapshot() == whole.snapshot()


def test_a_snapshot_of_an_old_format_raises() -> None:
    data = b"\0\1" + ProducerStates().snapshot()[2:]
    with pytest.raises(CorruptData, match="format"):
        ProducerStates.restore(data)
