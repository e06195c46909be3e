"""Task: one sub-topology at work on one partition number. Records in, an `Outbox` out.

The worker, the test driver and a history run the same class: it has no consumer, producer, clock,
thread or loop, and `now_ms` counts only for sources that have gone quiet. Rule of the module: what
a task knows is a function of the records that it has processed, in the order of its `RecordQueue`,
and all of it is in the checkpoint: changed rows, and a `TaskProgress` with input offsets, stream
times and the state of each source. A new task on a restored store continues as if there had been no
restart. Do not use a task after it raises an error: what it had not committed is lost with it.
`Holdup` names results that some sources have made due and others hold back. Not done here: sending,
committing, restoring (the runner's job), and bounds of the input buffers (`buffered`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Protocol

import msgspec

from streamlog.blueprints.clock_names import clock_name
from streamlog.errors import CorruptData, TopologyError, UsageError
from streamlog.nodes.stream_nodes import Entry, Node
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.async_map import AsyncMapValuesStep
from streamlog.processing.column_batch import TimeSource
from streamlog.processing.error_handling import NodeFailures, Pause, no_pause
from streamlog.processing.inputs.cut_input import CutInput, TimeSpan
from streamlog.processing.inputs.end_of_input import NO_CHECK, CaughtUpCheck, EndOfInputQuestion
from streamlog.processing.inputs.record_queue import (
    Input,
    PartitionKey,
    RecordQueue,
    Records,
)
from streamlog.processing.inputs.repartition_input import (
    BUFFER_BYTES,
    MergedInput,
    MergeWait,
    RepartitionInput,
    partition_name,
    show_time,
)
from streamlog.processing.joins.stream_table_join import GlobalTables
from streamlog.processing.joins.table_table_join import wait_for_both_sides
from streamlog.processing.node_figures import NodeFigures, figures_of
from streamlog.processing.node_time import input_of
from streamlog.processing.outbox import CallResult, Collector, Outbox
from streamlog.processing.provenance import add_tag
from streamlog.processing.set_timestamp import SetTimestampSource
from streamlog.processing.stateless import RepartitionStep
from streamlog.processing.step import Step, Tap, no_stopwatch
from streamlog.processing.step_factory import StepDeps, step_of
from streamlog.processing.table_rows import PAGE_ROWS_MAX, KeySpan, RowPage, prefix_of, read_page
from streamlog.processing.tables.writable_table import RowWrite, WritableTableStep
from streamlog.processing.task_progress import (
    ERA_SECTION,
    INPUTS_SECTION,
    NODE_TIMES_SECTION,
    Era,
    check_inheritance,
)
from streamlog.processing.trace_links import SECTION as TRACES_SECTION
from streamlog.processing.trace_links import Contributors, MakeSpan, insert_links
from streamlog.processing.windows.windowed_aggregate import FoldedWindow, WindowedAggregateStep
from streamlog.records.control_batches import TimeMark
from streamlog.serdes.erased_types import JsonValue, UserKey, UserValue
from streamlog.tables.state.changelog import (
    PROGRESS_KEY,
    Offsets,
    SourceLog,
    TaskProgress,
    changelog_offset,
    checkpoint,
    stored_progress,
)
from streamlog.tables.state.store_transaction import CacheBudget, StateReads, StoreTransaction
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import Changes, KeyValueStore
from streamlog.topology import Subtopology
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source

NAMED_MAX = 5
"""The most partitions that a message names."""


class Holdup(msgspec.Struct, frozen=True):
    """A result of a node that waits for event time."""

    node: str
    end_ms: int
    """The end of the window, or the time for which a timer is set."""
    due_ms: int
    """The event time that every source has to reach: the end plus grace."""
    behind: Mapping[Source, int]
    """The sources that have not reached it, with the event time of each."""
    ahead: Source
    """The source with the largest event time."""
    ahead_ms: int
    retimed: Mapping[str, Collection[str]] = msgspec.field(default_factory=dict)
    """Nodes that set other timestamps, and nodes after them, with the topics that feed them."""

    def describe(self) -> str:
        """Return one line: what is held back, by which sources, and what to do."""
        sources = sorted(self.behind)
        named = [
            f"{partition_name(each)} ({self._format_progress(each)})"
            for each in sources[:NAMED_MAX]
        ]
        if len(sources) > NAMED_MAX:
            named.append(f"{len(sources) - NAMED_MAX} more")
        verb = "holds" if len(sources) == 1 else "hold"
        return (
            f"{', '.join(named)} {verb} back {self.node!r}: its next result, of "
            f"{show_time(self.end_ms)}, is due once event time reaches {show_time(self.due_ms)} in "
            f"every source; {partition_name(self.ahead)} has reached {show_time(self.ahead_ms)}. "
            f"{self._remedy(sources)}"
        )

    def _remedy(self, sources: Collection[Source]) -> str:
        nodes = {name.partition("/")[0] for name, _ in sources} & {*self.retimed}
        if not nodes:
            return (
                "Send records to these partitions, create the topic with fewer partitions, or "
                'declare .idle_after("30s") on the window'
            )
        above = "set_timestamp before the merge and " if any("/" in n for n, _ in sources) else ""
        topics = {topic for node in nodes for topic in self.retimed[node]}
        return (
            f"After set_timestamp, a partition of {', '.join(sorted(topics))} without records has "
            "no event time, and no time mark gives it one: declare timestamp= on the topic instead "
            f'of set_timestamp, or {above}.idle_after("30s") on the window'
        )

    def _format_progress(self, source: Source) -> str:
        time_ms = self.behind[source]
        return "no record yet" if time_ms == UNKNOWN_MS else f"at {show_time(time_ms)}"


def find_holdups(steps: Iterable[Step], sub: Subtopology) -> list[Holdup]:
    """Return the results of these steps that some sources have made due and others hold back."""
    found: list[Holdup] = []
    for step in steps:
        if isinstance(step, RepartitionStep):
            found += _find_untimed(step, sub.retimed)
            continue
        pairs = [*step.waits_for()]
        due_ms = min((each for _, each in pairs), default=FAR_MS)
        reached = {s: ms for feed, _ in pairs for s, ms, _ in feed.source_times()}
        behind = {source: ms for source, ms in reached.items() if ms < due_ms}
        if behind and max(reached.values()) >= due_ms:
            ahead = max(reached, key=lambda source: reached[source])
            times = (step.ends_at(due_ms), due_ms, behind, ahead, reached[ahead])
            found.append(Holdup(step.name, *times, sub.retimed))
    return found


def _find_untimed(step: RepartitionStep, retimed: Mapping[str, Collection[str]]) -> list[Holdup]:
    """Return what sources without any event time hold back after a repartition.

    Several sources whose timestamps are set anew become one source there, which has no event time
    until each of them has one.
    """
    found: list[Holdup] = []
    for feed in step.node_time.feeds:
        reached = {source: ms for source, ms, _ in feed.source_times()}
        behind = {source: ms for source, ms in reached.items() if ms == UNKNOWN_MS}
        if isinstance(feed, SetTimestampSource) and 0 < len(behind) < len(reached):
            ahead = max(reached, key=lambda source: reached[source])
            times = (reached[ahead], reached[ahead], behind, ahead, reached[ahead])
            found.append(Holdup(step.name, *times, retimed))
    return found


class TaskId(msgspec.Struct, frozen=True, order=True):
    """Sub-topology and partition; "0_3" as text."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"


NO_MARKS: Mapping[PartitionKey, Sequence[TimeMark]] = MappingProxyType({})
"""No time marks."""
NOT_BROUGHT: Mapping[PartitionKey, int] = MappingProxyType({})
"""No input to advance."""


class TaskPart(Protocol):
    """A part of a task's state that a restart needs, apart from the store."""

    def to_data(self) -> dict[str, object]:
        """Return it as plain data."""

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""


class Task:
    """One sub-topology at work on one partition number."""

    def __init__(
        self,
        subtopology: Subtopology,
        task_id: TaskId,
        *,
        partitions: Mapping[str, int],
        store: KeyValueStore | None = None,
        progress: TaskProgress | None = None,
        era: Era | None = None,
        merges: bool = True,
        pause: Pause = no_pause,
        caches: CacheBudget | None = None,
        global_tables: GlobalTables | None = None,
        history: Mapping[str, TimeSpan] | None = None,
        merge_buffer_bytes: int = BUFFER_BYTES,
        asks_about_ends: bool = False,
        stamped: Collection[str] = (),
        make_span: MakeSpan | None = None,
        stopwatch_ns: Callable[[], int] = no_stopwatch,
    ) -> None:
        """Create a task that continues where its state ends.

        Args:
            subtopology: what to run.
            task_id: number of the sub-topology, and the partition.
            partitions: partition counts of all topics, see `Topology.partition_counts`.
            store: the restored state; None for a task without state.
            progress: the input offsets and times of the state; by default those in the store.
            era: which state the app has discarded (see `check_inheritance`).
            merges: take records of a repartition topic in the order of event time (`MergedInput`),
                in whatever order they were sent. Not for a runner that may send records twice.
            pause: waits before a record is retried (see `failures`).
            caches: the cache budget that all tasks of a process share.
            global_tables: those of the app, as the runner reads them.
            history: the time spans to take of the topics; None: everything.
            merge_buffer_bytes: bounds the records that wait for an earlier one, per repartition
                topic.
            asks_about_ends: the runner answers the questions in `end_questions`. Without it, an
                input at its end holds back no other.
            stamped: repartition topics whose records carry columns of stamps instead of headers
                (`SinkBatch.stamps`).
            make_span: makes the spans of results of stateful nodes (`trace_links`); None: the app
                has no traces.
            stopwatch_ns: measures the work of the steps, in ns.

        Raises:
            TopologyError: the sub-topology has state, but there is no store.
            CorruptData: the progress is not readable.
            TopologyError: the progress is that of another topology.
        """
        if store is None and subtopology.changelog_topic is not None:
            raise TopologyError(f"task {task_id} of {subtopology.app_id!r} has state: pass store=")
        self.id = task_id
        self.subtopology = subtopology
        self._partitions = partitions
        self._merges, self._history = merges, history
        self._merge_buffer_bytes = merge_buffer_bytes
        self._owner = 0 if store is None else changelog_offset(store)
        """Larger for each later owner of the state, because each owner writes to the changelog."""
        self._store = StoreTransaction(store if store is not None else MemoryStore(), budget=caches)
        self._collector = Collector(stamped)
        self._pause = pause
        self._end_check = CaughtUpCheck(is_on=asks_about_ends)
        self._queue = self._new_queue()
        self._logs: dict[PartitionKey, SourceLog] = {}
        self.end_questions: list[EndOfInputQuestion] = []
        """The questions to answer before the task can continue, as of the last `process`."""
        self._steps: dict[str, Step] = {}
        self._build(global_tables or GlobalTables())
        self._contributors = self._link(make_span)
        steps = self._steps.values()
        self._awaiting = {s.name: s for s in steps if isinstance(s, AsyncMapValuesStep)}
        self._looking, self._settling = self._with("look"), self._with("settle")
        self._emitting, self._flushing = self._with("emit"), self._with("flush")
        self._clocked = self._with("next_wall_ms")
        self._passing, self._waiting = self._with("pass_time"), self._with("waits_for")
        self._following = [step for step in self._waiting if not self._is_patient(step)]
        self._owners = {f: s for s in steps for f in (*s.own_time_sources, *s.clocks)}
        """The steps that own time sources other than inputs."""
        self._has_news, self._era = False, era or Era()
        if store is not None and subtopology.changelog_topic is not None:
            self._begin(progress, stored_progress(store))
        self._init_steps(stopwatch_ns)

    def _link(self, make_span: MakeSpan | None) -> dict[str, Contributors]:
        if make_span is None:
            return {}
        return insert_links(self.subtopology, self._steps, self._entries.values(), make_span)

    def _init_steps(self, stopwatch_ns: Callable[[], int]) -> None:
        for step in self._steps.values():
            step.stopwatch_ns = stopwatch_ns
            step.init()

    @property
    def inputs(self) -> tuple[PartitionKey, ...]:
        """The topic partitions that the task reads, in the order of their rank."""
        return tuple(self._queue.inputs)

    @property
    def positions(self) -> dict[PartitionKey, int]:
        """The offset of the next record to take, where it is known: seek there before reading."""
        return {
            key: entry.position
            for key, entry in self._queue.inputs.items()
            if entry.position is not None
        }

    @property
    def cuts(self) -> dict[PartitionKey, int]:
        """Of inputs that reached their cut (`history`), the first offset beyond it."""
        inputs = self._queue.inputs.values()
        return {
            e.topic_partition: e.cut
            for e in inputs
            if isinstance(e, CutInput) and e.cut is not None
        }

    @property
    def buffered(self) -> dict[PartitionKey, int]:
        """The number of records that have arrived and wait. Never pause an input that has none."""
        return {key: len(entry) for key, entry in self._queue.inputs.items()}

    @property
    def merge_waits(self) -> list[MergeWait]:
        """The records that wait for slower sources after repartition topics."""
        merged = (entry for entry in self._queue.inputs.values() if isinstance(entry, MergedInput))
        return [wait for entry in merged if (wait := entry.wait) is not None]

    @property
    def next_wall_ms(self) -> int:
        """The wall-clock time before which no step has anything to do by that clock."""
        return min((step.next_wall_ms for step in self._clocked), default=FAR_MS)

    def clock(self, topic: str) -> str:
        """Return the name by which time marks identify how event time is read from a topic."""
        return clock_name(self.subtopology.app_id, self.subtopology.topics[topic])

    @property
    def waits_quiet(self) -> dict[PartitionKey, int]:
        """How much more event time an input at its end needs for a waiting result to be due.

        In milliseconds per input. A runner makes sure that a time mark arrives once the topic has
        been quiet for that long.
        """
        found: dict[PartitionKey, int] = {}
        pairs = (pair for step in self._waiting for pair in step.waits_for())
        for key, time_ms, due_ms in self._due(pairs):
            if time_ms > UNKNOWN_MS:
                found[key] = min(due_ms - time_ms, found.get(key, due_ms - time_ms))
        return found

    @property
    def behind(self) -> dict[PartitionKey, int]:
        """The event time that an input without records has to reach for a waiting result to be due.

        Of inputs that had no record when they were first sampled: a runner advances them to the
        time of the other partitions of their topics. An input with records advances by these and by
        time marks alone; otherwise, a producer that pauses would find its remaining records late.
        """
        found: dict[PartitionKey, int] = {}
        pairs = (pair for step in self._following for pair in step.follows())
        for key, _, due_ms in self._due(pairs):
            entry = self._queue.inputs[key]
            # 1. The partition has no record at all: it may follow the other partitions.
            # 2. It follows them, and got its first record: `stated_ms` says that it does.
            # 3. It has records and never followed: its producer may only have paused.
            if entry.time_ms == UNKNOWN_MS or entry.stated_ms > UNKNOWN_MS:
                found[key] = min(due_ms, found.get(key, due_ms))
        return found

    @property
    def holdups(self) -> list[Holdup]:
        """Results that some of their sources have made due and others hold back."""
        return find_holdups(self._waiting, self.subtopology)

    def _due(self, waits: Iterable[tuple[TimeSource, int]]) -> list[tuple[PartitionKey, int, int]]:
        """Return the inputs at their end that have to advance: where they are, and where to.

        Times are those that each input has at the node that waits.
        """
        found: list[tuple[PartitionKey, int, int]] = []
        pending = [*waits]
        while pending:
            feed, time_ms = pending.pop()
            entry = input_of(feed)
            if not isinstance(entry, Input):
                owner = self._owners.get(feed)
                pending += () if owner is None else owner.needs(time_ms)
            elif feed.at_end and feed.time_ms < time_ms and not entry.topic.internal:
                found.append((entry.topic_partition, feed.time_ms, time_ms))
        return found

    @property
    def is_full(self) -> bool:
        """Whether the limit of open calls is reached, so that the inputs have to be held back."""
        return any(step.is_full for step in self._awaiting.values())

    @property
    def state_bytes(self) -> int:
        """Size of the pending changes by estimate, as of the last checkpoint.

        A large size is a reason to commit early.
        """
        return self._store.size_bytes

    @property
    def node_figures(self) -> list[NodeFigures]:
        """How many records each node has taken and forwarded, and for how long it has worked."""
        return figures_of(self._steps.values())

    def tap(self, node: str, tap: Tap | None) -> None:
        """Let `tap` look at the records of a node from now on; None: no longer."""
        step = self._steps.get(node)
        if step is not None:
            step.tap = tap

    @property
    def source_times(self) -> list[tuple[Source, int]]:
        """The event time of each source, in milliseconds; of sources that have had a record.

        A source is an input partition; behind a repartition topic, a source of the task above.
        """
        inputs = self._queue.inputs.values()
        times = [pair for entry in inputs for pair in entry.source_times()]
        return [(source, time_ms) for source, time_ms, _ in times if time_ms > UNKNOWN_MS]

    @property
    def state_reads(self) -> StateReads:
        """How many keys the task has looked up in its state, and how many of them on disk."""
        return self._store.reads

    @property
    def stream_times(self) -> dict[PartitionKey, int]:
        """The event time of the records taken from each input, in milliseconds.

        For a task without state, a runner stores them with the positions: see `start_at`.
        """
        times = {key: entry.time_ms for key, entry in self._queue.inputs.items()}
        if self.subtopology.changelog_topic is not None:
            return times
        # A task without state stores the time at its nodes nowhere else.
        reached: dict[PartitionKey, list[int]] = {}
        for node_time in self._node_times.values():
            for feed in node_time.reached.values():
                reached.setdefault(feed.entry.topic_partition, []).append(feed.time_ms)
        return {key: max(reached.get(key, [time_ms])) for key, time_ms in times.items()}

    def start_at(
        self,
        positions: Mapping[PartitionKey, int],
        times: Mapping[PartitionKey, int] | None = None,
    ) -> None:
        """Skip all records before these offsets: the task has received them, or does not need them.

        Call this before the first records, and whenever the consumer's position passes offsets
        without records (control batches, gaps). `times` are the stream times there; without them, a
        task without state starts as if its inputs began at these offsets.
        """
        for key, position in positions.items():
            self._queue.inputs[key].start_at(position)
        for key, time_ms in (times or {}).items():
            entry = self._queue.inputs[key]
            entry.time_ms = max(entry.time_ms, time_ms)
        if times and self.subtopology.changelog_topic is None:
            for node_time in self._node_times.values():
                node_time.start()

    @property
    def logs(self) -> dict[PartitionKey, SourceLog]:
        """The logs that the positions belong to, as set by `belong_to`."""
        return dict(self._logs)

    def belong_to(self, logs: Mapping[PartitionKey, SourceLog]) -> None:
        """Set which logs the positions in these inputs belong to; the next checkpoint contains it.

        After records were taken from an input, only the leader epoch may change.
        """
        for key, log in logs.items():
            entry = self._queue.inputs.get(key)
            if entry is not None:
                self._logs[key] = log
                entry.provenance = add_tag(entry.identity, log.topic_id, log.cuts)

    def process(
        self,
        records: Mapping[PartitionKey, Records],
        now_ms: int,
        *,
        ends: Mapping[PartitionKey, int],
        results: Sequence[CallResult] = (),
        marks: Mapping[PartitionKey, Sequence[TimeMark]] = NO_MARKS,
        brought: Mapping[PartitionKey, int] = NOT_BROUGHT,
        confirmed: Sequence[EndOfInputQuestion] = (),
    ) -> Outbox:
        """Add records and time marks, and process everything that the merge order allows.

        Args:
            records: per input partition, by ascending offset, following those of earlier calls.
            now_ms: milliseconds since 1970 by a clock that does not go back; for `idle_after` and
                for what processors do by the wall clock.
            ends: end offsets (high watermarks). The task waits for an input that is behind its end,
                or whose end is unknown.
            results: of calls that earlier outboxes of this task asked for.
            marks: time marks per input partition, between the records or after them.
            brought: the event time of inputs at their end, where the log cannot hold marks.
            confirmed: questions of this task that are answered: everything that was in the log when
                they were asked, here and upstream, has been passed to the task.

        Raises:
            ProcessingError: a record is unreadable, or a function failed on it. Discard the task
                and commit nothing since its last checkpoint.
        """
        inputs, self._end_check.now_ms = self._queue.inputs, now_ms
        for looking in self._looking:
            looking.look(now_ms)
        for key in {**records, **marks}:
            if key not in inputs:
                raise UsageError(f"task {self.id} does not read {key[0]}-{key[1]}")
            inputs[key].arrive(records.get(key, ()), marks.get(key, ()))
        # The position of a merged input may change although nothing is released: what has arrived
        # may be marks and repetitions.
        took: set[Input] = {e for key in records if isinstance(e := inputs[key], MergedInput)}
        for entry in inputs.values():
            entry.now_ms = now_ms
            end = ends.get(entry.topic_partition)
            entry.learn_end(end, now_ms=now_ms, took=False)
        for question in confirmed:
            inputs[question.topic_partition].confirm(question)
        for key, time_ms in brought.items():
            inputs[key].bring(time_ms)
        self._follow()
        for name, step in self._awaiting.items():
            own = [result for result in results if result.node == name]
            step.run_timed(partial(step.resume, own))
        passed, fired = self._take(took, now_ms)
        # Once more: only now it is known which inputs had something to take, and which are at their
        # end with all of it taken.
        for entry in inputs.values():
            entry.learn_end(None, now_ms=now_ms, took=entry in took)
        fired = self._settle(now_ms) or fired
        self._has_news = self._has_news or bool(took or passed or results) or fired
        outbox = self._collector.take()
        taken = took | passed
        outbox.offsets = {e.topic_partition: e.position for e in taken if e.position is not None}
        self.end_questions = self._queue.end_questions()
        return outbox

    def _take(self, took: set[Input], now_ms: int) -> tuple[set[Input], bool]:
        """Process the records that the merge order allows; adds their inputs to `took`.

        Returns the inputs that have passed time marks, and whether a timer fired there. A mark
        takes effect before the records after it are taken, as if they had arrived later.
        """
        passed: set[Input] = set()
        fired = False
        while not self.is_full and (run := self._queue.next_run()) is not None:
            entry, batch = run
            # Records at 10:00, a mark of an hour, records at 11:05: what the mark makes due
            # (windows, timers) is forwarded before the records after it, wherever a fetch was cut.
            if isinstance(batch, TimeMark):
                passed.add(entry)
                for step in self._passing:
                    step.pass_time(entry, batch.elapsed_ms)
                fired = self._settle(now_ms) or fired
                continue
            took.add(entry)
            for first in self._entries[entry.topic.name]:
                if batch.rows:
                    first.records_in += len(batch.rows)
                    first.run_timed(partial(first.process, batch))
        return passed, fired

    def _settle(self, now_ms: int | None) -> bool:
        """Let time take effect after all available records were taken; returns whether it did."""
        self._follow()
        # Parents first: rows of a window or a timer may be the input of steps after it.
        is_news = False
        for join in self._meeting:
            join.hold()
        for step in self._settling:
            is_news = step.run_timed(partial(step.settle, now_ms)) or is_news
        return is_news

    def _follow(self) -> None:
        """Update the nodes that keep time from their inputs."""
        for node_time in self._node_times.values():
            node_time.follow()

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait for a commit: then call `emit` before `checkpoint`."""
        return any(step.has_waiting for step in self._emitting)

    def emit(self) -> Outbox:
        """Send the rows that wait for a commit, which the caller is about to make.

        Process nothing between this and the `checkpoint` that marks these rows as sent.
        """
        for join in self._meeting:
            join.hold()
        for step in self._settling:
            if step.has_waiting:
                step.run_timed(step.emit)
            step.settle(None)
        self._has_news = True
        return self._collector.take()

    def write_rows(self, table: str, rows: Sequence[RowWrite]) -> Outbox:
        """Set rows of a writable table, in this order. They take effect immediately.

        Raises:
            TopologyError: the task has no such table.
        """
        step = self._steps.get(table)
        if not isinstance(step, WritableTableStep):
            raise TopologyError(
                f"sub-topology {self.id.subtopology} has no writable table {table!r}"
            )
        step.write(rows)
        self._settle(None)
        self._has_news = True
        return self._collector.take()

    def adopt(self, node: str, window: FoldedWindow) -> Outbox:
        """Take over rows of a windowed aggregation that a runner has folded from all records.

        The progress with which the task began says up to where. Rows come by (end, start, key), in
        any number of calls before the first `process`.

        Raises:
            TopologyError: the task has no such aggregation.
        """
        step = self._steps.get(node)
        if not isinstance(step, WindowedAggregateStep):
            raise TopologyError(
                f"sub-topology {self.id.subtopology} has no windowed aggregation {node!r}"
            )
        step.adopt(window)
        self._has_news = True
        return self._collector.take()

    def checkpoint(self) -> Changes:
        """Return all changes since the last checkpoint, to be sent as ONE record batch.

        Empty if nothing has changed, or if the task has no state. The last record is the progress.

        Raises:
            UsageError: rows wait for a commit, and `emit` was not called.
            ProcessingError: the state of a user's aggregation can't be written.
        """
        if self.subtopology.changelog_topic is None:
            return Changes()
        if self.has_waiting:
            raise UsageError(f"task {self.id} has rows that wait for a commit: call emit() first")
        # A commit, with exactly_once (decision 005):
        # 1. `emit` forwards the rows of Emit.COMMIT: they are sinks of this commit.
        # 2. Steps write what they keep as objects, once per changed row.
        # 3. The runner writes sinks, these changes with the progress, and the input offsets in one
        #    transaction. A crash before its end: none of them counts, the records are read again.
        # 4. `committed` applies the changes to the store. A crash before that: the restart replays
        #    them from the changelog.
        for step in self._flushing:
            step.run_timed(step.flush)
        changes = self._store.changes()
        if not changes and not self._has_news:
            return Changes()
        self._has_news = False
        return checkpoint(changes, self.progress)

    @property
    def progress(self) -> TaskProgress:
        """The input offsets and times of the state; unchanged since the last checkpoint if idle."""
        return TaskProgress(offsets=self.positions, logs=self._logs, sections=self._sections())

    def write_again(self, keys: Collection[bytes]) -> None:
        """Add these keys of the store, with their current values, to the next checkpoint."""
        self._has_news = self._has_news or bool(keys)
        for key in sorted({*keys} - {PROGRESS_KEY}):  # Every checkpoint has the progress.
            value = self._store.get(key)
            if value is None:
                self._store.delete(key)
            else:
                self._store.put(key, value)

    def committed(self, records: Changes, *, next_offset: int) -> None:
        """Apply the records of a checkpoint to the store: the changelog has taken them.

        Args:
            records: what `checkpoint` returned.
            next_offset: the changelog's offset after them.
        """
        if records:
            self._store.commit(records, next_offset=next_offset)

    def table(self, node: str) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over the rows of a stateful node: keys and values.

        Raises:
            TopologyError: the task has no such node.
        """
        step = self._steps.get(node)
        if step is None:
            raise TopologyError(f"sub-topology {self.id.subtopology} has no table {node!r}")
        return step.table()

    def row(self, node: str, key: bytes, *, committed: bool) -> bytes | None:
        """Return one row of a stateful node as `TableRows` reads it; None if there is none.

        Args:
            node: the node that keeps the rows.
            key: as in the store, without its prefix.
            committed: as of the last commit, instead of now.

        Raises:
            TopologyError: the task has no such node.
        """
        at = prefix_of(self.subtopology, node) + key
        if committed:
            return self._store.stored(at)
        self._settle_rows(node)
        return self._store.get(at)

    def rows(
        self, node: str, span: KeySpan, *, committed: bool, rows_max: int = PAGE_ROWS_MAX
    ) -> RowPage:
        """Return the first rows of a part of a table, in the order of their keys; see `row`."""
        prefix = prefix_of(self.subtopology, node)
        if committed:
            return read_page(self._store.stored_range, prefix, span, rows_max=rows_max)
        self._settle_rows(node)
        return read_page(self._store.range, prefix, span, rows_max=rows_max)

    @property
    def committed_positions(self) -> Offsets:
        """The offsets of the next records to read, as of the last commit."""
        data = self._store.stored(PROGRESS_KEY)
        return {} if data is None else TaskProgress.decode(data).offsets

    def close(self) -> None:
        """Discard what is not committed, and close the store.

        Raises:
            ProcessingError: a processor failed in its `close`; the store is closed nevertheless.
        """
        try:
            for step in self._steps.values():
                step.close()
        finally:
            self._store.close()

    def _settle_rows(self, node: str) -> None:
        """Write what a step keeps as objects into the transaction."""
        self._steps[node].flush()

    def _new_queue(self) -> RecordQueue:
        topics = self.subtopology.topics.values()
        return RecordQueue(
            [self._input(topic) for topic in topics if self._reads(topic)],
            record_at_a_time=self.subtopology.record_at_a_time,
            end_check=self._end_check,
        )

    def _reads(self, topic: TopicSpec) -> bool:
        return self.id.partition < self._partitions[topic.name]

    def _input(self, topic: TopicSpec) -> Input:
        entry = self._new_input(topic)
        # In a loop, the upstream task reaches its end only after this task has taken its records:
        # a question here would wait for its own answer.
        entry.end_check = NO_CHECK if topic.name in self.subtopology.looped else self._end_check
        for node in self.subtopology.nodes:
            if isinstance(node, Entry) and node.topic.name == topic.name:
                entry.failures = self._failures(topic.name, node)
        return entry

    def _new_input(self, topic: TopicSpec) -> Input:
        rank = self.subtopology.inputs.index(topic.name)
        if not topic.internal and self._history is not None:
            span = self._history.get(topic.name, TimeSpan())
            return CutInput(topic, self.id.partition, rank, span=span, clock=self.clock(topic.name))
        if not topic.internal:
            return Input(topic, self.id.partition, rank, clock=self.clock(topic.name))
        feeders = self.subtopology.feeders[topic.name]
        sources = [
            (feeder.name, partition)
            for feeder in feeders
            for partition in range(feeder.partitions(self._partitions))
        ]

        def may_be_gone(source: Source) -> bool:
            return any(feeder.may_have_had(source) for feeder in feeders)

        marks_ms = [ms for all_ms in self.subtopology.idle_marks_ms.values() for ms in all_ms]
        marks_ms += self.subtopology.processors_idle_ms
        idle_after_ms = max(marks_ms, default=None)
        if self._merges and topic.name not in self.subtopology.looped:
            return MergedInput(
                topic,
                self.id.partition,
                rank,
                sources=sources,
                may_be_gone=may_be_gone,
                collector=self._collector,
                idle_after_ms=idle_after_ms,
                buffer_bytes=self._merge_buffer_bytes,
            )
        return RepartitionInput(
            topic,
            self.id.partition,
            rank,
            sources=sources,
            may_be_gone=may_be_gone,
            idle_after_ms=idle_after_ms,
            collector=self._collector,
        )

    def _build(self, global_tables: GlobalTables) -> None:
        deps = StepDeps(
            self.subtopology,
            self.id.partition,
            self._partitions,
            self._store,
            self._collector,
            self._owner,
            self._queue.inputs,
            self._steps,
            global_tables,
        )
        for node in self.subtopology.nodes:
            step = step_of(node, deps)
            self._steps[node.name] = step
            step.failures = self._failures(node.name, node)
            for parent in node.parents:
                self._steps[parent].children.append(step)
        self._entries = self._entry_steps()
        self._meeting = wait_for_both_sides(self.subtopology, self._steps, self._entries.values())
        keeping = (step for step in self._steps.values() if step.node_time.reached)
        self._node_times = {step.name: step.node_time for step in keeping}

    def _with(self, capability: str) -> list[Step]:
        """Return the steps whose class overrides this method of `Step`, parents first."""
        default = getattr(Step, capability)
        return [s for s in self._steps.values() if getattr(type(s), capability) is not default]

    def _is_patient(self, step: Step) -> bool:
        """Return whether the node declares itself how long it waits for a quiet source."""
        return getattr(self.subtopology.by_name[step.name], "idle_after_ms", None) is not None

    def _failures(self, name: str, node: Node) -> NodeFailures | None:
        policy = node.on_error
        if policy is None or policy.action == "fail":
            return None
        return NodeFailures(name, policy, self.subtopology.app_id, self._collector, self._pause)

    def _entry_steps(self) -> dict[str, list[Step]]:
        entries: dict[str, list[Step]] = {topic: [] for topic in self.subtopology.topics}
        for node in self.subtopology.nodes:
            if isinstance(node, Entry):
                entries[node.topic.name].append(self._steps[node.name])
        return entries

    def _parts(self) -> dict[str, dict[str, TaskPart]]:
        """Return what a restart needs besides the stores, by section and name."""
        parts: dict[str, dict[str, TaskPart]] = {
            INPUTS_SECTION: {entry.topic.name: entry for entry in self._queue.inputs.values()},
        }
        for step in self._steps.values():
            if step.section:
                parts.setdefault(step.section, {})[step.name] = step
        parts[NODE_TIMES_SECTION] = {**self._node_times}
        if self._contributors:
            parts[TRACES_SECTION] = {**self._contributors}
        return parts

    def _sections(self) -> dict[str, object]:
        sections: dict[str, object] = {
            section: {name: part.to_data() for name, part in parts.items()}
            for section, parts in self._parts().items()
        }
        return {**sections, ERA_SECTION: self._era.number}

    def _begin(self, given: TaskProgress | None, stored: TaskProgress | None) -> None:
        """Continue from the given progress, or else from that of the store."""
        self._load(given or stored)
        # If the runner has moved an input, the next checkpoint must contain it.
        self._has_news = None not in (given, stored) and given != stored

    def _load(self, progress: TaskProgress | None) -> None:
        if progress is None:
            return
        inheritance = check_inheritance(self.subtopology, progress, self._era)
        inheritance.clear(self._store)
        progress = inheritance.progress
        self.start_at(progress.offsets)
        self.belong_to(progress.logs)
        sections: JsonValue = progress.sections
        try:
            for section, parts in self._parts().items():
                stored = sections.get(section, {})
                for name in parts.keys() & set(stored):
                    parts[name].load(stored[name])
            if NODE_TIMES_SECTION not in sections:
                # A checkpoint without node times: nodes had the time of their input then.
                for node_time in self._node_times.values():
                    node_time.start()
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(
                f"the progress of task {self.id} of {self.subtopology.app_id!r} is not readable: "
                f"{error!r}; reset the app, or go back to the version that wrote it"
            ) from error
