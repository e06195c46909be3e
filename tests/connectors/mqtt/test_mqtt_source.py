"""MqttSource against real brokers: each message once at least, and what is lost is told."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import trustme
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from streamlog.connect import Batch, Retriable, Secret, TopicPartition
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.mqtt import MqttSink, MqttSource
from streamlog.connectors.mqtt.mqtt_connection import MqttBroker, MqttConnection, MqttSession
from streamlog.durations import EPOCH
from streamlog.errors import ConfigError
from streamlog.record import Record
from streamlog.testing import check_source
from tests.connectors.mqtt.mqtt_clients import client_of, publish, publish_properties
from tests.connectors.runs import Life, RealContext, on_loop, reading, writing
from tests.servers.mosquitto import MosquittoServer
from tests.servers.server_process import program, wait_until

NUMBERS = count()
THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"


@pytest.fixture
def name() -> str:
    """Return a name of a topic and of a session that no other test has."""
    return f"source-{next(NUMBERS)}"


async def until_begun(source: MqttSource) -> None:
    """Make the sessions of a source, which get what is published from here on."""
    for part in await source.partitions(RealContext()):
        async with reading(source, part=part) as life:
            await life.step()


class Topic:
    """A topic that gets messages, while the broker is killed now and then."""

    def __init__(self, server: MosquittoServer, name: str, kill_every: int = 0) -> None:
        self.server, self.name, self.kill_every = server, name, kill_every
        self.values: list[bytes] = []
        self.puts = 0

    async def put(self, rows: Sequence[object]) -> None:
        values = [str(row).encode() for row in rows]
        await asyncio.to_thread(self._publish, values)
        self.values += values

    def _publish(self, values: Sequence[bytes]) -> None:
        with client_of(self.server) as client:
            publish(client, f"{self.name}/{self.puts % 3}", *values, qos=1 + self.puts % 2)
        self.puts += 1
        if self.kill_every and self.puts % self.kill_every == 0:
            self.server.save()
            self.server.kill_and_restart()

    async def rows(self) -> Sequence[object]:
        return self.values


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("seed", range(20 if THOROUGH else 1))
def test_each_message_is_read_over_kills(
    mosquitto: MosquittoServer, name: str, clients: int, seed: int
) -> None:
    source = MqttSource(
        url=mosquitto.url, topics=(f"{name}/+",), client_id=name, clients=clients, inflight=40
    )

    async def check() -> None:
        await until_begun(source)
        await check_source(lambda: source, Topic(mosquitto, name), seed=seed, lives=12)

    asyncio.run(check())


def test_kills_of_the_broker() -> None:
    with MosquittoServer() as server:

        async def check() -> None:
            source = MqttSource(url=server.url, topics=("a/#",), client_id="a")
            await until_begun(source)
            outside = Topic(server, "a", kill_every=4)
            await check_source(lambda: source, outside, lives=60 if THOROUGH else 8)

        asyncio.run(check())


@on_loop
async def test_a_message_is_acknowledged_once_it_counts(
    mosquitto: MosquittoServer, name: str
) -> None:
    source = MqttSource(url=mosquitto.url, topics=(name,), client_id=name)
    with client_of(mosquitto) as client:
        async with reading(source) as life:
            await life.take(0)
            begun = await life.step()
            assert (len(begun), begun.offset) == (0, {"client_id": name, "filters": [name]})
            publish(client, name, b"counts", b"")
            assert await life.take(2) == [b"counts", b""]
            publish(client, name, b"read, and lost")
            await life.step()
        publish(client, name, b"published while nobody reads")
        async with reading(source, life.offset) as life:
            assert await life.take(2) == [b"read, and lost", b"published while nobody reads"]
        async with reading(source, life.offset) as life:
            publish(client, name, b"last")
            assert await life.take(1) == [b"last"]


@on_loop
async def test_keys_headers_and_retained_messages(mosquitto: MosquittoServer, name: str) -> None:
    source = MqttSource(url=mosquitto.url, topics=(f"{name}/#",), client_id=name)
    properties = publish_properties(
        UserProperty=[("a", "1"), ("a", "ä")],
        ContentType="text/plain",
        ResponseTopic="answers",
        CorrelationData=b"\xff",
    )
    with client_of(mosquitto) as client:
        publish(client, f"{name}/retained", b"old", retain=True)
        async with reading(source) as life:
            assert await life.take(1) == [b"old"]
            publish(client, f"{name}/ä", b"\xff\x00" * 3, qos=2, properties=properties)
            await life.take(2)
            assert [record.key.decode() for record in life.records] == [
                f"{name}/retained",
                f"{name}/ä",
            ]
            assert life.records[0].headers == (("mqtt.retain", b"1"),)
            assert life.records[1].headers == (
                ("a", b"1"),
                ("a", "ä".encode()),
                ("content-type", b"text/plain"),
                ("mqtt.response-topic", b"answers"),
                ("mqtt.correlation-data", b"\xff"),
            )
            assert life.values[1] == b"\xff\x00" * 3
        # A retained message comes with a new subscription, not with one that was kept.
        async with reading(source, life.offset) as life:
            publish(client, f"{name}/x", b"new")
            assert await life.take(1) == [b"new"]
        never = MqttSource(
            url=mosquitto.url, topics=(f"{name}/#",), client_id=f"{name}-never", retained="never"
        )
        async with reading(never) as life:
            await life.step()
            publish(client, f"{name}/x", b"new")
            assert await life.take(1) == [b"new"]


async def until(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, holds, "the condition")


async def drained(life: Life) -> None:
    while True:
        await life.step()
        life.commit()


@on_loop
async def test_topics_and_clients_that_change(mosquitto: MosquittoServer, name: str) -> None:
    def source(clients: int, *topics: str) -> MqttSource:
        return MqttSource(url=mosquitto.url, topics=topics, client_id=name, clients=clients)

    with client_of(mosquitto) as client:
        async with reading(source(1, f"{name}/a", f"{name}/b")) as life:
            await life.step()
            life.commit()
        async with reading(source(1, f"{name}/b", f"{name}/c"), life.offset) as life:
            await life.step()
            for each in "abc":
                publish(client, f"{name}/{each}", each.encode())
            assert sorted(await life.take(2)) == [b"b", b"c"]
        # One that read alone, and now shares: it must not get its messages twice.
        shared = source(2, f"{name}/b", f"{name}/c")
        async with AsyncExitStack() as stack:
            lives: list[Life] = []
            for number in range(2):
                offset = None if number else life.offset
                part = {"client": number}
                lives.append(await stack.enter_async_context(reading(shared, offset, part=part)))
                await lives[-1].step()
            sent = [b"%d" % each for each in range(30)]
            publish(client, f"{name}/c", *sent)
            reading_on = [asyncio.ensure_future(drained(each)) for each in lives]
            await until(lambda: sum(len(each.records) for each in lives) >= len(sent))
            for task in reading_on:
                task.cancel()
            await asyncio.wait(reading_on)
        found = Counter(value for each in lives for value in each.values)
        assert found == Counter(sent)


@on_loop
async def test_a_session_that_is_gone_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    context = RealContext()
    with MosquittoServer(persistence="false") as server:
        source = MqttSource(url=server.url, topics=(name,))
        async with reading(source, context=context) as life:
            await life.step()
            life.commit()
            server.kill_and_restart()
            with pytest.raises(Retriable, match="connection lost"):
                await life.step()
        assert not context.counts
        async with reading(source, life.offset, context=context) as life:
            waiting = asyncio.ensure_future(life.take(1))
            await until(lambda: bool(context.counts))
            with client_of(server) as client:
                while not waiting.done():
                    publish(client, name, b"x")
                    await asyncio.sleep(0.01)
        assert context.counts == {"lost_sessions": 1}
        assert "has no session of streamlog-test any more" in caplog.text


@on_loop
async def test_two_readers_of_a_session_do_not_quarrel(
    mosquitto: MosquittoServer, name: str
) -> None:
    source = MqttSource(url=mosquitto.url, topics=(name,), client_id=name)
    async with reading(source) as zombie, reading(source) as successor:
        await zombie.step()
        await successor.step()
        with pytest.raises(Retriable, match="connection lost"):
            await zombie.step()
        with client_of(mosquitto) as client:
            publish(client, name, b"x")
        assert await successor.take(1) == [b"x"]


def test_a_reader_pauses_if_another_one_has_its_session() -> None:
    # Mosquitto 2.0.11 ends the connection without the reason; later ones and others say it.
    broker = MqttBroker("mqtt://host", None, None, None, "1s")
    reasons = {0x8E: 30_000, 0x80: None}
    for code, after_ms in reasons.items():
        connection = MqttConnection(broker, MqttSession("a"))
        on_disconnect: Any = connection.client.on_disconnect
        reason = ReasonCode(PacketTypes.DISCONNECT, identifier=code)
        on_disconnect(connection.client, None, paho.DisconnectFlags(True), reason, None)
        with pytest.raises(Retriable) as caught:
            connection.check()
        assert caught.value.after_ms == after_ms


@on_loop
async def test_a_broker_that_stands_still_holds_up_nothing(name: str) -> None:
    with MosquittoServer() as server:
        source = MqttSource(url=server.url, topics=(name,), timeout="300ms")
        async with reading(source) as life:
            await life.step()
            server.signal(signal.SIGSTOP)
            # Leaving closes the connection, which the broker does not read.
        with pytest.raises(Retriable, match="has not answered CONNECT"):
            async with reading(source) as life:
                await life.step()
        server.signal(signal.SIGCONT)
        async with reading(source) as life:
            await life.step()


@on_loop
async def test_qos_0_is_bounded_and_what_is_dropped_is_counted(
    mosquitto: MosquittoServer, name: str
) -> None:
    source = MqttSource(url=mosquitto.url, topics=(name,), client_id=name, qos=0)
    with client_of(mosquitto) as client:
        async with reading(source) as life:
            await life.step()
            # 20 MiB, of which 8 MiB wait; the last message shows that all have arrived.
            publish(client, name, *[b"x" * 1_000_000 for _ in range(20)], qos=0)
            other = MqttSource(url=mosquitto.url, topics=(f"{name}-2",), client_id=f"{name}-2")
            async with reading(other) as witness:
                await witness.step()
                publish(client, f"{name}-2", b"end")
                await witness.take(1)
            steps = [len(await life.step()) for _ in range(2)]
            life.commit()
            while life.context.counts["dropped_messages"] + len(life.records) < 20:
                publish(client, name, b"more", qos=0)
                await life.step()
                life.commit()
            # A step has 4 MiB at most.
            assert max(steps) <= 4
            assert life.context.counts["dropped_messages"] >= 8


@on_loop
async def test_the_largest_message(mosquitto: MosquittoServer, name: str) -> None:
    source = MqttSource(
        url=mosquitto.url, topics=(name,), client_id=name, message_bytes_max=2_000, inflight=3
    )
    with client_of(mosquitto) as client:
        async with reading(source) as life:
            await life.step()
            publish(client, name, b"x" * 3_000, *[b"y" * 1_500] * 10)
            assert await life.take(10) == [b"y" * 1_500] * 10


@on_loop
async def test_users_rights_and_tls(tmp_path: Path, name: str) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for who, certificate in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("client")),
    ):
        certificate.cert_chain_pems[0].write_to_path(tmp_path / f"{who}.pem")
        certificate.private_key_pem.write_to_path(tmp_path / f"{who}.key")
    passwords = tmp_path / "passwords"
    command = [program("mosquitto_passwd", "mosquitto"), "-b", "-c", passwords, "reader", "geheim"]
    await asyncio.to_thread(subprocess.run, command, check=True)
    (tmp_path / "rights").write_text("user reader\ntopic read allowed/#\n")
    options = {
        "allow_anonymous": "false",
        "password_file": str(passwords),
        "acl_file": str(tmp_path / "rights"),
        "cafile": str(tmp_path / "ca.pem"),
        "certfile": str(tmp_path / "server.pem"),
        "keyfile": str(tmp_path / "server.key"),
        "require_certificate": "true",
    }
    files = ClientTls(
        ca=str(tmp_path / "ca.pem"),
        certificate=str(tmp_path / "client.pem"),
        key=str(tmp_path / "client.key"),
    )
    with MosquittoServer(**options) as server:
        url = server.url.replace("mqtt:", "mqtts:")

        def source(password: str, topic: str, tls: ClientTls = files) -> MqttSource:
            return MqttSource(
                url=url, topics=(topic,), user="reader", password=Secret(password), tls=tls
            )

        async with reading(source("geheim", "allowed/#")) as life:
            await life.step()
        with pytest.raises(ConfigError, match="Not authorized") as caught:
            async with reading(source("falsch", "allowed/#")) as life:
                await life.step()
        assert "falsch" not in str(caught.value)
        with pytest.raises(Retriable, match="CERTIFICATE_VERIFY_FAILED"):
            async with reading(source("geheim", "allowed/#", ClientTls())) as life:
                await life.step()
        sink = MqttSink(
            url=url, topic="forbidden", user="reader", password=Secret("geheim"), tls=files
        )
        records = [Record(None, b"x", EPOCH)]
        async with writing(sink) as task:
            await task.begin()
            await task.write(Batch(TopicPartition("t", 0), records, next_offset=1))
            with pytest.raises(ConfigError, match="refuses a message: Not authorized"):
                await task.commit({})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "http://host"}, "is not mqtt://HOST:PORT or mqtts://HOST:PORT"),
        ({"url": "mqtt://u:geheim@host"}, "set user and password"),
        ({"url": "mqtt://host/path"}, "takes no path"),
        ({"tls": ClientTls()}, "begins with mqtts://"),
        ({"password": Secret("geheim")}, "password needs user"),
        ({"topics": ()}, "is empty"),
        ({"topics": ("a", "a")}, "one twice"),
        ({"topics": ("",)}, "is no filter"),
        ({"topics": ("a/#/b",)}, "is no filter"),
        ({"topics": ("a+",)}, "is no filter"),
        ({"topics": ("$share/g/a",)}, "set clients"),
        ({"clients": 0}, "clients=0"),
        ({"client_id": "a/b"}, "has /, "),
        ({"inflight": 65_536}, "from 1 to 65535"),
        ({"inflight": 2_000}, "more than 1 GiB"),
        ({"message_bytes_max": 0}, "from 1 to"),
        ({"session": "0s"}, "shorter than 1s"),
        ({"timeout": "0s"}, "longer than 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        MqttSource(**{"url": "mqtt://host", "topics": ("a",), **settings}).check()
    assert "geheim" not in str(caught.value)


@on_loop
async def test_a_name_that_is_no_client_id_is_told(mosquitto: MosquittoServer) -> None:
    source = MqttSource(url=mosquitto.url, topics=("a",))
    with pytest.raises(ConfigError, match="client_id='streamlog-a/b' is empty"):
        async with reading(source, context=RealContext("a/b")) as life:
            await life.step()
