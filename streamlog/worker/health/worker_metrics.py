"""Worker metrics: what a worker counts, and its present state as metrics.

Names follow Prometheus' conventions: base units, and `_total` for counters. What happens is counted
where it happens; what is (lag, sizes, waits) is computed at each look from `WorkerState`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter

from streamlog.client.metrics.exposed_metrics import Measured, client_collector
from streamlog.metrics.instruments import Histogram
from streamlog.metrics.process import process_metrics
from streamlog.metrics.registry import Family, Kind, Metric, Point, Registry, number
from streamlog.processing.node_figures import NodeFigures, sum_figures
from streamlog.processing.outbox import Drop, SinkBatch
from streamlog.processing.task import NAMED_MAX
from streamlog.snapshots.task_snapshots import SnapshotMetrics
from streamlog.worker.health.worker_health import TaskFigures, WorkerState

COMMIT_BOUNDS_S = (
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""The upper bounds of the histogram of commit durations, in seconds."""
LATENCY_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0,
    21_600.0, 86_400.0,
)  # fmt: skip
"""The upper bounds of the histogram of a sink's latency, in seconds: from 10 ms to a day."""
PARTITIONS_MAX = 10_000
"""The series of a metric by partition."""


class CommitPhases:
    """The phases of one commit, measured from the end of one to the end of the next."""

    def __init__(self, family: Family[Histogram]) -> None:
        """`family` has the label phase."""
        self._family = family
        self._since_s = perf_counter()

    def end(self, phase: str) -> None:
        """Record the duration of the phase that ends now."""
        now_s = perf_counter()
        self._family.series(phase).record(now_s - self._since_s)
        self._since_s = now_s


class WorkerMetrics:
    """The metrics of a worker since its start."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self.records_in = registry.counters(
            "streamlog_task_records_in_total", "Records that a task has processed.", "task"
        )
        self.records_out = registry.counters(
            "streamlog_records_out_total", "Records that tasks have written.", "topic"
        )
        self.dropped = registry.counters(
            "streamlog_records_dropped_total", "Records that nodes dropped.", "node", "reason"
        )
        self.passed_batches = registry.counters(
            "streamlog_unreadable_batches_passed_total",
            "Damaged batches that were skipped by on_error.",
            "topic",
            "partition",
            series_max=PARTITIONS_MAX,
        )
        self.table_answers = registry.counters(
            "streamlog_table_answers_total",
            "Queries for rows of tables, by whether a task or a standby answered.",
            "by",
        )
        self.restored = registry.counter(
            "streamlog_restored_records_total", "Changelog records read to restore tasks."
        )
        self.commits = registry.histogram(
            "streamlog_commit_duration_seconds",
            "Duration of commits: flush, changelogs, stores, offsets.",
            bounds=COMMIT_BOUNDS_S,
        )
        self.commit_phases = registry.histograms(
            "streamlog_commit_phase_seconds",
            "Duration of the phases of commits.",
            "phase",
            bounds=COMMIT_BOUNDS_S,
        )
        self.latency = registry.histograms(
            "streamlog_sink_latency_seconds",
            "Time until records that sinks write are visible, since the record's timestamp "
            "('record') or since its source has the record ('append').",
            "topic",
            "since",
            bounds=LATENCY_BOUNDS_S,
        )
        self.snapshots = SnapshotMetrics(registry)
        self._ended: dict[str, NodeFigures] = {}
        """The figures of nodes by tasks that have ended here."""

    def count_writes(self, batches: Iterable[SinkBatch]) -> None:
        """Count records that a task has written."""
        for batch in batches:
            self.records_out.series(batch.topic).add(len(batch.values))

    def count_drops(self, drops: Iterable[Drop]) -> None:
        """Count records that a task has dropped."""
        for drop in drops:
            self.dropped.series(drop.node, drop.reason).add(drop.count)

    def keep(self, figures: Iterable[NodeFigures]) -> None:
        """Keep the figures of a task that ends here: counters never go back."""
        ended = (each._replace(open_windows=None) for each in figures)
        self._ended = sum_figures([*self._ended.values(), *ended])

    def node_metrics(self, state: WorkerState) -> Iterator[Metric]:
        """Yield the metrics of nodes, over all tasks of this worker since its start."""
        running = [each for task in state.tasks for each in task.nodes]
        return _node_metrics([*sum_figures([*self._ended.values(), *running]).values()])

    def describe(self, state: Callable[[], WorkerState]) -> None:
        """Add the metrics of the worker's present state and of its process."""

        def collect() -> Iterator[Metric]:
            now = state()
            yield from state_metrics(now)
            yield from self.node_metrics(now)

        self.registry.collect(collect)
        self.registry.collect(process_metrics)

    def describe_clients(self, clients: Callable[[], Iterable[tuple[str, Measured]]]) -> None:
        """Add the metrics of the worker's clients, each with its name (the label `client_id`)."""
        self.registry.collect(client_collector(clients))


def state_metrics(state: WorkerState) -> Iterator[Metric]:
    """Yield the metrics of a worker's state."""
    yield from _task_metrics(state.tasks)
    yield from _merge_metrics(state.tasks)
    yield _held_back(state.tasks)
    yield from _time_metrics(state)
    yield from _state_read_metrics(state.tasks)
    yield _gauge(
        "streamlog_lag_records",
        "Records between the position of the task or agent and the end of the partition.",
        ("topic", "partition"),
        [((topic, str(number)), lag) for (topic, number), lag in state.lag_records.items()],
    )
    yield _gauge(
        "streamlog_stalled_seconds",
        "Time for which a task or agent that lags has made no progress.",
        ("who",),
        [((who,), still_ms / 1000) for who, still_ms in state.stalled_ms.items()],
    )
    yield number(
        "streamlog_assigned",
        "1 if the group has assigned partitions to this worker, else 0.",
        int(state.is_assigned),
    )


def _task_metrics(tasks: tuple[TaskFigures, ...]) -> Iterator[Metric]:
    running = sum(task.is_open for task in tasks)
    yield _gauge(
        "streamlog_tasks",
        "Tasks of this worker.",
        ("state",),
        [(("running",), running), (("restoring",), len(tasks) - running)],
    )
    for name, text, values in (
        (
            "streamlog_task_lag_records",
            "Records that the task has not processed, over all of its inputs.",
            [(task.task, task.lag_records) for task in tasks],
        ),
        (
            "streamlog_task_uncommitted_bytes",
            "Estimated size of state changes that wait for a commit.",
            [(task.task, task.uncommitted_bytes if task.is_open else None) for task in tasks],
        ),
        (
            "streamlog_task_state_bytes",
            "Size of the task's state on disk and in write buffers.",
            [(task.task, task.state_bytes) for task in tasks],
        ),
        (
            "streamlog_task_restore_left_records",
            "Changelog records that a restoring task has not read yet.",
            [(task.task, task.restore_left_records) for task in tasks],
        ),
        (
            "streamlog_task_restore_read_records",
            "Changelog records that a restoring task has read.",
            [(task.task, task.restored_records) for task in tasks],
        ),
    ):
        # An unknown value is left out: 0 would look like a task that has caught up.
        known = [((task,), value) for task, value in values if value is not None]
        yield _gauge(name, text, ("task",), known)
    ages = [(t.task, t.snapshot_age_ms) for t in tasks if t.snapshot_age_ms is not None]
    yield _gauge(
        "streamlog_task_snapshot_age_seconds",
        "Age of the task's newest snapshot in object storage.",
        ("task",),
        [((task,), age_ms / 1000) for task, age_ms in ages],
    )


def _node_metrics(nodes: Sequence[NodeFigures]) -> Iterator[Metric]:
    windowed = [each for each in nodes if each.open_windows is not None or each.late_records]
    for name, text, kind, points in (
        (
            "streamlog_node_records_in_total",
            "Records that a node has taken.",
            Kind.COUNTER,
            [(each.node, each.records_in) for each in nodes],
        ),
        (
            "streamlog_node_records_out_total",
            "Records that a node has forwarded to other nodes.",
            Kind.COUNTER,
            [(each.node, each.records_out) for each in nodes],
        ),
        (
            "streamlog_node_busy_seconds_total",
            "Time that a node has worked, without the nodes after it.",
            Kind.COUNTER,
            [(each.node, each.busy_ns / 1e9) for each in nodes],
        ),
        (
            "streamlog_node_late_records_total",
            "Records that came after their window had closed, dropped or not.",
            Kind.COUNTER,
            [(each.node, each.late_records) for each in windowed],
        ),
        (
            "streamlog_node_late_ratio",
            "Share of a node's records that were late, since the start of the worker.",
            Kind.GAUGE,
            [(each.node, each.late_records / max(each.records_in, 1)) for each in windowed],
        ),
        (
            "streamlog_node_open_windows",
            "Windows of a node that have rows and are open, over the tasks of this worker.",
            Kind.GAUGE,
            [(e.node, e.open_windows) for e in windowed if e.open_windows is not None],
        ),
    ):
        yield Metric(name, text, kind, ("node",), [((node,), value) for node, value in points])


def _time_metrics(state: WorkerState) -> Iterator[Metric]:
    """Yield the event time of each task in each of its sources, up to the bound of series."""
    times = [
        ((task.task, _name(source)), time_ms)
        for task in state.tasks
        for source, time_ms in task.source_times
    ][:PARTITIONS_MAX]
    labels = ("task", "source")
    yield _gauge(
        "streamlog_watermark_seconds",
        "Event time that a task has reached in a source, in seconds since 1970.",
        labels,
        [(values, time_ms / 1000) for values, time_ms in times],
    )
    now_ms = state.now_ms
    yield _gauge(
        "streamlog_watermark_behind_seconds",
        "Time by which the event time of a source is behind the clock; negative if it is ahead.",
        labels,
        [] if now_ms is None else [(values, (now_ms - ms) / 1000) for values, ms in times],
    )


def _state_read_metrics(tasks: tuple[TaskFigures, ...]) -> Iterator[Metric]:
    reads = [(task.task, task.state_reads) for task in tasks if task.state_reads is not None]
    for name, text, points in (
        (
            "streamlog_task_state_lookups_total",
            "Keys that a task has looked up in its state.",
            [(task, each.lookups) for task, each in reads],
        ),
        (
            "streamlog_task_state_cache_hits_total",
            "Keys that were found among pending changes or in the task's cache.",
            [(task, each.lookups - each.misses) for task, each in reads],
        ),
    ):
        points_of = [((task,), value) for task, value in points]
        yield Metric(name, text, Kind.COUNTER, ("task",), points_of)


def _merge_metrics(tasks: tuple[TaskFigures, ...]) -> Iterator[Metric]:
    """Yield metrics of repartition topics whose records wait for a source that lags."""
    waits = [(task.task, wait) for task in tasks for wait in task.merge_waits]
    yield _gauge(
        "streamlog_merge_buffer_bytes",
        "Size of records of a repartition topic that wait for a source that lags; beyond 64 MiB "
        "they are processed out of order.",
        ("task", "topic"),
        [((task, wait.topic), wait.size_bytes) for task, wait in waits],
    )
    yield _gauge(
        "streamlog_merge_behind_seconds",
        "Event time by which the source that lags is behind the source that waits for it.",
        ("task", "topic", "behind", "ahead"),
        [
            ((task, wait.topic, _name(wait.behind), _name(wait.ahead)), wait.apart_ms / 1000)
            for task, wait in waits
        ],
    )


def _held_back(tasks: tuple[TaskFigures, ...]) -> Metric:
    """Return the metric of results that are due by one partition and held back by another."""
    return _gauge(
        "streamlog_held_back_seconds",
        "Time for which a node's next result, due by one partition, has waited for another one.",
        ("task", "node", "behind"),
        [
            ((task.task, held.holdup.node, _name(source)), held.lasts_ms / 1000)
            for task in tasks
            for held in task.held
            # Each source is a time series of its own, so their number is bounded.
            for source in sorted(held.holdup.behind)[:NAMED_MAX]
        ],
    )


def _name(partition: tuple[str, int]) -> str:
    return f"{partition[0]}-{partition[1]}"


def _gauge(name: str, text: str, labels: tuple[str, ...], points: Iterable[Point]) -> Metric:
    return Metric(name, text, Kind.GAUGE, labels, points)
