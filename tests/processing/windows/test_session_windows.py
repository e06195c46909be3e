"""Sessions on the test driver: against a search through all records, restarts, and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Late, Topic, Windowed, agg, on_error, session
from streamlog.durations import when_ms
from streamlog.errors import ProcessingError, TopologyError

GAP, GRACE = 10, 5
Records = list[tuple[str, int, str]]
"""Key, time, value."""

records = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 120), st.sampled_from("xyz")), max_size=30
)
Out = Topic[Windowed[str], str]


def add(state: str, value: str) -> str:
    return state + value


def app_of(
    emit: Emit, *, max_length: str | None = None, partitions: int = 1, **settings: Any
) -> tuple[App, Topic[str, str], Out]:
    app = App("sessions")
    words = app.topic("words", key=str, value=str, partitions=partitions)
    out: Out = app.topic("out", key=Windowed[str], value=str)
    windows = session(f"{GAP}ms", grace=f"{GRACE}ms", max_length=max_length)
    stream = app.stream(words).group_by_key().windowed(windows).emit(emit)
    if "late" in settings:
        stream = stream.late(settings.pop("late"))
    table = stream.aggregate(lambda: "", add, merge=lambda a, b: f"{a}|{b}", name="s", **settings)
    table.changes().to(out)
    return app, words, out


class Row(NamedTuple):
    key: str
    start: int
    end: int
    value: str | None
    time: int


def rows(t: Any, out: Out) -> list[Row]:
    found = []
    for record in t.output(out).records:
        start, end = when_ms(record.key.start), when_ms(record.key.end)
        found.append(Row(record.key.key, start, end, record.value, when_ms(record.timestamp)))
    return found


def expected(given_: Records, *, final: bool, limit: int | None) -> tuple[list[Row], Records]:
    """Compute the results and late records by definition."""
    alive: list[tuple[int, int, str, str]] = []
    results: list[Row] = []
    late: Records = []
    time = 0
    for key, at, value in given_:
        time = max(time, at)
        is_open = time - GRACE - GAP
        least = is_open if final else is_open - GAP
        near = [
            each
            for each in alive
            if each[2] == key and each[1] >= least and each[0] - GAP <= at <= each[1] + GAP
        ]
        near.sort(key=lambda each: (not each[0] <= at <= each[1], each[0]))
        start = end = at
        met = []
        for each in near:
            low, high = min(start, each[0]), max(end, each[1])
            if limit is None or high - low <= limit:
                start, end = low, high
                met.append(each)
        if end < is_open:
            late.append((key, at, value))
        else:
            state = ""
            for each in sorted(met):
                state = f"{state}|{each[3]}"
                alive.remove(each)
                if not final and (start, end) != (at, at):
                    results.append(Row(key, each[0], each[1], None, each[1]))
            alive.append((start, end, key, state + value))
            if not final:
                results.append(Row(key, start, end, state + value, end))
        if final:
            closed = sorted((e[1], e[0], e[2], e[3]) for e in alive if e[1] < is_open)
            results += [Row(key, start, end, value, end) for end, start, key, value in closed]
            alive = [each for each in alive if each[1] >= is_open]
    return results, late


@given(records, st.booleans(), st.sampled_from([None, 25]), st.integers(1, 7))
def test_sessions_match_a_search_through_all_records(
    given_: Records, final: bool, limit: int | None, restart_every: int
) -> None:
    seen: list[Any] = []
    app, words, out = app_of(
        Emit.CLOSE if final else Emit.UPDATE,
        max_length=None if limit is None else f"{limit}ms",
        late=seen.append,
    )
    with app.test() as t:
        for number, (key, at, value) in enumerate(given_):
            t.input(words).send(value, key=key, at=at)
            if number % restart_every == 0:
                t.restart()
        results, late = expected(given_, final=final, limit=limit)
        assert rows(t, out) == results
        assert [(r.key, when_ms(r.timestamp), r.value) for r in seen] == late


@given(records)
def test_every_record_that_is_not_late_is_in_one_final_row(given_: Records) -> None:
    seen: list[Any] = []
    app, words, out = app_of(Emit.CLOSE, late=seen.append)
    with app.test() as t:
        for key, at, value in given_:
            t.input(words).send(value, key=key, at=at)
        t.input(words).send("", key="end", at=1_000)
        counted = sum(len((row.value or "").replace("|", "")) for row in rows(t, out))
        assert counted + len(seen) == len(given_)


def test_a_replaced_session_is_deleted_first() -> None:
    app, words, out = app_of(Emit.UPDATE)
    with app.test() as t:
        for at in (0, 0, 18, 9, 5):
            t.input(words).send("v", key="a", at=at)
        assert rows(t, out) == [
            Row("a", 0, 0, "v", 0),
            Row("a", 0, 0, "|vv", 0),
            Row("a", 18, 18, "v", 18),
            Row("a", 0, 0, None, 0),
            Row("a", 18, 18, None, 18),
            Row("a", 0, 18, "||vv|vv", 18),
            Row("a", 0, 18, None, 18),
            Row("a", 0, 18, "|||vv|vvv", 18),
        ]


def test_final_rows_come_in_order_of_end_start_and_key() -> None:
    app, words, out = app_of(Emit.CLOSE)
    with app.test() as t:
        for key, at in (("b", 8), ("c", 3), ("a", 8), ("c", 8), ("d", 2)):
            t.input(words).send("v", key=key, at=at)
        assert rows(t, out) == []
        t.restart()
        t.input(words).send("v", key="e", at=24)
        assert [row[:3] for row in rows(t, out)] == [
            ("d", 2, 2), ("c", 3, 8), ("a", 8, 8), ("b", 8, 8)
        ]  # fmt: skip


def test_the_table_shows_sessions_until_they_close() -> None:
    app = App("kept")
    words = app.topic("words", key=str, value=str)
    counts = app.stream(words).group_by_key().windowed(session("10ms")).count(name="counts")
    with app.test() as t:
        for key, at in (("a", 5), ("b", 9), ("a", 12), ("a", 8)):
            t.input(words).send("v", key=key, at=at)
        spans = {(k.key, when_ms(k.start), when_ms(k.end)): v for k, v in t.table(counts).items()}
        assert spans == {("a", 5, 12): 3, ("b", 9, 9): 1}
        t.input(words).send("v", key="c", at=20)
        spans = {(k.key, when_ms(k.start), when_ms(k.end)): v for k, v in t.table(counts).items()}
        assert spans == {("a", 5, 12): 3, ("c", 20, 20): 1}


@dataclass
class Visit:
    pages: int
    largest: int
    mean: float


def test_built_in_columns_and_reductions_are_merged() -> None:
    app = App("columns")
    words = app.topic("words", key=str, value=int)
    largest = app.topic("largest", key=Windowed[str], value=int)
    visits = app.topic("visits", key=Windowed[str], value=Visit)
    stream = app.stream(words).group_by_key().windowed(session("10ms")).emit(Emit.UPDATE)
    stream.reduce(max, name="most").changes().to(largest)
    columns = {"pages": agg.count(), "largest": agg.max(int), "mean": agg.mean(int)}
    stream.agg(Visit, name="visits", **columns).changes().to(visits)
    with app.test() as t:
        for at, value in ((0, 4), (18, 9), (9, 2)):
            t.input(words).send(value, key="a", at=at)
            t.restart()
        assert [r.value for r in t.output(largest).records] == [4, 9, None, None, 9]
        assert t.output(visits).records[-1].value == Visit(3, 9, 5.0)


def test_late_records_go_to_a_topic_with_their_lateness() -> None:
    app = App("late")
    words = app.topic("words", key=str, value=str)
    late = app.topic("late", key=str, value=Late[str])
    stream = app.stream(words).group_by_key().windowed(session("10ms", grace="5ms"))
    stream.late(late).count(name="counts")
    with app.test() as t:
        for key, at in (("a", 100), ("a", 86), ("b", 85), ("b", 84), ("c", 84)):
            t.input(words).send(str(at), key=key, at=at)
        record = t.output(late).pop()
        assert t.output(late).records == []
        assert (record.value.value, record.value.late_by.total_seconds()) == ("84", 0.001)
        assert when_ms(record.value.window_end) == 84


def failing(state: list[str], value: str) -> list[str]:
    state.append(value)
    if value == "bad":
        raise ValueError(value)
    return state


def test_a_skipped_record_changes_nothing() -> None:
    app = App("failing")
    words = app.topic("words", key=str, value=str)
    out = app.topic("out", key=Windowed[str], value=list[str])
    stream = app.stream(words).group_by_key().windowed(session("10ms")).emit(Emit.UPDATE)

    def merge(first: list[str], second: list[str]) -> list[str]:
        second[:0] = first
        return second

    table = stream.aggregate(list, failing, merge=merge, name="s", on_error=on_error.skip())
    table.changes().to(out)
    with app.test() as t:
        for at, value in ((0, "x"), (5, "bad"), (7, "y")):
            t.input(words).send(value, key="a", at=at)
        assert [r.value for r in t.output(out).records] == [["x"], None, ["x", "y"]]
        assert t.drops["s", "error"] == 1


def test_a_failure_without_an_error_policy_names_the_record() -> None:
    app, words, _ = app_of(Emit.UPDATE, on_error=None)
    with app.test() as t, pytest.raises(ProcessingError, match="offset 0 of words-0"):
        t.input(words).send("v", key="a", at=253_402_300_799_998)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda w: w.aggregate(str, add, name="s"), r"may merge two of them.*merge="),
        (lambda w: w.emit(Emit.COMMIT).count(name="s"), "can't emit with Emit.COMMIT"),
    ],
)
def test_sessions_without_merge_or_at_commits_are_refused(
    make: Callable[[Any], object], message: str
) -> None:
    app = App("refused")
    words = app.topic("words", key=str, value=str)
    with pytest.raises(TopologyError, match=message):
        make(app.stream(words).group_by_key().windowed(session("1s")))


def by_key(key: Windowed[str], count: int) -> tuple[str, int]:
    return key.key, count


def test_a_replaced_session_leaves_its_group() -> None:
    app = App("regrouped")
    words = app.topic("words", key=str, value=str)
    out = app.topic("out", key=str, value=int)
    stream = app.stream(words).group_by_key().windowed(session("10ms")).emit(Emit.UPDATE)
    grouped = stream.count(name="counts").group_by(by_key, name="by-key")
    totals = grouped.reduce(lambda a, b: a + b, lambda a, b: a - b, name="totals")
    totals.changes().to(out)
    with app.test() as t:
        for at in (0, 18, 9, 5, 40, 41):
            t.input(words).send("v", key="a", at=at)
            t.restart()
        assert [r.value for r in t.output(out).records] == [1, 2, 1, 0, 3, 0, 4, 5, 4, 6]
