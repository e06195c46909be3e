"""WindowTime: by what time the windows of an aggregation are judged, and how it goes on.

Of one stream, however many partitions are upstream: source by source (`StreamTime`), so that one
that is read faster makes no records of others late. Of several streams that go into one aggregate:
one time for all, that of the record in hand (`JoinTime`), as for joins; a stream that is quiet
holds up nothing once it was read to its end. A source from which records come by several
ways, such as two repartition topics, is one for each: what was read of one way says nothing of
what is still to come by the other. Rule of the file: whoever asks need not know which it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.processing.columns import Batch, Feed
from streamlog.processing.join_time import JoinTime
from streamlog.processing.ways import ways_of
from streamlog.windows.emit import UNKNOWN_MS, Source, StreamTime


class WindowTime:
    """The time of one windowed aggregation."""

    def __init__(
        self, feeds: Sequence[Feed], *, own: Source, united: bool, idle_after_ms: int | None
    ) -> None:
        """`own` is what all sources are called together, if they are `united`."""
        self._feeds = feeds
        self._own = own
        self._idle_after_ms = idle_after_ms
        self._joined = JoinTime(feeds) if united else None
        self._ways = ways_of(feeds)
        called = [pair for ways in self._ways.values() for pair in ways.items()]
        self._meet = any(source != way for source, way in called)
        self.stream = StreamTime([own] if united else (way for _, way in called))

    def of(self, batch: Batch) -> tuple[Sequence[Source] | None, Sequence[int]]:
        """Each record's source (None: all have the same), and the source's time with it."""
        origin = batch.origin
        if self._joined is not None:
            reach, feed = self._joined.reach, origin.feed
            return None, [reach(feed, turn_ms) for turn_ms in batch.of_origin(origin.moments)]
        own = None if origin.sources is None else batch.of_origin(origin.sources)
        if own is not None and self._meet:
            called = self._ways[origin.feed]
            own = [called[source] for source in own]
        return own, batch.of_origin(origin.times)

    def common(self, batch: Batch) -> Source:
        """The source of all records, where `of` says that they have the same."""
        if self._joined is not None:
            return self._own
        feed = batch.origin.feed
        return self._ways[feed].get(feed.source, feed.source)

    def settle(self) -> None:
        """All records at hand have been taken: note how far sources have come, and who is idle."""
        if self._joined is not None:
            self.stream.advance(self._own, self._joined.settle())
            return
        stream, idle_after_ms = self.stream, self._idle_after_ms
        for feed in self._feeds:
            called = self._ways[feed]
            for heard, time_ms, quiet_ms in feed.heard_of():
                source = called[heard]
                idle = idle_after_ms is not None and quiet_ms >= idle_after_ms
                if idle and stream.is_idle(source) and time_ms <= stream.time_of(source):
                    continue
                if time_ms > UNKNOWN_MS:
                    stream.advance(source, time_ms)
                if idle:
                    stream.set_idle(source)
