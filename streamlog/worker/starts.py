"""Starts: where an assigned partition is read from, and what is looked at from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streamlog.agents.offsets import TASK, places_of
from streamlog.agents.offsets import Place as Reached
from streamlog.assignors import TopicPartition
from streamlog.client.consumer import Consumer
from streamlog.errors import TopologyError
from streamlog.log import Log
from streamlog.processing.task import TaskId

LOOK_MS = 500
"""How long a directory that has vanished goes unnoticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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

    @property
    def task_at(self) -> Reached:
        """Where a task goes on that has no state."""
        return self.ahead.get(TASK, Reached(self.committed))


async def look_up(
    consumer: Consumer, partitions: Collection[TopicPartition], *, agents_read: Collection[str]
) -> dict[TopicPartition, Place]:
    """What is known of these partitions; `agents_read` are the topics that agents read."""
    begins = await consumer.begin_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    committed = await consumer.committed_metadata(partitions)
    places = {}
    for partition in partitions:
        stored, begin = committed[partition], begins[partition]
        places[partition] = Place(
            begin=begin,
            end=ends[partition],
            committed=begin if stored is None else stored.offset,
            has_agent=partition.topic in agents_read,
            ahead={} if stored is None else places_of(stored.offset, stored.metadata),
        )
    return places


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


def described(partitions: Collection[TopicPartition], tasks: Sequence[TaskId]) -> str:
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
