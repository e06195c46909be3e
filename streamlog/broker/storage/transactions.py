"""Transactions: which are open in a log, and up to where it is stable (after Kafka's LogSegment).

A transaction takes its place in a partition with the first batch that a producer writes in it and
ends with a marker, which a coordinator writes. What lies before the first one that is still open
is *stable*: nobody can change any more whether it counts. A marker that a power cut could take
back again decides nothing yet, so the transaction it ends holds the stable offset back until it
is committed.
Rule of the file: fed batch by batch in the order of the log, live, on opening and in compaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from streamlog.records.aborted import AbortedRange
from streamlog.records.batch import RecordBatch
from streamlog.records.control import ABORT, MARKERS, marker_of


class Decided(NamedTuple):
    """A transaction that has ended, as it lies in one partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker."""
    last_stable_offset: int
    """Behind the marker no transaction that begins before this offset was open."""
    aborted: bool

    @property
    def range(self) -> AbortedRange:
        """What readers of committed records skip of it if it was aborted."""
        return AbortedRange(self.producer_id, self.first_offset, self.last_offset)


class Transactions:
    """The transactions of one partition."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # by producer id, in order of the first offset
        self._unsettled: deque[Decided] = deque()

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._open

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Producer id and first offset of those that are open, the earliest first."""
        return iter(self._open.items())

    @property
    def first_open_offset(self) -> int | None:
        """Where the earliest open one begins; None if all are decided."""
        return next(iter(self._open.values()), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the earliest one begins that is not decided for good; None if all are."""
        unsettled = [decided.first_offset for decided in self._unsettled]
        return min([*unsettled, *list(self._open.values())[:1]], default=None)

    def first_offset(self, producer_id: int) -> int | None:
        """Where the open transaction of a producer begins; None if it has none."""
        return self._open.get(producer_id)

    def take(self, batch: RecordBatch, base_offset: int) -> Decided | None:
        """The next batch of the log, at `base_offset`; returns the transaction that it has ended.

        Raises:
            CorruptData: it is a malformed marker.
        """
        if batch.is_control:
            marker = marker_of(batch)
            if marker is None or marker.kind not in MARKERS:
                return None
            return self.end(batch.producer_id, base_offset, aborted=marker.kind == ABORT)
        if batch.is_transactional:
            self.begin(batch.producer_id, base_offset)
        return None

    def begin(self, producer_id: int, offset: int) -> None:
        """A batch at `offset` belongs to the producer's transaction, and may be its first."""
        self._open.setdefault(producer_id, offset)

    def end(self, producer_id: int, offset: int, *, aborted: bool) -> Decided | None:
        """A marker stands at `offset`; None if there was nothing to decide."""
        first = self._open.pop(producer_id, None)
        if first is None:
            return None
        stable = next(iter(self._open.values()), offset + 1)
        return Decided(producer_id, first, offset, stable, aborted)

    def hold(self, decided: Decided) -> None:
        """Its marker is in the log, and could still be lost: it does not count before `settle`."""
        self._unsettled.append(decided)

    def settle(self, offset: int) -> None:
        """Everything before `offset` is committed, markers too."""
        while self._unsettled and self._unsettled[0].last_offset < offset:
            self._unsettled.popleft()
