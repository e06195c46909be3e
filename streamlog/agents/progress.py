"""Progress: which records of a partition an agent has handled, also out of order.

`position` is what a commit stores: everything before it is handled. `ranges` tell what is
handled behind it, so that it need not be repeated. Rule of the file: pure; offsets arrive in
ascending order, those that hold no record (control batches, what compaction removed) never
arrive, and nothing waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from streamlog.records.batch import LogRecord

Range = tuple[int, int]
"""Offsets from the first on, up to but not including the second."""


class AgentProgress:
    """One partition, as one agent sees it."""

    def __init__(self, start: int, handled: Iterable[Range] = ()) -> None:
        """Read from `start` on; of what follows, the ranges `handled` need not be repeated."""
        self._received = start
        self._handled_before = merged(handled)
        self._open: deque[int] = deque()
        """Arrived, by offset; the first one is not done."""
        self._done: set[int] = set()
        """Those of them that are done."""

    @property
    def received(self) -> int:
        """The offset behind the last record that has arrived."""
        return self._received

    @property
    def position(self) -> int:
        """Everything before this offset is handled."""
        return self._open[0] if self._open else self._received

    @property
    def ranges(self) -> list[Range]:
        """What is handled behind the position, ascending, with gaps between them."""
        position = self.position
        self._handled_before = [each for each in self._handled_before if each[1] > position]
        runs: list[Range] = []
        first: int | None = None
        last = position
        for offset in self._open if self._done else ():
            if offset in self._done:
                first, last = offset if first is None else first, offset
            elif first is not None:
                runs.append((first, last + 1))
                first = None
        if first is not None:
            runs.append((first, last + 1))
        return merged([*self._handled_before, *runs])

    def fresh(self, records: Sequence[LogRecord]) -> Sequence[LogRecord]:
        """Those of the records that are to be handled; the others came or were handled before."""
        if records and records[0].offset < self._received:
            records = [each for each in records if each.offset >= self._received]
        if not records:
            return records
        self._received = records[-1].offset + 1
        if self._handled_before:
            records = [each for each in records if not self._was_handled(each.offset)]
        self._open.extend([each.offset for each in records])
        return records

    def done(self, records: Sequence[LogRecord]) -> None:
        """These are handled. All of them have arrived, in this order."""
        waiting, done = self._open, self._done
        for record in records:
            offset = record.offset
            if waiting[0] == offset:
                waiting.popleft()
            else:
                done.add(offset)
        while waiting and waiting[0] in done:
            done.remove(waiting.popleft())

    def _was_handled(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._handled_before)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in as few ranges as possible, ascending."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        elif start < end:
            result.append((start, end))
    return result
