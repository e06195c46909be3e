"""Watchdog: who has something to do and does not get on.

A task or an agent that is behind the end of its inputs, and of whose positions none has moved for
a while, is stalled: its function hangs, it waits for an input that does not come, or the log does
not answer. Rules of the file: it decides by positions alone, whatever the reason, so it can't be
fooled by a reason nobody has thought of; it is told again after twice the time, and so on, so
that a log is not filled. Pure: the time is passed in. Not done here: finding the reason, telling
(`watching`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamlog.record import TopicPartition

Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Sight:
    """Where somebody stands, at one look."""

    positions: Positions
    """The next offset that it will have done, by input."""
    lags: Mapping[TopicPartition, int]
    """How far each is behind its end."""

    @property
    def is_behind(self) -> bool:
        """Whether there is anything to do."""
        return any(lag > 0 for lag in self.lags.values())


@dataclass(frozen=True, slots=True)
class Stall:
    """Somebody does not get on."""

    who: str
    sight: Sight
    still_ms: int
    is_over: bool
    """It has gone on for so long that the worker is to end."""

    def told(self) -> str:
        """Where it stands, for a line of a log."""
        behind = sorted((part, lag) for part, lag in self.sight.lags.items() if lag > 0)
        places = ", ".join(
            f"{part.topic}-{part.partition} at offset {self.sight.positions.get(part, 0)}, "
            f"{lag} behind"
            for part, lag in behind
        )
        return f"{self.who} has not moved for {self.still_ms // 1000} s: {places}"


@dataclass(slots=True)
class _Track:
    """What is known of one of them."""

    positions: Positions
    since_ms: int
    next_ms: int
    """How long it may be still until it is told (again)."""


class Watchdog:
    """Looks at everybody once in a while."""

    def __init__(self, limit_ms: int, exit_ms: int | None = None) -> None:
        """`limit_ms` is for telling; after `exit_ms`, if given, a stall is over."""
        self._limit_ms = limit_ms
        self._exit_ms = exit_ms
        self._tracks: dict[str, _Track] = {}

    def look(self, seen: Mapping[str, Sight], now_ms: int) -> list[Stall]:
        """Who is to be told of now; those who are not `seen` any more are forgotten."""
        for gone in self._tracks.keys() - seen.keys():
            del self._tracks[gone]
        found = (self._looked_at(who, sight, now_ms) for who, sight in seen.items())
        return [stall for stall in found if stall is not None]

    def stalled(self, now_ms: int) -> dict[str, int]:
        """Who had not moved for as long as is told of, at the last look, and for how long."""
        still_ms = {who: now_ms - track.since_ms for who, track in self._tracks.items()}
        return {who: still for who, still in still_ms.items() if still >= self._limit_ms}

    def _looked_at(self, who: str, sight: Sight, now_ms: int) -> Stall | None:
        track = self._tracks.get(who)
        if track is None or track.positions != sight.positions or not sight.is_behind:
            self._tracks[who] = _Track(dict(sight.positions), now_ms, self._limit_ms)
            return None
        still_ms = now_ms - track.since_ms
        is_over = self._exit_ms is not None and still_ms >= self._exit_ms
        if still_ms < track.next_ms and not is_over:
            return None
        while track.next_ms <= still_ms:
            track.next_ms *= 2
        return Stall(who, sight, still_ms, is_over)
