"""Sampled: sums, averages and maxima over the last time windows, as Kafka's clients measure them.

Kafka keeps `metrics.num.samples` windows of `metrics.sample.window.ms`; a rate is what happened in
them, divided by the time since the oldest began. Here one `SampleWindows` ends the windows of all
values of a client together, so a hot path only adds, and no value keeps a time of its own.

Rule: a function of its inputs; the time is passed in. Call `SampleWindows.advance` before values
are recorded: values that are recorded later count in the window that was current then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

SAMPLE_WINDOW_MS: Final = 30_000
"""Kafka's `metrics.sample.window.ms`."""
SAMPLES: Final = 2
"""Kafka's `metrics.num.samples`: the present window and the one before."""
_NO_MARKS: Final = ((0.0, 0),)
_NO_PEAKS: Final = (-math.inf,)


class Sampled:
    """A series of values: their number, sum and maximum, ever and in the kept windows.

    `SampleWindows.sampled` makes one whose windows end. One that is made directly has a single
    window without an end.
    """

    __slots__ = ("count", "largest", "marks", "peaks", "total")

    def __init__(self, windows: int = 1) -> None:
        self.total: float = 0
        """The sum of all values."""
        self.count = 0
        """The number of all values."""
        self.largest = -math.inf
        """The largest value in the present window."""
        # Tuples, which most series share until their first window ends: a consumer has two series
        # for each of its partitions, and a deque alone takes 600 bytes.
        self.marks: tuple[tuple[float, int], ...] = _NO_MARKS * windows
        """`total` and `count` at the start of each kept window, the oldest first."""
        self.peaks: tuple[float, ...] = _NO_PEAKS * (windows - 1)
        """The largest value of each kept window before the present one."""

    def record(self, value: float) -> None:
        """Count a value."""
        self.total += value
        self.count += 1
        self.largest = max(self.largest, value)

    def absorb(self, other: Sampled) -> None:
        """Count all values of `other` as recorded in the present window."""
        self.total += other.total
        self.count += other.count
        self.largest = max(self.largest, other.largest, *other.peaks)

    @property
    def recent_total(self) -> float:
        """The sum of the values in the kept windows."""
        return self.total - self.marks[0][0]

    @property
    def recent_count(self) -> int:
        """The number of values in the kept windows."""
        return self.count - self.marks[0][1]


class SampleWindows:
    """The time windows of one client, and the values that are measured over them."""

    def __init__(
        self, now_ms: int, *, window_ms: int = SAMPLE_WINDOW_MS, samples: int = SAMPLES
    ) -> None:
        """Begin the first window.

        Args:
            now_ms: monotonic time in ms.
            window_ms: the length of a window in ms; positive.
            samples: the number of windows that are kept, with the present one; positive.
        """
        self._window_ms = window_ms
        self._samples = samples
        self._starts_ms: deque[int] = deque([now_ms])
        self._ends_ms = now_ms + window_ms
        self._sampled: set[Sampled] = set()

    def sampled(self) -> Sampled:
        """Return a new series of values, measured over these windows."""
        # As many marks as there are windows now: `_end_windows` drops one of each series per
        # window.
        made = Sampled(len(self._starts_ms))
        self._sampled.add(made)
        return made

    def forget(self, sampled: Sampled) -> None:
        """End no more windows of a series, which is not read any more."""
        self._sampled.discard(sampled)

    def advance(self, now_ms: int) -> None:
        """End the windows that are over; cheap if none is."""
        if now_ms >= self._ends_ms:
            self._end_windows(now_ms)

    def rate(self, amount: float, now_ms: int) -> float:
        """Return what an amount, counted in the kept windows, is per second.

        As in Kafka, windows that have not been yet count as empty ones: a burst in the first
        second of a client is no rate of a minute.
        """
        elapsed_ms = now_ms - self._starts_ms[0]
        # 5 s after the start, with two windows of 30 s, one is missing: the amount is divided by 35
        # s. From 30 s on none is missing, and it is divided by the time that has passed. At least 1
        # ms: with a single window, a rate at its very start would divide by 0.
        missing = self._samples - 1 - elapsed_ms // self._window_ms
        return amount * 1000 / max(elapsed_ms + max(missing, 0) * self._window_ms, 1)

    def _end_windows(self, now_ms: int) -> None:
        ended = (now_ms - self._starts_ms[-1]) // self._window_ms
        start_ms = self._starts_ms[-1] + ended * self._window_ms
        # After a long pause the kept windows are all empty; how many have passed does not matter.
        for back in range(min(ended, self._samples) - 1, -1, -1):
            self._starts_ms.append(start_ms - back * self._window_ms)
            for each in self._sampled:
                each.marks += ((each.total, each.count),)
                each.peaks += (each.largest,)
                each.largest = -math.inf
        while len(self._starts_ms) > self._samples:
            self._starts_ms.popleft()
            for each in self._sampled:
                each.marks = each.marks[1:]
                each.peaks = each.peaks[1:]
        self._ends_ms = start_ms + self._window_ms


def average(many: Iterable[Sampled]) -> float:
    """Return the average value of some series in the kept windows; NaN if there is none."""
    total, count = 0.0, 0
    for each in many:
        total, count = total + each.recent_total, count + each.recent_count
    return total / count if count else math.nan


def largest(many: Iterable[Sampled]) -> float:
    """Return the largest value of some series in the kept windows; NaN if there is none."""
    found = max((max((each.largest, *each.peaks)) for each in many), default=-math.inf)
    return math.nan if found == -math.inf else found
