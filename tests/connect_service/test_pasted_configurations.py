"""Configurations as the documentation of Kafka, Confluent and Debezium has them, pasted.

Only addresses, names and paths are those of the test. The servers are real.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import obstore
import psycopg
import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from obstore.store import from_url

from chaos.ports import reserved_ports
from streamlog.client.admin import NewTopic
from streamlog.connect_service.configured import strange_settings
from tests.connect_service.running import Client, running
from tests.connectors.http.servers import answering
from tests.connectors.search.bulk_double import BulkDouble
from tests.servers.opensearch import OpenSearchServer
from tests.servers.postgres import PostgresServer

JSON = {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}
TEXT = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}


def life(directory: Path, act: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), running(directory) as client:
            await act(client)

    asyncio.run(main())


async def create(client: Client, name: str, config: dict[str, str], state: str = "RUNNING") -> None:
    body = {"name": name, "config": config, "initial_state": state}
    status, answer = await client.ask("POST", "/connectors", body)
    assert status == 201, answer
    target = f"/connector-plugins/{config['connector.class']}/config/validate"
    _, answer = await client.ask("PUT", target, {**config, "name": name})
    assert answer["error_count"] == 0, answer


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_apache_kafkas_quickstart_copies_a_file(tmp_path: Path) -> None:
    source, sink = tmp_path / "test.txt", tmp_path / "test.sink.txt"
    source.write_text("foo\nbar\nunfinished")

    async def act(client: Client) -> None:
        # https://kafka.apache.org/quickstart: connect-file-source.properties and -sink.
        await create(client, "local-file-sink", {
            "connector.class": "FileStreamSink", "tasks.max": "1", "file": str(sink),
            "topics": "connect-test", **TEXT, "flush.every": "50ms",
        })  # fmt: skip
        await create(client, "local-file-source", {
            "connector.class": "FileStreamSource", "tasks.max": "1", "file": str(source),
            "topic": "connect-test", "poll": "50ms", **TEXT,
        })  # fmt: skip
        await client.until(lambda: sorted(lines(sink)) == ["bar", "foo"])
        with source.open("a") as file:
            file.write(" no more\n")
        await client.until(lambda: len(lines(sink)) == 3)
        # The topic has several partitions, whose records come in any order.
        assert sorted(lines(sink)) == ["bar", "foo", "unfinished no more"]
        # The offset is what Apache Kafka's connector writes.
        found = await client.get("/connectors/local-file-source/offsets")
        assert found["offsets"] == [
            {"partition": {"filename": str(source)}, "offset": {"position": 27}}
        ]

    life(tmp_path / "log", act)


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.dsn(postgres.create_database()), autocommit=True) as opened:
        yield opened


ACCOUNTS = b"""
    CREATE TABLE accounts (id INT PRIMARY KEY, name TEXT, balance NUMERIC(9, 2), visits NUMERIC(5),
    modified TIMESTAMP NOT NULL)"""


def test_a_task_that_a_java_worker_has_left_has_no_strange_settings() -> None:
    task = {"connector.class": "FileStreamSource", "file": "/a", "topic": "t", "other": "x"}
    left = {**task, "task.class": "org.apache.kafka.connect.file.FileStreamSourceTask"}
    assert strange_settings(left) == strange_settings(task) == ["other"]


def test_confluents_jdbc_source_and_sink_copy_a_table(
    tmp_path: Path, postgres: PostgresServer, db: psycopg.Connection
) -> None:
    name = db.info.dbname
    db.execute(ACCOUNTS)
    db.execute(
        b"INSERT INTO accounts SELECT n, 'a' || n, n * 1.5, n, '2026-01-02 03:04:05.678'"
        b" FROM generate_series(1, 5) n"
    )
    url = f"jdbc:postgresql://127.0.0.1:{postgres.port}/{name}"
    out = tmp_path / "topic.txt"

    async def act(client: Client) -> None:
        # Confluent's "JDBC Source Connector for Confluent Platform", with its two transforms that
        # make the key, and "JDBC Sink" with upsert.
        await create(client, "jdbc_source", {
            "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
            "connection.url": url, "connection.user": "postgres", "connection.password": "x",
            "topic.prefix": "postgres-jdbc-", "mode": "timestamp+incrementing",
            "table.whitelist": "public.accounts", "timestamp.column.name": "modified",
            "incrementing.column.name": "id", "validate.non.null": "false",
            "numeric.mapping": "best_fit", "poll.interval.ms": "50", "tasks.max": "1",
            "transforms": "createKey,extractInt",
            "transforms.createKey.type": "org.apache.kafka.connect.transforms.ValueToKey",
            "transforms.createKey.fields": "id",
            "transforms.extractInt.type": "org.apache.kafka.connect.transforms.ExtractField$Key",
            "transforms.extractInt.field": "id",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter", **JSON,
        }, "STOPPED")  # fmt: skip
        # What Confluent's connector has left: rows up to id 2.
        left = {
            "partition": {"protocol": "1", "table": f"{name}.public.accounts"},
            "offset": {"timestamp": 1767323045678, "timestamp_nanos": 678000000, "incrementing": 2},
        }
        status, body = await client.ask(
            "PATCH", "/connectors/jdbc_source/offsets", {"offsets": [left]}
        )
        assert status == 200, body
        await client.ask("PUT", "/connectors/jdbc_source/resume")
        await create(client, "jdbc_sink", {
            "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
            "connection.url": url, "connection.user": "postgres", "connection.password": "x",
            "topics": "postgres-jdbc-accounts", "table.name.format": "copy_${topic}",
            "insert.mode": "upsert", "pk.mode": "record_key", "pk.fields": "id",
            "fields.whitelist": "id,name,balance,visits", "auto.create": "true",
            "auto.evolve": "true", "batch.size": "3000",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter", **JSON,
        })  # fmt: skip
        await create(client, "reader", {
            "connector.class": "FileStreamSink", "file": str(out),
            "topics": "postgres-jdbc-accounts", "flush.every": "50ms", **TEXT,
        })  # fmt: skip
        db.execute(b"UPDATE accounts SET name = 'new', modified = now() WHERE id = 4")
        wanted = [(3, "a3", 4.5, 3), (4, "new", 6.0, 4), (5, "a5", 7.5, 5)]
        await client.until(
            lambda: copied(db) == wanted and len(lines(out)) >= 3 and "new" in out.read_text()
        )

    life(tmp_path / "log", act)
    # The topic has several partitions, whose records come in any order.
    events = [json.loads(each) for each in lines(out)]
    first = next(each for each in events if each["payload"]["id"] == 3)
    kinds = {each["field"]: (each["type"], each.get("name")) for each in first["schema"]["fields"]}
    assert kinds == {
        "id": ("int32", None), "name": ("string", None), "balance": ("double", None),
        "visits": ("int32", None),
        "modified": ("int64", "org.apache.kafka.connect.data.Timestamp"),
    }  # fmt: skip
    assert first["payload"] == {
        "id": 3, "name": "a3", "balance": 4.5, "visits": 3, "modified": 1767323045678,
    }  # fmt: skip


def copied(db: psycopg.Connection) -> list[tuple[Any, ...]]:
    query = b'SELECT id, name, balance, visits FROM "copy_postgres-jdbc-accounts" ORDER BY id'
    try:
        return db.execute(query).fetchall()
    except psycopg.errors.UndefinedTable:
        return []


ORDERS = b"""
    CREATE TABLE orders (id INT PRIMARY KEY, item TEXT, price NUMERIC(9, 2), rate NUMERIC,
    at TIMESTAMP, zoned TIMESTAMPTZ, day DATE, at3 TIMESTAMP(3), clock3 TIME(3), clock TIME)"""
INSERT = b"""
    INSERT INTO orders VALUES (%s, 'book', 12.50, 0.125, '2026-01-02 03:04:05.6',
    '2026-01-02 03:04:05Z', '2026-01-02', '2026-01-02 03:04:05.6789', '00:00:01.5', '00:00:01.5')"""


def debezium(postgres: PostgresServer, name: str) -> dict[str, str]:
    """Return the example of "Debezium connector for PostgreSQL", with pgoutput."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1", "database.port": str(postgres.port),
        "database.user": "postgres", "database.password": "postgres", "database.dbname": name,
        "topic.prefix": "fulfillment", "table.include.list": "public.orders",
        "plugin.name": "pgoutput", "slot.name": name, "publication.name": f"{name}_pub",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter", **JSON,
    }  # fmt: skip


def test_debeziums_postgres_connector_writes_its_events(
    tmp_path: Path, postgres: PostgresServer, db: psycopg.Connection
) -> None:
    name = db.info.dbname
    db.execute(ORDERS)
    db.execute(INSERT, (1,))
    out = tmp_path / "topic.txt"

    async def act(client: Client) -> None:
        await create(client, "fulfillment-connector", debezium(postgres, name))
        await create(client, "reader", {
            "connector.class": "FileStreamSink", "file": str(out),
            "topics": "fulfillment.public.orders", "flush.every": "50ms", **TEXT,
        })  # fmt: skip
        await client.until(lambda: len(lines(out)) == 1)
        db.execute(b"UPDATE orders SET price = 13 WHERE id = 1")
        db.execute(b"DELETE FROM orders WHERE id = 1")
        await client.until(lambda: len(lines(out)) == 4)

    life(tmp_path / "log", act)
    found = lines(out)
    assert found[3] == "null"
    events = [json.loads(each) for each in found[:3]]
    assert [each["payload"]["op"] for each in events] == ["r", "u", "d"]
    schema = events[0]["schema"]
    assert schema["name"] == "fulfillment.public.orders.Envelope"
    after = next(each for each in schema["fields"] if each["field"] == "after")
    assert after["name"] == "fulfillment.public.orders.Value"
    # "Data types" of the same page, for time.precision.mode=adaptive.
    assert {each["field"]: (each["type"], each.get("name")) for each in after["fields"]} == {
        "id": ("int32", None), "item": ("string", None),
        "price": ("bytes", "org.apache.kafka.connect.data.Decimal"),
        "rate": ("struct", "io.debezium.data.VariableScaleDecimal"),
        "at": ("int64", "io.debezium.time.MicroTimestamp"),
        "zoned": ("string", "io.debezium.time.ZonedTimestamp"),
        "day": ("int32", "io.debezium.time.Date"),
        "at3": ("int64", "io.debezium.time.Timestamp"),
        "clock3": ("int32", "io.debezium.time.Time"),
        "clock": ("int64", "io.debezium.time.MicroTime"),
    }  # fmt: skip
    row = events[0]["payload"]["after"]
    assert (row["at"], row["day"]) == (1767323045600000, 20455)
    assert (row["at3"], row["clock3"], row["clock"]) == (1767323045679, 1_500, 1_500_000)
    assert row["zoned"] == "2026-01-02T03:04:05.000000Z"
    assert row["rate"] == {"scale": 3, "value": "fQ=="}
    source = events[1]["payload"]["source"]
    assert (source["name"], source["db"], source["table"]) == ("fulfillment", name, "orders")
    assert Decimal(source["ts_ms"]) > 0


def test_an_offset_of_debezium_is_read_once(
    tmp_path: Path, postgres: PostgresServer, db: psycopg.Connection
) -> None:
    name = db.info.dbname
    db.execute(ORDERS)
    db.execute(b"SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    db.execute(f"CREATE PUBLICATION {name}_pub FOR TABLE orders".encode())
    db.execute(INSERT, (1,))
    (lsn,) = db.execute(b"SELECT pg_current_wal_lsn() - '0/0'").fetchone() or (0,)
    db.execute(INSERT, (2,))
    out = tmp_path / "topic.txt"

    async def act(client: Client) -> None:
        # With the transform of "New Record State Extraction", as that page has it.
        unwrap = {
            "transforms": "unwrap",
            "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
            "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
            "transforms.unwrap.add.fields": "table,op",
        }
        await create(client, "fulfillment", {**debezium(postgres, name), **unwrap}, "STOPPED")
        left = {
            "partition": {"server": "fulfillment"},
            "offset": {"lsn": int(lsn), "lsn_commit": int(lsn), "txId": 1, "ts_usec": 1},
        }
        status, body = await client.ask(
            "PATCH", "/connectors/fulfillment/offsets", {"offsets": [left]}
        )
        assert status == 200, body
        await client.ask("PUT", "/connectors/fulfillment/resume")
        await create(client, "reader", {
            "connector.class": "FileStreamSink", "file": str(out),
            "topics": "fulfillment.public.orders", "flush.every": "50ms", **TEXT,
        })  # fmt: skip
        await client.until(lambda: len(lines(out)) >= 1)
        db.execute(INSERT, (3,))
        db.execute(b"DELETE FROM orders WHERE id = 2")
        await client.until(lambda: len(lines(out)) >= 3)

    life(tmp_path / "log", act)
    payloads = [json.loads(each)["payload"] for each in lines(out)]
    shown = sorted((each["id"], each["__op"], each["__deleted"]) for each in payloads)
    assert shown == [(2, "c", "false"), (2, "d", "true"), (3, "c", "false")]
    assert {each["__table"] for each in payloads} == {"orders"}


def test_a_connector_is_deleted_together_with_its_slot(
    tmp_path: Path, postgres: PostgresServer, db: psycopg.Connection
) -> None:
    name, out = db.info.dbname, tmp_path / "topic.txt"
    db.execute(ORDERS)
    db.execute(INSERT, (1,))

    def slots() -> int:
        query = b"SELECT * FROM pg_replication_slots WHERE slot_name = %s"
        return len(db.execute(query, (name,)).fetchall())

    async def act(client: Client) -> None:
        sink = {
            "connector.class": "FileStreamSink", "file": str(out),
            "topics": "fulfillment.public.orders", "flush.every": "50ms", **TEXT,
        }  # fmt: skip
        await create(client, "reader", sink)
        status, body = await client.ask("DELETE", "/connectors/reader?release=true")
        assert (status, "keeps nothing outside" in body["message"]) == (400, True)
        assert (await client.ask("DELETE", "/connectors/nobody?release=true"))[0] == 404
        for count in (1, 2):
            # The second one of the name finds neither slot nor offsets, and copies the table again.
            await create(client, "orders", debezium(postgres, name))
            await client.until(lambda count=count: len(lines(out)) == count)
            assert slots() == 1
            answer = await client.ask("DELETE", "/connectors/orders?release=true")
            assert answer == (200, {"message": f"replication slot {name} is dropped"})
            assert slots() == 0
        assert await client.get("/connectors") == ["reader"]

    life(tmp_path / "log", act)


def test_a_connector_whose_slot_cannot_be_dropped_stays_stopped(
    tmp_path: Path, postgres: PostgresServer, db: psycopg.Connection
) -> None:
    name = db.info.dbname
    db.execute(ORDERS)

    async def act(client: Client) -> None:
        await create(client, "orders", {**debezium(postgres, name), "database.port": str(port)})
        status, body = await client.ask("DELETE", "/connectors/orders?release=true")
        assert (status, "the database:" in body["message"]) == (409, True)
        await client.until_state("orders", "STOPPED", 0)

    with reserved_ports(1) as (port,):
        life(tmp_path / "log", act)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Return the address of moto's server, a double of S3, with a bucket of this module."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    httpx.put(f"{address}/confluent-kafka-connect-s3-testing").raise_for_status()
    yield address
    server.stop()


def objects(address: str) -> dict[str, bytes]:
    config: Any = {
        "endpoint": address, "region": "us-west-2", "access_key_id": "me",
        "secret_access_key": "secret",
    }  # fmt: skip
    url = "s3://confluent-kafka-connect-s3-testing"
    store = from_url(url, config=config, client_options={"allow_http": True})
    names = [each["path"] for each in obstore.list(store).collect()]
    return {name: bytes(obstore.get(store, name).bytes()) for name in names}


def s3_sink(address: str) -> dict[str, str]:
    """Return "Amazon S3 Sink Connector: Quick Start", with the keys and the address of the test."""
    return {
        "connector.class": "io.confluent.connect.s3.S3SinkConnector", "tasks.max": "1",
        "topics": "s3_topic", "s3.region": "us-west-2",
        "s3.bucket.name": "confluent-kafka-connect-s3-testing", "s3.part.size": "5242880",
        "flush.size": "3", "storage.class": "io.confluent.connect.s3.storage.S3Storage",
        "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "partitioner.class": "io.confluent.connect.storage.partitioner.DefaultPartitioner",
        "schema.compatibility": "NONE", "store.url": address, "aws.access.key.id": "me",
        "aws.secret.access.key": "secret", "key.converter": TEXT["key.converter"],
        "value.converter.schemas.enable": "false", **JSON,
    }  # fmt: skip


async def write_rows(client: Client, topic: str, rows: Sequence[Any]) -> None:
    """Write rows to one partition of a topic, with the keys `k0`, `k1` and so on."""
    log = client.service.log
    await log.admin().create_topics([NewTopic(topic, 1)])
    async with log.producer() as producer:
        for number, row in enumerate(rows):
            value = None if row is None else json.dumps(row).encode()
            await producer.send(topic, value, key=b"k%d" % (number % 4))


def test_confluents_s3_sink_writes_the_files_of_its_quick_start(tmp_path: Path, s3: str) -> None:
    rows = [{"f1": f"value{number}"} for number in range(1, 11)]
    lines = [b'{"f1":"%s"}\n' % row["f1"].encode() for row in rows]
    wanted = {
        f"topics/s3_topic/partition=0/s3_topic+0+000000000{at}.json": b"".join(lines[at : at + 3])
        for at in (0, 3, 6)
    }

    async def act(client: Client) -> None:
        await write_rows(client, "s3_topic", rows)
        await create(client, "s3-sink", s3_sink(s3))
        # Nine of ten records, as the quick start shows them: the last one waits for two others.
        await client.until(lambda: objects(s3) == wanted)

    life(tmp_path / "log", act)


def elasticsearch_sink(url: str, **more: str) -> dict[str, str]:
    """Return quickstart-elasticsearch.properties of Confluent Platform."""
    return {
        "connector.class": "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",
        "tasks.max": "1", "topics": "test-elasticsearch-sink", "key.ignore": "true",
        "connection.url": url, "type.name": "kafka-connect",
        "value.converter.schemas.enable": "false", **JSON, **more,
    }  # fmt: skip


BY_KEY = {
    "key.ignore": "false", "schema.ignore": "true", "behavior.on.null.values": "delete",
    "key.converter": TEXT["key.converter"], "batch.size": "2", "max.retries": "5",
    "connection.username": "elastic", "connection.password": "secret", "write.method": "INSERT",
}  # fmt: skip
ROWS: list[dict[str, str] | None] = [{"f1": f"value{number}"} for number in range(6)]


def write_documents(directory: Path, url: str, until: Callable[[str], dict[str, Any]]) -> None:
    """Write documents by offset and by key, and compare them with what the records say."""
    rows = [*ROWS, None]
    offsets = {f"test-elasticsearch-sink+0+{at}": row for at, row in enumerate(ROWS)}
    # Record 6 deletes the document of `k2`, and 4 and 5 replace those of `k0` and `k1`.
    keys = {"k0": ROWS[4], "k1": ROWS[5], "k3": ROWS[3]}

    async def act(client: Client) -> None:
        await write_rows(client, "test-elasticsearch-sink", rows)
        ignore = {
            "behavior.on.null.values": "ignore", "key.converter": TEXT["key.converter"],
        }  # fmt: skip
        await create(client, "by-offset", elasticsearch_sink(url, **ignore))
        route = {
            "transforms": "index",
            "transforms.index.type": "org.apache.kafka.connect.transforms.RegexRouter",
            "transforms.index.regex": "(.*)", "transforms.index.replacement": "Keys-$1",
        }  # fmt: skip
        await create(client, "by-key", elasticsearch_sink(url, **BY_KEY, **route))
        await until_equal(client, until, offsets)
        await until_equal(client, lambda index: until(f"keys-{index}"), keys)

    life(directory / "log", act)


async def until_equal(
    client: Client, found: Callable[[str], dict[str, Any]], wanted: dict[str, Any]
) -> None:
    last: dict[str, Any] = {}

    def holds() -> bool:
        last.clear()
        last.update(found("test-elasticsearch-sink"))
        return last == wanted

    try:
        await client.until(holds)
    except TimeoutError:
        assert last == wanted


def test_confluents_elasticsearch_sink_writes_documents(tmp_path: Path) -> None:
    server = BulkDouble()

    async def main() -> None:
        async with answering(server.respond) as url:
            await asyncio.to_thread(write_documents, tmp_path, url, server.documents)

    asyncio.run(main())


@pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough", reason="starts a JVM: make test-opensearch"
)
def test_confluents_elasticsearch_sink_writes_documents_of_opensearch(tmp_path: Path) -> None:
    with OpenSearchServer() as server:

        def documents(index: str) -> dict[str, Any]:
            if httpx.post(f"{server.url}/{index}/_refresh", timeout=60).status_code == 404:
                return {}
            found = httpx.get(f"{server.url}/{index}/_search", params={"size": 100}, timeout=60)
            return {hit["_id"]: hit["_source"] for hit in found.json()["hits"]["hits"]}

        write_documents(tmp_path, server.url, documents)
