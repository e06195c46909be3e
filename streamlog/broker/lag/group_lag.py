"""GroupLag: what the lag of a group is, in records, in time, and in what it has lost.

The lag of a partition in records is the high watermark minus the committed offset, as Kafka's tools
count it: offsets that compaction has emptied and transaction markers count too. The lag in time is
the age of the next record: the first record at or after the committed offset that still exists, by
its timestamp, against this broker's clock. It is 0 if there is none, for example behind the last
marker. Records of aborted transactions count as records, because a group's isolation level is not
known to its coordinator.

What retention has deleted before the group read it is lost: the offsets from the committed one to
the log start. They are part of the lag in records and need no time to catch up on.

Rules of this module: no I/O, and time is passed in. What is not known is None, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

RATE_MS_MIN = 1_000
"""The shortest time over which a rate is computed."""
RATE_WINDOW_MS = 60_000
"""A rate covers at least this time and at most twice as much; less for a partition that is new."""


class Ends(NamedTuple):
    """Where the readable part of a partition begins and ends."""

    start_offset: int
    """The log start offset."""
    end_offset: int
    """The high watermark."""

    def next_offset(self, committed_offset: int) -> int | None:
        """Return where a group that continues at this offset searches for a record, if at all."""
        first = max(committed_offset, self.start_offset)
        return first if first < self.end_offset else None


class PartitionLag(NamedTuple):
    """The lag of a group in one partition. None stands for "not known"."""

    topic: str
    partition: int
    committed_offset: int
    start_offset: int | None
    end_offset: int | None
    """The high watermark."""
    lag: int | None
    """Offsets from the committed one to the high watermark."""
    lag_ms: int | None
    """The age of the next record in milliseconds; 0 without one."""
    lost: int | None
    """Offsets at and above the committed one that were deleted before the group read them."""
    consume_rate: float | None
    """Offsets per second by which the committed offset has advanced."""
    produce_rate: float | None
    """Offsets per second by which the high watermark has advanced."""

    @property
    def catch_up_s(self) -> float | None:
        """Seconds until the group has caught up, at these rates; infinite if it never does."""
        if self.lag is None or self.lost is None:
            return None
        readable = self.lag - self.lost
        if not readable:
            return 0.0
        if self.consume_rate is None or self.produce_rate is None:
            return None
        gained = self.consume_rate - self.produce_rate
        return readable / gained if gained > 0 else math.inf


def partition_lag(
    where: tuple[str, int],
    committed_offset: int,
    ends: Ends | None,
    *,
    next_ms: int | None,
    now_ms: int,
    rates: tuple[float, float] | None,
) -> PartitionLag:
    """Return the lag in a partition.

    Args:
        where: topic and partition number.
        committed_offset: the group's committed offset.
        ends: the partition's ends; None if they are not known.
        next_ms: the timestamp of the next record, in milliseconds since 1970; None if it is not
            known, or if there is no next record.
        now_ms: the time, in milliseconds since 1970.
        rates: the rates of consumption and production, in offsets per second, if known.
    """
    consume_rate, produce_rate = (None, None) if rates is None else rates
    lag = lost = lag_ms = None
    if ends is not None:
        # A log that was truncated or created again may end before the committed offset.
        lag = max(ends.end_offset - committed_offset, 0)
        lost = max(min(ends.start_offset, ends.end_offset) - committed_offset, 0)
        if lag == lost:
            lag_ms = 0
        elif next_ms is not None:
            # A record from the future has no age.
            lag_ms = max(now_ms - next_ms, 0)
    return PartitionLag(
        topic=where[0],
        partition=where[1],
        committed_offset=committed_offset,
        start_offset=None if ends is None else ends.start_offset,
        end_offset=None if ends is None else ends.end_offset,
        lag=lag,
        lag_ms=lag_ms,
        lost=lost,
        consume_rate=consume_rate,
        produce_rate=produce_rate,
    )


class GroupTotals:
    """What the lags of a group's partitions amount to, as far as they are known."""

    __slots__ = (
        "_catch_up_s",
        "_lacks_catch_up",
        "by_topic",
        "consume_rate",
        "lost",
        "max_lag",
        "max_lag_ms",
        "sum_lag",
        "unknown",
    )

    def __init__(self) -> None:
        self.max_lag: int | None = None
        """The largest lag of a partition; None if no lag is known."""
        self.max_lag_ms: int | None = None
        """The age of the oldest next record, in milliseconds; None if none is known."""
        self.sum_lag = 0
        self.by_topic: dict[str, int] = {}
        """The sum of the lags in each topic."""
        self.lost = 0
        """The sum of what was lost to retention."""
        self.consume_rate: float | None = None
        """Offsets per second that the group commits, of all partitions together."""
        self.unknown = 0
        """The partitions whose lag in records or in time is not known."""
        self._catch_up_s = 0.0
        self._lacks_catch_up = False

    def add(self, lag: PartitionLag) -> None:
        """Add a partition."""
        self.unknown += lag.lag_ms is None
        if lag.lag is not None:
            self.max_lag = max(lag.lag, self.max_lag or 0)
            self.sum_lag += lag.lag
            self.by_topic[lag.topic] = self.by_topic.get(lag.topic, 0) + lag.lag
        if lag.lag_ms is not None:
            self.max_lag_ms = max(lag.lag_ms, self.max_lag_ms or 0)
        self.lost += lag.lost or 0
        if lag.consume_rate is not None:
            self.consume_rate = lag.consume_rate + (self.consume_rate or 0.0)
        catch_up_s = lag.catch_up_s
        if catch_up_s is None:
            self._lacks_catch_up = True
        else:
            self._catch_up_s = max(self._catch_up_s, catch_up_s)

    @property
    def catch_up_s(self) -> float | None:
        """Seconds until the last partition has caught up; None if that of some is not known."""
        # One partition that falls behind decides for the group, whatever is not known of others.
        if self._lacks_catch_up and self._catch_up_s != math.inf:
            return None
        return self._catch_up_s


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group."""

    group_id: str
    kind: str
    """"classic" or "consumer" (KIP-848)."""
    state: str
    members: int
    """The number of its members."""
    partitions: tuple[PartitionLag, ...] = field(repr=False)
    """The partitions with a committed offset."""
    totals: GroupTotals = field(repr=False)


class _Seen(NamedTuple):
    at_ms: int
    committed_offset: int
    end_offset: int


class RateWindow:
    """The rates of consumption and production of one group in one partition.

    Two earlier looks are kept: rates cover the time since the older one.
    """

    __slots__ = ("_older", "_recent")

    def __init__(self) -> None:
        self._older: _Seen | None = None
        self._recent: _Seen | None = None

    def note(self, now_ms: int, committed_offset: int, end_offset: int) -> None:
        """Note a look; `now_ms` is monotonic."""
        recent = self._recent
        # After a reset of offsets, or in a log created again, earlier looks say nothing.
        if (
            recent is None
            or committed_offset < recent.committed_offset
            or end_offset < recent.end_offset
        ):
            self._older = self._recent = _Seen(now_ms, committed_offset, end_offset)
        elif now_ms - recent.at_ms >= RATE_WINDOW_MS:
            self._older, self._recent = recent, _Seen(now_ms, committed_offset, end_offset)

    def rates(
        self, now_ms: int, committed_offset: int, end_offset: int
    ) -> tuple[float, float] | None:
        """Return the rates up to now, in offsets per second; None before there are two looks."""
        older = self._older
        if older is None or now_ms - older.at_ms < RATE_MS_MIN:
            return None
        took_s = (now_ms - older.at_ms) / 1000
        return (
            (committed_offset - older.committed_offset) / took_s,
            (end_offset - older.end_offset) / took_s,
        )
