"""Offsets: what several readers have handled of one partition, in one commit of the group.

A group has one offset per partition: the lowest that anybody has not handled. Who is ahead of
it (another agent, a task, calls that were faster than others) is told in the offset's metadata,
so that a restart does not repeat it. Rule of the file: pure; what is told is true, but may be
less than all: it is bounded, and whoever sets the group's offsets by other means leaves no
metadata, so that everything behind them is read again. The text, for offset 100:

    streamlog:2:6f1c0a52b1f84f1c9d0f8f6a5f0f3b11:0;charge:0,3,7,1,2;:0@1700000000000

The offset belongs to the topic with this id, whose log was truncated 0 times below what was read:
OffsetCommit carries the name of the topic alone, and a topic that is deleted and created again has
the same name. The agent `charge` has handled 0 records from there on, not the next 3, then 7, not
1, then 2. The task has handled none, and event time has come to 1,700,000,000,000 ms before the
offset: a task without state has no other place to keep it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from streamlog.records.batch import LogRecord
from streamlog.tables.state.changelog import SourceLog

Range = tuple[int, int]
"""Offsets from the first on, up to but not including the second."""


class AgentProgress:
    """One partition, as one agent sees it."""

    def __init__(self, start: int, handled: Iterable[Range] = ()) -> None:
        """Read from `start` on; of what follows, the ranges `handled` need not be repeated."""
        self._received = start
        self._handled_before = merge_ranges(handled)
        self._open: deque[int] = deque()
        """Arrived, by offset; the first one is not done."""
        self._done: set[int] = set()
        """Those of them that are done."""

    @property
    def received(self) -> int:
        """The offset behind the last record that has arrived."""
        return self._received

    @property
    def position(self) -> int:
        """Everything before this offset is handled."""
        return self._open[0] if self._open else self._received

    @property
    def ranges(self) -> list[Range]:
        """What is handled behind the position, ascending, with gaps between them."""
        position = self.position
        self._handled_before = [each for each in self._handled_before if each[1] > position]
        runs: list[Range] = []
        first: int | None = None
        last = position
        for offset in self._open if self._done else ():
            if offset in self._done:
                first, last = offset if first is None else first, offset
            elif first is not None:
                runs.append((first, last + 1))
                first = None
        if first is not None:
            runs.append((first, last + 1))
        return merge_ranges([*self._handled_before, *runs])

    def fresh(self, records: Sequence[LogRecord]) -> Sequence[LogRecord]:
        """Those of the records that are to be handled; the others came or were handled before."""
        if records and records[0].offset < self._received:
            records = [each for each in records if each.offset >= self._received]
        if not records:
            return records
        self._received = records[-1].offset + 1
        if self._handled_before:
            records = [each for each in records if not self._was_handled(each.offset)]
        self._open.extend([each.offset for each in records])
        return records

    def done(self, records: Sequence[LogRecord]) -> None:
        """These are handled. All of them have arrived, in this order."""
        waiting, done = self._open, self._done
        for record in records:
            offset = record.offset
            if waiting[0] == offset:
                waiting.popleft()
            else:
                done.add(offset)
        while waiting and waiting[0] in done:
            done.remove(waiting.popleft())

    def _was_handled(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._handled_before)


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in as few ranges as possible, ascending."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        elif start < end:
            result.append((start, end))
    return result


METADATA_BYTES_MAX = 4_096
"""Kafka's own default bound (`offset.metadata.max.bytes`)."""
_MAGIC = "streamlog:2"
_MAGIC_BYTES_MAX = len(_MAGIC) + 48
"""With a topic id and a count."""
TASK = ""
"""The reader that is no agent: no agent has this name."""


@dataclass(frozen=True, slots=True)
class AgentPosition:
    """What a reader has handled of a partition: everything before `position`, and the ranges.

    `time_ms` is the largest event time of what was handled before `position`, if that matters.
    """

    position: int
    ranges: Sequence[Range] = ()
    time_ms: int | None = None


def offset_of(places: Mapping[str, AgentPosition]) -> int:
    """The lowest offset that one of the readers has not handled; there is one at least."""
    return min(place.position for place in places.values())


@dataclass(frozen=True, slots=True)
class Noted:
    """What the metadata of a committed offset says."""

    log: SourceLog = SourceLog()  # noqa: RUF009 - a named tuple is immutable
    """Which log the offset belongs to; its leader epoch is not in the metadata."""
    places: Mapping[str, AgentPosition] = field(default_factory=dict)
    """The readers that have handled something behind the offset, by name."""


def metadata_of(
    offset: int, places: Mapping[str, AgentPosition], log: SourceLog | None = None
) -> str:
    """What of it was handled behind this offset by each of the readers, by name.

    `log` is the one that the offset belongs to.
    """
    log = log or SourceLog()
    told = {
        name: place
        for name, place in places.items()
        if place.position > offset or place.ranges or place.time_ms is not None
    }
    if not told and not log.topic_id and not log.cuts:
        return ""
    text = f"{_MAGIC}:{log.topic_id.hex()}:{log.cuts}"
    budget = (METADATA_BYTES_MAX - _MAGIC_BYTES_MAX) // max(len(told), 1)
    for name, place in told.items():
        time = "" if place.time_ms is None else f"@{place.time_ms}"
        left = budget - len(name) - len(time) - 2
        if left > 0:
            text += f";{name}:{_within(_steps(offset, place), left)}{time}"
    return text


def positions_of(offset: int, metadata: str) -> Mapping[str, AgentPosition]:
    """The readers that have handled something behind this offset, by name; see `noted_of`."""
    return noted_of(offset, metadata).places


def noted_of(offset: int, metadata: str) -> Noted:
    """What the metadata of an offset says. What is not written as here tells nothing."""
    head, *entries = metadata.split(";")
    magic, colon, log = head.partition(f"{_MAGIC}:")
    if magic or not colon:
        return Noted()
    topic_id, _, cuts = log.partition(":")
    try:
        return Noted(
            SourceLog(bytes.fromhex(topic_id), cuts=int(cuts)),
            {name: _position(offset, steps) for name, _, steps in map(_parted, entries)},
        )
    except ValueError:
        return Noted()


def _parted(entry: str) -> tuple[str, str, str]:
    return entry.rpartition(":")


def _steps(offset: int, place: AgentPosition) -> list[int]:
    """How many are handled, how many are not, and so on."""
    edges = [offset, place.position, *(edge for each in place.ranges for edge in each)]
    return [after - before for before, after in pairwise(edges)]


def _within(steps: Sequence[int], length_max: int) -> str:
    """The steps as text, as many as fit; an odd number of them, as the last is handled."""
    text = str(steps[0])
    for at in range(1, len(steps) - 1, 2):
        longer = f"{text},{steps[at]},{steps[at + 1]}"
        if len(longer) > length_max:
            break
        text = longer
    return text


def _position(offset: int, text: str) -> AgentPosition:
    text, _, time = text.partition("@")
    steps = [int(step) for step in text.split(",")]
    if min(steps) < 0:
        raise ValueError(text)
    position = at = offset + steps[0]
    ranges: list[Range] = []
    for gap, length in zip(steps[1::2], steps[2::2], strict=True):
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    return AgentPosition(position, ranges, int(time) if time else None)
