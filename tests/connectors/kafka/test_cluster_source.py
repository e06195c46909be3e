"""KafkaClusterSource: every record of another cluster once, as it is, and losses are errors."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.connect import ConnectError, Retriable, Secret
from streamlog.connectors.kafka import KafkaClusterSource, SaslLogin, SslFiles
from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.testing import check_source
from tests.broker.process import BrokerProcess
from tests.connectors.kafka.other_cluster import THOROUGH, OtherCluster, Topics, other_cluster
from tests.connectors.runs import RealContext, on_loop, reading
from tests.servers.secured_broker import on_a_secured_broker

FIRST = {"topic": "t", "partition": 0}


@pytest.mark.parametrize("seed", range(20 if THOROUGH else 2))
@on_loop
async def test_every_record_is_read_once(tmp_path: Path, seed: int) -> None:
    async with other_cluster(tmp_path, a=2, b=2) as cluster:
        source = KafkaClusterSource(bootstrap_servers=cluster.address, topics=("a", "b"))
        await check_source(lambda: source, Topics(cluster, ["a", "b"], seed), seed=seed, lives=12)


@on_loop
async def test_records_stay_as_they_are(tmp_path: Path) -> None:
    chance = random.Random(1)

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
    async with other_cluster(tmp_path, t=1) as cluster:
        async with cluster.log.producer(compression="gzip") as producer:
            for start in range(0, len(rows), 50):
                await producer.send_batch("t", 0, rows[start : start + 50])
        source = KafkaClusterSource(bootstrap_servers=cluster.address, topics=("t",))
        async with reading(source) as life:
            await life.take(len(rows))
            found = [
                (round(each.timestamp.timestamp() * 1000), each.key, each.value, each.headers)
                for each in life.records
            ]
            assert found == rows
            assert {each.topic for each in life.records} == {"t"}
            assert life.offset is not None
            assert life.offset["offset"] == len(rows)


@on_loop
async def test_topics_by_pattern_and_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with other_cluster(tmp_path, orders_a=2, orders=1, others=1) as cluster:
        by_pattern = KafkaClusterSource(
            bootstrap_servers=cluster.address, topics_pattern="orders_.*|__.*"
        )
        context = RealContext()
        first = [{"topic": "orders_a", "partition": number} for number in range(2)]
        assert await by_pattern.partitions(context) == first
        await cluster.log.admin().create_topics([NewTopic("orders_b", 1)])
        await cluster.log.admin().create_partitions("orders_a", 3)
        assert await by_pattern.partitions(context) == [
            *first,
            {"topic": "orders_a", "partition": 2},
            {"topic": "orders_b", "partition": 0},
        ]
        by_name = KafkaClusterSource(bootstrap_servers=cluster.address, topics=("orders", "gone"))
        assert await by_name.partitions(context) == [{"topic": "orders", "partition": 0}]
        assert "has no topic 'gone'" in caplog.text


@on_loop
async def test_where_a_partition_begins(tmp_path: Path) -> None:
    async with other_cluster(tmp_path, t=1) as cluster:
        times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
        async with cluster.log.producer() as producer:
            for day, time in enumerate(times, 1):
                time_ms = round(time.timestamp() * 1000)
                await producer.send("t", b"%d" % day, partition=0, timestamp_ms=time_ms)
        starts = {
            "earliest": 0, "latest": 3, "2026-01-01T12:00:00Z": 1, "2026-01-03T01:00+01:00": 2,
            "2027-01-01T00:00:00Z": 3,
        }  # fmt: skip
        for start, offset in starts.items():
            source = KafkaClusterSource(
                bootstrap_servers=cluster.address, topics=("t",), start=start
            )
            async with reading(source) as life:
                read = await life.step()
                assert (len(read), read.offset["offset"]) == (0, offset), start
                assert len(str(read.offset["topic_id"])) == 32
        # As an operator sets it.
        async with reading(source, {"offset": 2}) as life:
            assert await life.take(1) == [b"3"]
        for wrong in ({"offset": "x"}, {"at": 1}, {"offset": 1, "topic_id": "y"}):
            with pytest.raises(ConfigError, match="is none of this source"):
                async with reading(source, wrong) as life:
                    await life.step()


Loss = Callable[[OtherCluster], Awaitable[None]]


async def overtaken(cluster: OtherCluster) -> None:
    await cluster.write("t", 0, *[b"lost"] * 5)
    await cluster.log.admin().delete_records({TopicPartition("t", 0): 8})
    await cluster.write("t", 0, b"new")


async def recreated(cluster: OtherCluster) -> None:
    await cluster.recreate("t")
    # More than were read: by its number alone, the offset would fit.
    await cluster.write("t", 0, *[b"new"] * 20)


LOSSES: list[tuple[Loss, str, int]] = [
    (overtaken, "retention has taken offsets 5 to 7 before they were read", 3),
    (recreated, "the topic was deleted and created again", 20),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss[0].__name__)
@on_loop
async def test_what_was_lost_while_nobody_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: tuple[Loss, str, int]
) -> None:
    lose, message, left = loss

    def source(on_lost: str) -> KafkaClusterSource:
        return KafkaClusterSource(bootstrap_servers=cluster.address, topics=("t",), on_lost=on_lost)

    async with other_cluster(tmp_path, t=1) as cluster:
        await cluster.write("t", 0, *[b"old"] * 5)
        async with reading(source("fail")) as life:
            await life.take(5)
        offset = life.offset
        await lose(cluster)
        with pytest.raises(ConnectError, match=f"{message}.*set on_lost") as caught:
            async with reading(source("fail"), offset) as life:
                await life.take(6)
        assert not isinstance(caught.value, Retriable)
        async with reading(source("earliest"), offset) as life:
            values = await life.take(left)
            assert values[-1] == b"new"
            assert life.context.counts == {"losses": 1}
            assert message in caplog.text
        # What was committed after the loss is a position of the new log.
        async with reading(source("fail"), life.offset) as life:
            await cluster.write("t", 0, b"next")
            assert await life.take(1) == [b"next"]
        async with reading(source("latest"), offset) as life:
            read = await life.step()
            assert len(read) == 0
            life.commit()
            await cluster.write("t", 0, b"last")
            assert await life.take(1) == [b"last"]


@on_loop
async def test_a_topic_that_is_made_anew_under_a_reader_is_told(tmp_path: Path) -> None:
    async with other_cluster(tmp_path, t=1) as cluster:
        await cluster.write("t", 0, *[b"old"] * 5)
        source = KafkaClusterSource(bootstrap_servers=cluster.address, topics=("t",))
        async with reading(source) as life:
            await life.take(5)
            waiting = asyncio.ensure_future(life.take(6))
            await recreated(cluster)
            with pytest.raises(ConnectError, match="the topic was deleted and created again"):
                await waiting
            assert life.values == [b"old"] * 5


@on_loop
async def test_a_truncated_log_is_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", flush="os") as broker:
        async with Log.open(f"kafka://{broker.address}") as log:
            cluster = OtherCluster(log, broker.address)
            await log.admin().create_topics([NewTopic("t", 1)])
            await cluster.write("t", 0, *[b"old"] * 5)
            source = KafkaClusterSource(bootstrap_servers=broker.address, topics=("t",))
            async with reading(source) as life:
                await life.take(5)
            assert life.offset is not None
            # As a reader of a leader whose last three records a crash has lost.
            beyond = {**life.offset, "offset": 8}
            await asyncio.to_thread(broker.kill_and_restart)
            await cluster.write("t", 0, *[b"new"] * 9)
            with pytest.raises(ConnectError, match="the log was truncated below offset 8"):
                async with reading(source, beyond) as life:
                    await life.take(1)
            earliest = KafkaClusterSource(
                bootstrap_servers=broker.address, topics=("t",), on_lost="earliest"
            )
            async with reading(earliest, beyond) as life:
                # From the cut on, and not what was read before it.
                assert await life.take(9) == [b"new"] * 9


@on_loop
async def test_aborted_transactions_move_the_offset(tmp_path: Path) -> None:
    async with other_cluster(tmp_path, a=2) as cluster:
        source = KafkaClusterSource(bootstrap_servers=cluster.address, topics=("a",))
        outside = Topics(cluster, ["a"], 0)
        at = {"topic": "a", "partition": 0}
        await cluster.write("a", 0, b"first")
        outside.chance.random = lambda: 0.0  # type: ignore[method-assign]
        async with reading(source, part=at) as life:
            await life.take(1)
            outside.chance.randrange = lambda *_: 0  # type: ignore[method-assign]
            await outside.put([1, 2])
            await life.take(3)
            assert life.values == [b"first", b"1", b"2"]
            # An aborted pair, its marker, and the pair that follows.
            assert life.offset is not None
            assert life.offset["offset"] == 6
        uncommitted = KafkaClusterSource(
            bootstrap_servers=cluster.address, topics=("a",), isolation_level="read_uncommitted"
        )
        async with reading(uncommitted, part=at) as life:
            assert await life.take(5) == [b"first", b"1", b"2", b"1", b"2"]


@on_loop
async def test_a_login_by_kafkas_names(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        address = url.removeprefix("kafka://")

        def source(password: str) -> KafkaClusterSource:
            return KafkaClusterSource(
                bootstrap_servers=address,
                topics=("words",),
                security_protocol="SASL_PLAINTEXT",
                sasl=SaslLogin(
                    mechanism="SCRAM-SHA-256", username="root", password=Secret(password)
                ),
            )

        root = source("of root")
        root.check()
        async with root.login.opened("test") as log:
            await log.admin().create_topics([NewTopic("words", 1)])
            await OtherCluster(log, address).write("words", 0, b"x")
        async with reading(root) as life:
            assert await life.take(1) == [b"x"]
        with pytest.raises(ConfigError) as caught:
            await source("geheim").partitions(RealContext())
        assert "geheim" not in str(caught.value)

    await on_a_secured_broker(tmp_path, story)


@on_loop
async def test_a_cluster_that_is_away_is_waited_for() -> None:
    source = KafkaClusterSource(bootstrap_servers="127.0.0.1:1", topics=("t",))
    with pytest.raises(Retriable, match=re.escape("127.0.0.1:1")):
        await source.partitions(RealContext())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"topics": ()}, "set either topics or topics_pattern"),
        ({"topics_pattern": "a"}, "set either topics or topics_pattern"),
        ({"topics": (), "topics_pattern": "("}, "topics_pattern='('"),
        ({"start": "yesterday"}, "write 'earliest', 'latest', or a time"),
        ({"start": "2026-01-01T00:00:00"}, "has no time zone"),
        ({"ssl": SslFiles(ca_location="/ca")}, "set it to SSL or SASL_SSL"),
        ({"sasl": SaslLogin(mechanism="PLAIN")}, "sasl"),
        ({"security_protocol": "SASL_SSL"}, "sasl"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        KafkaClusterSource(**{"bootstrap_servers": "h:1", "topics": ("t",), **settings}).check()
