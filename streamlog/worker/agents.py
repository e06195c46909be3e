"""Agents: a user's `async for` loop over the records of a topic.

One loop per agent and worker, over all partitions that the worker has, in order within each.
Records wait in a bounded feed; when it is full the partitions are held back. A record counts
as handled when the loop asks for the next one, and only what is handled is committed: after
a crash the record in hand comes again. Rule of the file: an exception ends the worker, with
the record's coordinates, and the record is not committed, so nothing is skipped in silence.
Not done here: replies, concurrency within one worker, error policies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from streamlog.assignors import TopicPartition
from streamlog.dsl.agent import Agent
from streamlog.errors import ProcessingError
from streamlog.record import Record
from streamlog.records.batch import Record as RawRecord
from streamlog.worker.pauses import Pauses

logger = logging.getLogger(__name__)

FEED_RECORDS_MAX = 4_000
"""A feed with more than this takes no more until it is half empty. What one poll has brought
is taken whole, on top."""
HANDLE_WAIT_MS = 30_000
"""How long a rebalance or a stop waits for the record in hand."""
YIELD_RECORDS = 100
"""A loop that awaits nothing itself lets the others (heartbeats!) run after so many."""


class Agents:
    """The agents of this worker."""

    def __init__(self, agents: Sequence[Agent[Any, Any]], pauses: Pauses) -> None:
        self._loops = [AgentLoop(agent, pauses) for agent in agents]

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run every agent in the group, until it ends with an error or `finish` is called."""
        for loop in self._loops:
            group.create_task(loop.run(), name=f"agent {loop.agent.name}")

    def take(self, polled: Mapping[TopicPartition, Sequence[RawRecord]]) -> None:
        """Hand records to the agents that read them."""
        for loop in self._loops:
            loop.take(polled)

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next offset to read per partition, as of what every agent has handled."""
        found: dict[TopicPartition, int] = {}
        for loop in self._loops:
            for partition, offset in loop.offsets.items():
                found[partition] = min(offset, found.get(partition, offset))
        return found

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """These partitions are read now, each from its offset on."""
        for loop in self._loops:
            loop.assign(starts)

    async def revoke(self) -> None:
        """Drop what waits, and let every agent finish the record in hand."""
        await asyncio.gather(*(loop.revoke() for loop in self._loops))

    async def finish(self) -> None:
        """End the streams: no record is begun any more, the loops of the users end."""
        for loop in self._loops:
            loop.end()
        await self.revoke()


class AgentLoop:
    """One agent, and the records that wait for it: the iterator that it loops over."""

    def __init__(self, agent: Agent[Any, Any], pauses: Pauses) -> None:
        self.agent = agent
        self.offsets: dict[TopicPartition, int] = {}
        """Per partition, the offset after the last record that was handled."""
        self._pauses = pauses
        self._feed: deque[tuple[TopicPartition, RawRecord]] = deque()
        self._received: dict[TopicPartition, int] = {}
        self._in_hand: tuple[TopicPartition, RawRecord] | None = None
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = False
        self._since_yield = 0

    async def run(self) -> None:
        """Call the agent; returns when its stream has ended.

        Raises:
            ProcessingError: the agent raised, or returned though its stream goes on.
        """
        try:
            await self.agent.run(self)
        except Exception as error:
            raise self._failed(error) from error
        finally:
            self._idle.set()
        if not self._ending:
            raise ProcessingError(
                f"agent {self.agent.name!r} returned while its topic {self.agent.topic.name!r} "
                "goes on: loop over the stream with `async for` and do not leave the loop",
                node=self.agent.name,
            )
        self._handled()

    def take(self, polled: Mapping[TopicPartition, Sequence[RawRecord]]) -> None:
        """Put records of assigned partitions into the feed."""
        for partition, received in self._received.items():
            for record in polled.get(partition, ()):
                if record.offset >= received:
                    self._feed.append((partition, record))
                    self._received[partition] = record.offset + 1
        if self._feed:
            self._news.set()
        if len(self._feed) > FEED_RECORDS_MAX:
            self._pauses.hold(self, self._received)

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read these partitions, as far as they are of the agent's topic, from these offsets."""
        topic = self.agent.topic.name
        self._received = {part: at for part, at in starts.items() if part.topic == topic}
        self.offsets = dict(self._received)

    async def revoke(self) -> None:
        """Drop what waits, and wait until the record in hand is handled."""
        self._feed.clear()
        self._received = {}
        self._pauses.let_go(self, list(self.offsets))
        try:
            async with asyncio.timeout(HANDLE_WAIT_MS / 1000):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("agent %s: %s", self.agent.name, self._late())

    def end(self) -> None:
        """The stream ends after the record in hand."""
        self._ending = True
        self._feed.clear()
        self._news.set()

    def __aiter__(self) -> AsyncIterator[Record[Any, Any]]:
        return self

    async def __anext__(self) -> Record[Any, Any]:
        self._handled()
        self._since_yield += 1
        if self._since_yield >= YIELD_RECORDS:
            self._since_yield = 0
            await asyncio.sleep(0)
        while not self._feed:
            if self._ending:
                raise StopAsyncIteration
            self._since_yield = 0
            self._news.clear()
            await self._news.wait()
        if len(self._feed) == FEED_RECORDS_MAX // 2:
            self._pauses.let_go(self, self._received)
        partition, record = self._in_hand = self._feed.popleft()
        self._idle.clear()
        return self.agent.topic.decoded(record, partition.partition)

    def _handled(self) -> None:
        """The record in hand is done; if its partition was taken away, it is not ours to count."""
        if self._in_hand is not None:
            partition, record = self._in_hand
            self._in_hand = None
            if partition in self.offsets:
                self.offsets[partition] = record.offset + 1
        self._idle.set()

    def _late(self) -> str:
        if self._in_hand is None:
            return "has nothing in hand"
        (topic, partition), record = self._in_hand
        return (
            f"still at work on {topic}-{partition} offset {record.offset} after "
            f"{HANDLE_WAIT_MS // 1000} s: another worker will repeat it"
        )

    def _failed(self, error: Exception) -> ProcessingError:
        if isinstance(error, ProcessingError) and error.topic:
            return error
        name = self.agent.name
        if self._in_hand is None:
            return ProcessingError(f"agent {name!r}: {_told(error)}", node=name)
        (topic, partition), record = self._in_hand
        return ProcessingError(
            f"agent {name!r} failed on {topic}-{partition} offset {record.offset}: {_told(error)}",
            topic=topic,
            partition=partition,
            offset=record.offset,
            node=name,
        )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
