"""MqttSink against real brokers: each record once at least, in order."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from itertools import count

import pytest

from streamlog.connect import (
    BadRecords,
    Batch,
    Retriable,
    Secret,
    SinkTask,
    TopicPartition,
)
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.mqtt import MqttSink
from streamlog.durations import EPOCH
from streamlog.errors import ConfigError
from streamlog.record import Headers, Record
from streamlog.testing import check_sink
from tests.connectors.mqtt.mqtt_clients import Collector, client_of
from tests.connectors.runs import RealContext, on_loop, writing
from tests.servers.mosquitto import MosquittoServer

PLACE = TopicPartition("orders", 0)
NUMBERS = count()
THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"


@pytest.fixture
def name() -> str:
    """Return the first level of topics that no other test has."""
    return f"sink-{next(NUMBERS)}"


class Published:
    """The messages below a topic."""

    def __init__(self, collector: Collector, name: str) -> None:
        self.collector, self.name = collector, name

    async def put(self, rows: Sequence[object]) -> None:
        raise AssertionError("the sink writes them")

    async def rows(self) -> Sequence[object]:
        messages = self.collector.collected()
        return [each.payload for each in messages if each.topic.startswith(f"{self.name}/")]


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_each_record_is_published(mosquitto: MosquittoServer, name: str, qos: int) -> None:
    sink = MqttSink(url=mosquitto.url, topic=f"{name}/{{topic}}/{{key}}", qos=qos)
    with client_of(mosquitto) as client:
        outside = Published(Collector(client), name)
        lives = 100 if THOROUGH else 8
        await check_sink(lambda: sink, outside, lives=lives, seed=qos)


def test_restarts_of_the_broker() -> None:
    with MosquittoServer() as server:

        @on_loop
        async def check() -> None:
            lives = count(1)

            def make() -> MqttSink:
                if next(lives) % 3 == 0:
                    server.restart()
                return MqttSink(url=server.url, topic="all/{key}", retain=True)

            class Retained:
                """What the broker has kept of each topic."""

                async def put(self, rows: Sequence[object]) -> None:
                    raise AssertionError("the sink writes them")

                async def rows(self) -> Sequence[object]:
                    with client_of(server) as client:
                        messages = Collector(client).collected()
                        return [each.payload for each in messages if each.retain]

            await check_sink(make, Retained(), lives=60 if THOROUGH else 6)

        check()


Row = tuple[object, bytes | None, Headers]


def batch(rows: Sequence[Row]) -> Batch[object, object]:
    records = [
        Record(key, value, EPOCH, headers, topic="orders", partition=0, offset=at)
        for at, (key, value, headers) in enumerate(rows)
    ]
    raw = [(None, value) for _, value, _ in rows]
    return Batch(PLACE, records, next_offset=len(records), raw=raw)


async def flush(task: SinkTask[object, object], *rows: Row) -> None:
    await task.begin()
    await task.write(batch(rows))
    await task.commit({PLACE: len(rows)})


@on_loop
async def test_topics_headers_and_tombstones(mosquitto: MosquittoServer, name: str) -> None:
    context = RealContext()
    sink = MqttSink(url=mosquitto.url, topic=f"{name}/{{topic}}/{{key}}")
    with client_of(mosquitto) as client:
        collector = Collector(client)
        async with writing(sink, context) as task:
            await flush(
                task,
                ("a/b", b"\xff\x00", (("x", b"1"), ("x", "ä".encode()), ("none", None))),
                (b"k", None, ()),
                (7, b"", ()),
            )
            assert context.counts == {"tombstones": 1}
        found = [each for each in collector.collected() if each.topic.startswith(name)]
        assert [(each.topic, each.payload) for each in found] == [
            (f"{name}/orders/a/b", b"\xff\x00"),
            (f"{name}/orders/7", b""),
        ]
        properties: object = found[0].properties
        assert properties.UserProperty == [("x", "1"), ("x", "ä"), ("none", "")]


@on_loop
async def test_retained_messages_are_a_table(mosquitto: MosquittoServer, name: str) -> None:
    sink = MqttSink(url=mosquitto.url, topic=f"{name}/{{key}}", retain=True)
    async with writing(sink) as task:
        await flush(task, ("a", b"1", ()), ("b", b"1", ()), ("a", b"2", ()), ("b", None, ()))
    with client_of(mosquitto) as client:
        found = [m for m in Collector(client).collected() if m.topic.startswith(f"{name}/")]
    assert [(each.topic, each.payload) for each in found] == [(f"{name}/a", b"2")]


@on_loop
async def test_a_whole_flush_comes_in_order(mosquitto: MosquittoServer, name: str) -> None:
    rows: list[Row] = [("k", b"%d" % number, ()) for number in range(600)]
    with client_of(mosquitto) as client:
        collector = Collector(client)
        for qos in (0, 1, 2):
            async with writing(MqttSink(url=mosquitto.url, topic=f"{name}/{qos}", qos=qos)) as task:
                await flush(task, *rows)
        found = collector.collected()
    for qos in (0, 1, 2):
        values = [each.payload for each in found if each.topic == f"{name}/{qos}"]
        assert values == [value for _, value, _ in rows]


@on_loop
async def test_bad_records_are_named_and_nothing_is_sent(name: str) -> None:
    with MosquittoServer(max_packet_size="5000") as server, client_of(server) as client:
        collector = Collector(client)
        async with writing(MqttSink(url=server.url, topic="{key}")) as task:
            rows: list[Row] = [
                ("good", b"x", ()),
                (None, b"x", ()),
                ("a/+", b"x", ()),
                ("", b"x", ()),
                (b"\xff", b"x", ()),
                ("$SYS/a", b"x", ()),
                ("x" * 70_000, b"x", ()),
                ("good", b"x" * 6_000, ()),
                ("good", b"x", (("h", b"\xff"),)),
                ("good", b"x", (("h", b"x" * 70_000),)),
            ]
            await task.begin()
            with pytest.raises(BadRecords) as caught:
                await task.write(batch(rows))
            await task.abort()
            assert {*caught.value.why} == {*range(1, 10)}
            why = caught.value.why
            assert "has no key" in why[1]
            assert "is not UTF-8" in why[4]
            assert "begins with $" in why[5]
            assert "the broker takes 5000" in why[7]
            await flush(task, rows[0])
        assert [each.topic for each in collector.collected()] == ["good"]


@on_loop
async def test_a_broker_that_stands_still_is_noticed() -> None:
    with MosquittoServer() as server:
        sink = MqttSink(url=server.url, topic="t", timeout="300ms")
        async with writing(sink) as task:
            server.signal(signal.SIGSTOP)
            with pytest.raises(Retriable, match="acknowledged no message"):
                await flush(task, ("k", b"1", ()))
            await task.abort()
            with pytest.raises(Retriable, match="has not answered CONNECT"):
                await task.begin()
            server.signal(signal.SIGCONT)
            await task.abort()
            await flush(task, ("k", b"1", ()))
            await task.begin()
            server.restart()
            await task.write(batch([("k", b"2", ())]))
            with pytest.raises(Retriable, match="connection lost"):
                await task.commit({})
            await task.abort()
            await flush(task, ("k", b"2", ()))


@on_loop
async def test_a_window_that_the_broker_does_not_allow(mosquitto: MosquittoServer) -> None:
    with pytest.raises(ConfigError, match="set inflight to 20 instead of 21"):
        async with writing(MqttSink(url=mosquitto.url, topic="t", inflight=21)):
            pass


@on_loop
async def test_what_the_broker_does_not_support_fails() -> None:
    with MosquittoServer(retain_available="false") as server:
        async with writing(MqttSink(url=server.url, topic="t", retain=True)) as task:
            with pytest.raises(ConfigError, match="Retain not supported"):
                await flush(task, ("k", b"1", ()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "amqp://host"}, "is not mqtt://HOST:PORT or mqtts://HOST:PORT"),
        ({"url": "mqtts://host", "tls": ClientTls(key="k")}, "go together"),
        ({"password": Secret("geheim")}, "password needs user"),
        ({"topic": ""}, "may have {topic} and {key}"),
        ({"topic": "a/#"}, "neither + nor #"),
        ({"topic": "{value}"}, "may have {topic} and {key}"),
        ({"inflight": 0}, "from 1 to 65535"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        MqttSink(**{"url": "mqtt://host", "topic": "t", **settings}).check()
    assert "geheim" not in str(caught.value)
