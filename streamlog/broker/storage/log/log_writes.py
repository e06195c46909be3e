"""LogAppends, LogSync, LogDisk: the way of batches to the end of a log, and to its disk.

`LogAppends` writes batches that were checked, and begins another segment when it is time. For the
batches of several requests, `RunAppends` makes as few writes as possible: a run that needs no full
validation (`batch_run`) takes one.

`LogSync` knows what of a log is on disk. A sync runs in three steps: the log lists the files
(`begin`), any thread syncs them (`PendingSync.run`), and the log notes the result (`finish`).
Meanwhile the log may grow, roll or be deleted. `flush` does all at once. Without either, a sealed
segment is synced when the next one is sealed, so a crash leaves at most two segments to scan. With
`is_off_loop`, a roll syncs nothing, not even the new segment's name: that is on disk before its
contents count.

`LogDisk` decides what a system error means for one log: a full disk refuses a write, and the log
accepts writes when there is space again; a vanished file or a failed sync ends the log.

Rules of this module: after a write error the log ends with the last whole batch. A failed sync is
never repeated: the kernel may have dropped the pages that it could not write, and a second sync
would succeed and lie (fsyncgate).

Not done here: the checks of batches (`validator`), and cuts (`truncation`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from streamlog.broker.storage.disk.files import directory_error, size_of
from streamlog.broker.storage.log import batch_run
from streamlog.broker.storage.log.batch_run import BatchRun
from streamlog.broker.storage.log.segment import LOG_SUFFIX
from streamlog.broker.storage.validator import RecordRules, is_checked
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

    from streamlog.broker.config.broker import TopicConfig
    from streamlog.broker.storage.disk.files import Content, File, Files
    from streamlog.broker.storage.log.leader_epochs import LeaderEpochHistory
    from streamlog.broker.storage.log.producer_snapshots import LogProducers
    from streamlog.broker.storage.log.producer_states import ProducerStates
    from streamlog.broker.storage.log.segment import Segment
    from streamlog.broker.storage.log.segments import Rolling, Segments
    from streamlog.broker.storage.validator import AppendResult, Prepared
    from streamlog.records.batch import RecordBatch

Log = TypeVar("Log")

_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults

UNSYNCED_MAX = 16
"""Sealed segments that may wait for a background sync; beyond that, the append syncs them."""
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
        self.link_check_ms = 0
        """When `check_linked` looks at the file again; before, it need not be called."""
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
        if now_ms < self.link_check_ms:
            return
        if not segment.is_linked():
            self.failure = LogDirectoryLost(
                f"{segment.path} has vanished while it was in use: the log of {self._name}"
                " stops here; restore the data directory, or start with a new one"
            )
            raise self.failure
        self.link_check_ms = now_ms + LINK_CHECK_MS

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


class LogSync:
    """What of a log is on disk, and the syncs that bring the rest there."""

    def __init__(self, segments: Segments, disk: LogDisk) -> None:
        self.is_dirty = False
        """Whether something was appended since the last sync of everything."""
        self.is_off_loop = False
        """Whether the caller syncs after every append, so that a roll need not sync."""
        self._segments = segments
        self._disk = disk
        self.synced = SyncedEnd(0, 0, 0)
        """The end of the part that is known to be on disk; see `note`."""

    def note(self, synced: SyncedEnd) -> None:
        """Note another end of the part that is on disk, which the next checkpoint has to have."""
        self.synced = synced
        self._segments.is_touched = True

    @property
    def recovery_point(self) -> int:
        """The offset below which everything is on disk, indexes included."""
        # The lowest of three: what the last sync covered, the first sealed segment that awaits a
        # sync, and the first segment whose indexes did not fit on a full disk. Recovery scans from
        # here, and a scan is what rebuilds an index.
        segments, offset = self._segments, self.synced.offset
        if segments.unsynced:
            offset = min(offset, segments.unsynced[0].base_offset)
        if segments.has_unwritten_indexes:
            unwritten = segments.first_unwritten_index
            offset = offset if unwritten is None else min(offset, unwritten)
        return offset

    @property
    def end(self) -> SyncedEnd:
        """The end of the log, which is the synced end once everything is on disk."""
        active = self._segments.active
        end = active.next_offset, active.base_offset, active.size_bytes
        return _new_tuple(SyncedEnd, end)

    def flush(self) -> None:
        """Sync everything that was appended.

        Raises:
            LogDirectoryError: the disk refused; the log accepts nothing more.
        """
        if self.is_dirty:
            self.run([*self._segments.unsynced, self._segments.active])
            self.note_flushed()

    def note_flushed(self) -> None:
        """Note that everything that was appended is on disk."""
        self._segments.unsynced = []
        self.is_dirty = False
        self.note(max(self.synced, self.end))

    def begin(self, generation: int, *, sealed_only: bool) -> PendingSync | None:
        """Prepare a sync of what a log contains in this generation; None if it is on disk.

        Raises what `PartitionLog.begin_sync` raises.
        """
        if self._disk.failure is not None:
            return None
        segments = self._segments
        active = segments.active
        end = SyncedEnd(active.base_offset, active.base_offset, 0) if sealed_only else self.end
        if end.offset <= self.synced.offset and not segments.has_unsynced:
            return None
        files: list[File] = []
        try:
            for segment in segments.unsynced if sealed_only else [*segments.unsynced, active]:
                files += segment.files_to_sync()
        except OSError:
            # The block is entered only here: each sync would pay for it otherwise.
            with self._disk.errors:
                raise
        names = segments.sync_names if segments.has_unsynced_names else None
        return PendingSync(end, tuple(segments.unsynced), tuple(files), names, generation)

    def finish(self, pending: PendingSync, generation: int) -> None:
        """Note that a sync has succeeded, if the log is still of its generation."""
        # 1. A sync of offsets up to 100 begins. 2. The log is truncated to 50, and other records
        #    are appended up to 100. 3. The sync ends: it covered the old records 50-99, not the new
        #    ones. The generation tells the two apart; what was there before a cut was synced by it.
        #    It also tells apart a sync of the log that this one has succeeded.
        if pending.generation != generation:
            return
        segments = self._segments
        if pending.sealed:
            segments.unsynced = [each for each in segments.unsynced if each not in pending.sealed]
        if pending.names is not None:
            segments.note_synced_names(pending.end.base_offset)
        self.note(max(self.synced, pending.end))

    def run(self, segments: Sequence[Segment]) -> None:
        """Sync these segments, and names that are not on disk, at once.

        Raises:
            LogDirectoryError: the disk refused; the log accepts nothing more.
        """
        try:
            for segment in segments:
                segment.sync()
            if self._segments.has_unsynced_names:
                self._segments.sync_names()
                self._segments.has_unsynced_names = False
        except OSError as error:
            # The kernel may have dropped the pages it could not write: a second sync would
            # succeed without writing them.
            raise self._disk.fail(error) from error

    def seal(self, sealed: Segment) -> None:
        """Have a segment synced that was just sealed, or the one sealed before it."""
        segments = self._segments
        if self.is_off_loop and len(segments.unsynced) < UNSYNCED_MAX:
            segments.unsynced = [*segments.unsynced, sealed]
            return
        # At most two segments are unsynced: when segment n+1 is sealed, segment n is synced. The
        # sync runs in the append, once per segment.
        self.run(segments.unsynced)
        segments.unsynced = [sealed]
        self.note(max(self.synced, SyncedEnd(sealed.base_offset, sealed.base_offset, 0)))


class AppendedLog(Protocol):
    """The part of `PartitionLog` that appends need."""

    epochs: LeaderEpochHistory

    @property
    def config(self) -> TopicConfig:
        """The topic's current settings."""
        ...

    @property
    def producers(self) -> ProducerStates:
        """The idempotent producers of the log, and their transactions."""
        ...

    def check_open(self) -> None:
        """Raise LogDirectoryError if the log accepts no appends."""
        ...

    def check_end(self) -> None:
        """Raise CorruptData if the log's end is damaged."""
        ...

    def append(
        self,
        data: memoryview,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        prepared: Prepared | None = None,
    ) -> AppendResult:
        """Append one piece of encoded batches, all of them or none."""
        ...


class LogAppends(Generic[Log]):
    """Writes at the end of a log, and begins its segments."""

    def __init__(
        self,
        log: AppendedLog,
        segments: Segments,
        producers: LogProducers,
        disk: LogDisk,
        sync: LogSync,
        *,
        rolling: Rolling[Log],
    ) -> None:
        """`rolling` says when the log begins another segment."""
        self.rolling = rolling
        self._log = log
        self._segments = segments
        self._producers = producers
        self._disk = disk
        self._sync = sync

    def write(self, data: Content, batches: list[RecordBatch], now_ms: int) -> None:
        """Append batches that have their offsets; the active segment may be sealed before.

        Raises:
            LogDirectoryError: the disk refused; nothing was appended.
        """
        segments = self._segments
        try:
            # In this order, so that each failure leaves a log that the next append can continue:
            # the directory, indexes that a full disk refused, the epoch (durable before its first
            # batch), the roll, and the batches last.
            if not segments.has_folder:
                segments.make_folder()
            if segments.has_unwritten_indexes:
                segments.settle_indexes()
            last = segments.active
            self._log.epochs.note(last.next_offset)
            if self.rolling.due(last, self._log.config, size_of(data), batches, now_ms=now_ms):
                self._roll()
            segment = segments.active
            if now_ms >= self._disk.link_check_ms:
                self._disk.check_linked(segment, now_ms)
            if segment.size_bytes == 0:
                self.rolling.begin(now_ms)
            self._sync.is_dirty = True
            if segment.is_new:
                segments.has_unsynced_names = True
            segment.append(data, batches)
        except OSError as error:
            raise self._disk.note_error(error) from error

    def roll_late(self, now_ms: int) -> None:
        """Begin the segment that a roll budget has postponed, unless an append has done so.

        Raises:
            LogDirectoryError: the disk refused; the next append tries again.
        """
        active = self._segments.active
        if self._disk.failure is not None or active.has_damaged_end:
            return
        if active.size_bytes and self.rolling.is_time(
            active, self._log.config, active.max_timestamp_ms, now_ms=now_ms
        ):
            with self._disk.errors:
                self._roll()
            self.rolling.begin(now_ms)

    def roll_before_deletion(self, now_ms: int) -> None:
        """Begin a new segment, for the one before is about to be deleted.

        Raises:
            OSError: the disk refused.
        """
        self._roll(before_deletion=True)
        self.rolling.begin(now_ms)

    def _roll(self, *, before_deletion: bool = False) -> None:
        """Begin a new segment; if a step fails, the next append repeats it.

        With `before_deletion`, the indexes and the snapshot of the sealed segment are optional: a
        full disk, which the deletion will relieve, must not prevent it.
        """
        sealed = self._segments.active
        for write in (sealed.trim_indexes, self._producers.keep):
            if before_deletion:
                sealed.write_if_space(write)
            else:
                write()
        self._segments.add(sealed.next_offset, durable=not self._sync.is_off_loop)
        sealed.close()
        self._sync.seal(sealed)


class RunAppends:
    """Appends the batches of several requests to one log with as few writes as possible."""

    def __init__(
        self,
        log: AppendedLog,
        segments: Segments,
        producers: LogProducers,
        write: Callable[[Content, list[RecordBatch], int], None],
    ) -> None:
        """`write` is `LogAppends.write`."""
        self._log = log
        self._segments = segments
        self._producers = producers
        self._write = write
        self._config: TopicConfig | None = None
        self._scans = self._is_plain = False
        """What the settings `_config` say of batches; see `is_checked` and `is_plain_topic`."""

    def append_each(
        self,
        pieces: Sequence[memoryview],
        now: tuple[int, int],
        prepared: Sequence[Prepared | StreamlogError],
    ) -> list[AppendResult | StreamlogError]:
        """See `PartitionLog.append_each`; `now` is the monotonic time and the wall time in ms."""
        outcomes: list[AppendResult | StreamlogError] = []
        config = self._log.config
        if config is not self._config:
            self._config = config
            self._scans, self._is_plain = is_checked(config), batch_run.is_plain_topic(config)
        scans = not prepared and self._scans
        rules = RecordRules.of(config, now[1])
        # Pieces that failed their check keep their position among the outcomes: the runs between
        # them are appended, and each failure is its own outcome.
        refused: dict[int, StreamlogError] = {}
        if prepared:
            found = enumerate(prepared)
            refused = {n: each for n, each in found if isinstance(each, StreamlogError)}
        for stop in (*refused, len(pieces)):
            while len(outcomes) < stop:
                begin = len(outcomes)
                # A run ends before the first batch that needs the full validation. An empty run
                # means that the very next piece needs it, so that piece is appended by itself.
                outcomes += self._append_run(pieces[begin:stop], now[0], rules, scans=scans)
                if len(outcomes) == begin:
                    ready = prepared[begin] if prepared else None
                    outcomes.append(self._append_one(pieces[begin], now, ready))
            if stop in refused:
                outcomes.append(refused[stop])
        return outcomes

    def _append_one(
        self, piece: memoryview, now: tuple[int, int], prepared: Prepared | StreamlogError | None
    ) -> AppendResult | StreamlogError:
        if isinstance(prepared, StreamlogError):
            return prepared
        try:
            return self._log.append(piece, now_ms=now[0], wall_ms=now[1], prepared=prepared)
        except StreamlogError as error:
            return error

    def _append_run(
        self, pieces: Sequence[memoryview], now_ms: int, rules: RecordRules, *, scans: bool
    ) -> list[AppendResult | StreamlogError]:
        """Append the batches at the front that need no full validation."""
        if not self._is_plain:
            return []
        log, config = self._log, self._log.config
        segment = self._segments.active
        run = BatchRun(segment.next_offset, log.epochs.current, segment.room_bytes(config))
        run.extend(
            pieces,
            max_message_bytes=config.max_message_bytes,
            producers=log.producers,
            rules=rules,
            scans=scans,
        )
        batches = run.batches
        try:
            log.check_open()
            if segment.damage:
                log.check_end()
            if batches:
                self._write(run.pieces, batches, now_ms)
        except StreamlogError as error:
            return [error for _ in batches]
        # Producer states change only after the write: a batch that failed must not look like a
        # duplicate when its producer sends it again (KIP-98).
        results = run.results()
        for batch, result in zip(batches, results, strict=True):
            if batch.producer_id >= 0:
                self._producers.note(batch, result.base_offset)
        return [*results]
