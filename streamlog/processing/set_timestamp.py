"""SetTimestampStep: records with another time, and the stream time that follows from it.

Behind it everything is judged by the new timestamps, so it is a source of its own
(`SetTimestampSource`) with one place for each source above it. Rules of the file: stream time is
the largest new timestamp so far, per source, and never goes back; what marks upstream say of the
old timestamps means nothing here, so a source that has gone quiet behind a repartition is waited
for until it is idle (`idle_after`); marks of the log say how much time has passed, and so much
passes here. Records are numbered as they come.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamlog.durations import When, when_ms
from streamlog.errors import UsageError
from streamlog.nodes.stream_nodes import SetTimestamp
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource
from streamlog.processing.inputs.record_queue import seconds_hint
from streamlog.processing.node_time import input_of, source_names
from streamlog.processing.step import Step
from streamlog.windows.emit import UNKNOWN_MS, Source, StreamTime

logger = logging.getLogger(__name__)


class SetTimestampSource(TimeSource):
    """Records with new timestamps: each source above, as far as those have come."""

    def __init__(self, name: str, partition: int, feeds: Sequence[TimeSource]) -> None:
        above = feeds[0] if len(feeds) == 1 else None
        super().__init__(
            (name, partition),
            None if above is None else above.key,
            None if above is None else above.value,
        )
        self.above = feeds
        ways = [
            (feed, source, own)
            for feed, o in source_names(feeds).items()
            for source, own in o.items()
        ]
        self.is_one = len(ways) == 1
        """It stands for one source, which is called as it is itself."""
        self._behind: dict[tuple[TimeSource, Source], Source] = {
            (input_of(feed), source): self.source if self.is_one else (f"{name}/{own[0]}", own[1])
            for feed, source, own in ways
        }
        self.stream = StreamTime(self._behind.values())

    def source_behind(self, feed: TimeSource, source: Source) -> Source:
        """What a source of a feed above is called here: it has another time than there."""
        return self._behind[input_of(feed), source]

    def heard_of(self) -> list[tuple[Source, int, int]]:
        """Its sources with their stream time and for how long they have been quiet."""
        heard = (
            (self.source_behind(feed, source), quiet_ms)
            for feed in self.above
            for source, _, quiet_ms in feed.heard_of()
        )
        return [(source, self.stream.time_of(source), quiet_ms) for source, quiet_ms in heard]

    def pass_time(self, feed: TimeSource, elapsed_ms: int) -> None:
        """An input above has gone on by so much without a record."""
        behind = self._behind.get((input_of(feed), feed.source))
        if behind is not None and self.stream.time_of(behind) > UNKNOWN_MS:
            self.stream.advance(behind, self.stream.time_of(behind) + elapsed_ms)

    def settle(self) -> None:
        """How far all of it has come, whether to its end, and for how long it has been quiet."""
        self.time_ms = self.stream.now_ms
        self.quiet_ms = min((feed.quiet_ms for feed in self.above), default=0)
        self.at_end = all(feed.at_end for feed in self.above)


class SetTimestampStep(Step):
    """A new timestamp."""

    section = "timestamps"

    def __init__(self, node: SetTimestamp, *, feeds: Sequence[TimeSource], partition: int) -> None:
        super().__init__(node.name)
        self._fn = node.fn
        self.feed = SetTimestampSource(node.name, partition, feeds)
        """What its records carry."""
        self._sequence = 0
        self._has_told_seconds = False

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """Everything that it hands on."""
        return (self.feed,)

    def process(self, batch: Batch) -> None:
        """Call the function with the value."""
        batch, timestamps = self.applied(batch, self._timestamp, batch.values)
        if timestamps and not self._has_told_seconds:
            self._warn_seconds(timestamps[0])
        origin, feed = batch.origin, self.feed
        above = [origin.feed.source] if origin.sources is None else batch.of_origin(origin.sources)
        sources = [feed.source_behind(origin.feed, source) for source in above]
        if origin.sources is None:
            sources *= len(timestamps)
        times: list[int] = []
        watermarks: list[int] = []
        for source, timestamp_ms in zip(sources, timestamps, strict=True):
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
        )
        result = Batch(retimed, range(len(timestamps)), batch.keys, batch.values, timestamps)
        result.keys_are_raw, result.values_are_raw = batch.keys_are_raw, batch.values_are_raw
        feed.time_ms = feed.stream.now_ms
        self.forward(result)

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """As much more above as here."""
        left_ms = time_ms - self.feed.time_ms
        return [(feed, feed.time_ms + left_ms) for feed in self.feed.above]

    def pass_time(self, feed: TimeSource, elapsed_ms: int) -> None:
        """The mark of an input: what comes from there has gone on by as much."""
        self.feed.pass_time(feed, elapsed_ms)

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """All records at hand have been taken: note how far the sources have come."""
        self.feed.settle()
        return False

    def to_data(self) -> dict[str, object]:
        """What a restart has to know."""
        return {"stream": self.feed.stream.to_data(), "sequence": self._sequence}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave."""
        self.feed.stream.load(data["stream"])
        self._sequence = int(data["sequence"])
        self.feed.settle()

    def _warn_seconds(self, timestamp_ms: int) -> None:
        """Log, once, that the new timestamps look like seconds: judged by a batch's first."""
        if (hint := seconds_hint(f"node {self.name!r}", timestamp_ms)) is not None:
            self._has_told_seconds = True
            logger.warning("%s", hint)

    def _timestamp(self, value: object) -> int:
        found: When = self._fn(value)
        timestamp_ms = when_ms(found)
        if timestamp_ms < 0:
            raise UsageError(f"a record can't have a time before 1970: {found!r}")
        return timestamp_ms
