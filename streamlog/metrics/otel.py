"""OpenTelemetry: spans through its SDK; the extra `[otel]`.

Where to export, and as which service, is set by OpenTelemetry's own variables (`OTEL_*`). A tracer
provider that the program has set is used as it is. Rule: nothing here is imported until an app
switches it on. Not done here: metrics (`otel_metrics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import NonRecordingSpan, Span, TraceState

from streamlog.metrics.tracing import OpenSpan, TraceContext


class OtelSpan:
    """A span of OpenTelemetry; an `OpenSpan`."""

    def __init__(self, span: Span) -> None:
        self._span = span
        own = span.get_span_context()
        ids = f"{own.trace_id:032x}-{own.span_id:016x}"
        flags = f"{int(own.trace_flags):02x}"
        self.context = TraceContext(f"00-{ids}-{flags}", own.trace_state.to_header())

    def end(self, error: str = "") -> None:
        """End the span; `error` is the type of a failure."""
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class OtelTracer:
    """Makes spans with OpenTelemetry's SDK; a `Tracer`."""

    def __init__(self, app_id: str, instance_id: str) -> None:
        """Create a tracer.

        `app_id` is the service's name and `instance_id` tells its workers apart, unless
        OpenTelemetry's variables or the program say otherwise.
        """
        given = trace.get_tracer_provider()
        self._own: TracerProvider | None = None
        if not isinstance(given, TracerProvider):
            resource = service_resource(app_id, instance_id)
            # Which traces begin is decided before (`RecordTraces`): here each one is recorded.
            given = self._own = TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource)
            given.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._provider = given
        self._tracer = given.get_tracer("streamlog")

    def begin(
        self,
        name: str,
        attributes: Mapping[str, str | int | bool],
        *,
        parent: TraceContext | None = None,
        links: Sequence[TraceContext] = (),
        is_consumer: bool = False,
    ) -> OpenSpan:
        """Begin a span; without a parent it begins a trace."""
        context = Context()
        if parent is not None:
            context = trace.set_span_in_context(NonRecordingSpan(_span_context(parent)), context)
        return OtelSpan(
            self._tracer.start_span(
                name,
                context,
                SpanKind.CONSUMER if is_consumer else SpanKind.INTERNAL,
                dict(attributes),
                [Link(_span_context(each)) for each in links],
            )
        )

    def close(self) -> None:
        """Export what has ended; a provider of the program's own stays open."""
        if self._own is not None:
            self._own.shutdown()
        else:
            self._provider.force_flush()


def service_resource(
    name: str, instance_id: str, attributes: Mapping[str, str] | None = None
) -> Resource:
    """Describe this process; OpenTelemetry's variables take precedence."""
    own = {**(attributes or {}), SERVICE_NAME: name, SERVICE_INSTANCE_ID: instance_id}
    return Resource.create(own).merge(OTELResourceDetector().detect())


def _span_context(context: TraceContext) -> SpanContext:
    _, trace_id, span_id, flags = context.traceparent[:55].split("-")
    return SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
        trace_state=TraceState.from_header([context.tracestate] if context.tracestate else []),
    )
