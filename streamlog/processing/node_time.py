"""NodeTime: how far event time has come at one node, by the records that have reached it.

An input knows how far all its accepted records have come. That gives the right order of records and
the wrong time for a node: a record that a filter, an error policy or a missing key removed above
the node would close its windows and make later records late. So a node that keeps time counts the
records that reach it. Its time in a source is the largest timestamp of these, and a time mark
advances it by the elapsed time that the mark states (decision 012). Behind a repartition topic, and
behind nodes that produce rows of their own, those have counted already and their time holds.

`InputClock` is the minimum over all inputs of a step, to the record. `source_names` gives a source
that reaches a node by several paths one name for each path: what one path has delivered says
nothing about what the other still will. Rules of the module: a node's time in a source never goes
back and never exceeds the time of the input; it depends on the order of records and marks, and not
on how they were cut into batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import gt
from typing import Any

from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource
from streamlog.processing.inputs.record_queue import Input
from streamlog.records.record_columns import running_max
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source, StreamTime


class InputClock:
    """The least time of all inputs, without those that are idle; it never goes back."""

    def __init__(self, feeds: Sequence[TimeSource], idle_after_ms: int | None) -> None:
        self._feeds = feeds
        self._idle_after_ms = idle_after_ms
        self._stream = StreamTime(feed.source for feed in feeds)

    @property
    def now_ms(self) -> int:
        """UNKNOWN_MS while an input has not been heard of."""
        return self._stream.now_ms

    def move_before(self, origin: BatchOrigin, row: int) -> None:
        """This record is the next one."""
        for feed in self._feeds:
            if feed is origin.feed:
                time_ms = min(origin.watermarks[row], feed.held_ms(self._idle_after_ms))
                self._advance(feed, time_ms)
            else:
                self._hear(feed)

    def next_row(self, origin: BatchOrigin, rows: Sequence[int], time_ms: int) -> int:
        """The place of the first of these rows before which this time may have come."""
        stream = self._stream
        others = (feed.source for feed in self._feeds if feed is not origin.feed)
        live = (stream.time_of(source) for source in others if not stream.is_idle(source))
        if min(live, default=FAR_MS) < time_ms:
            return len(rows)
        watermarks = origin.watermarks
        return next((at for at, row in enumerate(rows) if watermarks[row] >= time_ms), len(rows))

    def settle(self) -> None:
        """All records at hand have been taken."""
        for feed in self._feeds:
            self._hear(feed)
            if self._idle_after_ms is not None and feed.quiet_ms >= self._idle_after_ms:
                self._stream.set_idle(feed.source)

    def to_data(self) -> dict[str, object]:
        """What a restart has to know."""
        return self._stream.to_data()

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave."""
        self._stream.load(data)

    def _hear(self, feed: TimeSource) -> None:
        stream, source = self._stream, feed.source
        time_ms = min(feed.time_ms, feed.held_ms(self._idle_after_ms))
        # An idle source that has not moved stays idle.
        if not stream.is_idle(source) or time_ms > stream.time_of(source):
            self._advance(feed, time_ms)

    def _advance(self, feed: TimeSource, time_ms: int) -> None:
        if UNKNOWN_MS < time_ms < FAR_MS:
            self._stream.advance(feed.source, time_ms)


class NodeTimeSource(TimeSource):
    """An input, as far as its records have reached one node."""

    def __init__(self, entry: Input) -> None:
        super().__init__(entry.source, entry.key, entry.value)
        self.entry = entry
        self._elapsed_ms = 0
        """Of the input's marks, what is in `time_ms`."""

    @property
    def come_ms(self) -> int:
        """How far time has come here, for a node that takes several inputs as one."""
        return self.time_ms

    def follow(self) -> None:
        """Take over what the input has learned since: marks, its end, and its order."""
        entry = self.entry
        passed_ms, self._elapsed_ms = entry.elapsed_ms - self._elapsed_ms, entry.elapsed_ms
        time_ms = self.time_ms + passed_ms if self.time_ms > UNKNOWN_MS else UNKNOWN_MS
        time_ms = max(time_ms, entry.told_ms)
        if time_ms > self.time_ms:
            self.time_ms = self.marked_ms = time_ms
        self.turn_ms = entry.time_ms
        self.quiet_ms, self.at_end = entry.quiet_ms, entry.at_end

    def reach(self, batch: Batch) -> Batch:
        """These records have reached the node: the batch with the times that they have here."""
        origin, entry = batch.origin, self.entry
        # The input may be another log by now: its topic created again, or truncated.
        self.provenance = entry.provenance
        count = len(origin.offsets)
        if isinstance(batch.rows, range) and self.time_ms == entry.before_ms:
            times = origin.turns  # All that there are, and none was missing before.
        else:
            times = [self.time_ms] * count
            own, turns = batch.timestamps, batch.of_origin(origin.turns)
            if any(map(gt, own, turns)):
                # What a node above made of a record has a later time than the input has come to.
                own = list(map(min, own, turns))
            for row, time_ms in zip(batch.rows, running_max(own, self.time_ms), strict=True):
                times[row] = time_ms
        if len(batch):
            self.time_ms = times[batch.rows[-1]]
        return batch.with_origin(origin.at_node(self, times))

    def start(self) -> None:
        """Nothing was written down of this node: it has seen what the input has."""
        self.time_ms, self.marked_ms = self.entry.time_ms, self.entry.marked_ms
        self._elapsed_ms = self.entry.elapsed_ms

    def to_data(self) -> list[int]:
        """What a restart has to know."""
        return [self.time_ms, self.marked_ms, self._elapsed_ms]

    def load(self, data: Sequence[int]) -> None:
        """Take over what `to_data` gave."""
        self.time_ms, self.marked_ms, self._elapsed_ms = map(int, data)


class JoinTimeSource(NodeTimeSource):
    """An input whose records come to one node through several joins, which have all counted it."""

    def __init__(self, counted: Sequence[NodeTimeSource]) -> None:
        super().__init__(counted[0].entry)
        self._counted = counted

    def follow(self) -> None:
        """Time is that of the join that is furthest."""
        super().follow()
        self._catch_up()

    def reach(self, batch: Batch) -> Batch:
        """The joins have counted them, and others before, of which nothing came here."""
        self._catch_up()
        return super().reach(batch)

    def _catch_up(self) -> None:
        self.time_ms = max(self.time_ms, *(feed.time_ms for feed in self._counted))
        self.marked_ms = max(self.marked_ms, *(feed.marked_ms for feed in self._counted))


def input_of(feed: TimeSource) -> TimeSource:
    """The input that a node above has counted, or the feed itself."""
    return feed.entry if isinstance(feed, NodeTimeSource) else feed


def source_names(feeds: Sequence[TimeSource]) -> dict[TimeSource, dict[Source, Source]]:
    """The sources of each feed, and what each is called: by the first feed it keeps its name."""
    known: set[Source] = set()
    found: dict[TimeSource, dict[Source, Source]] = {}
    for feed in feeds:
        by, _ = feed.source
        sources = [source for source, _, _ in feed.heard_of()]
        found[feed] = {
            (name, number): (f"{name} by {by}" if (name, number) in known else name, number)
            for name, number in sources
        }
        known.update(sources)
    return found
