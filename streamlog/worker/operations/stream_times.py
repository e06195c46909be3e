"""Stream times: reads an app's stream times from its log, and resets them while no worker runs.

A task with state keeps its times in the progress record of its changelog, a task without state in
the metadata of the group's offsets. `reset_stream_times` writes both in one transaction: for each
task a fence and the new progress. A worker that starts later reads the changelog from its own
state's offset on, as after a commit of another worker.

The order makes it safe, as in `hand_over`:

1. The transactional id fences off an earlier attempt.
2. A fence in each changelog makes later writes of a former owner void; only records before it are
   read.
3. The group's offsets are added to the transaction, so a worker that joins waits for its end.
4. Only then the group is checked for members.

Not done here: which fields of a progress are times (`processing/task_progress`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from streamlog.agents.offsets import TASK, metadata_of, noted_of, positions_of
from streamlog.client.offset_metadata import GroupMetadata, OffsetAndMetadata
from streamlog.client.producer import Producer
from streamlog.clock import Clock, SystemClock
from streamlog.errors import UsageError, quantity
from streamlog.log import Log
from streamlog.processing.task_progress import (
    StoredTime,
    is_mark,
    latest_header_ms,
    latest_times,
    lower_stream_times,
    skip_time_marks,
)
from streamlog.record import TopicPartition
from streamlog.records.record_columns import FieldColumns, RecordColumns
from streamlog.replace import replace
from streamlog.tables.state.changelog import BASE_KEY, PROGRESS_KEY, TaskProgress
from streamlog.topology import Topology
from streamlog.worker.operations.hand_over import refuse_members
from streamlog.worker.state.restore import OWNER_KEY, Fences

SLICE_OFFSETS: Final = 50_000
"""The number of a changelog's offsets that are read at a time."""
TRANSACTION_TIMEOUT_MS: Final = 5 * 60_000
"""For each task the transaction holds a fence, a read of records since the first look, and one
record."""

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True, order=True)
class TaskTime:
    """A stored stream time and the task that it belongs to."""

    task: str
    stored: StoredTime


@dataclass(slots=True)
class _Replay:
    """The replay of a changelog as in a restore; only the progress is kept."""

    changelog: TopicPartition
    task: str
    position: int
    progress: TaskProgress | None = None
    fences: Fences = field(default_factory=Fences)

    async def reach(self, log: Log, end: int) -> None:
        """Read up to this offset."""
        while self.position < end:
            until = min(self.position + SLICE_OFFSETS, end)
            self._take(await log.read_range(self.changelog, self.position, until))
            self.position = until

    def _take(self, records: RecordColumns) -> None:
        # In a loop: several hand-overs may be in one slice.
        while BASE_KEY in records.keys:
            # A hand-over: the state starts anew here.
            records = records[records.keys.index(BASE_KEY) + 1 :]
            self.progress = None
            self.fences.begin_anew()
        for key, value in self.fences.admit(records):
            if key == PROGRESS_KEY:
                self.progress = None if value is None else TaskProgress.decode(value)

    def ahead(self, after_ms: int) -> list[TaskTime]:
        """Return the task's times that are later than `after_ms`."""
        found = [] if self.progress is None else latest_times(self.progress, after_ms=after_ms)
        return [TaskTime(self.task, stored) for stored in found]


async def stream_times_ahead(
    topology: Topology, *, log: Log, clock: Clock | None = None
) -> list[TaskTime]:
    """Return the stored stream times of an app that are ahead of the clock, sorted by task.

    Raises:
        CorruptData: a progress record is malformed.
        RequestTimedOut: a changelog can't be read, because a transaction in it stays open.
    """
    return (await _Times(topology, log, clock or SystemClock()).look()).ahead


async def reset_stream_times(
    topology: Topology, to_ms: int, *, log: Log, clock: Clock | None = None
) -> list[TaskTime]:
    """Reset the tasks that have a stream time ahead of the clock; returns these times.

    In such a task no stored time stays later than `to_ms`. Other tasks are not changed.

    Args:
        topology: the app's topology.
        to_ms: the largest time that stays, in milliseconds since 1970.
        log: the app's log.
        clock: by default the system's.

    Raises:
        UsageError: workers of the app are running, or `to_ms` is ahead of the clock.
        CorruptData: a progress record is malformed.
        TransactionAborted, ProducerFenced: another reset runs at the same time, or the log was
            lost; nothing was changed.
    """
    clock = clock or SystemClock()
    if not 0 <= to_ms <= clock.wall_ms():
        raise UsageError(
            f"stream time can't be reset to {to_ms} ms: use a time between 1970 and now"
        )
    return await _Times(topology, log, clock).reset(to_ms)


@dataclass(slots=True)
class _Look:
    """The stored positions and times of an app."""

    replays: list[_Replay]
    offsets: Offsets
    ahead: list[TaskTime]


class _Times:
    """The stored times of one app."""

    def __init__(self, topology: Topology, log: Log, clock: Clock) -> None:
        self._topology = topology
        self._app_id = topology.app_id
        self._log = log
        self._clock = clock
        self._now_ms = clock.wall_ms()

    async def look(self) -> _Look:
        """Read all changelogs and the group's offsets."""
        replays = await self._replays()
        offsets = await self._offsets()
        ahead = [time for replay in replays for time in replay.ahead(self._now_ms)]
        for at, stored in offsets.items():
            ahead += self._ahead_in_offset(at, stored)
        return _Look(replays, offsets, sorted(ahead))

    async def reset(self, to_ms: int) -> list[TaskTime]:
        """Write the new times; see `reset_stream_times`."""
        # Before the look: the times of running workers change while they are read.
        await refuse_members(self._log, self._app_id)
        look = await self.look()
        if not look.ahead:
            return []
        async with (
            self._log.producer(
                linger_ms=0,
                transactional_id=f"{self._app_id}-stream-time",
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            ) as producer,
            producer.transaction() as transaction,
        ):
            for replay in look.replays:
                if await self._is_to_reset(replay):
                    await self._write(producer, replay, to_ms)
            # Read again, as an earlier attempt may have committed since the first look.
            offsets = await self._offsets()
            if offsets:
                moved = {at: self._reset_offset(at, offsets[at], to_ms) for at in offsets}
                await transaction.send_offsets(moved, GroupMetadata(group_id=self._app_id))
            await refuse_members(self._log, self._app_id)
        return look.ahead

    async def _write(self, producer: Producer, replay: _Replay, to_ms: int) -> None:
        """Write a fence, read up to it, and write the new progress."""
        changelog, wall_ms = replay.changelog, self._clock.wall_ms()
        head = FieldColumns()
        head.extend([wall_ms], [OWNER_KEY], [b""])
        fence = (await (await producer.send_batch(*changelog, head))).offset
        # A former owner may have written since the first look. What it writes from now on is void.
        await replay.reach(self._log, fence)
        if replay.progress is None:
            return
        behind = await self._behind_far_marks(replay.progress)
        progress = lower_stream_times(behind, to_ms).encode()
        last = FieldColumns()
        last.extend([wall_ms], [PROGRESS_KEY], [progress])
        await (await producer.send_batch(*changelog, last))

    async def _is_to_reset(self, replay: _Replay) -> bool:
        """Return whether a task has a time ahead of the clock, or unread marks with such a time."""
        if replay.progress is None or replay.ahead(self._now_ms):
            return replay.progress is not None
        # The object itself comes back if there are no such marks.
        return await self._behind_far_marks(replay.progress) is not replay.progress

    async def _behind_far_marks(self, progress: TaskProgress) -> TaskProgress:
        """Return the progress after unread time marks, in repartition topics, ahead of the clock.

        Raises:
            UsageError: records are unread there as well, which a reset must not skip.
        """
        parts = [
            TopicPartition(topic, partition)
            for topic, partition in progress.offsets
            if topic in self._topology.topics and self._topology.topics[topic].internal
        ]
        async with self._log.consumer(isolation_level="read_committed") as consumer:
            ends = await consumer.end_offsets(parts) if parts else {}
        for part in parts:
            position, end = progress.offsets[part], ends[part]
            if await self._is_far(part, position, end):
                progress = skip_time_marks(progress, part, end)
        return progress

    async def _is_far(self, part: TopicPartition, position: int, end: int) -> bool:
        """Return whether unread marks have a time ahead of the clock, without unread records.

        Raises:
            UsageError: records are unread as well.
        """
        is_far, records = False, 0
        for low in range(position, end, SLICE_OFFSETS):
            high = min(low + SLICE_OFFSETS, end)
            for record in await self._log.read_range(part, low, high):
                is_far |= latest_header_ms(record.headers) > self._now_ms
                records += not is_mark(record.headers)
        if is_far and records:
            raise UsageError(
                f"{part.topic}-{part.partition} has {quantity(records, 'unprocessed record')} that "
                "would move stream time ahead of the clock again: start the workers until they "
                "have processed the records, stop them with SIGTERM, and reset again; nothing was "
                "changed"
            )
        return is_far

    async def _replays(self) -> list[_Replay]:
        """Replay every changelog of the app to its end."""
        numbers = {
            sub.changelog_topic: sub.number
            for sub in self._topology.subtopologies
            if sub.changelog_topic is not None
        }
        topics = await self._log.admin().find_topics(list(numbers))
        tasks = {
            TopicPartition(topic.name, partition): f"{numbers[topic.name]}_{partition}"
            for topic in topics
            for partition in range(topic.partitions)
        }
        async with self._log.consumer(isolation_level="read_committed") as consumer:
            begins = await consumer.begin_offsets([*tasks])
            ends = await consumer.end_offsets([*tasks])
        replays = [_Replay(at, task, begins[at]) for at, task in tasks.items()]
        for replay in replays:
            await replay.reach(self._log, ends[replay.changelog])
        return replays

    async def _offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the group, with their metadata."""
        parts = list(await self._log.admin().group_offsets(self._app_id))
        async with self._log.consumer(group_id=self._app_id) as consumer:
            stored = await consumer.committed_metadata(parts)
        return {at: each for at, each in stored.items() if each is not None}

    def _ahead_in_offset(self, at: TopicPartition, stored: OffsetAndMetadata) -> list[TaskTime]:
        """Return the time of tasks without state if it is ahead of the clock."""
        task = positions_of(stored.offset, stored.metadata).get(TASK)
        if task is None or task.time_ms is None or task.time_ms <= self._now_ms:
            return []
        found = StoredTime(at.topic, f"{at.topic}-{at.partition}", task.time_ms)
        subs = self._topology.subtopologies_of(at.topic)
        return [
            TaskTime(f"{s.number}_{at.partition}", found) for s in subs if not s.changelog_topic
        ]

    def _reset_offset(
        self, at: TopicPartition, stored: OffsetAndMetadata, to_ms: int
    ) -> OffsetAndMetadata:
        """Return the offset with the time in its metadata set to `to_ms` if it was ahead."""
        if not self._ahead_in_offset(at, stored):
            return stored
        noted = noted_of(stored.offset, stored.metadata)
        positions = {**noted.positions, TASK: replace(noted.positions[TASK], time_ms=to_ms)}
        return stored._replace(metadata=metadata_of(stored.offset, positions, noted.log))
