"""Source watch: checks that inputs are the logs that were read, and in which partitions keys lie.

The consumer notices a topic that was created again or a log that was truncated, and `source_lost`
decides what follows. State knows the topic that it was made from. Tasks and agents without state
have only the group's offsets, which brokers delete with the topic; so a starting worker compares
the ids of all sources with those that the app has recorded.

A lookup or a join reads the partition that the topic's partitioner names. If a producer uses
another partitioner, rows are not found and joins find nothing, without an error. So the first keys
of each partition, and later one batch in a while, are compared with the partitioner.

Rule: no offset of a new log is committed before the records in front of it are processed, and no
record is skipped without a log line. Not done here: closing and opening tasks (`worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from streamlog.records.partitioners import matching_partitioners, partition_by, partitioner_name
from streamlog.serdes import window_bytes
from streamlog.tables.state.changelog import SourceLog
from streamlog.topology import Topology
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
from streamlog.worker.topics.version_log import OwnTopics

logger = repeated.logger(__name__)

FIRST_KEYS = 200
"""So many keys of each partition are compared at once."""
BATCHES_APART = 1_000
"""After that, some of one batch in so many."""
SOME_KEYS = 10
KEYS_KEPT = 400
"""Misplaced keys of a topic that are remembered to find out what fits."""
TELL_AFTER_KEYS = 2
"""One key may have been sent to a partition by hand."""
TELL_AGAIN_MS = 600_000


class KeyPartitionCheck:
    """Compares where keys lie with where they should."""

    def __init__(self, topology: Topology, counts: Mapping[str, int], clock: Clock) -> None:
        self._clock = clock
        self._counts = counts
        self._specs = {
            topic.name: topic
            for sub in topology.subtopologies
            if sub.stores
            for topic in sub.topics.values()
            if not topic.is_managed and counts[topic.name] > 1
        }
        self._compared: dict[TopicPartition, int] = {}
        self._batches: dict[TopicPartition, int] = {}
        self._misplaced: dict[str, dict[bytes, int]] = {}
        self._told_ms: dict[str, int] = {}

    def look(self, part: TopicPartition, keys: Sequence[bytes | None]) -> None:
        """Records of a partition have come: compare some of their keys."""
        if part.topic not in self._specs:
            return
        left = FIRST_KEYS - self._compared.get(part, 0)
        if left > 0:
            self._compared[part] = FIRST_KEYS - left + min(left, len(keys))
            self._compare(part, keys[:left])
            return
        batches = self._batches[part] = self._batches.get(part, 0) + 1
        if batches % BATCHES_APART == 0:
            self._compare(part, keys[:SOME_KEYS])

    def _compare(self, part: TopicPartition, keys: Iterable[bytes | None]) -> None:
        topic, number = part
        spec, count = self._specs[topic], self._counts[topic]
        misplaced = self._misplaced.setdefault(topic, {})
        tail_bytes = window_bytes(spec.key)
        for key in (each[: max(len(each) - tail_bytes, 0)] for each in keys if each):
            is_misplaced = partition_by(spec.partitioner, key, count) != number
            if key and is_misplaced and len(misplaced) < KEYS_KEPT:
                misplaced[key] = number
        if len(misplaced) >= TELL_AFTER_KEYS:
            self._tell(topic, misplaced)

    def _tell(self, topic: str, misplaced: Mapping[bytes, int]) -> None:
        now_ms, told_ms = self._clock.now_ms(), self._told_ms.get(topic)
        if told_ms is not None and now_ms - told_ms < TELL_AGAIN_MS:
            return
        self._told_ms[topic] = now_ms
        key, number = next(iter(misplaced.items()))
        spec, count = self._specs[topic], self._counts[topic]
        fits = matching_partitioners(misplaced.items(), count)
        fit = [name for name, each in fits.items() if each == len(misplaced)]
        fix = (
            f"declare how its producers choose: app.topic({topic!r}, ..., partitioner={fit[0]!r})"
            if fit
            else "read it through .repartition(name=...), or let its producers use that partitioner"
        )
        logger.warning(
            "topic %s: keys don't lie where partitioner %s puts them, such as %r, which is in "
            "partition %d and not in %d: rows are not found by key, and joins miss partners; %s "
            "(see: streamlog topics check %s)",
            topic,
            partitioner_name(spec.partitioner),
            key[:80],
            number,
            partition_by(spec.partitioner, key, count),
            fix,
            topic,
        )


RETURN_MS = 60_000
"""How long a topic that was deleted may take to be created again, if the app waits for it."""
RETURN_POLL_MS = 200


Lost: TypeAlias = SourceLost | UnknownTopicOrPartition
LOST: Final = (SourceLost, UnknownTopicOrPartition)
"""What a consumer raises if something that it reads is not the log that was read, or is gone."""


class SourceWatch:
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
