"""Events between the operators of the oracle: all events of a case, as one list per node.

An event's path names its cause: the input, then for every node on the way the node's number and
the index of the event among the node's results. So paths are ordered as if each input were
processed to its end before the next, and a node with several parents sees their events in that
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from streamlog.replace import replace

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
    """In a table: the row before the change."""
    stale: bool = False
    """In a versioned table: not the newest version of its key, or not a change."""
    port: int = 0
    """The index of the node's parent from which the event comes."""

    def derive(self, number: int, nth: int, **changed: Any) -> Event:
        """Return the event that a node derives from this one."""
        return replace(self, path=(*self.path, number, nth), **changed)


@dataclass(frozen=True, slots=True)
class Flow:
    """All events that a node emits."""

    events: list[Event]
    windows: Spec | None = None
    """The windows of a windowed grouping and of its aggregation."""
    history: int | None = None
    """The history of a versioned table, in ms."""
    is_table: bool = False


Answers: TypeAlias = Iterable[dict[str, Any]]


def apply_each(events: Iterable[Event], number: int, fn: Callable[[Event], Answers]) -> list[Event]:
    """Return the events that a function derives from each event, as changed fields."""
    return [
        event.derive(number, nth, **changed)
        for event in events
        for nth, changed in enumerate(fn(event))
    ]


def merge_events(flows: Iterable[Flow]) -> list[Event]:
    """Return the events of all parents in order, each with its port."""
    found = [replace(event, port=port) for port, flow in enumerate(flows) for event in flow.events]
    return sorted(found, key=lambda event: (event.path, event.port))


def moments(events: Iterable[Event]) -> Iterator[tuple[list[Event], Event, int]]:
    """Yield each event with the events before it and with stream time."""
    before: list[Event] = []
    for event in events:
        yield before, event, max(each.ts for each in [*before, event])
        before = [*before, event]


def row_at(before: Iterable[Event], key: Any) -> Event | None:
    """Return the newest change of a table's row, or None if the row does not exist."""
    found = None
    for event in before:
        if event.key == key and not event.stale:
            found = event
    return None if found is None or found.value is None else found
