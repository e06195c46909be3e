"""Followers of Connect's topics: what they wait for, and that they do not wait for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from streamlog.errors import RequestTimedOut
from streamlog.log import Log
from streamlog.records.batch import LogRecord
from streamlog.worker.connect import compacted_topic
from streamlog.worker.connect.compacted_topic import CompactedTopic


def following(
    path: Path, story: Callable[[CompactedTopic, list[LogRecord]], Awaitable[None]]
) -> None:
    """Follow a topic that has one transaction of two records, and its marker at offset 2."""

    async def run() -> None:
        seen: list[LogRecord] = []
        async with Log.open(f"embedded:{path}/log", listen=False) as log:
            topic = CompactedTopic(log, "configs", 1, seen.append)
            await topic.open()
            async with log.producer(transactional_id="leader") as producer, producer.transaction():
                for key in (b"a", b"b"):
                    await producer.send("configs", b"1", key=key)
            following = asyncio.create_task(topic.run())
            await story(topic, seen)
            following.cancel()

    asyncio.run(run())


def test_what_lies_before_an_offset_is_applied_behind_it(tmp_path: Path) -> None:
    async def story(topic: CompactedTopic, seen: list[LogRecord]) -> None:
        await topic.read_to(0)
        await topic.read_to(2)
        assert [record.key for record in seen] == [b"a", b"b"]
        # The last record need not be there: a marker, or what compaction has left, ends the topic.
        await topic.read_to(3)

    following(tmp_path, story)


def test_an_offset_that_the_topic_does_not_have_is_an_error_in_time(tmp_path: Path) -> None:
    async def story(topic: CompactedTopic, seen: list[LogRecord]) -> None:
        with (
            patch.object(compacted_topic, "CATCH_UP_MS", 300),
            pytest.raises(RequestTimedOut, match="configs was not read"),
        ):
            await topic.read_to(100)
        assert len(seen) == 2

    following(tmp_path, story)
