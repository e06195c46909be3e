"""Traffic of topics, held against what clients have sent and received."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.topic_traffic import FIGURES, TOPICS_MAX, TrafficMetrics
from streamlog.metrics.registry import OTHER, Registry
from streamlog.protocol.messages.produce_and_fetch import FetchResponse, ProduceResponse
from streamlog.protocol.schema import Message, one_buffer
from tests.broker.node import at, batch, create, fetch_request, produce_request
from tests.broker.server.test_socket_server import Peer, peer

TOPICS = ("a", "b", "c")


def traffic(registry: Registry, figure: str) -> dict[str, object]:
    """Return the numbers of one figure by topic; "" is the sum of all."""
    name = f"kafka_server_brokertopicmetrics_{FIGURES[figure][0]}_total"
    for metric in registry.metrics():
        if metric.name == name:
            return {labels[0]: value for labels, value in metric.points}
    raise AssertionError(f"no metric {name}")


async def answers(one: Peer, requests: list[Message]) -> list[Message]:
    for number, request in enumerate(requests):
        one.ask(request, number)
    return [(await one.answer(type(request)))[1] for request in requests]


@pytest.mark.parametrize("seed", range(4))
def test_messages_and_bytes_are_counted_by_topic(seed: int) -> None:
    async def main() -> None:
        rng = Random(seed)
        sent: Counter[str] = Counter()
        bytes_in: Counter[str] = Counter()
        bytes_out: Counter[str] = Counter()
        async with Broker.open("data", files=MemoryFiles()) as broker, Acceptor(broker) as server:
            for topic in TOPICS:
                create(broker, topic)
            async with peer(server) as one:
                for _ in range(15):
                    topic = rng.choice(TOPICS)
                    batches = [
                        batch(*[b"x" * rng.randrange(50)] * rng.randint(1, 5))
                        for _ in range(rng.randint(1, 6))
                    ]
                    requests = [produce_request(each, topic=topic) for each in batches]
                    for data, answer in zip(batches, await answers(one, [*requests]), strict=True):
                        assert isinstance(answer, ProduceResponse)
                        assert answer.responses[0].partition_responses[0].error_code == 0
                        bytes_in[topic] += len(data)
                    sent[topic] = broker._partitions.get(topic, 0).log.log_end_offset
                    for _ in range(2):
                        offset = rng.randint(0, sent[topic])
                        (found,) = await answers(one, [fetch_request(at(offset), topic=topic)])
                        assert isinstance(found, FetchResponse)
                        records = found.responses[0].partitions[0].records
                        bytes_out[topic] += len(one_buffer(records))
            for figure, counts in (
                ("messages_in", sent),
                ("bytes_in", bytes_in),
                ("bytes_out", bytes_out),
            ):
                shown = traffic(broker.directory.metrics, figure)
                assert shown.pop("") == counts.total()
                assert {topic: n for topic, n in shown.items() if n} == +counts

    asyncio.run(main())


def test_a_deleted_topic_stays_in_the_sum() -> None:
    registry = Registry()
    metrics = TrafficMetrics(registry)
    metrics.topic("a").bytes_in += 5
    metrics.topic("b").bytes_in += 7
    metrics.forget("a")
    metrics.forget("unknown")
    assert traffic(registry, "bytes_in") == {"": 12, "b": 7}


def test_topics_beyond_the_bound_are_counted_together() -> None:
    registry = Registry()
    metrics = TrafficMetrics(registry)
    for number in range(TOPICS_MAX + 5):
        metrics.topic(f"t{number}").bytes_in += number
    shown = traffic(registry, "bytes_in")
    assert len(shown) == TOPICS_MAX + 2
    assert shown[OTHER] == 0 + 1 + 2 + 3 + 4
    assert shown[""] == sum(range(TOPICS_MAX + 5))
