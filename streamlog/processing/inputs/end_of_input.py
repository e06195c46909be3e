"""When an input counts as read to its end, and when a quiet topic counts as complete.

An input that is read to its end holds back no other input; otherwise, a quiet stream would stop its
join partner. But the end offset is only what the last fetch or time mark reported: after a pause or
a restart, the log may hold more records that have not arrived yet. Therefore other inputs pass such
an input's time by at most `SKEW_MS`, and only for `SKEW_MS` after its last report. Beyond that, the
task stops and asks a question (`Task.end_questions`). Its runner finds out whether everything has
arrived, and the answer (`Task.process`) releases the records that had arrived before the question.

A partition of a topic without new records may advance to the time of the topic's other partitions,
but not while the topic is being filled: `CalmDetector` samples the whole topic over a span of time.
Pure: the clock is passed in and only decides when to ask. Not done here: finding the answer (the
worker's job).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

from streamlog.windows.emit import UNKNOWN_MS, Source

Partition: TypeAlias = tuple[str, int]
PACE = 2
"""Event time of a calm topic advances at most this many times as fast as the wall clock."""
JITTER_MS = 5_000
"""Tolerance on top of `PACE`, because records come in batches and out of order."""
SAMPLE_INTERVAL_MS = 1_000
"""The interval between two samples."""
SAMPLES_MAX = 240
"""Bounds the samples that are kept. The samples cover at least the detector's span."""


class CalmState(NamedTuple):
    """What is known of one partition at one sample."""

    end: int
    """The offset after the last readable record."""
    position: int
    """The offset of the next record to take."""
    time_ms: int
    """The event time of the records that were taken; UNKNOWN_MS if there were none."""


class CalmDetector:
    """Samples of partitions over the last span of time."""

    def __init__(self, span_ms: int) -> None:
        """`span_ms` is how long a topic has to be calm."""
        self._span_ms = span_ms
        self._looks: deque[tuple[int, Mapping[Partition, CalmState]]] = deque()

    def look(self, now_ms: int, seen: Mapping[Partition, CalmState]) -> None:
        """Add a sample of the partitions and drop the samples that the span no longer needs."""
        self._looks.append((now_ms, seen))
        while len(self._looks) > SAMPLES_MAX or (
            len(self._looks) > 1 and now_ms - self._looks[1][0] >= self._span_ms
        ):
            self._looks.popleft()

    def reached_ms(self, partitions: Collection[Partition]) -> int:
        """Return the largest event time of these partitions.

        Returns UNKNOWN_MS if one of them is not calm, was not sampled over the whole span, or if
        none has records.
        """
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
"""How far live streams may lie apart, in event time and on the wall clock, without a question."""
LAST_RANK = 1 << 31
"""A rank after that of every input."""
MergeKey: TypeAlias = tuple[int, int]
"""Event time and rank of the input: the order in which a task takes records."""


class EndOfInputQuestion(NamedTuple):
    """The question whether an input has more records, though everything reported has been taken."""

    topic_partition: Partition
    """Topic and partition of the input."""
    source: Source | None
    """One source behind a repartition topic; None: the input itself, with all its sources."""
    turn_ms: int
    """The largest merge key that had arrived when the question was asked. The answer releases the
    records up to it."""
    ends: Mapping[Partition, int]
    """End offsets when the question was asked, per input. They stand in for `turn_ms` in inputs
    whose records are decoded only when they are next."""
    posed_ms: int
    """When the question was asked, by the wall clock."""

    @property
    def about(self) -> tuple[Partition, Source | None]:
        """The input and source, which stay equal when the question is asked again."""
        return self.topic_partition, self.source

    def describe(self) -> str:
        """Return a phrase for messages, to follow "whether"."""
        name = f"{self.topic_partition[0]}-{self.topic_partition[1]}"
        if self.source is None:
            return f"{name} has more"
        return f"more of {self.source[0]}-{self.source[1]} comes through {name}"


class CaughtUpCheck:
    """Whether a task asks questions about ends of inputs, and the wall-clock time."""

    __slots__ = ("is_on", "now_ms")

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.now_ms = 0


NO_CHECK = CaughtUpCheck(is_on=False)
"""A check that is off: the last reported end is final, as in a history, whose log has no writer.
"""


class InputEnd:
    """What is known of the end of an input, or of one source that is merged in an input."""

    __slots__ = ("_arrived_ms", "_ends", "_passed_ms")

    def __init__(self) -> None:
        self._arrived_ms: int | None = None
        self._passed_ms = UNKNOWN_MS
        """Up to here, answers allow others to pass while this one is at its end."""
        self._ends: dict[Partition, int] = {}
        """The permission by offset: other inputs' records before these need not wait."""

    def note_arrival(self, now_ms: int) -> None:
        """Note that a record or mark has just arrived."""
        self._arrived_ms = now_ms

    def confirm(self, question: EndOfInputQuestion) -> None:
        """Take the answer: everything that existed when the question was asked has arrived."""
        self._arrived_ms = max(question.posed_ms, self._arrived_ms or question.posed_ms)
        self._passed_ms = max(question.turn_ms, self._passed_ms)
        for partition, end in question.ends.items():
            self._ends[partition] = max(end, self._ends.get(partition, 0))

    def confirmed_until(self, partition: Partition) -> int | None:
        """Return the offset there before which no record needs to wait; None if unknown."""
        return self._ends.get(partition)

    def pass_to(self, turn_ms: int) -> bool:
        """Let records up to this merge key pass without waiting; returns whether that is new."""
        is_news = turn_ms > self._passed_ms
        if is_news:
            self._passed_ms = turn_ms
        return is_news

    def bound(self, floor: MergeKey, now_ms: int) -> MergeKey:
        """Return the merge key that others may reach while this one is at its end.

        No record that is still to come from this one lies before `floor`.
        """
        time_ms = max(floor[0], self._passed_ms)
        # 1. A record arrived here 0.4 s ago at event time 10:00:00: others may take records up to
        #    10:00:01, because two live streams differ by about that much.
        # 2. Nothing has arrived for 5 s: others stop at the floor, and the task asks whether the
        #    log has more. It may be a fetch that a pause has delayed.
        # 3. The answer says that everything up to 10:07 has arrived: others take records up to
        #    10:07, although this input's own records end at 10:00.
        if self._arrived_ms is not None and now_ms - self._arrived_ms <= SKEW_MS:
            return time_ms + SKEW_MS, LAST_RANK
        return (time_ms, LAST_RANK) if self._passed_ms >= floor[0] else floor
