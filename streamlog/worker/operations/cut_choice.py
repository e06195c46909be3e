"""CutChoice: the time right behind everything that the tasks of some apps have come to.

What is committed says it: the progress at the end of each changelog, and what tasks without state
leave beside their group's offsets. Rule of the file: asked while nobody is at work, as what is said
is true for no longer. Not done here: halting (`promotion`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from streamlog.agents.offsets import TASK, places_of
from streamlog.clock import Clock
from streamlog.log import Log
from streamlog.processing.task_progress import INPUTS_SECTION
from streamlog.record import TopicPartition
from streamlog.snapshots.rebased import REPARTITION
from streamlog.tables.state.changelog import PROGRESS_KEY, TaskProgress
from streamlog.windows.emit import UNKNOWN_MS
from streamlog.worker.savepoint.task_savepoints import records_of
from streamlog.worker.topics.version_log import current, topic_of
from streamlog.worker.topics.whole_topic import whole_topic

TAIL_RECORDS: Final = 64
"""Of a changelog that are searched for the last progress at first; eight times as many next."""


class CutChoice:
    """Where tasks have come to, by what a log holds."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    async def lag(self, app_id: str) -> int:
        """How many records an app has not read; 0 if it has never run."""
        offsets = await self._offsets(app_id)
        async with self._log.consumer() as consumer:
            ends = await consumer.end_offsets(offsets)
        return sum(max(ends[at] - offset, 0) for at, offset in offsets.items())

    async def come_to(self, app_id: str) -> int:
        """The latest stream time that a task of an app has come to."""
        found = [UNKNOWN_MS]
        places = list(await self._log.admin().group_offsets(app_id))
        async with self._log.consumer(group_id=app_id) as consumer:
            stored = await consumer.committed_metadata(places)
        for at in stored.values():
            task = None if at is None else places_of(at.offset, at.metadata).get(TASK)
            if task is not None and task.time_ms is not None:
                found.append(task.time_ms)
        version = current(await whole_topic(self._log, topic_of(app_id), self._clock))
        changelogs = () if version is None else version.blueprint.changelogs
        for topic in await self._log.admin().find_topics(list(changelogs)):
            for partition in range(topic.partitions):
                progress = await self._progress(TopicPartition(topic.name, partition))
                found += [] if progress is None else _times(progress)
        return max(found)

    async def ends(self, app_ids: Collection[str], also: Collection[str]) -> dict[str, list[int]]:
        """Where all that apps read, and some other topics, end just now, per partition."""
        names = {at.topic for app_id in app_ids for at in await self._offsets(app_id)} | {*also}
        topics = await self._log.admin().find_topics(sorted(names))
        places = [TopicPartition(t.name, number) for t in topics for number in range(t.partitions)]
        async with self._log.consumer(isolation_level="read_committed") as consumer:
            found = await consumer.end_offsets(places)
        return {
            t.name: [found[TopicPartition(t.name, n)] for n in range(t.partitions)] for t in topics
        }

    async def _offsets(self, app_id: str) -> dict[TopicPartition, int]:
        """Of a group, repartition topics left out."""
        found = await self._log.admin().group_offsets(app_id)
        return {at: n for at, n in found.items() if not is_internal(at.topic, app_id)}

    async def _progress(self, changelog: TopicPartition) -> TaskProgress | None:
        """The last progress in a changelog."""
        async with self._log.consumer(isolation_level="read_committed") as consumer:
            begin = (await consumer.begin_offsets([changelog]))[changelog]
            end = (await consumer.end_offsets([changelog]))[changelog]
        size = TAIL_RECORDS
        while begin < end:
            start = max(end - size, begin)
            tail = await records_of(self._log, changelog, start, end, self._clock)
            if PROGRESS_KEY in tail.keys:
                last = len(tail) - 1 - tail.keys[::-1].index(PROGRESS_KEY)
                data = tail.values[last]
                return None if data is None else TaskProgress.decode(data)
            if start == begin:
                break
            size *= 8
        return None


def is_internal(topic: str, app_id: str) -> bool:
    """Whether it is a repartition topic of an app."""
    return topic.startswith(f"{app_id}-") and topic.endswith(REPARTITION)


def _times(progress: TaskProgress) -> Iterator[int]:
    """What its inputs have come to. Behind repartition topics that may be more than any record.

    Where a history was cut, they have been told that nothing earlier comes.
    """
    inputs: Any = progress.sections.get(INPUTS_SECTION, {})
    for data in inputs.values():
        yield int(data["time_ms"])
        for _, _, _, _, time_ms, *_ in data.get("sources", ()):
            yield int(time_ms)
