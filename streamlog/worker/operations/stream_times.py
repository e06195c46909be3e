"""Stream times of an app as its log stores them, and how to set them back while no worker runs.

A task with state has its times in the progress record of its changelog, one without state in the
metadata of its group's offsets. `reset_stream_times` writes both in one transaction: per task a
fence and the new progress. A worker that starts afterwards follows the changelog from wherever its
own directory stands, as after any commit of another worker.

The order is the safety, as in `hand_over`: (1) the transactional id fences off an earlier attempt;
(2) a fence in each changelog makes later writes of a former owner void, and only what lies in front
of it is read; (3) the group's offsets are staged, so a worker that joins waits for the end of the
transaction; (4) only then the group is asked for members. Not done here: which fields of a progress
are times (`processing/task_progress`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from streamlog.agents.offsets import TASK, metadata_of, noted_of, positions_of
from streamlog.client.offset_metadata import GroupMetadata, OffsetAndMetadata
from streamlog.client.producer import Producer
from streamlog.clock import Clock, SystemClock
from streamlog.errors import UsageError
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
from streamlog.tables.state.changelog import BASE_KEY, PROGRESS_KEY, TaskProgress
from streamlog.topology import Topology
from streamlog.worker.operations.hand_over import refuse_members
from streamlog.worker.state.restore import OWNER_KEY, Fences

SLICE_OFFSETS: Final = 50_000
"""Of a changelog, read at a time."""
TRANSACTION_TIMEOUT_MS: Final = 5 * 60_000
"""Within it are a fence, a read of what came since the first look, and one record per task."""

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True, order=True)
class TaskTime:
    """A stored stream time and the task that it belongs to."""

    task: str
    stored: StoredTime


@dataclass(slots=True)
class _Replay:
    """A changelog as a restoring worker takes it, of which only the progress is kept."""

    changelog: TopicPartition
    task: str
    position: int
    progress: TaskProgress | None = None
    fences: Fences = field(default_factory=Fences)

    async def reach(self, log: Log, end: int) -> None:
        """Read on up to this offset."""
        while self.position < end:
            until = min(self.position + SLICE_OFFSETS, end)
            self._take(await log.read_range(self.changelog, self.position, until))
            self.position = until

    def _take(self, records: RecordColumns) -> None:
        while BASE_KEY in records.keys:
            # The state begins anew here.
            records = records[records.keys.index(BASE_KEY) + 1 :]
            self.progress = None
            self.fences.begin_anew()
        for key, value in self.fences.admit(records):
            if key == PROGRESS_KEY:
                self.progress = None if value is None else TaskProgress.decode(value)

    def ahead(self, after_ms: int) -> list[TaskTime]:
        """Its times that are later than that."""
        found = [] if self.progress is None else latest_times(self.progress, after_ms=after_ms)
        return [TaskTime(self.task, stored) for stored in found]


async def stream_times_ahead(
    topology: Topology, *, log: Log, clock: Clock | None = None
) -> list[TaskTime]:
    """The stored stream times of an app that lie ahead of the clock, by task.

    Raises:
        CorruptData: a progress record is not readable.
        RequestTimedOut: a transaction is open in a changelog, and does not end.
    """
    return (await _Times(topology, log, clock or SystemClock()).look()).ahead


async def reset_stream_times(
    topology: Topology, to_ms: int, *, log: Log, clock: Clock | None = None
) -> list[TaskTime]:
    """Set back every task that has a stream time ahead of the clock; returns these times.

    In such a task no stored time stays later than `to_ms`. Other tasks stay as they are.

    Raises:
        UsageError: workers of the app are running, or `to_ms` lies ahead of the clock.
        CorruptData: a progress record is not readable.
        TransactionAborted, ProducerFenced: another attempt runs at the same time, or the log was
            lost: nothing was changed.
    """
    clock = clock or SystemClock()
    if not 0 <= to_ms <= clock.wall_ms():
        raise UsageError(
            f"stream time can't be reset to {to_ms}: it has to lie between 1970 and the clock"
        )
    return await _Times(topology, log, clock).reset(to_ms)


@dataclass(slots=True)
class _Look:
    """What the log has stored."""

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
        replays = await self._replays()
        offsets = await self._offsets()
        ahead = [time for replay in replays for time in replay.ahead(self._now_ms)]
        for at, stored in offsets.items():
            ahead += self._ahead_beside(at, stored)
        return _Look(replays, offsets, sorted(ahead))

    async def reset(self, to_ms: int) -> list[TaskTime]:
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
            # Read again: an attempt at the same time is over by now.
            offsets = await self._offsets()
            if offsets:
                moved = {at: self._reset_beside(at, offsets[at], to_ms) for at in offsets}
                await transaction.send_offsets(moved, GroupMetadata(group_id=self._app_id))
            await refuse_members(self._log, self._app_id)
        return look.ahead

    async def _write(self, producer: Producer, replay: _Replay, to_ms: int) -> None:
        """A fence and the new progress."""
        place, wall_ms = replay.changelog, self._clock.wall_ms()
        head = FieldColumns()
        head.extend([wall_ms], [OWNER_KEY], [b""])
        fence = (await (await producer.send_batch(*place, head))).offset
        await replay.reach(self._log, fence)
        if replay.progress is None:
            return
        behind = await self._behind_far_marks(replay.progress)
        progress = lower_stream_times(behind, to_ms).encode()
        last = FieldColumns()
        last.extend([wall_ms], [PROGRESS_KEY], [progress])
        await (await producer.send_batch(*place, last))

    async def _is_to_reset(self, replay: _Replay) -> bool:
        """Whether a task has a time ahead of the clock, or would take one from upstream."""
        if replay.progress is None or replay.ahead(self._now_ms):
            return replay.progress is not None
        return await self._behind_far_marks(replay.progress) is not replay.progress

    async def _behind_far_marks(self, progress: TaskProgress) -> TaskProgress:
        """The progress behind unread time marks of its repartition topics that tell a far time.

        Raises:
            UsageError: records are unread there, too, which a reset must not skip.
        """
        places = [
            TopicPartition(topic, partition)
            for topic, partition in progress.offsets
            if topic in self._topology.topics and self._topology.topics[topic].internal
        ]
        async with self._log.consumer(isolation_level="read_committed") as consumer:
            ends = await consumer.end_offsets(places) if places else {}
        for place in places:
            position, end = progress.offsets[place], ends[place]
            if await self._is_far(place, position, end):
                progress = skip_time_marks(progress, place, end)
        return progress

    async def _is_far(self, place: TopicPartition, position: int, end: int) -> bool:
        """Whether marks from there on tell a time ahead of the clock, and no records follow."""
        is_far, records = False, 0
        for low in range(position, end, SLICE_OFFSETS):
            high = min(low + SLICE_OFFSETS, end)
            for record in await self._log.read_range(place, low, high):
                is_far |= latest_header_ms(record.headers) > self._now_ms
                records += not is_mark(record.headers)
        if is_far and records:
            raise UsageError(
                f"{records} records of {place.topic}-{place.partition} are not processed yet, and "
                "some tell a stream time ahead of the clock, which would come back: start the "
                "workers until they have processed them, stop them with SIGTERM, and reset again; "
                "nothing was changed"
            )
        return is_far

    async def _replays(self) -> list[_Replay]:
        """Every changelog of the app, read to its end."""
        numbers = {
            sub.changelog_topic: sub.number
            for sub in self._topology.subtopologies
            if sub.changelog_topic is not None
        }
        topics = await self._log.admin().find_topics(list(numbers))
        places = {
            TopicPartition(topic.name, partition): f"{numbers[topic.name]}_{partition}"
            for topic in topics
            for partition in range(topic.partitions)
        }
        async with self._log.consumer(isolation_level="read_committed") as consumer:
            begins = await consumer.begin_offsets([*places])
            ends = await consumer.end_offsets([*places])
        replays = [_Replay(at, task, begins[at]) for at, task in places.items()]
        for replay in replays:
            await replay.reach(self._log, ends[replay.changelog])
        return replays

    async def _offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed."""
        places = list(await self._log.admin().group_offsets(self._app_id))
        async with self._log.consumer(group_id=self._app_id) as consumer:
            stored = await consumer.committed_metadata(places)
        return {at: each for at, each in stored.items() if each is not None}

    def _ahead_beside(self, at: TopicPartition, stored: OffsetAndMetadata) -> list[TaskTime]:
        """The time of a task without state, if it is ahead of the clock."""
        task = positions_of(stored.offset, stored.metadata).get(TASK)
        if task is None or task.time_ms is None or task.time_ms <= self._now_ms:
            return []
        found = StoredTime(at.topic, f"{at.topic}-{at.partition}", task.time_ms)
        subs = self._topology.subtopologies_of(at.topic)
        return [
            TaskTime(f"{s.number}_{at.partition}", found) for s in subs if not s.changelog_topic
        ]

    def _reset_beside(
        self, at: TopicPartition, stored: OffsetAndMetadata, to_ms: int
    ) -> OffsetAndMetadata:
        """The offset as it is, and the time beside it no later than `to_ms` if it was ahead."""
        if not self._ahead_beside(at, stored):
            return stored
        noted = noted_of(stored.offset, stored.metadata)
        places = {**noted.places, TASK: replace(noted.places[TASK], time_ms=to_ms)}
        return stored._replace(metadata=metadata_of(stored.offset, places, noted.log))
