"""Producer: acknowledged records are in the log, in order and once; failures have a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.client.producer import Acks, ProducerSettings
from streamlog.client.producer.accumulator import Fields
from streamlog.client.producer.sender import RecordMetadata
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    MessageTooLarge,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.murmur2 import partition_of_key

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0 = TopicPartition("t", 0)


async def read(log: Log, partition: TopicPartition, *, end: int | None = None) -> list[LogRecord]:
    """Return all records of a partition, or those read when it has reached `end`."""
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        if end is None:
            end = (await consumer.end_offsets([partition]))[partition]
        records: list[LogRecord] = []
        while await consumer.position(partition) < end:
            records += (await consumer.poll(timeout_ms=1_000)).get(partition, [])
        return records


def test_a_record_arrives_with_all_its_parts(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer() as producer:
                headers = (("a", b"1"), ("a", None))
                sent = await producer.send("t", b"v", key=b"k", timestamp_ms=42, headers=headers)
                assert await sent == ("t", 0, 0, 42)
                await producer.send("t", None, key=b"k", timestamp_ms=43)
            assert await read(log, T0) == [
                LogRecord(0, 42, b"k", b"v", headers),
                LogRecord(1, 43, b"k", None, ()),
            ]

    asyncio.run(main())


def test_the_first_keyless_partition_depends_on_the_seed(
    open_log: OpenLog,
) -> None:
    async def main() -> None:
        async with open_log(t=10) as log:

            async def first(seed: int) -> int:
                async with log.producer(seed=seed) as producer:
                    return (await (await producer.send("t", b"v"))).partition

            partitions = [await first(seed) for seed in range(20)]
            assert len(set(partitions)) >= 5
            assert [await first(seed) for seed in range(20)] == partitions

    asyncio.run(main())


def test_keyless_records_change_partition_with_each_batch(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=4) as log:
            async with log.producer() as producer:
                # Each is acknowledged before the next is sent, so each is its own batch.
                slow = [(await (await producer.send("t", b"v"))).partition for _ in range(9)]
                assert [(each - slow[0]) % 4 for each in slow] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
            async with log.producer(linger_ms=60_000) as producer:
                # All in one batch, which lingers.
                sendings = [await producer.send("t", b"v") for _ in range(9)]
                await producer.flush()
                assert len({(await each).partition for each in sendings}) == 1

    asyncio.run(main())


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_round_trips(open_log: OpenLog, compression: str) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer(compression=compression) as producer:
                for number in range(500):
                    await producer.send("t", b"%d" % number)
            assert [int(r.value or b"") for r in await read(log, T0)] == list(range(500))

    asyncio.run(main())


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_order_is_kept_with_many_small_requests(open_log: OpenLog, acks: Acks) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer(acks=acks, linger_ms=0, batch_bytes=64) as producer:
                for number in range(300):
                    await producer.send("t", b"%d" % number)
                    if number % 7 == 0:
                        await asyncio.sleep(0)
            # With acks=0 no response says when the last record has arrived.
            found = await read(log, T0, end=300)
            assert [int(r.value or b"") for r in found] == list(range(300))

    asyncio.run(main())


def test_keys_match_kafkas_partitions_and_keyless_records_spread(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=4) as log, log.producer(batch_bytes=256) as producer:
            keyed = [(b"k%d" % n, await producer.send("t", b"", key=b"k%d" % n)) for n in range(50)]
            free = [await producer.send("t", b"x" * 50) for _ in range(200)]
            await producer.flush()
            for key, delivery in keyed:
                assert delivery.result().partition == partition_of_key(key, 4)
            assert {delivery.result().partition for delivery in free} == {0, 1, 2, 3}

    asyncio.run(main())


def test_bulk_and_atomic_records_keep_their_order(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer(batch_bytes=2_000) as producer:
                await producer.send("t", b"first", partition=0)
                many: list[Fields] = [(n, None, b"bulk", ()) for n in range(500)]
                few: list[Fields] = [(n, None, b"atom" * 100, ()) for n in range(20)]
                bulk = await producer.send_batch("t", 0, many)
                written = await (await producer.send_batch("t", 0, few, atomic=True))
                assert (await bulk).offset == 500
                assert (written.offset, written.timestamp_ms) == (520, 19)
            values = [record.value for record in await read(log, T0)]
            assert values == [b"first", *[b"bulk"] * 500, *[b"atom" * 100] * 20]

    asyncio.run(main())


def test_a_batch_above_the_topic_limit_is_split(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer(batch_bytes=4_000_000) as producer:
                records = [(n, None, b"x" * 10_000, ()) for n in range(300)]
                bulk = await producer.send_batch("t", 0, records)
                assert (await bulk).offset == 299
                with pytest.raises(MessageTooLarge, match=r"t-0 needs .* max\.message\.bytes"):
                    await (await producer.send_batch("t", 0, records, atomic=True))
                too_large = await producer.send("t", b"x" * 2_000_000)
                with pytest.raises(MessageTooLarge):
                    await too_large
                after = await producer.send("t", b"after")
                assert (await after).offset == 300
            assert [r.timestamp_ms for r in await read(log, T0)][:300] == list(range(300))

    asyncio.run(main())


def test_a_full_buffer_makes_the_sender_wait(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.producer(buffer_bytes=10_000, linger_ms=10_000) as producer:
                for number in range(200):
                    await producer.send("t", b"%0500d" % number)
                    assert producer._accumulator.used_bytes <= 10_000
                records = [(n, None, b"%0500d" % n, ()) for n in range(200)]
                await producer.send_batch("t", 0, records)
            assert [int(r.value or b"") for r in await read(log, T0)] == [*range(200), *range(200)]

    asyncio.run(main())


def test_flush_ends_lingering_and_raises_failures(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.producer(linger_ms=60_000) as producer:
            delivery = await producer.send("t", b"v")
            await producer.flush()
            assert delivery.result().offset == 0
            lost = await producer.send("t", b"x" * 2_000_000)
            with pytest.raises(MessageTooLarge):
                await producer.flush()
            assert isinstance(lost.exception(), MessageTooLarge)
            await producer.flush()

    asyncio.run(main())


def test_an_unknown_topic_is_named_in_the_error(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log, log.producer() as producer:
            with pytest.raises(UnknownTopicOrPartition, match="no topic 'absent'"):
                await producer.send("absent", b"v")
            with pytest.raises(UnknownTopicOrPartition, match=r"no partition 2; .* is 2"):
                await producer.send("t", b"v", partition=2)
            with pytest.raises(UnknownTopicOrPartition):
                await (await producer.send_batch("t", -1, [(0, None, b"v", ())], atomic=True))

    asyncio.run(main())


def test_records_for_a_deleted_topic_fail_with_its_name(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1, gone=1) as log, log.producer(linger_ms=0) as producer:
            await (await producer.send("gone", b"v"))
            await log.admin().delete_topics(["gone"])
            with pytest.raises(UnknownTopicOrPartition, match="'gone'"):
                await (await producer.send("gone", b"v"))
            assert (await (await producer.send("t", b"v"))).offset == 0

    asyncio.run(main())


def test_an_invalid_record_fails_only_its_batch(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log, log.producer() as producer:
            bad = await producer.send("t", "text", partition=0)  # type: ignore[arg-type]
            good = await producer.send("t", b"bytes", partition=1)
            with pytest.raises(UsageError, match="have to be bytes"):
                await bad
            assert (await good).offset == 0
            assert (await (await producer.send("t", b"bytes", partition=0))).offset == 0

    asyncio.run(main())


def test_an_error_in_the_block_discards_lingering_records(
    open_log: OpenLog,
) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            producer = log.producer(linger_ms=60_000)
            deliveries: list[asyncio.Future[RecordMetadata]] = []

            async def fail() -> None:
                async with producer:
                    deliveries.append(await producer.send("t", b"v"))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            assert isinstance(deliveries[0].exception(), ConnectionLost)
            with pytest.raises(UsageError, match="not open"):
                await producer.send("t", b"v")

    asyncio.run(main())


def test_cancelling_a_sender_that_waits_for_buffer_affects_no_other(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.producer(buffer_bytes=1_000) as producer:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(producer.send("t", b"x" * 900)) for _ in range(5)]
                await asyncio.sleep(0)
                tasks[2].cancel()
            await producer.flush()
            done = [task.result() for task in tasks if not task.cancelled()]
            assert sorted([delivery.result().offset for delivery in done]) == list(range(len(done)))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"acks": 2}, "acks is 2"),
        ({"acks": 1, "idempotent": True}, "idempotent needs acks='all'"),
        ({"max_in_flight": 6}, "1 to 5"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"buffer_bytes": 0}, "buffer_bytes"),
        ({"delivery_timeout_ms": 5}, "delivery_timeout_ms is 5"),
    ],
)
def test_invalid_producer_settings_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ProducerSettings(**settings)  # type: ignore[arg-type]


def test_idempotence_follows_acks_by_default() -> None:
    assert ProducerSettings().is_idempotent
    assert not ProducerSettings(acks=1).is_idempotent
    assert not ProducerSettings(idempotent=False).is_idempotent
