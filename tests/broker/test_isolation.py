"""What read_committed readers see while transactions are open, and after."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from streamlog.protocol.schema import Message
from streamlog.records.batch import encode_batch
from streamlog.records.control_batches import ABORT, COMMIT, Marker
from tests.broker.node import Node, ask, at, create, fetch_request, later, produce, values

READ_COMMITTED = 1
LATEST = -1


@pytest.fixture(params=["always", "os"])
def node(request: pytest.FixtureRequest) -> Node:
    return Node(config=BrokerConfig(flush=request.param))


def transactional(sequence: int, *sent: bytes, producer_id: int = 7) -> bytes:
    return encode_batch(
        [(1_000 + sequence, None, value, ()) for value in sent],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )


async def write(broker: Broker, data: bytes) -> None:
    """Append a transactional batch, and wait until it is on disk."""
    broker._partitions.get("t", 0).append(data, now_ms=0, origin=AppendOrigin.TRANSACTION)
    await on_disk(broker)


async def end(broker: Broker, kind: int, producer_id: int = 7) -> None:
    partition = broker._partitions.get("t", 0)
    partition.end_transaction(producer_id, 0, Marker(kind, 0), now_ms=0, wall_ms=0)
    await on_disk(broker)


async def on_disk(broker: Broker) -> None:
    synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    broker._flush.then(lambda _: synced.set_result(None))
    await synced


async def read(broker: Broker, offset: int, *, committed: bool = True) -> PartitionData:
    request = fetch_request(at(offset))
    request.isolation_level = READ_COMMITTED if committed else 0
    response = await ask(broker, request, FetchResponse)
    return response.responses[0].partitions[0]


async def latest(broker: Broker, *, committed: bool = True, timestamp: int = LATEST) -> int:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        isolation_level=READ_COMMITTED if committed else 0,
        topics=[ListOffsetsTopic(name="t", partitions=[wanted])],
    )
    response = await ask(broker, request, ListOffsetsResponse)
    return response.topics[0].partitions[0].offset


def aborted_in(data: PartitionData) -> list[tuple[int, int]] | None:
    aborted = data.aborted_transactions
    return None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted]


def test_an_open_transaction_bounds_the_last_stable_offset(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, encode_batch([(900, None, b"plain", ())]))
        await write(broker, transactional(0, b"a", b"b"))
        await produce(broker, encode_batch([(2_000, None, b"behind", ())]))
        data = await read(broker, 0)
        assert (values(data), data.high_watermark, data.last_stable_offset) == ([b"plain"], 4, 1)
        assert aborted_in(data) == []
        assert (await read(broker, 1)).records == b""
        assert (await read(broker, 3)).records == b""
        everything = await read(broker, 0, committed=False)
        assert values(everything) == [b"plain", b"a", b"b", b"behind"]
        assert (everything.last_stable_offset, aborted_in(everything)) == (1, None)
        assert await latest(broker) == 1
        assert await latest(broker, committed=False) == 4
        assert await latest(broker, timestamp=1_500) == -1
        assert await latest(broker, timestamp=1_500, committed=False) == 3

    node.run(story)


def test_fetch_lists_aborted_transactions(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await write(broker, transactional(0, b"a", producer_id=8))
        await write(broker, transactional(0, b"b"))
        await end(broker, ABORT)
        await end(broker, ABORT, producer_id=8)
        await write(broker, transactional(1, b"c"))
        await end(broker, COMMIT)
        data = await read(broker, 0)
        assert (data.last_stable_offset, aborted_in(data)) == (6, [(8, 0), (7, 1)])
        assert aborted_in(await read(broker, 3)) == [(8, 0)]
        assert aborted_in(await read(broker, 4)) == []
        assert aborted_in(await read(broker, 6)) == []
        assert aborted_in(await read(broker, 0, committed=False)) is None

    async def after(broker: Broker) -> None:
        assert aborted_in(await read(broker, 0)) == [(8, 0), (7, 1)]

    node.run(story)
    node.run(after)


def test_an_open_transaction_survives_a_restart(node: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        await write(broker, transactional(0, b"a"))

    async def after(broker: Broker) -> None:
        assert (await read(broker, 0)).last_stable_offset == 0
        await end(broker, COMMIT)
        data = await read(broker, 0)
        assert (data.last_stable_offset, aborted_in(data)) == (2, [])

    node.run(before)
    node.run(after)


def test_a_read_committed_fetch_waits_for_the_marker(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        request = fetch_request(at(0), max_wait_ms=60_000, min_bytes=100)
        request.isolation_level = READ_COMMITTED
        waiting: asyncio.Future[Message] = later(broker, request)
        await write(broker, transactional(0, b"a" * 200))
        await on_disk(broker)
        assert not waiting.done()
        await end(broker, COMMIT)
        response = await waiting
        assert isinstance(response, FetchResponse)
        assert len(response.responses[0].partitions[0].records or b"") > 200

    node.run(story)


def test_a_read_committed_fetch_times_out_behind_an_open_transaction(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        request = fetch_request(at(0), max_wait_ms=1_000)
        request.isolation_level = READ_COMMITTED
        waiting: asyncio.Future[Message] = later(broker, request)
        await write(broker, transactional(0, b"a"))
        node.pass_time(broker, 1_000)
        response = await waiting
        assert isinstance(response, FetchResponse)
        assert not response.responses[0].partitions[0].records

    node.run(story)


def test_a_transactional_batch_without_a_transaction_is_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        answer = await produce(broker, transactional(0, b"a"))
        assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    node.run(story)


def test_the_last_stable_offset_is_never_below_the_log_start(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await write(broker, transactional(0, b"a", b"b"))
        await produce(broker, encode_batch([(2_000, None, b"behind", ())]))
        broker._partitions.get("t", 0).delete_before(1)
        data = await read(broker, 1)
        assert (data.last_stable_offset, data.records) == (1, b"")

    node.run(story)
