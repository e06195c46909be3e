"""A broker on a disk in memory, and helpers that send it requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.security.principals import IN_PROCESS, RequestContext
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.clock import ManualClock
from streamlog.protocol.api_table import TRANSACTIONS_V2_SINCE, api_of
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from streamlog.protocol.schema import Message
from streamlog.records.batch import LogRecord, encode_batch, split_batches
from streamlog.records.compression import Compression

FETCH_BY_NAME = 12
"""The last version of Fetch that identifies topics by name."""
BY_ITSELF = RequestContext(6, "tester", "/127.0.0.1", principal=IN_PROCESS)
"""The context in which helpers create and delete topics: all rights, and the last common version.
"""
M = TypeVar("M", bound=Message)
T = TypeVar("T")


@dataclass
class Node:
    """A broker with a manual clock, to which tests send typed messages."""

    files: MemoryFiles = field(default_factory=MemoryFiles)
    clock: ManualClock = field(default_factory=lambda: ManualClock(wall_ms=1_700_000_000_000))
    config: BrokerConfig = field(
        default_factory=lambda: BrokerConfig(group=GroupConfig(initial_rebalance_delay_ms=0))
    )

    def run(self, story: Callable[[Broker], Coroutine[object, object, T]]) -> T:
        """Open the broker, run the story and close it; a second call is a restart."""

        async def main() -> T:
            async with Broker.open(
                "data", config=self.config, clock=self.clock, files=self.files
            ) as broker:
                return await story(broker)

        return asyncio.run(main())

    def pass_time(self, broker: Broker, by_ms: int) -> None:
        self.clock.advance(by_ms)
        broker.tick()


def context(request: Message, version: int | None = None) -> RequestContext:
    # A Fetch with topic names needs a version that has them.
    by_name = isinstance(request, FetchRequest) and all(each.topic for each in request.topics)
    newest = FETCH_BY_NAME if by_name else api_of(type(request)).max_version
    return RequestContext(newest if version is None else version, "tester", "/127.0.0.1")


def v1(request: Message) -> int:
    """Return the newest version of a request in which it belongs to transactions v1."""
    kind = type(request)
    return TRANSACTIONS_V2_SINCE.get(kind, api_of(kind).max_version + 1) - 1


async def ask(broker: Broker, request: Message, kind: type[M], version: int | None = None) -> M:
    response = await broker.handle(request, context(request, version))
    assert isinstance(response, kind)
    return response


def later(broker: Broker, request: Message, version: int | None = None) -> asyncio.Future[Message]:
    """Begin a request that must wait; return its future response."""
    answer = broker.begin(request, context(request, version))
    assert isinstance(answer, asyncio.Future), answer
    return answer


def create(broker: Broker, name: str = "t", partitions: int = 1, **configs: str) -> None:
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
    response = broker.begin(request, BY_ITSELF)
    assert isinstance(response, CreateTopicsResponse)
    assert not response.topics[0].error_code, response.topics[0].error_message


def delete(broker: Broker, name: str = "t") -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1_000)
    response = broker.begin(request, BY_ITSELF)
    assert isinstance(response, DeleteTopicsResponse)
    assert not response.responses[0].error_code, response.responses[0].error_message


def batch(
    *values: bytes, timestamp_ms: int = 1_000, codec: Compression = Compression.NONE
) -> bytes:
    return encode_batch([(timestamp_ms, None, value, ()) for value in values], codec=codec)


def produce_request(
    data: bytes | None, *, topic: str = "t", index: int = 0, acks: int = -1
) -> ProduceRequest:
    partition = PartitionProduceData(index=index, records=data)
    return ProduceRequest(
        acks=acks,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[partition])],
    )


async def produce(
    broker: Broker,
    data: bytes | None,
    *,
    topic: str = "t",
    index: int = 0,
    version: int | None = None,
) -> PartitionProduceResponse:
    request = produce_request(data, topic=topic, index=index)
    response = await ask(broker, request, ProduceResponse, version)
    return response.responses[0].partition_responses[0]


def fetch_request(
    *partitions: FetchPartition,
    topic: str = "t",
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=list(partitions))],
    )


def at(
    offset: int, *, partition: int = 0, max_bytes: int = 1 << 20, epoch: int = -1
) -> FetchPartition:
    return FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=epoch,
    )


async def fetch(
    broker: Broker, *partitions: FetchPartition, max_bytes: int = 1 << 20
) -> list[PartitionData]:
    request = fetch_request(*partitions, max_bytes=max_bytes)
    response = await ask(broker, request, FetchResponse)
    return response.responses[0].partitions if response.responses else []


def records(data: PartitionData) -> list[LogRecord]:
    assert isinstance(data.records, bytes | memoryview)
    return [record for each in split_batches(data.records) for record in each.records()]


def values(data: PartitionData) -> list[bytes | None]:
    return [record.value for record in records(data)]
