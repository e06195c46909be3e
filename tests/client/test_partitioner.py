"""Partitioner: Kafka's own vectors, librdkafka's answers, and whose turn it is without a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.chance import Random
from streamlog.client.partitioner import StickyPartitions, murmur2, partition_of_key

# From Kafka's UtilsTest; signed there.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), VECTORS.items())
def test_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_every_key_has_a_partition() -> None:
    found = {partition_of_key(str(number).encode(), 7) for number in range(200)}
    assert found == set(range(7))


def full(_topic: str, _partition: int) -> bool:
    """A batch that takes records until it is full."""
    return True


def sent(_topic: str, _partition: int) -> bool:
    """Every record has been sent before the next one comes."""
    return False


def test_without_a_key_the_partition_changes_when_its_batch_is_full() -> None:
    sticky = StickyPartitions(Random(1))
    first = sticky.choose("t", 3, full)
    assert {sticky.choose("t", 3, full) for _ in range(4)} == {first}
    sticky.turn("t", (first + 1) % 3, 3)
    assert sticky.choose("t", 3, full) == first
    seen = []
    for _ in range(4):
        sticky.turn("t", sticky.choose("t", 3, full), 3)
        seen.append((sticky.choose("t", 3, full) - first) % 3)
    assert seen == [1, 2, 0, 1]


def test_without_a_key_the_partition_changes_when_its_batch_has_been_sent() -> None:
    sticky = StickyPartitions(Random(1))
    first = sticky.choose("t", 3, sent)
    assert [(sticky.choose("t", 3, sent) - first) % 3 for _ in range(4)] == [1, 2, 0, 1]


def test_the_first_partition_of_a_topic_is_drawn() -> None:
    begun = [StickyPartitions(Random(seed)).choose("t", 6, sent) for seed in range(100)]
    assert set(begun) == set(range(6))
    assert begun == [StickyPartitions(Random(seed)).choose("t", 6, sent) for seed in range(100)]
    sticky = StickyPartitions(Random(1))
    assert {sticky.choose(str(number), 6, sent) for number in range(100)} == set(range(6))


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.booleans())))
def test_a_partition_is_always_one_of_those_there_are(
    seed: int, steps: list[tuple[int, bool, bool]]
) -> None:
    sticky = StickyPartitions(Random(seed))
    for count, is_open, is_full in steps:
        chosen = sticky.choose("t", count, lambda *_, is_open=is_open: is_open)  # type: ignore[misc]
        assert 0 <= chosen < count
        if is_full:
            sticky.turn("t", chosen, count)
