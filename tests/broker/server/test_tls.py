"""TLS listeners: handshakes, certificates, slow readers, and clients that don't speak TLS."""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig, ConnectionConfig
from streamlog.broker.config.connections import Listener
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.security.principals import RequestContext
from streamlog.broker.server import tls
from streamlog.broker.server.socket_server import Acceptor, SocketServer
from streamlog.broker.server.tls import TlsWriter, server_context
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.errors import ConfigError
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest, MetadataRequest
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from tests.broker.certificates import CLIENT_NAME, certificates
from tests.broker.node import at, batch, create, fetch_request, produce_request
from tests.broker.server.test_socket_server import Peer, until

Story = Callable[[Broker, Acceptor], Awaitable[None]]
LISTENER = Listener(name="SAFE", protocol="SSL")


def serve(story: Story, *, connections: ConnectionConfig | None = None, **security: str) -> None:
    async def main() -> None:
        config = BrokerConfig(
            security=SecurityConfig(keystore=certificates().broker, **security),  # type: ignore[arg-type]  # all are texts
            connections=connections or ConnectionConfig(),
        )
        async with (
            Broker.open("data", config=config, files=MemoryFiles()) as broker,
            SocketServer(broker, [LISTENER]) as listening,
        ):
            await story(broker, listening.servers[0])

    asyncio.run(main())


def trusting(certificate: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates().authority)
    if certificate:
        context.load_cert_chain(certificate)
    return context


@asynccontextmanager
async def peer(server: Acceptor, context: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection(
        server.host, server.port, ssl=context or trusting(), limit=1 << 26
    )
    one = Peer(reader, writer)
    try:
        yield one
    finally:
        with suppress(ssl.SSLError):
            await one.close()


def test_requests_are_answered_in_order() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one:
            one.ask(produce_request(batch(b"x" * 500_000)), 1)
            await one.frame()
            for number in range(2, 20):
                one.ask(fetch_request(at(0)), number)
            for number in range(2, 20):
                found, response = await one.answer(type(fetch_request()))
                assert found == number
                assert isinstance(response, FetchResponse)
                records = response.responses[0].partitions[0].records
                assert records is not None
                assert len(records) > 500_000

    serve(story)


def test_a_request_may_arrive_one_byte_per_tls_record() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        reader, writer = await asyncio.open_connection(server.host, server.port, ssl=trusting())
        frame = struct.pack(">ihhih", 10, 18, 0, 7, -1)
        for position in range(len(frame)):
            writer.write(frame[position : position + 1])
            await writer.drain()
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(size)
        assert struct.unpack(">i", answer[:4]) == (7,)
        writer.close()
        await writer.wait_closed()

    serve(story)


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
def test_tls_versions_can_be_chosen(versions: str) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            assert one._writer.get_extra_info("ssl_object").version() == versions
        other = trusting()
        unwanted = ssl.TLSVersion.TLSv1_3 if versions == "TLSv1.2" else ssl.TLSVersion.TLSv1_2
        other.minimum_version = other.maximum_version = unwanted
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with peer(server, other):
                pass

    serve(story, tls_versions=versions)


def test_a_client_without_tls_is_disconnected_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        one = Peer(reader, writer)
        one.ask(ApiVersionsRequest(), 1)
        assert await one.hung_up()
        await one.close()

    serve(story)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the TLS handshake failed: it does not speak TLS" in line
    assert "listener SAFE" in line
    assert "set its security.protocol to SSL" in line


def test_an_unfinished_handshake_is_disconnected(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_TIMEOUT_MS", 20)

    async def story(_: Broker, server: Acceptor) -> None:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"\x16\x03\x01")
        assert await Peer(reader, writer).hung_up()
        writer.close()
        await until(lambda: not len(server._connections))

    serve(story)
    assert "did not complete the handshake" in caplog.text


def test_a_disconnect_within_the_handshake_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        for said in (b"", b"\x16\x03\x01"):
            _, writer = await asyncio.open_connection(server.host, server.port)
            await until(lambda: len(server._connections) == 1)
            writer.write(said)
            writer.close()
            await writer.wait_closed()
            await until(lambda: not len(server._connections))

    serve(story)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "it closed the connection in the middle" in line


def test_unfinished_handshakes_count_as_connections(caplog: pytest.LogCaptureFixture) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        _, first = await asyncio.open_connection(server.host, server.port)
        await until(lambda: len(server._connections) == 1)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        assert await Peer(reader, writer).hung_up()
        for each in (first, writer):
            each.close()
        await until(lambda: not len(server._connections))
        async with peer(server) as one:
            one.ask(ApiVersionsRequest(), 1)
            await one.frame()
            assert len(server._connections) == 1

    serve(story, connections=ConnectionConfig(max_connections=1))
    assert "max.connections" in caplog.text


def principal_of(certificate: str, client_auth: str, **security: str) -> str:
    """Return the principal that the broker gives a client with this certificate."""
    seen: list[str] = []

    async def story(broker: Broker, server: Acceptor) -> None:
        begin = broker.begin

        def spy(request: object, context: RequestContext) -> object:
            seen.append(context.principal)
            return begin(request, context)  # type: ignore[arg-type]  # as it came

        broker.begin = spy  # type: ignore[method-assign,assignment]  # a look at what goes in
        async with peer(server, trusting(certificate)) as one:
            one.ask(MetadataRequest(topics=None), 1)
            await one.frame()

    serve(story, truststore=certificates().authority, client_auth=client_auth, **security)
    return seen[0]


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_a_certificate_names_the_principal(client_auth: str) -> None:
    principal = principal_of(certificates().client, client_auth)
    assert principal.startswith(f"User:CN={CLIENT_NAME},OU=")


def test_mapping_rules_turn_a_subject_into_a_name() -> None:
    rules = "RULE:^CN=([a-z]*),.*$/$1@example/U"
    named = principal_of(certificates().client, "required", principal_rules=rules)
    assert named == f"User:{CLIENT_NAME}@example".upper().replace("USER", "User")
    assert principal_of("", "requested", principal_rules=rules) == "User:ANONYMOUS"


def test_a_subject_that_no_rule_matches_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        principal_of(certificates().client, "required", principal_rules="RULE:^CN=x$/x/")
    assert "no rule of ssl.principal.mapping.rules matches its" in caplog.text
    assert f"'CN={CLIENT_NAME}," in caplog.text


def test_without_a_certificate_the_principal_is_anonymous() -> None:
    assert principal_of("", "requested") == "User:ANONYMOUS"
    assert principal_of(certificates().client, "requested") != "User:ANONYMOUS"


@pytest.mark.parametrize("which", ["none", "stranger"])
def test_a_missing_or_untrusted_certificate_is_refused(
    which: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        context = trusting("" if which == "none" else certificates().stranger)

        async def come_in() -> None:
            async with peer(server, context) as one:
                one.ask(ApiVersionsRequest(), 1)
                await one.frame()

        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await come_in()
        await until(lambda: not len(server._connections))

    serve(story, truststore=certificates().authority, client_auth="required")
    expected = "it showed no certificate" if which == "none" else "its certificate is not accepted"
    assert expected in caplog.text
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1


def test_a_slow_reader_costs_little_memory(tmp_path: object) -> None:
    """Answers stay in their files: at most one chunk is encrypted ahead of the reader."""

    async def main() -> None:
        config = BrokerConfig(flush="os", security=SecurityConfig(keystore=certificates().broker))
        async with (
            Broker.open(f"{tmp_path}/data", config=config, files=OsFiles()) as broker,
            SocketServer(broker, [LISTENER]) as listening,
        ):
            server = listening.servers[0]
            create(broker)
            async with peer(server) as one:
                for number in range(20):
                    one.ask(produce_request(batch(bytes(1_000_000))), number)
                    await one.frame()
            reader, writer = await asyncio.open_connection(
                server.host, server.port, ssl=trusting(), limit=1024
            )
            slow = Peer(reader, writer)
            slow.ask(fetch_request(at(0, max_bytes=1 << 26), max_bytes=1 << 26), 1)
            connections = server._connections

            def blocked() -> list[TlsWriter]:
                writers = [getattr(each, "_writer", None) for each in connections]
                return [each for each in writers if isinstance(each, TlsWriter) and each.blocked]

            await until(lambda: bool(blocked()))
            assert blocked()[0].held_bytes < 4 * tls.CHUNK_BYTES
            frame = await slow.frame()
            assert len(frame) > 20_000_000
            await slow.close()

    asyncio.run(main())


def test_stopping_ends_unfinished_handshakes() -> None:
    async def main() -> None:
        config = BrokerConfig(security=SecurityConfig(keystore=certificates().broker))
        async with Broker.open("data", config=config, files=MemoryFiles()) as broker:
            async with SocketServer(broker, [LISTENER]) as listening:
                (server,) = listening.servers
                reader, writer = await asyncio.open_connection(server.host, server.port)
                await until(lambda: len(server._connections) == 1)
            one = Peer(reader, writer)
            assert await one.hung_up()
            await one.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "ssl.keystore.location, a PEM file"),
        ({"keystore": "/no/such/file"}, "No such file"),
        ({"keystore": __file__}, "must be a PEM file"),
        ({"ciphers": "NO_SUCH_CIPHER"}, "ssl.cipher.suites"),
        (
            {"client_auth": "required", "truststore": "/no/such/file"},
            "ssl.truststore.location=/no/such/file: No such file",
        ),
        (
            {"client_auth": "required", "truststore": __file__},
            "ssl.truststore.location",
        ),
    ],
)
def test_a_bad_tls_setting_is_named(settings: dict[str, str], message: str) -> None:
    given = (
        settings
        if "keystore" in settings or not settings
        else {"keystore": certificates().broker, **settings}
    )
    with pytest.raises(ConfigError, match=message):
        server_context(SecurityConfig(**given))  # type: ignore[arg-type]  # all are texts


def test_client_certificates_need_a_truststore() -> None:
    with pytest.raises(ConfigError, match=r"needs ssl\.truststore\.location"):
        SecurityConfig(client_auth="required")
