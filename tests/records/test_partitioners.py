"""Partitioners agree with other clients; the expected values are librdkafka's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.records.murmur2 import partitions_of_keys
from streamlog.records.partitioners import (
    PARTITIONERS,
    Partitioner,
    fnv1a,
    matching_partitioners,
    partition_by,
    partitioner_name,
    partitions_by,
)


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (b"kafka", 0xD33C4E1),
        (b"giberish123456789", 0x77A58295),
        (b"1234", 0x23BDD03),
        (b"234", 0x2DEA3CD2),
        (b"34", 0x740FA83E),
        (b"4", 0x310CA263),
        (b"", 0x7EE3623B),
    ],
)
def test_fnv1a_equals_librdkafkas_test_values(key: bytes, number: int) -> None:
    assert fnv1a(key) == number


@pytest.mark.parametrize("partitioner", [*PARTITIONERS, lambda key, count: len(key) % count])
@given(st.lists(st.binary(max_size=12), max_size=8), st.integers(1, 50), st.integers(0, 4))
def test_partitioning_many_keys_equals_partitioning_each(
    partitioner: Partitioner, keys: list[bytes], count: int, tail_bytes: int
) -> None:
    each = [partition_by(partitioner, k[: max(len(k) - tail_bytes, 0)], count) for k in keys]
    assert partitions_by(partitioner, keys, count, tail_bytes) == each
    assert all(0 <= partition < count for partition in each)
    if partitioner == "murmur2":
        assert each == partitions_of_keys(keys, count, tail_bytes)


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_the_partitioner_of_a_topic_is_recognized(partitioner: Partitioner) -> None:
    keys = [b"user-%d" % number for number in range(200)]
    partitioned = [(key, partition_by(partitioner, key, 7)) for key in keys]
    fits = matching_partitioners([*partitioned, (b"", 3)], 7)
    assert [name for name, count in fits.items() if count == len(keys)] == [partitioner]
    assert max(count for name, count in fits.items() if name != partitioner) < len(keys) / 2


def test_partitioner_names_are_readable() -> None:
    assert partitioner_name("crc32") == "crc32"
    assert partitioner_name(len) == "the function len"  # type: ignore[arg-type]
