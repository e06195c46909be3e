"""KafkaClusterSink: every record once in another cluster, as it is, with its offset."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.connect import Batch, ConnectError, Fenced, Retriable, SinkTask, TopicPartition
from streamlog.connectors.kafka import KafkaClusterSink
from streamlog.durations import moment
from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.record import Headers, Record
from streamlog.records.murmur2 import murmur2
from streamlog.testing import check_sink
from tests.broker.process import BrokerProcess
from tests.connectors.kafka.other_cluster import KAFKA, THOROUGH, OtherCluster, other_cluster
from tests.connectors.runs import on_loop, writing

PLACE, NEXT = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Written:
    """The committed records of a topic of the other cluster."""

    def __init__(self, cluster: OtherCluster, topic: str, partitions: int) -> None:
        self.cluster, self.topic, self.partitions = cluster, topic, partitions

    async def put(self, rows: Sequence[object]) -> None:
        raise AssertionError("the sink writes them")

    async def rows(self) -> Sequence[object]:
        found = [await self.cluster.read(self.topic, at) for at in range(self.partitions)]
        return [record.value for records in found for record in records]


@pytest.mark.parametrize("partition", ["same", "key"])
@pytest.mark.parametrize("seed", range(20 if THOROUGH else 1))
@on_loop
async def test_every_record_is_written_once(tmp_path: Path, partition: str, seed: int) -> None:
    async with other_cluster(tmp_path) as cluster:
        sink = KafkaClusterSink(
            bootstrap_servers=cluster.address,
            topic="of-{topic}",
            partition=partition,
            create_partitions=2,
            transactional_id="sink",
        )
        outside = Written(cluster, "of-checked", 2)
        await check_sink(lambda: sink, outside, seed=seed, lives=40 if THOROUGH else 8)


@on_loop
async def test_at_least_once(tmp_path: Path) -> None:
    async with other_cluster(tmp_path, checked=2) as cluster:
        sink = KafkaClusterSink(bootstrap_servers=cluster.address, at_least_once=True)
        await check_sink(lambda: sink, Written(cluster, "checked", 2), lives=8)


@pytest.mark.skipif(bool(KAFKA) or not THOROUGH, reason="kills the broker of the other cluster")
def test_kills_of_the_other_cluster(tmp_path: Path) -> None:
    async def check(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            await log.admin().create_topics([NewTopic("checked", 2)])
            lives = count(1)

            def make() -> KafkaClusterSink:
                if next(lives) % 4 == 0:
                    broker.kill_and_restart()
                return KafkaClusterSink(bootstrap_servers=broker.address, transactional_id="sink")

            cluster = OtherCluster(log, broker.address)
            outside = Written(cluster, "checked", 2)
            await check_sink(make, outside, lives=40)

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(check(broker))


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return where Java's clients write a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


Row = tuple[int, bytes | None, bytes | None, Headers]


def batch(rows: Sequence[Row], first: int = 0, at: TopicPartition = PLACE) -> Batch[object, object]:
    records = [
        Record(key, value, moment(time_ms), headers, *at, offset)
        for offset, (time_ms, key, value, headers) in enumerate(rows, first)
    ]
    return Batch(at, records, next_offset=first + len(records))


async def flush(
    task: SinkTask[object, object], *values: bytes, first: int, at: TopicPartition = PLACE
) -> None:
    await task.begin()
    await task.write(batch([(1, None, each, ()) for each in values], first, at))
    await task.commit({at: first + len(values)})


@on_loop
async def test_records_stay_as_they_are(tmp_path: Path) -> None:
    chance = random.Random(2)

    def data() -> bytes | None:
        return None if chance.random() < 0.2 else chance.randbytes(chance.choice([0, 1, 9, 50_000]))

    rows = [
        (
            chance.randrange(1_700_000_000_000),
            data(),
            data(),
            tuple((chance.choice(["", "a", "ä"]), data()) for _ in range(chance.randrange(3))),
        )
        for _ in range(300)
    ]
    async with other_cluster(tmp_path, orders=1, keyed=5) as cluster:
        same = KafkaClusterSink(
            bootstrap_servers=cluster.address, transactional_id="a", compression_type="zstd"
        )
        async with writing(same) as task:
            assert await task.recover([PLACE]) == {}
            await task.begin()
            for start in range(0, 300, 100):
                await task.write(batch(rows[start : start + 100], start))
            await task.commit({PLACE: 300})
        found = await cluster.read("orders")
        assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in found] == rows
        by_key = KafkaClusterSink(
            bootstrap_servers=cluster.address, transactional_id="b", topic="keyed", partition="key"
        )
        async with writing(by_key) as task:
            await task.recover([PLACE])
            await task.begin()
            await task.write(batch(rows))
            await task.commit({PLACE: 300})
        for number in range(5):
            there = {row.key for row in await cluster.read("keyed", number) if row.key is not None}
            assert all(partition_for_key(key, 5) == number for key in there)
            wanted = [r for r in rows if r[1] is not None and partition_for_key(r[1], 5) == number]
            found = [r for r in await cluster.read("keyed", number) if r.key is not None]
            assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in found] == wanted


@on_loop
async def test_offsets_are_of_the_transaction(tmp_path: Path) -> None:
    async with other_cluster(tmp_path, orders=2) as cluster:
        sink = KafkaClusterSink(bootstrap_servers=cluster.address, transactional_id="sink")
        async with writing(sink) as task:
            await task.recover([PLACE, NEXT])
            await flush(task, b"a", first=0)
            await task.begin()
            await task.write(batch([(1, None, b"aborted", ())], 1))
            await task.abort()
            await task.abort()
            # Only the offset moves: what followed were markers, or records that are left out.
            await task.begin()
            await task.commit({PLACE: 5, NEXT: 2})
        async with writing(sink) as task:
            assert await task.recover([PLACE, NEXT]) == {PLACE: 5, NEXT: 2}
            await flush(task, b"b", first=5)
            await task.revoked([PLACE])
            with pytest.raises(Fenced, match="orders-0 belongs to another task"):
                await flush(task, b"c", first=6)
        other = KafkaClusterSink(bootstrap_servers=cluster.address, transactional_id="another")
        async with writing(other) as task:
            assert await task.recover([PLACE]) == {}
        assert [record.value for record in await cluster.read("orders")] == [b"a", b"b"]


@on_loop
async def test_an_earlier_owner_is_fenced(tmp_path: Path) -> None:
    async with other_cluster(tmp_path, orders=2) as cluster:
        sink = KafkaClusterSink(bootstrap_servers=cluster.address, transactional_id="sink")
        async with writing(sink) as zombie, writing(sink) as successor:
            await zombie.recover([PLACE, NEXT])
            await flush(zombie, b"a", first=0)
            await zombie.begin()
            await zombie.write(batch([(1, None, b"lost", ())], 1))
            # Its transaction is aborted, and it can't end it any more.
            assert await successor.recover([PLACE]) == {PLACE: 1}
            with pytest.raises(Fenced):
                await zombie.commit({PLACE: 2})
            await zombie.abort()
            with pytest.raises(Fenced):
                await flush(zombie, b"zombie", first=1)
            await zombie.abort()
            await flush(successor, b"b", first=1)
            # A partition that it has kept is its own as before.
            await zombie.recover([NEXT])
            await flush(zombie, b"next", first=0, at=NEXT)
        assert [record.value for record in await cluster.read("orders")] == [b"a", b"b"]
        assert [record.value for record in await cluster.read("orders", 1)] == [b"next"]


@on_loop
async def test_an_operator_sets_and_forgets_offsets(tmp_path: Path) -> None:
    async with other_cluster(tmp_path, orders=2) as cluster:
        sink = KafkaClusterSink(bootstrap_servers=cluster.address, transactional_id="sink")
        async with writing(sink) as running, writing(sink) as task:
            await running.recover([PLACE])
            await task.reset({PLACE: 40, NEXT: 7})
            with pytest.raises(Fenced):
                await flush(running, b"a", first=0)
            assert await task.recover([PLACE, NEXT]) == {PLACE: 40, NEXT: 7}
            await task.reset({PLACE: None})
            assert await task.recover([PLACE, NEXT]) == {NEXT: 7}


@on_loop
async def test_topics_that_do_not_fit_are_told(tmp_path: Path) -> None:
    async with other_cluster(tmp_path, orders=1, pair=2) as cluster:
        missing = KafkaClusterSink(
            bootstrap_servers=cluster.address, transactional_id="a", topic="gone"
        )
        async with writing(missing) as task:
            await task.recover([PLACE])
            with pytest.raises(ConfigError, match="has no topic 'gone': create it, or set create"):
                await flush(task, b"a", first=0)
        small = KafkaClusterSink(bootstrap_servers=cluster.address, transactional_id="b")
        async with writing(small) as task:
            await task.recover([NEXT])
            with pytest.raises(ConfigError, match="add partitions, or set partition='key'"):
                await flush(task, b"a", first=0, at=NEXT)
            await task.abort()
            await cluster.log.admin().create_partitions("orders", 2)
            await flush(task, b"a", first=0, at=NEXT)
        pair = KafkaClusterSink(
            bootstrap_servers=cluster.address, transactional_id="c", offsets_topic="pair"
        )
        with pytest.raises(ConfigError, match="has 2 partitions, and offsets need one"):
            async with writing(pair):
                pass


@on_loop
async def test_a_record_that_the_cluster_refuses_is_found(tmp_path: Path) -> None:
    async with other_cluster(tmp_path) as cluster:
        small = NewTopic("orders", 1, configs={"max.message.bytes": "10000"})
        await cluster.log.admin().create_topics([small])
        sink = KafkaClusterSink(bootstrap_servers=cluster.address, transactional_id="a")
        async with writing(sink) as task:
            await task.recover([PLACE])
            with pytest.raises(ConnectError) as caught:
                await flush(task, b"x" * 20_000, first=0)
            # So that the runtime halves the batch, and the record's policy decides.
            assert not isinstance(caught.value, Retriable | Fenced)
            await task.abort()
            await flush(task, b"x", first=0)
        assert [record.value for record in await cluster.read("orders")] == [b"x"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"topic": "{key}"}, "may name {topic} only"),
        ({"create_partitions": 0}, "create_partitions=0"),
        ({"transactional_id": None}, "transactional_id is missing"),
        ({"at_least_once": True}, "has no use with at_least_once"),
        ({"transaction_timeout": "16m"}, "at most 15m"),
        ({"security_protocol": "SASL_SSL"}, "sasl"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        KafkaClusterSink(
            **{"bootstrap_servers": "h:1", "transactional_id": "a", **settings}
        ).check()
