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
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

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
    """A position whose next record is wanted, and the end of what readers see."""

    position: Position
    partition: Partition
    end_offset: int


class _Begun(NamedTuple):
    """A search that was begun, and `PartitionLog.rewrites` at that moment."""

    wanted: Wanted
    rewrites: int
    search: RecordSearch


_Ended: TypeAlias = tuple[_Begun, FoundRecord | None]


class NextRecords:
    """Finds and remembers next records."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._thread: Executor | None = None
        self._closed = False
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
        while waiting and not self._closed:
            portion = [waiting.pop() for _ in range(min(PORTION, len(waiting)))]
            searches = [begun for each in portion if (begun := self._begin(each)) is not None]
            if not searches:
                await asyncio.sleep(0)
                continue
            job = self._start(searches)
            try:
                results = await asyncio.shield(job)
            except asyncio.CancelledError:
                # A slow disk may need longer than all callers wait: what it finds still counts.
                job.add_done_callback(self._keep)
                raise
            for each, held in self._remember(results):
                following = self.known(each)
                if following is not None:
                    then(each, following)
                elif held.found.searched_to < each.end_offset:
                    # Nothing in this segment, or only markers so far: continue behind them.
                    waiting.append(each)

    def close(self) -> None:
        """End the thread; `find` finds nothing more."""
        self._closed = True
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _begin(self, wanted: Wanted) -> _Begun | None:
        """Return the search for a position, from where an earlier one ended."""
        held, log = self._held(wanted), wanted.partition.log
        offset = wanted.position[2] if held is None else held.found.searched_to
        try:
            return _Begun(wanted, log.rewrites, log.search(offset, wanted.end_offset))
        except CorruptData:
            return None

    def _start(self, searches: list[_Begun]) -> asyncio.Future[list[_Ended]]:
        if self._thread is None:
            self._thread = self._threads(THREAD)
        return asyncio.wrap_future(self._thread.submit(_run_all, searches))

    def _keep(self, job: asyncio.Future[list[_Ended]]) -> None:
        """Remember what a job has found that nothing waits for any more."""
        if not job.cancelled() and job.exception() is None:
            self._remember(job.result())

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

    def _remember(self, results: Sequence[_Ended]) -> list[tuple[Wanted, _Remembered]]:
        """Remember results; return them without the searches that failed."""
        kept: list[tuple[Wanted, _Remembered]] = []
        for (wanted, rewrites, _), found in results:
            if found is None:
                continue
            record = None if found.offset is None else NextRecord(found.offset, found.timestamp_ms)
            held = _Remembered(wanted.partition.log, rewrites, found, record)
            self._remembered[wanted.position] = held
            self._remembered.move_to_end(wanted.position)
            kept.append((wanted, held))
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return kept


def _run_all(searches: Sequence[_Begun]) -> list[_Ended]:
    return [(begun, _run_one(begun.search)) for begun in searches]


def _run_one(search: RecordSearch) -> FoundRecord | None:
    """Search; None if the file is gone, damaged or changed. Readers of the log report damage."""
    try:
        return search.run()
    except (CorruptData, OSError):
        return None
