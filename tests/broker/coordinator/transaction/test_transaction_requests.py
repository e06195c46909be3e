"""WriteTxnMarkers of another broker's coordinator: written, committed, and never late."""

from __future__ import annotations

import asyncio

from streamlog.broker.broker import Broker
from streamlog.broker.coordinator.transaction.transaction_requests import MarkerAnswers
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.transaction_messages import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from streamlog.replace import replace
from tests.broker.node import Node, context
from tests.broker.test_transactions import Writer, begin_transaction


def markers(
    producer_id: int, epoch: int, *targets: tuple[str, int], coordinator_epoch: int = 9
) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        coordinator_id=7,
        markers=[
            WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=False,
                coordinator_epoch=coordinator_epoch,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=[index])
                    for topic, index in targets
                ],
            )
        ],
    )


async def write_markers(
    broker: Broker, request: WriteTxnMarkersRequest, *, connection: int = 1
) -> list[int]:
    response = await broker.handle(request, replace(context(request), connection=connection))
    return codes(response)


def codes(response: object) -> list[int]:
    assert isinstance(response, WriteTxnMarkersResponse)
    return [
        partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    ]


async def write_open_transaction(broker: Broker) -> Writer:
    writer = await begin_transaction(broker)
    assert await writer.write(b"a") == ErrorCode.NONE
    return writer


def is_open(broker: Broker, writer: Writer) -> bool:
    states = broker._partitions.get("t", 0).log.producers
    return states.has_begun(writer.producer_id, writer.epoch)


def test_a_marker_ends_a_transaction(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await write_open_transaction(broker)
        request = markers(writer.producer_id, writer.epoch, ("t", 0), ("gone", 0))
        assert await write_markers(broker, request) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert not is_open(broker, writer)

    node.run(story)


def test_markers_from_an_older_connection_are_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await write_open_transaction(broker)
        assert await write_markers(broker, markers(5, 0, ("t", 0)), connection=2) == [0]
        late = markers(writer.producer_id, writer.epoch, ("t", 0))
        assert await write_markers(broker, late, connection=1) == [ErrorCode.REQUEST_TIMED_OUT]
        assert is_open(broker, writer)
        assert await write_markers(broker, late, connection=3) == [0]
        assert not is_open(broker, writer)

    node.run(story)


def test_an_older_coordinator_is_fenced(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await write_open_transaction(broker)
        marker = markers(writer.producer_id, writer.epoch, ("t", 0))
        assert await write_markers(broker, marker) == [0]
        older = markers(writer.producer_id, writer.epoch, ("t", 0), coordinator_epoch=8)
        assert await write_markers(broker, older) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]

    node.run(story)


def test_the_response_waits_for_the_last_marker() -> None:
    async def story() -> None:
        answers = MarkerAnswers(markers(1, 0, ("a", 0), ("b", 0), ("c", 0)))
        answers.on_failure(0, ("a", 0), None)
        answer = answers.begin()
        assert isinstance(answer, asyncio.Future)
        moved = error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it has moved")
        assert isinstance(moved, LogError)
        answers.on_failure(0, ("c", 0), moved)
        assert not answer.done()
        answers.on_code(0, ("b", 0), ErrorCode.NONE)
        assert codes(await answer) == [0, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER]

    asyncio.run(story())
