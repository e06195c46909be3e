"""Values from an async function: exactly once, in order, and in time for windows."""

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
    """Run a call whose coroutine never waits."""
    coroutine: Any = call.run()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return CallResult(call.node, call.number, stop.value)
    raise AssertionError("it waits")


class Runner:
    """A task under exactly-once: written records count with the checkpoint."""

    def __init__(self, sub: Subtopology, records: Sequence[LogRecord]) -> None:
        self.sub = sub
        self.records = records
        self.store = MemoryStore()
        self.changelog_end = 0
        self.committed: list[SinkRecord] = []
        self.start()

    def start(self) -> None:
        """Start a new owner, which loses everything uncommitted."""
        self.changelog_end += 1  # The fence of the new owner.
        apply_records(self.store, [], next_offset=self.changelog_end)
        counts = dict.fromkeys([*self.sub.topics, *self.sub.repartition_topics], 1)
        self.task = Task(self.sub, TaskId(0, 0), partitions=counts, store=self.store)
        self.task.start_at({IN: self.task.positions.get(IN, 0)})
        self.read = self.task.positions[IN]
        self.calls: list[TaskCall] = []
        self.written: list[SinkRecord] = []
        self.process()

    def process(self, count: int = 0, results: Sequence[CallResult] = ()) -> Outbox:
        """Process the next `count` records and the results of calls."""
        arrived = self.records[self.read : self.read + count]
        self.read += len(arrived)
        ends = {IN: len(self.records)}
        outbox = self.task.process({IN: arrived}, 0, ends=ends, results=results)
        self.calls += outbox.calls
        self.written += outbox.sinks
        return outbox

    def finish(self, at: int) -> None:
        """Finish one of the calls in flight."""
        self.process(results=[result_of(self.calls.pop(at))])

    def commit(self) -> None:
        """Commit the written records together with the state."""
        changes = self.task.checkpoint()
        self.changelog_end += len(changes)
        self.task.committed(changes, next_offset=self.changelog_end)
        self.committed += self.written
        self.written = []

    def run_to_the_end(self, *, backwards: bool = False) -> list[SinkRecord]:
        """Process all records; return everything that was written."""
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
def test_restarts_lose_and_double_nothing_and_keep_the_order(
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
    written = runner.run_to_the_end(backwards=True)
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


def run_shuffled(runner: Runner, records: list[LogRecord], seed: int) -> list[SinkRecord]:
    """Run with random batches, completions, commits and restarts."""
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
def test_windows_behind_async_values_have_the_rows_of_sync_values(
    ordered: Order, times: list[tuple[int, int]], seed: int
) -> None:
    # Out of order by less than the grace: nothing is late, whichever calls wait.
    stamps = [*(start - min(start, back) for start, back in sorted(times)), 1_000]
    records = [LogRecord(at, ms, b"ab"[at % 2 :][:1], number(1)) for at, ms in enumerate(stamps)]
    wanted = Runner(windowed(None, grace="15ms"), records).run_to_the_end()
    found = run_shuffled(Runner(windowed(ordered, grace="15ms"), records), records, seed)
    assert [record[2:5] for record in found] == [record[2:5] for record in wanted]


@settings(deadline=None)
@given(times=st.lists(st.integers(0, 60), min_size=1, max_size=25), seed=st.integers(0, 1 << 32))
def test_with_partition_order_late_records_are_those_of_sync_values(
    times: list[int], seed: int
) -> None:
    records = [LogRecord(at, ms, b"a", number(1)) for at, ms in enumerate([*times, 1_000])]
    wanted = Runner(windowed(None, grace="3ms"), records).run_to_the_end()
    found = run_shuffled(Runner(windowed("partition", grace="3ms"), records), records, seed)
    assert [record[2:5] for record in found] == [record[2:5] for record in wanted]


@pytest.mark.parametrize("ordered", ORDERS)
def test_positions_downstream_only_grow_and_are_never_reused(ordered: Order) -> None:
    app = App("a")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    values = app.stream(words).amap_values(tenfold, ordered=ordered)
    values.group_by(lambda key, _: key, name="by").count(name="n").changes().to(out)
    sub = next(sub for sub in app.topology().subtopologies if "words" in sub.topics)
    runner = Runner(sub, numbered([b"a"] * 12))
    before: dict[int, bytes | None] = {}
    seen: list[int] = []

    def check_positions() -> None:
        for record in runner.written:
            name, data = record.headers[-1]
            if name == PROVENANCE:
                position = unpack_record(data or b"")[2]
                # An uncommitted record that is written again has its old position.
                assert before.setdefault(position, record.value) == record.value
                seen.append(position)

    for _ in range(3):
        runner.process(3)
        runner.finish(1)
        runner.finish(0)
        check_positions()
        runner.start()
        runner.process(2)
        runner.finish(0)
        runner.finish(0)
        check_positions()
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
    assert len(runner.run_to_the_end()) == len(records)


def test_a_failed_call_fails_with_its_record_s_offset() -> None:
    runner = Runner(plain("key"), numbered([b"a"] * 3))
    runner.process(3)
    error = ValueError("no such word")
    failed = CallResult("tenfold", 1, error=error)
    with pytest.raises(ProcessingError, match="offset 1 of words-0: ValueError: no such word") as e:
        runner.process(results=[failed])
    assert (e.value.topic, e.value.partition, e.value.offset) == IN + (1,)  # noqa: RUF005
    with pytest.raises(UsageError, match="no open call 7"):
        runner.process(results=[CallResult("tenfold", 7)])


def test_an_async_node_needs_a_name_and_valid_settings() -> None:
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
