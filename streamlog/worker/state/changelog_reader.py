"""Changelog reader: reads a changelog into the store of a task, to an end or continuously.

A restore reads up to a known end (`reach`); a standby reads on (`step`).

Rules: the progress of a store is an offset, not a record, because markers, aborted records and
compacted records take offsets and yield no record. A slice is small enough to be applied on the
event loop, between two heartbeats of the consumer group; only work that waits for the disk runs on
a thread. A store that is far behind is filled in bulk (`tables/local_disk/rocksdb_store`). The
records that a store lost in a crash are held in memory, as commits are
(`tables/state/store_transaction`).
Not done here: the owner of a changelog (`restore`).
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Protocol, Self, TypeVar

from streamlog import repeated
from streamlog.client.consumer import Consumer
from streamlog.client.offset_lookup import Isolation
from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.client.range_reader import RangeReader
from streamlog.clock import Clock
from streamlog.errors import UnsupportedVersion
from streamlog.log import Log
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.record_columns import RecordColumns
from streamlog.tables.local_disk.rocksdb_store import RocksStore
from streamlog.tables.state.changelog import (
    BASE_KEY,
    PROGRESS_KEY,
    TRUNCATED,
    ReadUpTo,
    Restoration,
    changelog_offset,
    crc_of,
    stored_read_up_to,
)
from streamlog.tables.state.store_transaction import REPLAY_RECORDS_MAX, DeferredStore
from streamlog.tables.stores.store import Change, KeyValueStore
from streamlog.worker.topics.app_topics import DELETE_RETENTION_MS


async def find_departure(
    log: Log,
    consumer: Consumer,
    changelog: TopicPartition,
    store: KeyValueStore,
    *,
    topic_id: bytes,
    begin: int,
) -> str:
    """Return why the store was not built from this changelog; empty if it was, or if unknown.

    Args:
        log: the log.
        consumer: a consumer of the changelog.
        changelog: the changelog's partition.
        store: the store.
        topic_id: the id of the changelog's topic.
        begin: the log start offset of the changelog.
    """
    read, position = stored_read_up_to(store), changelog_offset(store)
    if read is None:
        return ""  # Written by an older version, or by a snapshot, which do not note it.
    if ZERO_UUID not in (read.topic_id, topic_id) and read.topic_id != topic_id:
        return "it was deleted and created again"
    if read.offset < position:
        # The task wrote the records from `read.offset` on itself, and noted no epoch for them: the
        # last of them has to be the progress that the store holds.
        record = await _record(log, changelog, position - 1)
        if record is not None:
            is_own = (record.key, record.value) == (PROGRESS_KEY, store.get(PROGRESS_KEY))
            return "" if is_own else _other_at(position - 1)
    if begin <= read.last_offset < position:
        # 1. The log is truncated, or an old backup restored. 2. New records reach
        # the same leader epoch again. 3. The epochs agree; only the content differs.
        record = await _record(log, changelog, read.last_offset)
        if record is not None and crc_of(record.key, record.value) != read.last_crc:
            return _other_at(read.last_offset)
    return await _parted(consumer, changelog, read, min(read.offset, position))


def _other_at(offset: int) -> str:
    return f"{TRUNCATED}: offset {offset} has another record"


async def is_truncated(
    consumer: Consumer, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> bool:
    """Return whether a log was truncated below a position; False if unknown (KIP-320)."""
    try:
        return bool(await consumer.truncated(offsets))
    except UnsupportedVersion:
        return False


async def _parted(
    consumer: Consumer, changelog: TopicPartition, read: ReadUpTo, position: int
) -> str:
    reached = OffsetAndMetadata(position, leader_epoch=read.leader_epoch)
    if not await is_truncated(consumer, {changelog: reached}):
        return ""
    return f"{TRUNCATED}: leader epoch {read.leader_epoch} ends before offset {position}"


async def _record(log: Log, changelog: TopicPartition, offset: int) -> LogRecord | None:
    """Return the record at an offset before the log's end; None if compaction has removed it."""
    records = await log.read_range(changelog, offset, offset + 1, isolation="read_uncommitted")
    return next(iter(records), None)


logger = repeated.logger(__name__)

T = TypeVar("T")
"""The result of work on the disk."""

SLICE_RECORDS = 5_000
"""The number of records applied without a pause: about 5 ms."""
FILLING_RECORDS_MIN = 50_000
"""A store that is this far behind is filled in bulk. That opens it twice more: about 20 ms."""
TAIL_RECORDS_MAX = 2 * REPLAY_RECORDS_MAX
"""The largest lag of a store after a crash, unless commits were very large."""
FETCH_BYTES = 4 * 1024 * 1024
"""The size of one fetch."""
POLL_MS = 20
"""The longest delay until an end without a record, such as a transaction marker, is noticed."""
NOTHING_READ = (-1, 0)
MARKERS_MAX = 100
"""The offsets at the end of a changelog in which its last record is looked for."""
LACKING = "Records that the changelog lacks are processed again, so their rows may be written twice"


class Admission(Protocol):
    """Port: decides which records of a changelog count."""

    def admit(self, records: RecordColumns) -> Iterable[Change]:
        """Return the changes of these records that count; call it in the order of the log."""

    def begin_anew(self) -> None:
        """Forget all records before this point: a hand-over starts the state anew."""


class ChangelogReader:
    """Reads one changelog into one store; an async context manager, used by one task."""

    def __init__(
        self,
        log: Log,
        store: RocksStore,
        *,
        changelog: TopicPartition,
        admission: Callable[[RocksStore], Admission],
        clock: Clock,
        isolation: Isolation = "read_uncommitted",
        front: DeferredStore | None = None,
    ) -> None:
        """Create a reader.

        Args:
            log: the log.
            store: the store to bring up to date.
            changelog: the changelog's partition.
            admission: returns the admission for the store as it is at the start.
            clock: the clock.
            isolation: the isolation level of the reads.
            front: the commits above the store; records that a crash has lost are added there.
        """
        self.records = 0
        """The number of records applied."""
        self._log = log
        self._changelog = changelog
        self._topic_id = ZERO_UUID
        self._last = NOTHING_READ
        self._store = store
        self._front = front
        self._fills = True
        self._admission_of = admission
        self._clock = clock
        self._isolation: Isolation = isolation
        self._consumer = log.consumer(
            auto_offset_reset="none",
            max_partition_fetch_bytes=FETCH_BYTES,
            isolation_level=isolation,
        )

    async def __aenter__(self) -> Self:
        """Read the changelog's offsets, and decide whether the store can be continued."""
        consumer, changelog = await self._consumer.__aenter__(), self._changelog
        try:
            begin = (await consumer.begin_offsets([changelog]))[changelog]
            self.end = (await consumer.end_offsets([changelog]))[changelog]
            self._topic_id = await consumer.topic_id(changelog.topic)
            self._restoration = Restoration(
                self._store,
                start_offset=begin,
                end_offset=self.end,
                complete_offset=await find_complete_offset(
                    self._log,
                    consumer,
                    changelog,
                    wall_ms=self._clock.wall_ms(),
                    bounds=(begin, self.end),
                    isolation=self._isolation,
                ),
                departure=await self._departure(consumer, begin),
            )
            if (read := stored_read_up_to(self._store)) is not None:
                self._last = read.last_offset, read.last_crc
            if self._front is not None and self._lacks_a_tail:
                # The lost records are held in `front`, above the store; filling in bulk would write
                # past it.
                self._restoration.resume_in(self._front)
                self._fills = False
            self.admission = self._admission_of(self._store)
            consumer.assign([changelog])
            consumer.seek(changelog, OffsetAndMetadata(self.position, topic_id=self._topic_id))
        except BaseException:
            await consumer.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._consumer.__aexit__(exc_type, exc, traceback)

    @property
    def position(self) -> int:
        """The store reflects the changelog before this offset."""
        return self._restoration.position

    @property
    def rebuilt(self) -> bool:
        """Whether the store did not match the changelog and was emptied."""
        return self._restoration.rebuilt

    def warn_if_rebuilt(self, path: str) -> None:
        """Log why the state in this directory is rebuilt, if it is."""
        why = self._restoration.why
        if why.startswith(TRUNCATED):
            why += f". {LACKING}"
        if why:
            logger.warning(
                "state in %s does not match changelog %s-%d and is rebuilt from it: %s",
                path,
                *self._changelog,
                why,
            )

    @property
    def lag(self) -> int:
        """The number of offsets that the store is behind, as of the last fetch."""
        known = self._consumer.lag(self._changelog)
        return max(self.end - self.position, 0) if known is None else known

    @property
    def _lacks_a_tail(self) -> bool:
        """Whether the store was in use and lacks only the records that a crash has lost."""
        found = self._restoration
        return not (found.is_new or found.rebuilt) and found.remaining <= TAIL_RECORDS_MAX

    async def reach(self, end_offset: int) -> None:
        """Bring the store up to `end_offset`, which the changelog has.

        Raises:
            RequestTimedOut: the read has stalled.
            OffsetOutOfRange: the changelog was truncated meanwhile.
        """
        is_far = self._fills and end_offset - self.position >= FILLING_RECORDS_MIN
        if is_far:
            await offload(self._store.begin_filling)
        reader = RangeReader(self._consumer, {self._changelog: end_offset}, self._clock)
        # `step` applies all that it has polled: the consumer's position is the store's.
        while not await reader.is_at_end():
            await self.step(timeout_ms=POLL_MS)
        if is_far:
            await offload(self._store.end_filling)

    async def step(self, *, timeout_ms: int) -> bool:
        """Apply the next records, after at most `timeout_ms`; returns whether it moved."""
        polled = await self._consumer.poll_columns(timeout_ms=timeout_ms, max_records=SLICE_RECORDS)
        next_offset = self._consumer.positions()[self._changelog]
        # The position shows progress, and not the records: a transaction marker, an aborted record
        # or a compacted one moves it without yielding any.
        if next_offset == self.position:
            return False
        epoch = self._consumer.offset_and_metadata(self._changelog, next_offset).leader_epoch
        records = polled.get(self._changelog, RecordColumns())
        if records:
            crc = crc_of(records.keys[-1], records.values[-1])
            self._last = records.offsets[-1], crc
        read = ReadUpTo(next_offset, epoch, self._topic_id, *self._last)
        # Before `apply`: after a crash in between, the noted offset is ahead of the store's, which
        # `find_departure` allows for.
        self._restoration.read_up_to(None if epoch == NO_EPOCH else read)
        self.apply(records, next_offset=next_offset)
        return True

    def apply(self, records: RecordColumns, *, next_offset: int) -> None:
        """Apply the records from `position` up to, but not including, `next_offset`.

        The garbage collector is paused. It would visit thousands of records after every few hundred
        new changes and find no cycle, which took a third of the time.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._apply(records, next_offset)
        finally:
            if was_enabled:
                gc.enable()
        self.records += len(records)

    def _apply(self, records: RecordColumns, next_offset: int) -> None:
        """Apply records, split at each base of a hand-over."""
        low, restoration = 0, self._restoration
        while BASE_KEY in (keys := records.keys[low:]):
            high = low + keys.index(BASE_KEY)
            before = self.admission.admit(records[low:high])
            restoration.apply(before, next_offset=records.offsets[high])
            restoration.begin_anew()
            self.admission.begin_anew()
            low = high + 1
        rest = records[low:] if low else records
        restoration.apply(self.admission.admit(rest), next_offset=next_offset)

    async def _departure(self, consumer: Consumer, begin: int) -> str:
        """Return why the store can't be continued; empty if it can, or if unknown."""
        # A store beyond these bounds is rebuilt anyway (`Restoration`). For a store that is new, or
        # at the start of the log, there is no record to compare.
        if not begin < changelog_offset(self._store) <= self.end:
            return ""
        return await find_departure(
            self._log,
            consumer,
            self._changelog,
            self._store,
            topic_id=self._topic_id,
            begin=begin,
        )


async def find_complete_offset(
    log: Log,
    consumer: Consumer,
    changelog: TopicPartition,
    *,
    wall_ms: int,
    bounds: tuple[int, int],
    isolation: Isolation,
) -> int:
    """Return the offset from which on no tombstone can have been compacted away.

    Args:
        log: the log.
        consumer: a consumer of the changelog.
        changelog: the changelog's partition.
        wall_ms: the time of the wall clock.
        bounds: the changelog's first offset, and the offset behind its last one.
        isolation: the isolation level of the reads.
    """
    begin, end = bounds
    since_ms = wall_ms - DELETE_RETENTION_MS // 2  # Half, as clocks may differ.
    found = await consumer.offsets_for_times({changelog: since_ms})
    start = found[changelog]
    if start is not None:
        return start.offset
    # 1. A task commits at offsets 50 to 60; the marker of its transaction is at 61. Its store says
    #    61, the end is 62. 2. The task is idle for 12 hours and restarts. 3. A later commit would
    #    have left its progress behind 61, which compaction keeps until the next commit. There is no
    #    record, so there was no commit, and nothing that the store lacks.
    first = max(begin, end - MARKERS_MAX)
    tail = await log.read_range(changelog, first, end, isolation=isolation)
    return tail.offsets[-1] + 1 if tail else end


async def offload(work: Callable[[], T]) -> T:
    """Run blocking work on a thread; a cancelled caller still waits until the work has ended."""
    # A thread can't be cancelled. If the caller left before it ends, it could close the store that
    # the thread still uses.
    done = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise
