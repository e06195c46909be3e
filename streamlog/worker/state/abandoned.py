"""Removes the state of tasks that have moved away, once it is likely that they will not come back.

A task that comes back within the delay finds its state and replays what it lacks; one that does not
would leave its files for ever. What is locked is in use, by this worker or by another one on the
machine, and stays. Not done here: which directories those are (`tables/local_disk/task_directory`).
"""

from __future__ import annotations

import asyncio

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.tables.local_disk.task_directory import AbandonedTasks

logger = repeated.logger(__name__)

STATE_CLEANUP_DELAY_MS = 10 * 60 * 1000
"""Default; Kafka Streams' `state.cleanup.delay.ms`."""
LOOK_MS = 60_000
"""Between two looks, if the delay is not shorter."""
LOOK_MS_MIN = 100


async def remove_abandoned(path: str, *, delay_ms: int, clock: Clock) -> None:
    """Look after the app's state directory until cancelled."""
    abandoned = AbandonedTasks(path, delay_ms=delay_ms)
    while True:
        for name in await asyncio.to_thread(abandoned.remove, clock.now_ms()):
            logger.info("task %s has moved away: its state in %s is removed", name, path)
        await asyncio.sleep(min(LOOK_MS, max(delay_ms, LOOK_MS_MIN)) / 1000)
