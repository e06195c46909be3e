from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlog import Agent, App, Record, Stream
from streamlog.durations import moment
from streamlog.errors import TopologyError

RECORDS = [Record("a", 1, moment(0)), Record("b", 2, moment(1))]


async def feed() -> AsyncIterator[Record[str, int]]:
    for record in RECORDS:
        yield record


def run(agent: Agent[str, int]) -> None:
    asyncio.run(agent.run(feed()))


def test_a_stream_gives_values_items_or_records() -> None:
    app = App("agents")
    numbers = app.topic("numbers", key=str, value=int)
    seen: list[Any] = []

    @app.agent(numbers)
    async def values(stream: Stream[str, int]) -> None:
        seen.extend([value async for value in stream])

    @app.agent(numbers)
    async def items(stream: Stream[str, int]) -> None:
        seen.extend([item async for item in stream.items()])

    @app.agent(numbers)
    async def records(stream: Stream[str, int]) -> None:
        seen.extend([record async for record in stream.records()])

    for agent in (values, items, records):
        run(agent)
    assert seen == [1, 2, ("a", 1), ("b", 2), *RECORDS]


def test_operators_do_not_belong_inside() -> None:
    app = App("agents")
    numbers = app.topic("numbers", key=str, value=int)

    @app.agent(numbers)
    async def wrong(stream: Stream[str, int]) -> None:
        stream.map_values(str)

    with pytest.raises(TopologyError, match="belong to app"):
        run(wrong)


def test_only_async_functions_that_do_not_yield_can_be_agents() -> None:
    app = App("agents")
    numbers = app.topic("numbers", key=str, value=int)

    def plain(_: Stream[str, int]) -> None: ...

    async def yields(_: Stream[str, int]) -> AsyncIterator[int]:
        yield 1

    for fn in (plain, yields):
        with pytest.raises(TopologyError, match="must be `async def`"):
            app.agent(numbers)(fn)  # type: ignore[arg-type]


def test_a_cast_is_a_record_of_the_agents_topic() -> None:
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
