"""Security between brokers, and the start-up checks of its settings."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.cluster.peers import (
    BrokerPeers,
    controller_listener,
    peer_listener,
    peer_security,
)
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import listeners_of
from streamlog.broker.server.socket_server import SocketServer
from streamlog.broker.storage.data_directory import format_directory
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import ConfigError, ConnectionLost
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.broker.certificates import certificates

CERTIFICATES = certificates()
TLS = {
    "ssl.keystore.location": CERTIFICATES.broker,
    "ssl.truststore.location": CERTIFICATES.authority,
}
MUTUAL = {**TLS, "ssl.client.auth": "required"}
SASL = {
    "listeners": "SASL_SSL://127.0.0.1:0",
    "sasl.inter.broker.username": "broker",
    "sasl.inter.broker.password": "secret of brokers",
}
CHECKED = {"authorizer.class.name": "standard"}
CREATION = CreateTopicsRequest(
    topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=1_000
)


def config_of(**settings: str) -> BrokerConfig:
    return BrokerConfig().override(settings)


def several(**settings: str) -> BrokerConfig:
    """Return the settings of one of two voters; its controller listens at port 7."""
    return config_of(**{"controller.quorum.voters": "1@127.0.0.1:7,2@a:7", **settings})


async def created_by_a_peer(config: BrokerConfig, theirs: BrokerConfig) -> int:
    """Return the error code that a broker with `config` gets when it creates a topic at one with
    `theirs`."""
    async with (
        Broker.open("data", files=MemoryFiles(), config=theirs) as broker,
        SocketServer(broker, listeners_of(theirs.security)) as listening,
    ):
        server = listening.servers[0]
        peers = BrokerPeers(
            lambda _: ("127.0.0.1", server.port),
            security=peer_security(config, peer_listener(config)),
        )
        try:
            answer = await peers.call(2, CREATION, timeout_ms=10_000)
        finally:
            await peers.close()
        assert isinstance(answer, CreateTopicsResponse)
        return answer.topics[0].error_code


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_brokers_authenticate_by_sasl_without_stored_users(mechanism: str) -> None:
    own = {
        **TLS,
        **SASL,
        **CHECKED,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    }
    config = config_of(**own)
    assert asyncio.run(created_by_a_peer(config, config)) == 0


def test_a_wrong_password_between_brokers_raises_connection_lost() -> None:
    config = config_of(**TLS, **SASL)
    wrong = config_of(**TLS, **{**SASL, "sasl.inter.broker.password": "another"})
    with pytest.raises(ConnectionLost, match=r"broker 2 refuses this one.*'broker'"):
        asyncio.run(created_by_a_peer(wrong, config))


def test_brokers_authenticate_by_certificates() -> None:
    config = config_of(listeners="SSL://127.0.0.1:0", **MUTUAL)
    assert asyncio.run(created_by_a_peer(config, config)) == 0


def test_the_inter_broker_user_exists_and_its_password_stays_hidden() -> None:
    async def main() -> None:
        async with Broker.open(
            "data", files=MemoryFiles(), config=config_of(**TLS, **SASL)
        ) as broker:
            assert broker.users.names == ["broker"]
            assert "secret of brokers" not in repr(broker.directory.config)

    asyncio.run(main())


def test_listeners_are_chosen_by_name() -> None:
    three = {
        "listeners": "OUT://127.0.0.1:1,IN://127.0.0.1:2,CTL://127.0.0.1:3",
        "listener.security.protocol.map": "OUT:SASL_SSL,IN:PLAINTEXT,CTL:SSL",
    }
    config = config_of(**three)
    assert peer_listener(config).name == controller_listener(config).name == "OUT"
    config = config_of(**three, **{"inter.broker.listener.name": "in"})
    assert peer_listener(config).name == controller_listener(config).name == "IN"
    config = config_of(**three, **{"controller.listener.names": "CTL"})
    assert (peer_listener(config).name, controller_listener(config).port) == ("OUT", 3)
    config = config_of(**three, **{"inter.broker.listener.name": "no"})
    with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name=no is not a listener"):
        peer_listener(config)


def test_a_broker_only_node_knows_the_controllers_protocol() -> None:
    config = config_of(
        **{
            "node.id": "4",
            "process.roles": "broker",
            "controller.quorum.voters": "1@a:7",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CTL:SSL",
            "controller.listener.names": "CTL",
        }
    )
    assert controller_listener(config).protocol == "SSL"
    assert peer_listener(config).name == "PLAINTEXT"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:7"}, "sasl.inter.broker.username and"),
        (
            {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:7",
                "sasl.inter.broker.username": "u",
                "sasl.inter.broker.password": "p",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
            },
            "sasl.mechanism.inter.broker.protocol=PLAIN is not in",
        ),
        ({"listeners": "PLAINTEXT://127.0.0.1:7", **CHECKED}, "use SSL with ssl.client.auth"),
        ({"listeners": "SSL://127.0.0.1:7", **TLS, **CHECKED}, "use SSL with ssl.client.auth"),
        ({"listeners": "SSL://127.0.0.1:7", **MUTUAL, **CHECKED}, "add that to super.users"),
        (
            {"listeners": "SSL://:7", "advertised.listeners": "SSL://elsewhere:7", **MUTUAL},
            "which connect to this one as 'elsewhere', would reject its certificate",
        ),
        (
            {
                "listeners": "SSL://127.0.0.1:7",
                **MUTUAL,
                "ssl.truststore.location": CERTIFICATES.stranger_authority,
            },
            "would reject its certificate",
        ),
        ({"listeners": "PLAINTEXT://127.0.0.1:8"}, "node 1 has port 7, but"),
        ({"listeners": "PLAINTEXT://:7"}, "use in advertised.listeners"),
    ],
    ids=range(9),
)
def test_settings_that_prevent_inter_broker_connections_are_refused(
    settings: dict[str, str], message: str
) -> None:
    config = several(**settings)

    files = MemoryFiles()
    format_directory("data", node_id=1, files=files)

    async def main() -> None:
        async with Broker.open("data", files=files, config=config) as broker:
            SocketServer(broker, listeners_of(config.security))

    with pytest.raises(ConfigError, match=message):
        asyncio.run(main())


def test_an_inter_broker_user_needs_a_password() -> None:
    with pytest.raises(ConfigError, match="belong together"):
        config_of(**{"sasl.inter.broker.username": "u"})
