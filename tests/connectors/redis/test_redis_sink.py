"""RedisSink against real servers: rows once, offsets with them, also when the server goes back."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
import redis
import trustme

from streamlog.connect import (
    Batch,
    ConnectError,
    Fenced,
    Retriable,
    Secret,
    TopicPartition,
)
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.redis import RedisSink
from streamlog.connectors.redis.redis_sink import RedisSinkTask
from streamlog.durations import EPOCH
from streamlog.errors import ConfigError
from streamlog.record import Record
from streamlog.testing import check_sink
from tests.connectors.runs import RealContext, on_loop
from tests.servers.redis_server import RedisServer
from tests.servers.server_process import free_port

PLACE = TopicPartition("orders", 0)
DATABASES = count(1)
THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"


@pytest.fixture
def database() -> int:
    return next(DATABASES)


class Keys:
    """The rows of a database, whatever form they have."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    async def put(self, rows: Sequence[object]) -> None:
        raise AssertionError("the sink writes them")

    async def rows(self) -> Sequence[object]:
        found: list[object] = []
        for key in self.client.keys("*"):
            kind = self.client.type(key)
            if key.startswith(b"streamlog:"):
                continue
            if kind == b"hash":
                found.append((key, self.client.hgetall(key)[b"number"]))
            elif kind == b"string":
                found.append((key, self.client.get(key)))
            else:
                found += [fields[b"number"] for _, fields in self.client.xrange(key)]
        return found


@pytest.mark.parametrize("form", ["hash", "string", "stream"])
def test_every_record_is_written_once(redis_server: RedisServer, database: int, form: str) -> None:
    sink = RedisSink(url=redis_server.url(database), form=form, offsets_key="streamlog:o")
    with closing(redis_server.client(database)) as client:
        outside = Keys(client)
        lives = 200 if THOROUGH else 15
        asyncio.run(check_sink(lambda: sink, outside, lives=lives, seed=database))


class Messages:
    """What was published to a channel."""

    def __init__(self, client: redis.Redis) -> None:
        self.received = client.pubsub(ignore_subscribe_messages=True)
        self.received.subscribe("checked")

    async def put(self, rows: Sequence[object]) -> None:
        raise AssertionError("the sink writes them")

    async def rows(self) -> Sequence[object]:
        found: list[object] = []
        while (message := self.received.get_message(timeout=0.2)) is not None or not found:
            if message is not None:
                found.append(message["data"])
        return found


def test_every_record_is_published_once(redis_server: RedisServer) -> None:
    sink = RedisSink(url=redis_server.url(next(DATABASES)), form="publish")
    with closing(redis_server.client()) as client:
        outside = Messages(client)
        asyncio.run(check_sink(lambda: sink, outside, lives=10))
        outside.received.close()


def test_kills_of_the_server_lose_and_repeat_nothing() -> None:
    with RedisServer(appendfsync="always") as server:
        lives = count(1)

        def make() -> RedisSink:
            if next(lives) % 5 == 0:
                server.kill_and_restart()
            return RedisSink(url=server.url(), form="stream")

        with closing(server.client()) as client:
            asyncio.run(check_sink(make, Keys(client), lives=100 if THOROUGH else 8))


def batch(values: Sequence[tuple[object, object]], first: int = 0) -> Batch[object, object]:
    records = [
        Record(key, value, EPOCH, topic="orders", partition=0, offset=first + at)
        for at, (key, value) in enumerate(values)
    ]
    raw = [(b"", None if value is None else str(value).encode()) for _, value in values]
    return Batch(PLACE, records, next_offset=first + len(records), raw=raw)


async def flush(task: RedisSinkTask, values: Sequence[tuple[object, object]], first: int) -> None:
    await task.begin()
    await task.write(batch(values, first))
    await task.commit({PLACE: first + len(values)})


def opened(sink: RedisSink, context: RealContext | None = None) -> RedisSinkTask:
    task = sink.open(context or RealContext("out"))
    assert isinstance(task, RedisSinkTask)
    return task


# Power fails: the server has a prefix of what it had written, cut anywhere.
@pytest.mark.parametrize("seed", range(40 if THOROUGH else 3))
def test_a_server_that_went_back_gets_everything_again(seed: int) -> None:
    chance = random.Random(seed)

    async def live(server: RedisServer) -> None:
        sink = RedisSink(url=server.url(), form="stream")
        context = RealContext("out")
        zombie = opened(sink)
        async with opened(sink, context) as task, zombie:
            await zombie.recover([PLACE])
            await task.recover([PLACE])
            at = 0
            for _ in range(chance.randrange(1, 30)):
                number = chance.randrange(1, 5)
                await flush(task, [("k", {"n": at + n}) for n in range(number)], at)
                at += number
            cut_log(server, chance)
            with pytest.raises((Fenced, Retriable)):
                await flush(zombie, [("k", {"n": -1})], 0)
            # As the runtime does it: recover, go back to that offset, write again.
            try:
                await flush(task, [("k", {"n": n}) for n in range(at, at + 3)], at)
            except Retriable:
                start = (await task.recover([PLACE])).get(PLACE, 0)
                assert start <= at
                await flush(task, [("k", {"n": n}) for n in range(start, at + 3)], start)
        with closing(server.client()) as client:
            rows = [int(fields[b"n"]) for _, fields in client.xrange("orders")]
        assert rows == [*range(at + 3)]

    with RedisServer() as server:
        asyncio.run(live(server))


def cut_log(server: RedisServer, chance: random.Random) -> None:
    server.kill()
    (log,) = server.directory.glob("appendonlydir/*.incr.aof")
    os.truncate(log, chance.randrange(log.stat().st_size + 1))
    server.start()


@on_loop
async def test_a_server_without_its_data_is_told() -> None:
    with RedisServer(appendonly="no") as server:
        context = RealContext("out")
        async with opened(RedisSink(url=server.url()), context) as task:
            await task.recover([PLACE])
            await flush(task, [("a", {"n": 1})], 0)
            server.kill_and_restart()
            with pytest.raises(Retriable):
                await flush(task, [("b", {"n": 1})], 1)
            with pytest.raises(Retriable, match="no offset for orders-0"):
                await flush(task, [("b", {"n": 1})], 1)
            assert await task.recover([PLACE]) == {}
            assert context.counts == {"lost_offsets": 1}
            await flush(task, [("b", {"n": 1})], 1)
            assert await task.recover([PLACE]) == {PLACE: 2}


@on_loop
async def test_a_zombie_writes_nothing(redis_server: RedisServer) -> None:
    sink = RedisSink(url=redis_server.url(next(DATABASES)))
    async with opened(sink) as zombie, opened(sink) as successor:
        await zombie.recover([PLACE])
        assert await successor.recover([PLACE]) == {}
        with pytest.raises(Fenced, match="another task has taken over orders-0"):
            await flush(zombie, [("a", {"n": 1})], 0)
        await flush(successor, [("b", {"n": 1})], 0)
        await successor.revoked([PLACE])
        with pytest.raises(Fenced, match="not claimed"):
            await flush(successor, [("b", {"n": 1})], 0)
        assert await zombie.recover([PLACE]) == {PLACE: 1}


Row = tuple[object, object]


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("seed", range(50 if THOROUGH else 4))
@pytest.mark.parametrize("form", ["hash", "string"])
@on_loop
async def test_the_keys_are_the_table(redis_server: RedisServer, form: str, seed: int) -> None:
    database = next(DATABASES)
    chance = random.Random(seed)
    keys = ["a", "b", "", "ä{x}", "k" * 5_000]
    expected: dict[bytes, object] = {}
    sink = RedisSink(url=redis_server.url(database), form=form, key="x:{key}")
    async with opened(sink) as task:
        await task.recover([PLACE])
        at = 0
        for _ in range(10):
            rows: list[Row] = []
            for _ in range(chance.randrange(1, 30)):
                key = chance.choice(keys)
                fields = {f"f{n}": chance.choice([None, n, "", "v\x00" * n]) for n in range(3)}
                value = None if chance.random() < 0.3 else fields
                rows.append((key, value))
                there = {k.encode(): str(v).encode() for k, v in fields.items() if v is not None}
                row: object = there if form == "hash" else str(value).encode()
                expected.pop(f"x:{key}".encode(), None)
                if value is not None and row:
                    expected[f"x:{key}".encode()] = row
            await flush(task, rows, at)
            at += len(rows)
    with closing(redis_server.client(database)) as client:
        read = client.hgetall if form == "hash" else client.get
        found = {key: read(key) for key in client.keys("x:*")}
        assert found == expected
        assert client.hget("streamlog:offsets:out", "orders-0") == str(at).encode()


@on_loop
async def test_a_script_that_can_not_finish_writes_nothing(own_server: RedisServer) -> None:
    sink = RedisSink(url=own_server.url(), key="{key}")
    with closing(own_server.client()) as client:
        async with opened(sink) as task:
            await task.recover([PLACE])
            client.set("taken", "by another program")
            client.hset("old", "n", 1)
            rows: list[Row] = [("a", {"n": 1}), ("taken", {"n": 1})]
            with pytest.raises(ConnectError, match="'taken' holds a string, not a hash"):
                await flush(task, rows, 0)
            client.config_set("maxmemory", 1)
            # A deletion alone would be allowed, and be half of the row.
            with pytest.raises(Retriable, match="maxmemory"):
                await flush(task, [("old", None), ("a", {"n": 1})], 0)
            client.config_set("maxmemory", 0)
            client.config_set("min-replicas-to-write", 1)
            with pytest.raises(Retriable, match="NOREPLICAS"):
                await flush(task, [("a", {"n": 1})], 0)
            client.config_set("min-replicas-to-write", 0)
            assert sorted(client.keys("*")) == [b"old", b"streamlog:offsets:out", b"taken"]
            assert client.hkeys("streamlog:offsets:out") == [b"orders-0:epoch"]
            client.delete("taken")
            await flush(task, rows, 0)
            assert client.exists("a", "taken") == 2


@on_loop
async def test_users_with_few_rights(own_server: RedisServer) -> None:
    rights = ["~orders:*", "~streamlog:offsets:*"]
    commands = [
        *("+info", "+evalsha", "+script|load", "+multi", "+exec", "+hget", "+hset"),
        *("+hincrby", "+type", "+del"),
    ]
    with closing(own_server.client()) as client:
        client.execute_command("ACL", "SETUSER", "sink", "on", ">geheim", *rights, *commands)
        sink = RedisSink(url=own_server.url(), user="sink", password=Secret("geheim"))
        async with opened(sink) as task:
            await task.recover([PLACE])
            await flush(task, [("k", {"n": 1})], 0)
        other = RedisSink(
            url=own_server.url(), user="sink", password=Secret("geheim"), key="other:{key}"
        )
        async with opened(other) as task:
            await task.recover([PLACE])
            with pytest.raises(ConfigError, match="may not run DEL on 'other:k'"):
                await flush(task, [("k", {"n": 1})], 1)
            with pytest.raises(ConfigError, match="may not run DEL on 'other:k'"):
                await flush(task, [("k", None)], 1)
        wrong = RedisSink(url=own_server.url(), user="sink", password=Secret("falsch"))
        with pytest.raises(ConfigError, match="refuses the login") as caught:
            async with opened(wrong):
                pass
        assert "falsch" not in str(caught.value)


@on_loop
async def test_an_operator_sets_and_forgets_offsets(redis_server: RedisServer) -> None:
    sink = RedisSink(url=redis_server.url(next(DATABASES)))
    other = TopicPartition("orders", 1)
    async with opened(sink) as running, opened(sink) as task:
        await running.recover([PLACE])
        await task.reset({PLACE: 40, other: 7})
        with pytest.raises(Fenced):
            await flush(running, [("k", {"n": 1})], 0)
        assert await task.recover([PLACE, other]) == {PLACE: 40, other: 7}
        await task.reset({PLACE: None})
        assert await task.recover([PLACE, other]) == {other: 7}


@on_loop
async def test_clusters_sentinels_and_replicas_are_no_targets(redis_server: RedisServer) -> None:
    with (
        RedisServer(cluster_enabled="yes", databases="1") as cluster,
        pytest.raises(ConfigError, match="belongs to a Redis Cluster"),
    ):
        async with opened(RedisSink(url=cluster.url())):
            pass
    with (
        RedisServer(replicaof=f"127.0.0.1 {redis_server.port}") as replica,
        pytest.raises(Retriable, match="is a replica"),
    ):
        async with opened(RedisSink(url=replica.url())):
            pass


@on_loop
async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, certificate in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("client")),
    ):
        certificate.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        certificate.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    options = {
        "tls_ca_cert_file": str(tmp_path / "ca.pem"),
        "tls_cert_file": str(tmp_path / "server.pem"),
        "tls_key_file": str(tmp_path / "server.key"),
    }
    with RedisServer(**options) as server, closing(server.client()) as client:
        port = free_port()
        client.config_set("tls-port", port)
        url = f"rediss://127.0.0.1:{port}"
        files = ClientTls(
            ca=str(tmp_path / "ca.pem"),
            certificate=str(tmp_path / "client.pem"),
            key=str(tmp_path / "client.key"),
        )
        async with opened(RedisSink(url=url, tls=files)) as task:
            await task.recover([PLACE])
            await flush(task, [("k", {"n": 1})], 0)
        assert client.exists("orders:k")
        with pytest.raises(Retriable, match="CERTIFICATE_VERIFY_FAILED"):
            async with opened(RedisSink(url=url)):
                pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "http://host"}, "is not redis://HOST:PORT or rediss://HOST:PORT"),
        ({"url": "redis://u:geheim@host"}, "set user and password"),
        ({"url": "redis+sentinel://host"}, "Sentinels, which are not supported"),
        ({"url": "redis://host/x"}, "names the database 'x'"),
        ({"url": "redis://host:0"}, "port 0"),
        ({"url": "redis://host:99999"}, "no valid host or port"),
        ({"url": "redis://host?db=1"}, "takes no parameters"),
        ({"tls": ClientTls()}, "begins with rediss://"),
        ({"url": "rediss://host", "tls": ClientTls(key="k")}, "go together"),
        ({"user": "u"}, "user needs password"),
        ({"key": "{topic}"}, "needs {key} in key"),
        ({"key": "{value}"}, "only"),
        ({"form": "stream", "ttl": "1s"}, "ttl is for"),
        ({"ttl": "0s"}, "ttl is for"),
        ({"maxlen": 3}, "maxlen is for"),
        ({"form": "stream", "maxlen": 0}, "maxlen is for"),
        ({"offsets_key": ""}, "offsets_key is empty"),
        ({"timeout": "0s"}, "longer than 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        RedisSink(**{"url": "redis://host", **settings}).check()
    assert "geheim" not in str(caught.value)
