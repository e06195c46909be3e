"""InputClock: how far event time has come in all inputs of a step, to the record.

It is looked at when all records at hand have been taken, and before one of them, as of that record
in the order of the task. Rule of the file: the second says what the first would have said between
the record before and this one, so nothing depends on how records were cut into batches. It may be
behind `StreamTime` over the sources themselves, which knows what was heard ahead of its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamlog.processing.columns import Feed, Origin
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, StreamTime


class InputClock:
    """The least time of all inputs, without those that are idle; it never goes back."""

    def __init__(self, feeds: Sequence[Feed], idle_after_ms: int | None) -> None:
        self._feeds = feeds
        self._idle_after_ms = idle_after_ms
        self._stream = StreamTime(feed.source for feed in feeds)

    @property
    def now_ms(self) -> int:
        """UNKNOWN_MS while an input has not been heard of."""
        return self._stream.now_ms

    def move_before(self, origin: Origin, row: int) -> None:
        """This record is the next one."""
        for feed in self._feeds:
            if feed is origin.feed:
                time_ms = min(origin.watermarks[row], feed.held_ms(self._idle_after_ms))
                self._advance(feed, time_ms)
            else:
                self._hear(feed)

    def next_row(self, origin: Origin, rows: Sequence[int], time_ms: int) -> int:
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

    def _hear(self, feed: Feed) -> None:
        stream, source = self._stream, feed.source
        time_ms = min(feed.time_ms, feed.held_ms(self._idle_after_ms))
        # An idle source that has not moved stays idle.
        if not stream.is_idle(source) or time_ms > stream.time_of(source):
            self._advance(feed, time_ms)

    def _advance(self, feed: Feed, time_ms: int) -> None:
        if UNKNOWN_MS < time_ms < FAR_MS:
            self._stream.advance(feed.source, time_ms)
