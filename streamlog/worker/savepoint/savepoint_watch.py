"""Halting: workers hear that they are to stand still at one cut (`halts`), go there, and wait.

A worker's process looks at the topic of its app all the time, and starts by looking: who is
started anew while the others stand still does so, too. Obeying is done around a worker and not
inside: on a hold it commits and leaves the group as on any end; with the cut it is run once more,
to there (`standstill`); then the process waits, out of the group, until it hears how it went on.
Rule of the file: it never works on its own beyond a cut that is in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

from streamlog import repeated
from streamlog.client.consumer import Consumer
from streamlog.clock import Clock
from streamlog.durations import moment
from streamlog.errors import CorruptData, StreamlogError, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.topics.savepoint_messages import (
    HELD_MS_MAX,
    Savepoint,
    SavepointCut,
    heard,
    topic_of,
)

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
        self._place = TopicPartition(topic_of(app_id), 0)
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
        while True:
            polled = await consumer.poll(timeout_ms=POLL_MS if is_sure else 0)
            records = [(each.offset, each.value or b"") for each in polled.get(place, ())]
            self.halt = heard(records, self.halt)
            if not records and (not is_sure or await consumer.position(place) >= end):
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
            _end_or_go_on(watch.halt, obeyed)
            obeyed = None
        if halt is None:
            await _watched(watch, stop, partial(work, cut=None), is_over=_is_in_force)
            continue
        if halt.id != obeyed:
            logger.warning("all workers are to stand still: %s", halt.hold.reason)
            obeyed = halt.id
        if halt.cut is not None and stood != halt.id:
            logger.info("going on to %s, and no further", moment(halt.cut.until_ms).isoformat())
            await _watched(watch, stop, partial(work, cut=halt.cut), is_over=_is_none)
            stood = halt.id
        else:
            await _set_within(HALTED_LOOK_MS, stop)


def _end_or_go_on(halt: Savepoint | None, obeyed: str) -> None:
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


async def _watched(
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
                if is_over(await _seen(watch)):
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


async def _seen(watch: SavepointWatch) -> Savepoint | None:
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
