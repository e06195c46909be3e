"""Subscribed consumers while topics are created, deleted and expanded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.assignors import CooperativeStickyAssignor, RangeAssignor
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.record import TopicPartition

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
QUICK = {
    "group_id": "g",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 50,
    "metadata_max_age_ms": 50,
    "auto_offset_reset": "earliest",
}


async def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> None:
    async with asyncio.timeout(60):
        while not condition():
            for consumer in consumers:
                await consumer.poll(timeout_ms=20)


def topics(*consumers: Consumer) -> set[str]:
    return {topic for consumer in consumers for topic, _ in consumer.assignment()}


@pytest.mark.parametrize("assignor", [RangeAssignor(), CooperativeStickyAssignor()])
def test_a_pattern_follows_created_and_deleted_topics(
    open_log: OpenLog, assignor: RangeAssignor
) -> None:
    async def main() -> None:
        async with open_log(orders_a=2, other=1) as log:
            admin = log.admin()
            options = {**QUICK, "assignor": assignor}
            async with (
                log.consumer(**options) as one,  # type: ignore[arg-type]
                log.consumer(**options) as two,  # type: ignore[arg-type]
            ):
                for consumer in (one, two):
                    await consumer.subscribe(re.compile("orders_.|_.*"))
                both = lambda: len(one.assignment()) == len(two.assignment()) == 1  # noqa: E731
                await poll_until(both, one, two)
                assert topics(one, two) == {"orders_a"}
                await admin.create_topics([NewTopic("orders_b", 2)])
                await poll_until(lambda: topics(one, two) == {"orders_a", "orders_b"}, one, two)
                await admin.delete_topics(["orders_a"])
                await poll_until(lambda: topics(one, two) == {"orders_b"}, one, two)
                async with log.producer() as producer:
                    await producer.send("orders_b", b"1", partition=0)
                found = []
                while not found:
                    for consumer in (one, two):
                        found += (await consumer.poll(timeout_ms=20)).values()
                assert TopicPartition("orders_b", 0) in one.assignment() | two.assignment()

    asyncio.run(main())


def test_a_pattern_without_matches_waits_for_topics(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(other=1) as log, log.consumer(**QUICK) as consumer:  # type: ignore[arg-type]
            await consumer.subscribe(re.compile("orders"))
            await poll_until(lambda: consumer.is_member, consumer)
            assert consumer.assignment() == set()
            await log.admin().create_topics([NewTopic("orders", 1)])
            await poll_until(lambda: topics(consumer) == {"orders"}, consumer)
            await consumer.subscribe(["other"])
            await poll_until(lambda: topics(consumer) == {"other"}, consumer)

    asyncio.run(main())


def test_new_partitions_of_a_topic_cause_a_rebalance(open_log: OpenLog) -> None:
    async def main() -> None:
        async with (
            open_log(t=2) as log,
            log.consumer(**QUICK) as one,  # type: ignore[arg-type]
            log.consumer(**QUICK) as two,  # type: ignore[arg-type]
        ):
            for consumer in (one, two):
                await consumer.subscribe(["t"])
            shared = lambda each: len(one.assignment()) == len(two.assignment()) == each  # noqa: E731
            await poll_until(lambda: shared(1), one, two)
            await log.admin().create_partitions("t", 4)
            await poll_until(lambda: shared(2), one, two)

    asyncio.run(main())


def test_a_commit_for_a_deleted_topic_is_refused_at_once(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.consumer(group_id="h") as consumer:
            with pytest.raises(LogError) as refused:
                await consumer.commit({TopicPartition("gone", 0): 1})
            assert not refused.value.retriable

    asyncio.run(main())
