"""SteadyTime, expired_segments: which segments retention deletes, and the clock that it uses.

As in Kafka, a segment expires when its newest record is older than `retention.ms`, or when the log
without it still has `retention.bytes`; segments expire from the oldest on, without a gap. The time
is the broker's wall clock, but after a leap forward nothing expires for an hour (`SteadyTime`): a
clock that was set wrong is usually corrected, and deleted records do not come back.

Rules of this module: it decides, and `retention` acts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from streamlog import repeated
from streamlog.broker.config.broker import TopicConfig

LEAP_MS = 60_000
"""A gain of the wall clock on the monotonic one between two rounds that means it was set."""
SETTLE_MS = 60 * 60 * 1000
"""How long the clock has to stay ahead to be believed. After a machine was suspended, its clock
leaps in the same way."""

_logger = repeated.logger(__name__)


class Aging(Protocol):
    """The part of a segment that expiry needs."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        ...

    @property
    def max_timestamp_ms(self) -> int:
        """The timestamp of its newest record; -1 if no record has one."""
        ...


def expired_segments(segments: Iterable[Aging], config: TopicConfig, *, wall_ms: int) -> int:
    """Return how many segments, from the oldest on, retention deletes.

    A segment without record timestamps does not expire by time.
    """
    if not config.deletes:
        return 0
    if config.retention_bytes < 0:
        if config.retention_ms < 0:
            return 0
        return _older(segments, wall_ms - config.retention_ms)
    every = list(segments)
    count = _beyond([segment.size_bytes for segment in every], config.retention_bytes)
    if config.retention_ms >= 0:
        count = max(count, _older(every, wall_ms - config.retention_ms))
    return count


def _older(segments: Iterable[Aging], than_ms: int) -> int:
    count = 0
    for segment in segments:
        if not 0 <= segment.max_timestamp_ms < than_ms:
            break
        count += 1
    return count


def _beyond(sizes: list[int], kept_bytes: int) -> int:
    excess = sum(sizes) - kept_bytes
    count = 0
    for size_bytes in sizes:
        excess -= size_bytes
        if excess < 0 or not size_bytes:  # An empty active segment frees nothing.
            break
        count += 1
    return count


class SteadyTime:
    """A wall clock that follows leaps forward only after they have lasted for an hour."""

    def __init__(self) -> None:
        self._ahead_ms: int | None = None
        self._leapt_ms: int | None = None

    def wall_ms(self, *, now_ms: int, wall_ms: int) -> int:
        """Return the wall time to use.

        `now_ms` is monotonic. Backward leaps are followed at once.
        """
        ahead_ms = wall_ms - now_ms
        # 1. The clock jumps from 2024 to 2030 and is corrected an hour later. 2. With 2030 as
        # "now", a retention of a week would delete every log within one round. 3. So the old
        # difference to the monotonic clock is used until the new one has lasted for `SETTLE_MS`.
        if self._ahead_ms is None or ahead_ms < self._ahead_ms + LEAP_MS:
            self._ahead_ms, self._leapt_ms = ahead_ms, None
        elif self._leapt_ms is None:
            self._leapt_ms = now_ms
            _logger.warning(
                "the clock leapt forward by %d s: retention uses the old time for %d minutes",
                (ahead_ms - self._ahead_ms) // 1000,
                SETTLE_MS // 60_000,
            )
        elif now_ms - self._leapt_ms >= SETTLE_MS:
            self._ahead_ms, self._leapt_ms = ahead_ms, None
        return now_ms + self._ahead_ms
