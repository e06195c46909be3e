"""OpenTelemetry: a registry's metrics, exported by OTLP at an interval; the extra `[otel]`.

The exporter, its endpoint, headers, certificates, compression and timeouts are those of
OpenTelemetry's SDK, set by its variables (`OTEL_*`). Names stay those of Prometheus, as
OpenTelemetry's rules for compatibility ask, so a dashboard works with either way of collection. A
summary, which the SDK has no type for, becomes its series in Prometheus: the quantiles as a gauge
with the attribute `quantile`, and two counters, `_sum` and `_count`.

Rules: the event loop reads the registry in slices, as a scrape does; encoding and the network are
the work of a thread. A report goes out in requests of `POINTS_PER_REQUEST`, so neither memory nor
a request grows with the number of series. Nothing here is imported until a setting asks for it.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, NamedTuple, TypeAlias, cast

import msgspec
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from streamlog import repeated
from streamlog.errors import ConfigError
from streamlog.metrics.instruments import Histogram
from streamlog.metrics.prometheus import LINES_PER_LOOK, SLICE_S
from streamlog.metrics.registry import Kind, Metric, Registry, Summary
from streamlog.replace import replace

POINTS_PER_REQUEST: Final = 2_000
"""A point takes about 200 bytes, and a collector refuses requests of more than a few MiB."""
FINAL_S: Final = 2.0
"""How long the last report may take, and with it the end of the process."""
INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
TIMEOUT: Final = "OTEL_METRIC_EXPORT_TIMEOUT"
TEMPORALITY: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP_PROTOBUF: Final = "http/protobuf"
UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1", "percent": "%"}
"""The units by the words that end a name. With another unit, such as that of `...timems`, a
translation to Prometheus would add a word to the name."""
NS_PER_MS: Final = 1_000_000

_log = repeated.logger(__name__)


class Buckets(NamedTuple):
    """The values of a histogram."""

    counts: tuple[int, ...]
    """The number of values in each bucket."""
    sum: float
    bounds: tuple[float, ...]


Value: TypeAlias = "float | Buckets"
Key: TypeAlias = tuple[str, tuple[str, ...]]
"""The name of a metric and the values of its labels: one series."""
DataPoint: TypeAlias = "sdk.NumberDataPoint | sdk.HistogramDataPoint"


class Reported(msgspec.Struct, frozen=True):
    """What has been exported of a series."""

    value: Value
    time_ns: int


@dataclass(slots=True)
class ExportRequest:
    """The points of one request."""

    metrics: list[sdk.Metric] = field(default_factory=list)
    reported: dict[Key, Reported] = field(default_factory=dict)
    """What counts as reported once it has succeeded; for deltas."""
    size: int = 0
    """The number of points."""


class ReportReader:
    """Turns metrics into requests."""

    def __init__(self, start_ns: int, *, temporality: str = "cumulative") -> None:
        """Create a reader.

        Args:
            start_ns: since when counters count, in ns since 1970.
            temporality: `cumulative`; `delta`: counters and histograms count from the last request
                that succeeded; `lowmemory`: only histograms do.
        """
        self._start_ns = start_ns
        delta = {"delta": (Kind.COUNTER, Kind.HISTOGRAM), "lowmemory": (Kind.HISTOGRAM,)}
        self._deltas = delta.get(temporality.lower(), ())
        self._reported: dict[Key, Reported] = {}
        self._renewed: dict[Key, Reported] = {}
        """What the requests of this report have renewed."""

    def requests(
        self, metrics: Iterator[Metric | None], now_ns: Callable[[], int]
    ) -> Iterator[ExportRequest | None]:
        """Yield the requests of a report; None where the event loop may serve others."""
        request = ExportRequest()
        for metric in (part for each in metrics for part in parts_of(each)):
            if metric is None:
                yield None
                continue
            points: list[DataPoint] = []
            for values, value in metric.points:
                point = self._point(metric, values, value, now_ns(), request)
                if point is None:
                    continue
                points.append(point)
                request.size += 1
                if request.size == POINTS_PER_REQUEST:
                    request.metrics.append(self._metric(metric, points))
                    yield request
                    request, points = ExportRequest(), []
                elif request.size % LINES_PER_LOOK == 0:
                    yield None
            if points:
                request.metrics.append(self._metric(metric, points))
            yield None
        if request.size:
            yield request

    def on_success(self, request: ExportRequest) -> None:
        """Count the next deltas from what this request has reported."""
        self._renewed.update(request.reported)

    def on_end(self, *, is_whole: bool) -> None:
        """End a report; a whole one has told of every series that there is."""
        # Series that are gone, such as those of a deleted topic, are forgotten.
        self._reported = self._renewed if is_whole else {**self._reported, **self._renewed}
        self._renewed = {}

    def _point(
        self,
        metric: Metric,
        values: tuple[str, ...],
        value: float | Histogram | Summary,
        now_ns: int,
        request: ExportRequest,
    ) -> DataPoint | None:
        if isinstance(value, Summary):
            return None  # `parts_of` has taken it apart.
        # A copy: it is encoded in a thread, while the histogram counts further values.
        present: Value = (
            Buckets(tuple(value.counts), value.sum, value.bounds)
            if isinstance(value, Histogram)
            else float(value)
        )
        # NaN says that there is no value now: Prometheus shows that, and OTLP has no point then.
        if isinstance(present, float) and math.isnan(present):
            return None
        start_ns = 0 if metric.kind is Kind.GAUGE else self._start_ns
        if metric.kind in self._deltas:
            key = (metric.name, values)
            request.reported[key] = Reported(present, now_ns)
            before = self._reported.get(key)
            if before is not None:
                present, start_ns = difference(present, before.value), before.time_ns
        # In Prometheus an empty label is the same as none.
        labels = zip(metric.labels, values, strict=True)
        attributes = {label: text for label, text in labels if text}
        return _data_point(present, attributes, start_ns, now_ns)

    def _metric(self, metric: Metric, points: list[DataPoint]) -> sdk.Metric:
        counts_from = sdk.AggregationTemporality
        temporality = counts_from.DELTA if metric.kind in self._deltas else counts_from.CUMULATIVE
        data: sdk.Gauge | sdk.Sum | sdk.Histogram
        if metric.kind is Kind.COUNTER:
            numbers = cast("list[sdk.NumberDataPoint]", points)
            data = sdk.Sum(numbers, temporality, is_monotonic=True)
        elif metric.kind is Kind.HISTOGRAM:
            data = sdk.Histogram(cast("list[sdk.HistogramDataPoint]", points), temporality)
        else:
            data = sdk.Gauge(cast("list[sdk.NumberDataPoint]", points))
        return sdk.Metric(metric.name, metric.help, unit_of(metric.name), data)


def parts_of(metric: Metric | None) -> Iterator[Metric | None]:
    """Yield a metric in kinds that OTLP has: a summary as the metrics of its series."""
    if metric is None or metric.kind is not Kind.SUMMARY:
        yield metric
        return
    found = [(values, value) for values, value in metric.points if isinstance(value, Summary)]
    yield replace(
        metric,
        kind=Kind.GAUGE,
        labels=(*metric.labels, "quantile"),
        points=[
            ((*values, str(share)), value)
            for values, summary in found
            for share, value in summary.quantiles.items()
        ],
    )
    for suffix, points in (
        ("sum", [(values, summary.sum) for values, summary in found]),
        ("count", [(values, float(summary.count)) for values, summary in found]),
    ):
        name = f"{metric.name}_{suffix}"
        yield replace(metric, name=name, kind=Kind.COUNTER, points=points)


def difference(now: Value, before: Value) -> Value:
    """Return what was added since; all of it, if it has begun again."""
    if isinstance(now, Buckets) and isinstance(before, Buckets):
        pairs = [*zip(now.counts, before.counts, strict=True)]
        if any(new < old for new, old in pairs):
            return now
        return Buckets(tuple(new - old for new, old in pairs), now.sum - before.sum, now.bounds)
    if isinstance(now, float) and isinstance(before, float) and now >= before:
        return now - before
    return now


def unit_of(name: str) -> str:
    """Return the unit that a name ends in, as UCUM writes it; empty if it ends in none."""
    return UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")


def _data_point(
    value: Value, attributes: Mapping[str, str], start_ns: int, now_ns: int
) -> DataPoint:
    if isinstance(value, float):
        return sdk.NumberDataPoint(attributes, start_ns, now_ns, value)
    # OTLP lets a histogram leave out its least and greatest value; the SDK's type does not say so.
    unknown = cast("float", None)
    return sdk.HistogramDataPoint(
        attributes,
        start_ns,
        now_ns,
        count=sum(value.counts),
        sum=value.sum,
        bucket_counts=value.counts,
        explicit_bounds=value.bounds,
        min=unknown,
        max=unknown,
    )


class OtlpMetrics:
    """Exports the metrics of a registry."""

    def __init__(
        self, registry: Registry, resource: Resource, *, wall_ms: Callable[[], int]
    ) -> None:
        """`wall_ms` returns ms since 1970.

        Raises:
            ConfigError: a variable of OpenTelemetry has a value that can't be used here.
        """
        self._registry = registry
        self._resource = resource
        self._now_ns: Callable[[], int] = lambda: wall_ms() * NS_PER_MS
        self._interval_s = _variable_ms(INTERVAL, 60_000) / 1000
        self._timeout_s = _variable_ms(TIMEOUT, 30_000) / 1000
        for name in PROTOCOLS:
            given = os.environ.get(name, "").strip()
            if given not in ("", HTTP_PROTOBUF):
                raise ConfigError(f"{name} is {given}: metrics are exported by {HTTP_PROTOBUF}")
        temporality = os.environ.get(TEMPORALITY, "")
        self._reader = ReportReader(self._now_ns(), temporality=temporality)
        try:
            self._exporter = OTLPMetricExporter()
        except (ValueError, OSError) as error:
            raise ConfigError(f"a variable OTEL_EXPORTER_OTLP_* can't be used: {error}") from error
        # A thread of its own: a collector that is away must not take those that write to disks.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="otlp-metrics")

    async def run(self) -> None:
        """Report at each interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self._try(self._timeout_s)

    async def close(self) -> None:
        """Report once more, within `FINAL_S`, and stop."""
        await self._try(FINAL_S)
        self._exporter.shutdown()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def report(self) -> bool:
        """Export the present values; returns whether all have arrived."""
        await self._registry.prepare()
        is_whole = False
        try:
            is_whole = await self._export_all()
        finally:
            self._reader.on_end(is_whole=is_whole)
        return is_whole

    async def _export_all(self) -> bool:
        slice_ends_s = perf_counter() + SLICE_S
        for request in self._reader.requests(self._registry.steps(), self._now_ns):
            if request is not None:
                # The others of this report would wait for the same collector; they come next time.
                if not await self._export(request):
                    return False
            elif perf_counter() < slice_ends_s:
                continue
            await asyncio.sleep(0)
            slice_ends_s = perf_counter() + SLICE_S
        return True

    async def _export(self, request: ExportRequest) -> bool:
        metrics = sdk.ScopeMetrics(InstrumentationScope("streamlog"), request.metrics, "")
        data = sdk.MetricsData([sdk.ResourceMetrics(self._resource, [metrics], "")])
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._thread, self._exporter.export, data)
        if result is not sdk.MetricExportResult.SUCCESS:
            return False
        self._reader.on_success(request)
        return True

    async def _try(self, timeout_s: float) -> None:
        """Report, or log why not: what watches a process must not end it."""
        try:
            async with asyncio.timeout(timeout_s):
                arrived = await self.report()
        except TimeoutError:
            _log.warning("metrics were not exported by OTLP within %.0f s", timeout_s)
        except Exception:  # noqa: BLE001 - a collector of metrics, or the library: logged below
            _log.exception("metrics could not be exported by OTLP")
        else:
            if not arrived:
                _log.warning("metrics were not exported by OTLP: the collector has not taken them")


def _variable_ms(name: str, default_ms: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default_ms
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{name} is {text!r}: set it to a number of ms, 1 or more")
    return int(text)
