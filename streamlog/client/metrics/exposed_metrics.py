"""Exposed metrics: the metrics of clients in a registry, under the names of the JMX exporter.

Kafka's clients publish MBeans, such as `kafka.producer:type=producer-metrics,client-id=a`, and
Prometheus' JMX exporter names their attributes `kafka_producer_producer_metrics_record_send_rate`
with the label `client_id`. Dashboards for Kafka's clients use these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from streamlog.client.metrics.client_metrics import ClientMetrics
from streamlog.client.metrics.metric_names import DEFINITIONS, DOMAINS
from streamlog.metrics.registry import Collector, Kind, Metric, Point


class Measured(Protocol):
    """A producer, a consumer, or an admin client."""

    def metrics(self) -> ClientMetrics:
        """Return the present metrics."""
        ...


def client_collector(clients: Callable[[], Iterable[tuple[str, Measured]]]) -> Collector:
    """Return a collector of the metrics of some clients, for `Registry.collect`.

    Args:
        clients: returns the present clients, each with the value of its label `client_id`, by
            which the series of one process differ.
    """
    return lambda: exposed((name, client.metrics()) for name, client in clients())


def exposed(clients: Iterable[tuple[str, ClientMetrics]]) -> Iterator[Metric]:
    """Yield the metrics of some clients, each with the value of its label `client_id`.

    Unknown values (NaN) are left out: they would make every sum over clients unknown.
    """
    points: dict[tuple[str, str, tuple[str, ...]], list[Point]] = {}
    for client_id, metrics in clients:
        for name, value in metrics.items():
            if value == value:  # noqa: PLR0124 - the test for NaN
                values = (client_id, *(text for _, text in name.tags[1:]))
                key = name.group, name.name, name.tag_names
                points.setdefault(key, []).append((values, value))
    # Series of several tag sets, such as by topic and in all, are one metric in Prometheus' text:
    # those with fewer labels have empty ones.
    merged: dict[tuple[str, str], Metric] = {}
    for group, title, tags, text in DEFINITIONS:
        found = points.get((group, title, tags))
        if found is None:
            continue
        labels = tuple(tag.replace("-", "_") for tag in tags)
        known = merged.get((group, title))
        if known is None:
            kind = Kind.COUNTER if title.endswith("-total") else Kind.GAUGE
            merged[group, title] = Metric(exposed_name(group, title), text, kind, labels, found)
        else:
            merged[group, title] = _joined(known, labels, found)
    yield from merged.values()


def exposed_name(group: str, name: str) -> str:
    """Return the name that the JMX exporter gives a metric."""
    domain = next(domain for first, domain in DOMAINS.items() if group.startswith(first))
    return f"{domain}.{group}.{name}".replace(".", "_").replace("-", "_")


def _joined(metric: Metric, labels: tuple[str, ...], points: Iterable[Point]) -> Metric:
    every = tuple(dict.fromkeys((*metric.labels, *labels)))
    spread = [
        *_with_labels(metric.points, metric.labels, every),
        *_with_labels(points, labels, every),
    ]
    return Metric(metric.name, metric.help, metric.kind, every, spread)


def _with_labels(
    points: Iterable[Point], labels: tuple[str, ...], every: tuple[str, ...]
) -> Iterator[Point]:
    for values, value in points:
        given = dict(zip(labels, values, strict=True))
        yield tuple(given.get(label, "") for label in every), value
