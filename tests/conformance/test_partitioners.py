"""Keys that librdkafka writes lie where our partitioner of that name looks for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Producer

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.partitioners import Partitioner, partition_by

COUNT = 5
KEYS = [*(b"u%d" % number for number in range(100)), bytes(range(256)), "ü€".encode()]
PATIENCE_MS = 60_000


def write(address: str, partitioner: str) -> None:
    producer = Producer({"bootstrap.servers": address, "partitioner": partitioner})
    for key in KEYS:
        producer.produce("users", key=key, value=b"v")
    assert producer.flush(60) == 0


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("consistent_random", "crc32"),
        ("consistent", "crc32"),
        ("murmur2_random", "murmur2"),
        ("murmur2", "murmur2"),
        ("fnv1a_random", "fnv1a"),
        ("fnv1a", "fnv1a"),
    ],
)
def test_librdkafkas_keys_lie_where_our_partitioner_looks(
    tmp_path: Path, theirs: str, ours: Partitioner
) -> None:
    async def main() -> dict[bytes, int]:
        async with Log.open(f"embedded:{tmp_path}") as log:
            await log.admin().create_topics([NewTopic("users", COUNT)])
            assert log.address is not None
            await asyncio.to_thread(write, "{}:{}".format(*log.address), theirs)
            parts = [TopicPartition("users", number) for number in range(COUNT)]
            found: dict[bytes, int] = {}
            async with log.consumer(auto_offset_reset="earliest") as consumer:
                consumer.assign(parts)
                while len(found) < len(KEYS):
                    for part, records in (await consumer.poll(timeout_ms=PATIENCE_MS)).items():
                        found |= {each.key or b"": part.partition for each in records}
            return found

    assert asyncio.run(main()) == {key: partition_by(ours, key, COUNT) for key in KEYS}
