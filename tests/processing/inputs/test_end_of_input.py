"""Records that were in the log before an end-of-input question are taken in time order.

This holds after a quiet phase and after a restart, too.

The runs are those of `test_merged_input`: tasks take turns at random and restart at random; here,
the inputs are quiet between phases. Questions are settled as a worker settles them, by
`EndQuestion`, from the ends of the logs and the committed offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.inputs.end_of_input import (
    LAST_RANK,
    SKEW_MS,
    CaughtUpCheck,
    EndOfInputQuestion,
    InputEnd,
)
from streamlog.processing.inputs.record_queue import Input, RecordQueue
from streamlog.processing.outbox import SinkRecord
from streamlog.processing.provenance import BUSY_MS
from streamlog.processing.task import Task, TaskId
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.murmur2 import partition_of_key
from streamlog.serdes import serde_for
from streamlog.topology import Topology
from streamlog.worker.inputs.end_questions import EndQuestion, levels_above
from tests.processing.inputs.test_merged_input import (
    AtomicCluster,
    log_of,
    mark_of,
    merged,
    taken,
    value_of,
)

APART_MS = 10 * SKEW_MS
PARTITIONS = 2
Event = tuple[str, int, str, int]
"""Topic, partition, key, and its time in steps of `APART_MS`."""


class AskingCluster(AtomicCluster):
    """A cluster whose tasks ask about ends of input and get confirmations."""

    def __init__(self, topology: Topology, partitions: dict[str, int], rng: Random) -> None:
        self.questions: dict[tuple[TaskId, object], EndQuestion] = {}
        self.ends: dict[TaskId, dict[tuple[str, int], int]] = {}
        super().__init__(topology, partitions, rng)

    def start(self, task_id: TaskId) -> Task:
        self.questions = {at: each for at, each in self.questions.items() if at[0] != task_id}
        plain = super().start(task_id)
        sub, store = self.subs[task_id], self.stores.get(task_id)
        task = Task(sub, task_id, partitions=self.counts, store=store, asks_about_ends=True)
        task.start_at(plain.positions, self.times.get(task_id))
        self.ends[task_id] = {tp: len(self.logs[tp]) for tp in task.inputs}
        return task

    def step(self, task_id: TaskId, *, crash: bool) -> bool:
        task = self.tasks[task_id]
        records, ends = {}, self.ends[task_id]
        for tp in task.inputs:
            log, fed = self.logs[tp], self.fed[task_id, *tp]
            # A fetch learns the end only of partitions from which it returns records.
            more = log[fed : fed + self.rng.randint(0, 7)]
            if more:
                ends[tp] = len(log)
                records[tp] = more
                self.fed[task_id, *tp] = fed + len(more)
        settled = self.settled(task_id)
        self.now_ms += 10_000
        outbox = task.process(records, self.now_ms, ends=ends, confirmed=settled)
        for question in task.end_questions:
            self.ask(task_id, question)
        if crash:
            self.tasks[task_id] = self.start(task_id)
            return True
        for sink in outbox.sinks:
            self.append(sink.topic, sink.partition, sink)
        for tp, offset in task.positions.items():
            self.committed[task_id, *tp] = offset
        self.commit(task, write=True)
        self.times[task_id] = task.stream_times
        if self.restarts_left and self.rng.random() < 0.15:
            self.restarts_left -= 1
            self.tasks[task_id] = self.start(task_id)
        return bool(records) or bool(outbox.sinks) or bool(task.end_questions) or bool(settled)

    def ask(self, task_id: TaskId, question: EndOfInputQuestion) -> None:
        if (task_id, question.about) not in self.questions:
            levels = levels_above(
                self.topology,
                self.counts,
                TopicPartition(*question.topic_partition),
                question.source,
            )
            self.questions[task_id, question.about] = EndQuestion(question, levels)

    def settled(self, task_id: TaskId) -> list[EndOfInputQuestion]:
        """Advance each question by a step, or not at all: the asking worker may be slow."""
        found: list[EndOfInputQuestion] = []
        for about, each in [*self.questions.items()]:
            if about[0] != task_id or self.rng.random() < 0.3:
                continue
            each.receive_ends({part: len(self.logs[part]) for part in each.wants_ends})
            committed = {TopicPartition(*at[1:]): end for at, end in self.committed.items()}
            each.receive_committed(committed)
            each.receive_positions(
                {TopicPartition(*at[1:]): end for at, end in self.fed.items() if at[0] == task_id}
            )
            if each.is_settled:
                found.append(self.questions.pop(about).question)
        return found


def same_key(key: str, _: str) -> str:
    return key


def appended(app: App, *, ways: int) -> None:
    """Concatenate records of `a`, read directly, and of `b`, through `ways` repartitions."""
    a = app.topic("a", key=str, value=str)
    b = app.topic("b", key=str, value=str)
    texts = app.topic("texts", key=str, value=str)
    far = app.stream(b)
    for way in range(ways):
        far = far.rekey(same_key).repartition(name=f"way-{way}")
    both = app.stream(a).merge(far).group_by_key()
    both.reduce(lambda one, two: f"{one},{two}", name="text").changes().to(texts)


def only_through_repartitions(app: App) -> None:
    """Concatenate records of two topics that pass the same two repartitions."""
    a = app.topic("a", key=str, value=str)
    b = app.topic("b", key=str, value=str)
    texts = app.topic("texts", key=str, value=str)
    both = app.stream(a).merge(app.stream(b)).rekey(same_key).repartition(name="first")
    again = both.rekey(same_key).repartition(name="second").group_by_key()
    again.reduce(lambda one, two: f"{one},{two}", name="text").changes().to(texts)


BUILDS: dict[str, Callable[[App], None]] = {
    "both directly": lambda app: appended(app, ways=0),
    "one repartition": lambda app: appended(app, ways=1),
    "two repartitions": lambda app: appended(app, ways=2),
    "all through repartitions": only_through_repartitions,
}


def key_in(key: str, partition: int) -> str:
    """Return a key of this partition, so that direct and repartitioned records meet."""
    names = (f"{key}{number}" for number in count())
    return next(n for n in names if partition_of_key(n.encode(), PARTITIONS) == partition)


def texts_of(build: str, phases: list[list[Event]], *, seed: int) -> dict[str, str]:
    """Return the last text of each key, from a cluster that is quiet between the phases."""
    app = App("doubting")
    BUILDS[build](app)
    cluster = AskingCluster(
        app.topology(), {"a": PARTITIONS, "b": PARTITIONS, "texts": 1}, Random(seed)
    )
    number = 0
    for phase in phases:
        for topic, partition, key, at in phase:
            number += 1
            value = serde_for(str).dumps(f"{topic}{partition}{number}")
            raw = key_in(key, partition).encode()
            cluster.append(
                topic, partition, SinkRecord(topic, partition, at * APART_MS, raw, value)
            )
        cluster.run(crashes=4)
    text = serde_for(str).loads
    return {text(r.key or b""): text(r.value or b"") for r in cluster.logs["texts", 0]}


def assert_in_order(found: dict[str, str], phases: list[list[Event]]) -> None:
    """Check that each phase is sorted by time, after records older than earlier phases' times.

    Those older records may come in any order: stream time has already passed them.
    """
    times: defaultdict[tuple[str, int], int] = defaultdict(lambda: -1)
    names = {key: text.split(",") for key, text in found.items()}
    number = 0
    for phase in phases:
        reached = max(times.values(), default=-1)
        expected: defaultdict[str, list[tuple[int, str, int, int, str]]] = defaultdict(list)
        for topic, partition, key, at in phase:
            number += 1
            times[topic, partition] = max(times[topic, partition], at)
            turn = (times[topic, partition], topic, partition, number)
            expected[key_in(key, partition)].append((*turn, f"{topic}{partition}{number}"))
        for key, some in expected.items():
            early = sorted(turn[-1] for turn in some if turn[0] <= reached)
            later = [turn[-1] for turn in sorted(some) if turn[0] > reached]
            rest = names[key]
            assert sorted(rest[: len(early)]) == early
            assert rest[len(early) : len(some)] == later
            del rest[: len(some)]
    assert not any(names.values())


def phase_of(number: int) -> st.SearchStrategy[list[Event]]:
    """Times of phases overlap. No time occurs in both topics: the topology decides a tie."""
    tp = (st.sampled_from("ab"), st.integers(0, PARTITIONS - 1), st.sampled_from("xy"))
    times = st.integers(15 * number, 15 * number + 20)
    event = st.tuples(*tp, times)
    return st.lists(event.map(lambda e: (*e[:3], 2 * e[3] + (e[0] == "b"))), max_size=20)


phases = st.tuples(phase_of(0), phase_of(1), phase_of(2)).map(list)


@pytest.mark.parametrize("build", BUILDS)
@given(phases=phases, seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_records_that_lay_in_the_log_are_taken_in_time_order(
    build: str, phases: list[list[Event]], seed: int
) -> None:
    assert_in_order(texts_of(build, phases, seed=seed), phases)


# ---------------------------------------------------------------- a queue by itself


NAMES = ("x", "y")
SPECS = [TopicSpec(name, serde_for(str), serde_for(int)) for name in NAMES]


def queue(end_check: CaughtUpCheck, *ends: int) -> tuple[RecordQueue, list[Input]]:
    """Return a queue of two inputs that are read to these ends."""
    inputs = [Input(spec, 0, rank) for rank, spec in enumerate(SPECS)]
    for entry, end in zip(inputs, ends, strict=True):
        entry.end_check = end_check
        entry.start_at(end)
        entry.learn_end(end, now_ms=0, took=False)
    return RecordQueue(inputs, record_at_a_time=False, end_check=end_check), inputs


def arrive(entry: Input, offset: int, *times_ms: int) -> None:
    value = serde_for(int).dumps(1)
    records = [LogRecord(offset + n, time_ms, b"k", value) for n, time_ms in enumerate(times_ms)]
    entry.arrive(records)
    entry.learn_end(offset + len(records), now_ms=0, took=False)


def offsets_of(found: RecordQueue) -> list[tuple[str, int]]:
    taken: list[tuple[str, int]] = []
    while (run := found.next_run()) is not None:
        taken += [(run[0].topic.name, offset) for offset in run[1].origin.offsets]  # type: ignore[union-attr]
    return taken


def test_an_input_at_its_end_holds_back_no_other_if_the_check_is_off() -> None:
    found, (_, y) = queue(CaughtUpCheck(is_on=False), 5, 5)
    arrive(y, 5, 10, 10 + 10 * SKEW_MS)
    assert offsets_of(found) == [("y", 5), ("y", 6)]
    assert found.end_questions() == []


def test_an_unconfirmed_end_of_input_holds_records_back() -> None:
    end_check = CaughtUpCheck(is_on=True)
    found, (x, y) = queue(end_check, 5, 5)
    arrive(y, 5, 10, 20)
    assert offsets_of(found) == []
    (question,) = found.end_questions()
    assert question.about == (("x", 0), None)
    assert question.describe() == "x-0 has more"
    # Records that arrive after the question are not covered by the answer.
    arrive(y, 7, 20 + 2 * SKEW_MS)
    arrive(x, 5, 15)
    x.confirm(question)
    assert offsets_of(found) == [("y", 5), ("x", 5), ("y", 6)]
    assert [each.about for each in found.end_questions()] == [(("x", 0), None)]


def test_live_streams_ask_nothing_within_the_allowed_skew() -> None:
    end_check = CaughtUpCheck(is_on=True)
    found, (x, y) = queue(end_check, 0, 0)
    arrive(x, 0, 1_000)
    arrive(y, 0, 1_000 + SKEW_MS, 1_001 + SKEW_MS)
    assert offsets_of(found) == [("x", 0), ("y", 0)]
    assert len(found.end_questions()) == 1
    arrive(x, 1, 1_001)
    assert offsets_of(found) == [("x", 1), ("y", 1)]
    # The last answer is too old: a new question comes at once.
    arrive(y, 2, 1_002 + SKEW_MS)
    end_check.now_ms += SKEW_MS + 1
    assert offsets_of(found) == []
    assert len(found.end_questions()) == 1


def test_a_confirmation_releases_the_backlog_up_to_the_known_end() -> None:
    end_check = CaughtUpCheck(is_on=True)
    found, (x, y) = queue(end_check, 0, 0)
    arrive(y, 0, 5)
    y.learn_end(3, now_ms=0, took=False)  # The fetch reported two more.
    (question,) = found.end_questions()
    end_check.now_ms += 10 * SKEW_MS
    x.confirm(question)
    step_ms = 3 * SKEW_MS
    arrive(y, 1, step_ms, 2 * step_ms, 3 * step_ms)
    assert offsets_of(found) == [("y", 0), ("y", 1), ("y", 2)]
    assert len(found.end_questions()) == 1


def test_an_idle_source_of_a_merged_input_is_asked_about() -> None:
    end_check = CaughtUpCheck(is_on=True)
    entry, _ = merged()
    entry.end_check = end_check
    entry.arrive(log_of(*(mark_of(rank, 10, 0) for rank in range(3))))
    end_check.now_ms += 2 * SKEW_MS
    found = RecordQueue([entry], record_at_a_time=False, end_check=end_check)
    assert found.end_questions() == []
    # One source advances by records, one by a mark.
    far_ms = 10 * SKEW_MS
    entry.arrive([value_of(0, 0, far_ms)._replace(offset=3)])
    assert taken(entry) == []
    questions = found.end_questions()
    assert [question.source for question in questions] == [("a", 1), ("b", 0)]
    assert questions[0].describe() == "more of a-1 comes through r-0"
    entry.confirm(questions[0])
    assert [question.source for question in found.end_questions()] == [("b", 0)]
    entry.confirm(questions[1])
    assert taken(entry) == [0]
    entry.arrive([mark_of(1, 2 * far_ms, 0)._replace(offset=4)])
    end_check.now_ms += 2 * SKEW_MS
    assert entry.turn_ms < 2 * far_ms
    assert [question.source for question in found.end_questions()] == [("a", 0), ("b", 0)]
    # The task waits for a busy source and does not ask about it.
    entry.arrive([mark_of(2, far_ms, BUSY_MS)._replace(offset=5)])
    assert found.end_questions() == []


def test_a_source_of_any_rank_is_asked_about_at_a_tie_in_time() -> None:
    end_check = CaughtUpCheck(is_on=True)
    entry, _ = merged()
    other = Input(SPECS[1], 0, 1)
    entry.end_check = other.end_check = end_check
    entry.arrive(log_of(*(mark_of(rank, 10, 0) for rank in range(3))))
    end_check.now_ms += 2 * SKEW_MS
    found = RecordQueue([entry, other], record_at_a_time=False, end_check=end_check)
    other.start_at(0)
    arrive(other, 0, 10)
    assert offsets_of(found) == []
    questions = found.end_questions()
    assert [question.source for question in questions] == [("a", 0), ("a", 1), ("b", 0)]
    for question in questions:
        entry.confirm(question)
    assert offsets_of(found) == [("y", 0)]


def test_a_confirmed_end_releases_records_at_exactly_its_time() -> None:
    end = InputEnd()
    assert end.bound((7, 0), 0) == (7, 0)
    end.confirm(EndOfInputQuestion(("x", 0), None, 7, {}, 0))
    assert end.bound((7, 0), 2 * SKEW_MS) == (7, LAST_RANK)
    assert end.bound((7, 0), 1) == (7 + SKEW_MS, LAST_RANK)
