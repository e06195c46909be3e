"""RangeReader: reads partitions up to ends that are known, and gives up when nothing comes.

Every reader of a whole topic or of a range of offsets asks here whether it is done: changelogs,
global tables, the topics of an app's own, histories, dead letters, the Spark source.

Rule of the file: progress is a position, not a record. Transaction markers, aborted batches and
offsets that compaction has removed move the position and return no record, so a range whose last
record is missing still ends. `StallGuard` decides (pure); `RangeReader` asks the consumer. Not done
here: what a reader does with a damaged batch or a lost source; it seeks, and the guard follows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from streamlog.client.consumer import Consumer
from streamlog.clock import Clock
from streamlog.errors import RequestTimedOut
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.record_columns import RecordColumns

STALL_MS: Final = 60_000
"""The log held the end when the read began: a minute without progress is a fault, not a delay. The
consumer, too, tries for a minute to reach a broker before it raises."""
STALL_CHECKS_MIN: Final = 4
"""Checks without progress before a read has stalled, however much time passes between two of them:
a process that was suspended has not waited for the log."""
POLL_MS: Final = 20
"""Milliseconds of one poll. The end of a range is noticed this much later at most if the range ends
with a transaction marker, which wakes no poll."""


class StallGuard:
    """Decides whether a read has reached its ends, continues, or has stalled. Pure."""

    def __init__(self, ends: Mapping[TopicPartition, int], *, stall_ms: int = STALL_MS) -> None:
        """Begin a read.

        Args:
            ends: by partition, the offset at which the read is complete (exclusive).
            stall_ms: how long the read may make no progress, in milliseconds.
        """
        self.remaining: dict[TopicPartition, int] = {}
        """Offsets left to read, as of the last check; partitions at their end are left out."""
        self._ends = dict(ends)
        self._stall_ms = stall_ms
        self._left: int | None = None
        self._checked_ms = 0
        self._waited_ms = 0

    def is_at_end(self, positions: Mapping[TopicPartition, int], now_ms: int) -> bool:
        """Return whether the positions have reached all ends.

        Args:
            positions: the next offset of each partition of the read.
            now_ms: monotonic time in milliseconds.

        Raises:
            RequestTimedOut: no position has come closer to its end for `stall_ms`.
        """
        self.remaining = {
            part: end - positions[part] for part, end in self._ends.items() if positions[part] < end
        }
        before, self._left = self._left, sum(self.remaining.values())
        gap_ms, self._checked_ms = now_ms - self._checked_ms, now_ms
        if before is None or self._left < before:
            self._waited_ms = 0
        else:
            # Scenario: 1. a poll finds nothing. 2. The machine sleeps for an hour. 3. The next
            # check sees a gap of an hour, in which the log had no chance to answer. So one gap
            # counts for a fraction of the limit at most, and the read polls again.
            self._waited_ms += min(gap_ms, self._stall_ms // STALL_CHECKS_MIN)
            if self.remaining and self._waited_ms >= self._stall_ms:
                raise self._stalled(positions)
        return not self.remaining

    def _stalled(self, positions: Mapping[TopicPartition, int]) -> RequestTimedOut:
        part = min(self.remaining)
        others = len(self.remaining) - 1
        waits = "1 more partition waits" if others == 1 else f"{others} more partitions wait"
        also = f" ({waits} as well)" if others else ""
        return RequestTimedOut(
            f"{part.topic}-{part.partition}: the read is at offset {positions[part]} and has made "
            f"no progress for {self._stall_ms / 1000:g} s; it waits for the offsets before "
            f"{self._ends[part]}, which the log held when the read began{also}. Check that the "
            f"partition has a leader (`streamlog topics describe {part.topic}`), that no "
            "transaction is open in it and that its log was not truncated, and try again"
        )


class RangeReader:
    """Reads the partitions of an open consumer up to fixed ends.

    Example:
        reader = RangeReader(consumer, {partition: end}, clock)
        while not await reader.is_at_end():
            polled = await consumer.poll(timeout_ms=POLL_MS)
    """

    def __init__(
        self,
        consumer: Consumer,
        ends: Mapping[TopicPartition, int],
        clock: Clock,
        *,
        stall_ms: int = STALL_MS,
    ) -> None:
        """`consumer` is assigned the partitions of `ends`; see `StallGuard` for the rest."""
        self._consumer = consumer
        self._ends = dict(ends)
        self._clock = clock
        self._guard = StallGuard(ends, stall_ms=stall_ms)

    @property
    def remaining(self) -> Mapping[TopicPartition, int]:
        """Offsets left to read, as of the last check; partitions at their end are left out."""
        return self._guard.remaining

    async def is_at_end(self) -> bool:
        """Return whether the consumer has reached all ends; call it between two polls.

        Raises:
            RequestTimedOut: the read has stalled; names the partition, the offset and the end.
            OffsetOutOfRange, SourceLost: a position has to be looked up, and the log lacks it.
        """
        positions = {part: await self._consumer.position(part) for part in self._ends}
        return self._guard.is_at_end(positions, self._clock.now_ms())

    async def poll(self, *, timeout_ms: int = POLL_MS) -> dict[TopicPartition, list[LogRecord]]:
        """Return the next records before the ends; raises what `Consumer.poll` raises.

        The consumer's position may pass an end: what lies behind it is dropped here.
        """
        polled = await self._consumer.poll(timeout_ms=timeout_ms)
        return {
            part: [record for record in records if record.offset < self._ends[part]]
            for part, records in polled.items()
        }

    async def poll_columns(
        self, *, timeout_ms: int = POLL_MS, max_records: int | None = None
    ) -> dict[TopicPartition, RecordColumns]:
        """Return the same as `poll`, as columns."""
        polled = await self._consumer.poll_columns(timeout_ms=timeout_ms, max_records=max_records)
        return {part: _before(columns, self._ends[part]) for part, columns in polled.items()}


def _before(columns: RecordColumns, end: int) -> RecordColumns:
    offsets = columns.offsets
    if not offsets or offsets[-1] < end:
        return columns  # As a rule; a slice would copy every column.
    before: RecordColumns = columns[: bisect_left(offsets, end)]
    return before


async def read_to_end(
    consumer: Consumer, partition: TopicPartition, end: int, clock: Clock, *, stall_ms: int
) -> RecordColumns:
    """Return the records from the consumer's position to before `end`.

    Raises:
        RequestTimedOut: the read has stalled.
        OffsetOutOfRange: the log does not hold the position, and the reset policy is "none".
        DamagedBatch: a batch can't be read.
    """
    found = RecordColumns()
    reader = RangeReader(consumer, {partition: end}, clock, stall_ms=stall_ms)
    while not await reader.is_at_end():
        for columns in (await reader.poll_columns()).values():
            found += columns
    return found
