"""Transactions as our own Admin sees them, and the abort of a hanging one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.client.admin import Admin
from streamlog.errors import LogError, ProducerFenced, UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from streamlog.protocol.messages.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from streamlog.record import TopicPartition
from streamlog.records.batch import BatchBuilder

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0 = TopicPartition("t", 0)


async def begin(admin: Admin, transactional_id: str) -> InitProducerIdResponse:
    """Begin a transaction with one record that no client ends."""
    cluster = admin._cluster
    beginning = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000
    )

    async def initialize() -> InitProducerIdResponse:
        """Try once: the coordinator may be missing or still completing an earlier transaction."""
        node_id = await cluster.coordinator(transactional_id, key_type=1)
        found = await cluster.call(node_id, beginning, InitProducerIdResponse)
        if found.error_code:
            raise error_for(found.error_code, "begin")
        return found

    producer = await cluster.retrying(initialize)
    adding = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )

    async def add() -> None:
        added = await cluster.call_any(adding, AddPartitionsToTxnResponse)
        (found,) = added.results_by_topic_v3_and_below[0].results_by_partition
        if found.partition_error_code:
            raise error_for(found.partition_error_code, "add")

    await cluster.retrying(add)
    batch = BatchBuilder(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    batch.append(1_000, None, b"x")
    data = PartitionProduceData(index=0, records=batch.build())
    writing = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name="t", partition_data=[data])],
    )

    async def write() -> None:
        """Try once: the partition may have no leader yet."""
        produced = await cluster.call_any(writing, ProduceResponse)
        (found,) = produced.responses[0].partition_responses
        if found.error_code:
            raise error_for(found.error_code, "write")

    await cluster.retrying(write)
    return producer


def test_transactions_are_listed_and_described(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.admin() as admin:
            assert await admin.list_transactions() == []
            second = await begin(admin, "b")
            first = await begin(admin, "a")
            listed = await admin.list_transactions()
            assert [(each.transactional_id, each.state) for each in listed] == [
                ("a", "Ongoing"),
                ("b", "Ongoing"),
            ]
            (only,) = await admin.list_transactions(producer_ids=[second.producer_id])
            assert only.transactional_id == "b"
            assert await admin.list_transactions(states=["Empty"]) == []
            assert await admin.list_transactions(open_for_ms=3_600_000) == []
            (described,) = await admin.describe_transactions(["a"])
            assert described.producer_id == first.producer_id
            assert (described.state, described.timeout_ms) == ("Ongoing", 60_000)
            assert described.partitions == {T0}
            assert described.start_ms is not None
            assert described.coordinator == 1
            with pytest.raises(LogError, match="transactional id 'c'") as info:
                await admin.describe_transactions(["a", "c"])
            assert info.value.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    asyncio.run(main())


def test_a_hanging_transaction_is_aborted(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.admin() as admin:
            begin_response = await begin(admin, "x")
            (producer,) = (await admin.describe_producers([T0]))[T0]
            assert producer.producer_id == begin_response.producer_id
            assert (producer.last_sequence, producer.transaction_start_offset) == (0, 0)
            async with log.consumer(isolation_level="read_committed") as consumer:
                assert await consumer.end_offsets([T0]) == {T0: 0}
                await admin.abort_transaction(T0, producer)
                assert await consumer.end_offsets([T0]) == {T0: 2}
            (ended,) = (await admin.describe_producers([T0]))[T0]
            assert ended.transaction_start_offset is None

    asyncio.run(main())


def test_an_unknown_partition_or_producer_raises_an_error(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.admin() as admin:
            assert await admin.describe_producers([T0]) == {T0: []}
            with pytest.raises(UnknownTopicOrPartition):
                await admin.describe_producers([TopicPartition("t", 5)])
            begin_response = await begin(admin, "x")
            (producer,) = (await admin.describe_producers([T0]))[T0]
            stale = type(producer)(begin_response.producer_id, -1, 0, 0, 0, 0)
            with pytest.raises(ProducerFenced):
                await admin.abort_transaction(T0, stale)

    asyncio.run(main())
