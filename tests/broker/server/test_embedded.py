"""EmbeddedTransport: calls to a broker in the process, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.server.embedded import EmbeddedTransport
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import ConnectionLost, RequestTimedOut
from streamlog.protocol.api_table import APIS
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest, ApiVersionsResponse
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from tests.broker.node import at, batch, create, fetch_request, produce_request, values


def embed(story: Callable[[Broker, EmbeddedTransport], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker:
            await story(broker, EmbeddedTransport(broker))

    asyncio.run(main())


def test_every_api_is_called_in_its_newest_version() -> None:
    async def story(_: Broker, transport: EmbeddedTransport) -> None:
        response = await transport.call(ApiVersionsRequest(), timeout_ms=60_000)
        assert isinstance(response, ApiVersionsResponse)
        assert all(transport.version(key) == api.max_version for key, api in APIS.items())

    embed(story)


def test_a_waiting_fetch_does_not_block_other_calls() -> None:
    async def story(broker: Broker, transport: EmbeddedTransport) -> None:
        create(broker)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(
                transport.call(fetch_request(at(0), max_wait_ms=60_000), timeout_ms=60_000)
            )
            await asyncio.sleep(0)
            await transport.call(produce_request(batch(b"a")), timeout_ms=60_000)
        response = waiting.result()
        assert isinstance(response, FetchResponse)
        assert values(response.responses[0].partitions[0]) == [b"a"]

    embed(story)


def test_a_call_lets_other_callbacks_run() -> None:
    async def story(_: Broker, transport: EmbeddedTransport) -> None:
        others = []
        asyncio.get_running_loop().call_soon(others.append, "ran")
        await transport.call(ApiVersionsRequest(), timeout_ms=60_000)
        assert others

    embed(story)


def test_a_call_raises_when_its_time_is_up() -> None:
    async def story(broker: Broker, transport: EmbeddedTransport) -> None:
        create(broker)
        with pytest.raises(RequestTimedOut, match="Fetch within 1 ms"):
            await transport.call(fetch_request(at(0), max_wait_ms=60_000), timeout_ms=1)

    embed(story)


def test_a_send_without_an_answer_ignores_errors() -> None:
    async def story(broker: Broker, transport: EmbeddedTransport) -> None:
        create(broker)
        await transport.send(produce_request(batch(b"a"), acks=0))
        await transport.send(produce_request(batch(b"a"), acks=0, topic="nowhere"))
        assert broker.directory.log("t", 0).log_end_offset == 1

    embed(story)


def test_a_call_after_close_raises() -> None:
    async def story(broker: Broker, transport: EmbeddedTransport) -> None:
        other = EmbeddedTransport(broker)
        await transport.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await transport.call(ApiVersionsRequest(), timeout_ms=60_000)
        broker.close()
        with pytest.raises(ConnectionLost, match="stopped"):
            await other.call(ApiVersionsRequest(), timeout_ms=60_000)

    embed(story)


def test_stopping_the_broker_fails_pending_calls() -> None:
    async def story(broker: Broker, transport: EmbeddedTransport) -> None:
        create(broker)
        asyncio.get_running_loop().call_soon(broker.close)
        with pytest.raises(ConnectionLost, match="stopped"):
            await transport.call(fetch_request(at(0), max_wait_ms=60_000), timeout_ms=60_000)

    embed(story)
