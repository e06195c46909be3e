"""Pipelined produce requests over a socket: each gets its own response, in order."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import LogDirectoryFailed
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.frame import encode_request
from streamlog.protocol.messages.cluster_metadata import MetadataRequest
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    FetchResponse,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.produce_runs import RUN_MAX
from streamlog.protocol.schema import Message
from streamlog.records.batch import encode_batch
from streamlog.records.compression import Compression
from tests.broker.node import at, batch, create, fetch_request, produce_request, values
from tests.broker.server.test_socket_server import Peer, peer

FETCH_VERSION = 12
"""The last version that names topics."""
FLUSHES = ["os", "always"]
Story = Callable[[Broker, Peer], Awaitable[None]]


def serve(story: Story, *, flush: str = "os", files: MemoryFiles | None = None) -> None:
    async def main() -> None:
        config = BrokerConfig(flush=flush)
        files_or_new = MemoryFiles() if files is None else files
        async with (
            Broker.open("data", config=config, files=files_or_new) as broker,
            Acceptor(broker) as server,
            peer(server) as one,
        ):
            await story(broker, one)

    asyncio.run(main())


def send(one: Peer, requests: Sequence[Message], version: int | None = None) -> None:
    """Send all requests by one write, numbered from 0."""
    frames = []
    for number, request in enumerate(requests):
        api = api_of(type(request))
        newest = FETCH_VERSION if isinstance(request, FetchRequest) else api.max_version
        at_version = newest if version is None else version
        frames += encode_request(api, at_version, number, "peer", request)
    one.write(b"".join(frames))


async def answers(
    one: Peer, count: int, version: int | None = None
) -> list[PartitionProduceResponse]:
    found = []
    for expected in range(count):
        number, response = await one.answer(ProduceRequest, version)
        assert number == expected
        assert isinstance(response, ProduceResponse)
        found.append(response.responses[0].partition_responses[0])
    return found


async def read(one: Peer, topic: str, index: int = 0) -> list[bytes]:
    one.ask(fetch_request(at(0, partition=index), topic=topic), 99, FETCH_VERSION)
    _, response = await one.answer(FetchRequest, FETCH_VERSION)
    assert isinstance(response, FetchResponse)
    return values(response.responses[0].partitions[0])


@pytest.mark.parametrize("flush", FLUSHES)
@pytest.mark.parametrize("version", range(3, api_of(ProduceRequest).max_version + 1))
def test_pipelined_requests_are_answered_in_order(version: int, flush: str) -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        sent = [batch(b"%d" % number, b"+") for number in range(20)]
        send(one, [produce_request(each) for each in sent], version)
        found = await answers(one, 20, version)
        assert [(each.error_code, each.base_offset) for each in found] == [
            (0, 2 * number) for number in range(20)
        ]
        assert (await read(one, "t"))[::2] == [b"%d" % number for number in range(20)]

    serve(story, flush=flush)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_transactional_batch_needs_a_transactional_id(codec: Compression) -> None:
    """Kafka checks this before it looks at the topic, for single requests and for runs."""
    rows = [(1_000, None, b"x", ())]
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    without_begin = encode_batch(rows, codec=codec, transactional=True, **options)
    denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        create(broker, "another")
        sent = [batch(b"0"), batch(b"1"), without_begin, batch(b"2"), without_begin]
        send(one, [produce_request(each) for each in sent])
        found = await answers(one, 5)
        assert [each.error_code for each in found] == [0, 0, denied, 0, denied]
        send(one, [produce_request(without_begin, topic="nowhere")])
        assert (await answers(one, 1))[0].error_code == denied
        both = produce_request(batch(b"lost"))
        both.topic_data += produce_request(without_begin, topic="another").topic_data
        one.ask(both, 0)
        _, response = await one.answer(ProduceRequest)
        assert isinstance(response, ProduceResponse)
        codes = [each.partition_responses[0].error_code for each in response.responses]
        assert codes == [denied, denied]
        assert await read(one, "t") == [b"0", b"1", b"2"]

    serve(story)


@pytest.mark.parametrize("compression", ["producer", "zstd"])
def test_an_empty_records_field_is_an_invalid_record(compression: str) -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker, compression_type=compression)
        send(one, [produce_request(each) for each in (batch(b"0"), b"", batch(b"1"), None)])
        found = await answers(one, 4)
        invalid = ErrorCode.INVALID_RECORD
        assert [each.error_code for each in found] == [0, invalid, 0, invalid]

    serve(story)


@pytest.mark.parametrize("flush", FLUSHES)
def test_partitions_and_topics_may_alternate(flush: str) -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker, partitions=2)
        create(broker, "another", partitions=1)
        targets = [("t", 0), ("another", 0), ("t", 1), ("t", 0), ("nowhere", 0), ("t", 9)] * 4
        send(
            one,
            [
                produce_request(batch(b"%d" % number), topic=topic, index=index)
                for number, (topic, index) in enumerate(targets)
            ],
        )
        found = await answers(one, len(targets))
        for target in set(targets):
            there = [
                (each.index, each.error_code, each.base_offset)
                for each, where in zip(found, targets, strict=True)
                if where == target
            ]
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if target in {("nowhere", 0), ("t", 9)}:
                assert set(there) == {(target[1], unknown, -1)}
            else:
                assert there == [(target[1], 0, offset) for offset in range(len(there))]
        assert await read(one, "another") == [b"1", b"7", b"13", b"19"]

    serve(story, flush=flush)


@pytest.mark.parametrize("flush", FLUSHES)
def test_a_refused_request_leaves_the_others_unaffected(flush: str) -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        good = batch(b"x")
        bad = bytes([*good[:-1], good[-1] ^ 1])
        send(one, [produce_request(each) for each in (good, good, bad, good, b"", good)])
        found = await answers(one, 6)
        assert [(each.error_code, each.base_offset) for each in found] == [
            (0, 0),
            (0, 1),
            (ErrorCode.CORRUPT_MESSAGE, -1),
            (0, 2),
            (ErrorCode.INVALID_RECORD, -1),
            (0, 3),
        ]
        assert [bool(each.error_message) for each in found] == [
            bool(each.error_code) for each in found
        ]

    serve(story, flush=flush)


@pytest.mark.parametrize("flush", FLUSHES)
def test_other_requests_between_produces_keep_their_order(flush: str) -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        ours = produce_request(batch(b"x"))
        look = MetadataRequest(topics=None)
        silent = produce_request(batch(b"silent"), acks=0)
        one_after_the_other = [ours, ours, look, ours, silent, ours, look]
        send(one, one_after_the_other)
        for number, request in enumerate(one_after_the_other):
            if request is silent:
                continue
            answered, _ = await one.answer(type(request))
            assert answered == number
        assert await read(one, "t") == [b"x", b"x", b"x", b"silent", b"x"]

    serve(story, flush=flush)


def test_requests_before_garbage_on_the_connection_are_appended() -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        send(one, [produce_request(batch(b"x"))] * 3)
        one.write(b"\xff\xff\xff\xff")
        assert [each.base_offset for each in await answers(one, 3)] == [0, 1, 2]
        assert await one.hung_up()

    serve(story)


@pytest.mark.parametrize("flush", FLUSHES)
def test_more_requests_than_a_run_holds_are_answered_in_order(flush: str) -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        count = 2 * RUN_MAX + 10
        send(one, [produce_request(batch(b"x"))] * count)
        assert [each.base_offset for each in await answers(one, count)] == list(range(count))

    serve(story, flush=flush)


def test_a_failed_sync_fails_all_requests_that_wait_for_it() -> None:
    files = MemoryFiles()

    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        good = batch(b"x")
        bad = bytes([*good[:-1], good[-1] ^ 1])
        send(one, [produce_request(good)])
        await answers(one, 1)
        files.fail_next_sync(errno.EIO)
        send(one, [produce_request(each) for each in (good, bad, good)])
        found = await answers(one, 3)
        assert [each.error_code for each in found] == [
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.KAFKA_STORAGE_ERROR,
        ]

    with pytest.raises(LogDirectoryFailed):
        serve(story, flush="always", files=files)


def test_a_run_completes_a_waiting_fetch() -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        send(one, [produce_request(batch(b"x"))])
        await answers(one, 1)
        waits = fetch_request(at(1), max_wait_ms=60_000)
        send(one, [waits, *[produce_request(batch(b"y"))] * 2])
        number, response = await one.answer(FetchRequest, FETCH_VERSION)
        assert number == 0
        assert isinstance(response, FetchResponse)
        assert values(response.responses[0].partitions[0]) == [b"y", b"y"]

    serve(story)
