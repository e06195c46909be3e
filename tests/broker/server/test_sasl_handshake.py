"""A listener with SASL: which requests it serves, before and after authentication."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.server import sasl_handshake
from streamlog.broker.server.socket_server import Acceptor, SocketServer
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.clock import ManualClock
from streamlog.errors import AuthenticationFailed
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from streamlog.protocol.messages.sasl_acls_quotas import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from streamlog.transport.client_connection import TcpTransport
from streamlog.transport.security import Security
from tests.broker.node import ask, batch, create, produce_request
from tests.broker.security.test_users import upsertion
from tests.broker.server.test_socket_server import Peer, peer

Story = Callable[[Broker, Acceptor], Awaitable[None]]
PLAIN = b"\0alice\0wonderland"
WALL_MS = 1_700_000_000_000


def serve(story: Story, *, clock: ManualClock | None = None, **security: object) -> None:
    async def main() -> None:
        settings = {"sasl_mechanisms": "PLAIN,SCRAM-SHA-256", **security}
        config = BrokerConfig(security=SecurityConfig(**settings))  # type: ignore[arg-type]  # of all kinds
        async with Broker.open("data", config=config, files=MemoryFiles(), clock=clock) as broker:
            users = AlterUserScramCredentialsRequest(upsertions=[upsertion()])
            await ask(broker, users, AlterUserScramCredentialsResponse)
            listener = Listener(protocol="SASL_PLAINTEXT")
            async with SocketServer(broker, [listener]) as listening:
                await story(broker, listening.servers[0])

    asyncio.run(main())


async def handshake(one: Peer, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
    one.ask(SaslHandshakeRequest(mechanism=mechanism), 1, version)
    _, response = await one.answer(SaslHandshakeRequest, version)
    assert isinstance(response, SaslHandshakeResponse)
    return response


async def authenticate(one: Peer, data: bytes = PLAIN) -> SaslAuthenticateResponse:
    one.ask(SaslAuthenticateRequest(auth_bytes=data), 2)
    _, response = await one.answer(SaslAuthenticateRequest)
    assert isinstance(response, SaslAuthenticateResponse)
    return response


async def metadata(one: Peer) -> MetadataResponse:
    one.ask(MetadataRequest(topics=None), 3)
    _, response = await one.answer(MetadataRequest)
    assert isinstance(response, MetadataResponse)
    return response


def test_an_authenticated_client_is_served() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            assert (await handshake(one)).mechanisms == ["PLAIN", "SCRAM-SHA-256"]
            assert (await authenticate(one)).error_code == 0
            assert (await metadata(one)).brokers

    serve(story)


def test_api_versions_needs_no_authentication() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            one.ask(ApiVersionsRequest(), 1)
            _, response = await one.answer(ApiVersionsRequest)
            assert isinstance(response, ApiVersionsResponse)
            await handshake(one)
            one.ask(ApiVersionsRequest(), 2)
            await one.frame()

    serve(story)


@pytest.mark.parametrize("after_handshake", [False, True])
def test_other_requests_before_authentication_end_the_connection(
    after_handshake: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            if after_handshake:
                await handshake(one)
            one.ask(MetadataRequest(topics=None), 3)
            assert await one.hung_up()

    serve(story)
    assert "Metadata request before authentication" in caplog.text


def test_pipelined_requests_wait_for_the_authentication() -> None:
    """Hashing takes time, and the next request arrives meanwhile."""

    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one, peer(server) as other:
            for each, proof in ((one, PLAIN), (other, b"\0alice\0wrong")):
                each.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                each.ask(SaslAuthenticateRequest(auth_bytes=proof), 2)
                each.ask(MetadataRequest(topics=None), 3)
            for _ in range(3):
                await one.frame()
            await other.answer(SaslHandshakeRequest)
            _, refusal = await other.answer(SaslAuthenticateRequest)
            assert isinstance(refusal, SaslAuthenticateResponse)
            assert refusal.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await other.hung_up()

    serve(story, failed_authentication_delay_ms=0)


def test_a_failed_authentication_is_delayed_and_ends_the_connection() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        loop = asyncio.get_running_loop()
        async with peer(server) as one:
            await handshake(one)
            begin_s = loop.time()
            refusal = await authenticate(one, b"\0alice\0wrong")
            assert loop.time() - begin_s >= 0.2
            assert refusal.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert refusal.error_message == "Authentication failed: Invalid username or password"
            assert await one.hung_up()

    serve(story, failed_authentication_delay_ms=200)


def test_an_unknown_mechanism_is_refused() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            refusal = await handshake(one, "GSSAPI")
            assert refusal.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert refusal.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
            assert await one.hung_up()

    serve(story)


def test_handshake_version_0_exchanges_raw_tokens() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one, peer(server) as other:
            for each in (one, other):
                assert (await handshake(each, version=0)).error_code == 0
            one.write(struct.pack(">i", len(PLAIN)) + PLAIN)
            assert await one.frame() == b""
            assert (await metadata(one)).brokers
            other.write(struct.pack(">i", 13) + b"\0alice\0wrong.")
            assert await other.hung_up()

    serve(story)


def test_requests_before_authentication_must_be_small() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one, peer(server) as other:
            other.write(struct.pack(">i", 2_000))
            assert await other.hung_up()
            await handshake(one)
            # The large request follows the proof in one read.
            one.ask(SaslAuthenticateRequest(auth_bytes=PLAIN), 2)
            one.ask(produce_request(batch(b"x" * 100_000)), 3)
            await one.frame()
            await one.frame()

    serve(story, sasl_receive_bytes_max=1024)


def test_a_silent_client_is_disconnected(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl_handshake, "TIMEOUT_MS", 20)

    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            assert await one.hung_up()

    serve(story)
    assert "did not authenticate in time" in caplog.text


def test_an_expired_session_ends_the_connection() -> None:
    clock = ManualClock(wall_ms=WALL_MS)

    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one, peer(server) as other:
            for each in (one, other):
                await handshake(each)
                assert (await authenticate(each)).session_lifetime_ms == 1_000
                await metadata(each)
            clock.advance(1_000)
            await handshake(one)
            await authenticate(one)
            await metadata(one)
            other.ask(MetadataRequest(topics=None), 3)
            assert await other.hung_up()

    serve(story, clock=clock, connections_max_reauth_ms=1_000)


def test_our_client_reauthenticates_in_time() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        security = Security(
            protocol="SASL_PLAINTEXT",
            mechanism="SCRAM-SHA-256",
            user="alice",
            password=lambda: "wonderland",
        )
        transport = await TcpTransport.connect(
            server.host, server.port, client_id="c", timeout_ms=60_000, security=security
        )
        assert transport._due_s is not None
        transport._due_s = 0
        calls = [transport.call(MetadataRequest(topics=None), timeout_ms=60_000) for _ in range(9)]
        answers = await asyncio.gather(*calls)
        assert all(isinstance(each, MetadataResponse) for each in answers)
        assert transport._due_s > 0
        await transport.close()

    serve(story, connections_max_reauth_ms=60_000)


def test_a_listener_without_sasl_refuses_handshakes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            Acceptor(broker) as server,
        ):
            async with peer(server) as one:
                refusal = await handshake(one)
                assert refusal.error_code == ErrorCode.ILLEGAL_SASL_STATE
                second = await authenticate(one)
                assert second.error_code == ErrorCode.ILLEGAL_SASL_STATE
                await metadata(one)
            security = Security(
                protocol="SASL_PLAINTEXT", mechanism="PLAIN", user="a", password="b"
            )
            with pytest.raises(AuthenticationFailed, match="ILLEGAL_SASL_STATE"):
                await TcpTransport.connect(
                    server.host, server.port, client_id="c", timeout_ms=60_000, security=security
                )

    caplog.set_level(logging.WARNING)
    asyncio.run(main())
