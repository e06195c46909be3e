"""Timers and punctuations against simple models, over random steps and restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from streamlog import App, Emit, Processor, Record, Windowed, kv_store, punctuate, tumbling
from streamlog.durations import when_ms
from streamlog.nodes.process_nodes import Punctuation
from streamlog.processing import timers as timers_module
from streamlog.processing.column_batch import TimeSource
from streamlog.processing.outbox import SinkRecord
from streamlog.processing.timers import DueTimers, KeyTimers
from streamlog.replace import replace
from streamlog.serdes import serde_for
from streamlog.tables.state.store_transaction import StoreTransaction
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import NamedStore, StoreSpec
from streamlog.windows.emit import FAR_MS
from tests.processing.inputs.test_merged_input import AtomicCluster
from tests.processing.test_exactness import Cluster

KEYS = [b"", b"\0", b"\0\xff", b"\0\1", b"a", b"a\0", b"ab", b"\xff\xff"]


@contextmanager
def few_in_memory(count: int) -> Iterator[None]:
    before, timers_module.READY_MAX = timers_module.READY_MAX, count
    try:
        yield
    finally:
        timers_module.READY_MAX = before


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("set"),
            st.sampled_from(KEYS),
            st.integers(0, 60),
            st.sampled_from(["", "x", "\0\1", "ü"]),
        ),
        st.tuples(st.just("cancel"), st.sampled_from(KEYS), st.just(0), st.sampled_from(["", "x"])),
        st.tuples(st.just("fire"), st.just(b""), st.integers(0, 70), st.just("")),
        st.tuples(st.just("restart"), st.just(b""), st.just(0), st.just("")),
    ),
    max_size=80,
)


@given(operations, st.integers(2, 8))
def test_timers_fire_once_in_order_of_time_key_and_tag(
    steps: list[tuple[str, bytes, int, str]], in_memory: int
) -> None:
    store = StoreTransaction(MemoryStore())
    named = NamedStore(store, StoreSpec("timers"))
    # A timer of the other clock in this store, and entries of neighbouring stores.
    KeyTimers(named, b"w").set(b"a", 1, "other")
    store.put(StoreSpec("timer").prefix + b"etwhatever", b"")
    store.put(StoreSpec("timerz").prefix + b"et", b"")
    timers = KeyTimers(named, b"e")
    model: dict[tuple[bytes, str], int] = {}
    with few_in_memory(in_memory):
        for operation, key, at_ms, tag in steps:
            if operation == "set":
                timers.set(key, at_ms, tag)
                model[key, tag] = at_ms
            elif operation == "cancel":
                timers.cancel(key, tag)
                model.pop((key, tag), None)
            elif operation == "restart":
                timers = KeyTimers(named, b"e")
            else:
                fired = []
                while (alarm := timers.first(at_ms)) is not None:
                    fired.append((alarm.at_ms, alarm.key, alarm.tag))
                    timers.cancel(alarm.key, alarm.tag)
                due = sorted((at, key, tag) for (key, tag), at in model.items() if at <= at_ms)
                assert fired == due
                model = {entry: at for entry, at in model.items() if at > at_ms}
            assert timers.first_ms <= min(model.values(), default=FAR_MS)
    left = len(list(named.range(b"e", b"f")))
    assert left == 2 * len(model)


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=20),
    st.integers(1, 50),
    st.integers(1, 50),
    st.integers(0, 10_000),
)
def test_punctuations_do_not_depend_on_the_steps_of_the_clock(
    steps: list[int], one_ms: int, other_ms: int, seed: int
) -> None:
    def fired(times: list[int], restarts: Random | None) -> list[tuple[int, str, int]]:
        punctuations = [
            Punctuation("one", one_ms, "event"),
            Punctuation("other", other_ms, "event"),
        ]
        alarms = DueTimers(TimeSource(("n/event", 0)), punctuations, None)
        alarms.start(steps[0])
        found = []
        for time_ms in times:
            while alarm := alarms.due(time_ms, each=True):
                found.append((alarm.at_ms, alarm.method, alarms.last))
            if restarts is not None and restarts.random() < 0.3:
                data = alarms.to_data()
                alarms = DueTimers(TimeSource(("n/event", 0)), punctuations, None)
                alarms.load(data)
                alarms.start(time_ms)
        return found

    steps = sorted(steps)
    in_steps = fired(steps, Random(seed))
    assert in_steps == fired(steps[-1:], None)
    assert [(at, name) for at, name, _ in in_steps] == sorted(
        (at, name)
        for name, every in (("one", one_ms), ("other", other_ms))
        for at in range(0, steps[-1] + 1, every)
        if at > steps[0]
    )
    numbers = [number for _, _, number in in_steps]
    assert numbers == sorted({*numbers})


@given(st.lists(st.integers(0, 90), max_size=30), st.integers(1, 40), st.integers(0, 10_000))
def test_missed_wall_clock_punctuations_fire_once(
    delays: list[int], every_ms: int, seed: int
) -> None:
    rng = Random(seed)
    now_ms = 1_000
    punctuations = [Punctuation("tick", every_ms, "wall")]
    alarms = DueTimers(TimeSource(("n/wall", 0)), punctuations, None)
    alarms.start(now_ms)
    last_ms = now_ms // every_ms * every_ms
    for delay_ms in delays:
        now_ms += delay_ms
        fired = []
        while alarm := alarms.due(now_ms, each=False):
            fired.append(alarm.at_ms)
        latest_ms = now_ms // every_ms * every_ms
        assert fired == ([latest_ms] if latest_ms > last_ms else [])
        last_ms = latest_ms
        if rng.random() < 0.3:
            data = alarms.to_data()
            alarms = DueTimers(TimeSource(("n/wall", 0)), punctuations, None)
            alarms.load(data)
            alarms.start(now_ms)


def test_a_clock_set_back_delays_a_punctuation_by_one_interval() -> None:
    punctuations = [Punctuation("tick", 10, "wall")]
    alarms = DueTimers(TimeSource(("n/wall", 0)), punctuations, None)
    alarms.start(100_000)
    assert alarms.due(100_010, each=False) is not None
    again = DueTimers(TimeSource(("n/wall", 0)), punctuations, None)
    again.load(alarms.to_data())
    again.start(50_000)
    assert again.next_ms == 50_010
    assert again.due(50_010, each=False) is not None
    assert again.last > alarms.last


def test_a_changed_interval_fires_at_its_own_multiples() -> None:
    alarms = DueTimers(TimeSource(("n/event", 0)), [Punctuation("tick", 10, "event")], None)
    alarms.start(5)
    other = DueTimers(TimeSource(("n/event", 0)), [Punctuation("tick", 7, "event")], None)
    other.load(alarms.to_data())
    other.start(6)
    assert [alarm.at_ms for alarm in iter(lambda: other.due(22, each=True), None)] == [7, 14, 21]


def test_punctuations_after_a_long_jump_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "PUNCTUATIONS_MAX", 3)
    alarms = DueTimers(TimeSource(("n/event", 0)), [Punctuation("tick", 10, "event")], None)
    alarms.start(0)
    fired = [alarm.at_ms for alarm in iter(lambda: alarms.due(10_005, each=True), None)]
    assert fired == [9_970, 9_980, 9_990, 10_000]


class Output(NamedTuple):
    """A row of the model's output: key, text, timestamp."""

    key: str
    text: str
    at_ms: int


class Debounce(Processor[str, int, str, str]):
    """A processor that reports quiet keys; its timers set and cancel other timers."""

    last = kv_store(str, int)

    def process(self, record: Record[str, int]) -> None:
        key, at_ms = record.key, when_ms(record.timestamp)
        self.last.put(key, record.value)
        self.ctx.forward(key, f"record {record.value} {when_ms(self.ctx.stream_time)}")
        self.ctx.timers.set(key, at_ms + record.value)
        if record.value % 3 == 0:
            self.ctx.timers.set(key, max(at_ms - 5, 0), "past")
        if record.value % 5 == 0:
            self.ctx.timers.cancel(key, "again")

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        time_ms = when_ms(self.ctx.stream_time)
        self.ctx.forward(key, f"timer {tag} {self.last.get(key)} {time_ms}")
        if tag == "":
            self.ctx.timers.set(key, when_ms(at) + 4, "again")
            self.ctx.timers.set("other", at, "at once")

    @punctuate(every="15ms")
    def report(self, now: datetime) -> None:
        self.ctx.forward("all", f"report {sum(value for _, value in self.last.range())}")


Events = list[tuple[int, str, int, int]]
"""Topic, key, value, timestamp."""


class Model:
    """A model of `Debounce` that scans all timers each time."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.last: dict[str, int] = {}
        self.timers: dict[tuple[str, str], int] = {}
        self.now_ms = -1
        self.report_ms = -1

    def move(self, time_ms: int) -> None:
        while True:
            timers = [(at, 0, key, tag) for (key, tag), at in self.timers.items()]
            reports = [(self.report_ms, 1, "", "")] if self.report_ms >= 0 else []
            due = min([*timers, *reports], default=None)
            if due is None or due[0] > time_ms:
                break
            at_ms, is_report, key, tag = due
            self.now_ms = max(self.now_ms, at_ms)
            if is_report:
                self.report_ms += 15
                self.outputs.append(Output("all", f"report {sum(self.last.values())}", at_ms))
                continue
            self.fire(key, tag, at_ms)
        self.now_ms = max(self.now_ms, time_ms)

    def fire(self, key: str, tag: str, at_ms: int) -> None:
        del self.timers[key, tag]
        stream_time_ms = max(self.now_ms, at_ms)
        self.outputs.append(
            Output(key, f"timer {tag} {self.last.get(key)} {stream_time_ms}", at_ms)
        )
        if tag == "":
            self.timers[key, "again"] = at_ms + 4
            self.timers["other", "at once"] = at_ms

    def process(self, key: str, value: int, at_ms: int, time_ms: int, own_ms: int) -> None:
        self.move(time_ms)
        if self.report_ms < 0 <= self.now_ms:
            self.report_ms = (self.now_ms // 15 + 1) * 15
        while due := sorted(
            (at, tag) for (of, tag), at in self.timers.items() if of == key and at <= own_ms
        ):
            self.fire(key, due[0][1], due[0][0])
        self.last[key] = value
        self.outputs.append(Output(key, f"record {value} {max(self.now_ms, 0)}", at_ms))
        self.timers[key, ""] = at_ms + value
        if value % 3 == 0:
            self.timers[key, "past"] = max(at_ms - 5, 0)
        if value % 5 == 0:
            self.timers.pop((key, "again"), None)


def modelled(events: Events, topics: int) -> list[Output]:
    """Run the model over the events in the order (running maximum, topic, offset)."""
    maxima = [-1] * topics
    ordered = []
    for number, (topic, key, value, at_ms) in enumerate(events):
        maxima[topic] = max(maxima[topic], at_ms)
        ordered.append((maxima[topic], topic, number, key, value, at_ms))
    model, known = Model(), [-1] * topics
    for time_ms, topic, _, key, value, at_ms in sorted(ordered):
        known[topic] = time_ms
        model.process(key, value, at_ms, min(known), time_ms)
    model.move(min(known))
    return model.outputs


class OneByOne(Random):
    """Batches of one record each."""

    def randint(self, a: int, b: int) -> int:
        return min(max(1, a), b)


def cluster_of(
    app: App, counts: dict[str, int], events: Events, seed: int, *, batches: bool = True
) -> Cluster:
    cluster = Cluster(app.topology(), counts, Random(seed) if batches else OneByOne(seed))
    for number, key, value, at_ms in events:
        payload = serde_for(int).dumps(value)
        topic, partition = (f"in-{number}", 0) if f"in-{number}" in counts else ("in-0", number)
        cluster.append(topic, partition, SinkRecord("", 0, at_ms, key.encode(), payload))
    return cluster


def outputs(cluster: Cluster, topic: str) -> list[Output]:
    return [
        Output((r.key or b"").decode(), (r.value or b"").decode(), r.timestamp_ms)
        for (name, _), log in sorted(cluster.logs.items())
        if name == topic
        for r in log
    ]


def events_of(topics: int, *, count: int = 40) -> st.SearchStrategy[Events]:
    return st.lists(
        st.tuples(
            st.integers(0, topics - 1),
            st.sampled_from(["a", "b", "c"]),
            st.integers(0, 20),
            st.integers(0, 80),
        ),
        max_size=count,
    )


def direct_app(topics: int) -> App:
    app = App("direct")
    inputs = [app.topic(f"in-{number}", key=str, value=int) for number in range(topics)]
    out = app.topic("out", key=str, value=str)
    app.stream(*inputs).process(Debounce, name="debounce").to(out)
    return app


def repartitioned_app(_topics: int) -> App:
    app = App("behind")
    numbers = app.topic("in-0", key=str, value=int)
    out = app.topic("out", key=str, value=str)
    stream = app.stream(numbers).repartition(name="again", partitions=1)
    stream.process(Debounce, name="debounce").to(out)
    return app


@pytest.mark.parametrize("app_of", [direct_app, repartitioned_app])
@given(events=events_of(1), seed=st.integers(0, 10_000))
def test_timer_output_equals_the_model_over_batches_and_restarts(
    app_of: Callable[[int], App], events: Events, seed: int
) -> None:
    cluster = cluster_of(app_of(1), {"in-0": 1, "out": 1}, events, seed)
    cluster.run(crashes=0)
    assert outputs(cluster, "out") == modelled(events, 1)


@given(events=events_of(2), seed=st.integers(0, 10_000))
def test_the_slower_of_two_inputs_sets_the_time(events: Events, seed: int) -> None:
    cluster = cluster_of(direct_app(2), {"in-0": 1, "in-1": 1, "out": 1}, events, seed)
    cluster.run(crashes=0)
    assert outputs(cluster, "out") == modelled(events, 2)


@given(events=events_of(1), seed=st.integers(0, 10_000))
def test_crashes_repeat_output_but_never_change_it(events: Events, seed: int) -> None:
    cluster = cluster_of(repartitioned_app(1), {"in-0": 1, "out": 1}, events, seed)
    cluster.run(crashes=10)
    assert {*outputs(cluster, "out")} == {*modelled(events, 1)}


@given(events=events_of(2), seed=st.integers(0, 10_000))
def test_records_from_timers_count_once_downstream(events: Events, seed: int) -> None:
    app = App("down")
    inputs = [app.topic(f"in-{number}", key=str, value=int) for number in range(2)]
    (
        app.stream(*inputs)
        .process(Debounce, name="debounce")
        .group_by_key()
        .aggregate(list, lambda rows, row: [*rows, row], name="rows")
    )
    cluster = cluster_of(app, {"in-0": 1, "in-1": 1}, events, seed)
    cluster.run(crashes=10)
    found: Counter[tuple[str, str]] = Counter()
    for task_id, task in cluster.tasks.items():
        if "rows" in cluster.subs[task_id].by_name:
            found.update((key, row) for key, rows in task.table("rows") for row in rows)
    assert found == Counter((row.key, row.text) for row in modelled(events, 2))


@given(events=events_of(3), seed=st.integers(0, 10_000))
def test_behind_a_repartition_the_slowest_source_sets_the_time(events: Events, seed: int) -> None:
    def outputs_with(*, batches: bool) -> list[Output]:
        counts = {"in-0": 3, "out": 1}
        cluster = cluster_of(repartitioned_app(1), counts, events, seed, batches=batches)
        cluster.run(crashes=0)
        return outputs(cluster, "out")

    times = [[at for topic, _, _, at in events if topic == number] for number in range(3)]
    found = outputs_with(batches=True)
    assert found == outputs_with(batches=False)
    # The time that all three sources have reached; everything due by then has fired.
    end_ms = min(max(each, default=-1) for each in times)
    reports = [row for row in found if row.text.startswith("report")]
    assert all(row.at_ms <= end_ms for row in reports)
    # A timer fires later only if a record of its key comes from a source that is ahead.
    limits_ms = {key: end_ms for _, key, _, _ in events}
    for source, key, _, _ in events:
        limits_ms[key] = max(limits_ms[key], *times[source])
    fired = [row for row in found if row.text.startswith("timer")]
    assert all(row.at_ms <= limits_ms.get(row.key, end_ms) for row in fired)


class Echo(Processor[str, str, str, str]):
    """Forwards each record with its stream time, and an echo 2 ms later."""

    def process(self, record: Record[str, str]) -> None:
        self.ctx.forward(record.key, f"{record.value} at {when_ms(self.ctx.stream_time)}")
        self.ctx.timers.set(record.key, when_ms(record.timestamp) + 2)

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        self.ctx.forward(key, f"echo at {when_ms(self.ctx.stream_time)}", timestamp=at)


@pytest.mark.parametrize("topics", [1, 2])
@given(data=st.data(), seed=st.integers(0, 10_000))
def test_a_chained_processor_is_independent_of_batches(
    topics: int, data: st.DataObject, seed: int
) -> None:
    class Plain(Debounce):
        def process(self, record: Record[str, int]) -> None:
            self.last.put(record.key, record.value)
            self.ctx.forward(record.key, "record")
            self.ctx.timers.set(record.key, when_ms(record.timestamp) + record.value)

    events = data.draw(events_of(topics))

    def outputs_with(*, batches: bool) -> list[Output]:
        app = App("behind")
        inputs = [app.topic(f"in-{number}", key=str, value=int) for number in range(topics)]
        out = app.topic("out", key=str, value=str)
        first = app.stream(*inputs).process(Plain, name="first")
        # Directly behind it, without a repartition topic, because keys do not change.
        first._at = replace(first._at, rekeyed=None)
        first.process(Echo, name="second").to(out)
        counts = {f"in-{number}": 1 for number in range(topics)}
        cluster = cluster_of(app, {**counts, "out": 1}, events, seed, batches=batches)
        assert len(cluster.tasks) == 1
        cluster.run(crashes=0)
        return outputs(cluster, "out")

    assert outputs_with(batches=True) == outputs_with(batches=False)


class Quiet(Debounce):
    """`Debounce` without stream time in its output, which depends on other sources."""

    def process(self, record: Record[str, int]) -> None:
        super().process(record)
        self.ctx.forwarded.values[-1] = f"record {record.value}"

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        super().on_timer(key, at, tag)
        self.ctx.forwarded.values[-1] = f"timer {tag} {self.last.get(key)}"
        self.ctx.timers.cancel("other", "at once")


@pytest.mark.parametrize("cluster_kind", [Cluster, AtomicCluster])
@settings(max_examples=settings().max_examples // 4, phases=(Phase.explicit, Phase.generate))
@given(events=events_of(3, count=12), seed=st.integers(0, 10_000), data=st.data())
def test_timers_and_records_of_a_key_keep_their_order(
    cluster_kind: type[Cluster], events: Events, seed: int, data: st.DataObject
) -> None:
    """Each key has its own source; live, the sources interleave in any order."""
    app = App("fed")
    numbers = app.topic("in-0", key=str, value=int)
    out = app.topic("out", key=str, value=str)
    counts_out = app.topic("counts", key=Windowed[str], value=int)
    rows = app.stream(numbers).rekey(lambda key, _: key, name="again").process(Quiet, name="quiet")
    rows.to(out)
    final = rows.filter(lambda key, _: key != "all").group_by_key().windowed(tumbling("10ms"))
    final.emit(Emit.UPDATE).count(name="final").changes().to(counts_out)
    counts = {"in-0": 3, "out": 1, "counts": 1}
    events = [(n, "abc"[n], value, at_ms) for n, _, value, at_ms in events]

    def outputs_with(fed: Events, *, at_once: bool) -> tuple[dict[str, list[Output]], int]:
        cluster = cluster_kind(app.topology(), counts, Random(seed))
        for number, key, value, at_ms in fed:
            payload = serde_for(int).dumps(value)
            cluster.append("in-0", number, SinkRecord("", 0, at_ms, key.encode(), payload))
            if not at_once:
                cluster.run(crashes=0)
        cluster.run(crashes=0)
        found = outputs(cluster, "out")
        late = cluster.drops["final", "late"]
        rows = [row for row in found if row.key != "all"]
        assert len(cluster.logs["counts", 0]) + late == len(rows)
        return {key: [row for row in rows if row.key == key] for key in "abc"}, late

    history, late = outputs_with(events, at_once=True)
    order = data.draw(st.permutations([number for number, *_ in events]))
    left = {n: iter([event for event in events if event[0] == n]) for n in range(3)}
    live, late_live = outputs_with([next(left[n]) for n in order], at_once=False)
    assert live == history
    assert late_live <= late
