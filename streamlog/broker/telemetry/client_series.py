"""Client series: what clients have pushed, as metrics of the broker with the names of Prometheus.

`org.apache.kafka.producer.record.error.total` becomes
`org_apache_kafka_producer_record_error_total`; a counter ends in `_total`, and no gauge does. A
name that is not Kafka's gets the prefix `client_`, so no client can write to a metric of the broker
itself. Every series has the labels `client_id` and `client_instance_id`, and those of its point,
such as `node_id` or `topic`. What clients say of themselves is in the labels of
`streamlog_client_info`, to be joined by `client_instance_id`.

Rule of this module: what clients push is bounded, by metric, by client and in all. Beyond a bound,
counters are added up in the series `other` of their metric, and gauges are dropped, for which there
is no sum. Both are counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from streamlog.broker.telemetry.subscriptions import Subscribed
from streamlog.metrics.otlp import MetricsData, Point
from streamlog.metrics.registry import OTHER, SERIES_MAX, Kind, Metric, Registry
from streamlog.metrics.registry import Point as Series

METRICS_MAX: Final = 1_000
"""The most names of metrics."""
CLIENT_SERIES_MAX: Final = 2_000
"""The most series of one client."""
ALL_SERIES_MAX: Final = 20_000
"""The most series of all clients together."""
STEP_POINTS: Final = 100
"""The points after which a step ends: about a millisecond if all have new labels."""
LABELS_MAX: Final = 16
"""The most labels of one metric, beside those of the client."""
STANDARD: Final = "org_apache_kafka_"
FOREIGN: Final = "client_"
"""The prefix of names that are not Kafka's."""
CLIENT_LABELS: Final = ("client_id", "client_instance_id")
RESOURCE_LABELS: Final = (
    "client_rack",
    "group_id",
    "group_instance_id",
    "group_member_id",
    "transactional_id",
)
"""The attributes of Kafka's clients as a resource (KIP-714)."""
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Labels with their values, sorted."""
Key: TypeAlias = tuple[str, Pairs]
"""The client of a series, and its other labels."""
_OTHERS: Final[Key] = ("", ())
"""The key of the series `other`."""


@dataclass(slots=True)
class _ClientMetric:
    """The series of one name."""

    source: str
    """The first name in OTLP that became this one."""
    kind: Kind
    labels: list[str] = field(default_factory=list)
    series: dict[Key, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Owner:
    """A client with series."""

    client_id: str
    keys: set[tuple[str, Key]] = field(default_factory=set)
    resource: dict[str, str] = field(default_factory=dict)


class ClientSeries:
    """The series of all clients of one broker."""

    def __init__(self, registry: Registry) -> None:
        self._metrics: dict[str, _ClientMetric] = {}
        self._owners: dict[str, _Owner] = {}
        self._count = 0
        dropped = registry.counters(
            "streamlog_client_points_dropped_total",
            "Points that clients have pushed and that are in no series of their own, by reason.",
            "reason",
        )
        self._beyond = dropped.series("bound")
        self._unread = dropped.series("kind")
        self._unwanted = dropped.series("not_requested")

    def __len__(self) -> int:
        return self._count

    def take(
        self, instance_id: str, client_id: str, data: MetricsData, wanted: Subscribed
    ) -> Iterator[None]:
        """Take over what a client has pushed, as far as it was asked for, in short steps."""
        owner = self._owners.setdefault(instance_id, _Owner(client_id))
        resource = {_label(name): text for name, text in data.resource}
        owner.resource = {name: resource[name] for name in RESOURCE_LABELS if name in resource}
        self._unread.add(data.skipped)
        for at, point in enumerate(data.points, start=1):
            if at % STEP_POINTS == 0:
                yield
                # Its series would stay for ever if it was forgotten meanwhile.
                if self._owners.get(instance_id) is not owner:
                    return
            if not wanted.wants(point.name):
                self._unwanted.add()
            elif not self._put(instance_id, owner, point):
                self._beyond.add()

    def forget(self, instance_id: str) -> None:
        """Show nothing of a client any more."""
        owner = self._owners.pop(instance_id, None)
        for name, key in () if owner is None else owner.keys:
            metric = self._metrics[name]
            del metric.series[key]
            self._count -= 1
            # `other` alone keeps no metric: the names of clients that are gone would use up
            # `METRICS_MAX`.
            if metric.series.keys() <= {_OTHERS}:
                del self._metrics[name]

    def resource(self, instance_id: str) -> dict[str, str]:
        """Return what a client says of itself, by label."""
        owner = self._owners.get(instance_id)
        return {} if owner is None else owner.resource

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics of clients, sorted by name."""
        for name, metric in sorted(self._metrics.items()):
            labels = tuple(metric.labels)
            yield Metric(
                name,
                f"{metric.source}, as clients have pushed it (KIP-714).",
                metric.kind,
                (*CLIENT_LABELS, *labels),
                self._points(labels, [*metric.series.items()]),
            )

    def _points(
        self, labels: tuple[str, ...], found: Iterable[tuple[Key, float]]
    ) -> Iterator[Series]:
        for (instance_id, pairs), value in found:
            if (instance_id, pairs) == _OTHERS:
                yield (OTHER, OTHER, *("" for _ in labels)), value
                continue
            owner = self._owners.get(instance_id)
            if owner is not None:
                given = dict(pairs)
                yield (
                    (owner.client_id, instance_id, *(given.get(each, "") for each in labels)),
                    value,
                )

    def _put(self, instance_id: str, owner: _Owner, point: Point) -> bool:
        """Store a point; return whether it has a series of its own."""
        kind = Kind.COUNTER if point.is_monotonic else Kind.GAUGE
        name = metric_name(point.name, kind)
        metric = self._metrics.get(name)
        if metric is None:
            if len(self._metrics) >= METRICS_MAX:
                return False
            # Listed further below, with its first series: a name whose points are all beyond a
            # bound must not use up `METRICS_MAX`.
            metric = _ClientMetric(point.name, kind)
        pairs = _pairs(point)
        key: Key = (instance_id, pairs)
        if key not in metric.series:
            labels = metric.labels + [each for each, _ in pairs if each not in metric.labels]
            if (
                len(labels) > LABELS_MAX
                or len(metric.series) >= SERIES_MAX
                or len(owner.keys) >= CLIENT_SERIES_MAX
                or self._count >= ALL_SERIES_MAX
            ):
                # Only deltas can be added up across clients. A cumulative sum would be added whole
                # with each push, and the counter would grow by the square of the pushes.
                if point.is_monotonic and point.is_delta and name in self._metrics:
                    _count_up(metric, _OTHERS, point.value)
                return False
            metric.labels = labels
            owner.keys.add((name, key))
            self._metrics[name] = metric
            self._count += 1
        if point.is_delta:
            _count_up(metric, key, point.value)
        else:
            metric.series[key] = point.value
        return True


def _count_up(metric: _ClientMetric, key: Key, amount: float) -> None:
    before = metric.series.get(key, 0.0)
    # A counter only grows; what is not a number would stay for ever.
    is_usable = math.isfinite(amount) and (amount >= 0 or metric.kind is Kind.GAUGE)
    metric.series[key] = before + amount if is_usable else before


def _pairs(point: Point) -> Pairs:
    # By label: `a.b` and `a-b` both become `a_b`, and a label given twice makes Prometheus refuse
    # the whole scrape.
    found = {_label(name): text for name, text in point.attributes if text}
    return tuple(sorted((name, text) for name, text in found.items() if name))


@lru_cache(maxsize=4_096)
def metric_name(name: str, kind: Kind) -> str:
    """Return the name in Prometheus of a metric of a client."""
    found = _NOT_IN_NAMES.sub("_", name)
    if not found.startswith(STANDARD):
        found = FOREIGN + found
    if kind is Kind.COUNTER:
        return found if found.endswith("_total") else f"{found}_total"
    # Counters alone end in `_total`, so a counter and a gauge never meet in one metric, whose kind
    # is that of its first point.
    return f"{found}_value" if found.endswith("_total") else found


@lru_cache(maxsize=4_096)
def _label(name: str) -> str:
    """Return the label of an attribute; empty if there is none of that name."""
    # Names that begin with underscores are Prometheus' own.
    found = _NOT_IN_NAMES.sub("_", name).lstrip("_")
    if found[:1].isdigit() or found in CLIENT_LABELS:
        return f"attribute_{found}"
    return found
