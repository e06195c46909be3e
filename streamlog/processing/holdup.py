"""Holdup: a result that is due by some sources of a node and held back by others.

A window closes once every source of its records has passed its end. A source that is empty, or
quiet, or far behind, holds it open; the user sees no result and no error. So both ends are named:
which partitions hold back, and which one is ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamlog.processing.merge_wait import place_of, time_of
from streamlog.windows.emit import UNKNOWN_MS, Source

NAMED_MAX = 5
"""How many partitions a message names."""


@dataclass(frozen=True, slots=True)
class Holdup:
    """A result of a node that waits for event time."""

    node: str
    end_ms: int
    """The end of the window, or the time for which a timer is set."""
    due_ms: int
    """The event time that every source has to reach: the end and grace."""
    behind: Mapping[Source, int]
    """The sources that have not, and the event time that each has reached."""
    ahead: Source
    """The source that is furthest."""
    ahead_ms: int

    def told(self) -> str:
        """In a line: what is held back, by what, and what to do."""
        places = sorted(self.behind)
        named = [f"{place_of(each)} ({self._standing(each)})" for each in places[:NAMED_MAX]]
        if len(places) > NAMED_MAX:
            named.append(f"{len(places) - NAMED_MAX} more")
        verb = "holds" if len(places) == 1 else "hold"
        return (
            f"{', '.join(named)} {verb} back {self.node!r}: its next result, of "
            f"{time_of(self.end_ms)}, is due once event time reaches {time_of(self.due_ms)} in "
            f"every source; {place_of(self.ahead)} has reached {time_of(self.ahead_ms)}. Send "
            "records to these partitions, give the topic fewer of them, or declare "
            '.idle_after("30s") on the window'
        )

    def _standing(self, source: Source) -> str:
        time_ms = self.behind[source]
        return "no record yet" if time_ms == UNKNOWN_MS else f"at {time_of(time_ms)}"
