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
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from streamlog import repeated
from streamlog.broker.storage.disk.offload import Threads, os_thread
from streamlog.errors import ConnectionLost, LogDirectoryError, StreamlogError, TooManyOpenFiles

if TYPE_CHECKING:
    from streamlog.broker.storage.log.truncation import PendingSync
    from streamlog.broker.storage.log_directory import LogDirectory

Callback = Callable[[StreamlogError | None], None]
"""What is called when the bytes are on disk, or with the reason why they may not be."""

ROUND_FILES_MAX = 128
"""Files of one round, each of which may take a descriptor; the others follow in the next one."""
SHORT_RETRY_S = 0.1
"""After how long a round is tried again for which there were no descriptors."""
SHORT_LOGGED_S = 10.0
"""Between two lines in the log that say so."""

_log = repeated.logger(__name__)


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
    rest: dict[Flushed, bool]
    """What has to be on disk, too, before those who wait may be told."""

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
        self._told_short_s: float | None = None
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
        due, self._due = self._due, {}
        waiting, self._waiting = self._waiting, []
        self._begin(due, waiting)

    def _begin(self, due: dict[Flushed, bool], waiting: list[Callback]) -> None:
        begun = _Round(self._begin_syncs(due), waiting, due)
        if self._failure is not None or not (begun.syncs or begun.rest):
            _tell(begun.waiting, self._failure)
            return
        if not begun.syncs:
            self._begin_later(begun)
            return
        self._running = begun
        done = asyncio.get_running_loop().run_in_executor(self._thread, begun.run)
        done.add_done_callback(self._on_done)

    def _begin_syncs(self, due: dict[Flushed, bool]) -> list[tuple[Flushed, PendingSync]]:
        """Take up as many of those that are due as one round may; the others stay in `due`."""
        syncs: list[tuple[Flushed, PendingSync]] = []
        files = 0
        if self._failure is not None:
            return syncs
        try:
            while due and files < ROUND_FILES_MAX:
                partition = next(iter(due))
                sync = partition.begin_sync(sealed_only=due[partition])
                del due[partition]
                if sync is not None:
                    files += len(sync.files)
                    syncs.append((partition, sync))
        except TooManyOpenFiles as error:
            self._tell_short(error)
        except LogDirectoryError as error:
            for _, begun in syncs:
                begun.close()
            self._fail(error)
        return syncs

    def _begin_later(self, begun: _Round) -> None:
        """Nothing has failed: bring the round to disk when there are descriptors again."""
        self._scheduled = True
        self._due = begun.rest | self._due
        self._waiting = begun.waiting + self._waiting
        asyncio.get_running_loop().call_later(SHORT_RETRY_S, self._start)

    def _tell_short(self, error: TooManyOpenFiles) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._told_short_s is None or now_s - self._told_short_s >= SHORT_LOGGED_S:
            self._told_short_s = now_s
            _log.warning("a sync waits for file descriptors: %s", error)

    def _on_done(self, done: asyncio.Future[OSError | None]) -> None:
        finished, self._running = self._running, None
        if finished is None or done.cancelled():
            return  # closed meanwhile
        error = done.result()
        failure = None if error is None else self._directory.failure_of(error)
        if isinstance(failure, TooManyOpenFiles):
            # The files are synced, or were not touched: only opening the directory was refused.
            self._tell_short(failure)
            finished.rest.update((partition, False) for partition, _ in finished.syncs)
            self._begin_later(finished)
            return
        if failure is not None:
            self._fail(failure)
        else:
            for partition, sync in finished.syncs:
                partition.on_synced(sync)
            if finished.rest:
                self._begin(finished.rest, finished.waiting)
                return
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
