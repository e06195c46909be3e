"""Rows emitted at commits are those of every update, without what was replaced before one."""

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


def fed(task: Task, records: list[LogRecord]) -> Emitted:
    end = records[-1].offset + 1 if records else 0
    outbox = task.process({("words", 0): records} if records else {}, 0, ends={("words", 0): end})
    return [(each.key, each.value, each.timestamp_ms) for each in outbox.sinks]


def committed(task: Task) -> Emitted:
    emitted = [(each.key, each.value, each.timestamp_ms) for each in task.emit().sinks]
    task.committed(task.checkpoint(), next_offset=1)
    return emitted


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 9))),
    st.integers(0, 2**32),
)
@example([("a", 1, 1), ("b", 1, 1), ("a", 2, 5), ("a", 50, 1)], 0)
def test_a_row_comes_once_a_commit_with_the_value_of_its_last_update(
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
            for row in fed(each_update, some):
                wanted.pop(row[0], None)
                wanted[row[0]] = row
            assert fed(at_commits, some) == []
        assert committed(at_commits) == list(wanted.values())
        committed(each_update)


def test_a_checkpoint_does_not_pass_over_rows_that_wait() -> None:
    task = sums(Emit.COMMIT)
    assert not task.has_waiting
    fed(task, [LogRecord(0, 1, b"a", serde_for(int).dumps(1))])
    assert task.has_waiting
    with pytest.raises(UsageError, match="emit"):
        task.checkpoint()
    assert len(committed(task)) == 1
    assert not task.has_waiting


def test_looking_at_the_table_takes_nothing_from_the_next_commit() -> None:
    task = sums(Emit.COMMIT)
    fed(task, [LogRecord(0, 1, b"a", serde_for(int).dumps(1))])
    assert [value for _, value in task.table("sums")] == [1]
    assert len(committed(task)) == 1


def test_in_the_test_driver_every_call_is_a_commit_interval() -> None:
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
    """Sums by commit, and behind a repartition the newest of each."""
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
def test_the_newest_of_each_row_is_the_final_one_whatever_is_stopped(
    inputs: Input, partitions: int, seed: int, crashes: int
) -> None:
    inputs = [(at % partitions, *rest) for at, *rest in inputs]  # type: ignore[misc]
    every = closed(inputs, partitions)
    check_newest(every, partitions, seed, crashes, Emit.COMMIT)


def check_newest(every: Input, partitions: int, seed: int, crashes: int, emit: Emit) -> None:
    """Of each row, the one written last is the final one, and so it is behind a repartition."""
    cluster = run(every, partitions=partitions, seed=seed, crashes=crashes, app=newest_app(emit))
    small, _, _ = oracle(every, partitions)
    wanted = {(key, start): value for key, start, value, _ in small}
    newest = {}
    for (name, _), log in cluster.logs.items():
        for record in log if name == "final" else ():
            key = starts_of(tumbling("1ms")).loads(record.key or b"")
            if key.key == "end":
                continue  # Its window is open.
            newest[key.key, when_ms(key.start)] = serde_for(int).loads(record.value or b"")
    assert newest == wanted
    behind = {key: value for key, _, value, _ in rows_of(cluster, "bigger", distinct=True)}
    assert behind == {f"{key}:{start}": value for (key, start), value in wanted.items()}
