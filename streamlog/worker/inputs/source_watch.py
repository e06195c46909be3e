"""Sources: sees that the inputs of a worker still are the logs that were read.

The consumer notices a topic that was created again and a log that was truncated; here the app's
setting `topic_spec` is asked what becomes of it. Rule of the file: no offset in the new log is
committed before the records in front of it are processed, and nothing is skipped without a log
line. Not done here: closing and opening tasks (`worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

from streamlog import repeated
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.subscription_state import known_id
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.clock import Clock
from streamlog.errors import SourceLost, UnknownTopicOrPartition
from streamlog.nodes.topic_spec import SourceLostPolicy
from streamlog.processing.task_progress import InputRestart
from streamlog.record import TopicPartition
from streamlog.tables.state.changelog import SourceLog
from streamlog.worker.topics.lost_sources import (
    FAIL,
    LostSource,
    Present,
    TruncatedSource,
    gone,
    lost,
    restart,
    told,
)

logger = repeated.logger(__name__)

RETURN_MS = 60_000
"""How long a topic that was deleted may take to be created again, if the app waits for it."""
RETURN_POLL_MS = 200


Lost: TypeAlias = SourceLost | UnknownTopicOrPartition
LOST: Final = (SourceLost, UnknownTopicOrPartition)
"""What a consumer raises if something that it reads is not the log that was read, or is gone."""


class Sources:
    """What a worker reads, and whether it still is what it was."""

    def __init__(
        self,
        consumer: Consumer,
        clock: Clock,
        *,
        app_id: str,
        policy: Callable[[str], SourceLostPolicy],
    ) -> None:
        """`policy` tells by topic what the app wants."""
        self.losses: dict[TopicPartition, LostSource] = {}
        """What was found while it was read, of partitions that are about to be opened again."""
        self._consumer = consumer
        self._clock = clock
        self._app_id = app_id
        self._policy = policy
        self._told: set[str] = set()

    def judge(
        self,
        part: TopicPartition,
        offset: int,
        log: SourceLog,
        present: Present,
        cut: TruncatedSource | None,
    ) -> InputRestart:
        """Where to go on in a partition, instead of at `offset` in a log that is gone.

        Raises:
            SourceLost: the app wants the worker to end.
        """
        policy = self._policy(part.topic)
        if policy == FAIL:
            raise lost(part, offset, log, present, cut)
        found = restart(policy, offset, log, present, cut)
        if found == InputRestart(offset, log):
            return found
        text = told(part, offset, log, present, cut)
        if text not in self._told:
            self._told.add(text)
            logger.warning(
                "%s. Going on at offset %d, as source_lost is %r; state is kept as it is",
                text,
                found.offset,
                policy,
            )
        return found

    async def affected(self, error: Lost) -> frozenset[TopicPartition]:
        """Which partitions have to be opened again after what the consumer could not read.

        Raises:
            SourceLost: the app wants the worker to end.
            UnknownTopicOrPartition: a topic was deleted and is not created again.
        """
        assigned = self._consumer.assignment()
        if not isinstance(error, SourceLost):
            return await self._returned(assigned, error)
        if error.is_recreated:
            return await self._judged(part for part in assigned if part.topic == error.topic)
        part = TopicPartition(error.topic, error.partition)
        begin = (await self._consumer.begin_offsets([part]))[part]
        if error.resume_at < 0 and error.position < begin:
            self._expired(part, error, begin)
            return frozenset()
        return await self._judged([part], TruncatedSource(error.resume_at, error.resume_epoch))

    async def _judged(
        self, partitions: Iterable[TopicPartition], cut: TruncatedSource | None = None
    ) -> frozenset[TopicPartition]:
        """Ask the app about each; what the group has committed may be gone with the topic."""
        parts = sorted(partitions)
        present = await self.present(parts)
        for part in parts:
            offset = self._consumer.positions().get(part, 0)
            place = self._consumer.place(part, offset)
            log = SourceLog(known_id(place.topic_id) or b"", place.leader_epoch)
            self.losses[part] = LostSource(self.judge(part, offset, log, present[part], cut), cut)
        return frozenset(parts)

    async def present(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Present]:
        """These partitions as they are now.

        The ids are asked for first: what is created again after that is noticed when it is read.
        """
        consumer = self._consumer
        ids = {name: await consumer.topic_id(name) for name in {at.topic for at in partitions}}
        begins = await consumer.begin_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        return {
            part: Present(known_id(ids[part.topic]) or b"", begins[part], ends[part])
            for part in partitions
        }

    def settled(self, partitions: Iterable[TopicPartition]) -> None:
        """These are read from their new places."""
        for part in partitions:
            self.losses.pop(part, None)

    def _expired(self, part: TopicPartition, error: SourceLost, begin: int) -> None:
        """Records were removed by the topic's retention, or on purpose, before they were read."""
        logger.warning(
            "%s-%d: offsets %d to %d were removed from the log before they were read"
            " (retention, or delete-records): going on at %d",
            *part,
            error.position,
            begin - 1,
            begin,
        )
        topic_id = error.old_id
        at = OffsetAndMetadata(begin, topic_id=topic_id) if topic_id else OffsetAndMetadata(begin)
        self._consumer.seek(part, at)

    async def _returned(
        self, assigned: Collection[TopicPartition], error: UnknownTopicOrPartition
    ) -> frozenset[TopicPartition]:
        """Wait until topics that were deleted are there again; all of their partitions."""
        topics = {part.topic for part in assigned}
        missing = await self._missing(topics)
        if not missing:
            raise error
        for topic in sorted(missing):
            if self._policy(topic) == FAIL:
                raise gone(topic, self._app_id)
        logger.warning(
            "%s: deleted while it is read; waiting %d s for it to be created again",
            ", ".join(sorted(missing)),
            RETURN_MS // 1000,
        )
        away, deadline_ms = missing, self._clock.now_ms() + RETURN_MS
        while away:
            if self._clock.now_ms() >= deadline_ms:
                raise error
            await asyncio.sleep(RETURN_POLL_MS / 1000)
            away = await self._missing(away)
        return await self._judged(part for part in assigned if part.topic in missing)

    async def _missing(self, topics: Collection[str]) -> set[str]:
        found: set[str] = set()
        for topic in topics:
            try:
                await self._consumer.topic_id(topic)
            except UnknownTopicOrPartition:
                found.add(topic)
        return found
