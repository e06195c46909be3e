"""Cluster: its metadata may be stale, so it asks again, tries other brokers, and finally fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.server.socket_server import Acceptor
from streamlog.client.cluster import (
    METADATA_AGE_MS_MAX,
    UNKNOWN_TOPIC_TIMEOUT_MS,
    Address,
    Cluster,
    Lane,
)
from streamlog.clock import ManualClock, SystemClock
from streamlog.errors import ConnectionLost, StreamlogError, UnknownTopicOrPartition, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import TcpTransport
from tests.broker.node import create
from tests.broker.three_brokers import Cluster as Brokers
from tests.broker.three_brokers import Unstarted, run_cluster
from tests.transport.test_client_connection import open_to

connect = partial(TcpTransport.connect, client_id="test", timeout_ms=60_000)


def test_a_broker_that_moved_to_another_port_is_found_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        addresses: list[Address] = []
        cluster = Cluster(lambda: addresses, connect, SystemClock())
        with pytest.raises(ConnectionLost, match="no process has this log open"):
            await cluster.describe([])
        for _ in range(2):
            async with Broker.open(str(tmp_path)) as broker, Acceptor(broker) as server:
                if not broker.directory.topics:
                    create(broker, "t", 1)
                addresses[:] = [("127.0.0.1", 1), (server.host, server.port)]
                found = await cluster.retrying(lambda: cluster.describe(["t"]))
                assert found[0].leaders == {0: broker.directory.node_id}
                assert cluster.cluster_id == broker.cluster_id
        await cluster.close()

    asyncio.run(main())


def test_opening_waits_for_a_broker_without_a_cluster_and_then_fails() -> None:
    async def story(brokers: Brokers) -> None:
        first, second, _ = brokers.nodes.values()
        await first.start()
        cluster = Cluster(lambda: [("127.0.0.1", first.port)], connect, SystemClock())
        waited = rf"^after 0\.1 s the broker at 127\.0\.0\.1:{first.port} has not found its cluster"
        with pytest.raises(ConnectionLost, match=waited):
            await cluster.find(timeout_ms=100)
        opening = asyncio.ensure_future(Log.open(f"kafka://127.0.0.1:{first.port}").__aenter__())
        await second.start()
        await (await opening).close()

    run_cluster(Unstarted, story)


def test_another_log_at_a_known_address_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        addresses: list[Address] = []
        clock = ManualClock()
        cluster = Cluster(lambda: addresses, connect, clock)

        async def describe() -> None:
            clock.advance(100)
            await cluster.describe([])

        for name in ("one", "two"):
            async with (
                Broker.open(str(tmp_path / name)) as broker,
                Acceptor(broker) as server,
            ):
                addresses[:] = [(server.host, server.port)]
                if name == "one":
                    await describe()
                    continue
                with pytest.raises(ConnectionLost, match="another log answers"):
                    await cluster.retrying(describe, timeout_ms=500)
        await cluster.close()

    asyncio.run(main())


def test_metadata_expires(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with Broker.open(str(tmp_path)) as broker, Acceptor(broker) as server:
            create(broker, "t", 2)
            cluster = Cluster(lambda: [(server.host, server.port)], connect, clock)
            part = TopicPartition("t", 1)
            assert cluster.leader(part) is None
            assert len((await cluster.topic("t")).leaders) == 2
            assert cluster.leader(part) == broker.directory.node_id
            assert cluster.leader(TopicPartition("t", 2)) is None
            clock.advance(METADATA_AGE_MS_MAX + 1)
            assert cluster.known("t") is None
            await cluster.topic("t")
            cluster.forget(["t"])
            assert cluster.leader(part) is None
            await cluster.close()

    asyncio.run(main())


def test_each_lane_shares_one_connection_among_callers(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker.open(str(tmp_path)) as broker, Acceptor(broker) as server:
            cluster = Cluster(lambda: [(server.host, server.port)], connect, SystemClock())
            await cluster.describe([])
            node_id = broker.directory.node_id
            for lane in Lane:
                opened = await asyncio.gather(*(cluster.transport(node_id, lane) for _ in range(5)))
                assert len({id(transport) for transport in opened}) == 1
                assert cluster.is_connected(node_id, lane)
            await cluster.close()
            assert not cluster.is_connected(node_id, Lane.MAIN)

    asyncio.run(main())


def test_a_cancelled_close_closes_every_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker.open(str(tmp_path)) as broker, Acceptor(broker) as server:
            cluster = Cluster(lambda: [(server.host, server.port)], connect, SystemClock())
            node_id = (await cluster.nodes())[0]
            for lane in Lane:
                await cluster.transport(node_id, lane)
            closing = asyncio.ensure_future(cluster.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert open_to((server.host, server.port)) == []

    asyncio.run(main())


def test_a_connection_opened_during_close_is_closed(tmp_path: Path) -> None:
    """At every turn of the event loop: with a known broker, and during bootstrap."""

    async def main(turns: int, *, is_known: bool) -> None:
        async with Broker.open(str(tmp_path)) as broker, Acceptor(broker) as server:
            cluster = Cluster(lambda: [(server.host, server.port)], connect, SystemClock())
            if is_known:
                await cluster.nodes()
                await cluster._hang_up()
            request = asyncio.ensure_future(cluster.nodes())
            for _ in range(turns):
                await asyncio.sleep(0)
            await cluster.close()
            with suppress(ConnectionLost, UsageError):  # The answer may have arrived already.
                await request
            assert not any(cluster.is_connected(broker.directory.node_id, each) for each in Lane)
            assert open_to((server.host, server.port)) == []

    for turns in range(1, 30, 2):
        for is_known in (False, True):
            asyncio.run(main(turns, is_known=is_known))


def test_an_unknown_topic_is_waited_for_briefly(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Broker.open(str(tmp_path)) as broker,
            Acceptor(broker) as server,
            asyncio.TaskGroup() as group,
        ):
            clock = ManualClock()
            cluster = Cluster(lambda: [(server.host, server.port)], connect, clock)
            late = group.create_task(cluster.topic("late"))
            await cluster.describe([])
            create(broker, "late", 1)
            assert (await late).name == "late"
            absent = group.create_task(_unknown(cluster, "absent"))
            await cluster.describe([])
            clock.advance(UNKNOWN_TOPIC_TIMEOUT_MS)
            assert not (await absent).retriable
            await cluster.close()

    asyncio.run(main())


async def _unknown(cluster: Cluster, name: str) -> UnknownTopicOrPartition:
    with pytest.raises(UnknownTopicOrPartition, match=f"no topic '{name}'") as unknown:
        await cluster.topic(name)
    return unknown.value


def test_retrying_ends_with_the_last_error() -> None:
    async def main() -> None:
        attempts: list[int] = []
        clock = ManualClock()
        cluster = Cluster(list, connect, clock)

        async def attempt() -> None:
            attempts.append(1)
            clock.advance(20)
            raise ConnectionLost(f"attempt {len(attempts)}")

        with pytest.raises(ConnectionLost, match="attempt 3"):
            await cluster.retrying(attempt, timeout_ms=200)

        async def fatal() -> None:
            attempts.clear()
            raise StreamlogError("never again")

        with pytest.raises(StreamlogError, match="never again"):
            await cluster.retrying(fatal)
        assert attempts == []

    asyncio.run(main())
