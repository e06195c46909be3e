"""Sources: sees that the inputs of a worker still are the logs that were read.

The consumer notices a topic that was created again and a log that was truncated; here the app's
setting `topic_spec` is asked what becomes of it. Rule of the file: no offset in the new log is
committed before the records in front of it are processed, and nothing is skipped without a log
line. Not done here: closing and opening tasks (`worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final, TypeAlias

from streamlog import repeated
from streamlog.client.admin import TopicDescription
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.subscription_state import known_id
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.clock import Clock
from streamlog.errors import SourceLost, UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.nodes.topic_spec import SourceLostPolicy
from streamlog.processing.task_progress import InputRestart
from streamlog.protocol.schema import ZERO_UUID, id_text
from streamlog.record import TopicPartition
from streamlog.tables.state.changelog import SourceLog
from streamlog.worker.program import Program
from streamlog.worker.topics.lost_sources import (
    ADVICE,
    FAIL,
    LATEST,
    LostSource,
    Present,
    TruncatedSource,
    describe_loss,
    restart,
    source_deleted_error,
    source_lost_error,
)
from streamlog.worker.topics.own_topics import OwnTopics

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
            raise source_lost_error(part, offset, log, present, cut)
        found = restart(policy, offset, log, present, cut)
        if found == InputRestart(offset, log):
            return found
        text = describe_loss(part, offset, log, present, cut)
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
                raise source_deleted_error(topic, self._app_id)
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


async def compare_source_ids(log: Log, program: Program, before: OwnTopics) -> OwnTopics:
    """What is to be written down of the sources, after a line about each that is another topic.

    Raises:
        SourceLost: one is, and the app wants the worker to end then.
    """
    found = await log.admin().find_topics(program.outer_sources)
    topics = {each.name: each for each in found if each.topic_id != ZERO_UUID}
    others = [
        name
        for name, topic in sorted(topics.items())
        if before.sources.get(name, topic.topic_id) != topic.topic_id
    ]
    begins = {name: at for name, at in before.begins.items() if name not in others}
    for name in await _unread(log, program, others):
        old_id, new_id = before.sources[name], topics[name].topic_id
        text = (
            f"{name}: this is another topic than the one that app {program.app_id!r} read: it was"
            f" deleted and created again since (id {id_text(old_id)}, now {id_text(new_id)}), and"
            " the app's offsets went with the old one"
        )
        policy = program.source_policy(name)
        if policy == FAIL:
            raise SourceLost(f"{text}. {ADVICE}", topic=name, ids=(old_id, new_id))
        if policy == LATEST:
            begins[name] = await _ends(log, topics[name])
        where = "end" if policy == LATEST else "beginning"
        logger.warning("%s. Reading from its %s, as source_lost is %r", text, where, policy)
    sources = {name: topic.topic_id for name, topic in topics.items()}
    return replace(before, sources=sources, begins=begins)


async def _unread(log: Log, program: Program, names: Collection[str]) -> list[str]:
    """Those of which the app has committed nothing, and that no state is made of."""
    without_state = [name for name in names if not program.has_state(name)]
    if not without_state:
        return []
    committed = await log.admin().group_places(program.app_id)
    read = {part.topic for part in committed}
    return [name for name in without_state if name not in read]


async def _ends(log: Log, topic: TopicDescription) -> tuple[int, ...]:
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    async with log.consumer() as consumer:
        ends = await consumer.end_offsets(partitions)
    return tuple(ends[part] for part in partitions)
