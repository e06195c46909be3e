"""The feed of an agent: bounded, in order, committed up to what is handled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from streamlog import App, Stream
from streamlog.assignors import TopicPartition
from streamlog.client.admin import NewTopic
from streamlog.dsl.agent import Agent
from streamlog.errors import ProcessingError
from streamlog.log import Log
from streamlog.records.batch import Record
from streamlog.worker.agents import FEED_RECORDS_MAX, AgentLoop
from streamlog.worker.pauses import Pauses

PART = TopicPartition("words", 0)
OTHER = TopicPartition("words", 1)
Function = Callable[[Stream[str, str]], Awaitable[None]]


def agent_of(fn: Function) -> Agent[str, str]:
    app = App("a")
    return app.agent(app.topic("words", key=str, value=str))(fn)


def records(start: int, end: int) -> list[Record]:
    return [Record(offset, 0, None, b"%d" % offset) for offset in range(start, end)]


def with_loop(
    path: Path, fn: Function, story: Callable[[AgentLoop, Pauses], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{path}", listen=False) as log, log.consumer() as consumer:
            await log.admin().create_topics([NewTopic("words", 2)])
            consumer.assign([PART, OTHER])
            pauses = Pauses(consumer)
            loop = AgentLoop(agent_of(fn), pauses)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(loop.run())
                await story(loop, pauses)
                loop.end()

    asyncio.run(main())


def test_records_come_in_order_and_count_once_the_next_is_asked_for(tmp_path: Path) -> None:
    seen: list[str] = []
    go_on = asyncio.Event()
    begun = asyncio.Event()

    async def fn(stream: Stream[str, str]) -> None:
        async for word in stream:
            seen.append(word)
            begun.set()
            await go_on.wait()

    async def story(loop: AgentLoop, _: Pauses) -> None:
        loop.assign({PART: 5, OTHER: 0})
        loop.take({PART: records(3, 8)})
        await begun.wait()
        assert seen == ["5"]
        assert loop.offsets == {PART: 5, OTHER: 0}
        go_on.set()
        await loop.revoke()
        assert loop.offsets == {PART: 6, OTHER: 0}
        loop.take({PART: records(6, 8)})
        assert seen == ["5"]

    with_loop(tmp_path / "log", fn, story)


def test_a_full_feed_holds_its_partitions_back_until_there_is_room(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    handled = asyncio.Event()

    async def fn(stream: Stream[str, str]) -> None:
        async for word in stream:
            await go_on.wait()
            if word == str(FEED_RECORDS_MAX):
                handled.set()

    async def story(loop: AgentLoop, pauses: Pauses) -> None:
        loop.assign({PART: 0})
        loop.take({PART: records(0, FEED_RECORDS_MAX)})
        assert not pauses
        loop.take({PART: records(FEED_RECORDS_MAX, FEED_RECORDS_MAX + 2)})
        assert len(pauses) == 1
        go_on.set()
        await handled.wait()
        assert not pauses

    with_loop(tmp_path / "log", fn, story)


@pytest.mark.parametrize("word", [b"bad", b"\xff"])
def test_what_fails_names_the_record(tmp_path: Path, word: bytes) -> None:
    async def fn(stream: Stream[str, str]) -> None:
        async for found in stream:
            raise ValueError(found)

    async def story(loop: AgentLoop, _: Pauses) -> None:
        loop.assign({OTHER: 0})
        loop.take({OTHER: [Record(7, 0, None, word)]})
        await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        with_loop(tmp_path / "log", fn, story)
    (error,) = caught.value.exceptions
    assert isinstance(error, ProcessingError)
    assert (error.topic, error.partition, error.offset) == ("words", 1, 7)


def test_an_agent_must_not_leave_its_loop(tmp_path: Path) -> None:
    async def fn(stream: Stream[str, str]) -> None:
        async for _ in stream:
            break

    async def story(loop: AgentLoop, _: Pauses) -> None:
        loop.assign({PART: 0})
        loop.take({PART: records(0, 2)})
        await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        with_loop(tmp_path / "log", fn, story)
    assert "do not leave the loop" in str(caught.value.exceptions[0])
