"""Changes of tables held back: which of them go on, when, and across restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App, Emit, Topic, Windowed, session, tumbling
from streamlog.durations import when_ms
from streamlog.errors import ProcessingError, TopologyError, UsageError

RECORDS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 60), st.booleans()),
    max_size=30,
)
FAR_MS = 100_000


def joined(a: str, b: str) -> str:
    return f"{a},{b}"


@settings(max_examples=50, deadline=None)
@given(records=RECORDS)
def test_final_rows_are_those_of_emission_on_close(
    records: list[tuple[str, int, int, bool]],
) -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=str)
    windows = app.stream(topic).group_by_key().windowed(tumbling("10ms", grace="5ms"))
    closed = windows.emit(Emit.CLOSE).reduce(joined, name="closed")
    updated = windows.emit(Emit.UPDATE).reduce(joined, name="updated")
    final = updated.suppress(until="closed", name="final")
    found: dict[str, list[Any]] = {"closed": [], "final": []}
    closed.changes().peek(lambda r: found["closed"].append((r.key, r.value, r.timestamp)))
    final.changes().peek(lambda r: found["final"].append((r.key, r.value, r.timestamp)))
    with app.test() as t:
        for key, value, at, restarts in records:
            t.input(topic).send(str(value), key=key, at=at)
            if restarts:
                t.restart()
        t.input(topic).send("", key="tick", at=FAR_MS)
    assert found["final"] == found["closed"]


def test_final_rows_wait_for_all_sources() -> None:
    app = App("t")
    topic, other = (app.topic(name, key=str, value=int) for name in ("in", "other"))
    streams = app.stream(topic).merge(app.stream(other)).repartition(name="both")
    windows = streams.group_by_key().windowed(tumbling("10ms"))
    counts = windows.emit(Emit.UPDATE).count(name="n")
    seen: list[str] = []
    final = counts.suppress(until="closed", name="final")
    final.changes().peek(lambda record: seen.append(record.key.key))
    with app.test() as t:
        t.input(topic).send(0, key="a", at=1)
        t.input(other).send(0, key="b", at=2)
        t.input(topic).send(0, key="c", at=11)
        t.input(topic).send(0, key="c", at=30)
        assert seen == []  # The other topic has only come to 2.
        t.input(other).send(0, key="c", at=31)
        t.input(topic).send(0, key="c", at=32)
        assert seen[:2] == ["a", "b"]


def test_sessions_that_grew_are_not_seen_before_they_are_final() -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=int)
    sessions = app.stream(topic).group_by_key().windowed(session("10ms")).emit(Emit.UPDATE)
    final = sessions.count(name="n").suppress(until="closed", name="final")
    seen: list[tuple[str, int, int]] = []
    final.changes().peek(lambda r: seen.append((r.key.key, when_ms(r.key.start), r.value)))
    with app.test() as t:
        for key, at in (("a", 10), ("b", 12), ("a", 5), ("a", 18), ("c", 25)):
            t.input(topic).send(0, key=key, at=at)
            t.restart()
        assert seen == [("b", 12, 1)]
        t.input(topic).send(0, key="c", at=30)
        assert seen == [("b", 12, 1), ("a", 5, 3)]


def table(app: App) -> tuple[Topic[str, int], Any]:
    topic = app.topic("in", key=str, value=int)
    return topic, app.table(topic)


def test_a_row_goes_on_some_time_after_its_first_change() -> None:
    app = App("t")
    topic, rows = table(app)
    seen: list[Any] = []
    later = rows.suppress(within="10ms", name="later")
    later.changes().peek(lambda r: seen.append((r.key, r.value, when_ms(r.timestamp))))
    with app.test() as t:
        for key, value, at in (("b", 1, 0), ("a", 1, 0), ("b", 2, 7), ("c", 1, 9)):
            t.input(topic).send(value, key=key, at=at)
        t.restart()
        assert seen == []
        t.input(topic).send(None, key="a", at=10)  # type: ignore[arg-type] # a deletion
        assert seen == [("a", None, 10), ("b", 2, 7)]
        t.input(topic).send(5, key="c", at=3)
        t.input(topic).send(5, key="d", at=19)
        assert seen[2:] == [("c", 5, 3)]


def test_the_oldest_row_goes_on_when_there_is_no_more_room() -> None:
    app = App("t")
    topic, rows = table(app)
    seen: list[Any] = []
    rows.suppress(max_records=2, name="few").changes().peek(lambda r: seen.append((r.key, r.value)))
    with app.test() as t:
        for key, value, at in (("a", 1, 5), ("b", 1, 1), ("b", 2, 3), ("c", 1, 9), ("b", 3, 9)):
            t.input(topic).send(value, key=key, at=at)
            t.restart()
    assert seen == [("b", 2), ("a", 1)]


def test_who_is_joined_with_it_sees_what_has_gone_on() -> None:
    app = App("t")
    topic, rows = table(app)
    words = app.topic("words", key=str, value=str)
    seen: list[str] = []
    later = rows.suppress(within="10ms", name="later")
    join = app.table(words).left_join(later, lambda word, n: f"{word} {n}", name="join")
    join.changes().peek(lambda record: seen.append(record.value))
    with app.test() as t:
        t.input(topic).send(1, key="a", at=0)
        t.input(words).send("w", key="a", at=1)
        t.input(topic).send(2, key="tick", at=15)
    assert seen == ["w None", "w 1"]


def test_its_rows_can_not_be_asked_for() -> None:
    app = App("t")
    topic, rows = table(app)
    later = rows.suppress(within="10ms", name="later")
    with pytest.raises(TopologyError, match="'later' keeps no rows"):
        app.stream(topic).join(later, lambda a, b: a + b)
    with app.test() as t:
        with pytest.raises(UsageError, match="there is no table 'later'"):
            asyncio.run(later.fetch("a"))
        with pytest.raises(TopologyError, match="keeps no table"):
            t.table(later)


def test_what_makes_no_sense_is_refused() -> None:
    app = App("t")
    _, rows = table(app)
    with pytest.raises(TopologyError, match="no windows that could close"):
        rows.suppress(until="closed", name="s")
    with pytest.raises(TopologyError, match="for ever"):
        rows.suppress(name="s")
    with pytest.raises(TopologyError, match="1 or more"):
        rows.suppress(max_records=0, name="s")
    with pytest.raises(TopologyError, match="no other limit"):
        rows.suppress(until="closed", max_records=1, name="s")


def test_a_value_that_can_not_be_stored_is_told() -> None:
    app = App("t")
    topic, rows = table(app)
    rows.map_values(lambda v: {v}).suppress(within="1s", name="later")
    with app.test() as t:
        t.input(topic).send(1, key="a")
        with pytest.raises(ProcessingError, match="'later' can't store its row of key b'a'"):
            t.restart()


def test_a_windowed_key_comes_back() -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=int)
    windows = app.stream(topic).group_by_key().windowed(tumbling("10ms")).emit(Emit.UPDATE)
    seen: list[Windowed[str]] = []
    final = windows.count(name="n").suppress(until="closed", name="final")
    final.changes().peek(lambda record: seen.append(record.key))
    with app.test() as t:
        t.input(topic).send(1, key="a", at=3)
        t.restart()
        t.input(topic).send(1, key="a", at=13)
    assert [(key.key, when_ms(key.start), when_ms(key.end)) for key in seen] == [("a", 0, 10)]
