"""Other projects' clients skip time marks: they return every record, and nothing else."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.control_batches import time_mark_of
from streamlog.stored_log import StoredLog
from tests.broker.process import BrokerProcess
from tests.conformance.clients import CLIENTS, PATIENCE_S, Client, Sent
from tests.conformance.test_transactional_clients import READERS

by_name = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)

START_MS = 1_356_998_400_000
SENT = [Sent(0, b"k", b"value %d" % n, START_MS + n) for n in range(6)]
TOPIC = "with-marks"
PARTITION = TopicPartition(TOPIC, 0)


async def write(address: str) -> None:
    """Write records with a mark after every second one, including the last."""
    async with (
        Log.open(f"kafka://{address}") as log,
        log.producer() as producer,
        log.consumer(auto_offset_reset="earliest", time_marks=True) as consumer,
    ):
        quiet = NewTopic(TOPIC, 1, configs={"mark.quiet.ms": "10"})
        await log.admin().create_topics([quiet])
        consumer.assign([PARTITION])
        for number, each in enumerate(SENT):
            sent = await producer.send(
                TOPIC, each.value, key=each.key, partition=0, timestamp_ms=each.timestamp_ms
            )
            await sent
            if number % 2:
                await mark(consumer)


async def mark(consumer: Consumer) -> None:
    """Wait until a mark follows the last record."""
    (topic_partition,) = consumer.assignment()
    consumer.want_mark(topic_partition, 0)
    async with asyncio.timeout(PATIENCE_S):
        while not consumer.time_marks():
            await consumer.poll(timeout_ms=1_000)
    consumer.want_mark(topic_partition, None)


@pytest.fixture(scope="session")
def marked(broker: BrokerProcess) -> BrokerProcess:
    asyncio.run(write(broker.address))
    return broker


def test_marks_are_stored_and_read_by_our_tool(marked: BrokerProcess, data: Path) -> None:
    with StoredLog(str(data)) as stored:
        batches = list(stored.read(TOPIC, 0, *stored.offsets(TOPIC, 0)))
    found = [time_mark_of(batch) is not None for batch in batches if batch.is_control]
    assert len(found) >= len(SENT) // 2
    assert all(found)
    assert batches[-1].is_control


@by_name
def test_a_group_member_reads_all_records_and_no_mark(
    marked: BrokerProcess, client: Client
) -> None:
    found = client.consume(
        marked.address, [TOPIC], f"marks-{client.name}", lambda count: count >= len(SENT)
    )
    assert found[TOPIC] == SENT


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_marks_are_skipped_at_both_isolation_levels(
    marked: BrokerProcess, reader: str, isolation: str
) -> None:
    values = [record.value for record in SENT]
    assert READERS[reader](marked.address, TOPIC, isolation, len(SENT)) == values


@by_name
def test_a_client_behind_a_mark_gets_the_next_record(marked: BrokerProcess, client: Client) -> None:
    topic = f"behind-a-mark-{client.name}"
    asyncio.run(begin(marked.address, topic))
    with ThreadPoolExecutor() as pool:
        sending: list[Future[None]] = []

        def enough(count: int) -> bool:
            if count == 1 and not sending:
                sending.append(pool.submit(asyncio.run, send(marked.address, topic, b"last")))
            return count >= 2

        found = client.consume(marked.address, [topic], f"end-{client.name}", enough)
        sending[0].result()
    assert [record.value for record in found[topic]] == [b"first", b"last"]


async def begin(address: str, topic: str) -> None:
    """Create a topic with a record and a mark after it."""
    async with (
        Log.open(f"kafka://{address}") as log,
        log.consumer(auto_offset_reset="earliest", time_marks=True) as consumer,
    ):
        quiet = NewTopic(topic, 1, configs={"mark.quiet.ms": "10"})
        await log.admin().create_topics([quiet])
        await send(address, topic, b"first")
        consumer.assign([TopicPartition(topic, 0)])
        await mark(consumer)


async def send(address: str, topic: str, value: bytes) -> None:
    async with Log.open(f"kafka://{address}") as log, log.producer() as producer:
        await (await producer.send(topic, value, partition=0, timestamp_ms=START_MS))
