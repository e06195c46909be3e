"""An OTLP collector in memory: takes traces and metrics over HTTP."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from typing import Any, TypeAlias

import pytest

from streamlog.metrics.tracing import TraceContext

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
metrics_service = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"
)

DEADLINE_S = 60.0
REFUSED = 400
"""A status after which an exporter does not try again."""
Labels: TypeAlias = frozenset[tuple[str, str]]


@dataclass
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: list[tuple[str, str]]
    attributes: dict[str, str]


@dataclass
class Exported:
    """A point of a metric, with what its metric says."""

    name: str
    unit: str
    kind: str
    labels: Labels
    point: Any
    temporality: int = 0
    is_monotonic: bool = False


@dataclass
class Collector:
    url: str = ""
    spans: dict[str, Span] = field(default_factory=dict)
    resource: dict[str, str] = field(default_factory=dict)
    """That of the last metrics."""
    points: list[Exported] = field(default_factory=list)
    """In the order in which they came."""
    sizes: list[int] = field(default_factory=list)
    """The number of points in each request."""
    refusals: int = 0
    """How many requests are still to be refused."""

    def take_spans(self, body: bytes) -> None:
        message = trace_service.ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            for span in (each for scope in resource.scope_spans for each in scope.spans):
                found = Span(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    _texts(span.attributes),
                )
                self.spans[found.span_id] = found

    def take_metrics(self, body: bytes) -> None:
        message = metrics_service.ExportMetricsServiceRequest.FromString(body)
        before = len(self.points)
        for resource in message.resource_metrics:
            self.resource = _texts(resource.resource.attributes)
            for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                for point in data.data_points:
                    labels = frozenset(_texts(point.attributes).items())
                    made = Exported(metric.name, metric.unit, kind, labels, point)
                    made.temporality = getattr(data, "aggregation_temporality", 0)
                    made.is_monotonic = getattr(data, "is_monotonic", False)
                    self.points.append(made)
        self.sizes.append(len(self.points) - before)

    def series(self) -> dict[tuple[str, Labels], float]:
        """Return the last values, as the series that Prometheus would have."""
        found: dict[tuple[str, Labels], float] = {}
        for each in self.points:
            if each.kind != "histogram":
                found[each.name, each.labels] = each.point.as_double
                continue
            below = 0
            bounds = [*each.point.explicit_bounds, math.inf]
            for bound, count in zip(bounds, each.point.bucket_counts, strict=True):
                below += count
                found[f"{each.name}_bucket", each.labels | {("le", str(bound))}] = below
            found[f"{each.name}_sum", each.labels] = each.point.sum
            found[f"{each.name}_count", each.labels] = each.point.count
        return found

    def wait_for_points(self, count: int) -> None:
        deadline = monotonic() + DEADLINE_S
        while len(self.points) < count:
            assert monotonic() < deadline, self.points
            sleep(0.005)

    def span(self, context: TraceContext) -> Span:
        """Wait for the span of a context."""
        _, trace_id, span_id, _ = context.traceparent.split("-")
        deadline = monotonic() + DEADLINE_S
        while span_id not in self.spans:
            assert monotonic() < deadline, (context, self.spans)
            sleep(0.05)
        assert self.spans[span_id].trace_id == trace_id
        return self.spans[span_id]


def _texts(attributes: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = 200
            if collector.refusals:
                collector.refusals -= 1
                status = REFUSED
            elif self.path == "/v1/metrics":
                collector.take_metrics(body)
            else:
                assert self.path == "/v1/traces"
                collector.take_spans(body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
