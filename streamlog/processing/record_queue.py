"""RecordQueue: which input's records are next.

A task with several inputs takes records in the order (running maximum of timestamps in the
input, rank of the input, offset): the same order whatever was fetched first. An input that is
behind, that is with records before its end offset that have not arrived, is waited for; one
that is read to its end holds nobody back, as long as that is not in doubt (`doubts`). Rule of
the file: what is taken is a run of records of one input, as long as the order allows, so that the
steps see batches. The order is that of Kafka Streams (KIP-353, KIP-695) with the running maximum in
place of the head's timestamp.
Not done here: where the records of a repartition topic came from (`repartitioned`), bounds of
the buffers (a runner reads `Task.buffered` and pauses its consumer).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from streamlog.processing.chunk import Chunk
from streamlog.processing.columns import Batch, Feed, Origin
from streamlog.processing.dead_letters import Letter
from streamlog.processing.doubts import SURE, Doubt, Doubting, End, Turn
from streamlog.processing.event_times import EventTimes, RefusedTime, seconds_hint
from streamlog.processing.failures import NodeFailures
from streamlog.records.batch import Record
from streamlog.records.columns import RecordColumns
from streamlog.records.control import TimeMark
from streamlog.topology import TopicSpec
from streamlog.windows.emit import UNKNOWN_MS, Source

logger = logging.getLogger(__name__)

TopicPartition: TypeAlias = tuple[str, int]
Records: TypeAlias = Sequence[Record] | RecordColumns
"""Records of one partition in offset order."""

RUN_RECORDS_MAX = 1_000
"""So many are read and taken together at most: what is made of them goes before the next ones come,
and its memory, still in the processor's caches, is theirs."""


UNLOGGED = TimeMark(-1, 0)
"""A time mark that is in no log: see `Input.bring`."""


class Passed:
    """A time mark whose turn is next."""

    __slots__ = ("mark", "time_ms")

    def __init__(self, mark: TimeMark, time_ms: int) -> None:
        self.mark = mark
        self.time_ms = time_ms
        """Stream time behind it; UNKNOWN_MS if nothing is known that could go on."""

    def __len__(self) -> int:
        return 0


class Input(Feed):
    """One input partition of a task: records that have arrived and are not taken yet."""

    def __init__(self, topic: TopicSpec, partition: int, rank: int, *, clock: str = "") -> None:
        """`clock` names how event time is read here: time marks may tell it a time."""
        super().__init__((topic.name, partition), topic.key, topic.value)
        self.topic = topic
        self.clock = clock
        self.partition = partition
        self.rank = rank
        self._position: int | None = None
        self.failures: NodeFailures | None = None
        """What becomes of records that can't be read; None: the task fails."""
        self._bad: dict[int, Letter] = {}
        self._received: int | None = None
        self._end: int | None = None
        self._arrived_ms = UNKNOWN_MS
        self._unread: deque[RecordColumns | TimeMark] = deque()
        """What has arrived, in pieces, as bytes, and the marks between them."""
        self._chunks: deque[Chunk | Passed] = deque()
        """What has been read."""
        self._quiet_since_ms: int | None = None
        self.before_ms = UNKNOWN_MS
        """`time_ms` before the records in hand."""
        self.elapsed_ms = 0
        """What all time marks together have said has passed."""
        self.told_ms = UNKNOWN_MS
        """The latest time to which marks have brought the input, records or none."""
        self.now_ms = 0
        """The clock, as of the last `Task.process`: for `timestamp_ahead_max`."""
        self.doubting: Doubting = SURE
        """Whether what is known of its end may be doubted."""
        self._known = End()
        self._has_told_seconds = False

    @property
    def place(self) -> TopicPartition:
        """Its topic and partition."""
        return self.topic.name, self.partition

    @property
    def position(self) -> int | None:
        """The next offset to be taken in; None as long as nothing is known."""
        return self._position

    def __len__(self) -> int:
        """Records that could be taken and wait for another input."""
        unread = (len(piece) for piece in self._unread if not isinstance(piece, TimeMark))
        return sum(map(len, self._chunks)) + sum(unread)

    def start_at(self, position: int) -> None:
        """Everything before this offset has been given to the task, or is none of its business."""
        self._received = max(position, self._received or 0)
        if not self._chunks and not self._unread:
            self._position = max(position, self._position or 0)

    def arrive(self, records: Records, marks: Sequence[TimeMark] = ()) -> None:
        """Take in records and time marks; those before the position have been taken already.

        Raises:
            ProcessingError: one of an internal topic can't be read.
        """
        columns, received, at = self._fresh(records), self._received or 0, 0
        if len(columns) or marks:
            self._known.hear(self.doubting.now_ms)
        for mark in marks:
            if mark.offset < received:
                continue
            until = bisect_left(columns.offsets, mark.offset, at)
            self._append(columns[at:until])
            self._unread.append(mark)
            self._received, at = mark.offset + 1, until
        self._append(columns[at:] if at else columns)

    def bring(self, time_ms: int) -> None:
        """Event time has come so far here, as a mark would say it, though the log has none."""
        if self._chunks or self._unread or time_ms <= max(self._arrived_ms, self.time_ms):
            return
        self._arrived_ms = time_ms
        self._chunks.append(Passed(UNLOGGED, time_ms))

    def _append(self, columns: RecordColumns) -> None:
        if not len(columns):
            return
        self._received = columns.offsets[-1] + 1
        if self.topic.internal:  # Its time is that of the marks when it arrives.
            self._read(columns)
        elif len(columns) <= RUN_RECORDS_MAX:
            self._unread.append(columns)
        else:
            starts = range(0, len(columns), RUN_RECORDS_MAX)
            self._unread.extend(columns[low : low + RUN_RECORDS_MAX] for low in starts)

    def _read(self, columns: RecordColumns) -> None:
        chunk = self.arrived(columns)
        self._arrived_ms = chunk.count_from(max(self._arrived_ms, self.time_ms))
        self._chunks.append(chunk)

    def _fresh(self, records: Records) -> RecordColumns:
        """Those that have not arrived before."""
        columns = RecordColumns.of(records)
        before = bisect_left(columns.offsets, self._received or 0)
        fresh: RecordColumns = columns[before:] if before else columns
        return fresh

    def head(self) -> Turn | None:
        """Time and rank of the next record, which is read, or mark; None if there is none.

        Raises:
            ProcessingError: one of the next records can't be read, or has no valid timestamp.
        """
        if not self._chunks:
            if not self._unread:
                return None
            piece = self._unread.popleft()
            if isinstance(piece, TimeMark):
                self._reach(piece)
            else:
                self._read(piece)
        chunk = self._chunks[0]
        if isinstance(chunk, Passed):
            return chunk.time_ms, self.rank
        return chunk.times[chunk.at], self.rank

    def _reach(self, mark: TimeMark) -> None:
        """It is the turn of a mark: time goes on from where it has come."""
        self._arrived_ms = mark.time_behind(max(self._arrived_ms, self.time_ms), self.clock)
        self._chunks.append(Passed(mark, self._arrived_ms))

    def floor(self) -> Turn:
        """Time and rank that no record still to arrive comes before."""
        return max(self._arrived_ms, self.time_ms), self.rank

    def bound(self) -> Turn | None:
        """So far others may go while nothing of this is at hand; None: there is no bound."""
        if not self.is_at_end():
            return self.floor()
        return (
            self._known.bound(self.floor(), self.doubting.now_ms) if self.doubting.is_on else None
        )

    def doubted(self, turn: Turn | None) -> list[Source | None]:
        """Of whose ends it has to be known more, for others to come to `turn`; None: the input's.

        Without a turn: for what of the input itself is held back.
        """
        bound = None if turn is None or not self.is_at_end() else self.bound()
        return [None] if bound is not None and turn is not None and bound < turn else []

    def confirm(self, doubt: Doubt) -> None:
        """It was at its end when the question was put; what has come by then has arrived."""
        self._known.confirm(doubt)

    def let_pass(self, other: Input) -> bool:
        """Whether what the other has at hand may go further, as is known of this one's end."""
        end = self._known.confirmed_until(other.place)
        return end is not None and self._known.pass_to(other.turn_before(end))

    def turn_before(self, end: int) -> int:
        """The turn of the last record at hand that lies before this offset; -1 if there is none."""
        if not self._chunks:
            return UNKNOWN_MS
        chunk = self._chunks[0]
        if isinstance(chunk, Passed):
            return chunk.time_ms if chunk.mark.offset < end else UNKNOWN_MS
        count = bisect_left(chunk.offsets, end, chunk.at) - chunk.at
        return chunk.times[chunk.at + count - 1] if count else UNKNOWN_MS

    @property
    def known_end(self) -> int:
        """What lies before this offset is in the log, as far as is known."""
        return max(self._received or 0, self._end or 0)

    @property
    def newest_ms(self) -> int:
        """The newest turn that has come, as far as it is read."""
        return max(self._arrived_ms, self.time_ms)

    def is_at_end(self) -> bool:
        """Whether there is nothing left to read, as far as is known."""
        return (
            not self._chunks
            and not self._unread
            and self._end is not None
            and (self._end == 0 or (self._received is not None and self._received >= self._end))
        )

    def learn_end(self, end: int | None, *, now_ms: int, took: bool) -> None:
        """The end offset as of now, and whether records of this input were taken just now."""
        self._end = end if end is not None else self._end
        self.at_end = self.is_at_end()
        if took or self._quiet_since_ms is None:
            # Offsets without records, such as marks, do not end a quiet time.
            self._quiet_since_ms = now_ms
        self.quiet_ms = max(now_ms - self._quiet_since_ms, 0) if self.at_end else 0

    def take(self, bound: Turn | None, records_max: int | None) -> Batch | TimeMark:
        """The next run of records: those before `bound`, a time and a rank; or a mark."""
        chunk = self._chunks[0]
        if isinstance(chunk, Passed):
            return self._passed(chunk)
        low, high = chunk.at, len(chunk.offsets)
        if bound is not None:
            time_ms, rank = bound
            find = bisect_right if self.rank < rank else bisect_left
            high = find(chunk.times, time_ms, low)
        if records_max is not None:
            high = min(high, low + records_max)
        if high == len(chunk.offsets):
            self._chunks.popleft()
        chunk.at = high
        self._position = chunk.offsets[high - 1] + 1
        return self.readable(self.batch(chunk, low, high))

    def _passed(self, passed: Passed) -> TimeMark:
        self._chunks.popleft()
        mark, told_ms = passed.mark, passed.time_ms
        if mark is not UNLOGGED:
            told_ms = mark.time_behind(UNKNOWN_MS, self.clock)
            self._position = mark.offset + 1
        if self.time_ms > UNKNOWN_MS:
            self.elapsed_ms += mark.elapsed_ms
        self.told_ms = max(self.told_ms, told_ms)
        self.time_ms = self.marked_ms = max(self.time_ms, passed.time_ms)
        return mark

    def arrived(self, records: RecordColumns) -> Chunk:
        """Records, read; those that could not be are kept until it is their turn."""
        accepted = EventTimes.of(self.topic, self.now_ms)
        chunk = Chunk(records, self.topic, self.partition, self.failures, accepted)
        self._bad.update(chunk.bad)
        if not self._has_told_seconds and len(chunk.timestamps):
            self._tell_seconds(chunk.offsets[0], chunk.timestamps[0])
        return chunk

    def _tell_seconds(self, offset: int, timestamp_ms: int) -> None:
        """Log, once, that event time looks like seconds: judged by the first record of a chunk."""
        where = f"{self.topic.name}-{self.partition}, offset {offset}"
        if (hint := seconds_hint(where, timestamp_ms)) is not None and not self.topic.internal:
            self._has_told_seconds = True
            logger.warning("%s", hint)

    def readable(self, batch: Batch) -> Batch:
        """Without the records that could not be read: it is their turn."""
        if not self._bad or self.failures is None:
            return batch
        letters = [self._bad.pop(offset, None) for offset in batch.origin.offsets]
        for letter, time_ms in zip(letters, batch.origin.times, strict=True):
            if letter is not None:
                self.failures.give_up(self._sendable(letter, time_ms))
        return batch.where([letter is None for letter in letters])

    def _sendable(self, letter: Letter, time_ms: int) -> Letter:
        """The letter; one for a refused timestamp has the time that its source had come to."""
        if not isinstance(letter.error, RefusedTime):
            return letter
        return replace(letter, sent_ms=self.now_ms if time_ms <= UNKNOWN_MS else time_ms)

    def batch(self, chunk: Chunk, low: int, high: int) -> Batch:
        """The records of a chunk from `low` to `high`, which are being taken."""
        if high - low < len(chunk.offsets):
            chunk = chunk.part(low, high)
        times, offsets = chunk.times, chunk.offsets
        self.before_ms, self.time_ms = self.time_ms, times[-1]
        origin = Origin(
            self,
            topic=self.topic.name,
            partition=self.partition,
            offsets=offsets,
            positions=offsets,
            times=times,
            watermarks=times,
            raw_keys=chunk.raw_keys,
            raw_values=chunk.raw_values,
            headers=chunk.headers,
        )
        rows = range(len(offsets))
        return Batch(origin, rows, chunk.unmade_keys, chunk.values, chunk.timestamps)

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the position."""
        times = {"time_ms": self.time_ms, "marked_ms": self.marked_ms}
        return {**times, "elapsed_ms": self.elapsed_ms, "told_ms": self.told_ms}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave."""
        self.time_ms = int(data["time_ms"])
        self.marked_ms = int(data.get("marked_ms", UNKNOWN_MS))
        self.elapsed_ms = int(data.get("elapsed_ms", 0))
        self.told_ms = int(data.get("told_ms", UNKNOWN_MS))


class RecordQueue:
    """The inputs of a task, and whose turn it is."""

    def __init__(
        self, inputs: Sequence[Input], *, record_at_a_time: bool, doubting: Doubting = SURE
    ) -> None:
        self.inputs = {entry.place: entry for entry in inputs}
        self._doubting = doubting
        self._records_max = 1 if record_at_a_time else None

    def next_run(self) -> tuple[Input, Batch | TimeMark] | None:
        """The next run of records, or mark, and its input; None if there is none to be taken."""
        heads, empty = self._heads()
        if not heads:
            return None
        first, chosen = heads[0]
        if self._doubting.is_on:
            passed = [entry.let_pass(chosen) for entry in empty]
            if any(passed):
                heads, empty = self._heads()  # What is merged may have gone on by that.
                first, chosen = heads[0]
        bounds = [found for entry in empty if (found := entry.bound()) is not None]
        bounds += [head for head, _ in heads[1:]]
        bound = min(bounds, default=None)
        if bound is not None and bound < first:
            return None
        return chosen, chosen.take(bound, self._records_max)

    def doubts(self) -> list[Doubt]:
        """What has to be known for the next records to be taken, once there are none."""
        if not self._doubting.is_on:
            return []
        heads, empty = self._heads()
        found = [(e.place, of) for e in self.inputs.values() for of in e.doubted(None)]
        if heads:
            found += [(e.place, of) for e in empty for of in e.doubted(heads[0][0])]
        if not found:
            return []
        turn_ms = max(entry.newest_ms for entry in self.inputs.values())
        ends = {place: entry.known_end for place, entry in self.inputs.items()}
        now_ms = self._doubting.now_ms
        return [Doubt(*about, turn_ms, ends, now_ms) for about in dict.fromkeys(found)]

    def _heads(self) -> tuple[list[tuple[Turn, Input]], list[Input]]:
        """Inputs that have something at hand, in the order of their turns; and those without."""
        heads: list[tuple[Turn, Input]] = []
        empty: list[Input] = []
        for entry in self.inputs.values():
            head = entry.head()
            if head is None:
                empty.append(entry)
            else:
                heads.append((head, entry))
        heads.sort(key=lambda pair: pair[0])
        return heads, empty
