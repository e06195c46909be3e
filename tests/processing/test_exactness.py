"""Final rows equal the oracle's, whatever the batches, interleavings, restarts and crashes.

The oracle is nested loops over the whole input. The engine runs in `Cluster`, which takes
turns at random, keeps topics as lists and stops tasks between any two steps of a commit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App, Record, Windowed, tumbling
from streamlog.durations import when_ms
from streamlog.processing.outbox import SinkRecord
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.records.murmur2 import partition_of_key
from streamlog.serdes import WindowedSerde, serde_for
from streamlog.tables.state.changelog import Restoration
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.topology import Subtopology, Topology
from streamlog.windows.definitions import Windows
from streamlog.windows.window_assigner import layout_of

SIZE_MS = 10
GRACE_MS = 3
FAR_MS = 1_000_000
Input = list[tuple[int, str, int, int]]
"""Partition, key, timestamp, value."""


class Cluster:
    """Tasks on lists of records, with crashes between the steps of a commit."""

    def __init__(
        self,
        topology: Topology,
        partitions: dict[str, int],
        rng: Random,
        *,
        merges: bool = True,
    ) -> None:
        self.rng = rng
        self.merges = merges
        self.topology = topology
        self.counts = topology.partition_counts(partitions)
        changelogs = topology.changelog_partitions(self.counts)
        self.logs: dict[tuple[str, int], list[RawRecord]] = defaultdict(list)
        self.stores: dict[TaskId, MemoryStore] = {}
        self.fed: dict[tuple[TaskId, str, int], int] = {}
        self.committed: dict[tuple[TaskId, str, int], int] = {}
        self.times: dict[TaskId, dict[tuple[str, int], int]] = {}
        """Stream times, which are committed with the offsets."""
        self.drops: Counter[tuple[str, str]] = Counter()
        self.subs: dict[TaskId, Subtopology] = {
            TaskId(sub.number, n): sub
            for sub in topology.subtopologies
            for n in range(sub.tasks(self.counts))
        }
        assert all(number > 0 for number in changelogs.values())
        self.tasks = {task_id: self.start(task_id) for task_id in self.subs}

    def start(self, task_id: TaskId) -> Task:
        sub = self.subs[task_id]
        store = None
        if sub.changelog_topic is not None:
            store = self.stores.setdefault(task_id, MemoryStore())
            log = self.logs[sub.changelog_topic, task_id.partition]
            restoration = Restoration(store, start_offset=0, end_offset=len(log))
            rest = [(r.key or b"", r.value) for r in log[restoration.position :]]
            restoration.apply(rest, next_offset=len(log))
        task = Task(sub, task_id, partitions=self.counts, store=store, merges=self.merges)
        for topic, partition in task.inputs:
            position = task.positions.get(
                (topic, partition), self.committed.get((task_id, topic, partition), 0)
            )
            task.start_at({(topic, partition): position})
            self.fed[task_id, topic, partition] = position
        task.start_at({}, self.times.get(task_id))
        return task

    def append(self, topic: str, partition: int | None, record: SinkRecord) -> None:
        if partition is None:
            partition = partition_of_key(record.route, self.counts[topic])
        log = self.logs[topic, partition]
        log.append(
            RawRecord(len(log), record.timestamp_ms, record.key, record.value, record.headers)
        )

    def feed(self, inputs: Input) -> None:
        """Write to the topic "words"."""
        for partition, key, timestamp_ms, value in inputs:
            payload = serde_for(int).dumps(value)
            record = SinkRecord("words", partition, timestamp_ms, key.encode(), payload)
            self.append("words", partition, record)

    def step(self, task_id: TaskId, *, crash: bool) -> bool:
        """Process some records in one task; commit, or crash between two steps."""
        task = self.tasks[task_id]
        records, ends = {}, {}
        for tp in task.inputs:
            log, fed = self.logs[tp], self.fed[task_id, *tp]
            ends[tp] = len(log)
            more = log[fed : fed + self.rng.randint(0, 7)]
            if more:
                records[tp] = more
                self.fed[task_id, *tp] = fed + len(more)
        outbox = task.process(records, 0, ends=ends)
        stop_at = self.rng.choice(["sending", "sent", "checkpoint"]) if crash else None
        sinks = [*outbox.sinks, *task.emit().sinks]
        if stop_at == "sending":
            sinks = sinks[: self.rng.randint(0, len(sinks))]
        for sink in sinks:
            self.append(sink.topic, sink.partition, sink)
        if stop_at in {"sending", "sent"}:
            self.tasks[task_id] = self.start(task_id)
            return True
        for (topic, partition), offset in outbox.offsets.items():
            self.committed[task_id, topic, partition] = offset
        self.times[task_id] = task.stream_times
        for drop in outbox.drops:
            self.drops[drop.node, drop.reason] += drop.count
        self.commit(task, write=stop_at is None)
        if stop_at is not None or self.rng.random() < 0.1:
            self.tasks[task_id] = self.start(task_id)
        return bool(records) or bool(sinks)

    def commit(self, task: Task, *, write: bool) -> None:
        changes = task.checkpoint()
        if task.subtopology.changelog_topic is None:
            return
        log = self.logs[task.subtopology.changelog_topic, task.id.partition]
        log += [RawRecord(len(log) + n, 0, key, value) for n, (key, value) in enumerate(changes)]
        if write:
            task.committed(changes, next_offset=len(log))

    def run(self, *, crashes: int) -> None:
        """Run the tasks in random order until no records wait or come."""
        left = crashes
        while True:
            order = list(self.tasks)
            self.rng.shuffle(order)
            moved = False
            for task_id in order:
                crash = left > 0 and self.rng.random() < 0.2
                left -= crash
                moved |= self.step(task_id, crash=crash)
            waiting = any(
                self.fed[task_id, *tp] < len(self.logs[tp])
                for task_id, task in self.tasks.items()
                for tp in task.inputs
            )
            if not moved and not waiting:
                return


def sums_app() -> App:
    """Sum per word and window, then sum those sums per bigger window."""
    app = App("sums")
    words = app.topic("words", key=str, value=int)
    final = app.topic("final", key=Windowed[str], value=int)
    bigger = app.topic("bigger", key=Windowed[str], value=int)
    small = (
        app.stream(words)
        .filter(lambda _, value: value >= 0)
        .group_by(lambda key, _: key, name="by-word")
        .windowed(tumbling(f"{SIZE_MS}ms", grace=f"{GRACE_MS}ms"))
        .reduce(lambda a, b: a + b, name="small")
    )
    small.changes().to(final)
    (
        small.changes()
        .map(lambda windowed, total: (windowed.key[:1], total), name="by-letter")
        .group_by_key()
        .windowed(tumbling(f"{3 * SIZE_MS}ms"))
        .reduce(lambda a, b: a + b, name="big")
        .changes()
        .to(bigger)
    )
    return app


Rows = Counter[tuple[str, int, int, int]]
"""Key, start, value and timestamp of the result; all counts must be 1."""


def oracle(inputs_: Input, partitions: int) -> tuple[Rows, Rows, int]:
    """Compute final rows of the small and the big windows, and the number of late records."""
    times = [-1] * partitions
    inside: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    late = 0
    for partition, key, timestamp_ms, value in inputs_:
        if value < 0:
            continue  # Filtered: it does not advance time.
        times[partition] = max(times[partition], timestamp_ms)
        start = timestamp_ms // SIZE_MS * SIZE_MS
        if start + SIZE_MS + GRACE_MS <= times[partition]:
            late += 1
        else:
            inside[key, start].append((timestamp_ms, value))
    small: Rows = Counter()
    big_inside: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for (key, start), entries in inside.items():
        if start + SIZE_MS + GRACE_MS <= min(times):
            at, total = max(ts for ts, _ in entries), sum(value for _, value in entries)
            small[key, start, total, at] += 1
            big_inside[key[:1], at // (3 * SIZE_MS) * 3 * SIZE_MS].append((at, total))
    big: Rows = Counter(
        (key, start, sum(total for _, total in entries), max(at for at, _ in entries))
        for (key, start), entries in big_inside.items()
    )
    return small, big, late


def starts_of(windows: Windows) -> WindowedSerde[str]:
    """Return the serde of keys with these windows; starts are right for any window size."""
    return WindowedSerde(serde_for(str), layout_of(windows))


def rows_of(cluster: Cluster, topic: str, *, distinct: bool) -> Rows:
    key_serde, value_serde = starts_of(tumbling("1ms")), serde_for(int)
    found: Rows = Counter()
    for (name, _), log in cluster.logs.items():
        if name != topic:
            continue
        for record in log:
            assert record.key is not None
            assert record.value is not None
            key = key_serde.loads(record.key)
            value = value_serde.loads(record.value)
            found[key.key, when_ms(key.start), value, record.timestamp_ms] += 1
    return Counter(set(found)) if distinct else found


def closed(inputs: Input, partitions: int) -> Input:
    """Return the inputs with a last record in each partition that closes all windows."""
    return [*inputs, *((partition, "end", FAR_MS, 0) for partition in range(partitions))]


def filtered_behind(inputs: Input) -> Input:
    """Return the inputs with no filtered record (negative value) ahead of its partition.

    Then a record is late by its own source alone. `oracle.test_kafka_lateness` covers filtered
    records that are ahead.
    """
    latest: dict[int, int] = {}
    kept: Input = []
    for partition, key, timestamp_ms, value in inputs:
        if value >= 0:
            latest[partition] = max(latest.get(partition, -1), timestamp_ms)
        if partition in latest:
            kept.append((partition, key, min(timestamp_ms, latest[partition]), value))
    return kept


def run(
    inputs: Input, *, partitions: int, seed: int, crashes: int, app: App | None = None
) -> Cluster:
    topology = (app or sums_app()).topology()
    counts = {"words": partitions, "final": 2, "bigger": 2}
    cluster = Cluster(topology, counts, Random(seed))
    cluster.feed(inputs)
    cluster.run(crashes=crashes)
    return cluster


events = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["ab", "ac", "b", "c"]),
        st.integers(0, 120),
        st.integers(-1, 5),
    ),
    max_size=60,
)


@given(events, st.integers(0, 10_000))
def test_final_rows_match_nested_loops(inputs: Input, seed: int) -> None:
    inputs = closed(filtered_behind(inputs), 3)
    cluster = run(inputs, partitions=3, seed=seed, crashes=0)
    small, big, late = oracle(inputs, 3)
    assert rows_of(cluster, "final", distinct=False) == small
    assert rows_of(cluster, "bigger", distinct=False) == big
    assert cluster.drops["small", "late"] == late
    assert cluster.drops["big", "late"] == 0


@given(events, st.integers(0, 10_000))
def test_a_crash_between_any_two_steps_of_a_commit_changes_no_row(inputs: Input, seed: int) -> None:
    inputs = closed(filtered_behind(inputs), 3)
    cluster = run(inputs, partitions=3, seed=seed, crashes=12)
    small, big, _ = oracle(inputs, 3)
    # Sinks may repeat a row after a crash (no transactions), but never with another value.
    assert rows_of(cluster, "final", distinct=True) == small
    assert rows_of(cluster, "bigger", distinct=True) == big


def test_repeated_repartition_records_are_dropped_by_position() -> None:
    inputs: Input = closed([(0, "ab", ts, 1) for ts in range(30)], 1)
    dropped = 0
    for seed in range(20):
        cluster = run(inputs, partitions=1, seed=seed, crashes=12)
        dropped += cluster.drops["sums-by-word-repartition", "duplicate"]
        small, _, _ = oracle(inputs, 1)
        assert rows_of(cluster, "final", distinct=True) == small
    assert dropped > 0


def test_a_window_stays_open_until_the_slowest_source_passes_it() -> None:
    app = App("slow")
    words = app.topic("words", key=str, value=int, partitions=2)
    final = app.topic("final", key=Windowed[str], value=int)
    app.stream(words).group_by(lambda k, _: k, name="by-word").windowed(tumbling("10ms")).count(
        name="counts"
    ).changes().to(final)
    with app.test() as t:
        source = t.input(words)
        source.send(1, key="a", at=5, partition=0)
        source.send(1, key="a", at=100, partition=0)
        assert t.output(final).records == []  # Partition 1 has no record yet.
        source.send(1, key="a", at=6, partition=1)  # Not late: its own source is at 6.
        source.send(1, key="b", at=50, partition=1)
        first: Record[Windowed[str], int] = t.output(final).pop()
        assert (first.key.key, first.value) == ("a", 2)


def met_app(*, direct: bool) -> App:
    """Merge two paths of one topic before windows."""
    app = App("met")
    words = app.topic("words", key=str, value=int)
    final = app.topic("final", key=Windowed[str], value=int)
    read = app.stream(words)
    first = read.rekey(lambda key, _: key[:1]).repartition(name="first")
    last = read if direct else read.rekey(lambda key, _: key[-1:]).repartition(name="last")
    windows = first.merge(last).group_by_key().windowed(tumbling(f"{SIZE_MS}ms"))
    windows.count(name="met").changes().to(final)
    return app


@pytest.mark.parametrize("direct", [False, True])
@given(inputs=events, seed=st.integers(0, 10_000))
@settings(max_examples=40)
def test_two_paths_of_a_source_do_not_make_each_other_late(
    direct: bool, inputs: Input, seed: int
) -> None:
    inputs = closed(inputs, 3)
    cluster = run(inputs, partitions=3, seed=seed, crashes=0, app=met_app(direct=direct))
    times, late, counts = Counter[int](), 0, Counter[tuple[str, int]]()
    for partition, key, timestamp_ms, _ in inputs:
        times[partition] = max(times[partition], timestamp_ms)
        start_ms = timestamp_ms // SIZE_MS * SIZE_MS
        is_late = start_ms + SIZE_MS <= times[partition]
        late += 2 * is_late
        for met in () if is_late else (key[:1], key if direct else key[-1:]):
            counts[met, start_ms] += 1
    found = Counter[tuple[str, int]]()
    for (key, at, count, _), rows in rows_of(cluster, "final", distinct=False).items():
        found[key, at] += count * rows
    assert cluster.drops["met", "late"] == late
    assert found == {tp: n for tp, n in counts.items() if tp[1] < FAR_MS}
