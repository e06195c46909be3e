"""Transactions v2 through `Broker.handle` (KIP-890, part 2): a producer writes, then ends."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import ProduceResponse
from streamlog.protocol.messages.transaction_messages import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.broker.coordinator.transaction.test_partition_verification import Coordinators
from tests.broker.node import Node, ask, create
from tests.broker.storage.log.test_transactions import committed
from tests.broker.test_isolation import on_disk, read
from tests.broker.test_transactions import UNSTABLE, Writer, group_offset


@pytest.fixture(params=["always", "os"])
def node(request: pytest.FixtureRequest) -> Node:
    return Node(config=BrokerConfig(flush=request.param))


async def begun(broker: Broker, partitions: int = 1) -> Writer:
    create(broker, partitions=partitions)
    writer = Writer(broker, is_v2=True)
    assert await writer.init() == ErrorCode.NONE
    return writer


def visible(broker: Broker) -> list[bytes]:
    return [value for _, value in committed(broker._partitions.get("t", 0).log)]


async def write_to(writer: Writer, index: int, value: bytes) -> int:
    request = writer.writing(value)
    request.topic_data[0].partition_data[0].index = index
    response = await ask(writer.broker, request, ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


def test_the_first_record_begins_the_transaction(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begun(broker)
        for number in range(3):
            before = writer.epoch
            assert await writer.write(b"%d" % number) == ErrorCode.NONE
            assert await writer.write(b"again") == ErrorCode.NONE
            known = broker._transactions.transaction("tx")
            assert known is not None
            assert known.partitions == {("t", 0)}
            assert await writer.end(committed=number != 1) == ErrorCode.NONE
            assert writer.epoch == before + 1
        assert visible(broker) == [b"0", b"again", b"2", b"again"]

    node.run(story)


def test_a_late_record_joins_no_transaction_wherever_it_arrives(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begun(broker, partitions=3)
        late = Writer(broker, writer.producer_id, writer.epoch, is_v2=True)
        assert await write_to(writer, 0, b"a") == ErrorCode.NONE
        assert await writer.end(committed=False) == ErrorCode.NONE
        for _ in range(2):
            for index in range(3):
                refused = await write_to(late, index, b"late")
                assert refused == ErrorCode.INVALID_PRODUCER_EPOCH
            # Once more, while the next transaction is open.
            assert await write_to(writer, 1, b"b") == ErrorCode.NONE
            writer.sequence = 1
        assert await writer.end() == ErrorCode.NONE
        assert [log_end(broker, index) for index in range(3)] == [2, 3, 0]

    def log_end(broker: Broker, index: int) -> int:
        return broker._partitions.get("t", index).log.log_end_offset

    node.run(story)


def test_the_first_offset_adds_its_group(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begun(broker)
        assert await writer.commit_offset(3) == ErrorCode.NONE
        assert await group_offset(broker) == (UNSTABLE, -1)
        assert await writer.end() == ErrorCode.NONE
        assert await group_offset(broker) == (ErrorCode.NONE, 3)
        late = Writer(broker, writer.producer_id, writer.epoch - 1, is_v2=True)
        assert await late.commit_offset(7) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await writer.commit_offset(9) == ErrorCode.NONE
        assert await writer.end(committed=False) == ErrorCode.NONE
        assert await group_offset(broker) == (ErrorCode.NONE, 3)

    node.run(story)


def test_producers_of_both_kinds_take_over_from_each_other(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        for number in range(4):
            writer = Writer(broker, is_v2=number % 2 == 0)
            assert await writer.init() == ErrorCode.NONE
            for _ in range(2):
                if not writer.is_v2:
                    assert await writer.write(b"unannounced") == ErrorCode.TRANSACTION_ABORTABLE
                    assert await writer.add() == ErrorCode.NONE
                assert await writer.write(b"%d" % number) == ErrorCode.NONE
                assert await writer.end() == ErrorCode.NONE
        assert visible(broker) == [b"%d" % number for number in range(4) for _ in range(2)]

    node.run(story)


def test_a_producer_that_aborts_what_timed_out_writes_on(node: Node) -> None:
    """As Kafka's clients do: a refused record makes them abort, whatever has refused it."""

    async def story(broker: Broker) -> None:
        writer = await begun(broker)
        assert await writer.write(b"too late") == ErrorCode.NONE
        node.pass_time(broker, 61_000)
        while await writer.write(b"refused") != ErrorCode.INVALID_PRODUCER_EPOCH:
            await on_disk(broker)
        while (code := await writer.end(committed=False)) == ErrorCode.CONCURRENT_TRANSACTIONS:
            await on_disk(broker)
        assert code == ErrorCode.NONE
        assert await writer.write(b"kept") == ErrorCode.NONE
        assert await writer.end() == ErrorCode.NONE
        assert visible(broker) == [b"kept"]

    node.run(story)


def test_a_transaction_continues_after_a_restart(node: Node) -> None:
    async def before(broker: Broker) -> Writer:
        writer = await begun(broker)
        assert await writer.write(b"a") == ErrorCode.NONE
        return writer

    async def after(broker: Broker) -> None:
        writer.broker = broker
        assert await writer.write(b"b") == ErrorCode.NONE
        assert await writer.end() == ErrorCode.NONE
        assert visible(broker) == [b"a", b"b"]

    writer = node.run(before)
    node.run(after)


def test_a_late_marker_does_not_end_the_next_transaction(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begun(broker)
        assert await writer.write(b"a") == ErrorCode.NONE
        assert await writer.end() == ErrorCode.NONE
        partitions = WritableTxnMarkerTopic(name="t", partition_indexes=[0])
        marker = WritableTxnMarker(
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            transaction_result=True,
            topics=[partitions],
            transaction_version=2,
        )
        assert await writer.write(b"b") == ErrorCode.NONE
        request = WriteTxnMarkersRequest(markers=[marker])
        response = await ask(broker, request, WriteTxnMarkersResponse)
        (result,) = response.markers[0].topics[0].partitions
        assert result.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await read(broker, 0)).last_stable_offset == 2

    node.run(story)


def test_another_coordinator_is_asked_once_per_transaction(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begun(broker)
        coordinators = Coordinators(broker)
        for number in range(3):
            assert await writer.write(b"%d" % number) == ErrorCode.NONE
            assert await writer.write(b"again") == ErrorCode.NONE
            assert len(coordinators.asked) == number + 1
            assert not coordinators.asked[-1].transactions[0].verify_only
            assert await writer.end() == ErrorCode.NONE
        coordinators.is_lost = True
        assert await writer.write(b"a") == ErrorCode.NOT_ENOUGH_REPLICAS
        coordinators.is_lost = False
        assert await writer.write(b"a") == ErrorCode.NONE
        assert await writer.end() == ErrorCode.NONE
        await coordinators.gone()

    node.run(story)


@pytest.mark.parametrize("what", ["a record", "an offset"])
def test_an_abort_overtakes_the_question_of_a_leader(node: Node, what: str) -> None:
    async def story(broker: Broker) -> None:
        writer = await begun(broker)
        coordinators = Coordinators(broker)
        coordinators.may_answer.clear()
        writing = writer.write(b"a") if what == "a record" else writer.commit_offset(3)
        written = asyncio.ensure_future(writing)
        await coordinators.heard.wait()
        assert await writer.end(committed=False) == ErrorCode.NONE
        coordinators.may_answer.set()
        assert await written == ErrorCode.TRANSACTION_ABORTABLE
        writer.sequence = 0
        assert await writer.write(b"b") == ErrorCode.NONE
        await coordinators.gone()

    node.run(story)
