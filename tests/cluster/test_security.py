"""Three brokers with certificates, users with passwords, and their permissions.

Users also have a super user's certificate: their password identifies them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.client.admin.security_admin import Acl
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.errors import AuthenticationFailed, NotAuthorized
from streamlog.log import Log
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.protocol.scram import ITERATIONS_MIN
from streamlog.record import TopicPartition
from streamlog.transport.security import Security
from tests.broker.certificates import BROKER_NAME, CLIENT_NAME, certificates
from tests.cluster.cluster import Cluster

FILES = certificates()
SETTINGS = {
    "ssl.keystore.location": FILES.broker,
    "ssl.truststore.location": FILES.authority,
    "ssl.client.auth": "required",
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/",
    "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL",
    "inter.broker.listener.name": "BROKERS",
    "controller.listener.names": "BROKERS",
    "authorizer.class.name": "standard",
    "super.users": f"User:{BROKER_NAME};User:{CLIENT_NAME}",
}
TLS = {"ca_file": FILES.authority, "certificate_file": FILES.client}
OPERATOR = Security(protocol="SSL", **TLS)
ORDERS = [TopicPartition("orders", number) for number in range(3)]
MAY = [
    Acl(resource_type=kind, name=name, principal="User:alice", operation=operation)
    for kind, name, operation in (
        (ResourceType.TOPIC, "orders", Operation.WRITE),
        (ResourceType.TOPIC, "orders", Operation.READ),
        (ResourceType.GROUP, "till", Operation.READ),
    )
]


def user(name: str, password: str = "secret") -> Security:
    return Security(
        protocol="SASL_SSL", mechanism="SCRAM-SHA-256", user=name, password=password, **TLS
    )


async def prepare(cluster: Cluster) -> None:
    """Create topic, users and ACLs, and wait until each broker knows them."""
    async with Log.open(cluster.inner_url, security=OPERATOR) as log:
        admin, all_three = log.admin(), {"min.insync.replicas": "3"}
        await admin.create_topics([NewTopic("orders", partitions=3, configs=all_three)])
        for name in ("alice", "mallory"):
            await admin.set_password(name, "secret", iterations=ITERATIONS_MIN)
        await admin.create_acls(MAY)

    async def is_known() -> bool:
        for node in cluster.nodes.values():
            for name, sees in (("mallory", []), ("alice", ["orders"])):
                async with Log.open(f"kafka://{node.address}", security=user(name)) as log:
                    if [each.name for each in await log.admin().list_topics()] != sees:
                        return False
        return True

    await cluster.until(is_known, "alice sees the topic at each broker, and mallory nothing")
    await cluster.in_sync("orders")


async def write(log: Log) -> None:
    async with log.producer(acks="all", idempotent=False) as producer:
        for number, _ in enumerate(ORDERS):
            await (await producer.send("orders", b"%d" % number, partition=number))


async def read(log: Log, group_id: str) -> set[bytes | None]:
    found: set[bytes | None] = set()
    async with log.consumer(group_id=group_id, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe(["orders"])
        while len(found) < len(ORDERS):
            for records in (await consumer.poll(timeout_ms=500)).values():
                found |= {record.value for record in records}
        await consumer.commit()
    return found


def test_an_authorized_user_writes_and_reads_and_others_cannot(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        await prepare(cluster)
        async with Log.open(cluster.url, security=user("alice")) as log:
            await write(log)
            assert await read(log, "till") == {b"0", b"1", b"2"}
            with pytest.raises(NotAuthorized):
                await read(log, "another")
        async with Log.open(cluster.url, security=user("mallory")) as log:
            with pytest.raises(NotAuthorized):
                await write(log)
            with pytest.raises(NotAuthorized):
                await read(log, "till")
        with pytest.raises(AuthenticationFailed):
            await Log.open(cluster.url, security=user("alice", "guessed")).__aenter__()
        async with Log.open(cluster.inner_url, security=OPERATOR) as log:
            assert await log.admin().group_offsets("till") == dict.fromkeys(ORDERS, 1)
            async with log.consumer() as consumer:
                assert await consumer.end_offsets(ORDERS) == dict.fromkeys(ORDERS, 1)

    with Cluster(
        tmp_path, settings=SETTINGS, inner="BROKERS", outer="CLIENTS", security=OPERATOR
    ) as cluster:
        asyncio.run(story(cluster))
