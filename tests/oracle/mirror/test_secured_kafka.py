"""Mirrors from and to a real Apache Kafka whose clients log in by SCRAM, over TLS."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from chaos.ports import reserved_ports
from conformance.kafka import NEWEST, ApacheKafka, Unavailable, release
from streamlog.client.admin import (
    Acl,
    NewTopic,
)
from streamlog.log import Log
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess
from tests.cluster.cluster import AT_LENGTH
from tests.worker.processes import STREAMLOG, running, streamlog

WITHIN_S = 90
PASSWORD = "correct horse"
VALUES = [b"%d" % number for number in range(50)]
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SETTINGS = """
listeners=PLAINTEXT://{plain},CONTROLLER://127.0.0.1:{controller},SASL_SSL://{secured}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={module} required;
ssl.keystore.type=PEM
ssl.keystore.location={keys}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:writer
"""
"""Behind those of the conformance suite. Who comes without a login, as this test does, is a super
user; `mirror` has the rights alone that it is given."""


@dataclass(frozen=True, slots=True)
class Secured:
    """The broker, and what a client needs to log in."""

    plain: str
    secured: str
    folder: Path
    """Of the password and the authority's certificate."""

    def login(self, user: str, password: str = "${{file:{}/password}}") -> list[str]:
        settings = {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password.format(self.folder),
            "ssl.ca.location": f"{self.folder}/ca.pem",
        }
        return [word for each in settings.items() for word in ("--set", "=".join(each))]


@contextmanager
def secured_kafka(tmp_path: Path) -> Iterator[Secured]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    folder = tmp_path / "secrets"
    folder.mkdir()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    (folder / "password").write_text(PASSWORD)
    # Java reads keys in PKCS 8 alone.
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    written = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
    (tmp_path / "keys.pem").write_bytes(written + chain)
    kafka = tmp_path / "kafka"
    kafka.mkdir()
    with reserved_ports(3) as ports:
        broker, controller, secured = ports
        at = Secured(f"127.0.0.1:{broker}", f"127.0.0.1:{secured}", folder)
        settings = SETTINGS.format(
            plain=at.plain,
            secured=at.secured,
            controller=controller,
            keys=tmp_path / "keys.pem",
            module=SCRAM,
        )
        with ApacheKafka(kafka, (broker, controller), libraries=release(NEWEST), settings=settings):
            yield at


async def prepare(address: str) -> None:
    """Create users, a topic with records, and the rights of the mirror's user."""
    read, describe = Operation.READ, Operation.DESCRIBE
    rights = [
        (ResourceType.TOPIC, "orders", "User:mirror", read),
        (ResourceType.TOPIC, "orders", "User:mirror", Operation.DESCRIBE_CONFIGS),
        (ResourceType.TOPIC, "orders", "User:alice", read),
        (ResourceType.CLUSTER, "kafka-cluster", "User:mirror", describe),
    ]
    async with Log.open(f"kafka://{address}") as log:
        admin = log.admin()
        for user in ("mirror", "writer", "gone"):
            await admin.set_password(user, PASSWORD)
        await admin.remove_user("gone")
        assert sorted(await admin.list_users()) == ["mirror", "writer"]
        await admin.create_topics([NewTopic("orders", 1)])
        await admin.create_acls(
            Acl(resource_type=kind, name=name, principal=who, operation=what)
            for kind, name, who, what in rights
        )
        await write(log)


async def write(log: Log) -> None:
    async with log.producer() as producer:
        await producer.send_batch("orders", 0, [(1, None, value, ()) for value in VALUES])


async def values_at(address: str, topic: str) -> list[bytes | None]:
    async with Log.open(f"kafka://{address}") as log:
        if not await log.admin().find_topics([topic]):
            return []
        return [record.value for record in await log.read_range(TopicPartition(topic, 0))]


async def readers_at(address: str) -> list[str]:
    """Return who may read the mirror."""
    async with Log.open(f"kafka://{address}") as log:
        found = await log.admin().describe_acls()
        return sorted(each.principal for each in found if each.operation is Operation.READ)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.3)


@contextmanager
def available(tmp_path: Path) -> Iterator[Secured]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(secured_kafka(tmp_path))
        except Unavailable as reason:
            pytest.skip(str(reason))
        yield found


def done(cwd: Path, *words: str) -> str:
    code, said = streamlog(*words, cwd=cwd)
    assert code == 0, said
    return said


@AT_LENGTH
def test_records_and_acls_come_from_a_kafka_behind_a_login(tmp_path: Path) -> None:
    with available(tmp_path) as kafka:
        asyncio.run(prepare(kafka.plain))
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "mirror.allowed.paths": str(kafka.folder),
            "authorizer.class.name": "standard",
            "super.users": "User:ANONYMOUS",
        }
        with BrokerProcess(tmp_path / "data", flush="os", settings=settings) as here:
            at = ("--log", f"kafka://{here.address}")
            link = ("--source", f"kafka+ssl://{kafka.secured}", "--topics", "orders")
            more = ("--set", "sync.acls.enabled=true", "--set", "refresh.topics.interval.ms=500")
            wrong = [word.replace("=mirror", "=nobody") for word in kafka.login("mirror")]
            code, said = streamlog("mirror", "create", "east", *link, *wrong, *at, cwd=tmp_path)
            assert code != 0
            assert "refuses" in said or "uthentication" in said
            done(tmp_path, "mirror", "create", "east", *link, *more, *kafka.login("mirror"), *at)
            until(lambda: asyncio.run(values_at(here.address, "orders")) == VALUES)
            until(lambda: asyncio.run(readers_at(here.address)) == ["User:alice", "User:mirror"])
            config = tmp_path / "data.properties"
            options = ("--link", "east", "--config", str(config), "--json")
            (found,) = json.loads(done(tmp_path, "mirror", "verify", *options, *at))
            assert (found["end"], found["parts_at"]) == (len(VALUES), None)


@AT_LENGTH
def test_records_go_to_a_kafka_behind_a_login(tmp_path: Path) -> None:
    with (
        available(tmp_path) as kafka,
        BrokerProcess(tmp_path / "data", flush="os") as here,
    ):
        asyncio.run(prepare(kafka.plain))
        at = ("--log", f"kafka://{here.address}")

        async def fill() -> None:
            async with Log.open(f"kafka://{here.address}") as log:
                await log.admin().create_topics([NewTopic("orders", 1)])
                await write(log)

        asyncio.run(fill())
        worker = ("connect", *at, "--rest", "127.0.0.1:0", "--secrets-dir", str(kafka.folder))
        with running(*STREAMLOG, *worker, cwd=tmp_path) as process:
            service = ("--connect", process.line(r"(http://\S+)").group(1))
            to = ("--to", f"kafka+ssl://{kafka.secured}", "--topics", "orders")
            given = (*to, *kafka.login("writer", "${{dir:{}:password}}"), *service, *at)
            done(tmp_path, "mirror", "create", "eu", *given)
            until(lambda: asyncio.run(values_at(kafka.plain, "eu.orders")) == VALUES)
            link = ("--link", "eu", "--json")
            (found,) = json.loads(done(tmp_path, "mirror", "verify", *link, *service, *at))
            assert found["parts_at"] is None
