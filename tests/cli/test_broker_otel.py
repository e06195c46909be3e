"""A broker's metrics at an OTLP collector, held against its page for Prometheus."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.cli.broker_command import otel_of
from streamlog.metrics.prometheus import exposition
from tests.broker.node import batch, create, produce
from tests.metrics.otlp_collector import collecting
from tests.metrics.test_otel_metrics import prometheus_series


def test_a_broker_exports_what_its_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[str, str, str]:
        config = BrokerConfig(otel_metrics=True)
        async with Broker.open("data", files=MemoryFiles(), config=config) as broker:
            create(broker, "orders", 3)
            await produce(broker, batch(b"v"), topic="orders")
            registry = broker.directory.metrics
            async with otel_of(broker):
                before = await exposition(registry)
            return before.decode(), (await exposition(registry)).decode(), broker.cluster_id

    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        page_before, page_after, cluster_id = asyncio.run(main())
    before, after = prometheus_series(page_before), prometheus_series(page_after)
    found = collector.series()
    # Between the two pages, clocks go on, and the time that the pages have taken is counted.
    assert before.keys() <= found.keys() <= after.keys()
    same = {series for series in before if before[series] == after[series]}
    assert {series: found[series] for series in same} == {each: before[each] for each in same}
    for series in before.keys() - same:
        # Gauges such as the idle share of the loop may rise and fall again.
        if series[0].endswith(("_total", "_count", "_sum", "_bucket")):
            assert before[series] <= found[series] <= after[series], series
    assert len(same) > 0.9 * len(before)
    assert found["kafka_server_replicamanager_partitioncount", frozenset()] == 3
    assert collector.resource["service.name"] == "streamlog-broker"
    assert collector.resource["service.instance.id"] == f"{cluster_id}-1"
    assert collector.resource["kafka.node.id"] == "1"


def test_a_broker_exports_nothing_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker, otel_of(broker):
            pass

    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        asyncio.run(main())
        assert not collector.sizes
