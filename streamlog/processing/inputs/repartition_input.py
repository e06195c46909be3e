"""A partition of a repartition topic: many sources in one log, by arrival or merged into one order.

The records of all upstream tasks arrive interleaved, and each names its source (`provenance`).
Repetitions are dropped, stream time is kept per source, and time marks end here. The topology tells
which sources exist; one that has not been heard from holds back stream time. A `RepartitionInput`
processes records in the order of the log. A `MergedInput` takes them by (merge key, rank of the
source, position), the order of a sort of everything: the merge key of a record from a topic is its
stream time there, and of a merged record its earlier key. A record is released once every other
source has come to its key or is read to its end. Rules of the module:

1. Everything is decided in an order that is part of the progress, so a restart decides the same.
2. The committed offset of a merge is that of the first record not released.
3. While records of a source wait, its stream time is that of the last one released.
4. A buffer over its bound releases what it must, and counts these records as "out of order", with
   the source that it waited for. `MergeWait` names both ends of a long wait.

Flink and Feldera align sources for the same end. Not done here: when a source counts as read to its
end (`end_of_input`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, TypeAlias

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
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source, StreamTime

MUCH_OF_BUFFER = 0.5
"""Of the bound: from here on it is worth telling."""
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWait:
    """Records that wait in one partition of a repartition topic."""

    topic: str
    partition: int
    size_bytes: int
    """By estimate."""
    bound_bytes: int
    """Beyond this, records are taken before their turn and counted as "out of order"."""
    behind: Source
    """The source that is waited for: topic and partition."""
    behind_ms: int
    """How far event time has come there."""
    ahead: Source
    """The source of which most waits."""
    ahead_ms: int

    @property
    def is_much(self) -> bool:
        """Whether it should be told."""
        return self.size_bytes >= MUCH_OF_BUFFER * self.bound_bytes

    @property
    def apart_ms(self) -> int:
        """What lies between the two in event time; 0 as long as one has not been heard of."""
        if UNKNOWN_MS in {self.behind_ms, self.ahead_ms}:
            return 0
        return max(self.ahead_ms - self.behind_ms, 0)

    def told(self) -> str:
        """In a line: what waits, for whom, and what to look at."""
        return (
            f"{self.size_bytes / _MIB:.1f} of {self.bound_bytes / _MIB:.1f} MiB wait in "
            f"{self.topic}-{self.partition} for {partition_name(self.behind)} "
            f"({_format_progress(self.behind_ms)}), most of it from {partition_name(self.ahead)} "
            f"({_format_progress(self.ahead_ms)}): what writes the first one is "
            "behind, or a record of the second one has a time of the far future"
        )


def partition_name(source: Source) -> str:
    """A source, as users write a partition."""
    topic, partition = source
    return f"{topic}-{partition}"


def show_time(time_ms: int) -> str:
    """An event time, as a moment if there is one."""
    try:
        return moment(time_ms).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return f"{time_ms} ms"


def _format_progress(time_ms: int) -> str:
    return "nothing has come" if time_ms == UNKNOWN_MS else f"at {show_time(time_ms)}"


class SourceState:
    """What has been heard of one source."""

    __slots__ = ("index", "marked_ms", "position", "quiet_ms", "source", "time_ms", "turn_ms")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.position = -1
        self.index = 0
        self.time_ms = UNKNOWN_MS
        self.turn_ms = UNKNOWN_MS
        """How far marks have told it to have come at its end, records left out included."""
        self.marked_ms = UNKNOWN_MS
        """See `Feed`."""
        self.quiet_ms = 0


class RepartitionInput(Input):
    """A partition of a repartition topic."""

    def __init__(
        self,
        topic: TopicSpec,
        partition: int,
        rank: int,
        *,
        sources: Iterable[Source],
        idle_after_ms: int | None,
        collector: Collector,
    ) -> None:
        """`idle_after_ms`: sources quiet for this long do not hold back what goes downstream."""
        super().__init__(topic, partition, rank)
        states = [SourceState(source) for source in sources]
        self._states = {identity(state.source): state for state in states}
        self._incarnations = Incarnations({s.source: s for s in states}, lambda s: s.position)
        self._stream = StreamTime(state.source for state in states)
        self._idle_after_ms = idle_after_ms
        self._collector = collector

    def arrive(self, records: Records, marks: Sequence[TimeMark] = ()) -> None:  # noqa: ARG002 - see below
        """Take in records. What the log says of time is not asked: the tasks upstream say it."""
        super().arrive(records)

    def batch(self, chunk: Chunk, low: int, high: int) -> Batch:
        """The records from `low` to `high` that are new, without the marks among them."""
        kept: list[int] = []
        sources: list[Source] = []
        positions: list[int] = []
        times: list[int] = []
        watermarks: list[int] = []
        headers: list[Headers] = []
        columns = chunk.headers
        for at in range(low, high):
            record_headers = columns[at] if columns is not None else ()
            state = self._hear(chunk, at, record_headers)
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
        """The end offset as of now. Who is quiet is for the tasks upstream to say."""
        quiet_ms = self.quiet_ms
        super().learn_end(end, now_ms=now_ms, took=took)
        self.quiet_ms = quiet_ms

    def heard_of(self) -> list[tuple[Source, int, int]]:
        """Its sources with their stream time and for how long they have been quiet."""
        return [(state.source, state.time_ms, state.quiet_ms) for state in self._states.values()]

    def _hear(self, chunk: Chunk, at: int, headers: Headers) -> SourceState | None:
        """The source of a record to be processed; None for a mark or a repetition."""
        name, data = provenance_header(self.topic.name, self.partition, chunk.offsets[at], headers)
        if name == MARK:
            mark, source = unpack_mark(data)
            state = self._state(source)
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
        if position < state.position or (position == state.position and index <= state.index):
            self._collector.drop(self.topic.name, "duplicate")
            return None
        state.position = position
        state.index = index
        state.quiet_ms = 0
        state.turn_ms = UNKNOWN_MS
        self._advance(state, time_ms)
        self._keep_up()
        return state

    def _keep_up(self) -> None:
        """Sources at their end whose last records were left out upstream hold no others back.

        They have come as far as those records say, but no further than any source's records did.
        """
        lagging = [each for each in self._states.values() if each.time_ms < each.turn_ms]
        if lagging:
            reached_ms = max(each.time_ms for each in self._states.values())
            for each in lagging:
                self._advance(each, min(each.turn_ms, reached_ms))

    def _advance(self, state: SourceState, time_ms: int) -> None:
        # Judged by the time known: a task upstream that started again may know less than before.
        state.time_ms = max(state.time_ms, time_ms)
        self._stream.advance(state.source, state.time_ms)

    def _state(self, source: bytes) -> SourceState:
        state = self._states.get(source)
        if state is None:
            raise unknown_source_error(self.topic.name, self.partition, source)
        return state

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the position."""
        rows = [
            [*state.source, state.position, state.index, state.time_ms, state.quiet_ms]
            for state in self._states.values()
        ]
        marked = [[*state.source, state.marked_ms] for state in self._states.values()]
        own = {"time_ms": self.time_ms, "sources": rows, "marked": marked}
        own["tags"] = self._incarnations.to_data()
        return {**own, "stream": self._stream.to_data()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave."""
        if "stream" in data:  # `MergedInput` keeps none.
            self._stream.load(data["stream"])
        for name, partition, position, index, time_ms, quiet_ms, *_ in data["sources"]:
            state = self._states.get(identity((name, partition)))
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
    """Where a record came from: position, index and source, but not when it was sent."""
    data = headers[at][-1][1] if headers is not None else None
    return ((data or b"")[TIME_BYTES:RECORD_BYTES]) + strip_tag((data or b"")[RECORD_BYTES:])


def provenance_header(
    topic: str, partition: int, offset: int, headers: Headers
) -> tuple[str, bytes]:
    """The header that says where a record came from, or that it is a mark.

    Raises:
        ProcessingError: there is none.
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
    """The error of a record from somewhere else, to be raised."""
    error = CorruptData(
        f"a record came from {source_of(source)}, which the topology does not have: "
        "the app has changed; reset it, or give it another id"
    )
    return processing_error(topic, topic, partition, -1, error)


BUFFER_BYTES = 64 * 1024 * 1024
"""Default bound of what waits to be released, by estimate."""
ENTRY_BYTES = 400
"""What a waiting record costs beyond its key and value, their objects included."""

_Entry: TypeAlias = tuple[int, int, int, int, int, Chunk, int, int]
"""Turn, rank of the source, position and index in it; stream time; chunk, and place in it; whether
its source was busy then, as `quiet_ms` says it."""
_merge_key_of = itemgetter(0)


class _Source:
    """What has been heard of one source, and what of it waits."""

    __slots__ = (
        "heard",
        "heard_ms",
        "heard_turn_ms",
        "known",
        "marked_ms",
        "quiet_ms",
        "rank",
        "released",
        "released_ms",
        "resume",
        "resumed_quiet_ms",
        "source",
        "waiting",
    )

    def __init__(self, source: Source, rank: int) -> None:
        self.source = source
        self.rank = rank
        self.heard = self.released = (-1, 0)
        """Position and index of the last record."""
        self.heard_ms = self.heard_turn_ms = self.released_ms = UNKNOWN_MS
        self.quiet_ms = BUSY_MS
        """See `Mark`."""
        self.marked_ms = UNKNOWN_MS
        """See `Feed`."""
        self.resume = 0
        """What lies before this offset was heard before the task started."""
        self.resumed_quiet_ms: int | None = None
        """What is true of `quiet_ms` once the record there is heard again; None: what marks say."""
        self.waiting: list[_Entry] = []
        self.known = InputEnd()

    @property
    def is_busy(self) -> bool:
        """Whether more comes that is there already."""
        return self.quiet_ms == BUSY_MS

    @property
    def floor(self) -> MergeKey:
        """Turn and rank that no record still to come is before."""
        return self.heard_turn_ms, self.rank

    def bound(self, doubting: CaughtUpCheck) -> MergeKey | None:
        """So far the others may go; None: there is no bound."""
        if self.is_busy:
            return self.floor
        return self.known.bound(self.floor, doubting.now_ms) if doubting.is_on else None

    @property
    def time_ms(self) -> int:
        """Stream time, as far as records have been taken."""
        return self.heard_ms if self.heard == self.released else self.released_ms

    @property
    def idle_ms(self) -> int:
        """For how long nothing came, though all was read."""
        return max(self.quiet_ms, 0) if self.heard == self.released else 0

    def kept_up_ms(self, reached_ms: int) -> int:
        """Its time, which does not hold the others back at its end.

        Of its last records none has come through the topic, though they have moved its turn: so it
        has come as far as they say, but no further than the records that came of any source.
        """
        if self.is_busy or self.heard != self.released:
            return self.time_ms
        return max(self.heard_ms, min(self.heard_turn_ms, reached_ms))

    def held_ms(self, reached_ms: int) -> int:
        """The time beyond which this source holds the others back.

        A source that goes on, or whose last record is not released, counts with its turn: nothing
        of it comes before that. Its time may be less, if records were left out upstream, and how
        much of what follows has arrived says nothing about the records in hand.
        """
        if self.is_busy or self.heard != self.released:
            return self.heard_turn_ms
        return self.kept_up_ms(reached_ms)

    def hear(self, turn_ms: int, time_ms: int, quiet_ms: int) -> None:
        """It has come to this time, and what follows has its turn no earlier."""
        self.heard_turn_ms = max(self.heard_turn_ms, turn_ms)
        self.heard_ms = max(self.heard_ms, time_ms)
        self.quiet_ms = quiet_ms


class MergedInput(Input):
    """A partition of a repartition topic, its sources merged in the order of time."""

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
    ) -> None:
        """An input of which nothing has been read.

        Args:
            topic: that the partition is of.
            partition: its number.
            rank: of the input among those of the task.
            sources: in the order of their rank.
            collector: where repetitions and the like are counted.
            idle_after_ms: sources quiet for this long do not hold stream time back.
            buffer_bytes: bounds what waits.
        """
        super().__init__(topic, partition, rank)
        self._sources = [_Source(source, at) for at, source in enumerate(sources)]
        self._by_identity = {identity(each.source): each for each in self._sources}
        self._incarnations = Incarnations(
            {each.source: each for each in self._sources}, lambda each: each.heard[0]
        )
        self._collector = collector
        self._idle_after_ms = idle_after_ms
        self._buffer_bytes = buffer_bytes
        self._waiting_bytes = 0
        self._reached_ms = UNKNOWN_MS
        """The largest time of all sources, by the records that were taken."""
        self._ready: list[_Entry] = []
        self._taken = 0
        self._sequence = 0

    def __len__(self) -> int:
        """Records whose turn has come in this input. Others wait for what is yet to be read."""
        return len(self._ready) - self._taken

    @property
    def position(self) -> int | None:
        """The offset to read from after a restart: of the first record that is not taken."""
        left = self._ready[self._taken :]
        left += [each.waiting[0] for each in self._sources if each.waiting]
        return min(map(_offset_of, left), default=self._received)

    def arrive(self, records: Records, marks: Sequence[TimeMark] = ()) -> None:  # noqa: ARG002 - see below
        """Take in records, release those that nothing can come before.

        What the log says of time is not asked: the tasks upstream say it, of every source.
        """
        fresh = self._fresh(records)
        if not len(fresh):
            return
        chunk = self.arrived(fresh)
        columns = chunk.headers
        for at in range(len(fresh)):
            self._hear(chunk, at, columns[at] if columns is not None else ())
        self._received = fresh.offsets[-1] + 1
        self._release()

    def head(self) -> MergeKey | None:
        """Turn and rank of the next record; None if there is none."""
        if self._taken == len(self._ready):
            return None
        return max(self.turn_ms, self._ready[self._taken][0]), self.rank

    def floor(self) -> MergeKey:
        """Turn and rank that no record still to come is before, as far as its sources are known."""
        found = [each.waiting[0][:2] for each in self._sources if each.waiting]
        found += [bound for bound, _ in self._bounds()]
        lowest = min(found, default=(UNKNOWN_MS, self.rank))
        return max((self.turn_ms, self.rank), self._among_inputs(lowest))

    def _among_inputs(self, bound: MergeKey) -> MergeKey:
        """What a source lets the others of this input go to, as what this input lets others."""
        time_ms, rank = bound
        return time_ms, LAST_RANK if rank == LAST_RANK else self.rank

    def bound(self) -> MergeKey | None:
        """So far others may go while nothing of this is at hand; None: there is no bound."""
        return self.floor() if self.doubting.is_on or not self.is_at_end() else None

    def _bounds(self) -> list[tuple[MergeKey, _Source]]:
        """So far each source lets the others go, where there is a bound."""
        bounds = ((each.bound(self.doubting), each) for each in self._sources)
        return [(bound, each) for bound, each in bounds if bound is not None]

    def unconfirmed_sources(self, turn: MergeKey | None) -> list[Source | None]:
        """Which of its sources may have more, for others to come to `turn`.

        Without one: for what of its own is held back, be it records or what marks tell of time.
        """
        bounds = self._bounds()
        if turn is None:
            if self.head() is not None and not self._waiting_bytes:
                return []
            waiting = [each.waiting[0][:2] for each in self._sources if each.waiting]
            turn = min(waiting, default=(self.newest_ms, -1))
        elif self.floor() >= turn:
            return []
        else:
            # Sources have ranks of their own: by these one at the same time would hold nobody.
            bounds = [(self._among_inputs(bound), each) for bound, each in bounds]
        held = [(bound, each) for bound, each in bounds if bound < turn]
        return [] if any(each.is_busy for _, each in held) else [each.source for _, each in held]

    def confirm(self, doubt: EndOfInputQuestion) -> None:
        """A source was at its end when the question was put; what has come by then has arrived."""
        for each in self._sources:
            if doubt.source in {None, each.source}:
                each.known.confirm(doubt)
        self._release()

    def advance_past(self, other: Input) -> bool:
        """Whether what the other has at hand may go further, as is known of these ends."""
        found = [(each, each.known.confirmed_until(other.place)) for each in self._sources]
        passed = [each.known.pass_to(other.turn_before(end)) for each, end in found if end]
        if any(passed):
            self._release()
        return any(passed)

    def turn_before(self, end: int) -> int:  # noqa: ARG002 - offsets are in no order here
        """None: what is known of others lets pass what had come, by its turn."""
        return UNKNOWN_MS

    @property
    def newest_ms(self) -> int:
        """The newest turn that has come."""
        return max(each.heard_turn_ms for each in self._sources)

    def is_at_end(self) -> bool:
        """Whether everything upstream was read to its end, and has come here, and is taken."""
        return (
            self.head() is None
            and not any(each.is_busy or each.waiting for each in self._sources)
            and super().is_at_end()
        )

    def learn_end(self, end: int | None, *, now_ms: int, took: bool) -> None:
        """The end offset as of now. Who is quiet is for the tasks upstream to say."""
        super().learn_end(end, now_ms=now_ms, took=took)
        self.quiet_ms = min((each.idle_ms for each in self._sources), default=0)

    def take(self, bound: tuple[int, int] | None, records_max: int | None) -> Batch:
        """The next run of records: those before `bound`, a time and a rank."""
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
        """What waits, and for whom; None if nothing does. May be asked while the task works."""
        busy = [each for each in self._sources if each.is_busy]
        if not self._waiting_bytes or not busy:
            return None
        behind = min(busy, key=lambda each: each.floor)
        ahead = max(self._sources, key=lambda each: len(each.waiting))
        return MergeWait(
            topic=self.topic.name,
            partition=self.partition,
            size_bytes=self._waiting_bytes,
            bound_bytes=self._buffer_bytes,
            behind=behind.source,
            behind_ms=behind.heard_ms,
            ahead=ahead.source,
            ahead_ms=ahead.heard_ms,
        )

    def heard_of(self) -> list[tuple[Source, int, int]]:
        """Its sources with their stream time and for how long they have been quiet."""
        reached_ms = self._reached_ms
        return [(each.source, each.kept_up_ms(reached_ms), each.idle_ms) for each in self._sources]

    @property
    def come_ms(self) -> int:
        """How far the records have come: never beyond the largest time of a source."""
        return min(super().come_ms, self._reached_ms)

    def held_ms(self, idle_after_ms: int | None) -> int:
        """The time of its slowest source; without those that have been quiet for so long."""
        live = (s for s in self._sources if idle_after_ms is None or s.idle_ms < idle_after_ms)
        return min((source.held_ms(self._reached_ms) for source in live), default=FAR_MS)

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the position."""
        left: dict[int, _Entry] = {}
        for entry in self._ready[self._taken :]:
            left.setdefault(entry[1], entry)
        rows: list[list[object]] = []
        for each in self._sources:
            if each.waiting:
                left.setdefault(each.rank, each.waiting[0])
            row: list[object] = [*each.source, *each.released, each.time_ms]
            if each.rank in left:
                first = left[each.rank]
                row += [BUSY_MS, _offset_of(first), each.time_ms, first[7]]
            else:
                row += [each.quiet_ms, self._received or 0, each.heard_turn_ms]
            rows.append(row)
        times = {
            "time_ms": self.time_ms,
            "turn_ms": self.turn_ms,
            "reached_ms": self._reached_ms,
        }
        marked = [[*each.source, each.marked_ms] for each in self._sources]
        own = {"sources": rows, "marked": marked, "tags": self._incarnations.to_data()}
        return {**times, **own, "sequence": self._sequence}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave, or what `RepartitionInput` did."""
        self.time_ms = int(data["time_ms"])
        merged = "sequence" in data
        # Records before had their offset for a position: what is to come is behind them.
        self._sequence = int(data["sequence"]) if merged else self._received or 0
        self.turn_ms = int(data.get("turn_ms", UNKNOWN_MS))
        for name, partition, position, index, time_ms, quiet_ms, *more in data["sources"]:
            each = self._by_identity.get(identity((name, partition)))
            if each is not None:
                each.heard = each.released = (position, index)
                each.heard_ms = each.heard_turn_ms = each.released_ms = time_ms
                if merged:
                    each.quiet_ms = quiet_ms
                    each.resume, each.heard_turn_ms, *quiet = more
                    # Marks before it are not heard again, and none needs to follow.
                    each.resumed_quiet_ms = quiet[0] if quiet else None
        heard_ms = max(each.heard_ms for each in self._sources)
        self._reached_ms = int(data.get("reached_ms", heard_ms))
        for name, partition, marked_ms in data.get("marked", ()):
            each = self._by_identity.get(identity((name, partition)))
            if each is not None:
                each.marked_ms = marked_ms
        self._incarnations.load(data.get("tags", ()))
        self.marked_ms = min(each.marked_ms for each in self._sources)

    def _hear(self, chunk: Chunk, at: int, headers: Headers) -> None:
        offset = chunk.offsets[at]
        name, data = provenance_header(self.topic.name, self.partition, offset, headers)
        if name == MARK:
            mark, source = unpack_mark(data)
            each = self._source(source)
            if offset >= each.resume:
                each.known.hear(self.doubting.now_ms)
                each.hear(*mark)
                each.marked_ms = max(each.marked_ms, mark_sent_ms(headers))
                self.marked_ms = min(source.marked_ms for source in self._sources)
            return
        turn_ms, time_ms, position, index = unpack_record(data)
        found = self._incarnations.get(data[RECORD_BYTES:])
        if found is None:
            raise unknown_source_error(self.topic.name, self.partition, data[RECORD_BYTES:])
        each, base = found
        position += base
        if (position, index) <= each.heard or offset < each.resume:
            self._collector.drop(self.topic.name, "duplicate")
            return
        each.known.hear(self.doubting.now_ms)
        # Busy or at its end, the next mark says: one follows if that has changed.
        quiet_ms = min(each.quiet_ms, 0)
        if offset == each.resume and each.resumed_quiet_ms is not None:
            quiet_ms = each.resumed_quiet_ms
        each.hear(turn_ms, time_ms, quiet_ms)
        each.heard = (position, index)
        turn = (each.heard_turn_ms, each.rank, position, index)
        each.waiting.append((*turn, each.heard_ms, chunk, at, quiet_ms))
        self._waiting_bytes += _size_bytes(chunk, at)

    def _source(self, source: bytes) -> _Source:
        each = self._by_identity.get(source)
        if each is None:
            raise unknown_source_error(self.topic.name, self.partition, source)
        return each

    def _release(self) -> None:
        """Move to the ready what no source can send anything before."""
        bounds = self._bounds()
        bound = min((bound for bound, _ in bounds), default=None)
        self._make_ready((FAR_MS,) if bound is None else (*bound, FAR_MS))
        if self._waiting_bytes > self._buffer_bytes:
            self._overflow(min(bounds, key=itemgetter(0))[1])
        self._catch_up()

    def _catch_up(self) -> None:
        """With nothing left to take, time is what marks have told."""
        if self._taken < len(self._ready) or any(each.waiting for each in self._sources):
            return
        if not any(each.is_busy for each in self._sources):
            heard_ms = max(each.heard_ms for each in self._sources)
            self._reached_ms = max(self._reached_ms, heard_ms)
        turns = [each.heard_turn_ms for each in self._sources]
        bounds = [bound[0] for bound, _ in self._bounds()]
        self.turn_ms = max(self.turn_ms, min([*bounds, max(turns)]))
        kept_up = [(each, each.kept_up_ms(self._reached_ms)) for each in self._sources]
        live = [time_ms for each, time_ms in kept_up if not self._is_idle(each)]
        times = live or [max(time_ms for _, time_ms in kept_up)]
        self.time_ms = max(self.time_ms, min(times))

    def _is_idle(self, source: _Source) -> bool:
        return self._idle_after_ms is not None and source.quiet_ms >= self._idle_after_ms

    def _make_ready(self, bound: tuple[int, ...]) -> None:
        fresh: list[_Entry] = []
        for each in self._sources:
            high = bisect_left(each.waiting, bound)
            fresh += each.waiting[:high]
            del each.waiting[:high]
        if not fresh:
            return
        self._waiting_bytes -= sum(_size_bytes(entry[5], entry[6]) for entry in fresh)
        self._ready = sorted([*self._ready[self._taken :], *fresh])
        self._taken = 0

    def _overflow(self, slow: _Source) -> None:
        """Release the earliest quarter of the bound, though `slow` may send what is earlier.

        As far as is known it does not if it is at its end, and they are in order.
        """
        waiting = sorted(chain(*(each.waiting for each in self._sources)))
        sizes = accumulate(_size_bytes(entry[5], entry[6]) for entry in waiting)
        least_bytes = self._waiting_bytes - self._buffer_bytes * 3 // 4
        count = 1 + sum(size_bytes < least_bytes for size_bytes in sizes)
        if slow.is_busy:
            name, partition = slow.source
            node = f"{self.topic.name}, waiting for {name}-{partition}"
            self._collector.drop(node, "out of order", count)
        self._make_ready((*waiting[count][:4],) if count < len(waiting) else (FAR_MS,))

    def _batch(self, entries: Sequence[_Entry]) -> Batch:
        sources = self._sources
        for entry in entries:
            each = sources[entry[1]]
            each.released, each.released_ms = (entry[2], entry[3]), entry[4]
        places = [(entry[5], entry[6]) for entry in entries]
        turns = list(accumulate(map(_merge_key_of, entries), max, initial=self.turn_ms))[1:]
        times = [entry[4] for entry in entries]
        moments = list(accumulate(times, max, initial=self._reached_ms))[1:]
        watermarks = self._watermarks(turns, times, moments)
        self._reached_ms = moments[-1]
        self.turn_ms, self.time_ms = turns[-1], watermarks[-1]
        first, self._sequence = self._sequence, self._sequence + len(entries)
        headers = [chunk.headers[at][:-1] if chunk.headers else () for chunk, at in places]
        origin = BatchOrigin(
            self,
            topic=self.topic.name,
            partition=self.partition,
            offsets=[chunk.offsets[at] for chunk, at in places],
            positions=range(first, self._sequence),
            times=times,
            watermarks=watermarks,
            turns=turns,
            moments=moments,
            sources=[sources[entry[1]].source for entry in entries],
            raw_keys=[chunk.raw_keys[at] for chunk, at in places],
            raw_values=[chunk.raw_values[at] for chunk, at in places],
            headers=headers if any(headers) else None,
            stamp=lambda row: provenance_of(places[row][0].headers, places[row][1]),
        )
        return Batch(
            origin,
            range(len(entries)),
            [chunk.keys[at] for chunk, at in places],
            [chunk.values[at] for chunk, at in places],
            [chunk.timestamps[at] for chunk, at in places],
        )

    def _watermarks(
        self, turns: Sequence[int], times: Sequence[int], moments: Sequence[int]
    ) -> list[int]:
        """Stream time of all sources together at each record.

        Those that go on have come to its turn; those at their end hold time back where they are, or
        keep up with the others if of their last records none came through.
        """
        ended = sorted(
            (each.heard_turn_ms, each.heard_ms)
            for each in self._sources
            if not each.is_busy and not self._is_idle(each)
        )
        found: list[int] = []
        lagging: list[tuple[int, int]] = []
        reached_ms, limit_ms, passed = self.time_ms, FAR_MS, 0
        for turn_ms, time_ms, moment_ms in zip(turns, times, moments, strict=True):
            while passed < len(ended) and ended[passed][0] < turn_ms:
                heard_turn_ms, heard_ms = ended[passed]
                if heard_ms < heard_turn_ms:
                    lagging.append((heard_turn_ms, heard_ms))
                else:
                    limit_ms = min(limit_ms, heard_ms)
                passed += 1
            kept_up = [max(heard_ms, min(until_ms, moment_ms)) for until_ms, heard_ms in lagging]
            reached_ms = max(reached_ms, min(time_ms, limit_ms, *kept_up))
            found.append(reached_ms)
        return found


def _offset_of(entry: _Entry) -> int:
    return entry[5].offsets[entry[6]]


def _size_bytes(chunk: Chunk, at: int) -> int:
    return ENTRY_BYTES + len(chunk.raw_keys[at] or b"") + len(chunk.raw_values[at] or b"")
