"""A worker that was idle or down finds a backlog, and no pair of a join is lost.

A record's partner comes directly or through one or two repartition topics; the whole backlog
arrives at once, by a transaction or before the worker starts.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.processing.inputs.end_of_input import EndOfInputQuestion
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.worker.inputs.input_ends import PAUSE_MS, InputEnds
from tests.worker.processes import DEADLINE_S, STREAMLOG, attached, read_until, running

APP = """
import os
from streamlog import App, Stream

app = App("pairs", log="embedded:./log", state_dir="./state", commit_interval="50ms",
          guarantee=os.environ["GUARANTEE"])
first = app.topic("first", key=str, value=str, partitions=1)
ways = [app.topic(name, key=str, value=str, partitions=1) for name in ("near", "far", "farther")]

def same(key: str, _: str) -> str:
    return key

def pair(one: str, other: str) -> str:
    return one + other

for hops, topic in enumerate(ways):
    other: Stream[str, str] = app.stream(topic)
    for hop in range(hops):
        other = other.rekey(same).repartition(name=f"{topic.name}-{hop}")
    out = app.topic(f"out-{topic.name}", key=str, value=str, partitions=1)
    app.stream(first).join(other, pair, within="1s", name=f"with-{topic.name}").to(out)
"""
WORKER = (*STREAMLOG, "-A", "pairs", "worker")
TOPICS = ("first", "near", "far", "farther")
STEP_MS = 10_000
"""Far longer than the window, and than the distance between live streams."""
BACKLOG = 300


async def send(log: Log, numbers: range) -> None:
    """Write a record of each number to each topic in one transaction."""
    async with log.producer(transactional_id="feed") as producer, producer.transaction():
        for topic in TOPICS:
            for number in numbers:
                key = b"%d" % number
                await producer.send(topic, key, key=key, timestamp_ms=number * STEP_MS)


async def all_are_paired(log: Log, count: int) -> None:
    for name in TOPICS[1:]:
        rows = await read_until(log, f"out-{name}", lambda rows: len(rows) >= count)
        assert [row.value for _, row in rows] == [b"%d%d" % (n, n) for n in range(count)]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_backlog_is_joined_after_idle_time_and_after_a_restart(
    tmp_path: Path, guarantee: str
) -> None:
    (tmp_path / "pairs.py").write_text(APP)
    url = f"embedded:{tmp_path / 'log'}"

    async def feed(log: Log) -> None:
        await send(log, range(1))
        await all_are_paired(log, 1)
        await send(log, range(1, BACKLOG))
        await all_are_paired(log, BACKLOG)

    with running(*WORKER, cwd=tmp_path, GUARANTEE=guarantee) as worker:
        worker.line("rebalance: this worker has")
        attached(url, feed)
        assert worker.stop() == 0

    async def feed_alone() -> None:
        async with Log.open(url, listen=False) as log:
            await send(log, range(BACKLOG, 2 * BACKLOG))

    asyncio.run(feed_alone())
    with running(*WORKER, cwd=tmp_path, GUARANTEE=guarantee) as worker:
        worker.line("rebalance: this worker has")
        attached(url, lambda log: all_are_paired(log, 2 * BACKLOG))
        assert worker.stop() == 0


async def ask_again(path: Path) -> None:
    """Ask about an end, drop the question before it is settled, and ask again."""
    app = App("ends")
    events = app.stream(app.topic("events", key=str, value=str))
    out = app.topic("out", key=str, value=str)
    events.rekey(lambda key, _: key).repartition(name="again").to(out)
    own = TopicPartition("ends-again-repartition", 0)
    pending = EndOfInputQuestion((own.topic, 0), ("events", 0), 0, {}, 0)
    task_id = TaskId(1, 0)
    async with Log.open(f"embedded:{path}") as log:
        await log.admin().create_topics([NewTopic("events", 1), NewTopic(own.topic, 1)])
        async with log.producer() as producer:
            await producer.send("events", b"one", key=b"key")
        async with log.consumer(group_id="ends") as consumer, asyncio.TaskGroup() as group:
            counts = {"events": 1, own.topic: 1, "out": 1}
            ends = InputEnds(app.topology(), counts, log, consumer, SystemClock())
            ends.note(task_id, [pending])
            ends.note(task_id, [])
            request = group.create_task(ends.run())
            # The worker is idle by then; if it were not, it would only ask sooner.
            await asyncio.sleep(10 * PAUSE_MS / 1000)
            source = TopicPartition("events", 0)
            consumer.assign([source])
            await consumer.commit({source: 1})
            ends.note(task_id, [pending])
            async with asyncio.timeout(DEADLINE_S):
                while not ends.has_settled(task_id):  # noqa: ASYNC110 - the worker's loop looks, too
                    await asyncio.sleep(0.01)
            request.cancel()


def test_a_dropped_end_question_is_asked_again(tmp_path: Path) -> None:
    asyncio.run(ask_again(tmp_path / "log"))
