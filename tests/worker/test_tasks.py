"""Async functions in a worker: commits do not wait for them, and a kill loses none of them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from streamlog.log import Log
from streamlog.processing.outbox import TaskCall
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.worker.tasks import TaskCalls
from tests.worker.processes import STREAMLOG, attached, read_until, running

APP = """
import asyncio
import os
from streamlog import App

app = App("asks", log="embedded:./log", state_dir="./state", commit_interval="20ms")
numbers = app.topic("numbers", key=str, value=str, partitions=1)
answers = app.topic("answers", key=str, value=str, partitions=1)

async def ask(number: str) -> str:
    # Each tenth is answered only once the file exists.
    while number.endswith("0") and not os.path.exists("open"):
        await asyncio.sleep(0.01)
    return number + "!"

app.stream(numbers).amap_values(ask, max_in_flight=10, ordered="key").to(answers)
"""
WORKER = (*STREAMLOG, "-A", "asks", "worker")
READY = "rebalance: this worker has 1 partition"
KEYS = 5


async def feed(log: Log, numbers: range) -> None:
    async with log.producer() as producer:
        for number in numbers:
            key = b"%d" % (number % KEYS)
            await producer.send("numbers", b"%d" % number, key=key)
        await producer.flush()


async def wait_for_answers(count: int, log: Log) -> list[LogRecord]:
    def enough(found: list[tuple[int, LogRecord]]) -> bool:
        return len({record.value for _, record in found}) >= count

    return [record for _, record in await read_until(log, "answers", enough)]


async def committed(log: Log, offset: int) -> None:
    topic_partition = TopicPartition("numbers", 0)
    async with asyncio.timeout(120):
        while True:
            if (await log.admin().group_offsets("asks")).get(topic_partition, 0) >= offset:
                return
            await asyncio.sleep(0.01)


def test_commits_do_not_wait_for_async_calls_which_survive_a_kill(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(APP)
    with running(*WORKER, cwd=tmp_path) as worker:
        worker.line(READY)

        async def half(log: Log) -> None:
            # All but the tenth, which waits for the file.
            await feed(log, range(1, 15))
            await wait_for_answers(13, log)
            await committed(log, 14)

        attached("embedded:" + str(tmp_path / "log"), half)
        worker.kill()
    (tmp_path / "open").touch()
    with running(*WORKER, cwd=tmp_path) as worker:
        worker.line(READY)

        async def rest(log: Log) -> list[LogRecord]:
            await feed(log, range(15, 40))
            return await wait_for_answers(39, log)

        records = attached("embedded:" + str(tmp_path / "log"), rest)
        assert worker.stop() == 0
    values = [record.value for record in records]
    assert {*values} == {b"%d!" % number for number in range(1, 40)}
    for key in range(KEYS):
        of_key = [int((each.value or b"!")[:-1]) for each in records if each.key == b"%d" % key]
        first = list(dict.fromkeys(of_key))
        assert first == sorted(first)


def test_async_calls_of_a_revoked_task_are_cancelled() -> None:
    async def main() -> None:
        cancelled = asyncio.Event()

        async def hangs() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async def answers(value: int) -> int:
            return value

        async with asyncio.TaskGroup() as group:
            calls = TaskCalls(group)
            kept, revoked = TaskId(0, 0), TaskId(0, 1)
            calls.start(revoked, [TaskCall("n", 0, hangs)])
            calls.start(kept, [TaskCall("n", 0, partial(answers, 7))])
            for _ in range(10):  # Rounds of the event loop, of which one or two are needed.
                await asyncio.sleep(0)
            assert calls.has_results(kept)
            assert len(calls) == 1
            calls.cancel(revoked)
            await cancelled.wait()
        assert [result.value for result in calls.take(kept)] == [7]
        assert calls.take(kept) == calls.take(revoked) == []

    asyncio.run(main())
