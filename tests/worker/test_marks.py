"""Where brokers write no time marks it is told, once, by whom they are missed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.assignors import TopicPartition
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.worker.marks import Marks
from tests.client.clusters import mocked

PLACES = [TopicPartition("sales", number) for number in range(2)]


async def wanted(log: Log) -> None:
    async with log.consumer(time_marks=True) as consumer:
        consumer.assign(PLACES)
        marks = Marks(log, consumer)
        await marks.want(TaskId(0, 0), PLACES[0], None)
        for _ in range(2):
            await marks.want(TaskId(0, 1), PLACES[1], 500)


def test_where_none_are_written_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with mocked(sales=len(PLACES)) as log:
            await wanted(log)

    asyncio.run(main())
    (told,) = [each for each in caplog.records if "time marks" in each.getMessage()]
    assert "as in task 0_1 for sales-1" in told.getMessage()


def test_where_they_are_written_nothing_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            await log.admin().create_topics([NewTopic("sales", len(PLACES))])
            await wanted(log)

    asyncio.run(main())
    assert not [each for each in caplog.records if "time marks" in each.getMessage()]
