"""Input ends: finds out whether inputs are read to their end, and advances time in quiet inputs.

A task that reaches an end of input which may not be final names it
(`processing/inputs/end_of_input`) and processes no record beyond it. `InputEnds` asks the brokers
for all tasks of the worker together. It has connections of its own, as fetches block the worker's.
`TimeMarkRequests` requests time marks of quiet partitions, or replaces them if the brokers write
none.

Rules: the brokers are asked after the task has named the end, so an answer covers every record that
was in the log then. The task gets the answer in the next round of the worker's loop. An open
question is asked again after `AGAIN_MS` while the task needs it, as no message announces a change.
Retriable errors are logged and repeated; others end the worker. An app without such questions opens
no connection. Not done here: what has to be asked (`end_questions`).
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
from streamlog.errors import StreamlogError, UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.processing.inputs.end_of_input import (
    SAMPLE_INTERVAL_MS,
    CalmDetector,
    CalmState,
    EndOfInputQuestion,
)
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.records.control_batches import ClockTime
from streamlog.topology import Topology
from streamlog.windows.emit import UNKNOWN_MS, Source
from streamlog.worker.inputs.end_questions import EndQuestion, Level, levels_above

logger = repeated.logger(__name__)

AGAIN_MS = 50
"""The pause before an open question is asked again; upstream tasks advance by their commits."""
PAUSE_MS = 20
"""The pause after all questions are settled, so that the next ones are asked together."""
FAILED_MS = 1_000
TELL_MS = 30_000
"""The interval between two log lines about questions that can't be asked."""

About = tuple[TaskId, tuple[str, int], Source | None]
"""The subject of a question: a task, an input, and one of its sources or None for all."""


class InputEnds:
    """The open questions of a worker's tasks. Only the worker's loop uses it, besides `run`."""

    def __init__(
        self,
        topology: Topology,
        counts: Mapping[str, int],
        log: Log,
        consumer: Consumer,
        clock: Clock,
    ) -> None:
        """Create it; the positions of `consumer` show what the worker's tasks have received."""
        self._topology = topology
        self._counts = counts
        self._log = log
        self._consumer = consumer
        self._clock = clock
        self._internal = {topic for sub in topology.subtopologies for topic in sub.feeders}
        self._questions: dict[About, EndQuestion] = {}
        self._needed: dict[TaskId, Sequence[EndOfInputQuestion]] = {}
        """The questions whose answers each task waits for now."""
        self._settled: dict[TaskId, list[EndOfInputQuestion]] = {}
        self._wake = asyncio.Event()
        self._logged_ms: int | None = None

    def note(self, task_id: TaskId, questions: Sequence[EndOfInputQuestion]) -> None:
        """Set the questions that a task needs now; earlier ones are kept, but not asked."""
        if not questions and task_id not in self._needed:
            return
        self._needed[task_id] = questions
        for question in questions:
            about = (task_id, *question.about)
            if about not in self._questions:
                levels = self._levels(TopicPartition(*question.topic_partition), question.source)
                self._questions[about] = EndQuestion(question, levels)
        if questions:
            # Even if none is new: `run` sleeps while no question is needed, and an earlier one may
            # be needed again.
            self._wake.set()
        self._look_at_positions()

    def has_settled(self, task_id: TaskId) -> bool:
        """Return whether `take` would return a question."""
        return task_id in self._settled

    def take(self, task_id: TaskId) -> list[EndOfInputQuestion]:
        """Return, once, the settled questions of a task: the task has received every record."""
        return self._settled.pop(task_id, [])

    def forget(self, task_id: TaskId) -> None:
        """Drop the questions of a task that no longer runs here."""
        self._needed.pop(task_id, None)
        self._settled.pop(task_id, None)
        self._questions = {at: each for at, each in self._questions.items() if at[0] != task_id}

    def describe(self, task_id: TaskId) -> list[str]:
        """Return the questions that a task waits for, as text."""
        return [question.describe() for question in self._needed.get(task_id, ())]

    async def run(self) -> None:
        """Ask until cancelled.

        Raises:
            StreamlogError: an error that is not retriable, such as a missing ACL for the group.
        """
        await self._wake.wait()
        async with AsyncExitStack() as stack:
            # Foreign topics up to their last stable offset, as tasks read only committed records;
            # the app's own topics up to the high watermark:
            # 1. A task upstream commits: the group has its offsets, and so the level above is done.
            # 2. The marker of its transaction is not in the repartition topic yet, so the last
            #    stable offset there is before its records.
            # 3. With that as the end, the question would be settled without these records.
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
        """The unsettled questions that a task waits for now."""
        wanted = {
            (task_id, *each.about) for task_id, needed in self._needed.items() for each in needed
        }
        return [each for about, each in self._questions.items() if about in wanted]

    def _levels(self, partition: TopicPartition, source: Source | None) -> list[Level]:
        return levels_above(self._topology, self._counts, partition, source)

    async def _round(self, committed: Consumer, written: Consumer) -> int:
        """Ask the open questions while answers make progress; returns the next pause in ms."""
        try:
            while open_ := self._open:
                if not await self._ask(open_, committed, written):
                    return AGAIN_MS
        except StreamlogError as error:
            # A topic that is gone is the worker's to judge, which reads it, too.
            if not error.retriable and not isinstance(error, UnknownTopicOrPartition):
                raise
            now_ms = self._clock.now_ms()
            if self._logged_ms is None or now_ms - self._logged_ms >= TELL_MS:
                self._logged_ms = now_ms
                text = "; ".join(each.question.describe() for each in self._open)
                logger.warning("can't find out whether %s; trying again: %s", text, error)
            return FAILED_MS
        self._logged_ms = None
        return PAUSE_MS

    async def _ask(
        self, questions: Sequence[EndQuestion], committed: Consumer, written: Consumer
    ) -> bool:
        """Take one step of all questions; returns whether one of them has made progress."""
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
        for part, found in stored.items():
            if found is not None:
                # If an agent is behind the task, the task's position is in the offset's metadata.
                ahead = positions_of(found.offset, found.metadata).get(TASK)
                reached[part] = found.offset if ahead is None else ahead.position
        passed = [each.receive_committed(reached) for each in questions]
        return any(passed)

    def _look_at_positions(self) -> bool:
        positions = self._consumer.positions()
        settled = [
            about for about, each in self._questions.items() if each.receive_positions(positions)
        ]
        for about in settled:
            self._settled.setdefault(about[0], []).append(self._questions.pop(about).question)
        if settled:
            # The loop may wait in a poll; it gives the answer to the task in its next round.
            self._consumer.wakeup()
        return bool(settled)


CALM_MS = 5_000
"""How long a topic has to be calm before time advances in its quiet partitions; the default of
`mark.quiet.ms`."""
SOME_TIME_MS = 3_600_000
"""The delay of a request whose only purpose is that the broker starts to measure how long an empty
partition has been quiet."""
UNMARKED_CALM_MS = 30_000
"""`CALM_MS` for brokers that write no marks. It is longer because the decision is not in the log,
so a replay can't repeat it."""


class TimeMarkRequests:
    """Requests time marks for the quiet inputs of a worker's tasks; `run` looks in background."""

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
        """Whether the brokers write time marks; None while unknown."""
        self._calm = CalmDetector(CALM_MS)
        self._states: dict[TopicPartition, tuple[int, int]] = {}
        """Position and stream time of the inputs of this worker's tasks."""
        self._behind: dict[TaskId, Mapping[TopicPartition, int]] = {}
        self._wake = asyncio.Event()

    async def want(self, task_id: TaskId, partition: TopicPartition, after_ms: int | None) -> None:
        """Request a time mark of an input.

        Args:
            task_id: the task that waits for it.
            partition: the input.
            after_ms: how long the input has to be quiet, in milliseconds; None: no request.
        """
        due_ms = self._behind.get(task_id, {}).get(partition)
        reached_ms = UNKNOWN_MS if due_ms is None else self._reached_ms(partition.topic)
        mark = None
        # The other partitions of the topic have reached the time that the task waits for: the
        # broker gets that time, and writes it into the quiet partition.
        if due_ms is not None and self._are_written and reached_ms >= due_ms:
            mark = ClockTime(self._clocks[partition.topic], reached_ms)
        if due_ms is not None and after_ms is None:
            after_ms = SOME_TIME_MS
        self._consumer.want_mark(partition, after_ms if mark is None else 0, mark)
        if after_ms is not None:
            await self._find_out(task_id, partition)

    def note(
        self,
        task_id: TaskId,
        states: Mapping[TopicPartition, tuple[int, int]],
        behind: Mapping[tuple[str, int], int],
    ) -> None:
        """Note the inputs of a task.

        Args:
            task_id: the task.
            states: position and stream time of its inputs.
            behind: the inputs that hold others back, with the time that they have to reach.
        """
        self._states |= states
        found = {TopicPartition(*part): due_ms for part, due_ms in behind.items()}
        self._behind[task_id] = found
        if found:
            self._wake.set()

    def forget(self, task_id: TaskId, inputs: Iterable[TopicPartition]) -> None:
        """Drop a task that no longer runs here."""
        self._behind.pop(task_id, None)
        for part in inputs:
            self._states.pop(part, None)

    def reached_times(self, task_id: TaskId) -> dict[tuple[str, int], int]:
        """Return the times that a task's quiet inputs have reached, if the log writes no marks."""
        if self._are_written is not False:
            return {}
        found = {
            part: (due_ms, self._reached_ms(part.topic))
            for part, due_ms in self._behind.get(task_id, {}).items()
        }
        return {part: reached for part, (due_ms, reached) in found.items() if reached >= due_ms}

    async def run(self) -> None:
        """Look at the topics of quiet inputs until cancelled.

        Raises:
            StreamlogError: an error that is not retriable.
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
            # As above: a topic that is gone is the worker's to judge.
            if not error.retriable and not isinstance(error, UnknownTopicOrPartition):
                raise
            logger.debug("the topics of quiet inputs can't be read at present: %s", error)

    async def _look(self, reader: Consumer) -> None:
        if self._are_written is None:
            self._are_written = await self._log.admin().is_streamlog()
            self._calm = CalmDetector(CALM_MS if self._are_written else UNMARKED_CALM_MS)
        topics = {part.topic for behind in self._behind.values() for part in behind}
        topics |= {partner for topic in topics for partner in self._partners[topic]}
        parts = [part for topic in topics for part in self._parts[topic]]
        ends = await reader.end_offsets(parts)
        here = dict(self._states)  # A copy: tasks may come and go during the request.
        states = {**await self._committed(reader, [p for p in parts if p not in here]), **here}
        now_ms = self._clock.now_ms()
        self._calm.look(now_ms, {part: CalmState(ends[part], *states[part]) for part in parts})

    async def _committed(
        self, reader: Consumer, parts: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the committed position and stream time of inputs of other workers."""
        found = dict.fromkeys(parts, (0, UNKNOWN_MS))
        stored = await reader.committed_metadata(parts) if parts else {}
        for part, offset in stored.items():
            if offset is not None:
                task = positions_of(offset.offset, offset.metadata).get(TASK)
                time_ms = UNKNOWN_MS if task is None else task.time_ms
                position = offset.offset if task is None else task.position
                found[part] = (position, UNKNOWN_MS if time_ms is None else time_ms)
        return found

    def _reached_ms(self, topic: str) -> int:
        """Return the time that a topic's partitions have reached; its partners' if it is empty."""
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
            logger.debug("whether the brokers write time marks is unknown: %s", error)
            return  # The next request asks again.
        if not self._are_written:
            self._calm = CalmDetector(UNMARKED_CALM_MS)
            logger.warning(
                "the brokers of this log are not streamlog's and write no time marks: results that "
                "are due at a time (closing windows, event-time timers, rows without a join "
                "partner) wait in a quiet partition for its next record, or for the other "
                "partitions of its topic, as in task %s for %s-%d",
                task_id,
                *partition,
            )
