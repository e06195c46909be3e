"""Statuses that the log does not take: who is told, and which are written again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlog import repeated
from streamlog.client.admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.connect.herding.herder import Herder
from streamlog.connect.herding.herder_requests import ConnectorSlot, ConnectRefusal, WriteStatus
from streamlog.connect.herding.statuses import ConnectStatuses, Status
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.worker.connect.app_herder import DeclaredPlugins
from streamlog.worker.connect.compacted_topic import CompactedTopic
from streamlog.worker.connect.connector_topics import ConnectorTopics
from streamlog.worker.connect.status_writer import LostStatus, StatusWriter

TOPIC = "connect-status"
WAIT_S = 120
QUICK = {"linger_ms": 0, "request_timeout_ms": 100, "delivery_timeout_ms": 150}


def status(state: str, trace: str | None = None) -> WriteStatus:
    text: Any = state
    return WriteStatus(("in", 0), Status(state=text, worker_id="a:1", generation=1, trace=trace))


@asynccontextmanager
async def topic_of(path: Path, **configs: str) -> AsyncIterator[Log]:
    repeated.forget()
    async with Log.open(f"embedded:{path}/log", listen=False) as log:
        await log.admin().create_topics([NewTopic(TOPIC, 1, configs=configs)])
        yield log


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what it waits for is elsewhere
            await asyncio.sleep(0.01)


async def until_records(log: Log, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len((await log.read_range(TopicPartition(TOPIC, 0))).keys) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the worker's log says; the producer has lines of its own."""
    ours = "streamlog.worker.connect"
    return [each.getMessage() for each in caplog.records if each.name.startswith(ours)]


async def states(log: Log) -> list[str]:
    """Return the states that the topic has."""
    found = ConnectStatuses()
    rows = await log.read_range(TopicPartition(TOPIC, 0))
    seen = []
    for key, value in zip(rows.keys, rows.values, strict=True):
        assert found.replay(key, value) == ("in", 0)
        seen.append(str(found.statuses["in", 0].state))
    return seen


def test_a_status_that_is_refused_is_told_and_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        lost: list[LostStatus] = []
        async with (
            topic_of(tmp_path, **{"max.message.bytes": "400"}) as log,
            log.producer() as producer,
        ):
            writer = StatusWriter(producer, TOPIC, lost.append)
            await writer.write(status("RUNNING"))
            await writer.write(status("FAILED", trace="x" * 1_000))
            await until(lambda: bool(told(caplog)))
            assert await states(log) == ["RUNNING"]
        assert not lost

    asyncio.run(run())
    (message,) = told(caplog)
    assert message.startswith(f"the status FAILED of task 0 of connector in is not in {TOPIC}: ")


def test_the_newest_status_is_written_once_the_log_takes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        queue: asyncio.Queue[LostStatus] = asyncio.Queue()
        async with topic_of(tmp_path) as log, log.producer(**QUICK) as producer:
            writer = StatusWriter(producer, TOPIC, queue.put_nowait)

            async def write_again() -> None:
                while True:
                    await writer.write(await queue.get())

            async def lose(state: str) -> None:
                await log.admin().delete_topics([TOPIC])
                await writer.write(status(state))
                await until(lambda: not queue.empty())
                await log.admin().create_topics([NewTopic(TOPIC, 1)])

            assert await producer.partitions(TOPIC) == 1
            await lose("RUNNING")
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(write_again())
                await until_records(log, 1)
                writing.cancel()
            assert {*await states(log)} == {"RUNNING"}
            await lose("RESTARTING")
            # A newer one has waited in the queue meanwhile, in front of the lost one.
            await writer.write(status("PAUSED"))
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(write_again())
                await until_records(log, 1)
                await until(queue.empty)
                writing.cancel()
            assert {*await states(log)} == {"PAUSED"}

    asyncio.run(run())
    for state in ("RUNNING", "RESTARTING"):
        start = f"the status {state} of task 0 of connector in is not in {TOPIC}, and is written"
        assert any(each.startswith(start) for each in told(caplog))


@asynccontextmanager
async def noting(log: Log) -> AsyncIterator[ConnectorTopics]:
    herder = Herder("a:1", DeclaredPlugins(()))
    herder.configs.replay(b"connector-in", b'{"properties":{"connector.class":"x"}}', 0)

    def read(record: LogRecord) -> None:
        herder.statuses.replay(record.key, record.value)

    follower = CompactedTopic(log, TOPIC, 1, read)
    await follower.open()
    async with log.producer() as producer, asyncio.TaskGroup() as group:
        topics = ConnectorTopics(herder, TOPIC, SystemClock(), {})
        topics.write_with(producer, follower)
        running = group.create_task(follower.run())
        yield topics
        running.cancel()


def test_a_topic_that_is_not_noted_is_noted_by_a_later_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        admin_of = {"max.message.bytes": "70"}
        async with topic_of(tmp_path, **admin_of) as log, noting(log) as topics:
            slot = ConnectorSlot("in", 0)
            await topics.note(slot, ["a"])
            await until(lambda: not topics.of("in"))
            await log.admin().alter_configs({"max.message.bytes": "1000000"}, topic=TOPIC)
            await topics.note(slot, ["a"])
            await until_records(log, 1)
            assert topics.of("in") == ["a"]

    asyncio.run(run())
    (message,) = told(caplog)
    assert message.startswith(f"that connector in uses topic a is not in {TOPIC}; a later commit")


def test_who_resets_the_topics_of_a_connector_hears_that_they_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with topic_of(tmp_path) as log, noting(log) as topics:
            await topics.note(ConnectorSlot("in", 0), ["a", "b"])
            await until_records(log, 2)
            await log.admin().alter_configs({"max.message.bytes": "70"}, topic=TOPIC)
            with pytest.raises(ConnectRefusal, match="2 of the 2 topics of connector in") as hit:
                await topics.reset("in")
            assert hit.value.status == 500
            assert topics.of("in") == ["a", "b"]
            # Its connector is deleted: who asked for that has got it.
            await topics.deleted("in")
            await log.admin().alter_configs({"max.message.bytes": "1000000"}, topic=TOPIC)
            await topics.reset("in")
            assert topics.of("in") == []

    asyncio.run(run())
    (message,) = told(caplog)
    assert message.startswith("connector in is deleted, but: 2 of the 2 topics of connector in")
