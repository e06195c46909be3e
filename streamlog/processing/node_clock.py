"""NodeTime: event time at one node, over the feeds that reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamlog.processing.column_batch import Batch, TimeSource
from streamlog.processing.inputs.record_queue import Input
from streamlog.processing.node_time import JoinTimeSource, NodeTimeSource, input_of


class NodeTime:
    """The feeds of one node, with the times that they have there."""

    def __init__(self, feeds: Sequence[TimeSource]) -> None:
        """`feeds` are where its records come from; those that are inputs are counted here."""
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
