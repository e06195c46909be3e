"""What a log really holds and a broker really serves, seen without any of the clients.

It asks by raw requests: what a client claims to have written is compared with the batches that are
there, and what a client reads was written by none of them.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar
from urllib.request import urlopen

from conformance.client import PATIENCE_S, Got, Headers, Sent
from streamlog.errors import ConnectionLost
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.cluster_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from streamlog.protocol.schema import Message
from streamlog.records.batch import RecordBatch, encode_batch, split_batches
from streamlog.transport.client_connection import TcpTransport

PARTITIONS = 4
"""What both clusters give to a topic that is made by asking for it."""
FETCH_BYTES = 4 * 1024 * 1024
PAUSE_S = 0.05
LATEST = -1
PAGE = "CONFORMANCE_METRICS_PAGE"
"""The environment's name for HOST:PORT of the broker's web server, where it has one."""
SET, DELETE = 0, 1
"""Operations on a setting."""
CLIENT_METRICS = 16
"""The type of the resource that is a subscription to metrics of clients."""
NOBODY = -1
"""Of a producer whose batches have no numbers."""
PASSING = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""While brokers of a cluster are restarted."""
Address: TypeAlias = tuple[str, int]
Fields: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]
"""A record's time, key, value and headers."""
R = TypeVar("R")

_CONNECTIONS = re.compile(
    r"^org_apache_kafka_producer_connection_creation_total\{"
    r'[^}]*client_instance_id="([^"]+)"[^}]*\}',
    re.MULTILINE,
)
_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
_RANGE = struct.Struct(">hhh")


def served(address: str) -> set[int]:
    """The keys of the APIs that a broker advertises, by the oldest form of the question."""
    host, _, port = address.split(",", maxsplit=1)[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
        with connection.makefile("rb") as answer:
            (size_bytes,) = struct.unpack(">i", answer.read(4))
            body = answer.read(size_bytes)
    _, error_code, count = struct.unpack_from(">ihi", body)
    if error_code:
        raise ConnectionError(f"{address} answers ApiVersions with error {error_code}")
    return {_RANGE.unpack_from(body, 10 + index * _RANGE.size)[0] for index in range(count)}


class Witness:
    """One cluster, at addresses with commas between them.

    Of several brokers it asks the one that leads, again while that is not to be had.
    """

    def __init__(self, address: str) -> None:
        self._addresses = [_pair(each) for each in address.split(",")]
        self._producer: tuple[int, int] | None = None
        """Id and epoch, once it has written."""
        self._written: Counter[tuple[str, int]] = Counter()
        """Records, by topic and partition."""

    def make_topic(self, topic: str) -> None:
        """Have a topic made the way that a producer does, and wait until its leaders serve it."""
        asyncio.run(self._make_topic(topic))

    def write(self, topic: str, records: Sequence[Sent]) -> None:
        """Write each partition's records as one batch."""
        shares: dict[int, list[Fields]] = {}
        for each in sorted(records, key=lambda record: record.partition):
            record = (each.timestamp_ms, each.key, each.value, each.headers)
            shares.setdefault(each.partition, []).append(record)
        asyncio.run(self._write(topic, shares))

    def batches(self, topic: str, partition: int) -> list[RecordBatch]:
        """All batches of a partition, as they are."""
        return asyncio.run(self._batches(topic, partition))

    def records(self, topic: str) -> list[Got]:
        """All records of a topic, partition by partition in the order of their offsets."""
        return [
            Got(
                each.offset,
                Sent(partition, each.key, each.value, each.timestamp_ms, tuple(each.headers)),
            )
            for partition in range(PARTITIONS)
            for batch in self.batches(topic, partition)
            if not batch.is_control
            for each in batch.records()
        ]

    def pushing(self) -> set[str]:
        """The ids of the clients whose producers have pushed how many connections they make.

        Not how many that are: librdkafka counts from its first push on.
        """
        with urlopen(f"http://{os.environ[PAGE]}/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        return {*_CONNECTIONS.findall(text)}

    def subscribe_to_metrics(self, name: str, interval_ms: int | None) -> None:
        """Ask all clients for all of their metrics; None ends that."""
        asyncio.run(self._subscribe_to_metrics(name, interval_ms))

    async def _subscribe_to_metrics(self, name: str, interval_ms: int | None) -> None:
        settings = {"metrics": "*", "interval.ms": str(interval_ms)}
        operation = DELETE if interval_ms is None else SET
        changes = [
            AlterableConfig(
                name=key,
                value=None if interval_ms is None else value,
                config_operation=operation,
            )
            for key, value in settings.items()
        ]
        resource = AlterConfigsResource(
            resource_type=CLIENT_METRICS, resource_name=name, configs=changes
        )
        answer = await self._call(IncrementalAlterConfigsRequest(resources=[resource]))
        assert isinstance(answer, IncrementalAlterConfigsResponse)
        code = answer.responses[0].error_code
        assert code == 0, f"the subscription {name} is refused: {code}"

    async def _write(self, topic: str, shares: Mapping[int, Sequence[Fields]]) -> None:
        if self._producer is None:
            self._producer = await self._identity()
        producer_id, producer_epoch = self._producer
        for partition, records in shares.items():
            written = self._written[topic, partition]
            batch = encode_batch(
                records,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=-1 if producer_id == NOBODY else written,
            )
            code = await self._again(
                partial(self._write_one, topic, partition, batch),
                lambda code: code not in PASSING,
            )
            assert code == 0, f"the log refuses what the witness writes: {code}"
            self._written[topic, partition] += len(records)

    async def _identity(self) -> tuple[int, int]:
        """Where brokers are restarted a batch may be sent twice, and is to be written once."""
        if len(self._addresses) == 1:
            return NOBODY, NOBODY

        async def ask() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            response = await self._call(request)
            assert isinstance(response, InitProducerIdResponse)
            return response

        found = await self._again(ask, lambda answer: answer.error_code not in PASSING)
        assert found.error_code == 0, f"the witness gets no producer id: {found.error_code}"
        return found.producer_id, found.producer_epoch

    async def _write_one(self, topic: str, partition: int, batch: bytes) -> int:
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=PATIENCE_S * 1000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        response = await self._ask_leader(topic, partition, request)
        assert isinstance(response, ProduceResponse)
        return response.responses[0].partition_responses[0].error_code

    async def _again(self, ask: Callable[[], Awaitable[R]], is_good: Callable[[R], bool]) -> R:
        """Ask until the answer is good, or the time is over."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answer = await ask()
                except ConnectionLost:
                    if len(self._addresses) == 1:
                        raise
                else:
                    if is_good(answer):
                        return answer
                await asyncio.sleep(PAUSE_S)

    async def _call(self, request: Message, address: Address | None = None) -> Message:
        """Ask a broker, or the first that is there."""
        lost = ConnectionLost("no broker is there")
        for host, port in self._addresses if address is None else [address]:
            try:
                transport = await TcpTransport.connect(
                    host, port, client_id="witness", timeout_ms=PATIENCE_S * 1000
                )
            except ConnectionLost as error:
                lost = error
                continue
            try:
                return await transport.call(request, timeout_ms=PATIENCE_S * 1000)
            finally:
                await transport.close()
        raise lost

    async def _ask_leader(self, topic: str, partition: int, request: Message) -> Message:
        if len(self._addresses) == 1:
            return await self._call(request)
        found, addresses = await self._look_up(topic)
        leaders = {each.partition_index: each.leader_id for each in found.partitions}
        address = addresses.get(leaders.get(partition, -1))
        if address is None:
            raise ConnectionLost(f"nobody leads {topic}-{partition}")
        return await self._call(request, address)

    async def _topic(self, topic: str) -> MetadataResponseTopic:
        found, _ = await self._look_up(topic)
        return found

    async def _look_up(self, topic: str) -> tuple[MetadataResponseTopic, dict[int, Address]]:
        """A topic, and where brokers are."""
        asked = [MetadataRequestTopic(name=topic)]
        response = await self._call(MetadataRequest(topics=asked, allow_auto_topic_creation=True))
        assert isinstance(response, MetadataResponse)
        (found,) = response.topics
        return found, {each.node_id: (each.host, each.port) for each in response.brokers}

    async def _end(self, topic: str, partition: int) -> int:
        """Where a partition ends, as soon as its leader can say so."""
        asked = ListOffsetsPartition(partition_index=partition, timestamp=LATEST)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=topic, partitions=[asked])],
        )

        async def ask() -> ListOffsetsPartitionResponse:
            response = await self._ask_leader(topic, partition, request)
            assert isinstance(response, ListOffsetsResponse)
            return response.topics[0].partitions[0]

        found = await self._again(ask, lambda answer: answer.error_code not in PASSING)
        assert found.error_code == 0, f"the end of {topic}-{partition}: {found.error_code}"
        return found.offset

    async def _make_topic(self, topic: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if await self._is_led(topic, await self._topic(topic)):
                        return
                except ConnectionLost:
                    if len(self._addresses) == 1:
                        raise
                await asyncio.sleep(PAUSE_S)

    async def _is_led(self, topic: str, found: MetadataResponseTopic) -> bool:
        """Told to be, and so: a broker of Kafka tells of a topic a moment before it leads it."""
        if found.error_code or len(found.partitions) != PARTITIONS:
            return False
        answers = [
            await self._fetch(topic, found.topic_id, partition, 0)
            for partition in range(PARTITIONS)
        ]
        return not any(answer.error_code for answer in answers)

    async def _fetch(
        self, topic: str, topic_id: bytes, partition: int, position: int
    ) -> PartitionData:
        wanted = FetchPartition(
            partition=partition, fetch_offset=position, partition_max_bytes=FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=[wanted])],
        )
        response = await self._ask_leader(topic, partition, request)
        assert isinstance(response, FetchResponse)
        (answer,) = response.responses[0].partitions
        return answer

    async def _batches(self, topic: str, partition: int) -> list[RecordBatch]:
        found: list[RecordBatch] = []
        is_alone = len(self._addresses) == 1
        end = None if is_alone else await self._end(topic, partition)
        position, topic_id = 0, (await self._topic(topic)).topic_id
        while end is None or position < end:
            answer = await self._again(
                lambda: self._fetch(topic, topic_id, partition, position),  # noqa: B023 - awaited
                lambda answer: answer.error_code not in PASSING,
            )
            assert answer.error_code == 0, f"fetch of {topic}-{partition}: {answer.error_code}"
            data = answer.records or b""
            assert isinstance(data, bytes | bytearray | memoryview)
            batches = list(split_batches(bytes(data)))
            if not batches:
                return found
            found += batches
            position = batches[-1].next_offset
        return found


def _pair(address: str) -> Address:
    host, _, port = address.partition(":")
    return host, int(port)
