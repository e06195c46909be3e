"""Workers over topics that are deleted and created again, as sources or as outputs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Literal, TypeVar

import pytest

from streamlog.log import Log
from streamlog.worker.program import Program
from streamlog.worker.worker import Worker

DEADLINE_S: Final = 60

Guarantee = Literal["exactly_once", "at_least_once"]
GUARANTEES: Final[tuple[Guarantee, ...]] = ("exactly_once", "at_least_once")
T = TypeVar("T")


async def feed(log: Log, topic: str, records: Iterable[tuple[str, str]]) -> None:
    """Write keys and values to a topic."""
    async with log.producer() as producer:
        for key, value in records:
            await producer.send(topic, value.encode(), key=key.encode())


@asynccontextmanager
async def running(
    program: Program, url: str
) -> AsyncIterator[tuple[asyncio.Task[None], asyncio.Event]]:
    """Run a worker until the block ends; yields its task, and what stops it."""
    stop = asyncio.Event()
    worker = Worker(program, log_url=url, announce=lambda _: None)
    task = asyncio.create_task(worker.run(stop))
    try:
        yield task, stop
        stop.set()
        await task
    finally:
        stop.set()
        await asyncio.wait([task])


@asynccontextmanager
async def failing(block: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Raise the error of the block's worker alone, out of the groups of its tasks."""
    try:
        async with block as found:
            yield found
    except BaseExceptionGroup as group:
        raise first(group) from None


def first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in group.exceptions:
        return first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError


async def said(caplog: pytest.LogCaptureFixture, text: str, task: asyncio.Task[None]) -> str:
    """Wait for a warning with this text; returns it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
            for line in lines:
                if text in line:
                    return line
            assert not task.done(), task.result()
            await asyncio.sleep(0.02)
