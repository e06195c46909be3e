"""RecordQueue: which input's records a task processes next, and how it reads them.

Records that arrive together are read into columns (`Chunk`); if one of them is unreadable, they are
read one by one, and the error is handled when it is that record's turn. A source accepts timestamps
between 1970 and the year 9999, and a topic may limit how far they lie ahead of the clock
(`timestamp_ahead_max`); other records are refused like unreadable ones and move no time.

A task with several inputs takes records by (running maximum of the timestamps in the input, rank of
the input, offset): the order of Kafka Streams (KIP-353, KIP-695), with the running maximum in place
of the head's timestamp. An input with records before its end offset that have not arrived is waited
for; an input that is read to its end holds up nothing, unless that is in question (`end_of_input`).
`CutInput` stops at a moment of event time instead of an offset: it takes everything before the
first record whose stream time has come to the cut.

Rule of the module: the queue takes runs of records of one input, as long as the order allows, so
that steps see batches. Not done here: the sources behind a repartition topic (`repartition_input`),
bounds of the buffers (a runner reads `Task.buffered` and pauses its consumer).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat, starmap
from typing import Any, TypeAlias

from streamlog.durations import TIMESTAMP_MS_MAX, looks_like_seconds, moment, when_ms
from streamlog.errors import CorruptData, ProcessingError, SerdeError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.column_batch import (
    Batch,
    BatchOrigin,
    RawKeys,
    TimeSource,
    deserialize_column,
    map_until_error,
    processing_error,
)
from streamlog.processing.error_handling import DeadLetterRecord, NodeFailures
from streamlog.processing.inputs.end_of_input import (
    NO_CHECK,
    CaughtUpCheck,
    EndOfInputQuestion,
    InputEnd,
    MergeKey,
)
from streamlog.record import Headers
from streamlog.records.batch import LogRecord
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns, all_ascii, first_outside, running_max
from streamlog.serdes import StrSerde
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source

_REMEDY = (
    "correct the producer, declare timestamp= on the topic, or leave the record out (on_error)"
)


class InvalidTimestamp(CorruptData):
    """The timestamp of a record is outside what its source accepts."""


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The timestamps that a source accepts now."""

    newest_ms: int = TIMESTAMP_MS_MAX
    ahead_max_ms: int | None = None
    """Why `newest_ms` is not the end of the calendar; None: it is."""

    @classmethod
    def of(cls, topic: TopicSpec, now_ms: int) -> EventTimes:
        """What this topic accepts at this time of the clock."""
        ahead_ms = topic.timestamp_ahead_max_ms
        if ahead_ms is None or topic.internal:
            return ANY_TIME
        return cls(min(now_ms + ahead_ms, TIMESTAMP_MS_MAX), ahead_ms)

    def check(self, timestamp_ms: int) -> None:
        """Refuse a timestamp that is not event time.

        Raises:
            RefusedTime: it lies before 1970, beyond the calendar, or too far ahead of the clock.
        """
        if timestamp_ms < 0:
            raise InvalidTimestamp(
                f"the timestamp is {timestamp_ms} ms, before 1970: event time can't be negative; "
                f"{_REMEDY}"
            )
        if timestamp_ms > TIMESTAMP_MS_MAX:
            raise InvalidTimestamp(
                f"the timestamp is {timestamp_ms} ms, beyond the year 9999 (microseconds or "
                f"nanoseconds, perhaps?): {_REMEDY}"
            )
        if timestamp_ms > self.newest_ms:
            raise InvalidTimestamp(
                f"the timestamp is {timestamp_ms} ms ({moment(timestamp_ms).isoformat()}), and the "
                f"topic takes at most {self.ahead_max_ms} ms ahead of the clock "
                f"(timestamp_ahead_max): {_REMEDY}"
            )


def seconds_hint(where: str, timestamp_ms: int) -> str | None:
    """What to log about a timestamp that looks like seconds; None: it does not."""
    if not looks_like_seconds(timestamp_ms):
        return None
    return (
        f"{where}: the timestamp {timestamp_ms} looks like seconds "
        f"({moment(1000 * timestamp_ms).isoformat()}); as milliseconds, which event time is in, it "
        f"is {moment(timestamp_ms).isoformat()}. Multiply it by 1000 where it is made: in the "
        "producer, in timestamp= of the topic, or in at="
    )


ANY_TIME = EventTimes()
"""Every moment from 1970 to the year 9999."""


class Chunk:
    """Decoded records of one arrival, in offset order, taken from the front."""

    __slots__ = (
        "_accepted",
        "_keys",
        "at",
        "bad",
        "headers",
        "offsets",
        "raw_keys",
        "raw_values",
        "times",
        "timestamps",
        "values",
    )

    def __init__(
        self,
        records: RecordColumns,
        topic: TopicSpec,
        partition: int,
        failures: NodeFailures | None = None,
        accepted: EventTimes = ANY_TIME,
    ) -> None:
        """Read records.

        Args:
            records: as they arrived.
            topic: that they are of.
            partition: of the topic.
            failures: what becomes of those that can't be read; None: the first one is raised.
            accepted: the timestamps that are event time.

        Raises:
            ProcessingError: one can't be read, or has no event time, and there is no policy.
        """
        self._accepted = accepted
        timestamps = records.timestamps
        self.at = 0
        self.offsets: Sequence[int] = records.offsets
        self.raw_keys: Sequence[bytes | None] = records.keys
        self.raw_values: Sequence[bytes | None] = records.values
        self.headers: Sequence[Headers] | None = records.headers
        self._keys: list[Any] | RawKeys = []
        self.values: Sequence[Any] = ()
        self.timestamps: Sequence[int] = ()
        self.bad: dict[int, DeadLetterRecord] = {}
        """By offset: what could not be read, and stands in the columns as None."""
        try:
            self._read(topic, partition, timestamps)
        except ProcessingError:
            if failures is None:
                raise
            self._read_each(topic, partition, timestamps, failures)
        self.times: list[int] = []

    def _read(self, topic: TopicSpec, partition: int, timestamps: Sequence[int]) -> None:
        offsets = self.offsets
        if type(topic.key) is StrSerde and all_ascii(self.raw_keys):
            # Sure to be text, which not everybody asks for.
            self._keys = RawKeys(topic.key, self.raw_keys)
        else:
            self._keys = _decode_column(self.raw_keys, topic, "key", partition, offsets)
        self.values = _decode_column(self.raw_values, topic, "value", partition, offsets)
        self.timestamps = _extract_timestamps(self.values, timestamps, topic, partition, offsets)
        accepted = self._accepted
        if (at := first_outside(self.timestamps, 0, accepted.newest_ms)) >= 0:
            try:
                accepted.check(self.timestamps[at])
            except InvalidTimestamp as error:
                raise processing_error(
                    topic.name, topic.name, partition, offsets[at], error
                ) from error

    def _read_each(
        self, topic: TopicSpec, partition: int, timestamps: Sequence[int], failures: NodeFailures
    ) -> None:
        """Some can't be read. What becomes of those is seen when it is their turn."""
        rows: list[tuple[Any, Any, int]] = []
        headers = repeat(()) if self.headers is None else self.headers
        raws = (self.raw_keys, self.raw_values, headers)
        for record in starmap(LogRecord, zip(self.offsets, timestamps, *raws, strict=False)):
            letter = partial(_unreadable_letter, record, topic, partition)
            row = failures.tried(partial(_read_one, record, topic, self._accepted), letter)
            if isinstance(row, DeadLetterRecord):
                self.bad[record.offset] = row
                row = (None, None, UNKNOWN_MS)
            rows.append(row)
        self._keys, self.values, self.timestamps = map(list, zip(*rows, strict=True))

    def count_from(self, time_ms: int) -> int:
        """Set the running maximum of timestamps; returns the last one."""
        self.times = running_max(self.timestamps, time_ms)
        return self.times[-1]

    @property
    def keys(self) -> list[Any]:
        """The keys, read."""
        if isinstance(self._keys, RawKeys):
            self._keys = self._keys.objects()
        return self._keys

    @property
    def lazy_keys(self) -> list[Any] | RawKeys:
        """The keys, not read before somebody asks for them if that can wait."""
        return self._keys

    def part(self, low: int, high: int) -> Chunk:
        """The records from `low` up to but not including `high`, all of them to be taken."""
        run = slice(low, high)
        part = object.__new__(Chunk)
        part.at = 0
        part.offsets = self.offsets[run]
        part.raw_keys = self.raw_keys[run]
        part.raw_values = self.raw_values[run]
        part.headers = None if self.headers is None else self.headers[run]
        part._keys = self._keys.part(run) if isinstance(self._keys, RawKeys) else self._keys[run]
        part.values = self.values[run]
        part.timestamps = self.timestamps[run]
        part.times = self.times[run]
        part.bad = self.bad
        return part

    def __len__(self) -> int:
        return len(self.offsets) - self.at


def _decode_column(
    raw: Sequence[bytes | None],
    topic: TopicSpec,
    what: str,
    partition: int,
    offsets: Sequence[int],
) -> list[Any]:
    serde = topic.key if what == "key" else topic.value
    try:
        return deserialize_column(serde, raw)
    except Exception:  # noqa: BLE001 - a serde of the user: found and raised again below
        # Which one was it, and why? Again one by one.
        loads = serde.loads
        decoded, error = map_until_error(lambda data: None if data is None else loads(data), raw)
    if error is not None:
        cause = SerdeError(f"{what}: {error}")
        raise processing_error(
            topic.name, topic.name, partition, offsets[len(decoded)], cause
        ) from error
    return decoded


def _extract_timestamps(
    values: Sequence[Any],
    timestamps: Sequence[int],
    topic: TopicSpec,
    partition: int,
    offsets: Sequence[int],
) -> Sequence[int]:
    """Event times by the user's function; a deletion keeps its record's own timestamp."""
    extract = topic.timestamp
    if extract is None:
        return timestamps
    found, error = map_until_error(
        lambda value, ms: ms if value is None else when_ms(extract(value)), values, timestamps
    )
    if error is not None:
        node = f"timestamp of {topic.name}"
        raise processing_error(node, topic.name, partition, offsets[len(found)], error) from error
    return found


def _read_one(record: LogRecord, topic: TopicSpec, accepted: EventTimes) -> tuple[Any, Any, int]:
    """Key, value and event time of one record."""
    key = None if record.key is None else topic.key.loads(record.key)
    value = None if record.value is None else topic.value.loads(record.value)
    timestamp_ms = record.timestamp_ms
    if topic.timestamp is not None and value is not None:
        timestamp_ms = when_ms(topic.timestamp(value))
    accepted.check(timestamp_ms)
    return key, value, timestamp_ms


def _unreadable_letter(
    record: LogRecord, topic: TopicSpec, partition: int, error: Exception, attempt: int
) -> DeadLetterRecord:
    return DeadLetterRecord(
        topic=topic.name,
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
        node=topic.name,
        error=error,
        attempt=attempt,
        is_internal=topic.internal,
    )


logger = logging.getLogger(__name__)

PartitionKey: TypeAlias = tuple[str, int]
Records: TypeAlias = Sequence[LogRecord] | RecordColumns
"""Records of one partition in offset order."""

RUN_RECORDS_MAX = 1_000
"""So many are read and taken together at most: what is made of them goes before the next ones come,
and its memory, still in the processor's caches, is theirs."""


UNLOGGED = TimeMark(-1, 0)
"""A time mark that is in no log: see `Input.bring`."""


class PassedRecords:
    """A time mark whose turn is next."""

    __slots__ = ("mark", "time_ms")

    def __init__(self, mark: TimeMark, time_ms: int) -> None:
        self.mark = mark
        self.time_ms = time_ms
        """Stream time behind it; UNKNOWN_MS if nothing is known that could go on."""

    def __len__(self) -> int:
        return 0


class Input(TimeSource):
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
        self._bad: dict[int, DeadLetterRecord] = {}
        self._received: int | None = None
        self._end: int | None = None
        self._arrived_ms = UNKNOWN_MS
        self._unread: deque[RecordColumns | TimeMark] = deque()
        """What has arrived, in pieces, as bytes, and the marks between them."""
        self._chunks: deque[Chunk | PassedRecords] = deque()
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
        self.doubting: CaughtUpCheck = NO_CHECK
        """Whether what is known of its end may be doubted."""
        self._known = InputEnd()
        self._has_told_seconds = False

    @property
    def place(self) -> PartitionKey:
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
        self._chunks.append(PassedRecords(UNLOGGED, time_ms))

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

    def head(self) -> MergeKey | None:
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
        if isinstance(chunk, PassedRecords):
            return chunk.time_ms, self.rank
        return chunk.times[chunk.at], self.rank

    def _reach(self, mark: TimeMark) -> None:
        """It is the turn of a mark: time goes on from where it has come."""
        self._arrived_ms = mark.time_behind(max(self._arrived_ms, self.time_ms), self.clock)
        self._chunks.append(PassedRecords(mark, self._arrived_ms))

    def floor(self) -> MergeKey:
        """Time and rank that no record still to arrive comes before."""
        return max(self._arrived_ms, self.time_ms), self.rank

    def bound(self) -> MergeKey | None:
        """So far others may go while nothing of this is at hand; None: there is no bound."""
        if not self.is_at_end():
            return self.floor()
        return (
            self._known.bound(self.floor(), self.doubting.now_ms) if self.doubting.is_on else None
        )

    def unconfirmed_sources(self, turn: MergeKey | None) -> list[Source | None]:
        """Of whose ends it has to be known more, for others to come to `turn`; None: the input's.

        Without a turn: for what of the input itself is held back.
        """
        bound = None if turn is None or not self.is_at_end() else self.bound()
        return [None] if bound is not None and turn is not None and bound < turn else []

    def confirm(self, doubt: EndOfInputQuestion) -> None:
        """It was at its end when the question was put; what has come by then has arrived."""
        self._known.confirm(doubt)

    def advance_past(self, other: Input) -> bool:
        """Whether what the other has at hand may go further, as is known of this one's end."""
        end = self._known.confirmed_until(other.place)
        return end is not None and self._known.pass_to(other.turn_before(end))

    def turn_before(self, end: int) -> int:
        """The turn of the last record at hand that lies before this offset; -1 if there is none."""
        if not self._chunks:
            return UNKNOWN_MS
        chunk = self._chunks[0]
        if isinstance(chunk, PassedRecords):
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

    def take(self, bound: MergeKey | None, records_max: int | None) -> Batch | TimeMark:
        """The next run of records: those before `bound`, a time and a rank; or a mark."""
        chunk = self._chunks[0]
        if isinstance(chunk, PassedRecords):
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

    def _passed(self, passed: PassedRecords) -> TimeMark:
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
            self._warn_seconds(chunk.offsets[0], chunk.timestamps[0])
        return chunk

    def _warn_seconds(self, offset: int, timestamp_ms: int) -> None:
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

    def _sendable(self, letter: DeadLetterRecord, time_ms: int) -> DeadLetterRecord:
        """The letter; one for a refused timestamp has the time that its source had come to."""
        if not isinstance(letter.error, InvalidTimestamp):
            return letter
        return replace(letter, sent_ms=self.now_ms if time_ms <= UNKNOWN_MS else time_ms)

    def batch(self, chunk: Chunk, low: int, high: int) -> Batch:
        """The records of a chunk from `low` to `high`, which are being taken."""
        if high - low < len(chunk.offsets):
            chunk = chunk.part(low, high)
        times, offsets = chunk.times, chunk.offsets
        self.before_ms, self.time_ms = self.time_ms, times[-1]
        origin = BatchOrigin(
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
        return Batch(origin, rows, chunk.lazy_keys, chunk.values, chunk.timestamps)

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
        self, inputs: Sequence[Input], *, record_at_a_time: bool, doubting: CaughtUpCheck = NO_CHECK
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
            passed = [entry.advance_past(chosen) for entry in empty]
            if any(passed):
                heads, empty = self._heads()  # What is merged may have gone on by that.
                first, chosen = heads[0]
        bounds = [found for entry in empty if (found := entry.bound()) is not None]
        bounds += [head for head, _ in heads[1:]]
        bound = min(bounds, default=None)
        if bound is not None and bound < first:
            return None
        return chosen, chosen.take(bound, self._records_max)

    def doubts(self) -> list[EndOfInputQuestion]:
        """What has to be known for the next records to be taken, once there are none."""
        if not self._doubting.is_on:
            return []
        heads, empty = self._heads()
        found = [(e.place, of) for e in self.inputs.values() for of in e.unconfirmed_sources(None)]
        if heads:
            found += [(e.place, of) for e in empty for of in e.unconfirmed_sources(heads[0][0])]
        if not found:
            return []
        turn_ms = max(entry.newest_ms for entry in self.inputs.values())
        ends = {place: entry.known_end for place, entry in self.inputs.items()}
        now_ms = self._doubting.now_ms
        return [EndOfInputQuestion(*about, turn_ms, ends, now_ms) for about in dict.fromkeys(found)]

    def _heads(self) -> tuple[list[tuple[MergeKey, Input]], list[Input]]:
        """Inputs that have something at hand, in the order of their turns; and those without."""
        heads: list[tuple[MergeKey, Input]] = []
        empty: list[Input] = []
        for entry in self.inputs.values():
            head = entry.head()
            if head is None:
                empty.append(entry)
            else:
                heads.append((head, entry))
        heads.sort(key=lambda pair: pair[0])
        return heads, empty


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A part of a partition's time, in milliseconds since 1970.

    It begins with the first record that is not before `since_ms`, and ends before the first one
    at which stream time has come to `until_ms`.
    """

    since_ms: int = UNKNOWN_MS
    until_ms: int = FAR_MS


class CutInput(Input):
    """An input partition between two times."""

    def __init__(
        self, topic: TopicSpec, partition: int, rank: int, *, span: TimeSpan, clock: str = ""
    ) -> None:
        super().__init__(topic, partition, rank, clock=clock)
        self._span = span
        self._has_begun = span.since_ms == UNKNOWN_MS
        self.cut: int | None = None
        """Offset of the first record, or mark, that is beyond the end; None: none was seen."""

    def start_at(self, position: int) -> None:
        """As of all inputs; what is behind the cut is the business of who goes on from there."""
        super().start_at(position if self.cut is None else min(position, self.cut))

    def arrive(self, records: Records, marks: Sequence[TimeMark] = ()) -> None:
        """Take in records and time marks, up to the end."""
        if self.cut is None:
            super().arrive(records, marks)

    def head(self) -> tuple[int, int] | None:
        """Time and rank of the next record, or mark; None if there is none before the end."""
        while not self._chunks and self._unread:
            piece = self._unread.popleft()
            if isinstance(piece, TimeMark):
                self._reach(piece)
            else:
                self._read(piece)
        return super().head() if self._chunks else None

    def floor(self) -> tuple[int, int]:
        """Time and rank that no record still to arrive comes before."""
        return super().floor() if self.cut is None else (self._span.until_ms, self.rank)

    def is_at_end(self) -> bool:
        """Whether there is nothing left to read: behind a cut there is."""
        return self.cut is None and super().is_at_end()

    def _read(self, columns: RecordColumns) -> None:
        try:
            chunk = self.arrived(columns)
        except ProcessingError:
            # It may be one behind the end, which is none of ours.
            if len(columns) == 1:
                raise
            middle = len(columns) // 2
            self._read(columns[:middle])
            if self.cut is None:
                self._read(columns[middle:])
            return
        chunk.count_from(max(self._arrived_ms, self.time_ms))
        self._keep(chunk)

    def _keep(self, chunk: Chunk) -> None:
        low = 0
        if not self._has_begun:
            low = bisect_left(chunk.times, self._span.since_ms)
            self._has_begun = low < len(chunk.times)
        high = bisect_left(chunk.times, self._span.until_ms)
        if high < len(chunk.times):
            self._cut_at(chunk.offsets[high])
        if low < high:
            self._arrived_ms = chunk.times[high - 1]
            self._chunks.append(chunk if high - low == len(chunk) else chunk.part(low, high))

    def _reach(self, mark: TimeMark) -> None:
        if not self._has_begun:
            return
        time_ms = mark.time_behind(max(self._arrived_ms, self.time_ms), self.clock)
        if time_ms >= self._span.until_ms:
            self._cut_at(mark.offset)
        else:
            super()._reach(mark)

    def _cut_at(self, offset: int) -> None:
        self.cut = offset
        self._unread.clear()
