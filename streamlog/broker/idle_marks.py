"""TimeMarks: when the passing of time is to be marked, of all partitions that somebody waits at.

Pure. A reader at the end of a quiet partition says for how long it has to have been quiet to
matter to it: until a window would close, say. So a mark is appended when it makes a difference,
and a topic that nobody computes on, or whose windows are all closed, gets none at all. What was
asked for is forgotten once it is due: whoever still waits asks again with the next Fetch, and
what was appended meanwhile has begun another quiet. See docs/decisions/008.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

from streamlog import repeated
from streamlog.errors import StreamlogError, UnknownTopicOrPartition
from streamlog.records.control_batches import TOLD_MAX, MarkTold

if TYPE_CHECKING:
    from collections.abc import Hashable

    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.replication.partition import Partition
    from streamlog.clock import Clock


Key = TypeVar("Key", bound="Hashable")
"""A partition."""


class TimeMarks(Generic[Key]):
    """Who is due for a mark when. Times are monotonic."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._due: dict[Key, int] = {}
        self._number = 0

    def want(self, key: Key, due_ms: int) -> None:
        """Somebody wants a mark there at that time, unless something comes before."""
        known_ms = self._due.get(key)
        if known_ms is None or due_ms < known_ms:
            self._due[key] = due_ms
            self._number += 1
            heapq.heappush(self._heap, (due_ms, self._number, key))

    def take(self, now_ms: int) -> list[Key]:
        """Those that are due, which they are not any more then."""
        taken: list[Key] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due_ms:
                del self._due[key]
                taken.append(key)
        return taken

    def next_ms(self) -> int | None:
        """When to look again at the latest; None for never."""
        return self._heap[0][0] if self._heap else None


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
