"""Behind a repartition, records come in time order, in whatever order they were sent.

Runs of `Cluster`, which sends nothing before its commit (as under exactly-once), interleave tasks
and restart them at random. Every run must write identical sequences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Windowed, tumbling
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.column_batch import Batch
from streamlog.processing.inputs.repartition_input import MergedInput
from streamlog.processing.outbox import Collector, SinkRecord
from streamlog.processing.provenance import (
    BUSY_MS,
    MARK,
    PROVENANCE,
    ProvenanceMark,
    identity,
    pack_mark,
    pack_record,
)
from streamlog.processing.task import TaskId
from streamlog.records.batch import LogRecord
from streamlog.serdes import serde_for
from streamlog.topology import Topology
from tests.processing.test_exactness import Cluster, Input

PARTITIONS = 3
Sequences = dict[tuple[str, bytes | None], list[tuple[bytes | None, int]]]
"""Values and timestamps by topic and key. All records of a key come from one task."""


class AtomicCluster(Cluster):
    """A commit of outputs, changelog, offsets and stream times is all or nothing."""

    def __init__(self, topology: Topology, partitions: dict[str, int], rng: Random) -> None:
        self.now_ms = 0
        """Wall-clock time; it advances before each step."""
        # A restarted task sends its marks again: a restart in every step would never end.
        self.restarts_left = 40
        super().__init__(topology, partitions, rng)

    def step(self, task_id: TaskId, *, crash: bool) -> bool:
        task = self.tasks[task_id]
        records, ends = {}, {}
        for tp in task.inputs:
            log, fed = self.logs[tp], self.fed[task_id, *tp]
            ends[tp] = len(log)
            more = log[fed : fed + self.rng.randint(0, 7)]
            if more:
                records[tp] = more
                self.fed[task_id, *tp] = fed + len(more)
        self.now_ms += 10_000
        outbox = task.process(records, self.now_ms, ends=ends)
        if crash:
            self.tasks[task_id] = self.start(task_id)
            return True
        for sink in outbox.sinks:
            self.append(sink.topic, sink.partition, sink)
        for (topic, partition), offset in outbox.offsets.items():
            self.committed[task_id, topic, partition] = offset
        for drop in outbox.drops:
            self.drops[drop.node, drop.reason] += drop.count
        self.commit(task, write=True)
        self.times[task_id] = task.stream_times
        if self.restarts_left and self.rng.random() < 0.15:
            self.restarts_left -= 1
            self.tasks[task_id] = self.start(task_id)
        return bool(records) or bool(outbox.sinks)


def two_hops() -> Topology:
    """Order-sensitive on both levels: words are concatenated, and so are the changes."""
    app = App("hops")
    words = app.topic("words", key=str, value=str)
    once = app.topic("once", key=str, value=str)
    twice = app.topic("twice", key=str, value=str)
    windows = app.topic("windows", key=Windowed[str], value=int)
    by_word = app.stream(words).group_by(lambda key, _: key[:1], name="by-letter")
    texts = by_word.reduce(lambda a, b: f"{a},{b}", name="texts")
    texts.changes().to(once)
    (
        texts.changes()
        .group_by(lambda _, text: str(len(text) % 2), name="by-length")
        .reduce(lambda a, b: f"{a};{b}", name="lengths")
        .changes()
        .to(twice)
    )
    (
        by_word.windowed(tumbling("10ms", grace="3ms"))
        .emit(Emit.UPDATE)
        .count(name="counts")
        .changes()
        .to(windows)
    )
    return app.topology()


def run(inputs: Input, *, seed: int, crashes: int) -> tuple[Sequences, AtomicCluster]:
    counts = {"words": PARTITIONS, "once": 2, "twice": 2, "windows": 2}
    cluster = AtomicCluster(two_hops(), counts, Random(seed))
    for partition, key, timestamp_ms, value in inputs:
        text = serde_for(str).dumps(str(value))
        record = SinkRecord("words", partition, timestamp_ms, key.encode(), text)
        cluster.append("words", partition, record)
    cluster.run(crashes=crashes)
    found: Sequences = defaultdict(list)
    for (topic, _), log in cluster.logs.items():
        if topic in {"once", "twice", "windows"}:
            for r in log:
                found[topic, r.key].append((r.value, r.timestamp_ms))
    return found, cluster


def oracle(inputs: Input) -> dict[str, str]:
    """Return the last text of every letter by a sort: (running maximum, partition, offset)."""
    times = [-1] * PARTITIONS
    ordered = []
    for number, (partition, key, timestamp_ms, value) in enumerate(inputs):
        times[partition] = max(times[partition], timestamp_ms)
        ordered.append((times[partition], partition, number, key[:1], str(value)))
    texts: dict[str, str] = {}
    for _, _, _, letter, value in sorted(ordered):
        texts[letter] = f"{texts[letter]},{value}" if letter in texts else value
    return texts


events = st.lists(
    st.tuples(
        st.integers(0, PARTITIONS - 1),
        st.sampled_from(["ab", "ac", "b", "c"]),
        st.integers(0, 60),
        st.integers(0, 9),
    ),
    max_size=40,
)


@given(events, st.integers(0, 10_000), st.sampled_from([0, 8]))
def test_output_is_deterministic_across_interleavings_and_crashes(
    inputs: Input, seed: int, crashes: int
) -> None:
    first, cluster = run(inputs, seed=0, crashes=0)
    other, _ = run(inputs, seed=seed, crashes=crashes)
    assert other == first
    text = serde_for(str).loads
    last = {
        text(r.key or b""): text(r.value or b"") for n in (0, 1) for r in cluster.logs["once", n]
    }
    assert last == oracle(inputs)


# ---------------------------------------------------------------- one input by itself


SPEC = TopicSpec("r", serde_for(str), serde_for(int), internal=True)
SOURCES = [("a", 0), ("a", 1), ("b", 0)]


def value_of(rank: int, position: int, time_ms: int) -> LogRecord:
    name, partition = SOURCES[rank]
    data = pack_record(time_ms, time_ms, position, 0) + identity((name, partition))
    value = serde_for(int).dumps(1000 * rank + position)
    return LogRecord(0, time_ms, b"k", value, ((PROVENANCE, data),))


def mark_of(rank: int, time_ms: int, quiet_ms: int) -> LogRecord:
    data = pack_mark(ProvenanceMark(time_ms, time_ms, quiet_ms), identity(SOURCES[rank]))
    return LogRecord(0, max(time_ms, 0), None, None, ((MARK, data),))


def mark_of_gone(time_ms: int) -> LogRecord:
    data = pack_mark(ProvenanceMark(time_ms, time_ms, BUSY_MS), identity(("gone", 0)))
    return LogRecord(0, max(time_ms, 0), None, None, ((MARK, data),))


def merged(**settings: Any) -> tuple[MergedInput, Collector]:
    collector = Collector()
    entry = MergedInput(SPEC, 0, 0, sources=SOURCES, collector=collector, **settings)
    entry.start_at(0)
    return entry, collector


def log_of(*records: LogRecord) -> list[LogRecord]:
    return [record._replace(offset=offset) for offset, record in enumerate(records)]


def taken(entry: MergedInput) -> list[int]:
    found: list[int] = []
    while entry.head() is not None:
        batch: Batch = entry.take(None, None)
        found += batch.values
    return found


def test_marks_of_a_source_that_is_gone_hold_nothing_back() -> None:
    """A topic that matched a pattern was deleted: its last marks may still be in the log."""
    log = [value_of(0, 0, 10), value_of(1, 0, 5), *(mark_of(rank, 10, 0) for rank in range(3))]
    found = []
    for extra in ([], [mark_of_gone(1), mark_of_gone(99)]):
        entry, _ = merged()
        entry.arrive(log_of(*extra[:1], *log, *extra[1:]))
        found.append((taken(entry), entry.source_times(), entry.newest_ms))
    assert found[0] == found[1]
    assert found[0][0] == [1000, 0]


GONE = ("gone", 0)
"""A partition of a topic that matched a pattern, and was deleted."""


def value_of_gone(position: int, time_ms: int) -> LogRecord:
    data = pack_record(time_ms, time_ms, position, 0) + identity(GONE)
    value = serde_for(int).dumps(9000 + position)
    return LogRecord(0, time_ms, b"k", value, ((PROVENANCE, data),))


@st.composite
def logs_with_a_source_that_is_gone(draw: st.DrawFn) -> list[LogRecord]:
    """Records and marks of three sources, and records of one that is gone; each in time order."""
    found: list[LogRecord] = []
    times, positions = [0] * 4, [0] * 4
    for rank, step_ms, is_mark in draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=30)
    ):
        times[rank] += step_ms
        if is_mark and rank < len(SOURCES):
            found.append(mark_of(rank, times[rank], BUSY_MS))
            continue
        at, positions[rank] = positions[rank], positions[rank] + 1
        is_gone = rank == len(SOURCES)
        found.append(value_of_gone(at, times[rank]) if is_gone else value_of(rank, at, times[rank]))
    return log_of(*found, *(mark_of(rank, 400, 0) for rank in range(len(SOURCES))))


def lives(log: list[LogRecord], cuts: Iterable[int], *, was_there: bool) -> list[int]:
    """Return what is taken by lives that read the log on, each from the place of the one before.

    Each life takes one batch of two for every record that arrives; the last one takes all.
    `was_there`: the first life still has the source that is gone.
    """
    found: list[int] = []
    data: dict[str, object] = {}
    position = 0
    for number, end in enumerate([*cuts, len(log)]):
        sources = [*SOURCES, GONE] if was_there and not number else SOURCES
        entry = MergedInput(
            SPEC, 0, 0, sources=sources, collector=Collector(), may_be_gone=GONE.__eq__
        )
        entry.start_at(position)
        if data:
            entry.load(data)
        for record in log[position:end]:
            entry.arrive([record])
            found += entry.take(None, 2).values if entry.head() is not None else ()
        if end == len(log):
            found += taken(entry)
        data, position = entry.to_data(), entry.position or 0
    return found


@given(
    logs_with_a_source_that_is_gone(),
    st.lists(st.integers(0, 33), min_size=1, max_size=3).map(sorted),
    st.booleans(),
)
def test_records_of_a_source_that_is_gone_are_taken_once_over_any_restarts(
    log: list[LogRecord], cuts: list[int], was_there: bool
) -> None:
    """And those of the others come in the order that they have without it."""
    found = lives(log, cuts, was_there=was_there)
    loads = serde_for(int).loads
    assert sorted(found) == sorted(loads(each.value) for each in log if each.value is not None)
    if not was_there:
        without = log_of(*(each for each in log if identity(GONE) not in provenance(each)))
        expected = lives(without, [], was_there=False)
        assert [each for each in found if each < 9000] == expected


def provenance(record: LogRecord) -> bytes:
    """Return the record's provenance."""
    return record.headers[-1][1] or b""


@given(logs_with_a_source_that_is_gone())
def test_a_source_that_is_gone_advances_no_time(log: list[LogRecord]) -> None:
    without = log_of(*(each for each in log if identity(GONE) not in provenance(each)))
    times = []
    for each in (log, without):
        entry, _ = merged(may_be_gone=GONE.__eq__)
        entry.arrive(each)
        taken(entry)
        times.append((entry.source_times(), entry.time_ms, entry.marked_ms, entry.is_at_end()))
    assert times[0] == times[1]


def test_what_a_source_that_is_gone_has_sent_is_known_until_it_is_not_read_again() -> None:
    entry, _ = merged(may_be_gone=GONE.__eq__)
    log = log_of(value_of(0, 0, 50), value_of_gone(0, 5), *(mark_of(n, 9, BUSY_MS) for n in (1, 2)))
    entry.arrive(log)
    # The first record waits, so both are read again after a restart.
    assert (taken(entry), entry.position) == ([9000], 0)
    rows: Any = entry.to_data()["sources"]
    assert [*GONE, 0, 0] in [row[:4] for row in rows]
    entry.arrive([mark_of(n, 90, 0)._replace(offset=4 + n) for n in (1, 2)])
    assert (taken(entry), entry.position) == ([0], 7)
    rows = entry.to_data()["sources"]
    assert [tuple(row[:2]) for row in rows] == SOURCES


def test_a_record_of_a_source_that_is_gone_counts_as_one_of_the_slowest() -> None:
    """Its own time says nothing about the others: it must make none of their records late."""
    entry, _ = merged(may_be_gone=GONE.__eq__)
    log = log_of(*(value_of(rank, 0, 10 + rank) for rank in (2, 1, 0)), value_of_gone(0, 70))
    entry.arrive([*log, *(mark_of(n, 90, 0)._replace(offset=4 + n) for n in range(3))])
    first = entry.take(None, 3)
    batch = entry.take(None, None)
    assert (first.values, batch.values) == ([0, 1000, 2000], [9000])
    assert (batch.origin.sources, batch.origin.times) == ([SOURCES[0]], [10])


def test_a_record_waits_for_every_source_that_may_send_an_earlier_one() -> None:
    entry, _ = merged()
    log = log_of(
        value_of(0, 0, 10),
        value_of(1, 0, 5),
        mark_of(2, 10, BUSY_MS),
        mark_of(1, 10, BUSY_MS),
        mark_of(1, 11, BUSY_MS),
        mark_of(2, 10, 0),
    )
    entry.arrive(log[:2])
    assert taken(entry) == []
    assert (entry.position, len(entry)) == (0, 0)
    entry.arrive(log[2:3])
    assert taken(entry) == [1000]  # Source 2 is at 10, and no other source is below 5.
    assert entry.position == 0
    entry.arrive(log[3:4])
    assert taken(entry) == [0]  # At equal times the rank decides, and 0 is the lowest.
    assert entry.position == 4
    entry.learn_end(6, now_ms=0, took=False)
    assert not entry.at_end
    entry.arrive(log[4:])
    entry.learn_end(6, now_ms=0, took=False)
    assert not entry.at_end  # Sources 0 and 1 have sent no mark about it.


def left_out_mark(rank: int, turn_ms: int, time_ms: int, quiet_ms: int) -> LogRecord:
    """Return the mark of a source whose records from the time to the turn were filtered."""
    data = pack_mark(ProvenanceMark(turn_ms, time_ms, quiet_ms), identity(SOURCES[rank]))
    return LogRecord(0, max(time_ms, 0), None, None, ((MARK, data),))


def late_turn(rank: int, position: int, turn_ms: int, time_ms: int) -> LogRecord:
    """Return a record with a merge key beyond its time: a later record was filtered."""
    data = pack_record(turn_ms, time_ms, position, 0) + identity(SOURCES[rank])
    value = serde_for(int).dumps(1000 * rank + position)
    return LogRecord(0, time_ms, b"k", value, ((PROVENANCE, data),))


@pytest.mark.parametrize("idle_after_ms", [None, 1_000])
def test_time_does_not_pass_a_record_that_waits(idle_after_ms: int | None) -> None:
    """Not even if a mark after the record reports that its source has been quiet long."""
    entry, _ = merged(idle_after_ms=idle_after_ms)
    log = log_of(
        mark_of(1, 100, BUSY_MS),
        mark_of(2, 100, BUSY_MS),
        value_of(0, 0, 90),
        late_turn(0, 1, 200, 110),
        left_out_mark(0, 200, 110, 5_000),
        mark_of(1, 150, BUSY_MS),
        mark_of(2, 150, BUSY_MS),
        mark_of(1, 300, BUSY_MS),
        mark_of(2, 300, BUSY_MS),
    )
    entry.arrive(log[:3])
    assert taken(entry) == [0]
    entry.arrive(log[3:7])
    assert (taken(entry), entry.time_ms) == ([], 110)
    entry.arrive(log[7:])
    assert entry.take(None, None).origin.watermarks == [110]


@pytest.mark.parametrize("ending", [BUSY_MS, 0])
def test_the_time_at_a_record_does_not_depend_on_the_fetches(ending: int) -> None:
    """A record filtered upstream advances a source's turn, not its time (decision 012)."""
    log = log_of(
        value_of(0, 0, 5),
        value_of(1, 0, 6),
        value_of(2, 0, 7),
        left_out_mark(0, 20, 5, BUSY_MS),
        value_of(1, 1, 12),
        value_of(2, 1, 18),
        value_of(1, 2, 22),
        value_of(0, 1, 30),
        left_out_mark(0, 40, 30, ending),
        mark_of(1, 50, BUSY_MS),
        mark_of(2, 50, BUSY_MS),
    )
    whole = times_at(log, [log])
    assert [value for value, _ in whole] == [0, 1000, 2000, 1001, 2001, 1002, 1]
    assert [time_ms for _, time_ms in whole] == [5, 6, 7, 12, 18, 22, 30]
    for at in range(len(log)):
        assert times_at(log, [log[:at], log[at:]]) == whole
    assert times_at(log, [[record] for record in log]) == whole


def times_at(log: list[LogRecord], arrivals: list[list[LogRecord]]) -> list[tuple[int, int]]:
    """Return every value with the time of a node without `idle_after` at that point."""
    entry, _ = merged()
    found: list[tuple[int, int]] = []
    reached_ms = -1
    for arrival in arrivals:
        entry.arrive(arrival)
        entry.learn_end(len(log), now_ms=0, took=False)
        while entry.head() is not None:
            batch: Batch = entry.take(None, None)
            for value, watermark_ms in zip(batch.values, batch.origin.watermarks, strict=True):
                reached_ms = max(reached_ms, min(watermark_ms, entry.held_ms(None)))
                found.append((value, reached_ms))
    return found


CUT_MS = 60


@pytest.mark.parametrize("stop_ms", [None, 30])
@pytest.mark.parametrize("idle_after_ms", [None, 0])
def test_the_state_at_a_cut_does_not_depend_on_the_fetches(
    stop_ms: int | None, idle_after_ms: int | None
) -> None:
    """Another input of the task may hold back the records from `stop_ms` on."""
    for seed in range(500):
        check_fetches(Random(seed), stop_ms, idle_after_ms, f"seed {seed}")


def check_fetches(
    rng: Random, stop_ms: int | None, idle_after_ms: int | None, context: str
) -> None:
    log = cut_history(rng)
    stop = None if stop_ms is None else (stop_ms, -1)
    states = []
    for sizes in ([len(log)], [1] * len(log), [rng.randint(1, 4) for _ in log]):
        entry, _ = merged(idle_after_ms=idle_after_ms)
        read = 0
        for size in sizes:
            entry.arrive(log[read : read + size])
            read += size
            entry.learn_end(len(log), now_ms=0, took=False)
            while (head := entry.head()) is not None and (stop is None or head < stop):
                entry.take(stop, rng.choice([None, 1, 2]))
        states.append((entry.to_data(), entry.position, entry.source_times(), entry.united_ms))
    assert states[1:] == states[:1] * 2, context


def cut_history(rng: Random) -> list[LogRecord]:
    """Return a history as its stages write it: in the order of the merge, with marks anywhere.

    Some sources are read to their end, others up to `CUT_MS`. Records are left out, before or
    behind the node whose time counts, or are for other partitions.
    """
    found: list[tuple[int, int, int, LogRecord]] = []
    for rank in range(len(SOURCES)):
        turn_ms = time_ms = -1
        for position in range(rng.choice([0, 1, 4, 8])):
            turn_ms = min(max(turn_ms, 0) + rng.choice([0, 0, 3, 11]), CUT_MS - 1)
            where = rng.choice(["here", "here", "another partition", "left out"])
            if where != "left out":
                time_ms = max(time_ms, turn_ms - rng.choice([0, 0, 5]), 0)
            if where == "here":
                found.append((turn_ms, rank, position, late_turn(rank, position, turn_ms, time_ms)))
            if rng.random() < 0.4:
                mark = left_out_mark(rank, max(turn_ms, time_ms), time_ms, BUSY_MS)
                found.append((turn_ms, rank, position, mark))
        if rng.random() < 0.5:
            mark = left_out_mark(rank, turn_ms, time_ms, 0)
            found.append((turn_ms, rank, 100, mark))
        else:
            found.append((turn_ms, rank, 100, left_out_mark(rank, turn_ms, time_ms, BUSY_MS)))
            found.append((CUT_MS, rank, 101, left_out_mark(rank, CUT_MS, -1, BUSY_MS)))
    return log_of(*(record for *_, record in sorted(found, key=lambda each: each[:3])))


def test_a_source_at_its_end_does_not_block_and_keeps_its_time() -> None:
    entry, _ = merged()
    entry.arrive(log_of(value_of(0, 0, 50), mark_of(1, 7, 0), mark_of(2, -1, 0)))
    assert taken(entry) == [0]
    assert [(ms, quiet) for _, ms, quiet in entry.source_times()] == [(50, 0), (7, 0), (-1, 0)]
    entry.arrive([r._replace(offset=3) for r in [mark_of(0, 60, 0)]])
    entry.learn_end(4, now_ms=0, took=True)
    assert entry.at_end
    # Its turn advances; stream time stays with the source that never had a record.
    assert (entry.turn_ms, entry.time_ms) == (60, -1)


def test_a_restart_rereads_untaken_records_and_keeps_marks() -> None:
    log = log_of(
        mark_of(0, -1, 0),
        mark_of(1, 3, 0),
        value_of(0, 0, 10),
        value_of(1, 0, 4),
        mark_of(2, 9, BUSY_MS),
        value_of(1, 1, 20),
    )
    entry, _ = merged()
    entry.arrive(log)
    assert taken(entry) == [1000]
    assert entry.position == 2
    again, collector = merged()
    again.load(entry.to_data())
    again.start_at(2)
    again.arrive(log[2:4])
    # Source 0 has a record at 10 and source 2 may still send from 9 on: nothing is released.
    assert taken(again) == []
    again.arrive(log[4:])
    assert taken(again) == []
    again.arrive([mark_of(2, 30, 0)._replace(offset=6), mark_of(0, 10, 0)._replace(offset=7)])
    assert taken(again) == [0, 1001]
    assert [(d.reason, d.count) for d in collector.take().drops] == [("duplicate", 1)]


def test_a_source_stays_at_its_end_after_a_restart_without_a_new_mark() -> None:
    log = log_of(
        mark_of(2, 9, BUSY_MS),
        mark_of(0, 10, 0),
        mark_of(1, 10, 0),
        value_of(0, 0, 10),
        value_of(1, 0, 10),
    )
    entry, _ = merged()
    entry.arrive(log)
    assert taken(entry) == []
    again, _ = merged()
    again.load(entry.to_data())
    again.start_at(3)
    again.arrive(log[3:4])
    assert taken(again) == []
    # The marks of the end came before the records, which wait for another source.
    again.arrive(log[4:])
    again.arrive([mark_of(2, 20, 0)._replace(offset=5)])
    assert taken(again) == [0, 1000]
    again.learn_end(6, now_ms=0, took=True)
    assert again.at_end


@pytest.mark.parametrize("buffer_bytes", [4_000, 40_000])
def test_an_overfull_buffer_releases_records_in_order_and_counts_them(buffer_bytes: int) -> None:
    entry, collector = merged(buffer_bytes=buffer_bytes)
    entry.arrive(log_of(*(value_of(0, at, at) for at in range(500))))
    early = taken(entry)
    assert early == [*range(len(early))]
    (drop,) = collector.take().drops
    assert drop.node == "r, waiting for a-1"
    assert (drop.reason, drop.count) == ("out of order", len(early))
    assert (500 - len(early)) * 400 <= buffer_bytes
    # A record that comes too late for its position in the order is still processed.
    late = value_of(1, 0, 3)._replace(offset=500)
    entry.arrive([late, *(mark_of(r, 600, 0)._replace(offset=501 + r) for r in range(3))])
    assert taken(entry) == [1000, *range(len(early), 500)]


def test_a_long_wait_is_described_with_the_sources_behind_and_ahead() -> None:
    entry, _ = merged(buffer_bytes=40_000)
    assert entry.wait is None
    far_ms = 4_000_000_000_000
    log = log_of(value_of(1, 0, 1_000), value_of(2, 0, 2_000), value_of(0, 0, far_ms))
    entry.arrive(log)
    assert taken(entry) == [1000]
    wait = entry.wait
    assert wait is not None
    assert not wait.is_much
    more = (value_of(0, at, far_ms + at)._replace(offset=at + 2) for at in range(1, 60))
    entry.arrive([*more])
    wait = entry.wait
    assert wait is not None
    assert wait.is_much
    assert (wait.behind, wait.ahead) == (("a", 1), ("a", 0))
    assert wait.apart_ms == far_ms + 59 - 1_000
    text_of_wait = wait.describe()
    assert "wait in r-0 for a-1 (at 1970-01-01T00:00:01+00:00)" in text_of_wait
    assert "most of it from a-0 (at 2096-10-02T" in text_of_wait
    # All sources are at their ends: no wait is left.
    entry.arrive([mark_of(rank, 1_000, 0)._replace(offset=62 + rank) for rank in range(3)])
    assert len(taken(entry)) == 61
    assert entry.wait is None
