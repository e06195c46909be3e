"""`streamlog cluster`, on a log of one broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from chaos.ports import reserved_ports
from streamlog.broker.broker import Broker
from streamlog.cli import cluster_command
from streamlog.cli.cluster_command import (
    ClusterStatus,
    cluster,
    parse_move,
    spread,
    status_object,
    wait_for,
)
from streamlog.cli.session import Session
from streamlog.client.admin.cluster_descriptions import (
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
)
from streamlog.errors import ConnectionLost, LogError, RequestTimedOut, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.node import create
from tests.broker.three_brokers import Cluster, until
from tests.cli.console import Invoke, console, row


@pytest.fixture
def run_cluster(tmp_path: Path) -> Invoke:
    async def make() -> None:
        async with Broker.open(str(tmp_path / "log")) as broker:
            create(broker, "orders", 2)

    asyncio.run(make())
    return console(cluster, tmp_path / "log")


def test_the_status_shows_brokers_and_their_partitions(run_cluster: Invoke) -> None:
    output = run_cluster("status")
    assert row(output, "1", "127.0.0.1:0", "", "2", "2", "2")
    assert "quorum: node 1 leads epoch" in output
    assert (
        "2 partitions, 0 with replicas out of sync, 0 of them with fewer in sync than"
        " min.insync.replicas, 0 without a leader" in output
    )
    assert run_cluster("status", "--wait", "1").startswith("cluster ")


def test_the_status_is_an_object(run_cluster: Invoke) -> None:
    found = json.loads(run_cluster("status", "--json"))
    (broker,) = found["brokers"]
    assert broker == {
        "broker": 1, "host": "127.0.0.1", "port": 0, "rack": None, "is_missing": False,
        "leads": 2, "holds": 2, "in_sync": 2,
    }  # fmt: skip
    assert (found["is_healthy"], found["partitions"], found["out_of_sync"]) == (True, 2, [])
    assert [each["role"] for each in found["quorum"]["nodes"]] == ["voter"]


def lacking_status() -> ClusterStatus:
    known = [
        PartitionDescription("a", 0, 1, 3, (1, 2, 3), (1, 2), ()),
        PartitionDescription("a", 1, 1, 3, (1, 2, 3), (1,), ()),
        PartitionDescription("a", 2, -1, 4, (3,), (), (3,)),
    ]
    brokers = tuple(BrokerDescription(node, "h", 9000 + node, "r") for node in (1, 2))
    described = ClusterDescription("id", -1, brokers)
    return ClusterStatus(described, known, None, {"a": 2}, ["one", "two"])


def test_a_status_object_leaves_nothing_out() -> None:
    found = json.loads(json.dumps(status_object(lacking_status())))
    assert found["controller"] is None
    assert found["quorum"] is None
    assert [(each["broker"], each["port"], each["is_missing"]) for each in found["brokers"]] == [
        (1, 9001, False), (2, 9002, False), (3, None, True),
    ]  # fmt: skip
    assert [(each["leader"], each["is_under_min_isr"]) for each in found["out_of_sync"]] == [
        (1, False), (1, True), (None, True),
    ]  # fmt: skip
    assert found["not_proved"] == ["one", "two"]
    assert not found["is_healthy"]


def test_elect_changes_leaders_only_where_needed(run_cluster: Invoke) -> None:
    assert "nothing to do" in run_cluster("elect")
    assert "nothing to do" in run_cluster("elect", "orders-1")
    with pytest.raises(LogError, match="orders-7"):
        run_cluster("elect", "orders-7")
    with pytest.raises(UsageError, match="needs the names of partitions"):
        run_cluster("elect", "--unclean")


def test_reassign_moves_partitions_to_existing_brokers(run_cluster: Invoke) -> None:
    assert "orders-0 is moving" in run_cluster("reassign", "orders-0=1")
    assert "orders-0" not in run_cluster("reassign")
    # The move ends at once: the replica is there already.
    assert run_cluster("reassign", "orders-0=1", "--json").splitlines() == [
        "orders-0 is moving",
        "[]",
    ]
    run_cluster("reassign", "orders-0=1", "--wait", "30", "--throttle", "1000000")
    run_cluster("reassign", "--wait", "30")
    with pytest.raises(LogError, match="orders-0"):
        run_cluster("reassign", "orders-0=1,2")
    with pytest.raises(LogError, match="not being reassigned"):
        run_cluster("reassign", "orders-0=")


def test_reassignments_are_parsed() -> None:
    assert parse_move("a-b-3=1,2") == (TopicPartition("a-b", 3), [1, 2])
    assert parse_move("a-b-3=") == (TopicPartition("a-b", 3), None)
    for text in ("a-3", "a-3=x", "a=1"):
        with pytest.raises(UsageError):
            parse_move(text)


def test_a_throttle_needs_moves_and_verify_takes_no_partitions(run_cluster: Invoke) -> None:
    assert "no move is in progress" in run_cluster("reassign", "orders-0=1", "--throttle", "1000")
    assert "no move is in progress" in run_cluster("reassign", "--throttle", "1000")
    run_cluster("reassign", "--verify")
    with pytest.raises(UsageError, match="it takes no partitions"):
        run_cluster("reassign", "orders-0=1", "--verify")


def test_a_wildcard_spreads_all_partitions_over_brokers() -> None:
    known = [PartitionDescription(t, n, 1, 0, (1,), (1,), ()) for t in ("a", "b-c") for n in (0, 1)]
    assert spread("*=1,2,3", known) == {
        TopicPartition("a", 0): [1, 2, 3],
        TopicPartition("a", 1): [2, 3, 1],
        TopicPartition("b-c", 0): [3, 1, 2],
        TopicPartition("b-c", 1): [1, 2, 3],
    }
    assert spread("b-c-*=2", known) == {TopicPartition("b-c", n): [2] for n in (0, 1)}
    for text in ("*=", "a*=1", "*", "a-*=1,x", "*=1,"):
        with pytest.raises(UsageError, match="is not a move"):
            spread(text, known)
    with pytest.raises(UsageError, match="matches no partition"):
        spread("b-*=1", known)


def test_all_partitions_of_a_topic_are_reassigned(run_cluster: Invoke) -> None:
    output = run_cluster("reassign", "orders-*=1")
    assert "orders-0 is moving" in output
    assert "orders-1 is moving" in output


def test_waiting_for_a_cluster_begins_before_its_brokers_listen() -> None:
    with reserved_ports(1) as (port,), pytest.raises(ConnectionLost, match=str(port)):
        wait_for(Session(), f"kafka://127.0.0.1:{port}", 1.2)


def test_the_status_of_a_quorum_without_a_majority_names_the_silent_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            await cluster.ready()
            for number in (2, 3):
                await cluster.nodes[number].kill()
            # The one that is left notices after a while that it can't lead.
            await until(lambda: cluster.active() is None)
            monkeypatch.setattr(cluster_command, "QUORUM_PATIENCE_S", 0.2)
            async with Log.open(f"kafka://127.0.0.1:{cluster.nodes[1].port}") as log:
                with pytest.raises(RequestTimedOut, match=r"that answer: 1; silent: 2,3 \(can't"):
                    await cluster_command.read_status(log.admin())

    asyncio.run(main())
