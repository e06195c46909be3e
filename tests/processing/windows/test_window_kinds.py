"""Hopping and calendar windows in the engine, against loops over all windows and records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Late, Topic, Windowed, Windows, calendar, hopping, tumbling
from streamlog.durations import when_ms
from streamlog.serdes import serde_for
from tests.processing.test_exactness import Input, closed, events, filtered_behind, run, starts_of

HOUR_MS = 3_600_000
Event = tuple[str, int, int]
"""Key, timestamp, value."""
Row = tuple[str, int, int, Any, int]
"""Key, start, end, value, timestamp."""
Spans = Callable[[int], list[tuple[int, int]]]


def hops(size: int, step: int) -> Spans:
    """Find all windows that hold a time by a look at every window."""

    def spans(at: int) -> list[tuple[int, int]]:
        return [(s, s + size) for s in range(0, at + 1, step) if at < s + size]

    return spans


def berlin(at: int) -> list[tuple[int, int]]:
    """Return the day in Berlin that holds a time, around the clock change of October 2025."""
    hours = [-2, 22, 47, 71, 95]  # 26 October has 25 hours.
    base = when_ms("2025-10-25T00:00:00Z")
    borders = [base + hour * HOUR_MS for hour in hours]
    return [(s, e) for s, e in pairwise(borders) if s <= at < e]


def oracle(
    given_events: list[Event], spans: Spans, grace: int, emit: Emit
) -> tuple[list[Row], list[tuple[str, int, int]]]:
    """Compute the rows in order, and late records with the ends of their windows."""
    stream = -1
    inside: dict[tuple[int, int, str], list[tuple[int, int]]] = {}
    rows: list[Row] = []
    late: list[tuple[str, int, int]] = []
    for key, at, value in given_events:
        stream = max(stream, at)
        for start, end in spans(at):
            if end + grace <= stream:
                late.append((key, at, end))
                continue
            held = inside.setdefault((end, start, key), [])
            held.append((at, value))
            if emit == Emit.UPDATE:
                rows.append(row_of(key, start, end, held))
        for end, start, each in sorted(inside):
            if emit == Emit.CLOSE and end + grace <= stream:
                rows.append(row_of(each, start, end, inside.pop((end, start, each))))
    return rows, late


def row_of(key: str, start: int, end: int, held: list[tuple[int, int]]) -> Row:
    return key, start, end, [value for _, value in held], max(at for at, _ in held)


def windowed_app(windows: Windows, emit: Emit) -> tuple[App, Topic[str, int], Any, Any]:
    app = App("kinds")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=Windowed[str], value=list[int])
    late = app.topic("late", key=str, value=Late[int])
    stream = app.stream(words).group_by_key().windowed(windows).emit(emit).late(late)

    def add(held: list[int], value: int) -> list[int]:
        return [*held, value]

    stream.aggregate(list, add, name="lists").changes().to(out)
    return app, words, out, late


def rows_of(found: Any) -> list[Row]:
    return [
        (r.key.key, when_ms(r.key.start), when_ms(r.key.end), r.value, when_ms(r.timestamp))
        for r in found
    ]


def check(
    windows: Windows, spans: Spans, given_events: list[Event], emit: Emit, *, together: bool
) -> None:
    app, words, out, late = windowed_app(windows, emit)
    with app.test() as t:
        for number, (key, at, value) in enumerate(given_events):
            if together:
                data = serde_for(int).dumps(value)
                t.topic("words").append(data, key=key.encode(), timestamp_ms=at)
            else:
                t.input(words).send(value, key=key, at=at)
                if number % 4 == 3:
                    t.restart()
        t.settle()
        wanted, wanted_late = oracle(given_events, spans, windows.grace_ms, emit)
        assert rows_of(t.output(out).records) == wanted
        found_late = [
            (r.key, when_ms(r.timestamp), when_ms(r.value.window_end))
            for r in t.output(late).records
        ]
        assert found_late == wanted_late


histories = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 70), st.integers(0, 9)), max_size=25
)
emits = st.sampled_from([Emit.CLOSE, Emit.UPDATE])


@given(histories, st.integers(1, 20), st.data(), emits, st.booleans())
def test_hopping_windows_match_a_look_at_every_window(
    given_events: list[Event], size: int, data: st.DataObject, emit: Emit, together: bool
) -> None:
    step = data.draw(st.integers(1, size))
    grace = data.draw(st.integers(0, 12))
    windows = hopping(f"{size}ms", f"{step}ms", grace=f"{grace}ms")
    check(windows, hops(size, step), given_events, emit, together=together)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 94), st.integers(0, 9))), emits)
def test_calendar_days_follow_changes_of_the_clock(given_events: list[Event], emit: Emit) -> None:
    base = when_ms("2025-10-25T00:00:00Z")
    shifted = [(key, base + hour * HOUR_MS + 1, value) for key, hour, value in given_events]
    windows = calendar("day", tz="Europe/Berlin", grace="3h")
    check(windows, berlin, shifted, emit, together=True)


def overlapping_app() -> App:
    """Build hopping sums and, behind a repartition, sums of those per 30 ms."""
    app = App("sums")
    words = app.topic("words", key=str, value=int)
    final = app.topic("final", key=Windowed[str], value=int)
    bigger = app.topic("bigger", key=Windowed[str], value=int)
    small = (
        app.stream(words)
        .filter(lambda _, value: value >= 0)
        .group_by(lambda key, _: key, name="by-word")
        .windowed(hopping("12ms", "5ms", grace="3ms"))
        .reduce(lambda a, b: a + b, name="small")
    )
    small.changes().to(final)
    (
        small.changes()
        .map(lambda windowed, total: (windowed.key[:1], total), name="by-letter")
        .group_by_key()
        .windowed(tumbling("30ms"))
        .reduce(lambda a, b: a + b, name="big")
        .changes()
        .to(bigger)
    )
    return app


def final_rows(inputs: Input, partitions: int) -> tuple[Counter[Any], Counter[Any]]:
    times = [-1] * partitions
    inside: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for partition, key, at, value in inputs:
        if value < 0:
            continue  # Filtered: it does not advance time.
        times[partition] = max(times[partition], at)
        for start, end in hops(12, 5)(at):
            if end + 3 > times[partition]:
                inside.setdefault((key, start, end), []).append((at, value))
    small: Counter[Any] = Counter()
    big_inside: dict[tuple[str, int], list[int]] = {}
    for (key, start, end), held in inside.items():
        if end + 3 <= min(times):
            at, total = max(ts for ts, _ in held), sum(value for _, value in held)
            small[key, start, total, at] += 1
            big_inside.setdefault((key[:1], at // 30 * 30), []).append(total)
    big = Counter((key, start, sum(totals)) for (key, start), totals in big_inside.items())
    return small, big


@given(events, st.integers(0, 10_000), st.integers(0, 8))
def test_a_crash_between_any_two_steps_of_a_commit_changes_no_row(
    inputs: Input, seed: int, crashes: int
) -> None:
    inputs = closed(filtered_behind(inputs), 3)
    cluster = run(inputs, partitions=3, seed=seed, crashes=crashes, app=overlapping_app())
    key_serde, found = (
        starts_of(tumbling("30ms")),
        {"final": Counter[Any](), "bigger": Counter[Any]()},
    )
    for (name, _), log in cluster.logs.items():
        for record in log if name in found else ():
            key, value = (
                key_serde.loads(record.key or b""),
                serde_for(int).loads(record.value or b""),
            )
            row = (key.key, when_ms(key.start), value)
            found[name][(*row, record.timestamp_ms) if name == "final" else row] += 1
    small, big = final_rows(inputs, 3)
    assert {*found["final"]} == {*small}
    assert {*found["bigger"]} == {*big}
    if not crashes:
        assert found == {"final": small, "bigger": big}
