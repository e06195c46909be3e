"""Offsets: what several readers of one partition have handled, in one commit of the group.

A group has one offset per partition, the lowest one that some reader has not handled. Readers that
are ahead of it (another agent, a task, faster calls) write their positions into the offset's
metadata, so that a restart does not repeat their work.

Rule: pure. The metadata is true but may be incomplete, because its size is bounded. A tool that
sets the group's offsets writes no metadata, so everything after its offset is read again. The text,
for offset 100:

    streamlog:2:6f1c0a52b1f84f1c9d0f8f6a5f0f3b11:0;charge:0,3,7,1,2;:0@1700000000000

The offset belongs to the topic with this id, whose log was truncated 0 times below the position:
OffsetCommit carries only the topic's name, which a topic that is deleted and created again keeps.
From the offset on, the agent `charge` has handled 0 records, not the next 3, then 7, not 1, then 2.
The reader without a name is the task, which has handled none; the largest event time before the
offset is 1,700,000,000,000 ms. A task without state has nowhere else to keep that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from streamlog.records.batch import LogRecord
from streamlog.tables.state.changelog import SourceLog

Range = tuple[int, int]
"""A half-open range of offsets: the first one, and the one after the last."""


class AgentProgress:
    """What one agent has received and handled of one partition."""

    def __init__(self, start: int, handled: Iterable[Range] = ()) -> None:
        """Start at offset `start`, except for the ranges `handled`, which were handled before."""
        self._received = start
        self._handled_before = merge_ranges(handled)
        self._open: deque[int] = deque()
        """Offsets that were received, ascending; the first one is not handled."""
        self._done: set[int] = set()
        """The offsets among them that are handled."""

    @property
    def received(self) -> int:
        """The offset after the last record that was received."""
        return self._received

    @property
    def position(self) -> int:
        """The lowest offset that is not handled."""
        return self._open[0] if self._open else self._received

    @property
    def ranges(self) -> list[Range]:
        """The handled ranges after the position, ascending, with gaps between them."""
        position = self.position
        self._handled_before = [each for each in self._handled_before if each[1] > position]
        runs: list[Range] = []
        first: int | None = None
        last = position
        # Offsets may have gaps that no record fills (compaction, transaction markers), so a run
        # goes from one received record to the next, not from one number to the next.
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
        """Return the records to handle, without records that were received or handled before."""
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
        """Mark records as handled; all of them were received, in this order."""
        # A single call handles records in order, so the first branch is the usual one. Several
        # calls finish out of order: their offsets wait in `_done` until all before them are
        # handled.
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
    """Return the union of these ranges as few ranges, ascending."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        elif start < end:
            result.append((start, end))
    return result


METADATA_BYTES_MAX = 4_096
"""The limit of the metadata in bytes: Kafka's default of `offset.metadata.max.bytes`."""
_MAGIC = "streamlog:2"
_MAGIC_BYTES_MAX = len(_MAGIC) + 48
"""The most bytes of the head: the magic text, a topic id and a count."""
TASK = ""
"""The name of the task as a reader; no agent has this name."""


class AgentPosition(msgspec.Struct, frozen=True):
    """What a reader has handled of a partition: all offsets before `position`, and the ranges.

    `time_ms` is the largest event time, in milliseconds, of the records before `position`; only a
    task has it.
    """

    position: int
    ranges: Sequence[Range] = ()
    time_ms: int | None = None


def offset_of(positions: Mapping[str, AgentPosition]) -> int:
    """Return the lowest offset that one of the readers, at least one, has not handled."""
    return min(position.position for position in positions.values())


class OffsetNote(msgspec.Struct, frozen=True):
    """The content of a committed offset's metadata."""

    log: SourceLog = SourceLog()
    """The log that the offset belongs to; the metadata has no leader epoch."""
    positions: Mapping[str, AgentPosition] = msgspec.field(default_factory=dict)
    """The readers that have handled something after the offset, by name."""


def metadata_of(
    offset: int, positions: Mapping[str, AgentPosition], log: SourceLog | None = None
) -> str:
    """Return the metadata of an offset: what each reader has handled after it.

    Args:
        offset: the offset that is committed.
        positions: the position of each reader, by name.
        log: the log that the offset belongs to.

    Returns:
        The text, at most `METADATA_BYTES_MAX` long; "" if there is nothing to note.
    """
    log = log or SourceLog()
    ahead = {
        name: position
        for name, position in positions.items()
        if position.position > offset or position.ranges or position.time_ms is not None
    }
    if not ahead and not log.topic_id and not log.cuts:
        return ""
    text = f"{_MAGIC}:{log.topic_id.hex()}:{log.cuts}"
    # Equal shares: a reader with many ranges loses some of its own, not another reader's.
    budget = (METADATA_BYTES_MAX - _MAGIC_BYTES_MAX) // max(len(ahead), 1)
    for name, position in ahead.items():
        time = "" if position.time_ms is None else f"@{position.time_ms}"
        # 2: the semicolon and the colon of the entry.
        left = budget - len(name) - len(time) - 2
        if left > 0:
            text += f";{name}:{_within(_steps(offset, position), left)}{time}"
    return text


def positions_of(offset: int, metadata: str) -> Mapping[str, AgentPosition]:
    """Return the readers that have handled something after this offset, by name."""
    return noted_of(offset, metadata).positions


def noted_of(offset: int, metadata: str) -> OffsetNote:
    """Parse the metadata of an offset; text of another program is an empty note."""
    head, *entries = metadata.split(";")
    magic, colon, log = head.partition(f"{_MAGIC}:")
    if magic or not colon:
        return OffsetNote()
    topic_id, _, cuts = log.partition(":")
    try:
        return OffsetNote(
            SourceLog(bytes.fromhex(topic_id), cuts=int(cuts)),
            {name: _position(offset, steps) for name, _, steps in map(_parted, entries)},
        )
    except ValueError:
        return OffsetNote()


def _parted(entry: str) -> tuple[str, str, str]:
    return entry.rpartition(":")


def _steps(offset: int, position: AgentPosition) -> list[int]:
    """Return how many offsets are handled, then how many are not, and so on, from `offset` on."""
    edges = [offset, position.position, *(edge for each in position.ranges for edge in each)]
    return [after - before for before, after in pairwise(edges)]


def _within(steps: Sequence[int], length_max: int) -> str:
    """Return as many steps as fit into `length_max` characters.

    Their number is odd, because the last step counts handled offsets.
    """
    text = str(steps[0])
    # In pairs, a gap and what is handled after it: a gap at the end would say nothing.
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
