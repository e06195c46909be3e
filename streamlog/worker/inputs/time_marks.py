"""Marks: asks the log for the time marks that tasks wait for.

A broker of streamlog marks in an input that nothing comes any more, if a task's windows or timers
wait for it. The mark may also bring the input to where the other partitions of its topic have
come, if the topic is calm (`processing/inputs/end_of_input`): an empty partition would hold back
everything that waits for it. How the partitions of other workers stand is known from what the group
has committed. A broker of Kafka writes no marks: there the tasks are told, once the topic has been
calm for longer, and nothing in the log says so. Not done here: what a task waits for
(`Task.waits_quiet`, `Task.behind`), and writing marks (`broker.marking`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack

from streamlog import repeated
from streamlog.agents.offsets import TASK, places_of
from streamlog.blueprints.clock_names import clock_name, partners
from streamlog.client.consumer import Consumer
from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.processing.inputs.end_of_input import SAMPLE_INTERVAL_MS, CalmDetector, CalmState
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.records.control_batches import MarkTold
from streamlog.topology import Topology
from streamlog.windows.emit import UNKNOWN_MS

logger = repeated.logger(__name__)

CALM_MS = 5_000
"""So long a topic has to be calm before its quiet partitions are brought on: as `mark.quiet.ms`."""
SOME_TIME_MS = 3_600_000
"""Asked for a mark, a log begins to count for how long an empty partition has been quiet."""
UNMARKED_CALM_MS = 30_000
"""The same where brokers write no marks, and a replay does not find what was decided here."""


class Marks:
    """What a worker wants of the inputs that are quiet. `run` has to be started."""

    def __init__(
        self,
        topology: Topology,
        counts: Mapping[str, int],
        log: Log,
        consumer: Consumer,
        clock: Clock,
    ) -> None:
        self._app_id = topology.app_id
        self._log = log
        self._consumer = consumer
        self._clock = clock
        self._partners = partners(topology)
        self._clocks = {
            name: clock_name(topology.app_id, topology.topics[name]) for name in self._partners
        }
        self._parts = {
            name: [TopicPartition(name, number) for number in range(counts[name])]
            for name in self._partners
        }
        self._are_written: bool | None = None
        """Whether the brokers write time marks; None while that is not known."""
        self._calm = CalmDetector(CALM_MS)
        self._standing: dict[TopicPartition, tuple[int, int]] = {}
        """Position and event time of inputs of tasks here."""
        self._behind: dict[TaskId, Mapping[TopicPartition, int]] = {}
        self._wake = asyncio.Event()

    async def want(self, task_id: TaskId, partition: TopicPartition, after_ms: int | None) -> None:
        """A task waits for a mark in an input after so much quiet; None: it does not."""
        due_ms = self._behind.get(task_id, {}).get(partition)
        reached_ms = UNKNOWN_MS if due_ms is None else self._reached_ms(partition.topic)
        told = None
        if due_ms is not None and self._are_written and reached_ms >= due_ms:
            told = MarkTold(self._clocks[partition.topic], reached_ms)
        if due_ms is not None and after_ms is None:
            after_ms = SOME_TIME_MS
        self._consumer.want_mark(partition, after_ms if told is None else 0, told)
        if after_ms is not None:
            await self._find_out(task_id, partition)

    def note(
        self,
        task_id: TaskId,
        standing: Mapping[TopicPartition, tuple[int, int]],
        behind: Mapping[tuple[str, int], int],
    ) -> None:
        """Position and event time of a task's inputs; and to where some have to be brought."""
        self._standing |= standing
        found = {TopicPartition(*place): due_ms for place, due_ms in behind.items()}
        self._behind[task_id] = found
        if found:
            self._wake.set()

    def forget(self, task_id: TaskId, inputs: Iterable[TopicPartition]) -> None:
        """The task is not run here any more."""
        self._behind.pop(task_id, None)
        for part in inputs:
            self._standing.pop(part, None)

    def brought(self, task_id: TaskId) -> dict[tuple[str, int], int]:
        """How far a task's inputs have come, where the log does not tell."""
        if self._are_written is not False:
            return {}
        found = {
            part: (due_ms, self._reached_ms(part.topic))
            for part, due_ms in self._behind.get(task_id, {}).items()
        }
        return {part: reached for part, (due_ms, reached) in found.items() if reached >= due_ms}

    async def run(self) -> None:
        """Look at the topics of quiet inputs, until cancelled.

        Raises:
            StreamlogError: the log can't be asked, now or later.
        """
        await self._wake.wait()
        async with AsyncExitStack() as stack:
            reader = await stack.enter_async_context(
                self._log.consumer(group_id=self._app_id, isolation_level="read_committed")
            )
            while True:
                self._wake.clear()
                await self._try_to_look(reader)
                await asyncio.sleep(SAMPLE_INTERVAL_MS / 1000)
                if not any(self._behind.values()):
                    await self._wake.wait()

    async def _try_to_look(self, reader: Consumer) -> None:
        try:
            await self._look(reader)
        except StreamlogError as error:
            if not error.retriable:
                raise
            logger.debug("can't look at the topics of quiet inputs: %s", error)

    async def _look(self, reader: Consumer) -> None:
        if self._are_written is None:
            self._are_written = await self._log.admin().is_streamlog()
            self._calm = CalmDetector(CALM_MS if self._are_written else UNMARKED_CALM_MS)
        topics = {part.topic for behind in self._behind.values() for part in behind}
        topics |= {partner for topic in topics for partner in self._partners[topic]}
        parts = [part for topic in topics for part in self._parts[topic]]
        ends = await reader.end_offsets(parts)
        here = dict(self._standing)  # Tasks come and go while others are asked.
        standing = {**await self._committed(reader, [p for p in parts if p not in here]), **here}
        now_ms = self._clock.now_ms()
        self._calm.look(now_ms, {part: CalmState(ends[part], *standing[part]) for part in parts})

    async def _committed(
        self, reader: Consumer, parts: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Position and event time of inputs of other workers."""
        found = dict.fromkeys(parts, (0, UNKNOWN_MS))
        stored = await reader.committed_metadata(parts) if parts else {}
        for part, place in stored.items():
            if place is not None:
                task = places_of(place.offset, place.metadata).get(TASK)
                time_ms = UNKNOWN_MS if task is None else task.time_ms
                position = place.offset if task is None else task.position
                found[part] = (position, UNKNOWN_MS if time_ms is None else time_ms)
        return found

    def _reached_ms(self, topic: str) -> int:
        """How far a topic's partitions have come; those of its partners, if it never had any."""
        own_ms = self._calm.reached_ms(self._parts[topic])
        if own_ms > UNKNOWN_MS or self._partners[topic] == {topic}:
            return own_ms
        parts = [part for name in self._partners[topic] for part in self._parts[name]]
        return self._calm.reached_ms(parts)

    async def _find_out(self, task_id: TaskId, partition: TopicPartition) -> None:
        if self._are_written is not None:
            return
        try:
            self._are_written = await self._log.admin().is_streamlog()
        except StreamlogError as error:
            logger.debug("it is not known whether there are time marks: %s", error)
            return  # The next wish asks again.
        if not self._are_written:
            self._calm = CalmDetector(UNMARKED_CALM_MS)
            logger.warning(
                "this log's brokers are not streamlog's and write no time marks: what is due once "
                "time has passed (windows that close, timers of event time, rows without a "
                "partner) waits for the next record where nothing comes, or for the other "
                "partitions of its topic, as in task %s for %s-%d",
                task_id,
                *partition,
            )
