"""Watchdog: decides which tasks and agents are stalled.

A task or an agent is stalled if it lags behind the end of its inputs and none of its positions has
moved for some time: its function hangs, it waits for an input without records, or the log does not
answer.

Rules: it decides by positions alone, so a stall of any cause is found. A stall is reported again
after twice the time, then after four times, so that it does not fill the log. Pure: the time is
passed in. Not done here: the cause, and the report (`loop_watch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamlog.errors import quantity
from streamlog.record import TopicPartition

Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Sight:
    """The progress of a task or an agent at one look."""

    positions: Positions
    """Input to the offset before which everything is done."""
    lags: Mapping[TopicPartition, int]
    """Input to the number of records up to its end."""

    @property
    def is_behind(self) -> bool:
        """Whether an input has records to process."""
        return any(lag > 0 for lag in self.lags.values())


@dataclass(frozen=True, slots=True)
class Stall:
    """A task or an agent without progress."""

    who: str
    """Its name, such as "task 0_1" or "agent billing"."""
    sight: Sight
    still_ms: int
    """The time without progress, in milliseconds."""
    is_over: bool
    """Whether the limit is reached at which the worker ends."""

    def describe(self) -> str:
        """Return its name, positions and lags, for a log line."""
        behind = sorted((part, lag) for part, lag in self.sight.lags.items() if lag > 0)
        inputs = ", ".join(
            f"{part.topic}-{part.partition} at offset {self.sight.positions.get(part, 0)}, "
            f"{quantity(lag, 'record')} behind"
            for part, lag in behind
        )
        return f"{self.who} has made no progress for {self.still_ms // 1000} s: {inputs}"


@dataclass(slots=True)
class _Track:
    """The last progress of a task or an agent."""

    positions: Positions
    since_ms: int
    """When the positions moved last."""
    next_ms: int
    """The time without progress at which the next report is due."""


class Watchdog:
    """Follows the progress of tasks and agents from look to look."""

    def __init__(self, limit_ms: int, exit_ms: int | None = None) -> None:
        """Create a watchdog that reports after `limit_ms`; `exit_ms` sets `Stall.is_over`."""
        self._limit_ms = limit_ms
        self._exit_ms = exit_ms
        self._tracks: dict[str, _Track] = {}

    def look(self, seen: Mapping[str, Sight], now_ms: int) -> list[Stall]:
        """Return the stalls to report now; names that are not in `seen` are dropped."""
        for gone in self._tracks.keys() - seen.keys():
            del self._tracks[gone]
        found = (self._update(who, sight, now_ms) for who, sight in seen.items())
        return [stall for stall in found if stall is not None]

    def stalled(self, now_ms: int) -> dict[str, int]:
        """Return the names without progress for `limit_ms` or longer, with that time."""
        still_ms = {who: now_ms - track.since_ms for who, track in self._tracks.items()}
        return {who: still for who, still in still_ms.items() if still >= self._limit_ms}

    def _update(self, who: str, sight: Sight, now_ms: int) -> Stall | None:
        track = self._tracks.get(who)
        # Without records to process, standing still is no stall: the time starts anew.
        if track is None or track.positions != sight.positions or not sight.is_behind:
            self._tracks[who] = _Track(dict(sight.positions), now_ms, self._limit_ms)
            return None
        still_ms = now_ms - track.since_ms
        is_over = self._exit_ms is not None and still_ms >= self._exit_ms
        if still_ms < track.next_ms and not is_over:
            return None
        # Looks are missed while the event loop is blocked: one report makes up for all of them.
        while track.next_ms <= still_ms:
            track.next_ms *= 2
        return Stall(who, sight, still_ms, is_over)
