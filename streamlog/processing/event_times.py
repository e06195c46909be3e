"""EventTimes: which timestamps a source accepts as event time.

Event time lies between 1970 and the year 9999: nothing else can be shown, put into a window or
written to another topic. A topic may also bound how far a timestamp lies ahead of the clock
(`timestamp_ahead_max`). A record outside these limits is refused by its source like one whose bytes
can't be read: the policy of the topic decides, and the record moves no time. Rule of the file: the
decision depends on the timestamp, the topic and `now_ms`, and on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.durations import TIMESTAMP_MS_MAX, looks_like_seconds, moment
from streamlog.errors import CorruptData
from streamlog.topology import TopicSpec

_REMEDY = (
    "correct the producer, declare timestamp= on the topic, or leave the record out (on_error)"
)


class RefusedTime(CorruptData):
    """The timestamp of a record is outside what its source accepts."""


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The timestamps that a source accepts now."""

    newest_ms: int = TIMESTAMP_MS_MAX
    ahead_max_ms: int | None = None
    """Why `newest_ms` is not the end of the calendar; None: it is."""

    @classmethod
    def of(cls, topic: TopicSpec, now_ms: int) -> EventTimes:
        """What this topic accepts at this time of the clock."""
        ahead_ms = topic.timestamp_ahead_max_ms
        if ahead_ms is None or topic.internal:
            return ANY_TIME
        return cls(min(now_ms + ahead_ms, TIMESTAMP_MS_MAX), ahead_ms)

    def check(self, timestamp_ms: int) -> None:
        """Refuse a timestamp that is not event time.

        Raises:
            RefusedTime: it lies before 1970, beyond the calendar, or too far ahead of the clock.
        """
        if timestamp_ms < 0:
            raise RefusedTime(
                f"the timestamp is {timestamp_ms} ms, before 1970: event time can't be negative; "
                f"{_REMEDY}"
            )
        if timestamp_ms > TIMESTAMP_MS_MAX:
            raise RefusedTime(
                f"the timestamp is {timestamp_ms} ms, beyond the year 9999 (microseconds or "
                f"nanoseconds, perhaps?): {_REMEDY}"
            )
        if timestamp_ms > self.newest_ms:
            raise RefusedTime(
                f"the timestamp is {timestamp_ms} ms ({moment(timestamp_ms).isoformat()}), and the "
                f"topic takes at most {self.ahead_max_ms} ms ahead of the clock "
                f"(timestamp_ahead_max): {_REMEDY}"
            )


def seconds_hint(where: str, timestamp_ms: int) -> str | None:
    """What to log about a timestamp that looks like seconds; None: it does not."""
    if not looks_like_seconds(timestamp_ms):
        return None
    return (
        f"{where}: the timestamp {timestamp_ms} looks like seconds "
        f"({moment(1000 * timestamp_ms).isoformat()}); as milliseconds, which event time is in, it "
        f"is {moment(timestamp_ms).isoformat()}. Multiply it by 1000 where it is made: in the "
        "producer, in timestamp= of the topic, or in at="
    )


ANY_TIME = EventTimes()
"""Every moment from 1970 to the year 9999."""
