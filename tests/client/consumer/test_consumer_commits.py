"""Commits: their order, their metadata, and what happens to commits in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_commits import ORDERS_MAX
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import ConfigError, RebalanceInProgress, StreamlogError, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def stored(log: Log, *partitions: TopicPartition) -> list[int | None]:
    async with log.consumer(group_id="g") as consumer:
        return list((await consumer.committed(partitions)).values())


def test_awaited_and_background_commits_keep_their_order(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.consumer(group_id="g") as consumer:
            finished: list[int] = []
            for number in range(1, 30):
                soon = consumer.commit_soon({T0: number})
                soon.add_done_callback(lambda _, number=number: finished.append(number))
            await consumer.commit({T0: 30})
            assert finished == list(range(1, 30))
            assert await stored(log, T0) == [30]

    asyncio.run(main())


def test_closing_waits_for_commits_in_flight(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            async with log.consumer(group_id="g") as consumer:
                first, second = consumer.commit_soon({T0: 7}), consumer.commit_soon({T1: 8})
            assert (first.done(), second.done()) == (True, True)
            assert await stored(log, T0, T1) == [7, 8]
            with pytest.raises(UsageError, match="not open"):
                consumer.commit_soon({T0: 9})
            with pytest.raises(UsageError, match="not open"):
                await consumer.commit({T0: 9})

    asyncio.run(main())


def test_a_cancelled_commit_is_not_sent(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log, log.consumer(group_id="g") as consumer:
            consumer.commit_soon({T0: 1})
            consumer.commit_soon({T0: 2}).cancel()
            await consumer.commit({T1: 3})
            assert await stored(log, T0) == [1]

    asyncio.run(main())


def test_the_number_of_waiting_commits_is_bounded(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.consumer(group_id="g") as consumer:
            for number in range(ORDERS_MAX):
                last = consumer.commit_soon({T0: number})
            with pytest.raises(UsageError, match="commit less often"):
                consumer.commit_soon({T0: ORDERS_MAX})
            await last
            await consumer.commit_soon({T0: ORDERS_MAX})
            assert await stored(log, T0) == [ORDERS_MAX]

    asyncio.run(main())


def test_every_commit_of_a_failing_block_is_resolved(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            commits: list[asyncio.Future[None]] = []

            async def fail() -> None:
                async with log.consumer(group_id="g") as consumer:
                    commits.extend(consumer.commit_soon({T0: number}) for number in range(20))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            results = await asyncio.gather(*commits, return_exceptions=True)
            assert all(each is None or isinstance(each, UsageError) for each in results)
            assert isinstance(results[-1], UsageError)

    asyncio.run(main())


def test_committed_metadata_and_leader_epoch_are_returned(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            async with log.producer() as producer:
                for number in range(5):
                    await producer.send("t", b"%d" % number, partition=0)
            options = {"group_id": "g", "auto_offset_reset": "earliest"}
            async with log.consumer(**options) as consumer:  # type: ignore[arg-type]
                consumer.assign([T0])
                while consumer.positions().get(T0) != 5:
                    await consumer.poll(timeout_ms=1_000)
                await consumer.commit()
                await consumer.commit({T1: OffsetAndMetadata(0, "unread")})
                found = await consumer.committed_metadata([T0, T1])
                read, unread = found[T0], found[T1]
                assert read is not None
                # The leader epoch of the previous record; it reveals a truncated log.
                assert (read.offset, read.metadata, read.leader_epoch) == (5, "", 0)
                assert unread == OffsetAndMetadata(0, "unread", -1)
                consumer.seek(T0, OffsetAndMetadata(2, leader_epoch=0))
                polled = await consumer.poll(timeout_ms=60_000)
                assert polled[T0][0].offset == 2

    asyncio.run(main())


def test_records_of_lost_partitions_are_not_committed_after_a_rebalance(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            options = {"group_id": "g", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 50}
            async with log.consumer(**options) as consumer:  # type: ignore[arg-type]
                await consumer.subscribe(["t"])
                await polled_until(consumer, lambda: consumer.assignment() == {T0})
                assert consumer._group is not None
                assert consumer._group.member is not None
                late = consumer._group.member.generation_id - 1
                with pytest.raises(RebalanceInProgress, match="were assigned to other members"):
                    await consumer._group.commit({T1: OffsetAndMetadata(1)}, late)
                # The member has kept that partition.
                await consumer._group.commit({T0: OffsetAndMetadata(1)}, late)

    asyncio.run(main())


async def polled_until(consumer: Consumer, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await consumer.poll(timeout_ms=20)


def test_a_failed_background_commit_raises_when_awaited(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.consumer(group_id="g") as consumer:
            await consumer.subscribe(["t"])
            refused = consumer.commit_soon({T0: 1})
            with pytest.raises(StreamlogError):
                await refused
        async with open_log() as log, log.consumer() as consumer:
            with pytest.raises(ConfigError, match="set group_id"):
                consumer.commit_soon({T0: 1})

    asyncio.run(main())
