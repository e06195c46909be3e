"""Measures of requests, held against what a peer has sent and received."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.metrics.instruments import Histogram
from streamlog.metrics.registry import Summary
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_codes
from streamlog.protocol.messages.cluster_metadata import MetadataRequest, MetadataRequestTopic
from streamlog.protocol.messages.produce_and_fetch import FetchRequest, ProduceRequest
from streamlog.protocol.schema import Message
from tests.broker.node import at, batch, create, fetch_request, produce_request
from tests.broker.server.test_socket_server import Peer, newest, peer

WAIT_MS = 60
Points = dict[tuple[str, ...], object]


def points(broker: Broker, name: str) -> Points:
    """Return the series of one metric."""
    for metric in broker.directory.metrics.metrics():
        if metric.name == name:
            return dict(metric.points)
    raise AssertionError(f"no metric {name}")


def request_for(rng: Random) -> Message:
    """Return a request of any kind, that succeeds or is refused."""
    match rng.randrange(6):
        case 0:
            return produce_request(batch(b"x"), topic="unknown")
        case 1:
            return fetch_request(at(0))
        case 2:
            return fetch_request(at(10**6))
        case 3:
            topics = [MetadataRequestTopic(name="t"), MetadataRequestTopic(name="unknown")]
            return MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        case _:
            return produce_request(batch(b"x" * rng.randrange(200)))


async def answers(one: Peer, requests: list[Message]) -> list[Message]:
    """Send all requests, and return their responses."""
    for number, request in enumerate(requests):
        one.ask(request, number)
    return [(await one.answer(type(request)))[1] for request in requests]


@pytest.mark.parametrize("seed", range(4))
def test_requests_and_errors_are_counted_by_api(seed: int) -> None:
    async def main() -> None:
        rng = Random(seed)
        async with Broker.open("data", files=MemoryFiles()) as broker, Acceptor(broker) as server:
            create(broker, "t")
            sent: Counter[tuple[str, str]] = Counter()
            failed: Counter[tuple[str, str]] = Counter()
            async with peer(server) as one, peer(server) as other:
                for _ in range(20):
                    requests = [request_for(rng) for _ in range(rng.randint(1, 12))]
                    responses = await answers(rng.choice([one, other]), requests)
                    for request, response in zip(requests, responses, strict=True):
                        api = api_of(type(request))
                        sent[api.name, str(newest(api))] += 1
                        for code in error_codes(response):
                            if code:
                                failed[api.name, ErrorCode(code).name] += 1
            assert points(broker, "kafka_network_requestmetrics_requests_total") == sent
            assert points(broker, "kafka_network_requestmetrics_errors_total") == failed
            times = points(broker, "streamlog_request_duration_seconds")
            for (name, _), count in sent.items():
                parts = [
                    times[name, part] for part in ("queue", "local", "remote", "response_queue")
                ]
                total = times[name, "total"]
                assert isinstance(total, Histogram)
                assert total.count == count
                found = [part for part in parts if isinstance(part, Histogram)]
                assert [part.count for part in found] == [count] * 4
                assert sum(part.sum for part in found) == pytest.approx(total.sum)
                assert all(part.sum >= 0 for part in found)

    asyncio.run(main())


def test_the_wait_of_a_fetch_is_remote_time() -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker, Acceptor(broker) as server:
            create(broker, "t")
            async with peer(server) as one:
                await answers(one, [produce_request(batch(b"x"))])
                waiting = fetch_request(at(1), max_wait_ms=WAIT_MS)
                # The second one repeats the first, and takes the fast way.
                for _ in range(2):
                    await answers(one, [waiting])
            found = points(broker, "kafka_network_requestmetrics_remotetimems")["Fetch",]
            assert isinstance(found, Summary)
            assert found.count == 2
            assert found.sum >= 2 * (WAIT_MS - 1)
            local = points(broker, "kafka_network_requestmetrics_localtimems")["Fetch",]
            assert isinstance(local, Summary)
            assert local.sum < found.sum

    asyncio.run(main())


def test_requests_without_a_response_are_counted() -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker, Acceptor(broker) as server:
            create(broker, "t")
            async with peer(server) as one:
                for number in range(5):
                    one.ask(produce_request(batch(b"x"), acks=0), number)
                await answers(one, [fetch_request(at(0))])
            found = points(broker, "kafka_network_requestmetrics_requests_total")
            assert found["Produce", str(newest(api_of(ProduceRequest)))] == 5
            assert found["Fetch", str(newest(api_of(FetchRequest)))] == 1

    asyncio.run(main())
