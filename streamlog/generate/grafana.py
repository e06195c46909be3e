"""Grafana dashboards: clusters, topics, groups, apps, connectors and mirrors as JSON models.

Import one by Dashboards > New > Import, or put it into the folder of a dashboard provider. Each
asks for a Prometheus data source, and filters by the variables at its top.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

SCHEMA_VERSION = 39
"""Of Grafana 10; later releases read it."""
WIDTH, HEIGHT, PER_ROW = 8, 7, 3
"""Size of a panel in units of Grafana's grid, which is 24 wide."""
SOURCE = {"type": "prometheus", "uid": "${source}"}


class Board(StrEnum):
    """The dashboards."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    APP = "app"
    CONNECT = "connect"
    MIRROR = "mirror"


class Panel(msgspec.Struct, frozen=True):
    """A graph of one or more queries."""

    title: str
    queries: tuple[tuple[str, str], ...]
    """Queries in PromQL, each with the legend of its series."""
    unit: str = "short"
    """One of Grafana's units, such as `Bps`, `s` or `percentunit`."""


class Variable(msgspec.Struct, frozen=True):
    """A choice at the top of a dashboard, of the values of a label."""

    name: str
    query: str


def _one(title: str, query: str, legend: str, unit: str = "short") -> Panel:
    return Panel(title, ((query, legend),), unit)


def _rate(metric: str, labels: str = "", by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def _of_cluster(metric: str, label: str, labels: str = "") -> str:
    """Return the query for the values of a label in the chosen clusters."""
    return f"label_values({metric}{{{labels}{_CLUSTER}}}, {label})"


def _quantile(share: float, metric: str, labels: str, by: str) -> str:
    rate = f"rate({metric}_bucket{{{labels}}}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by (le, {by}) ({rate}))"


_CLUSTER = 'cluster=~"$cluster"'
_BROKER = f'{_CLUSTER},instance=~"$broker"'
_REQUESTS = "kafka_network_requestmetrics_"
_TRAFFIC = "kafka_server_brokertopicmetrics_"
_MANAGER = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"

CLUSTER_PANELS = (
    _one(
        "Active controllers",
        f"sum({_CONTROLLER}activecontrollercount{{{_CLUSTER}}})",
        "controllers",
    ),
    _one(
        "Partitions without a leader",
        f"sum({_CONTROLLER}offlinepartitionscount{{{_CLUSTER}}})",
        "partitions",
    ),
    Panel(
        "Replicas that are not in sync",
        (
            (f"sum({_MANAGER}underreplicatedpartitions{{{_CLUSTER}}})", "under-replicated"),
            (f"sum({_MANAGER}underminisrpartitioncount{{{_CLUSTER}}})", "refuse acks=all"),
            (
                f"sum({_MANAGER}atminisrpartitioncount{{{_CLUSTER}}})",
                "one loss from refusing acks=all",
            ),
        ),
    ),
    _one(
        "Records in",
        _rate(f"{_TRAFFIC}messagesin_total", f'topic="",{_BROKER}'),
        "{{instance}}",
        "ops",
    ),
    Panel(
        "Bytes",
        (
            (_rate(f"{_TRAFFIC}bytesin_total", f'topic="",{_BROKER}'), "{{instance}} in"),
            (_rate(f"{_TRAFFIC}bytesout_total", f'topic="",{_BROKER}'), "{{instance}} out"),
        ),
        "Bps",
    ),
    _one("Requests", _rate(f"{_REQUESTS}requests_total", _BROKER, "request"), "{{request}}", "ops"),
    _one(
        "Errors",
        _rate(f"{_REQUESTS}errors_total", _BROKER, "request, error"),
        "{{request}} {{error}}",
        "ops",
    ),
    _one(
        "Time of Produce, 99th percentile by part",
        _quantile(
            0.99, "streamlog_request_duration_seconds", f'request="Produce",{_BROKER}', "part"
        ),
        "{{part}}",
        "s",
    ),
    _one(
        "Time of Fetch, 99th percentile by part",
        _quantile(0.99, "streamlog_request_duration_seconds", f'request="Fetch",{_BROKER}', "part"),
        "{{part}}",
        "s",
    ),
    _one(
        "Time of a sync, 99th percentile",
        _quantile(0.99, "streamlog_log_flush_seconds", _BROKER, "instance"),
        "{{instance}}",
        "s",
    ),
    _one(
        "Idle share of the event loop",
        f"kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent{{{_BROKER}}}",
        "{{instance}}",
        "percentunit",
    ),
    _one(
        "Disk that is usable",
        f"streamlog_log_directory_usable_bytes{{{_BROKER}}}"
        f" / streamlog_log_directory_total_bytes{{{_BROKER}}}",
        "{{instance}} {{logdirectory}}",
        "percentunit",
    ),
    _one("Memory", f"process_resident_memory_bytes{{{_BROKER}}}", "{{instance}}", "bytes"),
    _one("CPU", _rate("process_cpu_seconds_total", _BROKER), "{{instance}}", "percentunit"),
    _one(
        "Longest hold of the event loop",
        f"streamlog_event_loop_longest_hold_seconds{{{_BROKER}}}",
        "{{instance}}",
        "s",
    ),
    _one(
        "Requests that wait",
        "sum by (delayedoperation)"
        f" (kafka_server_delayedoperationpurgatory_purgatorysize{{{_BROKER}}})",
        "{{delayedoperation}}",
    ),
    _one(
        "Lag of followers in records",
        f"max by (follower) (streamlog_follower_lag_records{{{_BROKER}}})",
        "{{follower}}",
    ),
    _one("Connections", f"streamlog_connections{{{_BROKER}}}", "{{instance}}"),
    _one(
        "Failed authentications",
        _rate("kafka_server_socket_server_metrics_failed_authentication_total", _BROKER),
        "{{instance}}",
        "ops",
    ),
    _one("Partitions led", f"{_MANAGER}leadercount{{{_BROKER}}}", "{{instance}}"),
)
# The series of the empty topic is the sum of all.
_TOPIC = f'{_CLUSTER},topic=~"$topic",topic!=""'
TOPIC_PANELS = (
    _one(
        "Records in",
        _rate(f"{_TRAFFIC}messagesin_total", _TOPIC, "topic"),
        "{{topic}}",
        "ops",
    ),
    _one(
        "Bytes in",
        _rate(f"{_TRAFFIC}bytesin_total", _TOPIC, "topic"),
        "{{topic}}",
        "Bps",
    ),
    _one(
        "Bytes out",
        _rate(f"{_TRAFFIC}bytesout_total", _TOPIC, "topic"),
        "{{topic}}",
        "Bps",
    ),
    _one(
        "Size of all replicas",
        f"sum by (topic) (kafka_log_log_size{{{_TOPIC}}})",
        "{{topic}}",
        "bytes",
    ),
    _one(
        "Size by partition",
        f"max by (topic, partition) (kafka_log_log_size{{{_TOPIC}}})",
        "{{topic}}-{{partition}}",
        "bytes",
    ),
    _one(
        "Lag of groups",
        f"sum by (group, topic) (kafka_consumergroup_group_topic_sum_lag{{{_TOPIC}}})",
        "{{group}} {{topic}}",
    ),
)
_GROUP = f'{_CLUSTER},group=~"$group"'
GROUP_PANELS = (
    _one(
        "Lag in time",
        f"max by (group) (kafka_consumergroup_group_max_lag_seconds{{{_GROUP}}})",
        "{{group}}",
        "s",
    ),
    _one(
        "Lag in records",
        f"sum by (group) (kafka_consumergroup_group_sum_lag{{{_GROUP}}})",
        "{{group}}",
    ),
    _one(
        "Lag by partition",
        f"kafka_consumergroup_group_lag{{{_GROUP}}}",
        "{{topic}}-{{partition}}",
    ),
    _one(
        "Time until caught up",
        f"streamlog_consumergroup_group_catch_up_seconds{{{_GROUP}}}",
        "{{group}}",
        "s",
    ),
    _one(
        "Lost to retention",
        f"streamlog_consumergroup_group_lost_records{{{_GROUP}}}",
        "{{group}}",
    ),
    _one("Members", f"streamlog_consumergroup_group_members{{{_GROUP}}}", "{{group}}"),
)
_WORKER = f'{_CLUSTER},instance=~"$worker"'
APP_PANELS = (
    _one(
        "Records in",
        _rate("streamlog_task_records_in_total", _WORKER, "instance"),
        "{{instance}}",
        "ops",
    ),
    _one("Records out", _rate("streamlog_records_out_total", _WORKER, "topic"), "{{topic}}", "ops"),
    _one(
        "Dropped records",
        _rate("streamlog_records_dropped_total", _WORKER, "node, reason"),
        "{{node}}: {{reason}}",
        "ops",
    ),
    _one("Lag in records", f"sum by (topic) (streamlog_lag_records{{{_WORKER}}})", "{{topic}}"),
    _one(
        "Time of a commit, 99th percentile",
        _quantile(0.99, "streamlog_commit_duration_seconds", _WORKER, "instance"),
        "{{instance}}",
        "s",
    ),
    _one("Stalled", f"streamlog_stalled_seconds{{{_WORKER}}}", "{{who}}", "s"),
    _one("Tasks", f"sum by (state) (streamlog_tasks{{{_WORKER}}})", "{{state}}"),
    _one("State", f"sum by (task) (streamlog_task_state_bytes{{{_WORKER}}})", "{{task}}", "bytes"),
    _one(
        "Records left to restore",
        # The series are there only while a task restores its state.
        f"sum by (task) (streamlog_task_restore_left_records{{{_WORKER}}}) or on() vector(0)",
        "{{task}}",
    ),
)
_CONNECTOR = f'{_CLUSTER},connector=~"$connector"'
_SOURCE_TASK = "kafka_connect_source_task_metrics_"
_SINK_TASK = "kafka_connect_sink_task_metrics_"
_TASK_ERROR = "kafka_connect_task_error_metrics_"


def _per_second(title: str, metric: str) -> Panel:
    return _one(title, _rate(metric, _CONNECTOR, "connector"), "{{connector}}", "ops")


def _by_connector(title: str, metric: str, unit: str = "short", *, of: str = "sum") -> Panel:
    query = f"{of} by (connector) ({metric}{{{_CONNECTOR}}})"
    return _one(title, query, "{{connector}}", unit)


CONNECT_PANELS = (
    _per_second("Records that sources have read", f"{_SOURCE_TASK}source_record_poll_total"),
    _per_second("Records that sources have committed", f"{_SOURCE_TASK}source_record_write_total"),
    _per_second("Records that targets have", f"{_SINK_TASK}sink_record_send_total"),
    _by_connector(
        "Age of what a source has read and not committed",
        "streamlog_connector_lag_seconds",
        "s",
        of="max",
    ),
    _by_connector("Lag of sinks in records", "streamlog_connector_lag_records"),
    Panel(
        "Records that wait for a commit",
        tuple(
            (f"sum by (connector) ({metric}{{{_CONNECTOR}}})", "{{connector}}")
            for metric in (
                f"{_SOURCE_TASK}source_record_active_count",
                f"{_SINK_TASK}sink_record_active_count",
            )
        ),
    ),
    _by_connector("Bytes that sources hold", "streamlog_connector_held_bytes", "bytes"),
    _per_second("Commits of targets", f"{_SINK_TASK}offset_commit_completion_total"),
    _by_connector("Longest write of a sink", f"{_SINK_TASK}put_batch_max_time_ms", "ms", of="max"),
    _per_second("Attempts that were repeated", f"{_TASK_ERROR}total_retries"),
    _per_second("Failures", f"{_TASK_ERROR}total_record_failures"),
    Panel(
        "Records left out",
        (
            (
                _rate(f"{_TASK_ERROR}total_records_skipped", _CONNECTOR, "connector"),
                "{{connector}} skipped",
            ),
            (
                _rate(f"{_TASK_ERROR}deadletterqueue_produce_requests", _CONNECTOR, "connector"),
                "{{connector}} dead letters",
            ),
        ),
        "ops",
    ),
    Panel(
        "WAL of replication slots",
        # Only `PostgresCdc` has slots, and only some servers a limit.
        (
            (
                f"streamlog_connector_slot_retained_bytes{{{_CONNECTOR}}} or on() vector(0)",
                "{{connector}} kept",
            ),
            (
                f"streamlog_connector_slot_safe_bytes{{{_CONNECTOR}}} or on() vector(0)",
                "{{connector}} left",
            ),
        ),
        "bytes",
    ),
)
_LINK = f'{_CLUSTER},link=~"$link"'
MIRROR_PANELS = (
    _one(
        "Time since a mirror had everything",
        f"max by (link) (streamlog_mirror_lag_seconds{{{_LINK}}})",
        "{{link}}",
        "s",
    ),
    _one(
        "Lag in records",
        f"sum by (link, topic) (streamlog_mirror_lag_records{{{_LINK}}})",
        "{{link}} {{topic}}",
    ),
    _one(
        "Lag in bytes",
        f"sum by (link) (streamlog_mirror_lag_bytes{{{_LINK}}})",
        "{{link}}",
        "bytes",
    ),
    _one(
        "Bytes copied",
        _rate("streamlog_mirror_copied_bytes_total", _LINK, "link"),
        "{{link}}",
        "Bps",
    ),
    _one(
        "Records copied",
        _rate("streamlog_mirror_copied_records_total", _LINK, "link"),
        "{{link}}",
        "ops",
    ),
    _one(
        "Brokers that reach the source",
        f"sum by (link) (streamlog_mirror_link_up{{{_LINK}}})",
        "{{link}}",
    ),
    _one(
        "Topics by state",
        # Each broker reports all of them.
        f"max by (link, state) (streamlog_mirror_topics{{{_LINK}}})",
        "{{link}} {{state}}",
    ),
    _one(
        "Partitions cut to the common end",
        f"sum by (link) (increase(streamlog_mirror_cuts_total{{{_LINK}}}[$__rate_interval]))",
        "{{link}}",
    ),
    _one(
        "Offsets put into lost-and-found",
        "sum by (instance) (increase(streamlog_mirror_lost_and_found_offsets_total"
        f"{{{_CLUSTER}}}[$__rate_interval]))",
        "{{instance}}",
    ),
)
_CLUSTERS = Variable("cluster", 'label_values(up{job=~"streamlog-.*"}, cluster)')
BOARDS: dict[Board, tuple[tuple[Variable, ...], tuple[Panel, ...]]] = {
    Board.CLUSTER: (
        (_CLUSTERS, Variable("broker", _of_cluster("up", "instance", 'job="streamlog-brokers",'))),
        CLUSTER_PANELS,
    ),
    Board.TOPIC: (
        (_CLUSTERS, Variable("topic", _of_cluster("kafka_log_log_size", "topic"))),
        TOPIC_PANELS,
    ),
    Board.GROUP: (
        (_CLUSTERS, Variable("group", _of_cluster("kafka_consumergroup_group_sum_lag", "group"))),
        GROUP_PANELS,
    ),
    Board.APP: (
        (_CLUSTERS, Variable("worker", _of_cluster("up", "instance", 'job="streamlog-apps",'))),
        APP_PANELS,
    ),
    Board.CONNECT: (
        (
            _CLUSTERS,
            Variable("connector", _of_cluster(f"{_TASK_ERROR}total_retries", "connector")),
        ),
        CONNECT_PANELS,
    ),
    Board.MIRROR: (
        (_CLUSTERS, Variable("link", _of_cluster("streamlog_mirror_topics", "link"))),
        MIRROR_PANELS,
    ),
}
"""The variables and panels of each dashboard."""


def dashboard(board: Board) -> str:
    """Return a dashboard as JSON, indented."""
    variables, panels = BOARDS[board]
    model = {
        "uid": f"streamlog-{board}",
        "title": f"streamlog: {board}",
        "tags": ["streamlog"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *map(_choice, variables)]},
        "panels": [_panel(at, panel) for at, panel in enumerate(panels)],
    }
    return msgspec.json.format(msgspec.json.encode(model)).decode() + "\n"


def _source() -> dict[str, object]:
    return {"name": "source", "label": "data source", "type": "datasource", "query": "prometheus"}


def _choice(variable: Variable) -> dict[str, object]:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,  # whenever the time range changes
        "includeAll": True,
        "multi": True,
        # Also matches series without the label, so that one cluster needs no name.
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(at: int, panel: Panel) -> dict[str, object]:
    row, column = divmod(at, PER_ROW)
    targets: Sequence[dict[str, object]] = [
        {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for n, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
