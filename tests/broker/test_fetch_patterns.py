"""A Fetch that repeats the last one gets the response that a first Fetch would get."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import FetchRequest, FetchResponse, PartitionData
from streamlog.protocol.messages.topics_and_configs import DeleteTopicsRequest, DeleteTopicsResponse
from tests.broker import node
from tests.broker.node import at, batch, create, delete, fetch_request, produce, values
from tests.broker.server.test_socket_server import Peer, peer, until

NAMED = 12


def serve(story: Callable[[Broker, Peer], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            Acceptor(broker) as server,
            peer(server) as one,
        ):
            await story(broker, one)

    asyncio.run(main())


def ask(one: Peer, offset: int, number: int, *, version: int = NAMED, epoch: int = -1) -> None:
    wanted = at(offset, max_bytes=1, epoch=epoch)
    one.ask(fetch_request(wanted, max_wait_ms=60_000), number, version)


async def answer(one: Peer, number: int, version: int = NAMED) -> PartitionData:
    answered, response = await one.answer(FetchRequest, version)
    assert answered == number
    assert isinstance(response, FetchResponse)
    return response.responses[0].partitions[0]


@pytest.mark.parametrize("version", range(4, NAMED + 1))
def test_repeated_fetches_read_a_log_to_its_end_and_beyond(version: int) -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        for number in range(20):
            await produce(broker, batch(b"%d" % number))
        for number in range(20):
            ask(one, number, number, version=version)
            found = await answer(one, number, version)
            assert values(found) == [b"%d" % number]
            assert (found.high_watermark, found.last_stable_offset) == (20, 20)
        ask(one, 20, 20, version=version)
        await produce(broker, batch(b"20"))
        assert values(await answer(one, 20, version)) == [b"20"]
        ask(one, 20, 21, version=version)
        assert (await answer(one, 21, version)).high_watermark == 21

    serve(story)


def test_responses_keep_their_order_behind_a_waiting_fetch() -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        await produce(broker, batch(b"0"))
        for number, offset in enumerate([0, 0, 1, 0]):
            ask(one, offset, number)
        assert values(await answer(one, 0)) == [b"0"]
        assert values(await answer(one, 1)) == [b"0"]
        await produce(broker, batch(b"1"))
        assert values(await answer(one, 2)) == [b"1"]
        assert values(await answer(one, 3)) == [b"0"]

    serve(story)


def test_repeated_fetches_report_errors() -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        await produce(broker, batch(b"0"))
        ask(one, 0, 0, epoch=0)
        assert values(await answer(one, 0)) == [b"0"]
        ask(one, 5, 1, epoch=0)
        assert (await answer(one, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        ask(one, 0, 2, epoch=0)
        assert values(await answer(one, 2)) == [b"0"]
        delete(broker)
        create(broker)
        ask(one, 0, 3, epoch=9)
        assert (await answer(one, 3)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    serve(story)


@pytest.mark.parametrize("version", [10, NAMED])
def test_a_repeated_fetch_is_answered_after_max_wait(version: int) -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        await produce(broker, batch(b"0"))
        request = fetch_request(at(1), max_wait_ms=1)
        for number in range(3):
            one.ask(request, number, version)
            found = await answer(one, number, version)
            assert (values(found), found.error_code, found.high_watermark) == ([], 0, 1)

    serve(story)


def test_a_repeated_fetch_waits_until_min_bytes_are_available() -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        await produce(broker, batch(b"0"))
        request = fetch_request(at(0), min_bytes=150, max_wait_ms=60_000)
        for number in range(2):
            one.ask(request, number, NAMED)
        await produce(broker, batch(b"1"))
        await produce(broker, batch(b"2"))
        for number in range(2):
            assert values(await answer(one, number))[:2] == [b"0", b"1"]

    serve(story)


def test_a_waiting_repeated_fetch_is_answered_when_its_topic_is_deleted() -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        await produce(broker, batch(b"0"))
        for number in range(2):
            ask(one, 1, number)
        await until(lambda: len(broker._fetches.delayed._parked) == 2)
        await node.ask(broker, DeleteTopicsRequest(topic_names=["t"]), DeleteTopicsResponse, 5)
        for number in range(2):
            found = await answer(one, number)
            assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    serve(story)
