from __future__ import annotations

import pytest

from streamlog.records.murmur2 import murmur2, partition_of_key, partitions_of_keys


@pytest.mark.parametrize(
    ("key", "hashed"),
    # From the tests of Kafka's own Utils.murmur2.
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_kafkas(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


def test_partitions_of_keys_equal_those_of_each_key() -> None:
    keys = [str(number).encode() for number in range(500)]
    assert partitions_of_keys(keys, 7) == [(murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert partitions_of_keys(keys, 7) == [partition_of_key(key, 7) for key in keys]
    assert set(partitions_of_keys(keys, 1)) == {0}
    assert partitions_of_keys(keys, 7, 2) == partitions_of_keys([key[:-2] for key in keys], 7)
