"""LinkReader asks where a partition of its source starts and ends."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.mirroring.link_reader import LinkReader
from streamlog.broker.mirroring.mirror_copy import MirrorCopy
from streamlog.broker.mirroring.source_cluster import SourceCluster, addresses_of
from streamlog.broker.mirroring.source_fetcher import FetchSizes
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.clock import SystemClock
from streamlog.errors import CorruptData, UnknownTopicOrPartition
from tests.broker.mirroring.test_mirrors import link, mirror, serving, until
from tests.broker.node import batch, create, delete, produce

SIZES = FetchSizes(
    partition_max_bytes=1_000, response_max_bytes=1_000, max_wait_ms=100, timeout_ms=10_000
)


async def unused(*_: object) -> None:
    raise AssertionError


def reader_of(source: SourceCluster) -> LinkReader:
    return LinkReader(
        "east",
        source,
        clock=SystemClock(),
        begin_epoch=unused,
        stop=unused,
        keep=unused,
        sizes=SIZES,
        bytes_per_s=0,
    )


def test_only_the_topic_that_is_mirrored_tells_where_a_partition_ends() -> None:
    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (source, address),
            serving(MemoryFiles()) as (target, _),
        ):
            create(source)
            await produce(source, batch(b"1", b"2"))
            await mirror(target, await link(target, address, source), source)
            await until(lambda: len(target._mirrors.copies()) == 1)
            (copy,) = target._mirrors.copies()
            cluster = SourceCluster(
                addresses_of(address), cluster_id="", security=None, client_id="reader"
            )
            await cluster.refresh(["t"])
            assert await ends(cluster, copy) == (0, 2)
            # The reader's metadata is that of the deleted topic from now on.
            delete(source, "t")
            with pytest.raises(UnknownTopicOrPartition, match="t-0 starts and ends"):
                await ends(cluster, copy)
            create(source)
            await produce(source, batch(b"another"))
            with pytest.raises(CorruptData, match="was deleted, or created again"):
                await ends(cluster, copy)
            await cluster.close()

    asyncio.run(story())


async def ends(cluster: SourceCluster, copy: MirrorCopy) -> tuple[int, int]:
    return await reader_of(cluster)._find_ends(copy)
