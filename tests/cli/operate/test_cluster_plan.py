"""`streamlog cluster plan` and `cordon`, on three brokers and from the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.cli.cluster_command import cluster as cluster_command
from streamlog.cli.operate.cluster_plan import (
    Aim,
    execute_moves,
    plan_for,
    read_placement,
    set_cordoned,
)
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.errors import LogError, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.node import create
from tests.broker.three_brokers import Cluster, run_cluster
from tests.cli.console import Invoke, console

RATE = 50_000_000
WAIT_S = 120.0


@pytest.fixture
def run_alone(tmp_path: Path) -> Invoke:
    async def make() -> None:
        async with Broker.open(str(tmp_path / "log")) as broker:
            create(broker, "orders", 2)

    asyncio.run(make())
    return console(cluster_command, tmp_path / "log")


def url(cluster: Cluster) -> str:
    return f"kafka://127.0.0.1:{cluster.nodes[1].port}"


def test_a_drained_broker_is_emptied_and_a_balance_fills_it_again() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(url(cluster)) as log, log.admin() as admin:
            await admin.create_topics([NewTopic("t", 6, replication_factor=2)])
            async with log.producer() as producer:
                for number in range(60):
                    await producer.send("t", b"x" * 1000, partition=number % 6)
            placement = await read_placement(admin)
            assert placement.partitions[TopicPartition("t", 0)].size_bytes > 10_000
            moves = plan_for(Aim.DRAIN, placement, [3])
            assert await execute_moves(admin, moves, throttle=RATE, wait_s=WAIT_S)
            for each in await admin.describe_partitions():
                assert 3 not in each.replicas
                assert each.leader == each.replicas[0]
            assert await admin.remove_throttles() == [], "the throttle is gone"
            moves = plan_for(Aim.BALANCE, await read_placement(admin), ())
            assert await execute_moves(admin, moves, wait_s=WAIT_S)
            leads = [each.leader for each in await admin.describe_partitions()]
            assert {leads.count(each) for each in (1, 2, 3)} == {2}
            assert plan_for(Aim.BALANCE, await read_placement(admin), ()) == {}

    run_cluster(Cluster, story)


def test_a_cordoned_broker_gets_no_replicas_until_it_is_uncordoned() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(url(cluster)) as log, log.admin() as admin:
            await set_cordoned(admin, 2, is_cordoned=True)
            assert (await read_placement(admin)).cordoned == {2}
            await admin.create_topics([NewTopic("t", 6, replication_factor=2)])
            assert {each.replicas for each in await admin.describe_partitions()} <= {(1, 3), (3, 1)}
            await admin.create_partitions("t", 8)
            assert all(2 not in each.replicas for each in await admin.describe_partitions())
            with pytest.raises(LogError, match=r"brokers \[2\] are cordoned"):
                await admin.create_topics([NewTopic("wide", 1, replication_factor=3)])
            refused = await admin.alter_partition_reassignments({TopicPartition("t", 0): [1, 2]})
            assert "broker 2 is cordoned" in str(refused[TopicPartition("t", 0)])
            # One of its directories: the broker chooses another, and the controller needs not know.
            await admin.alter_configs({"cordoned.log.dirs": "/disk2"}, broker=2)
            assert (await read_placement(admin)).cordoned == frozenset()
            await set_cordoned(admin, 2, is_cordoned=False)
            moves = plan_for(Aim.ADD, await read_placement(admin), [2])
            assert await execute_moves(admin, moves, wait_s=WAIT_S)
            held = [each for each in await admin.describe_partitions() if 2 in each.replicas]
            assert len(held) == 5, "16 replicas on 3 brokers"

    run_cluster(Cluster, story)


def test_the_command_line_prints_plans_and_refuses_contradictions(run_alone: Invoke) -> None:
    assert "nothing to move" in run_alone("plan", "--balance")
    plan = json.loads(run_alone("plan", "--balance", "--json", "--throttle", "1000"))
    assert plan["moves"] == []
    assert plan["cost"]["bytes"] == 0
    with pytest.raises(UsageError, match="no other broker can take"):
        run_alone("plan", "--drain", "1")
    with pytest.raises(UsageError, match="takes one of"):
        run_alone("plan", "--balance", "--add", "1")
    with pytest.raises(UsageError, match="give both"):
        run_alone("plan", "--balance", "--wait", "1")


def test_the_command_line_cordons_and_uncordons(run_alone: Invoke) -> None:
    assert "is cordoned" in run_alone("cordon", "1")
    assert "cordoned brokers: 1" in run_alone("plan", "--balance")
    assert "is not cordoned" in run_alone("uncordon", "1")
    assert "cordoned brokers" not in run_alone("plan", "--balance")
