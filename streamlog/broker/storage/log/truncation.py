"""Truncation, sync and system errors: what happens to a log's files besides appends.

Truncation (KIP-101) cuts off the end of a log that differs from the leader's, in two steps: `begin`
says that less of the log is on disk, the caller makes that checkpoint durable, `cut` removes the
rest. Cut first, the log would seem damaged after a crash. Segments go from the newest on, so a
crash leaves a prefix of the log. A sync that began before a cut says nothing about later appends,
so each cut begins a *generation*.

A sync runs in three steps: the log lists the files (`PartitionLog.begin_sync`), any thread syncs
them (`PendingSync.run`), and the log notes the result (`PartitionLog.end_sync`). Meanwhile the log
may grow, roll or be deleted. Rule: a failed sync is never repeated. The kernel may have dropped
the pages that it could not write, and a second sync would succeed and lie (fsyncgate).

`LogDisk` says what a system error means for one log: a full disk refuses a write, and the log
accepts writes when there is space again; a vanished file or a failed sync ends the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from streamlog.broker.storage.disk.files import directory_error
from streamlog.broker.storage.log.segment import LOG_SUFFIX
from streamlog.errors import (
    CorruptData,
    LogDirectoryError,
    LogDirectoryFailed,
    LogDirectoryFull,
    LogDirectoryLost,
    OffsetOutOfRange,
    TooManyOpenFiles,
)

if TYPE_CHECKING:
    from streamlog.broker.storage.disk.files import File, Files
    from streamlog.broker.storage.log.leader_epochs import LeaderEpochHistory
    from streamlog.broker.storage.log.producer_snapshots import LogProducers
    from streamlog.broker.storage.log.recovery import LostOffsets
    from streamlog.broker.storage.log.segment import Segment
    from streamlog.broker.storage.log.segments import Segments


LINK_CHECK_MS = 100
"""A log whose file somebody has deleted takes what comes until it is noticed, this late at most."""


class LogDisk:
    """The disk of the log `name` in `directory`; `tell` is told of damaged places."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        name: str,
        read_only: bool,
        tell: Callable[[str], None],
    ) -> None:
        self.failure: LogDirectoryError | None = None
        """Why the log takes nothing more."""
        self._files = files
        self._directory = directory
        self._name = name
        self._read_only = read_only
        self._tell = tell
        self._link_check_ms = 0

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of the system come out as what they mean for the data directory."""
        try:
            yield
        except CorruptData as error:
            self._tell(str(error))
            raise
        except OSError as error:
            if self._read_only and self._retired_meanwhile(error):
                raise OffsetOutOfRange(
                    f"{self._name}: {error.filename or 'a segment'} was deleted while it was read"
                ) from error
            raise self.noted(error) from error

    def failed(self, error: OSError) -> LogDirectoryError:
        """It is not to be trusted any more; a lack of descriptors says nothing about it."""
        failure = directory_error(error, self._directory)
        if not isinstance(failure, TooManyOpenFiles):
            self.failure = failure
        return failure

    def noted(self, error: OSError) -> LogDirectoryError:
        """It has refused; only what has vanished stays so."""
        failure = directory_error(error, self._directory)
        if isinstance(failure, LogDirectoryFull):
            self._files.reserve.is_short = True
        if not isinstance(failure, LogDirectoryFailed):
            self.failure = failure
        return failure

    def check_linked(self, segment: Segment, now_ms: int) -> None:
        """Look now and then whether the file that is written to is still there.

        Raises:
            LogDirectoryLost: somebody has deleted it.
        """
        if now_ms < self._link_check_ms:
            return
        if not segment.linked():
            self.failure = LogDirectoryLost(
                f"{segment.path} has vanished while it was in use: the log of {self._name}"
                " stops here; put the data directory back in its place, or start with a new one"
            )
            raise self.failure
        self._link_check_ms = now_ms + LINK_CHECK_MS

    def _retired_meanwhile(self, error: OSError) -> bool:
        """Whether the broker that owns this log has removed a segment since it was opened."""
        if not isinstance(error, FileNotFoundError):
            return False
        try:
            return any(name.endswith(LOG_SUFFIX) for name in self._files.list(self._directory))
        except FileNotFoundError:
            return False


class SyncedEnd(NamedTuple):
    """Up to where a log is known to be on disk."""

    offset: int
    """The first offset that may not be."""
    base_offset: int
    """Of the segment in which that one is, or will be."""
    position: int
    """Bytes of that segment that are on disk."""


@dataclass(frozen=True, slots=True)
class PendingSync:
    """What a log had when a sync of it was begun."""

    end: SyncedEnd
    """Up to where the log is on disk once this has run."""
    sealed: tuple[Segment, ...]
    files: tuple[File, ...]
    names: Callable[[], None] | None = None
    """Brings the names of segments that were begun to disk, if any were."""
    generation: int = 0
    """Which it was of the log, that is, how often it had been cut."""

    def run(self) -> None:
        """Bring the bytes to disk; callable from any thread, once.

        Raises:
            OSError: the disk refused. What it has now is unknown.
        """
        try:
            for file in self.files:
                file.sync()
            if self.names is not None:
                with suppress(FileNotFoundError):  # The topic has been deleted meanwhile.
                    self.names()
        finally:
            self.close()

    def close(self) -> None:
        """Give the files back."""
        for file in self.files:
            file.close()


class TruncatedLog(Protocol):
    """What is asked of the log that is cut, a `PartitionLog`."""

    synced: SyncedEnd
    epochs: LeaderEpochHistory
    lost: LostOffsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        ...

    def check_open(self) -> None:
        """Raises LogDirectoryError if it takes nothing."""
        ...

    def set_start(self, offset: int) -> None:
        """It begins there from now on."""
        ...


class Truncation:
    """Cuts one log. After an error of the disk the log takes nothing more."""

    def __init__(
        self, log: TruncatedLog, segments: Segments, producers: LogProducers, disk: LogDisk
    ) -> None:
        self.generation = 0
        """How often the log was cut since it was opened."""
        self._log = log
        self._segments = segments
        self._producers = producers
        self._disk = disk

    def begin(self, offset: int) -> None:
        """From `offset` on nothing is on disk any more, as far as checkpoints are concerned.

        Raises:
            LogDirectoryError: the log has failed.
            CorruptData: the place is damaged.
        """
        log = self._log
        log.check_open()
        self.generation += 1
        with self._disk.errors():
            segment = self._segments.segment_of(min(offset, log.log_end_offset))
            position = segment.size_bytes
            if offset < segment.next_offset:
                position = segment.position_of(offset)
        log.synced = min(log.synced, SyncedEnd(offset, segment.base_offset, position))

    def cut(self, offset: int) -> None:
        """Take everything from the batch with `offset` in it on away, durably.

        Raises:
            LogDirectoryError: the disk refused; the log takes nothing more.
        """
        log = self._log
        try:
            self._segments.truncate(offset)
            log.epochs.truncate(log.log_end_offset)
            self._producers.restore()
            log.lost.keep_within(log.log_start_offset, log.log_end_offset)
        except OSError as error:
            raise self._disk.failed(error) from error
        active = self._segments.active
        log.synced = SyncedEnd(active.next_offset, active.base_offset, active.size_bytes)

    def begin_restart(self, offset: int) -> None:
        """Delete everything: the log will go on at `offset`, beyond its end or before it.

        It is for good once the checkpoint is durable; then comes `restart`. A crash between the
        two is one in which everything up to the log's start was lost, and `open` goes on there.
        Raises what `begin` raises.
        """
        log = self._log
        log.check_open()
        self.generation += 1
        log.synced = SyncedEnd(min(log.synced.offset, offset), offset, 0)
        log.set_start(offset)

    def restart(self, offset: int) -> None:
        """Begin again at `offset`. Raises what `cut` raises."""
        log = self._log
        try:
            self._segments.begin_again(offset)
            log.epochs.truncate(0)
            self._producers.restore(forget=True)
            log.lost.keep_within(offset, offset)
        except OSError as error:
            raise self._disk.failed(error) from error
        log.synced = SyncedEnd(offset, offset, 0)
