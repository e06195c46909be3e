"""Sliding windows on the test driver: against the definition, across restarts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Late, Topic, Windowed, on_error, sliding
from streamlog.durations import when_ms

SIZE, GRACE = 10, 4
Records = list[tuple[str, int, str]]
"""Key, time, value."""
Span = tuple[int, int]
Out = Topic[Windowed[str], str]

records = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.sampled_from("xyz")), max_size=25
)


def app_of(
    emit: Emit, *, retention: str | None = None, late: Any = None
) -> tuple[App, Topic[str, str], Out]:
    app = App("sliding")
    words = app.topic("words", key=str, value=str)
    out: Out = app.topic("out", key=Windowed[str], value=str)
    windows = sliding(f"{SIZE}ms", grace=f"{GRACE}ms", retention=retention)
    stream = app.stream(words).group_by_key().windowed(windows).emit(emit)
    if late is not None:
        stream = stream.late(late)
    stream.reduce(lambda a, b: a + b, name="s").changes().to(out)
    return app, words, out


def rows(t: Any, out: Out) -> list[tuple[str, Span, str, int]]:
    return [
        (r.key.key, (when_ms(r.key.start), when_ms(r.key.end)), r.value, when_ms(r.timestamp))
        for r in t.output(out).records
    ]


def windows_of(times: list[int]) -> set[Span]:
    """Return all windows of these records, by definition."""
    ending = {(max(t - SIZE, 0), max(t, SIZE)) for t in times}
    behind = {(t + 1, t + 1 + SIZE) for t in times}
    return ending | {(s, e) for s, e in behind if any(s <= t <= e for t in times)}


def expected(given_: Records, *, final: bool) -> tuple[list[Any], Records]:
    """Recompute all windows after each record: results and late records."""
    kept: Records = []
    results: list[Any] = []
    late: Records = []
    time, closed = 0, -1
    for key, at, value in given_:
        time = max(time, at)
        before = windows_of([t for k, t, _ in kept if k == key])
        after = windows_of([*(t for k, t, _ in kept if k == key), at])
        is_open = {(s, e) for s, e in after if e >= time - GRACE}
        if any(s <= at <= e for s, e in is_open):
            kept.append((key, at, value))
            changed = {(s, e) for s, e in is_open if (s, e) not in before or s <= at <= e}
        else:
            late.append((key, at, value))
            changed = set()
        if final:
            limit = time - GRACE - 1
            due = {
                (e, s, k)
                for k in "ab"
                for s, e in windows_of([t for kk, t, _ in kept if kk == k])
                if closed < e <= limit
            }
            closed = max(closed, limit)
            changes = [(k, (s, e)) for e, s, k in sorted(due)]
        else:
            changes = [(key, span) for span in sorted(changed)]
        for k, (s, e) in changes:
            inside = [(t, v) for kk, t, v in kept if kk == k and s <= t <= e]
            value_, ts = "".join(v for _, v in inside), max(t for t, _ in inside)
            results.append((k, (s, e), value_, ts))
    return results, late


@given(records, st.booleans(), st.integers(1, 7))
def test_sliding_windows_match_their_definition(
    given_: Records, final: bool, restart_every: int
) -> None:
    seen: list[Any] = []
    app, words, out = app_of(Emit.CLOSE if final else Emit.UPDATE, late=seen.append)
    with app.test() as t:
        for number, (key, at, value) in enumerate(given_):
            t.input(words).send(value, key=key, at=at)
            if number % restart_every == 0:
                t.restart()
        results, late = expected(given_, final=final)
        assert rows(t, out) == results
        assert [(r.key, when_ms(r.timestamp), r.value) for r in seen] == late


def test_a_sliding_window_includes_both_its_ends() -> None:
    app, words, out = app_of(Emit.CLOSE)
    with app.test() as t:
        for at, value in ((10, "a"), (20, "b"), (21, "c"), (100, "d")):
            t.input(words).send(value, key="k", at=at)
        assert rows(t, out) == [
            ("k", (0, 10), "a", 10),
            ("k", (10, 20), "ab", 20),
            ("k", (11, 21), "bc", 21),
            ("k", (21, 31), "c", 21),
        ]


def test_rows_stay_for_the_retention_time() -> None:
    app = App("kept")
    words = app.topic("words", key=str, value=str)
    windows = sliding("10ms", retention="30ms")
    counts = app.stream(words).group_by_key().windowed(windows).count(name="counts")
    with app.test() as t:
        for at in (10, 40, 41):
            t.input(words).send("v", key="a", at=at)
        starts = sorted(when_ms(key.start) for key in t.table(counts))
        assert starts == [30, 31, 41]
        t.restart()
        t.input(words).send("v", key="a", at=62)
        starts = sorted(when_ms(key.start) for key in t.table(counts))
        assert starts == [41, 52]


def test_a_record_is_late_if_all_its_windows_are_closed() -> None:
    app = App("late")
    words = app.topic("words", key=str, value=str)
    late = app.topic("late", key=str, value=Late[str])
    stream = app.stream(words).group_by_key().windowed(sliding("10ms", grace="5ms"))
    stream.late(late).count(name="counts")
    with app.test() as t:
        for at in (100, 94, 5):
            t.input(words).send(str(at), key="a", at=at)
        record = t.output(late).pop()
        assert t.output(late).records == []
        assert (record.value.value, record.value.late_by.total_seconds()) == ("5", 0.085)
        assert when_ms(record.value.window_end) == 10


def test_windows_do_not_share_mutable_values() -> None:
    app = App("shared")
    words = app.topic("words", key=str, value=list[int])
    out = app.topic("out", key=Windowed[str], value=list[int])

    def joined(first: list[int], second: list[int]) -> list[int]:
        first.extend(second)
        return first

    stream = app.stream(words).group_by_key().windowed(sliding("10ms")).emit(Emit.UPDATE)
    stream.reduce(joined, name="s").changes().to(out)
    with app.test() as t:
        for number, at in enumerate((20, 25, 28)):
            t.input(words).send([number], key="a", at=at)
        last = {when_ms(r.key.start): r.value for r in t.output(out).records}
        assert last == {10: [0], 15: [0, 1], 21: [1, 2], 18: [0, 1, 2], 26: [2]}


def test_a_skipped_record_changes_nothing() -> None:
    app = App("failing")
    words = app.topic("words", key=str, value=str)
    out = app.topic("out", key=Windowed[str], value=list[str])

    def failing(state: list[str], value: str) -> list[str]:
        state.append(value)
        if value == "bad" and len(state) > 1:
            raise ValueError(value)
        return state

    stream = app.stream(words).group_by_key().windowed(sliding("10ms")).emit(Emit.UPDATE)
    stream.aggregate(list, failing, name="s", on_error=on_error.skip()).changes().to(out)
    with app.test() as t:
        for at, value in ((20, "x"), (25, "bad"), (28, "y")):
            t.input(words).send(value, key="a", at=at)
        assert [(when_ms(r.key.start), r.value) for r in t.output(out).records] == [
            (10, ["x"]), (18, ["x", "y"]), (21, ["y"])
        ]  # fmt: skip
        assert t.drops["s", "error"] == 1


def test_a_changed_window_replaces_its_value_in_its_group() -> None:
    app = App("regrouped")
    words = app.topic("words", key=str, value=str)
    totals = app.topic("totals", key=str, value=int)

    def by_key(key: Windowed[str], count: int) -> tuple[str, int]:
        return key.key, count

    stream = app.stream(words).group_by_key().windowed(sliding("10ms")).emit(Emit.UPDATE)
    grouped = stream.count(name="counts").group_by(by_key, name="by-key")
    summed = grouped.reduce(lambda a, b: a + b, lambda a, b: a - b, name="sums")
    summed.changes().to(totals)
    with app.test() as t:
        for at in (0, 18, 9, 5, 40, 41):
            t.input(words).send("v", key="a", at=at)
            t.restart()
        assert [r.value for r in t.output(totals).records] == [1, 2, 3, 4, 5, 7, 8]
