"""`streamlog cluster grow`: directories and settings of three nodes, made from those of one."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.quorum.voter_growth import VoterGrowth
from streamlog.cli.cluster_command import cluster
from streamlog.errors import (
    ConfigError,
    LogDirectoryLocked,
    LogDirectoryLost,
    StreamlogError,
    UsageError,
)
from streamlog.properties import read_properties
from tests.broker.node import create

LOCALHOST = "127.0.0.1"
VOTERS = f"1@{LOCALHOST}:9092,2@{LOCALHOST}:9093,3@{LOCALHOST}:9094"
Grow = Callable[..., str]


def opened(config: Path) -> Broker:
    given = read_properties(str(config))
    return Broker.open(given["log.dirs"], config=BrokerConfig().override(given))


def started_once(config: Path) -> None:
    async def story() -> None:
        async with opened(config) as broker:
            create(broker, "orders", 2)

    asyncio.run(story())


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """Return the settings of a single node that has been started before."""
    data = tmp_path / "broker-1"
    CliRunner().invoke(
        cluster, ["init", "--node", "1", "--data", str(data)], catch_exceptions=False
    )
    config = tmp_path / "broker-1.properties"
    started_once(config)
    return config


@pytest.fixture
def grow(tmp_path: Path) -> Grow:
    def call(*arguments: str, voters: str = VOTERS, data: str = "broker-1") -> str:
        at = ["grow", "--data", str(tmp_path / data), "--voters", voters, *arguments]
        return CliRunner().invoke(cluster, at, catch_exceptions=False).output

    return call


def test_grow_writes_directories_and_settings_of_three_nodes(
    tmp_path: Path, one: Path, grow: Grow
) -> None:
    printed = grow()
    assert f"its voters are {VOTERS}" in printed
    assert f"node 1: streamlog broker --config {one}" in printed
    assert "before nodes 1 and 2 run" in printed
    for number in (1, 2, 3):
        config = tmp_path / f"broker-{number}.properties"
        assert f"streamlog broker --config {config}" in printed
        given = read_properties(str(config))
        assert given["node.id"] == str(number)
        assert given["log.dirs"] == str(tmp_path / f"broker-{number}")
        assert given["listeners"] == f"PLAINTEXT://{LOCALHOST}:{9091 + number}"
        assert given["controller.quorum.voters"] == VOTERS
    with pytest.raises(UsageError, match=r"are already .*: nothing to do"):
        grow()


def test_common_settings_are_copied_to_the_new_nodes(tmp_path: Path, one: Path, grow: Grow) -> None:
    (tmp_path / "secret").write_text("hush")
    text = one.read_text().replace("PLAINTEXT://", "INNER://") + (
        "# a remark\n"
        "listener.security.protocol.map=INNER:PLAINTEXT\n"
        "broker.rack=a\n"
        f"web.listener={LOCALHOST}:8000\n"
        "flush=os\n"
        "sasl.inter.broker.username=broker\n"
        f"sasl.inter.broker.password=${{file:{tmp_path}/secret}}\n"
        "default.replication.factor=1\n"
    )
    one.write_text(text)
    one.chmod(0o600)
    grow("--set", "default.replication.factor=3", "--to", str(tmp_path / "to"))
    config = tmp_path / "to" / "broker-2.properties"
    given = read_properties(str(config))
    assert given["listeners"] == f"INNER://{LOCALHOST}:9093"
    assert (given["flush"], given["default.replication.factor"]) == ("os", "3")
    assert not {"broker.rack", "web.listener"} & {*given}
    assert "hush" not in config.read_text(), "the secret stays in its own file"
    assert given["sasl.inter.broker.password"] == "hush"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert one.read_text() == f"{text}controller.quorum.voters={VOTERS}\n"
    assert stat.S_IMODE(one.stat().st_mode) == 0o600


def test_a_node_without_a_settings_file_gets_one(tmp_path: Path, grow: Grow) -> None:
    data = tmp_path / "broker-1"

    async def story() -> None:
        async with Broker.open(str(data)):
            pass

    asyncio.run(story())
    with pytest.raises(UsageError, match="elsewhere does not exist"):
        grow("--config", str(tmp_path / "elsewhere"))
    grow()
    given = read_properties(str(tmp_path / "broker-1.properties"))
    assert given["listeners"] == f"PLAINTEXT://{LOCALHOST}:9092"


def test_an_interrupted_grow_can_be_repeated(
    tmp_path: Path, one: Path, grow: Grow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is interrupted once before the voters change, and once after."""

    class Cut(Exception):
        pass

    def cut(*_: object) -> None:
        raise Cut

    before = one.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(VoterGrowth, "commit", cut)
        with pytest.raises(Cut):
            grow()
    assert one.read_text() == before
    started_again = opened(one)
    assert {*started_again.directory.topics} == {"orders"}
    started_again.directory.close()
    with monkeypatch.context() as patch:
        patch.setattr("streamlog.cli.cluster_init.OwnSettings.write", cut)
        with pytest.raises(Cut):
            grow()
    assert one.read_text() == before
    with pytest.raises(ConfigError, match="voters do not change"):
        opened(one)
    assert "its voters are" in grow()
    assert read_properties(str(one))["controller.quorum.voters"] == VOTERS


def test_grow_requires_a_stopped_broker(one: Path, grow: Grow) -> None:
    async def story() -> None:
        async with opened(one):
            with pytest.raises(LogDirectoryLocked, match="stop it first"):
                grow()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("arguments", "voters", "message"),
    [
        ((), VOTERS.replace("1@", "4@"), "so it has to be one of the voters"),
        ((), f"1@{LOCALHOST}:9092,2@{LOCALHOST}:9093", "number of voters is 2: use three"),
        ((), "1", "write each controller as node.id@host:port"),
        ((), VOTERS.replace("9092", "9999"), "does not listen there"),
        ((), VOTERS.replace(LOCALHOST, "a.example.org"), "does not listen there"),
        (("--set", "no.such=1"), VOTERS, "no.such"),
    ],
    ids=range(6),
)
def test_invalid_arguments_change_nothing(
    one: Path,
    grow: Grow,
    arguments: tuple[str, ...],
    voters: str,
    message: str,
) -> None:
    before = one.read_text()
    names = {*one.parent.iterdir()}
    with pytest.raises(StreamlogError, match=message):
        grow(*arguments, voters=voters)
    assert {*one.parent.iterdir()} == names
    assert one.read_text() == before
    opened(one).directory.close()


def test_existing_files_are_kept(tmp_path: Path, one: Path, grow: Grow) -> None:
    with pytest.raises(LogDirectoryLost, match="is not the data directory of a node"):
        grow(data="elsewhere")
    other = tmp_path / "broker-3.properties"
    other.write_text("flush=os\n")
    with pytest.raises(UsageError, match=r"broker-3\.properties exists already"):
        grow()
    other.unlink()
    (tmp_path / "broker-2").mkdir()
    with pytest.raises(UsageError, match="broker-2 exists already"):
        grow()
    (tmp_path / "broker-2").rmdir()
    grow()


def test_several_listeners_must_be_given_explicitly(tmp_path: Path, one: Path, grow: Grow) -> None:
    text = one.read_text().replace(
        f"{LOCALHOST}:9092", f"{LOCALHOST}:9092,OUTER://{LOCALHOST}:9095"
    )
    names = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OUTER:PLAINTEXT\n"
    one.write_text(text + names)
    with pytest.raises(UsageError, match="by --set listeners="):
        grow()
    listeners = "PLAINTEXT://:9092,OUTER://:9095"
    grow("--set", f"listeners={listeners}", "--set", "log.dirs=/var/lib/streamlog")
    given = read_properties(str(tmp_path / "broker-2.properties"))
    assert (given["listeners"], given["log.dirs"]) == (listeners, "/var/lib/streamlog")
