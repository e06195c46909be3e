"""Connect metrics: the figures of connectors, under the names that Connect has by JMX exporters.

So dashboards made for Kafka Connect show them, of an app's workers and of a service's. Rule:
counters never go back, so what a task counted stays when it ends or moves away from this worker.
Not done here: the figures of the group and of clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from streamlog.clock import Clock
from streamlog.connect.herding.herder import Herder
from streamlog.connect.herding.lifecycle import VERSION, ConnectorState
from streamlog.connect.herding.own_tasks import StartCounts
from streamlog.connect.parts import part_id
from streamlog.connect_tasks.part_reader import PartReader
from streamlog.connect_tasks.source_task import SourceTask
from streamlog.connect_tasks.task_figures import (
    ConnectorTaskFigures,
    ReaderFigures,
    SinkFigures,
    sum_figures,
)
from streamlog.metrics.instruments import Histogram
from streamlog.metrics.registry import ITEMS_PER_STEP, OTHER, Kind, Metric, Point, number
from streamlog.worker.connect.sink_group import SinkGroup
from streamlog.worker.connect.source_slots import SlotKey

WORKER: Final = "kafka_connect_connect_worker_metrics_"
CLASS: Final = "connector.class"
SHOWN: Final = (
    ConnectorState.RUNNING,
    ConnectorState.PAUSED,
    ConnectorState.FAILED,
    ConnectorState.UNASSIGNED,
    ConnectorState.RESTARTING,
)
"""The states in which a worker has tasks."""
TASK: Final = ("connector", "task")
PARTS_MAX: Final = 1_000
"""The parts of sources that have a series of their own, connectors with the fewest parts first. The
parts of a further connector are one series: a source may have 100,000."""
F = TypeVar("F", ReaderFigures, SinkFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorFigures:
    """The connectors of a worker at one moment, and what they have done on it since its start."""

    sources: Mapping[SlotKey, SourceTask]
    """Tasks at work."""
    sinks: Mapping[SlotKey, SinkGroup]
    """Tasks at work."""
    read: Mapping[SlotKey, ReaderFigures]
    """Of all tasks of sources, those that have ended included."""
    written: Mapping[SlotKey, SinkFigures]
    """Of all tasks of sinks."""
    own: Mapping[tuple[str, str], int]
    """What connectors count themselves, by name and what."""
    herder: Herder


class ConnectMetrics:
    """The metrics of one worker's connectors."""

    def __init__(self, look: Callable[[], ConnectorFigures], clock: Clock) -> None:
        """`look` returns the connectors as they are now."""
        self._look, self._clock = look, clock

    def collect(self) -> Iterator[Metric | None]:
        """Yield the metrics as they are now."""
        now = self._look()
        yield from _by_task(
            "source_task_metrics",
            {
                "source_record_poll_total": ("Records that the source has yielded.", "polled"),
                "source_record_write_total": ("Records written, before transforms.", "written"),
            },
            now.read,
        )
        yield from _by_task(
            "sink_task_metrics",
            {
                "sink_record_read_total": ("Records read from the topics.", "read"),
                "sink_record_send_total": ("Records that the target has.", "sent"),
                "offset_commit_completion_total": ("Commits of the target.", "commits"),
            },
            now.written,
        )
        both: dict[SlotKey, ConnectorTaskFigures] = {**now.read, **now.written}
        yield from _by_task(
            "task_error_metrics",
            {
                "total_record_failures": ("Failures of the connector.", "failures"),
                "total_records_skipped": ("Records left out by on_error.", "skipped"),
                "total_retries": ("Operations that were repeated.", "retries"),
                "deadletterqueue_produce_requests": ("Dead letters written.", "dead_letters"),
                "last_error_timestamp": (
                    "When the task last met an error, in ms since 1970; 0 if it has not.",
                    "failed_ms_max",
                ),
            },
            both,
        )
        yield from _by_task(
            "connector_task_metrics",
            {"offset_commit_max_time_ms": ("The longest time of one commit.", "commit_ms_max")},
            both,
        )
        yield _commit_times(both)
        yield from _present_sources(now.sources)
        yield from _present_sinks(now.sinks)
        yield from _own_gauges(now.sources)
        yield from self._lags(now.sources)
        yield from _own_figures(now.own)
        yield from _states(now.herder)

    def _lags(self, sources: Mapping[SlotKey, SourceTask]) -> Iterator[Metric | None]:
        by_connector: dict[str, list[PartReader]] = {}
        for task in sources.values():
            by_connector.setdefault(task.name, []).extend(task.readers)
        now_ms, points, together, count = self._clock.now_ms(), list[Point](), list[Point](), 0
        # 1. A source reads 5,000 files, forty others a table each. 2. By name, the large one might
        # take all the room. 3. By size, the forty keep their series.
        for name, readers in sorted(by_connector.items(), key=lambda each: (len(each[1]), each[0])):
            has_own = count + len(readers) <= PARTS_MAX
            worst_s = 0.0
            for reader in readers:
                count += 1
                if count % ITEMS_PER_STEP == 0:
                    yield None
                lag_s = _lag_s(reader, now_ms)
                worst_s = max(worst_s, lag_s)
                if has_own:
                    points.append(((name, part_id(reader.part)), lag_s))
            if not has_own:
                points.append(((name, OTHER), worst_s))
                together.append(((name,), len(readers)))
        yield Metric(
            "streamlog_connector_lag_seconds",
            "Age of the oldest record of a part that is read and not committed yet.",
            Kind.GAUGE,
            ("connector", "part"),
            points,
        )
        yield Metric(
            "streamlog_connector_lag_other_parts",
            "Parts without a lag of their own: the part `other` has the largest of them.",
            Kind.GAUGE,
            ("connector",),
            together,
        )


def _lag_s(reader: PartReader, now_ms: int) -> float:
    oldest_ms = reader.progress.oldest_ms
    # A quiet part lags by nothing; what is not read yet only the connector knows.
    return 0.0 if oldest_ms is None else (now_ms - oldest_ms) / 1000


def _own_figures(own: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    """Yield what connectors count themselves."""
    # A metric has one name with all its connectors, so they are gathered first.
    by_what: dict[str, list[Point]] = {}
    for (name, what), value in sorted(own.items()):
        by_what.setdefault(what, []).append(((name,), value))
    for what, points in by_what.items():
        name = f"streamlog_connector_{what}_total"
        yield Metric(name, "A figure of the connector.", Kind.COUNTER, ("connector",), points)


def _commit_times(figures: Mapping[SlotKey, ConnectorTaskFigures]) -> Metric:
    # By connector: a histogram for each of 10,000 tasks would be 200,000 series.
    times: dict[str, Histogram] = {}
    for (name, _), each in figures.items():
        times.setdefault(name, Histogram()).include(each.commit_times)
    return Metric(
        "streamlog_connector_commit_seconds",
        "Duration of commits: of a sink the target's, of a source the transaction.",
        Kind.HISTOGRAM,
        ("connector",),
        [((name,), each) for name, each in sorted(times.items())],
    )


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


def with_ended(ended: Mapping[SlotKey, F], running: Mapping[SlotKey, F]) -> dict[SlotKey, F]:
    """Return the figures of each slot, tasks that have ended included.

    Args:
        ended: what tasks have done that have ended on this worker.
        running: what those at work have done.
    """
    both = {
        key: [each[key] for each in (ended, running) if key in each] for key in {**running, **ended}
    }
    return {key: sum_figures(many[0], many[1:]) for key, many in sorted(both.items())}


def _by_task(
    kind: str,
    attributes: Mapping[str, tuple[str, str]],
    figures: Mapping[SlotKey, ConnectorTaskFigures],
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


# What belongs to a connector as a whole is shown by the worker that leads the group, and by no
# other: so sums over workers count it once. What is text in JMX, such as a status, is a label here.
def _states(herder: Herder) -> Iterator[Metric]:
    """Yield the states of the connectors and of this worker's tasks."""
    yield _connectors(herder)
    states = herder.own.states
    yield Metric(
        "kafka_connect_connector_task_metrics",
        "1, with the status of the task as a label.",
        Kind.GAUGE,
        ("connector", "task", "status"),
        [((slot.connector, str(slot.task), state.lower()), 1) for slot, state in states.items()],
    )
    yield from _task_counts(Counter((slot.connector, state) for slot, state in states.items()))
    led = len(herder.configs.connectors) if herder.is_leader else 0
    yield number(f"{WORKER}connector_count", "Connectors that this worker runs: all or none.", led)
    yield number(
        f"{WORKER}task_count", "Tasks that this worker has, failed ones included.", len(states)
    )
    yield from _starts("connector", herder.starts)
    yield from _starts("task", herder.own.starts)


def _connectors(herder: Herder) -> Metric:
    points: list[Point] = []
    for name, settings in herder.configs.connectors.items() if herder.is_leader else ():
        status = herder.statuses.connector(name)
        state = ConnectorState.UNASSIGNED if status is None else status.state
        shown = (name, settings.get(CLASS, ""), herder.kind(name), VERSION, state.lower())
        points.append((shown, 1))
    return Metric(
        "kafka_connect_connector_metrics",
        "1, with class, type, version and status of the connector as labels; by the leader.",
        Kind.GAUGE,
        ("connector", "connector_class", "connector_type", "connector_version", "status"),
        points,
    )


def _task_counts(counts: Counter[tuple[str, ConnectorState]]) -> Iterator[Metric]:
    names = sorted({name for name, _ in counts})
    totals: list[Point] = [
        ((name,), sum(counts[name, state] for state in ConnectorState)) for name in names
    ]
    yield Metric(
        f"{WORKER}connector_total_task_count",
        "Tasks of the connector on this worker.",
        Kind.GAUGE,
        ("connector",),
        totals,
    )
    for state in SHOWN:
        yield Metric(
            f"{WORKER}connector_{state.lower()}_task_count",
            f"Tasks of the connector on this worker that are {state}.",
            Kind.GAUGE,
            ("connector",),
            [((name,), counts[name, state]) for name in names],
        )


def _starts(what: str, counts: StartCounts) -> Iterator[Metric]:
    for attribute, text, value in (
        ("attempts", "that this worker has begun", counts.attempts),
        ("success", "that succeeded", counts.successes),
        ("failure", "that failed", counts.failures),
    ):
        name = f"{WORKER}{what}_startup_{attribute}_total"
        yield number(name, f"Starts of a {what} {text}.", value, kind=Kind.COUNTER)
