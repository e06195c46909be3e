"""Replicas move between the directories of one broker, while it serves them."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import TypeVar

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.replication import future_log
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.offload import Threads, os_thread
from streamlog.client.admin import Admin, NewTopic
from streamlog.clock import ManualClock
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from streamlog.record import TopicPartition
from streamlog.records.batch import encode_batch
from tests.broker import test_isolation
from tests.broker.failing_disk import FailingDisks
from tests.broker.node import ask, at, batch, create, delete, fetch, produce, values
from tests.broker.test_isolation import transactional
from tests.broker.three_brokers import WAIT_S, Cluster, run_cluster, until

T = TypeVar("T")

DIRS = ("data", "b", "c")
ROUNDS_MAX = 2_000
STRIDE = 1 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 37
"""Every how many changes of files the power is cut."""


class Inline(Executor):
    """Runs each job at once, in the loop."""

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future carries it
            done.set_exception(error)
        return done


class PowerCut(FailingDisks):
    """All disks fail after a number of changes."""

    def __init__(self, files: MemoryFiles, changes: int) -> None:
        super().__init__(files)
        self.left = changes
        self.is_counting = False

    def _check(self, path: str) -> None:
        if self.is_counting:
            self.left -= 1
            if self.left < 0:
                self.failed.update(DIRS)
        super()._check(path)


class Disks:
    """A broker on three disks; partitions 0, 1 and 2 of a topic are in `DIRS`, in this order."""

    def __init__(self, **settings: str) -> None:
        self.memory = MemoryFiles()
        self.clock = ManualClock(wall_ms=1_700_000_000_000)
        self.disks = FailingDisks(self.memory)
        self.config = BrokerConfig().override(settings)
        self.threads: Threads = os_thread
        self.others = DIRS[1:]

    def run(self, story: Callable[[Broker], Coroutine[object, object, None]]) -> None:
        async def main() -> None:
            async with Broker.open(
                DIRS[0],
                others=self.others,
                files=self.disks,
                clock=self.clock,
                config=self.config,
                threads=self.threads,
            ) as broker:
                await story(broker)

        asyncio.run(main())

    def crash(self, *, keep_bytes: int | None = 0) -> None:
        self.memory.crash(keep_bytes=keep_bytes)
        self.disks = FailingDisks(self.memory)

    async def until(self, broker: Broker, holds: Callable[[], bool], by_ms: int = 1) -> None:
        for _ in range(ROUNDS_MAX):
            if holds():
                return
            self.clock.advance(by_ms)
            broker.tick()
            await asyncio.sleep(0.0005)
        raise TimeoutError

    async def until_moved(self, broker: Broker) -> None:
        await self.until(broker, lambda: not broker.directory.moves())

    def folders(self, path: str) -> list[str]:
        return sorted(each for each in self.memory.list(path) if each.startswith("p-"))


async def move(broker: Broker, path: str, *numbers: int, topic: str = "t") -> list[int]:
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=[*numbers])]
            )
        ]
    )
    response = await ask(broker, request, AlterReplicaLogDirsResponse)
    return [each.error_code for result in response.results for each in result.partitions]


async def described(broker: Broker) -> dict[tuple[str, int, bool], DescribeLogDirsPartition]:
    response = await ask(broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    return {
        (directory.log_dir, each.partition_index, each.is_future_key): each
        for directory in response.results
        for topic in directory.topics
        for each in topic.partitions
    }


async def read(broker: Broker, number: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        (part,) = await fetch(broker, at(len(found), partition=number))
        assert part.error_code == 0
        more = values(part)
        if not more:
            return found
        found += more


async def write(broker: Broker, *records: bytes, number: int = 0) -> None:
    assert (await produce(broker, batch(*records), index=number)).error_code == 0


def place(broker: Broker, number: int = 0) -> str:
    return broker.directory.volume_of("t", number).path


def test_a_replica_moves_and_its_old_files_go_later() -> None:
    node = Disks()

    async def moves(broker: Broker) -> None:
        create(broker, partitions=3)
        await write(broker, b"1", b"2")
        assert await move(broker, "b", 0) == [0]
        found = await described(broker)
        assert found["b", 0, True].offset_lag == 2
        assert found["data", 0, False].partition_size > 0
        await node.until_moved(broker)
        assert place(broker) == "b"
        await write(broker, b"3")
        assert await read(broker) == [b"1", b"2", b"3"]
        assert [*(await described(broker))] == [
            *[("b", 0, False), ("b", 1, False), ("c", 2, False)]
        ]
        assert len(node.folders("data")) == 1
        await node.until(broker, lambda: not node.folders("data"), by_ms=5_000)
        await node.until(broker, lambda: not broker.directory.topics["t"].leaving.get(0))

    async def returns(broker: Broker) -> None:
        assert place(broker) == "b"
        assert await read(broker) == [b"1", b"2", b"3"]

    node.run(moves)
    node.run(returns)
    node.crash()
    node.run(returns)


def test_a_replica_moves_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_log, "COPY_BYTES", 300)
    monkeypatch.setattr(future_log, "LAST_BYTES", 400)
    node = Disks()

    async def story(broker: Broker) -> None:
        create(broker, partitions=3, segment_bytes="1024")
        written = [b"%d" % n for n in range(100)]
        for each in written:
            await write(broker, each)
        there = iter(["b", "data", "c", "data"])
        ends = 0
        for number in range(100, 500):
            if not broker.directory.moves():
                await move(broker, next(there, "data"), 0)
                ends += 1
            written.append(b"%d" % number)
            await write(broker, written[-1])
            node.clock.advance(1)
            broker.tick()
        await node.until_moved(broker)
        assert ends > 3
        assert await read(broker) == written

    node.run(story)


def cut_power(changes: int, *, keep_bytes: int | None) -> bool:
    """Move a replica, cut the power after some changes, and start again.

    Returns whether the move had ended before.
    """
    node = Disks()
    node.threads = lambda _: Inline()
    node.disks = cut = PowerCut(node.memory, changes)
    acknowledged: list[bytes | None] = []
    has_ended = False

    numbers = itertools.count()

    async def write_some(broker: Broker, count: int) -> None:
        for _ in range(count):
            value = b"%d" % next(numbers)
            if not (await produce(broker, batch(value))).error_code:
                acknowledged.append(value)

    async def moves(broker: Broker) -> None:
        nonlocal has_ended
        create(broker, partitions=3, segment_bytes="1024", file_delete_delay_ms="0")
        await write_some(broker, 30)
        cut.is_counting = True
        await move(broker, "b", 0)
        for _ in range(30):
            await write_some(broker, 1)
            node.clock.advance(1)
            broker.tick()
            await asyncio.sleep(0)
        has_ended = not cut.failed

    async def returns(broker: Broker) -> None:
        found = await read(broker)
        # What was not acknowledged may be there too.
        assert [each for each in found if each in acknowledged] == acknowledged
        assert len(found) == len({*found})
        await node.until_moved(broker)
        await node.until(broker, lambda: not broker.directory.leftovers(), by_ms=1_000)
        await write_some(broker, 3)
        assert (await read(broker))[: len(found)] == found
        folder = f"p-{broker.directory.topics['t'].topic_id.hex()}-0"
        assert [path for path in DIRS if folder in node.folders(path)] == [place(broker)]
        assert not broker.directory.damage

    with suppress(StreamlogError, ExceptionGroup):
        node.run(moves)
    node.crash(keep_bytes=keep_bytes)
    node.run(returns)
    node.run(returns)
    return has_ended


@pytest.mark.parametrize("keep_bytes", [0, None], ids=["power cut", "killed"])
def test_a_crash_at_any_point_of_a_move_loses_nothing(
    keep_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(future_log, "COPY_BYTES", 300)
    monkeypatch.setattr(future_log, "LAST_BYTES", 400)
    monkeypatch.setattr(future_log, "SYNC_BYTES", 600)
    changes = 0
    while not cut_power(changes, keep_bytes=keep_bytes):
        changes += STRIDE
    assert changes > 150


def test_the_present_directory_cancels_a_move_and_another_one_replaces_it() -> None:
    node = Disks()

    async def story(broker: Broker) -> None:
        create(broker, partitions=3, file_delete_delay_ms="60000")
        await write(broker, b"1")
        await move(broker, "b", 0)
        await node.until(broker, lambda: len(node.folders("b")) == 1)
        assert await move(broker, "data", 0) == [0]
        assert not broker.directory.moves()
        await node.until(broker, lambda: not broker.directory.leftovers())
        assert (place(broker), len(node.folders("b"))) == ("data", 0)
        await move(broker, "b", 0)
        assert await move(broker, "c", 0) == [0]
        await node.until_moved(broker)
        # Back to a directory in which the old log is not deleted yet.
        assert (place(broker), await move(broker, "data", 0)) == ("c", [0])
        await write(broker, b"2")
        await node.until_moved(broker)
        assert (place(broker), await read(broker)) == ("data", [b"1", b"2"])

    node.run(story)


def test_errors_of_moves_are_those_of_kafka() -> None:
    node = Disks(**{"cordoned.log.dirs": "a"})
    node.others = ("b", "c", "a")

    async def story(broker: Broker) -> None:
        create(broker, partitions=3)
        assert await move(broker, "elsewhere", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
        unknown = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await move(broker, "b", 9) == unknown
        assert await move(broker, "b", 0, topic="u") == unknown
        assert await move(broker, "a", 0) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        node.disks.failed.add("b")
        assert (await produce(broker, batch(b"v"), index=1)).error_code
        # To a failed disk, and from one; the others are moved.
        assert await move(broker, "b", 0) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert await move(broker, "c", 0, 1) == [0, ErrorCode.KAFKA_STORAGE_ERROR]
        await node.until_moved(broker)
        assert place(broker) == "c"

    node.run(story)


def test_a_disk_that_fails_ends_neither_the_broker_nor_the_move() -> None:
    node = Disks()

    async def fails(broker: Broker) -> None:
        create(broker, partitions=3)
        await write(broker, b"1")
        await move(broker, "b", 0)
        node.disks.failed.add("b")
        for _ in range(20):
            node.clock.advance(5_000)
            broker.tick()
            await asyncio.sleep(0.001)
        await write(broker, b"2")
        assert (place(broker), len(broker.directory.moves())) == ("data", 1)

    async def returns(broker: Broker) -> None:
        await node.until_moved(broker)
        assert (place(broker), await read(broker)) == ("b", [b"1", b"2"])

    node.run(fails)
    node.crash()
    node.run(returns)


def test_a_disk_without_space_refuses_a_copy_before_it_is_full() -> None:
    node = Disks()

    async def story(broker: Broker) -> None:
        create(broker, partitions=3)
        await write(broker, b"v" * 100_000)
        node.memory.capacity_bytes = node.memory.used_bytes() + future_log.ROOM_BYTES
        await move(broker, "b", 0)
        for _ in range(20):
            node.clock.advance(1)
            broker.tick()
            await asyncio.sleep(0.001)
        assert (place(broker), broker.directory.lacks_room()) == ("data", False)
        node.memory.capacity_bytes = None
        await node.until(broker, lambda: place(broker) == "b", by_ms=1_000)

    node.run(story)


def test_a_move_continues_after_a_restart_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_log, "COPY_BYTES", 5_000)
    monkeypatch.setattr(future_log, "LAST_BYTES", 5_000)
    monkeypatch.setattr(future_log, "SYNC_BYTES", 10_000)
    node = Disks()
    written = [b"%d" % n * 500 for n in range(1_000)]

    async def begins(broker: Broker) -> None:
        create(broker, partitions=3, segment_bytes="100000")
        for each in written:
            await write(broker, each)
        await move(broker, "b", 0)
        volume = broker.directory.volumes.of(broker.directory.topics["t"].futures[0])
        assert volume is not None
        moves = broker._maintenance.moves
        await node.until(broker, lambda: moves.end_offset("t", 0, volume) > 500)
        assert broker.directory.moves()

    async def goes_on(broker: Broker) -> None:
        assert broker.directory.copied_point("t", 0) > 400
        volume = broker.directory.volumes.of(broker.directory.topics["t"].futures[0])
        assert volume is not None
        moves = broker._maintenance.moves
        await node.until(broker, lambda: moves.end_offset("t", 0, volume) > 0)
        assert moves.end_offset("t", 0, volume) > 400
        await node.until_moved(broker)
        assert await read(broker) == written

    node.run(begins)
    node.run(goes_on)


def test_a_deleted_topic_leaves_no_copy() -> None:
    node = Disks()

    async def story(broker: Broker) -> None:
        create(broker, partitions=3)
        await write(broker, b"v" * 10_000)
        await move(broker, "b", 0)
        await node.until(broker, lambda: len(node.folders("b")) == 1)
        delete(broker)
        for _ in range(20):
            node.clock.advance(1_000)
            broker.tick()
            await asyncio.sleep(0.001)
        assert [node.folders(path) for path in DIRS] == [[], [], []]

    node.run(story)


def test_a_copy_begins_where_deleted_records_end_and_knows_transactions() -> None:
    node = Disks()

    async def moves(broker: Broker) -> None:
        create(broker, partitions=3)
        await write(broker, b"1", b"2", b"3")
        await write(broker, b"4")
        partition = DeleteRecordsPartition(partition_index=0, offset=2)
        topic = DeleteRecordsTopic(name="t", partitions=[partition])
        await ask(broker, DeleteRecordsRequest(topics=[topic], timeout_ms=1), DeleteRecordsResponse)
        await test_isolation.write(broker, transactional(0, b"aborted"))
        await test_isolation.end(broker, test_isolation.ABORT)
        await test_isolation.write(broker, transactional(1, b"open"))
        await move(broker, "b", 0)
        await node.until_moved(broker)
        await checks(broker)

    async def checks(broker: Broker) -> None:
        log = broker.directory.log("t", 0)
        assert (place(broker), log.log_start_offset, log.log_end_offset) == ("b", 2, 7)
        (outside,) = await fetch(broker, at(1))
        assert outside.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        found = await test_isolation.read(broker, 3)
        assert (found.last_stable_offset, found.high_watermark) == (6, 7)
        assert test_isolation.aborted_in(found) == [(7, 4)]
        assert not broker.directory.damage

    node.run(moves)
    node.run(checks)
    node.crash()
    node.run(checks)


def test_records_are_deleted_beyond_the_end_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_log, "COPY_BYTES", 100)
    monkeypatch.setattr(future_log, "LAST_BYTES", 100)
    node = Disks()

    async def story(broker: Broker) -> None:
        create(broker, partitions=3, segment_bytes="1024")
        for n in range(100):
            await write(broker, b"%d" % n)
        await move(broker, "b", 0)
        volume = broker.directory.volumes.of(broker.directory.topics["t"].futures[0])
        assert volume is not None
        moves = broker._maintenance.moves
        await node.until(broker, lambda: moves.end_offset("t", 0, volume) > 10)
        broker._partitions.get("t", 0).delete_before(80)
        await node.until_moved(broker)
        log = broker.directory.log("t", 0)
        assert (place(broker), log.log_start_offset, log.log_end_offset) == ("b", 80, 100)
        (found,) = await fetch(broker, at(80))
        assert values(found)[0] == b"80"

    node.run(story)
    node.crash()

    async def returns(broker: Broker) -> None:
        assert broker.directory.log("t", 0).log_end_offset == 100
        assert not broker.directory.damage

    node.run(returns)


def test_a_move_respects_its_quota() -> None:
    rate = 100_000
    node = Disks(**{"replica.alter.log.dirs.io.max.bytes.per.second": str(rate)})

    async def story(broker: Broker) -> None:
        create(broker, partitions=3)
        for _ in range(30):
            await write(broker, b"v" * 100_000)
        begin_ms = node.clock.now_ms()
        await move(broker, "b", 0)
        await node.until(broker, lambda: not broker.directory.moves(), by_ms=100)
        # The first and the last piece may exceed it.
        assert node.clock.now_ms() - begin_ms > 3_000_000 / rate * 1_000 / 3

    node.run(story)


def test_a_cut_log_cuts_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower cuts off what its leader has not, while its log is copied."""
    monkeypatch.setattr(future_log, "COPY_BYTES", 100)
    node = Disks()

    async def story(broker: Broker) -> None:
        create(broker, partitions=3)
        for n in range(100):
            await write(broker, b"%d" % n)
        await move(broker, "b", 0)
        volume = broker.directory.volumes.of(broker.directory.topics["t"].futures[0])
        assert volume is not None
        moves = broker._maintenance.moves
        await node.until(broker, lambda: moves.end_offset("t", 0, volume) > 50)
        assert broker.directory.moves()
        log = broker.directory.log("t", 0)
        log.truncation.begin(30)
        log.truncation.cut(30)
        log.epochs.begin(log.epochs.current + 1)
        for n in range(60):
            await write(broker, b"new %d" % n)
        await node.until_moved(broker)
        expected = [*(b"%d" % n for n in range(30)), *(b"new %d" % n for n in range(60))]
        assert (place(broker), await read(broker)) == ("b", expected)

    node.run(story)


def test_a_partition_that_moves_is_not_compacted() -> None:
    node = Disks()

    async def story(broker: Broker) -> None:
        create(
            broker,
            partitions=3,
            cleanup_policy="compact",
            segment_bytes="1024",
            min_cleanable_dirty_ratio="0.01",
        )
        log = broker.directory.log("t", 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(broker._maintenance.moves), "run", lambda _: None)
            await move(broker, "b", 0)
            for n in range(100):
                data = encode_batch([(1_000 + n, b"key", b"%d" % n, ())])
                assert (await produce(broker, data)).error_code == 0
            for _ in range(60):
                node.clock.advance(1_000)
                broker.tick()
                await asyncio.sleep(0.001)
            assert log.rewrites == 0
        broker._maintenance.moves.begin({})
        await node.until_moved(broker)
        moved = broker.directory.log("t", 0)
        await node.until(broker, lambda: moved.rewrites > 0, by_ms=1_000)

    node.run(story)


async def move_all(admin: Admin, node_id: int) -> list[TopicPartition]:
    """Move all replicas of a broker, leaders and followers, to the next directory."""
    begun: list[TopicPartition] = []
    for each in await admin.describe_log_dirs():
        moved = [one for one in each.sizes if one.topic == "t"]
        target = DIRS[(DIRS.index(each.path) + 1) % len(DIRS)]
        if each.node_id == node_id and moved:
            targets = dict.fromkeys(moved, target)
            errors = await admin.alter_replica_log_dirs(targets, broker=node_id)
            assert [*errors.values()] == [None] * len(moved)
            begun += moved
    return begun


async def choose_directory(cluster: Cluster, admin: Admin) -> None:
    """A replica that a broker does not have yet is created in the directory that was chosen."""
    await admin.create_topics([NewTopic("u", 1, replication_factor=1)])
    lone = TopicPartition("u", 0)
    (owner,) = [each.leader for each in await admin.describe_partitions() if each.topic == "u"]
    other = owner % 3 + 1
    broker = cluster.nodes[other].broker
    assert broker is not None
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with asyncio.timeout(WAIT_S):
        # The controller answers before every broker has heard of the topic.
        while code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            error = (await admin.alter_replica_log_dirs({lone: "c"}, broker=other))[lone]
            assert error is not None
            code = ErrorCode(error.code)
    assert code == ErrorCode.REPLICA_NOT_AVAILABLE
    await admin.alter_partition_reassignments({lone: [other]})
    await until(lambda: "u" in broker.directory.topics)
    assert broker.directory.volume_of("u", 0).path == "c"


@pytest.mark.slow
def test_replicas_move_on_brokers_of_a_cluster_while_it_is_written() -> None:
    count = 3

    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        address = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())
        async with Log.open(f"kafka://{address}") as log, log.producer() as producer:
            admin = log.admin()
            await admin.create_topics(
                [NewTopic("t", count, replication_factor=3, configs={"min.insync.replicas": "2"})]
            )
            acknowledged: list[list[bytes]] = [[] for _ in range(count)]

            async def write_all(numbers: range) -> None:
                for number in numbers:
                    for partition, sent in enumerate(acknowledged):
                        value = b"%d" % number
                        await (await producer.send("t", value, partition=partition))
                        sent.append(value)

            await write_all(range(10))
            begun: list[TopicPartition] = []
            for node_id in cluster.nodes:
                begun += await move_all(admin, node_id)
                await write_all(range(len(acknowledged[0]), len(acknowledged[0]) + 10))
            assert len(begun) == 3 * count
            await until(lambda: not any(each.directory.moves() for each in cluster.brokers))
            await write_all(range(len(acknowledged[0]), len(acknowledged[0]) + 10))
            for each in await admin.describe_partitions():
                assert {*each.in_sync} == {*cluster.nodes}
            for partition, sent in enumerate(acknowledged):
                found = await log.read_range(TopicPartition("t", partition))
                assert [*found.values] == sent
            await choose_directory(cluster, admin)

    def cluster() -> Cluster:
        made = Cluster()
        for node in made.nodes.values():
            node.others = DIRS[1:]
        return made

    run_cluster(cluster, story)
