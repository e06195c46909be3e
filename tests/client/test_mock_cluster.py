"""Our client against librdkafka's mock cluster: three brokers in C with faults on request.

The mock ignores sequence numbers, so it writes the batches that follow a refused one:
`test_accumulator.py` tests the order after refusals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from conformance.mock import MockCluster
from streamlog.client.cluster import Cluster
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.client.producer import Producer, ProducerSettings
from streamlog.client.producer.accumulator import Fields
from streamlog.clock import Clock, SystemClock
from streamlog.errors import LogError, RequestTimedOut
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import TcpTransport
from tests.client.clusters import mocked

PRODUCE, FETCH, HEARTBEAT, INIT_PRODUCER_ID = 0, 1, 12, 22
PARTITIONS = [TopicPartition("t", number) for number in range(4)]


class Skipping(SystemClock):
    """A clock that runs, and that a test can move forward."""

    skipped_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.skipped_ms


class MockedClients(MockCluster):
    """Brokers 1 to 3, a topic t with 4 partitions, and our clients for them."""

    def __init__(self) -> None:
        super().__init__(brokers=3)
        self.make_topic("t", 4, 3)
        self.addresses = [
            (host, int(port))
            for host, _, port in (place.rpartition(":") for place in self.address.split(","))
        ]

    def connection(self, clock: Clock | None = None) -> Cluster:
        """Return a cluster as our clients see it."""
        connect = partial(TcpTransport.connect, client_id="test", timeout_ms=60_000)
        return Cluster(lambda: self.addresses, connect, clock or SystemClock())

    def producer(self, clock: Clock | None = None, **settings: object) -> Producer:
        configured = ProducerSettings(**settings)  # type: ignore[arg-type]
        return Producer(self.connection(clock), configured)

    def consumer(self, **settings: object) -> Consumer:
        settings = {"auto_offset_reset": "earliest", **settings}
        return Consumer(self.connection(), ConsumerSettings(**settings))  # type: ignore[arg-type]

    async def values(self, *partitions: TopicPartition) -> list[int]:
        """Return all values in these partitions, as numbers."""
        async with self.consumer() as consumer:
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            found: list[int] = []
            while consumer.positions() != ends:
                for records in (await consumer.poll(timeout_ms=100)).values():
                    found += [int(record.value or b"") for record in records]
            return found


@pytest.fixture
def mock() -> Iterator[MockedClients]:
    with MockedClients() as cluster:
        yield cluster


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_written_to_three_brokers_and_read_back(
    mock: MockedClients, compression: str
) -> None:
    async def main() -> None:
        async with mock.producer(compression=compression) as producer:
            for number in range(400):
                await producer.send("t", b"%d" % number, key=b"%d" % number)
        assert sorted(await mock.values(*PARTITIONS)) == list(range(400))

    asyncio.run(main())


def test_a_refused_batch_is_retried_and_written_once(mock: MockedClients) -> None:
    async def main() -> None:
        refusals = [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.REQUEST_TIMED_OUT,
        ]
        async with mock.producer(linger_ms=0, batch_bytes=100) as producer:
            for first in range(0, 200, 40):
                for number in range(first, first + 40):
                    await producer.send("t", b"%d" % number, partition=0)
                await producer.flush()
                mock.refuse(PRODUCE, refusals[first // 40 % 3], refusals[first // 80])
        assert sorted(await mock.values(PARTITIONS[0])) == list(range(200))

    asyncio.run(main())


def test_a_leader_change_logs_no_warning(
    mock: MockedClients, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(*refusals: ErrorCode) -> list[str]:
        caplog.clear()
        async with mock.producer(linger_ms=0) as producer:
            mock.refuse(PRODUCE, *refusals)
            await producer.send_batch("t", 0, [(0, None, b"1", ())])
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    moving = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)
    assert asyncio.run(main(*moving)) == []
    warnings = asyncio.run(main(*moving, ErrorCode.NOT_ENOUGH_REPLICAS))
    assert len(warnings) == 2
    assert "will be retried" in warnings[0]
    assert "NOT_ENOUGH_REPLICAS" in warnings[0]
    assert "accept records again" in warnings[1]


def test_producer_and_consumer_follow_leader_changes(mock: MockedClients) -> None:
    async def main() -> None:
        part = PARTITIONS[1]
        async with mock.producer(linger_ms=0) as producer, mock.consumer() as consumer:
            consumer.assign([part])
            seen: list[int] = []
            for number in range(9):
                if number % 3 == 2:
                    mock.lead(*part, 1 + number % 3)
                await (await producer.send("t", b"%d" % number, partition=part.partition))
                while len(seen) <= number:
                    records = (await consumer.poll(timeout_ms=60_000))[part]
                    seen += [int(record.value or b"") for record in records]
            assert seen == list(range(9))

    asyncio.run(main())


def test_a_stopped_broker_delays_only_its_own_partitions(mock: MockedClients) -> None:
    async def main() -> None:
        for part in PARTITIONS:
            mock.lead(*part, 1 + part.partition % 3)
        async with mock.producer(linger_ms=0) as producer:
            for part in PARTITIONS:
                await (await producer.send("t", b"0", partition=part.partition))
            mock.down(2)
            held = await producer.send("t", b"1", partition=1)
            for number in range(5):
                await (await producer.send("t", b"%d" % number, partition=2))
            assert not held.done()
            mock.up(2)
            assert (await held).partition == 1

    asyncio.run(main())


def test_an_undeliverable_record_fails_in_time_with_the_reason(mock: MockedClients) -> None:
    async def main() -> None:
        clock, timeout_ms = Skipping(), 120_000
        async with mock.producer(clock, linger_ms=0, delivery_timeout_ms=timeout_ms) as producer:
            await (await producer.send("t", b"0", partition=0))
            mock.refuse(PRODUCE, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 50)
            late = await producer.send("t", b"1", partition=0)
            while not producer._sender._trouble:  # noqa: ASYNC110 - nobody tells a test of it
                await asyncio.sleep(0)
            clock.skipped_ms = timeout_ms
            with pytest.raises(RequestTimedOut, match="NOT_ENOUGH_REPLICAS"):
                await late

    asyncio.run(main())


def test_a_broker_without_idempotence_is_reported(mock: MockedClients) -> None:
    mock.serve(INIT_PRODUCER_ID, -1, -1)

    async def main() -> None:
        async with mock.producer() as producer:
            # The refusal may come before the record is handed over: then `send` raises it, and not
            # the delivery.
            with pytest.raises(LogError, match="set idempotent=False"):
                await (await producer.send("t", b"1", partition=0))
            with pytest.raises(LogError, match="set idempotent=False"):
                await producer.send("t", b"1", partition=0)
        many: list[Fields] = [(number, None, b"%d" % number, ()) for number in range(50)]
        async with mock.producer(idempotent=False, batch_bytes=100) as producer:
            mock.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            await producer.send_batch("t", 0, many)
        assert await mock.values(PARTITIONS[0]) == list(range(50))

    asyncio.run(main())


def test_fetch_errors_are_retried(mock: MockedClients) -> None:
    async def main() -> None:
        async with mock.producer() as producer:
            await producer.send_batch("t", 0, [(n, None, b"%d" % n, ()) for n in range(10)])
        mock.refuse(FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)
        assert await mock.values(PARTITIONS[0]) == list(range(10))

    asyncio.run(main())


def test_a_group_survives_errors_of_its_coordinator(mock: MockedClients) -> None:
    async def main() -> None:
        async with mock.producer() as producer:
            for number in range(100):
                await producer.send("t", b"%d" % number, key=b"%d" % number)
        group = {"group_id": "g", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 20}
        assigned: list[int] = []

        async def on_assigned(partitions: frozenset[TopicPartition]) -> None:
            assigned.append(len(partitions))

        async with mock.consumer(**group) as consumer:
            await consumer.subscribe(["t"], on_assigned=on_assigned)
            seen: set[int] = set()
            async with asyncio.timeout(60):
                while len(seen) < 100 or len(assigned) < 3:
                    for records in (await consumer.poll(timeout_ms=50)).values():
                        seen |= {int(record.value or b"") for record in records}
                    if len(seen) == 100 and len(assigned) == 1:
                        assigned.append(0)
                        mock.refuse(
                            HEARTBEAT,
                            ErrorCode.NOT_COORDINATOR,
                            ErrorCode.REBALANCE_IN_PROGRESS,
                        )
                # Nothing was committed, so every record is read again after the rebalance.
                while sum(consumer.positions().values()) < 100:
                    await consumer.poll(timeout_ms=50)
            assert assigned == [4, 0, 4]
            assert seen == set(range(100))
            await consumer.commit()
            committed = await consumer.committed(PARTITIONS)
            assert sum(offset or 0 for offset in committed.values()) == 100

    asyncio.run(main())


async def ask_for_what_is_ours() -> None:
    async with mocked(t=1) as log:
        assert not await log.admin().is_streamlog()
        assert not await log.admin().can_publish()
        with pytest.raises(LogError, match="Publish; only streamlog's own brokers serve it"):
            await log.admin().publish("nightly")


def test_a_foreign_broker_is_not_recognized_as_streamlog() -> None:
    asyncio.run(ask_for_what_is_ours())
