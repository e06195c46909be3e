"""RepartitionInput: a partition of a repartition topic, with many sources in it.

The records of all tasks upstream arrive here interleaved, as the log has them. Each says
where it came from (`provenance`): repetitions are dropped, stream time is kept per source,
time marks are taken note of and go no further. Rule of the file: everything is decided when a
record is taken, in the order of the log, and is part of the task's progress, so a restart
decides the same. The sources are known from the topology: one that has not been heard of
holds stream time back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamlog.errors import CorruptData, ProcessingError
from streamlog.processing.chunk import Chunk
from streamlog.processing.columns import Batch, Origin, failed
from streamlog.processing.incarnations import Incarnations
from streamlog.processing.provenance import (
    MARK,
    PROVENANCE,
    RECORD_BYTES,
    TIME_BYTES,
    identity,
    marked_ms_of,
    source_of,
    unpack_mark,
    unpack_record,
    untagged,
)
from streamlog.processing.record_queue import Input, Records
from streamlog.processing.step import Collector
from streamlog.record import Headers
from streamlog.records.control import TimeMark
from streamlog.topology import TopicSpec
from streamlog.windows.emit import UNKNOWN_MS, Source, StreamTime


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
        origin = Origin(
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
            stamp=lambda row: stamp_of(columns, kept[row]),
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
        name, data = own_header(self.topic.name, self.partition, chunk.offsets[at], headers)
        if name == MARK:
            mark, source = unpack_mark(data)
            state = self._state(source)
            state.turn_ms = mark.turn_ms if mark.at_end else UNKNOWN_MS
            self._advance(state, mark.time_ms)
            self._keep_up()
            state.quiet_ms = mark.quiet_ms
            state.marked_ms = max(state.marked_ms, marked_ms_of(headers))
            self.marked_ms = min(each.marked_ms for each in self._states.values())
            if mark.quiet_ms and mark.quiet_ms >= (self._idle_after_ms or mark.quiet_ms + 1):
                self._stream.set_idle(state.source)
            return None
        _, time_ms, position, index = unpack_record(data)
        found = self._incarnations.get(data[RECORD_BYTES:])
        if found is None:
            raise no_such_source(self.topic.name, self.partition, data[RECORD_BYTES:])
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
            raise no_such_source(self.topic.name, self.partition, source)
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


def stamp_of(headers: Sequence[Headers] | None, at: int) -> bytes:
    """Where a record came from: position, index and source, but not when it was sent."""
    data = headers[at][-1][1] if headers is not None else None
    return ((data or b"")[TIME_BYTES:RECORD_BYTES]) + untagged((data or b"")[RECORD_BYTES:])


def own_header(topic: str, partition: int, offset: int, headers: Headers) -> tuple[str, bytes]:
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
        raise failed(topic, topic, partition, offset, error)
    return name, data


def no_such_source(topic: str, partition: int, source: bytes) -> ProcessingError:
    """The error of a record from somewhere else, to be raised."""
    error = CorruptData(
        f"a record came from {source_of(source)}, which the topology does not have: "
        "the app has changed; reset it, or give it another id"
    )
    return failed(topic, topic, partition, -1, error)
