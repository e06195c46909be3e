"""A promotion whose source is Apache Kafka, which can't be sealed: its ends have to stand still.

Needs a broker: STREAMLOG_KAFKA=HOST:PORT (`make conformance-kafka`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.admin import MirrorStatus, NewTopic, PromotionOutcome, PromotionPatience
from streamlog.errors import PromotionGivenUp
from streamlog.log import Log
from tests.broker.mirroring.test_mirrors import serving, until

KAFKA = os.environ.get("STREAMLOG_KAFKA", "")
pytestmark = pytest.mark.skipif(not KAFKA, reason="needs Apache Kafka: STREAMLOG_KAFKA=HOST:PORT")

Promote = Callable[[PromotionPatience], Awaitable[PromotionOutcome]]


@asynccontextmanager
async def mirrored() -> AsyncIterator[tuple[Log, Log, Broker, str, Promote]]:
    """Yield clients of Kafka and of a broker that mirrors a topic there, and what promotes it."""
    topic = f"moved-{secrets.token_hex(4)}"
    async with (
        serving(MemoryFiles()) as (target, target_at),
        Log.open(f"kafka://{KAFKA}") as there,
        Log.open(f"kafka://{target_at}") as here,
    ):
        await there.admin().create_topics([NewTopic(topic, 1)])
        settings = {
            "bootstrap.servers": KAFKA,
            "topics": topic,
            "refresh.topics.interval.ms": "50",
        }
        await here.admin().create_link("kafka", settings, source_cluster_id=there.cluster_id)
        await until(lambda: topic in target.directory.topics)

        async def promote(patience: PromotionPatience) -> PromotionOutcome:
            mirrors = (await here.admin().describe_mirrors()).mirrors
            return await here.admin().promote_mirrors(
                there.admin(), mirrors, copies_groups=False, patience=patience
            )

        yield there, here, target, topic, promote


def test_a_kafka_that_gets_records_is_not_taken_over_until_it_gets_none() -> None:
    async def story() -> None:
        async with mirrored() as (there, here, target, topic, promote):
            count = 0

            async def write(stop: asyncio.Event) -> None:
                nonlocal count
                async with there.producer() as producer:
                    while not stop.is_set():
                        await (await producer.send(topic, b"x", partition=0))
                        count += 1
                        await asyncio.sleep(0.05)

            stop = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(write(stop))
                with pytest.raises(PromotionGivenUp, match="nothing has changed"):
                    await promote(PromotionPatience(timeout_ms=3_000, still_ms=1_000))
                stop.set()
            (mirror,) = (await here.admin().describe_mirrors()).mirrors
            assert mirror.status is not MirrorStatus.PROMOTED
            outcome = await promote(PromotionPatience(timeout_ms=60_000, still_ms=1_000))
            assert (outcome.promoted, outcome.is_sealed) == ((topic,), False)
            assert target.directory.topics[topic].partitions[0].log_end_offset == count

    asyncio.run(story())


def test_a_kafka_with_an_open_transaction_is_not_taken_over() -> None:
    async def story() -> None:
        async with mirrored() as (there, _, target, topic, promote):
            async with (
                there.producer(transactional_id=f"{topic}-writer") as producer,
                producer.transaction(),
            ):
                await (await producer.send(topic, b"open", partition=0))
                with pytest.raises(PromotionGivenUp, match="a transaction is open"):
                    await promote(PromotionPatience(timeout_ms=3_000, still_ms=500))
            outcome = await promote(PromotionPatience(timeout_ms=60_000, still_ms=500))
            assert outcome.promoted == (topic,)
            # The record and its marker.
            assert target.directory.topics[topic].partitions[0].log_end_offset == 2

    asyncio.run(story())
