"""AnswerDeadline: time in which the loop was blocked does not count as the peer's delay."""

from __future__ import annotations

import asyncio
from time import monotonic, sleep

import pytest

from streamlog.transport.client_connection import AnswerDeadline


def block(seconds: float) -> None:
    """Block the loop, as a computation does."""
    sleep(seconds)


async def bounded(answer: asyncio.Future[str], timeout_ms: int) -> str:
    async with AnswerDeadline(timeout_ms):
        return await answer


async def silent_peer() -> None:
    began = monotonic()
    with pytest.raises(TimeoutError):
        await bounded(asyncio.get_running_loop().create_future(), 50)
    assert monotonic() - began >= 0.05


def test_a_silent_peer_times_out() -> None:
    asyncio.run(silent_peer())


async def answered_after_a_block(loop: asyncio.AbstractEventLoop) -> None:
    answer = loop.create_future()
    waiting = asyncio.ensure_future(bounded(answer, 300))
    await asyncio.sleep(0)
    block(0.7)
    # Overdue by now; the answer comes an iteration later, as data from a socket does.
    loop.call_later(0.01, answer.set_result, "here")
    assert await waiting == "here"


def test_an_answer_that_came_in_a_blocked_loop_is_in_time() -> None:
    async def main() -> None:
        await answered_after_a_block(asyncio.get_running_loop())

    asyncio.run(main())


async def silent_peer_in_a_blocked_loop() -> None:
    loop = asyncio.get_running_loop()
    blocks = 0

    def block_again() -> None:
        nonlocal blocks
        blocks += 1
        block(0.25)
        loop.call_soon(block_again)

    loop.call_soon(block_again)
    with pytest.raises(TimeoutError):
        await bounded(loop.create_future(), 50)
    assert blocks <= 8


def test_a_silent_peer_times_out_in_a_loop_that_keeps_blocking() -> None:
    asyncio.run(silent_peer_in_a_blocked_loop())


async def cancelled_from_outside() -> None:
    waiting = asyncio.ensure_future(bounded(asyncio.get_running_loop().create_future(), 60_000))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_cancelled_call_stays_cancelled() -> None:
    asyncio.run(cancelled_from_outside())
