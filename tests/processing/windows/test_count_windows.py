"""Count windows against a walk through the records of each key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Topic, Windowed, count_window, on_error
from streamlog.durations import when_ms
from streamlog.errors import ConfigError, TopologyError
from streamlog.serdes import serde_for

Event = tuple[str, int, int]
"""Key, timestamp, value."""
Row = tuple[str, int, int, list[int]]
"""Key, times of the earliest and the latest record, values."""


def counted_app(windows: Any, emit: Emit = Emit.CLOSE) -> tuple[App, Topic[str, int], Any]:
    app = App("counted")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=Windowed[str], value=list[int])
    stream = app.stream(words).group_by_key().windowed(windows).emit(emit)

    def add(held: list[int], value: int) -> list[int]:
        held.append(value)
        return held

    stream.aggregate(list, add, name="lists").changes().to(out)
    return app, words, out


def rows_of(records: Any) -> list[Row]:
    return [(r.key.key, when_ms(r.key.start), when_ms(r.key.end), r.value) for r in records]


def row(key: str, held: list[tuple[int, int]]) -> Row:
    times = [at for at, _ in held]
    return key, min(times), max(times), [value for _, value in held]


def expected_rows(
    given_events: list[Event], n: int, step: int, timeout: int | None, emit: Emit
) -> list[Row]:
    stream = -1
    seen: dict[str, int] = {}
    opened: list[tuple[int, str, int, list[tuple[int, int]]]] = []
    rows: list[Row] = []
    for key, at, value in given_events:
        stream = max(stream, at)
        for each in sorted(opened, key=lambda e: (e[0], e[1], e[2])):
            if timeout is not None and each[0] + timeout <= stream:
                opened.remove(each)
                rows += [row(each[1], each[3])] if emit == Emit.CLOSE else []
        if not any(each[1] == key for each in opened):
            seen[key] = 0
        if seen[key] % step == 0:
            opened.append((stream, key, seen[key], []))
        seen[key] += 1
        for each in [each for each in opened if each[1] == key]:
            each[3].append((at, value))
            if emit == Emit.UPDATE or len(each[3]) == n:
                rows.append(row(key, each[3]))
            if len(each[3]) == n:
                opened.remove(each)
    return rows


histories = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 9)), max_size=40
)


@given(
    given_events=histories,
    n=st.integers(1, 6),
    data=st.data(),
    timeout=st.none() | st.integers(1, 30),
    emit=st.sampled_from([Emit.CLOSE, Emit.UPDATE]),
    restarts=st.integers(1, 6),
)
def test_count_windows_match_a_walk_through_the_records(
    *,
    given_events: list[Event],
    n: int,
    data: st.DataObject,
    timeout: int | None,
    emit: Emit,
    restarts: int,
) -> None:
    step = data.draw(st.integers(1, n))
    limit = None if timeout is None else f"{timeout}ms"
    app, words, out = counted_app(count_window(n, step=step, timeout=limit), emit)
    with app.test() as t:
        for number, (key, at, value) in enumerate(given_events, 1):
            t.input(words).send(value, key=key, at=at)
            if number % restarts == 0 and restarts < 6:
                t.restart()
        assert rows_of(t.output(out).records) == expected_rows(given_events, n, step, timeout, emit)


@given(histories, st.integers(1, 4), st.none() | st.integers(1, 30))
def test_one_batch_gives_the_rows_of_single_records(
    given_events: list[Event], n: int, timeout: int | None
) -> None:
    limit = None if timeout is None else f"{timeout}ms"
    app, _, out = counted_app(count_window(n, timeout=limit))
    with app.test() as t:
        for key, at, value in given_events:
            data = serde_for(int).dumps(value)
            t.topic("words").append(data, key=key.encode(), timestamp_ms=at)
        t.settle()
        assert rows_of(t.output(out).records) == expected_rows(
            given_events, n, n, timeout, Emit.CLOSE
        )


def test_a_record_that_fails_is_in_no_window() -> None:
    app = App("counted", on_error=on_error.skip())
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=Windowed[str], value=float)
    stream = app.stream(words).group_by_key().windowed(count_window(2, step=1))
    stream.aggregate(float, lambda a, v: a + 6 / v, name="n").changes().to(out)
    with app.test() as t:
        for at, value in enumerate([1, 0, 2, 3]):
            t.input(words).send(value, key="a", at=at)
        assert [(when_ms(r.key.start), r.value) for r in t.output(out).records] == [
            (0, 9.0),
            (2, 5.0),
        ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n of a count window must be a number of records from 1"),
        ({"n": True}, "not True"),
        ({"n": 3, "step": 4}, "must be at most its 3 records, not 4"),
        ({"n": 3, "step": 0}, "step of a count window"),
        ({"n": 100_000, "step": 1}, "more than 1000 windows"),
        ({"n": 3, "timeout": "0s"}, "longer than 0 ms"),
        ({"n": 3, "timeout": 5}, "has no unit"),
    ],
)
def test_an_invalid_count_window_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        count_window(**arguments)


@pytest.mark.parametrize(
    ("configure", "message"),
    [
        (lambda w: w.late(print), "none is late"),
        (lambda w: w.emit(Emit.COMMIT), "at commits or early"),
        (lambda w: w.emit(Emit.early("1s")), "at commits or early"),
    ],
)
def test_late_and_early_emission_are_refused_for_count_windows(
    configure: Any, message: str
) -> None:
    app = App("refused")
    words = app.topic("words", key=str, value=int)
    windowed = app.stream(words).group_by_key().windowed(count_window(3))
    with pytest.raises(TopologyError, match=message):
        configure(windowed).count(name="n")


def test_a_topology_describes_count_windows() -> None:
    app, _, _ = counted_app(count_window(5, step=2, timeout="1m"))
    assert "windows of 5 records every 2, up to 1m, emit CLOSE" in app.topology().describe()
