"""Replies: asks that wait for their answers, and answers on their way to who has asked.

Each process that asks has a topic of its own for the answers, made when it asks for the first
time and removed when it ends; what a killed one has left is removed by whoever makes its own
later, once everything in it has expired. Answers are written at once, outside of transactions,
each by a task of its own: one whose asker is gone holds nobody up. Rule of the file: an answer
is written to topics of this app's kind only, whatever a record's header says, and an answer
that nobody waits for any more is dropped. Not done here: what is an ask (`agents.asks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from uuid import uuid4

from streamlog import repeated
from streamlog.agents.asks import CORRELATION, Ask, number_of
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.errors import RequestTimedOut, StreamlogError, TopicExists
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord

logger = repeated.logger(__name__)

RETENTION_MS = 600_000
"""Who has not read its answer by then does not wait for it any more."""
POLL_MS = 500
ANSWERS_MAX = 1_000
"""On their way at a time; more are dropped, and their askers wait in vain."""
CLOSE_WAIT_MS = 2_000
"""For answers on their way and the removal of the topic, when the worker ends."""
LAST_ANSWERS_MS = 2_000
"""A worker that stops waits no longer for answers: nobody else may be there to give them."""


class Replies:
    """The asks and answers of one worker."""

    def __init__(
        self,
        log: Log,
        producer: Producer,
        group: asyncio.TaskGroup,
        *,
        app_id: str,
        process: str,
        alive: Callable[[], Collection[str]],
    ) -> None:
        """`process` is this worker's name; `alive` those of all workers, if they are known."""
        self._log = log
        self._producer = producer
        self._group = group
        self._prefix = f"{app_id}-replies-"
        self._place = TopicPartition(self._prefix + process, 0)
        self._alive = alive
        self._asked: dict[bytes, asyncio.Future[bytes | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._making = asyncio.Lock()
        self._answers: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def ask(
        self, topic: str, value: bytes | None, *, key: bytes | None, timeout_ms: int
    ) -> bytes | None:
        """Write a record and wait for the answer.

        Raises:
            RequestTimedOut: it has not come in time, or the worker stops.
        """
        if self._is_over:
            raise RequestTimedOut(f"{topic} is not asked any more: this worker stops")
        ask = Ask(self._place.topic, uuid4().bytes)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._asked[ask.number] = answer
        where = topic
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit:
                await self._listen()
                sent = await self._producer.send(topic, value, key=key, headers=ask.headers)
                record = await sent
                where = f"{topic}-{record.partition} offset {record.offset}"
                return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() or not self._is_over:
                raise
            raise RequestTimedOut(f"no answer to {where}: this worker stops") from None
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimedOut(f"no answer to {where} within {timeout_ms} ms") from None
        finally:
            del self._asked[ask.number]

    def answer(self, ask: Ask, data: bytes | None) -> None:
        """Send an answer, without waiting for it to arrive."""
        if not ask.reply_to.startswith(self._prefix):
            logger.warning("no answer to %r: it is no topic for replies", ask.reply_to)
        elif len(self._answers) >= ANSWERS_MAX:
            logger.warning("%d answers are on their way: one is dropped", ANSWERS_MAX)
        else:
            name = f"answer to {ask.reply_to}"
            task = self._group.create_task(self._send(ask, data), name=name)
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def close(self) -> None:
        """Let answers arrive, stop listening, and remove the topic.

        An ask that is not answered soon fails, and so does every new one.
        """
        if self._answers:
            await asyncio.wait(self._answers, timeout=CLOSE_WAIT_MS / 1000)
            for task in self._answers:
                task.cancel()
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=LAST_ANSWERS_MS / 1000)
        self._is_over = True
        for answer in self._asked.values():
            answer.cancel()
        if self._reading is None:
            return
        self._reading.cancel()
        try:
            async with asyncio.timeout(CLOSE_WAIT_MS / 1000):
                await self._log.admin().delete_topics([self._place.topic])
        except (StreamlogError, TimeoutError) as error:
            logger.debug("%s is left behind: %s", self._place.topic, error)

    async def _listen(self) -> None:
        """Have a topic for answers, and read it."""
        async with self._making:
            if self._reading is not None:
                return
            await self._remove_abandoned()
            configs = {"retention.ms": str(RETENTION_MS), "segment.ms": str(RETENTION_MS)}
            topic = NewTopic(self._place.topic, 1, configs=configs)
            try:
                await self._log.admin().create_topics([topic])
            except TopicExists:
                logger.debug("%s is there: from a life before", topic.name)
            if self._is_over:
                raise RequestTimedOut(f"{topic.name} is not read any more: this worker stops")
            ready = asyncio.get_running_loop().create_future()
            self._reading = self._group.create_task(self._read(ready), name="replies")
            await ready

    async def _read(self, ready: asyncio.Future[None]) -> None:
        place = self._place
        async with self._log.consumer(auto_offset_reset="latest") as consumer:
            consumer.assign([place])
            # What is there already is for asks of a life before.
            consumer.seek(place, (await consumer.end_offsets([place]))[place])
            if not ready.done():
                ready.set_result(None)
            while True:
                for record in (await consumer.poll(timeout_ms=POLL_MS)).get(place, ()):
                    self._hear(record)

    def _hear(self, record: LogRecord) -> None:
        answer = self._asked.get(number_of(record.headers) or b"")
        if answer is not None and not answer.done():
            answer.set_result(record.value)

    async def _send(self, ask: Ask, data: bytes | None) -> None:
        try:
            headers = ((CORRELATION, ask.number),)
            sent = await self._producer.send(ask.reply_to, data, headers=headers, partition=0)
            await sent
        except StreamlogError as error:
            logger.info("an answer to %s has not arrived: %s", ask.reply_to, error)

    async def _remove_abandoned(self) -> None:
        """Remove the topics of processes that are gone, and with them all that they waited for."""
        admin, alive = self._log.admin(), {self._prefix + name for name in self._alive()}
        if not alive:
            return
        names = [topic.name for topic in await admin.list_topics()]
        places = [
            TopicPartition(name, 0)
            for name in names
            if name.startswith(self._prefix) and name not in alive
        ]
        if not places:
            return
        async with self._log.consumer() as consumer:
            begins = await consumer.begin_offsets(places)
            ends = await consumer.end_offsets(places)
        # One that has never been used may be about to be.
        expired = [place.topic for place in places if 0 < ends[place] == begins[place]]
        if expired:
            logger.info("removing topics of processes that are gone: %s", ", ".join(expired))
            await admin.delete_topics(expired)
