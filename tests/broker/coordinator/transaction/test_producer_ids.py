"""Producer ids are allocated by the controller in blocks, and none is used twice."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.coordinator.transaction.producer_ids import ProducerIds
from streamlog.errors import UsageError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.schema import Message
from tests.broker.node import Node, ask


def test_no_producer_id_is_reused_after_restarts_and_power_cuts(node: Node) -> None:
    async def story(broker: Broker) -> list[int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        answers = [await ask(broker, request, InitProducerIdResponse) for _ in range(3)]
        return [each.producer_id for each in answers]

    given = node.run(story) + node.run(story)
    node.files.crash(keep_bytes=None)
    given += node.run(story)
    assert given == sorted(set(given))
    assert given[0] >= 2**32


def test_concurrent_requests_share_one_block() -> None:
    async def main() -> None:
        asked: list[asyncio.Future[Message]] = []

        def submit(request: Message) -> asyncio.Future[Message]:
            assert request == AllocateProducerIdsRequest(broker_id=3, broker_epoch=7)
            asked.append(asyncio.get_running_loop().create_future())
            return asked[-1]

        ids = ProducerIds(submit, lambda: (3, 7))
        with pytest.raises(UsageError):
            ids.take()
        first, second = ids.ready(), ids.ready()
        asked[0].set_result(AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER))
        assert isinstance(first, asyncio.Future)
        assert isinstance(second, asyncio.Future)
        assert {await first, await second} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        third, fourth = ids.ready(), ids.ready()
        assert len(asked) == 2
        asked[1].set_result(AllocateProducerIdsResponse(producer_id_start=40, producer_id_len=2))
        assert isinstance(third, asyncio.Future)
        assert isinstance(fourth, asyncio.Future)
        assert {await third, await fourth} == {ErrorCode.NONE}
        assert [ids.take(), ids.take()] == [40, 41]
        assert isinstance(ids.ready(), asyncio.Future)

    asyncio.run(main())
