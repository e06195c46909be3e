"""Time in which the loop stood still is nobody's delay."""

from __future__ import annotations

import asyncio
from time import monotonic, sleep

import pytest

from streamlog.transport.client_connection import AnswerDeadline


def hold(seconds: float) -> None:
    """What computes and awaits nothing."""
    sleep(seconds)


async def bounded(answer: asyncio.Future[str], timeout_ms: int) -> str:
    async with AnswerDeadline(timeout_ms):
        return await answer


async def who_is_silent_is_given_up() -> None:
    began = monotonic()
    with pytest.raises(TimeoutError):
        await bounded(asyncio.get_running_loop().create_future(), 50)
    assert monotonic() - began >= 0.05


def test_who_is_silent_is_given_up() -> None:
    asyncio.run(who_is_silent_is_given_up())


async def answered_behind_a_hold(loop: asyncio.AbstractEventLoop) -> None:
    answer = loop.create_future()
    waiting = asyncio.ensure_future(bounded(answer, 300))
    await asyncio.sleep(0)
    hold(0.7)
    # Overdue by now; it comes a turn of the loop later, as what has to be read from a socket does.
    loop.call_later(0.01, answer.set_result, "here")
    assert await waiting == "here"


def test_what_came_while_the_loop_stood_still_has_come_in_time() -> None:
    async def main() -> None:
        await answered_behind_a_hold(asyncio.get_running_loop())

    asyncio.run(main())


async def who_is_silent_is_given_up_by_a_loop_that_never_keeps_time() -> None:
    loop = asyncio.get_running_loop()
    held = 0

    def hold_again() -> None:
        nonlocal held
        held += 1
        hold(0.25)
        loop.call_soon(hold_again)

    loop.call_soon(hold_again)
    with pytest.raises(TimeoutError):
        await bounded(loop.create_future(), 50)
    assert held <= 8


def test_who_is_silent_is_given_up_by_a_loop_that_never_keeps_time() -> None:
    asyncio.run(who_is_silent_is_given_up_by_a_loop_that_never_keeps_time())


async def cancelled_from_outside() -> None:
    waiting = asyncio.ensure_future(bounded(asyncio.get_running_loop().create_future(), 60_000))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_who_is_cancelled_from_outside_stays_cancelled() -> None:
    asyncio.run(cancelled_from_outside())
