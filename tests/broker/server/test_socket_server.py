"""The TCP server, tested with raw frames."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import ConnectionConfig
from streamlog.broker.server import request_flow as limits
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import ListenError
from streamlog.protocol.api_table import APIS, Api, api_of
from streamlog.protocol.frame import decode_response, encode_request
from streamlog.protocol.messages.cluster_metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    FetchResponse,
    ProduceResponse,
)
from streamlog.protocol.schema import Message
from tests.broker.node import (
    FETCH_BY_NAME,
    at,
    batch,
    create,
    fetch_request,
    produce_request,
    values,
)

PATIENCE_S = 60


def newest(api: Api) -> int:
    """Return the version that a peer speaks; a peer knows topics by name only."""
    return FETCH_BY_NAME if api.request is FetchRequest else api.max_version


class Peer:
    """A client that sends and reads raw frames and follows no rules."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def ask(self, request: Message, number: int, version: int | None = None) -> None:
        api = api_of(type(request))
        at_version = newest(api) if version is None else version
        self.write(b"".join(encode_request(api, at_version, number, "peer", request)))

    async def frame(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def answer(
        self, request: type[Message], version: int | None = None
    ) -> tuple[int, Message]:
        api = api_of(request)
        frame = await self.frame()
        return decode_response(api, newest(api) if version is None else version, frame)

    async def hung_up(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._reader.read() == b""
            except ConnectionResetError:
                return True

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):  # The server closed the connection first.
            await self._writer.wait_closed()


@asynccontextmanager
async def peer(server: Acceptor) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=1 << 26)
    one = Peer(reader, writer)
    try:
        yield one
    finally:
        await one.close()


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


def serve(story: Callable[[Broker, Acceptor], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            Acceptor(broker) as server,
        ):
            await story(broker, server)

    asyncio.run(main())


def test_a_request_is_answered() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            one.ask(MetadataRequest(topics=None), 7)
            number, response = await one.answer(MetadataRequest)
            assert number == 7
            assert isinstance(response, MetadataResponse)
            (broker,) = response.brokers
            assert (broker.host, broker.port) == (server.host, server.port)

    serve(story)


def test_a_mistake_behind_a_wait_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise, the answers behind the one that never comes would wait for ever."""
    reported: list[object] = []

    async def story(_: Broker, server: Acceptor) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        begun: list[asyncio.Future[Message]] = []

        def begin(*_: object) -> asyncio.Future[Message]:
            begun.append(loop.create_future())
            return begun[-1]

        monkeypatch.setattr(Broker, "begin", begin)
        async with peer(server) as one:
            for number in (1, 2):
                one.ask(MetadataRequest(topics=None), number)
            await until(lambda: len(begun) == 2)
            begun[0].set_exception(mistake)
            assert await one.hung_up()

    mistake = ZeroDivisionError("a mistake")
    serve(story)
    assert reported == [mistake]
    assert "closed the connection of 127.0.0.1: ZeroDivisionError('a mistake')" in caplog.text


FOR_CLIENTS = {key for key, api in APIS.items() if not api.is_of_peers}


@pytest.mark.parametrize("version", range(5))
def test_api_versions_is_answered_in_every_version(version: int) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
            one.ask(request, 1, version)
            frame = await one.frame()
            assert frame[4:6] == b"\0\0", (
                "the error code follows the number: the header has no tags"
            )
            _, response = decode_response(APIS[18], version, frame)
            assert isinstance(response, ApiVersionsResponse)
            assert {each.api_key for each in response.api_keys} == FOR_CLIENTS

    serve(story)


def test_an_unknown_version_of_api_versions_gets_version_0() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            # Two at once: a refusal does not end the connection.
            for number in (5, 6):
                header = struct.pack(">hhih", 18, 99, number, -1) + b"\0whatever comes then"
                one.write(struct.pack(">i", len(header)) + header)
            for number in (5, 6):
                frame = await one.frame()
                assert frame[:10] == struct.pack(">ihi", number, 35, len(FOR_CLIENTS))
            one.ask(ApiVersionsRequest(), 7, 0)
            assert (await one.answer(ApiVersionsRequest, 0))[0] == 7

    serve(story)


@pytest.mark.parametrize(("key", "version"), [(0, 2), (1, 17), (3, 99), (999, 0), (4, 0)])
def test_an_unsupported_request_ends_the_connection(
    key: int, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one, peer(server) as other:
            header = struct.pack(">hhih", key, version, 1, -1)
            one.write(struct.pack(">i", len(header)) + header)
            assert await one.hung_up()
            other.ask(ApiVersionsRequest(), 1)
            await other.answer(ApiVersionsRequest)

    serve(story)
    assert f"version {version} is not served" in caplog.text


@given(st.binary(min_size=4, max_size=200))
def test_garbage_closes_at_most_its_own_connection(garbage: bytes) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one, peer(server) as other:
            one.write(garbage)
            one._writer.write_eof()
            await one.hung_up()
            other.ask(ApiVersionsRequest(), 1)
            await other.answer(ApiVersionsRequest)

    logging.disable(logging.WARNING)
    try:
        serve(story)
    finally:
        logging.disable(logging.NOTSET)


def test_an_http_request_ends_the_connection() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            one.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await one.hung_up()

    serve(story)


def test_a_request_that_is_too_large_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            one.write(struct.pack(">i", ConnectionConfig().request_bytes_max + 1))
            assert await one.hung_up()

    serve(story)
    assert str(ConnectionConfig().request_bytes_max) in caplog.text


def test_a_request_may_arrive_byte_by_byte() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            api = api_of(ApiVersionsRequest)
            frame = b"".join(encode_request(api, 3, 9, None, ApiVersionsRequest()))
            for byte in frame:
                one.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await one.answer(ApiVersionsRequest, 3))[0] == 9

    serve(story)


def test_answers_come_in_the_order_of_the_requests() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one, peer(server) as other:
            one.ask(fetch_request(at(0), max_wait_ms=60_000), 1)
            for number in range(2, 6):
                one.ask(ApiVersionsRequest(), number)
            other.ask(produce_request(batch(b"a")), 1)
            await other.frame()
            number, response = await one.answer(FetchRequest)
            assert number == 1
            assert isinstance(response, FetchResponse)
            assert values(response.responses[0].partitions[0]) == [b"a"]
            for number in range(2, 6):
                assert (await one.answer(ApiVersionsRequest))[0] == number

    serve(story)


def test_a_produce_completes_a_fetch_ahead_of_it() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one:
            one.ask(fetch_request(at(0), max_wait_ms=60_000), 1)
            one.ask(produce_request(batch(b"a")), 2)
            assert (await one.answer(FetchRequest))[0] == 1
            number, response = await one.answer(type(produce_request(None)))
            assert number == 2
            assert isinstance(response, ProduceResponse)

    serve(story)


def test_a_produce_without_acks_gets_no_answer() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one:
            one.ask(produce_request(batch(b"a"), acks=0), 1)
            one.ask(fetch_request(at(0), max_wait_ms=60_000), 2)
            number, response = await one.answer(FetchRequest)
            assert number == 2
            assert isinstance(response, FetchResponse)
            assert values(response.responses[0].partitions[0]) == [b"a"]
            one.ask(produce_request(batch(b"a"), acks=0, topic="nowhere"), 3)
            assert await one.hung_up(), "closing is the only way to report the error"

    serve(story)


def test_the_server_stops_reading_from_a_client_that_does_not_read() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        big = batch(b"x" * 900_000)
        async with peer(server) as one, peer(server) as other:
            other.ask(produce_request(big), 1)
            await other.frame()
            one._reader._transport.pause_reading()  # type: ignore[attr-defined]
            count = 200
            for number in range(count):
                one.ask(fetch_request(at(0)), number)
            # Other clients are served meanwhile.
            for number in range(20):
                other.ask(ApiVersionsRequest(), number)
                await other.answer(ApiVersionsRequest)
            held = max(connection._writer.held_bytes for connection in server._connections)
            assert (
                held
                <= limits.WRITE_BUFFER_BYTES
                + ConnectionConfig().queued_response_bytes_per_connection
                + len(big)
            )
            one._reader._transport.resume_reading()  # type: ignore[attr-defined]
            for number in range(count):
                assert (await one.answer(FetchRequest))[0] == number

    serve(story)


def test_requests_in_flight_are_bounded() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one, peer(server) as other:
            count = limits.IN_FLIGHT_MAX + 10
            for number in range(count):
                one.ask(fetch_request(at(0), max_wait_ms=60_000), number)
            for _ in range(5):
                other.ask(ApiVersionsRequest(), 1)
                await other.answer(ApiVersionsRequest)
            assert len(broker._fetches.delayed._parked) <= limits.IN_FLIGHT_MAX
            other.ask(produce_request(batch(b"a")), 1)
            for number in range(count):
                assert (await one.answer(FetchRequest))[0] == number

    serve(story)


def test_a_disconnect_cancels_pending_fetches() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one:
            one.ask(fetch_request(at(0), max_wait_ms=60_000), 1)
            one.ask(ApiVersionsRequest(), 2)
            await until(lambda: bool(broker._fetches.delayed._parked))
        await until(lambda: not server._connections)
        assert all(parked.answer.cancelled() for parked in broker._fetches.delayed._parked.values())
        async with peer(server) as other:
            other.ask(produce_request(batch(b"a")), 1)
            await other.frame()
        assert not broker._fetches.delayed._parked

    serve(story)


def test_stopping_sends_finished_answers_and_closes() -> None:
    async def main() -> None:
        config = BrokerConfig(flush="os")
        async with Broker.open("data", config=config, files=MemoryFiles()) as broker:
            create(broker)
            async with Acceptor(broker) as server:
                reader, writer = await asyncio.open_connection(server.host, server.port)
                one = Peer(reader, writer)
                one.ask(produce_request(batch(b"a")), 1)
                one.ask(fetch_request(at(1), max_wait_ms=60_000), 2)
                await until(lambda: bool(broker._fetches.delayed._parked))
            assert (await one.answer(type(produce_request(None))))[0] == 1
            assert await one.hung_up()
            await one.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(server.host, server.port)

    asyncio.run(main())


def test_a_busy_port_raises_with_advice() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        with pytest.raises(ListenError, match=f"127.0.0.1:{server.port}: another process"):
            async with Acceptor(broker, port=server.port):
                pass

    serve(story)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_a_foreign_address_raises_with_advice(host: str) -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker:
            with pytest.raises(ListenError, match=r"use 127.0.0.1 or 0.0.0.0"):
                async with Acceptor(broker, host=host):
                    pass

    asyncio.run(main())


def test_a_wildcard_listener_advertises_the_address_used() -> None:
    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            Acceptor(broker, host="0.0.0.0") as server,  # noqa: S104 - the point of the test
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            one = Peer(reader, writer)
            one.ask(MetadataRequest(topics=None), 1)
            _, response = await one.answer(MetadataRequest)
            assert isinstance(response, MetadataResponse)
            assert (response.brokers[0].host, response.brokers[0].port) == (
                "127.0.0.1",
                server.port,
            )
            await one.close()

    asyncio.run(main())


def test_a_host_name_with_two_addresses_has_one_port() -> None:
    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            Acceptor(broker, host="localhost") as server,
        ):
            for family, *_, address in socket.getaddrinfo(
                "localhost", server.port, type=socket.SOCK_STREAM
            ):
                if family == socket.AF_INET:
                    _, writer = await asyncio.open_connection(address[0], address[1])
                    writer.close()
                    await writer.wait_closed()

    asyncio.run(main())


@pytest.mark.parametrize("passes", range(5))
def test_a_connection_that_is_accepted_while_the_server_stops_is_closed(passes: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with Broker.open("data", files=MemoryFiles()) as broker:
            with socket.socket() as client:
                async with Acceptor(broker) as server:
                    client.connect((server.host, server.port))  # It waits in the backlog.
                    client.setblocking(False)
                    for _ in range(passes):
                        await asyncio.sleep(0)
                async with asyncio.timeout(PATIENCE_S):
                    with suppress(ConnectionResetError):
                        assert await loop.sock_recv(client, 1) == b""

    asyncio.run(main())
