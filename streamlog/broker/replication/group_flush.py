"""GroupFlush: brings logs to disk in rounds, beside the loop.

One round runs at a time, in a worker thread. Everything that is appended meanwhile waits for the
next one, which then covers all of it: one fdatasync per file, however many requests have come.
Whoever must not be answered before its bytes are on disk leaves a callback (`then`).
Rule of the file: a round that failed is the last one. What the disk has is unknown then, so the
whole directory is failed: it takes nothing more, those who wait are told, and so is whoever reads
the process's log.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from streamlog.broker.storage.aside import Threads, os_thread
from streamlog.errors import ConnectionLost, LogDirectoryError, StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.syncing import PendingSync

Callback = Callable[[StreamlogError | None], None]
"""What is called when the bytes are on disk, or with the reason why they may not be."""

_log = logging.getLogger(__name__)


class Flushed(Protocol):
    """What is brought to disk: a partition."""

    def begin_sync(self, *, sealed_only: bool) -> PendingSync | None:
        """Take up a sync of what there is by now; None if there is nothing to do."""
        ...

    def on_synced(self, sync: PendingSync) -> None:
        """It has succeeded."""
        ...


@dataclass(frozen=True, slots=True)
class _Round:
    """What one round brings to disk, and who waits for that."""

    syncs: list[tuple[Flushed, PendingSync]]
    waiting: list[Callback]

    def run(self) -> OSError | None:
        """In the worker thread: everything, or up to the first error, which is returned."""
        failure: OSError | None = None
        for _, sync in self.syncs:
            if failure is not None:
                sync.close()
                continue
            try:
                sync.run()
            except OSError as error:
                failure = error
        return failure


class GroupFlush:
    """Syncs the logs of one data directory."""

    def __init__(self, directory: LogDirectory, threads: Threads = os_thread) -> None:
        self._directory = directory
        self._thread = threads("streamlog-sync")
        self._due: dict[Flushed, bool] = {}
        self._later: list[tuple[int, int, Flushed]] = []
        self._numbers = itertools.count()
        self._waiting: list[Callback] = []
        self._scheduled = False
        self._running: _Round | None = None
        self._failure: StreamlogError | None = None

    def add(self, partition: Flushed, *, sealed_only: bool = False) -> None:
        """Bring what the partition has by now to disk, with the next round."""
        self._due[partition] = sealed_only and self._due.get(partition, True)
        self._start_soon()

    def add_later(self, partition: Flushed, deadline_ms: int) -> None:
        """The same, but not before `on_tick` comes with that time."""
        heapq.heappush(self._later, (deadline_ms, next(self._numbers), partition))

    def on_tick(self, now_ms: int) -> None:
        """Time has passed: add what is due."""
        while self._later and self._later[0][0] <= now_ms:
            self.add(heapq.heappop(self._later)[2])

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do at the earliest; None for never."""
        return self._later[0][0] if self._later else None

    def then(self, callback: Callback) -> None:
        """Call back when everything that was added by now is on disk, or has failed to get there.

        It is called by the loop, never from here.
        """
        self._waiting.append(callback)
        self._start_soon()

    def close(self) -> None:
        """Wait for the round that runs, and tell those who wait that there will be no other."""
        if self._failure is None:
            self._failure = ConnectionLost("the broker was stopped")
        self._thread.shutdown(wait=True)
        waiting, self._waiting = self._waiting, []
        if self._running is not None:
            waiting = self._running.waiting + waiting
            self._running = None
        for callback in waiting:
            callback(self._failure)

    def _start_soon(self) -> None:
        """Not now: what else has come with the same turn of the loop goes into the same round."""
        if not self._scheduled and self._running is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        begun = _Round(self._begin_syncs(), self._waiting)
        self._waiting = []
        if self._failure is not None or not begun.syncs:
            _tell(begun.waiting, self._failure)
            return
        self._running = begun
        done = asyncio.get_running_loop().run_in_executor(self._thread, begun.run)
        done.add_done_callback(self._on_done)

    def _begin_syncs(self) -> list[tuple[Flushed, PendingSync]]:
        due, self._due = self._due, {}
        if self._failure is not None:
            return []
        syncs: list[tuple[Flushed, PendingSync]] = []
        try:
            for partition, sealed_only in due.items():
                sync = partition.begin_sync(sealed_only=sealed_only)
                if sync is not None:
                    syncs.append((partition, sync))
        except LogDirectoryError as error:
            for _, begun in syncs:
                begun.close()
            self._fail(error)
        return syncs

    def _on_done(self, done: asyncio.Future[OSError | None]) -> None:
        finished, self._running = self._running, None
        if finished is None or done.cancelled():
            return  # closed meanwhile
        error = done.result()
        if error is not None:
            self._fail(self._directory.failure_of(error))
        else:
            for partition, sync in finished.syncs:
                partition.on_synced(sync)
        _tell(finished.waiting, self._failure)
        if self._due or self._waiting:
            self._start_soon()

    def _fail(self, failure: LogDirectoryError) -> None:
        self._failure = failure
        _log.critical("a sync failed, nothing more is taken: %s", failure)
        self._directory.fail(failure)


def _tell(waiting: list[Callback], failure: StreamlogError | None) -> None:
    for callback in waiting:
        callback(failure)
