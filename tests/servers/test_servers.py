"""The servers that tests start: they answer, keep their data over a crash, and leave nothing."""

from __future__ import annotations

import urllib.request

import paho.mqtt.client as mqtt
import psycopg
import redis

from tests.servers.mariadb import MariaDbServer
from tests.servers.mosquitto import MosquittoServer
from tests.servers.nginx import NginxServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis_server import RedisServer
from tests.servers.server_process import wait_until


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - a server of this test
        return bytes(answer.read())


def test_postgres_keeps_its_rows_over_a_crash_and_removes_its_directory() -> None:
    with PostgresServer() as server:
        database = server.create_database()
        with psycopg.connect(server.dsn(database)) as connection:
            connection.execute("CREATE TABLE t AS SELECT 7 AS a")
            connection.execute("SET LOCAL synchronous_commit = on")
        server.kill_and_restart()
        with psycopg.connect(server.dsn(database)) as connection:
            assert connection.execute("SELECT a FROM t").fetchall() == [(7,)]
            level = connection.execute("SHOW wal_level").fetchone()
        assert level == ("logical",)
    assert not server.directory.exists()


def test_mariadb_answers(mariadb: MariaDbServer) -> None:
    connection = mariadb.connect(mariadb.create_database())
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a INT PRIMARY KEY)")
        cursor.execute("INSERT INTO t VALUES (7)")
        cursor.execute("SELECT a FROM t")
        assert cursor.fetchall() == ((7,),)
    connection.close()


def test_redis_keeps_its_keys_over_a_kill() -> None:
    with RedisServer() as server:
        with redis.Redis.from_url(server.url()) as client:
            client.set("a", "7")
        server.kill_and_restart()
        with redis.Redis.from_url(server.url()) as client:
            assert client.get("a") == b"7"


def test_mosquitto_delivers(mosquitto: MosquittoServer) -> None:
    came: list[bytes] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: came.append(message.payload)
    client.on_subscribe = lambda *_: client.publish("t", b"7", qos=1)
    client.connect("127.0.0.1", mosquitto.port)
    client.subscribe("t", qos=1)
    client.loop_start()
    wait_until(lambda: came == [b"7"], "the delivery")
    client.disconnect()
    client.loop_stop()


def test_nginx_writes_a_new_log_after_a_rotation(nginx: NginxServer) -> None:
    (nginx.www / "a").write_text("7")
    assert fetched(f"{nginx.url}/a") == b"7"
    wait_until(lambda: "GET /a" in nginx.access_log.read_text(), "the log line")
    nginx.access_log.rename(nginx.directory / "access.log.1")
    nginx.reopen_logs()
    wait_until(nginx.access_log.exists, "the new log file")
    assert fetched(f"{nginx.url}/a?second") == b"7"
    wait_until(lambda: "second" in nginx.access_log.read_text(), "the log line")
