"""What flows between the operators of the oracle: all events of a case, as one list per node.

An event's path says why it is there: the input, then for every node on the way the node's number
and the how-manieth of its answers this is. So the order of paths is the order in which things
happen when each input is followed to its end before the next, and a node with several parents
sees their events in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Spec: TypeAlias = dict[str, Any]
Window: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Event:
    """A record of a stream, or a change of a table."""

    path: tuple[int, ...]
    key: Any
    value: Any
    ts: int
    old: Any = None
    """Of a table: the row before."""
    stale: bool = False
    """Of a versioned table: not the newest of its key, or no change of it."""
    port: int = 0
    """Which parent of a node it comes from."""

    def follows(self, number: int, nth: int, **changed: Any) -> Event:
        """What a node makes of it."""
        return replace(self, path=(*self.path, number, nth), **changed)


@dataclass(frozen=True, slots=True)
class Flow:
    """All events behind a node."""

    events: list[Event]
    windows: Spec | None = None
    """Of a grouping that is windowed, and of what is aggregated from it."""
    history: int | None = None
    """Of a versioned table."""
    is_table: bool = False


Answers: TypeAlias = Iterable[dict[str, Any]]


def answered(events: Iterable[Event], number: int, fn: Callable[[Event], Answers]) -> list[Event]:
    """What a node makes of each event by itself, as changes of it."""
    return [
        event.follows(number, nth, **changed)
        for event in events
        for nth, changed in enumerate(fn(event))
    ]


def together(flows: Iterable[Flow]) -> list[Event]:
    """The events of all parents, each with its port, as they happen."""
    found = [replace(event, port=port) for port, flow in enumerate(flows) for event in flow.events]
    return sorted(found, key=lambda event: (event.path, event.port))


def moments(events: Iterable[Event]) -> Iterator[tuple[list[Event], Event, int]]:
    """Each event with those before it, and stream time with it."""
    before: list[Event] = []
    for event in events:
        yield before, event, max(each.ts for each in [*before, event])
        before = [*before, event]


def row_at(before: Iterable[Event], key: Any) -> Event | None:
    """The newest change of a row of a table, if the row is there."""
    found = None
    for event in before:
        if event.key == key and not event.stale:
            found = event
    return None if found is None or found.value is None else found
