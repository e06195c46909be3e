"""What a log really holds and a broker really serves, seen without any of the clients.

It asks by raw requests: what a client claims to have written is compared with the batches that are
there, and what a client reads was written by none of them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence

from conformance.client import PATIENCE_S, Got, Sent
from streamlog.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from streamlog.protocol.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from streamlog.protocol.schema import Message
from streamlog.records.batch import RecordBatch, encode_batch, split_batches
from streamlog.transport.connection import TcpTransport

PARTITIONS = 4
"""What both clusters give to a topic that is made by asking for it."""
FETCH_BYTES = 4 * 1024 * 1024
PAUSE_S = 0.05

_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
_RANGE = struct.Struct(">hhh")


def served(address: str) -> set[int]:
    """The keys of the APIs that a broker advertises, by the oldest form of the question."""
    host, _, port = address.partition(":")
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
    """One cluster of one broker."""

    def __init__(self, address: str) -> None:
        self.address = address

    def make_topic(self, topic: str) -> None:
        """Have a topic made the way that a producer does, and wait until its leaders serve it."""
        asyncio.run(self._make_topic(topic))

    def write(self, topic: str, records: Sequence[Sent]) -> None:
        """Write each partition's records as one batch."""
        data = [
            PartitionProduceData(
                index=partition,
                records=encode_batch(
                    [
                        (each.timestamp_ms, each.key, each.value, each.headers)
                        for each in records
                        if each.partition == partition
                    ]
                ),
            )
            for partition in sorted({each.partition for each in records})
        ]
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=PATIENCE_S * 1000,
            topic_data=[TopicProduceData(name=topic, partition_data=data)],
        )
        response = asyncio.run(self._call(request))
        assert isinstance(response, ProduceResponse)
        codes = {p.error_code for t in response.responses for p in t.partition_responses}
        assert codes == {0}, f"the log refuses what the witness writes: {codes}"

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

    async def _call(self, request: Message) -> Message:
        host, _, port = self.address.partition(":")
        transport = await TcpTransport.connect(
            host, int(port), client_id="witness", timeout_ms=PATIENCE_S * 1000
        )
        try:
            return await transport.call(request, timeout_ms=PATIENCE_S * 1000)
        finally:
            await transport.close()

    async def _topic(self, topic: str) -> MetadataResponseTopic:
        asked = [MetadataRequestTopic(name=topic)]
        response = await self._call(MetadataRequest(topics=asked, allow_auto_topic_creation=True))
        assert isinstance(response, MetadataResponse)
        (found,) = response.topics
        return found

    async def _make_topic(self, topic: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self._topic(topic)
                if await self._is_led(topic, found):
                    return
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
        response = await self._call(request)
        assert isinstance(response, FetchResponse)
        (answer,) = response.responses[0].partitions
        return answer

    async def _batches(self, topic: str, partition: int) -> list[RecordBatch]:
        found: list[RecordBatch] = []
        position, topic_id = 0, (await self._topic(topic)).topic_id
        while True:
            answer = await self._fetch(topic, topic_id, partition, position)
            assert answer.error_code == 0, f"fetch of {topic}-{partition}: {answer.error_code}"
            data = answer.records or b""
            assert isinstance(data, bytes | bytearray | memoryview)
            batches = list(split_batches(bytes(data)))
            if not batches:
                return found
            found += batches
            position = batches[-1].next_offset
