"""NodeTime: how far event time has come for one node, by the records that have reached it.

An input tells how far all its accepted records have come. That is the right order of records, and
the wrong time for a node: a record that a filter, a failing function or a missing key has left out
before the node would close its windows and make later records late. So a node that keeps time
counts what reaches it. Its time in a source is the largest timestamp of a record that has reached
it, and goes on with each time mark by what the mark says has passed, as decision 012 defines.

Rules of the file: a node's time in a source never goes back and is never beyond the time of the
input; it depends on the records and marks in their order, not on how they were cut into batches.
Behind a repartition topic, and behind nodes that make rows of their own, time is what those tell:
they have counted in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import gt
from typing import Any

from streamlog.processing.columns import Batch, Feed
from streamlog.processing.record_queue import Input
from streamlog.records.columns import running_max
from streamlog.windows.emit import UNKNOWN_MS


class ReachedFeed(Feed):
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


class JoinedFeed(ReachedFeed):
    """An input whose records come to one node through several joins, which have all counted it."""

    def __init__(self, counted: Sequence[ReachedFeed]) -> None:
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


def input_of(feed: Feed) -> Feed:
    """The input that a node above has counted, or the feed itself."""
    return feed.entry if isinstance(feed, ReachedFeed) else feed


class NodeTime:
    """The feeds of one node, with the times that they have there."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        """`feeds` are where its records come from; those that are inputs are counted here."""
        self.reached: dict[Input, ReachedFeed] = {
            feed: ReachedFeed(feed)
            for feed in feeds
            if isinstance(feed, Input) and not feed.topic.internal
        }
        self.reached |= {feed.entry: feed for feed in feeds if isinstance(feed, JoinedFeed)}
        self.feeds: list[Feed] = [
            self.reached.get(feed, feed) if isinstance(feed, Input) else feed for feed in feeds
        ]

    def of(self, batch: Batch) -> Batch:
        """The records that have reached the node, with the times that they have there."""
        entry = input_of(batch.origin.feed)
        reached = self.reached.get(entry) if isinstance(entry, Input) else None
        return batch if reached is None else reached.reach(batch)

    def follow(self) -> None:
        """Take over what the inputs have learned since."""
        for feed in self.reached.values():
            feed.follow()

    def start(self) -> None:
        """Nothing was written down of this node."""
        for feed in self.reached.values():
            feed.start()

    def to_data(self) -> dict[str, object]:
        """What a restart has to know, by topic."""
        return {feed.entry.topic.name: feed.to_data() for feed in self.reached.values()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave."""
        for feed in self.reached.values():
            if feed.entry.topic.name in data:
                feed.load(data[feed.entry.topic.name])
            else:
                feed.start()


NO_TIME = NodeTime(())
"""Of a node that keeps no time."""
