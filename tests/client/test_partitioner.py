"""Partitioner: Kafka's own vectors, librdkafka's answers, and turning after a full batch."""

from __future__ import annotations

import pytest

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


def test_without_a_key_the_partition_changes_when_its_batch_is_full() -> None:
    sticky = StickyPartitions()
    assert [sticky.current("t", 3) for _ in range(4)] == [0, 0, 0, 0]
    sticky.turn("t", 2, 3)
    assert sticky.current("t", 3) == 0
    seen = []
    for _ in range(4):
        sticky.turn("t", sticky.current("t", 3), 3)
        seen.append(sticky.current("t", 3))
    assert seen == [1, 2, 0, 1]
