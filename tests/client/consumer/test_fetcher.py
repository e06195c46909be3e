"""Fetcher: its requests while buffers are full, and how long the broker may delay the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from random import Random
from typing import cast

import pytest

from streamlog.client.background_task import Background
from streamlog.client.cluster import Cluster
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import FetchSettings
from streamlog.client.consumer.fetcher import AT_LEADER_MS, ERROR_BACKOFF_MS, Fetcher
from streamlog.client.consumer.offset_reset import OffsetReset
from streamlog.client.consumer.subscription_state import SubscriptionState
from streamlog.client.metrics.consumer_metrics import ConsumerMetrics
from streamlog.client.metrics.network_metrics import NetworkMetrics
from streamlog.client.offset_metadata import NO_EPOCH
from streamlog.clock import Clock, ManualClock, SystemClock
from streamlog.errors import ConnectionLost
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition

AT_ITS_END, FULL = TopicPartition("t", 0), TopicPartition("t", 1)


class RecordingCluster:
    """A cluster of one broker without new records, and the requests that it received."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.requests: list[FetchRequest] = []

    def leader(self, _: TopicPartition) -> int:
        return 0

    def leader_epoch(self, _: TopicPartition) -> int:
        return NO_EPOCH

    def topic_id(self, _: str) -> bytes:
        return ZERO_UUID

    def known(self, _: str) -> None:
        return None

    async def call(self, _: int, request: FetchRequest, *__: object, **___: object) -> object:
        self.requests.append(request)
        return FetchResponse()


class ManualBackground:
    """A background whose tasks start only when the test starts them."""

    def __init__(self) -> None:
        self.works: asyncio.Queue[Coroutine[object, object, None]] = asyncio.Queue()

    def start(self, work: Coroutine[object, object, None]) -> None:
        self.works.put_nowait(work)


def test_a_fetch_does_not_wait_after_a_full_buffer_is_drained() -> None:
    async def main() -> None:
        cluster, background, positions = RecordingCluster(), ManualBackground(), SubscriptionState()
        settings = FetchSettings()
        positions.assign([AT_ITS_END, FULL])
        for partition in (AT_ITS_END, FULL):
            positions.state(partition).move(0)
        positions.state(FULL).buffered_bytes = settings.max_partition_fetch_bytes
        fetcher = Fetcher(
            cast("Cluster", cluster),
            positions,
            OffsetReset(cast("Cluster", cluster), positions, settings),
            settings,
            cast("Background", background),
            metrics=ConsumerMetrics(NetworkMetrics(0)),
            tell=lambda _: None,
        )
        running = asyncio.create_task(fetcher.run())
        first = await background.works.get()
        positions.state(FULL).buffered_bytes = 0  # The application takes the buffered records.
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


LEADER, NEAR = 0, 1
T0 = TopicPartition("t", 0)


class Racks(RecordingCluster):
    """Two brokers, of which the leader names the other as preferred read replica (KIP-392)."""

    def __init__(self) -> None:
        super().__init__()
        self.hands = ManualClock()
        self.clock = self.hands
        self.asked_brokers: list[tuple[int, str]] = []
        self.error_code = 0
        self.is_reached = True

    def knows(self, node_id: int) -> bool:
        return node_id in (LEADER, NEAR)

    def forget(self, topics: object) -> None:
        """Do nothing: the topics would be looked up."""

    async def refresh(self, _: object) -> None:
        """Do nothing: no metadata has changed."""

    async def call(self, node_id: int, request: FetchRequest, *_: object, **__: object) -> object:
        self.asked_brokers.append((node_id, request.rack_id))
        if node_id == NEAR and not self.is_reached:
            raise ConnectionLost("it is not there")
        data = PartitionData(partition_index=0, high_watermark=5, records=b"")
        if node_id == NEAR:
            data.error_code = self.error_code
        elif request.rack_id:
            data.preferred_read_replica = NEAR
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def rounds(cluster: Racks, *turns: Callable[[], object]) -> list[tuple[int, str]]:
    """Return which broker a reader in rack `r` asks, and the rack it sends, after each turn."""

    async def main() -> None:
        positions, background = SubscriptionState(), ManualBackground()
        positions.assign([T0])
        positions.state(T0).move(5)
        notices: list[object] = []
        settings = FetchSettings(client_rack="r", metadata_max_age_ms=60_000)
        fetcher = Fetcher(
            cast("Cluster", cluster),
            positions,
            OffsetReset(cast("Cluster", cluster), positions, settings),
            settings,
            cast("Background", background),
            metrics=ConsumerMetrics(NetworkMetrics(0)),
            tell=notices.append,
        )
        running = asyncio.create_task(fetcher.run())
        for turn in (lambda: None, *turns):
            turn()
            fetcher.look()
            await (await background.works.get())
        running.cancel()
        await asyncio.wait([running])
        assert notices == []
        assert positions.state(T0).position == 5

    asyncio.run(main())
    return cluster.asked_brokers


def test_a_reader_follows_the_preferred_replica_and_asks_the_leader_again() -> None:
    cluster = Racks()

    def later() -> None:
        cluster.hands.advance(60_000)

    assert rounds(cluster, int, int, later, int) == [
        (LEADER, "r"),
        (NEAR, "r"),
        (NEAR, "r"),
        (LEADER, "r"),
        (NEAR, "r"),
    ]


@pytest.mark.parametrize(
    "code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE, None]
)
def test_a_failing_preferred_replica_is_avoided_for_a_while(code: int | None) -> None:
    cluster = Racks()

    def fail() -> None:
        cluster.is_reached, cluster.error_code = code is not None, code or 0

    def heal() -> None:
        cluster.is_reached, cluster.error_code = True, 0
        cluster.hands.advance(AT_LEADER_MS)

    def wait() -> None:
        cluster.hands.advance(ERROR_BACKOFF_MS)

    assert rounds(cluster, fail, wait, int, heal, int) == [
        (LEADER, "r"),
        (NEAR, "r"),
        (LEADER, ""),
        (LEADER, ""),
        (LEADER, "r"),
        (NEAR, "r"),
    ]


LONG_MS = 60_000
"""A wait at the broker that no test survives."""
OpenLog = Callable[..., AbstractAsyncContextManager[Log]]


async def held_back(log: Log, stack: AsyncExitStack, *parts: TopicPartition) -> Consumer:
    """Return a consumer at the ends of these partitions, whose fetch the broker holds back."""
    consumer = await stack.enter_async_context(
        log.consumer(fetch_max_wait_ms=LONG_MS, auto_offset_reset="earliest")
    )
    consumer.assign(parts)
    # The answer to the first fetch is the record; the second one finds nothing, and waits.
    while {part: consumer.positions().get(part) for part in parts} != dict.fromkeys(parts, 1):
        await consumer.poll(timeout_ms=100)
    assert await consumer.poll(timeout_ms=50) == {}
    return consumer


def test_partitions_that_are_added_or_moved_do_not_wait_for_a_fetch_that_is_held_back(
    open_log: OpenLog,
) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(open_log(t=2))
            producer = await stack.enter_async_context(log.producer())
            for number in (0, 1):
                await producer.send("t", partition=number, value=b"a")
            t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
            consumer = await held_back(log, stack, t0)
            async with asyncio.timeout(LONG_MS / 2000):
                consumer.assign([t0, t1])
                assert [*await consumer.poll(timeout_ms=LONG_MS)] == [t1]
                consumer.seek(t0, 0)
                assert [*await consumer.poll(timeout_ms=LONG_MS)] == [t0]
                # The request that is held back has ended neither by this nor by that.
                for number in (0, 1):
                    await producer.send("t", partition=number, value=b"b")
                found: list[TopicPartition] = []
                while len(found) < 2:
                    found += await consumer.poll(timeout_ms=LONG_MS)
                assert sorted(found) == [t0, t1]

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_random_moves_during_a_long_poll_lose_and_repeat_no_record(
    open_log: OpenLog, seed: int
) -> None:
    async def main() -> None:
        chance = Random(seed)
        parts = [TopicPartition("t", number) for number in range(3)]
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(open_log(t=3))
            producer = await stack.enter_async_context(log.producer())
            for part in parts:
                await producer.send("t", partition=part.partition, value=b"0")
            consumer = await held_back(log, stack, *parts)
            ends, at = dict.fromkeys(parts, 1), dict.fromkeys(parts, 1)
            async with asyncio.timeout(LONG_MS / 2000):
                for _ in range(40):
                    part = chance.choice(parts)
                    match chance.randrange(3):
                        case 0:
                            await producer.send(
                                "t", partition=part.partition, value=b"%d" % ends[part]
                            )
                            ends[part] += 1
                        case 1:
                            at[part] = chance.randrange(ends[part] + 1)
                            consumer.seek(part, at[part])
                        case _:
                            consumer.assign(set(parts) - {part})
                            consumer.assign(parts)
                            at[part] = 0
                    if chance.random() < 0.5:
                        await asyncio.sleep(0)
                        continue
                    while at != ends:
                        for polled, records in (await consumer.poll(timeout_ms=LONG_MS)).items():
                            values = [int(record.value or b"") for record in records]
                            assert values == [*range(at[polled], at[polled] + len(values))]
                            at[polled] += len(values)

    asyncio.run(main())
