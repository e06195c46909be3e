"""RecordQueue: which input's records are next.

A task with several inputs takes records in the order (running maximum of timestamps in the
input, rank of the input, offset): the same order whatever was fetched first. An input that is
behind, that is with records before its end offset that have not arrived, is waited for; one
that is read to its end holds nobody back. Rule of the file: what is taken is a run of records
of one input, as long as the order allows, so that the steps see batches. The order is that of
Kafka Streams (KIP-353, KIP-695) with the running maximum in place of the head's timestamp.
Not done here: where the records of a repartition topic came from (`repartitioned`), bounds of
the buffers (a runner reads `Task.buffered` and pauses its consumer).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import repeat, starmap
from typing import Any, TypeAlias

from streamlog.durations import when_ms
from streamlog.errors import CorruptData, ProcessingError, SerdeError
from streamlog.processing.columns import Batch, Feed, Origin, RawKeys, failed, until_error
from streamlog.processing.dead_letters import Letter
from streamlog.processing.failures import NodeFailures
from streamlog.processing.serialized import loads_all
from streamlog.record import Headers
from streamlog.records.batch import Record
from streamlog.records.columns import RecordColumns, all_ascii, first_below_zero, running_max
from streamlog.records.control import TimeMark
from streamlog.serdes import StrSerde
from streamlog.topology import TopicSpec
from streamlog.windows.emit import UNKNOWN_MS

TopicPartition: TypeAlias = tuple[str, int]
Records: TypeAlias = Sequence[Record] | RecordColumns
"""Records of one partition in offset order."""

RUN_RECORDS_MAX = 1_000
"""So many are read and taken together at most: what is made of them goes before the next ones come,
and its memory, still in the processor's caches, is theirs."""


class Chunk:
    """Decoded records of one arrival, in offset order, taken from the front."""

    __slots__ = (
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
    ) -> None:
        timestamps = records.timestamps
        self.at = 0
        self.offsets: Sequence[int] = records.offsets
        self.raw_keys: Sequence[bytes | None] = records.keys
        self.raw_values: Sequence[bytes | None] = records.values
        self.headers: Sequence[Headers] | None = records.headers
        self._keys: list[Any] | RawKeys = []
        self.values: Sequence[Any] = ()
        self.timestamps: Sequence[int] = ()
        self.bad: dict[int, Letter] = {}
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
            self._keys = _decoded(self.raw_keys, topic, "key", partition, offsets)
        self.values = _decoded(self.raw_values, topic, "value", partition, offsets)
        self.timestamps = _extracted(self.values, timestamps, topic, partition, offsets)
        if (at := first_below_zero(self.timestamps)) >= 0:
            error = _negative(self.timestamps[at])
            raise failed(topic.name, topic.name, partition, offsets[at], error)

    def _read_each(
        self, topic: TopicSpec, partition: int, timestamps: Sequence[int], failures: NodeFailures
    ) -> None:
        """Some can't be read. What becomes of those is seen when it is their turn."""
        rows: list[tuple[Any, Any, int]] = []
        headers = repeat(()) if self.headers is None else self.headers
        raws = (self.raw_keys, self.raw_values, headers)
        for record in starmap(Record, zip(self.offsets, timestamps, *raws, strict=False)):
            letter = partial(_letter_of, record, topic, partition)
            row = failures.tried(partial(_read_one, record, topic), letter)
            if isinstance(row, Letter):
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
    def unmade_keys(self) -> list[Any] | RawKeys:
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


def _decoded(
    raw: Sequence[bytes | None],
    topic: TopicSpec,
    what: str,
    partition: int,
    offsets: Sequence[int],
) -> list[Any]:
    serde = topic.key if what == "key" else topic.value
    try:
        return loads_all(serde, raw)
    except Exception:  # noqa: BLE001 - a serde of the user: found and raised again below
        # Which one was it, and why? Again one by one.
        loads = serde.loads
        decoded, error = until_error(lambda data: None if data is None else loads(data), raw)
    if error is not None:
        cause = SerdeError(f"{what}: {error}")
        raise failed(topic.name, topic.name, partition, offsets[len(decoded)], cause) from error
    return decoded


def _extracted(
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
    found, error = until_error(
        lambda value, ms: ms if value is None else when_ms(extract(value)), values, timestamps
    )
    if error is not None:
        node = f"timestamp of {topic.name}"
        raise failed(node, topic.name, partition, offsets[len(found)], error) from error
    return found


def _negative(timestamp_ms: int) -> CorruptData:
    return CorruptData(
        f"the timestamp is {timestamp_ms} ms, before 1970: event time can't be "
        "negative; correct the producer, or declare timestamp= on the topic"
    )


def _read_one(record: Record, topic: TopicSpec) -> tuple[Any, Any, int]:
    """Key, value and event time of one record."""
    key = None if record.key is None else topic.key.loads(record.key)
    value = None if record.value is None else topic.value.loads(record.value)
    timestamp_ms = record.timestamp_ms
    if topic.timestamp is not None and value is not None:
        timestamp_ms = when_ms(topic.timestamp(value))
    if timestamp_ms < 0:
        raise _negative(timestamp_ms)
    return key, value, timestamp_ms


def _letter_of(
    record: Record, topic: TopicSpec, partition: int, error: Exception, attempt: int
) -> Letter:
    return Letter(
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

    def __init__(self, topic: TopicSpec, partition: int, rank: int) -> None:
        super().__init__((topic.name, partition), topic.key, topic.value)
        self.topic = topic
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
        for mark in marks:
            if mark.offset < received:
                continue
            until = bisect_left(columns.offsets, mark.offset, at)
            self._append(columns[at:until])
            self._unread.append(mark)
            self._received, at = mark.offset + 1, until
        self._append(columns[at:] if at else columns)

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

    def head(self) -> tuple[int, int] | None:
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
        time_ms = max(self._arrived_ms, self.time_ms)
        if time_ms > UNKNOWN_MS:
            self._arrived_ms = time_ms + mark.elapsed_ms
        self._chunks.append(Passed(mark, self._arrived_ms))

    def floor(self) -> tuple[int, int]:
        """Time and rank that no record still to arrive comes before."""
        return max(self._arrived_ms, self.time_ms), self.rank

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

    def take(self, bound: tuple[int, int] | None, records_max: int | None) -> Batch | TimeMark:
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
        self.time_ms = self.marked_ms = max(self.time_ms, passed.time_ms)
        self._position = passed.mark.offset + 1
        return passed.mark

    def arrived(self, records: RecordColumns) -> Chunk:
        """Records, read; those that could not be are kept until it is their turn."""
        chunk = Chunk(records, self.topic, self.partition, self.failures)
        self._bad.update(chunk.bad)
        return chunk

    def readable(self, batch: Batch) -> Batch:
        """Without the records that could not be read: it is their turn."""
        if not self._bad or self.failures is None:
            return batch
        letters = [self._bad.pop(offset, None) for offset in batch.origin.offsets]
        for letter in letters:
            if letter is not None:
                self.failures.give_up(letter)
        return batch.where([letter is None for letter in letters])

    def batch(self, chunk: Chunk, low: int, high: int) -> Batch:
        """The records of a chunk from `low` to `high`, which are being taken."""
        if high - low < len(chunk.offsets):
            chunk = chunk.part(low, high)
        times, offsets = chunk.times, chunk.offsets
        self.time_ms = times[-1]
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
        return {"time_ms": self.time_ms, "marked_ms": self.marked_ms}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave."""
        self.time_ms = int(data["time_ms"])
        self.marked_ms = int(data.get("marked_ms", UNKNOWN_MS))


class RecordQueue:
    """The inputs of a task, and whose turn it is."""

    def __init__(self, inputs: Sequence[Input], *, record_at_a_time: bool) -> None:
        self.inputs = {entry.place: entry for entry in inputs}
        self._records_max = 1 if record_at_a_time else None

    def next_run(self) -> tuple[Input, Batch | TimeMark] | None:
        """The next run of records, or mark, and its input; None if there is none to be taken."""
        heads = []
        bounds = []
        for entry in self.inputs.values():
            head = entry.head()
            if head is not None:
                heads.append((head, entry))
            elif not entry.is_at_end():
                bounds.append(entry.floor())  # Its next record may come before all others.
        if not heads:
            return None
        heads.sort(key=lambda pair: pair[0])
        bounds += [head for head, _ in heads[1:]]
        first, chosen = heads[0]
        bound = min(bounds, default=None)
        if bound is not None and bound < first:
            return None
        return chosen, chosen.take(bound, self._records_max)
