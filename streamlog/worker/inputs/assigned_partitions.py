"""Pauses: which partitions are held back, by whom.

A partition may be read by a task and by agents, and each of them may ask for a pause: while
it is being opened, or while it has more than it can take. It is read only if nobody objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from streamlog.agents.offsets import TASK, noted_of
from streamlog.agents.offsets import AgentPosition as Reached
from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import TopologyError
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.processing.task_progress import InputRestart
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.tables.state.changelog import SourceLog
from streamlog.worker.topics.lost_sources import LostSource, Present, TruncatedSource, is_recreated
from streamlog.worker.topics.version_log import OwnTopics


class Pauses:
    """Who holds back which partition of a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._holders: dict[TopicPartition, set[object]] = {}

    def hold(self, who: object, partitions: Iterable[TopicPartition]) -> None:
        """Read nothing from these until `who` lets go of them."""
        for partition in partitions:
            self._holders.setdefault(partition, set()).add(who)
            self._consumer.pause(partition)

    def let_go(self, who: object, partitions: Iterable[TopicPartition]) -> None:
        """`who` takes records of these again; harmless if it never held them."""
        for partition in partitions:
            holders = self._holders.get(partition, set())
            holders.discard(who)
            if not holders and self._holders.pop(partition, None) is not None:
                self._consumer.resume(partition)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are not read here any more."""
        for partition in partitions:
            self._holders.pop(partition, None)

    def __len__(self) -> int:
        return len(self._holders)


Judge: TypeAlias = Callable[
    [TopicPartition, int, SourceLog, Present, TruncatedSource | None], InputRestart
]
"""Partition, offset, the log that it belongs to, the log as it is, and where that was truncated."""

LOOK_MS = 500
"""How long a directory that has vanished goes unnoticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOffset:
    """What is known of an assigned partition when it is assigned."""

    begin: int
    """The first offset that the log has."""
    end: int
    """The offset that the next record will have."""
    committed: int
    """Where the group goes on; the beginning if nothing is committed."""
    has_agent: bool
    ahead: Mapping[str, Reached] = field(default_factory=dict)
    """What agents, by name, and the task have handled behind that."""
    log: SourceLog = SourceLog()  # noqa: RUF009 - a named tuple is immutable
    """The log that `committed` belongs to."""
    is_stored: bool = False
    """Whether the group has committed an offset."""
    cut: TruncatedSource | None = None
    """Where it was found truncated, by a reader that was further."""

    @property
    def start(self) -> OffsetAndMetadata:
        """Where to read on from what is committed."""
        log = self.log
        return OffsetAndMetadata(self.committed, "", log.leader_epoch, log.topic_id or ZERO_UUID)

    @property
    def present(self) -> Present:
        """The log as it is now."""
        return Present(self.log.topic_id, self.begin, self.end)

    @property
    def task_at(self) -> Reached:
        """Where a task goes on that has no state."""
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
    """What is known of these partitions.

    Args:
        consumer: a member of the group.
        present: the partitions as they are now.
        agents_read: the topics that agents read.
        judge: tells where to go on in a partition whose committed offset belongs to another log.
        losses: what a reader has found out about some.
        own_topics: tells where the app begins in some topics of which nothing is committed.

    Raises:
        SourceLost: it says that the worker has to end.
    """
    committed = await consumer.committed_metadata(present)
    places = {}
    for part, now in present.items():
        first = max(now.begin, own_topics.begin_of(part, now.topic_id))
        place = _start_offset(committed[part], now, first, has_agent=part.topic in agents_read)
        loss = losses.get(part)
        cut = None if loss is None else loss.cut
        found: InputRestart | None = None
        if place.is_stored and (cut is not None or is_recreated(place.log, now.topic_id)):
            found = judge(part, place.committed, place.log, now, cut)
        elif loss is not None and not place.is_stored:
            found = loss.restart  # The offset went with the topic.
        if found is not None and found != InputRestart(place.committed, place.log):
            place = replace(place, committed=found.offset, log=found.log, ahead={})
        log = place.log._replace(topic_id=now.topic_id)
        places[part] = replace(place, log=log, cut=cut)
    return places


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
        ahead=noted.places,
        log=noted.log._replace(leader_epoch=stored.leader_epoch),
        is_stored=True,
    )


def refuse_growth(
    partitions: Iterable[TopicPartition],
    counts: Mapping[str, int],
    tasks_of: Callable[[Collection[TopicPartition]], Sequence[TaskId]],
) -> None:
    """Tasks are made for as many partitions as there were when the worker started.

    Raises:
        TopologyError: there are more now, and not only agents read them.
    """
    for place in sorted(partitions):
        known = counts[place.topic]
        if place.partition >= known and tasks_of([place]):
            raise TopologyError(
                f"topic {place.topic!r} has grown, it had {known} partitions when this worker "
                "started: start it again"
            )


def describe_start(partitions: Collection[TopicPartition], tasks: Sequence[TaskId]) -> str:
    """What a worker has, for its log."""
    names = ", ".join(map(str, tasks)) or "none"
    return f"this worker has {len(partitions)} partitions, tasks {names}"


async def watch_directory(log: Log) -> None:
    """See an embedded log's directory vanish, whatever the others are waiting for.

    To them its errors are like those of a broker that may come back.

    Raises:
        LogDirectoryLost: it has.
    """
    while True:
        log.check()
        await asyncio.sleep(LOOK_MS / 1000)
