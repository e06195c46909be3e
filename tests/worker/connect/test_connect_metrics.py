"""The lag of the parts of sources: a bounded number of series, and the worst part always shown."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamlog.clock import ManualClock
from streamlog.connect.declared_connectors import SourceConnector
from streamlog.connect.herding.herder import Herder
from streamlog.connect.parts import part_id
from streamlog.connect.source_progress import HeldRead
from streamlog.connect_tasks.carried import CarriedRead, SourceCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.part_reader import HeldBudget, ReaderDeps
from streamlog.connect_tasks.source_task import SourceTask
from streamlog.connectors.memory import MemorySource
from streamlog.metrics.prometheus import exposition
from streamlog.metrics.registry import Registry
from streamlog.nodes.policies import on_error
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.serdes import serde_for
from streamlog.worker.connect.app_herder import DeclaredPlugins
from streamlog.worker.connect.connect_metrics import PARTS_MAX, ConnectMetrics, ConnectorFigures
from streamlog.worker.connect.source_slots import LoopClock, SlotKey

Lags = dict[tuple[str, str], float]
"""The age of what is held, by connector and part."""


def test_the_parts_of_large_connectors_share_a_series_with_the_largest_lag() -> None:
    # 40 small connectors, one that just fits beside them, and two that do not.
    sizes = {f"small-{n}": 1 + n % 3 for n in range(40)}
    sizes |= {"fits": PARTS_MAX - sum(sizes.values()), "files": 1_500, "more": 1_200}
    truth, shown, others = look(sizes, Random(1))
    assert others == {"files": 1_500, "more": 1_200}
    worst: dict[str, float] = {}
    for (name, _), lag_s in truth.items():
        worst[name] = max(lag_s, worst.get(name, 0.0))
    expected = {at: lag_s for at, lag_s in truth.items() if at[0] not in others}
    expected |= {(name, "other"): worst[name] for name in others}
    assert shown == pytest.approx(expected)
    assert len(shown) == PARTS_MAX + len(others)


def test_one_part_more_than_the_bound_is_one_series() -> None:
    truth, shown, others = look({"tail": PARTS_MAX + 1}, Random(1))
    assert shown == {("tail", "other"): pytest.approx(max(truth.values()))}
    assert others == {"tail": PARTS_MAX + 1}
    truth, shown, others = look({"tail": PARTS_MAX}, Random(1))
    assert shown == pytest.approx(truth)
    assert others == {}


def look(sizes: dict[str, int], chance: Random) -> tuple[Lags, Lags, dict[str, float]]:
    """Return the lags, those that Prometheus reads, and how many have no series of their own."""
    clock = ManualClock()
    clock.advance(1_000_000)
    sources: dict[SlotKey, SourceTask] = {}
    truth: Lags = {}
    for name, size in sizes.items():
        parts = [{"path": f"/var/log/{name}/{n}", "n": n} for n in range(size)]
        # Several tasks, as a connector has on one worker.
        for number, some in enumerate((parts[::2], parts[1::2])):
            sources[name, number] = task = task_of(name, number, some, clock)
            for reader in task.readers:
                held_ms = clock.now_ms() - chance.randrange(100_000)
                if chance.random() < 0.5:
                    reader.progress.hold(HeldRead(CarriedRead(), 1, 1, {"at": 1}, held_ms=held_ms))
                oldest_ms = clock.now_ms() if reader.progress.is_empty else held_ms
                truth[name, part_id(reader.part)] = (clock.now_ms() - oldest_ms) / 1_000
    now = ConnectorFigures(
        sources=sources,
        sinks={},
        read={},
        written={},
        own={},
        herder=Herder("w:8083", DeclaredPlugins(())),
    )
    registry = Registry()
    registry.collect(ConnectMetrics(lambda: now, clock).collect)
    text = asyncio.run(exposition(registry)).decode()
    found: dict[str, dict[Any, float]] = {
        family.name: {tuple(each.labels.values()): each.value for each in family.samples}
        for family in text_string_to_metric_families(text)
    }
    others = found["streamlog_connector_lag_other_parts"]
    return (
        truth,
        found["streamlog_connector_lag_seconds"],
        {name: count for (name,), count in others.items()},
    )


def task_of(name: str, number: int, parts: list[dict[str, Any]], clock: ManualClock) -> SourceTask:
    source = MemorySource(values=[b""])
    spec = TopicSpec("t", serde_for(str), serde_for(bytes))
    connector = SourceConnector(
        name=name, source=source, topics={"": spec}, policy=on_error.FAIL.named("app")
    )
    task_clock = LoopClock(clock)
    deps = ReaderDeps(
        name=name,
        source=source,
        context=ConnectorContext(name, number, task_clock),
        carrier=SourceCarrier(connector),
        clock=task_clock,
        chance=lambda: 0.0,
        budget=HeldBudget(),
    )
    return SourceTask(deps, number, [(part, None) for part in parts])
