"""A broker on a real file system without a free block: it starts, serves reads, and recovers."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from streamlog.broker.storage.disk.files import RESERVE
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.errors import LogDirectoryFull
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import ProduceResponse
from streamlog.protocol.messages.topics_and_configs import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import TcpTransport
from tests.broker.node import batch, produce_request
from tests.broker.process import BrokerProcess
from tests.broker.small_disk import SmallDisk, small_disk

PARTITIONS = 3
RECORDS = 200
AT_ONCE = 20
SMALL = {"segment.bytes": "20000", "index.interval.bytes": "1000", "file.delete.delay.ms": "0"}
PATIENCE_S = 120.0
ASK_AGAIN_S = 0.05
BATCH = batch(b"x" * 5_000)
FULL = pytest.mark.parametrize(
    ("left_bytes", "names"),
    [(0, False), (0, True), (4096, False), (8192, True), (16384, False)],
    ids=["no block", "no block, no name", "one block", "two blocks, no name", "four blocks"],
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as found:
        yield found


class _Aborted(Exception):
    """Raised to abort a transaction."""


async def ask(broker: BrokerProcess, request: Message) -> Message:
    transport = await TcpTransport.connect("127.0.0.1", broker.port, client_id="t", timeout_ms=5000)
    try:
        return await transport.call(request, timeout_ms=5_000)
    finally:
        await transport.close()


async def produced(broker: BrokerProcess, topic: str = "more") -> int:
    """Produce a batch that needs more than a block; return the error code."""
    answer = await ask(broker, produce_request(BATCH, topic=topic))
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


async def write(broker: BrokerProcess) -> list[bytes]:
    """Write many small batches and aborted transactions; return the committed values."""
    values = [b"%d %s" % (number, b"v" * 200) for number in range(RECORDS)]
    async with Log.open(f"kafka://{broker.address}") as log:
        more = NewTopic("more", 1, configs=SMALL)
        await log.admin().create_topics([NewTopic("t", PARTITIONS, configs=SMALL), more])
        async with log.producer(transactional_id="x", linger_ms=0) as producer:
            for first in range(0, RECORDS, AT_ONCE):
                with suppress(_Aborted):
                    async with producer.transaction():
                        await send(producer, [b"no"])
                        raise _Aborted
                async with producer.transaction():
                    await send(producer, values[first : first + AT_ONCE])
        async with log.producer() as producer:
            for _ in range(20):
                await (await producer.send("more", bytes(10_000)))
    return sorted(values)


async def send(producer: Producer, values: Sequence[bytes]) -> None:
    for value in values:
        await (await producer.send("t", value))


async def committed_values(url: str) -> list[bytes]:
    """Return what a read_committed reader finds in all partitions."""
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    found: list[bytes] = []
    async with (
        Log.open(url, create=False) as log,
        log.consumer(isolation_level="read_committed") as consumer,
    ):
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        await consumer.seek_to_beginning(*partitions)
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            polled = await consumer.poll(timeout_ms=1_000)
            found += [r.value or b"" for records in polled.values() for r in records]
    return sorted(found)


async def until_accepted(broker: BrokerProcess, topic: str = "more") -> None:
    """Produce until the broker accepts a batch again."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (code := await produced(broker, topic)) != ErrorCode.NONE:
        assert time.monotonic() < deadline_s, f"still refused: {code}"
        await asyncio.sleep(ASK_AGAIN_S)


async def until_removed(broker: BrokerProcess) -> None:
    """Read until retention, which runs ten times a second, has removed everything."""
    deadline_s = time.monotonic() + PATIENCE_S
    while left := await committed_values(f"kafka://{broker.address}"):
        assert time.monotonic() < deadline_s, f"{len(left)} records are still there"
        await asyncio.sleep(ASK_AGAIN_S)


def killed_on_full(
    broker: BrokerProcess,
    disk: SmallDisk,
    *,
    left_bytes: int = 0,
    names: bool = False,
    reserve: bool = False,
) -> list[bytes]:
    """Write, kill the broker and fill the disk; return the committed values."""
    with broker:
        values = asyncio.run(write(broker))
        broker.kill()
    if not reserve:
        shutil.rmtree(disk.path / "data" / RESERVE)
    disk.fill(left_bytes=left_bytes, names=names)
    return values


@FULL
def test_a_broker_on_a_full_file_system_serves_reads_and_recovers(
    disk: SmallDisk, left_bytes: int, names: bool
) -> None:
    broker = BrokerProcess(disk.path / "data")
    values = killed_on_full(broker, disk, left_bytes=left_bytes, names=names)
    for _ in range(2):
        with broker:
            assert asyncio.run(committed_values(f"kafka://{broker.address}")) == values
            if not left_bytes:
                assert asyncio.run(produced(broker)) == ErrorCode.KAFKA_STORAGE_ERROR
                assert asyncio.run(committed_values(f"kafka://{broker.address}")) == values
            broker.kill()
    with broker:
        disk.free()
        asyncio.run(until_accepted(broker))
        assert asyncio.run(committed_values(f"kafka://{broker.address}")) == values
        broker.kill()
    with broker:
        assert asyncio.run(committed_values(f"kafka://{broker.address}")) == values


@pytest.mark.parametrize("names", [False, True])
def test_an_embedded_log_on_a_full_file_system_can_be_read(disk: SmallDisk, names: bool) -> None:
    values = killed_on_full(BrokerProcess(disk.path / "data"), disk, names=names)

    async def story() -> None:
        assert await committed_values(f"embedded:{disk.path}/data") == values

    with pytest.raises(LogDirectoryFull):  # the clean-shutdown mark cannot be written
        asyncio.run(story())
    disk.free()
    asyncio.run(story())


def delete_records() -> Message:
    partition = DeleteRecordsPartition(partition_index=0, offset=-1)
    topic = DeleteRecordsTopic(name="more", partitions=[partition])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=5_000)


def delete_topic() -> Message:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name="more")], timeout_ms=5_000)


def broker_on(disk: SmallDisk, directory: Path, **more: str) -> BrokerProcess:
    """Return a broker on the full disk whose settings file is on another one."""
    data = directory / "data"
    data.symlink_to(disk.path / "data")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(data),
        "log.retention.check.interval.ms": "100",
    }
    return BrokerProcess(data, settings={**settings, **more})


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize(
    ("deletion", "answer"),
    [(delete_records(), DeleteRecordsResponse), (delete_topic(), DeleteTopicsResponse)],
    ids=["records", "topic"],
)
def test_deletions_make_room(
    disk: SmallDisk, tmp_path: Path, deletion: Message, answer: type[Message], names: bool
) -> None:
    values = killed_on_full(BrokerProcess(disk.path / "data"), disk, names=names, reserve=True)
    broker = broker_on(disk, tmp_path)

    async def story() -> None:
        while ErrorCode.NONE in {await produced(broker), await produced(broker, "t")}:
            disk.fill(names=names)
        deleted = await ask(broker, deletion)
        assert isinstance(deleted, answer)
        assert "error_code=0" in repr(deleted), deleted
        await until_accepted(broker, "t")
        assert set(values) < set(await committed_values(f"kafka://{broker.address}"))

    with broker:
        asyncio.run(story())
        broker.kill()


def test_retention_makes_room(disk: SmallDisk, tmp_path: Path) -> None:
    killed_on_full(BrokerProcess(disk.path / "data"), disk, reserve=True)
    with broker_on(disk, tmp_path, **{"log.retention.ms": "1"}) as broker:
        asyncio.run(until_accepted(broker))
        asyncio.run(until_removed(broker))
        broker.kill()
