"""PartitionLog: the segments and producers of one partition as one log.

Batches go in at the end and come out as the same bytes; only base offset and leader epoch are
set. How they come to the end and to disk is in `log_writes`.

Deleting from the head takes three steps: the log start moves, the log directory makes it durable,
the files go. Compaction rewrites sealed segments (`compaction.cleaning`) and puts them in with
`begin_swap`.

Rules of this module: one caller at a time; nothing is acknowledged that is not written.

Not done here: which records are committed (`replication.partition`), retention (`retention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from streamlog.broker.config.broker import LOG_APPEND_TIME, TopicConfig
from streamlog.broker.storage import validator
from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.broker.storage.disk.files import Buffer, Files, names_in
from streamlog.broker.storage.expiry import expired_segments
from streamlog.broker.storage.log import recovery, swap
from streamlog.broker.storage.log.leader_epochs import LeaderEpochHistory
from streamlog.broker.storage.log.log_writes import (
    LogAppends,
    LogDisk,
    LogSync,
    PendingSync,
    RunAppends,
    SyncedEnd,
)
from streamlog.broker.storage.log.producer_snapshots import LogProducers
from streamlog.broker.storage.log.producer_states import EndedTransaction, ProducerStates
from streamlog.broker.storage.log.record_search import RecordSearch
from streamlog.broker.storage.log.recovery import LostOffsets
from streamlog.broker.storage.log.segment import Damage, Segment, SegmentEnd
from streamlog.broker.storage.log.segments import RollBudget, Rolling, Segments
from streamlog.broker.storage.log.truncation import Truncation
from streamlog.broker.storage.validator import AppendOrigin, AppendResult, Prepared
from streamlog.errors import (
    CorruptData,
    LogDirectoryError,
    OffsetOutOfRange,
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.records.batch import RecordBatch, set_offset_and_epoch
from streamlog.records.control_batches import ClockTime, Marker, encode_marker, encode_time_mark

START_OFFSET = 0
"""The first offset of a new log."""


class PartitionLog:
    """The log of one partition, in one directory.

    Create it with `create` or `open`. Error messages call it by its `name` (`topic-3`).
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        name: str,
        config: TopicConfig,
        read_only: bool,
        rolls: RollBudget[PartitionLog] | None = None,
    ) -> None:
        self.name = name
        self.epochs = LeaderEpochHistory(files, directory)
        self.recovery = recovery.Recovery()
        self.read_end_offset = START_OFFSET
        """The offset after the last batch that `range` returned."""
        self.cleaned = swap.CleanedOffset(files, directory)
        self.lost = LostOffsets(files, directory)
        self._high_watermark = START_OFFSET
        self.config = config
        """The topic's current settings; see `configure`."""
        self._read_only = read_only
        self._segments = Segments(files, directory, name=name, config=config, read_only=read_only)
        self._disk = LogDisk(
            files, directory, name=name, read_only=read_only, log_damage=self._segments.tell
        )
        self.log_start_offset = START_OFFSET
        """The first offset that can be read; all records below it are deleted."""
        self._producers = LogProducers(files, directory, self._segments)
        self.truncation = Truncation(self, self._segments, self._producers, self._disk)
        self._sync = LogSync(self._segments, self._disk)
        self._appends = LogAppends(
            self,
            self._segments,
            self._producers,
            self._disk,
            self._sync,
            rolling=Rolling(self, rolls),
        )
        self._runs = RunAppends(self, self._segments, self._producers, self._appends.write)
        self._closed = False

    @classmethod
    def create(
        cls,
        files: Files,
        directory: str,
        *,
        name: str,
        config: TopicConfig,
        rolls: RollBudget[PartitionLog] | None = None,
    ) -> PartitionLog:
        """Begin a log; `rolls` limits the rolls of all logs that share it.

        Nothing is written: of thousands of partitions that are created at once, many stay empty for
        long. The first append makes the directory.
        """
        log = cls(files, directory, name=name, config=config, read_only=False, rolls=rolls)
        log._segments.begin(START_OFFSET)
        return log

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        *,
        name: str,
        config: TopicConfig,
        clean: bool = False,
        end: SegmentEnd | None = None,
        recovery_point: int = START_OFFSET,
        log_start_offset: int = START_OFFSET,
        read_only: bool = False,
        rolls: RollBudget[PartitionLog] | None = None,
        defers_sync: bool = False,
    ) -> PartitionLog:
        """Open the log in `directory`, which does not exist before the first append.

        With `clean`, the log was closed in order: its end is checked, and nothing is scanned. With
        `end`, the value of `end` at that time, not even the end is checked. Nothing before
        `recovery_point` can be torn: what is missing there is damage. Records before
        `log_start_offset` were deleted; their remaining files are removed now. With `read_only`
        nothing on disk changes, and the end is what it was when it was read, as a broker may be
        writing. Damage is not an error: it is in `recovery`, and logged. With `defers_sync`, call
        `end_recovery` before the log is used.

        Raises:
            LogDirectoryError: the disk refused.
        """
        log = cls(files, directory, name=name, config=config, read_only=read_only, rolls=rolls)
        with log._disk.errors:
            # The order matters:
            # 1. Unfinished swaps, before the chain of segments is read from the names of files.
            # 2. The end of the log, before anything that depends on it: lost offsets, leader epochs
            #    (which drops epochs behind the end), producers (which are replayed up to the end).
            # 3. `_take_over`, which may write: it is last, so that a failed opening changes little.
            log.synced = log.synced._replace(offset=recovery_point)
            log.log_start_offset = log_start_offset
            names = names_in(files, directory) if read_only else swap.recover(files, directory).left
            log._segments.find(names, log_start_offset)
            last = log._segments.active
            # A reader next to a running broker must not judge: an unfinished batch is a write in
            # progress, not a torn one.
            if read_only:
                recovery.look_at_end(last)
            elif end is not None and last.restore(end):
                log.recovery = recovery.Recovery()
            elif not (clean and log._segments.ends_whole()):
                log.recovery = log._segments.recover(recovery_point)
                # A directory entry that is visible may not be durable: the process died after it
                # created the segment and before it synced the directory.
                log._segments.distrust_names()
            # Closed in order, but shorter than what was synced: something cut the file.
            elif last.next_offset < recovery_point:
                last.note_tail_damage("", None)
                log.recovery = recovery.Recovery(damage=tuple(last.damage))
            if not read_only:
                log._begin_at_start()
                log.lost.open(log_start_offset, log.log_end_offset)
                log.epochs.open(
                    (log_start_offset, log.log_end_offset),
                    clean=clean,
                    batches=log._segments.epochs,
                    known_epoch=log._segments.newest_epoch,
                )
                log._take_over()
                if not defers_sync:
                    log.end_recovery()
        return log

    def look_at_epochs(self) -> LeaderEpochHistory:
        """Read the leader epochs of a log that was opened with `read_only`.

        Raises:
            LogDirectoryError: the disk refused.
        """
        with self._disk.errors:
            self.epochs.look(
                (self.log_start_offset, self.log_end_offset),
                batches=self._segments.epochs,
                known_epoch=self._segments.newest_epoch,
            )
        return self.epochs

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._segments.active.next_offset

    @property
    def synced(self) -> SyncedEnd:
        """The end of the part that is known to be on disk."""
        return self._sync.synced

    @synced.setter
    def synced(self, end: SyncedEnd) -> None:
        self._sync.note(end)

    @property
    def syncs_off_loop(self) -> bool:
        """Whether the caller syncs after every append, so that a roll need not sync."""
        return self._sync.is_off_loop

    @syncs_off_loop.setter
    def syncs_off_loop(self, syncs: bool) -> None:
        self._sync.is_off_loop = syncs

    @property
    def high_watermark(self) -> int:
        """The high watermark of the partition as far as it is known; kept for the next opening."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        self._segments.is_touched = True

    @property
    def is_touched(self) -> bool:
        """Whether what a checkpoint says of it may have changed since this was set to False."""
        return self._segments.is_touched

    @is_touched.setter
    def is_touched(self, touched: bool) -> None:
        self._segments.is_touched = touched

    @property
    def recovery_point(self) -> int:
        """The offset below which everything is on disk, indexes included."""
        return self._sync.recovery_point

    @property
    def has_folder(self) -> bool:
        """Whether its directory exists; a log without one has never had a record."""
        return self._segments.has_folder

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment."""
        return self._segments.active.base_offset

    @property
    def end(self) -> SegmentEnd:
        """The state of the last segment's end, for `open`."""
        return self._segments.active.end

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches in the segments that have been loaded."""
        return self._segments.size_bytes

    @property
    def producers(self) -> ProducerStates:
        """The idempotent producers of the log, and their transactions."""
        return self._producers.states

    @property
    def segment_count(self) -> int:
        """How many segments the log has."""
        return len(self._segments)

    @property
    def knows_its_size(self) -> bool:
        """Whether all segments are loaded, so that `size_bytes` is that of the whole log."""
        return self._segments.are_loaded

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged ranges found so far."""
        return self._segments.damage

    @property
    def lacks_records(self) -> bool:
        """Whether the log is damaged or was repaired: other replicas may have more records."""
        return bool(self.damage) or self.lost.first_from(self.log_start_offset) is not None

    def watch_damage(self, on_damage: Callable[[], None]) -> None:
        """Call `on_damage` if the log lacks records, and from any thread that finds damage."""
        self._segments.watch_damage(on_damage)
        if self.lacks_records:
            on_damage()

    @property
    def has_unwritten_indexes(self) -> bool:
        """Whether index entries are only in memory because the disk was full."""
        return self._segments.has_unwritten_indexes

    @property
    def is_whole(self) -> bool:
        """Whether no damage is known and the disk has not failed."""
        return self._disk.failure is None and not self.damage

    def append(
        self,
        data: bytes | bytearray | memoryview,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        prepared: Prepared | None = None,
    ) -> AppendResult:
        """Append encoded batches, all of them or none.

        Batches get the next offsets and this log's leader epoch. Batches of `origin` COPY keep
        theirs, and have to continue this log. `now_ms` is monotonic; it decides when a segment
        without record timestamps is sealed. `wall_ms` is the time that timestamps are checked
        against, or set to; without it they are accepted as they are. A writable memoryview is
        handed over: offsets are set in place. With `prepared`, `data` was checked before
        (`validator.prepare`).

        Returns where the batches are; for a duplicate (KIP-98), where its first copy is.

        Raises:
            LogError: a batch is refused; `code` says why, and nothing was appended.
            CorruptData: the end of the log is damaged, so the next offset is unknown.
            LogDirectoryLost: the directory has vanished.
            LogDirectoryFailed: the disk is full or failing; nothing was appended.
        """
        self.check_open()
        self.check_end()
        placed = data if isinstance(data, memoryview) and not data.readonly else bytearray(data)
        base_offset = self._segments.active.next_offset
        if origin is not AppendOrigin.COPY:
            if prepared is None:
                prepared = validator.prepare(placed, self.config, wall_ms=wall_ms, origin=origin)
            elif origin is AppendOrigin.CLIENT:
                # Prepared before the request's transaction was verified: check again.
                validator.check_transactional(prepared.batches)
            placed, batches = prepared
            has_sequence = origin is not AppendOrigin.COORDINATOR
            appended = self.producers.check(batches[0], has_sequence=has_sequence)
            if appended is not None:
                # The first batch speaks for all: a request of an idempotent producer has one batch
                # per partition, so `appended` covers the whole piece.
                return AppendResult(appended.first_offset, appended.last_offset, -1, 0)
            validator.assign_offsets(placed, batches, base_offset, self.epochs.current)
            if wall_ms is not None and self.config.message_timestamp_type == LOG_APPEND_TIME:
                batches = validator.stamp(placed, batches, wall_ms=wall_ms)
        else:
            # A follower appends the leader's bytes unchanged, epochs included. The epochs are
            # durable before the batches: a batch whose epoch the checkpoint lacks would make the
            # log look longer than its epochs, and truncation by epoch (KIP-101) would cut too
            # little.
            batches = validator.validate_copies(placed, next_offset=base_offset)
            if not self.epochs.has_noted(batches):
                with self._disk.errors:
                    self._segments.make_folder()
                    self.epochs.note_copies(batches)
        self._appends.write(placed, batches, now_ms)
        offset = base_offset
        for batch in batches:
            self._producers.note(batch, offset)
            offset += batch.last_offset_delta + 1
        append_time_ms = batches[0].max_timestamp_ms if batches[0].is_log_append_time else -1
        return AppendResult(base_offset, offset - 1, append_time_ms, len(placed))

    def append_each(
        self,
        pieces: Sequence[memoryview],
        *,
        now_ms: int,
        wall_ms: int,
        prepared: Sequence[Prepared | StreamlogError] = (),
    ) -> list[AppendResult | StreamlogError]:
        """Append the pieces of several requests, each independently, with few writes.

        Returns, for each piece, what `append` would have returned or raised. With `prepared`, which
        has one entry for each piece, the pieces were checked before.
        """
        return self._runs.append_each(pieces, (now_ms, wall_ms), prepared)

    def end_transaction(
        self, producer_id: int, producer_epoch: int, marker: Marker, *, now_ms: int, wall_ms: int
    ) -> AppendResult:
        """Append the marker that ends the producer's transaction in this partition.

        Raises:
            LogError: a newer instance of the producer or a newer coordinator has written already.
            LogDirectoryError: see `append`.
        """
        self.check_open()
        self.check_end()
        self.producers.check_marker(producer_id, producer_epoch, marker)
        producer = (producer_id, producer_epoch)
        return self._append_control(encode_marker(marker, producer, timestamp_ms=wall_ms), now_ms)

    def mark_time(
        self, ms: int, *, now_ms: int, reached: Sequence[ClockTime] = ()
    ) -> AppendResult | None:
        """Append a time mark; None if the active segment has no timestamp to give to its batch.

        The batch gets the newest timestamp of the segment, so retention and searches by time
        are not affected. A segment without timestamps, as in an empty partition, takes a mark only
        if it carries the times of other partitions (`reached`).

        Raises:
            LogDirectoryError: see `append`.
        """
        self.check_open()
        self.check_end()
        newest_ms = self._segments.active.max_timestamp_ms
        if newest_ms < 0 and not reached:
            return None
        return self._append_control(encode_time_mark(ms, newest_ms, reached), now_ms)

    def aborted(self, offset: int, end_offset: int) -> list[EndedTransaction]:
        """Return the aborted transactions with records from `offset` to before `end_offset`.

        Raises:
            CorruptData: their index has to be rebuilt, and the log is damaged.
            LogDirectoryError: the disk refused.
        """
        try:
            return self._segments.aborted(offset, end_offset)
        except (CorruptData, OSError):
            with self._disk.errors:  # As in `range`.
                raise

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        min_one: bool = True,
        before_offset: int | None = None,
    ) -> Buffer:
        """Return what `range` finds, in memory. Raises what `range` raises."""
        found = self.range(
            offset, max_bytes=max_bytes, min_one=min_one, before_offset=before_offset
        )
        if not isinstance(found, FileRange):
            return found
        with self._disk.errors:
            return found.read()

    def range(
        self,
        offset: int,
        *,
        max_bytes: int,
        min_one: bool = True,
        synced: bool = False,
        before_offset: int | None = None,
    ) -> Buffer | FileRange:
        """Find whole batches from the one that contains `offset` on, about `max_bytes` at most.

        The first batch may begin before `offset`. With `min_one` it is returned whatever its size.
        All batches are of one segment; at the end of the log the result is empty. The batches stay
        in their file until they are read or sent, and the file may be deleted before that. With
        `synced` the log ends where it is known to be on disk. It also ends at `before_offset`,
        which is the base offset of a batch.

        Raises:
            OffsetOutOfRange: the log has no such offset.
            CorruptData: the range is damaged; the message says where.
            LogDirectoryError: the disk refused.
        """
        end_offset = self._segments.active.next_offset
        if not self.log_start_offset <= offset <= end_offset:
            with self._disk.errors:
                # 1. A consumer has read up to offset 90; the file is damaged from offset 80 on.
                # 2. The log ends at 80 after a restart, so 90 is "out of range".
                # 3. With that error the consumer would reset its position (to 0, or to 80) and
                #    skip or repeat records. CorruptData stops it instead.
                self.check_end()
            raise self._out_of_range(offset)
        try:
            if offset == end_offset:
                self.check_end()
                return b""
            if synced and offset >= self.synced.offset:
                return b""
            segment = self._segments.segment_of(offset)
            # A position in the active segment bounds the synced bytes; a sealed segment before it
            # is synced as a whole.
            end = None
            if synced and segment.base_offset == self.synced.base_offset:
                end = self.synced.position
            if before_offset is not None and before_offset < segment.next_offset:
                if offset >= before_offset:
                    return b""
                end = segment.position_of(before_offset)
            found = segment.range(offset, max_bytes, min_one=min_one, limit=end)
        except (CorruptData, OSError):
            # The block is entered only here: each Fetch would pay for it otherwise.
            with self._disk.errors:
                raise
        self.read_end_offset = segment.read_end_offset
        return found

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record not older than `timestamp_ms`, if any.

        Raises:
            CorruptData: a batch that the search reads is damaged.
            LogDirectoryError: the disk refused.
        """
        with self._disk.errors:
            found = self._segments.first_not_before(timestamp_ms, self.log_start_offset)
        return None if found is None else (found.offset, found.timestamp_ms)

    def search(self, offset: int, end_offset: int) -> RecordSearch:
        """Return a search for the first record from `offset` on; it runs in any thread.

        `end_offset` bounds it. A result holds until `rewrites` grows.

        Raises:
            CorruptData: the first segments are missing.
        """
        return self._segments.search(offset, end_offset)

    @property
    def rewrites(self) -> int:
        """How often compaction or truncation has changed what lies at offsets that exist."""
        return self._segments.rewrites

    def max_timestamp(self) -> tuple[int, int] | None:
        """Return offset and timestamp of the newest record, the first of equals; None without one.

        Raises:
            CorruptData: its batch is damaged.
            LogDirectoryError: the disk refused.
        """
        with self._disk.errors:
            newest = self._segments.newest(self.log_start_offset)
        return None if newest is None else (newest.offset, newest.timestamp_ms)

    def configure(self, config: TopicConfig) -> None:
        """Use other settings; existing segments keep theirs."""
        self.config = self._segments.config = config

    def advance_start(self, offset: int) -> None:
        """Move the log start to `offset`: records before it can no longer be read.

        The move is durable once the directory has written its checkpoints; call `retire` only
        after that.

        Raises:
            OffsetOutOfRange: the log ends before `offset`.
            LogDirectoryError: the log has failed.
        """
        if not self._read_only:
            self.check_open()
        if not START_OFFSET <= offset <= self.log_end_offset:
            raise self._out_of_range(offset)
        self._move_start(max(self.log_start_offset, offset))

    def set_start(self, offset: int) -> None:
        """Set the start of a log that restarts at `offset`; see `Truncation.begin_restart`."""
        self._move_start(offset)

    def expire(self, *, high_watermark: int, wall_ms: int, now_ms: int) -> None:
        """Move the log start past the segments that retention deletes; see `advance_start`.

        Only whole segments below `high_watermark` are deleted, the oldest first: records above it
        are not acknowledged yet. If the active segment has to go too, it is sealed first.

        Raises:
            LogDirectoryError: the disk refused, or the log has failed.
        """
        self.check_open()
        with self._disk.errors:
            count = expired_segments(self._segments, self.config, wall_ms=wall_ms)
            count = min(count, self._segments.count_before(high_watermark))
            if not count:
                return
            # The active segment expires too. Seal it first: the log keeps one (empty) segment, so
            # its end offset survives although no record does.
            if count == len(self._segments):
                self._appends.roll_before_deletion(now_ms)
            self.advance_start(self._segments.base_offset(count))

    @property
    def has_expired_files(self) -> bool:
        """Whether `retire` has files to rename."""
        return self._segments.has_first_before(self.log_start_offset)

    def retire(self, *, durable_start: int | None = None) -> list[str]:
        """Rename the files of segments below the log start, which takes them out of the log.

        `durable_start` is the durable log start, if the log start may have moved since then.

        Returns the paths to remove after `file.delete.delay.ms`.

        Raises:
            LogDirectoryError: the disk refused; the rest can be retired later.
        """
        renamed: list[str] = []
        if self._closed:
            return renamed  # It was deleted meanwhile, or has moved to another directory.
        with self._disk.errors:
            # 1. The start moves to 100, and a checkpoint with 100 begins to be written.
            # 2. Meanwhile DeleteRecords moves the start to 200.
            # 3. The checkpoint with 100 is durable. Only what lies below 100 may go: after a crash
            #    the log starts at 100 again, and files missing from there on would be damage.
            start = self.log_start_offset if durable_start is None else durable_start
            while self._segments.has_first_before(start):
                renamed += self._segments.retire_first()
            self.epochs.trim(start)
        return renamed

    def flush(self) -> None:
        """Sync everything that was appended to disk.

        Raises:
            LogDirectoryError: the disk refused; the log accepts nothing more.
        """
        self.check_open()
        self._sync.flush()

    def begin_sync(self, *, sealed_only: bool = False) -> PendingSync | None:
        """Prepare a sync of what the log contains now; None if everything is on disk.

        The caller runs the result in any thread and passes it to `end_sync`. With `sealed_only` the
        active segment is left to the operating system.

        Raises:
            LogDirectoryError: the files can't be opened.
        """
        if self._closed:
            return None
        return self._sync.begin(self.truncation.generation, sealed_only=sealed_only)

    def end_sync(self, pending: PendingSync) -> None:
        """Note that a sync has succeeded: everything up to its end is on disk."""
        self._sync.finish(pending, self.truncation.generation)

    def succeed(self, log: PartitionLog, rolls: RollBudget[PartitionLog]) -> None:
        """Take over from `log`, of which this one is a copy that is on disk."""
        self.high_watermark = log.high_watermark
        self.truncation.generation = log.truncation.generation + 1
        self.epochs.begin(log.epochs.current)
        self._appends.rolling.share(rolls)
        self._segments.watch_as(log._segments)

    def check_open(self) -> None:
        """Check that the log accepts appends.

        Raises:
        LogDirectoryError: the disk has failed.
        UnknownTopicOrPartition: the log was closed or deleted.
        UsageError: the log was opened for reading only.
        """
        if self._disk.failure is not None:
            raise self._disk.failure
        if self._closed:
            raise UnknownTopicOrPartition(f"{self.name} has been closed, or its topic deleted")
        if self._read_only:
            raise UsageError(f"{self.name} was opened for reading only")

    def watch_disk(self, on_failure: Callable[[LogDirectoryError], None]) -> None:
        """Call `on_failure`, from any thread, when the disk fails."""
        self._disk.on_failure = on_failure

    def fail(self, failure: LogDirectoryError) -> None:
        """Accept nothing more, because the disk can't be trusted."""
        if self._disk.failure is None:
            self._disk.failure = failure

    def sealed_segments(self, *, before_offset: int) -> Iterator[Segment]:
        """Iterate over the sealed segments that are on disk and end at `before_offset` at most.

        A segment is loaded when the iterator reaches it, which takes a moment.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self.check_open()
        limit = min(before_offset, self.recovery_point)
        with self._disk.errors:
            yield from self._segments.sealed_before(limit)

    def has_segment(self, segment: Segment) -> bool:
        """Whether `segment` is still part of the log."""
        return segment in self._segments

    def new_cleaned_segment(self, base_offset: int) -> Segment:
        """Return a new segment to create and fill; it is not part of the log yet."""
        return self._segments.new_segment(base_offset)

    def begin_swap(self, replaced: Sequence[Segment], cleaned: Segment) -> swap.Swap:
        """Replace consecutive segments with `cleaned`, which is on disk.

        Readers use it from now on. The caller then runs `Swap.take_out` in any thread, and calls
        `end_swap`.

        Raises:
            UnknownTopicOrPartition: the log, or one of the segments, is gone.
            LogDirectoryError: the disk refused; nothing more is accepted until the next opening.
        """
        self.check_open()
        part = self._segments.find_slice(replaced)
        try:
            return self._segments.swap(part, cleaned)
        except OSError as error:
            raise self._disk.fail(error) from error

    def end_swap(self, begun: swap.Swap) -> None:
        """Give the cleaned segment's files their final names, after `Swap.take_out`.

        Raises:
            LogDirectoryError: the disk refused; nothing more is accepted until the next opening.
        """
        if self._closed or begun.cleaned not in self._segments:
            return  # The log was deleted meanwhile, or retention has removed the segment.
        try:
            begun.settle()
        except OSError as error:
            raise self._disk.fail(error) from error

    def settle(self) -> bool:
        """Write all that the next opening needs; return whether some of it awaits a sync.

        The log may be closed then, with a sync of the whole disk in between.

        Raises:
            LogDirectoryError: the disk refused.
        """
        if self._closed or self._read_only or self._disk.failure is not None:
            return False
        with self._disk.errors:
            self._segments.settle_indexes()
            behind = self._segments.active.has_stale_indexes or self._segments.has_unsynced
            if self._sync.is_dirty or behind:
                self._segments.active.trim_indexes()
                self._segments.active.close()
                self._sync.is_dirty = True
            self._producers.keep()
        return self._sync.is_dirty

    def close(self, *, is_on_disk: bool = False) -> None:
        """Sync everything, so that the next opening need not scan, and close.

        With `is_on_disk`, nothing awaits a sync since `settle`.

        Raises:
            LogDirectoryError: the disk refused; the next opening scans.
        """
        if self._closed:
            return
        try:
            # Of a log that has failed, what the disk has is unknown, whatever is synced later.
            if is_on_disk and self._disk.failure is None:
                self._segments.trust_names()
                self._sync.note_flushed()
            elif self.settle():
                self.flush()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close without a sync, because the log is about to be deleted or its disk has failed."""
        self._closed = True
        self._segments.close()

    def _move_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.is_touched = True

    def _begin_at_start(self) -> None:
        """Restart an empty log at its start if a power cut has taken everything below the start.

        1. Offsets 0-99 are appended and not synced; DeleteRecords moves the start to 100, and the
        checkpoint is durable. 2. A power cut takes the segments. 3. The log ends at 0, before its
        start: offsets 0-99 were given out, so it must continue at 100 and not reuse them.
        """
        if (
            self.log_end_offset < self.log_start_offset
            and self.recovery_point <= self.log_start_offset
        ):
            self._segments.begin_again(self.log_start_offset)

    def _take_over(self) -> None:
        """Make an opened log ready for appends."""
        self._segments.report(self.recovery)
        self._segments.active.unseal()
        self._producers.restore()
        if self.recovery.unsynced_segments:
            # What recovery found sound may be only in the page cache, and a sync of the previous
            # process may have failed on it. Write it again and sync it before it counts as synced.
            with self._disk.errors:
                self._segments.rewrite_unsynced(self.recovery, self.recovery_point)
        if self.recovery.scanned_segments:
            self._segments.note_unwritten_indexes(
                self._segments.last(self.recovery.scanned_segments)
            )

    @property
    def awaits_sync(self) -> bool:
        """Whether recovery found records that may be only in the page cache."""
        return self.recovery.unsynced_segments > 0

    def end_recovery(self, *, is_on_disk: bool = False) -> None:
        """Count what recovery found as synced; sync it first, unless it `is_on_disk`.

        Raises:
            LogDirectoryFailed: the disk refused.
        """
        if is_on_disk:
            self._segments.trust_names()
        elif self.awaits_sync:
            self._sync.run(self._segments.last(self.recovery.unsynced_segments))
        # A log with a damaged end had more on disk than it shows: the recovery point stays.
        self.synced = self._sync.end._replace(offset=max(self.recovery_point, self.log_end_offset))

    def check_end(self) -> None:
        """Check that where the log ends is where its records end.

        Raises:
            CorruptData: the end is damaged: how many records followed is not known.
        """
        if self._segments.active.has_damaged_end:
            raise CorruptData(str(self._segments.active.damage[-1]))

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{self.name}: offset {offset} is not in the log, which has offsets"
            f" {self.log_start_offset} to {self.log_end_offset - 1}"
        )

    def _append_control(self, control: bytes, now_ms: int) -> AppendResult:
        """Append a control batch that the broker itself has made."""
        offset, data = self._segments.active.next_offset, bytearray(control)
        set_offset_and_epoch(data, offset, self.epochs.current)
        batch = RecordBatch(data)
        self._appends.write(data, [batch], now_ms)
        self._producers.note(batch, offset)
        return AppendResult(offset, offset, -1, len(data))

    def roll_late(self, now_ms: int) -> None:
        """Begin the segment that a roll budget has postponed, unless an append has done so.

        Raises:
            LogDirectoryError: the disk refused; the next append tries again.
        """
        if not self._closed:
            self._appends.roll_late(now_ms)
