"""Suppressed changes of tables: which are emitted, when, and across restarts."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamlog import App, Emit, Topic, Windowed, hopping, on_error, session, tumbling
from streamlog.durations import when_ms
from streamlog.errors import ProcessingError, TopologyError, UsageError
from streamlog.processing.provenance import PROVENANCE, unpack_record
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.records.control_batches import TimeMark
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.topology import Topology

CHANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 60), st.booleans()),
    max_size=30,
)
FAR_MS = 100_000


def joined(a: str, b: str) -> str:
    return f"{a},{b}"


@settings(max_examples=50, deadline=None)
@given(records=CHANGES)
def test_suppressed_final_rows_equal_emission_on_close(
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
        assert seen == []  # The topic "other" is only at 2.
        t.input(other).send(0, key="c", at=31)
        t.input(topic).send(0, key="c", at=32)
        assert seen[:2] == ["a", "b"]


def test_a_grown_session_is_not_emitted_before_it_is_final() -> None:
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


def test_a_row_is_emitted_a_set_time_after_its_first_change() -> None:
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
        assert seen == [("b", 2, 7)]  # Row "a" was inserted and deleted.
        t.input(topic).send(5, key="c", at=3)
        t.input(topic).send(5, key="d", at=19)
        assert seen[1:] == [("c", 5, 3)]
        t.restart()
        t.input(topic).send(None, key="c", at=19)  # type: ignore[arg-type] # a deletion
        t.restart()
        t.input(topic).send(5, key="d", at=29)
        assert seen[2:] == [("c", None, 19), ("d", 5, 29)]


def test_a_full_buffer_emits_its_oldest_row() -> None:
    app = App("t")
    topic, rows = table(app)
    seen: list[Any] = []
    rows.suppress(max_records=2, name="few").changes().peek(lambda r: seen.append((r.key, r.value)))
    with app.test() as t:
        for key, value, at in (("a", 1, 5), ("b", 1, 1), ("b", 2, 3), ("c", 1, 9), ("b", 3, 9)):
            t.input(topic).send(value, key=key, at=at)
            t.restart()
    assert seen == [("b", 2), ("a", 1)]


def test_a_join_with_a_suppressed_table_sees_emitted_rows() -> None:
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


def test_rows_of_a_suppressed_table_can_not_be_fetched() -> None:
    app = App("t")
    topic, rows = table(app)
    later = rows.suppress(within="10ms", name="later")
    with pytest.raises(TopologyError, match="'later', which keeps no rows"):
        app.stream(topic).join(later, lambda a, b: a + b)
    with app.test() as t:
        with pytest.raises(UsageError, match="there is no table 'later'"):
            asyncio.run(later.fetch("a"))
        with pytest.raises(TopologyError, match="keeps no table"):
            t.table(later)


def test_an_impossible_suppress_is_refused() -> None:
    app = App("t")
    _, rows = table(app)
    with pytest.raises(TopologyError, match="needs windows, and 'in' has none"):
        rows.suppress(until="closed", name="s")
    with pytest.raises(TopologyError, match="forever"):
        rows.suppress(name="s")
    with pytest.raises(TopologyError, match="1 or more"):
        rows.suppress(max_records=0, name="s")
    with pytest.raises(TopologyError, match="either until="):
        rows.suppress(until="closed", max_records=1, name="s")


def test_a_value_that_can_not_be_stored_is_reported() -> None:
    app = App("t")
    topic, rows = table(app)
    rows.map_values(lambda v: object()).suppress(within="1s", name="later")
    with app.test() as t:
        t.input(topic).send(1, key="a")
        with pytest.raises(
            ProcessingError, match=r"'later' failed at offset 0 of \w+-\d: can't store its row"
        ):
            t.restart()


def test_the_skip_policy_leaves_out_a_value_that_can_not_be_stored() -> None:
    app = App("t", on_error=on_error.skip())
    topic, rows = table(app)
    out = app.topic("out", key=str, value=float)
    halves = rows.map_values(lambda v: object() if v == 1 else v / 2)
    halves.suppress(within="1s", name="later").changes().to(out)
    with app.test() as t:
        t.input(topic).send(1, key="a", at=0)
        t.input(topic).send(3, key="b", at=1)
        t.restart()
        t.input(topic).send(4, key="c", at=2_000)
        assert t.output(out).values == [1.5]
        assert t.drops == {("later", "error"): 1}


def test_a_windowed_key_survives_a_restart() -> None:
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


# ---------------------------------------------------------------- records that change nothing

TP = ("in", 0)
HISTORY = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["a", "b", "left out"]), st.integers(0, 60)),
        st.tuples(st.just("mark"), st.integers(1, 15)),
    ),
    max_size=25,
)


def filtered() -> Topology:
    """Some records are filtered out before the table whose rows are suppressed."""
    app = App("t")
    topic = app.topic("in", key=str, value=str)
    kept = app.stream(topic).filter(lambda key, _: key != "left out")
    windows = kept.group_by_key().windowed(hopping("10ms", "5ms", grace="3ms")).emit(Emit.UPDATE)
    final = windows.count(name="n").suppress(until="closed", name="final")
    final.changes().to(app.topic("out", key=Windowed[str], value=int))
    return app.topology()


FILTERED = filtered()


def task_on(store: MemoryStore) -> Task:
    return Task(FILTERED.subtopologies[0], TaskId(0, 0), partitions={"in": 1}, store=store)


def log_of(history: list[tuple[str, int]]) -> list[RawRecord | TimeMark]:
    return [
        TimeMark(offset, ms) if kind == "mark" else RawRecord(offset, ms, kind.encode(), b"v")
        for offset, (kind, ms) in enumerate(history)
    ]


def final_rows_after(
    task: Task, piece: list[RawRecord | TimeMark], end: int, now_ms: int = 0
) -> list[tuple[str, int, int]]:
    """Return the emitted final rows: key, end of the window, and count."""
    records = [each for each in piece if isinstance(each, RawRecord)]
    marks = [each for each in piece if isinstance(each, TimeMark)]
    outbox = task.process({TP: records}, now_ms, ends={TP: end}, marks={TP: marks})
    return [
        (key[:-8].decode(), int.from_bytes(key[-8:]) + 10, int.from_bytes(value))
        for each in outbox.sinks
        if (key := each.key) is not None and (value := each.value) is not None
    ]


def final_rows(history: list[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """The model: counted records set the time, and marks advance it from there."""
    found: list[tuple[str, int, int]] = []
    counts: dict[tuple[int, str], int] = {}
    source_ms = time_ms = -1
    for kind, ms in history:
        if kind == "mark":
            source_ms = time_ms = source_ms + ms if source_ms >= 0 else -1
        else:
            source_ms = source_ms if kind == "left out" else max(source_ms, ms)
            ends = [] if kind == "left out" else [ms // 5 * 5 + 5, ms // 5 * 5 + 10]
            for end_ms in ends:
                if end_ms >= 10 and end_ms + 3 > source_ms:
                    counts[end_ms, kind] = counts.get((end_ms, kind), 0) + 1
                    time_ms = max(time_ms, ms)
        closed = sorted(window for window in counts if window[0] + 3 <= time_ms)
        found += [(key, end_ms, counts.pop((end_ms, key))) for end_ms, key in closed]
    return found


@given(HISTORY, st.integers(0, 10_000))
@example([("a", 12), ("left out", 30)], 0)
@example([("a", 12), ("left out", 30), ("a", 28), ("left out", 60)], 1)
@example([("a", 12), ("left out", 30), ("mark", 1), ("b", 29), ("left out", 60)], 2)
def test_final_rows_depend_on_the_log_alone(history: list[tuple[str, int]], seed: int) -> None:
    """Not on batch cuts, on when an end is seen, on pauses, or on restarts."""
    log, rng = log_of(history), Random(seed)
    store = MemoryStore()
    task, at, found, written, now_ms = task_on(store), 0, [], 0, 0
    while at < len(log):
        until = min(at + rng.randint(0, 5), len(log))
        now_ms += rng.choice([0, 1, 10_000])
        found += final_rows_after(task, log[at:until], rng.choice([until, len(log)]), now_ms)
        at = until
        if rng.random() < 0.3:
            now_ms += 10_000
            found += final_rows_after(task, [], until, now_ms)
        if rng.random() < 0.3:
            changes = task.checkpoint()
            written += len(changes)
            task.committed(changes, next_offset=written)
            task = task_on(store)
    found += final_rows_after(task, [], len(log), now_ms + 10_000)
    assert found == final_rows(history)


def test_a_task_asks_for_time_marks_until_the_first_row_is_final() -> None:
    task = task_on(MemoryStore())
    assert final_rows_after(task, [RawRecord(0, 12, b"a", b"v")], 1) == []
    assert task.waits_quiet == {TP: 6}  # The first window ends at 15, and is closed at 18.
    # The source is at 30, but without a change of the table: here, it is still 12.
    assert final_rows_after(task, [RawRecord(1, 30, b"left out", b"v")], 2, 10_000) == []
    assert task.waits_quiet == {TP: 6}
    assert final_rows_after(task, [TimeMark(2, 6)], 3) == [("a", 15, 1)]
    assert task.waits_quiet == {TP: 5}
    assert final_rows_after(task, [TimeMark(3, 5)], 4) == [("a", 20, 1)]
    assert task.waits_quiet == {}


def test_final_rows_need_time_marks_of_all_sources() -> None:
    app = App("t")
    topics = [app.topic(name, key=str, value=int) for name in ("in", "other")]
    merged = app.stream(topics[0]).merge(app.stream(topics[1]))
    windows = merged.group_by_key().windowed(tumbling("10ms")).emit(Emit.UPDATE)
    final = windows.count(name="n").suppress(until="closed", name="final")
    final.changes().to(app.topic("out", key=Windowed[str], value=int))
    (sub,) = app.topology().subtopologies
    one, two = ("in", 0), ("other", 0)
    store = MemoryStore()

    def fresh() -> Task:
        return Task(sub, TaskId(0, 0), partitions={"in": 1, "other": 1}, store=store)

    task = fresh()
    begun = {
        place: [RawRecord(0, ms, b"k%d" % ms, int.to_bytes(1, 8))]
        for place, ms in ((one, 3), (two, 4))
    }
    assert not task.process(begun, 0, ends={one: 1, two: 1}).sinks
    assert task.waits_quiet == {one: 7, two: 6}
    marked = task.process({}, 0, ends={one: 2, two: 1}, marks={one: [TimeMark(1, 7)]})
    assert not marked.sinks
    changes = task.checkpoint()
    task.committed(changes, next_offset=len(changes))
    task = fresh()
    assert not task.process({}, 0, ends={one: 2, two: 1}).sinks
    assert task.waits_quiet == {two: 6}
    marked = task.process({}, 0, ends={one: 2, two: 2}, marks={two: [TimeMark(1, 6)]})
    assert [(each.key or b"")[:2] for each in marked.sinks] == [b"k3", b"k4"]


def test_marks_close_windows_of_records_with_new_timestamps() -> None:
    app = App("t")
    topic = app.topic("in", key=str, value=int)
    stream = app.stream(topic).set_timestamp(lambda value: value, name="later")
    windows = stream.group_by_key().windowed(tumbling("10s")).emit(Emit.UPDATE)
    seen: list[str] = []
    final = windows.count(name="n").suppress(until="closed", name="final")
    final.changes().peek(lambda record: seen.append(record.key.key))
    with app.test() as t:
        t.input(topic).send(1_000, key="a", at=500_000)
        t.advance("8s")
        assert seen == []
        t.advance("1s")
        assert seen == ["a"]


def test_final_rows_do_not_wait_for_an_idle_source() -> None:
    app = App("t")
    topic = app.topic(
        "in", key=str, value=int, compact=True
    )  # A compacted topic has no time marks.
    kept = app.stream(topic).repartition(name="there").filter(lambda key, _: key != "left out")
    windows = kept.group_by_key().windowed(tumbling("10ms")).emit(Emit.UPDATE).idle_after("20s")
    seen: list[str] = []
    final = windows.count(name="n").suppress(until="closed", name="final")
    final.changes().peek(lambda record: seen.append(record.key.key))
    with app.test() as t:
        t.input(topic).send(0, key="a", at=1)
        t.input(topic).send(0, key="left out", at=30)
        t.advance("19s")
        assert seen == []
        t.advance("2s")
        assert seen == ["a"]


def sessions() -> Topology:
    """Send final rows of sessions, which can grow backwards, to a repartition topic."""
    app = App("t")
    topic = app.topic("in", key=str, value=str)
    windows = app.stream(topic).group_by_key().windowed(session("10ms", grace="20ms"))
    final = windows.emit(Emit.UPDATE).count(name="n").suppress(until="closed", name="final")
    by_key = final.changes().map(lambda key, count: (key.key, count), name="by-key")
    by_key.repartition(name="there").to(app.topic("out", key=str, value=int))
    return app.topology()


SESSIONS = next(sub for sub in sessions().subtopologies if "in" in sub.topics)


@given(CHANGES, st.integers(0, 10_000))
@example([("a", 0, 40, False), ("b", 0, 60, False), ("a", 0, 33, False), ("c", 0, 200, False)], 0)
def test_the_merge_key_of_final_rows_depends_on_the_log_alone(
    records: list[tuple[str, int, int, bool]], seed: int
) -> None:
    log = [RawRecord(at, ms, key.encode(), b"v") for at, (key, _, ms, _) in enumerate(records)]
    log.append(RawRecord(len(log), FAR_MS, b"tick", b"v"))

    def merge_keys(cuts: Random | None) -> list[tuple[int, ...]]:
        counts = {"in": 1, "t-there-repartition": 1}
        task = Task(SESSIONS, TaskId(0, 0), partitions=counts, store=MemoryStore())
        at, found = 0, []
        while at < len(log):
            until = len(log) if cuts is None else min(at + cuts.randint(1, 3), len(log))
            outbox = task.process({TP: log[at:until]}, 0, ends={TP: until})
            headers = [dict(each.headers) for each in outbox.sinks]
            stamps = [each[PROVENANCE] or b"" for each in headers if PROVENANCE in each]
            found += [unpack_record(stamp) for stamp in stamps]
            at = until
        return found

    assert merge_keys(Random(seed)) == merge_keys(None)


# ---------------------------------------------------------------- several sources

TURNS = st.lists(
    st.tuples(
        st.sampled_from(["in", "other"]), st.sampled_from("ab"), st.integers(0, 60), st.booleans()
    ),
    max_size=30,
)


def both_ways(*, regrouped: bool) -> tuple[App, dict[str, Topic[str, str]]]:
    """Merge two topics; emit rows on close, and updates that are suppressed until then."""
    app = App("t")
    topics = {name: app.topic(name, key=str, value=str) for name in ("in", "other")}
    streams = app.stream(topics["in"]).merge(app.stream(topics["other"]))
    if regrouped:
        streams = streams.rekey(lambda key, _: key, name="again")
    windows = streams.group_by_key().windowed(hopping("10ms", "5ms", grace="3ms"))
    closed = windows.emit(Emit.CLOSE).count(name="closed")
    held = windows.emit(Emit.UPDATE).count(name="updated").suppress(until="closed", name="final")
    for name, table in (("closed-rows", closed), ("final-rows", held)):
        table.changes().to(app.topic(name, key=Windowed[str], value=int))
    return app, topics


@pytest.mark.parametrize("regrouped", [False, True])
@settings(max_examples=50, deadline=None)
@given(turns=TURNS)
@example([("in", "a", 3, False), ("other", "a", 25, False), ("in", "a", 5, False)])
def test_a_window_is_emitted_once_all_merged_streams_passed_it(
    regrouped: bool, turns: list[tuple[str, str, int, bool]]
) -> None:
    app, topics = both_ways(regrouped=regrouped)
    with app.test() as t:
        for name, key, at, restarts in turns:
            t.input(topics[name]).send("", key=key, at=at)
            if restarts:
                t.restart()
        for topic in topics.values():
            t.input(topic).send("", key="tick", at=FAR_MS)
        rows = {
            name: [(raw.key, raw.value) for raw in t.topic(name).partitions[0]]
            for name in ("closed-rows", "final-rows")
        }
    assert sorted(rows["final-rows"]) == sorted(rows["closed-rows"])


@pytest.mark.parametrize("regrouped", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_rows_become_final_by_time_marks_without_records(regrouped: bool, restarts: bool) -> None:
    app, topics = both_ways(regrouped=regrouped)
    with app.test() as t:
        t.input(topics["in"]).send("", key="a", at=3)
        t.input(topics["other"]).send("", key="b", at=4)
        t.advance("1s")
        assert not t.topic("final-rows").partitions[0]
        if restarts:
            t.restart()
        t.advance("1m")
        rows = {
            name: [(raw.key, raw.value) for raw in t.topic(name).partitions[0]]
            for name in ("closed-rows", "final-rows")
        }
    assert sorted(rows["final-rows"]) == sorted(rows["closed-rows"])
    assert len(rows["final-rows"]) == 2
