"""Agents on a log: backpressure, and offsets and results in a committable state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from streamlog import App, Stream
from streamlog.agents.offsets import AgentPosition
from streamlog.agents.rows import AgentRows
from streamlog.client.admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.testing.driver_tables import DriverTaskRows
from streamlog.worker import worker_agents
from streamlog.worker.health.worker_metrics import WorkerMetrics
from streamlog.worker.inputs.assigned_partitions import Pauses
from streamlog.worker.worker import Worker
from streamlog.worker.worker_agents import FEED_RECORDS_MAX, WorkerAgents

PART = TopicPartition("words", 0)
OTHER = TopicPartition("words", 1)
Words = Stream[str, str]


def records(start: int, end: int) -> list[LogRecord]:
    return [LogRecord(offset, 0, b"k%d" % offset, b"%d" % offset) for offset in range(start, end)]


def with_agents(
    path: Path,
    story: Callable[[WorkerAgents, Pauses, Log], Awaitable[None]],
    *fns: Callable[[Words], Any],
    sinks: bool = False,
) -> None:
    async def main() -> None:
        app = App("a")
        words = app.topic("words", key=str, value=str)
        out = app.topic("out", key=str, value=str)
        for fn in fns:
            app.agent(words, sink=out if sinks else None)(fn)
        async with (
            Log.open(f"embedded:{path}", listen=False) as log,
            log.consumer() as consumer,
            log.producer() as producer,
        ):
            await log.admin().create_topics([NewTopic("words", 2), NewTopic("out", 1)])
            consumer.assign([PART, OTHER])
            pauses = Pauses(consumer)
            rows = AgentRows({}, {}, {}, DriverTaskRows({}))
            agents = WorkerAgents(
                app.agents, pauses, producer, SystemClock(), WorkerMetrics(), rows=rows
            )
            async with asyncio.TaskGroup() as tasks:
                agents.start(tasks)
                await story(agents, pauses, log)
                await agents.finish()

    asyncio.run(main())


def test_each_agent_has_its_own_position(tmp_path: Path) -> None:
    started, started_too, release = asyncio.Event(), asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def slow(stream: Words) -> None:
        async for _ in stream:
            started.set()
            await release.wait()

    async def fast(stream: Words) -> None:
        async for word in stream:
            seen.insert(0, word)
            started_too.set()

    async def story(agents: WorkerAgents, _: Pauses, __: Log) -> None:
        agents.assign({PART: 5, OTHER: 0}, {PART: {"fast": AgentPosition(6, [(7, 8)])}})
        agents.take({PART: records(3, 8)})
        await started.wait()
        await started_too.wait()
        assert agents.positions[PART]["slow"] == AgentPosition(5, [])
        assert agents.positions[OTHER] == {
            "slow": AgentPosition(0, []),
            "fast": AgentPosition(0, []),
        }
        release.set()
        await agents.revoke()
        assert agents.positions[PART]["slow"].position >= 6
        # Records handled before the restart do not come again.
        assert seen == ["6"]
        assert agents.positions[PART]["fast"].position == 8
        before = agents.positions
        agents.take({PART: records(8, 9)})
        assert agents.positions == before
        # Its new owner has continued: nothing is committed here any more.
        agents.give_up({PART})
        assert agents.positions.keys() == {OTHER}

    with_agents(tmp_path / "log", story, slow, fast)


def test_a_full_feed_pauses_its_partitions_until_there_is_room(tmp_path: Path) -> None:
    release, handled = asyncio.Event(), asyncio.Event()

    async def fn(stream: Words) -> None:
        async for word in stream:
            await release.wait()
            if word == str(FEED_RECORDS_MAX):
                handled.set()

    async def story(agents: WorkerAgents, pauses: Pauses, _: Log) -> None:
        agents.assign({PART: 0}, {})
        agents.take({PART: records(0, FEED_RECORDS_MAX)})
        assert not pauses
        agents.take({PART: records(FEED_RECORDS_MAX, FEED_RECORDS_MAX + 2)})
        assert len(pauses) == 1
        release.set()
        await handled.wait()
        assert not pauses

    with_agents(tmp_path / "log", story, fn)


def test_yielded_values_are_acknowledged_by_a_flush(tmp_path: Path) -> None:
    handled = asyncio.Event()

    async def shout(stream: Words) -> AsyncIterator[str]:
        async for word in stream:
            yield word + "!"
            if word == "2":
                handled.set()

    async def story(agents: WorkerAgents, _: Pauses, log: Log) -> None:
        agents.assign({PART: 0}, {})
        agents.take({PART: records(0, 3)})
        await handled.wait()
        await agents.flush()
        out = TopicPartition("out", 0)
        async with log.consumer(auto_offset_reset="earliest") as reader:
            reader.assign([out])
            found: list[LogRecord] = []
            while len(found) < 3:
                found += (await reader.poll(timeout_ms=1_000)).get(out, [])
        assert [(each.key, each.value) for each in found] == [
            (b"k0", b"0!"),
            (b"k1", b"1!"),
            (b"k2", b"2!"),
        ]

    with_agents(tmp_path / "log", story, shout, sinks=True)


def test_an_agent_behind_a_transaction_marker_has_no_lag(tmp_path: Path) -> None:
    handled = asyncio.Event()

    async def see(stream: Words) -> None:
        async for _ in stream:
            handled.set()

    async def story(agents: WorkerAgents, _pauses: Pauses, log: Log) -> None:
        async with log.producer(transactional_id="t") as producer, producer.transaction():
            await producer.send("words", b"one", partition=0)
        async with log.consumer(isolation_level="read_committed") as consumer:
            consumer.assign([PART])
            await consumer.seek_to_beginning(PART)
            agents.assign({PART: 0}, {})
            while (read := consumer.positions().get(PART, 0)) < 2:
                agents.take(await consumer.poll(timeout_ms=200))
            await handled.wait()
            for _ in range(10):  # It asks for the next one.
                await asyncio.sleep(0)
            (sight,) = agents.sights(lambda _: 2, {PART: read}).values()
            assert (sight.positions, sight.is_behind) == ({PART: 2}, False)

    with_agents(tmp_path, story, see)


@pytest.mark.parametrize("waits_in_its_loop", [True, False])
def test_a_worker_ends_although_an_agent_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_in_its_loop: bool
) -> None:
    monkeypatch.setattr(worker_agents, "HANDLE_WAIT_MS", 50)
    app = App("mails", log=f"embedded:{tmp_path / 'log'}", state_dir=str(tmp_path / "state"))
    topic = app.topic("mails", key=str, value=str, partitions=1)
    stop, is_over = asyncio.Event(), asyncio.Event()

    @app.agent(topic)
    async def post(stream: Stream[str, str]) -> None:
        async for _ in stream:
            stop.set()
            if waits_in_its_loop:
                await is_over.wait()
        await is_over.wait()

    async def main() -> dict[TopicPartition, int]:
        async with Log.open(app.log or "") as log:
            await log.admin().create_topics([NewTopic("mails", 1)])
            async with log.producer() as producer:
                await producer.send("mails", b"hello", key=b"k")
            await Worker(app.program(), log_url=app.log or "", announce=lambda _: None).run(stop)
            return dict(await log.admin().group_offsets("mails"))

    # A record that the agent is at work on is not committed: another worker handles it again.
    committed = asyncio.run(main())
    assert committed.get(TopicPartition("mails", 0), 0) == (0 if waits_in_its_loop else 1)
