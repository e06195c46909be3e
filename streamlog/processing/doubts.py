"""Doubts: what a task has to know before it goes beyond an input that it believes to be at its end.

An input that is read to its end holds nobody back, or a quiet stream would stop its partner. But
that it is at its end is what was heard last, by a fetch or by a mark from upstream; after a rest
or a restart, more may be there that has not come yet. So others go beyond its time only by what
live streams lie apart (`SKEW_MS`), and only for as long after it was heard of. Beyond that there is
a doubt: nothing more is taken, the task names it (`Task.doubts`), and its runner finds out whether
all that was there has come, and says so (`Task.process`). That frees everything that had arrived
before the question, or lay in the log as far as is known; what comes later may be doubted again.
Pure: the time on the wall is passed in, and only decides when there is a question. Not done here:
finding out (`worker/ends`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from streamlog.windows.emit import UNKNOWN_MS, Source

SKEW_MS = 1_000
"""How far live streams may lie apart, in event time and on the wall, without a question."""
LAST_RANK = 1 << 31
"""Behind that of every input."""
Turn: TypeAlias = tuple[int, int]
"""Time and rank, by which records are ordered."""


class Doubt(NamedTuple):
    """Somewhere there may be more, though all that was heard of has been taken."""

    place: tuple[str, int]
    """The input, topic and partition."""
    source: Source | None
    """The one of its sources, behind a repartition; None: the input itself, all sources."""
    turn_ms: int
    """What waits for the answer and had come when the question was put, up to its newest turn."""
    ends: Mapping[tuple[str, int], int]
    """The same by offsets, of inputs whose records are read only when it is their turn."""
    posed_ms: int
    """When the question was put, on the wall."""

    @property
    def about(self) -> tuple[tuple[str, int], Source | None]:
        """What it is about, whenever it was put."""
        return self.place, self.source

    def told(self) -> str:
        """In a few words, behind "whether"."""
        name = f"{self.place[0]}-{self.place[1]}"
        if self.source is None:
            return f"{name} has more"
        return f"more of {self.source[0]}-{self.source[1]} comes through {name}"


class Doubting:
    """Whether a task has doubts at all, and the time on the wall."""

    __slots__ = ("is_on", "now_ms")

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.now_ms = 0


SURE = Doubting(is_on=False)
"""What was heard last is true: nobody writes while a history is read."""


class End:
    """What is known of an end: that of an input, or of one source that is merged in an input."""

    __slots__ = ("_ends", "_heard_ms", "_passed_ms")

    def __init__(self) -> None:
        self._heard_ms: int | None = None
        self._passed_ms = UNKNOWN_MS
        """Others have rightly gone so far while this one was at its end."""
        self._ends: dict[tuple[str, int], int] = {}
        """Where records of others lie that need not wait for it."""

    def hear(self, now_ms: int) -> None:
        """Something has come of it just now."""
        self._heard_ms = now_ms

    def confirm(self, doubt: Doubt) -> None:
        """All that there was when the question was put has come."""
        self._heard_ms = max(doubt.posed_ms, self._heard_ms or doubt.posed_ms)
        self._passed_ms = max(doubt.turn_ms, self._passed_ms)
        for place, end in doubt.ends.items():
            self._ends[place] = max(end, self._ends.get(place, 0))

    def confirmed_until(self, place: tuple[str, int]) -> int | None:
        """Before this offset no record of `place` needs to wait for it; None: nothing is known."""
        return self._ends.get(place)

    def pass_to(self, turn_ms: int) -> bool:
        """What has this turn need not wait for it; whether that is news."""
        is_news = turn_ms > self._passed_ms
        if is_news:
            self._passed_ms = turn_ms
        return is_news

    def bound(self, floor: Turn, now_ms: int) -> Turn:
        """So far others may go while it is at its end; nothing of it comes before `floor`."""
        time_ms = max(floor[0], self._passed_ms)
        if self._heard_ms is not None and now_ms - self._heard_ms <= SKEW_MS:
            return time_ms + SKEW_MS, LAST_RANK
        return (time_ms, LAST_RANK) if self._passed_ms >= floor[0] else floor
