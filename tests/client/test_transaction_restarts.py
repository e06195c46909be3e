"""The broker dies during transactions, commits and rebalances, and its clients recover.

Random schedules: an in-process broker on a disk that forgets unsynced writes, and a connection that
loses requests and responses. The crash coincides with a request, not with a time. Each client knows
only the responses that it received.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.server.embedded import EmbeddedTransport
from streamlog.broker.server.embedded import _read_records as read_records
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.cluster import Cluster
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.client.offset_metadata import GroupMetadata
from streamlog.client.producer import Producer, ProducerSettings
from streamlog.clock import SystemClock
from streamlog.errors import (
    ConnectionLost,
    LogDirectoryError,
    StreamlogError,
    TransactionAborted,
)
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import Transport
from tests.broker.node import create
from tests.broker.test_power_cut import torn_by

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS = range(100 if THOROUGH else 4)
CUTS = 5
REQUESTS_A_LIFE = 150
TRANSACTIONS = 30
PLAIN_RECORDS = 100
WRITERS = ("first", "second")
READERS = "readers"
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
LOSS = 0.01
PATIENCE_S = 200


CONFIG = BrokerConfig(group=GroupConfig(initial_rebalance_delay_ms=0))


class Unwanted(Exception):
    """Leaves a transaction that must abort."""


@dataclass
class Promises:
    """What clients learned from responses."""

    committed: set[bytes] = field(default_factory=set)
    written: list[bytes] = field(default_factory=list)
    """Records acknowledged without a transaction, in order."""
    seen: set[bytes] = field(default_factory=set)
    """Values returned to members of a read_committed group."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Acknowledged offsets of that group."""


class Wire(EmbeddedTransport):
    """A connection to one life of the broker; it breaks at the end of that life, and at random."""

    def __init__(self, world: World, broker: Broker) -> None:
        super().__init__(broker)
        self._world = world
        self._gone = world.gone

    async def call(
        self, request: Message, *, timeout_ms: int, version_max: int | None = None
    ) -> Message:
        self._world.on_request()
        self._lose("request")
        try:
            answer = self._begin(request, version_max)
            if isinstance(answer, asyncio.Future):
                await asyncio.wait({answer, self._gone}, return_when=asyncio.FIRST_COMPLETED)
                answer = answer.result() if answer.done() else None
            else:
                await asyncio.sleep(0)
        except (OSError, LogDirectoryError, ConnectionLost) as error:
            raise ConnectionLost("the broker is dying") from error
        self._lose("answer")
        if answer is None:
            raise ConnectionLost("the broker is gone")
        if isinstance(answer, FetchResponse):
            read_records(answer)
        return answer

    def _lose(self, what: str) -> None:
        if self._gone.done() or self._world.chance.random() < LOSS:
            raise ConnectionLost(f"the {what} is lost")


class World:
    """A broker that dies several times, and its clients' access to it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.promises = Promises()
        self.broker: Broker | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_quiet = asyncio.Event()
        self._files = MemoryFiles()
        self._left = 0
        self.cuts = 0

    async def live(self) -> None:
        """Run one life after another; the last one lasts."""
        for number in range(CUTS + 1):
            self._left = self.chance.randint(1, REQUESTS_A_LIFE) if number < CUTS else -1
            self.gone = asyncio.get_running_loop().create_future()
            with suppress(OSError, LogDirectoryError):
                async with Broker.open("data", config=CONFIG, files=self._files) as broker:
                    if "t" not in broker.directory.topics:
                        create(broker, partitions=len(PARTITIONS))
                    self.broker = broker
                    await self.gone
            self.broker = None

    def on_request(self) -> None:
        """Count a request; the last one of a life may be executed, but gets no response."""
        self._left -= 1
        if not self._left and not self.gone.done():
            self.cuts += 1
            self._files.crash(torn=torn_by(self.chance))
            self.gone.set_result(None)

    async def connect(self, host: str, port: int) -> Transport:
        if self.broker is None or self.gone.done():
            raise ConnectionLost("there is no broker")
        return Wire(self, self.broker)

    def cluster(self) -> Cluster:
        return Cluster(lambda: [("127.0.0.1", 0)], self.connect, SystemClock())

    def producer(self, transactional_id: str | None = None) -> Producer:
        settings = ProducerSettings(transactional_id=transactional_id, linger_ms=0)
        return Producer(self.cluster(), settings)

    def consumer(self, group_id: str | None = None) -> Consumer:
        settings = ConsumerSettings(
            group_id=group_id,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=50,
            fetch_max_wait_ms=50,
        )
        return Consumer(self.cluster(), settings)

    # ---- what the clients do ----

    async def transact(self, name: str) -> None:
        """Write transactions to both partitions, with the offset of a group without members."""
        async with self.producer(name) as producer:
            for number in range(1, TRANSACTIONS + 1):
                value = b"%s %d" % (name.encode(), number)
                is_wanted = self.chance.random() < 0.7
                with suppress(Unwanted, TransactionAborted):
                    async with producer.transaction() as transaction:
                        for topic_partition in PARTITIONS:
                            await producer.send(
                                topic_partition.topic, value, partition=topic_partition.partition
                            )
                        await transaction.send_offsets(
                            {PARTITIONS[0]: number}, GroupMetadata(group_id=name)
                        )
                        if not is_wanted:
                            raise Unwanted
                    self.promises.committed.add(value)

    async def write(self) -> None:
        """Write records outside transactions."""
        async with self.producer() as producer:
            for number in range(PLAIN_RECORDS):
                value = b"plain %d" % number
                await (await producer.send("t", value, partition=0))
                self.promises.written.append(value)

    async def read(self, polls: int | None = None) -> None:
        """Read as a group member, for this number of polls or until the test ends."""
        promises = self.promises
        async with self.consumer(READERS) as member:
            await member.subscribe(["t"])
            while polls != 0 and not self.is_quiet.is_set():
                polls = None if polls is None else polls - 1
                for records in (await member.poll(timeout_ms=50)).values():
                    promises.seen |= {record.value or b"" for record in records}
                taken_offsets = member.positions()
                try:
                    await member.commit(taken_offsets)
                except StreamlogError:
                    continue  # A rebalance, or an unknown outcome after a broker failure.
                for topic_partition, offset in taken_offsets.items():
                    promises.offsets[topic_partition] = max(
                        offset, promises.offsets.get(topic_partition, 0)
                    )

    async def come_and_go(self) -> None:
        """Add and remove members, so that the group rebalances."""
        while not self.is_quiet.is_set():
            await self.read(polls=self.chance.randint(1, 5))

    async def all_of_it(self) -> None:
        async with asyncio.TaskGroup() as readers:
            readers.create_task(self.read())
            readers.create_task(self.come_and_go())
            async with asyncio.TaskGroup() as writers:
                for name in WRITERS:
                    writers.create_task(self.transact(name))
                writers.create_task(self.write())
            self.is_quiet.set()

    # ---- the final state ----

    async def found(self) -> list[list[bytes]]:
        """Return what a read_committed reader sees, per partition."""
        found: list[list[bytes]] = [[] for _ in PARTITIONS]
        async with self.consumer() as consumer:
            consumer.assign(PARTITIONS)
            ends = await consumer.end_offsets(PARTITIONS)
            while {
                topic_partition: await consumer.position(topic_partition)
                for topic_partition in PARTITIONS
            } != ends:
                for topic_partition, records in (await consumer.poll(timeout_ms=100)).items():
                    found[topic_partition.partition] += [record.value or b"" for record in records]
        return found

    async def committed(self, group_id: str) -> dict[TopicPartition, int]:
        async with self.consumer(group_id) as consumer:
            found = await consumer.committed(PARTITIONS)
        return {topic_partition: offset or 0 for topic_partition, offset in found.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_clients_recover_and_acknowledgements_hold(seed: int) -> None:
    async def main() -> None:
        world = World(seed)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            life = tasks.create_task(world.live())
            await world.all_of_it()
            promises, (first, second) = world.promises, await world.found()
            assert len(set(first)) == len(first), "a record occurs twice"
            plain = [value for value in first if value.startswith(b"plain")]
            assert plain == promises.written
            in_transactions = [value for value in first if not value.startswith(b"plain")]
            assert sorted(in_transactions) == sorted(second)
            assert set(second) == promises.committed
            assert promises.seen <= set(first)
            for name in WRITERS:
                mine = [value for value in second if value.startswith(name.encode())]
                assert mine == sorted(mine, key=number_of)
                offset = (await world.committed(name))[PARTITIONS[0]]
                assert offset == max(map(number_of, mine), default=0)
            kept = await world.committed(READERS)
            assert all(
                kept[topic_partition] >= offset
                for topic_partition, offset in promises.offsets.items()
            )
            assert world.cuts, "the broker never died"
            life.cancel()

    asyncio.run(main())


def number_of(value: bytes) -> int:
    return int(value.split()[1])
