"""Savepoint log: the topic through which a coordinator and the workers of an app exchange messages.

A worker's process reads the topic (`SavepointWatch`) before it starts and while it runs, and
follows the messages (`obey`). The coordinator, such as the command `promote`, writes them
(`SavepointLog`).

Rule: a worker that can't read the topic keeps following the last message that it has read. Not done
here: bringing tasks to the cut (`task_savepoints`), and the messages (`topics/savepoint_messages`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

from streamlog import repeated
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.client.range_reader import RangeReader
from streamlog.clock import Clock
from streamlog.durations import moment
from streamlog.errors import CorruptData, LogError, StreamlogError, TopicExists, UsageError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.worker.topics.app_topics import BROKER_DEFAULT
from streamlog.worker.topics.savepoint_messages import (
    HELD_MS_MAX,
    Outcome,
    Savepoint,
    SavepointCut,
    SavepointMessage,
    SavepointReleased,
    decode_savepoint,
    encode_savepoint,
    savepoint_topic,
)
from streamlog.worker.topics.version_log import CONFIGS

logger = repeated.logger(__name__)

LOOK_MS: Final = 1_000
"""The pause between two looks while there is no savepoint."""
SEARCH_LOOKS: Final = 5
"""An app without a savepoint so far has no topic; it is searched for at every fifth look."""
WAIT_MS: Final = 10_000
"""The longest time that a broker holds a fetch while there is no new message."""
HALTED_LOOK_MS: Final = 200
"""The pause between two looks during a savepoint."""
POLL_MS: Final = 10


class Work(Protocol):
    """The work of a worker, until the event is set or up to a cut."""

    async def __call__(self, stop: asyncio.Event, *, cut: SavepointCut | None) -> None:
        """Work until `stop` is set; with a cut, until all tasks of the app have reached it."""


class SavepointWatch:
    """Follows the savepoint messages of an app. A context manager; one task at a time uses it."""

    def __init__(self, log: Log, app_id: str, clock: Clock) -> None:
        self.savepoint: Savepoint | None = None
        """The last savepoint, in force or not, as of the last look."""
        self._log = log
        self._partition = TopicPartition(savepoint_topic(app_id), 0)
        self._clock = clock
        self._consumer: Consumer | None = None
        self._searched_ms: int | None = None
        self._has_read = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.__aexit__(exc_type, exc, traceback)

    async def look(self, *, is_sure: bool = False) -> Savepoint | None:
        """Read the messages since the last look; returns the savepoint in force, or None.

        Args:
            is_sure: ask the broker for the topic's end and read up to it, so that no message
                written before the call is missed. Otherwise a look reads what the pending fetch has
                brought, which costs no request of its own.

        Raises:
            CorruptData: a message is malformed.
            StreamlogError: the log can't be read.
        """
        if self._consumer is None and await self._is_there(is_sure=is_sure):
            consumer = self._log.consumer(
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                fetch_max_wait_ms=WAIT_MS,
            )
            self._consumer = await consumer.__aenter__()
            consumer.assign([self._partition])
        if self._consumer is not None:
            await self._read(self._consumer, is_sure=is_sure or not self._has_read)
        last = self.savepoint
        return last if last is not None and last.is_in_force(self._clock.wall_ms()) else None

    async def _is_there(self, *, is_sure: bool) -> bool:
        """Return whether the topic exists; asks rarely unless `is_sure`."""
        now_ms, before_ms = self._clock.now_ms(), self._searched_ms
        if not (is_sure or before_ms is None or now_ms - before_ms >= SEARCH_LOOKS * LOOK_MS):
            return False
        found = await self._log.admin().find_topics([self._partition.topic])
        self._searched_ms = now_ms
        return bool(found)

    async def _read(self, consumer: Consumer, *, is_sure: bool) -> None:
        part = self._partition
        end = (await consumer.end_offsets([part]))[part] if is_sure else 0
        # With 0 as the end, one poll without records is enough.
        reader = RangeReader(consumer, {part: end}, self._clock)
        while True:
            polled = await consumer.poll(timeout_ms=POLL_MS if is_sure else 0)
            records = [(each.offset, each.value or b"") for each in polled.get(part, ())]
            self.savepoint = decode_savepoint(records, self.savepoint)
            if not records and (not is_sure or await reader.is_at_end()):
                break
        self._has_read = True


async def obey(watch: SavepointWatch, stop: asyncio.Event, work: Work) -> None:
    """Work until `stop` is set, and follow the app's savepoints meanwhile.

    1. Without a savepoint: work. A request ends the work: it commits and leaves the group.
    2. Between request and cut: wait outside of the group.
    3. With a cut: work up to it, once for each savepoint, and leave the group again.
    4. The savepoint ends, or the request expires: continue with 1, or raise if another program has
       become the app.

    Raises:
        UsageError: another program has become this app, so the workers of this one have to end.
        StreamlogError: `work` raised it.
    """
    followed: str | None = None
    reached: str | None = None
    while not stop.is_set():
        savepoint = await watch.look()
        # The savepoint has ended or expired, or a later one has replaced it.
        if followed is not None and (savepoint is None or savepoint.id != followed):
            _end_or_resume(watch.savepoint, followed)
            followed = None
        if savepoint is None:
            await _work_under_watch(watch, stop, partial(work, cut=None), is_over=_is_in_force)
            continue
        if savepoint.id != followed:
            logger.warning("savepoint: this worker commits and waits: %s", savepoint.request.reason)
            followed = savepoint.id
        # Once for each savepoint: a worker that has been at the cut waits for the release.
        if savepoint.cut is not None and reached != savepoint.id:
            until = moment(savepoint.cut.until_ms).isoformat()
            logger.info("savepoint: this worker processes records up to %s and stops there", until)
            await _work_under_watch(watch, stop, partial(work, cut=savepoint.cut), is_over=_is_none)
            reached = savepoint.id
        else:
            await _wait(HALTED_LOOK_MS, stop)


def _end_or_resume(last: Savepoint | None, followed: str) -> None:
    """Return if work continues after a savepoint; raise if the workers of this program end."""
    if last is None or last.id != followed or last.release is None:
        logger.warning(
            "savepoint: no cut was set within %d s; this worker resumes", HELD_MS_MAX // 1000
        )
        return
    if last.release.outcome == "promoted":
        raise UsageError(last.release.message)
    logger.warning("savepoint: this worker resumes: %s", last.release.message)


def _is_in_force(savepoint: Savepoint | None) -> bool:
    return savepoint is not None


def _is_none(savepoint: Savepoint | None) -> bool:
    return savepoint is None


async def _work_under_watch(
    watch: SavepointWatch,
    stop: asyncio.Event,
    work: Callable[[asyncio.Event], Awaitable[None]],
    *,
    is_over: Callable[[Savepoint | None], bool],
) -> None:
    """Work until `stop` is set, or `is_over` holds for the savepoint in force."""
    ends, wakes = asyncio.Event(), asyncio.Event()
    failure: Exception | None = None

    async def relay() -> None:
        await stop.wait()
        ends.set()
        wakes.set()

    async def look() -> None:
        try:
            while not await _wait(HALTED_LOOK_MS if watch.savepoint else LOOK_MS, wakes):
                if is_over(await _look(watch)):
                    return
        finally:
            ends.set()  # An error in the watch ends the work as well.

    async with asyncio.TaskGroup() as group:
        relaying = group.create_task(relay(), name="stop")
        group.create_task(look(), name="savepoints")
        try:
            await work(ends)
        except Exception as error:  # noqa: BLE001 - raised below, outside of an exception group
            failure = error
        finally:
            relaying.cancel()
            # Ends `look`, which waits for it.
            wakes.set()
    if failure is not None:
        raise failure


async def _look(watch: SavepointWatch) -> Savepoint | None:
    """Return the savepoint in force; while the log can't be read, the last known one."""
    before = watch.savepoint
    try:
        return await watch.look()
    except CorruptData:
        raise  # Another read would return these bytes again.
    except StreamlogError as error:
        # The worker's own reads retry, report the error, and end the worker if it persists.
        logger.debug("the savepoint topic can't be read at present: %s", error)
        return before if before is not None and before.release is None else None


async def _wait(timeout_ms: int, event: asyncio.Event) -> bool:
    """Wait up to `timeout_ms` for an event; returns whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    return event.is_set()


class SavepointLog:
    """Writes the savepoint messages of several apps. A context manager; one task uses it."""

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
        """Return the last savepoint of an app, in force or not, including every message so far."""
        await self._watches[app_id].look(is_sure=True)
        return self._watches[app_id].savepoint

    async def prepare(self) -> None:
        """Create missing topics, and wait until running workers have found them.

        Workers search for a missing topic at intervals only. After this wait they see a message
        within `LOOK_MS`.
        """
        created = [await self._create(savepoint_topic(app_id)) for app_id in self._watches]
        if any(created):
            await asyncio.sleep(SEARCH_LOOKS * LOOK_MS / 1000)

    async def write(self, app_id: str, message: SavepointMessage) -> None:
        """Write a message to an app's workers, and wait until it is acknowledged."""
        await self._create(savepoint_topic(app_id))
        await (await self._send(app_id, message))

    async def _send(self, app_id: str, message: SavepointMessage) -> Awaitable[object]:
        """Send a message; the result is done when the log has acknowledged it."""
        if self._producer is None:
            producer = self._log.producer(linger_ms=0)
            self._producer = await self._stack.enter_async_context(producer)
        return await self._producer.send(
            savepoint_topic(app_id), encode_savepoint(message), partition=0
        )

    async def release(self, savepoint_id: str, outcome: Outcome, message: str) -> bool:
        """End a savepoint in every app where it has not ended; returns whether there was one."""
        found: list[str] = []
        for app_id in self._watches:
            last = await self.last(app_id)
            if last is not None and last.id == savepoint_id and last.release is None:
                found.append(app_id)
        release = SavepointReleased(id=savepoint_id, outcome=outcome, message=message)
        # All messages are sent before any is awaited: a worker that reads its message may end, and
        # an embedded log ends with the worker that runs it.
        for each in [await self._send(app_id, release) for app_id in found]:
            await each
        return bool(found)

    async def members(self, app_id: str) -> int:
        """Return the number of workers in an app's group."""
        try:
            (group,) = await self._log.admin().describe_groups([app_id])
        except LogError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return 0
        return len(group.members)

    async def _create(self, topic: str) -> bool:
        """Create a topic if it does not exist; returns whether it was created."""
        if await self._log.admin().find_topics([topic]):
            return False
        try:
            await self._log.admin().create_topics(
                [NewTopic(topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)]
            )
        except TopicExists:
            logger.debug("topic %s exists", topic)
            return False
        return True
