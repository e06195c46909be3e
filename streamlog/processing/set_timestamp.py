"""SetTimestampStep: records with another timestamp, and the stream time that follows from it.

Nodes after it use the new timestamps, so it is a time source of its own (`SetTimestampSource`) with
one entry for each source above it. Rules of the file: stream time is the largest new timestamp so
far, per source, and never goes back. Time marks from upstream tasks are about the old timestamps
and are ignored, so the task waits for a source that has gone quiet after a repartition until it is
idle (`idle_after`). Marks of the log say how much time has elapsed, and that much elapses here.
Records are numbered in the order in which they come.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from streamlog.durations import When, when_ms
from streamlog.errors import UsageError
from streamlog.nodes.stream_nodes import SetTimestamp
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource
from streamlog.processing.inputs.record_queue import seconds_hint
from streamlog.processing.node_time import input_of, source_names
from streamlog.processing.step import Step
from streamlog.serdes.erased_types import JsonValue
from streamlog.windows.emit import UNKNOWN_MS, Source, StreamTime

logger = logging.getLogger(__name__)


class SetTimestampSource(TimeSource):
    """Records with new timestamps: each source above, with the time of its records here."""

    def __init__(self, name: str, partition: int, feeds: Sequence[TimeSource]) -> None:
        above = feeds[0] if len(feeds) == 1 else None
        super().__init__(
            (name, partition),
            None if above is None else above.key,
            None if above is None else above.value,
        )
        self.above = feeds
        paths = [
            (feed, source, own)
            for feed, o in source_names(feeds).items()
            for source, own in o.items()
        ]
        self.is_one = len(paths) == 1
        """Whether it stands for a single source, which then has this time source's own name."""
        self._behind: dict[tuple[TimeSource, Source], Source] = {
            (input_of(feed), source): self.source if self.is_one else (f"{name}/{own[0]}", own[1])
            for feed, source, own in paths
        }
        self.stream = StreamTime(self._behind.values())

    def source_behind(self, feed: TimeSource, source: Source) -> Source:
        """Return the name that a source above has here, where its time differs."""
        return self._behind[input_of(feed), source]

    def source_times(self) -> list[tuple[Source, int, int]]:
        """Return the sources with their stream times and quiet times."""
        quiet = (
            (self.source_behind(feed, source), quiet_ms)
            for feed in self.above
            for source, _, quiet_ms in feed.source_times()
        )
        return [(source, self.stream.time_of(source), quiet_ms) for source, quiet_ms in quiet]

    def pass_time(self, feed: TimeSource, elapsed_ms: int) -> None:
        """Advance the source of an input above by the elapsed time of a mark."""
        behind = self._behind.get((input_of(feed), feed.source))
        if behind is not None and self.stream.time_of(behind) > UNKNOWN_MS:
            self.stream.advance(behind, self.stream.time_of(behind) + elapsed_ms)

    def settle(self) -> None:
        """Update the time, the quiet time and whether all sources are at their end."""
        self.time_ms = self.stream.now_ms
        self.update_end(self.above)


class SetTimestampStep(Step):
    """A step that sets new timestamps."""

    section = "timestamps"

    def __init__(self, node: SetTimestamp, *, feeds: Sequence[TimeSource], partition: int) -> None:
        super().__init__(node.name)
        self._fn = node.fn
        self.feed = SetTimestampSource(node.name, partition, feeds)
        """The time source of its records."""
        self._sequence = 0
        self._has_warned_of_seconds = False

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time source of all records that it forwards."""
        return (self.feed,)

    def process(self, batch: Batch) -> None:
        """Call the function with the value and forward the record with the returned timestamp."""
        batch, timestamps = self.apply_function(batch, self._timestamp, batch.values)
        if timestamps and not self._has_warned_of_seconds:
            self._warn_seconds(timestamps[0])
        origin, feed = batch.origin, self.feed
        above = [origin.feed.source] if origin.sources is None else batch.of_origin(origin.sources)
        sources = [feed.source_behind(origin.feed, source) for source in above]
        if origin.sources is None:
            sources *= len(timestamps)
        times: list[int] = []
        watermarks: list[int] = []
        for source, timestamp_ms in zip(sources, timestamps, strict=True):
            # The input's own time says nothing here: after it was at 10:05 by the log, the records'
            # new timestamps may be of last week. The time of a source is the largest new timestamp.
            feed.stream.advance(source, timestamp_ms)
            times.append(feed.stream.time_of(source))
            watermarks.append(feed.stream.now_ms)
        first, self._sequence = self._sequence, self._sequence + len(timestamps)
        retimed = BatchOrigin(
            feed,
            topic=origin.topic,
            partition=origin.partition,
            offsets=batch.of_origin(origin.offsets),
            positions=range(first, self._sequence),
            times=times,
            watermarks=watermarks,
            sources=None if feed.is_one else sources,
            raw_keys=None if origin.raw_keys is None else batch.of_origin(origin.raw_keys),
            raw_values=None if origin.raw_values is None else batch.of_origin(origin.raw_values),
            headers=None if origin.headers is None else batch.of_origin(origin.headers),
            log_times=None if origin.log_times is None else batch.of_origin(origin.log_times),
        )
        result = Batch(retimed, range(len(timestamps)), batch.keys, batch.values, timestamps)
        result.keys_are_raw, result.values_are_raw = batch.keys_are_raw, batch.values_are_raw
        feed.time_ms = feed.stream.now_ms
        self.forward(result)

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return times above that are later by as much as `time_ms` is later than the time here."""
        left_ms = time_ms - self.feed.time_ms
        return [(feed, feed.time_ms + left_ms) for feed in self.feed.above]

    def pass_time(self, feed: TimeSource, elapsed_ms: int) -> None:
        """Take the time mark of an input: its source here advances by the elapsed time."""
        self.feed.pass_time(feed, elapsed_ms)

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """Update the time source after all available records were taken."""
        self.feed.settle()
        return False

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs."""
        return {"stream": self.feed.stream.to_data(), "sequence": self._sequence}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        self.feed.stream.load(data["stream"])
        self._sequence = int(data["sequence"])
        self.feed.settle()

    def _warn_seconds(self, timestamp_ms: int) -> None:
        """Log, once, that the new timestamps look like seconds: judged by a batch's first."""
        if (hint := seconds_hint(f"node {self.name!r}", timestamp_ms)) is not None:
            self._has_warned_of_seconds = True
            logger.warning("%s", hint)

    def _timestamp(self, value: object) -> int:
        found: When = self._fn(value)
        timestamp_ms = when_ms(found)
        if timestamp_ms < 0:
            raise UsageError(f"set_timestamp returned a time before 1970: {found!r}")
        return timestamp_ms
