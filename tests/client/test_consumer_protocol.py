"""Our consumer in groups whose coordinator assigns (`group_protocol="consumer"`, KIP-848)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerOptions, ConsumerSettings
from streamlog.client.group.consumer_protocol import ConsumerMember
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import ConfigError, LogError, UnknownMember
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.replace import replace

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T = [TopicPartition("t", number) for number in range(4)]
OPTIONS: ConsumerOptions = {
    "group_id": "g",
    "group_protocol": "consumer",
    "auto_offset_reset": "earliest",
    "metadata_max_age_ms": 100,
}
QUICK = {"group.consumer.heartbeat.interval.ms": "100"}


@pytest.fixture
def quick(open_log: OpenLog) -> OpenLog:
    """Return open_log with short heartbeat intervals for members."""

    @asynccontextmanager
    async def opened(**topics: int) -> AsyncIterator[Log]:
        async with open_log(**topics) as log:
            settings = await log.admin().describe_configs()
            if any(settings[name].value != value for name, value in QUICK.items()):
                # Kafka reads them only at start: see `conformance.kafka`.
                await log.admin().alter_configs(QUICK)
            yield log

    return opened


async def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> list[int]:
    numbers: list[int] = []
    async with asyncio.timeout(60):
        while not condition():
            for consumer in consumers:
                polled = await consumer.poll(timeout_ms=20)
                numbers += [int(each.value or b"") for many in polled.values() for each in many]
    return numbers


def member_of(consumer: Consumer) -> ConsumerMember:
    assert consumer._group is not None
    assert isinstance(consumer._group.member, ConsumerMember)
    return consumer._group.member


async def write(log: Log, count: int) -> None:
    async with log.producer() as producer:
        for number in range(count):
            await producer.send("t", b"%d" % number, partition=number % len(T))


def test_members_share_partitions_and_revoke_only_moved_ones(quick: OpenLog) -> None:
    async def main() -> None:
        async with quick(t=4) as log:
            await write(log, 40)
            trace: list[tuple[str, int]] = []

            async def on_assigned(partitions: frozenset[TopicPartition]) -> None:
                trace.append(("+", len(partitions)))

            async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
                await one.commit()
                trace.append(("-", len(partitions)))

            async with log.consumer(**OPTIONS) as one:
                await one.subscribe(["t"], on_assigned=on_assigned, on_revoked=on_revoked)
                read = await poll_until(lambda: sum(one.positions().values()) == 40, one)
                assert sorted(read) == list(range(40))
                assert (one.is_member, one.is_leader) == (True, False)
                async with log.consumer(**OPTIONS) as two:
                    await two.subscribe(["t"])
                    shared = lambda: len(one.assignment()) == len(two.assignment()) == 2  # noqa: E731
                    assert await poll_until(shared, one, two) == []
                    assert one.assignment() | two.assignment() == set(T)
                    await write(log, 8)
                    both = lambda: sum((one.lag(p) or 0) for p in one.assignment()) == 0  # noqa: E731
                    await poll_until(both, one, two)
                    known = one.group_metadata()
                    assert (known.member_id, known.generation_id > 1) == (
                        member_of(one).member_id,
                        True,
                    )
                    await one.commit()
                    await two.commit()
                await poll_until(lambda: len(one.assignment()) == 4, one)
                assert set(trace[:2]) == {("+", 4), ("-", 2)}
                assert trace[-1] == ("+", 2)
            assert trace[-1] == ("-", 4)
            (found,) = await log.admin().describe_groups(["g"])
            assert (found.state.lower(), found.members) == ("empty", ())

    asyncio.run(main())


def test_a_fenced_member_loses_its_partitions_and_rejoins(quick: OpenLog) -> None:
    async def main() -> None:
        async with quick(t=1) as log:
            lost: list[frozenset[TopicPartition]] = []

            async def on_lost(partitions: frozenset[TopicPartition]) -> None:
                with pytest.raises(UnknownMember):
                    await one.commit(dict.fromkeys(partitions, 1))
                lost.append(partitions)

            async with log.consumer(**OPTIONS) as one:
                await one.subscribe(["t"], on_lost=on_lost)
                await poll_until(lambda: bool(one.assignment()), one)

                def is_told() -> bool:
                    if not lost and not member_of(one).is_lost:
                        member_of(one).generation_id = 1_000  # A response may correct it.
                    return bool(lost)

                await poll_until(is_told, one)
                await poll_until(lambda: bool(one.assignment()), one)
                assert lost == [{T[0]}]
                await one.commit({T[0]: 5})
                assert await one.committed([T[0]]) == {T[0]: 5}

    asyncio.run(main())


def test_a_commit_with_a_stale_member_epoch_is_retried(quick: OpenLog) -> None:
    async def main() -> None:
        async with quick(t=1) as log, log.consumer(**OPTIONS) as one:
            await one.subscribe(["t"])
            await poll_until(lambda: bool(one.assignment()), one)
            assert one._group is not None
            late = replace(one.group_metadata(), generation_id=1_000)
            with pytest.raises(LogError) as stale:
                await one._group._offsets.store({T[0]: OffsetAndMetadata(3)}, late)
            assert stale.value.code == ErrorCode.STALE_MEMBER_EPOCH
            assert stale.value.retriable

    asyncio.run(main())


def test_a_static_member_returns_with_its_partitions(quick: OpenLog) -> None:
    async def main() -> None:
        async with quick(t=2) as log:

            def static(instance: str) -> Consumer:
                return log.consumer(**OPTIONS, group_instance_id=instance)

            async with static("one") as one:
                await one.subscribe(["t"])
                async with static("two") as two:
                    await two.subscribe(["t"])
                    shared = lambda: len(one.assignment()) == len(two.assignment()) == 1  # noqa: E731
                    await poll_until(shared, one, two)
                    had, kept = two.assignment(), one.assignment()
                async with static("two") as again:
                    await again.subscribe(["t"])
                    await poll_until(lambda: again.assignment() == had, again, one)
                    assert one.assignment() == kept

    asyncio.run(main())


def test_patterns_and_partition_counts_are_followed(quick: OpenLog) -> None:
    async def main() -> None:
        async with quick(other=1) as log, log.consumer(**OPTIONS) as one:
            await one.subscribe(re.compile("t."))
            await one.poll(timeout_ms=50)
            assert one.assignment() == set()
            await log.admin().create_topics([NewTopic("t1", 1), NewTopic("t2", 2)])
            await poll_until(lambda: len(one.assignment()) == 3, one)
            await log.admin().create_partitions("t1", 3)
            await poll_until(lambda: len(one.assignment()) == 5, one)
            await log.admin().delete_topics(["t2"])
            await poll_until(lambda: {topic for topic, _ in one.assignment()} == {"t1"}, one)
            await one.unsubscribe()
            await one.subscribe(["other"])
            await poll_until(lambda: {topic for topic, _ in one.assignment()} == {"other"}, one)

    asyncio.run(main())


def test_the_coordinators_assignor_can_be_chosen(quick: OpenLog) -> None:
    async def main() -> None:
        async with quick(t=4) as log:
            async with log.consumer(**OPTIONS, group_remote_assignor="range") as one:
                await one.subscribe(["t"])
                await poll_until(lambda: len(one.assignment()) == 4, one)
            async with log.consumer(**OPTIONS, group_remote_assignor="best") as one:
                await one.subscribe(["t"])
                with pytest.raises(LogError, match=r"group g: .*best") as unknown:
                    await poll_until(lambda: bool(one.assignment()), one)
                assert unknown.value.code == ErrorCode.UNSUPPORTED_ASSIGNOR

    asyncio.run(main())


def test_a_member_of_the_other_protocol_is_refused(quick: OpenLog) -> None:
    async def main() -> None:
        async with quick(t=1) as log, log.consumer(group_id="g") as classic:
            await classic.subscribe(["t"])
            await poll_until(lambda: bool(classic.assignment()), classic)
            async with log.consumer(**OPTIONS) as other:
                await other.subscribe(["t"])
                with pytest.raises(LogError, match="group g"):
                    await poll_until(lambda: bool(other.assignment()), other, classic)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"group_protocol": "newest"}, "'classic' or 'consumer'"),
        ({"group_remote_assignor": "range"}, "needs group_protocol='consumer'"),
    ],
)
def test_invalid_consumer_protocol_settings_are_refused(
    settings: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ConsumerSettings(**settings)  # type: ignore[arg-type]
