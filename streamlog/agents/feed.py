"""Feed: the records that wait for an agent, and the choice of the call that gets them.

A single call reads everything in order, in slices. Several calls share the records: each gets one
record at a time, and records of one key (or partition) are handled one after the other.

Rule: pure. A feed counts its waiting records; `run` bounds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from streamlog.agents.slices import SlicePart
from streamlog.nodes.stream_nodes import Order
from streamlog.records.batch import LogRecord

T = TypeVar("T")
"""An item."""


class Lanes(Generic[T]):
    """Items in lanes: at most one item of a lane is out; items without a lane are independent."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Hashable | None, T]] = deque()
        self._behind: dict[Hashable, deque[T]] = {}
        """The items that wait, by lane; a lane is a key while one of its items is ready or out."""
        self._waiting = 0

    @property
    def ready(self) -> int:
        """The number of items that can be taken now."""
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """The number of items that were not taken yet, ready or not."""
        return self._waiting

    def put(self, lane: Hashable | None, item: T) -> None:
        """Add an item."""
        self._waiting += 1
        if lane is not None:
            behind = self._behind.get(lane)
            if behind is not None:
                behind.append(item)
                return
            # An empty queue marks the lane as taken.
            self._behind[lane] = deque()
        self._ready.append((lane, item))

    def take(self) -> tuple[Hashable | None, T]:
        """Take an item that is ready; the others of its lane wait until `done`."""
        self._waiting -= 1
        return self._ready.popleft()

    def follow(self, lane: Hashable) -> T | None:
        """Take the next item of a lane, for the call that holds the lane; None if none waits."""
        behind = self._behind.get(lane)
        if not behind:
            return None
        self._waiting -= 1
        return behind.popleft()

    def done(self, lane: Hashable | None) -> None:
        """Release a lane: its next item becomes ready."""
        if lane is None:
            return
        behind = self._behind[lane]
        if behind:
            self._ready.append((lane, behind.popleft()))
        else:
            del self._behind[lane]

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Drop the waiting items that are not wanted."""
        # The waiting items first, so that `done` below makes only wanted ones ready.
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
"""The records that are decoded at once. A rebalance that revokes the partition wastes the work on
them."""

Turn = tuple[SlicePart, Sequence[LogRecord], Hashable | None]
"""Records of one partition for a call, and the lane that they occupy."""


class WaitingRecords(Protocol):
    """Port: the records that wait for an agent's calls."""

    @property
    def ready(self) -> int:
        """The number of records that can be taken now."""

    @property
    def waiting(self) -> int:
        """The number of records that were not taken yet."""

    def put(self, part: SlicePart, records: Sequence[LogRecord]) -> None:
        """Add records of a partition, which follow those added before."""

    def take(self, limit: int) -> Turn:
        """Take up to `limit` records; call it only if some are ready."""

    def follow(self, lanes: Iterable[Hashable | None]) -> Turn | None:
        """Take a record that waits for one of these lanes, which the caller holds; None if none."""

    def done(self, lane: Hashable | None) -> None:
        """Release a lane, because the records that were taken with it are handled."""

    def keep(self, wanted: Callable[[SlicePart], bool]) -> None:
        """Drop the records of partitions that are not wanted."""


class InOrder:
    """The records for a single call: runs in the order in which they arrived."""

    def __init__(self) -> None:
        self._runs: deque[tuple[SlicePart, Sequence[LogRecord]]] = deque()
        self._waiting = 0

    @property
    def ready(self) -> int:
        """All waiting records."""
        return self._waiting

    @property
    def waiting(self) -> int:
        """The number of records that were not taken yet."""
        return self._waiting

    def put(self, part: SlicePart, records: Sequence[LogRecord]) -> None:
        """Add records, in runs of at most `SLICE_RECORDS_MAX`."""
        for first in range(0, len(records), SLICE_RECORDS_MAX):
            self._runs.append((part, records[first : first + SLICE_RECORDS_MAX]))
        self._waiting += len(records)

    def take(self, limit: int) -> Turn:
        """Take the first records of the oldest run."""
        part, records = self._runs.popleft()
        if len(records) > limit:
            self._runs.appendleft((part, records[limit:]))
            records = records[:limit]
        self._waiting -= len(records)
        return part, records, None

    def follow(self, lanes: Iterable[Hashable | None]) -> Turn | None:  # noqa: ARG002 - no lanes
        """Return None: no record waits for a lane."""
        return None

    def done(self, lane: Hashable | None) -> None:
        """Do nothing: there are no lanes."""

    def keep(self, wanted: Callable[[SlicePart], bool]) -> None:
        """Drop the runs of partitions that are not wanted."""
        self._runs = deque(run for run in self._runs if wanted(run[0]))
        self._waiting = sum(len(records) for _, records in self._runs)


class Shared:
    """The records for several calls, one by one; each lane in order."""

    def __init__(self, ordered: Order) -> None:
        self._ordered = ordered
        self._lanes: Lanes[tuple[SlicePart, LogRecord]] = Lanes()

    @property
    def ready(self) -> int:
        """The number of records whose lanes are free."""
        return self._lanes.ready

    @property
    def waiting(self) -> int:
        """The number of records that were not taken yet."""
        return self._lanes.waiting

    def put(self, part: SlicePart, records: Sequence[LogRecord]) -> None:
        """Add records, each to the lane of its key or partition."""
        for record in records:
            self._lanes.put(self._lane(part, record), (part, record))

    def take(self, limit: int) -> Turn:  # noqa: ARG002 - one is never too many
        """Take one record that is ready."""
        lane, (part, record) = self._lanes.take()
        return part, [record], lane

    def follow(self, lanes: Iterable[Hashable | None]) -> Turn | None:
        """Take the next record of one of these lanes; the result has no lane.

        The caller releases the lane once, with the record for which it got it.
        """
        # 1. A call gathers a list (`take`) and holds the lane of key k with its first record.
        # 2. The next record has key k too. It waits until the lane is released, which happens when
        #    the list is handled: without `follow`, no list could have two records of one key.
        for lane in lanes:
            found = None if lane is None else self._lanes.follow(lane)
            if found is not None:
                return found[0], [found[1]], None
        return None

    def done(self, lane: Hashable | None) -> None:
        """Release a lane, whose next record becomes ready."""
        self._lanes.done(lane)

    def keep(self, wanted: Callable[[SlicePart], bool]) -> None:
        """Drop the records of partitions that are not wanted."""
        self._lanes.keep(lambda item: wanted(item[0]))

    def _lane(self, part: SlicePart, record: LogRecord) -> Hashable | None:
        match self._ordered:
            case "key":
                # None is no lane: records without a key are independent of each other.
                return record.key
            case "partition":
                return part.partition
            case "none":
                return None


HOLD_MS: Final = 10
"""The milliseconds after which a call lets other tasks of the event loop run."""
TURNS: Final = 5
"""The rounds of the event loop that it then waits: a request to a broker in this process takes
this many."""
YIELD_RECORDS: Final = 100
"""The records after which a call that awaits nothing lets others, such as heartbeats, run, however
fast it is."""


class Pace:
    """How many records one call gets before it lets others run.

    The batch doubles while it takes less than half of `HOLD_MS`, and shrinks if it takes longer
    than `HOLD_MS`. Code that gives records subtracts them from `left`.
    """

    __slots__ = ("_limit", "_looked_ms", "_since_ms", "_since_records", "left")

    def __init__(self) -> None:
        self.left = 1
        """The records that can still be given before the next call of `turns`."""
        self._limit = 1
        self._looked_ms = self._since_ms = self._since_records = 0

    def turns(self, now_ms: int) -> int:
        """Return how many rounds of the event loop to wait, and refill `left`.

        Call it when `left` is used up and all given records are handled.
        """
        # The batch doubles only below half of the limit: so one step can't take it past the limit.
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
        """Note that other tasks have run, so that the count starts anew."""
        self.left, self._looked_ms = self._limit, now_ms
        self._since_records, self._since_ms = 0, now_ms
