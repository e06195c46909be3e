"""Control of a consumer: wake-up, closing in time, unsubscribing, and lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.client.consumer import Consumer
from streamlog.errors import UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
QUICK = {"group_id": "g", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 50}


async def write(log: Log, count: int, *, partition: int = 0) -> None:
    async with log.producer() as producer:
        await producer.send_batch("t", partition, [(n, None, b"%d" % n, ()) for n in range(count)])


async def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> None:
    async with asyncio.timeout(60):
        while not condition():
            for consumer in consumers:
                await consumer.poll(timeout_ms=20)


def test_wakeup_ends_the_running_or_next_poll(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.consumer() as consumer, asyncio.timeout(60):
            consumer.assign([T0])
            async with asyncio.TaskGroup() as work:
                polling = work.create_task(consumer.poll(timeout_ms=3_600_000))
                await asyncio.sleep(0)
                consumer.wakeup()
            assert polling.result() == {}
            consumer.wakeup()
            assert await consumer.poll(timeout_ms=3_600_000) == {}
            assert await consumer.position(T0) == 0
            await write(log, 1)
            assert await consumer.poll(timeout_ms=60_000)

    asyncio.run(main())


def test_closing_does_not_wait_forever_for_a_callback(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, asyncio.timeout(60):
            revoked: list[frozenset[TopicPartition]] = []

            async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
                revoked.append(partitions)
                await asyncio.Event().wait()

            consumer = log.consumer(**QUICK)  # type: ignore[arg-type]
            async with consumer:
                await consumer.subscribe(["t"], on_revoked=on_revoked)
                await poll_until(lambda: consumer.assignment() == {T0}, consumer)
                await consumer.close(timeout_ms=50)
            assert revoked == [{T0}]
            async with log.consumer(**QUICK) as other:  # type: ignore[arg-type]
                # It has left the group, so no other member waits for its session to end.
                await other.subscribe(["t"])
                await poll_until(lambda: other.assignment() == {T0}, other)

    asyncio.run(main())


def test_a_timeout_error_of_the_callback_is_raised(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:

            async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
                raise TimeoutError(partitions)

            async with log.consumer(**QUICK) as consumer:  # type: ignore[arg-type]
                await consumer.subscribe(["t"], on_revoked=on_revoked)
                await poll_until(lambda: consumer.assignment() == {T0}, consumer)
                with pytest.raises(TimeoutError):
                    await consumer.close(timeout_ms=60_000)

    asyncio.run(main())


def test_an_unsubscribed_consumer_can_read_anything(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            await write(log, 3)
            trace: list[str] = []

            async def on_assigned(partitions: frozenset[TopicPartition]) -> None:
                trace.append(f"+{len(partitions)}")

            async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
                trace.append(f"-{len(partitions)}")

            async with (
                log.consumer(**QUICK, auto_offset_reset="earliest") as one,  # type: ignore[arg-type]
                log.consumer(**QUICK) as two,  # type: ignore[arg-type]
            ):
                assert one.subscription() == set()
                await one.subscribe(["t"], on_assigned=on_assigned, on_revoked=on_revoked)
                await poll_until(lambda: len(one.assignment()) == 2, one)
                assert one.subscription() == {"t"}
                await one.unsubscribe()
                assert (one.assignment(), one.subscription(), one.is_member) == (
                    set(),
                    set(),
                    False,
                )
                assert trace == ["+2", "-2"]
                await two.subscribe(["t"])
                await poll_until(lambda: len(two.assignment()) == 2, two)
                one.assign([T0])
                await poll_until(lambda: one.positions() == {T0: 3}, one)
                await one.unsubscribe()
                await one.subscribe(["t"])
                both = lambda: len(one.assignment()) == len(two.assignment()) == 1  # noqa: E731
                await poll_until(both, one, two)

    asyncio.run(main())


def test_lag_is_reported_per_partition(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            await write(log, 10)
            async with log.consumer(auto_offset_reset="earliest") as consumer:
                consumer.assign([T0])
                assert consumer.lag(T0) is None
                polled = await consumer.poll(timeout_ms=60_000, max_records=4)
                assert len(polled[T0]) == 4
                assert consumer.lag(T0) == 6
                await poll_until(lambda: consumer.lag(T0) == 0, consumer)
                with pytest.raises(UsageError, match="not assigned"):
                    consumer.lag(T1)

    asyncio.run(main())


def test_a_poll_returns_max_poll_records_or_its_own_limit(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            await write(log, 10)
            async with log.consumer(auto_offset_reset="earliest", max_poll_records=3) as consumer:
                consumer.assign([T0])
                sizes = []
                for limit in (None, 5, None):
                    polled = await consumer.poll(timeout_ms=60_000, max_records=limit)
                    sizes.append(len(polled[T0]))
                assert sizes == [3, 5, 2]

    asyncio.run(main())


@pytest.mark.parametrize("looks_up", [False, True])
def test_on_assigned_can_seek_before_the_first_fetch(open_log: OpenLog, *, looks_up: bool) -> None:
    """With the policy "none", any lookup of the group's own offsets would be an error."""

    async def main() -> None:
        async with open_log(t=2) as log:
            await write(log, 10)
            await write(log, 10, partition=1)
            elsewhere = {T0: 4, T1: 7}
            settings = {**QUICK, "auto_offset_reset": "none"}
            async with log.consumer(**settings) as consumer:  # type: ignore[arg-type]

                async def on_assigned(partitions: frozenset[TopicPartition]) -> None:
                    for _ in range(20):  # Long enough for the fetcher to make a lookup, if it did.
                        consumer._fetcher.look()
                        await asyncio.sleep(0)
                    for partition in partitions:
                        if looks_up:
                            await consumer.seek_to_beginning(partition)
                            assert await consumer.position(partition) == 0
                        consumer.seek(partition, elsewhere[partition])

                await consumer.subscribe(["t"], on_assigned=on_assigned)
                firsts: dict[TopicPartition, int] = {}
                async with asyncio.timeout(60):
                    while len(firsts) < 2:
                        for partition, records in (await consumer.poll(timeout_ms=1_000)).items():
                            firsts.setdefault(partition, records[0].offset)
                assert firsts == elsewhere

    asyncio.run(main())
