"""Time marks: writes them to idle partitions for readers that wait at the end (decision 008).

A consumer at the end of an idle partition requests a mark for the time at which it would matter:
when a window would close, for example. So a topic that no application computes on, or whose windows
are all closed, gets no marks. A request is forgotten once it is due: a consumer that still waits
repeats it with its next Fetch, and an append in between has begun a new idle time. A log that
refuses the mark, for example because its disk is full, is tried again after the next idle time.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

from streamlog import repeated
from streamlog.errors import StreamlogError, UnknownTopicOrPartition
from streamlog.records.control_batches import CLOCKS_MAX, ClockTime

if TYPE_CHECKING:
    from collections.abc import Hashable

    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.replication.partition import Partition
    from streamlog.clock import Clock

_log = repeated.logger(__name__)

Key = TypeVar("Key", bound="Hashable")
"""A partition."""


class DueTimes(Generic[Key]):
    """The due times of partitions, by a monotonic clock, in milliseconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._due: dict[Key, int] = {}
        self._number = 0

    def want(self, key: Key, due_ms: int) -> None:
        """Request a mark in a partition at `due_ms`, or earlier if one is due earlier."""
        known_ms = self._due.get(key)
        if known_ms is None or due_ms < known_ms:
            self._due[key] = due_ms
            self._number += 1
            heapq.heappush(self._heap, (due_ms, self._number, key))

    def take(self, now_ms: int) -> list[Key]:
        """Remove and return the partitions that are due."""
        taken: list[Key] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, key = heapq.heappop(self._heap)
            # An entry with another time was replaced by an earlier request.
            if self._due.get(key) == due_ms:
                del self._due[key]
                taken.append(key)
        return taken

    def next_ms(self) -> int | None:
        """Return when to call `take` next, at the latest; None for never."""
        return self._heap[0][0] if self._heap else None


class TimeMarks:
    """Writes time marks to the idle partitions of a broker."""

    def __init__(self, *, clock: Clock, alarm: DeadlineTimer) -> None:
        self._clock = clock
        self._timer = alarm
        self._due: DueTimes[tuple[Partition, int]] = DueTimes()
        """The marks that are due, by partition and the time of its last append as far as known."""
        self._clock_times: dict[tuple[Partition, int], dict[str, int]] = {}
        """The event times that a mark will carry, by clock, for each of those."""

    def want(self, partition: Partition, after_ms: int, reached: ClockTime | None = None) -> None:
        """Request a mark for a reader at the end, once the partition is idle for `after_ms`."""
        now_ms = self._clock.now_ms()
        quiet_ms = partition.quiet_ms(now_ms)
        if quiet_ms is None:
            return
        appended_ms = now_ms - quiet_ms
        due_ms = appended_ms + max(after_ms, partition.log.config.mark_quiet_ms)
        self._due.want((partition, appended_ms), due_ms)
        if reached is not None:
            clocks = self._clock_times.setdefault((partition, appended_ms), {})
            if reached.clock in clocks or len(clocks) < CLOCKS_MAX:
                clocks[reached.clock] = reached.time_ms
        self._timer.by(due_ms)

    def tick(self, now_ms: int) -> None:
        """Write the marks that are due in partitions that have stayed idle."""
        for partition, appended_ms in self._due.take(now_ms):
            clock_times = self._clock_times.pop((partition, appended_ms), {})
            if partition.quiet_ms(now_ms) != now_ms - appended_ms:
                continue  # Something was appended meanwhile.
            try:
                partition.mark_time(
                    now_ms=now_ms, reached=[ClockTime(*each) for each in clock_times.items()]
                )
            except UnknownTopicOrPartition:
                continue  # Its topic was deleted.
            except StreamlogError as error:
                _log.warning("%s: could not append a time mark: %s", partition.log.name, error)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for never."""
        return self._due.next_ms()
