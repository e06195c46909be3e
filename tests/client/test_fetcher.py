"""Fetcher: what it asks for while buffers are full, and how long the broker may hold that back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import cast

from streamlog.assignors import TopicPartition
from streamlog.client.background import Background
from streamlog.client.cluster import Cluster
from streamlog.client.fetcher import Fetcher, FetchSettings
from streamlog.client.positions import Positions
from streamlog.clock import SystemClock
from streamlog.protocol.messages.data import FetchRequest, FetchResponse

AT_ITS_END, FULL = TopicPartition("t", 0), TopicPartition("t", 1)


class Questions:
    """A cluster of one broker that has nothing new, and what it was asked."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.requests: list[FetchRequest] = []

    def leader(self, _: TopicPartition) -> int:
        return 0

    def known(self, _: str) -> None:
        return None

    async def call(self, _: int, request: FetchRequest, *__: object, **___: object) -> object:
        self.requests.append(request)
        return FetchResponse()


class Held:
    """A background whose work begins only when the test does it."""

    def __init__(self) -> None:
        self.works: asyncio.Queue[Coroutine[object, object, None]] = asyncio.Queue()

    def start(self, work: Coroutine[object, object, None]) -> None:
        self.works.put_nowait(work)


def test_a_buffer_that_gets_room_while_a_request_is_on_its_way_is_not_waited_for() -> None:
    async def main() -> None:
        cluster, background, positions = Questions(), Held(), Positions()
        settings = FetchSettings()
        positions.assign([AT_ITS_END, FULL])
        for partition in (AT_ITS_END, FULL):
            positions.state(partition).move(0)
        positions.state(FULL).buffered_bytes = settings.max_partition_fetch_bytes
        fetcher = Fetcher(
            cast("Cluster", cluster),
            positions,
            settings,
            cast("Background", background),
            tell=lambda _: None,
        )
        running = asyncio.create_task(fetcher.run())
        first = await background.works.get()
        positions.state(FULL).buffered_bytes = 0  # The owner takes what is there.
        fetcher.look()
        await first
        second = await background.works.get()
        await second
        running.cancel()
        asked = [
            (sorted(each.partition for each in request.topics[0].partitions), request.max_wait_ms)
            for request in cluster.requests
        ]
        assert asked == [([0], 0), ([0, 1], settings.fetch_max_wait_ms)]
        await asyncio.wait([running])

    asyncio.run(main())
