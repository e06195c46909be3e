"""QuorumConfig: the voters, and roles that contradict them."""

from __future__ import annotations

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.cluster import QuorumConfig
from streamlog.errors import ConfigError

VOTERS = "1@one.example:9092, 2@[::1]:9093,3@10.0.0.3:9094"


def test_a_node_without_configured_voters_is_the_only_voter() -> None:
    config = QuorumConfig()
    assert config.addresses() == {}
    assert config.voter_ids(7) == (7,)
    assert config.is_broker
    assert config.is_controller


def test_voters_are_parsed_with_their_addresses() -> None:
    config = QuorumConfig(voters=VOTERS)
    assert config.addresses() == {
        1: ("one.example", 9092),
        2: ("::1", 9093),
        3: ("10.0.0.3", 9094),
    }
    assert config.voter_ids(2) == (1, 2, 3)


@pytest.mark.parametrize(
    "voters",
    ["one.example:9092", "1@one.example", "1@:9092", "1@one:0", "1@one:99999", "x@one:1", "1@a:b"],
)
def test_an_invalid_voter_is_refused(voters: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.id@host:port"):
        QuorumConfig(voters=voters)


def test_a_voter_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="lists 1 twice"):
        QuorumConfig(voters="1@a:1,1@b:1")


def test_too_many_voters_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 10 controllers, the maximum is 9"):
        QuorumConfig(voters=",".join(f"{each}@a:{each}" for each in range(1, 11)))


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        pytest.param(
            {"node.id": "4", "controller.quorum.voters": VOTERS}, "does not list it", id="no voter"
        ),
        pytest.param(
            {"node.id": "3", "controller.quorum.voters": VOTERS, "process.roles": "broker"},
            "does not make it a controller",
            id="voter in the role of a broker",
        ),
        pytest.param(
            {"process.roles": "broker"},
            "needs controllers on other nodes",
            id="broker without voters",
        ),
        pytest.param({"process.roles": ""}, "use one of broker, controller", id="no role"),
    ],
)
def test_a_role_that_contradicts_the_voters_is_refused(configs: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        BrokerConfig().override(configs)


def test_node_id_voters_and_role_are_validated_together() -> None:
    config = BrokerConfig().override({"node.id": "3", "controller.quorum.voters": VOTERS})
    changed = config.override({"node.id": "4", "process.roles": "broker"})
    assert (changed.node_id, changed.quorum.is_controller) == (4, False)
