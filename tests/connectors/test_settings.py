"""Each built-in connector as a Connect configuration gives it: texts by name."""

from __future__ import annotations

from typing import Any

import pytest

from streamlog.connect import Flush, Secret
from streamlog.connect.connector_settings import read_settings
from streamlog.connect.names import find_plugin
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.exec import Exec
from streamlog.connectors.http.http_sink import HttpSink
from streamlog.connectors.http.poll import Poll
from streamlog.connectors.http.sse import Sse
from streamlog.connectors.http.webhook import Webhook
from streamlog.connectors.kafka import KafkaClusterSink, KafkaClusterSource, SaslLogin
from streamlog.connectors.lakes.delta import Delta
from streamlog.connectors.lakes.iceberg import Iceberg
from streamlog.connectors.lines import Lines
from streamlog.connectors.listeners import TlsFiles
from streamlog.connectors.mqtt import MqttSink, MqttSource
from streamlog.connectors.objects import Objects
from streamlog.connectors.redis import RedisPubSub, RedisSink, RedisStreams
from streamlog.connectors.search import Search
from streamlog.connectors.spool_dir import SpoolDir
from streamlog.connectors.syslog import Syslog
from streamlog.connectors.tail import Tail
from streamlog.connectors.websocket import WebSocket

CONFIGURATIONS: list[tuple[dict[str, str], Any]] = [
    (
        {"path": "/var/log/*.log", "start": "end", "rotate.wait": "1s", "path.header": "p"},
        Tail(path="/var/log/*.log", start="end", rotate_wait="1s", path_header="p"),
    ),
    (
        {"directory": "/in", "format": "csv", "columns": "n:int64,x:float64", "key": "n"},
        SpoolDir(directory="/in", format="csv", columns={"n": "int64", "x": "float64"}, key="n"),
    ),
    (
        {"address": ":5140", "transport": "tcp", "tls.certificate": "c", "tls.key": "k"},
        Syslog(address=":5140", transport="tcp", tls=TlsFiles(certificate="c", key="k")),
    ),
    (
        {
            "bootstrap.servers": "a:1,b:1",
            "topics": "x,y",
            "on.lost": "latest",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "u",
            "sasl.password": "p",
        },
        KafkaClusterSource(
            bootstrap_servers="a:1,b:1",
            topics=("x", "y"),
            on_lost="latest",
            security_protocol="SASL_SSL",
            sasl=SaslLogin(mechanism="SCRAM-SHA-512", username="u", password=Secret("p")),
        ),
    ),
    (
        {"bootstrap.servers": "a:1", "transactional.id": "t", "create.partitions": "3"},
        KafkaClusterSink(bootstrap_servers="a:1", transactional_id="t", create_partitions=3),
    ),
    ({"address": ":1", "acknowledge": "true"}, Lines(address=":1", acknowledge=True)),
    (
        {"command": '["sh", "-c", "a,b"]', "environment": "A:1"},
        Exec(command=("sh", "-c", "a,b"), environment={"A": "1"}),
    ),
    (
        {"url": "http://x/a", "body": "ndjson", "token": "t", "headers": "A:1"},
        HttpSink(url="http://x/a", body="ndjson", token=Secret("t"), headers={"A": "1"}),
    ),
    (
        {"url": "http://x", "mode": "cursor", "cursor.field": "id", "cursor.parameter": "p"},
        Poll(url="http://x", mode="cursor", cursor_field="id", cursor_parameter="p"),
    ),
    (
        {"url": "ws://x", "resume": "a,{offset}", "offset.field": "n", "start": "1"},
        WebSocket(url="ws://x", resume="a,{offset}", offset_field="n", start="1"),
    ),
    ({"url": "ws://x", "subscribe": '["a,b"]'}, WebSocket(url="ws://x", subscribe=("a,b",))),
    ({"url": "http://x", "retry": "1s"}, Sse(url="http://x", retry="1s")),
    (
        {"address": ":1", "format": "flume", "headers": "A,B", "signature.secret": "s"},
        Webhook(address=":1", format="flume", headers=("A", "B"), signature_secret=Secret("s")),
    ),
    (
        {"url": "rediss://h/1", "tls.ca": "c", "user": "u", "password": "p", "key": "{key}"},
        RedisSink(
            url="rediss://h/1", tls=ClientTls(ca="c"), user="u", password=Secret("p"), key="{key}"
        ),
    ),
    (
        {"url": "mqtt://h", "topics": "a/+,b/#", "session": "1h", "inflight": "9", "qos": "0"},
        MqttSource(url="mqtt://h", topics=("a/+", "b/#"), session="1h", inflight=9, qos=0),
    ),
    (
        {"url": "mqtts://h", "tls.ca": "c", "topic": "a/{key}", "retain": "true", "qos": "2"},
        MqttSink(url="mqtts://h", tls=ClientTls(ca="c"), topic="a/{key}", retain=True, qos=2),
    ),
    (
        {"url": "redis://h", "streams": "a,b", "start": "end"},
        RedisStreams(url="redis://h", streams=("a", "b"), start="end"),
    ),
    ({"url": "redis://h", "patterns": "a.*"}, RedisPubSub(url="redis://h", patterns=("a.*",))),
    (
        {"urls": "https://a,https://b", "api.key": "k", "tls.ca": "c", "data.stream": "true"},
        Search(
            urls=("https://a", "https://b"),
            api_key=Secret("k"),
            tls=ClientTls(ca="c"),
            data_stream=True,
        ),
    ),
    (
        {"url": "s3://b/x", "secret": "s", "options": "region:eu", "flush.records": "7"},
        Objects(
            url="s3://b/x",
            secret=Secret("s"),
            options={"region": "eu"},
            flush=Flush(records=7, size_bytes=64 * 1024 * 1024, every="5m"),
        ),
    ),
    (
        {"url": "s3://b/{topic}", "options": "AWS_REGION:eu", "partition.by": "day,land"},
        Delta(url="s3://b/{topic}", options={"AWS_REGION": "eu"}, partition_by=("day", "land")),
    ),
    (
        {
            "table": "shop.orders",
            "properties": '{"type": "rest", "uri": "http://x"}',
            "secrets": '{"token": "t"}',
            "partition.by": '["bucket(id, 16)"]',
            "auto.evolve": "false",
        },
        Iceberg(
            table="shop.orders",
            properties={"type": "rest", "uri": "http://x"},
            secrets=Secret('{"token": "t"}'),
            partition_by=("bucket(id, 16)",),
            auto_evolve=False,
        ),
    ),
]


@pytest.mark.parametrize(
    ("texts", "connector"), CONFIGURATIONS, ids=lambda each: type(each).__name__
)
def test_a_configuration_of_texts_makes_the_connector(
    texts: dict[str, str], connector: Any
) -> None:
    plugin = find_plugin(type(connector).__name__)
    found = read_settings(plugin.connector, texts)
    assert found == connector
    found.check()
