"""What clients have pushed, as metrics of the broker."""

from __future__ import annotations

import itertools
import math
from collections import deque

import pytest

from streamlog.broker.telemetry import client_series
from streamlog.broker.telemetry.client_series import ClientSeries, metric_name
from streamlog.broker.telemetry.subscriptions import Subscribed
from streamlog.metrics.otlp import MetricsData, Point
from streamlog.metrics.prometheus import lines
from streamlog.metrics.registry import Kind, Registry

ALL = Subscribed(("*",), 1_000, 1)
PRODUCER = "org.apache.kafka.producer."


def gauge(name: str, value: float, **attributes: str) -> Point:
    return Point(name, tuple(attributes.items()), value)


def count(name: str, value: float, *, delta: bool = True, **attributes: str) -> Point:
    return Point(name, tuple(attributes.items()), value, True, True, delta)


class Shown:
    def __init__(self) -> None:
        self.registry = Registry()
        self.series = ClientSeries(self.registry)

    def push(self, client: str, *points: Point, wanted: Subscribed = ALL) -> None:
        steps = self.series.take(f"id-{client}", client, MetricsData(points=[*points]), wanted)
        deque(steps, maxlen=0)

    def lines(self) -> list[str]:
        found = (line for metric in self.series.describe() for line in lines(metric))
        return [each.rstrip("\n") for each in found if not each.startswith("# ")]

    def dropped(self) -> dict[str, float]:
        (metric,) = (each for each in self.registry.metrics() if "dropped" in each.name)
        return {labels[0]: value for labels, value in metric.points if isinstance(value, int)}


def test_gauges_are_replaced_deltas_are_added_up_and_totals_are_taken() -> None:
    shown = Shown()
    for value in (1, 2):
        shown.push(
            "a",
            gauge(PRODUCER + "latency.avg", value, **{"node.id": "1"}),
            count(PRODUCER + "error.total", value),
            count(PRODUCER + "sent", value, delta=False),
        )
    labels = 'client_id="a",client_instance_id="id-a"'
    assert shown.lines() == [
        f"org_apache_kafka_producer_error_total{{{labels}}} 3.0",
        f'org_apache_kafka_producer_latency_avg{{{labels},node_id="1"}} 2',
        f"org_apache_kafka_producer_sent_total{{{labels}}} 2",
    ]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("org.apache.kafka.a.total", Kind.COUNTER, "org_apache_kafka_a_total"),
        ("org.apache.kafka.a", Kind.COUNTER, "org_apache_kafka_a_total"),
        ("org.apache.kafka.a.total", Kind.GAUGE, "org_apache_kafka_a_total_value"),
        ("kafka.server.x", Kind.GAUGE, "client_kafka_server_x"),
        ("streamlog_client_info", Kind.GAUGE, "client_streamlog_client_info"),
        ('x{y="z"} 1\nup', Kind.GAUGE, "client_x_y__z___1_up"),
    ],
)
def test_no_name_is_one_of_the_broker_or_malformed(name: str, kind: Kind, expected: str) -> None:
    assert metric_name(name, kind) == expected


def test_labels_of_points_can_not_replace_those_of_the_client_or_of_prometheus() -> None:
    shown = Shown()
    hostile = {"client_id": "b", "__name__": "up", "1": "x", "a-b": 'q"\n\\', "": "y", "_": "z"}
    shown.push("a", gauge("org.apache.kafka.g", 1, **hostile))
    (line,) = shown.lines()
    assert line == (
        'org_apache_kafka_g{client_id="a",client_instance_id="id-a",a_b="q\\"\\n\\\\",'
        'attribute_1="x",attribute_client_id="b",name__="up"} 1'
    )


def test_only_what_was_asked_for_is_shown() -> None:
    shown = Shown()
    wanted = Subscribed((PRODUCER,), 1_000, 1)
    shown.push("a", gauge(PRODUCER + "x", 1), gauge("org.apache.kafka.y", 1), wanted=wanted)
    assert len(shown.lines()) == 1
    assert shown.dropped() == {"bound": 0, "kind": 0, "not_requested": 1}
    shown.push("a", gauge(PRODUCER + "x", 1), wanted=Subscribed((), 1_000, 1))
    assert shown.dropped()["not_requested"] == 2


def test_a_counter_never_falls_and_stays_a_number() -> None:
    shown = Shown()
    for value in (5, -3, math.nan, math.inf, 1):
        shown.push("a", count("org.apache.kafka.c", value))
    assert shown.lines()[0].endswith(" 6.0")


def test_a_forgotten_client_leaves_nothing() -> None:
    shown = Shown()
    for client in ("a", "b"):
        shown.push(client, gauge("org.apache.kafka.g", 1, node="1"), count("org.apache.kafka.c", 1))
    shown.series.forget("id-a")
    assert len(shown.series) == 2
    assert all('client_id="b"' in line for line in shown.lines())
    shown.series.forget("id-b")
    shown.series.forget("id-b")
    assert not len(shown.series)
    assert not shown.lines()
    assert not [*shown.series.describe()]


def test_beyond_the_bound_of_a_metric_counters_are_added_up_and_gauges_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_series, "SERIES_MAX", 2)
    shown = Shown()
    for client in "abcd":
        shown.push(client, gauge("org.apache.kafka.g", 1), count("org.apache.kafka.c", 2))
    found = shown.lines()
    assert 'org_apache_kafka_c_total{client_id="other",client_instance_id="other"} 4.0' in found
    assert len(found) == 5
    assert shown.dropped()["bound"] == 4


@pytest.mark.parametrize(
    ("bound", "limit"), [("CLIENT_SERIES_MAX", 3), ("ALL_SERIES_MAX", 3), ("METRICS_MAX", 3)]
)
def test_series_are_bounded_by_client_in_all_and_by_name(
    monkeypatch: pytest.MonkeyPatch, bound: str, limit: int
) -> None:
    monkeypatch.setattr(client_series, bound, limit)
    shown = Shown()
    shown.push("a", *(gauge(f"org.apache.kafka.g{at}", 1) for at in range(10)))
    assert len(shown.series) == len(shown.lines()) == limit
    assert shown.dropped()["bound"] == 10 - limit


def test_a_metric_has_a_bounded_number_of_labels() -> None:
    shown = Shown()
    for at in range(100):
        shown.push("a", gauge("org.apache.kafka.g", at, **{f"label{at}": "x"}))
    (metric,) = shown.series.describe()
    assert len(metric.labels) == 2 + client_series.LABELS_MAX


def test_points_are_taken_in_short_steps() -> None:
    shown = Shown()
    points = [count(PRODUCER + f"total.{each}", 1, label=str(each)) for each in range(950)]
    taken = shown.series.take("id", "c", MetricsData(points=points), ALL)
    sizes = [0, *(len(shown.series) for _ in taken)]
    sizes.append(len(shown.series))
    assert sizes[len(sizes) - 1] == 950
    steps = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(steps) <= client_series.STEP_POINTS


def test_a_client_that_is_forgotten_between_two_steps_leaves_nothing() -> None:
    shown = Shown()
    points = [gauge(PRODUCER + f"{each}", 1) for each in range(500)]
    steps = shown.series.take("id", "c", MetricsData(points=points), ALL)
    next(steps)
    shown.series.forget("id")
    deque(steps, maxlen=0)
    assert len(shown.series) == 0
    assert shown.lines() == []
