"""Answers that are there, and answers that will be."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.answers import chained, mapped
from streamlog.errors import ConnectionLost


def test_what_is_there_goes_on_at_once() -> None:
    assert mapped(1, str) == "1"
    assert chained(1, str) == "1"


def test_what_will_be_there_goes_on_then() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        first: asyncio.Future[int] = loop.create_future()
        second: asyncio.Future[str] = loop.create_future()
        answers = [mapped(first, str), chained(first, str), chained(first, lambda _: second)]
        first.set_result(1)
        second.set_result("2")
        assert [await each for each in answers if isinstance(each, asyncio.Future)] == [
            "1",
            "1",
            "2",
        ]

    asyncio.run(main())


def test_an_error_is_handed_on_and_who_waits_no_more_is_left_alone() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        first: asyncio.Future[int] = loop.create_future()
        second: asyncio.Future[str] = loop.create_future()
        lost = [mapped(first, str), chained(first, str)]
        gone = mapped(first, str)
        assert isinstance(gone, asyncio.Future)
        gone.cancel()
        first.set_exception(ConnectionLost("gone"))
        for each in lost:
            assert isinstance(each, asyncio.Future)
            with pytest.raises(ConnectionLost):
                await each
        late = chained(asyncio.ensure_future(asyncio.sleep(0, 1)), lambda _: second)
        second.set_exception(ConnectionLost("gone"))
        assert isinstance(late, asyncio.Future)
        with pytest.raises(ConnectionLost):
            await late

    asyncio.run(main())
