"""RunLog: the runs of schedules in a compacted topic of the app's own, `<app>-schedules`.

One partition, a record per schedule and step, with the schedule's name for a key. Who writes a
claim reads on until it has come by, and so knows whether somebody else was first. Rule of the
file: what is known is what was read from the log, never what was merely sent. Works on any Kafka.
Not done here: what the records mean (`runs`).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from streamlog import repeated
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.errors import RequestTimedOut, TopicExists
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.schedules.schedule_runs import Runs

logger = repeated.logger(__name__)

CONFIGS = {"cleanup.policy": "compact"}
BROKER_DEFAULT = -1
POLL_MS = 200
STALL_MS = 30_000
"""The end was read, so it is there: no progress for this long is a broken log."""


class RunLog:
    """The runs of an app's schedules in a log; an async context manager."""

    def __init__(self, log: Log, app_id: str, *, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._place = TopicPartition(f"{app_id}-schedules", 0)
        self._stack = AsyncExitStack()
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._runs: dict[str, Runs] = {}
        self._heard_ms: dict[str, int] = {}
        self._reading = asyncio.Lock()

    async def __aenter__(self) -> Self:
        topic = NewTopic(self._place.topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)
        try:
            await self._log.admin().create_topics([topic])
        except TopicExists:
            logger.debug("topic %s is there", topic.name)
        self._producer = await self._stack.enter_async_context(self._log.producer(linger_ms=0))
        consumer = self._log.consumer(auto_offset_reset="earliest")
        self._consumer = await self._stack.enter_async_context(consumer)
        self._consumer.assign([self._place])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def runs(self, schedule: str) -> Runs | None:
        """What was known of a schedule when the log was read last; None if nothing ever was."""
        return self._runs.get(schedule)

    def silent_ms(self, schedule: str) -> int:
        """For how long, by the wall clock, nobody has written about a schedule."""
        return max(self._clock.wall_ms() - self._heard_ms.get(schedule, 0), 0)

    async def read(self) -> None:
        """Take in everything that the log holds by now."""
        ends = await self._open_consumer.end_offsets([self._place])
        await self._read_until(ends[self._place])

    async def write(self, schedule: str, record: Runs) -> Runs:
        """Write a record; returns what is known of the schedule when it has come by."""
        if self._producer is None:
            raise RuntimeError("the log of runs is closed")
        key, now_ms = schedule.encode(), self._clock.wall_ms()
        sent = await self._producer.send(
            self._place.topic, record.encode(), key=key, partition=0, timestamp_ms=now_ms
        )
        await self._read_until((await sent).offset + 1)
        return self._runs[schedule]

    @property
    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            raise RuntimeError("the log of runs is closed")
        return self._consumer

    async def _read_until(self, end: int) -> None:
        # Schedules of one worker share the consumer.
        async with self._reading:
            position = await self._open_consumer.position(self._place)
            deadline_ms = self._clock.now_ms() + STALL_MS
            while position < end:
                before, position = position, await self._read_some()
                if position > before:
                    deadline_ms = self._clock.now_ms() + STALL_MS
                elif self._clock.now_ms() >= deadline_ms:
                    raise RequestTimedOut(f"topic {self._place.topic} can't be read to its end")

    async def _read_some(self) -> int:
        polled = await self._open_consumer.poll(timeout_ms=POLL_MS)
        for record in polled.get(self._place, ()):
            schedule, runs = (record.key or b"").decode(), Runs.decode(record.value or b"")
            before = self._runs.get(schedule)
            self._runs[schedule] = runs if before is None else before.merged(runs)
            self._heard_ms[schedule] = record.timestamp_ms
        return await self._open_consumer.position(self._place)
