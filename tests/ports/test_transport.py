"""The Transport port: one suite over TCP and in the process; clients see no difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.server.embedded import EmbeddedTransport
from streamlog.broker.server.socket_server import Acceptor
from streamlog.errors import ConnectionLost, RequestTimedOut
from streamlog.protocol.api_table import APIS, api_of
from streamlog.protocol.messages.cluster_metadata import MetadataRequest, MetadataResponse
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from streamlog.protocol.schema import one_buffer
from streamlog.records.batch import encode_batch, split_batches
from streamlog.transport.client_connection import TcpTransport, Transport
from tests.broker.node import create

Open = Callable[[], AbstractAsyncContextManager[Transport]]
TIMEOUT_MS = 60_000


@pytest.fixture(params=["tcp", "embedded"])
def connected(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return a function that connects to a broker with topic `t` of one partition."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Transport]:
        async with Broker.open(str(tmp_path)) as broker, Acceptor(broker) as server:
            create(broker)
            topic_ids["t"] = broker.directory.topics["t"].topic_id
            transport: Transport = EmbeddedTransport(broker)
            if request.param == "tcp":
                transport = await TcpTransport.connect(
                    server.host, server.port, client_id="test", timeout_ms=TIMEOUT_MS
                )
            try:
                yield transport
            finally:
                await transport.close()

    return opened


topic_ids: dict[str, bytes] = {}
"""Topic ids of the broker that a test has open, by name."""


def produce(number: int, *, acks: int) -> ProduceRequest:
    batch = encode_batch([(number, None, b"%d" % number, ())])
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=acks, timeout_ms=TIMEOUT_MS, topic_data=[data])


def fetch(offset: int, *, max_wait_ms: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        topics=[FetchTopic(topic="t", topic_id=topic_ids["t"], partitions=[part])],
    )


async def end(transport: Transport) -> int:
    latest = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[latest])]
    )
    response = await transport.call(request, timeout_ms=TIMEOUT_MS)
    assert isinstance(response, ListOffsetsResponse)
    return response.topics[0].partitions[0].offset


def fetched(response: object) -> list[int]:
    assert isinstance(response, FetchResponse)
    data = one_buffer(response.responses[0].partitions[0].records)
    return [each.timestamp_ms for batch in split_batches(data) for each in batch.records()]


def test_calls_arrive_in_order(connected: Open) -> None:
    async def main() -> None:
        async with connected() as transport:
            answers = await asyncio.gather(
                *(transport.call(produce(n, acks=-1), timeout_ms=TIMEOUT_MS) for n in range(50))
            )
            offsets = [
                answer.responses[0].partition_responses[0].base_offset
                for answer in answers
                if isinstance(answer, ProduceResponse)
            ]
            assert offsets == list(range(50))
            response = await transport.call(fetch(0), timeout_ms=TIMEOUT_MS)
            assert fetched(response) == list(range(50))

    asyncio.run(main())


def test_a_send_arrives_before_the_next_call(connected: Open) -> None:
    async def main() -> None:
        async with connected() as transport:
            for number in range(10):
                await transport.send(produce(number, acks=0))
            assert await end(transport) == 10

    asyncio.run(main())


def test_a_waiting_fetch_is_answered_when_records_arrive(connected: Open) -> None:
    async def main() -> None:
        async with connected() as reader, asyncio.TaskGroup() as group:
            waiting = group.create_task(
                reader.call(fetch(0, max_wait_ms=60_000), timeout_ms=TIMEOUT_MS)
            )
            await asyncio.sleep(0)
            await reader.send(produce(7, acks=0))
            assert fetched(await waiting) == [7]

    asyncio.run(main())


def test_a_call_above_its_time_out_raises(connected: Open) -> None:
    async def main() -> None:
        async with connected() as transport:
            with pytest.raises(RequestTimedOut, match="Fetch"):
                await transport.call(fetch(0, max_wait_ms=60_000), timeout_ms=20)

    asyncio.run(main())


def test_every_supported_api_has_a_negotiated_version(connected: Open) -> None:
    async def main() -> None:
        async with connected() as transport:
            for key, api in APIS.items():
                if api.is_of_peers:
                    continue  # Only other brokers use this API.
                is_client = isinstance(transport, TcpTransport)
                latest = api.client_version_max if is_client else api.max_version
                assert transport.version(key) == latest
            assert api_of(MetadataRequest).key in APIS

    asyncio.run(main())


def test_a_closed_transport_refuses_calls(connected: Open) -> None:
    async def main() -> None:
        async with connected() as transport:
            response = await transport.call(MetadataRequest(topics=[]), timeout_ms=TIMEOUT_MS)
            assert isinstance(response, MetadataResponse)
            await transport.close()
            await transport.close()
            with pytest.raises(ConnectionLost):
                await transport.call(MetadataRequest(topics=[]), timeout_ms=TIMEOUT_MS)
            with pytest.raises(ConnectionLost):
                await transport.send(produce(0, acks=0))

    asyncio.run(main())
