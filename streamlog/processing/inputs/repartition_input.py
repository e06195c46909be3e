"""A partition of a repartition topic: many sources in one log, by arrival or merged into one order.

The records of all upstream tasks arrive interleaved, and each names its source (`provenance`).
Repetitions are dropped, stream time is kept per source, and time marks end here. The topology lists
the sources that exist; a source from which nothing has arrived holds back stream time. A
`RepartitionInput` processes records in the order of the log. A `MergedInput` takes them by (merge
key, rank of the source, position), the order that sorting all records would give: the merge key of
a record from a topic is its stream time there, and a record that was merged before keeps its
earlier key. A record is released once every other source has reached its key or is read to its end.
Rules of the module:

1. Every decision is made in an order that is part of the progress, so a restart decides alike.
2. The committed offset of a merge is that of the first record not released.
3. While records of a source wait, its stream time is that of the last one released.
4. A source that the topology lacks is gone if a pattern may have found it. Its records, committed
   before its topic was deleted, are processed. They hold back nothing and advance nothing: each
   counts as one of the source that is furthest behind, so it is late once its window is closed.
5. A buffer over its bound releases its earliest records, and counts them as "out of order" with the
   source that it waited for. `MergeWait` names both ends of a long wait.

Flink and Feldera align sources for the same purpose. Not done here: when a source counts as read to
its end (`end_of_input`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import TypeAlias

import msgspec

from streamlog.durations import moment
from streamlog.errors import CorruptData, ProcessingError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.column_batch import Batch, BatchOrigin, processing_error
from streamlog.processing.inputs.end_of_input import (
    LAST_RANK,
    CaughtUpCheck,
    EndOfInputQuestion,
    InputEnd,
    MergeKey,
)
from streamlog.processing.inputs.record_queue import Chunk, Input, Records
from streamlog.processing.outbox import Collector
from streamlog.processing.provenance import (
    BUSY_MS,
    MARK,
    PROVENANCE,
    RECORD_BYTES,
    TIME_BYTES,
    Incarnations,
    identity,
    mark_sent_ms,
    source_of,
    strip_tag,
    unpack_mark,
    unpack_record,
)
from streamlog.record import Headers
from streamlog.records.control_batches import TimeMark
from streamlog.serdes.erased_types import JsonValue
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source, StreamTime

MUCH_OF_BUFFER = 0.5
"""The part of the bound from which on a wait is reported."""
_MIB = 1024 * 1024


class MergeWait(msgspec.Struct, frozen=True, kw_only=True):
    """Records that wait in one partition of a repartition topic."""

    topic: str
    partition: int
    size_bytes: int
    """An estimate."""
    bound_bytes: int
    """Above this, records are released early and counted as "out of order"."""
    behind: Source
    """Topic and partition of the source that the others wait for."""
    behind_ms: int
    """The event time that this source has reached."""
    ahead: Source
    """The source with the most waiting records."""
    ahead_ms: int

    @property
    def is_much(self) -> bool:
        """Whether the wait is long enough to report."""
        return self.size_bytes >= MUCH_OF_BUFFER * self.bound_bytes

    @property
    def apart_ms(self) -> int:
        """The event time between the two sources; 0 as long as one of them has no time."""
        if UNKNOWN_MS in {self.behind_ms, self.ahead_ms}:
            return 0
        return max(self.ahead_ms - self.behind_ms, 0)

    def describe(self) -> str:
        """Return one line: what waits, for which source, and what to check."""
        return (
            f"{self.size_bytes / _MIB:.1f} of {self.bound_bytes / _MIB:.1f} MiB wait in "
            f"{self.topic}-{self.partition} for {partition_name(self.behind)} "
            f"({_format_progress(self.behind_ms)}), most of it from {partition_name(self.ahead)} "
            f"({_format_progress(self.ahead_ms)}): the task that writes the first one lags, or a "
            "record of the second one has a timestamp far in the future"
        )


def partition_name(source: Source) -> str:
    """Return a source the way users write a partition: `topic-0`."""
    topic, partition = source
    return f"{topic}-{partition}"


def show_time(time_ms: int) -> str:
    """Return an event time as an ISO date; in milliseconds if it is beyond the calendar."""
    try:
        return moment(time_ms).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return f"{time_ms} ms"


def _format_progress(time_ms: int) -> str:
    return "no record yet" if time_ms == UNKNOWN_MS else f"at {show_time(time_ms)}"


def _lacks_none(_: Source) -> bool:
    return False


class SourceState:
    """What has arrived from one source."""

    __slots__ = (
        *("index", "is_gone", "marked_ms", "position", "quiet_ms", "source", "time_ms", "turn_ms"),
    )

    def __init__(self, source: Source, *, is_gone: bool = False) -> None:
        self.source = source
        self.is_gone = is_gone
        self.position = -1
        self.index = 0
        self.time_ms = UNKNOWN_MS
        self.turn_ms = UNKNOWN_MS
        """The merge key that its last mark states at the end of the source, which counts records
        that were dropped upstream; UNKNOWN_MS while the source is not at its end."""
        self.marked_ms = UNKNOWN_MS
        """See `TimeSource.marked_ms`."""
        self.quiet_ms = 0


class RepartitionInput(Input):
    """A partition of a repartition topic, in the order of its log."""

    def __init__(
        self,
        topic: TopicSpec,
        partition: int,
        rank: int,
        *,
        sources: Iterable[Source],
        idle_after_ms: int | None,
        collector: Collector,
        may_be_gone: Callable[[Source], bool] = _lacks_none,
    ) -> None:
        """Create an input that has received nothing.

        Args:
            topic: the repartition topic.
            partition: its number.
            rank: of the input among those of the task.
            sources: those that exist.
            idle_after_ms: sources quiet for this long do not hold back what goes downstream.
            collector: counts dropped records, such as repetitions.
            may_be_gone: whether a source that is not among them may have existed.
        """
        super().__init__(topic, partition, rank)

        def gone(source: Source) -> SourceState | None:
            return SourceState(source, is_gone=True) if may_be_gone(source) else None

        states = [SourceState(source) for source in sources]
        self._states = {identity(state.source): state for state in states}
        self._incarnations = Incarnations({s.source: s for s in states}, lambda s: s.position, gone)
        self._stream = StreamTime(state.source for state in states)
        self._idle_after_ms = idle_after_ms
        self._collector = collector

    def arrive(self, records: Records, marks: Sequence[TimeMark] = ()) -> None:  # noqa: ARG002 - see below
        """Add records. Time marks of the log are ignored: upstream tasks send their own."""
        super().arrive(records)

    def batch(self, chunk: Chunk, low: int, high: int) -> Batch:
        """Return the new records from `low` to `high`, without marks and repetitions."""
        kept: list[int] = []
        sources: list[Source] = []
        positions: list[int] = []
        times: list[int] = []
        watermarks: list[int] = []
        headers: list[Headers] = []
        columns = chunk.headers
        for at in range(low, high):
            record_headers = columns[at] if columns is not None else ()
            state = self._receive(chunk, at, record_headers)
            if state is None:
                continue
            kept.append(at)
            sources.append(state.source)
            positions.append(chunk.offsets[at])
            times.append(state.time_ms)
            watermarks.append(self._stream.now_ms)
            headers.append(record_headers[:-1])
        self.time_ms = self._stream.now_ms
        self.quiet_ms = min((s.quiet_ms for s in self._states.values()), default=0)
        origin = BatchOrigin(
            self,
            topic=self.topic.name,
            partition=self.partition,
            offsets=positions,
            positions=positions,
            times=times,
            watermarks=watermarks,
            sources=sources,
            raw_keys=[chunk.raw_keys[at] for at in kept],
            raw_values=[chunk.raw_values[at] for at in kept],
            headers=headers if any(headers) else None,
            stamp=lambda row: provenance_of(columns, kept[row]),
        )
        return Batch(
            origin,
            range(len(kept)),
            [chunk.keys[at] for at in kept],
            [chunk.values[at] for at in kept],
            [chunk.timestamps[at] for at in kept],
        )

    def learn_end(self, end: int | None, *, now_ms: int, took: bool) -> None:
        """Set the end offset; the quiet time stays, because upstream tasks report it by marks."""
        quiet_ms = self.quiet_ms
        super().learn_end(end, now_ms=now_ms, took=took)
        self.quiet_ms = quiet_ms

    def source_times(self) -> list[tuple[Source, int, int]]:
        """Return the sources with their stream times and quiet times."""
        return [(state.source, state.time_ms, state.quiet_ms) for state in self._states.values()]

    def _receive(self, chunk: Chunk, at: int, headers: Headers) -> SourceState | None:
        """Return the source that a record to process counts as; None for a mark or a repetition."""
        name, data = provenance_header(self.topic.name, self.partition, chunk.offsets[at], headers)
        if name == MARK:
            mark, source = unpack_mark(data)
            state = self._states.get(source)
            if state is None:
                # Of a topic that matched a pattern, and was deleted: there is no time to keep.
                return None
            state.turn_ms = mark.turn_ms if mark.at_end else UNKNOWN_MS
            self._advance(state, mark.time_ms)
            self._keep_up()
            state.quiet_ms = mark.quiet_ms
            state.marked_ms = max(state.marked_ms, mark_sent_ms(headers))
            self.marked_ms = min(each.marked_ms for each in self._states.values())
            if mark.quiet_ms and mark.quiet_ms >= (self._idle_after_ms or mark.quiet_ms + 1):
                self._stream.set_idle(state.source)
            return None
        _, time_ms, position, index = unpack_record(data)
        found = self._incarnations.get(data[RECORD_BYTES:])
        if found is None:
            raise unknown_source_error(self.topic.name, self.partition, data[RECORD_BYTES:])
        state, base = found
        position += base
        # An upstream task crashed after sending positions 7 and 8, and sends both again: 7 is below
        # the last position, 8 equals it. `index` tells apart the records that one position has
        # produced: position 8, index 1 is new after position 8, index 0.
        if position < state.position or (position == state.position and index <= state.index):
            self._collector.drop(self.topic.name, "duplicate")
            return None
        state.position = position
        state.index = index
        if state.is_gone:
            return min(self._states.values(), key=attrgetter("time_ms"))
        state.quiet_ms = 0
        state.turn_ms = UNKNOWN_MS
        self._advance(state, time_ms)
        self._keep_up()
        return state

    def _keep_up(self) -> None:
        """Advance sources that are at their end and whose last records were dropped upstream.

        Each advances to the merge key that its last mark states, but not beyond the largest time
        that the records of any source have reached.
        """
        lagging = [each for each in self._states.values() if each.time_ms < each.turn_ms]
        if lagging:
            reached_ms = max(each.time_ms for each in self._states.values())
            for each in lagging:
                self._advance(each, min(each.turn_ms, reached_ms))

    def _advance(self, state: SourceState, time_ms: int) -> None:
        # Time never goes back: an upstream task that restarted may report less than before.
        state.time_ms = max(state.time_ms, time_ms)
        self._stream.advance(state.source, state.time_ms)

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the position.

        Sources that are gone need nothing: what has arrived of them is not read again.
        """
        rows = [
            [*state.source, state.position, state.index, state.time_ms, state.quiet_ms]
            for state in self._states.values()
        ]
        marked = [[*state.source, state.marked_ms] for state in self._states.values()]
        own = {"time_ms": self.time_ms, "sources": rows, "marked": marked}
        own["tags"] = self._incarnations.to_data()
        return {**own, "stream": self._stream.to_data()}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        if "stream" in data:  # `MergedInput` keeps none.
            self._stream.load(data["stream"])
        for name, partition, position, index, time_ms, quiet_ms, *_ in data["sources"]:
            state = self._incarnations.state((name, partition))
            if state is not None:
                state.position, state.index = position, index
                state.time_ms, state.quiet_ms = time_ms, quiet_ms
        for name, partition, marked_ms in data.get("marked", ()):
            state = self._states.get(identity((name, partition)))
            if state is not None:
                state.marked_ms = marked_ms
        self._incarnations.load(data.get("tags", ()))
        self.marked_ms = min((s.marked_ms for s in self._states.values()), default=UNKNOWN_MS)
        self.time_ms = self._stream.now_ms
        self.quiet_ms = min((s.quiet_ms for s in self._states.values()), default=0)


def provenance_of(headers: Sequence[Headers] | None, at: int) -> bytes:
    """Return a record's provenance: position, index and source, without the time it was sent."""
    data = headers[at][-1][1] if headers is not None else None
    return ((data or b"")[TIME_BYTES:RECORD_BYTES]) + strip_tag((data or b"")[RECORD_BYTES:])


def provenance_header(
    topic: str, partition: int, offset: int, headers: Headers
) -> tuple[str, bytes]:
    """Return the header that holds a record's provenance, or that marks a time mark.

    Raises:
        ProcessingError: there is no such header.
    """
    name, data = headers[-1] if headers else ("", None)
    if data is None or name not in {PROVENANCE, MARK}:
        error = CorruptData(
            "the record has no provenance: only the app itself may write to its "
            "repartition topics; write to the topic upstream, or reset the app"
        )
        raise processing_error(topic, topic, partition, offset, error)
    return name, data


def unknown_source_error(topic: str, partition: int, source: bytes) -> ProcessingError:
    """Return the error for a record of a source that the topology does not have."""
    error = CorruptData(
        f"a record came from {source_of(source)}, which the topology does not have: "
        "the app has changed; reset it, or give it another id"
    )
    return processing_error(topic, topic, partition, -1, error)


BUFFER_BYTES = 64 * 1024 * 1024
"""Default bound of the records that wait to be released, by estimate."""
ENTRY_BYTES = 400
"""What a waiting record costs beyond its key and value, Python objects included."""

_Entry: TypeAlias = tuple[int, int, int, int, int, Chunk, int, int]
"""Merge key, rank of the source, position and index in it; stream time; chunk and index in it; and
whether the source was busy then, as in `quiet_ms`."""
_merge_key_of = itemgetter(0)


class _Source:
    """What has arrived from one source, and its records that wait."""

    __slots__ = (
        "arrived",
        "arrived_ms",
        "arrived_turn_ms",
        "is_gone",
        "known",
        "marked_ms",
        "quiet_ms",
        "rank",
        "ready",
        "released",
        "released_ms",
        "resume",
        "resumed_quiet_ms",
        "source",
        "taken",
        "until",
        "waiting",
    )

    def __init__(self, source: Source, rank: int, *, is_gone: bool = False) -> None:
        self.source = source
        self.rank = rank
        self.is_gone = is_gone
        self.arrived = self.released = (-1, 0)
        """Position and index of the last record."""
        self.arrived_ms = self.arrived_turn_ms = self.released_ms = UNKNOWN_MS
        self.quiet_ms = 0 if is_gone else BUSY_MS
        """See `Mark`."""
        self.marked_ms = UNKNOWN_MS
        """See `TimeSource.marked_ms`."""
        self.resume = 0
        """Records before this offset were taken before the task started."""
        self.until = 0
        """The offset after its last record, if it is gone: a restart from there on needs no row."""
        self.resumed_quiet_ms: int | None = None
        """The value of `quiet_ms` once the record at `resume` arrives again; None: marks say it.
        """
        self.waiting: list[_Entry] = []
        self.ready: list[_Entry] = []
        """Its records that were released, in order."""
        self.taken = 0
        """How many of `ready` were taken."""
        self.known = InputEnd()

    @property
    def is_busy(self) -> bool:
        """Whether the source has more records that are already in its log."""
        return self.quiet_ms == BUSY_MS

    @property
    def floor(self) -> MergeKey:
        """The smallest merge key that a record still to come can have."""
        return self.arrived_turn_ms, self.rank

    def bound(self, end_check: CaughtUpCheck) -> MergeKey | None:
        """Return the merge key that the other sources may reach; None: no limit."""
        if self.is_busy:
            return self.floor
        return self.known.bound(self.floor, end_check.now_ms) if end_check.is_on else None

    @property
    def next_entry(self) -> _Entry | None:
        """The first record that was not taken."""
        if self.ready:
            return self.ready[self.taken]
        return self.waiting[0] if self.waiting else None

    def take(self, count: int) -> None:
        """Take the first `count` records of `ready`."""
        # Released records keep the order of their source, so the last one stands for all of them.
        self.taken += count
        last = self.ready[self.taken - 1]
        self.released, self.released_ms = (last[2], last[3]), last[4]
        if self.taken == len(self.ready):
            self.ready, self.taken = [], 0

    @property
    def time_ms(self) -> int:
        """Stream time of the records that were taken."""
        return self.arrived_ms if self.arrived == self.released else self.released_ms

    @property
    def idle_ms(self) -> int:
        """For how long nothing has arrived, with all records taken; otherwise 0."""
        return max(self.quiet_ms, 0) if self.arrived == self.released else 0

    def kept_up_ms(self, reached_ms: int) -> int:
        """Return the time of the source; at its end, it does not hold back the others.

        If its last records were dropped upstream, they advanced its merge key but none arrived
        here. Then its time is that merge key, limited by the largest time of any source's records.
        """
        if self.is_busy or self.arrived != self.released:
            return self.time_ms
        return max(self.arrived_ms, min(self.arrived_turn_ms, reached_ms))

    def time_at(self, turn_ms: int, reached_ms: int) -> int:
        """Return the time of the source once all records before the merge key `turn_ms` were taken.

        `reached_ms` is the largest time of any source's records.
        """
        entry = self.next_entry
        if entry is not None:
            return max(self.released_ms, min(turn_ms, entry[4]))
        return self.kept_up_ms(reached_ms)

    def held_ms(self, reached_ms: int) -> int:
        """Return the time beyond which this source holds back the others.

        A source that is busy, or whose last record is not released, counts with its merge key: no
        later record of the source comes before that. Its time may be smaller, if records were
        dropped upstream; but how many of the later records have arrived says nothing about the
        current batch.
        """
        if self.is_busy or self.arrived != self.released:
            return self.arrived_turn_ms
        return self.kept_up_ms(reached_ms)

    def report(self, turn_ms: int, time_ms: int, quiet_ms: int) -> None:
        """Take a report: the source has reached `time_ms`, and its later records `turn_ms`."""
        self.arrived_turn_ms = max(self.arrived_turn_ms, turn_ms)
        self.arrived_ms = max(self.arrived_ms, time_ms)
        self.quiet_ms = quiet_ms


class MergedInput(Input):
    """A partition of a repartition topic whose sources are merged in the order of event time."""

    def __init__(
        self,
        topic: TopicSpec,
        partition: int,
        rank: int,
        *,
        sources: Iterable[Source],
        collector: Collector,
        idle_after_ms: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        may_be_gone: Callable[[Source], bool] = _lacks_none,
    ) -> None:
        """Create an input that has received nothing.

        Args:
            topic: the repartition topic.
            partition: its number.
            rank: of the input among those of the task.
            sources: in the order of their rank.
            collector: counts dropped records, such as repetitions.
            idle_after_ms: sources quiet for this long do not hold back stream time.
            buffer_bytes: bounds the waiting records.
            may_be_gone: whether a source that is not among them may have existed.
        """
        super().__init__(topic, partition, rank)
        self._sources = [_Source(source, at) for at, source in enumerate(sources)]
        self._ranked = [*self._sources]
        """By rank: the sources that exist, then those that are gone."""
        self._may_be_gone = may_be_gone
        self._by_identity = {identity(each.source): each for each in self._sources}
        self._incarnations = Incarnations(
            {each.source: each for each in self._sources},
            lambda each: each.arrived[0],
            self._find_gone,
        )
        self._collector = collector
        self._idle_after_ms = idle_after_ms
        self._buffer_bytes = buffer_bytes
        self._waiting_bytes = 0
        self._taken_ms = UNKNOWN_MS
        """The largest time of all sources, by the records that were taken."""
        self._ready: list[_Entry] = []
        self._taken = 0
        self._sequence = 0

    def __len__(self) -> int:
        """Return the number of released records; others wait for records still to arrive."""
        return len(self._ready) - self._taken

    @property
    def position(self) -> int | None:
        """The offset to read from after a restart: that of the first record not taken."""
        # Offsets 10 (of `a`), 11 and 12 (of `b`); 11 and 12 were taken, 10 waits: the position is
        # 10. After a restart, 11 and 12 arrive again and are dropped as repetitions.
        left = [entry for each in self._ranked if (entry := each.next_entry) is not None]
        return min(map(_offset_of, left), default=self._received)

    def arrive(self, records: Records, marks: Sequence[TimeMark] = ()) -> None:  # noqa: ARG002 - see below
        """Add records and release those that no later record can precede.

        Time marks of the log are ignored: upstream tasks send their own, one per source.
        """
        fresh = self._fresh(records)
        if not len(fresh):
            return
        chunk = self.decode(fresh)
        columns = chunk.headers
        for at in range(len(fresh)):
            self._receive(chunk, at, columns[at] if columns is not None else ())
        self._received = fresh.offsets[-1] + 1
        self._release()

    def head(self) -> MergeKey | None:
        """Return the merge key of the next released record; None if there is none."""
        if self._taken == len(self._ready):
            return None
        return max(self.turn_ms, self._ready[self._taken][0]), self.rank

    def floor(self) -> MergeKey:
        """Return the smallest merge key that a record still to come can have."""
        found = [each.waiting[0][:2] for each in self._ranked if each.waiting]
        found += [bound for bound, _ in self._bounds()]
        lowest = min(found, default=(UNKNOWN_MS, self.rank))
        return max((self.turn_ms, self.rank), self._among_inputs(lowest))

    def _among_inputs(self, bound: MergeKey) -> MergeKey:
        """Convert a bound between sources of this input to a bound between inputs of the task."""
        time_ms, rank = bound
        return time_ms, LAST_RANK if rank == LAST_RANK else self.rank

    def bound(self) -> MergeKey | None:
        """Return the merge key that others may reach while this input is empty; None: no limit."""
        return self.floor() if self.end_check.is_on or not self.is_at_end() else None

    def _bounds(self) -> list[tuple[MergeKey, _Source]]:
        """Return the sources that limit the others, with the merge keys that they allow."""
        bounds = ((each.bound(self.end_check), each) for each in self._sources)
        return [(bound, each) for bound, each in bounds if bound is not None]

    def unconfirmed_sources(self, turn: MergeKey | None) -> list[Source | None]:
        """Return the sources whose ends must be confirmed before others may reach `turn`.

        `turn` None asks for what holds back this input's own records and the time of its marks.
        """
        bounds = self._bounds()
        if turn is None:
            if self.head() is not None and not self._waiting_bytes:
                return []
            waiting = [each.waiting[0][:2] for each in self._ranked if each.waiting]
            turn = min(waiting, default=(self.newest_ms, -1))
        elif self.floor() >= turn:
            return []
        else:
            # Ranks of sources and of inputs are different scales: compared directly, a source at
            # the same time as `turn` might hold back nothing.
            bounds = [(self._among_inputs(bound), each) for bound, each in bounds]
        held = [(bound, each) for bound, each in bounds if bound < turn]
        return [] if any(each.is_busy for _, each in held) else [each.source for _, each in held]

    def confirm(self, question: EndOfInputQuestion) -> None:
        """Take the answer for one source, or for all: what existed at the question has arrived."""
        for each in self._sources:
            if question.source in {None, each.source}:
                each.known.confirm(question)
        self._release()

    def advance_past(self, other: Input) -> bool:
        """Return whether answers about these sources let the other input's records pass."""
        found = [
            (each, each.known.confirmed_until(other.topic_partition)) for each in self._sources
        ]
        passed = [each.known.pass_to(other.turn_before(end)) for each, end in found if end]
        if any(passed):
            self._release()
        return any(passed)

    def turn_before(self, end: int) -> int:  # noqa: ARG002 - offsets are in no order here
        """Return UNKNOWN_MS: offsets are in no order here, so answers count by merge key."""
        return UNKNOWN_MS

    @property
    def newest_ms(self) -> int:
        """The largest merge key that has arrived."""
        return max(each.arrived_turn_ms for each in self._ranked)

    def is_at_end(self) -> bool:
        """Return whether every source is read to its end, and every record was taken."""
        return (
            self.head() is None
            and not any(each.is_busy or each.waiting for each in self._ranked)
            and super().is_at_end()
        )

    def learn_end(self, end: int | None, *, now_ms: int, took: bool) -> None:
        """Set the end offset; the quiet time is the one that upstream tasks report."""
        super().learn_end(end, now_ms=now_ms, took=took)
        self.quiet_ms = min((each.idle_ms for each in self._sources), default=0)

    def take(self, bound: tuple[int, int] | None, records_max: int | None) -> Batch:
        """Take the next run of records before `bound`."""
        low, high = self._taken, len(self._ready)
        if bound is not None:
            time_ms, rank = bound
            find = bisect_right if self.rank < rank else bisect_left
            high = find(self._ready, time_ms, low, key=_merge_key_of)
        if records_max is not None:
            high = min(high, low + records_max)
        entries = self._ready[low:high]
        self._taken = high
        if high == len(self._ready):
            self._ready, self._taken = [], 0
        batch = self.readable(self._batch(entries))
        self._catch_up()
        return batch

    @property
    def wait(self) -> MergeWait | None:
        """The records that wait, and for which source; None if none do. Safe during `process`."""
        busy = [each for each in self._sources if each.is_busy]
        if not self._waiting_bytes or not busy:
            return None
        behind = min(busy, key=lambda each: each.floor)
        ahead = max(self._ranked, key=lambda each: len(each.waiting))
        return MergeWait(
            topic=self.topic.name,
            partition=self.partition,
            size_bytes=self._waiting_bytes,
            bound_bytes=self._buffer_bytes,
            behind=behind.source,
            behind_ms=behind.arrived_ms,
            ahead=ahead.source,
            ahead_ms=ahead.arrived_ms,
        )

    def source_times(self) -> list[tuple[Source, int, int]]:
        """Return the sources with their stream times and quiet times."""
        reached_ms = self._reached_ms()
        return [(each.source, each.kept_up_ms(reached_ms), each.idle_ms) for each in self._sources]

    @property
    def united_ms(self) -> int:
        """The time that the records have reached: never beyond the largest time of a source."""
        return min(super().united_ms, self._reached_ms())

    def held_ms(self, idle_after_ms: int | None) -> int:
        """Return the time of the slowest source, without those quiet for `idle_after_ms`."""
        reached_ms = self._reached_ms()
        live = (s for s in self._sources if idle_after_ms is None or s.idle_ms < idle_after_ms)
        return min((source.held_ms(reached_ms) for source in live), default=FAR_MS)

    def _reached_ms(self) -> int:
        """Return the largest time of any source.

        It is that of the records that were taken, and of all that has arrived once every source is
        at its end and no record is left. Marks of busy sources don't count: how many were read
        depends on the fetches.
        """
        # Sources `a` (at its end at 10:05, by a mark) and `b` (busy). 1. In one fetch, the marks of
        # both say that they are at their ends, and the next one that `b` is busy again. 2. In three
        # fetches, there is a moment at which both are at their ends. 3. So 10:05 counts only while
        # it is so: had it been kept from that moment on, the state would tell the two apart.
        if any(each.is_busy or each.next_entry is not None for each in self._ranked):
            return self._taken_ms
        return max(self._taken_ms, *(each.arrived_ms for each in self._sources))

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the position."""
        rows: list[list[object]] = []
        position = self.position or 0
        for each in self._ranked:
            if each.is_gone and each.until <= position:
                continue
            row: list[object] = [*each.source, *each.released, each.time_ms]
            if (first := each.next_entry) is not None:
                row += [BUSY_MS, _offset_of(first), each.time_ms, first[7]]
            else:
                row += [each.quiet_ms, self._received or 0, each.arrived_turn_ms]
            rows.append(row)
        times = {
            "time_ms": self.time_ms,
            "turn_ms": self.turn_ms,
            "reached_ms": self._taken_ms,
        }
        marked = [[*each.source, each.marked_ms] for each in self._sources]
        own = {"sources": rows, "marked": marked, "tags": self._incarnations.to_data()}
        return {**times, **own, "sequence": self._sequence}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` of this class, or of `RepartitionInput`, returned."""
        self.time_ms = int(data["time_ms"])
        merged = "sequence" in data
        # `RepartitionInput` numbers records by offset: the sequence continues after its last one.
        self._sequence = int(data["sequence"]) if merged else self._received or 0
        self.turn_ms = int(data.get("turn_ms", UNKNOWN_MS))
        for name, partition, position, index, time_ms, quiet_ms, *more in data["sources"]:
            each = self._incarnations.state((name, partition))
            if each is not None:
                each.arrived = each.released = (position, index)
                each.arrived_ms = each.arrived_turn_ms = each.released_ms = time_ms
                if merged:
                    each.quiet_ms = 0 if each.is_gone else quiet_ms
                    each.resume, each.arrived_turn_ms, *quiet = more
                    each.until = each.resume
                    # The marks before that record are not read again, and no mark need follow it.
                    each.resumed_quiet_ms = quiet[0] if quiet else None
        arrived_ms = max(each.arrived_ms for each in self._sources)
        self._taken_ms = int(data.get("reached_ms", arrived_ms))
        for name, partition, marked_ms in data.get("marked", ()):
            each = self._by_identity.get(identity((name, partition)))
            if each is not None:
                each.marked_ms = marked_ms
        self._incarnations.load(data.get("tags", ()))
        self.marked_ms = min(each.marked_ms for each in self._sources)

    def _receive(self, chunk: Chunk, at: int, headers: Headers) -> None:
        offset = chunk.offsets[at]
        name, data = provenance_header(self.topic.name, self.partition, offset, headers)
        if name == MARK:
            mark, source = unpack_mark(data)
            each = self._by_identity.get(source)
            if each is None:
                # Of a topic that matched a pattern, and was deleted: there is no time to keep.
                return
            # After a restart, reading begins at the first record of any source that was not
            # released. A mark before `resume` is older than the stored state of its source: it
            # might say that the source was at its end, although its later records are to follow.
            if offset >= each.resume:
                each.known.note_arrival(self.end_check.now_ms)
                each.report(*mark)
                each.marked_ms = max(each.marked_ms, mark_sent_ms(headers))
                self.marked_ms = min(source.marked_ms for source in self._sources)
            return
        turn_ms, time_ms, position, index = unpack_record(data)
        found = self._incarnations.get(data[RECORD_BYTES:])
        if found is None:
            raise unknown_source_error(self.topic.name, self.partition, data[RECORD_BYTES:])
        each, base = found
        position += base
        if (position, index) <= each.arrived or offset < each.resume:
            self._collector.drop(self.topic.name, "duplicate")
            return
        each.known.note_arrival(self.end_check.now_ms)
        # A record leaves the source busy or at its end, as it was: a mark follows if it changes.
        quiet_ms = min(each.quiet_ms, 0)
        if offset == each.resume and each.resumed_quiet_ms is not None:
            quiet_ms = each.resumed_quiet_ms
        each.report(turn_ms, time_ms, quiet_ms)
        each.arrived, each.until = (position, index), offset + 1
        turn = (each.arrived_turn_ms, each.rank, position, index)
        each.waiting.append((*turn, each.arrived_ms, chunk, at, quiet_ms))
        self._waiting_bytes += _size_bytes(chunk, at)

    def _find_gone(self, source: Source) -> _Source | None:
        """Return a new source that is gone; None if it never was a source."""
        if not self._may_be_gone(source):
            return None
        gone = _Source(source, len(self._ranked), is_gone=True)
        self._ranked.append(gone)
        return gone

    def _release(self) -> None:
        """Move records to `_ready` that no source can precede any more."""
        # Sources `a` and `b` (decision 006). Records of `a` wait with merge keys 10:00 and 10:04.
        # 1. `b` is busy and has reached 10:02: the record at 10:00 is released, 10:04 waits,
        #    because `b` may still send one at 10:03.
        # 2. `b` is at its end: nothing bounds `a`, and both are released, unless the end is in
        #    question (`InputEnd.bound`).
        # 3. The waiting records exceed the buffer: the earliest are released although `b` is busy,
        #    and counted as "out of order".
        bounds = self._bounds()
        bound = min((bound for bound, _ in bounds), default=None)
        self._make_ready((FAR_MS,) if bound is None else (*bound, FAR_MS))
        if self._waiting_bytes > self._buffer_bytes:
            self._overflow(min(bounds, key=itemgetter(0))[1])
        self._catch_up()

    def _catch_up(self) -> None:
        """Advance to the time that marks state, as far as the next record allows."""
        # Sources `a` and `b`, no record left to take:
        # 1. Both are busy, `a` at 10:00 and `b` at 10:05: the merge key becomes 10:00.
        # 2. `a` is at its end at 10:00, `b` is busy at 10:05: without a check, only `b` bounds the
        #    merge key (10:05), and stream time waits for `a`, which holds it at 10:00.
        # 3. As 2, and `a` has been idle for `idle_after_ms`: stream time is 10:05, that of `b`.
        # 4. All are idle: stream time is the largest, because no source holds back another.
        # 5. `a` has a record at 10:10, which waits for `b`, busy at 10:05: stream time is 10:05,
        #    whether or not a mark has stated that `a` was at 10:05 on the way.
        # 6. As 5, and `b` is at 10:20: the record is released. Until it is taken, time is that of
        #    `b` at 10:10, as if the marks of `b` had arrived one by one.
        bounds = [bound[0] for bound, _ in self._bounds()]
        if self._taken < len(self._ready):
            next_ms = self._ready[self._taken][0]
        else:
            turns = [e.waiting[0][0] if e.waiting else e.arrived_turn_ms for e in self._sources]
            next_ms = max(turns)
        bound_ms = min([*bounds, next_ms])
        self.turn_ms = max(self.turn_ms, bound_ms)
        reached_ms = self._reached_ms()
        kept_up = [(each, each.time_at(bound_ms, reached_ms)) for each in self._sources]
        # A source with a record that was not taken is not idle, though a mark after the record says
        # so: time must not pass the record.
        live = [ms for each, ms in kept_up if each.next_entry or not self._is_idle(each)]
        times = live or [max(time_ms for _, time_ms in kept_up)]
        self.time_ms = max(self.time_ms, min(times))

    def _is_idle(self, source: _Source) -> bool:
        return self._idle_after_ms is not None and source.quiet_ms >= self._idle_after_ms

    def _make_ready(self, bound: tuple[int, ...]) -> None:
        fresh: list[_Entry] = []
        for each in self._ranked:
            high = bisect_left(each.waiting, bound)
            each.ready += each.waiting[:high]
            fresh += each.waiting[:high]
            del each.waiting[:high]
        if not fresh:
            return
        self._waiting_bytes -= sum(_size_bytes(entry[5], entry[6]) for entry in fresh)
        self._ready = sorted([*self._ready[self._taken :], *fresh])
        self._taken = 0

    def _overflow(self, slow: _Source) -> None:
        """Release the earliest records until a quarter of the bound is free.

        `slow` may still send earlier ones. If it is at its end, it does not, as far as is known;
        then the released records are in order and are not counted.
        """
        waiting = sorted(chain(*(each.waiting for each in self._ranked)))
        sizes = accumulate(_size_bytes(entry[5], entry[6]) for entry in waiting)
        least_bytes = self._waiting_bytes - self._buffer_bytes * 3 // 4
        count = 1 + sum(size_bytes < least_bytes for size_bytes in sizes)
        if slow.is_busy:
            name, partition = slow.source
            node = f"{self.topic.name}, waiting for {name}-{partition}"
            self._collector.drop(node, "out of order", count)
        self._make_ready((*waiting[count][:4],) if count < len(waiting) else (FAR_MS,))

    def _batch(self, entries: Sequence[_Entry]) -> Batch:
        sources = self._ranked
        # Before any is taken: the time of the batch's last record would make its first ones late.
        slowest = min(self._sources, key=attrgetter("released_ms"))
        slowest_ms = slowest.released_ms
        counts_as = [slowest if each.is_gone else each for each in sources]
        for rank, count in Counter(map(itemgetter(1), entries)).items():
            sources[rank].take(count)
        taken = [(entry[5], entry[6]) for entry in entries]
        turns = list(accumulate(map(_merge_key_of, entries), max, initial=self.turn_ms))[1:]
        times = [entry[4] for entry in entries]
        if len(sources) > len(self._sources):
            times = [slowest_ms if sources[e[1]].is_gone else e[4] for e in entries]
        moments = list(accumulate(times, max, initial=self._taken_ms))[1:]
        watermarks = self._watermarks(turns, times, moments)
        self._taken_ms = moments[-1]
        self.turn_ms, self.time_ms = turns[-1], watermarks[-1]
        first, self._sequence = self._sequence, self._sequence + len(entries)
        headers = [chunk.headers[at][:-1] if chunk.headers else () for chunk, at in taken]
        origin = BatchOrigin(
            self,
            topic=self.topic.name,
            partition=self.partition,
            offsets=[chunk.offsets[at] for chunk, at in taken],
            positions=range(first, self._sequence),
            times=times,
            watermarks=watermarks,
            turns=turns,
            moments=moments,
            sources=[counts_as[entry[1]].source for entry in entries],
            raw_keys=[chunk.raw_keys[at] for chunk, at in taken],
            raw_values=[chunk.raw_values[at] for chunk, at in taken],
            headers=headers if any(headers) else None,
            stamp=lambda row: provenance_of(taken[row][0].headers, taken[row][1]),
        )
        return Batch(
            origin,
            range(len(entries)),
            [chunk.keys[at] for chunk, at in taken],
            [chunk.values[at] for chunk, at in taken],
            [chunk.timestamps[at] for chunk, at in taken],
        )

    def _watermarks(
        self, turns: Sequence[int], times: Sequence[int], moments: Sequence[int]
    ) -> list[int]:
        """Return the stream time of all sources together at each record.

        Busy sources have reached the record's merge key. Sources at their end hold back time where
        they are, or keep up with the others if their last records were dropped upstream.
        """
        ended = sorted(
            (each.arrived_turn_ms, each.arrived_ms)
            for each in self._sources
            if not each.is_busy and not self._is_idle(each)
        )
        found: list[int] = []
        lagging: list[tuple[int, int]] = []
        reached_ms, limit_ms, passed = self.time_ms, FAR_MS, 0
        for turn_ms, time_ms, moment_ms in zip(turns, times, moments, strict=True):
            # Source `a` is busy; `b` is at its end, not idle. The record of `a` has key 10:05.
            # 1. `b` ended with a record at 10:00: stream time stays at 10:00, since a window must
            #    not close before `b` continues or becomes idle (`limit_ms`).
            # 2. The last record of `b` that arrived is at 10:00, but it read up to 10:03 and a
            #    filter dropped the rest: stream time is 10:03, not 10:00 (`lagging`).
            # 3. `b` ended at 10:08, after this record: it holds back nothing yet.
            while passed < len(ended) and ended[passed][0] < turn_ms:
                arrived_turn_ms, arrived_ms = ended[passed]
                if arrived_ms < arrived_turn_ms:
                    lagging.append((arrived_turn_ms, arrived_ms))
                else:
                    limit_ms = min(limit_ms, arrived_ms)
                passed += 1
            kept_up = [
                max(arrived_ms, min(until_ms, moment_ms)) for until_ms, arrived_ms in lagging
            ]
            reached_ms = max(reached_ms, min(time_ms, limit_ms, *kept_up))
            found.append(reached_ms)
        return found


def _offset_of(entry: _Entry) -> int:
    return entry[5].offsets[entry[6]]


def _size_bytes(chunk: Chunk, at: int) -> int:
    return ENTRY_BYTES + len(chunk.raw_keys[at] or b"") + len(chunk.raw_values[at] or b"")
