"""Export: metrics that a process sends by itself, if a setting asks for it.

Rule: a process that exports nothing imports no library for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from streamlog.errors import ConfigError
from streamlog.metrics.build_info import install_command
from streamlog.metrics.registry import Registry

EXPORTERS = "OTEL_METRICS_EXPORTER"
DISABLED = "OTEL_SDK_DISABLED"


class MeasuredService(msgspec.Struct, frozen=True):
    """What metrics are of, in OpenTelemetry's terms."""

    name: str
    """The attribute `service.name`, which all of its processes have."""
    instance_id: str
    """The attribute `service.instance.id`: which of them."""
    attributes: Mapping[str, str] = msgspec.field(default_factory=dict)


@asynccontextmanager
async def exporting(
    registry: Registry, service: MeasuredService, *, setting: str, wall_ms: Callable[[], int]
) -> AsyncIterator[None]:
    """Export metrics by OTLP while the block lasts, and once at its end.

    Args:
        registry: the metrics.
        service: what they are of; OpenTelemetry's variables take precedence.
        setting: the setting that asks for it, for messages.
        wall_ms: returns ms since 1970.

    Raises:
        ConfigError: the extra `[otel]` is not installed, or a variable of OpenTelemetry has a value
            that can't be used here.
    """
    # Both are standard switches for operators who do not own the program or its settings.
    if os.environ.get(DISABLED, "").strip().lower() == "true" or _exporter() == "none":
        yield
        return
    try:
        from streamlog.metrics.otel import service_resource  # noqa: PLC0415 - the extra [otel]
        from streamlog.metrics.otel_metrics import OtlpMetrics  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ConfigError(
            f"{setting} needs OpenTelemetry ({error}): {install_command('otel')}"
        ) from error
    resource = service_resource(service.name, service.instance_id, service.attributes)
    exporter = OtlpMetrics(registry, resource, wall_ms=wall_ms)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(exporter.run(), name="OTLP metrics")
        try:
            yield
        finally:
            running.cancel()
            await exporter.close()


def _exporter() -> str:
    given = os.environ.get(EXPORTERS, "").strip() or "otlp"
    if given not in ("otlp", "none"):
        raise ConfigError(f"{EXPORTERS} is {given}: use otlp or none")
    return given
