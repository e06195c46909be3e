"""A topic is deleted and created again while a consumer reads it or is away."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import Literal

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import SourceLost
from streamlog.log import Log
from streamlog.record import TopicPartition

T0 = TopicPartition("t", 0)


async def write(log: Log, values: list[bytes]) -> None:
    async with log.producer() as producer:
        for value in values:
            await producer.send("t", value, partition=0)


async def recreate(log: Log, values: list[bytes]) -> None:
    await log.admin().delete_topics(["t"])
    await log.admin().create_topics([NewTopic("t", 1)])
    await write(log, values)


async def read(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            for records in (await consumer.poll(timeout_ms=500)).values():
                found += [record.value for record in records]
    return found


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_every_record_of_the_recreated_topic_is_read_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    chance = random.Random(seed)
    old, new = numbered("old", chance.randint(1, 20)), numbered("new", chance.randint(1, 20))

    async def main() -> None:
        async with (
            Log.open(f"embedded:{tmp_path}") as log,
            log.consumer(group_id="g", auto_offset_reset="earliest") as consumer,
        ):
            await log.admin().create_topics([NewTopic("t", 1)])
            await write(log, old)
            consumer.assign([T0])
            assert await read(consumer, len(old)) == old
            await recreate(log, new)
            # A position in the old topic is invalid in the new one, however it was stored.
            await consumer.commit()
            assert await read(consumer, len(new)) == new
            await consumer.commit()
            assert await consumer.committed([T0]) == {T0: len(new)}

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "t-0: the topic was deleted and created again" in caplog.text


@pytest.mark.parametrize("more", [3, 20])
@pytest.mark.parametrize("live", [False, True])
def test_a_strict_consumer_raises_and_keeps_its_position(
    tmp_path: Path, live: bool, more: int
) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as log:
            await log.admin().create_topics([NewTopic("t", 1)])
            await write(log, numbered("old", 8))
            async with log.consumer(auto_offset_reset="none") as consumer:
                consumer.assign([T0])
                consumer.seek(T0, 0)
                await read(consumer, 8)
                kept_position = consumer.offset_and_metadata(T0, 8)
                assert kept_position.leader_epoch == 0
                if live:
                    await recreate(log, numbered("new", more))
                    await expect_loss(consumer, kept_position)
                    return
            await recreate(log, numbered("new", more))
            async with log.consumer(auto_offset_reset="none") as consumer:
                consumer.assign([T0])
                consumer.seek(T0, kept_position)
                await expect_loss(consumer, kept_position)
                consumer.seek(T0, 0)
                assert await read(consumer, more) == numbered("new", more)

    async def expect_loss(consumer: Consumer, kept_position: OffsetAndMetadata) -> None:
        for _ in range(2):  # The error repeats until the application moves the position.
            with pytest.raises(
                SourceLost, match="t-0: the topic was deleted and created again"
            ) as (caught):
                await read(consumer, 1)
            error = caught.value
            assert (error.topic, error.partition, error.position) == ("t", 0, 8)
            assert error.is_recreated
            assert error.old_id == kept_position.topic_id != error.new_id
            assert error.exit_code == 5

    asyncio.run(main())


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_the_reset_policy_decides_where_reading_resumes(
    tmp_path: Path, reset: Literal["earliest", "latest"]
) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as log:
            await log.admin().create_topics([NewTopic("t", 1)])
            await write(log, numbered("old", 8))
            async with log.consumer(auto_offset_reset=reset) as consumer:
                consumer.assign([T0])
                consumer.seek(T0, 0)
                await read(consumer, 8)
                kept_position = consumer.offset_and_metadata(T0, 8)
            await recreate(log, numbered("new", 3))
            async with log.consumer(auto_offset_reset=reset) as consumer:
                consumer.assign([T0])
                consumer.seek(T0, kept_position)
                await consumer.poll(timeout_ms=1_000, max_records=0)
                async with asyncio.timeout(30):
                    while consumer.positions()[T0] == 8:
                        await consumer.poll(timeout_ms=100, max_records=0)
                await write(log, [b"last"])
                wanted = [*numbered("new", 3), b"last"] if reset == "earliest" else [b"last"]
                assert await read(consumer, len(wanted)) == wanted

    asyncio.run(main())
