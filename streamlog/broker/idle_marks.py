"""IdleMarks: appends a time mark where a reader waits at the end of a partition gone quiet.

The edge of `replication.time_marks`: it knows the clock and the disk. A log that takes no mark,
because its disk is full, is tried again after the next quiet period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.replication.time_marks import TimeMarks
from streamlog.errors import StreamlogError, UnknownTopicOrPartition
from streamlog.records.control_batches import TOLD_MAX, MarkTold

if TYPE_CHECKING:
    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.replication.partition import Partition
    from streamlog.clock import Clock


_log = repeated.logger(__name__)


class IdleMarks:
    """Marks the passing of time in the partitions of a broker."""

    def __init__(self, *, clock: Clock, alarm: DeadlineTimer) -> None:
        self._clock = clock
        self._alarm = alarm
        self._marks: TimeMarks[tuple[Partition, int]] = TimeMarks()
        """By partition, and when something was appended to it last as far as was known."""
        self._told: dict[tuple[Partition, int], dict[str, int]] = {}
        """The same: to which event time the mark is to bring the readers of which clock."""

    def want(self, partition: Partition, after_ms: int, told: MarkTold | None = None) -> None:
        """A reader at its end wants a mark once nothing was appended for so long."""
        now_ms = self._clock.now_ms()
        quiet_ms = partition.quiet_ms(now_ms)
        if quiet_ms is None:
            return
        appended_ms = now_ms - quiet_ms
        due_ms = appended_ms + max(after_ms, partition.log.config.mark_quiet_ms)
        self._marks.want((partition, appended_ms), due_ms)
        if told is not None:
            clocks = self._told.setdefault((partition, appended_ms), {})
            if told.clock in clocks or len(clocks) < TOLD_MAX:
                clocks[told.clock] = told.time_ms
        self._alarm.by(due_ms)

    def tick(self, now_ms: int) -> None:
        """Mark what is due and has been quiet all the time."""
        for partition, appended_ms in self._marks.take(now_ms):
            told = self._told.pop((partition, appended_ms), {})
            if partition.quiet_ms(now_ms) != now_ms - appended_ms:
                continue
            try:
                partition.mark_time(now_ms=now_ms, told=[MarkTold(*each) for each in told.items()])
            except UnknownTopicOrPartition:
                continue  # Its topic was deleted.
            except StreamlogError as error:
                _log.warning("%s: no time mark: %s", partition.log.name, error)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        return self._marks.next_ms()
