"""Transactional records whose coordinator is another broker: verified before the append."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from streamlog.broker.broker import Broker
from streamlog.errors import ConnectionLost
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import ProduceResponse
from streamlog.protocol.messages.transaction_messages import AddPartitionsToTxnRequest
from streamlog.protocol.schema import Message, one_buffer
from tests.broker.node import Node, ask, context, create, produce, v1
from tests.broker.node import batch as batch_of
from tests.broker.test_transactions import Writer

LARGE = bytes(200_000)
"""A thread validates a batch of this size."""


class Coordinators:
    """A stand-in for the coordinator's broker; it is in fact the broker under test."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: list[asyncio.Task[None]] = []
        self.asked: list[AddPartitionsToTxnRequest] = []
        self.heard = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_lost = False
        # A broker recognizes other coordinators only by their node id.
        broker._verification._node_id = 99
        broker._verification.begin(self.call, self.spawn)

    async def call(self, node_id: int, request: Message, timeout_ms: int) -> Message:
        assert (node_id, timeout_ms) == (self._broker.directory.node_id, 5_000)
        assert isinstance(request, AddPartitionsToTxnRequest)
        self.asked.append(request)
        if self.is_lost:
            raise ConnectionLost("no broker is there")
        answer = await self._broker.handle(request, context(request))
        assert answer is not None
        self.heard.set()
        await self.may_answer.wait()
        return answer

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.ensure_future(coroutine))

    async def gone(self) -> None:
        await asyncio.gather(*self._tasks)


async def init_writer(broker: Broker) -> Writer:
    create(broker)
    writer = Writer(broker)
    assert await writer.init() == ErrorCode.NONE
    return writer


def test_the_coordinator_is_asked_once_per_transaction(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await init_writer(broker)
        coordinators = Coordinators(broker)
        assert await writer.write(b"a") == ErrorCode.TRANSACTION_ABORTABLE
        assert await writer.add() == ErrorCode.NONE
        for number in range(3):
            assert await writer.write(b"%d" % number) == ErrorCode.NONE
        assert len(coordinators.asked) == 2
        assert coordinators.asked[-1].transactions[0].verify_only
        assert await writer.end() == ErrorCode.NONE
        # A batch after the end of its transaction belongs to none.
        assert await writer.write(b"late") == ErrorCode.TRANSACTION_ABORTABLE
        assert len(coordinators.asked) == 3
        await coordinators.gone()

    node.run(story)


def test_an_abort_during_verification_refuses_the_batch(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await init_writer(broker)
        coordinators = Coordinators(broker)
        assert await writer.add() == ErrorCode.NONE
        coordinators.may_answer.clear()
        written = asyncio.ensure_future(writer.write(b"a"))
        await coordinators.heard.wait()
        assert await writer.end(committed=False) == ErrorCode.NONE
        coordinators.may_answer.set()
        assert await written == ErrorCode.TRANSACTION_ABORTABLE
        await coordinators.gone()

    node.run(story)


def test_verification_keeps_a_producer_s_order_and_blocks_no_other_producer(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await init_writer(broker)
        coordinators = Coordinators(broker)
        assert await writer.add() == ErrorCode.NONE
        coordinators.may_answer.clear()
        written = []
        for number in range(3):
            written.append(asyncio.ensure_future(writer.write(b"%d" % number)))
            await asyncio.sleep(0)
            writer.sequence = number + 1
        await coordinators.heard.wait()
        assert (await produce(broker, batch_of(b"plain"))).base_offset == 0
        assert not any(each.done() for each in written)
        coordinators.may_answer.set()
        assert await asyncio.gather(*written) == [ErrorCode.NONE] * 3
        assert len(coordinators.asked) == 1
        await coordinators.gone()

    node.run(story)


def test_the_verification_holds_while_a_thread_validates_the_records(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await init_writer(broker)
        coordinators = Coordinators(broker)
        for _ in range(2):
            assert await writer.add() == ErrorCode.NONE
            first, written = writer.sequence, []
            for number in range(3):
                written.append(asyncio.ensure_future(writer.write(LARGE)))
                await asyncio.sleep(0)
                writer.sequence = first + number + 1
            assert await asyncio.gather(*written) == [ErrorCode.NONE] * 3
            writer.sequence = first + 3
            assert await writer.end() == ErrorCode.NONE
            assert not broker._verification._guards
        assert len(coordinators.asked) == 2
        await coordinators.gone()

    node.run(story)


def test_waiting_records_survive_reuse_of_the_receive_buffer(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await init_writer(broker)
        coordinators = Coordinators(broker)
        assert await writer.add() == ErrorCode.NONE
        coordinators.may_answer.clear()
        request = writer.writing(b"a")
        data = request.topic_data[0].partition_data[0]
        received = bytearray(one_buffer(data.records))
        data.records = memoryview(received)
        answer = asyncio.ensure_future(ask(broker, request, ProduceResponse, v1(request)))
        await coordinators.heard.wait()
        received[:] = bytes(len(received))
        coordinators.may_answer.set()
        response = await answer
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        await coordinators.gone()

    node.run(story)


def test_a_lost_coordinator_is_asked_again_on_retry(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await init_writer(broker)
        coordinators = Coordinators(broker)
        assert await writer.add() == ErrorCode.NONE
        coordinators.is_lost = True
        assert await writer.write(b"a") == ErrorCode.NOT_ENOUGH_REPLICAS
        coordinators.is_lost = False
        assert await writer.write(b"a") == ErrorCode.NONE
        await coordinators.gone()

    node.run(story)


def test_transactional_offsets_are_verified_as_well(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await init_writer(broker)
        coordinators = Coordinators(broker)
        assert await writer.commit_offset(3) == ErrorCode.INVALID_TXN_STATE
        assert await writer.add_offsets() == ErrorCode.NONE
        assert await writer.commit_offset(3) == ErrorCode.NONE
        assert await writer.commit_offset(4) == ErrorCode.NONE
        assert len(coordinators.asked) == 2
        coordinators.is_lost = True
        assert await writer.end() == ErrorCode.NONE
        assert await writer.commit_offset(5) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await coordinators.gone()

    node.run(story)
