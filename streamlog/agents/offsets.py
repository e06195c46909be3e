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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from streamlog.agents.progress import Range
from streamlog.tables.state.changelog import SourceLog

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


def places_of(offset: int, metadata: str) -> Mapping[str, AgentPosition]:
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
            {name: _place(offset, steps) for name, _, steps in map(_parted, entries)},
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


def _place(offset: int, text: str) -> AgentPosition:
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
