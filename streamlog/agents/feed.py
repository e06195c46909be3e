"""Feed: the records that wait for an agent, and who gets which.

One call of the function reads everything in order, by the slice. Several share the records:
each gets one at a time, and those of one key (or partition) go one after the other. Rule of
the file: pure; what is waiting is counted, its bound is the runner's to keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

from streamlog.agents.lanes import Lanes
from streamlog.agents.slices import SlicePart
from streamlog.nodes.stream_nodes import Order
from streamlog.records.batch import LogRecord

SLICE_RECORDS_MAX = 100
"""Decoded at once; so much work is done twice if a rebalance takes the partition away."""

Turn = tuple[SlicePart, Sequence[LogRecord], Hashable | None]
"""Records that are handed out, and the lane that waits for them."""


class WaitingRecords(Protocol):
    """Records that wait."""

    @property
    def ready(self) -> int:
        """How many could be handed out now."""

    @property
    def waiting(self) -> int:
        """How many there are."""

    def put(self, part: SlicePart, records: Sequence[LogRecord]) -> None:
        """More of them."""

    def take(self, limit: int) -> Turn:
        """Some that are ready; there are any."""

    def follow(self, lanes: Iterable[Hashable | None]) -> Turn | None:
        """Something that waits for nobody but the one who has these lanes."""

    def done(self, lane: Hashable | None) -> None:
        """What was handed out with this lane is handled."""

    def keep(self, wanted: Callable[[SlicePart], bool]) -> None:
        """Forget those of other partitions."""


class InOrder:
    """All for one: runs of records as they have come."""

    def __init__(self) -> None:
        self._runs: deque[tuple[SlicePart, Sequence[LogRecord]]] = deque()
        self._waiting = 0

    @property
    def ready(self) -> int:
        """All of them."""
        return self._waiting

    @property
    def waiting(self) -> int:
        """How many there are."""
        return self._waiting

    def put(self, part: SlicePart, records: Sequence[LogRecord]) -> None:
        """More of them."""
        for first in range(0, len(records), SLICE_RECORDS_MAX):
            self._runs.append((part, records[first : first + SLICE_RECORDS_MAX]))
        self._waiting += len(records)

    def take(self, limit: int) -> Turn:
        """The next of one partition."""
        part, records = self._runs.popleft()
        if len(records) > limit:
            self._runs.appendleft((part, records[limit:]))
            records = records[:limit]
        self._waiting -= len(records)
        return part, records, None

    def follow(self, lanes: Iterable[Hashable | None]) -> Turn | None:  # noqa: ARG002 - no lanes
        """All that waits is ready."""
        return None

    def done(self, lane: Hashable | None) -> None:
        """Nobody waits."""

    def keep(self, wanted: Callable[[SlicePart], bool]) -> None:
        """Forget those of other partitions."""
        self._runs = deque(run for run in self._runs if wanted(run[0]))
        self._waiting = sum(len(records) for _, records in self._runs)


class Shared:
    """One by one for several, each lane in order."""

    def __init__(self, ordered: Order) -> None:
        self._ordered = ordered
        self._lanes: Lanes[tuple[SlicePart, LogRecord]] = Lanes()

    @property
    def ready(self) -> int:
        """How many could be handed out now."""
        return self._lanes.ready

    @property
    def waiting(self) -> int:
        """How many there are."""
        return self._lanes.waiting

    def put(self, part: SlicePart, records: Sequence[LogRecord]) -> None:
        """More of them."""
        for record in records:
            self._lanes.put(self._lane(part, record), (part, record))

    def take(self, limit: int) -> Turn:  # noqa: ARG002 - one is never too many
        """The next one."""
        lane, (part, record) = self._lanes.take()
        return part, [record], lane

    def follow(self, lanes: Iterable[Hashable | None]) -> Turn | None:
        """The next one of these lanes; it has no lane of its own, as that is waited for already."""
        for lane in lanes:
            found = None if lane is None else self._lanes.follow(lane)
            if found is not None:
                return found[0], [found[1]], None
        return None

    def done(self, lane: Hashable | None) -> None:
        """The next one of the lane may go."""
        self._lanes.done(lane)

    def keep(self, wanted: Callable[[SlicePart], bool]) -> None:
        """Forget those of other partitions."""
        self._lanes.keep(lambda item: wanted(item[0]))

    def _lane(self, part: SlicePart, record: LogRecord) -> Hashable | None:
        match self._ordered:
            case "key":
                return record.key
            case "partition":
                return part.partition
            case "none":
                return None
