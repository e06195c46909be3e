"""Transactions through `Broker.handle`: committed records are visible, and no others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from crc32c import crc32c

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from streamlog.protocol.messages.produce_and_fetch import ProduceRequest, ProduceResponse
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from streamlog.protocol.schema import Message
from tests.broker.node import Node, ask, create, delete, later, produce_request, v1
from tests.broker.test_isolation import aborted_in, on_disk, read, transactional, values

ILLEGAL = ErrorCode.ILLEGAL_GENERATION
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


@pytest.fixture(params=["always", "os"])
def node(request: pytest.FixtureRequest) -> Node:
    return Node(config=BrokerConfig(flush=request.param))


@dataclass
class Writer:
    """A transactional producer in single requests."""

    broker: Broker
    producer_id: int = -1
    epoch: int = -1
    sequence: int = 0
    is_v2: bool = False
    """Whether it has transactions v2 (KIP-890, part 2)."""

    def version(self, request: Message) -> int | None:
        return None if self.is_v2 else v1(request)

    async def init(self, timeout_ms: int = 60_000) -> int:
        request = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=timeout_ms)
        response = await ask(self.broker, request, InitProducerIdResponse)
        if response.error_code == ErrorCode.NONE:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequence = 0
        return response.error_code

    async def add(self, topic: str = "t") -> int:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
        response = await ask(self.broker, request, AddPartitionsToTxnResponse)
        result = response.results_by_topic_v3_and_below[0].results_by_partition[0]
        return result.partition_error_code

    async def write(self, *sent: bytes, transactional_id: str | None = "tx") -> int:
        request = self.writing(*sent, transactional_id=transactional_id)
        response = await ask(self.broker, request, ProduceResponse, self.version(request))
        code = response.responses[0].partition_responses[0].error_code
        if code == ErrorCode.NONE:
            self.sequence += len(sent)
        return code

    def writing(self, *sent: bytes, transactional_id: str | None = "tx") -> ProduceRequest:
        data = bytearray(transactional(self.sequence, *sent, producer_id=self.producer_id))
        data[51:53] = self.epoch.to_bytes(2)
        request = produce_request(_sealed(data))
        request.transactional_id = transactional_id
        return request

    def ending(self, *, committed: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id="tx",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )

    async def end(self, *, committed: bool = True) -> int:
        request = self.ending(committed=committed)
        response = await ask(self.broker, request, EndTxnResponse, self.version(request))
        if response.producer_id >= 0:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequence = 0
        return response.error_code

    async def add_offsets(self, group: str = "g") -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id="tx",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return (await ask(self.broker, request, AddOffsetsToTxnResponse)).error_code

    async def commit_offset(self, offset: int, *, generation: int = -1, member: str = "") -> int:
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id="g",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=generation,
            member_id=member,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        response = await ask(self.broker, request, TxnOffsetCommitResponse, self.version(request))
        return response.topics[0].partitions[0].error_code


def _sealed(data: bytearray) -> bytes:
    data[17:21] = crc32c(data[21:]).to_bytes(4)
    return bytes(data)


async def begin_transaction(broker: Broker) -> Writer:
    create(broker)
    writer = Writer(broker)
    assert await writer.init() == ErrorCode.NONE
    assert await writer.add() == ErrorCode.NONE
    return writer


async def group_offset(broker: Broker, *, stable: bool = True) -> tuple[int, int]:
    """Return the error code and the committed offset of the group."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id="g", topics=topics)
    request = OffsetFetchRequest(groups=[asked], require_stable=stable)
    response = await ask(broker, request, OffsetFetchResponse)
    found = response.groups[0].topics[0].partitions[0]
    return found.error_code, found.committed_offset


def test_committed_records_are_visible_once_end_txn_is_answered(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begin_transaction(broker)
        assert await writer.write(b"a", b"b") == ErrorCode.NONE
        assert values(await read(broker, 0)) == []
        assert await writer.end() == ErrorCode.NONE
        data = await read(broker, 0)
        assert (values(data)[:2], data.last_stable_offset) == ([b"a", b"b"], 3)
        assert await writer.add() == ErrorCode.NONE

    node.run(story)


def test_an_aborted_transaction_is_listed(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begin_transaction(broker)
        await writer.write(b"a")
        assert await writer.end(committed=False) == ErrorCode.NONE
        data = await read(broker, 0)
        assert aborted_in(data) == [(writer.producer_id, 0)]

    node.run(story)


def test_a_batch_needs_a_transaction_that_has_begun(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        writer = Writer(broker, producer_id=5, epoch=0)
        assert await writer.write(b"a") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        await writer.init()
        assert await writer.write(b"a") == ErrorCode.TRANSACTION_ABORTABLE
        await writer.add()
        without_id = await writer.write(b"a", transactional_id=None)
        assert without_id == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await writer.write(b"a") == ErrorCode.NONE
        await writer.end()
        assert await writer.write(b"b") == ErrorCode.TRANSACTION_ABORTABLE

    node.run(story)


def test_a_fenced_producer_cannot_write(node: Node) -> None:
    async def story(broker: Broker) -> None:
        old = await begin_transaction(broker)
        await old.write(b"lost")
        new = Writer(broker)
        assert await new.init() == ErrorCode.CONCURRENT_TRANSACTIONS
        while await new.init() == ErrorCode.CONCURRENT_TRANSACTIONS:
            await on_disk(broker)
        assert new.epoch == old.epoch + 2
        assert await old.write(b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await old.end() == ErrorCode.PRODUCER_FENCED
        await new.add()
        assert await new.write(b"b") == ErrorCode.NONE
        await new.end()
        data = await read(broker, 0)
        assert aborted_in(data) == [(old.producer_id, 0)]

    node.run(story)


def test_a_transaction_is_aborted_after_its_timeout(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        writer = Writer(broker)
        await writer.init(timeout_ms=5_000)
        await writer.add()
        await writer.write(b"a")
        node.pass_time(broker, 6_000)
        while (await read(broker, 0)).last_stable_offset == 0:
            await on_disk(broker)
        assert aborted_in(await read(broker, 0)) == [(writer.producer_id, 0)]
        assert await writer.end() == ErrorCode.PRODUCER_FENCED

    node.run(story)


def test_a_transaction_can_continue_after_a_restart(node: Node) -> None:
    async def before(broker: Broker) -> Writer:
        writer = await begin_transaction(broker)
        await writer.write(b"a")
        return writer

    async def after(broker: Broker) -> None:
        writer.broker = broker
        assert await writer.write(b"b") == ErrorCode.NONE
        assert await writer.end() == ErrorCode.NONE
        assert values(await read(broker, 0))[:2] == [b"a", b"b"]

    writer = node.run(before)
    node.run(after)


def test_a_prepared_commit_completes_after_a_restart() -> None:
    node = Node(config=BrokerConfig(flush="always"))

    async def before(broker: Broker) -> None:
        writer = await begin_transaction(broker)
        await writer.write(b"a")
        # The broker is stopped before it has written any marker.
        ending = writer.ending(committed=True)
        answer = later(broker, ending, v1(ending))
        answer.add_done_callback(asyncio.Future.exception)
        assert broker._partitions.get("t", 0).log.log_end_offset == 1

    async def after(broker: Broker) -> None:
        broker.tick()
        while (await read(broker, 0)).last_stable_offset < 2:
            await on_disk(broker)
        assert values(await read(broker, 0))[:1] == [b"a"]

    node.run(before)
    node.run(after)


def test_offsets_commit_or_abort_with_their_transaction(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begin_transaction(broker)
        assert await writer.commit_offset(3) == ErrorCode.INVALID_TXN_STATE
        assert await writer.add_offsets() == ErrorCode.NONE
        assert await writer.commit_offset(3) == ErrorCode.NONE
        assert await group_offset(broker) == (UNSTABLE, -1)
        assert await group_offset(broker, stable=False) == (ErrorCode.NONE, -1)
        await writer.end()
        assert await group_offset(broker) == (ErrorCode.NONE, 3)
        await writer.add_offsets()
        assert await writer.commit_offset(9) == ErrorCode.NONE
        await writer.end(committed=False)
        assert await group_offset(broker) == (ErrorCode.NONE, 3)

    async def after(broker: Broker) -> None:
        assert await group_offset(broker) == (ErrorCode.NONE, 3)

    node.run(story)
    node.run(after)


def test_pending_offsets_survive_a_restart(node: Node) -> None:
    async def before(broker: Broker) -> Writer:
        writer = await begin_transaction(broker)
        await writer.add_offsets()
        await writer.commit_offset(3)
        return writer

    async def after(broker: Broker) -> None:
        writer.broker = broker
        assert await group_offset(broker) == (UNSTABLE, -1)
        assert await writer.end() == ErrorCode.NONE
        assert await group_offset(broker) == (ErrorCode.NONE, 3)

    writer = node.run(before)
    node.run(after)


def test_a_transactional_commit_with_a_wrong_generation_is_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begin_transaction(broker)
        await writer.add_offsets()
        assert await writer.commit_offset(3, generation=4, member="m") == ILLEGAL
        plain = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        commit = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[plain])],
        )
        await ask(broker, commit, OffsetCommitResponse)
        await writer.end()
        assert await group_offset(broker) == (ErrorCode.NONE, 5)

    node.run(story)


def test_admin_requests_describe_transactions_and_abort_a_hanging_one(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begin_transaction(broker)
        await writer.write(b"a")
        node.clock.advance(50)
        for request, found in (
            (ListTransactionsRequest(), 1),
            (ListTransactionsRequest(state_filters=["Ongoing", "Odd"]), 1),
            (ListTransactionsRequest(state_filters=["Empty"]), 0),
            (ListTransactionsRequest(producer_id_filters=[writer.producer_id]), 1),
            (ListTransactionsRequest(producer_id_filters=[99]), 0),
            (ListTransactionsRequest(duration_filter=49), 1),
            (ListTransactionsRequest(duration_filter=50), 0),
        ):
            listed = await ask(broker, request, ListTransactionsResponse)
            assert len(listed.transaction_states) == found
            assert listed.unknown_state_filters == [s for s in request.state_filters if s == "Odd"]
        described = await ask(
            broker,
            DescribeTransactionsRequest(transactional_ids=["tx", "no"]),
            DescribeTransactionsResponse,
        )
        known, unknown = described.transaction_states
        assert (known.transaction_state, known.producer_id) == ("Ongoing", writer.producer_id)
        assert [(each.topic, each.partitions) for each in known.topics] == [("t", [0])]
        assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        topics = [DescribeProducersTopic(name="t", partition_indexes=[0, 7])]
        producers = await ask(
            broker, DescribeProducersRequest(topics=topics), DescribeProducersResponse
        )
        there, nowhere = producers.topics[0].partitions
        (active,) = there.active_producers
        assert (active.producer_id, active.current_txn_start_offset) == (writer.producer_id, 0)
        assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        marker = WritableTxnMarker(
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0, 7])],
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        response = await ask(broker, request, WriteTxnMarkersResponse)
        codes = [each.error_code for each in response.markers[0].topics[0].partitions]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert aborted_in(await read(broker, 0)) == [(writer.producer_id, 0)]

    node.run(story)


def test_a_deleted_topic_does_not_block_its_transaction(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begin_transaction(broker)
        create(broker, "gone")
        assert await writer.add("gone") == ErrorCode.NONE
        await writer.write(b"a")
        delete(broker, "gone")
        assert await writer.end() == ErrorCode.NONE
        assert values(await read(broker, 0))[:1] == [b"a"]

    node.run(story)
