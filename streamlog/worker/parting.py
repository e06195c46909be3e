"""Parting: a worker that is to stop doesn't wait for a log that is gone.

Clients retry for a minute, since brokers come back; a last commit has no such time. From the
request to stop on, brokers are asked whether one of them answers, and after `GONE_MS` without an
answer the worker ends. Nothing is lost: what is not committed is processed again next time.
Rule of the file: a log that answers is never given up, however long the last commit takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from streamlog import repeated
from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.log import Log

GONE_MS = 5_000
"""A log whose brokers don't answer for so long is gone."""
TELL_MS = 500
"""So long without an answer, and the user is told what the worker waits for."""
LOOK_MS = 500

logger = repeated.logger(__name__)


async def unless_gone(log: Log, stop: asyncio.Event, work: Awaitable[None]) -> None:
    """Work until `work` ends, or `stop` is set and the log is gone.

    Raises:
        ConnectionLost: it is; `work` was cancelled.
        StreamlogError: as `work`.
    """
    failure: Exception | None = None
    watching: asyncio.Task[None] | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(log, stop), name="end of the log")
            try:
                await work
            except Exception as error:  # noqa: BLE001 - raised below as it is, and not in a group
                failure = error
            finally:
                watching.cancel()
    except* ConnectionLost as gone:
        failure = gone.exceptions[0]
    if failure is not None:
        raise failure


async def _watch(log: Log, stop: asyncio.Event) -> None:
    await stop.wait()
    while True:
        if not await _answers(log, within_ms=TELL_MS):
            logger.warning(
                "stopping: no broker answers, so nothing can be committed; waiting %d s for one",
                GONE_MS // 1000,
            )
            if not await _answers(log, within_ms=GONE_MS - TELL_MS):
                break
        await asyncio.sleep(LOOK_MS / 1000)
    raise ConnectionLost(
        f"stopped without the last commit, as no broker has answered for {GONE_MS // 1000} s: what"
        " was not committed is processed again next time"
    )


async def _answers(log: Log, *, within_ms: int) -> bool:
    """Whether a broker gives any answer in time."""
    try:
        async with asyncio.timeout(within_ms / 1000):
            await log.admin().find_topics([])  # Retries what can be retried.
    except TimeoutError:
        return False
    except StreamlogError as error:
        logger.debug("a broker refuses: %s", error)
    return True
