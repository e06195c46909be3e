"""Calm: how far event time has come in a topic that is not being filled.

A partition of which nothing comes holds back what waits for it. It may be brought to where the
other partitions of its topic have come, but not while the topic is being filled: a load that
writes one partition after the other would find its later records late. So the whole topic is
looked at over a span of time: it is calm if everything in it at the beginning of the span was
taken by its end, and event time has gone on in no partition much faster than the clock on the
wall. The time that a calm topic has reached is that of the beginning: what producers have under
way since then is not late. Pure: the clock is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

from streamlog.windows.emit import UNKNOWN_MS

Partition: TypeAlias = tuple[str, int]
PACE = 2
"""Event time may go on this many times as fast as the clock on the wall."""
JITTER_MS = 5_000
"""And by this much more: records come in batches, and out of order."""
LOOK_MS = 1_000
"""From one look to the next."""
LOOKS_MAX = 240
"""Bounds what is remembered; the span is a part of it."""


class Standing(NamedTuple):
    """What is known of one partition."""

    end: int
    """The offset behind its last record that may be read."""
    position: int
    """What lies before this offset was taken."""
    time_ms: int
    """The event time of what was taken; UNKNOWN_MS if nothing was."""


class Calm:
    """What was seen of topics over the last span of time."""

    def __init__(self, span_ms: int) -> None:
        """`span_ms` is how long a topic has to be calm."""
        self._span_ms = span_ms
        self._looks: deque[tuple[int, Mapping[Partition, Standing]]] = deque()

    def look(self, now_ms: int, seen: Mapping[Partition, Standing]) -> None:
        """This is how partitions stand now."""
        self._looks.append((now_ms, seen))
        while len(self._looks) > LOOKS_MAX or (
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


def _is_calm(before: Standing, now: Standing, took_ms: int) -> bool:
    if now.position < before.end:
        return False
    if before.time_ms == UNKNOWN_MS:
        return now.time_ms == UNKNOWN_MS
    return now.time_ms - before.time_ms <= PACE * took_ms + JITTER_MS
