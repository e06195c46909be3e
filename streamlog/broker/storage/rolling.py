"""Rolling: when the segment that a log appends to is sealed, and the next one begun.

As in Kafka: when it or its index would grow too large, its offsets too far from its base, or when
a record comes that is `segment.ms` newer than its first one. Records without a time are judged by
how long the segment has been written to. Rule of the file: it decides and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic

from streamlog.broker.storage.roll_budget import Log, RollBudget
from streamlog.records.batch import RecordBatch, newest_timestamp_ms

if TYPE_CHECKING:
    from streamlog.broker.config import TopicConfig
    from streamlog.broker.storage.segment import Segment


class Rolling(Generic[Log]):
    """Of one log; `budget` is what it shares with others, if it does. Times are monotonic."""

    def __init__(self, log: Log, budget: RollBudget[Log] | None) -> None:
        self._log = log
        self._budget = budget
        self._opened_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """A segment gets its first batch now, or was sealed although nothing came."""
        self._opened_ms = now_ms

    def due(
        self,
        segment: Segment,
        config: TopicConfig,
        size_bytes: int,
        batches: Sequence[RecordBatch],
        *,
        now_ms: int,
    ) -> bool:
        """Whether the segment is to be sealed before these batches, of so many bytes."""
        if segment.size_bytes == 0:
            return False
        if segment.full(size_bytes, batches, config):
            return True
        if not self.is_time(segment, config, newest_timestamp_ms(batches), now_ms=now_ms):
            return False
        return self._budget is None or self._budget.take(self._log, now_ms)

    def is_time(
        self, segment: Segment, config: TopicConfig, newest_ms: int, *, now_ms: int
    ) -> bool:
        """Whether a record of that time would be too much newer than the first one."""
        if segment.first_timestamp_ms >= 0:
            return newest_ms - segment.first_timestamp_ms > config.roll_ms
        if self._opened_ms is None:
            self._opened_ms = now_ms
        return now_ms - self._opened_ms > config.roll_ms
