"""Truncation, PendingSync, LogDisk: cuts and syncs of a log, and what system errors mean for it.

Truncation (KIP-101) cuts off the end of a log that differs from the leader's, in steps: `begin`
lowers the synced end, the caller makes that checkpoint durable, and `cut` removes the rest. In the
reverse order, the log would look damaged after a crash. Segments are removed from the newest on, so
a crash leaves a prefix of the log. A sync that began before a cut says nothing about later appends,
so each cut begins a *generation*.

A sync runs in three steps: the log lists the files (`PartitionLog.begin_sync`), any thread syncs
them (`PendingSync.run`), and the log notes the result (`PartitionLog.end_sync`). Meanwhile the log
may grow, roll or be deleted. Rule: a failed sync is never repeated. The kernel may have dropped
the pages that it could not write, and a second sync would succeed and lie (fsyncgate).

`LogDisk` decides what a system error means for one log: a full disk refuses a write, and the log
accepts writes when there is space again; a vanished file or a failed sync ends the log.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from streamlog.broker.storage.disk.files import directory_error
from streamlog.broker.storage.log.segment import LOG_SUFFIX
from streamlog.errors import (
    CorruptData,
    LogDirectoryError,
    LogDirectoryFailed,
    LogDirectoryFull,
    LogDirectoryLost,
    OffsetOutOfRange,
    StreamlogError,
    TooManyOpenFiles,
)

if TYPE_CHECKING:
    from types import TracebackType

    from streamlog.broker.storage.disk.files import File, Files
    from streamlog.broker.storage.log.leader_epochs import LeaderEpochHistory
    from streamlog.broker.storage.log.producer_snapshots import LogProducers
    from streamlog.broker.storage.log.recovery import LostOffsets
    from streamlog.broker.storage.log.segment import Segment
    from streamlog.broker.storage.log.segments import Segments


LINK_CHECK_MS = 100
"""How often the log checks that its file still has a name: appends to a deleted file succeed until
then."""


class LogDisk:
    """The disk of the log `name` in `directory`; `log_damage` receives messages about damage."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        name: str,
        read_only: bool,
        log_damage: Callable[[str], None],
    ) -> None:
        self.failure: LogDirectoryError | None = None
        """Why the log accepts nothing more; None while it works."""
        self.on_failure: Callable[[LogDirectoryError], None] | None = None
        """Called when the disk refuses for another reason than lack of space or descriptors."""
        self._files = files
        self._directory = directory
        self._name = name
        self._read_only = read_only
        self.log_damage = log_damage
        self._link_check_ms = 0
        self.errors = DiskErrors(self)
        """Raises the system errors of its block as this log's."""

    def fail(self, error: OSError) -> LogDirectoryError:
        """Return the error, and end the log unless only file descriptors ran out."""
        failure = directory_error(error, self._directory)
        if not isinstance(failure, TooManyOpenFiles):
            self.failure = failure
        self._tell(failure)
        return failure

    def note_error(self, error: OSError) -> LogDirectoryError:
        """Return the error; end the log only if its directory has vanished."""
        failure = directory_error(error, self._directory)
        if isinstance(failure, LogDirectoryFull):
            self._files.reserve.is_short = True  # The reserve file's space is used now.
        if not isinstance(failure, LogDirectoryFailed):
            self.failure = failure
        self._tell(failure)
        return failure

    def _tell(self, failure: LogDirectoryError) -> None:
        is_broken = isinstance(failure, LogDirectoryFailed) and not isinstance(
            failure, LogDirectoryFull
        )
        if is_broken and self.on_failure is not None:
            self.on_failure(failure)

    def check_linked(self, segment: Segment, now_ms: int) -> None:
        """Check, every `LINK_CHECK_MS`, that the active segment's file still exists.

        Raises:
            LogDirectoryLost: its file was deleted.
        """
        if now_ms < self._link_check_ms:
            return
        if not segment.is_linked():
            self.failure = LogDirectoryLost(
                f"{segment.path} has vanished while it was in use: the log of {self._name}"
                " stops here; restore the data directory, or start with a new one"
            )
            raise self.failure
        self._link_check_ms = now_ms + LINK_CHECK_MS

    def _is_retired(self, error: OSError) -> bool:
        """Whether the broker that owns this log has removed a segment since it was opened."""
        if not isinstance(error, FileNotFoundError):
            return False
        try:
            return any(name.endswith(LOG_SUFFIX) for name in self._files.list(self._directory))
        except FileNotFoundError:
            return False

    def as_own_error(self, error: OSError) -> StreamlogError:
        """Return the error to raise for a system error: of the data directory, or of the reader."""
        if self._read_only and self._is_retired(error):
            # A reader of the broker's files has lost a race with retention: the offset is gone,
            # and the disk is fine.
            return OffsetOutOfRange(
                f"{self._name}: {error.filename or 'a segment'} was deleted while it was read"
            )
        return self.note_error(error)


class DiskErrors:
    """Raises system errors in its block as errors of the data directory.

    Each read and each append enters such a block. One object serves them all, since it keeps
    nothing of a block; a generator for each would cost a small Fetch 5 % more.
    """

    __slots__ = ("_disk",)

    def __init__(self, disk: LogDisk) -> None:
        self._disk = disk

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, CorruptData):
            self._disk.log_damage(str(error))
        elif isinstance(error, OSError):
            raise self._disk.as_own_error(error) from error


class SyncedEnd(NamedTuple):
    """The end of the part of a log that is known to be on disk."""

    offset: int
    """The first offset that may not be on disk."""
    base_offset: int
    """The base offset of the segment that contains, or will contain, `offset`."""
    position: int
    """Bytes of that segment that are on disk."""


class PendingSync(msgspec.Struct, frozen=True):
    """A prepared sync of what a log contained when it was prepared."""

    end: SyncedEnd
    """The synced end once this has run."""
    sealed: tuple[Segment, ...]
    files: tuple[File, ...]
    names: Callable[[], None] | None = None
    """Syncs the directory entries of new segments, if there are any."""
    generation: int = 0
    """The generation of the log, which is the number of its truncations."""

    def run(self) -> None:
        """Sync the files; callable from any thread, once.

        Raises:
            OSError: the disk refused, and the contents of the disk are unknown.
        """
        try:
            for file in self.files:
                file.sync()
            if self.names is not None:
                with suppress(FileNotFoundError):  # The topic was deleted meanwhile.
                    self.names()
        finally:
            self.close()

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()


class TruncatedLog(Protocol):
    """The part of `PartitionLog` that truncation needs."""

    synced: SyncedEnd
    epochs: LeaderEpochHistory
    lost: LostOffsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        ...

    def check_open(self) -> None:
        """Raise LogDirectoryError if the log accepts nothing."""
        ...

    def set_start(self, offset: int) -> None:
        """Set the log start offset."""
        ...


class Truncation:
    """Truncates one log. After a disk error the log accepts nothing more."""

    def __init__(
        self, log: TruncatedLog, segments: Segments, producers: LogProducers, disk: LogDisk
    ) -> None:
        self.generation = 0
        """How many truncations the log has had since it was opened."""
        self._log = log
        self._segments = segments
        self._producers = producers
        self._disk = disk

    def begin(self, offset: int) -> None:
        """Lower the synced end to `offset`, for the checkpoint to be written before `cut`.

        Raises:
            LogDirectoryError: the log has failed.
            CorruptData: the range is damaged.
        """
        log = self._log
        log.check_open()
        self.generation += 1
        with self._disk.errors:
            segment = self._segments.segment_of(min(offset, log.log_end_offset))
            position = segment.size_bytes
            if offset < segment.next_offset:
                position = segment.position_of(offset)
        # 1. The log has offsets 0-99, all synced; the leader's log ends at 60.
        # 2. `begin(60)` lowers the synced end, and the recovery point 60 is made durable.
        # 3. `cut(60)` removes 60-99.
        # A crash after 2 finds sound batches after the recovery point, and the replica truncates
        # again. If the cut came first, a crash would find the log ending before its recovery
        # point, which means damage.
        log.synced = min(log.synced, SyncedEnd(offset, segment.base_offset, position))

    def cut(self, offset: int) -> None:
        """Durably remove everything from the batch that contains `offset` on.

        Raises:
            LogDirectoryError: the disk refused; the log accepts nothing more.
        """
        log = self._log
        try:
            self._segments.truncate(offset)
            # Epochs and producers follow the log's real end: a batch that contains `offset` is
            # removed whole, so the log may end before `offset`.
            log.epochs.truncate(log.log_end_offset)
            self._producers.restore()
            log.lost.keep_within(log.log_start_offset, log.log_end_offset)
        except OSError as error:
            raise self._disk.fail(error) from error
        active = self._segments.active
        log.synced = SyncedEnd(active.next_offset, active.base_offset, active.size_bytes)

    def begin_restart(self, offset: int) -> None:
        """Move the log start to `offset`, before its beginning or after its end, to restart there.

        Make the checkpoint durable, then call `restart`. After a crash between the two, everything
        up to the log's start is missing, and `PartitionLog.open` continues there. Raises what
        `begin` raises.
        """
        log = self._log
        log.check_open()
        self.generation += 1
        log.synced = SyncedEnd(min(log.synced.offset, offset), offset, 0)
        log.set_start(offset)

    def restart(self, offset: int) -> None:
        """Remove everything and begin again at `offset`. Raises what `cut` raises."""
        log = self._log
        try:
            self._segments.begin_again(offset)
            log.epochs.truncate(0)
            self._producers.restore(forget=True)
            log.lost.keep_within(offset, offset)
        except OSError as error:
            raise self._disk.fail(error) from error
        log.synced = SyncedEnd(offset, offset, 0)
