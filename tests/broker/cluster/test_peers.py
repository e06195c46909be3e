"""Connections to other nodes: opened on demand, dropped when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.cluster.peers import Address, BrokerPeers
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import ConnectionLost, RequestTimedOut
from streamlog.protocol.messages.cluster_metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

TIMEOUT_MS = 10_000
SHORT_MS = 100


def run_story(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def life() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(life())


async def cluster_id_of(peers: BrokerPeers, node_id: int = 1) -> str:
    answer = await peers.call(node_id, DescribeClusterRequest(), timeout_ms=TIMEOUT_MS)
    assert isinstance(answer, DescribeClusterResponse)
    return answer.cluster_id


def test_one_connection_serves_all_calls_and_is_reopened() -> None:
    async def story() -> None:
        where: dict[int, Address] = {}
        peers = BrokerPeers(where.get)
        files = MemoryFiles()
        async with Broker.open("data", files=files) as broker:
            async with Acceptor(broker) as server:
                where[1] = ("127.0.0.1", server.port)
                found = await asyncio.gather(*(cluster_id_of(peers) for _ in range(5)))
                assert {*found} == {broker.cluster_id}
                first = await peers.transport(1, timeout_ms=TIMEOUT_MS)
                assert await peers.transport(1, timeout_ms=TIMEOUT_MS) is first
                own = await peers.connect(1, timeout_ms=TIMEOUT_MS)
                assert own is not first
                await own.close()
            with pytest.raises(ConnectionLost):
                await cluster_id_of(peers)
            async with Acceptor(broker) as server:
                where[1] = ("127.0.0.1", server.port)
                assert await cluster_id_of(peers) == broker.cluster_id
            await peers.close()

    run_story(story)


def test_a_broker_is_reached_at_its_new_address() -> None:
    async def story() -> None:
        where: dict[int, Address] = {}
        peers = BrokerPeers(where.get)
        async with (
            Broker.open("data", files=MemoryFiles()) as one,
            Broker.open("data", files=MemoryFiles()) as two,
            Acceptor(one) as first,
            Acceptor(two) as second,
        ):
            where[1] = ("127.0.0.1", first.port)
            assert await cluster_id_of(peers) == one.cluster_id
            where[1] = ("127.0.0.1", second.port)
            assert await cluster_id_of(peers) == two.cluster_id
            await peers.close()

    run_story(story)


def test_an_unknown_address_raises_connection_lost() -> None:
    async def story() -> None:
        peers = BrokerPeers({}.get)
        with pytest.raises(ConnectionLost, match="the address of broker 7 is not known"):
            await cluster_id_of(peers, 7)
        with pytest.raises(ConnectionLost, match="the address of broker 7 is not known"):
            await peers.connect(7, timeout_ms=SHORT_MS)

    run_story(story)


def test_a_call_to_a_silent_peer_times_out() -> None:
    async def story() -> None:
        ended = asyncio.Event()

        async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await ended.wait()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        peers = BrokerPeers({1: server.sockets[0].getsockname()[:2]}.get)
        with pytest.raises(RequestTimedOut):
            await peers.call(1, DescribeClusterRequest(), timeout_ms=SHORT_MS)
        ended.set()
        server.close()

    run_story(story)
