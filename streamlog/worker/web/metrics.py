"""The worker's figures for Prometheus, collected when somebody scrapes.

Names follow Prometheus' conventions: base units, `_total` for counters. Rule of the file: the
registry is the worker's own, so that metrics of the user's program are neither shown here nor
disturbed, and nothing is counted twice: what is shown is what `Figures` holds at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from streamlog.processing.task import NAMED_MAX
from streamlog.worker.health.worker_health import Durations, Figures, TaskFigures, WorkerState

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""What every Prometheus understands."""


class WorkerExposition:
    """What `/metrics` answers."""

    def __init__(self, figures: Figures, standing: Callable[[], WorkerState]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_WorkerCollector(figures, standing))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics as they are now, in Prometheus' text format."""
        return generate_latest(self._registry)


class _WorkerCollector(Collector):
    """The figures as metrics."""

    def __init__(self, figures: Figures, standing: Callable[[], WorkerState]) -> None:
        self._figures = figures
        self._standing = standing

    def collect(self) -> Iterator[Metric]:
        """All of them, as they are now."""
        standing = self._standing()
        yield from self._counters()
        yield _histogram(
            "streamlog_commit_duration_seconds",
            "How long commits took: flush, changelogs, stores, offsets.",
            self._figures.commits,
        )
        yield from _of_tasks(standing.tasks)
        yield from _of_merges(standing.tasks)
        yield from _of_holdups(standing.tasks)
        lag = GaugeMetricFamily(
            "streamlog_lag_records",
            "Records between what tasks and agents have done and the end of the partition.",
            labels=["topic", "partition"],
        )
        for (topic, partition), records in standing.lag_records.items():
            lag.add_metric([topic, str(partition)], records)
        yield lag
        stalled = GaugeMetricFamily(
            "streamlog_stalled_seconds", "How long who is behind has not moved.", labels=["who"]
        )
        for who, still_ms in standing.stalled_ms.items():
            stalled.add_metric([who], still_ms / 1000)
        yield stalled
        assigned = GaugeMetricFamily(
            "streamlog_assigned", "1 if the group has given this worker its share."
        )
        assigned.add_metric([], standing.is_assigned)
        yield assigned

    def _counters(self) -> Iterator[Metric]:
        figures = self._figures
        taken = CounterMetricFamily(
            "streamlog_task_records_in", "Records that a task has taken in.", labels=["task"]
        )
        for task, count in dict(figures.taken).items():
            taken.add_metric([task], count)
        yield taken
        written = CounterMetricFamily(
            "streamlog_records_out", "Records that tasks have written.", labels=["topic"]
        )
        for topic, count in dict(figures.written).items():
            written.add_metric([topic], count)
        yield written
        dropped = CounterMetricFamily(
            "streamlog_records_dropped", "Records left out, and why.", labels=["node", "reason"]
        )
        for labels, count in dict(figures.dropped).items():
            dropped.add_metric(labels, count)
        yield dropped
        passed = CounterMetricFamily(
            "streamlog_unreadable_batches_passed",
            "Batches that can't be read and that on_error allowed the worker to pass.",
            labels=["topic", "partition"],
        )
        for (topic, partition), count in dict(figures.passed_batches).items():
            passed.add_metric([topic, str(partition)], count)
        yield passed
        answered = CounterMetricFamily(
            "streamlog_table_answers",
            "Rows and pages that were asked for.",
            labels=["by"],
        )
        for who, count in dict(figures.answered).items():
            answered.add_metric([who], count)
        yield answered
        restored = CounterMetricFamily(
            "streamlog_restored_records", "Records of changelogs that tasks were restored from."
        )
        restored.add_metric([], figures.restored)
        yield restored


def _of_tasks(tasks: tuple[TaskFigures, ...]) -> Iterator[Metric]:
    states = GaugeMetricFamily("streamlog_tasks", "Tasks of this worker.", labels=["state"])
    states.add_metric(["running"], sum(task.is_open for task in tasks))
    states.add_metric(["restoring"], sum(not task.is_open for task in tasks))
    yield states
    for name, text, values in (
        (
            "streamlog_task_lag_records",
            "Records that the task has not taken in, over all of its inputs.",
            [(task.task, task.lag_records) for task in tasks],
        ),
        (
            "streamlog_task_uncommitted_bytes",
            "Changes of state that wait for a commit, by estimate.",
            [(task.task, task.uncommitted_bytes if task.is_open else None) for task in tasks],
        ),
        (
            "streamlog_task_state_bytes",
            "The task's state on disk and in write buffers.",
            [(task.task, task.state_bytes) for task in tasks],
        ),
        (
            "streamlog_task_restore_left_records",
            "Changelog records that a task which is being restored has still to read.",
            [(task.task, task.restore_left_records) for task in tasks],
        ),
    ):
        family = GaugeMetricFamily(name, text, labels=["task"])
        for task, value in values:
            if value is not None:
                family.add_metric([task], value)
        yield family


def _of_merges(tasks: tuple[TaskFigures, ...]) -> Iterator[Metric]:
    """Of partitions of repartition topics in which records wait for a source that is behind."""
    sizes = GaugeMetricFamily(
        "streamlog_merge_buffer_bytes",
        "What waits in a repartition topic for a source that is behind; at 64 MiB it goes early.",
        labels=["task", "topic"],
    )
    behind = GaugeMetricFamily(
        "streamlog_merge_behind_seconds",
        "How far the source that is waited for is behind the one that waits, in event time.",
        labels=["task", "topic", "behind", "ahead"],
    )
    for task in tasks:
        for wait in task.merge_waits:
            sizes.add_metric([task.task, wait.topic], wait.size_bytes)
            names = [f"{topic}-{partition}" for topic, partition in (wait.behind, wait.ahead)]
            behind.add_metric([task.task, wait.topic, *names], wait.apart_ms / 1000)
    yield sizes
    yield behind


def _of_holdups(tasks: tuple[TaskFigures, ...]) -> Iterator[Metric]:
    """Of results that are due by one partition and held back by another."""
    lasts = GaugeMetricFamily(
        "streamlog_held_back_seconds",
        "For how long a node's next result has been due by one partition and held back by another.",
        labels=["task", "node", "behind"],
    )
    for task in tasks:
        for held in task.held:
            for topic, partition in sorted(held.holdup.behind)[:NAMED_MAX]:
                names = [task.task, held.holdup.node, f"{topic}-{partition}"]
                lasts.add_metric(names, held.lasts_ms / 1000)
    yield lasts


def _histogram(name: str, text: str, durations: Durations) -> Metric:
    buckets: list[tuple[str, float]] = []
    below = 0
    ends = [*(str(bound_ms / 1000) for bound_ms in durations.bounds_ms), "+Inf"]
    for end, count in zip(ends, list(durations.counts), strict=True):
        below += count
        buckets.append((end, below))
    family = HistogramMetricFamily(name, text)
    family.add_metric([], buckets, durations.sum_ms / 1000)
    return family
