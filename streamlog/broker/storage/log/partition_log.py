"""PartitionLog: the segments and producers of one partition as one log.

Batches go in at the end and come out as the same bytes; only base offset and leader epoch are
set. `begin_sync` and `end_sync` bring the log to disk off the event loop, `flush` does it at once.
Without either, a sealed segment is synced when the next one is sealed, so a crash leaves at most
two segments to scan. With `syncs_off_loop`, a roll syncs nothing, not even the new segment's
name: that is on disk before its contents count. A run of batches that needs no full validation
(`batch_run`) is appended in one write (`RunAppends`).

Deleting from the head takes three steps: the log start moves, the log directory makes it durable,
the files go. Compaction rewrites sealed segments (`compaction.cleaning`) and puts them in with
`begin_swap`.

Rules of this module: one caller at a time; nothing is acknowledged that is not written. After a
write error the log ends with the last whole batch; after a failed sync it accepts nothing more,
because the disk's contents are unknown.

Not done here: which records are committed (`replication.partition`), retention (`retention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from streamlog.broker.config.broker import LOG_APPEND_TIME, TopicConfig
from streamlog.broker.storage import validator
from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.broker.storage.disk.files import Buffer, Content, File, Files, size_of
from streamlog.broker.storage.expiry import expired_segments
from streamlog.broker.storage.log import batch_run, recovery, swap
from streamlog.broker.storage.log.batch_run import BatchRun
from streamlog.broker.storage.log.leader_epochs import LeaderEpochHistory
from streamlog.broker.storage.log.producer_snapshots import LogProducers
from streamlog.broker.storage.log.producer_states import Decided, ProducerStates
from streamlog.broker.storage.log.recovery import LostOffsets
from streamlog.broker.storage.log.segment import Damage, Segment, SegmentEnd
from streamlog.broker.storage.log.segments import RollBudget, Rolling, Segments
from streamlog.broker.storage.log.truncation import LogDisk, PendingSync, SyncedEnd, Truncation
from streamlog.broker.storage.validator import (
    AppendOrigin,
    AppendResult,
    Prepared,
    RecordRules,
    is_checked,
)
from streamlog.errors import (
    CorruptData,
    LogDirectoryError,
    OffsetOutOfRange,
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.records.batch import RecordBatch, place_batch
from streamlog.records.control_batches import Marker, MarkTold, encode_marker, encode_time_mark


class AppendedLog(Protocol):
    """What is asked of the log that is appended to, a `PartitionLog`."""

    epochs: LeaderEpochHistory

    @property
    def config(self) -> TopicConfig:
        """The settings that hold for it."""
        ...

    @property
    def producers(self) -> ProducerStates:
        """Who has written to it."""
        ...

    def check_open(self) -> None:
        """Raises LogDirectoryError if it takes nothing."""
        ...

    def append(
        self,
        data: memoryview,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        prepared: Prepared | None = None,
    ) -> AppendResult:
        """Append batches by themselves."""
        ...


class RunAppends:
    """The appends of one log that come together."""

    def __init__(
        self,
        log: AppendedLog,
        segments: Segments,
        producers: LogProducers,
        *,
        check: Callable[[], None],
        write: Callable[[Content, list[RecordBatch], int], None],
    ) -> None:
        """`check` raises an error if the end of the log is damaged; `write` appends bytes."""
        self._log = log
        self._segments = segments
        self._producers = producers
        self._check_end = check
        self._write = write

    def append_each(
        self,
        pieces: Sequence[memoryview],
        now: tuple[int, int],
        prepared: Sequence[Prepared | StreamlogError],
    ) -> list[AppendResult | StreamlogError]:
        """See `PartitionLog.append_each`; `now` is monotonic, and by the clock on the wall."""
        outcomes: list[AppendResult | StreamlogError] = []
        config = self._log.config
        scans = not prepared and is_checked(config)
        rules = RecordRules.of(config, now[1])
        refused = {n: each for n, each in enumerate(prepared) if isinstance(each, StreamlogError)}
        for stop in (*refused, len(pieces)):
            while len(outcomes) < stop:
                begin = len(outcomes)
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
        """Append the batches at the front that are taken as they are."""
        log, config = self._log, self._log.config
        if not batch_run.is_plain_topic(config):
            return []
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
            self._check_end()
            if batches:
                self._write(run.pieces, batches, now_ms)
        except StreamlogError as error:
            return [error for _ in batches]
        results = run.results()
        for batch, result in zip(batches, results, strict=True):
            if batch.producer_id >= 0:
                self._producers.note(batch, result.base_offset)
        return [*results]


START_OFFSET = 0
"""Of a new log."""
UNSYNCED_MAX = 16
"""Sealed segments that may wait for those who sync beside; then whoever appends waits for them."""


class PartitionLog:
    """The log of one partition, in one directory.

    Made by `create` or `open`. `name` (`topic-3`) is what errors call it.
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
        self._rolling = Rolling(self, rolls)
        self.epochs = LeaderEpochHistory(files, directory)
        self.recovery = recovery.Recovery()
        self.synced = SyncedEnd(START_OFFSET, START_OFFSET, 0)
        self.found_end_offset = START_OFFSET
        """Behind the last batch that `range` has found."""
        self.cleaned = swap.CleanedOffset(files, directory)
        self.lost = LostOffsets(files, directory)
        self.high_watermark = START_OFFSET
        """Up to where its partition is known to be committed, kept for the next opening."""
        self.syncs_off_loop = False
        """Whether somebody sees to syncs after every append, so that a roll need not wait."""
        self._config = config
        self._read_only = read_only
        self._segments = Segments(files, directory, name=name, config=config, read_only=read_only)
        self._disk = LogDisk(
            files, directory, name=name, read_only=read_only, tell=self._segments.tell
        )
        self._start_offset = START_OFFSET
        self._producers = LogProducers(files, directory, self._segments)
        self.truncation = Truncation(self, self._segments, self._producers, self._disk)
        self._runs = RunAppends(
            self, self._segments, self._producers, check=self._check_end, write=self._write
        )
        self._dirty = False
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
        """A new log in a directory that is made for it; `rolls` is shared with others.

        Raises:
            LogDirectoryError: the disk refused.
        """
        log = cls(files, directory, name=name, config=config, read_only=False, rolls=rolls)
        with log._disk.errors():
            files.make_directory(directory)
            log._segments.add(START_OFFSET)
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
    ) -> PartitionLog:
        """The log that is in `directory`.

        With `clean` it was closed in order, so its end is looked at and nothing is scanned; with
        `end`, what `end` was then, not even that.
        Before `recovery_point` nothing can be torn: what is missing there is damage. What is
        before `log_start_offset` has been deleted, and files of it that are left go now. With
        `read_only` nothing is changed and a writer may be at work; the end is where it was.
        Damage is reported in `recovery` and in the process's log; it is not an error.

        Raises:
            LogDirectoryError: the disk refused.
        """
        log = cls(files, directory, name=name, config=config, read_only=read_only, rolls=rolls)
        with log._disk.errors():
            log.synced = log.synced._replace(offset=recovery_point)
            log._start_offset = log_start_offset
            if not read_only:
                swap.recover(files, directory)
            log._segments.find(log_start_offset)
            last = log._segments.active
            if read_only:
                recovery.look_at_end(last)
            elif end is not None and last.restore(end):
                log.recovery = recovery.Recovery()
            elif not (clean and log._segments.ends_whole()):
                log.recovery = log._segments.recover(recovery_point)
                # A segment that was begun may be seen, and not be there after a power cut.
                log._segments.names_are_due = not read_only
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
                    newest_known=log._segments.newest_epoch,
                )
                log._take_over()
        return log

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read; below it everything was deleted."""
        return self._start_offset

    def look_at_epochs(self) -> LeaderEpochHistory:
        """The leader epochs of a log that was opened with `read_only`.

        Raises:
            LogDirectoryError: the disk refused.
        """
        with self._disk.errors():
            self.epochs.look(
                (self.log_start_offset, self.log_end_offset),
                batches=self._segments.epochs,
                newest_known=self._segments.newest_epoch,
            )
        return self.epochs

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._segments.active.next_offset

    @property
    def recovery_point(self) -> int:
        """Everything before this offset is known to be on disk, indexes included."""
        held = [s.base_offset for s in self._segments.unsynced[:1]]
        owing = self._segments.first_unwritten_index
        return min([self.synced.offset, *held, *([] if owing is None else [owing])])

    @property
    def active_base_offset(self) -> int:
        """Where the segment that is appended to begins."""
        return self._segments.active.base_offset

    @property
    def config(self) -> TopicConfig:
        """The settings that hold for it."""
        return self._config

    @property
    def end(self) -> SegmentEnd:
        """How the last segment ends, for `open`."""
        return self._segments.active.end

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches, as far as segments have been looked into."""
        return self._segments.size_bytes

    @property
    def producers(self) -> ProducerStates:
        """Who has written to it, and their transactions."""
        return self._producers.states

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged places that are known."""
        return self._segments.damage

    @property
    def lacks_records(self) -> bool:
        """Whether it is damaged, or was mended: other replicas may have more than this one."""
        return bool(self.damage) or self.lost.first_from(self._start_offset) is not None

    def watch_damage(self, on_damage: Callable[[], None]) -> None:
        """Have it called if it lacks records, and by any thread that finds damage."""
        self._segments.watch_damage(on_damage)
        if self.lacks_records:
            on_damage()

    @property
    def has_unwritten_indexes(self) -> bool:
        """Whether there was no room for indexes of it: they are in memory until there is."""
        return self._segments.has_unwritten_indexes

    @property
    def whole(self) -> bool:
        """Whether nothing is known to be damaged and the disk has not failed."""
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

        They get the next offsets and this log's leader epoch, unless their `origin` is another
        log: such copies keep what they have and have to continue this one.
        `now_ms` is monotonic and seals a segment whose records have no timestamps; `wall_ms` is
        what timestamps are judged by, or set to. Without it they are taken as they are. A
        memoryview that can be written is given away: the batches get their place where they are.
        With `prepared`, `data` was checked before (`admission.prepare`).

        Raises:
            LogError: a batch is refused; `code` says why, nothing was appended.
            CorruptData: the end of the log is damaged, so nobody knows the next offset.
            LogDirectoryLost: the directory has vanished.
            LogDirectoryFailed: the disk is full or failing; nothing was appended.
        """
        self.check_open()
        self._check_end()
        placed = data if isinstance(data, memoryview) and not data.readonly else bytearray(data)
        base_offset = self._segments.active.next_offset
        if origin is not AppendOrigin.COPY:
            if prepared is None:
                prepared = validator.prepare(placed, self._config, wall_ms=wall_ms, origin=origin)
            elif origin is AppendOrigin.CLIENT:
                validator.check_transactional(prepared.batches)
            placed, batches = prepared
            numbered = origin is not AppendOrigin.COORDINATOR
            appended = self.producers.check(batches[0], numbered=numbered)
            if appended is not None:
                return AppendResult(appended.first_offset, appended.last_offset, -1, 0)
            validator.assign_offsets(placed, batches, base_offset, self.epochs.current)
            if wall_ms is not None and self._config.message_timestamp_type == LOG_APPEND_TIME:
                batches = validator.stamp(placed, batches, wall_ms=wall_ms)
        else:
            batches = validator.validate_copies(placed, next_offset=base_offset)
            with self._disk.errors():
                self.epochs.note_copies(batches)
        self._write(placed, batches, now_ms)
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
        """Append what several requests bring, each by itself, but by as few writes as can be.

        What becomes of each is what `append` would have returned or raised. With `prepared`, which
        has one for each piece, they were checked before.
        """
        return self._runs.append_each(pieces, (now_ms, wall_ms), prepared)

    def end_transaction(
        self, producer_id: int, producer_epoch: int, marker: Marker, *, now_ms: int, wall_ms: int
    ) -> AppendResult:
        """Append the marker with which the producer's transaction ends here, if there is one.

        Raises:
            LogError: a newer instance of the producer, or a newer coordinator, has taken over.
            LogDirectoryError: see `append`.
        """
        self.check_open()
        self._check_end()
        self.producers.check_marker(producer_id, producer_epoch, marker)
        producer = (producer_id, producer_epoch)
        return self._append_control(encode_marker(marker, producer, timestamp_ms=wall_ms), now_ms)

    def mark_time(
        self, ms: int, *, now_ms: int, told: Sequence[MarkTold] = ()
    ) -> AppendResult | None:
        """Append a mark that time has passed; None where no record has a time that could go on.

        Its batch has the newest time there is: retention and searches by time don't see it. Where
        no record has a time, as in an empty partition, a mark has to tell one (`told`).

        Raises:
            LogDirectoryError: see `append`.
        """
        self.check_open()
        self._check_end()
        newest_ms = self._segments.active.max_timestamp_ms
        if newest_ms < 0 and not told:
            return None
        return self._append_control(encode_time_mark(ms, newest_ms, told), now_ms)

    def aborted(self, offset: int, end_offset: int) -> list[Decided]:
        """The aborted transactions with records from `offset` to before `end_offset`.

        Raises:
            CorruptData: their index has to be built anew, and the log is damaged.
            LogDirectoryError: the disk refused.
        """
        with self._disk.errors():
            return self._segments.aborted(offset, end_offset)

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        min_one: bool = True,
        before_offset: int | None = None,
    ) -> Buffer:
        """What `range` finds, in memory. Raises what `range` raises."""
        found = self.range(
            offset, max_bytes=max_bytes, min_one=min_one, before_offset=before_offset
        )
        if not isinstance(found, FileRange):
            return found
        with self._disk.errors():
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
        """Whole batches from the one with `offset` in it on, about `max_bytes` at most.

        The first batch may begin before `offset`. With `min_one` it is returned however large.
        Batches come from one segment; nothing is returned at the end of the log. They stay in
        their file, which may be deleted meanwhile, until somebody reads or sends them. With
        `synced` the log ends where it is known to be on disk; it also ends at `before_offset`,
        where a batch begins.

        Raises:
            OffsetOutOfRange: the log does not reach there.
            CorruptData: the place is damaged; says where.
            LogDirectoryError: the disk refused.
        """
        end_offset = self._segments.active.next_offset
        if not self._start_offset <= offset <= end_offset:
            with self._disk.errors():
                self._check_end()  # Or who has read what is lost now would begin anew elsewhere.
            raise self._out_of_range(offset)
        with self._disk.errors():
            if offset == end_offset:
                self._check_end()
                return b""
            if synced and offset >= self.synced.offset:
                return b""
            segment = self._segments.segment_of(offset)
            end = None
            if synced and segment.base_offset == self.synced.base_offset:
                end = self.synced.position
            if before_offset is not None and before_offset < segment.next_offset:
                if offset >= before_offset:
                    return b""
                end = segment.position_of(before_offset)
            found = segment.range(offset, max_bytes, min_one=min_one, limit=end)
            self.found_end_offset = segment.found_end_offset
            return found

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record that is not older; None if all are.

        Raises:
            CorruptData: a batch on the way is damaged.
            LogDirectoryError: the disk refused.
        """
        with self._disk.errors():
            found = self._segments.first_not_before(timestamp_ms, self._start_offset)
        return None if found is None else (found.offset, found.timestamp_ms)

    def max_timestamp(self) -> tuple[int, int] | None:
        """Offset and timestamp of the newest record, the first of them; None if none has one.

        Raises:
            CorruptData: its batch is damaged.
            LogDirectoryError: the disk refused.
        """
        with self._disk.errors():
            newest = self._segments.newest(self._start_offset)
        return None if newest is None else (newest.offset, newest.timestamp_ms)

    def configure(self, config: TopicConfig) -> None:
        """Go on with other settings; segments that are there stay as they are."""
        self._config = self._segments.config = config

    def advance_start(self, offset: int) -> None:
        """Delete what is before `offset`: nobody can read it any more.

        It is for good once the directory has written its checkpoints, and `retire` may not be
        called before.

        Raises:
            OffsetOutOfRange: the log ends before `offset`.
            LogDirectoryError: the log has failed.
        """
        if not self._read_only:
            self.check_open()
        if not START_OFFSET <= offset <= self.log_end_offset:
            raise self._out_of_range(offset)
        self._start_offset = max(self._start_offset, offset)

    def set_start(self, offset: int) -> None:
        """The log is about to begin again at `offset`; see `Truncation.begin_restart`."""
        self._start_offset = offset

    def expire(self, *, high_watermark: int, wall_ms: int, now_ms: int) -> None:
        """Delete the segments whose time is over by the topic's settings; see `advance_start`.

        Only whole segments go, the oldest first, and nothing from `high_watermark` on: who has
        written that may not have been told so yet. One that is written to is sealed before.

        Raises:
            LogDirectoryError: the disk refused, or the log has failed.
        """
        self.check_open()
        with self._disk.errors():
            count = expired_segments(self._segments, self._config, wall_ms=wall_ms)
            count = min(count, self._segments.count_before(high_watermark))
            if not count:
                return
            if count == len(self._segments):
                self._roll(is_doomed=True)
                self._rolling.begin(now_ms)
            self.advance_start(self._segments.base_offset(count))

    @property
    def has_expired_files(self) -> bool:
        """Whether `retire` would find something to do."""
        return self._segments.has_first_before(self._start_offset)

    def retire(self, *, kept_start: int | None = None) -> list[str]:
        """Take the files of what is before the log start out of the log, by renaming them.

        `kept_start` is the log start that was made durable, if it may have moved since.

        Returned are the paths to be removed, `file.delete.delay.ms` later.

        Raises:
            LogDirectoryError: the disk refused; the rest can be retired later.
        """
        renamed: list[str] = []
        with self._disk.errors():
            start = self._start_offset if kept_start is None else kept_start
            while self._segments.has_first_before(start):
                renamed += self._segments.retire_first()
            self.epochs.trim(start)
        return renamed

    def flush(self) -> None:
        """Return when everything appended is on disk.

        Raises:
            LogDirectoryError: the disk refused; nothing more is taken.
        """
        self.check_open()
        if self._dirty:
            self._sync([*self._segments.unsynced, self._segments.active])
            self._segments.unsynced = []
            self._dirty = False
            self.synced = max(self.synced, self._end())

    def begin_sync(self, *, sealed_only: bool = False) -> PendingSync | None:
        """Take up bringing to disk what is in the log by now; None if there is nothing to do.

        The caller runs what is returned, in whatever thread, and gives it to `end_sync`. With
        `sealed_only` the open segment is left to the system.

        Raises:
            LogDirectoryError: the files can't be opened.
        """
        active = self._segments.active
        end = SyncedEnd(active.base_offset, active.base_offset, 0) if sealed_only else self._end()
        if self._closed or self._disk.failure is not None:
            return None
        if end.offset <= self.synced.offset and not self._segments.has_unsynced:
            return None
        segments = self._segments.unsynced if sealed_only else [*self._segments.unsynced, active]
        files: list[File] = []
        with self._disk.errors():
            for segment in segments:
                files += segment.files_to_sync()
        names = self._segments.sync_names if self._segments.names_are_due else None
        sealed, generation = tuple(self._segments.unsynced), self.truncation.generation
        return PendingSync(end, sealed, tuple(files), names, generation)

    def end_sync(self, pending: PendingSync) -> None:
        """A sync has succeeded: everything up to its end is on disk."""
        unsynced = self._segments.unsynced
        self._segments.unsynced = [each for each in unsynced if each not in pending.sealed]
        self._segments.note_named(pending.names is not None, pending.end.base_offset)
        if pending.generation == self.truncation.generation:
            self.synced = max(self.synced, pending.end)

    def check_open(self) -> None:
        """Whether it takes anything.

        Raises:
            LogDirectoryError: it has failed.
            UnknownTopicOrPartition: it was closed, or deleted.
            UsageError: it was opened for reading only.
        """
        if self._disk.failure is not None:
            raise self._disk.failure
        if self._closed:
            raise UnknownTopicOrPartition(f"{self.name} has been closed, or its topic deleted")
        if self._read_only:
            raise UsageError(f"{self.name} was opened for reading only")

    def fail(self, failure: LogDirectoryError) -> None:
        """Take nothing more: the disk is not to be trusted."""
        if self._disk.failure is None:
            self._disk.failure = failure

    def sealed_segments(self, *, before_offset: int) -> Iterator[Segment]:
        """The segments that end at `before_offset` at the latest and are on disk as a whole.

        They are looked at as they are reached, which may take a moment for each.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self.check_open()
        limit = min(before_offset, self.recovery_point)
        with self._disk.errors():
            yield from self._segments.sealed_before(limit)

    def has_segment(self, segment: Segment) -> bool:
        """Whether it still is part of the log."""
        return segment in self._segments

    def cleaned_segment(self, base_offset: int) -> Segment:
        """A segment to be made and filled, which is none of the log's yet."""
        return self._segments.unfinished(base_offset)

    def begin_swap(self, replaced: Sequence[Segment], cleaned: Segment) -> swap.Swap:
        """Put `cleaned`, which is on disk, in the place of segments that follow each other.

        It is read from now on. Next the caller has to `take_out` what was replaced, in whatever
        thread, and then to call `end_swap`.

        Raises:
            UnknownTopicOrPartition: the log, or one of the segments, is gone.
            LogDirectoryError: the disk refused; nothing more is taken until the next opening.
        """
        self.check_open()
        place = self._segments.place_of(replaced)
        try:
            return self._segments.swap(place, cleaned)
        except OSError as error:
            raise self._disk.failed(error) from error

    def end_swap(self, begun: swap.Swap) -> None:
        """What was replaced is taken out: give the files of the cleaned segment their names.

        Raises:
            LogDirectoryError: the disk refused; nothing more is taken until the next opening.
        """
        if self._closed or begun.cleaned not in self._segments:
            return  # Deleted meanwhile, or as far as it goes by retention.
        try:
            begun.settle()
        except OSError as error:
            raise self._disk.failed(error) from error

    def close(self) -> None:
        """Bring everything to disk, so that the next opening need not scan, and close.

        Raises:
            LogDirectoryError: the disk refused; the next opening will scan.
        """
        if self._closed:
            return
        try:
            if not self._read_only and self._disk.failure is None:
                self._settle()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close without bringing anything to disk: the log is about to be deleted, or broken."""
        self._closed = True
        self._segments.close()

    def _begin_at_start(self) -> None:
        """Go on at the log start if a power cut took everything up to there.

        Those offsets were given out, and what had them was deleted on purpose.
        """
        if self.log_end_offset < self._start_offset and self.recovery_point <= self._start_offset:
            self._segments.begin_again(self._start_offset)

    def _end(self) -> SyncedEnd:
        active = self._segments.active
        return SyncedEnd(active.next_offset, active.base_offset, active.size_bytes)

    def _take_over(self) -> None:
        """Get ready to append."""
        self._segments.report(self.recovery)
        self._segments.active.unseal()
        self._producers.restore()
        if self.recovery.unsynced_segments:
            with self._disk.errors():
                found = self._segments.rewrite_unsynced(self.recovery, self.recovery_point)
            self._sync(found)
        if self.recovery.scanned_segments:
            self._segments.note_unwritten_indexes(
                self._segments.last(self.recovery.scanned_segments)
            )
        # Of a damaged end it is known that more had been on disk.
        self.synced = self._end()._replace(offset=max(self.recovery_point, self.log_end_offset))

    def _check_end(self) -> None:
        if self._segments.active.has_damaged_end:
            raise CorruptData(str(self._segments.active.damage[-1]))

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{self.name}: offset {offset} is not in the log, which has offsets"
            f" {self._start_offset} to {self.log_end_offset - 1}"
        )

    def _append_control(self, control: bytes, now_ms: int) -> AppendResult:
        """Append a control batch of the broker's own."""
        offset, data = self._segments.active.next_offset, bytearray(control)
        place_batch(data, offset, self.epochs.current)
        batch = RecordBatch(data)
        self._write(data, [batch], now_ms)
        self._producers.note(batch, offset)
        return AppendResult(offset, offset, -1, len(data))

    def _write(self, data: Content, batches: list[RecordBatch], now_ms: int) -> None:
        try:
            if self._segments.has_unwritten_indexes:
                self._segments.settle_indexes()
            self.epochs.note(self._segments.active.next_offset)
            last = self._segments.active
            if self._rolling.due(last, self._config, size_of(data), batches, now_ms=now_ms):
                self._roll()
            segment = self._segments.active
            self._disk.check_linked(segment, now_ms)
            if segment.size_bytes == 0:
                self._rolling.begin(now_ms)
            self._dirty = True
            segment.append(data, batches)
        except OSError as error:
            raise self._disk.noted(error) from error

    def roll_late(self, now_ms: int) -> None:
        """Begin the segment that was postponed, if that has not been done meanwhile.

        Raises:
            LogDirectoryError: the disk refused; the next append tries again.
        """
        active = self._segments.active
        if self._closed or self._disk.failure is not None or active.has_damaged_end:
            return
        if active.size_bytes and self._rolling.is_time(
            active, self._config, active.max_timestamp_ms, now_ms=now_ms
        ):
            with self._disk.errors():
                self._roll()
            self._rolling.begin(now_ms)

    def _roll(self, *, is_doomed: bool = False) -> None:
        """Begin a segment; every step may fail and be tried again with the next append.

        Of one that is sealed to be deleted, nothing has to fit on a full disk.
        """
        sealed = self._segments.active
        for write in (sealed.trim_indexes, self._producers.keep):
            if is_doomed:
                sealed.write_if_space(write)
            else:
                write()
        self._segments.add(sealed.next_offset, durable=not self.syncs_off_loop)
        sealed.close()
        if self.syncs_off_loop and len(self._segments.unsynced) < UNSYNCED_MAX:
            self._segments.unsynced = [*self._segments.unsynced, sealed]
            return
        self._sync(self._segments.unsynced)
        self._segments.unsynced = [sealed]
        self.synced = max(self.synced, SyncedEnd(sealed.base_offset, sealed.base_offset, 0))

    def _sync(self, segments: list[Segment]) -> None:
        try:
            for segment in segments:
                segment.sync()
            if self._segments.names_are_due:
                self._segments.sync_names()
                self._segments.names_are_due = False
        except OSError as error:
            # The kernel may have dropped the pages: a second sync would succeed and lie.
            raise self._disk.failed(error) from error

    def _settle(self) -> None:
        with self._disk.errors():
            self._segments.settle_indexes()
            behind = self._segments.active.has_stale_indexes or self._segments.has_unsynced
            if self._dirty or behind:
                self._segments.active.trim_indexes()
                self._segments.active.close()
                self._dirty = True
                self.flush()
            self._producers.keep()
