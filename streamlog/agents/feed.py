"""Feed: the records that wait for an agent, and who gets which.

One call of the function reads everything in order, by the slice. Several share the records:
each gets one at a time, and those of one key (or partition) go one after the other. Rule of
the file: pure; what is waiting is counted, its bound is the runner's to keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from streamlog.agents.slices import SlicePart
from streamlog.nodes.stream_nodes import Order
from streamlog.records.batch import LogRecord

T = TypeVar("T")
"""What goes."""


class Lanes(Generic[T]):
    """Items that wait for their turn."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Hashable | None, T]] = deque()
        self._behind: dict[Hashable, deque[T]] = {}
        """Per lane that has an item ready or out: those that wait for it."""
        self._waiting = 0

    @property
    def ready(self) -> int:
        """How many may go now."""
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """How many have not gone yet, ready or not."""
        return self._waiting

    def put(self, lane: Hashable | None, item: T) -> None:
        """One more item."""
        self._waiting += 1
        if lane is not None:
            behind = self._behind.get(lane)
            if behind is not None:
                behind.append(item)
                return
            self._behind[lane] = deque()
        self._ready.append((lane, item))

    def take(self) -> tuple[Hashable | None, T]:
        """One that is ready; its lane waits for `done`."""
        self._waiting -= 1
        return self._ready.popleft()

    def follow(self, lane: Hashable) -> T | None:
        """The next item of a lane that is out, for the same one who has that."""
        behind = self._behind.get(lane)
        if not behind:
            return None
        self._waiting -= 1
        return behind.popleft()

    def done(self, lane: Hashable | None) -> None:
        """The item of this lane that was out is done."""
        if lane is None:
            return
        behind = self._behind[lane]
        if behind:
            self._ready.append((lane, behind.popleft()))
        else:
            del self._behind[lane]

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Forget all that wait and are not wanted any more."""
        for lane, behind in self._behind.items():
            self._behind[lane] = deque(item for item in behind if wanted(item))
        ready, self._ready = self._ready, deque()
        for lane, item in ready:
            if wanted(item):
                self._ready.append((lane, item))
            else:
                self.done(lane)
        self._waiting = len(self._ready) + sum(map(len, self._behind.values()))


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


HOLD_MS: Final = 10
"""A call that has held the loop for so long lets others run."""
TURNS: Final = 5
"""So many times around: a request that is answered in this process takes that many."""
YIELD_RECORDS: Final = 100
"""A loop that awaits nothing itself lets the others (heartbeats!) run after so many, however
quick it is."""


class Pace:
    """The pace of one call. Who gives records counts them down from `left`."""

    __slots__ = ("_limit", "_looked_ms", "_since_ms", "_since_records", "left")

    def __init__(self) -> None:
        self.left = 1
        """So many more may be given before somebody asks for `turns`."""
        self._limit = 1
        self._looked_ms = self._since_ms = self._since_records = 0

    def turns(self, now_ms: int) -> int:
        """How many turns of the loop are due. Nothing is left, and what was given is handled."""
        took_ms = now_ms - self._looked_ms
        self._since_records += self._limit
        if took_ms > HOLD_MS:
            self._limit = max(self._limit * HOLD_MS // took_ms, 1)
        elif took_ms <= HOLD_MS // 2:
            self._limit = min(2 * self._limit, SLICE_RECORDS_MAX)
        self.left, self._looked_ms = self._limit, now_ms
        if now_ms - self._since_ms >= HOLD_MS:
            return TURNS
        return 1 if self._since_records >= YIELD_RECORDS else 0

    def rested(self, now_ms: int) -> None:
        """Others have run."""
        self.left, self._looked_ms = self._limit, now_ms
        self._since_records, self._since_ms = 0, now_ms
