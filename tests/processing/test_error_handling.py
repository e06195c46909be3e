"""Failing records: at every kind of node, with every policy, in batches."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, ErrorPolicy, Stream, agg, hopping, on_error, tumbling
from streamlog.errors import ConfigError, ProcessingError, TopologyError
from streamlog.processing.error_handling import (
    ATTEMPT,
    EXCEPTION,
    FRAMES_MAX,
    INTERNAL,
    MESSAGE,
    NODE,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    TRACE,
    TRACE_CHARACTERS_MAX,
    trace_of,
)
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.tables.stores.memory_store import MemoryStore

BAD = 13
POLICIES = [on_error.skip(), on_error.dlq(), on_error.retry(2, backoff="0ms", then=on_error.skip())]


@dataclass
class Total:
    n: int
    sum: int


RAISED: dict[str, BaseException] = {"on a bad record": ValueError("unlucky")}
"""What a function raises on a bad record."""


def check(value: int) -> int:
    if value == BAD:
        raise RAISED["on a bad record"]
    return value


def with_list(seen: list[int], value: int) -> list[int]:
    seen.append(value)  # Mutates the state before the failure.
    check(value)
    return seen


Build = Callable[[Stream[str, int], App], Stream[Any, Any]]

NODES: dict[str, Build] = {
    "map": lambda s, _: s.map(lambda k, v: (k, check(v)), name="n"),
    "map_values": lambda s, _: s.map_values(check, name="n"),
    "flat_map_values": lambda s, _: s.flat_map_values(lambda v: [check(v), v], name="n"),
    "filter": lambda s, _: s.filter(lambda _, v: check(v) >= 0, name="n"),
    "rekey": lambda s, _: s.rekey(lambda _, v: str(check(v)), name="n"),
    "group_by": lambda s, _: (
        s.group_by(lambda _, v: str(check(v)), name="n").count(name="t").changes()
    ),
    "aggregate": lambda s, _: s.group_by_key().aggregate(list, with_list, name="n").changes(),
    "agg": lambda s, _: (
        s.group_by_key().agg(Total, name="n", n=agg.count(), sum=agg.sum(check)).changes()
    ),
    "windowed": lambda s, _: (
        s.group_by_key()
        .windowed(tumbling("10s"))
        .emit(Emit.UPDATE)
        .agg(Total, name="n", n=agg.count(), sum=agg.sum(check))
        .changes()
    ),
    "hopping": lambda s, _: (
        s.group_by_key()
        .windowed(hopping("1s", "300ms"))
        .emit(Emit.UPDATE)
        .aggregate(list, with_list, name="n")
        .changes()
    ),
    "hopping on close": lambda s, _: (
        s.group_by_key()
        .windowed(hopping("1s", "300ms"))
        .agg(Total, name="n", n=agg.count(), sum=agg.sum(check))
        .changes()
    ),
    "windowed on close": lambda s, _: (
        s.group_by_key().windowed(tumbling("1s")).aggregate(list, with_list, name="n").changes()
    ),
    "join": lambda s, app: s.left_join(
        app.table(app.topic("rows", key=str, value=int)), lambda v, _: check(v), name="n"
    ),
}


Row = tuple[str, int, int]
"""Key, value, timestamp."""


def outputs(build: Build, rows: Iterable[Row], policy: ErrorPolicy) -> tuple[list[Any], int]:
    """Return the output and the number of dropped records; all rows arrive at once."""
    app = App("app", on_error=policy)
    source = app.topic("in", key=str, value=int)
    found: list[Any] = []
    build(app.stream(source), app).peek(
        lambda record: found.append((record.key, record.value, record.timestamp))
    )
    with app.test() as t:
        topic = t.topic("in")
        for key, value, timestamp_ms in rows:
            data = source.spec.value.dumps(value)
            topic.append(data, key=key.encode(), timestamp_ms=timestamp_ms)
        t.settle()
        left_out = [t.drops.get(("n", reason), 0) for reason in ("error", "dead letter")]
    return found, sum(left_out)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.action)
@pytest.mark.parametrize("node", NODES)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2, BAD, 4])), max_size=12))
def test_good_records_are_processed_as_if_there_were_no_bad_ones(
    node: str, policy: ErrorPolicy, values: list[tuple[str, int]]
) -> None:
    # The last record closes all windows.
    rows = [(key, value, at * 300) for at, (key, value) in enumerate([*values, ("a", 5)])]
    rows[-1] = ("a", 5, 1_000_000)
    good = [row for row in rows if row[1] != BAD]
    seen, left_out = outputs(NODES[node], rows, policy)
    assert seen == outputs(NODES[node], good, on_error.FAIL)[0]
    assert left_out == len(rows) - len(good)


@pytest.mark.parametrize("node", NODES)
def test_sys_exit_in_a_function_is_the_record_s_failure(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("a", 1, 0), ("b", BAD, 300), ("a", 4, 600), ("a", 5, 1_000_000)]
    good = [row for row in rows if row[1] != BAD]
    wanted = outputs(NODES[node], good, on_error.FAIL)[0]
    monkeypatch.setitem(RAISED, "on a bad record", SystemExit(3))
    assert outputs(NODES[node], rows, on_error.skip())[0] == wanted
    with pytest.raises(ProcessingError, match=r"check \(.*\) raised SystemExit\(3\)") as caught:
        outputs(NODES[node], rows, on_error.FAIL)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("in", 0, 1)


def test_a_keyboard_interrupt_is_not_the_record_s_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RAISED, "on a bad record", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        outputs(NODES["map"], [("a", BAD, 0)], on_error.skip())


def test_a_dead_letter_is_the_record_with_headers_about_the_failure() -> None:
    app = App("app")
    source = app.topic("in", key=str, value=int)
    app.stream(source).map_values(lambda v: v + 1).map_values(
        check, name="unlucky", on_error=on_error.retry(2, backoff="0ms", then=on_error.dlq())
    )
    with app.test() as t:
        topic = t.topic("in")
        data = source.spec.value.dumps(BAD - 1)
        topic.append(data, key=b"k", timestamp_ms=77, headers=(("trace", b"x"), (NODE, b"old")))
        t.settle()
        (letter,) = t.dead_letters()
        assert t.drops == {("unlucky", "dead letter"): 1}
    assert (letter.topic, letter.key, letter.value) == ("app-dlq", b"k", data)
    trace = dict(letter.headers)[TRACE] or b""
    # Of one object that is raised again and again, Python keeps the frames of each time.
    raises = check.__code__.co_firstlineno + 2
    assert trace.endswith(f"{__name__}, line {raises}, in check\nValueError: unlucky".encode())
    assert letter.headers == (
        ("trace", b"x"),
        (TOPIC, b"in"),
        (PARTITION, b"0"),
        (OFFSET, b"0"),
        (TIMESTAMP, b"77"),
        (NODE, b"unlucky"),
        (EXCEPTION, b"builtins.ValueError"),
        (MESSAGE, b"unlucky"),
        (TRACE, trace),
        (ATTEMPT, b"3"),
    )


def raised(depth: int, cause: Exception | None = None) -> Exception:
    """Raise an error in a function that has called itself; returns it as a policy sees it."""

    def fall(left: int) -> None:
        if left:
            fall(left - 1)
        raise ValueError("two\nlines") from cause

    try:
        fall(depth)
    except ValueError as error:
        return error
    raise AssertionError("not raised")


@given(st.integers(0, 100), st.integers(0, 3))
def test_a_trace_has_the_functions_of_the_app_and_a_bound(depth: int, causes: int) -> None:
    error = raised(depth)
    for _ in range(causes):
        error = raised(0, error)
    trace = trace_of(error)
    assert len(trace) <= TRACE_CHARACTERS_MAX
    assert trace.count("caused by") == causes
    # Python's own module says which calls there were.
    last = traceback.extract_tb(error.__traceback__)[-1]
    assert f"{__name__}, line {last.lineno}, in raised.<locals>.fall\nValueError: two" in trace
    assert trace.count(" in raised.<locals>.fall") <= FRAMES_MAX + causes


def test_errors_from_outside_of_the_app_have_no_trace() -> None:
    app = App("app", on_error=on_error.dlq())
    app.table(app.topic("in", key=str, value=int), name="t")
    with app.test() as t:
        t.topic("in").append(b"no number", key=b"k", timestamp_ms=1)
        t.settle()
        (letter,) = t.dead_letters()
    assert TRACE not in dict(letter.headers)
    assert trace_of(ValueError("never raised\nbut with lines")) == ""


def test_unreadable_records_are_handled_at_their_turn() -> None:
    app = App("app", on_error=on_error.dlq("dead"))
    source = app.topic("in", key=str, value=int, timestamp=lambda v: -1 if v == BAD else v * 1_000)
    app.table(app.topic("rows", key=str, value=int))
    counted = (
        app.stream(source).group_by_key().windowed(tumbling("10s", grace="1s")).count(name="c")
    )
    sub = app.topology().subtopologies_of("in")[0]
    task = Task(sub, TaskId(0, 0), partitions={"in": 1}, store=MemoryStore())
    values = [b"\0" * 7 + b"\1", b"?", BAD.to_bytes(8), b"\0" * 7 + b"\2"]
    records = [RawRecord(at, 5, b"k", value) for at, value in enumerate(values)]
    outbox = task.process({("in", 0): records}, 0, ends={("in", 0): 4})
    assert [(sink.topic, sink.value) for sink in outbox.sinks] == [
        ("dead", b"?"),
        ("dead", BAD.to_bytes(8)),
    ]
    assert outbox.offsets == {("in", 0): 4}
    assert [(drop.node, drop.reason, drop.count) for drop in outbox.drops] == [
        ("in", "dead letter", 2)
    ]
    assert [row for _, row in task.table(counted.name)] == [2]
    # A batch of only unreadable records advances the position, but not the time.
    only = task.process({("in", 0): [RawRecord(4, 99_999, b"k", b"?")]}, 0, ends={("in", 0): 5})
    assert only.offsets == {("in", 0): 5}
    assert len(only.sinks) == 1
    last = RawRecord(5, 0, b"k", b"\0" * 7 + b"\3")
    task.process({("in", 0): [last]}, 0, ends={("in", 0): 6})
    assert [row for _, row in task.table(counted.name)] == [3]


def test_results_that_can_not_be_written_are_skipped_by_policy() -> None:
    app = App("app")
    source = app.topic("in", key=str, value=int)
    out = app.topic("out", key=str, value=str)
    stream: Stream[str, Any] = app.stream(source).map_values(lambda v: v if v == BAD else str(v))
    stream.to(out, on_error=on_error.skip(log=False))
    with app.test() as t:
        for value in (1, BAD, 2):
            t.input(source).send(value, key="k")
        assert t.output(out).values == ["1", "2"]
        ((_, reason),) = t.drops
        assert reason == "error"


def test_a_dead_letter_from_behind_a_repartition_is_internal() -> None:
    app = App("app", on_error=on_error.dlq())
    source = app.topic("in", key=str, value=int)
    counts = app.stream(source).group_by(lambda _, v: str(v), name="by").windowed(tumbling("1s"))
    counts.count(name="c").changes().map_values(lambda n: check(n * BAD), name="n")
    with app.test() as t:
        t.input(source).send(1, key="k", at=0)
        t.input(source).send(1, key="k", at=5_000)
        (letter,) = t.dead_letters()
    headers = dict(letter.headers)
    assert headers[INTERNAL] == b"1"
    assert headers[TOPIC] == b"c"
    assert letter.value == b"1"


def test_each_operator_may_have_its_own_error_policy() -> None:
    app = App("app", on_error=on_error.skip())
    source = app.topic("in", key=str, value=int)
    app.stream(source).map_values(check, name="strict", on_error=on_error.FAIL)
    with app.test() as t, pytest.raises(ProcessingError) as caught:
        t.input(source).send(BAD, key="k")
    assert (caught.value.node, caught.value.topic, caught.value.offset) == ("strict", "in", 0)


def test_after_all_retries_the_record_fails_with_its_offset() -> None:
    waits: list[int] = []
    app = App("app")
    source = app.topic("in", key=str, value=int)
    calls: list[int] = []

    def fickle(value: int) -> int:
        calls.append(value)
        return check(value) if value == BAD or len(calls) % 2 else check(BAD)

    app.stream(source).map_values(fickle, on_error=on_error.retry(2, backoff="250ms"))
    sub = app.topology().subtopologies[0]
    task = Task(sub, TaskId(0, 0), partitions={"in": 1}, pause=waits.append)
    tp = ("in", 0)
    records = [RawRecord(at, 0, b"k", at.to_bytes(8)) for at in range(3)]
    task.process({tp: records}, 0, ends={tp: 3})
    # Every second call fails and is retried; no other call is repeated.
    assert calls == [0, 1, 1, 2, 2]
    assert waits == [250, 250]
    bad = RawRecord(3, 0, b"k", BAD.to_bytes(8))
    with pytest.raises(ProcessingError, match="failed at offset 3 of in-0: ValueError: unlucky"):
        task.process({tp: [bad]}, 0, ends={tp: 4})
    assert waits == [250] * 4


def test_a_failed_fold_leaves_no_row() -> None:
    app = App("app", on_error=on_error.skip())
    source = app.topic("in", key=str, value=int)
    lists = app.stream(source).group_by_key().aggregate(list, with_list, name="lists")
    with app.test() as t:
        t.input(source).send(BAD, key="a")
        assert t.table(lists) == {}
        t.input(source).send(1, key="a")
        t.input(source).send(BAD, key="a")
        t.restart()
        t.input(source).send(2, key="a")
        assert t.table(lists) == {"a": [1, 2]}


def test_a_failing_late_function_is_subject_to_the_policy() -> None:
    app = App("app", on_error=on_error.skip())
    source = app.topic("in", key=str, value=int)
    windows = app.stream(source).group_by_key().windowed(tumbling("1s"))
    windows.late(lambda record: check(BAD)).count(name="c")
    with app.test() as t:
        t.input(source).send(1, key="a", at=5_000)
        t.input(source).send(1, key="a", at=0)
        assert t.drops == {("c", "error"): 1}


@pytest.mark.parametrize("times", [0, -1])
def test_a_retry_needs_at_least_one_attempt(times: int) -> None:
    with pytest.raises(ConfigError, match="times=1 or more"):
        on_error.retry(times)


def test_a_retry_policy_that_waits_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match="would wait for 120000 ms"):
        on_error.retry(60, backoff="2s")
    with pytest.raises(ConfigError):
        on_error.retry(40, backoff="1s", then=on_error.retry(40, backoff="1s"))


def test_a_dead_letter_topic_needs_a_valid_topic_name() -> None:
    with pytest.raises(TopologyError):
        on_error.dlq("no spaces")


def test_a_topic_may_have_its_own_error_policy() -> None:
    app = App("app")
    rough = app.topic("rough", key=str, value=int, on_error=on_error.skip())
    rows = app.topic("rows", key=str, value=int, on_error=on_error.dlq("bad-rows"))
    out = app.topic("out", key=str, value=int, on_error=on_error.dlq())
    exact = app.topic("exact", key=str, value=int)
    table = app.table(rows)
    app.stream(rough).left_join(table, lambda a, _: 2**80 if a == BAD else a).to(out)
    app.stream(exact).to(app.topic("copied", key=str, value=int))
    policies = {node.name: node.on_error for node in app.topology().nodes}
    assert policies["rough-source"] == on_error.skip()
    assert policies["rows"] == on_error.dlq("bad-rows")
    assert policies["exact-source"] is None
    assert {"bad-rows", "app-dlq"} <= {*app.topology().dead_letters}
    with app.test() as t:
        t.topic("rough").append(b"x", key=b"k", timestamp_ms=0, partition=None)
        for value in (1, BAD):
            t.input(rough).send(value, key="k")
        assert t.output(out).values == [1]
        assert sorted(t.drops.values()) == [1, 1]
        assert len(t.dead_letters()) == 1
        t.topic("exact").append(b"x", key=b"k", timestamp_ms=0, partition=None)
        with pytest.raises(ProcessingError, match="exact"):
            t.input(exact).send(1, key="k")
