"""KafkaMirror: every record once in another cluster, and positions that lead to the next one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from streamlog.client.admin import NewTopic
from streamlog.connect import Batch, Fenced, Retriable, TopicPartition
from streamlog.connectors.kafka import KafkaMirror
from streamlog.connectors.kafka.mirror_conventions import checkpoint, offset_sync
from streamlog.connectors.kafka.offset_runs import BLOCK_RUNS, BLOCKS_MAX
from streamlog.durations import moment
from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.record import Record
from streamlog.testing import check_sink
from streamlog.worker.connect.sink_group import AdminOwnLog
from tests.connect_service.running import running
from tests.connectors.kafka.other_cluster import KAFKA, THOROUGH, OtherCluster, other_cluster
from tests.connectors.kafka.test_cluster_sink import Written, batch, flush
from tests.connectors.runs import RealContext, on_loop, writing

PLACE, NEXT = TopicPartition("orders", 0), TopicPartition("orders", 1)
SYNCS, CHECKPOINTS = "mm2-offset-syncs.eu.internal", "eu.checkpoints.internal"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


def mirror(cluster: OtherCluster, **settings: Any) -> KafkaMirror:
    given = {"source_cluster_alias": "eu", "emit_checkpoints_interval": "100ms", **settings}
    return KafkaMirror(bootstrap_servers=cluster.address, **given)


async def until(holds: Callable[[], Coroutine[object, object, bool]]) -> None:
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@on_loop
async def test_every_record_is_written_once(tmp_path: Path) -> None:
    async with other_cluster(tmp_path) as cluster:
        # Before the first life: a test without a log can't tell how many partitions there are.
        await cluster.log.admin().create_topics([NewTopic("eu.checked", 2)])
        sink = mirror(cluster)
        outside = Written(cluster, "eu.checked", 2)
        await check_sink(lambda: sink, outside, lives=40 if THOROUGH else 8)


@on_loop
async def test_notes_of_offsets_are_in_the_transaction(tmp_path: Path) -> None:
    async with other_cluster(tmp_path) as cluster:
        sink = mirror(cluster)
        async with writing(sink) as task:
            assert await task.recover([PLACE]) == {}
            await flush(task, b"a", b"b", b"c", first=0)
            await task.begin()
            await task.write(batch([(1, None, b"aborted", ())], 3))
            await task.abort()
            # Offsets 3 to 6 have no record here, as markers and aborted records have none.
            await flush(task, b"d", b"e", first=7)
        async with writing(sink) as task:
            assert await task.recover([PLACE]) == {PLACE: 9}
            await flush(task, b"f", first=9)
        records = await cluster.read("eu.orders")
        there = {record.value: record.offset for record in records}
        assert [*there] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        found = [(record.key, record.value) for record in await cluster.read(SYNCS)]
        assert found == [
            offset_sync(PLACE, here, there[value])
            for here, value in ((0, b"a"), (2, b"c"), (7, b"d"), (8, b"e"), (9, b"f"))
        ]


@on_loop
async def test_what_is_known_of_offsets_outlives_the_task(tmp_path: Path) -> None:
    async with other_cluster(tmp_path) as cluster:
        sink = mirror(cluster)
        async with writing(sink) as task:
            await task.recover([PLACE])
            for first in range(0, 1_500, 500):
                # Every second offset has a record, so that each is a run of its own.
                numbers = range(first, first + 500)
                records = [
                    Record(None, b"%d" % at, moment(1), (), *PLACE, 2 * at) for at in numbers
                ]
                await task.begin()
                await task.write(Batch(PLACE, records, next_offset=2 * numbers.stop))
                await task.commit({PLACE: 2 * numbers.stop})
        there = {record.value: record.offset for record in await cluster.read("eu.orders")}
        async with sink.open(RealContext()) as successor:
            assert await successor.recover([PLACE]) == {PLACE: 3_000}
            runs = successor.committed_runs()[PLACE]
            for at in range(1_500 - BLOCKS_MAX * BLOCK_RUNS, 1_500):
                assert runs.translated(2 * at) == there[b"%d" % at]
            assert runs.translated(3_000) == there[b"1499"] + 1


@on_loop
async def test_groups_get_the_positions_of_their_next_records(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(other_cluster(tmp_path / "other"))
        log = await stack.enter_async_context(Log.open(f"embedded:{tmp_path / 'own'}"))
        admin, there = log.admin(), cluster.log.admin()
        await admin.create_topics([NewTopic("orders", 2, configs={"retention.ms": "123456789"})])
        for number in range(6):
            await OtherCluster(log, "").write("orders", 0, b"%d" % number)
        await admin.alter_group_offsets("billing", {PLACE: 4})
        await admin.alter_group_offsets("left-out", {PLACE: 4})
        sink = mirror(
            cluster,
            groups_exclude=("left-.*",),
            sync_group_offsets_enabled=True,
            sync_topic_configs_interval="100ms",
        )
        context = RealContext("dr", own_log=AdminOwnLog(log))
        task = await stack.enter_async_context(writing(sink, context))
        await task.recover([PLACE])
        assert [each.partitions for each in await there.find_topics(["eu.orders"])] == [2]
        # In two transactions, whose markers lie between the records over there.
        await flush(task, b"0", b"1", first=0)
        await flush(task, b"2", b"3", b"4", b"5", first=2)
        offset = {record.value: record.offset for record in await cluster.read("eu.orders")}
        remote = TopicPartition("eu.orders", 0)

        async def stands_at(value: bytes, upstream: int) -> bool:
            found = [(record.key, record.value) for record in await cluster.read(CHECKPOINTS)]
            wanted = checkpoint("billing", remote, upstream, offset[value], "")
            return found[-1:] == [wanted] and await there.group_offsets("billing") == {
                remote: offset[value]
            }

        await until(lambda: stands_at(b"4", 4))
        await admin.alter_group_offsets("billing", {PLACE: 5})
        await until(lambda: stands_at(b"5", 5))
        assert await there.group_offsets("left-out") == {}

        async def retention() -> str | None:
            return (await there.describe_configs("eu.orders"))["retention.ms"].value

        assert await retention() == "123456789"
        await admin.alter_configs({"retention.ms": "99"}, topic="orders")
        await until(lambda: equals(retention, "99"))
        await admin.alter_configs({"retention.ms": None}, topic="orders")
        default = (await there.describe_configs("eu.heartbeats"))["retention.ms"].value
        await until(lambda: equals(retention, default))
        # Partitions that come later are there before their first record.
        await admin.create_partitions("orders", 3)
        await task.recover([TopicPartition("orders", 2)])
        assert [each.partitions for each in await there.find_topics(["eu.orders"])] == [3]
        assert await cluster.read("heartbeats")
        assert await cluster.read("eu.heartbeats")
        assert context.counts["mirror_checkpoints"] >= 2
        # Apache Kafka may not know a topic yet that it has just created; a round follows.
        assert KAFKA or context.counts["mirror_upkeep_failures"] == 0


async def equals(read: Callable[[], Coroutine[object, object, object]], wanted: object) -> bool:
    return await read() == wanted


@on_loop
async def test_groups_at_work_over_there_keep_their_positions(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(other_cluster(tmp_path / "other", orders=1))
        log = await stack.enter_async_context(Log.open(f"embedded:{tmp_path / 'own'}"))
        await log.admin().create_topics([NewTopic("orders", 1)])
        await OtherCluster(log, "").write("orders", 0, b"0", b"1")
        await log.admin().alter_group_offsets("billing", {PLACE: 2})
        consumer = cluster.log.consumer(group_id="billing")
        await stack.enter_async_context(consumer)
        await consumer.subscribe(["orders"])
        while not consumer.assignment():
            await consumer.poll(timeout_ms=50)
        sink = mirror(cluster, replication_policy="identity", sync_group_offsets_enabled=True)
        context = RealContext("dr", own_log=AdminOwnLog(log))
        task = await stack.enter_async_context(writing(sink, context))
        await task.recover([PLACE])
        await flush(task, b"0", b"1", first=0)
        await until(lambda: equals(lambda: checkpoints_of(context), 1))
        assert await cluster.log.admin().group_offsets("billing") == {}
        # A farther position over there stays as well, once its reader has gone.
        await consumer.close(leave_group=True)
        await cluster.log.admin().alter_group_offsets("billing", {PLACE: 2})
        await log.admin().alter_group_offsets("billing", {PLACE: 1})
        await until(lambda: equals(lambda: checkpoints_of(context), 2))
        assert await cluster.log.admin().group_offsets("billing") == {PLACE: 2}


async def checkpoints_of(context: RealContext) -> int:
    return context.counts["mirror_checkpoints"]


@on_loop
async def test_an_earlier_owner_is_fenced(tmp_path: Path) -> None:
    async with other_cluster(tmp_path) as cluster:
        sink = mirror(cluster)
        async with writing(sink) as zombie, writing(sink) as successor:
            await zombie.recover([PLACE])
            await zombie.begin()
            await zombie.write(batch([(1, None, b"lost", ())]))
            await successor.recover([PLACE])
            # Its record may come after the abort: it begins again then, and finds itself fenced.
            with pytest.raises((Fenced, Retriable)):
                await zombie.commit({PLACE: 1})
            await flush(successor, b"a", first=0)
        assert [record.value for record in await cluster.read("eu.orders")] == [b"a"]


@on_loop
async def test_a_service_mirrors_what_a_pattern_names(tmp_path: Path) -> None:
    async with other_cluster(tmp_path / "other") as cluster, running(tmp_path / "own") as client:
        log = client.service.log
        await log.admin().create_topics([NewTopic("orders", 2), NewTopic("users", 1)])
        config = {
            "connector.class": "KafkaMirror", "topics.regex": "orders|later", "tasks.max": "2",
            "key.converter": BYTES, "value.converter": BYTES, "flush.every": "50ms",
            "bootstrap.servers": cluster.address, "source.cluster.alias": "eu",
            "emit.checkpoints.interval": "100ms",
        }  # fmt: skip
        status, answer = await client.ask("PUT", "/connectors/dr/config", config)
        assert status == 201, answer
        rows = [(1_700_000_000_000, b"k", b"v", (("h", b"x"), ("h", None))),
                (1_700_000_000_001, None, None, ())]  # fmt: skip
        async with log.producer() as producer:
            await producer.send_batch("orders", 1, rows)

        async def are_there(topic: str, number: int) -> bool:
            names = {each.name for each in await cluster.log.admin().list_topics()}
            return topic in names and len(await cluster.read(topic, number)) == len(rows)

        await until(lambda: are_there("eu.orders", 1))
        found = await cluster.read("eu.orders", 1)
        assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in found] == rows
        await log.admin().create_topics([NewTopic("later", 1)])
        async with log.producer() as producer:
            await producer.send_batch("later", 0, rows)
        await until(lambda: are_there("eu.later", 0))
        assert "eu.users" not in {each.name for each in await cluster.log.admin().list_topics()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"source_cluster_alias": "e.u"}, "source_cluster_alias='e.u': it is 1 to 100 letters"),
        ({"source_cluster_alias": "target"}, "has to differ"),
        ({"replication_policy_separator": "/"}, "it is one of . _ -"),
        ({"groups": ("(",)}, "groups='(' is no regular expression"),
        ({"emit_checkpoints_interval": "9ms"}, "has to be 100 ms or more"),
        ({"transaction_timeout": "16m"}, "at most 15m"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        KafkaMirror(**{"bootstrap_servers": "h:1", **settings}).check()
