"""kill -9 while producers write: acknowledged records are kept, in order, and none twice."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from streamlog.errors import ConnectionLost
from streamlog.log import Log
from streamlog.protocol.messages.produce_and_fetch import ProduceResponse
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import TcpTransport
from tests.broker.node import batch, produce_request
from tests.broker.process import BrokerProcess

PARTITIONS = 3
KILLS = 20 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 3
ACKNOWLEDGED_BEFORE_KILL = 150
PATIENCE_MS = 60_000

Kept = dict[int, dict[int, bytes]]
"""Acknowledged values, by partition and offset."""


async def connect(broker: BrokerProcess) -> TcpTransport:
    return await TcpTransport.connect(
        "127.0.0.1", broker.port, client_id="crash", timeout_ms=PATIENCE_MS
    )


async def create(broker: BrokerProcess) -> None:
    transport = await connect(broker)
    topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
    response = await transport.call(CreateTopicsRequest(topics=[topic]), timeout_ms=PATIENCE_MS)
    assert isinstance(response, CreateTopicsResponse)
    assert response.topics[0].error_code == 0
    await transport.close()


async def read_all(broker: BrokerProcess, partition: int) -> list[tuple[int, bytes | None]]:
    topic_partition, found = TopicPartition("t", partition), list[tuple[int, bytes | None]]()
    async with (
        Log.open(f"kafka://{broker.address}") as log,
        log.consumer(auto_offset_reset="none") as consumer,
    ):
        consumer.assign([topic_partition])
        consumer.seek(topic_partition, 0)
        end = (await consumer.end_offsets([topic_partition]))[topic_partition]
        while await consumer.position(topic_partition) < end:
            polled = await consumer.poll(timeout_ms=PATIENCE_MS)
            found += [(record.offset, record.value) for record in polled[topic_partition]]
    return found


async def write_until_killed(broker: BrokerProcess, kept: Kept, life: int) -> None:
    """Write with four requests in flight per partition, without retries, until the broker dies."""
    enough = asyncio.Event()
    acknowledged = itertools.count(1)

    async def write(partition: int, lane: int) -> None:
        transport = await connect(broker)
        with suppress(ConnectionLost):
            for number in itertools.count():
                sent = [f"{life}/{lane}/{number}/{i}".encode() for i in range(3)]
                request = produce_request(batch(*sent), index=partition)
                response = await transport.call(request, timeout_ms=PATIENCE_MS)
                assert isinstance(response, ProduceResponse)
                answer = response.responses[0].partition_responses[0]
                assert answer.error_code == 0
                kept[partition] |= {answer.base_offset + i: value for i, value in enumerate(sent)}
                if next(acknowledged) >= ACKNOWLEDGED_BEFORE_KILL:
                    enough.set()
        await transport.close()

    async def kill() -> None:
        await enough.wait()
        broker.kill()

    async with asyncio.TaskGroup() as tasks:
        for partition in range(PARTITIONS):
            for lane in range(4):
                tasks.create_task(write(partition, lane))
        tasks.create_task(kill())


@pytest.mark.parametrize("flush", ["always", "os"])
def test_acknowledged_records_survive_kills(tmp_path: Path, flush: str) -> None:
    kept: Kept = {partition: {} for partition in range(PARTITIONS)}
    for life in range(KILLS):
        with BrokerProcess(tmp_path / "data", flush=flush) as broker:
            if life == 0:
                asyncio.run(create(broker))
            asyncio.run(write_until_killed(broker, kept, life))
    with BrokerProcess(tmp_path / "data", flush=flush) as broker:
        for partition in range(PARTITIONS):
            there = asyncio.run(read_all(broker, partition))
            assert [offset for offset, _ in there] == list(range(len(there)))
            by_offset = dict(there)
            assert {o: by_offset.get(o) for o in kept[partition]} == kept[partition]
            assert max(Counter(value for _, value in there).values()) == 1, (
                "a record was appended twice"
            )
            in_order(there)


def in_order(there: list[tuple[int, bytes | None]]) -> None:
    """Check that each lane's records are in the order in which they were sent."""
    last: dict[tuple[bytes, bytes], tuple[int, int]] = {}
    for _, value in there:
        life, lane, number, index = (value or b"").split(b"/")
        position = int(number), int(index)
        assert last.get((life, lane), (-1, -1)) < position
        last[life, lane] = position


def test_a_retrying_producer_writes_each_record_once(tmp_path: Path) -> None:
    """The producer lives through the kills; the broker recognizes its retries."""
    total, kept = 3_000, dict[bytes, tuple[int, int]]()

    async def write(broker: BrokerProcess) -> None:
        async with (
            Log.open(f"kafka://{broker.address}") as log,
            log.producer(linger_ms=1, batch_bytes=2_000) as producer,
        ):
            for start in range(0, total, total // KILLS):
                values = [b"%d" % number for number in range(start, start + total // KILLS)]
                receipts = [await producer.send("t", value, key=value) for value in values]
                await receipts[0]
                await asyncio.to_thread(broker.kill_and_restart)
                for value, receipt in zip(values, receipts, strict=True):
                    metadata = await receipt
                    kept[value] = (metadata.partition, metadata.offset)

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(create(broker))
        asyncio.run(write(broker))
        there = {
            (partition, offset): value
            for partition in range(PARTITIONS)
            for offset, value in asyncio.run(read_all(broker, partition))
        }
    assert len(there) == total, "each record is there exactly once"
    assert {value: where for where, value in there.items()} == kept
    for partition in range(PARTITIONS):
        sent = [int(there[where] or b"") for where in sorted(there) if where[0] == partition]
        assert sent == sorted(sent)


def test_committed_offsets_survive_a_kill(tmp_path: Path) -> None:
    async def commit(broker: BrokerProcess) -> None:
        async with (
            Log.open(f"kafka://{broker.address}") as log,
            log.consumer(group_id="g") as consumer,
        ):
            consumer.assign([TopicPartition("t", 0)])
            for offset in (1, 2, 3):
                await consumer.commit({TopicPartition("t", 0): offset})

    async def committed(broker: BrokerProcess) -> int | None:
        async with (
            Log.open(f"kafka://{broker.address}") as log,
            log.consumer(group_id="g") as consumer,
        ):
            return (await consumer.committed([TopicPartition("t", 0)]))[TopicPartition("t", 0)]

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(create(broker))
        asyncio.run(commit(broker))
        broker.kill_and_restart()
        assert asyncio.run(committed(broker)) == 3
