"""SubscriptionState: a consumer's topics, its positions, and the records that it has fetched.

A partition has two positions: `position` is the offset of the next record for the caller, and
`fetch_offset` is the offset of the next fetch. `EpochStarts` remembers the leader epoch of the
record before a position (KIP-320). `Subscription` holds the topics or the pattern. A state machine
without I/O. Not done here: requests.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum, auto
from typing import Final, Generic, Self, TypeAlias, TypeVar

import msgspec

from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.errors import CorruptData, DamagedBatch, UsageError
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord, RecordBatch, split_batches
from streamlog.records.control_batches import (
    TIME_MARK,
    AbortedBatches,
    AbortedRange,
    ClockTime,
    Marker,
    TimeMark,
    marker_of,
    time_mark_of,
)
from streamlog.records.record_columns import RecordColumns

EPOCHS_MAX: Final = 128
"""Epochs remembered per partition. The epoch of an older record counts as unknown."""


class EpochStarts:
    """The leader epochs of one partition, each with its first offset."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, position: int = 0, leader_epoch: int = NO_EPOCH) -> None:
        """Start at a position; the record before it has this epoch."""
        self._starts: list[int] = [position - 1]
        self._epochs: list[int] = [leader_epoch]

    def note(self, offset: int, leader_epoch: int) -> None:
        """Note the epoch of a batch that begins at `offset`; call it with ascending offsets."""
        if leader_epoch == self._epochs[-1]:
            return
        self._starts.append(offset)
        self._epochs.append(leader_epoch)
        if len(self._starts) > EPOCHS_MAX:
            del self._starts[0], self._epochs[0]

    def before(self, position: int) -> int:
        """Return the epoch of the record before a position; -1 if it is unknown."""
        at = bisect_left(self._starts, position) - 1
        return self._epochs[at] if at >= 0 else NO_EPOCH

    def end_of(self, leader_epoch: int, end: int) -> int:
        """Return `end`, or the first offset that was read in a later epoch, if that is smaller."""
        for start, epoch in zip(self._starts, self._epochs, strict=True):
            if epoch > leader_epoch:
                return min(max(start, 0), end)
        return end


NO_MARK = -1
"""No time mark is requested."""
NO_CLOCK_TIME = ClockTime("", NO_MARK)
"""The requested mark carries no event time."""
_NO_CRC = 0
"""The CRC of transaction markers from librdkafka's mock cluster, which is accepted. The check loses
little: random damage yields 0 as rarely as the right CRC, and damage that zeroes bytes also zeroes
the magic byte before it or the control bit behind it."""

R = TypeVar("R", list[LogRecord], RecordColumns)
"""Records of one partition, as `take` or `take_columns` returns them."""
D = TypeVar("D", list[LogRecord], RecordColumns, list[RecordBatch])
"""Records of one partition, as `take`, `take_columns` or `take_batches` returns them."""

# Every move of a partition gets an era of its own, so that a late answer is recognized:
# 1. A fetch of t-0 at offset 100 is in flight.
# 2. t-0 is revoked, assigned again, and starts at offset 40.
# 3. The answer with the records from 100 on arrives. Buffered, it would skip 40 to 99.
# A counter per partition would start again in step 2 and not see the difference.
_eras = itertools.count()


def known_id(topic_id: bytes) -> bytes | None:
    """Return a topic id; None for zero, which means unknown."""
    return None if topic_id == ZERO_UUID else topic_id


class PositionStart(Enum):
    """How to find the position of a partition that has none."""

    COMMITTED = auto()
    """By the group's committed offset; if there is none, by `auto_offset_reset`."""
    RESET = auto()
    """By `auto_offset_reset`: the log does not hold the old position."""
    EARLIEST = auto()
    LATEST = auto()


class PartitionState:
    """The position, the buffer and the fetch state of one assigned partition."""

    __slots__ = (
        "aborted", "after_rest", "batches", "buffered_bytes", "corrupt", "epochs", "era",
        "fetch_offset", "fetched_epoch", "high_watermark", "in_flight", "is_held", "leader_epoch",
        "log_start_offset", "mark_after_ms", "mark_clock_time", "marks", "not_before_ms", "paused",
        "position", "replica", "replica_until_ms", "rest", "stable_offset", "start", "topic_id",
    )  # fmt: skip

    def __init__(self) -> None:
        self.era = next(_eras)
        self.position: int | None = None
        self.fetch_offset, self.log_start_offset = 0, -1
        """The offset of the next fetch; and the first of the log as of the last, -1 if unknown."""
        self.start = PositionStart.COMMITTED
        self.leader_epoch = NO_EPOCH
        """Leader epoch of the record before the position."""
        self.fetched_epoch = NO_EPOCH
        """Leader epoch of the record before `fetch_offset`. The broker compares it with its own log
        and reports where the two diverge (KIP-320)."""
        self.topic_id: bytes | None = None
        """Id of the topic that the position belongs to; None until it is known. A topic that is
        created again has another id, and its offsets and epochs start again."""
        self.epochs = EpochStarts()
        """Leader epochs of the records that were taken."""
        self.paused = False
        self.is_held = False
        """Whether `on_assigned` runs, which may still move the partition: nothing is fetched."""
        self.in_flight: int | None = None
        """The era of the last fetch request for the partition that is in flight."""
        self.not_before_ms = 0
        self.replica: int | None = None
        """The broker to read from instead of the leader (KIP-392)."""
        self.replica_until_ms = 0
        """Until when `replica` is used; if it is None, until when the reader stays at the leader
        and does not ask for a nearer replica."""
        self.high_watermark: int | None = None
        self.stable_offset: int | None = None
        """The last stable offset, below which "read_committed" reads."""
        self.batches: deque[RecordBatch] = deque()
        self.aborted: set[int] = set()
        """Base offsets of the batches in `batches` that belong to aborted transactions."""
        self.rest: list[LogRecord] | RecordColumns = []
        """Decoded records for which the last `take` had no room."""
        self.after_rest = 0
        """The position once `rest` is taken."""
        self.corrupt: CorruptData | None = None
        """Why the first batch in `batches` can't be read."""
        self.buffered_bytes = 0
        self.mark_after_ms, self.mark_clock_time = NO_MARK, NO_CLOCK_TIME
        """Milliseconds without an append after which the caller wants a time mark, and the event
        time to which the mark brings the readers of a clock."""
        self.marks: list[TimeMark] = []
        """Time marks that were passed and not returned yet, if they are kept."""

    def move(
        self,
        position: int | None,
        start: PositionStart = PositionStart.RESET,
        *,
        leader_epoch: int = NO_EPOCH,
        topic_id: bytes | None = None,
    ) -> None:
        """Set the position; None means that it must be looked up by `start`. Drops the buffer."""
        self.era = next(_eras)
        self.position = position
        self.leader_epoch = self.fetched_epoch = leader_epoch
        self.topic_id = topic_id
        self.epochs = EpochStarts(position or 0, leader_epoch)
        self.fetch_offset = position or 0
        self.start = start
        self.batches.clear()
        self.aborted.clear()
        self.rest = []
        self.corrupt = None
        self.buffered_bytes = 0
        self.not_before_ms = 0
        self.marks = []

    def offset_and_metadata(self, offset: int) -> OffsetAndMetadata:
        """Return an offset with its topic id, and with its leader epoch up to the position."""
        is_read = self.position is not None and offset <= self.position
        epoch = self.epochs.before(offset) if is_read else NO_EPOCH
        return OffsetAndMetadata(offset, "", epoch, self.topic_id or ZERO_UUID)

    @property
    def is_drained(self) -> bool:
        """Whether all fetched records have been taken."""
        return not self.batches and not self.rest

    def keep_at_leader(self, until_ms: int) -> None:
        """Read from the leader until `until_ms`, even if a replica is nearer."""
        self.replica, self.replica_until_ms = None, until_ms

    def is_kept_at_leader(self, now_ms: int) -> bool:
        """Whether requests to the leader must not name the reader's rack.

        A leader that knows the rack would redirect the reader to a nearer replica.
        """
        return self.replica is None and now_ms < self.replica_until_ms

    def cut(self, end: OffsetAndMetadata) -> None:
        """Drop what was fetched behind `end`: the log was truncated there."""
        topic_id = self.topic_id
        # If the position is not beyond the end, only buffered records are lost, and the caller has
        # seen nothing of what was truncated.
        if self.position is not None and self.position <= end.offset:
            self.move(self.position, leader_epoch=self.leader_epoch, topic_id=topic_id)
        else:
            self.move(end.offset, leader_epoch=end.leader_epoch, topic_id=topic_id)


class _Form(msgspec.Struct, Generic[D], frozen=True):
    """A form of records: how to decode a batch, and how to start from records that are decoded."""

    decode: Callable[[RecordBatch], D]
    gathered: Callable[[Iterable[LogRecord]], D]


_LISTS: Final[_Form[list[LogRecord]]] = _Form(RecordBatch.records, list)
_COLUMNS: Final[_Form[RecordColumns]] = _Form(RecordBatch.columns, RecordColumns.of)
_BATCHES: Final[_Form[list[RecordBatch]]] = _Form(lambda batch: [batch], lambda _: [])


class SubscriptionState:
    """The state of all partitions that are assigned to a consumer."""

    def __init__(self, *, keeps_marks: bool = False) -> None:
        """With `keeps_marks`, time marks are kept for `take_marks`."""
        self._keeps_marks = keeps_marks
        self._states: dict[TopicPartition, PartitionState] = {}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the assignment; partitions that are in the old one, too, keep their state."""
        # Sorted, so that the order of requests does not depend on hashes: simulated runs repeat.
        in_order = sorted(partitions) if isinstance(partitions, AbstractSet) else partitions
        wanted = dict.fromkeys(in_order)
        self._states = {
            partition: self._states.get(partition) or PartitionState() for partition in wanted
        }

    def assigned(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(self._states)

    def state(self, partition: TopicPartition) -> PartitionState:
        """Return the state of an assigned partition.

        Raises:
            UsageError: the partition is not assigned.
        """
        state = self._states.get(partition)
        if state is None:
            raise UsageError(
                f"{partition.topic}-{partition.partition} is not assigned to this consumer"
            )
        return state

    def get(self, partition: TopicPartition) -> PartitionState | None:
        """Return the state of a partition; None if it is not assigned (any more)."""
        return self._states.get(partition)

    def items(self) -> Collection[tuple[TopicPartition, PartitionState]]:
        """Return every assigned partition with its state."""
        return list(self._states.items())

    def consumed(self) -> dict[TopicPartition, int]:
        """Return the known positions, which a commit stores."""
        return {
            partition: state.position
            for partition, state in self._states.items()
            if state.position is not None
        }

    def offsets_and_metadata(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the known positions, with leader epoch and topic id."""
        return {
            partition: OffsetAndMetadata(
                state.position, "", state.leader_epoch, state.topic_id or ZERO_UUID
            )
            for partition, state in self._states.items()
            if state.position is not None
        }

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop look-ups and fetches for partitions while `on_assigned` runs."""
        for partition in partitions:
            self.state(partition).is_held = True

    def let_go(self) -> None:
        """Allow look-ups and fetches for all partitions again."""
        for state in self._states.values():
            state.is_held = False

    def put(
        self,
        partition: TopicPartition,
        era: int,
        data: bytes | bytearray | memoryview,
        aborted: Iterable[AbortedRange] = (),
    ) -> int:
        """Buffer fetched batches.

        Args:
            partition: the partition that was fetched.
            era: `PartitionState.era` when the request was made; data of another era is dropped.
            data: whole batches.
            aborted: the aborted transactions among them, whose records `take` leaves out.

        Returns:
            The number of bytes that were buffered.

        Raises:
            CorruptData: the bytes are not batches.
        """
        state = self._states.get(partition)
        if state is None or state.era != era:
            return 0
        kept = 0
        hidden = AbortedBatches(aborted, marker_of=_marker)
        for batch in split_batches(data):
            # A damaged marker is kept even below the fetch offset. It may have ended a transaction,
            # so whether the records behind it are aborted is unknown: `take` raises at the marker
            # and returns nothing behind it.
            try:
                is_hidden, is_damaged = hidden.hides(batch), False
            except CorruptData:
                is_hidden, is_damaged = False, True
            if batch.next_offset <= state.fetch_offset and not is_damaged:
                continue  # Sent twice, or compaction has removed the records from the offset on.
            state.batches.append(batch)
            if is_hidden:
                state.aborted.add(batch.base_offset)
            state.fetch_offset = max(state.fetch_offset, batch.next_offset)
            state.fetched_epoch = batch.leader_epoch
            kept += batch.size_bytes
        state.buffered_bytes += kept
        return kept

    def take(self, records_max: int | None) -> dict[TopicPartition, list[LogRecord]]:
        """Take buffered records, at most `records_max`, and move the positions past them.

        A partition with records left over moves to the end of the order, so that no partition
        starves another.

        Raises:
            DamagedBatch: a batch is damaged; all records before it have been taken.
        """
        return self._taken(records_max, _LISTS)

    def take_columns(self, records_max: int | None) -> dict[TopicPartition, RecordColumns]:
        """Take buffered records as columns, which costs half as much as `take`.

        Raises:
            DamagedBatch: a batch is damaged; all records before it have been taken.
        """
        return self._taken(records_max, _COLUMNS)

    def take_batches(self) -> dict[TopicPartition, list[RecordBatch]]:
        """Take whole batches as they were fetched; don't mix with `take`.

        Control batches and batches of aborted transactions are left out. The first batch may begin
        before the position, because brokers send whole batches.

        Raises:
            DamagedBatch: a batch is damaged; all batches before it have been taken.
        """
        self._check()
        taken: dict[TopicPartition, list[RecordBatch]] = {}
        for partition, state in self._states.items():
            found = [] if state.paused else _batches_of(partition, state)
            if not self._keeps_marks:
                state.marks.clear()
            if found:
                taken[partition] = found
        if not taken:
            self._check()
        return taken

    def _taken(self, records_max: int | None, form: _Form[R]) -> dict[TopicPartition, R]:
        self._check()
        taken: dict[TopicPartition, R] = {}
        room = records_max
        for partition, state in list(self._states.items()):
            if state.paused or not (state.batches or state.rest):
                continue
            records = _take_from(partition, state, room, form)
            if not self._keeps_marks:
                state.marks.clear()
            if records:
                taken[partition] = records
            if room is None:
                continue
            room -= len(records)
            if room <= 0:
                self._states[partition] = self._states.pop(partition)
                break
        if not taken:
            self._check()
        return taken

    def _check(self) -> None:
        for state in self._states.values():
            if state.corrupt is not None:
                raise state.corrupt

    @property
    def has_marks(self) -> bool:
        """Whether `take_marks` would return a mark."""
        return self._keeps_marks and any(state.marks for state in self._states.values())

    def take_marks(self) -> dict[TopicPartition, list[TimeMark]]:
        """Take the time marks that were passed since the last call, in order of offset."""
        found: dict[TopicPartition, list[TimeMark]] = {}
        for partition, state in self._states.items():
            if state.marks:
                found[partition], state.marks = state.marks, []
        return found

    def has_records(self) -> bool:
        """Whether `take` would return records, or raise."""
        return any(
            (state.batches or state.rest) and not state.paused for state in self._states.values()
        )


def _take_from(
    partition: TopicPartition, state: PartitionState, room: int | None, form: _Form[R]
) -> R:
    taken, state.rest = form.gathered(state.rest), []
    if taken:
        state.position = state.after_rest
    while state.batches and (room is None or len(taken) < room):
        batch = state.batches[0]
        try:
            aborted = batch.base_offset in state.aborted
            records = form.gathered(()) if aborted else _decoded(partition, state, form)
        except CorruptData as corrupt:
            state.corrupt = corrupt
            break
        state.batches.popleft()
        state.aborted.discard(batch.base_offset)
        state.buffered_bytes -= batch.size_bytes
        position = state.position or 0
        if records and records[0].offset < position:
            # Brokers send whole batches: the first one may begin before the position.
            records = records[bisect_left(records, position, key=_offset_of) :]
        taken += records
        # The batch's next offset, not the last record's: compaction may have removed the records at
        # the batch's end, and a commit must not point into the gap.
        state.position = batch.next_offset
        state.leader_epoch = batch.leader_epoch
        state.epochs.note(batch.base_offset, batch.leader_epoch)
    if room is not None and len(taken) > room:
        state.after_rest = state.position or 0
        taken, state.rest = taken[:room], taken[room:]
        state.position = state.rest[0].offset
    return taken


def _batches_of(partition: TopicPartition, state: PartitionState) -> list[RecordBatch]:
    found: list[RecordBatch] = []
    while state.batches:
        batch = state.batches[0]
        try:
            if batch.base_offset not in state.aborted:
                found += _decoded(partition, state, _BATCHES)
        except CorruptData as corrupt:
            state.corrupt = corrupt
            break
        state.batches.popleft()
        state.aborted.discard(batch.base_offset)
        state.buffered_bytes -= batch.size_bytes
        state.position = batch.next_offset
        state.leader_epoch = batch.leader_epoch
        state.epochs.note(batch.base_offset, batch.leader_epoch)
    return found


def _marker(batch: RecordBatch) -> Marker | None:
    if batch.crc != _NO_CRC:
        batch.check_crc()
    return marker_of(batch)


def _offset_of(record: LogRecord) -> int:
    return record.offset


def _decoded(partition: TopicPartition, state: PartitionState, form: _Form[D]) -> D:
    """Decode the first buffered batch; a control batch yields no records, a time mark is noted."""
    batch = state.batches[0]
    try:
        if batch.is_control:
            marker = _marker(batch)
            mark = None
            if marker is not None and marker.kind == TIME_MARK:
                mark = time_mark_of(batch)
            if mark is not None and mark.offset >= (state.position or 0):
                state.marks.append(mark)
            return form.gathered(())  # Control batches only take up offsets.
        batch.check_crc()
        return form.decode(batch)
    except CorruptData as corrupt:
        offsets = batch.base_offset, batch.next_offset
        raise DamagedBatch.at(*partition, offsets, bytes(batch.data), str(corrupt)) from corrupt


Topics: TypeAlias = Sequence[str] | re.Pattern[str]
"""Topics by name, or a pattern."""


class Subscription(msgspec.Struct, frozen=True):
    """The subscribed topics: names, or a pattern."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, topics: Topics) -> Self:
        """Check and copy what the caller subscribes to.

        Raises:
            UsageError: `topics` is a single string, or a pattern of bytes.
        """
        if isinstance(topics, re.Pattern):
            if not isinstance(topics.pattern, str):
                raise UsageError(
                    f"the pattern {topics.pattern!r} is bytes, but topic names are str: compile it"
                    " from a str"
                )
            return cls(pattern=topics)
        if isinstance(topics, str):
            raise UsageError(f"subscribe takes a list of topics: use [{topics!r}]")
        return cls(names=tuple(sorted(set(topics))))

    def means(self, there: Iterable[str]) -> tuple[str, ...]:
        """Return the subscribed topics; `there` are all topics that are not internal."""
        if self.pattern is None:
            return self.names
        return tuple(sorted(name for name in there if self.pattern.fullmatch(name)))
