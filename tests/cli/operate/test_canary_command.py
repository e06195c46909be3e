"""`streamlog canary`: the layout of its topic, and three brokers of which one is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import typer

from streamlog.broker.broker import Broker
from streamlog.cli.operate.canary_command import (
    Probe,
    TopicLayout,
    canary,
    lay_out,
    line_of,
    open_canary,
)
from streamlog.log import Log
from streamlog.metrics.prometheus import lines
from streamlog.metrics.registry import Registry
from tests.broker.three_brokers import Cluster, run_cluster
from tests.cli.console import console

WAIT_S = 2.0


@pytest.mark.parametrize(
    ("brokers", "held", "wanted"),
    [
        ({1, 2}, {0: 2, 1: 1}, TopicLayout(2, {})),
        ({1, 2, 3}, {0: 1, 1: 1, 2: 2}, TopicLayout(3, {1: 3})),
        ({1, 2, 3}, {0: 1, 1: 2}, TopicLayout(3, {2: 3})),
        ({1, 2}, {0: 1, 1: 2, 2: 3}, TopicLayout(3, {})),
        ({1, 4}, {0: 1, 1: 2, 2: 2}, TopicLayout(3, {2: 4})),
    ],
)
def test_every_live_broker_gets_a_partition_and_none_loses_its_own(
    brokers: set[int], held: dict[int, int], wanted: TopicLayout
) -> None:
    assert lay_out(brokers, held) == wanted


def available(registry: Registry, broker: int) -> float:
    """Return what /metrics says of a broker."""
    start = f'streamlog_canary_available{{broker="{broker}"}} '
    text = "".join(line for metric in registry.metrics() for line in lines(metric))
    return next(float(line[len(start) :]) for line in text.splitlines() if line.startswith(start))


def test_a_killed_broker_is_unavailable_until_it_is_back() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        registry = Registry()
        url = f"kafka://127.0.0.1:{cluster.nodes[1].port}"
        async with Log.open(url) as log, open_canary(log, registry, wait_s=WAIT_S) as made:

            async def until(failing: set[int]) -> None:
                while True:
                    probes = await made.probe()
                    failed = {each.broker for each in probes if each.latency_s is None}
                    if len(probes) == 3 and failed == failing:
                        return
                    await asyncio.sleep(0.05)

            await until(set())
            await cluster.nodes[3].kill()
            await until({3})
            assert available(registry, 3) == 0
            assert available(registry, 1) == 1
            await cluster.nodes[3].start()
            await until(set())
            assert available(registry, 3) == 1

    run_cluster(Cluster, story)


def test_a_round_prints_a_line_and_ends(tmp_path: Path) -> None:
    async def make() -> None:
        async with Broker.open(str(tmp_path / "log")):
            pass

    asyncio.run(make())
    room = typer.Typer()
    room.command()(canary)
    output = console(room, tmp_path / "log")(
        "--rounds", "2", "--interval", "0.1", "--web", "127.0.0.1:0"
    )
    assert "web       http://127.0.0.1:" in output
    assert output.count("broker 1: ") == 2
    assert "FAILED" not in output


def test_a_line_names_what_failed() -> None:
    probes = [Probe(1, 0.0123), Probe(2, None, "not read back within 5 s")]
    assert line_of(probes) == "broker 1: 12.3 ms, broker 2: FAILED (not read back within 5 s)"
