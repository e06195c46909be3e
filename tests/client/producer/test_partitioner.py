"""Partitioners: Kafka's own test vectors, and the sticky choice for records without a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.producer.open_batches import OpenBatch, StickyPartitions
from streamlog.random_source import Random
from streamlog.records.murmur2 import murmur2, partition_of_key

# From Kafka's UtilsTest, which has signed values.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), VECTORS.items())
def test_murmur2_matches_kafka(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_keys_reach_every_partition() -> None:
    found = {partition_of_key(str(number).encode(), 7) for number in range(200)}
    assert found == set(range(7))


def chosen(sticky: StickyPartitions, topic: str, count: int, *, sent: bool) -> int:
    """Return the partition of a record that begins a batch; `sent`: that batch closes at once."""
    found = sticky.choose(topic, count)
    batch = OpenBatch()
    batch.closed = sent
    sticky.begin(topic, batch)
    return found


def test_a_keyless_partition_changes_when_its_batch_is_full() -> None:
    sticky = StickyPartitions(Random(1))
    first = chosen(sticky, "t", 3, sent=False)
    assert {chosen(sticky, "t", 3, sent=False) for _ in range(4)} == {first}
    sticky.turn("t", (first + 1) % 3, 3)
    assert chosen(sticky, "t", 3, sent=False) == first
    seen = []
    for _ in range(4):
        sticky.turn("t", chosen(sticky, "t", 3, sent=False), 3)
        seen.append((chosen(sticky, "t", 3, sent=False) - first) % 3)
    assert seen == [1, 2, 0, 1]


def test_a_keyless_partition_changes_when_its_batch_is_sent() -> None:
    sticky = StickyPartitions(Random(1))
    first = chosen(sticky, "t", 3, sent=True)
    assert [(chosen(sticky, "t", 3, sent=True) - first) % 3 for _ in range(4)] == [1, 2, 0, 1]


def test_the_first_keyless_partition_is_random_and_seeded() -> None:
    first_choices = [StickyPartitions(Random(seed)).choose("t", 6) for seed in range(100)]
    assert set(first_choices) == set(range(6))
    assert first_choices == [StickyPartitions(Random(seed)).choose("t", 6) for seed in range(100)]
    sticky = StickyPartitions(Random(1))
    assert {chosen(sticky, str(number), 6, sent=True) for number in range(100)} == set(range(6))


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.booleans())))
def test_the_chosen_partition_always_exists(seed: int, steps: list[tuple[int, bool, bool]]) -> None:
    sticky = StickyPartitions(Random(seed))
    for count, is_open, is_full in steps:
        found = chosen(sticky, "t", count, sent=not is_open)
        assert 0 <= found < count
        if is_full:
            sticky.turn("t", found, count)
