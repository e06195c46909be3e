"""Savepoint messages: how a coordinator brings all workers of an app to one cut.

The topic `<app>-halts` holds them, in this order:

1. `SavepointRequest`: all workers commit and leave the group. Nothing moves now, so the coordinator
   can find a time that no task has reached.
2. `SavepointCut`: that time, and the ends of partitions that do not reach it. The workers join
   again, process up to the cut, and write a snapshot task by task.
3. `SavepointReached`, for each task: the files that it has written at the cut.
4. `SavepointReleased`: the savepoint has ended, with its outcome.

A process that reads the topic from its start knows the state of the savepoint, so workers and the
coordinator may be killed at any time.

Rules: pure. The last savepoint counts. The first `SavepointReached` of a task counts: if a task is
run twice, other workers may have read the first. Not done here: what workers do (`savepoint_log`,
`task_savepoints`), and what a savepoint is for (`promotion`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from streamlog.errors import CorruptData
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.snapshots.manifest import PendingRecords, TaskEntry
from streamlog.topology import Topology

Outcome: TypeAlias = Literal["given up", "promoted", "done"]
HELD_MS_MAX: Final = 60_000
"""How long workers wait for the cut after a request. If none comes, they continue to work."""


class SavepointRequest(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """Tells workers to commit, to leave the group and to wait."""

    id: str
    wall_ms: int
    """The time of the request, in milliseconds since 1970."""
    reason: str
    """The purpose of the savepoint, for log lines and messages."""


class SavepointCut(msgspec.Struct, frozen=True, kw_only=True, tag="cut"):
    """Tells workers to process up to a time, and no further."""

    id: str
    until_ms: int
    """Each partition ends before its first record at which stream time reaches this time."""
    ends: dict[str, list[int]]
    """Topic to the offset at which each partition ends if it does not reach that time."""
    url: str
    """The URL of the snapshot to write."""

    def limit(self, part: tuple[str, int]) -> int:
        """Return the offset at which a partition ends if it does not reach the time."""
        ends = self.ends.get(part[0], ())
        return ends[part[1]] if part[1] < len(ends) else 0

    def spans(self, topics: Iterable[str]) -> dict[str, TimeSpan]:
        """Return the span of time that each of these topics contributes."""
        return dict.fromkeys(topics, TimeSpan(until_ms=self.until_ms))


class SavepointReached(msgspec.Struct, frozen=True, kw_only=True, tag="stood"):
    """Reports that a task is at the cut, with the files that it has written there."""

    id: str
    entry: TaskEntry
    pending: tuple[PendingRecords, ...]
    """The records of repartition topics that the task has not processed."""


class SavepointReleased(msgspec.Struct, frozen=True, kw_only=True, tag="lifted"):
    """Ends a savepoint."""

    id: str
    outcome: Outcome
    message: str = msgspec.field(name="told")
    """What the reader of a log line should do now, or why the savepoint ended."""


SavepointMessage: TypeAlias = SavepointRequest | SavepointCut | SavepointReached | SavepointReleased
_DECODER = msgspec.json.Decoder(SavepointMessage)


class Savepoint(msgspec.Struct, kw_only=True):
    """The last savepoint of an app, as its messages describe it."""

    request: SavepointRequest
    cut: SavepointCut | None = None
    reached: dict[str, SavepointReached] = {}
    """Task id to the task's first report."""
    release: SavepointReleased | None = None

    @property
    def id(self) -> str:
        """The id of the savepoint."""
        return self.request.id

    def is_in_force(self, wall_ms: int) -> bool:
        """Return whether workers have to follow it; a request without a cut expires."""
        if self.release is not None:
            return False
        # With a cut it ends only by a release: workers may take any time to reach the cut.
        return self.cut is not None or wall_ms - self.request.wall_ms < HELD_MS_MAX

    def has_reached(self, tasks: Iterable[str]) -> bool:
        """Return whether all these tasks are at the cut."""
        return all(task in self.reached for task in tasks)


def savepoint_topic(app_id: str) -> str:
    """Return the topic of an app's savepoint messages."""
    return f"{app_id}-halts"


def encode_savepoint(message: SavepointMessage) -> bytes:
    """Encode a message as JSON."""
    return msgspec.json.encode(message)


def decode_savepoint(
    records: Iterable[tuple[int, bytes]], before: Savepoint | None = None
) -> Savepoint | None:
    """Return the last savepoint after these messages, or None if there was none.

    Args:
        records: offset and value of each message.
        before: the last savepoint before them.

    Raises:
        CorruptData: a message is malformed.
    """
    savepoint = before
    for offset, data in records:
        try:
            message = _DECODER.decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(
                f"the savepoint message at offset {offset} is malformed: {error}"
            ) from error
        if isinstance(message, SavepointRequest):
            savepoint = Savepoint(request=message)
        elif savepoint is not None and message.id == savepoint.id:
            _apply(savepoint, message)
    return savepoint


def _apply(
    savepoint: Savepoint, message: SavepointCut | SavepointReached | SavepointReleased
) -> None:
    match message:
        case SavepointCut():
            savepoint.cut = savepoint.cut or message
        case SavepointReached():
            # 1. Worker A reaches the cut with task 0_1, writes its files, and is killed.
            # 2. Worker B runs 0_1 to the same cut, and writes files of its own.
            # 3. Both report. The coordinator may have read A's report, so every reader keeps that.
            savepoint.reached.setdefault(message.entry.task, message)
        case SavepointReleased():
            savepoint.release = savepoint.release or message


FAR_OFFSET: Final = 2**63 - 1
"""The end of an input without a limit; larger than every offset."""


class CutLimits:
    """The offsets and times at which a cut ends the inputs; without a cut they have no end."""

    def __init__(self, cut: SavepointCut | None, topology: Topology) -> None:
        self._cut = cut
        self._topology = topology

    def end(self, part: TopicPartition) -> int:
        """Return the offset at which a partition ends; a repartition topic ends where it ends."""
        if self._cut is None or self._topology.topics[part.topic].internal:
            return FAR_OFFSET
        return self._cut.limit(part)

    def positions(
        self, parts: Iterable[TopicPartition], read: Mapping[TopicPartition, int]
    ) -> dict[tuple[str, int], int]:
        """Return the read positions of these partitions, limited to their ends."""
        return {part: min(read[part], self.end(part)) for part in parts if part in read}

    def records(self, part: TopicPartition, columns: RecordColumns) -> RecordColumns:
        """Return the records before the partition's end."""
        if self._cut is None:
            return columns
        # Offsets may have gaps, so the end is searched, and not computed.
        found: RecordColumns = columns[: bisect_left(columns.offsets, self.end(part))]
        return found

    def marks(self, part: TopicPartition, marks: Sequence[TimeMark]) -> Sequence[TimeMark]:
        """Return the time marks before the partition's end."""
        return marks if self._cut is None else [m for m in marks if m.offset < self.end(part)]

    def spans(self, topics: Iterable[str]) -> Mapping[str, TimeSpan] | None:
        """Return the span of time that each of these topics contributes; None: all of it."""
        return None if self._cut is None else self._cut.spans(topics)
