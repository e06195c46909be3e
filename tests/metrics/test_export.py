"""The export of metrics: who switches it on and off, and what is missing for it."""

from __future__ import annotations

import asyncio
import sys

import pytest

from streamlog.errors import ConfigError
from streamlog.metrics.export import MeasuredService, exporting
from streamlog.metrics.registry import Registry
from tests.metrics.otlp_collector import collecting


def export(registry: Registry) -> None:
    async def main() -> None:
        service = MeasuredService("shop", "1")
        async with exporting(registry, service, setting="otel.metrics", wall_ms=lambda: 1):
            registry.counter("ends_total", "Ends.").add()

    asyncio.run(main())


def test_the_last_values_are_exported_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        export(Registry())
        assert collector.series() == {("ends_total", frozenset()): 1}
        assert collector.resource["service.name"] == "shop"
        monkeypatch.setenv("OTEL_SERVICE_NAME", "checkout")
        export(Registry())
        assert collector.resource["service.name"] == "checkout"


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_METRICS_EXPORTER", "none")]
)
def test_standard_variables_switch_it_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv(name, value)
        export(Registry())
        assert not collector.points


def test_another_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    with pytest.raises(ConfigError, match="OTEL_METRICS_EXPORTER is console: use otlp or none"):
        export(Registry())


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith(("opentelemetry", "streamlog.metrics.otel")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"otel\.metrics needs .* 'streamlog-py\[otel\]'"):
        export(Registry())
