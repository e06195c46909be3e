"""Compacted topic: a follower of one of Connect's topics, from its beginning on.

Only committed records are passed on. `catch_up` waits for everything that the topic has at the
moment, records of open transactions included: it reads up to the high watermark, and thereby waits
until each transaction before it has ended.

Rule: a follower decides nothing about the records. Not done here: their meaning (`connect/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

from streamlog.errors import ConfigError, RequestTimedOut
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.serdes import BytesSerde
from streamlog.worker.topics.app_topics import declare_topics

POLL_MS: Final = 200
CATCH_UP_MS: Final = 60_000
"""How long a caller waits. A killed worker's transaction ends after 10 s at the latest."""

OnRecord = Callable[[LogRecord], None]


class CompactedTopic:
    """Follows all partitions of a compacted topic."""

    def __init__(self, log: Log, topic: str, partitions: int, on_record: OnRecord) -> None:
        """Create a follower; `open` creates the topic if it does not exist.

        Args:
            log: the log.
            topic: the topic's name.
            partitions: the number of partitions of a new topic.
            on_record: called with each committed record, in the order of its partition.
        """
        self._log, self._on_record = log, on_record
        self._spec = TopicSpec(
            topic, BytesSerde(), BytesSerde(), partitions=partitions, compact=True
        )
        self._parts: list[TopicPartition] = []
        self._positions: dict[TopicPartition, int] = {}
        self._moved = asyncio.Event()

    async def open(self) -> None:
        """Create the topic if it does not exist."""
        topic = self._spec.name
        counts = await declare_topics(self._log, {topic: self._spec})
        self._parts = [TopicPartition(topic, number) for number in range(counts[topic])]

    async def read_once(self) -> None:
        """Pass on what the topic has now; neither create nor follow it.

        Raises:
            ConfigError: there is no such topic.
            RequestTimedOut: a transaction has not ended in time.
        """
        name = self._spec.name
        found = await self._log.admin().find_topics([name])
        if not found:
            raise ConfigError(f"the log has no topic {name!r}: no worker has stored anything there")
        self._parts = [TopicPartition(name, number) for number in range(found[0].partitions)]
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self.run(), name=f"read {name}")
            await self.catch_up()
            following.cancel()

    async def run(self) -> None:
        """Follow the topic until the caller is cancelled.

        Raises:
            StreamlogError: the topic can't be read.
        """
        consumer = self._log.consumer(
            auto_offset_reset="earliest", isolation_level="read_committed"
        )
        async with consumer as opened:
            opened.assign(self._parts)
            while True:
                polled = await opened.poll(timeout_ms=POLL_MS)
                for record in chain.from_iterable(polled.values()):
                    self._on_record(record)
                # Behind the records: a caller that waits for a position finds them applied.
                self._positions = opened.positions()
                self._moved.set()

    async def catch_up(self) -> None:
        """Wait until everything is applied that the topic has now, and every transaction before.

        Raises:
            RequestTimedOut: a transaction has not ended in time.
        """
        # The high watermark, not the last stable offset: with many workers some transaction is open
        # at each moment, and one that has its offsets accepted already counts for the caller.
        consumer = self._log.consumer(isolation_level="read_uncommitted")
        async with consumer as opened:
            ends = await opened.end_offsets(self._parts)
        await self._applied({part: end for part, end in ends.items() if end})

    async def read_to(self, offset: int) -> None:
        """Wait until everything before an offset of the first partition is applied.

        Raises:
            RequestTimedOut: it was not read in time.
        """
        if offset:
            await self._applied({TopicPartition(self._spec.name, 0): offset})

    async def _applied(self, ends: Mapping[TopicPartition, int]) -> None:
        # By positions, not by records: compaction may have removed the last ones before the end.
        try:
            async with asyncio.timeout(CATCH_UP_MS / 1000):
                while any(self._positions.get(part, -1) < end for part, end in ends.items()):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise RequestTimedOut(
                f"{self._spec.name} was not read to its end within {CATCH_UP_MS // 1000} s: a "
                "transaction in it has not ended; `streamlog transactions find-hanging` shows it"
            ) from None
