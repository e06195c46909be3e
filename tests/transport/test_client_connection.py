"""TcpTransport: pipelining, frames in any pieces, failing peers, and cancellation."""

from __future__ import annotations

import asyncio
import gc
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.server.tls import server_context
from streamlog.errors import ConnectionLost, CorruptData, RequestTimedOut, UnsupportedVersion
from streamlog.protocol.api_table import APIS, api_of
from streamlog.protocol.frame import decode_request, encode_response
from streamlog.protocol.frame_reader import FrameReader
from streamlog.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from streamlog.transport.client_connection import TcpTransport
from streamlog.transport.security import Security
from tests.broker.certificates import certificates

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
METADATA = api_of(MetadataRequest)
TURNS = 10
"""Loop iterations: more than lie between a connection and the call of its handler."""


@asynccontextmanager
async def peer(
    behave: Peer, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Run a server that handles each connection with `behave`; yield its host and port."""
    released, serving = asyncio.Event(), set[asyncio.Task[None]]()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            serving.add(task)
        try:
            await behave(reader, writer)
            await released.wait()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    server = await asyncio.start_server(served, "127.0.0.1", 0, ssl=tls)
    host, port = server.sockets[0].getsockname()
    try:
        yield host, port
    finally:
        for _ in range(TURNS):  # A connection may be accepted but not handled yet.
            await asyncio.sleep(0)
        released.set()
        server.close()
        await server.wait_closed()
        if serving:
            await asyncio.wait(serving)


async def frame(reader: asyncio.StreamReader) -> bytes:
    size: int = struct.unpack(">i", await reader.readexactly(4))[0]
    return await reader.readexactly(size)


async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer ApiVersions as a broker that supports all of our APIs."""
    request = decode_request(await frame(reader))
    served = [
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in APIS.values()
    ]
    response = ApiVersionsResponse(api_keys=served)
    parts = encode_response(request.api, request.version, request.correlation_id, response)
    writer.write(b"".join(parts))


def metadata(correlation_id: int, cluster_id: str) -> bytes:
    response = MetadataResponse(cluster_id=cluster_id)
    return b"".join(encode_response(METADATA, METADATA.max_version, correlation_id, response))


async def connected(address: tuple[str, int], security: Security | None = None) -> TcpTransport:
    return await TcpTransport.connect(
        *address, client_id="test", timeout_ms=60_000, security=security
    )


def cluster_id(answer: object) -> str | None:
    assert isinstance(answer, MetadataResponse)
    return answer.cluster_id


def test_pipelined_calls_get_their_own_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker.open(str(tmp_path)) as broker, Acceptor(broker) as server:
            transport = await connected((server.host, server.port))
            answers = await asyncio.gather(
                *(transport.call(MetadataRequest(topics=[]), timeout_ms=60_000) for _ in range(100))
            )
            assert {cluster_id(answer) for answer in answers} == {broker.cluster_id}
            assert transport.version(METADATA.key) == METADATA.max_version
            await transport.close()

    asyncio.run(main())


def test_answers_may_arrive_in_any_pieces() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        ids = [decode_request(await frame(reader)).correlation_id for _ in range(3)]
        data = b"".join(
            metadata(each, text)
            for each, text in zip(ids, ["a", "b" * 30_000, "c" * 200], strict=True)
        )
        for size in [1, 1, 1, 2, 5, 1_000, 29_000, len(data)]:
            writer.write(data[:size])
            data = data[size:]
            await writer.drain()
            await asyncio.sleep(0)

    async def main() -> None:
        async with peer(behave) as address:
            transport = await connected(address)
            answers = await asyncio.gather(
                *(transport.call(MetadataRequest(topics=[]), timeout_ms=60_000) for _ in range(3))
            )
            assert [len(cluster_id(answer) or "") for answer in answers] == [1, 30_000, 200]
            await transport.close()

    asyncio.run(main())


def test_a_refused_connection_raises_with_the_address() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1 .*refused.*check"):
            await connected(("127.0.0.1", 1))

    asyncio.run(main())


def test_a_silent_peer_raises_at_connect() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    async def main() -> None:
        async with peer(silent) as (host, port):
            with pytest.raises(RequestTimedOut, match=rf"{port} did not answer ApiVersions within"):
                await TcpTransport.connect(host, port, client_id="test", timeout_ms=1_000)

    asyncio.run(main())


def test_a_late_answer_ends_the_connection_for_all_callers() -> None:
    async def main() -> None:
        async with peer(agree) as address:
            transport = await connected(address)
            patient = asyncio.gather(
                transport.call(MetadataRequest(), timeout_ms=60_000), return_exceptions=True
            )
            await asyncio.sleep(0)
            with pytest.raises(RequestTimedOut, match="Metadata within 20 ms"):
                await transport.call(MetadataRequest(), timeout_ms=20)
            assert isinstance((await patient)[0], ConnectionLost)
            with pytest.raises(ConnectionLost, match="did not answer Metadata"):
                await transport.call(MetadataRequest(), timeout_ms=20)
            await transport.close()

    asyncio.run(main())


def test_a_closed_connection_fails_pending_calls() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        await frame(reader)
        writer.close()

    async def main() -> None:
        async with peer(behave) as address:
            transport = await connected(address)
            with pytest.raises(ConnectionLost, match="broke"):
                await transport.call(MetadataRequest(), timeout_ms=60_000)
            with pytest.raises(ConnectionLost):
                await transport.send(MetadataRequest())
            await transport.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (struct.pack(">ii", 4, 12345), ConnectionLost),  # There is no request 12345.
        (struct.pack(">i", 0x7FFFFFFF), ConnectionLost),  # 2 GiB.
        (struct.pack(">i", -1), ConnectionLost),
        (struct.pack(">ii", 6, 2) + b"\xff\xff", CorruptData),  # The answer to request 2.
    ],
)
def test_garbage_ends_the_connection(answer: bytes, error: type[Exception]) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        await frame(reader)
        writer.write(answer)

    async def main() -> None:
        async with peer(behave) as address:
            transport = await connected(address)
            with pytest.raises(error):
                await transport.call(MetadataRequest(), timeout_ms=60_000)
            with pytest.raises(ConnectionLost):
                await transport.call(MetadataRequest(), timeout_ms=60_000)
            await transport.close()

    asyncio.run(main())


def test_a_cancelled_call_does_not_affect_the_next() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        ids = [decode_request(await frame(reader)).correlation_id for _ in range(2)]
        for each, text in zip(ids, ["first", "second"], strict=True):
            writer.write(metadata(each, text))

    async def main() -> None:
        async with peer(behave) as address, asyncio.TaskGroup() as group:
            transport = await connected(address)
            first = group.create_task(transport.call(MetadataRequest(), timeout_ms=60_000))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.sleep(0)
            answer = await transport.call(MetadataRequest(), timeout_ms=60_000)
            assert cluster_id(answer) == "second"
            await transport.close()

    asyncio.run(main())


def test_closing_fails_pending_calls() -> None:
    async def main() -> None:
        async with peer(agree) as address, asyncio.TaskGroup() as group:
            transport = await connected(address)

            async def wait() -> None:
                with pytest.raises(ConnectionLost, match="closed by this client"):
                    await transport.call(MetadataRequest(), timeout_ms=60_000)

            group.create_task(wait())
            await asyncio.sleep(0)
            await transport.close()
            await transport.close()

    asyncio.run(main())


def test_an_older_broker_gets_requests_in_its_versions() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await frame(reader)
        correlation_id = struct.unpack_from(">i", request, 4)[0]
        # The answer of librdkafka's mock to a version that it does not know.
        writer.write(struct.pack(">iih", 8, correlation_id, 35) + b"\x01\x00")
        request = await frame(reader)
        assert struct.unpack_from(">hh", request) == (18, 0)
        correlation_id = struct.unpack_from(">i", request, 4)[0]
        served = ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=3, min_version=0, max_version=4),
                ApiVersion(api_key=12, min_version=20, max_version=21),
            ]
        )
        api = api_of(ApiVersionsRequest)
        writer.write(b"".join(encode_response(api, 0, correlation_id, served)))

    async def main() -> None:
        async with peer(behave) as address:
            transport = await connected(address)
            assert transport.version(METADATA.key) == 4
            with pytest.raises(UnsupportedVersion, match="only versions 20 to 21 of Heartbeat"):
                await transport.call(HeartbeatRequest(), timeout_ms=60_000)
            with pytest.raises(UnsupportedVersion, match="no version of JoinGroup") as refusal:
                transport.version(11)
            assert not refusal.value.retriable
            await transport.close()

    asyncio.run(main())


def test_a_slow_peer_slows_the_caller_and_loses_no_request() -> None:
    count = 400

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        await asyncio.sleep(0.05)
        api = api_of(HeartbeatRequest)
        frames = FrameReader(size_bytes_max=1_000_000)
        answered = 0
        while answered < count:
            frames.feed(await reader.read(65_536))
            for each in frames.frames():
                request = decode_request(each)
                answered += 1
                response = HeartbeatResponse(throttle_time_ms=answered)
                parts = encode_response(api, api.max_version, request.correlation_id, response)
                writer.write(b"".join(parts))

    async def main() -> None:
        async with peer(behave) as address:
            transport = await connected(address)
            request = HeartbeatRequest(member_id="m" * 30_000)
            answers = await asyncio.gather(
                *(transport.call(request, timeout_ms=60_000) for _ in range(count))
            )
            beats = [each for each in answers if isinstance(each, HeartbeatResponse)]
            assert [beat.throttle_time_ms for beat in beats] == list(range(1, count + 1))
            await transport.close()

    asyncio.run(main())


def open_to(address: tuple[str, int]) -> list[asyncio.Transport]:
    """Return the open connections to this address, and the closing ones with unsent data."""
    found = [each for each in gc.get_objects() if issubclass(type(each), asyncio.Transport)]
    return [
        each
        for each in found
        if type(each).__module__ != "asyncio.sslproto"  # A plain transport lies beneath it.
        and each.get_extra_info("peername") == address
        and (not each.is_closing() or each.get_write_buffer_size())
    ]


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def stay_silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    pass


@pytest.mark.parametrize("behave", [hang_up, stay_silent, agree])
@pytest.mark.parametrize("cancels", [1, 2])
def test_a_cancelled_connect_leaves_no_connection_open(behave: Peer, cancels: int) -> None:
    """Cancel at every iteration of the loop; a second cancel hits the close of the connection."""

    async def main(turns: int) -> None:
        async with peer(behave) as address:
            connecting = asyncio.ensure_future(connected(address))
            for _ in range(turns):
                await asyncio.sleep(0)
            for _ in range(cancels):
                connecting.cancel()
                await asyncio.sleep(0)
            with suppress(asyncio.CancelledError, ConnectionLost):
                await (await connecting).close()
            assert open_to(address) == []

    for turns in range(30):
        asyncio.run(main(turns))


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_cancelled_sasl_connect_leaves_no_connection_open(cancels: int) -> None:
    """The peer completes the TLS handshake and does not answer the first SASL message."""
    server = server_context(SecurityConfig(keystore=certificates().broker))
    security = Security(
        protocol="SASL_SSL",
        mechanism="PLAIN",
        user="anna",
        password="secret",
        ca_file=certificates().authority,
    )

    async def main(turns: int) -> None:
        async with peer(agree, tls=server) as address:
            connecting = asyncio.ensure_future(connected(address, security))
            for _ in range(turns):
                await asyncio.sleep(0)
            for _ in range(cancels):
                connecting.cancel()
                await asyncio.sleep(0)
            with suppress(asyncio.CancelledError, ConnectionLost):
                await (await connecting).close()
            assert open_to(address) == []

    for turns in range(0, 30, 2):
        asyncio.run(main(turns))


def test_a_cancelled_close_drops_unsent_data() -> None:
    async def main() -> None:
        async with peer(agree) as address:
            transport = await connected(address)
            sending = asyncio.ensure_future(
                transport.call(
                    HeartbeatRequest(group_id="g" * 32_000_000, member_id=""), timeout_ms=60_000
                )
            )
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(transport.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(ConnectionLost):
                await sending
            assert open_to(address) == []

    asyncio.run(main())
