"""A target that refuses for good fails its task in one line, and makes no dead letters.

Each sink runs as the runtime runs it, with a policy that gives bad records to a dead letter queue,
against a real server that refuses: from the start, or once it has taken the first record. What is
of one record (a row's policy, a status 422) is left to the queue, and the others are written.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from starlette.requests import Request
from starlette.responses import Response

from streamlog.client.admin import AclFilter, NewTopic
from streamlog.connect import Secret, Sink, TopicPartition
from streamlog.connect.declared_connectors import SinkConnector
from streamlog.connect_tasks.carried import SinkCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.sink_task import GroupPosition, SinkRunner
from streamlog.connectors.http.http_sink import HttpSink
from streamlog.connectors.kafka import KafkaClusterSink, KafkaMirror, SaslLogin
from streamlog.connectors.mqtt import MqttSink
from streamlog.connectors.redis import RedisSink
from streamlog.connectors.search import Search
from streamlog.connectors.sql import SqlSink
from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.nodes.policies import on_error
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.error_handling import OFFSET
from streamlog.processing.outbox import SinkBatch
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.records.record_columns import RecordColumns
from streamlog.serdes import serde_for
from tests.connect_tasks.test_sink_task import Clock
from tests.connectors.http.servers import answering
from tests.connectors.kafka.other_cluster import other_cluster
from tests.connectors.runs import on_loop
from tests.connectors.search.bulk_double import BulkDouble
from tests.connectors.sql.databases import rows, run
from tests.servers.mariadb import MariaDbServer
from tests.servers.mosquitto import MosquittoServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis_server import RedisServer
from tests.servers.secured_broker import access, allowed, on_a_secured_broker
from tests.servers.server_process import program
from tests.worker.commit_steps import IS_THOROUGH

SPEC = TopicSpec("orders", serde_for(str), serde_for(dict[str, int]))
PART = TopicPartition("orders", 0)
ATTEMPTS = 30
"""More than halving four records down takes."""


def nothing() -> None:
    """The server stays as it is."""


class Run:
    """A task of a sink, under a policy that gives bad records to a dead letter queue."""

    def __init__(self, sink: Sink[Any, Any]) -> None:
        connector = SinkConnector(
            name="out", sink=sink, topics=[SPEC], policy=on_error.dlq("letters").named("app")
        )
        clock = Clock()
        context = ConnectorContext("out", 0, clock)
        carrier = SinkCarrier(connector)
        self.runner = SinkRunner(sink, context, carrier, self, clock, chance=lambda: 0.0)
        self.letters: list[int] = []

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Take offsets of the group, which nobody reads here."""

    async def with_offsets(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Nobody has committed any."""
        return set()

    async def write_letters(self, letters: Sequence[SinkBatch]) -> None:
        """Take dead letters."""
        headers = [dict(each) for batch in letters for each in batch.headers or ()]
        self.letters += [int(each[OFFSET]) for each in headers]

    async def carry(self, values: Sequence[int], first: int = 0) -> None:
        """Carry records until the target has them; raises what fails the task."""
        end = first + len(values)
        self.runner.seeks.setdefault(PART, first)
        await self.runner.work()
        for _ in range(ATTEMPTS):
            # What was aborted is read again.
            start = self.runner.seeks.pop(PART, None)
            if start is not None:
                columns = RecordColumns()
                for offset in range(start, end):
                    value = SPEC.value.dumps({"n": values[offset - first]})
                    columns.add(offset, 1, b"k%d" % offset, value, None)
                await self.runner.take(PART, columns, end)
            await self.runner.work(at_once=True)
            if self.runner.committed.get(PART) == end:
                return
        raise AssertionError(f"it is tried for ever: {self.runner.figures.waits_for}")


@asynccontextmanager
async def running(sink: Sink[Any, Any]) -> AsyncIterator[Run]:
    sink.check()
    found = Run(sink)
    found.runner.assign({PART: GroupPosition(0)})
    try:
        yield found
    finally:
        await found.runner.close()


async def refusal_of(
    sink: Sink[Any, Any],
    refuse: Callable[[], Awaitable[None] | None] = nothing,
    *,
    at_start: bool = False,
) -> str:
    """Return the one line by which a task fails; there are no dead letters.

    Args:
        sink: the sink.
        refuse: makes the server refuse, once it has taken a record.
        at_start: whether it refuses without that.
    """
    async with running(sink) as found:
        if not at_start:
            await found.carry([1])
            if (refusing := refuse()) is not None:
                await refusing
        with pytest.raises(ConfigError) as caught:
            await found.carry([2, 3, 4, 5], first=0 if at_start else 1)
        assert found.letters == []
    text = str(caught.value)
    assert text.isprintable(), "one line"
    assert "geheim" not in text
    return text


# PostgreSQL, MariaDB, SQLite


class Shop:
    """A database with a table, and a user that may write there."""

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.name = server, server.create_database()
        self.user = f"sink_{self.name}"
        self.run(
            "CREATE TABLE orders (n INT)",
            "CREATE TABLE keyed (id TEXT PRIMARY KEY, n INT)",
            f"CREATE ROLE {self.user} LOGIN PASSWORD 'geheim'",
            "GRANT ALL ON SCHEMA public TO PUBLIC",
            "GRANT ALL ON orders, keyed TO PUBLIC",
        )

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.server.dsn(self.name), autocommit=True) as connection:
            for each in statements:
                connection.execute(each)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        return self.server.url(self.name).replace("postgres@", "")

    def sink(self, password: str = "geheim", **settings: Any) -> SqlSink:
        return SqlSink(url=self.url, user=self.user, password=Secret(password), **settings)

    def keyed(self) -> SqlSink:
        return self.sink(
            table="keyed", insert_mode="upsert", pk_mode="record_key", pk_fields=("id",)
        )

    def end_sessions(self) -> None:
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}' {}"
        self.run(ended.format(self.name, "AND pid <> pg_backend_pid()"))


@pytest.fixture
def shop(postgres: PostgresServer) -> Shop:
    made = Shop(postgres)
    # Else everyone is let in, whatever the password.
    rights = postgres.directory / "data" / "pg_hba.conf"
    rule = f"host {made.name} {made.user} 127.0.0.1/32 scram-sha-256\n"
    rights.write_text(rule + rights.read_text())
    made.run("SELECT pg_reload_conf()")
    return made


async def until_refused(shop: Shop, password: str) -> None:
    """Wait until the server asks for passwords: it reads its rules some time later."""
    dsn = shop.server.dsn(shop.name).replace("user=postgres", f"user={shop.user}")
    for _ in range(1_000):
        try:
            psycopg.connect(f"{dsn} password={password}").close()
        except psycopg.OperationalError:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the rules were not read")


@on_loop
async def test_postgres_that_refuses_a_login(shop: Shop) -> None:
    await until_refused(shop, "falsch")
    assert "authentication failed" in await refusal_of(shop.sink("falsch"), at_start=True)
    missing = SqlSink(url=shop.server.url("nirgends"))
    assert 'database "nirgends" does not exist' in await refusal_of(missing, at_start=True)

    def change() -> None:
        shop.run(f"ALTER ROLE {shop.user} PASSWORD 'neu'")
        shop.end_sessions()

    assert "authentication failed" in await refusal_of(shop.sink(), change)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("REVOKE ALL ON orders FROM PUBLIC", "permission denied for table orders"),
        ("DROP TABLE orders", 'relation "orders" does not exist'),
        ("ALTER TABLE orders RENAME n TO m", 'column "n" of relation "orders" does not exist'),
        ("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", "COPY FROM not supported"),
    ],
)
@on_loop
async def test_postgres_that_refuses_every_row(shop: Shop, statement: str, said: str) -> None:
    text = await refusal_of(shop.sink(), lambda: shop.run(statement))
    assert said in text
    assert "look at" in text


@on_loop
async def test_postgres_that_refuses_the_table_of_offsets(shop: Shop) -> None:
    text = await refusal_of(
        shop.sink(), lambda: shop.run("ALTER TABLE streamlog_offsets OWNER TO postgres")
    )
    assert "permission denied for table streamlog_offsets" in text


@on_loop
async def test_a_row_that_a_policy_of_the_table_refuses_is_a_dead_letter(shop: Shop) -> None:
    shop.run(
        "ALTER TABLE keyed ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY positive ON keyed USING (true) WITH CHECK (n > 0)",
    )
    async with running(shop.keyed()) as found:
        await found.carry([1, 2, -3, 4])
        assert found.letters == [2]
    assert rows(shop.server.url(shop.name), "SELECT n FROM keyed ORDER BY n") == [(1,), (2,), (4,)]


@on_loop
async def test_a_row_that_is_refused_at_the_commit_is_a_dead_letter(shop: Shop) -> None:
    shop.run("ALTER TABLE orders ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")
    async with running(shop.sink()) as found:
        await found.carry([1, 2, 2, 4])
        assert found.letters == [2]
    url = shop.server.url(shop.name)
    assert rows(url, "SELECT n FROM orders ORDER BY n") == [(1,), (2,), (4,)]


@on_loop
async def test_mariadb_that_refuses(mariadb: MariaDbServer) -> None:
    url = mariadb.url(mariadb.create_database())
    run(url, "CREATE TABLE orders (n INT)")
    missing = SqlSink(url=mariadb.url("nirgends"))
    assert "Unknown database 'nirgends'" in await refusal_of(missing, at_start=True)
    text = await refusal_of(SqlSink(url=url), lambda: run(url, "DROP TABLE orders"))
    assert "orders' doesn't exist" in text


@pytest.mark.skipif(not IS_THOROUGH, reason="the server's tables of users take seconds")
@on_loop
async def test_mariadb_that_refuses_a_user() -> None:
    with MariaDbServer(has_users=True) as server:
        name = server.create_database()
        root = server.url(name)
        user = "sink@'127.0.0.1'"
        run(
            root,
            "CREATE TABLE orders (n INT)",
            f"CREATE USER {user} IDENTIFIED BY 'geheim'",
            f"GRANT CREATE, SELECT, INSERT, UPDATE ON {name}.streamlog_offsets TO {user}",
            f"GRANT SELECT, INSERT ON {name}.orders TO {user}",
        )

        def sink(password: str = "geheim") -> SqlSink:
            url = f"mariadb://127.0.0.1:{server.port}/{name}"
            return SqlSink(url=url, user="sink", password=Secret(password))

        assert "Access denied for user" in await refusal_of(sink("falsch"), at_start=True)
        revoke = f"REVOKE INSERT ON {name}.orders FROM {user}"
        assert "INSERT command denied" in await refusal_of(sink(), lambda: run(root, revoke))
        run(root, f"ALTER USER {user} ACCOUNT LOCK")
        assert "account is locked" in await refusal_of(sink(), at_start=True)


@on_loop
async def test_sqlite_that_refuses(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    run(url, "CREATE TABLE orders (n INT)")
    text = await refusal_of(SqlSink(url=url), lambda: run(url, "DROP TABLE orders"))
    assert "no such table: orders" in text
    (tmp_path / "text.db").write_text("no database" * 1_000)
    other = SqlSink(url=f"sqlite:///{tmp_path / 'text.db'}")
    assert "file is not a database" in await refusal_of(other, at_start=True)


# Redis


@pytest.fixture(scope="module")
def redis_with_users() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@contextmanager
def redis_user(server: RedisServer) -> Iterator[Callable[..., None]]:
    """Give a user all rights; yields what changes them."""
    with closing(server.client()) as client:

        def change(*rights: str) -> None:
            client.execute_command("ACL", "SETUSER", "sink", *rights)

        client.flushall()
        change("reset", "on", ">geheim", "~*", "&*", "+@all")
        yield change


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        (["-hset"], "may not run HSET on 'orders:k1'"),
        (["-evalsha"], "refuses the user"),
        (["resetkeys", "~streamlog:*"], "may not run DEL on 'orders:k1'"),
        (["resetpass", ">neu"], "refuses the login"),
        (["off"], "refuses the login"),
    ],
)
@on_loop
async def test_redis_that_refuses(
    redis_with_users: RedisServer, rights: list[str], said: str
) -> None:
    with redis_user(redis_with_users) as change, closing(redis_with_users.client()) as client:

        def refuse() -> None:
            change(*rights)
            # A session keeps the login that it has.
            client.client_kill_filter(user="sink")

        sink = RedisSink(url=redis_with_users.url(), user="sink", password=Secret("geheim"))
        try:
            assert said in await refusal_of(sink, refuse)
        finally:
            change("reset", "on", ">geheim", "~*", "&*", "+@all")


@on_loop
async def test_redis_whose_stream_is_something_else(redis_with_users: RedisServer) -> None:
    """One key for all records is a setting; a key of each record's own is the record's."""
    with closing(redis_with_users.client()) as client:
        client.flushall()
        client.set("orders", "text")
        client.set("k2", "text")
        stream = RedisSink(url=redis_with_users.url(), form="stream")
        assert "holds a string, not a stream" in await refusal_of(stream, at_start=True)
        async with running(RedisSink(url=redis_with_users.url(), key="{key}")) as found:
            await found.carry([1, 2, 3, 4])
            assert found.letters == [2]
        assert client.hget("k3", "n") == b"4"


# HTTP


@on_loop
async def test_a_server_that_refuses_any_request() -> None:
    """One server for all, as its start and end cost more than the requests."""
    answer = 200

    async def respond(request: Request) -> Response:
        await request.body()
        return Response("as\ntold", answer)

    def answer_with(status: int) -> None:
        nonlocal answer
        answer = status

    async with answering(respond) as url:
        for status, body in (
            (302, "record"),
            (401, "ndjson"),
            (403, "record"),
            (404, "ndjson"),
            (405, "record"),
            (415, "record"),
        ):
            answer_with(200)
            text = await refusal_of(HttpSink(url=url, body=body), partial(answer_with, status))
            assert f"was answered with {status}: as told; look at" in text


@on_loop
async def test_a_value_that_the_server_blames_is_a_dead_letter() -> None:
    async def respond(request: Request) -> Response:
        return Response("", 422 if b"13" in await request.body() else 200)

    async with answering(respond) as url:
        for body in ("record", "ndjson"):
            async with running(HttpSink(url=url, body=body)) as found:
                await found.carry([1, 2, 13, 4])
                assert found.letters == [2]


@on_loop
async def test_a_token_that_no_request_can_have() -> None:
    async def respond(_: Request) -> Response:
        raise AssertionError("it was sent")

    async with answering(respond) as url:
        sink = HttpSink(url=url, token=Secret("ge\nheim"))
        text = await refusal_of(sink, at_start=True)
    assert "token or headers has a character that no header may have" in text
    assert "heim" not in text


# Elasticsearch and OpenSearch


@on_loop
async def test_a_search_server_that_refuses_any_request() -> None:
    server = BulkDouble()

    def answer_with(status: int) -> None:
        server.before = lambda _: Response("no", status) if status else None

    async with answering(server.respond) as url:
        for status in (401, 403, 404):
            answer_with(0)
            text = await refusal_of(Search(urls=(url,)), partial(answer_with, status))
            assert f"was answered with {status}: no; look at" in text
    assert [*server.documents("orders")] == ["k0"]


# MQTT


@pytest.fixture(scope="module")
def broker_with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoServer]:
    path = tmp_path_factory.mktemp("mosquitto")
    command = [program("mosquitto_passwd", "mosquitto"), "-b", "-c", path / "users"]
    subprocess.run([*command, "sink", "geheim"], check=True)
    (path / "rights").write_text("user sink\ntopic write allowed/#\n")
    with MosquittoServer(
        allow_anonymous="false",
        password_file=str(path / "users"),
        acl_file=str(path / "rights"),
        retain_available="false",
    ) as server:
        yield server


@on_loop
async def test_a_broker_that_refuses(broker_with_users: MosquittoServer) -> None:
    def sink(password: str = "geheim", **settings: Any) -> MqttSink:
        return MqttSink(
            url=broker_with_users.url, user="sink", password=Secret(password), **settings
        )

    wrong = sink("falsch", topic="allowed/a")
    assert "refuses the connection: Not authorized" in await refusal_of(wrong, at_start=True)
    forbidden = sink(topic="forbidden/a")
    assert "refuses a message: Not authorized" in await refusal_of(forbidden, at_start=True)
    retained = sink(topic="allowed/a", retain=True)
    assert "Retain not supported" in await refusal_of(retained, at_start=True)
    async with running(sink(topic="allowed/a")) as found:
        await found.carry([1, 2, 3, 4])
        assert found.letters == []


# Kafka


@on_loop
async def test_a_cluster_that_refuses_the_name_of_a_topic(tmp_path: Path) -> None:
    async with other_cluster(tmp_path) as cluster:
        sink = KafkaClusterSink(
            bootstrap_servers=cluster.address,
            topic="{topic} of ours",
            create_partitions=1,
            transactional_id="sink",
        )
        text = await refusal_of(sink, at_start=True)
    assert re.search("orders of ours", text)


@on_loop
async def test_a_record_that_a_cluster_refuses_is_a_dead_letter(tmp_path: Path) -> None:
    """It is larger than the topic takes, and the commit of the transaction says so."""
    async with other_cluster(tmp_path) as cluster:
        small = NewTopic("orders", 1, configs={"max.message.bytes": "200"})
        await cluster.log.admin().create_topics([small])
        sink = KafkaClusterSink(bootstrap_servers=cluster.address, transactional_id="sink")
        async with running(sink) as found:
            await found.carry([1, 2, 10**200, 4])
            assert found.letters == [2]
        assert [json.loads(row.value or b"") for row in await cluster.read("orders")] == [
            {"n": 1},
            {"n": 2},
            {"n": 4},
        ]


@on_loop
async def test_a_cluster_that_refuses_a_user(tmp_path: Path) -> None:
    def sink(url: str, password: str = "of shop") -> KafkaClusterSink:
        login = SaslLogin(mechanism="SCRAM-SHA-256", username="shop", password=Secret(password))
        return KafkaClusterSink(
            bootstrap_servers=url.removeprefix("kafka://"),
            transactional_id="sink",
            security_protocol="SASL_PLAINTEXT",
            sasl=login,
        )

    def mirror(url: str, password: str) -> KafkaMirror:
        login = SaslLogin(mechanism="SCRAM-SHA-256", username="shop", password=Secret(password))
        return KafkaMirror(
            bootstrap_servers=url.removeprefix("kafka://"),
            security_protocol="SASL_PLAINTEXT",
            sasl=login,
        )

    async def story(url: str) -> None:
        assert "look at the login" in await refusal_of(mirror(url, "geheim"), at_start=True)
        missing = await refusal_of(mirror(url, "of shop"), at_start=True)
        assert "mm2-streamlog-positions.source.internal" in missing
        assert "AUTHORIZATION_FAILED" in missing
        async with Log.open(url, security=access("root")) as log:
            await log.admin().create_topics([NewTopic("orders", 1)])
            right = allowed(ResourceType.TOPIC, "orders", Operation.WRITE)
            offsets = (Operation.CREATE, Operation.WRITE, Operation.READ)
            await log.admin().create_acls(
                [
                    right,
                    *(
                        allowed(ResourceType.TOPIC, "streamlog-sink-offsets", each)
                        for each in offsets
                    ),
                    allowed(ResourceType.TRANSACTIONAL_ID, "sink", Operation.WRITE, prefixed=True),
                ]
            )
            wrong = await refusal_of(sink(url, "geheim"), at_start=True)
            assert "look at the login" in wrong

            async def revoke() -> None:
                await log.admin().delete_acls([AclFilter(name="orders", operation=Operation.WRITE)])

            assert "TOPIC_AUTHORIZATION_FAILED" in await refusal_of(sink(url), revoke)

    await on_a_secured_broker(tmp_path, story)
