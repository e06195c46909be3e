"""Traces of an app on real workers, found at a collector that takes OTLP over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.metrics.tracing import TraceContext, context_of, with_context
from streamlog.records.batch import LogRecord
from tests.metrics.otlp_collector import Labels, collecting
from tests.metrics.test_otel_metrics import prometheus_series
from tests.worker.processes import (
    ROOT,
    STREAMLOG,
    attached,
    read_until,
    running,
    streamlog,
)

SHOP = """
from streamlog import App, Emit, Windowed, tumbling

app = App(
    "shop", log="embedded:./log", state_dir="./state", commit_interval="50ms", trace_ratio={ratio},
    otel_metrics={metrics}, web=":0" if {metrics} else None
)
orders = app.topic("orders", key=str, value=str, partitions=2)
customers = app.topic("customers", key=str, value=str, partitions=2)
placed = app.topic("placed", key=str, value=str, partitions=2)
rows = app.topic("rows", key=Windowed[str], value=int, partitions=1)
named = (
    app.stream(orders)
    .filter(lambda _, customer: customer != "nobody")
    .rekey(lambda _, customer: customer, name="by-customer")
    .join(app.table(customers), lambda order, city: city, name="city")
)
named.to(placed)
counted = named.group_by(lambda _, city: city, name="by-city").windowed(tumbling("10s"))
counted.emit(Emit.CLOSE).count(name="per-city").changes().to(rows)
"""
START_MS = 1_700_000_000_000
FIRST, SECOND, CLOSING = "a1" * 16, "b2" * 16, "c3" * 16


def traced(trace_id: str) -> TraceContext:
    return TraceContext(f"00-{trace_id}-{'0f' * 8}-01", "vendor=1")


async def send_order(log: Log, partition: int, customer: str, at_ms: int, trace_id: str) -> None:
    async with log.producer() as producer:
        headers = with_context((("app", b"web"),), traced(trace_id)) if trace_id else ()
        await producer.send(
            "orders",
            customer.encode(),
            key=b"o",
            partition=partition,
            timestamp_ms=START_MS + at_ms,
            headers=headers,
        )
        await producer.flush()


async def first_orders(log: Log) -> list[tuple[int, LogRecord]]:
    async with log.producer() as producer:
        for number in (1, 2):
            key = f"c{number}".encode()
            await producer.send("customers", b"Lund", key=key, timestamp_ms=START_MS)
        await producer.flush()
    await send_order(log, 0, "c1", 1_000, FIRST)
    await send_order(log, 1, "c2", 2_000, SECOND)
    await send_order(log, 1, "c2", 2_500, "")
    return await read_until(log, "placed", lambda found: len(found) >= 3)


async def last_orders(log: Log) -> list[tuple[int, LogRecord]]:
    for partition in (0, 1):
        await send_order(log, partition, "c1", 60_000, CLOSING)
    return await read_until(log, "rows", lambda found: len(found) >= 1)


def run(path: Path, ratio: str, **environment: str) -> tuple[list[LogRecord], list[LogRecord]]:
    """Run two workers, restart them within a window, and return the rows of both sinks."""
    path.mkdir()
    (path / "shop.py").write_text(SHOP.format(ratio=ratio, metrics=False))
    command = (*STREAMLOG, "-A", "shop", "worker", "-w", "2")
    url = f"embedded:{path / 'log'}"
    with running(*command, cwd=path, **environment) as workers:
        for number in (1, 2):
            workers.line(rf"^{number} \| .*rebalance: this worker has")
        placed = attached(url, first_orders)
        assert workers.stop() == 0, workers.output
    with running(*command, cwd=path, **environment) as workers:
        for number in (1, 2):
            workers.line(rf"^{number} \| .*rebalance: this worker has")
        rows = attached(url, last_orders)
        assert workers.stop() == 0, workers.output
    return [record for _, record in placed], [record for _, record in rows]


def plain(records: list[LogRecord]) -> list[tuple[bytes | None, bytes | None, int]]:
    return sorted((each.key, each.value, each.timestamp_ms) for each in records)  # type: ignore[type-var]


def test_a_trace_is_found_at_the_sinks_after_repartitions_a_join_a_window_and_a_restart(
    tmp_path: Path,
) -> None:
    with collecting() as collector:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        placed, rows = run(tmp_path / "on", "0.0", **settings)
        contexts = [context_of(record.headers) for record in placed]
        found = {each.traceparent[3:35]: each for each in contexts if each is not None}
        # The order without a context begins no trace, as the ratio is 0.
        assert found.keys() == {FIRST, SECOND}
        assert dict(placed[0].headers).get("app") in {b"web", None}
        for trace_id, context in found.items():
            assert context.tracestate == "vendor=1"
            # From the sink back: the task behind the repartition, the task before it, the producer.
            behind = collector.span(context)
            above = collector.spans[behind.parent_id]
            assert (behind.trace_id, above.trace_id) == (trace_id, trace_id)
            assert behind.name == "process shop-by-customer-repartition"
            assert (above.name, above.parent_id) == ("process orders", "0f" * 8)
            assert above.attributes["messaging.destination.name"] == "orders"
            assert above.attributes["messaging.consumer.group.name"] == "shop"
            assert above.attributes["messaging.operation.type"] == "process"
        (row,) = (each for each in rows)
        context = context_of(row.headers)
        assert context is not None
        result = collector.span(context)
        assert (result.name, result.parent_id) == ("per-city result", "")
        assert {trace_id for trace_id, _ in result.links} == {FIRST, SECOND}
        for _, span_id in result.links:
            assert collector.spans[span_id].name == "process shop-by-city-repartition"
    placed_plain, rows_plain = run(tmp_path / "off", "None")
    assert (plain(placed_plain), plain(rows_plain)) == (plain(placed), plain(rows))
    assert not any(name == "traceparent" for each in rows_plain for name, _ in each.headers)


def page_of(url: str) -> dict[tuple[str, Labels], float]:
    """Read what a worker shows to Prometheus."""
    with urlopen(f"{url}/metrics") as answer:  # noqa: S310 - the worker above
        return prometheus_series(answer.read().decode())


def test_the_commands_of_the_page_export_traces_and_metrics(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "watching.md").read_text().partition("## Traces")[2]
    export, worker = (line[2:] for line in page.splitlines() if line.startswith("$ "))
    assert worker.startswith("streamlog ")
    (tmp_path / "shop.py").write_text(SHOP.format(ratio="1.0", metrics=True))
    with collecting() as collector:
        script = export.replace("http://localhost:4318", collector.url)
        script += f"\nexec {sys.executable} -m {worker}"
        often = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "200"}
        with running("bash", "-c", script, cwd=tmp_path, **often) as process:
            process.line("rebalance: this worker has")
            placed = attached(f"embedded:{tmp_path / 'log'}", first_orders)
            url = process.line(r"web +(http://\S+)").group(1)
            before = page_of(url)
            # The report that is under way may have begun before the page: the next one has not.
            collector.wait_for_points(len(collector.points) + 2 * len(collector.series()))
            metrics = collector.series()
            after = page_of(url)
            assert process.stop() == 0, process.output
        # What counts and has not changed between the pages is in the report; gauges may vary.
        counts = ("_total", "_count", "_sum", "_bucket")
        same = {each for each in before if each[0].endswith(counts) and before[each] == after[each]}
        assert len(same) > 100
        assert {each: metrics[each] for each in same} == {each: before[each] for each in same}
        assert before.keys() <= metrics.keys()
        contexts = [context_of(record.headers) for _, record in placed]
        assert all(contexts)
        assert metrics["streamlog_records_out_total", frozenset({("topic", "placed")})] == 3
        assert metrics["streamlog_assigned", frozenset()] == 1
        assert collector.resource["service.name"] == "shop"
        assert collector.resource["service.instance.id"]
        # All three records of one customer or another: the one without a context began a trace.
        traces = {each.traceparent[3:35] for each in contexts if each is not None}
        assert len(traces) == 3
        assert {FIRST, SECOND} < traces


def test_traces_without_the_extra_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import sys\nsys.modules['opentelemetry'] = None\n"
        + SHOP.format(ratio="1.0", metrics=False)
    )
    code, output = streamlog("-A", "shop", "worker", cwd=tmp_path)
    assert code != 0
    assert "pip install 'streamlog-py[otel]'" in output
    with pytest.raises(ConfigError, match="trace_ratio is 2"):
        compile_app(2.0)


def compile_app(ratio: float) -> object:
    from streamlog import App  # noqa: PLC0415 - only here

    return App("shop", trace_ratio=ratio)
