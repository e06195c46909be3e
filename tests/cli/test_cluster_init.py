"""`streamlog cluster init`: the files that it creates, and its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.cli.cluster_command import cluster
from streamlog.errors import ConfigError, LogDirectoryLost, StreamlogError, UsageError
from streamlog.properties import read_properties

VOTERS = "1@a:9092,2@b:9093,3@c:9092"


@pytest.fixture
def init(tmp_path: Path) -> Callable[..., str]:
    def call(*arguments: str) -> str:
        at = ["init", "--data", str(tmp_path / "data"), *arguments]
        return CliRunner().invoke(cluster, at, catch_exceptions=False).output

    return call


def test_a_directory_is_initialized_once(tmp_path: Path, init: Callable[..., str]) -> None:
    data = tmp_path / "data"
    printed = init("--node", "2", "--cluster-id", "abc")
    assert (
        printed
        == f"cluster abc\nnode 2, 127.0.0.1:9092: streamlog broker --config {data}.properties\n"
    )
    with pytest.raises(UsageError, match="exists already"):
        init("--node", "2")
    with pytest.raises(LogDirectoryLost, match="belongs to node 2 of cluster abc already"):
        init("--node", "3", "--config", str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="belongs to node 2"):
        Broker.open(str(data), config=BrokerConfig(node_id=3))

    async def serve() -> str:
        given = read_properties(f"{data}.properties")
        async with Broker.open(given["log.dirs"], config=BrokerConfig().override(given)) as broker:
            return broker.cluster_id

    assert asyncio.run(serve()) == "abc"


def test_a_set_of_nodes_has_three_voters(tmp_path: Path, init: Callable[..., str]) -> None:
    printed = init("--nodes", "4", "--listen", "127.0.0.1:19092", "--set", "flush=os")
    assert printed.count("streamlog broker --config") == 4
    configs = [
        BrokerConfig().override(read_properties(str(tmp_path / "data" / f"broker-{n}.properties")))
        for n in (1, 2, 3, 4)
    ]
    (voters,) = {config.quorum.voters for config in configs}
    assert voters == "1@127.0.0.1:19092,2@127.0.0.1:19093,3@127.0.0.1:19094"
    assert [config.node_id for config in configs] == [1, 2, 3, 4]
    assert [config.quorum.is_controller for config in configs] == [True, True, True, False]
    assert configs[3].security.listeners == "PLAINTEXT://127.0.0.1:19095"
    assert {config.flush for config in configs} == {"os"}
    opened = [LogDirectory.open(config.log_dirs, config=config) for config in configs]
    assert len({each.cluster_id for each in opened}) == 1
    assert len({each.directory_id for each in opened}) == 4
    for each in opened:
        each.close()


def test_two_nodes_have_one_voter(tmp_path: Path, init: Callable[..., str]) -> None:
    init("--nodes", "2")
    given = read_properties(str(tmp_path / "data" / "broker-2.properties"))
    assert given["controller.quorum.voters"] == "1@127.0.0.1:9092"
    assert given["process.roles"] == "broker"


def test_a_node_listens_at_its_address_in_the_voters(
    tmp_path: Path, init: Callable[..., str]
) -> None:
    printed = init("--node", "2", "--voters", VOTERS)
    assert "for each other node, on its machine: streamlog cluster init --node ID" in printed
    assert f"--voters {VOTERS}" in printed
    given = read_properties(str(tmp_path / "data.properties"))
    assert given["listeners"] == "PLAINTEXT://b:9093"


def test_a_rejoining_node_notes_it_in_its_directory(
    tmp_path: Path, init: Callable[..., str]
) -> None:
    with pytest.raises(UsageError, match="--rejoin needs --cluster-id"):
        init("--node", "2", "--voters", VOTERS, "--rejoin")
    init("--node", "2", "--voters", VOTERS, "--rejoin", "--cluster-id", "abc")
    given = BrokerConfig().override(read_properties(str(tmp_path / "data.properties")))
    opened = LogDirectory.open(given.log_dirs, config=given)
    assert opened.rejoins
    opened.close()


def test_a_broker_does_not_initialize_a_directory_of_a_cluster(tmp_path: Path) -> None:
    given = BrokerConfig().override({"controller.quorum.voters": VOTERS, "node.id": "2"})
    with pytest.raises(
        LogDirectoryLost, match=r"cluster init --node 2 --cluster-id ID --data .*new"
    ):
        LogDirectory.open(str(tmp_path / "new"), config=given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--node ID for one node, or --nodes N"),
        (("--node", "1", "--nodes", "3"), "--node ID for one node, or --nodes N"),
        (("--nodes", "3", "--rejoin"), "need --node"),
        (("--nodes", "0"), "1 to 100 nodes"),
        (("--nodes", "3", "--listen", "a:65534"), "and ports up to 65535"),
        (
            ("--node", "4", "--voters", VOTERS),
            "makes node.id=4 a controller, but controller.quorum.voters",
        ),
        (("--node", "1", "--voters", "a:9092"), "write each controller as node.id@host:port"),
        (("--node", "1", "--set", "broker.rak=a"), "did you mean 'broker.rack'"),
        (("--node", "1", "--set", "broker.rack"), "NAME=VALUE"),
    ],
    ids=range(9),
)
def test_invalid_arguments_create_nothing(
    tmp_path: Path, init: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(StreamlogError, match=message):
        init(*arguments)
    assert not list(tmp_path.iterdir())
