"""HaltLog: what is said of halts, to the workers of some apps, by the one who halts them."""

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
"""How long a halt goes unnoticed."""
SEARCH_LOOKS: Final = 5
"""An app that was never halted has no topic for it; every so many looks it is searched for."""
WAIT_MS: Final = 10_000
"""So long a broker keeps the question whether something was said."""
HALTED_LOOK_MS: Final = 200
"""The same while there is one."""
POLL_MS: Final = 10


class Work(Protocol):
    """Works until the event is set, or up to a cut."""

    async def __call__(self, stop: asyncio.Event, *, cut: SavepointCut | None) -> None:
        """Raises what the work raises."""


class SavepointWatch:
    """What is known of the halts of an app. A context manager, used from one task at a time."""

    def __init__(self, log: Log, app_id: str, clock: Clock) -> None:
        self.halt: Savepoint | None = None
        """The last one, as of the last look."""
        self._log = log
        self._place = TopicPartition(savepoint_topic(app_id), 0)
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
        """Take in what has been said since the last look; the halt that is in force, if one is.

        After the first look it costs no request as a rule: the broker tells when something is
        said. `is_sure` asks it, and sees whatever was said before the call.

        Raises:
            CorruptData: something is not readable.
            StreamlogError: the log can't be read.
        """
        if self._consumer is None and await self._is_there(is_sure=is_sure):
            consumer = self._log.consumer(
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                fetch_max_wait_ms=WAIT_MS,
            )
            self._consumer = await consumer.__aenter__()
            consumer.assign([self._place])
        if self._consumer is not None:
            await self._read(self._consumer, is_sure=is_sure or not self._has_read)
        is_in_force = self.halt is not None and self.halt.is_in_force(self._clock.wall_ms())
        return self.halt if is_in_force else None

    async def _is_there(self, *, is_sure: bool) -> bool:
        """Whether anybody ever said something."""
        now_ms, before_ms = self._clock.now_ms(), self._searched_ms
        if not (is_sure or before_ms is None or now_ms - before_ms >= SEARCH_LOOKS * LOOK_MS):
            return False
        found = await self._log.admin().find_topics([self._place.topic])
        self._searched_ms = now_ms
        return bool(found)

    async def _read(self, consumer: Consumer, *, is_sure: bool) -> None:
        place = self._place
        end = (await consumer.end_offsets([place]))[place] if is_sure else 0
        reader = RangeReader(consumer, {place: end}, self._clock)
        while True:
            polled = await consumer.poll(timeout_ms=POLL_MS if is_sure else 0)
            records = [(each.offset, each.value or b"") for each in polled.get(place, ())]
            self.halt = decode_savepoint(records, self.halt)
            if not records and await reader.is_at_end():
                break
        self._has_read = True


async def obey(watch: SavepointWatch, stop: asyncio.Event, work: Work) -> None:
    """Work until `stop` is set, and do what is said of halts meanwhile.

    Raises:
        UsageError: another program has become this app: this one's workers have to end.
        StreamlogError: as `work`.
    """
    obeyed: str | None = None
    stood: str | None = None
    while not stop.is_set():
        halt = await watch.look()
        if obeyed is not None and (halt is None or halt.id != obeyed):
            _end_or_resume(watch.halt, obeyed)
            obeyed = None
        if halt is None:
            await _work_under_watch(watch, stop, partial(work, cut=None), is_over=_is_in_force)
            continue
        if halt.id != obeyed:
            logger.warning("all workers are to stand still: %s", halt.hold.reason)
            obeyed = halt.id
        if halt.cut is not None and stood != halt.id:
            logger.info("going on to %s, and no further", moment(halt.cut.until_ms).isoformat())
            await _work_under_watch(watch, stop, partial(work, cut=halt.cut), is_over=_is_none)
            stood = halt.id
        else:
            await _set_within(HALTED_LOOK_MS, stop)


def _end_or_resume(halt: Savepoint | None, obeyed: str) -> None:
    """What was obeyed is over."""
    if halt is None or halt.id != obeyed or halt.lifted is None:
        logger.warning("nobody has said for %d s where to stop: going on", HELD_MS_MAX // 1000)
        return
    if halt.lifted.outcome == "promoted":
        raise UsageError(halt.lifted.told)
    logger.warning("workers go on: %s", halt.lifted.told)


def _is_in_force(halt: Savepoint | None) -> bool:
    return halt is not None


def _is_none(halt: Savepoint | None) -> bool:
    return halt is None


async def _work_under_watch(
    watch: SavepointWatch,
    stop: asyncio.Event,
    work: Callable[[asyncio.Event], Awaitable[None]],
    *,
    is_over: Callable[[Savepoint | None], bool],
) -> None:
    """Work until `stop` is set, or what is in force says that it is over."""
    ends, wakes = asyncio.Event(), asyncio.Event()
    failure: Exception | None = None

    async def relay() -> None:
        await stop.wait()
        ends.set()
        wakes.set()

    async def look() -> None:
        try:
            while not await _set_within(HALTED_LOOK_MS if watch.halt else LOOK_MS, wakes):
                if is_over(await _look(watch)):
                    return
        finally:
            ends.set()  # An error of it ends the work, too.

    async with asyncio.TaskGroup() as group:
        relaying = group.create_task(relay(), name="stop")
        group.create_task(look(), name="halts")
        try:
            await work(ends)
        except Exception as error:  # noqa: BLE001 - raised below as it is, and not in a group
            failure = error
        finally:
            relaying.cancel()
            wakes.set()
    if failure is not None:
        raise failure


async def _look(watch: SavepointWatch) -> Savepoint | None:
    """What is in force; while the log can't be read, what was."""
    before = watch.halt
    try:
        return await watch.look()
    except CorruptData:
        raise
    except StreamlogError as error:
        # The worker itself tries, tells and gives up.
        logger.debug("halts can't be looked for just now: %s", error)
        return before if before is not None and before.lifted is None else None


async def _set_within(timeout_ms: int, event: asyncio.Event) -> bool:
    """Wait for an event, but not for ever; whether it was set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    return event.is_set()


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
        made = [await self._made(savepoint_topic(app_id)) for app_id in self._watches]
        if any(made):
            await asyncio.sleep(SEARCH_LOOKS * LOOK_MS / 1000)

    async def say(self, app_id: str, word: SavepointMessage) -> None:
        """Say something to an app's workers."""
        await self._made(savepoint_topic(app_id))
        await (await self._sent(app_id, word))

    async def _sent(self, app_id: str, word: SavepointMessage) -> Awaitable[object]:
        """What says it is on its way; done when it is in the log."""
        if self._producer is None:
            producer = self._log.producer(linger_ms=0)
            self._producer = await self._stack.enter_async_context(producer)
        return await self._producer.send(
            savepoint_topic(app_id), encode_savepoint(word), partition=0
        )

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
