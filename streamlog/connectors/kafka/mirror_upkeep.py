"""Mirror upkeep: what a mirror writes by the clock, beside its records.

Positions of groups, heartbeats, partitions and settings of topics. Each task looks after its own
partitions, as only it knows where their records are in the target; the task of a topic's first
partition looks after the topic, and task 0 sends the heartbeats.

Rule: nothing here stops the records. What fails is logged and counted, and tried again at the next
round.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

from streamlog.client.admin import NewTopic
from streamlog.client.background_task import Background
from streamlog.client.producer import Producer
from streamlog.connect import OwnLog, SinkContext, TopicPartition
from streamlog.connectors.kafka.mirror_conventions import (
    HEARTBEATS,
    KeyAndValue,
    MirrorNames,
    checkpoint,
    heartbeat,
)
from streamlog.connectors.kafka.offset_runs import OffsetRuns
from streamlog.connectors.kafka.target_topics import COMPACTED, heard
from streamlog.durations import when_ms
from streamlog.errors import LogError, StreamlogError, TopicExists
from streamlog.log import Log
from streamlog.repeated import logger

_COPIED = """
    cleanup.policy compression.type compression.gzip.level compression.lz4.level
    compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms
    index.interval.bytes max.compaction.lag.ms max.message.bytes min.cleanable.dirty.ratio
    min.compaction.lag.ms preallocate retention.bytes retention.ms segment.bytes
    segment.index.bytes segment.jitter.ms segment.ms
"""
COPIED: Final = frozenset(_COPIED.split())
"""The settings of topics that follow. MirrorMaker 2 leaves these out as well: throttles, limits and
kinds of timestamps, and what depends on the number of brokers. Those that Kafka lacks are ours."""
SET_FOR_TOPIC: Final = "topic"
NON_EMPTY_GROUP: Final = 68
"""Kafka's code for a group with members, which commit positions of their own."""

log = logger(__name__)


class RemoteTopics:
    """The topics of the target, with as many partitions as here, and with their settings."""

    def __init__(self, target: Log, view: OwnLog | None, names: MirrorNames) -> None:
        """`view` is this log; without it, settings are not copied."""
        self._target, self._view, self._names = target, view, names

    async def ensure(self, partitions: Collection[TopicPartition]) -> None:
        """Create what is missing for these partitions: topics, or partitions of them.

        Raises:
            StreamlogError: the target can't be reached, or refuses.
        """
        least: dict[str, int] = {}
        for topic, number in partitions:
            least[topic] = max(least.get(topic, 0), number + 1)
        # At once with all of its partitions: a key belongs to one of them from the first record on.
        if self._view is not None:
            counts = await self._view.partition_counts(least)
            least = {each: max(count, counts.get(each, 0)) for each, count in least.items()}
        admin = self._target.admin()
        names = {self._names.remote(topic): topic for topic in least}
        found = {each.name: each.partitions for each in await admin.find_topics(names)}
        for name, topic in names.items():
            if name not in found:
                await self._create(name, topic, least[topic])
            elif found[name] < least[topic]:
                await admin.create_partitions(name, least[topic])

    async def _create(self, name: str, topic: str, partitions: int) -> None:
        configs = await self._settings(topic)
        new = NewTopic(name, partitions, replication_factor=-1, configs=configs)
        try:
            await self._target.admin().create_topics([new])
        except TopicExists:
            # Another task was faster.
            return
        log.info("created %s with %d partitions", name, partitions)

    async def _settings(self, topic: str) -> dict[str, str]:
        found = {} if self._view is None else await self._view.topic_settings(topic)
        return {name: value for name, value in found.items() if name in COPIED}

    async def copy_settings(self, topic: str) -> bool:
        """Let a topic of the target have the settings of its topic here; returns whether it had."""
        wanted, admin = await self._settings(topic), self._target.admin()
        name = self._names.remote(topic)
        there = {
            each.name: each.value
            for each in (await admin.describe_configs(name)).values()
            if each.source == SET_FOR_TOPIC and each.name in COPIED
        }
        changes: dict[str, str | None] = {
            each: wanted.get(each)
            for each in sorted(wanted.keys() | there.keys())
            if wanted.get(each) != there.get(each)
        }
        if changes:
            await admin.alter_configs(changes, topic=name)
            log.info("settings of %s follow: %s", name, ", ".join(changes))
        return not changes


class MirrorUpkeep:
    """The rounds of one task, in the background while it is open."""

    def __init__(
        self,
        target: Log,
        context: SinkContext,
        names: MirrorNames,
        remote: RemoteTopics,
        *,
        groups: tuple[Collection[str], Collection[str]],
        interval_ms: int,
        syncs_groups: bool,
        configs_ms: int | None,
        runs: Callable[[], Mapping[TopicPartition, OffsetRuns]],
    ) -> None:
        """Create the upkeep of a task.

        Args:
            target: the log of the target, open before the upkeep is.
            context: of the task.
            names: the names of topics in the target.
            remote: the topics there.
            groups: patterns of groups to translate, and of those to leave out.
            interval_ms: the time between two rounds.
            syncs_groups: whether groups of the target get the positions.
            configs_ms: the time between two looks at settings; None for never.
            runs: what the target has committed of the task's partitions.
        """
        self._target, self._context, self._names, self._remote = target, context, names, remote
        self._groups, self._excluded = (tuple(map(re.compile, each)) for each in groups)
        self._interval_ms, self._syncs_groups = interval_ms, syncs_groups
        self._configs_ms, self._configs_due_ms = configs_ms, 0
        self._runs = runs
        self._written: dict[str, dict[TopicPartition, tuple[int, int]]] = {}
        """The checkpoints that stand in the target, by group and partition here."""
        self._stack = AsyncExitStack()
        self._background = Background(self._failed)

    async def __aenter__(self) -> Self:
        """Begin the rounds."""
        # Without transactions: what these records say is true of what is committed already.
        self._producer: Producer = await self._stack.enter_async_context(self._target.producer())
        await self._background.open()
        self._stack.push_async_callback(self._background.close)
        self._background.start(self._rounds())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End them."""
        await self._stack.aclose()

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            for work in (self._beat, self._translate_groups, self._copy_settings):
                try:
                    await work()
                except (StreamlogError, OSError) as error:
                    self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._context.count("mirror_upkeep_failures")
        log.warning("mirror %r: %s; tried again", self._context.name, error)

    async def _beat(self) -> None:
        if self._context.task:
            return
        names = self._names
        row = heartbeat(names, when_ms(self._context.now()))
        # The second one is what a mirror of the other direction would bring back from here. Readers
        # learn from its name that this cluster leads there.
        for topic in (HEARTBEATS, names.remote_heartbeats):
            await self._create_compacted(topic)
            await self._send(topic, [row])

    async def _create_compacted(self, topic: str) -> None:
        admin = self._target.admin()
        if await admin.find_topics([topic]):
            return
        try:
            await admin.create_topics(
                [NewTopic(topic, 1, replication_factor=-1, configs=COMPACTED)]
            )
        except TopicExists:
            return

    async def _send(self, topic: str, rows: Collection[KeyAndValue]) -> None:
        for key, value in rows:
            sent = await self._producer.send(topic, value, key=key, partition=0)
            sent.add_done_callback(heard)
        await self._producer.flush()

    async def _translate_groups(self) -> None:
        view, runs = self._context.own_log, self._runs()
        if view is None or not runs:
            return
        groups = [each for each in await view.groups() if self._is_wanted(each)]
        # Groups that are gone: what was written of them must not pile up.
        self._written = {each: self._written.get(each, {}) for each in groups}
        for group in groups:
            await self._translate(view, group, runs)

    def _is_wanted(self, group: str) -> bool:
        def named(patterns: Collection[re.Pattern[str]]) -> bool:
            return any(each.fullmatch(group) for each in patterns)

        return named(self._groups) and not named(self._excluded)

    async def _translate(
        self, view: OwnLog, group: str, runs: Mapping[TopicPartition, OffsetRuns]
    ) -> None:
        written, rows = self._written[group], list[KeyAndValue]()
        moved: dict[TopicPartition, tuple[int, int]] = {}
        for at, (upstream, metadata) in (await view.group_offsets(group, [*runs])).items():
            downstream = runs[at].translated(upstream)
            if downstream is None or not _is_newer((upstream, downstream), written.get(at)):
                continue
            moved[at] = upstream, downstream
            rows.append(checkpoint(group, self._there(at), upstream, downstream, metadata))
        if not rows:
            return
        if self._syncs_groups:
            await self._set_offsets(group, {at: there for at, (_, there) in moved.items()})
        await self._send(self._names.checkpoints, rows)
        # Behind both: what fails is done again.
        written |= moved
        self._context.count("mirror_checkpoints", len(rows))

    async def _set_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the positions of a group in the target, unless it is at work there, or farther."""
        admin = self._target.admin()
        there = {self._there(at): offset for at, offset in offsets.items()}
        known = await admin.group_offsets(group, [*there])
        wanted = {at: each for at, each in there.items() if each > known.get(at, -1)}
        if not wanted:
            return
        try:
            await admin.alter_group_offsets(group, wanted)
        except LogError as error:
            if error.code != NON_EMPTY_GROUP:
                raise

    async def _copy_settings(self) -> None:
        now_ms = when_ms(self._context.now())
        if self._configs_ms is None or self._context.own_log is None:
            return
        if now_ms < self._configs_due_ms:
            return
        self._configs_due_ms = now_ms + self._configs_ms
        for topic, number in self._runs():
            if number == 0:
                await self._remote.copy_settings(topic)

    def _there(self, at: TopicPartition) -> TopicPartition:
        return TopicPartition(self._names.remote(at.topic), at.partition)


def _is_newer(now: tuple[int, int], before: tuple[int, int] | None) -> bool:
    """Return whether a checkpoint says more than the one before it.

    A group that has stood still never goes back: what is known of old offsets becomes coarser.
    """
    return before is None or now[0] < before[0] or now[1] > before[1]
