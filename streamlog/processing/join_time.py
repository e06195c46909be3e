"""JoinTime: how far event time has come for a join of streams, and whose.

Records come to a join in the order of their turns (`record_queue`, `merged`). The time that all
inputs have come to, those that were read to their end left aside, is the largest timestamp of a
record that has reached the join on any side, as in Kafka Streams (`Origin.moments`).
What comes at a time of its own (windows on close, results of calls) comes later than its turn, so
the join's time waits for it. Rule of the file: time never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamlog.processing.async_values import AsyncFeed
from streamlog.processing.columns import Feed
from streamlog.processing.node_time import ReachedFeed
from streamlog.processing.record_queue import Input
from streamlog.processing.retimed import RetimedFeed
from streamlog.windows.emit import UNKNOWN_MS


class JoinTime:
    """The stream time of a join."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        inputs = (Input, ReachedFeed)
        self._inputs = [feed for feed in feeds if isinstance(feed, inputs)]
        self._own: dict[Feed, int] = {
            feed: UNKNOWN_MS for feed in feeds if not isinstance(feed, inputs)
        }
        self._heard_ms = UNKNOWN_MS
        self.now_ms = UNKNOWN_MS

    def reach(self, feed: Feed, turn_ms: int) -> int:
        """A record of this feed has come, at this of its `moments`: the time of the node then."""
        if not self._own:
            if turn_ms > self.now_ms:
                self._heard_ms = self.now_ms = turn_ms
            return self.now_ms
        for each, time_ms in self._own.items():
            # A feed may be ahead of the row in hand, but not of those of others.
            self._own[each] = max(time_ms, turn_ms if each is feed else each.time_ms)
        if feed not in self._own:
            self._heard_ms = max(self._heard_ms, turn_ms)
        return self._advance(self._own.values())

    def settle(self) -> int:
        """All records at hand have been taken: the time by what is known of those to come."""
        times = {feed: feed.come_ms for feed in self._inputs}
        behind = [ms for feed, ms in times.items() if not feed.at_end]
        self._heard_ms = max(self._heard_ms, min(behind or [max(times.values(), default=-1)]))
        for feed in self._own:
            self._own[feed] = max(self._own[feed], feed.time_ms)
        # What comes with its records, or with answers that are all there, holds up no more than
        # an input at its end does.
        prompt = (AsyncFeed, RetimedFeed)
        done = {feed for feed in self._own if isinstance(feed, prompt) and feed.at_end}
        return self._advance([ms for feed, ms in self._own.items() if feed not in done])

    def _advance(self, own: Iterable[int]) -> int:
        # Those that come at times of their own are behind the records that they are made of.
        self.now_ms = max(self.now_ms, min(own, default=self._heard_ms))
        return self.now_ms
