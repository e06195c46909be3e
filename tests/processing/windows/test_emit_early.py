"""Rows of open windows at the ends of intervals, against a walk through the records."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App, Emit, Topic, Windowed, Windows, hopping, tumbling
from streamlog.durations import when_ms
from streamlog.errors import TopologyError
from streamlog.processing.windows import windowed_aggregate as windowed_module
from streamlog.serdes import serde_for
from tests.processing.test_exactness import Input, closed, events, filtered_behind
from tests.processing.windows.test_emit_commit import check_newest

SIZE, STEP, GRACE = 12, 5, 4
Event = tuple[str, int, int]
Row = tuple[str, int, Any]
"""Key, start of the window, value."""


def early_app(windows: Windows, emit: Emit) -> tuple[App, Topic[str, int], Any]:
    app = App("early")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=Windowed[str], value=list[int])
    stream = app.stream(words).group_by_key().windowed(windows).emit(emit)

    def add(values: list[int], value: int) -> list[int]:
        return [*values, value]

    stream.aggregate(list, add, name="lists").changes().to(out)
    return app, words, out


def rows_of(records: Any) -> list[Row]:
    return [(r.key.key, when_ms(r.key.start), r.value) for r in records]


def expected_rows(given_events: list[Event], every: int) -> list[Row]:
    """Compute, before each record, closed rows in order, and changes after an interval's end."""
    stream, interval = -1, -1
    inside: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    changed: dict[tuple[int, int, str], None] = {}
    rows: list[Row] = []

    def close(until: int) -> None:
        for window in sorted(inside):
            if window[0] + GRACE <= until:
                rows.append((window[2], window[1], inside.pop(window)))
                changed.pop(window, None)

    for key, at, value in given_events:
        stream = max(stream, at)
        if -1 < interval < stream // every:
            close((interval + 1) * every)
            rows += [(window[2], window[1], list(inside[window])) for window in changed]
            changed.clear()
        close(stream)
        interval = max(interval, stream // every)
        for start in range(0, at + 1, STEP):
            if at < start + SIZE and start + SIZE + GRACE > stream:
                window = (start + SIZE, start, key)
                inside[window].append(value)
                changed.pop(window, None)
                changed[window] = None
    return rows


histories = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 70), st.integers(0, 9)), max_size=30
)


@given(histories, st.integers(1, 30), st.integers(1, 7), st.booleans())
def test_early_rows_come_at_interval_ends_across_restarts(
    given_events: list[Event], every: int, restarts: int, spilled: bool
) -> None:
    windows = hopping(f"{SIZE}ms", f"{STEP}ms", grace=f"{GRACE}ms")
    app, words, out = early_app(windows, Emit.early(f"{every}ms"))
    with pytest.MonkeyPatch.context() as patch, app.test() as t:
        if spilled:
            patch.setattr(windowed_module, "ROWS_BYTES_MAX", 0)
        for number, (key, at, value) in enumerate(given_events, 1):
            t.input(words).send(value, key=key, at=at)
            if number % restarts == 0 and restarts < 7:
                t.restart()
        assert rows_of(t.output(out).records) == expected_rows(given_events, every)


@given(histories, st.integers(1, 30))
def test_one_batch_gives_the_rows_of_single_records(given_events: list[Event], every: int) -> None:
    windows = hopping(f"{SIZE}ms", f"{STEP}ms", grace=f"{GRACE}ms")
    app, _, out = early_app(windows, Emit.early(f"{every}ms"))
    with app.test() as t:
        for key, at, value in given_events:
            data = serde_for(int).dumps(value)
            t.topic("words").append(data, key=key.encode(), timestamp_ms=at)
        t.settle()
        assert rows_of(t.output(out).records) == expected_rows(given_events, every)


@settings(deadline=None)
@given(events, st.integers(1, 3), st.integers(0, 2**32), st.integers(0, 4), st.integers(1, 40))
def test_the_last_early_row_is_the_final_one_across_crashes(
    inputs: Input, partitions: int, seed: int, crashes: int, every: int
) -> None:
    inputs = [(at % partitions, *rest) for at, *rest in inputs]  # type: ignore[misc]
    emit = Emit.early(f"{every}ms")
    check_newest(closed(filtered_behind(inputs), partitions), partitions, seed, crashes, emit)


def test_a_wall_clock_interval_starts_at_the_end_of_the_last_one() -> None:
    app, words, out = early_app(tumbling("1h"), Emit.early("10s", clock="wall"))
    with app.test() as t:
        t.input(words).send(1, key="a", at=1)
        t.input(words).send(2, key="b", at=2)
        t.advance("9s")
        assert t.output(out).records == []
        t.advance("1s")
        assert rows_of(t.output(out).records) == [("a", 0, [1]), ("b", 0, [2])]
        t.advance("30m")
        t.input(words).send(3, key="a", at=3)
        t.advance("10s")
        assert rows_of(t.output(out).records)[2:] == [("a", 0, [1, 3])]
        t.input(words).send(4, key="a", at=4)
        t.restart()
        t.advance("10s")
        assert rows_of(t.output(out).records)[3:] == [("a", 0, [1, 3, 4])]
        t.input(words).send(5, key="a", at=3_600_000)
        assert rows_of(t.output(out).records)[4:] == [("a", 0, [1, 3, 4]), ("b", 0, [2])]


def test_early_rows_are_a_separate_feed_before_the_final_rows() -> None:
    app, _, _ = early_app(tumbling("1h"), Emit.early("10s"))
    text = app.topology().describe()
    assert "windows of 1h, grace 0s, emit early every 10s (event)" in text
    (node,) = [node for node in app.topology().nodes if node.name == "lists"]
    assert node.feeds == ("lists/@early", "lists")
    assert [spec.name for spec in node.specs] == ["lists", "lists/@early"]


def test_an_unknown_emission_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"Emit\.early"):
        early_app(tumbling("1h"), "early")  # type: ignore[arg-type]
