"""Transactions of our producer against librdkafka's mock cluster: each refusal.

The mock writes no markers, so transaction visibility is tested on our own broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.errors import NotAuthorized, ProducerFenced, StreamlogError, TransactionAborted
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from tests.client.test_mock_cluster import INIT_PRODUCER_ID, PARTITIONS, PRODUCE, MockedClients

ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 24, 25, 26, 28
WAITED_OUT = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
P0 = PARTITIONS[0]


@pytest.fixture
def mock() -> Iterator[MockedClients]:
    cluster = MockedClients()
    yield cluster
    cluster.close()


def test_retriable_coordinator_errors_are_retried(mock: MockedClients) -> None:
    async def main() -> None:
        for api in (INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END):
            mock.refuse(api, *WAITED_OUT, ErrorCode.CONCURRENT_TRANSACTIONS)
        mock.refuse(COMMIT_OFFSETS, *WAITED_OUT)
        mock.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
        async with (
            mock.consumer(group_id="g") as consumer,
            mock.producer(transactional_id="x") as producer,
        ):
            for number in range(3):
                async with producer.transaction() as transaction:
                    await producer.send("t", b"%d" % number, partition=0)
                    await transaction.send_offsets({P0: number}, consumer.group_metadata())
        assert await mock.values(P0) == [0, 1, 2]

    asyncio.run(main())


async def transact(producer: Producer, consumer: Consumer) -> None:
    async with producer.transaction() as transaction:
        await producer.send("t", b"0", partition=0)
        await transaction.send_offsets({P0: 1}, consumer.group_metadata())


def test_a_fenced_producer_learns_it_from_every_request(mock: MockedClients) -> None:
    async def main() -> None:
        async with mock.consumer(group_id="g") as consumer:
            mock.refuse(INIT_PRODUCER_ID, ErrorCode.PRODUCER_FENCED)
            with pytest.raises(ProducerFenced, match="transactional_id of its own"):
                await mock.producer(transactional_id="x").__aenter__()
            for api in (ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, END):
                async with mock.producer(transactional_id=f"x{api}") as producer:
                    mock.refuse(api, ErrorCode.PRODUCER_FENCED)
                    with pytest.raises(ProducerFenced, match="transactional_id of its own"):
                        await transact(producer, consumer)

    asyncio.run(main())


REFUSED: list[tuple[int, ErrorCode, type[StreamlogError]]] = [
    (ADD_PARTITIONS, ErrorCode.TOPIC_AUTHORIZATION_FAILED, TransactionAborted),
    (ADD_PARTITIONS, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NotAuthorized),
    (ADD_OFFSETS, ErrorCode.GROUP_AUTHORIZATION_FAILED, TransactionAborted),
    (COMMIT_OFFSETS, ErrorCode.ILLEGAL_GENERATION, TransactionAborted),
    (PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, TransactionAborted),
    (PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH, TransactionAborted),
    (PRODUCE, ErrorCode.INVALID_RECORD, TransactionAborted),
]


def test_a_refused_request_aborts_and_most_producers_continue(mock: MockedClients) -> None:
    async def main() -> None:
        async with mock.consumer(group_id="g") as consumer:
            for api, code, error in REFUSED:
                async with mock.producer(transactional_id=f"x{api} {code}") as producer:
                    mock.refuse(api, code)
                    with pytest.raises(error, match=code.name) as refused:
                        await transact(producer, consumer)
                    if refused.value.fatal:
                        with pytest.raises(error):
                            await transact(producer, consumer)
                    else:
                        await transact(producer, consumer)

    asyncio.run(main())


def test_a_transaction_survives_a_coordinator_outage(mock: MockedClients) -> None:
    async def main() -> None:
        async with mock.producer(transactional_id="x") as producer:
            node = await producer._cluster.coordinator("x", key_type=1)
            async with producer.transaction():
                await producer.send("t", b"0", partition=0)
                await producer.flush()
                mock.down(node)
                asyncio.get_running_loop().call_later(0.3, mock.up, node)
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)
        assert sorted(await mock.values(TopicPartition("t", 0))) == [0, 1]

    asyncio.run(main())
