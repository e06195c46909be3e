"""Tables by definition: the rows after each change, from all changes before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.golden.functions import adder, mapper
from tests.oracle.flows import Event, Spec, moments, row_at


def table(node: Spec, events: list[Event]) -> Iterator[Event]:
    """Keep the newest record of each key by arrival; in a versioned table, by timestamp."""
    history = node["versioned"]["history"] if "versioned" in node else None
    before: list[Event] = []
    for _, event, time in moments([each for each in events if each.key is not None]):
        if history is not None and event.ts < time - history:
            continue
        before.append(event)
        row = row_at(before[:-1], event.key)
        if history is None:
            if row is not None or event.value is not None:  # Otherwise, nothing changes.
                yield _change(event, None if row is None else row.value)
            continue
        newest = [each.ts for each in before[:-1] if each.key == event.key]
        found = _as_of(before[:-1], event.key, event.ts)
        is_stale = bool(newest) and event.ts < max(newest)
        is_stale = is_stale or (event.value, found) == (None, None)  # Nothing changes.
        yield _change(event, None if found is None else found.value, stale=is_stale)


def _change(event: Event, old: Any, *, stale: bool = False) -> Event:
    return Event(event.path, event.key, event.value, event.ts, old, stale)


def _as_of(events: list[Event], key: Any, ts: int) -> Event | None:
    found = None
    for event in events:
        if event.key == key and event.ts <= ts and (found is None or event.ts >= found.ts):
            found = event
    return None if found is None or found.value is None else found


def lookup(events: list[Event], key: Any, ts: int, history: int | None) -> Event | None:
    """Return a table's row: the newest, or in a versioned table, that of a time."""
    if history is None:
        return row_at(events, key)
    time = max((each.ts for each in events), default=0)
    newest = max((each.ts for each in events if each.key == key), default=0)
    # The newest version of a row never gets too old.
    return None if ts < time - history and newest > ts else _as_of(events, key, ts)


def map_rows(events: list[Event], fn: Callable[[Any, Any], Any]) -> Iterator[Event]:
    """Map rows; changes that are invisible before and after are dropped."""
    for e in events:
        new, old = (None if value is None else fn(e.key, value) for value in (e.value, e.old))
        if new is not None or old is not None:
            yield Event(e.path, e.key, new, e.ts, old, e.stale)


def filter_rows(events: list[Event], keep: Callable[[Any, Any], bool]) -> Iterator[Event]:
    """Keep the rows that pass the filter."""
    return map_rows(events, lambda k, v: v if keep(k, v) else None)


def aggregate_groups(node: Spec, by: Spec, events: list[Event]) -> Iterator[Event]:
    """Aggregate a table's rows by group: subtract the old row, and add the new one."""
    group_of = mapper(by)
    counting = {"init": 0, "add": {"fn": "count"}, "sub": {"fn": "sub"}}
    node = {**counting, **node} if node["op"] == "count" else node
    groups: dict[Any, tuple[Any, int]] = {}
    for event in events:
        if event.stale:
            continue
        old, new = (
            (None, None) if value is None else group_of(event.key, value) or (None, None)
            for value in (event.old, event.value)
        )
        for key in dict.fromkeys(each[0] for each in (old, new) if None not in each):
            state, ts = groups.get(key, (node.get("init"), 0))
            if key == old[0] and old[1] is not None:
                amount = 1 if node["op"] == "count" else old[1]
                state = adder(node["sub"])(state, amount)
            if key == new[0] and new[1] is not None:
                state = new[1] if state is None else adder(node["add"])(state, new[1])
            before = groups.get(key, (None, 0))[0]
            groups[key] = state, max(ts, event.ts)
            yield Event(event.path, key, state, max(ts, event.ts), before)


def suppress(node: Spec, windows: Spec | None, events: list[Event]) -> Iterator[Event]:
    """Hold changes back until their window closes, for a time, or until there are too many."""
    waiting: dict[Any, tuple[int, Event]] = {}
    emitted: dict[Any, Any] = {}
    for _, event, time in moments(events):
        first = waiting.pop(event.key, (event.ts, event))[0]
        waiting[event.key] = first, event
        for key, (_, last) in sorted(waiting.items(), key=lambda item: (item[1][0], str(item[0]))):
            if not _is_due(node, windows, waiting, key, time):
                continue
            del waiting[key]
            if last.value is not None or emitted.get(key) is not None:
                yield Event(event.path, key, last.value, last.ts, emitted.get(key))
                emitted[key] = last.value


def _is_due(
    node: Spec, windows: Spec | None, waiting: dict[Any, tuple[int, Event]], key: Any, time: int
) -> bool:
    if node["until"] == "window_closes":
        assert windows is not None
        return bool(key[1][1] <= time - windows["grace"] - windows.get("gap", 0))
    most, limit = node.get("max_records"), node.get("ms")
    too_many = most is not None and len(waiting) > most
    return too_many or (limit is not None and waiting[key][0] <= time - limit)
