"""Metrics by OTLP: the same values as in Prometheus' text, in the types of OpenTelemetry."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamlog.errors import ConfigError
from streamlog.metrics.prometheus import exposition
from streamlog.metrics.registry import Kind, Metric, Registry, Summary, number
from tests.metrics.otlp_collector import Collector, Labels, collecting

otel = pytest.importorskip("streamlog.metrics.otel")
otel_metrics = pytest.importorskip("streamlog.metrics.otel_metrics")

START_MS = 1_700_000_000_000
CUMULATIVE, DELTA = 2, 1


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


def filled() -> Registry:
    registry = Registry()
    requests = registry.counters("requests_total", "Requests.", "api", "error")
    requests.series("Fetch", "").add(7)
    requests.series("Produce", 'a "b" \\ c').add(1)
    registry.counter("busy_seconds_total", "Time.").add(0.25)
    registry.gauge("log_size_bytes", "Size.").set(-3)
    times = registry.histograms("request_seconds", "Times.", "api", bounds=(0.1, 0.5))
    for value in (0.1, 0.11, 0.5, 2.0, 3.0):
        times.series("Fetch").record(value)
    registry.histogram("empty_seconds", "Nothing.", bounds=(1.0,))
    summary = Summary({0.5: 1.5, 0.99: 3.0}, count=4, sum=8.0)
    registry.collect(lambda: [number("state", "A state.", 3), number("none", "None.", math.nan)])
    registry.collect(
        lambda: [Metric("total_timems", "Times.", Kind.SUMMARY, ("api",), [(("Fetch",), summary)])]
    )
    return registry


def prometheus_series(text: str) -> dict[tuple[str, Labels], float]:
    """Read a page with Prometheus' own parser."""
    found: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {**sample.labels}
            if "le" in labels:
                labels["le"] = str(float(labels["le"]))
            given = frozenset((name, value) for name, value in labels.items() if value)
            if not math.isnan(sample.value):
                found[sample.name, given] = sample.value
    return found


def exporter_of(registry: Registry, wall_ms: Callable[[], int] = lambda: START_MS) -> object:
    resource = otel.service_resource("shop", "shop-1", {"kafka.node.id": "1"})
    return otel_metrics.OtlpMetrics(registry, resource, wall_ms=wall_ms)


def test_a_collector_gets_the_values_of_the_page(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    registry = filled()
    # Registries that were filled by different times would differ in nothing but these.
    times_ms = iter(range(START_MS, START_MS + 1_000))

    async def main() -> str:
        exporter = exporter_of(registry, lambda: next(times_ms))
        await exporter.close()
        return (await exposition(registry)).decode()

    page = prometheus_series(asyncio.run(main()))
    assert collector.series() == page
    assert page["request_seconds_bucket", frozenset({("api", "Fetch"), ("le", "0.5")})] == 3
    expected = {
        "service.name": "shop",
        "service.instance.id": "shop-1",
        "kafka.node.id": "1",
        "deployment.environment.name": "test",
    }
    assert expected.items() <= collector.resource.items()
    by_name = {each.name: each for each in collector.points}
    assert {name: each.unit for name, each in by_name.items() if each.unit} == {
        "busy_seconds_total": "s",
        "log_size_bytes": "By",
        "request_seconds": "s",
        "empty_seconds": "s",
    }
    kinds = {name: (each.kind, each.temporality) for name, each in by_name.items()}
    assert kinds == {
        "requests_total": ("sum", CUMULATIVE),
        "busy_seconds_total": ("sum", CUMULATIVE),
        "log_size_bytes": ("gauge", 0),
        "request_seconds": ("histogram", CUMULATIVE),
        "empty_seconds": ("histogram", CUMULATIVE),
        "state": ("gauge", 0),
        "total_timems": ("gauge", 0),
        "total_timems_sum": ("sum", CUMULATIVE),
        "total_timems_count": ("sum", CUMULATIVE),
    }
    for each in collector.points:
        assert each.is_monotonic == (each.kind == "sum")
        start_ns = 0 if each.kind == "gauge" else START_MS * 1_000_000
        assert each.point.start_time_unix_nano == start_ns
        assert each.point.time_unix_nano > START_MS * 1_000_000
        if each.kind == "histogram":
            assert not each.point.HasField("min")


@pytest.mark.parametrize("preference", ["delta", "lowmemory", "cumulative"])
def test_deltas_count_from_the_last_request_that_arrived(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, preference: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", preference)
    registry = Registry()
    counts = registry.counter("sent_total", "Sent.")
    times = registry.histogram("times_seconds", "Times.", bounds=(1.0,))
    times_ms = iter(range(START_MS, START_MS + 100))

    async def main() -> None:
        exporter = exporter_of(registry, lambda: next(times_ms))
        for refused in (0, 1, 0):
            collector.refusals = refused
            counts.add(5)
            times.record(0.5)
            times.record(4)
            assert await exporter.report() == (not refused)
        await exporter.close()

    asyncio.run(main())
    counters = [each for each in collector.points if each.name == "sent_total"]
    histograms = [each for each in collector.points if each.name == "times_seconds"]
    is_delta = preference == "delta", preference != "cumulative"
    for each, delta in zip((counters, histograms), is_delta, strict=True):
        assert {one.temporality for one in each} == {DELTA if delta else CUMULATIVE}
        starts = [one.point.start_time_unix_nano for one in each]
        ends = [one.point.time_unix_nano for one in each]
        assert starts[1:] == (ends[:-1] if delta else starts[:1] * 2)
    # What was refused comes with the next one.
    assert [each.point.as_double for each in counters] == [5, 10, 0] if is_delta[0] else [5, 15, 15]
    found = [(*each.point.bucket_counts, each.point.sum) for each in histograms]
    cumulative = [(1, 1, 4.5), (3, 3, 13.5), (3, 3, 13.5)]
    assert found == ([(1, 1, 4.5), (2, 2, 9.0), (0, 0, 0.0)] if is_delta[1] else cumulative)


def test_a_counter_that_begins_again_is_reported_whole() -> None:
    assert otel_metrics.difference(3.0, 5.0) == 3.0
    assert otel_metrics.difference(5.0, 3.0) == 2.0
    fewer, more = (otel_metrics.Buckets(each, 1.0, (1.0,)) for each in ((0, 2), (1, 2)))
    assert otel_metrics.difference(fewer, more) == fewer


def test_deltas_of_series_that_are_gone_are_forgotten() -> None:
    reader = otel_metrics.ReportReader(0, temporality="delta")
    registry = Registry()
    by_topic = registry.counters("bytes_total", "Bytes.", "topic")

    def report() -> dict[str, float]:
        found: dict[str, float] = {}
        for request in reader.requests(registry.metrics(), lambda: 1):
            if request is not None:
                points = [each for metric in request.metrics for each in metric.data.data_points]
                found |= {each.attributes["topic"]: each.value for each in points}
                reader.on_success(request)
        reader.on_end(is_whole=True)
        return found

    by_topic.series("a").add(2)
    by_topic.series("b").add(3)
    assert report() == {"a": 2, "b": 3}
    by_topic.remove("a")
    assert report() == {"b": 0}
    by_topic.series("a").add(1)
    assert report() == {"a": 1, "b": 0}
    assert len(reader._reported) == 2


def test_many_series_go_out_in_requests_of_a_bounded_size(collector: Collector) -> None:
    registry = Registry()
    labels = [str(each) for each in range(2 * otel_metrics.POINTS_PER_REQUEST + 7)]
    registry.collect(
        lambda: [Metric("size_bytes", "Size.", Kind.GAUGE, ("n",), [((n,), 1) for n in labels])]
    )
    asyncio.run(exporter_of(registry).close())  # type: ignore[attr-defined]
    assert collector.sizes == [2_000, 2_000, 7]
    assert len(collector.series()) == len(labels)


def test_the_loop_may_serve_others_while_a_report_is_read() -> None:
    registry = Registry()
    family = registry.counters("n_total", "N.", "n", series_max=10_000)
    for each in range(1_000):
        family.series(str(each))
    steps = [*otel_metrics.ReportReader(0).requests(registry.metrics(), lambda: 0)]
    assert steps.count(None) >= 1_000 // 64
    assert sum(each.size for each in steps if each is not None) == 1_000


def test_the_loop_may_serve_others_while_a_metric_is_computed() -> None:
    registry = Registry()
    size = Metric("size_bytes", "Size.", Kind.GAUGE, (), [((), 1)])
    registry.collect(lambda: [None, None, size])
    steps = [*otel_metrics.ReportReader(0).requests(registry.steps(), lambda: 0)]
    assert [None if each is None else each.size for each in steps] == [None, None, None, 1]


def test_reports_come_at_the_interval_and_a_failure_does_not_end_them(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    looks = 0

    def state() -> list[Metric]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("no state yet")
        return [number("state", "A state.", looks)]

    registry = Registry()
    registry.collect(state)

    async def main() -> None:
        exporter = exporter_of(registry)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(exporter.run())  # type: ignore[attr-defined]
            await asyncio.to_thread(collector.wait_for_points, 3)
            running.cancel()
        await exporter.close()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert [each.point.as_double for each in collector.points][:3] == [2, 3, 4]
    assert "metrics could not be exported by OTLP" in caplog.text


def test_a_collector_that_is_away_delays_the_end_by_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(otel_metrics, "FINAL_S", 0.05)
    asyncio.run(exporter_of(filled()).close())  # type: ignore[attr-defined]
    assert "metrics were not exported by OTLP" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_METRIC_EXPORT_INTERVAL", "1m"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "0"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"),
    ],
)
def test_a_variable_that_cant_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="OTEL_"):
        exporter_of(Registry())
