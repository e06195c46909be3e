"""NextRecords: the timestamps of the records that groups read next, from the logs of this broker.

The event loop asks for many positions at a time. What was found is remembered by position, so that
looking again reads nothing from disk; the rest is read in a thread, in small portions.

Rules of this module: a remembered record holds while its log is neither compacted nor truncated at
it (`PartitionLog.rewrites`); a log start behind it asks for another position. Memory is bounded by
`REMEMBERED_MAX`, least recently used first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.storage.log.record_search import FoundRecord, RecordSearch
from streamlog.errors import CorruptData

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from streamlog.broker.replication.partition import Partition
    from streamlog.broker.storage.disk.offload import Threads
    from streamlog.broker.storage.log.partition_log import PartitionLog

THREAD = "streamlog-lag"
REMEMBERED_MAX = 50_000
"""Positions whose next record is remembered."""
PORTION = 64
"""Searches per job of the thread, which releases the interpreter lock in each of them."""

Position = tuple[str, int, int]
"""Topic, partition number and offset."""


class _Remembered(NamedTuple):
    log: PartitionLog
    rewrites: int
    found: FoundRecord
    record: NextRecord | None
    """The next record; None if there was none before `found.searched_to`."""


class NextRecord(NamedTuple):
    """The next record at a position."""

    offset: int | None
    """The record's offset; None if there is no record."""
    timestamp_ms: int
    """The record's timestamp in milliseconds since 1970; -1 without a record, or without one."""


NO_RECORD = NextRecord(None, -1)


class Wanted(NamedTuple):
    """A position of which the next record is wanted, and the end of what readers see."""

    position: Position
    partition: Partition
    end_offset: int


class NextRecords:
    """Finds and remembers next records."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._thread: Executor | None = None
        self._remembered: OrderedDict[Position, _Remembered] = OrderedDict()

    def known(self, wanted: Wanted) -> NextRecord | None:
        """Return the next record as far as it is remembered."""
        held = self._held(wanted)
        if held is None or held.record is not None:
            return None if held is None else held.record
        # Without a record so far, more may have been appended since.
        return NO_RECORD if held.found.searched_to >= wanted.end_offset else None

    async def find(
        self, wanted: Sequence[Wanted], then: Callable[[Wanted, NextRecord], None]
    ) -> None:
        """Read logs, and call `then` for each position whose next record was found.

        Positions that could not be searched now are left out: the log is damaged there, or it was
        rewritten meanwhile. May be cancelled at any time; what was found is remembered.
        """
        waiting = list(reversed(wanted))
        while waiting:
            portion = [waiting.pop() for _ in range(min(PORTION, len(waiting)))]
            searches = [(each, search) for each in portion if (search := self._search(each))]
            if not searches:
                await asyncio.sleep(0)
                continue
            rewrites = [each.partition.log.rewrites for each, _ in searches]
            results = await self._run([search for _, search in searches])
            for (each, _), before, found in zip(searches, rewrites, results, strict=True):
                if found is None:
                    continue
                self._remember(each, before, found)
                following = self.known(each)
                if following is not None:
                    then(each, following)
                elif found.searched_to < each.end_offset:
                    # Nothing in this segment, or only markers so far: continue behind them.
                    waiting.append(each)

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _search(self, wanted: Wanted) -> RecordSearch | None:
        held = self._held(wanted)
        offset = wanted.position[2] if held is None else held.found.searched_to
        try:
            return wanted.partition.log.search(offset, wanted.end_offset)
        except CorruptData:
            return None

    async def _run(self, searches: list[RecordSearch]) -> list[FoundRecord | None]:
        if self._thread is None:
            self._thread = self._threads(THREAD)
        job = self._thread.submit(_run_all, searches)
        return await asyncio.wrap_future(job)

    def _held(self, wanted: Wanted) -> _Remembered | None:
        held = self._remembered.get(wanted.position)
        if held is None:
            return None
        log = wanted.partition.log
        if held.log is not log or held.rewrites != log.rewrites:
            del self._remembered[wanted.position]
            return None
        self._remembered.move_to_end(wanted.position)
        return held

    def _remember(self, wanted: Wanted, rewrites: int, found: FoundRecord) -> None:
        record = None if found.offset is None else NextRecord(found.offset, found.timestamp_ms)
        held = _Remembered(wanted.partition.log, rewrites, found, record)
        self._remembered[wanted.position] = held
        self._remembered.move_to_end(wanted.position)
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)


def _run_all(searches: Sequence[RecordSearch]) -> list[FoundRecord | None]:
    return [_run_one(search) for search in searches]


def _run_one(search: RecordSearch) -> FoundRecord | None:
    """Search; None if the file is gone, damaged or changed. Readers of the log report damage."""
    try:
        return search.run()
    except (CorruptData, OSError):
        return None
