"""Two brokers' logs are compared; where they part was chosen by the test."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.compression import Compression
from tests.broker.mirroring.test_mirrors import serving
from tests.broker.node import batch, create, produce

AT = TopicPartition("t", 0)


async def fill(broker: Broker, batches: list[tuple[list[bytes], Compression]]) -> None:
    create(broker, "t")
    for values, codec in batches:
        assert not (await produce(broker, batch(*values, codec=codec))).error_code


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_first_different_offset_is_found(seed: int, is_compacted: bool) -> None:
    random = Random(seed)
    ours = [
        ([random.randbytes(random.randrange(300)) for _ in range(random.randrange(1, 6))], codec)
        for codec in random.choices([*Compression], k=30)
    ]
    # The difference is one record, in a batch that has the same offsets on both sides.
    chosen = random.randrange(len(ours))
    values, codec = ours[chosen]
    place = random.randrange(len(values))
    other = [*values[:place], values[place] + b"!", *values[place + 1 :]]
    theirs = [*ours[:chosen], (other, codec), *ours[chosen + 1 :]]
    parts_at = sum(len(each) for each, _ in ours[:chosen]) + place

    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (one, address),
            serving(MemoryFiles()) as (two, other_address),
            serving(MemoryFiles()) as (three, third_address),
        ):
            await fill(one, ours)
            await fill(two, theirs)
            await fill(three, ours[:20])
            async with (
                Log.open(f"kafka://{address}") as mine,
                Log.open(f"kafka://{other_address}") as its,
                Log.open(f"kafka://{third_address}") as shorter,
            ):
                reached: list[int] = []
                found = await mine.admin().compare_mirror(
                    AT, its.admin(), "t", is_compacted=is_compacted, on_progress=reached.append
                )
                assert (found.start, found.parts_at) == (0, parts_at)
                assert all(each <= parts_at for each in reached)
                found = await mine.admin().compare_mirror(
                    AT, shorter.admin(), "t", is_compacted=is_compacted, on_progress=reached.append
                )
                assert found.parts_at is None
                assert found.end == sum(len(each) for each, _ in ours[:20])
                assert reached[-1] == found.end

    asyncio.run(story())
