"""Values by an async function: nothing lost or doubled, in order, and in time for windows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App, ProcessingError, Windowed, tumbling
from streamlog.errors import TopologyError, UsageError
from streamlog.nodes.stream_nodes import Order
from streamlog.processing.async_map import OPEN_PER_CALL
from streamlog.processing.outbox import CallResult, Outbox, SinkRecord, TaskCall
from streamlog.processing.provenance import PROVENANCE, unpack_record
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.tables.state.changelog import apply_records
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import StoreSpec, prefix_end
from streamlog.topology import Subtopology

ORDERS: tuple[Order, ...] = ("key", "partition", "none")
IN = ("words", 0)


async def tenfold(value: int) -> int:
    return value * 10


def number(value: int) -> bytes:
    return value.to_bytes(8, signed=True)


def result_of(call: TaskCall) -> CallResult:
    """Await something that never waits."""
    coroutine: Any = call.run()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return CallResult(call.node, call.number, stop.value)
    raise AssertionError("it waits")


class Runner:
    """A task with exactly-once: what was written counts with the checkpoint."""

    def __init__(self, sub: Subtopology, records: Sequence[LogRecord]) -> None:
        self.sub = sub
        self.records = records
        self.store = MemoryStore()
        self.changelog_end = 0
        self.committed: list[SinkRecord] = []
        self.start()

    def start(self) -> None:
        """A new owner: what is not committed is gone."""
        self.changelog_end += 1  # Its fence.
        apply_records(self.store, [], next_offset=self.changelog_end)
        counts = dict.fromkeys([*self.sub.topics, *self.sub.repartition_topics], 1)
        self.task = Task(self.sub, TaskId(0, 0), partitions=counts, store=self.store)
        self.task.start_at({IN: self.task.positions.get(IN, 0)})
        self.read = self.task.positions[IN]
        self.calls: list[TaskCall] = []
        self.written: list[SinkRecord] = []
        self.process()

    def process(self, count: int = 0, results: Sequence[CallResult] = ()) -> Outbox:
        """The next records, and results of calls."""
        arrived = self.records[self.read : self.read + count]
        self.read += len(arrived)
        ends = {IN: len(self.records)}
        outbox = self.task.process({IN: arrived}, 0, ends=ends, results=results)
        self.calls += outbox.calls
        self.written += outbox.sinks
        return outbox

    def finish(self, at: int) -> None:
        """One of the calls in flight."""
        self.process(results=[result_of(self.calls.pop(at))])

    def commit(self) -> None:
        """What was written, and the state that has it as written."""
        changes = self.task.checkpoint()
        self.changelog_end += len(changes)
        self.task.committed(changes, next_offset=self.changelog_end)
        self.committed += self.written
        self.written = []

    def to_the_end(self, *, backwards: bool = False) -> list[SinkRecord]:
        """Everything there is; all that was written."""
        while self.read < len(self.records) or self.calls:
            self.process(len(self.records))
            while self.calls:
                self.finish(-1 if backwards else 0)
        self.commit()
        return self.committed


def sub_of(app: App) -> Subtopology:
    return app.topology().subtopologies[0]


def plain(ordered: Order, **how: Any) -> Subtopology:
    app = App("a")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    app.stream(words).amap_values(tenfold, ordered=ordered, **how).to(out)
    return sub_of(app)


def numbered(keys: Sequence[bytes | None]) -> list[LogRecord]:
    return [LogRecord(at, at, key, number(at), (("h", b"h"),)) for at, key in enumerate(keys)]


keys_of_records = st.lists(st.sampled_from([b"a", b"b", b"c", None]), min_size=1, max_size=25)


@pytest.mark.parametrize("ordered", ORDERS)
@settings(deadline=None)
@given(keys=keys_of_records, in_flight_max=st.integers(1, 5), data=st.data())
def test_nothing_is_lost_or_doubled_by_restarts_and_order_is_kept(
    ordered: Order, keys: list[bytes | None], in_flight_max: int, data: st.DataObject
) -> None:
    runner = Runner(plain(ordered, max_in_flight=in_flight_max), numbered(keys))
    for _ in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["read", "finish", "finish", "commit", "crash"])):
            case "read":
                runner.process(data.draw(st.integers(1, 5)))
            case "finish":
                if runner.calls:
                    runner.finish(data.draw(st.integers(0, len(runner.calls) - 1)))
            case "commit":
                runner.commit()
            case _:
                runner.start()
        assert len(runner.calls) <= in_flight_max
    written = runner.to_the_end(backwards=True)
    numbers = [record.timestamp_ms for record in written]
    assert sorted(numbers) == list(range(len(keys)))
    for record in written:
        at = record.timestamp_ms
        assert (record.key, record.value) == (keys[at], number(at * 10))
        assert record.headers == (("h", b"h"),)
    if ordered == "partition":
        assert numbers == sorted(numbers)
    if ordered == "key":
        by_key: defaultdict[bytes | None, list[int]] = defaultdict(list)
        for record in written:
            by_key[record.key].append(record.timestamp_ms)
        assert all(found == sorted(found) for key, found in by_key.items() if key is not None)
    prefix = StoreSpec("tenfold").prefix
    assert not list(runner.store.range(prefix, prefix_end(prefix)))


def windowed(ordered: Order | None, *, grace: str) -> Subtopology:
    app = App("a")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=Windowed[str], value=int)
    stream = app.stream(words)
    values = stream.map_values(lambda v: v) if ordered is None else stream
    if ordered is not None:
        values = stream.amap_values(tenfold, ordered=ordered)
    windows = values.group_by_key().windowed(tumbling("10ms", grace=grace))
    windows.count(name="counts").changes().to(out)
    return sub_of(app)


def shuffled(runner: Runner, records: list[LogRecord], seed: int) -> list[SinkRecord]:
    """Random batches and random completions, with a commit or restart now and then."""
    rng = random.Random(seed)
    while runner.read < len(records) or runner.calls:
        match rng.choices(["read", "finish", "commit", "crash"], (10, 20, 10, 1))[0]:
            case "read":
                runner.process(rng.randint(1, 8))
            case "finish":
                if runner.calls:
                    runner.finish(rng.randrange(len(runner.calls)))
            case "commit":
                runner.commit()
            case _:
                runner.start()
    runner.process()
    runner.commit()
    return runner.committed


@pytest.mark.parametrize("ordered", ORDERS)
@settings(deadline=None)
@given(
    times=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), min_size=1, max_size=25),
    seed=st.integers(0, 1 << 32),
)
def test_windows_behind_it_have_the_rows_that_they_would_have_without_waiting(
    ordered: Order, times: list[tuple[int, int]], seed: int
) -> None:
    # Out of order by less than the grace: nothing is late, whatever has to wait.
    stamps = [*(start - min(start, back) for start, back in sorted(times)), 1_000]
    records = [LogRecord(at, ms, b"ab"[at % 2 :][:1], number(1)) for at, ms in enumerate(stamps)]
    wanted = Runner(windowed(None, grace="15ms"), records).to_the_end()
    found = shuffled(Runner(windowed(ordered, grace="15ms"), records), records, seed)
    assert [record[2:5] for record in found] == [record[2:5] for record in wanted]


@settings(deadline=None)
@given(times=st.lists(st.integers(0, 60), min_size=1, max_size=25), seed=st.integers(0, 1 << 32))
def test_what_is_late_is_late_with_the_order_of_the_partition(times: list[int], seed: int) -> None:
    records = [LogRecord(at, ms, b"a", number(1)) for at, ms in enumerate([*times, 1_000])]
    wanted = Runner(windowed(None, grace="3ms"), records).to_the_end()
    found = shuffled(Runner(windowed("partition", grace="3ms"), records), records, seed)
    assert [record[2:5] for record in found] == [record[2:5] for record in wanted]


@pytest.mark.parametrize("ordered", ORDERS)
def test_positions_downstream_only_grow_and_are_not_used_twice(ordered: Order) -> None:
    app = App("a")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    values = app.stream(words).amap_values(tenfold, ordered=ordered)
    values.group_by(lambda key, _: key, name="by").count(name="n").changes().to(out)
    sub = next(sub for sub in app.topology().subtopologies if "words" in sub.topics)
    runner = Runner(sub, numbered([b"a"] * 12))
    before: dict[int, bytes | None] = {}
    seen: list[int] = []

    def look() -> None:
        for record in runner.written:
            name, data = record.headers[-1]
            if name == PROVENANCE:
                position = unpack_record(data or b"")[2]
                # Without a transaction it was written: a repetition has its old position.
                assert before.setdefault(position, record.value) == record.value
                seen.append(position)

    for _ in range(3):
        runner.process(3)
        runner.finish(1)
        runner.finish(0)
        look()
        runner.start()
        runner.process(2)
        runner.finish(0)
        runner.finish(0)
        look()
        runner.commit()
        runner.start()
    if ordered != "partition":
        assert seen == sorted({*seen})


def test_a_task_with_too_many_open_calls_takes_no_more() -> None:
    records = numbered([b"a"] * (3 * OPEN_PER_CALL))
    runner = Runner(plain("none", max_in_flight=1), records)
    for _ in range(OPEN_PER_CALL):
        assert not runner.task.is_full
        runner.process(1)
    assert runner.task.is_full
    runner.process(5)
    assert runner.task.buffered[IN] == 5
    assert runner.task.positions[IN] == OPEN_PER_CALL
    assert len(runner.calls) == 1
    runner.finish(0)
    assert runner.task.buffered[IN] == 0
    assert len(runner.to_the_end()) == len(records)


def test_an_error_is_that_of_the_record() -> None:
    runner = Runner(plain("key"), numbered([b"a"] * 3))
    runner.process(3)
    error = ValueError("no such word")
    failed = CallResult("tenfold", 1, error=error)
    with pytest.raises(ProcessingError, match="offset 1 of words-0: ValueError: no such word") as e:
        runner.process(results=[failed])
    assert (e.value.topic, e.value.partition, e.value.offset) == IN + (1,)  # noqa: RUF005
    with pytest.raises(UsageError, match="no open call 7"):
        runner.process(results=[CallResult("tenfold", 7)])


def test_a_node_that_is_awaited_has_a_name() -> None:
    app = App("a")
    words = app.stream(app.topic("words", key=str, value=int))
    with pytest.raises(TopologyError, match="pass name="):
        words.amap_values(lambda v: tenfold(v + 1))
    words.amap_values(lambda v: tenfold(v + 1), name="mine")
    words.amap_values(tenfold)
    for how, text in (
        ({"max_in_flight": 0}, "1 or more"),
        ({"ordered": "time"}, "'key', 'partition' or 'none'"),
        ({"timeout": "0s"}, "longer than 0 ms"),
    ):
        with pytest.raises(TopologyError, match=text):
            words.amap_values(tenfold, name="other", **how)  # type: ignore[arg-type]
