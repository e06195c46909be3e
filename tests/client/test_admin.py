"""Admin: topics are created, described and deleted, and refusals name topic and reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.client.admin import Append, ClientQuota, ConfigResource, NewTopic, Subtract
from streamlog.errors import (
    LogError,
    OffsetOutOfRange,
    TopicExists,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]


def test_topics_are_created_described_and_deleted(open_log: OpenLog) -> None:
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


def test_internal_topics_are_not_listed_by_default(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.consumer(group_id="g") as consumer:
                await consumer.committed([])
            assert [topic.name for topic in await log.admin().list_topics()] == ["t"]

    asyncio.run(main())


def test_topic_settings_are_applied_or_refused(open_log: OpenLog) -> None:
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


def test_refusals_name_the_topic_and_other_topics_are_processed(open_log: OpenLog) -> None:
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


def test_configs_are_described_and_altered(open_log: OpenLog) -> None:
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


def test_records_before_an_offset_are_deleted(open_log: OpenLog) -> None:
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


def test_a_reader_below_the_log_start_resumes_at_the_log_start(open_log: OpenLog) -> None:
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


def test_one_error_carries_all_refusals(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1, u=1) as log, log.admin() as admin:
            with pytest.raises(TopicExists) as info:
                await admin.create_topics(
                    [NewTopic("t", 1), NewTopic("v", 1), NewTopic("u", 1), NewTopic("a b", 1)]
                )
            refusals = info.value.refusals
            assert set(refusals) == {"t", "u", "a b"}
            assert refusals["t"] is info.value
            assert refusals["a b"].code == ErrorCode.INVALID_TOPIC_EXCEPTION
            with pytest.raises(UnknownTopicOrPartition) as missing:
                await admin.delete_topics(["v", "w"])
            assert set(missing.value.refusals) == {"w"}
            assert [topic.name for topic in await admin.list_topics()] == ["t", "u"]

    asyncio.run(main())


def test_validate_only_reports_errors_and_changes_nothing(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.admin() as admin:
            await admin.create_topics([NewTopic("u", 1)], validate_only=True)
            with pytest.raises(TopicExists):
                await admin.create_topics([NewTopic("t", 1)], validate_only=True)
            await admin.create_partitions("t", 3, validate_only=True)
            with pytest.raises(LogError, match="'t'") as fewer:
                await admin.create_partitions("t", 1, validate_only=True)
            assert fewer.value.code == ErrorCode.INVALID_PARTITIONS
            await admin.alter_configs({"retention.ms": "5"}, topic="t", validate_only=True)
            with pytest.raises(LogError, match=r"retention\.ms"):
                await admin.alter_configs({"retention.ms": "no"}, topic="t", validate_only=True)
            rates = {"producer_byte_rate": 5.0}
            await admin.alter_client_quotas({"user": "u"}, rates, validate_only=True)
            assert await admin.describe_client_quotas() == []
            (topic,) = await admin.list_topics()
            assert (topic.name, topic.partitions) == ("t", 1)
            assert (await admin.describe_configs("t"))["retention.ms"].source == "default"

    asyncio.run(main())


def test_list_settings_can_be_appended_to_and_subtracted_from(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.admin() as admin:
            await admin.alter_configs({"cleanup.policy": Append("compact")}, topic="t")
            shown = await admin.describe_configs("t")
            assert shown["cleanup.policy"].value == "delete,compact"
            await admin.alter_configs({"cleanup.policy": Subtract("delete")}, topic="t")
            shown = await admin.describe_configs("t")
            assert shown["cleanup.policy"].value == "compact"

    asyncio.run(main())


def test_broker_settings_are_altered_for_one_broker_or_all(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log() as log, log.admin() as admin:
            await admin.alter_configs({"num.partitions": "5"}, broker="all")
            assert (await admin.describe_configs(broker="all"))["num.partitions"].value == "5"
            own = (await admin.describe_configs(broker=1))["num.partitions"]
            assert (own.value, own.source) == ("5", "all brokers")
            assert (await admin.describe_configs())["ssl.key.password"].is_sensitive
            with pytest.raises(LogError, match="unknown resource '9'"):
                await admin.describe_configs(broker=9)
            with pytest.raises(UsageError, match="both a topic and a broker"):
                await admin.describe_configs("t", broker=1)

    asyncio.run(main())


def test_resources_with_settings_are_listed(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.admin() as admin:
            assert await admin.list_config_resources() == [
                ConfigResource("topic", "t"),
                ConfigResource("broker", "1"),
                ConfigResource("broker logger", "1"),
            ]

    asyncio.run(main())


def test_internal_topics_are_listed_on_request(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.admin() as admin:
            async with log.consumer(group_id="g") as consumer:
                await consumer.committed([])
            listed = await admin.list_topics(internal=True)
            assert [(each.name, each.is_internal) for each in listed] == [
                ("__consumer_offsets", True),
                ("t", False),
            ]

    asyncio.run(main())


def test_client_quotas_are_altered_and_described_by_entity(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log() as log, log.admin() as admin:
            alice: dict[str, str | None] = {"user": "alice"}
            both: dict[str, str | None] = {"user": "alice", "client-id": None}
            await admin.alter_client_quotas(alice, {"producer_byte_rate": 10})
            await admin.alter_client_quotas(both, {"consumer_byte_rate": 20})
            assert await admin.describe_client_quotas(alice) == [
                ClientQuota(alice, {"producer_byte_rate": 10})
            ]
            assert await admin.describe_client_quotas(both) == [
                ClientQuota(both, {"consumer_byte_rate": 20})
            ]
            assert await admin.describe_client_quotas({"user": None}) == []
            assert len(await admin.describe_client_quotas()) == 2
            with pytest.raises(
                LogError, match=r"alter quotas of user=alice, client-id=\(default\)"
            ):
                await admin.alter_client_quotas(both, {"no_such_rate": 1})

    asyncio.run(main())
