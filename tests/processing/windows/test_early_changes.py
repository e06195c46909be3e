"""Early emission of sessions and sliding windows: changes at intervals, then final rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Windowed, session, sliding
from streamlog.durations import when_ms

EVERY = 20
WAIT = {"session": 25, "sliding": 15}
"""How far stream time passes the end of a window before the window closes, in ms."""
WINDOWS = {"session": session("10ms", grace="15ms"), "sliding": sliding("10ms", grace="15ms")}
Records = list[tuple[str, int, str]]
"""Key, time, value."""
Key = tuple[str, int, int]

records = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 120), st.sampled_from("xyz")), max_size=25
)


def run(
    given_: Records, kind: str, emit: Emit, *, restart_every: int = 0
) -> list[tuple[list[tuple[Key, str | None]], dict[Key, str]]]:
    """Return the output and the table's rows after each record."""
    app = App("early")
    words = app.topic("words", key=str, value=str)
    out = app.topic("out", key=Windowed[str], value=str)
    stream = app.stream(words).group_by_key().windowed(WINDOWS[kind]).emit(emit)
    table = stream.reduce(lambda a, b: a + b, name="s")
    table.changes().to(out)
    found = []
    with app.test() as t:
        for number, (key, at, value) in enumerate(given_):
            t.input(words).send(value, key=key, at=at)
            rows = []
            while t.output(out).records:
                row = t.output(out).pop()
                rows.append((window_of(row.key), row.value))
            found.append((rows, {window_of(at): value for at, value in t.table(table).items()}))
            if restart_every and number % restart_every == 0:
                t.restart()
    return found


def window_of(key: Windowed[str]) -> Key:
    return key.key, when_ms(key.start), when_ms(key.end)


@pytest.mark.parametrize("kind", WINDOWS)
@given(records)
def test_each_interval_ends_with_the_whole_table_emitted(kind: str, given_: Records) -> None:
    seen: dict[Key, str] = {}
    done: set[Key] = set()
    before: dict[Key, str] = {}
    interval, time = None, -1
    found = run(given_, kind, Emit.early("20ms"))
    for (_, at, _), (rows, table) in zip(given_, found, strict=True):
        for key, value in rows:
            assert key not in done, "nothing comes after the final row"
            if value is None:
                del seen[key]  # The row was emitted before.
            else:
                seen[key] = value
        time = max(time, at)
        done |= {key for key in before.keys() - table.keys() if key[2] < time - WAIT[kind]}
        if interval is not None and time // EVERY > interval:
            assert {key: value for key, value in seen.items() if key in table} == table
            assert seen.keys() - table.keys() <= done | {key for key, _ in rows}
        interval, before = time // EVERY, table


@pytest.mark.parametrize("kind", WINDOWS)
@given(records, st.integers(1, 5))
def test_early_rows_end_as_the_final_rows_across_restarts(
    kind: str, given_: Records, restart_every: int
) -> None:
    given_ = [*given_, ("end", 1_000, "")]
    early = run(given_, kind, Emit.early("20ms"))
    again = run(given_, kind, Emit.early("20ms"), restart_every=restart_every)
    assert [rows for rows, _ in again] == [rows for rows, _ in early]
    final = dict(row for rows, _ in run(given_, kind, Emit.CLOSE) for row in rows)
    seen = dict(row for rows, _ in early for row in rows)
    assert {k: v for k, v in seen.items() if v is not None and k[0] != "end"} == final


def test_an_emitted_session_that_grew_is_deleted_at_the_next_interval() -> None:
    given_ = [("a", 0, "x"), ("b", 21, "y"), ("a", 8, "z"), ("a", 16, "w"), ("b", 30, "v")]
    rows = [rows for rows, _ in run([*given_, ("b", 41, "u")], "session", Emit.early("20ms"))]
    assert rows == [
        [],
        [(("a", 0, 0), "x"), (("b", 21, 21), "y")],
        [],
        [],
        [],
        # Rows are emitted in the order of their changes; [0, 8] was never emitted.
        [
            (("a", 0, 0), None),
            (("a", 0, 16), "xzw"),
            (("b", 21, 21), None),
            (("b", 21, 30), "yv"),
            (("b", 41, 41), "u"),
        ],
    ]
    assert all(a[0] != b[0] for a, b in pairwise(rows[-1]))


def test_wall_clock_intervals_emit_changed_rows_once() -> None:
    app = App("wall")
    words = app.topic("words", key=str, value=str)
    out = app.topic("out", key=Windowed[str], value=int)
    stream = app.stream(words).group_by_key().windowed(session("1h"))
    stream.emit(Emit.early("10s", clock="wall")).count(name="s").changes().to(out)
    with app.test() as t:
        t.input(words).send("x", key="a", at=0)
        t.advance("5s")
        t.input(words).send("x", key="a", at=1_000)
        assert t.output(out).records == []
        t.advance("6s")
        assert [r.value for r in t.output(out).records] == [2]
        t.advance("30s")
        assert [r.value for r in t.output(out).records] == [2]
