"""RecordQueue: which input's records a task processes next, and how it reads them.

Records that arrive together are decoded into columns (`Chunk`). If one of them is unreadable, they
are decoded one by one, and the error is handled when the task reaches that record. A source accepts
timestamps between 1970 and the year 9999, and a topic may limit how far they lie ahead of the clock
(`timestamp_ahead_max`). Records with other timestamps are handled like unreadable ones and advance
no time.

A task with several inputs takes records by (running maximum of the timestamps in the input, rank of
the input, offset): the order of Kafka Streams (KIP-353, KIP-695), with the running maximum in place
of the head's timestamp. If an input has records before its end offset that have not arrived, the
task waits for them. An input that is read to its end holds back no other input, unless that end is
in question (`end_of_input`).

Rule of the module: the queue takes runs of records of one input, as long as the order allows, so
that steps see batches. Not done here: the sources behind a repartition topic (`repartition_input`),
bounds of the buffers (a runner reads `Task.buffered` and pauses its consumer).
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import repeat, starmap
from typing import TypeAlias

import msgspec

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
from streamlog.processing.inputs.schema_headers import absorb_headers
from streamlog.record import Headers
from streamlog.records.batch import LogRecord
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns, all_ascii, first_outside, running_max
from streamlog.replace import replace
from streamlog.serdes import StrSerde
from streamlog.serdes.erased_types import JsonValue, UserKey, UserValue
from streamlog.windows.emit import UNKNOWN_MS, Source

_REMEDY = "correct the producer, declare timestamp= on the topic, or skip the record with on_error"


class InvalidTimestamp(CorruptData):
    """A record's timestamp is outside the range that its source accepts."""


class EventTimes(msgspec.Struct, frozen=True):
    """The range of timestamps that a source accepts now."""

    newest_ms: int = TIMESTAMP_MS_MAX
    ahead_max_ms: int | None = None
    """The `timestamp_ahead_max` that sets `newest_ms`; None: the calendar's end sets it."""

    @classmethod
    def of(cls, topic: TopicSpec, now_ms: int) -> EventTimes:
        """Return the range that a topic accepts when the clock reads `now_ms`."""
        ahead_ms = topic.timestamp_ahead_max_ms
        if ahead_ms is None or topic.internal:
            return ANY_TIME
        return cls(min(now_ms + ahead_ms, TIMESTAMP_MS_MAX), ahead_ms)

    def check(self, timestamp_ms: int) -> None:
        """Raise an error for a timestamp that is not an event time.

        Raises:
            InvalidTimestamp: it lies before 1970, beyond the calendar, or too far ahead of the
                clock.
        """
        if timestamp_ms < 0:
            raise InvalidTimestamp(
                f"the timestamp is {timestamp_ms} ms, before 1970: event time can't be negative; "
                f"{_REMEDY}"
            )
        if timestamp_ms > TIMESTAMP_MS_MAX:
            raise InvalidTimestamp(
                f"the timestamp is {timestamp_ms} ms, after the year 9999 (is it in microseconds "
                f"or nanoseconds?): {_REMEDY}"
            )
        if timestamp_ms > self.newest_ms:
            raise InvalidTimestamp(
                f"the timestamp is {timestamp_ms} ms ({moment(timestamp_ms).isoformat()}), and the "
                f"topic takes timestamps up to {self.ahead_max_ms} ms ahead of the clock "
                f"(timestamp_ahead_max): {_REMEDY}"
            )


def seconds_hint(where: str, timestamp_ms: int) -> str | None:
    """Return a warning about a timestamp that looks like seconds; None if it does not."""
    if not looks_like_seconds(timestamp_ms):
        return None
    return (
        f"{where}: the timestamp {timestamp_ms} looks like seconds "
        f"({moment(1000 * timestamp_ms).isoformat()}); in milliseconds, the unit of event time, it "
        f"is {moment(timestamp_ms).isoformat()}. Multiply it by 1000 where it is set: in the "
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
        "log_times",
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
        """Decode records.

        Args:
            records: in offset order, as they arrived.
            topic: the topic of the records, with its serdes and timestamp function.
            partition: the partition number.
            failures: the error policy for unreadable records; None: the first one raises.
            accepted: the range of timestamps that are event times.

        Raises:
            ProcessingError: a record is unreadable or has no event time, and there is no policy.
        """
        self._accepted = accepted
        records = absorb_headers(topic.key, topic.value, records)
        timestamps = records.timestamps
        self.at = 0
        self.offsets: Sequence[int] = records.offsets
        self.raw_keys: Sequence[bytes | None] = records.keys
        self.raw_values: Sequence[bytes | None] = records.values
        self.headers: Sequence[Headers] | None = records.headers
        self.log_times: Sequence[int] = timestamps
        """The records' timestamps in the log, whatever event time the topic declares."""
        self._keys: list[UserKey] | RawKeys = []
        self.values: Sequence[UserValue] = ()
        self.timestamps: Sequence[int] = ()
        self.bad: dict[int, DeadLetterRecord] = {}
        """Unreadable records by offset. The columns hold None for them."""
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
            # ASCII is certain to decode, so that can wait until a step needs the text.
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
        """Decode records one by one. The queue handles unreadable ones when it reaches them."""
        rows: list[tuple[UserKey, UserValue, int]] = []
        headers = repeat(()) if self.headers is None else self.headers
        raws = (self.raw_keys, self.raw_values, headers)
        for record in starmap(LogRecord, zip(self.offsets, timestamps, *raws, strict=False)):
            letter = partial(_unreadable_letter, record, topic, partition)
            row = failures.attempt(partial(_read_one, record, topic, self._accepted), letter)
            if isinstance(row, DeadLetterRecord):
                self.bad[record.offset] = row
                row = (None, None, UNKNOWN_MS)
            rows.append(row)
        self._keys, self.values, self.timestamps = map(list, zip(*rows, strict=True))

    def count_from(self, time_ms: int) -> int:
        """Compute the running maximum of timestamps from `time_ms`; returns the last one."""
        self.times = running_max(self.timestamps, time_ms)
        return self.times[-1]

    @property
    def keys(self) -> list[UserKey]:
        """The decoded keys."""
        if isinstance(self._keys, RawKeys):
            self._keys = self._keys.objects()
        return self._keys

    @property
    def lazy_keys(self) -> list[UserKey] | RawKeys:
        """The keys; as raw bytes if decoding them can wait."""
        return self._keys

    def part(self, low: int, high: int) -> Chunk:
        """Return the records from `low` up to but not including `high` as a chunk of their own."""
        run = slice(low, high)
        part = object.__new__(Chunk)
        part.at = 0
        part.offsets = self.offsets[run]
        part.log_times = self.log_times[run]
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
) -> list[UserValue]:
    serde = topic.key if what == "key" else topic.value
    try:
        return deserialize_column(serde, raw)
    except Exception:  # noqa: BLE001 - a serde of the user: found and raised again below
        # Decode again one by one, to find the record and the reason.
        loads = serde.loads
        decoded, error = map_until_error(lambda data: None if data is None else loads(data), raw)
    if error is not None:
        cause = SerdeError(f"{what}: {error}")
        raise processing_error(
            topic.name, topic.name, partition, offsets[len(decoded)], cause
        ) from error
    return decoded


def _extract_timestamps(
    values: Sequence[UserValue],
    timestamps: Sequence[int],
    topic: TopicSpec,
    partition: int,
    offsets: Sequence[int],
) -> Sequence[int]:
    """Return event times by the user's function; a deletion keeps its record's own timestamp."""
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


def _read_one(
    record: LogRecord, topic: TopicSpec, accepted: EventTimes
) -> tuple[UserKey, UserValue, int]:
    """Return the key, value and event time of one record."""
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
"""The largest run that is decoded and processed as one batch. The objects of one run are freed
before the next one is decoded, so they reuse memory that is still in the processor's caches."""


UNLOGGED = TimeMark(-1, 0)
"""A time mark that is in no log: see `Input.bring`."""


class PassedRecords:
    """A time mark that the task takes next."""

    __slots__ = ("mark", "time_ms")

    def __init__(self, mark: TimeMark, time_ms: int) -> None:
        self.mark = mark
        self.time_ms = time_ms
        """Stream time after the mark; UNKNOWN_MS if the input had no time that could advance."""

    def __len__(self) -> int:
        return 0


class Input(TimeSource):
    """One input partition of a task, with the records that have arrived and are not yet taken."""

    def __init__(self, topic: TopicSpec, partition: int, rank: int, *, clock: str = "") -> None:
        """`clock` names how event time is read here: time marks may carry a time for that name."""
        super().__init__((topic.name, partition), topic.key, topic.value)
        self.topic = topic
        self.clock = clock
        self.partition = partition
        self.rank = rank
        self._position: int | None = None
        self.failures: NodeFailures | None = None
        """The error policy for unreadable records; None: the task fails."""
        self._bad: dict[int, DeadLetterRecord] = {}
        self._received: int | None = None
        self._end: int | None = None
        self._arrived_ms = UNKNOWN_MS
        self._unread: deque[RecordColumns | TimeMark] = deque()
        """What has arrived and is not decoded: runs of records, and the marks between them."""
        self._chunks: deque[Chunk | PassedRecords] = deque()
        """What is decoded and not yet taken."""
        self._quiet_since_ms: int | None = None
        self.before_ms = UNKNOWN_MS
        """`time_ms` before the current batch."""
        self.elapsed_ms = 0
        """The sum of the elapsed times of all time marks."""
        self.stated_ms = UNKNOWN_MS
        """The latest time that marks have given the input, even if it has no records."""
        self.now_ms = 0
        """The clock, as of the last `Task.process`: for `timestamp_ahead_max`."""
        self.end_check: CaughtUpCheck = NO_CHECK
        """Whether the end of this input can be in question."""
        self._known = InputEnd()
        self._has_warned_of_seconds = False

    @property
    def topic_partition(self) -> PartitionKey:
        """The topic and partition number."""
        return self.topic.name, self.partition

    @property
    def position(self) -> int | None:
        """The offset of the next record to take; None as long as it is unknown."""
        return self._position

    def __len__(self) -> int:
        """Return the number of records that have arrived and wait for another input."""
        unread = (len(piece) for piece in self._unread if not isinstance(piece, TimeMark))
        return sum(map(len, self._chunks)) + sum(unread)

    def start_at(self, position: int) -> None:
        """Skip all records before this offset: the task has received or does not need them."""
        self._received = max(position, self._received or 0)
        if not self._chunks and not self._unread:
            self._position = max(position, self._position or 0)

    def arrive(self, records: Records, marks: Sequence[TimeMark] = ()) -> None:
        """Add records and time marks; those before the received offset are ignored.

        Raises:
            ProcessingError: a record of an internal topic is unreadable.
        """
        columns, received, at = self._fresh(records), self._received or 0, 0
        if len(columns) or marks:
            self._known.note_arrival(self.end_check.now_ms)
        # Records 5, 6, 8, 9 and a mark at 7 arrive together: the mark is taken between 6 and 8, as
        # if they had arrived one by one.
        for mark in marks:
            if mark.offset < received:
                continue  # After a rewind, it arrives again.
            until = bisect_left(columns.offsets, mark.offset, at)
            self._append(columns[at:until])
            self._unread.append(mark)
            self._received, at = mark.offset + 1, until
        self._append(columns[at:] if at else columns)

    def bring(self, time_ms: int) -> None:
        """Advance event time here as a time mark would, though the log has no mark.

        Has no effect on an input that has records or marks to take, or has reached that time.
        """
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
            # The objects of one run are freed before the next run is decoded.
            starts = range(0, len(columns), RUN_RECORDS_MAX)
            self._unread.extend(columns[low : low + RUN_RECORDS_MAX] for low in starts)

    def _read(self, columns: RecordColumns) -> None:
        chunk = self.decode(columns)
        self._arrived_ms = chunk.count_from(max(self._arrived_ms, self.time_ms))
        self._chunks.append(chunk)

    def _fresh(self, records: Records) -> RecordColumns:
        """Return the records that have not arrived before."""
        columns = RecordColumns.of(records)
        before = bisect_left(columns.offsets, self._received or 0)
        fresh: RecordColumns = columns[before:] if before else columns
        return fresh

    def head(self) -> MergeKey | None:
        """Return time and rank of the next record or mark, decoded; None if there is none.

        Raises:
            ProcessingError: one of the next records is unreadable, or has no valid timestamp.
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
        """Convert the next mark into the stream time that it results in."""
        self._arrived_ms = mark.time_behind(max(self._arrived_ms, self.time_ms), self.clock)
        self._chunks.append(PassedRecords(mark, self._arrived_ms))

    def floor(self) -> MergeKey:
        """Return the smallest merge key that a record still to arrive can have."""
        return max(self._arrived_ms, self.time_ms), self.rank

    def bound(self) -> MergeKey | None:
        """Return the merge key that others may reach while this input is empty; None: no limit."""
        if not self.is_at_end():
            return self.floor()
        return (
            self._known.bound(self.floor(), self.end_check.now_ms) if self.end_check.is_on else None
        )

    def unconfirmed_sources(self, turn: MergeKey | None) -> list[Source | None]:
        """Return the sources whose ends must be confirmed before others may reach `turn`.

        None in the list stands for the input itself. `turn` None asks for what holds back the
        input's own records.
        """
        bound = None if turn is None or not self.is_at_end() else self.bound()
        return [None] if bound is not None and turn is not None and bound < turn else []

    def confirm(self, question: EndOfInputQuestion) -> None:
        """Take the answer to a question: everything that existed when it was asked has arrived."""
        self._known.confirm(question)

    def advance_past(self, other: Input) -> bool:
        """Return whether an answer about this empty input lets the other input's records pass."""
        end = self._known.confirmed_until(other.topic_partition)
        return end is not None and self._known.pass_to(other.turn_before(end))

    def turn_before(self, end: int) -> int:
        """Return the time of the last decoded record before this offset, or UNKNOWN_MS."""
        if not self._chunks:
            return UNKNOWN_MS
        chunk = self._chunks[0]
        if isinstance(chunk, PassedRecords):
            return chunk.time_ms if chunk.mark.offset < end else UNKNOWN_MS
        count = bisect_left(chunk.offsets, end, chunk.at) - chunk.at
        return chunk.times[chunk.at + count - 1] if count else UNKNOWN_MS

    @property
    def known_end(self) -> int:
        """The largest offset that the log is known to reach."""
        return max(self._received or 0, self._end or 0)

    @property
    def newest_ms(self) -> int:
        """The largest time that has arrived, of what is decoded."""
        return max(self._arrived_ms, self.time_ms)

    def is_at_end(self) -> bool:
        """Return whether everything up to the last reported end has been taken."""
        return (
            not self._chunks
            and not self._unread
            and self._end is not None
            and (self._end == 0 or (self._received is not None and self._received >= self._end))
        )

    def learn_end(self, end: int | None, *, now_ms: int, took: bool) -> None:
        """Set the end offset; `took` is whether records of this input have just been taken."""
        self._end = end if end is not None else self._end
        self.at_end = self.is_at_end()
        if took or self._quiet_since_ms is None:
            # Offsets without records, such as time marks, do not end a quiet period.
            self._quiet_since_ms = now_ms
        self.quiet_ms = max(now_ms - self._quiet_since_ms, 0) if self.at_end else 0

    def take(self, bound: MergeKey | None, records_max: int | None) -> Batch | TimeMark:
        """Take the next mark, or the next run of records before `bound`."""
        chunk = self._chunks[0]
        if isinstance(chunk, PassedRecords):
            return self._take_mark(chunk)
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

    def _take_mark(self, passed: PassedRecords) -> TimeMark:
        self._chunks.popleft()
        # A mark says that an hour has passed in a quiet log (decision 008).
        # 1. The records here have reached 10:00: the time becomes 11:00.
        # 2. The input never had a record: it has no time that could advance, unless the mark states
        #    one for this way of reading event time (`clock`).
        # 3. `UNLOGGED`: a runner whose log takes no marks brings the time. There is no offset to
        #    commit.
        mark, stated_ms = passed.mark, passed.time_ms
        if mark is not UNLOGGED:
            stated_ms = mark.time_behind(UNKNOWN_MS, self.clock)
            self._position = mark.offset + 1
        if self.time_ms > UNKNOWN_MS:
            self.elapsed_ms += mark.elapsed_ms
        self.stated_ms = max(self.stated_ms, stated_ms)
        self.time_ms = self.marked_ms = max(self.time_ms, passed.time_ms)
        return mark

    def decode(self, records: RecordColumns) -> Chunk:
        """Decode records; keeps the unreadable ones until the task reaches them."""
        accepted = EventTimes.of(self.topic, self.now_ms)
        chunk = Chunk(records, self.topic, self.partition, self.failures, accepted)
        self._bad.update(chunk.bad)
        if not self._has_warned_of_seconds and len(chunk.timestamps):
            self._warn_seconds(chunk.offsets[0], chunk.timestamps[0])
        return chunk

    def _warn_seconds(self, offset: int, timestamp_ms: int) -> None:
        """Log, once, that event time looks like seconds: judged by the first record of a chunk."""
        where = f"{self.topic.name}-{self.partition}, offset {offset}"
        if (hint := seconds_hint(where, timestamp_ms)) is not None and not self.topic.internal:
            self._has_warned_of_seconds = True
            logger.warning("%s", hint)

    def readable(self, batch: Batch) -> Batch:
        """Hand the batch's unreadable records to the error policy and return the others."""
        if not self._bad or self.failures is None:
            return batch
        letters = [self._bad.pop(offset, None) for offset in batch.origin.offsets]
        for letter, time_ms in zip(letters, batch.origin.times, strict=True):
            if letter is not None:
                self.failures.give_up(self._sendable(letter, time_ms))
        return batch.where([letter is None for letter in letters])

    def _sendable(self, letter: DeadLetterRecord, time_ms: int) -> DeadLetterRecord:
        """Return the letter; for a refused timestamp, it carries the stream time of its source."""
        if not isinstance(letter.error, InvalidTimestamp):
            return letter
        return replace(letter, sent_ms=self.now_ms if time_ms <= UNKNOWN_MS else time_ms)

    def batch(self, chunk: Chunk, low: int, high: int) -> Batch:
        """Take the records of a chunk from `low` up to but not including `high`."""
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
            log_times=chunk.log_times,
        )
        rows = range(len(offsets))
        return Batch(origin, rows, chunk.lazy_keys, chunk.values, chunk.timestamps)

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the position."""
        times = {"time_ms": self.time_ms, "marked_ms": self.marked_ms}
        return {**times, "elapsed_ms": self.elapsed_ms, "told_ms": self.stated_ms}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        self.time_ms = int(data["time_ms"])
        self.marked_ms = int(data.get("marked_ms", UNKNOWN_MS))
        self.elapsed_ms = int(data.get("elapsed_ms", 0))
        self.stated_ms = int(data.get("told_ms", UNKNOWN_MS))


class RecordQueue:
    """The inputs of a task, merged into one order."""

    def __init__(
        self,
        inputs: Sequence[Input],
        *,
        record_at_a_time: bool,
        end_check: CaughtUpCheck = NO_CHECK,
    ) -> None:
        self.inputs = {entry.topic_partition: entry for entry in inputs}
        self._end_check = end_check
        self._records_max = 1 if record_at_a_time else None

    def next_run(self) -> tuple[Input, Batch | TimeMark] | None:
        """Return the next run of records, or mark, and its input; None if nothing may be taken."""
        heads, empty = self._heads()
        if not heads:
            return None
        first, chosen = heads[0]
        if self._end_check.is_on:
            passed = [entry.advance_past(chosen) for entry in empty]
            if any(passed):
                heads, empty = self._heads()  # An answer may have released merged records.
                first, chosen = heads[0]
        # Inputs `a` (rank 0) and `b` (rank 1); the head of `a` has time 10.
        # 1. `b` has a record at 12: take the run of `a` up to 12, those at 12 included, because
        #    rank 0 comes first. Had `a` rank 1, its records at 12 would follow those of `b`.
        # 2. `b` is empty and behind its end offset, its floor is 9: a record at 9 may still arrive,
        #    so nothing is taken (`bound < first`).
        # 3. `b` is empty and read to its end, and no check is on: no bound; all of `a` is taken.
        # 4. As 3, but the end of `b` is in question: the bound is that of `InputEnd.bound`, and
        #    `end_questions` says what must be confirmed.
        bounds = [found for entry in empty if (found := entry.bound()) is not None]
        bounds += [head for head, _ in heads[1:]]
        bound = min(bounds, default=None)
        if bound is not None and bound < first:
            return None
        return chosen, chosen.take(bound, self._records_max)

    def end_questions(self) -> list[EndOfInputQuestion]:
        """Return the questions that must be answered before the next records can be taken.

        Call it when `next_run` returns None.
        """
        if not self._end_check.is_on:
            return []
        heads, empty = self._heads()
        found = [
            (e.topic_partition, of)
            for e in self.inputs.values()
            for of in e.unconfirmed_sources(None)
        ]
        if heads:
            found += [
                (e.topic_partition, of) for e in empty for of in e.unconfirmed_sources(heads[0][0])
            ]
        if not found:
            return []
        turn_ms = max(entry.newest_ms for entry in self.inputs.values())
        ends = {key: entry.known_end for key, entry in self.inputs.items()}
        now_ms = self._end_check.now_ms
        return [EndOfInputQuestion(*about, turn_ms, ends, now_ms) for about in dict.fromkeys(found)]

    def _heads(self) -> tuple[list[tuple[MergeKey, Input]], list[Input]]:
        """Return the inputs with something to take, in merge order, and the empty inputs."""
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
