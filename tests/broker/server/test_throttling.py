"""Quotas: a client above its rate gets a throttle time and is muted until it has passed."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import ConnectionConfig
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.server.throttling import (
    BURST_MS,
    CLIENTS_MAX,
    THROTTLE_MS_MAX,
    UNBOUNDED,
    Quota,
)
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.protocol.api_table import api_of
from streamlog.protocol.frame import decode_response
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from streamlog.protocol.messages.produce_and_fetch import (
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.schema import Message
from tests.broker.node import BY_ITSELF, at, batch, create, fetch_request, produce_request
from tests.broker.server.test_socket_server import newest, peer
from tests.broker.server.virtual_wire import Wire, framed, on_wires

RATE = 10_000


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 30_000)), max_size=40))
def test_a_client_that_waits_keeps_to_its_rate(uses: list[tuple[int, int]]) -> None:
    quota = Quota()
    now_ms = used_bytes = 0
    for pause_ms, size_bytes in uses:
        now_ms += pause_ms
        throttle_ms = quota.charge((None, "c"), [size_bytes], RATE, now_ms)
        used_bytes += size_bytes
        assert 0 <= throttle_ms <= THROTTLE_MS_MAX
        now_ms += throttle_ms
        # Waiting times are rounded up, so the rate is never exceeded.
        assert used_bytes <= RATE * (now_ms + BURST_MS) / 1000


def test_each_client_has_its_own_quota() -> None:
    quota = Quota()
    assert quota.charge((None, "greedy"), [10 * RATE], RATE, 0) == 9_001
    assert quota.charge((None, "modest"), [RATE], RATE, 0) == 0
    assert quota.charge((None, "greedy"), [10**9], RATE, 0) == THROTTLE_MS_MAX
    assert quota.charge((None, "greedy"), [10**9], UNBOUNDED, 0) == 0


def test_the_longest_idle_clients_are_evicted_first() -> None:
    quota = Quota()
    for number in range(CLIENTS_MAX + 5):
        quota.charge((None, str(number)), [1], RATE, 0)
    assert len(quota._buckets) == CLIENTS_MAX
    assert (None, "4") not in quota._buckets
    assert (None, "5") in quota._buckets


def serve(story: Callable[[Broker, Acceptor], Awaitable[None]], **limits: int) -> None:
    config = BrokerConfig(connections=ConnectionConfig(**limits))

    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles(), config=config) as broker,
            Acceptor(broker) as server,
        ):
            await story(broker, server)

    asyncio.run(main())


Answered = dict[int, tuple[int, Message]]
"""Correlation id to the time of an answer in ms, and the answer."""


def said(wire: Wire, *requests: Message) -> None:
    """Send requests together, numbered from 1."""
    frames = [
        framed(request, number, newest(api_of(type(request))), "c")
        for number, request in enumerate(requests, 1)
    ]
    wire.deliver(b"".join(frames))


def answered(wire: Wire, *requests: Message) -> Answered:
    """Return the answers to requests that were sent together."""
    found: Answered = {}
    for at_ms, data in wire.sent:
        rest = data
        while rest:
            (size,) = struct.unpack_from(">i", rest)
            (number,) = struct.unpack_from(">i", rest, 4)
            api = api_of(type(requests[number - 1]))
            found[number] = at_ms, decode_response(api, newest(api), rest[4 : 4 + size])[1]
            rest = rest[4 + size :]
    return found


@pytest.mark.parametrize("acks", [0, 1])
def test_a_producer_above_its_quota_is_throttled(acks: int) -> None:
    async def story(broker: Broker, connected: Callable[[], Wire]) -> None:
        create(broker)
        asked = produce_request(batch(b"x" * 12_000), acks=acks), ApiVersionsRequest()
        said(one := connected(), *asked)
        await asyncio.sleep(1)
        answers = answered(one, *asked)
        assert 150 < answers[2][0] < 300
        if acks:
            at_ms, response = answers[1]
            assert isinstance(response, ProduceResponse)
            assert at_ms == 0, "the answer itself does not wait"
            assert response.throttle_time_ms == answers[2][0]
            assert response.responses[0].partition_responses[0].error_code == 0

    on_wires(story, produce_bytes_per_s=RATE)


def test_a_consumer_above_its_quota_is_throttled() -> None:
    async def story(broker: Broker, connected: Callable[[], Wire]) -> None:
        create(broker)
        asked = fetch_request(at(0), max_wait_ms=10_000), ApiVersionsRequest()
        said(one := connected(), asked[0])
        said(connected(), produce_request(batch(b"x" * 12_000)))
        await asyncio.sleep(0.1)
        one.deliver(framed(asked[1], 2, newest(api_of(ApiVersionsRequest)), "c"))
        await asyncio.sleep(1)
        answers = answered(one, *asked)
        at_ms, response = answers[1]
        assert isinstance(response, FetchResponse)
        assert 150 < response.throttle_time_ms < 300
        assert answers[2][0] == at_ms + response.throttle_time_ms

    on_wires(story, fetch_bytes_per_s=RATE)


def test_the_longer_of_two_throttle_times_counts() -> None:
    """1. A Fetch waits. 2. A Produce throttles its client for seconds. 3. The Fetch is answered."""

    async def story(broker: Broker, connected: Callable[[], Wire]) -> None:
        create(broker)
        create(broker, "read")
        asked = (
            fetch_request(at(0), topic="read", max_wait_ms=10_000),
            produce_request(batch(b"x" * 40_000)),
            ApiVersionsRequest(),
        )
        said(one := connected(), *asked)
        await asyncio.sleep(0.1)
        await broker.handle(produce_request(batch(b"y" * 12_000), topic="read"), BY_ITSELF)
        await asyncio.sleep(10)
        answers = answered(one, *asked)
        fetched, produced = answers[1][1], answers[2][1]
        assert isinstance(fetched, FetchResponse)
        assert isinstance(produced, ProduceResponse)
        assert 0 < fetched.throttle_time_ms < produced.throttle_time_ms
        assert answers[3][0] == produced.throttle_time_ms

    on_wires(story, fetch_bytes_per_s=RATE, produce_bytes_per_s=RATE)


def test_without_a_quota_no_client_is_throttled() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one:
            one.ask(produce_request(batch(b"x" * 900_000)), 1)
            _, response = await one.answer(ProduceRequest)
            assert isinstance(response, ProduceResponse)
            assert response.throttle_time_ms == 0

    serve(story)
