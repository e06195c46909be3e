"""Settings of an app's clients reach the clients of its worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from streamlog import App
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import RecordBatch
from streamlog.worker.worker import Worker


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_rows_are_written_with_the_producers_settings(
    tmp_path: Path, guarantee: Literal["exactly_once", "at_least_once"]
) -> None:
    app = App(
        "shop",
        log=f"embedded:{tmp_path}/log",
        commit_interval="20ms",
        guarantee=guarantee,
        consumer={"fetch.max.bytes": "1000000", "client.rack": "a"},
        producer={"compression.type": "zstd"},
    )
    raw = app.topic("raw", key=str, value=str, partitions=1)
    out = app.topic("out", key=str, value=str, partitions=1)
    app.stream(raw).map_values(lambda value: value * 1_000).to(out)

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            stop, started = asyncio.Event(), asyncio.Event()
            worker = Worker(app.program(), log_url=app.log, announce=lambda _: started.set())
            group.create_task(worker.run(stop))
            await started.wait()
            async with (
                Log.open(app.log) as log,
                log.producer() as producer,
                log.consumer(auto_offset_reset="earliest") as consumer,
            ):
                await (await producer.send("raw", b"x", partition=0))
                consumer.assign([TopicPartition("out", 0)])
                found: list[RecordBatch] = []
                async with asyncio.timeout(30):
                    while not found:
                        polled = await consumer.poll_batches(timeout_ms=100)
                        found = [each for batches in polled.values() for each in batches]
                assert found[0].is_compressed
            stop.set()

    asyncio.run(story())
