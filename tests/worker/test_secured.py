"""An app on a broker with authentication and authorization."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from streamlog import App
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.server.socket_server import SocketServer
from streamlog.client.admin import Acl, NewTopic
from streamlog.errors import NotAuthorized
from streamlog.log import Log
from streamlog.protocol.acls import Operation, Pattern, ResourceType
from streamlog.record import TopicPartition
from streamlog.transport.security import Security
from streamlog.worker.worker import Worker

T = TypeVar("T")

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
OP = Operation


def acl(kind: ResourceType, name: str, operation: Operation, *, prefixed: bool = False) -> Acl:
    return Acl(
        resource_type=kind,
        name=name,
        pattern=Pattern.PREFIXED if prefixed else Pattern.LITERAL,
        principal="User:shop",
        operation=operation,
    )


# As docs/security.md lists it for "a worker of an app".
ALLOWED = [
    *(acl(TOPIC, name, each) for name in ("words", "counts") for each in (OP.READ, OP.WRITE)),
    acl(GROUP, "counting", OP.READ),
    *(
        acl(TOPIC, "counting-", each, prefixed=True)
        for each in (OP.CREATE, OP.READ, OP.WRITE, OP.DESCRIBE_CONFIGS)
    ),
    acl(ResourceType.TRANSACTIONAL_ID, "counting-", OP.WRITE, prefixed=True),
]


def access(user: str) -> Security:
    return Security(
        protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", user=user, password=f"of {user}"
    )


SHOP = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "shop",
    "sasl.password": "of shop",
}


async def on_a_secured_broker(data: Path, story: Callable[[str], Awaitable[T]]) -> T:
    """Run a story with the URL of a broker whose users are `shop` and `root`, a super user."""
    config = BrokerConfig(
        flush="os",
        security=SecurityConfig(authorizer="standard", super_users="User:root"),
    )
    async with Log.open(f"embedded:{data}", listen=False) as offline:
        for user in ("shop", "root"):
            await offline.admin().set_password(user, f"of {user}", iterations=4096)
    async with (
        Broker.open(str(data), config=config) as broker,
        SocketServer(broker, [Listener(protocol="SASL_PLAINTEXT")]) as listening,
    ):
        return await story(f"kafka://127.0.0.1:{listening.servers[0].port}")


def test_a_worker_needs_only_the_documented_permissions(tmp_path: Path) -> None:
    app = App("counting", state_dir=f"{tmp_path}/state", security=SHOP)
    words = app.topic("words", key=str, value=str, partitions=1)
    counts = app.topic("counts", key=str, value=str, partitions=1)
    app.stream(words).group_by(lambda _, word: word, name="by-word").count(name="n").changes().map(
        lambda word, n: (word, f"{word} {n}")
    ).to(counts)
    program = app.program()

    async def read(log: Log, stop: asyncio.Event) -> None:
        async with log.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("counts", 0)])
            found: list[bytes | None] = []
            while b"hello 2" not in found:
                for records in (await consumer.poll(timeout_ms=100)).values():
                    found += [record.value for record in records]
        stop.set()

    async def main(url: str) -> None:
        worker = Worker(program, log_url=url, announce=lambda _: None, security=app.security)
        async with asyncio.timeout(120), Log.open(url, security=access("root")) as log:
            admin = log.admin()
            await admin.create_topics([NewTopic("words", 1), NewTopic("counts", 1)])
            with pytest.raises(NotAuthorized, match="User:shop may not create"):
                await worker.run(asyncio.Event())
            await admin.create_acls(ALLOWED)
            async with log.producer() as producer:
                for _ in range(2):
                    await (await producer.send("words", b"hello", key=b"k"))
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as work:
                work.create_task(worker.run(stop))
                await read(log, stop)

    asyncio.run(on_a_secured_broker(tmp_path / "data", main))
