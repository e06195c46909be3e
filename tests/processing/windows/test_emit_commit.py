"""Rows emitted at commits are the last of the updates since the commit before."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamlog import App, Emit, Windowed, tumbling
from streamlog.durations import when_ms
from streamlog.errors import UsageError
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.serdes import serde_for
from streamlog.tables.stores.memory_store import MemoryStore
from tests.processing.test_exactness import (
    GRACE_MS,
    SIZE_MS,
    Input,
    closed,
    events,
    filtered_behind,
    oracle,
    rows_of,
    run,
    starts_of,
)

Emitted = list[tuple[bytes | None, bytes | None, int]]


def sums(emit: Emit) -> Task:
    app = App("sums")
    words = app.topic("words", key=str, value=int)
    windows = tumbling(f"{SIZE_MS}ms", grace=f"{GRACE_MS}ms")
    stream = app.stream(words).group_by_key().windowed(windows).emit(emit)
    totals = stream.reduce(lambda a, b: a + b, name="sums")
    totals.changes().to(app.topic("out", key=Windowed[str], value=int))
    sub = app.topology().subtopologies[0]
    counts = {"words": 1, "out": 1}
    task = Task(sub, TaskId(0, 0), partitions=counts, store=MemoryStore())
    task.start_at({("words", 0): 0})
    return task


def feed(task: Task, records: list[LogRecord]) -> Emitted:
    end = records[-1].offset + 1 if records else 0
    outbox = task.process({("words", 0): records} if records else {}, 0, ends={("words", 0): end})
    return [(each.key, each.value, each.timestamp_ms) for each in outbox.sinks]


def commit(task: Task) -> Emitted:
    emitted = [(each.key, each.value, each.timestamp_ms) for each in task.emit().sinks]
    task.committed(task.checkpoint(), next_offset=1)
    return emitted


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 9))),
    st.integers(0, 2**32),
)
@example([("a", 1, 1), ("b", 1, 1), ("a", 2, 5), ("a", 50, 1)], 0)
def test_a_commit_emits_each_row_once_with_its_last_value(
    inputs: list[tuple[str, int, int]], seed: int
) -> None:
    dumps, rng = serde_for(int).dumps, Random(seed)
    records = [
        LogRecord(at, ms, key.encode(), dumps(value)) for at, (key, ms, value) in enumerate(inputs)
    ]
    each_update, at_commits = sums(Emit.UPDATE), sums(Emit.COMMIT)
    at = 0
    while at < len(records):
        wanted: dict[bytes | None, Any] = {}
        for _ in range(rng.randint(1, 3)):
            some, at = records[at : at + 4], at + 4
            for row in feed(each_update, some):
                wanted.pop(row[0], None)
                wanted[row[0]] = row
            assert feed(at_commits, some) == []
        assert commit(at_commits) == list(wanted.values())
        commit(each_update)


def test_a_checkpoint_before_waiting_rows_are_emitted_is_refused() -> None:
    task = sums(Emit.COMMIT)
    assert not task.has_waiting
    feed(task, [LogRecord(0, 1, b"a", serde_for(int).dumps(1))])
    assert task.has_waiting
    with pytest.raises(UsageError, match="emit"):
        task.checkpoint()
    assert len(commit(task)) == 1
    assert not task.has_waiting


def test_reading_the_table_takes_nothing_from_the_next_commit() -> None:
    task = sums(Emit.COMMIT)
    feed(task, [LogRecord(0, 1, b"a", serde_for(int).dumps(1))])
    assert [value for _, value in task.table("sums")] == [1]
    assert len(commit(task)) == 1


def test_the_test_driver_commits_after_every_call() -> None:
    app = App("sums")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=Windowed[str], value=int)
    stream = app.stream(words).group_by_key().windowed(tumbling("10ms")).emit(Emit.COMMIT)
    stream.reduce(lambda a, b: a + b, name="sums").changes().to(out)
    with app.test() as t:
        t.input(words).send(1, key="a", at=1)
        t.input(words).send(2, key="a", at=2)
        t.restart()
        t.input(words).send(3, key="a", at=3)
        found = [(r.key.key, when_ms(r.key.start), r.value) for r in t.output(out).records]
        assert found == [("a", 0, 1), ("a", 0, 3), ("a", 0, 6)]


def newest_app(emit: Emit = Emit.COMMIT) -> App:
    """Emit sums at commits, and behind a repartition the newest of each row."""
    app = App("newest")
    words = app.topic("words", key=str, value=int)
    final = app.topic("final", key=Windowed[str], value=int)
    bigger = app.topic("bigger", key=Windowed[str], value=int)
    small = (
        app.stream(words)
        .filter(lambda _, value: value >= 0)
        .group_by(lambda key, _: key, name="by-word")
        .windowed(tumbling(f"{SIZE_MS}ms", grace=f"{GRACE_MS}ms"))
        .emit(emit)
        .reduce(lambda a, b: a + b, name="small")
    )
    small.changes().to(final)
    (
        small.changes()
        .group_by(lambda windowed, _: f"{windowed.key}:{when_ms(windowed.start)}", name="by-row")
        .windowed(tumbling(f"{10 * SIZE_MS}ms", grace=f"{GRACE_MS}ms"))
        .reduce(lambda _, newest: newest, name="newest")
        .changes()
        .to(bigger)
    )
    return app


@settings(deadline=None)
@given(events, st.integers(1, 3), st.integers(0, 2**32), st.integers(0, 4))
def test_the_last_emitted_row_is_the_final_one_across_crashes(
    inputs: Input, partitions: int, seed: int, crashes: int
) -> None:
    inputs = [(at % partitions, *rest) for at, *rest in inputs]  # type: ignore[misc]
    closed_inputs = closed(filtered_behind(inputs), partitions)
    check_newest(closed_inputs, partitions, seed, crashes, Emit.COMMIT)


def check_newest(
    closed_inputs: Input, partitions: int, seed: int, crashes: int, emit: Emit
) -> None:
    """Check that the last written row is the final one, also behind a repartition."""
    cluster = run(
        closed_inputs, partitions=partitions, seed=seed, crashes=crashes, app=newest_app(emit)
    )
    small, _, _ = oracle(closed_inputs, partitions)
    wanted = {(key, start): value for key, start, value, _ in small}
    newest = {}
    for (name, _), log in cluster.logs.items():
        for record in log if name == "final" else ():
            key = starts_of(tumbling("1ms")).loads(record.key or b"")
            if key.key == "end":
                continue  # The window is still open.
            newest[key.key, when_ms(key.start)] = serde_for(int).loads(record.value or b"")
    assert newest == wanted
    behind = {key: value for key, _, value, _ in rows_of(cluster, "bigger", distinct=True)}
    assert behind == {f"{key}:{start}": value for (key, start), value in wanted.items()}
