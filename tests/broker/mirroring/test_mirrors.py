"""A topic of one broker, mirrored by another one, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.server.socket_server import SocketServer
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.metadata_log import LinkSetting
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    CreatableMirror,
    CreateLinkRequest,
    CreateLinkResponse,
    CreateMirrorsRequest,
    CreateMirrorsResponse,
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from streamlog.records.compression import Compression
from tests.broker.node import ask, batch, create, delete, produce

WITHIN_S = 120
QUICK_GROUPS = BrokerConfig(group=GroupConfig(initial_rebalance_delay_ms=0))


@asynccontextmanager
async def serving(
    files: MemoryFiles, port: int = 0, config: BrokerConfig = QUICK_GROUPS
) -> AsyncIterator[tuple[Broker, str]]:
    """Run a broker; yield it and its address."""
    async with (
        Broker.open("data", files=files, config=config) as broker,
        SocketServer(broker, [Listener(host="127.0.0.1", port=port)]) as listening,
    ):
        (server,) = listening.servers
        yield broker, f"127.0.0.1:{server.port}"


async def link(
    target: Broker, address: str, source: Broker, name: str = "east", **more: str
) -> bytes:
    given = {"bootstrap.servers": address, "refresh.topics.interval.ms": "50", **more}
    settings = [LinkSetting(name=each, value=value) for each, value in given.items()]
    request = CreateLinkRequest(name=name, source_cluster_id=source.cluster_id, settings=settings)
    answer = await ask(target, request, CreateLinkResponse)
    assert not answer.error_code, answer.error_message
    return answer.link_id


async def mirror(target: Broker, link_id: bytes, source: Broker, name: str = "t") -> None:
    topic = source.directory.topics[name]
    asked = CreatableMirror(
        name=name,
        source_topic=name,
        source_topic_id=topic.topic_id,
        num_partitions=len(topic.partitions),
    )
    answer = await ask(
        target, CreateMirrorsRequest(link_id=link_id, topics=[asked]), CreateMirrorsResponse
    )
    (result,) = answer.topics
    assert not result.error_code, result.error_message


async def alter(target: Broker, state: MirrorState, name: str = "t") -> None:
    request = AlterMirrorsRequest(topics=[AlterableMirror(name=name, state=state)])
    (result,) = (await ask(target, request, AlterMirrorsResponse)).topics
    assert not result.error_code, result.error_message


def content(broker: Broker, index: int = 0, name: str = "t") -> bytes:
    """Return the bytes of a partition's log, from its start to its end."""
    log = broker.directory.topics[name].partitions[index]
    found = b""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.range(offset, max_bytes=1 << 20)
        found += bytes(piece) if isinstance(piece, bytes | memoryview | bytearray) else piece.read()
        offset = log.read_end_offset
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - of two brokers, neither of which is told
            await asyncio.sleep(0.01)


def test_a_mirror_has_the_bytes_of_its_source_and_takes_none_of_its_own() -> None:
    async def story() -> None:
        random = Random(1)
        async with (
            serving(MemoryFiles()) as (source, address),
            serving(MemoryFiles()) as (target, _),
        ):
            create(source, partitions=3)
            for _ in range(50):
                data = batch(*[random.randbytes(20)] * 3, codec=random.choice([*Compression]))
                await produce(source, data, index=random.randrange(2))
            link_id = await link(target, address, source)
            await mirror(target, link_id, source)
            same = lambda: all(content(source, n) == content(target, n) for n in range(3))  # noqa: E731
            await until(same)
            assert content(target, 0)
            await produce(source, batch(b"late"))
            await until(same)

            refused = await produce(target, batch(b"own"))
            assert refused.error_code == ErrorCode.POLICY_VIOLATION
            assert "mirrors a topic of another cluster" in (refused.error_message or "")

            await alter(target, MirrorState.PROMOTED)
            taken = await produce(target, batch(b"own"))
            assert taken.error_code == 0
            # What the source gets from now on is not this cluster's any more.
            before = content(target)
            await produce(source, batch(b"after"))
            await asyncio.sleep(0)
            assert content(target) == before
            assert before.startswith(content(source)[: len(before) // 2])

    asyncio.run(story())


def test_a_mirror_continues_after_a_restart_of_either_side() -> None:
    async def story() -> None:
        there, here = MemoryFiles(), MemoryFiles()
        async with serving(there) as (source, address):
            port = int(address.rpartition(":")[2])
            create(source)
            await produce(source, batch(b"1", b"2"))
            async with serving(here) as (target, _):
                link_id = await link(target, address, source)
                await mirror(target, link_id, source)
                await until(lambda: content(target) == content(source))
            await produce(source, batch(b"3"))
            async with serving(here) as (target, _):
                await until(lambda: content(target) == content(source))
        async with serving(here) as (target, _), serving(there, port) as (source, _):
            await produce(source, batch(b"4"))
            await until(lambda: content(target) == content(source))

    asyncio.run(story())


def test_a_paused_mirror_copies_nothing_until_it_is_resumed() -> None:
    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (source, address),
            serving(MemoryFiles()) as (target, _),
        ):
            create(source)
            link_id = await link(target, address, source)
            await mirror(target, link_id, source)
            await produce(source, batch(b"1"))
            await until(lambda: content(target) == content(source))
            await alter(target, MirrorState.PAUSED)
            before = content(target)
            create(source, "other")
            await mirror(target, link_id, source, "other")
            await produce(source, batch(b"2"))
            await produce(source, batch(b"2"), topic="other")
            await until(lambda: content(target, name="other") != b"")
            assert content(target) == before
            await alter(target, MirrorState.ACTIVE)
            await until(lambda: content(target) == content(source))

    asyncio.run(story())


def test_a_link_mirrors_topics_by_pattern_with_their_settings() -> None:
    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (source, address),
            serving(MemoryFiles()) as (target, _),
        ):
            create(source, "orders", partitions=2, retention_ms="86400000")
            create(source, "users")
            await link(target, address, source, topics="or.*", prefix="eu.")
            await produce(source, batch(b"1"), topic="orders")
            topics = target.directory.topics
            await until(lambda: "eu.orders" in topics)
            assert topics["eu.orders"].configs == {"retention.ms": "86400000"}
            await until(lambda: content(target, name="eu.orders") != b"")
            assert content(target, name="eu.orders") == content(source, name="orders")
            create(source, "orders-2")
            await until(lambda: "eu.orders-2" in topics)
            growth = CreatePartitionsTopic(name="orders", count=5, assignments=None)
            request = CreatePartitionsRequest(topics=[growth])
            answer = await ask(source, request, CreatePartitionsResponse)
            assert not answer.results[0].error_code
            await until(lambda: len(topics["eu.orders"].partitions) == 5)
            assert not any("users" in name for name in topics)
            described = await ask(target, DescribeMirrorsRequest(), DescribeMirrorsResponse)
            assert [each.name for each in described.links] == ["east"]
            assert [each.name for each in described.topics] == ["eu.orders", "eu.orders-2"]
            assert {p.source_end_offset for p in described.topics[0].partitions} >= {1}
            delete(source, "orders-2")
            await until(
                lambda: stopped(target, "eu.orders-2").startswith("the source has deleted it; ")
            )

    asyncio.run(story())


def stopped(broker: Broker, name: str) -> str:
    metadata = broker._member.metadata
    topic = metadata.topic(name)
    return "" if topic is None else metadata.mirrors[topic.topic_id].reason


def test_two_clusters_mirror_each_other_without_loops() -> None:
    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (east, east_address),
            serving(MemoryFiles()) as (west, west_address),
        ):
            for broker in (east, west):
                create(broker, "orders")
            await link(west, east_address, east, topics=".*", prefix="east.")
            await link(east, west_address, west, topics=".*", prefix="west.")
            await produce(east, batch(b"e"), topic="orders")
            await produce(west, batch(b"w"), topic="orders")
            await until(lambda: "east.orders" in west.directory.topics)
            await until(lambda: "west.orders" in east.directory.topics)
            await until(lambda: content(west, name="east.orders") != b"")
            await until(lambda: content(east, name="west.orders") != b"")
            # Several rounds later there is nothing new: a mirror of a mirror does not come back.
            await asyncio.sleep(0.5)
            assert {*east.directory.topics} == {"orders", "west.orders"}
            assert {*west.directory.topics} == {"orders", "east.orders"}

    asyncio.run(story())


def test_a_link_fetches_no_more_than_its_bytes_per_second() -> None:
    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (source, address),
            serving(MemoryFiles()) as (target, _),
        ):
            create(source, "orders")
            for _ in range(30):
                await produce(source, batch(bytes(2_000)), topic="orders")
            size = len(content(source, name="orders"))
            rate = 25_000
            began = asyncio.get_running_loop().time()
            await link(target, address, source, topics="orders", **{"bytes.per.second": str(rate)})
            await until(lambda: "orders" in target.directory.topics)
            await until(lambda: content(target, name="orders") == content(source, name="orders"))
            took_s = asyncio.get_running_loop().time() - began
            # One second's bytes come at once, and the last fetch may exceed the bound by as many.
            assert took_s >= (size - 2 * rate) / rate

    asyncio.run(story())


def test_a_link_whose_address_leads_to_another_cluster_copies_nothing() -> None:
    async def story() -> None:
        async with (
            serving(MemoryFiles()) as (source, _),
            serving(MemoryFiles()) as (other, address),
            serving(MemoryFiles()) as (target, _),
        ):
            create(other, "orders")
            await produce(other, batch(b"1"), topic="orders")
            await link(target, address, source, topics="orders")

            async def trouble() -> str:
                answer = await ask(target, DescribeMirrorsRequest(), DescribeMirrorsResponse)
                return answer.links[0].trouble

            async with asyncio.timeout(WITHIN_S):
                while not (found := await trouble()):  # noqa: ASYNC110 - of a broker that does not tell
                    await asyncio.sleep(0.01)
            assert f"lead to cluster {other.cluster_id}" in found
            assert "orders" not in target.directory.topics

    asyncio.run(story())
