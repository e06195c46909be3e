"""Lineage: finds the input records of rows of a history by running the history once more.

The tasks that write the topic get their inputs record by record. When a wanted row comes out, its
inputs are the records of its key (and of its window, if it has one) that the task has processed
before. Which of them a user's function has used is unknown. If another record triggered the row, it
is reported too. A record of a repartition topic is reported by its origin.

Rules of the file: the run writes only temporary files; it keeps a few records per row, however long
the history is. Not done here: the choice of the rows (`comparison`).
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from streamlog.durations import moment, when_ms
from streamlog.history.comparison import Fields, Inputs
from streamlog.history.local_run import LocalRun, RunDeps
from streamlog.history.plan import Plan, Stage
from streamlog.history.readers import LogReader
from streamlog.history.stage_task import Attempt, Shuffled, StageTask
from streamlog.history.task_run import Arrival, Arrivals, Effects, InputReader, TaskRun
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.processing.inputs.schema_headers import absorb_record
from streamlog.processing.outbox import CallResult, SinkBatch, TaskCall
from streamlog.processing.provenance import (
    MARK,
    PROVENANCE,
    RECORD_BYTES,
    ProvenanceMark,
    source_of,
    unpack_record,
)
from streamlog.processing.task import Task
from streamlog.record import Windowed
from streamlog.records.batch import LogRecord
from streamlog.records.record_columns import RecordColumns
from streamlog.replace import replace
from streamlog.serdes import Serde
from streamlog.snapshots import SnapshotStore
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.stores.store import Changes
from streamlog.windows.definitions import Counted, Sessions, Sliding
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source
from streamlog.worker.program import Program

INPUTS_MAX: Final = 4
"""Records reported per row: the last ones."""


class LineageRecord(NamedTuple):
    """A record that a task has processed, with its partition."""

    partition: PartitionKey
    record: LogRecord


@dataclass(slots=True)
class _WantedRow:
    """A row whose inputs the run looks for."""

    since_ms: int
    until_ms: int
    """Only records from `since_ms` to `until_ms`, both inclusive, can be inputs."""
    inputs: deque[LineageRecord]
    cause: LineageRecord | None = None
    """The record that triggered the row, if it is not one of the inputs."""
    is_found: bool = False
    """Whether the row has come out: later records are not its inputs."""


class Lineage(LocalRun):
    """A run of a history that finds the input records of rows of one topic."""

    def __init__(
        self,
        plan: Plan,
        deps: RunDeps,
        topic: TopicSpec,
        *,
        staged: Collection[Fields],
        missing: Collection[Fields],
    ) -> None:
        """Prepare a run.

        Args:
            plan: the plan of the history.
            deps: the run's dependencies; `snapshots` is a temporary directory, not a snapshot's.
            topic: the topic of the rows.
            staged: rows that the history has.
            missing: rows that the history lacks.
        """
        stages = _above(plan, topic.name)
        super().__init__(replace(plan, outputs="discard"), deps)
        self._stages = stages
        self._topic = topic
        # Without memory in its stages, a row follows from a single record.
        self._inputs_max = INPUTS_MAX if any(_remembers(s, topic.name) for s in stages) else 1
        self._is_end_in = any(map(_ends_with_a_record, stages))
        self._wanted: dict[Fields, _WantedRow] = {}
        self._by_key: dict[object, list[_WantedRow]] = {}
        for fields in dict.fromkeys(staged):
            self._look_for(fields, FAR_MS)
        # A missing row never comes out, so its own time is the only limit of its inputs.
        for fields in dict.fromkeys(missing):
            self._look_for(fields, fields[2])

    def inputs(self) -> Mapping[Fields, Sequence[str]]:
        """Run the history; return the input records of each row as text, the last one last.

        Raises:
            ProcessingError: a record can't be read, or a function failed on it.
            StreamlogError: the log can't be read, or the disk refused.
        """
        self.run()
        return {fields: [*self._lines(wanted)] for fields, wanted in self._wanted.items()}

    def on_taken(self, taken: Sequence[LineageRecord]) -> None:
        """Note records that were processed by a task that writes the topic."""
        for each in taken:
            spec = self._plan.topology.topics[each.partition[0]]
            for wanted in self._by_key.get(
                _comparable(_loaded(spec.key, absorb_record(spec, each.record).key)), ()
            ):
                at_ms = _time_of(spec, absorb_record(spec, each.record))
                if not wanted.is_found and wanted.since_ms <= at_ms <= wanted.until_ms:
                    wanted.inputs.append(each)

    def on_rows(self, batches: Sequence[SinkBatch], taken: Sequence[LineageRecord]) -> None:
        """Find wanted rows among rows that a task wrote after it had processed `taken`."""
        for batch in batches:
            if batch.topic != self._topic.name:
                continue
            headers = repeat(()) if batch.headers is None else batch.headers
            rows = zip(batch.keys, batch.values, batch.timestamps, headers, strict=False)
            for key, value, timestamp_ms, others in rows:
                wanted = self._wanted.get((key, value, timestamp_ms, tuple(others)))
                if wanted is None or wanted.is_found:
                    continue
                wanted.is_found = True
                if taken and not any(each in wanted.inputs for each in taken):
                    wanted.cause = taken[-1]

    def _task(
        self, attempt: Attempt, feeds: Sequence[InputReader], shuffled: Shuffled
    ) -> StageTask:
        if self._topic.name not in _written(attempt.stage):
            return super()._task(attempt, feeds, shuffled)
        return _WatchedTask(attempt, feeds, shuffled, self)

    def _look_for(self, fields: Fields, until_ms: int) -> None:
        key = _loaded(self._topic.key, fields[0])
        span = (UNKNOWN_MS, until_ms)
        if isinstance(key, Windowed):
            # The end of a window is exclusive, unless it is the time of the window's last record.
            last_ms = when_ms(key.end) - (not self._is_end_in)
            span, key = (when_ms(key.start), last_ms), key.key
        wanted = _WantedRow(*span, deque(maxlen=self._inputs_max))
        self._wanted[fields] = wanted
        self._by_key.setdefault(_comparable(key), []).append(wanted)

    def _lines(self, wanted: _WantedRow) -> Iterator[str]:
        for each in wanted.inputs:
            yield f"from {self._text(each)}"
        if wanted.cause is not None:
            yield f"triggered by {self._text(wanted.cause)}"

    def _text(self, taken: LineageRecord) -> str:
        (topic, partition), record = taken
        spec = self._plan.topology.topics[topic]
        origin = f"{topic}-{partition} at offset {record.offset}"
        for name, data in record.headers:
            if name == PROVENANCE and data is not None:
                _, _, position, _ = unpack_record(data)
                source, number = source_of(data[RECORD_BYTES:])
                origin = f"{source}-{number} at {position}"
        record = absorb_record(spec, record)
        key, value = _loaded(spec.key, record.key), _loaded(spec.value, record.value)
        return f"{origin}: {key!r} = {value!r}, {moment(_time_of(spec, record)).isoformat()}"


def inputs_by(
    plan: Plan, reader: LogReader, topic: TopicSpec, program: Program, *, now_ms: int
) -> Inputs:
    """Return a function that runs a history once more to find the input records of rows.

    Args:
        plan: the plan of the history; it runs in this process, whatever its engine is.
        reader: reads the log.
        topic: the topic of the rows.
        program: the app's program, whose state directory holds temporary files.
        now_ms: wall-clock time of the run, ms since 1970.
    """

    def inputs(
        staged: Collection[Fields], missing: Collection[Fields]
    ) -> Mapping[Fields, Sequence[str]]:
        directory = Path(program.state_dir) / ".history" / program.app_id / f"lineage-{uuid4().hex}"
        budget = RocksBudget(program.state_memory_bytes)
        deps = RunDeps(
            reader=reader,
            directory=directory / "run",
            snapshots=SnapshotStore(str(directory / "left")),
            now_ms=now_ms,
            open_store=lambda path: RocksStore.open(path, budget=budget),
        )
        try:
            return Lineage(plan, deps, topic, staged=staged, missing=missing).inputs()
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    return inputs


class _WatchedTask(StageTask):
    """A task whose records and rows are reported to the lineage."""

    def __init__(
        self, attempt: Attempt, feeds: Sequence[InputReader], shuffled: Shuffled, lineage: Lineage
    ) -> None:
        super().__init__(attempt, feeds, shuffled)
        self._given, self._going, self._lineage = feeds, attempt, lineage

    def run_of(self, task: Task, effects: Effects) -> TaskRun:
        """Return a run that gets its inputs record by record."""
        watch = _Watch(task, self._lineage)
        for feed in self._given:
            feed.arrivals = watch.one_by_one(feed.arrivals)
        return _WatchedRun(
            task,
            self._given,
            _WatchedEffects(effects, watch),
            until_ms=self._going.plan.until_ms,
            now_ms=self._going.now_ms,
        ).watched_by(watch)


class _Watch:
    """Tracks the records that a task was given, and those that the current step has processed."""

    def __init__(self, task: Task, lineage: Lineage) -> None:
        self._task = task
        self._lineage = lineage
        self._given: dict[PartitionKey, deque[LogRecord]] = {}
        self._taken: list[LineageRecord] = []

    def one_by_one(self, arrivals: Arrivals) -> Arrivals:
        with closing(arrivals):
            for partition, arrival in chain.from_iterable(found.items() for found in arrivals):
                yield from self._single(partition, arrival)

    def _single(self, partition: PartitionKey, arrival: Arrival) -> Arrivals:
        given = self._given.setdefault(partition, deque())
        columns, marks = arrival.records, deque(arrival.marks)
        for number, record in enumerate(columns):
            # Marks between two records arrive with the later one, so the order of the log stays.
            before = []
            while marks and marks[0].offset < record.offset:
                before.append(marks.popleft())
            given.append(record)
            yield {partition: Arrival(columns[number : number + 1], before)}
        if marks or arrival.is_last:
            yield {partition: Arrival(RecordColumns(), [*marks], arrival.is_last)}

    def on_rows(self, batches: Sequence[SinkBatch]) -> None:
        self._settle()
        self._lineage.on_rows(batches, self._taken)

    def on_step(self) -> None:
        self._settle()
        self._taken = []

    def _settle(self) -> None:
        """Move the records that the task has processed from given to taken."""
        positions, fresh = self._task.positions, list[LineageRecord]()
        for partition, given in self._given.items():
            while given and given[0].offset < positions.get(partition, 0):
                record = given.popleft()
                # Marks take offsets too, but are no inputs of a row.
                if not any(name == MARK for name, _ in record.headers):
                    fresh.append(LineageRecord(partition, record))
        self._lineage.on_taken(fresh)
        self._taken += fresh


class _WatchedRun(TaskRun):
    """A run that reports the end of each step."""

    _watch: _Watch

    def watched_by(self, watch: _Watch) -> _WatchedRun:
        self._watch = watch
        return self

    def steps(self) -> Iterator[None]:
        for _ in super().steps():
            self._watch.on_step()
            yield


class _WatchedEffects:
    """Effects that report the rows before they are written."""

    def __init__(self, effects: Effects, watch: _Watch) -> None:
        self._effects = effects
        self._watch = watch

    def write(self, batches: Sequence[SinkBatch]) -> None:
        self._watch.on_rows(batches)
        self._effects.write(batches)

    def commit(self, task: Task, changes: Changes) -> None:
        self._effects.commit(task, changes)

    def tell(self, source: Source, mark: ProvenanceMark) -> None:
        self._effects.tell(source, mark)

    def answers(self, calls: Sequence[TaskCall]) -> list[CallResult]:
        return self._effects.answers(calls)


def _above(plan: Plan, topic: str) -> tuple[Stage, ...]:
    """Return the stages that a topic depends on, in order."""
    # Backwards, because stages are in upstream order: what feeds a stage comes after it here.
    wanted: list[Stage] = []
    read: set[str] = {topic}
    for stage in reversed(plan.stages):
        if read & _written(stage):
            wanted.insert(0, stage)
            read |= {*stage.subtopology.inputs}
    return tuple(wanted)


def _written(stage: Stage) -> set[str]:
    return {topic.name for node in stage.subtopology.nodes for topic in node.writes}


def _remembers(stage: Stage, topic: str) -> bool:
    """Return whether a row that the stage writes to the topic can have more than one input."""
    sub = stage.subtopology
    sinks = [node for node in sub.nodes if topic in (each.name for each in node.writes)]
    return any(
        each.specs or each.lookup_nodes for sink in sinks for each in (sink, *sub.ancestors(sink))
    )


def _ends_with_a_record(stage: Stage) -> bool:
    """Return whether the stage has windows whose end is the time of their last record."""
    windows = (getattr(node, "windows", None) for node in stage.subtopology.nodes)
    return any(isinstance(each, Counted | Sessions | Sliding) for each in windows)


def _time_of(spec: TopicSpec, record: LogRecord) -> int:
    if spec.timestamp is None or record.value is None:
        return record.timestamp_ms
    try:
        return when_ms(spec.timestamp(spec.value.loads(record.value)))
    except Exception:  # noqa: BLE001 - a user's function: the task handles its error
        return record.timestamp_ms


def _loaded(serde: Serde[Any], data: bytes | None) -> object:
    if data is None:
        return None
    try:
        found: object = serde.loads(data)
    except Exception:  # noqa: BLE001 - a user's serde: the bytes are shown instead
        return data
    return found


def _comparable(key: object) -> object:
    """Return a hashable form of a key: structs may not be hashable."""
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key
