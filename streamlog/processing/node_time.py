"""Event time at one node, by the records that have reached the node.

An input knows the time of all its accepted records. That gives the right order of records and the
wrong time for a node: a record that a filter, an error policy or a missing key removed above the
node would close its windows and make later records late. So a node that keeps time counts the
records that reach it. Its time in a source is the largest timestamp of these, and a time mark
advances it by the elapsed time that the mark states (decision 012). After a repartition topic, and
after nodes that produce rows of their own, that time has been counted already and stays.

`InputClock` is the minimum over all inputs of a step, exact to the record. `source_names` gives a
source that reaches a node by several paths one name for each path: what has arrived by one path
says nothing about what is still to arrive by the other. Rules of the module: a node's time in a
source never goes back and never exceeds the time of the input; it depends on the order of records
and marks, and not on how they were cut into batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import gt

from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource
from streamlog.processing.inputs.record_queue import Input
from streamlog.records.record_columns import running_max
from streamlog.serdes.erased_types import JsonValue
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source, StreamTime


class InputClock:
    """The smallest time of all inputs that are not idle; it never goes back."""

    def __init__(self, feeds: Sequence[TimeSource], idle_after_ms: int | None) -> None:
        self._feeds = feeds
        self._idle_after_ms = idle_after_ms
        self._stream = StreamTime(feed.source for feed in feeds)

    @property
    def now_ms(self) -> int:
        """The time; UNKNOWN_MS while an input has none."""
        return self._stream.now_ms

    def move_before(self, origin: BatchOrigin, row: int) -> None:
        """Advance to this record, which the step takes next."""
        for feed in self._feeds:
            # A join of `a` and `b`; the batch is from `a`, at 10:00 before it, 10:20 after it.
            # 1. Before the row at 10:05, the clock counts `a` with 10:05, the watermark of the
            #    row, and not with 10:20: the result does not depend on the size of the batch.
            # 2. `b` counts with the time of its own records. At 10:03, it holds the clock there.
            # 3. `b` is idle and its time has not moved: it stays idle and holds nothing back.
            if feed is origin.feed:
                time_ms = min(origin.watermarks[row], feed.held_ms(self._idle_after_ms))
                self._advance(feed, time_ms)
            else:
                self._update(feed)

    def next_row(self, origin: BatchOrigin, rows: Sequence[int], time_ms: int) -> int:
        """Return the index of the first of these rows at which the clock may reach `time_ms`.

        Returns `len(rows)` if another input holds the clock back before that.
        """
        stream = self._stream
        others = (feed.source for feed in self._feeds if feed is not origin.feed)
        live = (stream.time_of(source) for source in others if not stream.is_idle(source))
        if min(live, default=FAR_MS) < time_ms:
            return len(rows)
        watermarks = origin.watermarks
        return next((at for at, row in enumerate(rows) if watermarks[row] >= time_ms), len(rows))

    def settle(self) -> None:
        """Update all inputs after the available records were taken, and mark quiet ones as idle."""
        for feed in self._feeds:
            self._update(feed)
            if self._idle_after_ms is not None and feed.quiet_ms >= self._idle_after_ms:
                self._stream.set_idle(feed.source)

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs."""
        return self._stream.to_data()

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        self._stream.load(data)

    def _update(self, feed: TimeSource) -> None:
        stream, source = self._stream, feed.source
        time_ms = min(feed.time_ms, feed.held_ms(self._idle_after_ms))
        # An idle source that has not moved stays idle.
        if not stream.is_idle(source) or time_ms > stream.time_of(source):
            self._advance(feed, time_ms)

    def _advance(self, feed: TimeSource, time_ms: int) -> None:
        if UNKNOWN_MS < time_ms < FAR_MS:
            self._stream.advance(feed.source, time_ms)


class NodeTimeSource(TimeSource):
    """An input, with the time that its records have reached at one node."""

    def __init__(self, entry: Input) -> None:
        super().__init__(entry.source, entry.key, entry.value)
        self.entry = entry
        self._elapsed_ms = 0
        """The part of the input's elapsed time (of marks) that `time_ms` contains."""

    @property
    def united_ms(self) -> int:
        """The time at this node, for a node that takes several time sources as one."""
        return self.time_ms

    def follow(self) -> None:
        """Take over the marks, the end and the merge key of the input."""
        entry = self.entry
        passed_ms, self._elapsed_ms = entry.elapsed_ms - self._elapsed_ms, entry.elapsed_ms
        time_ms = self.time_ms + passed_ms if self.time_ms > UNKNOWN_MS else UNKNOWN_MS
        time_ms = max(time_ms, entry.stated_ms)
        if time_ms > self.time_ms:
            self.time_ms = self.marked_ms = time_ms
        self.turn_ms = entry.time_ms
        self.quiet_ms, self.at_end = entry.quiet_ms, entry.at_end

    def reach(self, batch: Batch) -> Batch:
        """Count these records; returns the batch with the times that they have at this node."""
        origin, entry = batch.origin, self.entry
        # The input's log may have been replaced: its topic created again, or truncated.
        self.provenance = entry.provenance
        count = len(origin.offsets)
        if isinstance(batch.rows, range) and self.time_ms == entry.before_ms:
            times = origin.turns  # No record of the input was removed, here or before.
        else:
            times = [self.time_ms] * count
            own, turns = batch.timestamps, batch.of_origin(origin.turns)
            if any(map(gt, own, turns)):
                # A node above has given a record a later time than the input has reached.
                own = list(map(min, own, turns))
            for row, time_ms in zip(batch.rows, running_max(own, self.time_ms), strict=True):
                times[row] = time_ms
        if len(batch):
            self.time_ms = times[batch.rows[-1]]
        return batch.with_origin(origin.at_node(self, times))

    def start(self) -> None:
        """Start from the input's time, if nothing was stored for this node."""
        self.time_ms, self.marked_ms = self.entry.time_ms, self.entry.marked_ms
        self._elapsed_ms = self.entry.elapsed_ms

    def to_data(self) -> list[int]:
        """Return what a restart needs."""
        return [self.time_ms, self.marked_ms, self._elapsed_ms]

    def load(self, data: Sequence[int]) -> None:
        """Restore what `to_data` returned."""
        self.time_ms, self.marked_ms, self._elapsed_ms = map(int, data)


class JoinTimeSource(NodeTimeSource):
    """An input whose records reach one node through several joins, each of which counts them."""

    def __init__(self, counted: Sequence[NodeTimeSource]) -> None:
        super().__init__(counted[0].entry)
        self._counted = counted

    def follow(self) -> None:
        """Take over the input's state, and the time of the join that has advanced most."""
        super().follow()
        self._catch_up()

    def reach(self, batch: Batch) -> Batch:
        """Count these records, and those that the joins have counted without passing them on."""
        self._catch_up()
        return super().reach(batch)

    def _catch_up(self) -> None:
        self.time_ms = max(self.time_ms, *(feed.time_ms for feed in self._counted))
        self.marked_ms = max(self.marked_ms, *(feed.marked_ms for feed in self._counted))


def input_of(feed: TimeSource) -> TimeSource:
    """Return the input that a node above counts, or the time source itself."""
    return feed.entry if isinstance(feed, NodeTimeSource) else feed


def source_names(feeds: Sequence[TimeSource]) -> dict[TimeSource, dict[Source, Source]]:
    """Return the sources of each time source, with a unique name for each.

    A source keeps its name in the first time source that has it; in the others, the name says by
    which path it comes.
    """
    known: set[Source] = set()
    found: dict[TimeSource, dict[Source, Source]] = {}
    for feed in feeds:
        by, _ = feed.source
        sources = [source for source, _, _ in feed.source_times()]
        found[feed] = {
            (name, number): (f"{name} by {by}" if (name, number) in known else name, number)
            for name, number in sources
        }
        known.update(sources)
    return found
