"""Quotas: a client above its rate gets a throttle time and is muted until it has passed."""

from __future__ import annotations

import asyncio
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
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)
from tests.broker.node import at, batch, create, fetch_request, produce_request
from tests.broker.server.test_socket_server import peer

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


@pytest.mark.parametrize("acks", [0, 1])
def test_a_producer_above_its_quota_is_throttled(acks: int) -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        loop = asyncio.get_running_loop()
        async with peer(server) as one:
            begun = loop.time()
            one.ask(produce_request(batch(b"x" * 12_000), acks=acks), 1)
            one.ask(ApiVersionsRequest(), 2)
            if acks:
                _, response = await one.answer(ProduceRequest)
                assert isinstance(response, ProduceResponse)
                assert 150 < response.throttle_time_ms < 300
                assert response.responses[0].partition_responses[0].error_code == 0
                assert loop.time() - begun < 0.15, "the answer itself does not wait"
            assert (await one.answer(ApiVersionsRequest))[0] == 2
            assert loop.time() - begun > 0.15

    serve(story, produce_bytes_per_s=10_000)


def test_a_consumer_above_its_quota_is_throttled() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        loop = asyncio.get_running_loop()
        async with peer(server) as one, peer(server) as producer:
            one.ask(fetch_request(at(0), max_wait_ms=10_000), 1)
            producer.ask(produce_request(batch(b"x" * 12_000)), 1)
            _, response = await one.answer(FetchRequest)
            begun = loop.time()
            assert isinstance(response, FetchResponse)
            assert 150 < response.throttle_time_ms < 300
            one.ask(ApiVersionsRequest(), 2)
            assert (await one.answer(ApiVersionsRequest))[0] == 2
            assert loop.time() - begun > 0.1

    serve(story, fetch_bytes_per_s=10_000)


def test_without_a_quota_no_client_is_throttled() -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker)
        async with peer(server) as one:
            one.ask(produce_request(batch(b"x" * 900_000)), 1)
            _, response = await one.answer(ProduceRequest)
            assert isinstance(response, ProduceResponse)
            assert response.throttle_time_ms == 0

    serve(story)
