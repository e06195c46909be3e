"""Assigned partitions: where a worker begins to read them, and which of them are paused.

A partition may be read by a task and by agents. Each of them may hold it: while it is being opened,
or while it has more records than it can process. It is read only while no reader holds it.

Rule: a start offset is valid for one topic id. Not done here: lost sources (`source_watch`), and
the positions of tasks with state (`running_task`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from streamlog.agents.offsets import TASK, noted_of
from streamlog.agents.offsets import AgentPosition as Reached
from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import TopologyError, quantity
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.processing.task_progress import InputRestart
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.tables.state.changelog import SourceLog
from streamlog.worker.topics.lost_sources import LostSource, Present, TruncatedSource, is_recreated
from streamlog.worker.topics.version_log import OwnTopics


class Pauses:
    """The paused partitions of a consumer, with the readers that hold them."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._holders: dict[TopicPartition, set[object]] = {}

    def hold(self, who: object, partitions: Iterable[TopicPartition]) -> None:
        """Pause partitions for a reader, until `let_go`."""
        for partition in partitions:
            self._holders.setdefault(partition, set()).add(who)
            self._consumer.pause(partition)

    def let_go(self, who: object, partitions: Iterable[TopicPartition]) -> None:
        """End a reader's pause of partitions; does nothing where it holds none."""
        for partition in partitions:
            holders = self._holders.get(partition, set())
            holders.discard(who)
            if not holders and self._holders.pop(partition, None) is not None:
                self._consumer.resume(partition)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that this worker no longer reads."""
        for partition in partitions:
            self._holders.pop(partition, None)

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(self._holders)


Judge: TypeAlias = Callable[
    [TopicPartition, int, SourceLog, Present, TruncatedSource | None], InputRestart
]
"""Decides where to continue. Takes the partition, the position, the log that the position belongs
to, the present log, and where that one was truncated."""

LOOK_MS = 500
"""The interval at which an embedded log's directory is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOffset:
    """The positions of a partition at its assignment."""

    begin: int
    """The log start offset."""
    end: int
    """The offset after the last record."""
    committed: int
    """The group's committed offset; the first offset if there is none."""
    has_agent: bool
    """Whether an agent reads the partition."""
    ahead: Mapping[str, Reached] = field(default_factory=dict)
    """Agents, by name, and the task that are further than `committed`."""
    log: SourceLog = SourceLog()  # noqa: RUF009 - a named tuple is immutable
    """The log that `committed` belongs to."""
    is_stored: bool = False
    """Whether the group has committed an offset."""
    cut: TruncatedSource | None = None
    """Where the log was truncated below the position of a reader; None if it was not."""
    found: Present | None = None
    """The log when a reader found the loss, and where the group continues in it; None: unknown."""

    @property
    def start(self) -> OffsetAndMetadata:
        """The position at the committed offset, for a seek."""
        log = self.log
        return OffsetAndMetadata(self.committed, "", log.leader_epoch, log.topic_id or ZERO_UUID)

    @property
    def present(self) -> Present:
        """The log by which a reader decides where to continue if its own was lost."""
        return self.found or Present(self.log.topic_id, self.begin, self.end)

    @property
    def task_at(self) -> Reached:
        """The position at which a task without state continues."""
        return self.ahead.get(TASK, Reached(self.committed))


async def look_up(
    consumer: Consumer,
    present: Mapping[TopicPartition, Present],
    *,
    agents_read: Collection[str],
    judge: Judge,
    losses: Mapping[TopicPartition, LostSource],
    own_topics: OwnTopics,
) -> dict[TopicPartition, StartOffset]:
    """Return the start offsets of partitions.

    Args:
        consumer: a member of the group.
        present: the partitions with their present logs.
        agents_read: the topics that agents read.
        judge: decides where to continue if a committed offset belongs to another log.
        losses: the losses that a reader has found.
        own_topics: the first offsets of topics without a committed offset.

    Raises:
        SourceLost: `judge` raised it, as `source_lost` is "fail".
    """
    committed = await consumer.committed_metadata(present)
    starts = {}
    for part, now in present.items():
        # Under `latest`, a source that was created again begins at the end that was noted then.
        first = max(now.begin, own_topics.begin_of(part, now.topic_id))
        start = _start_offset(committed[part], now, first, has_agent=part.topic in agents_read)
        loss = losses.get(part)
        cut = None if loss is None else loss.cut
        # If the topic was created again since, the next fetch finds that loss.
        seen = now if loss is None or loss.present.topic_id != now.topic_id else loss.present
        found: InputRestart | None = None
        if start.is_stored and (cut is not None or is_recreated(start.log, now.topic_id)):
            found = judge(part, start.committed, start.log, seen, cut)
        elif loss is not None and not start.is_stored:
            found = loss.restart  # Brokers delete the group's offsets together with the topic.
        if found is not None and found != InputRestart(start.committed, start.log):
            # What readers had done beyond the offset, they had done in the lost log.
            start = replace(start, committed=found.offset, log=found.log, ahead={})
        # Under `latest`, state follows to where the group continues, not to an end that has moved.
        if start.is_stored and start.log.topic_id == now.topic_id:
            seen = seen._replace(latest=start.committed)
        log = start.log._replace(topic_id=now.topic_id)
        starts[part] = replace(start, log=log, cut=cut, found=seen)
    return starts


def _start_offset(
    stored: OffsetAndMetadata | None, present: Present, first: int, *, has_agent: bool
) -> StartOffset:
    if stored is None:
        return StartOffset(
            begin=present.begin, end=present.end, committed=first, has_agent=has_agent
        )
    noted = noted_of(stored.offset, stored.metadata)
    return StartOffset(
        begin=present.begin,
        end=present.end,
        committed=stored.offset,
        has_agent=has_agent,
        ahead=noted.positions,
        # The metadata names the topic id; the epoch is a field of the commit itself (KIP-320).
        log=noted.log._replace(leader_epoch=stored.leader_epoch),
        is_stored=True,
    )


def refuse_growth(
    partitions: Iterable[TopicPartition],
    counts: Mapping[str, int],
    tasks_of: Callable[[Collection[TopicPartition]], Sequence[TaskId]],
) -> None:
    """Raise if a task's topic has more partitions than at the start of the worker.

    Raises:
        TopologyError: it has; agents alone may read added partitions.
    """
    for part in sorted(partitions):
        known = counts[part.topic]
        # Repartition topics and changelogs have the former partition count.
        if part.partition >= known and tasks_of([part]):
            raise TopologyError(
                f"topic {part.topic!r} had {quantity(known, 'partition')} when this worker started "
                "and has more now: restart the worker"
            )


def describe_start(partitions: Collection[TopicPartition], tasks: Sequence[TaskId]) -> str:
    """Return the assignment of a worker as text, for a log line."""
    names = ", ".join(map(str, tasks)) or "none"
    return f"this worker has {quantity(len(partitions), 'partition')}, tasks {names}"


async def watch_directory(log: Log) -> None:
    """Check an embedded log's directory at intervals, until cancelled.

    Other parts of the worker would retry forever, as after the error of a broker that may return.

    Raises:
        LogDirectoryLost: the directory was deleted.
    """
    while True:
        log.check()
        await asyncio.sleep(LOOK_MS / 1000)
