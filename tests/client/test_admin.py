"""Admin: topics come, are described and go, and refusals say which and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.client.admin import NewTopic
from streamlog.errors import LogError, TopicExists, UnknownTopicOrPartition
from streamlog.log import Log

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]


def test_topics_come_and_go(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log() as log, log.admin() as admin:
            await admin.create_topics([NewTopic("b", 3), NewTopic("a", 1)])
            listed = await admin.list_topics()
            assert [(topic.name, topic.partitions) for topic in listed] == [("a", 1), ("b", 3)]
            described = (await admin.describe_topics(["b"]))[0]
            assert described.replication_factor == 1
            assert set(described.leaders) == {0, 1, 2}
            assert any(described.topic_id)
            await admin.delete_topics(["a", "b"])
            assert await admin.list_topics() == []
            await admin.create_topics([NewTopic("b", 3)])
            again = (await admin.describe_topics(["b"]))[0]
            assert again.topic_id != described.topic_id

    asyncio.run(main())


def test_what_the_log_keeps_for_itself_is_not_listed(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.consumer(group_id="g") as consumer:
                await consumer.committed([])
            assert [topic.name for topic in await log.admin().list_topics()] == ["t"]

    asyncio.run(main())


def test_settings_of_a_topic_are_honoured_or_refused(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log() as log:
            admin = log.admin()
            await admin.create_topics([NewTopic("t", 1, configs={"max.message.bytes": "1000"})])
            async with log.producer() as producer:
                delivery = await producer.send("t", b"x" * 2_000)
                with pytest.raises(LogError, match=r"max\.message\.bytes"):
                    await delivery
            with pytest.raises(LogError, match=r"no\.such\.setting"):
                await admin.create_topics([NewTopic("u", 1, configs={"no.such.setting": "1"})])

    asyncio.run(main())


def test_refusals_name_the_topic_and_the_rest_is_done(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            admin = log.admin()
            with pytest.raises(TopicExists, match="'t'"):
                await admin.create_topics([NewTopic("t", 1), NewTopic("u", 1)])
            assert [topic.name for topic in await admin.list_topics()] == ["t", "u"]
            with pytest.raises(LogError, match="not/allowed"):
                await admin.create_topics([NewTopic("not/allowed", 1)])
            with pytest.raises(UnknownTopicOrPartition, match="absent"):
                await admin.delete_topics(["absent"])
            with pytest.raises(UnknownTopicOrPartition, match="absent"):
                await admin.describe_topics(["t", "absent"])

    asyncio.run(main())
