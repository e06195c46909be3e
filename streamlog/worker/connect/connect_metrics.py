"""Connect metrics: the figures of connectors, under the names that Connect has by JMX exporters.

So dashboards made for Kafka Connect show them. Rule: counters never go back, so what a task counted
stays when it ends or moves away from this worker. Not done here: the figures of the group and of
clients, which every worker has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from streamlog.clock import Clock
from streamlog.connect.parts import part_id
from streamlog.connect_tasks.source_task import SourceTask
from streamlog.connect_tasks.task_figures import ReaderFigures, SinkFigures, sum_figures
from streamlog.metrics.registry import Kind, Metric, Point
from streamlog.worker.connect.connect_room import ConnectRoom
from streamlog.worker.connect.sink_group import SinkGroup
from streamlog.worker.connect.source_slots import SlotKey

TASK: Final = ("connector", "task")
F = TypeVar("F", ReaderFigures, SinkFigures)


class ConnectMetrics:
    """The metrics of one worker's connectors."""

    def __init__(self, room: ConnectRoom, clock: Clock) -> None:
        self._room, self._clock = room, clock

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        room = self._room
        sources: dict[SlotKey, SourceTask] = {
            (task.name, task.number): task for task in room.slots.tasks
        }
        sinks = {(each.connector.name, each.number): each for each in room.sink_groups}
        read = _sums(room.slots.ended, {key: task.figures() for key, task in sources.items()})
        written = _sums(room.ended, {key: each.runner.figures for key, each in sinks.items()})
        yield from _by_task(
            "source_task_metrics",
            {
                "source_record_poll_total": ("Records that the source has yielded.", "polled"),
                "source_record_write_total": ("Records written, before transforms.", "written"),
            },
            read,
        )
        yield from _by_task(
            "sink_task_metrics",
            {
                "sink_record_read_total": ("Records read from the topics.", "read"),
                "sink_record_send_total": ("Records that the target has.", "sent"),
                "offset_commit_completion_total": ("Commits of the target.", "commits"),
            },
            written,
        )
        yield from _by_task(
            "task_error_metrics",
            {
                "total_record_failures": ("Failures of the connector.", "failures"),
                "total_records_skipped": ("Records left out by on_error.", "skipped"),
                "total_retries": ("Operations that were repeated.", "retries"),
                "deadletterqueue_produce_requests": ("Dead letters written.", "dead_letters"),
            },
            {**read, **written},
        )
        yield from _present_sources(sources)
        yield from _present_sinks(sinks)
        yield from _own_gauges(sources)
        yield self._lags()
        yield from self._own_figures()

    def _lags(self) -> Metric:
        now_ms = self._clock.now_ms()
        points: list[Point] = []
        for task, reader in self._room.slots.readers():
            oldest_ms = reader.progress.oldest_ms
            # A quiet part lags by nothing; what is not read yet only the connector knows.
            lag_s = 0.0 if oldest_ms is None else (now_ms - oldest_ms) / 1000
            points.append(((task.name, part_id(reader.part)), lag_s))
        return Metric(
            "streamlog_connector_lag_seconds",
            "Age of the oldest record of a part that is read and not committed yet.",
            Kind.GAUGE,
            ("connector", "part"),
            points,
        )

    def _own_figures(self) -> Iterator[Metric]:
        """Yield what connectors count themselves."""
        # A metric has one name with all its connectors, so they are gathered first.
        by_what: dict[str, list[Point]] = {}
        for (name, what), value in sorted(self._room.figures.items()):
            by_what.setdefault(what, []).append(((name,), value))
        for what, points in by_what.items():
            name = f"streamlog_connector_{what}_total"
            yield Metric(name, "A figure of the connector.", Kind.COUNTER, ("connector",), points)


def _present_sources(sources: Mapping[SlotKey, SourceTask]) -> Iterator[Metric]:
    yield _gauge(
        "kafka_connect_source_task_metrics_source_record_active_count",
        "Records that are read and not committed yet.",
        {key: task.held_records for key, task in sources.items()},
    )
    yield _gauge(
        "streamlog_connector_held_bytes",
        "Bytes that a source task holds until a commit.",
        {key: task.held_bytes for key, task in sources.items()},
    )


def _own_gauges(sources: Mapping[SlotKey, SourceTask]) -> Iterator[Metric]:
    """Yield what sources measure themselves."""
    by_what: dict[str, dict[SlotKey, float]] = {}
    for key, task in sources.items():
        for what, value in task.gauges.items():
            by_what.setdefault(what, {})[key] = value
    for what, values in sorted(by_what.items()):
        yield _gauge(f"streamlog_connector_{what}", "A gauge of the connector.", values)


def _present_sinks(sinks: Mapping[SlotKey, SinkGroup]) -> Iterator[Metric]:
    yield _gauge(
        "kafka_connect_sink_task_metrics_sink_record_active_count",
        "Records that are read and that the target does not have yet.",
        {key: each.runner.held_records for key, each in sinks.items()},
    )
    yield _gauge(
        "streamlog_connector_lag_records",
        "Records of the log that a sink task has not read, or not written although that is due.",
        {key: sum(each.lags().values()) for key, each in sinks.items()},
    )
    yield _gauge(
        "kafka_connect_sink_task_metrics_partition_count",
        "Partitions that the task reads.",
        {key: each.partitions for key, each in sinks.items()},
    )
    yield _gauge(
        "kafka_connect_sink_task_metrics_put_batch_max_time_ms",
        "The longest time of one write.",
        {key: each.runner.figures.put_ms_max for key, each in sinks.items()},
    )


def _sums(ended: Mapping[SlotKey, F], running: Mapping[SlotKey, F]) -> dict[SlotKey, F]:
    """Return the figures of each slot, tasks that have ended included."""
    both = {
        key: [each[key] for each in (ended, running) if key in each] for key in {**running, **ended}
    }
    return {key: sum_figures(many[0], many[1:]) for key, many in sorted(both.items())}


def _by_task(
    kind: str,
    attributes: Mapping[str, tuple[str, str]],
    figures: Mapping[SlotKey, ReaderFigures | SinkFigures],
) -> Iterator[Metric]:
    for attribute, (text, field) in attributes.items():
        points: list[Point] = [
            ((name, str(number)), getattr(each, field)) for (name, number), each in figures.items()
        ]
        shown = Kind.COUNTER if attribute.endswith("_total") else Kind.GAUGE
        yield Metric(f"kafka_connect_{kind}_{attribute}", text, shown, TASK, points)


def _gauge(name: str, text: str, values: Mapping[SlotKey, float]) -> Metric:
    points: list[Point] = [
        ((connector, str(number)), value) for (connector, number), value in values.items()
    ]
    return Metric(name, text, Kind.GAUGE, TASK, points)
