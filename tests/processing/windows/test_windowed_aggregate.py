from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import (
    App,
    Emit,
    Late,
    ProcessingError,
    Record,
    Topic,
    Windowed,
    agg,
    hopping,
    tumbling,
)
from streamlog.durations import when_ms
from streamlog.serdes import serde_for
from streamlog.tables.stores.memory_store import MemoryStore


@dataclass
class Stats:
    count: int
    total: float
    smallest: int
    largest: int
    mean: float


Out = Topic[Windowed[str], Any]


def app_of(**settings: Any) -> tuple[App, Topic[str, int], Out]:
    """Build a windowed sum directly on a topic."""
    app = App("windows")
    words = app.topic("words", key=str, value=int)
    out: Out = app.topic("out", key=Windowed[str], value=int)
    windows = tumbling("10ms", grace=settings.pop("grace", "0s"), **settings.pop("window", {}))
    stream = app.stream(words).group_by_key().windowed(windows)
    for name, value in settings.items():
        stream = getattr(stream, name)(value)
    stream.reduce(lambda a, b: a + b, name="sums").changes().to(out)
    return app, words, out


def rows(records: list[Record[Windowed[str], Any]]) -> list[tuple[str, int, Any, int]]:
    return [(r.key.key, when_ms(r.key.start), r.value, when_ms(r.timestamp)) for r in records]


def test_final_rows_come_once_in_order_of_end_and_key() -> None:
    app, words, out = app_of(grace="20ms")
    with app.test() as t:
        for key, at in (("b", 3), ("a", 12), ("a", 7), ("b", 5), ("a", 1), ("c", 11)):
            t.input(words).send(1, key=key, at=at)
        t.restart()
        assert t.output(out).records == []
        t.input(words).send(1, key="z", at=40)
        wanted = [("a", 0, 2, 7), ("b", 0, 2, 5), ("a", 10, 1, 12), ("c", 10, 1, 11)]
        assert rows(t.output(out).records) == wanted
        t.restart()
        t.input(words).send(1, key="z", at=41)
        t.input(words).send(1, key="a", at=5)
        assert rows(t.output(out).records) == wanted
        assert t.drops["sums", "late"] == 1


def test_emit_update_emits_every_change() -> None:
    app, words, out = app_of(emit=Emit.UPDATE)
    with app.test() as t:
        for at in (1, 5, 3, 12, 4, 13):
            t.input(words).send(1, key="a", at=at)
        assert rows(t.output(out).records) == [
            ("a", 0, 1, 1), ("a", 0, 2, 5), ("a", 0, 3, 5), ("a", 10, 1, 12), ("a", 10, 2, 13)
        ]  # fmt: skip
        assert t.drops["sums", "late"] == 1


def test_late_records_go_to_a_topic_with_their_lateness() -> None:
    app = App("late")
    words = app.topic("words", key=str, value=int)
    late = app.topic("late", key=str, value=Late[int])
    stream = app.stream(words).group_by_key().windowed(tumbling("10ms", grace="5ms"))
    stream.late(late).count(name="counts")
    with app.test() as t:
        t.input(words).send(1, key="a", at=14)
        t.input(words).send(2, key="a", at=9)
        t.input(words).send(3, key="a", at=18)
        t.input(words).send(4, key="a", at=8)
        record = t.output(late).pop()
        assert t.output(late).records == []
        assert (record.key, record.value.value, when_ms(record.timestamp)) == ("a", 4, 8)
        assert record.value.late_by.total_seconds() == 0.003
        assert when_ms(record.value.window_end) == 10


def test_late_records_go_to_a_function_with_their_coordinates() -> None:
    seen: list[Record[str, int]] = []
    app, words, _ = app_of(late=seen.append)
    with app.test() as t:
        t.input(words).send(1, key="a", at=100)
        t.input(words).send(2, key="b", at=5)
    assert [(r.key, r.value, r.topic, r.offset) for r in seen] == [("b", 2, "words", 1)]
    assert t.drops == {}


def test_the_table_shows_windows_until_their_retention_ends() -> None:
    app = App("kept")
    words = app.topic("words", key=str, value=int)
    windows = tumbling("10ms", retention="30ms")
    counts = app.stream(words).group_by_key().windowed(windows).count(name="counts")
    out = app.topic("out", key=Windowed[str], value=int)
    counts.changes().to(out)
    with app.test() as t:
        for at in (5, 15, 25):
            t.input(words).send(1, key="a", at=at)
        assert sorted(when_ms(key.start) for key in t.table(counts)) == [0, 10, 20]
        t.restart()
        t.input(words).send(1, key="a", at=30)
        assert sorted(when_ms(key.start) for key in t.table(counts)) == [10, 20, 30]
        assert [start for _, start, _, _ in rows(t.output(out).records)] == [0, 10, 20]
        t.input(words).send(1, key="a", at=500)
        assert len(t.output(out).records) == 4
        assert sorted(when_ms(key.start) for key in t.table(counts)) == [500]


def test_built_in_columns_survive_a_restart_with_their_types() -> None:
    app = App("columns")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=Windowed[str], value=Stats)
    app.stream(words).group_by_key().windowed(tumbling("10ms")).agg(
        Stats,
        name="stats",
        count=agg.count(),
        total=agg.sum(lambda v: v / 2),
        smallest=agg.min(lambda v: v),
        largest=agg.max(lambda v: v),
        mean=agg.mean(lambda v: v),
    ).changes().to(out)
    with app.test() as t:
        for value in (5, 1):
            t.input(words).send(value, key="a", at=1)
        t.restart()
        t.input(words).send(9, key="a", at=2)
        t.input(words).send(0, key="a", at=10)
        assert t.output(out).values == [Stats(3, 7.5, 1, 9, 5.0)]


CHANGED = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 29)), max_size=20)


@given(st.lists(CHANGED, max_size=6), st.sampled_from([Emit.UPDATE, Emit.CLOSE, Emit.COMMIT]))
def test_the_table_is_complete_however_many_rows_change(
    turns: list[list[tuple[str, int]]], emit: Emit
) -> None:
    app = App("turns")
    words = app.topic("words", key=str, value=int)
    windowed = app.stream(words).group_by_key().windowed(tumbling("10ms", grace="1h")).emit(emit)
    counts = windowed.count(name="counts")
    expected: Counter[tuple[str, int]] = Counter()
    with app.test() as t:
        for records in turns:
            for key, at in records:
                t.input(words).send(1, key=key, at=at)
                expected[key, at - at % 10] += 1
            rows = {(key.key, when_ms(key.start)): count for key, count in t.table(counts).items()}
            assert rows == expected


def test_window_results_can_be_windowed_again_in_one_task() -> None:
    app = App("chain")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=Windowed[Windowed[str]], value=int)
    small = app.stream(words).group_by_key().windowed(tumbling("10ms")).count(name="small")
    big = small.changes().group_by_key().windowed(tumbling("30ms"))
    big.reduce(lambda a, b: a + b, name="big").changes().to(out)
    with app.test() as t:
        for at in (1, 2, 11, 29, 30):
            t.input(words).send(1, key="a", at=at)
        found = [(when_ms(r.key.key.start), r.value) for r in t.output(out).records]
        assert found == [(0, 2), (10, 1), (20, 1)]
        assert t.drops == {}


def test_a_failing_function_names_its_record() -> None:
    app = App("fails")
    words = app.topic("words", key=str, value=int)
    windowed = app.stream(words).group_by_key().windowed(tumbling("10ms"))
    windowed.aggregate(int, lambda state, v: state + 10 // v, name="quotients")
    with app.test() as t:
        t.input(words).send(1, key="a", at=1)
        with pytest.raises(ProcessingError, match="'quotients' failed at offset 1 of words-0"):
            t.input(words).send(0, key="a", at=2)


def test_a_state_that_can_not_be_stored_names_its_record() -> None:
    app = App("fails")
    words = app.topic("words", key=str, value=int)
    windowed = app.stream(words).group_by_key().windowed(tumbling("10ms"))
    windowed.aggregate(list[Any], lambda state, v: [*state, object()], name="objects")
    with app.test() as t:
        t.input(words).send(1, key="a", at=1)
        with pytest.raises(ProcessingError, match="offset 0 of words-0: can't store its state"):
            t.restart()


Event = tuple[str, int, int]
SIZE, GRACE = 10, 6
arrivals = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 9)), max_size=8),
    max_size=8,
)


def updates(events: list[Event], step: int) -> list[tuple[str, int, int]]:
    """Return key, start and sum after each event and window, as a dictionary has them."""
    sums: dict[tuple[str, int], int] = {}
    found, stream = [], 0
    for key, at, value in events:
        stream = max(stream, at)
        for start in range(max((at - SIZE) // step + 1, 0) * step, at + 1, step):
            if start + SIZE > stream - GRACE:
                sums[key, start] = sums.get((key, start), 0) + value
                found.append((key, start, sums[key, start]))
    return found


@given(arrivals, st.sampled_from([SIZE, SIZE // 2]), st.integers(1, 4))
def test_rows_that_left_memory_are_read_back_for_each_batch(
    batches: list[list[Event]], step: int, restarts: int
) -> None:
    app = App("windows")
    words = app.topic("words", key=str, value=int)
    out: Out = app.topic("out", key=Windowed[str], value=int)
    side_by_side = tumbling(f"{SIZE}ms", grace=f"{GRACE}ms")
    overlapping = hopping(f"{SIZE}ms", f"{step}ms", grace=f"{GRACE}ms")
    windows = side_by_side if step == SIZE else overlapping
    windowed = app.stream(words).group_by_key().windowed(windows).emit(Emit.UPDATE)
    windowed.reduce(lambda a, b: a + b, name="sums").changes().to(out)
    with app.test() as t:
        for number, batch in enumerate(batches, 1):
            for key, at, value in batch:
                data = serde_for(int).dumps(value)
                t.topic("words").append(data, key=key.encode(), timestamp_ms=at)
            t.settle()
            if number % restarts == 0:
                t.restart()
        found = [(key, start, value) for key, start, value, _ in rows(t.output(out).records)]
        assert found == updates([each for batch in batches for each in batch], step)


def test_the_rows_of_a_batch_are_read_from_disk_in_one_call() -> None:
    app, words, _ = app_of(emit=Emit.UPDATE)
    reads: list[int] = []

    def get_all(store: MemoryStore, keys: Sequence[bytes]) -> list[bytes | None]:
        reads.append(len(keys))
        return [store._values.get(key) for key in keys]

    with app.test() as t:
        t.input(words).send(1, key="a", at=3)
        t.restart()
        t.input(words).send(1, key="z", at=3)
        for key in ("a", "b", "c", "a", "z"):
            t.topic("words").append(serde_for(int).dumps(1), key=key.encode(), timestamp_ms=4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryStore, "get_all", get_all)
            patch.setattr(MemoryStore, "get", lambda _store, key: pytest.fail(f"{key!r} alone"))
            t.settle()
    assert reads == [3]
