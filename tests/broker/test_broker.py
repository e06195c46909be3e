"""Broker: every advertised version is answered, and time passes without calls of `tick`."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import AdvertisedEndpoint
from streamlog.broker.security.principals import RequestContext
from streamlog.broker.storage.data_directory import format_directory
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import ConnectionLost, UsageError
from streamlog.protocol.api_table import APIS, Api
from streamlog.protocol.codec import decode, encode
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest, ApiVersionsResponse
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from streamlog.replace import replace
from tests.broker.node import (
    Node,
    at,
    batch,
    context,
    create,
    delete,
    fetch,
    fetch_request,
    later,
    produce,
    records,
)

EVERY_VERSION = [
    (api, version)
    for api in APIS.values()
    for version in range(api.max_version + 1)
    if api.is_served(version)
]


@pytest.mark.parametrize(
    ("api", "version"),
    EVERY_VERSION,
    ids=[f"{api.name}-{version}" for api, version in EVERY_VERSION],
)
def test_an_empty_request_of_every_version_is_answered(node: Node, api: Api, version: int) -> None:
    async def story(broker: Broker) -> None:
        request = decode(api.request, version, encode(api.request(), version))
        answer = broker.begin(request, context(request, version))
        if answer is None:
            assert api.name == "Produce", "only acks=0 wants none"
            return
        if isinstance(answer, asyncio.Future):
            answer = await answer
        assert isinstance(answer, api.response)
        assert decode(api.response, version, encode(answer, version)) is not None

    node.run(story)


def test_a_message_that_is_not_a_request_is_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        with pytest.raises(UsageError, match="ApiVersionsResponse"):
            await broker.handle(ApiVersionsResponse(), RequestContext(0, None, "/127.0.0.1"))

    node.run(story)


def test_a_waiting_fetch_times_out_without_a_tick() -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker, asyncio.timeout(60):
            create(broker)
            slow = later(broker, fetch_request(at(0), max_wait_ms=60_000))
            soon = later(broker, fetch_request(at(0), max_wait_ms=1))
            assert isinstance(await soon, FetchResponse)
            assert not slow.done()
            slow.cancel()

    asyncio.run(main())


def test_inter_broker_apis_are_listed_only_on_the_inter_broker_listener() -> None:
    async def shown(broker: Broker, listener: str) -> set[int]:
        request = ApiVersionsRequest()
        at = replace(context(request), listener=AdvertisedEndpoint(listener, "127.0.0.1", 9092))
        response = await broker.handle(request, at)
        assert isinstance(response, ApiVersionsResponse)
        return {each.api_key for each in response.api_keys}

    async def main() -> None:
        settings = {
            "node.id": "1",
            "controller.quorum.voters": "1@127.0.0.1:9093",
            "listeners": "PLAINTEXT://127.0.0.1:9092,INNER://127.0.0.1:9093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
            "inter.broker.listener.name": "INNER",
        }
        config, files = BrokerConfig().override(settings), MemoryFiles()
        format_directory("data", node_id=1, files=files)
        async with Broker.open("data", config=config, files=files) as broker:
            inner, outer = await shown(broker, "INNER"), await shown(broker, "PLAINTEXT")
        assert inner == {*APIS}
        assert inner - outer == {
            52,
            53,
            54,
            56,
            59,
            62,
            63,
            67,
            20_004,
            20_005,
            20_009,
            20_011,
            20_020,
            20_021,
        }
        async with Broker.open("alone", files=MemoryFiles()) as alone:
            assert await shown(alone, "PLAINTEXT") == outer

    asyncio.run(main())


def test_a_closed_broker_answers_no_request(node: Node) -> None:
    async def story(broker: Broker) -> None:
        broker.close()
        broker.close()
        with pytest.raises(ConnectionLost, match="stopped"):
            await broker.handle(ApiVersionsRequest(), context(ApiVersionsRequest()))

    node.run(story)


def test_retention_removes_segments_and_raises_the_log_start_offset(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, retention_ms="60000", segment_bytes="1024")
        for number in range(30):
            timestamp_ms = node.clock.wall_ms() + number * 1000
            await produce(broker, batch(b"x" * 100, timestamp_ms=timestamp_ms))
        node.pass_time(broker, 30_000)
        node.pass_time(broker, 300_000)
        (gone,) = await fetch(broker, at(0))
        assert gone.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        (end,) = await fetch(broker, at(30))
        assert (end.error_code, end.log_start_offset) == (0, 30)
        node.pass_time(broker, 60_000)

    node.run(story)


def test_a_produce_response_holds_the_log_append_time(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, message_timestamp_type="LogAppendTime")
        written = await produce(broker, batch(b"a", timestamp_ms=5))
        assert written.log_append_time_ms == node.clock.wall_ms()
        (data,) = await fetch(broker, at(0))
        assert [record.timestamp_ms for record in records(data)] == [node.clock.wall_ms()]

    node.run(story)


def test_partitions_are_counted_as_topics_come_and_go(node: Node) -> None:
    async def story(broker: Broker) -> None:
        held, dropped = broker.partition_turnover
        create(broker, "a", partitions=3)
        create(broker, "b", partitions=2)
        assert broker.partition_turnover == (held + 5, dropped)
        delete(broker, "a")
        assert broker.partition_turnover == (held + 2, dropped + 3)

    node.run(story)
