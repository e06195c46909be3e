"""Logs and state directories of earlier commits are opened by this one, and work continues on them.

The second half of the story runs on the first half of an earlier commit. Then the output topics
hold what the test driver of this commit writes for both halves together.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.compatibility import story
from tests.worker import shop
from tests.worker.processes import streamlog

SAMPLES = sorted((Path(__file__).parent / "samples").glob("*.tar.xz"))


@pytest.fixture(params=SAMPLES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def driven() -> dict[str, list[list[Any]]]:
    """Return the rows that the test driver writes for both halves."""
    test = shop.build(story.APP).test()
    for topic, partition, key, value, at_ms in [*story.half(0), *story.half(1)]:
        test.topic(topic).append(
            value,
            key=key.encode(),
            timestamp_ms=at_ms,
            partition=None if partition < 0 else partition,
        )
    with test:
        return {
            name: sorted(
                [partition, repr(r.key), repr(r.value), r.timestamp_ms]
                for partition, r in test.topic(f"{story.APP}-{name}").arrivals
            )
            for name in story.OUTPUTS
        }


async def last_values(log: Log, topic: str) -> dict[str, str]:
    consumer = log.consumer(isolation_level="read_committed", auto_offset_reset="earliest")
    found: dict[str, str] = {}
    async with consumer, asyncio.timeout(60):
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        while (await consumer.position(tp)) < end:
            for record in (await consumer.poll(timeout_ms=200)).get(tp, ()):
                key = str(record.offset) if record.key is None else record.key.decode()
                found[key] = (record.value or b"").decode()
    return found


def test_records_offsets_and_settings_of_a_sample_are_found(directory: Path) -> None:
    async def check() -> None:
        async with Log.open(f"embedded:{directory / 'log'}") as log:
            assert await story.rows_of(log) == json.loads((directory / "rows.json").read_text())
            assert [*(await last_values(log, "ledger")).values()] == story.LEDGER
            assert await last_values(log, "latest") == story.LATEST
            async with log.consumer(group_id="readers") as consumer:
                tp = TopicPartition("ledger", 0)
                assert await consumer.committed([tp]) == {tp: story.COMMITTED}
            settings = await log.admin().describe_configs("latest")
            assert settings["cleanup.policy"].value == "compact"

    asyncio.run(check())


def test_a_worker_continues_with_state_and_offsets(directory: Path) -> None:
    expected = driven()

    async def feed() -> None:
        async with Log.open(f"embedded:{directory / 'log'}") as log:
            await story.feed(log, story.half(1))

    async def read() -> dict[str, list[list[Any]]]:
        async with Log.open(f"embedded:{directory / 'log'}") as log:
            return await story.rows_of(log)

    asyncio.run(feed())
    story.work(directory, settled=len(expected["settled"]))
    assert asyncio.run(read()) == expected


def test_the_files_of_a_stopped_log_are_verified(directory: Path) -> None:
    code, output = streamlog("log", "verify", str(directory / "log"), cwd=directory)
    assert code == 0, output
