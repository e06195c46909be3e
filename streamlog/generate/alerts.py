"""Alert rules: when to wake an operator, as a rule file of Prometheus.

Each alert has a section of the same name in docs/runbooks.md: what it means, and what to do.
Critical alerts stand for refused requests, or records at risk; warnings leave hours.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

import msgspec

DOCS = "docs"
"""Where the documentation is, unless given: the folder of a checkout."""
WARNING, CRITICAL = "warning", "critical"


class AlertLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster considers too much."""

    pending: str = "1m"
    """How long a condition holds before a critical alert fires, as a duration of Prometheus."""
    pending_warning: str = "10m"
    """The same of a warning: longer than the restart of a broker."""
    lag_seconds: float = 300
    """Of a group, a connector, a mirror, and of a result that one partition holds back."""
    disk_share: float = 0.1
    """The share of a disk that must be usable, and of the WAL that a slot may keep."""
    idle_share: float = 0.3
    """The share of its time for which an event loop must be idle."""
    flush_seconds: float = 0.1
    """The 99th percentile of syncs."""
    request_seconds: float = 1
    """The 99th percentile of Produce requests, waiting included."""
    slot_bytes: float = 10 * 1024**3
    """WAL that a database keeps for the slot of a connector."""


class Pending(Enum):
    """How long the condition of an alert has to hold."""

    SHORT = auto()
    LONG = auto()
    """For what passes by itself, such as a restart, a rebalance or a peak."""
    NONE = auto()
    """The condition is that something has happened, and looks back itself."""


class Alert(msgspec.Struct, frozen=True):
    """One alert rule."""

    name: str
    expr: str
    """In PromQL."""
    summary: str
    """One line; may use `$labels` and `$value` as Prometheus' templates."""
    action: str
    """What to do first."""
    severity: str
    pending: Pending

    @property
    def anchor(self) -> str:
        """The anchor of its section in the runbooks."""
        return self.name.lower()


def _sum(metric: str) -> str:
    """Return the sum over the brokers of each cluster that a Prometheus scrapes."""
    # Not one sum: of two clusters, each with a controller, it would be 2, and an alert.
    return f"sum by (cluster) ({metric})"


def _grown(counter: str, period: str) -> str:
    """Return the condition that a counter has grown within a period."""
    # `increase` sees no growth in the first sample of a series, and a series begins with the first
    # dead letter.
    return f"increase({counter}[{period}]) > 0 or ({counter} unless {counter} offset {period}) > 0"


AVAILABILITY_ALERTS = (
    Alert(
        "StreamlogBrokerDown",
        'up{job="streamlog-brokers"} == 0',
        "broker {{ $labels.instance }} does not answer",
        "Run `streamlog cluster status`, read the end of the broker's log, and start it again."
        " Stop no other broker meanwhile.",
        CRITICAL,
        Pending.SHORT,
    ),
    Alert(
        "StreamlogNoController",
        # Not `== 0`: two nodes that both believe to be active are as bad.
        _sum("kafka_controller_kafkacontroller_activecontrollercount") + " != 1",
        "{{ $value }} active controllers instead of one: topics and leaders can't change",
        "Start the voters that are down: most of them must run.",
        CRITICAL,
        Pending.SHORT,
    ),
    Alert(
        "StreamlogOfflinePartitions",
        _sum("kafka_controller_kafkacontroller_offlinepartitionscount") + " > 0",
        "{{ $value }} partitions have no leader: they can't be read or written",
        "Start the brokers that hold their replicas; `streamlog cluster status` names them.",
        CRITICAL,
        Pending.SHORT,
    ),
    Alert(
        "StreamlogUnderMinIsr",
        _sum("kafka_server_replicamanager_underminisrpartitioncount") + " > 0",
        "{{ $value }} partitions refuse acks=all: too few replicas are in sync",
        "Bring back the brokers whose replicas `streamlog cluster status` shows as missing.",
        CRITICAL,
        Pending.SHORT,
    ),
    Alert(
        "StreamlogUnderReplicated",
        _sum("kafka_server_replicamanager_underreplicatedpartitions") + " > 0",
        "{{ $value }} partitions have replicas that are not in sync",
        "Find the broker that is down or slow by `streamlog cluster status`. Stop no other one"
        " meanwhile.",
        WARNING,
        Pending.LONG,
    ),
    Alert(
        "StreamlogUncleanElection",
        _grown("kafka_controller_controllerstats_uncleanleaderelections_total", "10m"),
        "a leader was elected that may lack acknowledged records",
        "Find the partitions in the log of the active controller, and compare them with their"
        " sources.",
        CRITICAL,
        Pending.NONE,
    ),
)
"""Of brokers, the quorum and replicas: no threshold, since one is too many."""


def cluster_alerts(limits: AlertLimits) -> list[Alert]:
    """Return the alerts about brokers and the quorum."""
    return [*AVAILABILITY_ALERTS, *_disk_alerts(limits), *_load_alerts(limits)]


def _disk_alerts(limits: AlertLimits) -> list[Alert]:
    return [
        Alert(
            "StreamlogDiskFull",
            # Usable, not free: the system keeps a reserve that a broker can't write to.
            "streamlog_log_directory_usable_bytes / streamlog_log_directory_total_bytes"
            f" < {limits.disk_share:g}",
            "{{ $value | humanizePercentage }} of the disk of {{ $labels.logdirectory }} at"
            " {{ $labels.instance }} is usable",
            "Lower the retention of the largest topics, enlarge the disk, or move partitions away."
            " Delete no file by hand.",
            CRITICAL,
            Pending.SHORT,
        ),
        Alert(
            "StreamlogDiskFailed",
            "kafka_log_logmanager_offlinelogdirectorycount > 0",
            "{{ $value }} directories of {{ $labels.instance }} can't be used",
            "Find the directory and its error in the broker's log, replace the disk, and restart"
            " the broker.",
            CRITICAL,
            Pending.SHORT,
        ),
        Alert(
            "StreamlogSlowSync",
            # By broker: over all of them, the sound disks would hide the slow one.
            "histogram_quantile(0.99, sum by (cluster, instance, le)"
            f" (rate(streamlog_log_flush_seconds_bucket[5m]))) > {limits.flush_seconds:g}",
            "the 99th percentile of syncs at {{ $labels.instance }} is"
            " {{ $value | humanizeDuration }}",
            "Look for other programs that write, a cloud disk without burst, or a failing disk.",
            WARNING,
            Pending.LONG,
        ),
        Alert(
            "StreamlogUnreadableBatches",
            _grown("streamlog_cleaner_unreadable_batches_total", "1h"),
            "the log cleaner of {{ $labels.instance }} found batches that can't be read",
            "Find the partition in the broker's log, and check the disk before it spreads.",
            WARNING,
            Pending.NONE,
        ),
    ]


def _load_alerts(limits: AlertLimits) -> list[Alert]:
    return [
        Alert(
            "StreamlogSlowProduce",
            # In total, since the client waits for all parts; the dashboard tells them apart.
            "histogram_quantile(0.99, sum by (cluster, instance, le) (rate("
            'streamlog_request_duration_seconds_bucket{request="Produce",part="total"}[5m])))'
            f" > {limits.request_seconds:g}",
            "the 99th percentile of Produce requests at {{ $labels.instance }} is"
            " {{ $value | humanizeDuration }}",
            "See in the dashboard which part takes the time: the queue, the disk or the followers.",
            WARNING,
            Pending.LONG,
        ),
        Alert(
            "StreamlogBrokerBusy",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
            f" < {limits.idle_share:g}",
            "the event loop of {{ $labels.instance }} is idle for only"
            " {{ $value | humanizePercentage }} of the time",
            "Find in the dashboard what it does, and move leaders away or add a broker.",
            WARNING,
            Pending.LONG,
        ),
        Alert(
            "StreamlogConnectionsRefused",
            _grown("streamlog_connections_refused_total", "5m"),
            "{{ $labels.instance }} refuses connections: a limit is reached",
            "Find in the broker's log which limit it is and which addresses connect so often.",
            WARNING,
            Pending.NONE,
        ),
    ]


def group_alerts(limits: AlertLimits) -> list[Alert]:
    """Return the alerts about consumer groups."""
    return [
        Alert(
            "StreamlogGroupLag",
            # In time: how many records are too many differs from group to group.
            f"kafka_consumergroup_group_max_lag_seconds > {limits.lag_seconds:g}",
            "group {{ $labels.group }} is {{ $value | humanizeDuration }} behind",
            "Run `streamlog groups describe {{ $labels.group }}`: start missing members, or add"
            " some.",
            WARNING,
            Pending.LONG,
        ),
        Alert(
            "StreamlogGroupLostRecords",
            # Once the group commits an offset behind what was deleted, its loss is 0 again.
            "max_over_time(streamlog_consumergroup_group_lost_records[10m]) > 0",
            "{{ $value }} records were deleted before group {{ $labels.group }} read them",
            "Raise the topic's `retention.ms` at once, so that it does not lose more.",
            CRITICAL,
            Pending.NONE,
        ),
    ]


def app_alerts(limits: AlertLimits) -> list[Alert]:
    """Return the alerts about workers of apps."""
    return [
        Alert(
            "StreamlogWorkerDown",
            'up{job="streamlog-apps"} == 0',
            "worker {{ $labels.instance }} does not answer",
            "Read the end of its output, and start it again.",
            CRITICAL,
            Pending.SHORT,
        ),
        Alert(
            "StreamlogTaskStalled",
            # The series begins when the watchdog's time has passed, so any value is too much.
            "streamlog_stalled_seconds > 0",
            "{{ $labels.who }} at {{ $labels.instance }} has made no progress for"
            " {{ $value | humanizeDuration }}",
            "Find in the worker's log where it is, and restart the worker.",
            CRITICAL,
            Pending.SHORT,
        ),
        Alert(
            "StreamlogDeadLetters",
            _grown('streamlog_records_dropped_total{reason="dead letter"}', "10m"),
            "node {{ $labels.node }} has sent records to the dead letter topic",
            "Run `streamlog -A MODULE dlq`, which shows their errors.",
            WARNING,
            Pending.NONE,
        ),
        Alert(
            "StreamlogResultHeldBack",
            f"streamlog_held_back_seconds > {limits.lag_seconds:g}",
            "results of {{ $labels.node }} have waited for {{ $labels.behind }} for"
            " {{ $value | humanizeDuration }}",
            "Find out why {{ $labels.behind }} gets no records, or declare `idle_after`.",
            WARNING,
            Pending.LONG,
        ),
        Alert(
            "StreamlogWorkerUnassigned",
            # A spare worker counts as assigned: its share is empty.
            "streamlog_assigned == 0",
            "the group of worker {{ $labels.instance }} has not assigned it its share",
            "Run `streamlog groups describe APP`: some member does not join, or fails again and"
            " again.",
            WARNING,
            Pending.LONG,
        ),
    ]


_RETRIES = "kafka_connect_task_error_metrics_total_retries"
_LETTERS = "kafka_connect_task_error_metrics_deadletterqueue_produce_requests"
_READS = "rate(kafka_connect_sink_task_metrics_sink_record_read_total[5m])"
_FAILED_TASKS = "kafka_connect_connect_worker_metrics_connector_failed_task_count"
_CONNECTORS = "kafka_connect_connector_metrics"
_RETAINED = "streamlog_connector_slot_retained_bytes"
_SAFE = "streamlog_connector_slot_safe_bytes"


def connector_alerts(limits: AlertLimits) -> list[Alert]:
    """Return the alerts about connectors."""
    return [
        Alert(
            "StreamlogConnectorFailed",
            # A connector that can't name its parts, or whose class is missing, has no tasks.
            f'{_FAILED_TASKS} > 0 or {_CONNECTORS}{{status="failed"}} == 1',
            "connector {{ $labels.connector }}, or a task of it, has failed on"
            " {{ $labels.instance }}",
            "Run `streamlog connectors describe NAME`, which shows the error. What may pass is"
            " tried again within 5 minutes; a wrong record or setting waits for you.",
            CRITICAL,
            Pending.SHORT,
        ),
        Alert(
            "StreamlogConnectorRetries",
            # The longest back-off is a minute: an outage that lasts has several in five.
            f"increase({_RETRIES}[5m]) > 1",
            "connector {{ $labels.connector }} can't reach the other side: it has tried again"
            " {{ $value | humanize }} times in 5 minutes",
            "Find the error in the worker's log, and mend the other side. The connector continues"
            " by itself.",
            WARNING,
            Pending.LONG,
        ),
        Alert(
            "StreamlogConnectorDeadLetters",
            _grown(_LETTERS, "10m"),
            "connector {{ $labels.connector }} has sent records to its dead letter topic",
            "Run `streamlog dlq`, which shows their errors.",
            WARNING,
            Pending.NONE,
        ),
        Alert(
            "StreamlogSourceStandsStill",
            f"streamlog_connector_lag_seconds > {limits.lag_seconds:g}",
            "what source {{ $labels.connector }} has read from {{ $labels.part }} waits for its"
            " commit for {{ $value | humanizeDuration }}",
            "Find in the worker's log why its transactions do not commit.",
            CRITICAL,
            Pending.SHORT,
        ),
        Alert(
            "StreamlogSinkLag",
            # The time to catch up: infinite for a sink without progress, and NaN, which is not
            # too much, for one that has nothing to do.
            f"streamlog_connector_lag_records / {_READS} > {limits.lag_seconds:g}",
            "sink {{ $labels.connector }} needs {{ $value | humanizeDuration }} to catch up",
            "See in the dashboard whether its target is slow or does not answer; give it more"
            " tasks, up to the number of partitions.",
            WARNING,
            Pending.LONG,
        ),
        *_slot_alerts(limits),
    ]


def _slot_alerts(limits: AlertLimits) -> list[Alert]:
    return [
        Alert(
            "StreamlogSlotLag",
            f"{_RETAINED} > {limits.slot_bytes:g}",
            "the database keeps {{ $value | humanize1024 }}B of WAL for the slot of connector"
            " {{ $labels.connector }}",
            "Find out what the connector waits for, before the database's disk is full.",
            WARNING,
            Pending.LONG,
        ),
        Alert(
            "StreamlogSlotLosesWal",
            f"{_SAFE} / ({_SAFE} + {_RETAINED}) < {limits.disk_share:g}",
            "the slot of connector {{ $labels.connector }} has"
            " {{ $value | humanizePercentage }} left of the WAL that the database lets it keep",
            "Raise `max_slot_wal_keep_size` of the database, or the tables need a new snapshot.",
            CRITICAL,
            Pending.SHORT,
        ),
    ]


def mirror_alerts(limits: AlertLimits) -> list[Alert]:
    """Return the alerts about mirrors of other clusters."""
    return [
        Alert(
            "StreamlogMirrorStopped",
            # All brokers report what the controller has decided, so a maximum and not a sum.
            'max by (cluster, link) (streamlog_mirror_topics{state="STOPPED"}) > 0',
            "{{ $value }} topics of link {{ $labels.link }} are not mirrored any more",
            "Run `streamlog mirror describe LINK`, which shows the reason for each.",
            CRITICAL,
            Pending.SHORT,
        ),
        Alert(
            "StreamlogMirrorLinkDown",
            "streamlog_mirror_link_up == 0",
            "{{ $labels.instance }} does not reach the source of link {{ $labels.link }}",
            "Run `streamlog mirror describe LINK`, which names the address or the login that"
            " fails. Mirrors continue by themselves.",
            WARNING,
            Pending.LONG,
        ),
        Alert(
            "StreamlogMirrorLag",
            f"streamlog_mirror_lag_seconds > {limits.lag_seconds:g}",
            "the mirror of {{ $labels.topic }} over link {{ $labels.link }} is behind for"
            " {{ $value | humanizeDuration }}: what is missing would be lost with the source",
            "Compare `bytes.per.second` of the link and the network with what the source gets.",
            CRITICAL,
            Pending.SHORT,
        ),
        Alert(
            "StreamlogMirrorCut",
            _grown("streamlog_mirror_cuts_total", "10m"),
            "mirrors over link {{ $labels.link }} had records that their source does not have;"
            " {{ $labels.instance }} has cut them off and keeps them in `lost-and-found`",
            "After a fail back, send again what must not be lost. Otherwise the source has lost"
            " records: compare consumers with it.",
            CRITICAL,
            Pending.NONE,
        ),
    ]


def alert_groups(limits: AlertLimits) -> dict[str, list[Alert]]:
    """Return all alerts, by the group of the rule file that has them."""
    return {
        "streamlog-cluster": cluster_alerts(limits),
        "streamlog-groups": group_alerts(limits),
        "streamlog-apps": app_alerts(limits),
        "streamlog-connectors": connector_alerts(limits),
        "streamlog-mirrors": mirror_alerts(limits),
    }


def alert_rules(limits: AlertLimits | None = None, *, docs: str = DOCS) -> str:
    """Return the rule file as YAML.

    Args:
        limits: what is too much.
        docs: URL or path of the documentation, for the links to runbooks.
    """
    limits = limits or AlertLimits()
    lines = ["groups:\n"]
    for name, alerts in alert_groups(limits).items():
        lines += f"  - name: {name}\n    rules:\n", *(_rule(each, limits, docs) for each in alerts)
    return "".join(lines)


def _rule(alert: Alert, limits: AlertLimits, docs: str) -> str:
    # Written by hand and not by a library of YAML, which brokers would need only for this.
    pending = {Pending.SHORT: limits.pending, Pending.LONG: limits.pending_warning}
    annotations = {
        "summary": alert.summary,
        "description": alert.action,
        "runbook_url": f"{docs}/runbooks.md#{alert.anchor}",
    }
    return "".join(
        (
            f"      - alert: {alert.name}\n        expr: {_quoted(alert.expr)}\n",
            *(f"        for: {each}\n" for each in _known(pending.get(alert.pending))),
            f"        labels:\n          severity: {alert.severity}\n        annotations:\n",
            *(f"          {name}: {_quoted(text)}\n" for name, text in annotations.items()),
        )
    )


def _known(text: str | None) -> Iterable[str]:
    return () if text is None else (text,)


def _quoted(text: str) -> str:
    # Strings of JSON are strings of YAML, whatever they hold.
    return msgspec.json.encode(text).decode()
