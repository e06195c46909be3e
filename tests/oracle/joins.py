"""Joins by definition: every record against every record on the opposite side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.golden.functions import key_of
from tests.oracle.flows import Event, Flow, Spec, merge_events, moments, row_at
from tests.oracle.tables import lookup

Joiner = Callable[[Any, Any], Any]
LEFT, RIGHT = 0, 1


def stream_table(node: Spec, flows: list[Flow], join: Joiner) -> Iterator[Event]:
    """Join on records of the stream alone, which also advance the time of waiting ones (`grace`).

    A global table is looked up by any key.
    """
    waiting: list[Event] = []
    times: list[int] = []
    for before, event, _ in moments(merge_events(flows)):
        if event.port == RIGHT:
            continue
        rows = [each for each in before if each.port == RIGHT]
        # A left join emits a row for a record without a lookup key (KIP-962).
        if event.value is None or (_lookup_key(node, event) is None and node["how"] != "left"):
            continue
        waiting.append(event)
        times.append(event.ts)
        grace = node.get("grace")
        due = [each for each in waiting if grace is None or each.ts <= max(times) - grace]
        for each in sorted(due, key=lambda each: each.ts):
            waiting.remove(each)
            lookup_key = _lookup_key(node, each)
            history = flows[RIGHT].history
            found = None if lookup_key is None else lookup(rows, lookup_key, each.ts, history)
            if found is not None or node["how"] == "left":
                value = join(each.value, None if found is None else found.value)
                yield Event(event.path, each.key, value, each.ts)


def _lookup_key(node: Spec, event: Event) -> Any:
    """Return the key of the row to join with a record."""
    if "lookup" not in node or event.port == RIGHT:
        return event.key
    return key_of(node["lookup"])(event.key, event.value)


def table_table(node: Spec, flows: list[Flow], join: Joiner) -> Iterator[Event]:
    """Emit a change of the result for a change of either side, if a result exists or existed.

    One input's changes of both sides are one change: no row has the old version of one side.
    """
    events = [each for each in merge_events(flows) if not each.stale]
    of_input: defaultdict[tuple[int, Any], list[Event]] = defaultdict(list)
    for event in events:
        of_input[event.path[0], event.key].append(event)
    rows: dict[tuple[int, Any], Event] = {}
    for event in events:
        step = of_input[event.path[0], event.key]
        if {each.port for each in step} != {LEFT, RIGHT}:
            step = [event]
        elif event is not step[-1]:
            continue
        before = [rows.get((port, event.key)) for port in (LEFT, RIGHT)]
        rows |= {(each.port, event.key): each for each in step}
        now = [rows.get((port, event.key)) for port in (LEFT, RIGHT)]
        new, old = (_join_pair(node["how"], join, *sides) for sides in (now, before))
        if new is not None or old is not None:
            found = [each for each in now if each is not None]
            ts = max(each.ts for each in found if each in step or each.value is not None)
            yield Event(event.path, event.key, new, ts, old)


def _join_pair(how: str, join: Joiner, *sides: Event | None) -> Any:
    left, right = (None if each is None else each.value for each in sides)
    exists = {
        "inner": None not in (left, right),
        "left": left is not None,
        "outer": (left, right) != (None, None),
    }[how]
    return join(left, right) if exists else None


def foreign_key(node: Spec, flows: list[Flow], join: Joiner) -> Iterator[Event]:
    """Join each row of the left with the row of the right that its value refers to."""
    extract = key_of(node["foreign_key"])
    for before, event, _ in moments(merge_events(flows)):
        if event.stale or (event.value, event.old) == (None, None):
            continue
        rights = [each for each in before if each.port == RIGHT]
        lefts = [each for each in before if each.port == LEFT]
        if event.port == LEFT:
            new, right = _join_foreign(node["how"], join, event.value, rights, extract)
            old, _ = _join_foreign(node["how"], join, event.old, rights, extract)
            changes = [(event.key, new, old, right)]
        else:
            keys = dict.fromkeys(each.key for each in lefts)
            rows = [found for key in keys if (found := row_at(lefts, key)) is not None]
            changes = []
            for row in rows:
                if extract(None, row.value) == event.key:
                    new, _ = _join_foreign(node["how"], join, row.value, [*rights, event], extract)
                    old, _ = _join_foreign(node["how"], join, row.value, rights, extract)
                    changes.append((row.key, new, old, row))
        for key, new, old, other in changes:
            if new is not None or old is not None:
                ts = max(event.ts, event.ts if other is None else other.ts)
                yield Event(event.path, key, new, ts, old)


def _join_foreign(
    how: str, join: Joiner, value: Any, rights: list[Event], extract: Callable[[Any, Any], Any]
) -> tuple[Any, Event | None]:
    key = None if value is None else extract(None, value)
    right = None if key is None else row_at(rights, key)
    if value is None or (right is None and how == "inner"):
        return None, right
    return join(value, None if right is None else right.value), right


def stream_stream(node: Spec, flows: list[Flow], join: Joiner) -> Iterator[Event]:
    """Join records that are near in time; emit unmatched ones once no partner can come.

    Late records join all kept records. A record without a key is always unmatched; an inner join
    drops it. Dropped records, and records without a value, do not advance time.
    """
    outer: tuple[int, ...] = {"inner": (), "left": (LEFT,), "outer": (LEFT, RIGHT)}[node["how"]]
    matched: set[tuple[int, ...]] = set()
    alone: list[Event] = []
    for before, event, time in moments(e for e in merge_events(flows) if _counts(e, outer)):
        expired = [each for each in alone if time > _last_moment(node, each)]
        # In the order of their ends; with a symmetric window, by time.
        expired.sort(key=lambda each: (_last_moment(node, each), -each.port, each.key))
        alone = [each for each in alone if each not in expired]
        for each in expired:
            if (*each.path, each.port) not in matched:
                yield _joined_event(event, join, each, None)
        partners = [
            each
            for each in before
            if None not in (each.key, each.value)
            and each.port != event.port
            and each.key == event.key
            and _is_near(node, each, event)
            and each.ts + _kept_ms(node) >= time
        ]
        for each in sorted(partners, key=lambda each: each.ts):
            matched |= {(*each.path, each.port), (*event.path, event.port)}
            yield _joined_event(event, join, event, each)
        if not partners and event.port in outer:
            if event.key is None or time > _last_moment(node, event):
                yield _joined_event(event, join, event, None)
            else:
                alone.append(event)


def _counts(event: Event, outer: Sequence[int]) -> bool:
    return event.value is not None and (event.key is not None or event.port in outer)


def _kept_ms(node: Spec) -> int:
    """Return how long a record is kept, in ms: until no timely partner can come.

    A negative span does not shorten the opposite one: a partner that is always earlier is in time
    up to its own timestamp and grace, not up to the end of a window that lies before it.
    """
    return max(node["before"], 0) + max(node["after"], 0) + int(node["grace"])


def _last_moment(node: Spec, event: Event) -> int:
    reach: int = node["after"] if event.port == LEFT else node["before"]
    return event.ts + reach + int(node["grace"])


def _is_near(node: Spec, first: Event, other: Event) -> bool:
    left, right = (first, other) if first.port == LEFT else (other, first)
    return bool(left.ts - node["before"] <= right.ts <= left.ts + node["after"])


def _joined_event(cause: Event, join: Joiner, first: Event, other: Event | None) -> Event:
    value = None if other is None else other.value
    left, right = (first.value, value) if first.port == LEFT else (value, first.value)
    ts = first.ts if other is None else max(first.ts, other.ts)
    return Event(cause.path, first.key, join(left, right), ts)
