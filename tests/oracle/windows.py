"""Aggregations by definition: all windows over all records, recomputed for each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

from tests.golden.functions import adder
from tests.oracle.flows import Event, Spec, Window, moments

Adds = list[Callable[[Any, Any], Any]]
"""Adders by port."""


def fold_of(node: Spec, adds: Adds) -> Callable[[Iterable[Event]], Any]:
    """Return a function that aggregates events in their order."""

    def fold_events(events: Iterable[Event]) -> Any:
        found = list(events)
        if "init" in node:
            return reduce(lambda state, e: adds[e.port](state, e.value), found, node["init"])
        return reduce(lambda state, e: adds[0](state, e.value), found[1:], found[0].value)

    return fold_events


def row(event: Event, key: Any, value: Any, ts: int) -> Event:
    return Event(event.path, key, value, ts)


def aggregate_keys(events: list[Event], fold: Callable[[Iterable[Event]], Any]) -> Iterator[Event]:
    """Emit each key's aggregate after each record with a key and a value."""
    for before, event, _ in moments(_with_key_and_value(events)):
        own_events = [each for each in [*before, event] if each.key == event.key]
        yield row(event, event.key, fold(own_events), max(each.ts for each in own_events))


def windows_with(spec: Spec, ts: int) -> list[Window]:
    """Return the tumbling or hopping windows [start, end) that hold a time."""
    size, advance = spec["size"], spec.get("advance", spec["size"])
    starts = range(0, ts + 1, advance)
    return [(start, start + size) for start in starts if start <= ts < start + size]


def fixed_windows(
    spec: Spec, emit: str, events: list[Event], fold: Callable[[Iterable[Event]], Any]
) -> Iterator[Event]:
    """Aggregate tumbling and hopping windows. Records without a key do not count for time."""
    taken: list[tuple[Event, Window]] = []
    time_before = -1
    for _, event, time in moments(_with_key_and_value(events)):
        closing = time - spec["grace"]
        open_windows = [window for window in windows_with(spec, event.ts) if window[1] > closing]
        taken += [(event, window) for window in open_windows]
        if emit == "on_close":
            rows_due = {(w, e.key) for e, w in taken if time_before < w[1] + spec["grace"] <= time}
        else:
            rows_due = {(window, event.key) for window in open_windows}
        time_before = time
        for window, key in sorted(rows_due):
            inside = [e for e, w in taken if (w, e.key) == (window, key)]
            yield row(event, (key, window), fold(inside), max(each.ts for each in inside))


def _with_key_and_value(events: Iterable[Event]) -> list[Event]:
    """Return the events that reach an aggregation."""
    return [event for event in events if None not in (event.key, event.value)]


def sliding(
    spec: Spec, emit: str, events: list[Event], fold: Callable[[Iterable[Event]], Any]
) -> Iterator[Event]:
    """Aggregate windows [start, start + difference] that end at or start after a record."""
    d, grace = spec["difference"], spec["grace"]
    kept: list[Event] = []
    emitted: set[tuple[Window, Any]] = set()
    time_before = -1
    for _, event, time in moments(_with_key_and_value(events)):
        before = [each for each in kept if each.key == event.key]
        earlier = _sliding_windows(before, d)
        after = [*before, event]
        changed = [
            window
            for window in _sliding_windows(after, d)
            if window[1] >= time - grace
            and (window not in earlier or window[0] <= event.ts <= window[1])
        ]
        if any(start <= event.ts <= end for start, end in changed):
            kept.append(event)
        else:
            changed = []
        if emit == "on_close":
            rows_due = {
                (window, key)
                for key in {each.key for each in kept}
                for window in _sliding_windows([e for e in kept if e.key == key], d)
                if time_before <= window[1] + grace < time
            } - emitted
            emitted |= rows_due
        else:
            rows_due = {(window, event.key) for window in changed}
        time_before = time
        for window, key in sorted(rows_due):
            inside = [e for e in kept if e.key == key and window[0] <= e.ts <= window[1]]
            yield row(event, (key, window), fold(inside), max(each.ts for each in inside))


def _sliding_windows(events: list[Event], d: int) -> set[Window]:
    ending = {(max(each.ts - d, 0), max(each.ts, d)) for each in events}
    fold_of = {(each.ts + 1, each.ts + 1 + d) for each in events}
    return ending | {(s, e) for s, e in fold_of if any(s <= each.ts <= e for each in events)}


def sessions(node: Spec, spec: Spec, emit: str, events: list[Event], adds: Adds) -> Iterator[Event]:
    """Aggregate sessions [first, last] that a pause of more than `gap` ends.

    A final session stays final. On update, a closed session can still be merged for another gap,
    if a record joins it with an open one.
    """
    gap, grace = spec["gap"], spec["grace"]
    merge = adder(node["merge"]) if node.get("merge") else adds[0]
    alive: list[tuple[Window, Any, Any]] = []
    emitted: list[tuple[Window, Any]] = []
    for _, event, time in moments(_with_key_and_value(events)):
        closing = time - grace - gap
        joined_sessions = [
            each
            for each in alive
            if each[1] == event.key
            and each[0][1] >= (closing if emit == "on_close" else closing - gap)
            and each[0][0] - gap <= event.ts <= each[0][1] + gap
        ]
        bounds = [event.ts, *(edge for window, _, _ in joined_sessions for edge in window)]
        window = (min(bounds), max(bounds))
        if window[1] >= closing:
            alive = [each for each in alive if each not in joined_sessions]
            alive.append((window, event.key, _merged(node, joined_sessions, event, merge, adds)))
            if emit != "on_close":
                for old, _, _ in sorted(joined_sessions, key=lambda each: each[0]):
                    if old != (event.ts, event.ts):
                        yield row(event, (event.key, old), None, old[1])
                yield row(event, (event.key, window), alive[-1][2], window[1])
        expired = [each for each in alive if each[0][1] < closing and each[:2] not in emitted]
        if emit == "on_close":
            emitted += [each[:2] for each in expired]
            for old, key, value in sorted(
                expired, key=lambda each: (each[0][1], each[0][0], each[1])
            ):
                yield row(event, (key, old), value, old[1])


def _merged(
    node: Spec,
    joined_sessions: list[tuple[Window, Any, Any]],
    event: Event,
    merge: Callable[[Any, Any], Any],
    adds: Adds,
) -> Any:
    values = [value for _, _, value in sorted(joined_sessions, key=lambda each: each[0])]
    if "init" in node:
        return adds[event.port](reduce(merge, values, node["init"]), event.value)
    return reduce(adds[0], [*values, event.value])
