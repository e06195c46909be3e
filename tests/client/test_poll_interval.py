"""max_poll_interval_ms: other members take over from a consumer that is not polled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.errors import UnknownMember
from streamlog.log import Log
from streamlog.record import TopicPartition

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
QUICK = {"group_id": "g", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 50}


async def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> None:
    async with asyncio.timeout(60):
        while not condition():
            for consumer in consumers:
                await consumer.poll(timeout_ms=20)


def exceed_poll_interval(consumer: Consumer) -> None:
    """Make the owner's last poll look old."""
    assert consumer._group is not None
    member = consumer._group.member
    assert member is not None
    assert member._patience.idle_since_ms is not None
    member._patience.idle_since_ms -= consumer._settings.max_poll_interval_ms


def test_others_take_over_and_the_owner_learns_of_the_loss(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            lost: list[frozenset[TopicPartition]] = []
            one, two = log.consumer(**QUICK), log.consumer(**QUICK)  # type: ignore[arg-type]

            async def on_lost(partitions: frozenset[TopicPartition]) -> None:
                with pytest.raises(UnknownMember, match="max_poll_interval_ms"):
                    await one.commit(dict.fromkeys(partitions, 1))
                lost.append(partitions)

            async with one, two:
                await one.subscribe(["t"], on_lost=on_lost)
                await two.subscribe(["t"])
                both = lambda: len(one.assignment()) == len(two.assignment()) == 1  # noqa: E731
                await poll_until(both, one, two)
                exceed_poll_interval(one)
                await poll_until(lambda: len(two.assignment()) == 2, two)
                assert not one.is_member
                had = frozenset(one.assignment())
                await poll_until(both, one, two)
                assert lost == [had]
                assert one.is_member

    asyncio.run(main())


def test_waiting_in_a_poll_counts_as_polling(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.consumer(**QUICK) as consumer:  # type: ignore[arg-type]
            assert consumer._group is not None
            await consumer.subscribe(["t"])
            member = consumer._group.member
            assert member is not None
            assert member._patience.idle_since_ms is not None
            async with asyncio.TaskGroup() as work:
                polling = work.create_task(consumer.poll(timeout_ms=60_000))
                while member._patience.idle_since_ms is not None:  # noqa: ASYNC110 - nobody tells a test of it
                    await asyncio.sleep(0)
                polling.cancel()
            assert member._patience.idle_since_ms is not None

    asyncio.run(main())


def test_the_rebalance_timeout_follows_the_poll_interval() -> None:
    def waits(**settings: int) -> int:
        group = ConsumerSettings(group_id="g", **settings).group  # type: ignore[arg-type]
        assert group is not None
        return group.rebalance_timeout_ms

    assert waits() == 300_000
    assert waits(max_poll_interval_ms=7_000) == 7_000
    assert waits(max_poll_interval_ms=7_000, rebalance_timeout_ms=60_000) == 60_000
