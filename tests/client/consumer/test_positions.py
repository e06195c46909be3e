"""SubscriptionState: records come out once and in order, from the requested position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.consumer.subscription_state import SubscriptionState
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import CorruptData, UsageError
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord, encode_batch, set_offset_and_epoch
from streamlog.records.control_batches import AbortedRange

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(base_offset: int, count: int, epoch: int = 0) -> bytes:
    data = bytearray(encode_batch([(base_offset + n, None, b"v", ()) for n in range(count)]))
    set_offset_and_epoch(data, base_offset, epoch)
    return bytes(data)


def positions(*partitions: TopicPartition, at: int = 0) -> SubscriptionState:
    one = SubscriptionState()
    one.assign(partitions)
    for partition in partitions:
        one.state(partition).move(at)
    return one


def put(one: SubscriptionState, partition: TopicPartition, data: bytes) -> int:
    return one.put(partition, one.state(partition).era, data)


def offsets(
    one: SubscriptionState, partition: TopicPartition, records_max: int | None = None
) -> list[int]:
    return [record.offset for record in one.take(records_max).get(partition, [])]


def test_records_before_the_position_are_skipped() -> None:
    one = positions(T0, at=3)
    put(one, T0, batch(0, 5) + batch(5, 2))
    assert offsets(one, T0) == [3, 4, 5, 6]
    assert one.consumed() == {T0: 7}


def test_records_beyond_the_limit_are_returned_next() -> None:
    one = positions(T0)
    put(one, T0, batch(0, 5) + batch(5, 5))
    assert offsets(one, T0, 3) == [0, 1, 2]
    assert one.consumed() == {T0: 3}
    assert offsets(one, T0, 4) == [3, 4, 5, 6]
    assert offsets(one, T0, 4) == [7, 8, 9]
    assert one.consumed() == {T0: 10}


def test_a_position_has_the_epoch_of_the_previous_record() -> None:
    one = positions(T0)
    put(one, T0, batch(0, 5, epoch=3) + batch(5, 5, epoch=4))
    state = one.state(T0)
    assert (state.leader_epoch, state.fetched_epoch) == (-1, 4)
    assert offsets(one, T0, 5) == [0, 1, 2, 3, 4]
    assert one.offsets_and_metadata() == {T0: OffsetAndMetadata(5, leader_epoch=3)}
    state.move(2, leader_epoch=3)
    assert (state.leader_epoch, state.fetched_epoch) == (3, 3)


@pytest.mark.parametrize(("cut_at", "resumes_at", "epoch"), [(8, 5, 3), (5, 5, 3), (4, 4, 2)])
def test_records_fetched_beyond_a_truncation_are_dropped(
    cut_at: int, resumes_at: int, epoch: int
) -> None:
    one = positions(T0)
    put(one, T0, batch(0, 5, epoch=3) + batch(5, 5, epoch=4))
    assert offsets(one, T0, 5) == [0, 1, 2, 3, 4]
    state = one.state(T0)
    state.cut(OffsetAndMetadata(cut_at, leader_epoch=2))
    assert not one.has_records()
    assert (state.position, state.fetch_offset) == (resumes_at, resumes_at)
    assert (state.leader_epoch, state.fetched_epoch) == (epoch, epoch)


def test_held_partitions_are_released_together() -> None:
    one = positions(T0, T1)
    one.hold([T1])
    assert [state.is_held for _, state in one.items()] == [False, True]
    one.let_go()
    assert not any(state.is_held for _, state in one.items())


def test_partitions_take_turns_under_a_record_limit() -> None:
    one = positions(T0, T1)
    put(one, T0, batch(0, 5))
    put(one, T1, batch(0, 5))
    assert list(one.take(3)) == [T0]
    assert list(one.take(3)) == [T1]
    assert list(one.take(3)) == [T0, T1]


def test_a_paused_partition_keeps_its_buffer() -> None:
    one = positions(T0)
    put(one, T0, batch(0, 2))
    one.state(T0).paused = True
    assert one.take(None) == {}
    assert not one.has_records()
    one.state(T0).paused = False
    assert offsets(one, T0) == [0, 1]


def test_an_answer_to_an_outdated_fetch_is_dropped() -> None:
    one = positions(T0)
    era = one.state(T0).era
    one.state(T0).move(7)
    assert one.put(T0, era, batch(0, 5)) == 0
    one.assign([T1])
    assert one.put(T0, era + 1, batch(7, 1)) == 0
    assert one.take(None) == {}


def test_a_batch_that_arrives_twice_is_buffered_once() -> None:
    one = positions(T0)
    put(one, T0, batch(0, 5))
    assert put(one, T0, batch(0, 5)) == 0
    assert offsets(one, T0) == [0, 1, 2, 3, 4]


def test_a_partition_that_stays_assigned_keeps_its_position() -> None:
    one = positions(T0, at=4)
    one.assign([T1, T0])
    assert one.consumed() == {T0: 4}
    assert one.assigned() == {T0, T1}


def test_a_damaged_batch_raises_after_all_earlier_records() -> None:
    one = positions(T0, T1)
    damaged = bytearray(batch(2, 2))
    damaged[-1] ^= 1
    put(one, T0, batch(0, 2) + bytes(damaged))
    put(one, T1, batch(0, 1))
    assert {part: len(records) for part, records in one.take(None).items()} == {T0: 2, T1: 1}
    for _ in range(2):
        with pytest.raises(CorruptData, match="t-0 at offset 2"):
            one.take(None)
    one.state(T0).move(4)
    put(one, T0, batch(4, 1))
    assert offsets(one, T0) == [4]


def test_the_state_of_an_unassigned_partition_raises_an_error() -> None:
    with pytest.raises(UsageError, match="t-1 is not assigned"):
        positions(T0).state(T1)


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    limits=st.lists(st.integers(1, 9), min_size=1),
    start=st.integers(0, 10),
    cuts=st.integers(1, 5),
)
def test_no_record_is_lost_or_repeated_by_any_fetch_and_take(
    sizes: list[int], limits: list[int], start: int, cuts: int
) -> None:
    bases = [sum(sizes[:n]) for n in range(len(sizes))]
    end = sum(sizes)
    one = positions(T0, at=min(start, end))
    batches = [batch(base, size) for base, size in zip(bases, sizes, strict=True)]
    taken: list[int] = []
    for first in range(0, len(batches), cuts):
        put(one, T0, b"".join(batches[first : first + cuts]))
        taken += offsets(one, T0, limits[first % len(limits)])
    while one.has_records():
        taken += offsets(one, T0, limits[len(taken) % len(limits)])
    assert taken == list(range(min(start, end), end))
    assert one.consumed() == {T0: end}
    assert one.state(T0).buffered_bytes == 0


def test_an_answer_from_before_a_rebalance_is_dropped() -> None:
    """The partition is revoked, assigned again and moved as often: the late answer does not fit."""
    one = positions(T0, at=0)
    put(one, T0, batch(0, 5))
    era = one.state(T0).era
    one.assign(())
    one.assign([T0])
    one.state(T0).move(0)
    assert one.put(T0, era, batch(5, 5)) == 0
    put(one, T0, batch(0, 10))
    assert offsets(one, T0) == list(range(10))


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    at=st.integers(0, 6),
    takes=st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=12),
)
def test_columns_and_records_can_be_taken_in_turn(
    sizes: list[int], at: int, takes: list[tuple[bool, int]]
) -> None:
    one = positions(T0, at=at)
    for number, size in enumerate(sizes):
        put(one, T0, batch(sum(sizes[:number]), size))
    taken: list[LogRecord] = []
    for as_columns, records_max in [*takes, (True, 100), (False, 100)]:
        found = one.take_columns(records_max) if as_columns else one.take(records_max)
        taken += found.get(T0, ())
        assert one.consumed() == {T0: max([at, *(record.offset + 1 for record in taken)])}
    assert [record.offset for record in taken] == list(range(at, sum(sizes)))
    assert all(record.value == b"v" for record in taken)


def test_take_batches_returns_only_whole_visible_batches() -> None:
    one = positions(T0, at=3)
    state = one.state(T0)
    data = bytearray(encode_batch([(5, None, b"v", ())], producer_id=7, transactional=True))
    set_offset_and_epoch(data, 5, 0)
    one.put(T0, state.era, batch(0, 5) + bytes(data) + batch(6, 2), [AbortedRange(7, 5)])
    taken = one.take_batches()
    assert [(each.base_offset, each.record_count) for each in taken[T0]] == [(0, 5), (6, 2)]
    assert one.consumed() == {T0: 8}
    assert one.take_batches() == {}


def test_batches_before_a_damaged_one_are_returned() -> None:
    one = positions(T0)
    damaged = bytearray(batch(5, 1))
    damaged[-1] ^= 0xFF
    put(one, T0, batch(0, 5) + bytes(damaged))
    assert [each.base_offset for each in one.take_batches()[T0]] == [0]
    with pytest.raises(CorruptData, match="t-0 at offset 5"):
        one.take_batches()
