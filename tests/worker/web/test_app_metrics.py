"""The metrics of an app, held against counts that the test makes of the same records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep, time

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from streamlog.log import Log
from tests.worker.processes import DEADLINE_S, STREAMLOG, attached, read_until, running
from tests.worker.web.requests import Answer, get

SALES = """
from streamlog import App, Emit, Windowed, agg, tumbling

app = App("sales", log="embedded:./log", state_dir="./state", commit_interval="50ms")
sales = app.topic("sales", key=str, value=int, partitions=1)
even = app.topic("even", key=str, value=int, partitions=1)
rows = app.topic("rows", key=Windowed[str], value=int, partitions=1)
evens = app.stream(sales).filter(lambda _, amount: amount % 2 == 0, name="is-even")
evens.to(even)
windowed = evens.rekey(lambda _, amount: f"r{amount % 3}", name="by-rest").group_by_key()
windowed.windowed(tumbling("10s")).emit(Emit.CLOSE).count(name="per-rest").changes().to(rows)
table = evens.group_by(lambda key, _: key, name="by-key").count(name="per-key")
"""
START_MS = 1_700_000_000_000
RECORDS = 200
LATE = [START_MS + 1_000 * number for number in (1, 2)]

Sample = tuple[str, frozenset[tuple[str, str]]]


def metrics_of(url: str) -> dict[Sample, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(get(f"{url}/metrics").body.decode())
        for sample in family.samples
    }


def metrics_once(url: str, name: str, expected: float) -> dict[Sample, float]:
    """Wait until the sum of a metric is this one, and return all metrics then."""
    deadline = monotonic() + DEADLINE_S
    while total(found := metrics_of(url), name) != expected:
        assert monotonic() < deadline, total(found, name)
        sleep(0.05)
    return found


def total(found: Mapping[Sample, float], name: str, **labels: str) -> float:
    """Return the sum of the series that have these labels."""
    wanted = set(labels.items())
    values = [value for (each, given), value in found.items() if each == name and wanted <= given]
    assert values, f"no {name} with {labels}"
    return sum(values)


def check_nodes(
    found: Mapping[Sample, float],
    evens: int,
    windows: set[tuple[int, int]],
    closed: set[tuple[int, int]],
) -> None:
    late = LATE
    sent, kept = RECORDS + len(late), evens + len(late)
    node_in, node_out = "streamlog_node_records_in_total", "streamlog_node_records_out_total"
    assert total(found, node_in, node="is-even") == sent
    assert total(found, node_out, node="is-even") == kept
    assert total(found, node_in, node="per-rest") == kept
    assert total(found, node_out, node="per-rest") == len(closed)
    assert total(found, "streamlog_node_busy_seconds_total", node="per-rest") > 0
    assert total(found, "streamlog_node_late_records_total", node="per-rest") == len(late)
    assert total(found, "streamlog_node_late_ratio", node="per-rest") == len(late) / kept
    open_windows = {window for window, _ in windows - closed}
    assert total(found, "streamlog_node_open_windows", node="per-rest") == len(open_windows)
    # One key, whose row the node keeps as an object after the first look-up, a miss.
    assert total(found, "streamlog_task_state_lookups_total", task="2_0") == 1
    assert total(found, "streamlog_task_state_cache_hits_total", task="2_0") == 0
    for phase in ("emit", "checkpoint", "transaction", "store"):
        assert total(found, "streamlog_commit_phase_seconds_count", phase=phase) > 0


def check_times(found: Mapping[Sample, float], times: list[int], kept: int, closed: int) -> None:
    latency = "streamlog_sink_latency_seconds_count"
    assert total(found, latency, topic="even", since="record") == kept
    assert total(found, latency, topic="even", since="append") == kept
    assert total(found, latency, topic="rows", since="record") == closed
    # Every record is at least as old as the newest one, and at most as old as the first.
    age_s = total(found, "streamlog_sink_latency_seconds_sum", topic="even", since="record") / kept
    assert time() - times[-1] / 1000 - 60 < age_s < time() - times[0] / 1000
    reached_s = total(found, "streamlog_watermark_seconds", task="0_0", source="sales-0")
    assert reached_s == times[-1] / 1000
    behind_s = total(found, "streamlog_watermark_behind_seconds", task="0_0", source="sales-0")
    assert 0 < time() - reached_s - behind_s < 60


def test_the_metrics_of_an_app_equal_independent_counts(tmp_path: Path) -> None:
    (tmp_path / "sales.py").write_text(SALES)
    times = [START_MS + 500 * number for number in range(RECORDS)]
    amounts = [*range(RECORDS)]
    evens = [(ms, amount) for ms, amount in zip(times, amounts, strict=True) if amount % 2 == 0]
    # The repartition holds records of two late moments, behind all of the others.
    late = [(ms, 2) for ms in LATE]
    width = 10_000
    windows = {(ms // width, amount % 3) for ms, amount in evens}
    last_ms = evens[-1][0]
    closed = {each for each in windows if (each[0] + 1) * width <= last_ms}
    command = (*STREAMLOG, "-A", "sales", "worker", "--web", ":0")
    with running(*command, cwd=tmp_path) as worker:
        url = worker.line(r"web +(http://\S+)").group(1)
        worker.line("rebalance: this worker has")

        async def story(log: Log) -> None:
            async with log.producer() as producer:
                for ms, amount in zip(times, amounts, strict=True):
                    value = amount.to_bytes(8, "big")
                    await producer.send("sales", value, key=b"k", timestamp_ms=ms)
                await producer.flush()
                await read_until(log, "rows", lambda found: len(found) >= len(closed))
                for ms, amount in late:
                    value = amount.to_bytes(8, "big")
                    await producer.send("sales", value, key=b"k", timestamp_ms=ms)
                await producer.flush()
                await read_until(log, "even", lambda found: len(found) >= len(evens) + len(late))

        attached(f"embedded:{tmp_path / 'log'}", story)
        found = metrics_once(url, "streamlog_node_late_records_total", len(late))
        assert worker.stop() == 0
    check_nodes(found, len(evens), windows, closed)
    check_times(found, times, len(evens) + len(late), len(closed))


def test_hot_keys_are_counted_while_a_request_asks(tmp_path: Path) -> None:
    (tmp_path / "sales.py").write_text(SALES)
    command = (*STREAMLOG, "-A", "sales", "worker", "--web", ":0")
    with running(*command, cwd=tmp_path) as worker:
        url = worker.line(r"web +(http://\S+)").group(1)
        worker.line("rebalance: this worker has")

        async def story(log: Log) -> Answer:
            async with log.producer() as producer:
                asked = asyncio.create_task(
                    asyncio.to_thread(get, f"{url}/hot-keys?seconds=3&top=2")
                )
                while not asked.done():
                    for number in range(10):
                        key = b"hot" if number % 2 else b"k%d" % number
                        await producer.send("sales", bytes(8), key=key)
                    await producer.flush()
                return await asked

        answer = attached(f"embedded:{tmp_path / 'log'}", story)
        refused = get(f"{url}/hot-keys?seconds=900")
    assert answer.status == 200, answer.body
    counted = msgspec.json.decode(answer.body)["topics"]["sales"]
    hottest = counted["keys"][0]
    assert (len(counted["keys"]), hottest["key"], hottest["error"]) == (2, "hot", 0)
    assert abs(hottest["count"] - counted["records"] / 2) <= 5
    assert (refused.status, b"use 0.1 to 60" in refused.body) == (400, True)
