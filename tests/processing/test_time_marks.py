"""Time marks take effect at their offset, whatever the batches and restarts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import (
    App,
    Emit,
    Processor,
    Record,
    Stream,
    Topic,
    Windowed,
    count_window,
    session,
    tumbling,
)
from streamlog.processing.outbox import SinkRecord
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.records.control_batches import ClockTime, TimeMark
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.topology import Subtopology, Topology

TP = ("words", 0)
GRACE_MS = 3

entries = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.integers(0, 60)),
        st.tuples(st.just("mark"), st.integers(0, 15)),
        st.tuples(st.just("told"), st.integers(0, 60)),
        st.tuples(st.just("told others"), st.integers(0, 1 << 40)),
    ),
    max_size=25,
)


class TimerLog(Processor[str, str, str, str]):
    """A processor that forwards its records and the firing of its timers, in order."""

    def process(self, record: Record[str, str]) -> None:
        self.ctx.timers.set(record.key, record.timestamp + timedelta(milliseconds=7), "")
        self.ctx.forward(record.key, f"{record.value} at {self.ctx.stream_time:%f}")

    def on_timer(self, key: str, at: object, tag: str) -> None:
        self.ctx.forward(key, f"timer {at}")


def topology(*, more: bool = False) -> Topology:
    """Build windows and timers; with `more`, all other rows that depend on event time."""
    app = App("marks")
    words = app.topic("words", key=str, value=str)
    out = app.topic("out", key=Windowed[str], value=int)
    timer_log = app.topic("timer-log", key=str, value=str)
    stream = app.stream(words)
    windows = stream.group_by_key().windowed(tumbling("10ms", grace=f"{GRACE_MS}ms"))
    windows.count(name="counts").changes().to(out)
    stream.process(TimerLog, name="waits").to(timer_log)
    if more:
        by_key = stream.group_by_key()
        early = Emit.early("4ms")
        for name, windows, emit in (
            ("some", count_window(3, timeout="9ms"), Emit.CLOSE),
            ("early", tumbling("20ms"), early),
            ("visits", session("6ms"), early),
        ):
            rows = by_key.windowed(windows).emit(emit).count(name=name).changes()
            rows.to(app.topic(f"{name}-rows", key=Windowed[str], value=int))
        held = by_key.windowed(tumbling("10ms")).emit(Emit.UPDATE).count(name="updates")
        final = held.suppress(until="closed", name="final").changes()
        final.to(app.topic("final-rows", key=Windowed[str], value=int))
    return app.topology()


(SUB,) = topology().subtopologies
(ALL,) = topology(more=True).subtopologies
TOPICS = ("out", "timer-log", "some-rows", "early-rows", "visits-rows", "final-rows")


def log_of(history: list[tuple[str, int]]) -> list[RawRecord | TimeMark]:
    return [entry_of(offset, *each) for offset, each in enumerate(history)]


def entry_of(offset: int, kind: str, ms: int) -> RawRecord | TimeMark:
    match kind:
        case "mark":
            return TimeMark(offset, ms)
        case "told":
            return TimeMark(offset, 0, (ClockTime("marks:record", ms),))
        case "told others":
            return TimeMark(
                offset, 0, (ClockTime("other:record", ms), ClockTime("marks:another", ms))
            )
        case _:
            return RawRecord(offset, ms, b"k%d" % (ms % 2), b"v")


def task_on(store: MemoryStore, sub: Subtopology = SUB) -> Task:
    return Task(sub, TaskId(0, 0), partitions={"words": 1}, store=store)


def outputs_after(task: Task, piece: list[RawRecord | TimeMark], end: int) -> list[SinkRecord]:
    records = [each for each in piece if isinstance(each, RawRecord)]
    marks = [each for each in piece if isinstance(each, TimeMark)]
    outbox = task.process({TP: records}, 0, ends={TP: end}, marks={TP: marks})
    return list(outbox.sinks)


def all_at_once(log: list[RawRecord | TimeMark], sub: Subtopology = SUB) -> list[SinkRecord]:
    return outputs_after(task_on(MemoryStore(), sub), log, len(log))


@given(entries, st.integers(0, 10_000))
def test_output_does_not_depend_on_batches_and_restarts(
    history: list[tuple[str, int]], seed: int
) -> None:
    log, rng = log_of(history), Random(seed)
    store = MemoryStore()
    task, at, found, written = task_on(store, ALL), 0, [], 0
    while at < len(log):
        until = min(at + rng.randint(1, 5), len(log))
        found += outputs_after(task, log[at:until], rng.choice([until, len(log)]))
        at = until
        if rng.random() < 0.3:
            changes = task.checkpoint()
            written += len(changes)
            task.committed(changes, next_offset=written)
            task = task_on(store, ALL)
            position = task.positions.get(TP, 0)
            assert position == at
            found += outputs_after(task, log[rng.randint(0, at) : at], at)
    found += outputs_after(task, [], len(log))

    def rows(sinks: list[SinkRecord], topic: str) -> list[tuple[bytes | None, bytes | None, int]]:
        return [(each.key, each.value, each.timestamp_ms) for each in sinks if each.topic == topic]

    once = all_at_once(log, ALL)
    for topic in TOPICS:
        assert rows(found, topic) == rows(once, topic)


@given(entries)
def test_a_time_mark_closes_windows_like_a_record(
    history: list[tuple[str, int]],
) -> None:
    """The model: marks advance stream time; a window takes records until it closes."""
    now_ms, counts, closed = -1, {}, []
    for kind, ms in history:
        if kind == "mark":
            now_ms = now_ms + ms if now_ms >= 0 else now_ms
        elif kind == "told":
            now_ms = max(now_ms, ms)
        elif kind == "told others":
            pass
        else:
            now_ms = max(now_ms, ms)
            end_ms = ms // 10 * 10 + 10
            if end_ms + GRACE_MS > now_ms:
                counts[end_ms, ms % 2] = counts.get((end_ms, ms % 2), 0) + 1
        due = sorted(window for window in counts if window[0] + GRACE_MS <= now_ms)
        closed += [(b"k%d" % which, counts.pop((end_ms, which))) for end_ms, which in due]
    sinks = [each for each in all_at_once(log_of(history)) if each.topic == "out"]
    assert [
        (each.key[:2], int.from_bytes(each.value)) for each in sinks if each.key and each.value
    ] == closed


def test_a_task_reports_the_time_until_its_next_due_row() -> None:
    task = task_on(MemoryStore())
    assert task.waits_quiet == {}
    outputs_after(task, [RawRecord(0, 21, b"k", b"v")], 2)
    assert task.waits_quiet == {}  # There are more records to read.
    outputs_after(task, [RawRecord(1, 24, b"k", b"v")], 2)
    # First the timer of the first record is due (28), then the second's, then the window (33).
    assert task.waits_quiet == {TP: 4}
    outputs_after(task, [TimeMark(2, 4)], 3)
    assert task.waits_quiet == {TP: 3}
    outputs_after(task, [TimeMark(3, 3)], 4)
    assert task.waits_quiet == {TP: 2}
    assert [each.topic for each in outputs_after(task, [TimeMark(4, 2)], 5)] == ["out"]
    assert task.waits_quiet == {}


class Quiet(NamedTuple):
    """An app with an input that becomes quiet."""

    app: App
    words: Topic[str, str]
    out: Topic[Windowed[str], int]


def quiet_app(declare: Callable[[Stream[str, str]], Stream[Windowed[str], int]]) -> Quiet:
    app = App("quiet")
    words = app.topic("words", key=str, value=str)
    out = app.topic("out", key=Windowed[str], value=int)
    declare(app.stream(words)).to(out)
    return Quiet(app, words, out)


def counted(words: Stream[str, str]) -> Stream[Windowed[str], int]:
    windows = words.group_by_key().windowed(count_window(2, timeout="10s"))
    return windows.count(name="two").changes()


def early(words: Stream[str, str]) -> Stream[Windowed[str], int]:
    windows = words.group_by_key().windowed(tumbling("1h")).emit(Emit.early("10s"))
    return windows.count(name="hourly").changes()


def early_sessions(words: Stream[str, str]) -> Stream[Windowed[str], int]:
    windows = words.group_by_key().windowed(session("1h")).emit(Emit.early("10s"))
    return windows.count(name="visits").changes()


@pytest.mark.parametrize("regrouped", [False, True])
@pytest.mark.parametrize("declare", [counted, early, early_sessions])
def test_due_rows_are_emitted_in_a_quiet_stream(
    declare: Callable[[Stream[str, str]], Stream[Windowed[str], int]], regrouped: bool
) -> None:
    def behind(words: Stream[str, str]) -> Stream[Windowed[str], int]:
        return declare(words.rekey(lambda key, _: key, name="again") if regrouped else words)

    made = quiet_app(behind)
    with made.app.test() as t:
        t.input(made.words).send("", key="a", at=0)
        t.advance("9s")
        assert not t.output(made.out).records
        t.advance("1m")
        assert [record.value for record in t.output(made.out).records] == [1]


def test_an_empty_partition_of_a_topic_at_rest_holds_back_no_window() -> None:
    """The cookbook's first program: four partitions, and all records in one of them."""
    app = App("first")
    words = app.topic("words", key=str, value=str)
    out = app.topic("out", key=Windowed[str], value=int)
    grouped = app.stream(words).group_by(lambda _, word: word, name="by-word")
    grouped.windowed(tumbling("1m", grace="20s")).count(name="counts").changes().to(out)
    with app.test(partitions=4) as t:
        for second in (10, 50, 330):
            t.input(words).send("a", at=second * 1_000, partition=2)
        t.advance("4s")
        assert not t.output(out).records
        t.advance("1s")
        assert [record.value for record in t.output(out).records] == [2]
        # A record in a skipped partition is late by the time that the partition was advanced to.
        t.input(words).send("a", at=20_000, partition=0)
        t.input(words).send("a", at=300_000, partition=0)
        t.advance("1h")
        assert [record.value for record in t.output(out).records] == [2, 2]
        assert t.drops["counts", "late"] == 1


def test_a_topic_without_records_in_a_merge_holds_back_no_window() -> None:
    app = App("first")
    one, two = (app.topic(name, key=str, value=str) for name in ("one", "two"))
    out = app.topic("out", key=Windowed[str], value=int)
    merged = app.stream(one).merge(app.stream(two)).group_by_key()
    merged.windowed(tumbling("1m")).count(name="counts").changes().to(out)
    with app.test() as t:
        t.input(one).send("", key="a", at=0)
        t.input(one).send("", key="a", at=90_000)
        t.advance("10s")
        assert [record.value for record in t.output(out).records] == [1]
