from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlog import App, Stream
from streamlog.dsl.agent import AgentFeed, AgentSlice, AgentStream
from streamlog.errors import (
    ConfigError,
    ProcessingError,
    RequestTimedOut,
    TopologyError,
    UsageError,
)
from streamlog.record import Record


class EndedFeed(AgentFeed):
    """The feed of a stream that has ended."""

    async def ahead(self) -> AgentSlice | None:
        return None

    async def gather(self, n: int, within_ms: int) -> list[Record[Any, Any]] | None:
        return None


def test_operators_are_refused_inside_an_agent() -> None:
    with pytest.raises(TopologyError, match=r"use app\.stream"):
        AgentStream[str, int](EndedFeed()).map_values(str)


def test_iteration_is_refused_outside_an_agent() -> None:
    app = App("agents")
    stream = app.stream(app.topic("numbers", key=str, value=int))
    for use in (stream.items, stream.records, stream.__aiter__, lambda: stream.take(1, "1s")):
        with pytest.raises(UsageError, match="function under @app"):
            use()


def test_only_async_functions_can_be_agents() -> None:
    app = App("agents")
    numbers = app.topic("numbers", key=str, value=int)

    def plain(_: Stream[str, int]) -> None: ...

    with pytest.raises(TopologyError, match="must be `async def`"):
        app.agent(numbers)(plain)


def test_agent_settings_are_checked() -> None:
    app = App("agents")
    numbers = app.topic("numbers", key=str, value=int)

    async def silent(_: Stream[str, int]) -> None: ...

    async def yields(_: Stream[str, int]) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TopologyError, match="does not `yield`"):
        app.agent(numbers, sink=numbers)(silent)
    with pytest.raises(TopologyError, match="1 or more, not 0"):
        app.agent(numbers, concurrency=0)(silent)
    with pytest.raises(TopologyError, match="'key', 'partition' or 'none', not 'time'"):
        app.agent(numbers, ordered="time")(silent)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="does not belong to app"):
        app.agent(numbers, sink=App("b").topic("out", key=str, value=int))
    assert app.agent(numbers, sink=numbers, concurrency=3)(yields).agent.concurrency == 3


def test_take_needs_a_length_and_a_duration() -> None:
    async def first(n: int, within: Any) -> None:
        async for _ in AgentStream[str, int](EndedFeed()).take(n, within):
            pass

    with pytest.raises(UsageError, match="n=1 or more"):
        asyncio.run(first(0, "1s"))
    with pytest.raises(ConfigError):
        asyncio.run(first(1, 5))
    asyncio.run(first(1, "1s"))


def test_a_cast_writes_a_record_to_the_agent_s_topic() -> None:
    app = App("agents")
    numbers = app.topic("numbers", key=str, value=int)
    doubled = app.topic("doubled", key=str, value=int)

    @app.agent(numbers)
    async def double(stream: Stream[str, int]) -> None:
        async for key, number in stream.items():
            await doubled.send(number * 2, key=key)

    @app.timer("1m")
    async def tick() -> None:
        sent = await double.cast(21, key="t")
        assert (sent.topic, sent.offset) == ("numbers", 0)

    with app.test() as t:
        t.advance("1m")
        assert t.output(doubled).values == [42]


def test_ask_returns_the_value_that_the_agent_yields() -> None:
    app = App("agents")
    numbers = app.topic("numbers", key=str, value=int)
    found: list[object] = []

    @app.agent(numbers)
    async def half(stream: Stream[str, int]) -> AsyncIterator[float]:
        async for number in stream:
            if number:
                yield number / 2

    @app.agent(numbers, name="quarter")
    async def nothing(stream: Stream[str, int]) -> None:
        async for _ in stream:
            pass

    @app.timer("1m")
    async def tick() -> None:
        found.append(await half.ask(21, key="t"))
        found.append(await half.ask(0))
        with pytest.raises(UsageError, match="'quarter' never yields"):
            await nothing.ask(1)

    with app.test() as t:
        t.advance("1m")
    assert found == [10.5, None]
    with pytest.raises(UsageError, match="the app is not running, so agent 'half'"):
        asyncio.run(half.ask(1))


def test_an_ask_that_times_out_names_the_agent() -> None:
    app = App("agents")
    numbers = app.topic("numbers", key=str, value=int)

    @app.agent(numbers)
    async def slow(stream: Stream[str, int]) -> AsyncIterator[int]:
        async for number in stream:
            await asyncio.sleep(0.05)
            yield number

    @app.timer("1m")
    async def tick() -> None:
        with pytest.raises(
            RequestTimedOut, match="agent 'slow' did not answer: no answer within 1 ms"
        ):
            await slow.ask(1, timeout="1ms")
        assert await slow.ask(2) == 2

    with app.test() as t:
        t.advance("1m")


def test_ask_raises_the_agent_s_failure() -> None:
    app = App("agents")
    numbers = app.topic("numbers", key=str, value=int)

    @app.agent(numbers)
    async def picky(stream: Stream[str, int]) -> AsyncIterator[int]:
        async for number in stream:
            raise ValueError(number)
            yield number

    @app.timer("1m")
    async def tick() -> None:
        with pytest.raises(ProcessingError, match="'picky' failed at offset 0"):
            await picky.ask(1)

    with app.test() as t, pytest.raises(ProcessingError, match="'picky' failed at offset 0"):
        t.advance("1m")
