"""Ends: finds out for tasks whether all that was in the log has come to them.

A task that comes to an end it has reason to doubt names it (`processing/inputs/end_of_input`) and
takes nothing more beyond it. Here the brokers are asked: for all tasks of the worker together, by
connections of their own, as fetches wait on the worker's. Rules of the file: a question is put
after the doubt, and once it is answered the task hears of it in the next round of the worker's
loop; a question that is not settled is asked again after `AGAIN_MS`, for as long as the task is in
doubt, since nobody upstream has to say anything; errors that pass are told, and asked again after,
others end the worker. Nothing is opened by an app that never has a doubt. Not done here: what has
to be asked (`end_questions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

from streamlog import repeated
from streamlog.agents.offsets import TASK, positions_of
from streamlog.blueprints.clock_names import clock_name, partners
from streamlog.client.consumer import Consumer
from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.processing.inputs.end_of_input import (
    SAMPLE_INTERVAL_MS,
    CalmDetector,
    CalmState,
    EndOfInputQuestion,
)
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.records.control_batches import MarkTold
from streamlog.topology import Topology
from streamlog.windows.emit import UNKNOWN_MS, Source
from streamlog.worker.inputs.end_questions import EndQuestion, Level, levels_above

logger = repeated.logger(__name__)

AGAIN_MS = 50
"""From one question to the next: what is upstream gets on by commits."""
PAUSE_MS = 20
"""So long no new question is put after one was settled: more has come together by then."""
FAILED_MS = 1_000
TELL_MS = 30_000
"""So often it is told that nothing can be found out."""

About = tuple[TaskId, tuple[str, int], Source | None]


class InputEnds:
    """The open questions of a worker's tasks. Used from its one loop; `run` has to be started."""

    def __init__(
        self,
        topology: Topology,
        counts: Mapping[str, int],
        log: Log,
        consumer: Consumer,
        clock: Clock,
    ) -> None:
        """`consumer` is the worker's: its positions say what its tasks have been given."""
        self._topology = topology
        self._counts = counts
        self._log = log
        self._consumer = consumer
        self._clock = clock
        self._internal = {topic for sub in topology.subtopologies for topic in sub.feeders}
        self._questions: dict[About, EndQuestion] = {}
        self._doubts: dict[TaskId, Sequence[EndOfInputQuestion]] = {}
        self._settled: dict[TaskId, list[EndOfInputQuestion]] = {}
        self._wake = asyncio.Event()
        self._told_ms: int | None = None

    def note(self, task_id: TaskId, doubts: Sequence[EndOfInputQuestion]) -> None:
        """What a task doubts now; questions that it does not need now are kept, and not asked."""
        if not doubts and task_id not in self._doubts:
            return
        self._doubts[task_id] = doubts
        for doubt in doubts:
            about = (task_id, *doubt.about)
            if about not in self._questions:
                levels = self._levels(TopicPartition(*doubt.topic_partition), doubt.source)
                self._questions[about] = EndQuestion(doubt, levels)
        if doubts:
            # Also of a question that was put before and not needed for a while: nobody asks by now.
            self._wake.set()
        self._look_at_positions()

    def has_settled(self, task_id: TaskId) -> bool:
        """Whether there is something for `take`."""
        return task_id in self._settled

    def take(self, task_id: TaskId) -> list[EndOfInputQuestion]:
        """The doubts of this task that are settled, once: everything of theirs was polled."""
        return self._settled.pop(task_id, [])

    def forget(self, task_id: TaskId) -> None:
        """The task is not run here any more."""
        self._doubts.pop(task_id, None)
        self._settled.pop(task_id, None)
        self._questions = {at: each for at, each in self._questions.items() if at[0] != task_id}

    def told(self, task_id: TaskId) -> list[str]:
        """What a task waits to know, in words."""
        return [doubt.describe() for doubt in self._doubts.get(task_id, ())]

    async def run(self) -> None:
        """Find out what is asked, until cancelled.

        Raises:
            StreamlogError: it can't be found out, now or later: the app may not look at its group.
        """
        await self._wake.wait()
        async with AsyncExitStack() as stack:
            # Topics of others as far as they are committed, the app's own to the very end.
            committed = await stack.enter_async_context(
                self._log.consumer(group_id=self._topology.app_id, isolation_level="read_committed")
            )
            written = await stack.enter_async_context(
                self._log.consumer(isolation_level="read_uncommitted")
            )
            while True:
                self._wake.clear()
                await asyncio.sleep(await self._round(committed, written) / 1000)
                if not self._open:
                    await self._wake.wait()

    @property
    def _open(self) -> list[EndQuestion]:
        """The questions that some task waits for now."""
        wanted = {
            (task_id, *doubt.about) for task_id, doubts in self._doubts.items() for doubt in doubts
        }
        return [each for about, each in self._questions.items() if about in wanted]

    def _levels(self, place: TopicPartition, source: Source | None) -> list[Level]:
        return levels_above(self._topology, self._counts, place, source)

    async def _round(self, committed: Consumer, written: Consumer) -> int:
        """Ask what there is to ask as long as that gets on; returns how long to wait then."""
        try:
            while open_ := self._open:
                if not await self._asked(open_, committed, written):
                    return AGAIN_MS
        except StreamlogError as error:
            if not error.retriable:
                raise
            now_ms = self._clock.now_ms()
            if self._told_ms is None or now_ms - self._told_ms >= TELL_MS:
                self._told_ms = now_ms
                asked = "; ".join(each.doubt.describe() for each in self._open)
                logger.warning("can't find out whether %s, and ask again: %s", asked, error)
            return FAILED_MS
        self._told_ms = None
        return PAUSE_MS

    async def _asked(
        self, questions: Sequence[EndQuestion], committed: Consumer, written: Consumer
    ) -> bool:
        """One step of all of them; whether one has got on."""
        wanted = {part for each in questions for part in each.wants_ends}
        ends: dict[TopicPartition, int] = {}
        for reader, parts in (
            (committed, {part for part in wanted if part.topic not in self._internal}),
            (written, {part for part in wanted if part.topic in self._internal}),
        ):
            if parts:
                ends |= await reader.end_offsets(parts)
        for each in questions:
            each.receive_ends(ends)
        passed = await self._look_at_group(questions, committed)
        return self._look_at_positions() or passed

    async def _look_at_group(self, questions: Sequence[EndQuestion], reader: Consumer) -> bool:
        wanted = {part for each in questions for part in each.wants_committed}
        if not wanted:
            return False
        stored = await reader.committed_metadata(wanted)
        reached: dict[TopicPartition, int | None] = {}
        for part, place in stored.items():
            if place is not None:
                # Agents may be behind the task, which is then told of beside the offset.
                ahead = positions_of(place.offset, place.metadata).get(TASK)
                reached[part] = place.offset if ahead is None else ahead.position
        passed = [each.receive_committed(reached) for each in questions]
        return any(passed)

    def _look_at_positions(self) -> bool:
        positions = self._consumer.positions()
        settled = [
            about for about, each in self._questions.items() if each.receive_positions(positions)
        ]
        for about in settled:
            self._settled.setdefault(about[0], []).append(self._questions.pop(about).doubt)
        if settled:
            self._consumer.wakeup()
        return bool(settled)


CALM_MS = 5_000
"""So long a topic has to be calm before its quiet partitions are brought on: as `mark.quiet.ms`."""
SOME_TIME_MS = 3_600_000
"""Asked for a mark, a log begins to count for how long an empty partition has been quiet."""
UNMARKED_CALM_MS = 30_000
"""The same where brokers write no marks, and a replay does not find what was decided here."""


class TimeMarkRequests:
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
                task = positions_of(place.offset, place.metadata).get(TASK)
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
