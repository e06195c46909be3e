"""HaltLog: what is said of halts, to the workers of some apps, by the one who halts them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from streamlog import repeated
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.errors import LogError, TopicExists
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.worker.savepoint import savepoint_watch
from streamlog.worker.savepoint.savepoint_watch import SavepointWatch
from streamlog.worker.topics.app_topics import BROKER_DEFAULT
from streamlog.worker.topics.savepoint_messages import (
    Outcome,
    Savepoint,
    SavepointReleased,
    Word,
    encoded,
    topic_of,
)
from streamlog.worker.topics.version_log import CONFIGS

logger = repeated.logger(__name__)


class SavepointLog:
    """The halts of some apps. A context manager, used from one task."""

    def __init__(self, log: Log, app_ids: Collection[str], clock: Clock) -> None:
        self._log = log
        self._watches = {app_id: SavepointWatch(log, app_id, clock) for app_id in app_ids}
        self._stack = AsyncExitStack()
        self._producer: Producer | None = None

    async def __aenter__(self) -> Self:
        for watch in self._watches.values():
            await self._stack.enter_async_context(watch)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def last(self, app_id: str) -> Savepoint | None:
        """The last halt of an app, in force or not."""
        await self._watches[app_id].look(is_sure=True)
        return self._watches[app_id].halt

    async def prepare(self) -> None:
        """Let workers of apps that were never halted find out where to look for it.

        They search for the topic now and then; so they all hear in time of what is said later.
        """
        made = [await self._made(topic_of(app_id)) for app_id in self._watches]
        if any(made):
            await asyncio.sleep(savepoint_watch.SEARCH_LOOKS * savepoint_watch.LOOK_MS / 1000)

    async def say(self, app_id: str, word: Word) -> None:
        """Say something to an app's workers."""
        await self._made(topic_of(app_id))
        await (await self._sent(app_id, word))

    async def _sent(self, app_id: str, word: Word) -> Awaitable[object]:
        """What says it is on its way; done when it is in the log."""
        if self._producer is None:
            producer = self._log.producer(linger_ms=0)
            self._producer = await self._stack.enter_async_context(producer)
        return await self._producer.send(topic_of(app_id), encoded(word), partition=0)

    async def lift(self, halt_id: str, outcome: Outcome, told: str) -> bool:
        """Say to all that a halt is over, where it is not; whether it was there."""
        found: list[str] = []
        for app_id in self._watches:
            halt = await self.last(app_id)
            if halt is not None and halt.id == halt_id and halt.lifted is None:
                found.append(app_id)
        word = SavepointReleased(id=halt_id, outcome=outcome, told=told)
        # All at once: a worker that hears of it may end, and an embedded log with it.
        for each in [await self._sent(app_id, word) for app_id in found]:
            await each
        return bool(found)

    async def members(self, app_id: str) -> int:
        """How many workers of an app are in its group."""
        try:
            (group,) = await self._log.admin().describe_groups([app_id])
        except LogError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return 0
        return len(group.members)

    async def _made(self, topic: str) -> bool:
        """Make a topic if it is not there; whether it was made."""
        if await self._log.admin().find_topics([topic]):
            return False
        try:
            await self._log.admin().create_topics(
                [NewTopic(topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)]
            )
        except TopicExists:
            logger.debug("topic %s is there", topic)
            return False
        return True
