"""Expiry: which segments of a log are over, and which time that is judged by.

As in Kafka a segment is over when its newest record is older than `retention.ms` or when the
log without it still has `retention.bytes`, and only from the oldest on without a gap. Time is
the broker's wall clock, but a leap forward of it deletes nothing for an hour (`SteadyTime`):
a clock that was set wrong is usually set right again, and deleted records do not come back.
Rule of the file: it decides and does nothing; `retention` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from streamlog import repeated
from streamlog.broker.config.broker import TopicConfig

LEAP_MS = 60_000
"""A wall clock that gains this much on the monotonic one between two rounds was set, not slewed."""
SETTLE_MS = 60 * 60 * 1000
"""How long it has to stay there to be believed. A night of suspension looks the same."""

_logger = repeated.logger(__name__)


class Aging(Protocol):
    """What is asked of a segment."""

    @property
    def size_bytes(self) -> int:
        """Of its batches."""
        ...

    @property
    def max_timestamp_ms(self) -> int:
        """Of its newest record; -1 if none has a time."""
        ...


def expired_segments(segments: Iterable[Aging], config: TopicConfig, *, wall_ms: int) -> int:
    """How many segments, from the oldest on, retention lets go.

    A segment in which no record has a timestamp is not over by time.
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
        if excess < 0 or not size_bytes:
            break
        count += 1
    return count


class SteadyTime:
    """A wall clock that does not leap forward, unless it stays there."""

    def __init__(self) -> None:
        self._ahead_ms: int | None = None
        self._leapt_ms: int | None = None

    def wall_ms(self, *, now_ms: int, wall_ms: int) -> int:
        """The wall time to go by; `now_ms` is monotonic. Backward leaps are followed at once."""
        ahead_ms = wall_ms - now_ms
        if self._ahead_ms is None or ahead_ms < self._ahead_ms + LEAP_MS:
            self._ahead_ms, self._leapt_ms = ahead_ms, None
        elif self._leapt_ms is None:
            self._leapt_ms = now_ms
            _logger.warning(
                "the clock leapt forward by %d s: retention goes by the old time for %d minutes",
                (ahead_ms - self._ahead_ms) // 1000,
                SETTLE_MS // 60_000,
            )
        elif now_ms - self._leapt_ms >= SETTLE_MS:
            self._ahead_ms, self._leapt_ms = ahead_ms, None
        return now_ms + self._ahead_ms
