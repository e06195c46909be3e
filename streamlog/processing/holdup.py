"""Holdup: a result that is due by some sources of a node and held back by others.

A window closes once every source of its records has passed its end. A source that is empty, or
quiet, or far behind, holds it open; the user sees no result and no error. So both ends are named:
which partitions hold back, and which one is ahead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from streamlog.processing.merge_wait import place_of, time_of
from streamlog.processing.retimed import RetimedFeed
from streamlog.processing.stateless import RepartitionStep
from streamlog.processing.step import Step
from streamlog.topology import Subtopology
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source

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
    retimed: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Nodes that set other timestamps, and nodes behind them, with the topics above them."""

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
            f"every source; {place_of(self.ahead)} has reached {time_of(self.ahead_ms)}. "
            f"{self._remedy(places)}"
        )

    def _remedy(self, places: Collection[Source]) -> str:
        nodes = {name.partition("/")[0] for name, _ in places} & {*self.retimed}
        if not nodes:
            return (
                "Send records to these partitions, give the topic fewer of them, or declare "
                '.idle_after("30s") on the window'
            )
        above = "set_timestamp before the merge and " if any("/" in n for n, _ in places) else ""
        topics = {topic for node in nodes for topic in self.retimed[node]}
        return (
            f"Behind set_timestamp a partition of {', '.join(sorted(topics))} without records has "
            "no event time, and no time mark gives it one: declare timestamp= on the topic in "
            f'place of set_timestamp, or {above}.idle_after("30s") on the window'
        )

    def _standing(self, source: Source) -> str:
        time_ms = self.behind[source]
        return "no record yet" if time_ms == UNKNOWN_MS else f"at {time_of(time_ms)}"


def holdups_of(steps: Iterable[Step], sub: Subtopology) -> list[Holdup]:
    """What is due in these steps by some sources, and held back by others."""
    found: list[Holdup] = []
    for step in steps:
        if isinstance(step, RepartitionStep):
            found += _untimed(step, sub.retimed)
            continue
        pairs = [*step.waits_for()]
        due_ms = min((each for _, each in pairs), default=FAR_MS)
        heard = {s: ms for feed, _ in pairs for s, ms, _ in feed.heard_of()}
        behind = {source: ms for source, ms in heard.items() if ms < due_ms}
        if behind and max(heard.values()) >= due_ms:
            ahead = max(heard, key=lambda source: heard[source])
            times = (step.ends_at(due_ms), due_ms, behind, ahead, heard[ahead])
            found.append(Holdup(step.name, *times, sub.retimed))
    return found


def _untimed(step: RepartitionStep, retimed: Mapping[str, Collection[str]]) -> list[Holdup]:
    """What several sources with other timestamps hold back together downstream.

    There they are one source, which has no time before each of them has.
    """
    found: list[Holdup] = []
    for feed in step.node_time.feeds:
        heard = {source: ms for source, ms, _ in feed.heard_of()}
        behind = {source: ms for source, ms in heard.items() if ms == UNKNOWN_MS}
        if isinstance(feed, RetimedFeed) and 0 < len(behind) < len(heard):
            ahead = max(heard, key=lambda source: heard[source])
            times = (heard[ahead], heard[ahead], behind, ahead, heard[ahead])
            found.append(Holdup(step.name, *times, retimed))
    return found
