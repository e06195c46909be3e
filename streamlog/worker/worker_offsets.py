"""GroupOffsets: what a worker commits for its group, and in which log each offset is.

A group has one offset per partition, for all that read it; what each has handled beyond it, and the
id of the topic, are told beside it (`agents.offsets`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from streamlog.agents.offsets import TASK, metadata_of, offset_of
from streamlog.agents.offsets import AgentPosition as Reached
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.subscription_state import known_id
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.record import TopicPartition
from streamlog.tables.state.changelog import SourceLog
from streamlog.worker.inputs.start_offsets import Place
from streamlog.worker.tasks import WorkerTasks
from streamlog.worker.worker_agents import WorkerAgents


class WorkerGroupOffsets:
    """The offsets of the partitions that this worker has."""

    def __init__(self, consumer: Consumer, agents: WorkerAgents, tasks: WorkerTasks) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """What the group has of this worker."""
        self.moved_on: dict[TopicPartition, OffsetAndMetadata] = {}
        """Where logs begin that have replaced those that were read, to be committed."""
        self._consumer = consumer
        self._agents = agents
        self._tasks = tasks
        self._cuts: dict[TopicPartition, int] = {}
        """How many times logs were found truncated below what was read."""
        self._starts: dict[TopicPartition, Reached] = {}
        """Where tasks began that have not taken anything yet."""

    def begin(self, places: Mapping[TopicPartition, Place]) -> None:
        """These are read from here on."""
        for partition, place in places.items():
            self.committed.pop(partition, None)
            self._cuts[partition] = place.log.cuts
            if self._tasks.of([partition]):
                self._starts[partition] = place.task_at

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """These are committed by others from now on."""
        for partition in partitions:
            self.committed.pop(partition, None)
            self._starts.pop(partition, None)

    def move_on(self, places: Mapping[TopicPartition, Place]) -> None:
        """The next commit has where these logs begin, whatever was read of the ones before."""
        self.moved_on = {
            part: place.start._replace(metadata=metadata_of(place.committed, {}, place.log))
            for part, place in places.items()
        }

    def done(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Per partition the offset before which tasks and agents are all done, and who is ahead."""
        readers = {partition: dict(places) for partition, places in self._agents.places.items()}
        # Where a task with state begins is known once that is there.
        starts = {at: each for at, each in self._starts.items() if self._tasks.has_opened(at)}
        for partition, reached in {**starts, **self._tasks.reached}.items():
            readers.setdefault(partition, {})[TASK] = reached
        found = {part: self._noted(part, places) for part, places in readers.items()}
        return {**found, **self.moved_on}

    def _noted(
        self, partition: TopicPartition, readers: Mapping[str, Reached]
    ) -> OffsetAndMetadata:
        at = offset_of(readers)
        if partition not in self._consumer.assignment():
            return OffsetAndMetadata(at, metadata_of(at, readers))
        place = self._consumer.place(partition, at)
        log = SourceLog(known_id(place.topic_id) or b"", cuts=self._cuts.get(partition, 0))
        return place._replace(metadata=metadata_of(at, readers, log))
