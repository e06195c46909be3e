"""Halts: all workers of an app are to stand still at one cut, and leave a snapshot of it.

`<app>-halts` says it, and what came of it: (1) `SavepointRequest`: everybody commits and leaves the
group; now nothing moves, so a time can be found that no task has come to. (2) `Cut`: that time, and
where partitions end that do not come to it; the workers go there, task by task, and leave the group
again. (3) `SavepointReached`: what one task has left there. (4) `SavepointReleased`: it is over,
and says how. Who reads the topic again knows where it stands, so workers and the one who halts them
may be killed at any time. Rules of the file: pure; the last halt counts; the first
`SavepointReached` of a task counts, as others may have read it. Not done here: obeying (`halting`),
and what it is for (`promotion`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from streamlog.errors import CorruptData
from streamlog.processing.inputs.record_queue import TimeSpan
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.snapshots.manifest import PendingRecords, TaskEntry
from streamlog.topology import Topology

Outcome: TypeAlias = Literal["given up", "promoted", "done"]
HELD_MS_MAX: Final = 60_000
"""Whoever holds the workers has to say within this time where they are to go; then they go on."""


class SavepointRequest(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """Commit, leave the group, wait."""

    id: str
    wall_ms: int
    reason: str
    """For people: what it is for."""


class SavepointCut(msgspec.Struct, frozen=True, kw_only=True, tag="cut"):
    """Go on to a time, and no further."""

    id: str
    until_ms: int
    """Of each partition, what comes before the first record at which stream time has come to it."""
    ends: dict[str, list[int]]
    """By topic, per partition the offset at which it ends if it does not come to that time."""
    url: str
    """Of the snapshot that is to come of it."""

    def limit(self, part: tuple[str, int]) -> int:
        """The offset at which a partition ends, if it does not come to the time before."""
        ends = self.ends.get(part[0], ())
        return ends[part[1]] if part[1] < len(ends) else 0

    def spans(self, topics: Iterable[str]) -> dict[str, TimeSpan]:
        """Which time of these topics is taken."""
        return dict.fromkeys(topics, TimeSpan(until_ms=self.until_ms))


class SavepointReached(msgspec.Struct, frozen=True, kw_only=True, tag="stood"):
    """A task stands at the cut."""

    id: str
    entry: TaskEntry
    pending: tuple[PendingRecords, ...]


class SavepointReleased(msgspec.Struct, frozen=True, kw_only=True, tag="lifted"):
    """It is over."""

    id: str
    outcome: Outcome
    told: str
    """For people: what to do now, if anything."""


SavepointMessage: TypeAlias = SavepointRequest | SavepointCut | SavepointReached | SavepointReleased
_DECODER = msgspec.json.Decoder(SavepointMessage)


class Savepoint(msgspec.Struct, kw_only=True):
    """The last halt of an app, as far as it has come."""

    hold: SavepointRequest
    cut: SavepointCut | None = None
    stood: dict[str, SavepointReached] = {}
    """By task."""
    lifted: SavepointReleased | None = None

    @property
    def id(self) -> str:
        """Tells it from others."""
        return self.hold.id

    def is_in_force(self, wall_ms: int) -> bool:
        """Whether workers have to obey: a hold that leads nowhere is forgotten."""
        if self.lifted is not None:
            return False
        return self.cut is not None or wall_ms - self.hold.wall_ms < HELD_MS_MAX

    def stands(self, tasks: Iterable[str]) -> bool:
        """Whether all these tasks stand at the cut."""
        return all(task in self.stood for task in tasks)


def savepoint_topic(app_id: str) -> str:
    """Where an app's halts are."""
    return f"{app_id}-halts"


def encode_savepoint(word: SavepointMessage) -> bytes:
    """As JSON."""
    return msgspec.json.encode(word)


def decode_savepoint(
    records: Iterable[tuple[int, bytes]], before: Savepoint | None = None
) -> Savepoint | None:
    """The last halt after these records, offset and value each; None: there was none.

    Raises:
        CorruptData: one is not readable.
    """
    halt = before
    for offset, data in records:
        try:
            word = _DECODER.decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"the halt at offset {offset}: {error}") from error
        if isinstance(word, SavepointRequest):
            halt = Savepoint(hold=word)
        elif halt is not None and word.id == halt.id:
            _take(halt, word)
    return halt


def _take(halt: Savepoint, word: SavepointCut | SavepointReached | SavepointReleased) -> None:
    match word:
        case SavepointCut():
            halt.cut = halt.cut or word
        case SavepointReached():
            halt.stood.setdefault(word.entry.task, word)
        case SavepointReleased():
            halt.lifted = halt.lifted or word


FAR_OFFSET: Final = 2**63 - 1


class CutLimits:
    """Offsets and times at which inputs end; without a cut there are none."""

    def __init__(self, cut: SavepointCut | None, topology: Topology) -> None:
        self._cut = cut
        self._topology = topology

    def end(self, part: TopicPartition) -> int:
        """Nothing from there on is taken; repartition topics have no end but their own."""
        if self._cut is None or self._topology.topics[part.topic].internal:
            return FAR_OFFSET
        return self._cut.limit(part)

    def positions(
        self, parts: Iterable[TopicPartition], read: Mapping[TopicPartition, int]
    ) -> dict[tuple[str, int], int]:
        """How far these were read, as far as it is taken."""
        return {part: min(read[part], self.end(part)) for part in parts if part in read}

    def records(self, part: TopicPartition, columns: RecordColumns) -> RecordColumns:
        """Those before the end."""
        if self._cut is None:
            return columns
        found: RecordColumns = columns[: bisect_left(columns.offsets, self.end(part))]
        return found

    def marks(self, part: TopicPartition, marks: Sequence[TimeMark]) -> Sequence[TimeMark]:
        """Those before the end."""
        return marks if self._cut is None else [m for m in marks if m.offset < self.end(part)]

    def spans(self, topics: Iterable[str]) -> Mapping[str, TimeSpan] | None:
        """Which time of these topics is taken; None: all of it."""
        return None if self._cut is None else self._cut.spans(topics)
