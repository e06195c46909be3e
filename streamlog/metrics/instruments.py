"""Instruments: counters, gauges and histograms that cost a hot path one addition.

Rules of this module:

- No locks. Each instrument has one writer, an event loop or a thread; a reader on another thread
  may miss the newest update, and sees it at its next look.
- No clock: callers measure durations.
"""

from __future__ import annotations

import math

DURATION_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Bounds of a histogram of durations between 0.1 ms and 30 s, in seconds."""
HOLD_WINDOW_S = 60.0
"""The longest hold of an event loop is that of the last one to two windows."""


class Counter:
    """A number that only grows, from the start of the process."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        """Add `amount`, which is not negative."""
        self.value += amount


class Gauge:
    """A number that may rise and fall."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value

    def add(self, amount: float) -> None:
        """Add `amount`, which may be negative."""
        self.value += amount


class Histogram:
    """Counts values by size, and their sum.

    Args:
        bounds: the upper bounds of the buckets in ascending order; a last bucket has no bound.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = DURATION_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The number of values in each bucket, not cumulative."""
        self.sum: float = 0

    def record(self, value: float) -> None:
        """Count a value."""
        self.record_many(value, 1)

    def record_many(self, value: float, count: int) -> None:
        """Count a value `count` times, for example for requests that one call has answered."""
        # Not by bisection: compiled, this loop costs nanoseconds, and most durations belong to one
        # of the first buckets.
        at = 0
        for bound in self.bounds:
            # A value equal to a bound belongs to its bucket: Prometheus' `le` is "less or equal".
            if value <= bound:
                break
            at += 1
        self.counts[at] += count
        self.sum += value * count

    def include(self, other: Histogram) -> None:
        """Add the values of another histogram, which has the same bounds."""
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Estimate the value that `share` of all values do not exceed; NaN without values.

        Values are taken to be spread evenly in their bucket, as by PromQL's `histogram_quantile`.
        In the bucket without an upper bound, the estimate is its lower bound.
        """
        rank = share * self.count
        if not rank:
            return math.nan
        below, low = 0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return low + (bound - low) * (rank - below) / count
            below, low = below + count, bound
        return self.bounds[len(self.bounds) - 1]  # compiled without negative indexes


class ApiMeter:
    """The measures of one version of one API of a server; `request_metrics` describes them."""

    __slots__ = ("api", "local", "queue", "remote", "requests", "response_queue", "total")

    def __init__(self, api: str, requests: Counter) -> None:
        self.api = api
        self.requests = requests
        self.queue = Histogram()
        self.local = Histogram()
        self.remote = Histogram()
        self.response_queue = Histogram()
        self.total = Histogram()


class LoopTimes:
    """The times of a loop, which its selector notes."""

    __slots__ = ("_before_s", "_now_s", "_turn_s", "_woke_s", "holds", "idle_s")

    def __init__(self, now_s: float) -> None:
        self.idle_s = 0.0
        """How long it has waited for events, since the start."""
        self.holds = Histogram()
        """How long it was held, each time."""
        self._woke_s = now_s
        self._turn_s = now_s + HOLD_WINDOW_S
        self._now_s = self._before_s = 0.0
        """The longest hold of this window, and of the one before."""

    def on_wait(self, now_s: float) -> None:
        """Note that the loop begins to wait."""
        hold_s = now_s - self._woke_s
        self.holds.record(hold_s)
        if now_s >= self._turn_s:
            self._turn(now_s)
        self._now_s = max(self._now_s, hold_s)

    def on_wake(self, began_s: float, now_s: float) -> None:
        """Note that the loop has waited since `began_s`."""
        self.idle_s += now_s - began_s
        self._woke_s = now_s

    def longest_hold_s(self, now_s: float) -> float:
        """Return the longest hold of this window and the one before: of one to two minutes."""
        if now_s >= self._turn_s:
            self._turn(now_s)
        return max(self._now_s, self._before_s)

    def _turn(self, now_s: float) -> None:
        # A loop that has waited for longer than a window was not held in the one before.
        is_next = now_s < self._turn_s + HOLD_WINDOW_S
        self._before_s, self._now_s = (self._now_s if is_next else 0.0), 0.0
        self._turn_s = now_s + HOLD_WINDOW_S
