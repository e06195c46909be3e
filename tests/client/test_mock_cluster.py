"""Our client against librdkafka's mock cluster: three brokers in C, with faults to order.

The mock knows no admin requests and misreads the flexible versions of the group requests, so
those are kept below. It does not look at sequence numbers, so it writes what follows a batch
that it has refused: the order after refusals is tested by `test_accumulator.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest

from streamlog.assignors import TopicPartition
from streamlog.client.accumulator import Fields
from streamlog.client.cluster import Cluster
from streamlog.client.consumer import Consumer
from streamlog.client.consumer_settings import ConsumerSettings
from streamlog.client.producer import Producer, ProducerSettings
from streamlog.clock import Clock, SystemClock
from streamlog.errors import LogError, RequestTimedOut
from streamlog.protocol.error_codes import ErrorCode
from streamlog.transport.connection import TcpTransport

PRODUCE, FETCH, HEARTBEAT, INIT_PRODUCER_ID = 0, 1, 12, 22
KEPT_BELOW_FLEXIBLE = {11: 5, 12: 3, 13: 3, 14: 3}
PARTITIONS = [TopicPartition("t", number) for number in range(4)]
RD_KAFKA_PRODUCER = 0


class Skipping(SystemClock):
    """Time passes by itself, and some of it at once."""

    skipped_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.skipped_ms


class MockCluster:
    """Brokers 1 to 3 and topic t with four partitions."""

    def __init__(self) -> None:
        folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        self.library = ctypes.CDLL(str(next(folder.glob("librdkafka-*.so*"))))
        for name in ("conf_new", "new", "mock_cluster_new", "mock_cluster_bootstraps"):
            getattr(self.library, f"rd_kafka_{name}").restype = ctypes.c_void_p
        conf = ctypes.c_void_p(self.library.rd_kafka_conf_new())
        text = ctypes.create_string_buffer(512)
        self.client = ctypes.c_void_p(
            self.library.rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, len(text))
        )
        assert self.client, text.value
        self.cluster = ctypes.c_void_p(self.library.rd_kafka_mock_cluster_new(self.client, 3))
        self.library.rd_kafka_mock_topic_create(self.cluster, b"t", 4, 3)
        self.library.rd_kafka_mock_group_initial_rebalance_delay_ms(self.cluster, 0)
        for key, version in KEPT_BELOW_FLEXIBLE.items():
            self.serve(key, 0, version)
        places = ctypes.c_char_p(self.library.rd_kafka_mock_cluster_bootstraps(self.cluster))
        assert places.value is not None
        self.addresses = [
            (place.rpartition(":")[0], int(place.rpartition(":")[2]))
            for place in places.value.decode().split(",")
        ]

    def serve(self, api_key: int, low: int, high: int) -> None:
        """Serve these versions from now on; -1 for none."""
        self.library.rd_kafka_mock_set_apiversion(
            self.cluster,
            ctypes.c_int16(api_key),
            ctypes.c_int16(low),
            ctypes.c_int16(high),
        )

    def refuse(self, api_key: int, *codes: int) -> None:
        """Answer the next requests of this kind with these errors."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self.library.rd_kafka_mock_push_request_errors_array(
            self.cluster, ctypes.c_int16(api_key), ctypes.c_size_t(len(codes)), errors
        )

    def lead(self, partition: TopicPartition, broker: int) -> None:
        """Move a partition to another broker."""
        self.library.rd_kafka_mock_partition_set_leader(
            self.cluster, partition.topic.encode(), partition.partition, broker
        )

    def down(self, broker: int) -> None:
        """Stop a broker."""
        self.library.rd_kafka_mock_broker_set_down(self.cluster, broker)

    def up(self, broker: int) -> None:
        """Start it again."""
        self.library.rd_kafka_mock_broker_set_up(self.cluster, broker)

    def close(self) -> None:
        """Stop all."""
        self.library.rd_kafka_mock_cluster_destroy(self.cluster)
        self.library.rd_kafka_destroy(self.client)

    def connection(self, clock: Clock | None = None) -> Cluster:
        """As our clients see it."""
        connect = partial(TcpTransport.connect, client_id="test", timeout_ms=60_000)
        return Cluster(lambda: self.addresses, connect, clock or SystemClock())

    def producer(self, clock: Clock | None = None, **settings: object) -> Producer:
        configured = ProducerSettings(**settings)  # type: ignore[arg-type]
        return Producer(self.connection(clock), configured)

    def consumer(self, **settings: object) -> Consumer:
        settings = {"auto_offset_reset": "earliest", **settings}
        return Consumer(self.connection(), ConsumerSettings(**settings))  # type: ignore[arg-type]

    async def values(self, *partitions: TopicPartition) -> list[int]:
        """Everything in these partitions, as numbers."""
        async with self.consumer() as consumer:
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            found: list[int] = []
            while consumer.positions() != ends:
                for records in (await consumer.poll(timeout_ms=100)).values():
                    found += [int(record.value or b"") for record in records]
            return found


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    cluster = MockCluster()
    yield cluster
    cluster.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_three_brokers_take_and_give(mock: MockCluster, compression: str) -> None:
    async def main() -> None:
        async with mock.producer(compression=compression) as producer:
            for number in range(400):
                await producer.send("t", b"%d" % number, key=b"%d" % number)
        assert sorted(await mock.values(*PARTITIONS)) == list(range(400))

    asyncio.run(main())


def test_refused_batches_go_again_and_once(mock: MockCluster) -> None:
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


def test_leaders_move_under_producer_and_consumer(mock: MockCluster) -> None:
    async def main() -> None:
        part = PARTITIONS[1]
        async with mock.producer(linger_ms=0) as producer, mock.consumer() as consumer:
            consumer.assign([part])
            seen: list[int] = []
            for number in range(9):
                if number % 3 == 2:
                    mock.lead(part, 1 + number % 3)
                await (await producer.send("t", b"%d" % number, partition=part.partition))
                while len(seen) <= number:
                    records = (await consumer.poll(timeout_ms=60_000))[part]
                    seen += [int(record.value or b"") for record in records]
            assert seen == list(range(9))

    asyncio.run(main())


def test_a_broker_that_is_down_holds_up_only_its_own_partitions(mock: MockCluster) -> None:
    async def main() -> None:
        for part in PARTITIONS:
            mock.lead(part, 1 + part.partition % 3)
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


def test_what_can_not_be_delivered_fails_in_time_with_the_reason(mock: MockCluster) -> None:
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


def test_a_broker_without_idempotence_is_told_apart(mock: MockCluster) -> None:
    mock.serve(INIT_PRODUCER_ID, -1, -1)

    async def main() -> None:
        async with mock.producer() as producer:
            delivery = await producer.send("t", b"1", partition=0)
            with pytest.raises(LogError, match="set idempotent=False"):
                await delivery
            with pytest.raises(LogError, match="set idempotent=False"):
                await producer.send("t", b"1", partition=0)
        many: list[Fields] = [(number, None, b"%d" % number, ()) for number in range(50)]
        async with mock.producer(idempotent=False, batch_bytes=100) as producer:
            mock.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            await producer.send_many("t", 0, many)
        assert await mock.values(PARTITIONS[0]) == list(range(50))

    asyncio.run(main())


def test_fetch_errors_are_waited_out(mock: MockCluster) -> None:
    async def main() -> None:
        async with mock.producer() as producer:
            await producer.send_many("t", 0, [(n, None, b"%d" % n, ()) for n in range(10)])
        mock.refuse(FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)
        assert await mock.values(PARTITIONS[0]) == list(range(10))

    asyncio.run(main())


def test_a_group_survives_what_its_coordinator_says(mock: MockCluster) -> None:
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
                # Nothing was committed, so all of it comes again after the rebalance.
                while sum(consumer.positions().values()) < 100:
                    await consumer.poll(timeout_ms=50)
            assert assigned == [4, 0, 4]
            assert seen == set(range(100))
            await consumer.commit()
            committed = await consumer.committed(PARTITIONS)
            assert sum(offset or 0 for offset in committed.values()) == 100

    asyncio.run(main())
