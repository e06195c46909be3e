"""SubscriptionState: a consumer's topics, its positions, and the records that it has fetched.

A partition has two positions: `position` is the offset of the next record for the owner,
`fetch_offset` that of the next fetch. `EpochStarts` remembers the leader epoch of the record before
a position (KIP-320); `Subscription` says which topics are subscribed to. Pure. Not done here:
requests.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, Self, TypeAlias, TypeVar

from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.errors import CorruptData, DamagedBatch, UsageError
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord, RecordBatch, split_batches
from streamlog.records.control_batches import (
    TIME_MARK,
    AbortedBatches,
    AbortedRange,
    Marker,
    MarkTold,
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
        """Start at a position whose preceding record has this epoch."""
        self._starts: list[int] = [position - 1]
        self._epochs: list[int] = [leader_epoch]

    def note(self, offset: int, leader_epoch: int) -> None:
        """A batch that begins at `offset` was written in this epoch; offsets ascend."""
        if leader_epoch == self._epochs[-1]:
            return
        self._starts.append(offset)
        self._epochs.append(leader_epoch)
        if len(self._starts) > EPOCHS_MAX:
            del self._starts[0], self._epochs[0]

    def before(self, position: int) -> int:
        """The epoch of the record before a position; -1 if it is unknown."""
        at = bisect_left(self._starts, position) - 1
        return self._epochs[at] if at >= 0 else NO_EPOCH

    def end_of(self, leader_epoch: int, end: int) -> int:
        """`end`, or where a later epoch than this is known to begin, if that comes first."""
        for start, epoch in zip(self._starts, self._epochs, strict=True):
            if epoch > leader_epoch:
                return min(max(start, 0), end)
        return end


NO_MARK = -1
"""No time mark is wanted."""
NOT_TOLD = MarkTold("", NO_MARK)
"""A mark that is wanted tells nobody an event time."""
_NO_CRC = 0
"""What librdkafka's mock cluster has for the CRC of its markers. Chance leaves that as rarely as
the right one, and what zeroes bytes takes the magic before or the control bit behind along."""

R = TypeVar("R", list[LogRecord], RecordColumns)
"""Records of one partition, as `take` or as `take_columns` gives them."""
D = TypeVar("D", list[LogRecord], RecordColumns, list[RecordBatch])
"""The same, or what `take_batches` gives."""

# No two eras are alike, not even of one partition that is taken away and given back: an answer to
# a question from before would else be put behind records that nobody has asked for yet.
_eras = itertools.count()


def known_id(topic_id: bytes) -> bytes | None:
    """A topic id; None for the zero that stands for an unknown one."""
    return None if topic_id == ZERO_UUID else topic_id


class PositionStart(Enum):
    """Where a partition without a position begins."""

    COMMITTED = auto()
    """Where its group has committed; without that, by the reset policy."""
    RESET = auto()
    """By the reset policy: the position was outside of the log."""
    EARLIEST = auto()
    LATEST = auto()


class PartitionState:
    """One assigned partition."""

    __slots__ = (
        "aborted", "after_rest", "batches", "buffered_bytes", "corrupt", "epochs", "era",
        "fetch_offset", "fetched_epoch", "high_watermark", "in_flight", "is_held", "leader_epoch",
        "mark_after_ms", "mark_told", "marks", "not_before_ms", "paused", "position", "replica",
        "replica_until_ms", "rest", "stable_offset", "start", "topic_id",
    )  # fmt: skip

    def __init__(self) -> None:
        self.era = next(_eras)
        self.position: int | None = None
        self.fetch_offset = 0
        self.start = PositionStart.COMMITTED
        self.leader_epoch = NO_EPOCH
        """Of the record before the position."""
        self.fetched_epoch = NO_EPOCH
        """Of the record before `fetch_offset`: the broker sees by it whether it has that, too."""
        self.topic_id: bytes | None = None
        """Of the topic that the position belongs to; None until it is known. A topic that is
        created again has another id, and its offsets and epochs start again."""
        self.epochs = EpochStarts()
        """Leader epochs of what was taken."""
        self.paused = False
        self.is_held = False
        """Its owner may move it before anything is fetched."""
        self.in_flight = False
        """A fetch request asks for it just now."""
        self.not_before_ms = 0
        self.replica: int | None = None
        """The broker to read from instead of the leader."""
        self.replica_until_ms = 0
        """How long that is so; without one, how long the leader is not asked for one."""
        self.high_watermark: int | None = None
        self.stable_offset: int | None = None
        """Up to where committed records are shown."""
        self.batches: deque[RecordBatch] = deque()
        self.aborted: set[int] = set()
        """Base offsets of those of `batches` whose records nobody may see."""
        self.rest: list[LogRecord] | RecordColumns = []
        """Decoded, but there was no room for them in the last `take`."""
        self.after_rest = 0
        """The position once `rest` is taken."""
        self.corrupt: CorruptData | None = None
        """Why the first of `batches` can't be read."""
        self.buffered_bytes = 0
        self.mark_after_ms, self.mark_told = NO_MARK, NOT_TOLD
        """How long nothing has to have come until the owner wants a time mark, and the event time
        to which that brings the readers of a clock."""
        self.marks: list[TimeMark] = []
        """Those that were passed and not told yet, if they are kept."""

    def move(
        self,
        position: int | None,
        start: PositionStart = PositionStart.RESET,
        *,
        leader_epoch: int = NO_EPOCH,
        topic_id: bytes | None = None,
    ) -> None:
        """Go on from `position`, or from `start` if that has to be looked up first."""
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

    def place(self, offset: int) -> OffsetAndMetadata:
        """An offset up to the position, with what tells later whether the log still has it."""
        epoch = self.epochs.before(offset)
        return OffsetAndMetadata(offset, "", epoch, self.topic_id or ZERO_UUID)

    @property
    def is_drained(self) -> bool:
        """Whether everything that was fetched has been taken."""
        return not self.batches and not self.rest

    def keep_at_leader(self, until_ms: int) -> None:
        """Read from the leader until then, whoever is nearer."""
        self.replica, self.replica_until_ms = None, until_ms

    def is_kept_at_leader(self, now_ms: int) -> bool:
        """Whether the leader is not to be asked for somebody nearer."""
        return self.replica is None and now_ms < self.replica_until_ms

    def cut(self, end: OffsetAndMetadata) -> None:
        """The log was cut at `end`, before `fetch_offset`: what was fetched behind is not in it."""
        topic_id = self.topic_id
        if self.position is not None and self.position <= end.offset:
            self.move(self.position, leader_epoch=self.leader_epoch, topic_id=topic_id)
        else:
            self.move(end.offset, leader_epoch=end.leader_epoch, topic_id=topic_id)


@dataclass(frozen=True, slots=True)
class _Form(Generic[D]):
    """How records are handed out."""

    decode: Callable[[RecordBatch], D]
    gathered: Callable[[Iterable[LogRecord]], D]


_LISTS: Final[_Form[list[LogRecord]]] = _Form(RecordBatch.records, list)
_COLUMNS: Final[_Form[RecordColumns]] = _Form(RecordBatch.columns, RecordColumns.of)
_BATCHES: Final[_Form[list[RecordBatch]]] = _Form(lambda batch: [batch], lambda _: [])


class SubscriptionState:
    """All partitions that are assigned to a consumer."""

    def __init__(self, *, keeps_marks: bool = False) -> None:
        """With `keeps_marks`, time marks are kept for `take_marks`."""
        self._keeps_marks = keeps_marks
        self._states: dict[TopicPartition, PartitionState] = {}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these from now on; what was assigned before and still is keeps its place."""
        # The order in which they are asked for hangs on no hash: a run can be repeated.
        in_order = sorted(partitions) if isinstance(partitions, AbstractSet) else partitions
        wanted = dict.fromkeys(in_order)
        self._states = {
            partition: self._states.get(partition) or PartitionState() for partition in wanted
        }

    def assigned(self) -> set[TopicPartition]:
        """What is assigned."""
        return set(self._states)

    def state(self, partition: TopicPartition) -> PartitionState:
        """The state of an assigned partition.

        Raises:
            UsageError: it is not assigned.
        """
        state = self._states.get(partition)
        if state is None:
            raise UsageError(
                f"{partition.topic}-{partition.partition} is not assigned to this consumer"
            )
        return state

    def get(self, partition: TopicPartition) -> PartitionState | None:
        """The state of a partition if it is (still) assigned."""
        return self._states.get(partition)

    def items(self) -> Collection[tuple[TopicPartition, PartitionState]]:
        """Every assigned partition with its state."""
        return list(self._states.items())

    def consumed(self) -> dict[TopicPartition, int]:
        """The next offset of every partition whose position is known: what a commit stores."""
        return {
            partition: state.position
            for partition, state in self._states.items()
            if state.position is not None
        }

    def places(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The same, with the leader's epoch."""
        return {
            partition: OffsetAndMetadata(
                state.position, "", state.leader_epoch, state.topic_id or ZERO_UUID
            )
            for partition, state in self._states.items()
            if state.position is not None
        }

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Look nothing up for these and fetch nothing from them, unless the owner asks."""
        for partition in partitions:
            self.state(partition).is_held = True

    def let_go(self) -> None:
        """Nothing is held any more."""
        for state in self._states.values():
            state.is_held = False

    def put(
        self,
        partition: TopicPartition,
        era: int,
        data: bytes | bytearray | memoryview,
        aborted: Iterable[AbortedRange] = (),
    ) -> int:
        """Buffer what was fetched; returns the number of bytes kept.

        `aborted` names the aborted transactions in it, whose records are left out.

        A damaged marker is kept wherever it is: nobody can say what it ended, so `take` tells of
        it when its turn comes, and gives nothing that is behind it.

        Raises:
            CorruptData: the bytes are no batches.
        """
        state = self._states.get(partition)
        if state is None or state.era != era:
            return 0
        kept = 0
        hidden = AbortedBatches(aborted, marker_of=_marker)
        for batch in split_batches(data):
            try:
                is_hidden, is_damaged = hidden.hides(batch), False
            except CorruptData:
                is_hidden, is_damaged = False, True
            if batch.next_offset <= state.fetch_offset and not is_damaged:
                continue  # It was compacted away up to here, or sent twice.
            state.batches.append(batch)
            if is_hidden:
                state.aborted.add(batch.base_offset)
            state.fetch_offset = max(state.fetch_offset, batch.next_offset)
            state.fetched_epoch = batch.leader_epoch
            kept += batch.size_bytes
        state.buffered_bytes += kept
        return kept

    def take(self, records_max: int | None) -> dict[TopicPartition, list[LogRecord]]:
        """Buffered records in order, at most so many; positions move past them.

        Partitions with something left come later next time, so none waits for ever.

        Raises:
            DamagedBatch: a batch is damaged; everything before it has been taken.
        """
        return self._taken(records_max, _LISTS)

    def take_columns(self, records_max: int | None) -> dict[TopicPartition, RecordColumns]:
        """The same as columns, which costs half as much.

        Raises:
            DamagedBatch: as `take`.
        """
        return self._taken(records_max, _COLUMNS)

    def take_batches(self) -> dict[TopicPartition, list[RecordBatch]]:
        """Whole batches as they came, for who decodes them in another way; not beside `take`.

        Those of transactions that were aborted and of control are left out. The first one may begin
        before the position, as brokers send whole batches.

        Raises:
            DamagedBatch: as `take`.
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
        """Whether `take_marks` would find something."""
        return self._keeps_marks and any(state.marks for state in self._states.values())

    def take_marks(self) -> dict[TopicPartition, list[TimeMark]]:
        """The time marks that were passed since the last call, in order of offset."""
        found: dict[TopicPartition, list[TimeMark]] = {}
        for partition, state in self._states.items():
            if state.marks:
                found[partition], state.marks = state.marks, []
        return found

    def has_records(self) -> bool:
        """Whether `take` would find something."""
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
            # The broker sends whole batches; the first may begin before what was asked for.
            records = records[bisect_left(records, position, key=_offset_of) :]
        taken += records
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
    """The records of the first batch that is buffered; of a time mark it is taken note."""
    batch = state.batches[0]
    try:
        if batch.is_control:
            marker = _marker(batch)
            mark = None
            if marker is not None and marker.kind == TIME_MARK:
                mark = time_mark_of(batch)
            if mark is not None and mark.offset >= (state.position or 0):
                state.marks.append(mark)
            return form.gathered(())  # Marks of the broker for itself; only their place counts.
        batch.check_crc()
        return form.decode(batch)
    except CorruptData as corrupt:
        offsets = batch.base_offset, batch.next_offset
        raise DamagedBatch.at(*partition, offsets, bytes(batch.data), str(corrupt)) from corrupt


Topics: TypeAlias = Sequence[str] | re.Pattern[str]
"""What an owner may subscribe to."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Names, or a pattern."""

    names: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, topics: Topics) -> Self:
        """Check what an owner asks for.

        Raises:
            UsageError: it is one name, or a pattern of bytes.
        """
        if isinstance(topics, re.Pattern):
            if not isinstance(topics.pattern, str):
                raise UsageError(f"topics have names of text: {topics.pattern!r} is of bytes")
            return cls(pattern=topics)
        if isinstance(topics, str):
            raise UsageError(f"subscribe takes a list of topics: [{topics!r}]")
        return cls(names=tuple(sorted(set(topics))))

    def means(self, there: Iterable[str]) -> tuple[str, ...]:
        """The topics, given those that there are besides the log's own."""
        if self.pattern is None:
            return self.names
        return tuple(sorted(name for name in there if self.pattern.fullmatch(name)))
