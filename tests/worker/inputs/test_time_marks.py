"""Waiting tasks get time marks; a lagging input advances by the log's marks or its worker's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog import App, Windowed, tumbling
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.records.control_batches import ClockTime
from streamlog.topology import Topology
from streamlog.worker.inputs import input_ends as module
from streamlog.worker.inputs.input_ends import TimeMarkRequests
from tests.client.clusters import mocked

PARTITIONS = [TopicPartition("sales", number) for number in range(2)]
FIRST, SECOND = TaskId(0, 0), TaskId(0, 1)
PATIENCE_S = 60


def topology() -> Topology:
    app = App("till")
    sales = app.topic("sales", key=str, value=str)
    out = app.topic("out", key=Windowed[str], value=int)
    grouped = app.stream(sales).group_by(lambda _, sale: sale, name="again")
    grouped.windowed(tumbling("1m")).count(name="counts").changes().to(out)
    return app.topology()


def marks_on(log: Log, consumer: Consumer) -> TimeMarkRequests:
    counts = {"sales": len(PARTITIONS), "out": 1, "till-again-repartition": 2}
    return TimeMarkRequests(topology(), counts, log, consumer, SystemClock())


async def wanted(log: Log) -> None:
    async with log.consumer(time_marks=True) as consumer:
        consumer.assign(PARTITIONS)
        marks = marks_on(log, consumer)
        await marks.want(FIRST, PARTITIONS[0], None)
        for _ in range(2):
            await marks.want(SECOND, PARTITIONS[1], 500)


def test_a_log_without_time_marks_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with mocked(sales=len(PARTITIONS)) as log:
            await wanted(log)

    asyncio.run(main())
    (logged,) = [each for each in caplog.records if "time marks" in each.getMessage()]
    assert "as in task 0_1 for sales-1" in logged.getMessage()


def test_a_log_with_time_marks_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            await log.admin().create_topics([NewTopic("sales", len(PARTITIONS))])
            await wanted(log)

    asyncio.run(main())
    assert not [each for each in caplog.records if "time marks" in each.getMessage()]


@asynccontextmanager
async def looking(log: Log) -> AsyncIterator[TimeMarkRequests]:
    """Yield requests: the first partition ends after a record at 90 s, the second is empty."""
    async with log.producer() as producer:
        await (await producer.send("sales", b"a", partition=0, timestamp_ms=90_000))
    async with log.consumer(time_marks=True) as consumer, asyncio.TaskGroup() as group:
        consumer.assign(PARTITIONS)
        marks = marks_on(log, consumer)
        marks.note(FIRST, {PARTITIONS[0]: (1, 90_000)}, {})
        marks.note(SECOND, {PARTITIONS[1]: (0, -1)}, {PARTITIONS[1]: 0})
        running = group.create_task(marks.run())
        yield marks
        running.cancel()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():  # noqa: ASYNC110 - the state of another task
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CALM_MS", "UNMARKED_CALM_MS", "SAMPLE_INTERVAL_MS"):
        monkeypatch.setattr(module, name, 20)


def test_a_mark_advances_an_empty_partition_to_its_topics_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            quiet = NewTopic("sales", len(PARTITIONS), configs={"mark.quiet.ms": "20"})
            await log.admin().create_topics([quiet])
            async with looking(log) as marks:
                consumer = marks._consumer
                found = {}
                async with asyncio.timeout(PATIENCE_S):
                    while PARTITIONS[1] not in found:
                        await marks.want(SECOND, PARTITIONS[1], None)
                        await consumer.poll_columns(timeout_ms=20)
                        found |= consumer.time_marks()
                assert marks.reached_times(SECOND) == {}
                (mark,) = found[PARTITIONS[1]]
                assert mark.clock_times == (ClockTime("till:record", 90_000),)

    asyncio.run(main())


def test_without_marks_the_task_learns_the_time_from_its_worker() -> None:
    async def main() -> None:
        async with mocked(sales=len(PARTITIONS)) as log, looking(log) as marks:
            await until(lambda: bool(marks.reached_times(SECOND)))
            assert marks.reached_times(SECOND) == {PARTITIONS[1]: 90_000}
            assert marks.reached_times(FIRST) == {}

    asyncio.run(main())
