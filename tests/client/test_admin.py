"""Admin: topics come, are described and go, and refusals say which and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.assignors import TopicPartition
from streamlog.client.admin import NewTopic
from streamlog.errors import LogError, OffsetOutOfRange, TopicExists, UnknownTopicOrPartition
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


def test_settings_are_shown_and_changed(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.admin() as admin:
            before = (await admin.describe_configs("t"))["retention.ms"]
            assert (before.value, before.source) == ("-1", "default")
            assert before.documentation
            await admin.alter_configs({"retention.ms": "60000", "segment.ms": "5"}, topic="t")
            await admin.alter_configs({"segment.ms": None}, topic="t")
            after = await admin.describe_configs("t")
            assert (after["retention.ms"].value, after["retention.ms"].source) == ("60000", "topic")
            assert after["segment.ms"].source == "default"
            await admin.alter_configs({"num.partitions": "7"})
            own = await admin.describe_configs()
            assert (own["num.partitions"].value, own["num.partitions"].source) == ("7", "broker")
            assert own["node.id"].is_read_only
            with pytest.raises(LogError, match=r"did you mean 'retention\.ms'"):
                await admin.alter_configs({"retention.mss": "1"}, topic="t")
            with pytest.raises(UnknownTopicOrPartition):
                await admin.describe_configs("u")

    asyncio.run(main())


def test_records_are_deleted(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log, log.admin() as admin:
            async with log.producer() as producer:
                for partition in (0, 0, 0, 1):
                    await (await producer.send("t", b"x", partition=partition))
            first, second = TopicPartition("t", 0), TopicPartition("t", 1)
            assert await admin.delete_records({first: 2, second: -1}) == {first: 2, second: 1}
            async with log.consumer() as consumer:
                assert await consumer.begin_offsets([first, second]) == {first: 2, second: 1}
            with pytest.raises(OffsetOutOfRange):
                await admin.delete_records({first: 4})
            with pytest.raises(UnknownTopicOrPartition):
                await admin.delete_records({TopicPartition("t", 9): 0})

    asyncio.run(main())


def test_a_reader_below_the_log_start_goes_on_where_the_log_begins(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.admin() as admin:
            partition = TopicPartition("t", 0)
            async with log.producer() as producer:
                for number in range(5):
                    await (await producer.send("t", str(number).encode(), partition=0))
            async with log.consumer(auto_offset_reset="earliest") as consumer:
                consumer.assign([partition])
                consumer.seek(partition, 1)
                await admin.delete_records({partition: 3})
                found: list[int] = []
                while len(found) < 2:
                    polled = await consumer.poll(timeout_ms=100)
                    found += [record.offset for record in polled.get(partition, [])]
                assert found == [3, 4]

    asyncio.run(main())
