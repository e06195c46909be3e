"""Metrics: the worker's figures in Prometheus' format, collected at each scrape.

Names follow Prometheus' conventions: base units, and `_total` for counters. Rules: the registry is
the worker's own, so metrics of the user's program are neither shown nor changed. No value is
counted here: a scrape shows what `Figures` holds at that moment.
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
"""The text format, which every version of Prometheus reads."""


class WorkerExposition:
    """The content of `/metrics`."""

    def __init__(self, figures: Figures, state: Callable[[], WorkerState]) -> None:
        self._registry = CollectorRegistry()
        # Collected at each scrape, so no value can be stale, or be counted twice.
        self._registry.register(_WorkerCollector(figures, state))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return all present metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _WorkerCollector(Collector):
    """Converts the figures to metrics."""

    def __init__(self, figures: Figures, state: Callable[[], WorkerState]) -> None:
        self._figures = figures
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as of now."""
        state = self._state()
        yield from self._counters()
        yield _histogram(
            "streamlog_commit_duration_seconds",
            "Duration of commits: flush, changelogs, stores, offsets.",
            self._figures.commits,
        )
        yield from _of_tasks(state.tasks)
        yield from _of_merges(state.tasks)
        yield from _of_holdups(state.tasks)
        lag = GaugeMetricFamily(
            "streamlog_lag_records",
            "Records between the position of the task or agent and the end of the partition.",
            labels=["topic", "partition"],
        )
        for (topic, partition), records in state.lag_records.items():
            lag.add_metric([topic, str(partition)], records)
        yield lag
        stalled = GaugeMetricFamily(
            "streamlog_stalled_seconds",
            "Time for which a task or agent that lags has made no progress.",
            labels=["who"],
        )
        for who, still_ms in state.stalled_ms.items():
            stalled.add_metric([who], still_ms / 1000)
        yield stalled
        assigned = GaugeMetricFamily(
            "streamlog_assigned", "1 if the group has assigned partitions to this worker, else 0."
        )
        assigned.add_metric([], state.is_assigned)
        yield assigned

    def _counters(self) -> Iterator[Metric]:
        figures = self._figures
        taken = CounterMetricFamily(
            "streamlog_task_records_in", "Records that a task has processed.", labels=["task"]
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
            "streamlog_records_dropped", "Records that nodes dropped.", labels=["node", "reason"]
        )
        for labels, count in dict(figures.dropped).items():
            dropped.add_metric(labels, count)
        yield dropped
        passed = CounterMetricFamily(
            "streamlog_unreadable_batches_passed",
            "Damaged batches that were skipped by on_error.",
            labels=["topic", "partition"],
        )
        for (topic, partition), count in dict(figures.passed_batches).items():
            passed.add_metric([topic, str(partition)], count)
        yield passed
        answered = CounterMetricFamily(
            "streamlog_table_answers",
            "Queries for rows of tables, by whether a task or a standby answered.",
            labels=["by"],
        )
        for who, count in dict(figures.answered).items():
            answered.add_metric([who], count)
        yield answered
        restored = CounterMetricFamily(
            "streamlog_restored_records", "Changelog records read to restore tasks."
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
    ):
        family = GaugeMetricFamily(name, text, labels=["task"])
        for task, value in values:
            # An unknown value is left out: 0 would look like a task that has caught up.
            if value is not None:
                family.add_metric([task], value)
        yield family


def _of_merges(tasks: tuple[TaskFigures, ...]) -> Iterator[Metric]:
    """Yield metrics of repartition topics whose records wait for a source that lags."""
    sizes = GaugeMetricFamily(
        "streamlog_merge_buffer_bytes",
        "Size of records of a repartition topic that wait for a source that lags; beyond 64 MiB "
        "they are processed out of order.",
        labels=["task", "topic"],
    )
    behind = GaugeMetricFamily(
        "streamlog_merge_behind_seconds",
        "Event time by which the source that lags is behind the source that waits for it.",
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
    """Yield metrics of results that are due by one partition and held back by another."""
    lasts = GaugeMetricFamily(
        "streamlog_held_back_seconds",
        "Time for which a node's next result, due by one partition, has waited for another one.",
        labels=["task", "node", "behind"],
    )
    for task in tasks:
        for held in task.held:
            # Each source is a time series of its own, so their number is bounded.
            for topic, partition in sorted(held.holdup.behind)[:NAMED_MAX]:
                names = [task.task, held.holdup.node, f"{topic}-{partition}"]
                lasts.add_metric(names, held.lasts_ms / 1000)
    yield lasts


def _histogram(name: str, text: str, durations: Durations) -> Metric:
    buckets: list[tuple[str, float]] = []
    below = 0
    ends = [*(str(bound_ms / 1000) for bound_ms in durations.bounds_ms), "+Inf"]
    for end, count in zip(ends, list(durations.counts), strict=True):
        # The buckets of Prometheus are cumulative.
        below += count
        buckets.append((end, below))
    family = HistogramMetricFamily(name, text)
    family.add_metric([], buckets, durations.sum_ms / 1000)
    return family
