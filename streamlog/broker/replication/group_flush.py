"""GroupFlush, DiskFlushes: sync the logs of a data directory in rounds, in a thread for each disk.

One round runs at a time. The next round covers everything that is appended meanwhile, with one
fdatasync per file for any number of requests. A request whose answer depends on the sync leaves a
callback (`then`).

Rules of this module: a round that failed is the last one, because it is unknown then what the disk
has. The whole directory fails: it accepts no more appends, and all callbacks get the error. A lack
of file descriptors, or of a thread, is no such failure: that round is repeated. With several
directories, each has its own rounds, and its failure ends only those.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from streamlog import repeated
from streamlog.broker.storage.disk.files import directory_error
from streamlog.broker.storage.disk.offload import (
    LoopThread,
    Result,
    Threads,
    begin_in,
    os_thread,
)
from streamlog.broker.storage.disk.sync_thread import SyncThread
from streamlog.broker.turn import Turn
from streamlog.errors import (
    ConnectionLost,
    LogDirectoryError,
    NoThread,
    StreamlogError,
    TooManyOpenFiles,
)
from streamlog.metrics.instruments import Histogram

if TYPE_CHECKING:
    from streamlog.broker.storage.log.log_writes import PendingSync
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.volumes import Volume

Callback = Callable[[StreamlogError | None], None]
"""A callback without an error once records are on disk, or with the reason why they may not be."""

ROUND_FILES_MAX = 128
"""The files of one round, each of which may need a descriptor; others wait for the next round."""
SHORT_RETRY_S = 0.1
"""The pause in seconds before a round is repeated that lacked descriptors or a thread."""
SHORT_LOGGED_S = 10.0
"""The least time in seconds between two log messages about what is missing."""

_log = repeated.logger(__name__)


class Flushed(Protocol):
    """Port: a partition whose log is synced."""

    def begin_sync(self, *, sealed_only: bool) -> PendingSync | None:
        """Begin a sync of what is in the log now; None if everything is on disk."""
        ...

    def on_synced(self, sync: PendingSync) -> None:
        """Note that a sync has succeeded."""
        ...


class FlushedDisk(Protocol):
    """Port: what a failed sync ends."""

    @property
    def failure(self) -> LogDirectoryError | None:
        """Why it accepts nothing more; None while it works."""
        ...

    def failure_of(self, error: OSError) -> LogDirectoryError:
        """Return what a disk error means."""
        ...

    def fail(self, failure: LogDirectoryError) -> None:
        """Accept nothing more."""
        ...


class _VolumeDisk:
    """One of several directories, as the port `FlushedDisk`."""

    def __init__(self, directory: LogDirectory, volume: Volume) -> None:
        self._directory = directory
        self._volume = volume

    @property
    def failure(self) -> LogDirectoryError | None:
        return self._volume.failure or self._directory.failure

    def failure_of(self, error: OSError) -> LogDirectoryError:
        return directory_error(error, self._volume.path)

    def fail(self, failure: LogDirectoryError) -> None:
        self._directory.fail_volume(self._volume, failure)


class _Round(msgspec.Struct, frozen=True):
    """The syncs of one round, and the callbacks that wait for it."""

    syncs: list[tuple[Flushed, PendingSync]]
    waiting: list[Callback]
    rest: dict[Flushed, bool]
    """Partitions that a further round has to sync before the callbacks are called."""
    took_s: list[float] = msgspec.field(default_factory=list)
    """How long the syncs of each log took."""

    def run(self) -> OSError | None:
        """Sync, in the worker thread; stop at the first error, and return it."""
        failure: OSError | None = None
        for _, sync in self.syncs:
            if failure is not None:
                sync.close()  # It holds descriptors.
                continue
            began_s = perf_counter()
            try:
                sync.run()
            except OSError as error:
                failure = error
            self.took_s.append(perf_counter() - began_s)
        return failure


class GroupFlush:
    """Syncs the logs of one data directory."""

    def __init__(
        self,
        directory: FlushedDisk,
        threads: Threads = os_thread,
        times: Histogram | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.times = Histogram() if times is None else times
        """How long each sync of a log took, in seconds."""
        self._directory = directory
        self._thread = threads("streamlog-sync")
        # A simulation, or a test, that has threads of its own means to see each sync in one.
        of_loop = isinstance(self._thread, LoopThread)
        self._one_file = SyncThread("streamlog-sync-one") if of_loop else None
        self._turn = Turn() if turn is None else turn
        self._due: dict[Flushed, bool] = {}
        self._short_logged_s: float | None = None
        self._later: list[tuple[int, int, Flushed]] = []
        self._numbers = itertools.count()
        self._waiting: list[Callback] = []
        self._scheduled = False
        self._is_shared = False
        """Whether the last round served several requests or partitions."""
        self._current: _Round | None = None
        self._failure: StreamlogError | None = None

    @property
    def is_ended(self) -> bool:
        """Whether the disk has failed, or the broker was stopped."""
        if self._failure is None:
            self._failure = self._directory.failure
        return self._failure is not None

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is on disk."""
        return not self._due and not self._waiting and self._current is None

    def of(self, _volume: Volume) -> GroupFlush:
        """Return the flush of a directory: this one."""
        return self

    def add(self, partition: Flushed, *, sealed_only: bool = False) -> None:
        """Sync what is in the partition's log now, with the next round.

        With `sealed_only`, sync the sealed segments only.
        """
        # A full sync that is due already includes the sealed segments.
        self._due[partition] = sealed_only and self._due.get(partition, True)
        if not self._scheduled:
            self._start_soon()

    def add_later(self, partition: Flushed, deadline_ms: int) -> None:
        """Sync the partition's log once `on_tick` is called with the deadline or later."""
        heapq.heappush(self._later, (deadline_ms, next(self._numbers), partition))

    def forget(self, partition: Flushed) -> None:
        """Sync the partition no more: its log is in another directory now, and on disk there."""
        self._due.pop(partition, None)
        self._later = [each for each in self._later if each[2] is not partition]
        heapq.heapify(self._later)
        if self._current is not None:
            self._current.rest.pop(partition, None)

    def on_tick(self, now_ms: int) -> None:
        """Add the partitions whose deadline has passed."""
        while self._later and self._later[0][0] <= now_ms:
            self.add(heapq.heappop(self._later)[2])

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline; None if there is none."""
        return self._later[0][0] if self._later else None

    def then(self, callback: Callback) -> None:
        """Call `callback` once everything that was added by now is on disk, or with an error.

        The event loop calls it later, never this method.
        """
        self._waiting.append(callback)
        if not self._scheduled:
            self._start_soon()

    def close(self) -> None:
        """Wait for the round that runs, and call all callbacks with an error."""
        if self._failure is None:
            self._failure = ConnectionLost("the broker was stopped")
        self._thread.shutdown(wait=True)
        if self._one_file is not None:
            self._one_file.close()
        waiting, self._waiting = self._waiting, []
        if self._current is not None:
            waiting = self._current.waiting + waiting
            self._current = None
        for callback in waiting:
            callback(self._failure)

    def _start_soon(self) -> None:
        """Start a round at the end of this turn, or in the next iteration of the loop."""
        # The end of a round that runs starts the next one (`_on_done`).
        if self._scheduled or self._current is not None:
            return
        self._scheduled = True
        # Where many producers write at once, a round that waits for the next iteration covers all
        # that have come in this one. A single producer's would wait for nothing, and an iteration
        # costs a system call and 10 to 20 us.
        if self._is_shared:
            asyncio.get_running_loop().call_soon(self._start)
        else:
            self._turn.later(self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self._current is not None:
            return  # The end of a round has begun one since this was scheduled.
        due, self._due = self._due, {}
        waiting, self._waiting = self._waiting, []
        self._begin(due, waiting)

    def _begin(self, due: dict[Flushed, bool], waiting: list[Callback]) -> None:
        # `_begin_syncs` takes out of `due` what it begins; the round keeps the rest.
        next_round = _Round(self._begin_syncs(due), waiting, due)
        if self._failure is not None or not (next_round.syncs or next_round.rest):
            _call(next_round.waiting, self._failure)
            return
        if not next_round.syncs:
            self._begin_later(next_round)
            return
        self._is_shared = len(waiting) > 1 or len(next_round.syncs) > 1
        try:
            if not self._begin_one_file(next_round):
                # Not `run_in_executor`: its future would take one more iteration of the event loop.
                begin_in(self._thread, next_round.run, self._on_done)
        except NoThread as error:
            for _, sync in next_round.syncs:
                sync.close()
            self._repeat(next_round, "a thread", error)
        else:
            self._current = next_round

    def _begin_one_file(self, begun: _Round) -> bool:
        """Begin a round that syncs one file, as most do; return False for any other."""
        if self._one_file is None or len(begun.syncs) > 1:
            return False
        sync = begun.syncs[0][1]
        # Names are synced after the file, and are rare.
        if sync.names is not None or len(sync.files) > 1:
            return False

        def on_synced(error: OSError | None, took_s: float) -> None:
            sync.close()
            begun.took_s.append(took_s)
            self._on_done(lambda: error)

        return self._one_file.begin(sync.files[0], on_synced)

    def _begin_syncs(self, due: dict[Flushed, bool]) -> list[tuple[Flushed, PendingSync]]:
        """Begin as many syncs as one round may contain; the other partitions stay in `due`."""
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
            self._log_short("file descriptors", error)
        except LogDirectoryError as error:
            for _, each in syncs:
                each.close()
            self._fail(error)
        return syncs

    def _repeat(self, short_round: _Round, what: str, error: StreamlogError) -> None:
        """Sync all logs of a round anew, later: it lacked something."""
        self._log_short(what, error)
        short_round.rest.update((partition, False) for partition, _ in short_round.syncs)
        self._begin_later(short_round)

    def _begin_later(self, next_round: _Round) -> None:
        """Begin later what is left of a round, with its callbacks in front."""
        self._scheduled = True
        self._due = next_round.rest | self._due
        self._waiting = next_round.waiting + self._waiting
        asyncio.get_running_loop().call_later(SHORT_RETRY_S, self._start)

    def _log_short(self, what: str, error: StreamlogError) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._short_logged_s is None or now_s - self._short_logged_s >= SHORT_LOGGED_S:
            self._short_logged_s = now_s
            _log.warning("a sync waits for %s: %s", what, error)

    def _on_done(self, result: Result[OSError | None]) -> None:
        finished, self._current = self._current, None
        if finished is None:
            return  # `close` has called the callbacks.
        # Here and not in the thread: an instrument has one writer.
        for each_s in finished.took_s:
            self.times.record(each_s)
        error = result()
        failure = None if error is None else self._directory.failure_of(error)
        if isinstance(failure, TooManyOpenFiles):
            # Every file is either synced or untouched, since only the directory could not be
            # opened. So a repetition of the whole round is safe.
            self._repeat(finished, "file descriptors", failure)
            return
        if failure is not None:
            self._fail(failure)
        with self._turn:
            if failure is None and not self._has_ended(finished):
                return
            # Before the answers: the disk need not wait until they are written.
            if self._due or self._waiting:
                self._start()
            _call(finished.waiting, self._failure)

    def _has_ended(self, finished: _Round) -> bool:
        """Note the syncs of a round; return whether nothing is left that its callbacks wait for."""
        for partition, sync in finished.syncs:
            partition.on_synced(sync)
        # The callbacks wait for all that was due when they were added, not for one round.
        if not finished.rest:
            return True
        self._begin(finished.rest, finished.waiting)
        return False

    def _fail(self, failure: LogDirectoryError) -> None:
        self._failure = failure
        _log.critical("a sync failed, so the data directory accepts no more appends: %s", failure)
        self._directory.fail(failure)


def _call(waiting: list[Callback], failure: StreamlogError | None) -> None:
    for callback in waiting:
        callback(failure)


class _VolumeFlush(GroupFlush):
    """Syncs the logs of one of several directories, which an error outside of a sync may end."""

    def _begin(self, due: dict[Flushed, bool], waiting: list[Callback]) -> None:
        super()._begin({} if self.is_ended else due, waiting)


class DiskFlushes:
    """The flushes of several directories, a thread for each."""

    def __init__(
        self, directory: LogDirectory, threads: Threads = os_thread, turn: Turn | None = None
    ) -> None:
        self.times = Histogram()
        """How long each sync of a log took, in seconds, on all disks."""
        self._flushes = {
            volume: _VolumeFlush(_VolumeDisk(directory, volume), threads, self.times, turn)
            for volume in directory.volumes
        }

    def of(self, volume: Volume) -> GroupFlush:
        """Return the flush of a directory."""
        return self._flushes[volume]

    def on_tick(self, now_ms: int) -> None:
        """Add the partitions whose deadline has passed."""
        for each in self._flushes.values():
            each.on_tick(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline; None if there is none."""
        due = [each.next_deadline_ms() for each in self._flushes.values()]
        return min((each for each in due if each is not None), default=None)

    def then(self, callback: Callback) -> None:
        """Call `callback` once everything that was added by now is on its disk, or with an error.

        An append to a disk that fails before its sync is due there, so its requests get the error.
        After that, the disk accepts no append, and no request depends on it.
        """
        busy = [each for each in self._flushes.values() if not each.is_idle]
        working = [each for each in self._flushes.values() if not each.is_ended]
        waited = busy or working[:1] or [*self._flushes.values()][:1]
        if len(waited) == 1:
            waited[0].then(callback)
            return
        failures: list[StreamlogError | None] = []

        def on_flushed(failure: StreamlogError | None) -> None:
            failures.append(failure)
            if len(failures) == len(waited):
                callback(next((each for each in failures if each is not None), None))

        for each in waited:
            each.then(on_flushed)

    def close(self) -> None:
        """Wait for the rounds that run, and call all callbacks with an error."""
        for each in self._flushes.values():
            each.close()


AnyFlush: TypeAlias = GroupFlush | DiskFlushes
"""The flush of one directory, or of several."""


def flush_of(directory: LogDirectory, threads: Threads, turn: Turn) -> AnyFlush:
    """Return the flush of a broker's directories, whose syncs end in turns of `turn`."""
    if len(directory.volumes) == 1:
        return GroupFlush(directory, threads, turn=turn)
    return DiskFlushes(directory, threads, turn)
