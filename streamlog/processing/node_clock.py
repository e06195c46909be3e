"""NodeTime: event time at one node, over all time sources that reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlog.processing.column_batch import Batch, TimeSource
from streamlog.processing.inputs.record_queue import Input
from streamlog.processing.node_time import JoinTimeSource, NodeTimeSource, input_of
from streamlog.serdes.erased_types import JsonValue


class NodeTime:
    """The time sources of one node, with the times that they have there."""

    def __init__(self, feeds: Sequence[TimeSource]) -> None:
        """`feeds` are where the node's records come from; it counts those that are inputs."""
        self.reached: dict[Input, NodeTimeSource] = {
            feed: NodeTimeSource(feed)
            for feed in feeds
            if isinstance(feed, Input) and not feed.topic.internal
        }
        self.reached |= {feed.entry: feed for feed in feeds if isinstance(feed, JoinTimeSource)}
        self.feeds: list[TimeSource] = [
            self.reached.get(feed, feed) if isinstance(feed, Input) else feed for feed in feeds
        ]

    def of(self, batch: Batch) -> Batch:
        """Count the records that have reached the node; returns them with their times there."""
        entry = input_of(batch.origin.feed)
        reached = self.reached.get(entry) if isinstance(entry, Input) else None
        return batch if reached is None else reached.reach(batch)

    def follow(self) -> None:
        """Update the time sources from their inputs."""
        for feed in self.reached.values():
            feed.follow()

    def start(self) -> None:
        """Start from the inputs' times, if nothing was stored for this node."""
        for feed in self.reached.values():
            feed.start()

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs, by topic."""
        return {feed.entry.topic.name: feed.to_data() for feed in self.reached.values()}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; topics that it lacks start from their input's time."""
        for feed in self.reached.values():
            if feed.entry.topic.name in data:
                feed.load(data[feed.entry.topic.name])
            else:
                feed.start()


NO_TIME = NodeTime(())
"""For a node that keeps no time."""
