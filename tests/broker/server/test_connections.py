"""Bounds on the connections and the memory of all clients together."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import ConnectionConfig, Listener
from streamlog.broker.server.connections import Connections
from streamlog.broker.server.request_flow import IN_FLIGHT_MAX, WRITE_BUFFER_BYTES
from streamlog.broker.server.socket_server import Acceptor, SocketServer
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import ConfigError
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest, MetadataRequest
from streamlog.protocol.messages.produce_and_fetch import FetchRequest
from tests.broker.node import at, batch, create, fetch_request, produce_request
from tests.broker.server.test_socket_server import Peer, peer, until


def counts(server: Acceptor) -> tuple[float, ...]:
    """Return how many connections are open, were refused, and were evicted."""
    found = {metric.name: [*metric.points] for metric in server._connections.metrics()}
    return tuple(
        found[f"streamlog_connections{name}"][0][1]
        for name in ("", "_refused_total", "_evicted_total")
    )


def serve(story: Callable[[Broker, Acceptor], Awaitable[None]], **limits: int) -> None:
    config = BrokerConfig(connections=ConnectionConfig(**limits))

    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles(), config=config) as broker,
            Acceptor(broker) as server,
        ):
            await story(broker, server)

    asyncio.run(main())


async def is_served(one: Peer) -> None:
    one.ask(ApiVersionsRequest(), 1)
    await one.answer(ApiVersionsRequest)


@pytest.mark.parametrize(
    ("bound", "name"),
    [
        ({"max_connections": 3}, "max.connections is 3"),
        ({"max_connections_per_address": 3}, "max.connections.per.ip is 3"),
    ],
)
def test_connections_above_the_bound_are_refused_and_logged_once(
    bound: dict[str, int], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with AsyncExitStack() as stack:
            some = [await stack.enter_async_context(peer(server)) for _ in range(3)]
            for one in some:
                await is_served(one)
            for _ in range(5):
                async with peer(server) as refused:
                    assert await refused.hung_up()
            for one in some:
                await is_served(one)
            assert server._connections.refused == 5
            await some[0].close()
            await until(lambda: len(server._connections) == 2)
            async with peer(server) as next_one:
                await is_served(next_one)

    serve(story, **bound)
    assert len([line for line in caplog.messages if "refused" in line]) == 1
    assert name in caplog.text
    assert "from 127.0.0.1" in caplog.text


def test_an_idle_connection_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as silent, peer(server) as waiting, peer(server) as busy:
            await is_served(silent)
            # A connection that waits for an answer, or keeps sending, is not idle.
            waiting.ask(fetch_request(at(0), max_wait_ms=60_000), 1)
            ended = asyncio.ensure_future(silent.hung_up())
            while not ended.done():
                await is_served(busy)
                await asyncio.sleep(0.01)
            assert await ended
            await is_served(busy)
            busy.ask(produce_request(batch(b"a")), 2)
            assert (await waiting.answer(FetchRequest))[0] == 1

    serve(story, idle_ms=200)
    assert "closed the connection of 127.0.0.1: it was idle for 200 ms" in caplog.text


def test_a_changed_bound_applies_to_the_next_connection() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            await is_served(one)
            limits = ConnectionConfig(max_connections=1)
            server._connections._config = lambda: limits
            async with peer(server) as refused:
                assert await refused.hung_up()
            await is_served(one)

    serve(story)


def test_a_request_above_the_size_bound_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one:
            one.ask(produce_request(batch(b"x" * 3_000)), 1)
            assert await one.hung_up()

    serve(story, request_bytes_max=2_000)
    assert "0 to 2000 are allowed" in caplog.text


def test_unread_answers_stay_within_their_bounds() -> None:
    """Clients fetch ten times more than all sockets hold, and read none of it."""
    peers, requests = 6, 30
    big = batch(b"x" * 900_000)

    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with AsyncExitStack() as stack:
            some = [await stack.enter_async_context(peer(server)) for _ in range(peers)]
            other = await stack.enter_async_context(peer(server))
            other.ask(produce_request(big), 0)
            await other.frame()
            tracemalloc.start()
            try:
                for one in some:
                    one._reader._transport.pause_reading()  # type: ignore[attr-defined]
                    for number in range(requests):
                        one.ask(fetch_request(at(0)), number)
                for _ in range(50):
                    await is_served(other)
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            bound = peers * (WRITE_BUFFER_BYTES + 2 * len(big))
            assert server._connections.held_bytes <= bound
            assert held <= bound < peers * requests * len(big) / 10
            for one in some:
                one._reader._transport.resume_reading()  # type: ignore[attr-defined]
                for number in range(requests):
                    assert (await one.answer(FetchRequest))[0] == number
            await until(lambda: server._connections.held_bytes == 0)

    serve(story)


@pytest.mark.parametrize(
    "bound",
    [
        {"queued_response_bytes_per_connection": 20_000},
        {"queued_response_bytes": 20_000},
    ],
)
def test_answers_queued_behind_a_fetch_stay_within_their_bounds(bound: dict[str, int]) -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker, partitions=300)
        async with peer(server) as one, peer(server) as other:
            other.ask(MetadataRequest(topics=None), 0)
            answer_bytes = len(await other.frame())
            one.ask(fetch_request(at(0), max_wait_ms=60_000), 0)
            for number in range(1, IN_FLIGHT_MAX):
                one.ask(MetadataRequest(topics=None), number)
            for _ in range(50):
                await is_served(other)
            held = server._connections.held_bytes
            assert 20_000 <= held <= 20_000 + 2 * answer_bytes
            other.ask(produce_request(batch(b"a")), 1)
            assert (await one.answer(FetchRequest))[0] == 0
            for number in range(1, IN_FLIGHT_MAX):
                assert (await one.answer(MetadataRequest))[0] == number
            await until(lambda: server._connections.held_bytes == 0)

    serve(story, **bound)


def test_a_sweep_ends_only_connections_without_progress() -> None:
    class Still:
        ended = 0

        def progress(self) -> int | None:
            return 1

        def end_idle(self, idle_ms: int) -> None:
            self.ended += 1

    class Due(Still):
        def progress(self) -> int | None:
            return None

    async def main() -> None:
        connections: Connections[Still] = Connections(lambda: ConnectionConfig(idle_ms=4_000))
        still, due = Still(), Due()
        assert connections.admit(still, "a")
        assert connections.admit(due, "a")
        for _ in range(4):
            connections.sweep()
            connections.close()
        assert (still.ended, due.ended) == (0, 0)
        connections.sweep()
        connections.close()
        assert (still.ended, due.ended) == (1, 0)
        connections.leave(still)
        connections.leave(still)
        assert list(connections) == [due]

    asyncio.run(main())


def test_a_half_open_connection_gives_way_to_a_new_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlog.broker.server.connections.HALF_OPEN_MS", 0)

    async def story(_: Broker, server: Acceptor) -> None:
        async with (
            peer(server) as known,
            peer(server) as oldest,
            peer(server) as younger,
            AsyncExitStack() as stack,
        ):
            await is_served(known)
            for victim in (oldest, younger):
                await is_served(await stack.enter_async_context(peer(server)))
                assert await victim.hung_up()
            async with peer(server) as refused:
                assert await refused.hung_up()  # All of them have sent a request.
            await is_served(known)
            assert counts(server) == (3, 1, 2)

    serve(story, max_connections=3)


def test_a_connection_that_sent_a_request_does_not_give_way() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one, peer(server) as other:
            await is_served(one)
            await is_served(other)
            async with peer(server) as refused:
                assert await refused.hung_up()
            await is_served(one)
            assert counts(server) == (2, 1, 0)

    serve(story, max_connections=2)


def test_addresses_and_listeners_have_their_own_bounds() -> None:
    limits = BrokerConfig().override(
        {
            "max.connections.per.ip": "9",
            "max.connections.per.ip.overrides": "10.0.0.7:2, ::1:3",
            "listener.name.clients.max.connections": "5",
            "max.connections.per.listener": "brokers:4",
        }
    )
    found = limits.connections
    addresses = ("10.0.0.7", "::ffff:10.0.0.7", "::1", "10.0.0.8")
    assert [found.max_connections_from(each) for each in addresses] == [2, 2, 3, 9]
    listeners = ("CLIENTS", "BROKERS", "OTHERS")
    assert [found.max_connections_of(each) for each in listeners] == [5, 4, None]


@pytest.mark.parametrize(
    "setting",
    [
        {"max.connections.per.ip.overrides": "10.0.0.7"},
        {"max.connections.per.ip.overrides": "10.0.0.7:0"},
        {"listener.name.clients.max.connections": "many"},
    ],
)
def test_a_malformed_bound_is_refused(setting: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="NAME:COUNT"):
        BrokerConfig().override(setting)


def test_a_full_listener_refuses_connections() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        limits = ConnectionConfig(max_connections_of_listeners=f"{server.listener.name}:2")
        server._connections._config = lambda: limits
        async with peer(server) as one, peer(server) as other:
            await is_served(one)
            await is_served(other)
            async with peer(server) as refused:
                assert await refused.hung_up()

    serve(story)


def test_listeners_of_one_broker_share_its_bounds_and_its_count() -> None:
    async def main() -> None:
        limits = ConnectionConfig(max_connections=3)
        config = BrokerConfig(connections=limits)
        listeners = [Listener(name="A"), Listener(name="B")]
        async with (
            Broker.open("data", config=config, files=MemoryFiles()) as broker,
            SocketServer(broker, listeners) as listening,
            AsyncExitStack() as stack,
        ):
            first, second = listening.servers
            for server in (first, second, first):
                await is_served(await stack.enter_async_context(peer(server)))
            for server in (second, first):
                async with peer(server) as refused:
                    assert await refused.hung_up()
            shown = {each.name: dict(each.points) for each in broker.directory.metrics.metrics()}
            assert shown["streamlog_connections"] == {(): 3}

    asyncio.run(main())
