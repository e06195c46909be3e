"""Listeners in Kafka's settings, and what clients see of them."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener, listeners_of
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.server.socket_server import SocketServer
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import ConfigError, ListenError
from streamlog.protocol.messages.broker_registration import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    RegisteredListener,
)
from streamlog.protocol.messages.cluster_metadata import MetadataRequest, MetadataResponse
from tests.broker.node import BY_ITSELF
from tests.broker.server.test_socket_server import peer


def of(listeners: str, advertised: str = "", protocols: str = "") -> tuple[Listener, ...]:
    config = SecurityConfig(listeners=listeners, advertised_listeners=advertised)
    if protocols:
        config = SecurityConfig(
            listeners=listeners, advertised_listeners=advertised, protocol_map=protocols
        )
    return listeners_of(config)


def test_listeners_are_parsed_with_endpoints_and_protocols() -> None:
    assert of("") == ()
    found = of(
        "plaintext://127.0.0.1:9092, OUT://:9093,IN://[::1]:9094",
        "OUT://broker.example.org:443",
        "PLAINTEXT:PLAINTEXT,out:sasl_ssl,IN:SSL",
    )
    assert found == (
        Listener(name="PLAINTEXT", host="127.0.0.1", port=9092, protocol="PLAINTEXT"),
        Listener(
            name="OUT",
            host="",
            port=9093,
            protocol="SASL_SSL",
            advertised=("broker.example.org", 443),
        ),
        Listener(name="IN", host="::1", port=9094, protocol="SSL"),
    )
    assert [(each.has_tls, each.has_sasl) for each in found] == [
        (False, False),
        (True, True),
        (True, False),
    ]


@pytest.mark.parametrize(
    ("listeners", "advertised", "protocols", "message"),
    [
        ("127.0.0.1:9092", "", "", "must be NAME://HOST:PORT"),
        ("SSL://127.0.0.1:65536", "", "", "must be NAME://HOST:PORT"),
        ("SSL://a:1,SSL://a:2", "", "", "SSL occurs twice"),
        ("SSL://a:1,PLAINTEXT://a:1", "", "", "two listeners have the address a:1"),
        ("OUT://a:1", "", "", "listener OUT has no security protocol: add OUT:SSL"),
        ("SSL://a:1", "", "SSL:TLS", "'SSL:TLS' is not NAME:PROTOCOL"),
        ("SSL://a:1", "OUT://b:1", "", "advertised.listeners names OUT"),
        ("SSL://a:1", "SSL://:1", "", "SSL has no host or no port"),
        ("SSL://a:1", "SSL://b:0", "", "SSL has no host or no port"),
    ],
)
def test_an_invalid_listener_setting_is_refused(
    listeners: str, advertised: str, protocols: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        of(listeners, advertised, protocols)


def test_metadata_advertises_the_listener_of_the_connection() -> None:
    async def main() -> None:
        listeners = (
            Listener(name="A"),
            Listener(name="B", advertised=("gate.example.org", 7)),
            Listener(name="C", host=""),
        )
        async with Broker.open("data", files=MemoryFiles()) as broker:
            async with SocketServer(broker, listeners) as listening:
                for server, endpoint in zip(
                    listening.servers, (None, ("gate.example.org", 7), None), strict=True
                ):
                    server.host = server.host or "127.0.0.1"
                    async with peer(server) as one:
                        one.ask(MetadataRequest(topics=[]), 1)
                        _, answer = await one.answer(MetadataRequest)
                        assert isinstance(answer, MetadataResponse)
                        returned = (answer.brokers[0].host, answer.brokers[0].port)
                        assert returned == (endpoint or ("127.0.0.1", server.port))
            assert broker.advertised == ("127.0.0.1", listening.servers[0].port)

    asyncio.run(main())


def test_metadata_shows_other_brokers_by_the_listener_of_the_connection() -> None:
    async def main() -> None:
        listeners = (Listener(name="A"), Listener(name="B"), Listener(name="C"))
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            SocketServer(broker, listeners) as listening,
        ):
            await join(broker, RegisteredListener(name="B", host="b", port=7))
            shown = []
            for server in listening.servers:
                async with peer(server) as one:
                    one.ask(MetadataRequest(topics=[]), 1)
                    _, answer = await one.answer(MetadataRequest)
                    assert isinstance(answer, MetadataResponse)
                    shown.append([(each.node_id, each.port) for each in answer.brokers])
            a, b, c = (server.port for server in listening.servers)
            assert shown == [[(1, a)], [(1, b), (2, 7)], [(1, c)]]

    asyncio.run(main())


async def join(broker: Broker, listener: RegisteredListener) -> None:
    """Register broker 2 with this listener, and unfence it."""
    registration = BrokerRegistrationRequest(
        broker_id=2,
        cluster_id=broker.cluster_id,
        incarnation_id=b"i" * 16,
        listeners=[listener],
        log_dirs=[b"d" * 16],
    )
    registered = await broker.handle(registration, BY_ITSELF)
    assert isinstance(registered, BrokerRegistrationResponse)
    epoch = registered.broker_epoch
    heartbeat = BrokerHeartbeatRequest(
        broker_id=2, broker_epoch=epoch, current_metadata_offset=epoch
    )
    heard = await broker.handle(heartbeat, BY_ITSELF)
    assert isinstance(heard, BrokerHeartbeatResponse)
    assert not heard.is_fenced


def test_one_listener_that_cannot_bind_closes_the_others() -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker:
            async with SocketServer(broker, [Listener()]) as first:
                port = first.servers[0].port
                both = [Listener(name="A", protocol="SASL_PLAINTEXT"), Listener(port=port)]
                second = SocketServer(broker, both)
                with pytest.raises(ListenError):
                    await second.__aenter__()
            free = second.servers[0].port
            async with SocketServer(broker, [Listener(port=free)]):
                pass

    asyncio.run(main())


def test_tls_needs_a_certificate() -> None:
    async def main() -> None:
        async with Broker.open("data", config=BrokerConfig(), files=MemoryFiles()) as broker:
            with pytest.raises(ConfigError, match=r"ssl\.keystore\.location"):
                SocketServer(broker, [Listener(protocol="SSL")])

    asyncio.run(main())
