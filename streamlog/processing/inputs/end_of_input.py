"""When an input counts as read to its end, and when a quiet topic counts as complete.

An input that is read to its end holds up nothing, or a quiet stream would stop its partner. But its
end is what a fetch or a mark reported last; after a pause or a restart more may be there that has
not arrived yet. So other inputs pass its time only by `SKEW_MS`, and only for that long after the
last report. Beyond that the task stops and asks (`Task.doubts`), its runner finds out whether
everything has arrived, and the answer (`Task.process`) releases what had arrived before the
question. A partition of a topic without new records may advance to the time of the topic's other
partitions, but not while the topic is being filled: `CalmDetector` samples the whole topic over a
span of time. Pure: the clock is passed in and only decides when to ask. Not done here: finding out
(the worker's).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

from streamlog.windows.emit import UNKNOWN_MS, Source

Partition: TypeAlias = tuple[str, int]
PACE = 2
"""Event time may go on this many times as fast as the clock on the wall."""
JITTER_MS = 5_000
"""And by this much more: records come in batches, and out of order."""
SAMPLE_INTERVAL_MS = 1_000
"""From one look to the next."""
SAMPLES_MAX = 240
"""Bounds what is remembered; the span is a part of it."""


class CalmState(NamedTuple):
    """What is known of one partition."""

    end: int
    """The offset behind its last record that may be read."""
    position: int
    """What lies before this offset was taken."""
    time_ms: int
    """The event time of what was taken; UNKNOWN_MS if nothing was."""


class CalmDetector:
    """What was seen of topics over the last span of time."""

    def __init__(self, span_ms: int) -> None:
        """`span_ms` is how long a topic has to be calm."""
        self._span_ms = span_ms
        self._looks: deque[tuple[int, Mapping[Partition, CalmState]]] = deque()

    def look(self, now_ms: int, seen: Mapping[Partition, CalmState]) -> None:
        """This is how partitions stand now."""
        self._looks.append((now_ms, seen))
        while len(self._looks) > SAMPLES_MAX or (
            len(self._looks) > 1 and now_ms - self._looks[1][0] >= self._span_ms
        ):
            self._looks.popleft()

    def reached_ms(self, partitions: Collection[Partition]) -> int:
        """How far event time has come in these; UNKNOWN_MS if they are not calm, or have none."""
        if not self._looks:
            return UNKNOWN_MS
        (before_ms, before), (now_ms, now) = self._looks[0], self._looks[-1]
        took_ms = now_ms - before_ms
        if took_ms < self._span_ms:
            return UNKNOWN_MS
        for each in partitions:
            if each not in before or each not in now:
                return UNKNOWN_MS
            if not _is_calm(before[each], now[each], took_ms):
                return UNKNOWN_MS
        return max((before[each].time_ms for each in partitions), default=UNKNOWN_MS)


def _is_calm(before: CalmState, now: CalmState, took_ms: int) -> bool:
    if now.position < before.end:
        return False
    if before.time_ms == UNKNOWN_MS:
        return now.time_ms == UNKNOWN_MS
    return now.time_ms - before.time_ms <= PACE * took_ms + JITTER_MS


SKEW_MS = 1_000
"""How far live streams may lie apart, in event time and on the wall, without a question."""
LAST_RANK = 1 << 31
"""Behind that of every input."""
MergeKey: TypeAlias = tuple[int, int]
"""Time and rank, by which records are ordered."""


class EndOfInputQuestion(NamedTuple):
    """Somewhere there may be more, though all that was heard of has been taken."""

    place: tuple[str, int]
    """The input, topic and partition."""
    source: Source | None
    """The one of its sources, behind a repartition; None: the input itself, all sources."""
    turn_ms: int
    """What waits for the answer and had come when the question was put, up to its newest turn."""
    ends: Mapping[tuple[str, int], int]
    """The same by offsets, of inputs whose records are read only when it is their turn."""
    posed_ms: int
    """When the question was put, on the wall."""

    @property
    def about(self) -> tuple[tuple[str, int], Source | None]:
        """What it is about, whenever it was put."""
        return self.place, self.source

    def told(self) -> str:
        """In a few words, behind "whether"."""
        name = f"{self.place[0]}-{self.place[1]}"
        if self.source is None:
            return f"{name} has more"
        return f"more of {self.source[0]}-{self.source[1]} comes through {name}"


class CaughtUpCheck:
    """Whether a task has doubts at all, and the time on the wall."""

    __slots__ = ("is_on", "now_ms")

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.now_ms = 0


NO_CHECK = CaughtUpCheck(is_on=False)
"""What was heard last is true: nobody writes while a history is read."""


class InputEnd:
    """What is known of an end: that of an input, or of one source that is merged in an input."""

    __slots__ = ("_ends", "_heard_ms", "_passed_ms")

    def __init__(self) -> None:
        self._heard_ms: int | None = None
        self._passed_ms = UNKNOWN_MS
        """Others have rightly gone so far while this one was at its end."""
        self._ends: dict[tuple[str, int], int] = {}
        """Where records of others lie that need not wait for it."""

    def hear(self, now_ms: int) -> None:
        """Something has come of it just now."""
        self._heard_ms = now_ms

    def confirm(self, doubt: EndOfInputQuestion) -> None:
        """All that there was when the question was put has come."""
        self._heard_ms = max(doubt.posed_ms, self._heard_ms or doubt.posed_ms)
        self._passed_ms = max(doubt.turn_ms, self._passed_ms)
        for place, end in doubt.ends.items():
            self._ends[place] = max(end, self._ends.get(place, 0))

    def confirmed_until(self, place: tuple[str, int]) -> int | None:
        """Before this offset no record of `place` needs to wait for it; None: nothing is known."""
        return self._ends.get(place)

    def pass_to(self, turn_ms: int) -> bool:
        """What has this turn need not wait for it; whether that is news."""
        is_news = turn_ms > self._passed_ms
        if is_news:
            self._passed_ms = turn_ms
        return is_news

    def bound(self, floor: MergeKey, now_ms: int) -> MergeKey:
        """So far others may go while it is at its end; nothing of it comes before `floor`."""
        time_ms = max(floor[0], self._passed_ms)
        if self._heard_ms is not None and now_ms - self._heard_ms <= SKEW_MS:
            return time_ms + SKEW_MS, LAST_RANK
        return (time_ms, LAST_RANK) if self._passed_ms >= floor[0] else floor
