"""Source watch: checks that inputs are the logs that were read, and in which partitions keys lie.

The consumer notices a topic that was created again or a log that was truncated, and `source_lost`
decides what follows. State records the topic that it was built from. Tasks and agents without state
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
from streamlog.replace import replace
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
    is_recreated,
    restart,
    source_deleted_error,
    source_lost_error,
)
from streamlog.worker.topics.version_log import OwnTopics

logger = repeated.logger(__name__)

FIRST_KEYS = 200
"""The number of keys of each partition that are compared at first."""
BATCHES_APART = 1_000
"""After the first keys, `SOME_KEYS` of every 1,000th batch are compared."""
SOME_KEYS = 10
KEYS_KEPT = 400
"""The number of misplaced keys of a topic that are kept, in order to find the partitioner in
use."""
TELL_AFTER_KEYS = 2
"""The number of misplaced keys that are reported; a single one may have been sent by hand."""
TELL_AGAIN_MS = 600_000


class KeyPartitionCheck:
    """Compares the partitions of keys with those that the topic's partitioner names."""

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
        self._logged_ms: dict[str, int] = {}

    def look(self, part: TopicPartition, keys: Sequence[bytes | None]) -> None:
        """Compare some of the keys of records that were polled from a partition."""
        if part.topic not in self._specs:
            return
        left = FIRST_KEYS - self._compared.get(part, 0)
        if left > 0:
            self._compared[part] = FIRST_KEYS - left + min(left, len(keys))
            self._compare(part, keys[:left])
            return
        # A producer may change its partitioner later, so some keys are compared for ever.
        batches = self._batches[part] = self._batches.get(part, 0) + 1
        if batches % BATCHES_APART == 0:
            self._compare(part, keys[:SOME_KEYS])

    def _compare(self, part: TopicPartition, keys: Iterable[bytes | None]) -> None:
        topic, number = part
        spec, count = self._specs[topic], self._counts[topic]
        misplaced = self._misplaced.setdefault(topic, {})
        tail_bytes = window_bytes(spec.key)
        # A windowed key ends with its window, which partitioners leave out.
        for key in (each[: max(len(each) - tail_bytes, 0)] for each in keys if each):
            is_misplaced = partition_by(spec.partitioner, key, count) != number
            if key and is_misplaced and len(misplaced) < KEYS_KEPT:
                misplaced[key] = number
        if len(misplaced) >= TELL_AFTER_KEYS:
            self._warn(topic, misplaced)

    def _warn(self, topic: str, misplaced: Mapping[bytes, int]) -> None:
        now_ms, logged_ms = self._clock.now_ms(), self._logged_ms.get(topic)
        # One line for all partitions of a topic: its producers have one mistake in common.
        if logged_ms is not None and now_ms - logged_ms < TELL_AGAIN_MS:
            return
        self._logged_ms[topic] = now_ms
        key, number = next(iter(misplaced.items()))
        spec, count = self._specs[topic], self._counts[topic]
        fits = matching_partitioners(misplaced.items(), count)
        fit = [name for name, each in fits.items() if each == len(misplaced)]
        fix = (
            f"declare its producers' partitioner: app.topic({topic!r}, ..., partitioner={fit[0]!r})"
            if fit
            else "read it through .repartition(name=...), or let its producers use that partitioner"
        )
        logger.warning(
            "topic %s: keys are not in the partitions that partitioner %s names, such as %r, which "
            "is in partition %d instead of %d: lookups and joins don't find such rows; %s (see: "
            "streamlog topics check %s)",
            topic,
            partitioner_name(spec.partitioner),
            key[:80],
            number,
            partition_by(spec.partitioner, key, count),
            fix,
            topic,
        )


RETURN_MS = 60_000
"""How long a worker waits for a deleted topic to be created again, unless `source_lost` is
"fail"."""
RETURN_POLL_MS = 200


Lost: TypeAlias = SourceLost | UnknownTopicOrPartition
LOST: Final = (SourceLost, UnknownTopicOrPartition)
"""The errors of a consumer if an input was created again, truncated or deleted."""


class SourceWatch:
    """Watches that the inputs of a worker are the logs that were read."""

    def __init__(
        self,
        consumer: Consumer,
        clock: Clock,
        *,
        app_id: str,
        policy: Callable[[str], SourceLostPolicy],
    ) -> None:
        """Create a watch without losses."""
        self.losses: dict[TopicPartition, LostSource] = {}
        """The losses found while reading, of partitions that are about to be opened again."""
        self.policy = policy
        """The app's policy for a topic."""
        self._consumer = consumer
        self._clock = clock
        self._app_id = app_id
        self._logged: set[str] = set()

    def judge(
        self,
        part: TopicPartition,
        offset: int,
        log: SourceLog,
        present: Present,
        cut: TruncatedSource | None,
    ) -> InputRestart:
        """Return where to continue in a partition, instead of at `offset` in a lost log.

        Raises:
            SourceLost: the policy is "fail".
        """
        policy = self.policy(part.topic)
        if policy == FAIL:
            raise source_lost_error(part, offset, log, present, cut)
        found = restart(policy, offset, log, present, cut)
        # The log still holds everything that was read: nothing is lost, and nothing is logged.
        if found == InputRestart(offset, log):
            return found
        text = describe_loss(part, offset, log, present, cut)
        # Each reader of a partition asks, and asks again after a rebalance: one line for each loss.
        if text not in self._logged:
            self._logged.add(text)
            logger.warning(
                "%s. Continuing at offset %d, as source_lost is %r; state is kept",
                text,
                found.offset,
                policy,
            )
        return found

    async def affected(self, error: Lost, stop: asyncio.Event) -> frozenset[TopicPartition]:
        """Return the partitions to open again after an error of the consumer.

        Args:
            error: what the consumer has found.
            stop: ends the wait for a topic that was deleted; no partition is returned then.

        Raises:
            SourceLost: the policy of a topic is "fail".
            UnknownTopicOrPartition: a topic was deleted, and not created again within `RETURN_MS`.
        """
        assigned = self._consumer.assignment()
        if not isinstance(error, SourceLost):
            return await self._await_return(assigned, error, stop)
        # A topic is created again as a whole; a log is truncated partition by partition.
        if error.is_recreated:
            return await self._judge_all(part for part in assigned if part.topic == error.topic)
        part = TopicPartition(error.topic, error.partition)
        begin = (await self._consumer.begin_offsets([part]))[part]
        # Retention has overtaken the reader. The log is still the one that was read, so
        # `source_lost` does not apply.
        if error.resume_at < 0 and error.position < begin:
            self._expired(part, error, begin)
            return frozenset()
        return await self._judge_all([part], TruncatedSource(error.resume_at, error.resume_epoch))

    async def _judge_all(
        self, partitions: Iterable[TopicPartition], cut: TruncatedSource | None = None
    ) -> frozenset[TopicPartition]:
        """Decide about each partition by its read position, and note the losses.

        The committed offsets may have been deleted together with the topic.
        """
        parts = sorted(partitions)
        present = await self.present(parts)
        for part in parts:
            offset = self._consumer.positions().get(part, 0)
            position = self._consumer.offset_and_metadata(part, offset)
            log = SourceLog(known_id(position.topic_id) or b"", position.leader_epoch)
            found = self.judge(part, offset, log, present[part], cut)
            self.losses[part] = LostSource(found, cut, present[part])
        return frozenset(parts)

    async def present(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Present]:
        """Return the present logs of partitions.

        The topic ids are read before the offsets. If a topic is created again in between, the
        offsets belong to the new topic and the id to the old one; the next fetch, which sends the
        id, fails, and the change is found then.
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
        """Drop the losses of partitions that were opened again."""
        for part in partitions:
            self.losses.pop(part, None)

    def _expired(self, part: TopicPartition, error: SourceLost, begin: int) -> None:
        """Continue at the log start offset, after records were removed before they were read."""
        logger.warning(
            "%s-%d: offsets %d to %d were removed from the log before they were read"
            " (retention, or delete-records); continuing at %d",
            *part,
            error.position,
            begin - 1,
            begin,
        )
        topic_id = error.old_id
        at = OffsetAndMetadata(begin, topic_id=topic_id) if topic_id else OffsetAndMetadata(begin)
        self._consumer.seek(part, at)

    async def _await_return(
        self,
        assigned: Collection[TopicPartition],
        error: UnknownTopicOrPartition,
        stop: asyncio.Event,
    ) -> frozenset[TopicPartition]:
        """Wait until deleted topics are created again; returns all of their partitions.

        After `stop` there is nothing to open again: the next worker decides about the topics.
        """
        topics = {part.topic for part in assigned}
        missing = await self._missing(topics)
        if not missing:
            # The consumer has missed a topic for a second, and it is there again: most likely
            # another one of its name, created in between.
            again = await self._created_again(assigned)
            if not again:
                raise error
            return await self._judge_all(part for part in assigned if part.topic in again)
        for topic in sorted(missing):
            if self.policy(topic) == FAIL:
                raise source_deleted_error(topic, self._app_id)
        logger.warning(
            "%s: deleted while this worker reads it; waiting %d s for it to be created again",
            ", ".join(sorted(missing)),
            RETURN_MS // 1000,
        )
        absent, deadline_ms = missing, self._clock.now_ms() + RETURN_MS
        while absent:
            if self._clock.now_ms() >= deadline_ms:
                raise error
            if await _is_set_within(stop, RETURN_POLL_MS):
                return frozenset()
            absent = await self._missing(absent)
        return await self._judge_all(part for part in assigned if part.topic in missing)

    async def _created_again(self, assigned: Iterable[TopicPartition]) -> set[str]:
        """Return the topics whose ids are not those that were read."""
        found: set[str] = set()
        for part in assigned:
            position = self._consumer.offset_and_metadata(part, 0)
            log = SourceLog(known_id(position.topic_id) or b"")
            if is_recreated(log, known_id(await self._consumer.topic_id(part.topic)) or b""):
                found.add(part.topic)
        return found

    async def _missing(self, topics: Collection[str]) -> set[str]:
        found: set[str] = set()
        for topic in topics:
            try:
                await self._consumer.topic_id(topic)
            except UnknownTopicOrPartition:
                found.add(topic)
        return found


async def _is_set_within(event: asyncio.Event, wait_ms: int) -> bool:
    """Wait for an event; returns whether it was set in time."""
    try:
        async with asyncio.timeout(wait_ms / 1000):
            return await event.wait()
    except TimeoutError:
        return False


async def compare_source_ids(log: Log, program: Program, before: OwnTopics) -> OwnTopics:
    """Compare the ids of all sources with the recorded ones; returns the record to write.

    Sources that were created again are logged.

    Raises:
        SourceLost: a source was created again, and its policy is "fail".
    """
    found = await log.admin().find_topics(program.outer_sources)
    topics = {each.name: each for each in found if each.topic_id != ZERO_UUID}
    others = [
        name
        for name, topic in sorted(topics.items())
        if before.sources.get(name, topic.topic_id) != topic.topic_id
    ]
    # First offsets that were noted for a former topic of the name do not count.
    begins = {name: at for name, at in before.begins.items() if name not in others}
    for name in await _unread(log, program, others):
        old_id, new_id = before.sources[name], topics[name].topic_id
        text = (
            f"{name}: the topic that app {program.app_id!r} has read was deleted and created again"
            f" (id {id_text(old_id)}, now {id_text(new_id)}), and the app's offsets were deleted"
            " with it"
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
    """Return the topics without committed offsets of the app and without state built from them."""
    without_state = [name for name in names if not program.has_state(name)]
    if not without_state:
        return []
    committed = await log.admin().group_offsets_and_metadata(program.app_id)
    # Brokers delete offsets with their topic, so offsets that exist belong to the present one.
    read = {part.topic for part in committed}
    return [name for name in without_state if name not in read]


async def _ends(log: Log, topic: TopicDescription) -> tuple[int, ...]:
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    async with log.consumer() as consumer:
        ends = await consumer.end_offsets(partitions)
    return tuple(ends[part] for part in partitions)
