"""Consumer: reads every record once, alone and in groups, and reports what it can't read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from streamlog.assignors import CooperativeStickyAssignor, RangeAssignor
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.errors import (
    ConfigError,
    LogError,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.log import Log
from streamlog.record import TopicPartition

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 50}


async def write(log: Log, partition: TopicPartition, count: int, *, start: int = 0) -> None:
    """Write records in batches of ten; each record's number is its timestamp and value."""
    async with log.producer() as producer:
        for first in range(start, start + count, 10):
            stop = min(first + 10, start + count)
            records = [(n, None, b"%d" % n, ()) for n in range(first, stop)]
            await (
                await producer.send_batch(
                    partition.topic, partition.partition, records, atomic=True
                )
            )


async def read(consumer: Consumer, count: int) -> list[int]:
    """Return the numbers of the next records."""
    numbers: list[int] = []
    while len(numbers) < count:
        polled = await consumer.poll(timeout_ms=60_000)
        assert polled, f"only {len(numbers)} of {count} records arrived"
        numbers += [int(each.value or b"") for records in polled.values() for each in records]
    return numbers


@asynccontextmanager
async def reader(
    log: Log, *partitions: TopicPartition, **options: object
) -> AsyncIterator[Consumer]:
    settings = {"auto_offset_reset": "earliest", **options}
    async with log.consumer(**settings) as consumer:  # type: ignore[arg-type]
        consumer.assign(partitions)
        yield consumer


def test_a_consumer_reads_existing_and_then_new_records(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            await write(log, T0, 25)
            async with reader(log, T0, T1) as consumer:
                assert await read(consumer, 25) == list(range(25))
                await write(log, T1, 3, start=100)
                assert await read(consumer, 3) == [100, 101, 102]
                assert consumer.positions() == {T0: 25, T1: 3}
                assert consumer.high_watermark(T0) == 25
                assert await consumer.poll(timeout_ms=0) == {}

    asyncio.run(main())


def test_a_poll_returns_at_most_max_records(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            await write(log, T0, 30)
            async with reader(log, T0) as consumer:
                seen: list[int] = []
                while len(seen) < 30:
                    polled = await consumer.poll(timeout_ms=60_000, max_records=7)
                    assert len(polled[T0]) <= 7
                    seen += [record.offset for record in polled[T0]]
                    assert await consumer.position(T0) == seen[-1] + 1
                assert seen == list(range(30))

    asyncio.run(main())


def test_small_fetches_read_everything(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            await write(log, T0, 300)
            await write(log, T1, 300, start=300)
            options = {"fetch_max_bytes": 400, "max_partition_fetch_bytes": 200}
            async with reader(log, T0, T1, **options) as consumer:
                assert sorted(await read(consumer, 600)) == list(range(600))

    asyncio.run(main())


def test_seeking_moves_the_position(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            await write(log, T0, 30)
            async with reader(log, T0) as consumer:
                consumer.seek(T0, 17)
                assert await read(consumer, 13) == list(range(17, 30))
                await consumer.seek_to_beginning()
                assert await consumer.position(T0) == 0
                assert (await read(consumer, 30))[0] == 0
                await consumer.seek_to_end(T0)
                assert await consumer.position(T0) == 30
                await write(log, T0, 1, start=30)
                assert await read(consumer, 1) == [30]
                with pytest.raises(UsageError, match="seek_to_end"):
                    consumer.seek(T0, -1)
                with pytest.raises(UsageError, match="t-1 is not assigned"):
                    consumer.seek(T1, 0)

    asyncio.run(main())


def test_offsets_are_found_by_position_and_timestamp(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            await write(log, T0, 30)
            async with log.consumer() as consumer:
                assert await consumer.begin_offsets([T0, T1]) == {T0: 0, T1: 0}
                assert await consumer.end_offsets([T0, T1]) == {T0: 30, T1: 0}
                found = await consumer.offsets_for_times({T0: 12, T1: 12})
                assert found == {T0: (12, 12), T1: None}
                assert await consumer.offsets_for_times({T0: 1_000}) == {T0: None}
                with pytest.raises(UnknownTopicOrPartition, match=r"no partition 2; .* is 2"):
                    await consumer.end_offsets([TopicPartition("t", 2)])

    asyncio.run(main())


def test_a_paused_partition_is_not_read_and_loses_nothing(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            await write(log, T0, 10)
            async with reader(log, T0, T1) as consumer:
                consumer.pause(T0)
                await write(log, T1, 5, start=50)
                assert await read(consumer, 5) == list(range(50, 55))
                assert consumer.paused() == {T0}
                assert await consumer.poll(timeout_ms=20) == {}
                consumer.resume(T0)
                assert await read(consumer, 10) == list(range(10))

    asyncio.run(main())


def test_auto_offset_reset_decides_where_reading_begins(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            await write(log, T0, 10)
            async with reader(log, T0, auto_offset_reset="latest") as consumer:
                assert await consumer.position(T0) == 10
            async with reader(log, T0, auto_offset_reset="none") as consumer:
                with pytest.raises(OffsetOutOfRange, match="t-0 has no committed offset"):
                    await consumer.poll(timeout_ms=60_000)
                consumer.seek(T0, 4)
                assert await read(consumer, 6) == list(range(4, 10))
                consumer.seek(T0, 99)
                with pytest.raises(OffsetOutOfRange, match="t-0 at 99"):
                    await consumer.poll(timeout_ms=60_000)
            async with reader(log, T0) as consumer:
                consumer.seek(T0, 99)
                assert await read(consumer, 10) == list(range(10))

    asyncio.run(main())


def test_an_unknown_topic_is_named_in_the_error(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with reader(log, TopicPartition("absent", 0)) as consumer:
                with pytest.raises(UnknownTopicOrPartition, match="no topic 'absent'"):
                    await consumer.poll(timeout_ms=60_000)
            async with log.consumer(group_id="g") as consumer:
                with pytest.raises(UnknownTopicOrPartition, match="no topic 'absent'"):
                    await consumer.subscribe(["absent"])
                with pytest.raises(UsageError, match=r"\['t'\]"):
                    await consumer.subscribe("t")

    asyncio.run(main())


def test_a_group_resumes_at_its_committed_offsets(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            await write(log, T0, 30)
            async with reader(log, T0, group_id="g") as consumer:
                await read(consumer, 30)
                await consumer.commit({T0: 20})
                assert await consumer.committed([T0, T1]) == {T0: 20, T1: None}
            async with reader(log, T0, group_id="g") as consumer:
                assert await read(consumer, 10) == list(range(20, 30))
                await consumer.commit()
                assert await consumer.committed([T0]) == {T0: 30}
            async with reader(log, T0) as consumer:
                with pytest.raises(ConfigError, match="group_id"):
                    await consumer.commit()

    asyncio.run(main())


def test_auto_commit_stores_what_earlier_polls_returned(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            await write(log, T0, 10)
            options = {"group_id": "g", "auto_commit": True, "auto_commit_interval_ms": 0}
            async with reader(log, T0, **options) as consumer:
                await read(consumer, 10)
                assert (await consumer.committed([T0]))[T0] in {None, 0}
                await consumer.poll(timeout_ms=0)
                assert await consumer.committed([T0]) == {T0: 10}
                await write(log, T0, 5, start=10)
                await read(consumer, 5)
            async with log.consumer(group_id="g") as consumer:
                assert await consumer.committed([T0]) == {T0: 15}

    asyncio.run(main())


class Member:
    """A group member that records its callbacks."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.trace: list[str] = []
        self.numbers: list[int] = []

    async def join(self, *topics: str) -> None:
        async def assigned(partitions: frozenset[TopicPartition]) -> None:
            assert self.consumer.assignment() == partitions
            self.trace.append(f"assigned {len(partitions)}")

        async def revoked(partitions: frozenset[TopicPartition]) -> None:
            assert self.consumer.assignment() == partitions
            await self.consumer.commit()
            self.trace.append(f"revoked {len(partitions)}")

        await self.consumer.subscribe(topics, on_assigned=assigned, on_revoked=revoked)

    async def poll_until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not enough():
                polled = await self.consumer.poll(timeout_ms=20)
                for records in polled.values():
                    self.numbers += [int(record.value or b"") for record in records]


def test_a_group_shares_partitions_and_reassigns_them(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=4) as log:
            for partition in range(4):
                await write(log, TopicPartition("t", partition), 20, start=100 * partition)
            options = {"group_id": "g", "auto_offset_reset": "earliest", **QUICK}
            async with log.consumer(**options) as one:  # type: ignore[arg-type]
                first = Member(one)
                await first.join("t")
                await first.poll_until(lambda: len(first.numbers) == 80)
                async with log.consumer(**options) as two:  # type: ignore[arg-type]
                    second = Member(two)
                    await second.join("t")
                    async with asyncio.TaskGroup() as both:
                        both.create_task(first.poll_until(lambda: len(one.assignment()) == 2))
                        both.create_task(second.poll_until(lambda: len(two.assignment()) == 2))
                    assert not one.assignment() & two.assignment()
                    assert sorted([one.is_leader, two.is_leader]) == [False, True]
                await first.poll_until(lambda: len(one.assignment()) == 4)
                assert second.trace == ["assigned 2", "revoked 2"]
                assert first.trace == [
                    "assigned 4", "revoked 4", "assigned 2", "revoked 2", "assigned 4",
                ]  # fmt: skip
            assert first.trace[-1] == "revoked 4"
            assert (len(first.numbers), second.numbers) == (80, [])

    asyncio.run(main())


def test_heartbeats_continue_while_the_application_works(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            options = {"group_id": "g", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 20}
            async with log.consumer(**options) as consumer:  # type: ignore[arg-type]
                await consumer.subscribe(["t"])
                while not consumer.assignment():
                    await consumer.poll(timeout_ms=50)
                group = consumer._group
                assert group is not None
                assert group.member is not None
                before = group.member._heartbeat_ms
                async with asyncio.timeout(60):
                    while group.member._heartbeat_ms < before + 100:
                        await consumer.end_offsets([T0])
                assert consumer.is_member

    asyncio.run(main())


def test_nothing_is_read_after_a_session_timeout_before_a_heartbeat(
    open_log: OpenLog,
) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            await write(log, T0, 10)
            options = {"group_id": "g", "auto_offset_reset": "earliest", **QUICK}
            async with log.consumer(**options) as consumer:  # type: ignore[arg-type]
                await consumer.subscribe(["t"])
                while not consumer._positions.has_records():
                    await consumer.poll(timeout_ms=50, max_records=1)
                assert consumer._group is not None
                assert consumer._group.member is not None
                assert consumer.is_member
                consumer._group.member._heard_ms -= 1_000_000
                silent_since_ms = consumer._group.member._heard_ms
                assert not consumer.is_member
                records = await consumer.poll(timeout_ms=0)
                # A heartbeat may be in flight; its response arrives while the loop runs.
                assert not records or consumer._group.member._heard_ms > silent_since_ms
                assert await consumer.poll(timeout_ms=60_000)

    asyncio.run(main())


class FirstTakesAll(RangeAssignor):
    """An assignor that gives the first member everything and remembers the owned partitions."""

    name = "first-takes-all"

    def __init__(self) -> None:
        self.owned: dict[str, set[TopicPartition]] = {}

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: object = None,
    ) -> dict[str, list[TopicPartition]]:
        assert isinstance(owned, dict)
        self.owned = {member: set(parts) for member, parts in owned.items()}
        everything = [TopicPartition(t, n) for t, count in partitions.items() for n in range(count)]
        return {member: everything if n == 0 else [] for n, member in enumerate(sorted(members))}


def test_a_custom_assignor_is_used_and_a_mismatch_is_refused(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=3) as log:
            assignor = FirstTakesAll()
            async with log.consumer(group_id="g", assignor=assignor) as consumer:
                member = Member(consumer)
                await member.join("t")
                await member.poll_until(lambda: len(consumer.assignment()) == 3)
                assert list(assignor.owned.values()) == [set()]
                async with log.consumer(group_id="g") as other:
                    await other.subscribe(["t"])
                    with pytest.raises(LogError, match="another assignor"):
                        await other.poll(timeout_ms=60_000)

    asyncio.run(main())


def test_subscribing_to_more_topics_rebalances(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1, u=2) as log, log.consumer(group_id="g") as consumer:
            await consumer.subscribe(["t"])
            member = Member(consumer)
            await member.poll_until(lambda: len(consumer.assignment()) == 1)
            await consumer.subscribe(["t", "u"])
            await member.poll_until(lambda: len(consumer.assignment()) == 3)
            with pytest.raises(UsageError, match="after subscribe"):
                consumer.assign([T0])

    asyncio.run(main())


def test_reading_a_deleted_topic_raises_an_error(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log() as log:
            await log.admin().create_topics([NewTopic("gone", 1)])
            async with reader(log, TopicPartition("gone", 0)) as consumer:
                assert await consumer.position(TopicPartition("gone", 0)) == 0
                await log.admin().delete_topics(["gone"])
                with pytest.raises(UnknownTopicOrPartition, match="gone"):
                    await consumer.poll(timeout_ms=60_000)

    asyncio.run(main())


def test_an_error_in_the_block_is_not_wrapped_and_cancellation_is_prompt(
    open_log: OpenLog,
) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            consumer = log.consumer(group_id="g")

            async def fail() -> None:
                async with consumer:
                    await consumer.subscribe(["t"])
                    await consumer.poll(timeout_ms=10)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            with pytest.raises(UsageError, match="not open"):
                await consumer.poll(timeout_ms=10)

            async def endless() -> None:
                async with reader(log, T0) as consumer:
                    await consumer.poll(timeout_ms=1_000_000)

            async with asyncio.TaskGroup() as group:
                task = group.create_task(endless())
                await asyncio.sleep(0.05)
                task.cancel()
            assert task.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"auto_offset_reset": "newest"}, "'earliest', 'latest' or 'none'"),
        ({"auto_commit": True}, "set group_id"),
        ({"heartbeat_interval_ms": 50_000}, "less than session_timeout_ms"),
        ({"max_poll_interval_ms": 0}, "max_poll_interval_ms"),
        ({"rebalance_timeout_ms": 0}, "rebalance_timeout_ms"),
        ({"fetch_max_bytes": 0}, "fetch_max_bytes"),
        ({"fetch_min_bytes": -1}, "fetch_min_bytes"),
    ],
)
def test_invalid_consumer_settings_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ConsumerSettings(**settings)  # type: ignore[arg-type]


# ---- the cooperative protocol ----


async def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> list[int]:
    """Poll all consumers in turn, and return the numbers that they read."""
    numbers: list[int] = []
    async with asyncio.timeout(60):
        while not condition():
            for consumer in consumers:
                polled = await consumer.poll(timeout_ms=20)
                numbers += [int(each.value or b"") for many in polled.values() for each in many]
    return numbers


def test_a_cooperative_rebalance_revokes_only_moved_partitions(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            options = {**QUICK, "group_id": "g", "assignor": CooperativeStickyAssignor()}
            calls: list[tuple[str, frozenset[TopicPartition]]] = []

            async def on_assigned(partitions: frozenset[TopicPartition]) -> None:
                calls.append(("+", partitions))

            async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
                calls.append(("-", partitions))

            async with log.consumer(**options, auto_offset_reset="earliest") as one:
                await one.subscribe(["t"], on_assigned=on_assigned, on_revoked=on_revoked)
                await poll_until(lambda: len(one.assignment()) == 2, one)
                await write(log, T0, 10)
                await write(log, T1, 10, start=100)
                assert sorted(await read(one, 20)) == [*range(10), *range(100, 110)]
                await one.commit()
                async with log.consumer(**options, auto_offset_reset="earliest") as two:
                    await two.subscribe(["t"])
                    shared = lambda: len(one.assignment()) == len(two.assignment()) == 1  # noqa: E731
                    assert await poll_until(shared, one, two) == []
                    (kept,), (moved,) = one.assignment(), two.assignment()
                    assert calls[:2] == [("+", frozenset({T0, T1})), ("-", frozenset({moved}))]
                    assert all(each == ("+", frozenset()) for each in calls[2:])
                    # It continues at its position, not at the committed offset.
                    assert await one.position(kept) == 10
                await poll_until(lambda: len(one.assignment()) == 2, one)
                assert calls[-1] == ("+", frozenset({moved}))

    asyncio.run(main())


def test_lost_partitions_have_their_own_callback(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            lost: list[frozenset[TopicPartition]] = []

            async def on_lost(partitions: frozenset[TopicPartition]) -> None:
                lost.append(partitions)

            async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
                raise AssertionError(partitions)

            options = {**QUICK, "group_id": "g", "assignor": CooperativeStickyAssignor()}
            async with log.consumer(**options) as one:
                await one.subscribe(["t"], on_revoked=on_revoked, on_lost=on_lost)
                await poll_until(lambda: bool(one.assignment()), one)
                assert one._group is not None
                member = one._group.member
                assert member is not None
                member.generation_id += 7
                await poll_until(lambda: bool(lost), one)
                await poll_until(lambda: bool(one.assignment()), one)
                assert lost == [frozenset({T0})]
                await one.subscribe(["t"])

    asyncio.run(main())


def test_a_static_member_returns_without_a_rebalance(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log:
            calls: list[frozenset[TopicPartition]] = []

            async def on_revoked(partitions: frozenset[TopicPartition]) -> None:
                calls.append(partitions)

            def static(instance: str) -> AbstractAsyncContextManager[Consumer]:
                return log.consumer(group_id="g", group_instance_id=instance, **QUICK)

            async with static("one") as one:
                await one.subscribe(["t"], on_revoked=on_revoked)
                async with static("two") as two:
                    await two.subscribe(["t"])
                    await poll_until(
                        lambda: len(one.assignment()) == len(two.assignment()) == 1, one, two
                    )
                    before = two.assignment()
                    calls.clear()
                async with static("two") as two:
                    await two.subscribe(["t"])
                    await poll_until(lambda: bool(two.assignment()), one, two)
                    assert two.assignment() == before
                    assert calls == []
                    assert one.is_member

    asyncio.run(main())


def test_a_second_consumer_with_the_instance_id_fences_the_first(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            options = {"group_id": "g", "group_instance_id": "one", **QUICK}
            async with log.consumer(**options) as one:
                await one.subscribe(["t"])
                await poll_until(lambda: bool(one.assignment()), one)
                async with log.consumer(**options) as two:
                    await two.subscribe(["t"])
                    await poll_until(lambda: bool(two.assignment()), two)
                    with pytest.raises(LogError, match="same group_instance_id"):
                        await poll_until(lambda: False, one)

    asyncio.run(main())
