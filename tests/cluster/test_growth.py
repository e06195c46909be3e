"""`streamlog cluster grow`: one broker becomes three processes, with all its data."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

from chaos.ports import reserved_ports
from streamlog.client.admin.security_admin import Acl
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.log import Log
from streamlog.protocol.acls import Operation, ResourceType
from tests.cluster.cluster import DEADLINE_S, QUORUM_SETTINGS, ROOT, Cluster, Node

PARTITIONS = 3
RETENTION_MS = "86400000"
SETTINGS = {
    **QUORUM_SETTINGS,
    "authorizer.class.name": "standard",
    "super.users": "User:ANONYMOUS",
}
ACL = Acl(
    resource_type=ResourceType.TOPIC, name="orders", principal="User:ann", operation=Operation.READ
)


class Growing(Cluster):
    """One broker, with ports for two more."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, brokers=1, settings=SETTINGS)
        self.directory = directory

    def __enter__(self) -> Self:
        super().__enter__()
        self._ports = self._stack.enter_context(reserved_ports(2))
        return self

    def grow(self) -> str:
        """Run the command, and copy its output to the directories of nodes 2 and 3."""
        voters = [f"1@{self.nodes[1].address}"]
        voters += [f"{number}@127.0.0.1:{port}" for number, port in enumerate(self._ports, 2)]
        generated = self.directory / "generated"
        own = self.nodes[1]
        where = ["--data", str(own.data), "--config", str(own.config), "--to", str(generated)]
        output = self.command("cluster", "grow", *where, "--voters", ",".join(voters))
        for number, port in enumerate(self._ports, 2):
            node = Node(number, port, self.directory / f"broker-{number}")
            node.directory.mkdir()
            shutil.move(generated / f"broker-{number}", node.data)
            text = (generated / f"broker-{number}.properties").read_text()
            node.config.write_text(
                text.replace(str(generated / f"broker-{number}"), str(node.data))
            )
            self.nodes[number] = node
        return output

    def command(self, *arguments: str) -> str:
        """Run a streamlog command that succeeds, and return its output."""
        paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        done = subprocess.run(
            [sys.executable, "-m", "streamlog", *arguments],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout


async def write(log: Log, number: int) -> None:
    """Write a transaction with one record for each partition."""
    async with log.producer(transactional_id="tx") as producer, producer.transaction():
        for partition in range(PARTITIONS):
            await producer.send("orders", b"%d" % number, partition=partition)


async def read(log: Log) -> list[int]:
    """Read the rest of the group's records, commit, and return them."""
    found: list[int] = []
    async with log.consumer(
        group_id="g", isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        await consumer.subscribe(["orders"])
        while len(found) < PARTITIONS:
            for records in (await consumer.poll(timeout_ms=500)).values():
                found += [int(record.value or b"") for record in records]
        await consumer.commit()
    return found


async def fill(log: Log) -> None:
    async with log.admin() as admin:
        new = NewTopic("orders", PARTITIONS, configs={"retention.ms": RETENTION_MS})
        await admin.create_topics([new])
        await admin.set_password("ann", "secret-of-ann")
        await admin.create_acls([ACL])
    await write(log, 1)
    assert await read(log) == [1] * PARTITIONS


async def check(log: Log, number: int) -> None:
    """Check that all data is there, and that a transaction with this number succeeds."""
    async with log.admin() as admin:
        assert "ann" in await admin.list_users()
        assert await admin.describe_acls() == [ACL]
        configs = await admin.describe_configs("orders")
        assert configs["retention.ms"].value == RETENTION_MS
    await write(log, number)
    assert await read(log) == [number] * PARTITIONS, "it had read the earlier records"


async def spread(cluster: Growing) -> None:
    """Reassign all partitions to three replicas, and wait until those are in sync."""
    cluster.command("cluster", "reassign", "*=1,2,3", "--log", cluster.url)

    async def is_spread() -> bool:
        partitions = (await cluster.partitions()).values()
        return all({1, 2, 3} == {*each.replica_nodes} == {*each.isr_nodes} for each in partitions)

    await cluster.until(is_spread, "all partitions have three replicas")


def test_one_broker_grows_to_three_of_which_any_may_fail(tmp_path: Path) -> None:
    async def story(cluster: Growing) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await fill(log)
        before = await cluster.partitions()
        assert await cluster.stop(1) == 0
        assert "decides nothing before nodes 1 and 2 run" in cluster.grow()
        for number in (1, 2, 3):
            cluster.start(number)
        await cluster.ready()
        after = await cluster.partitions()
        assert {*after} == {*before}
        assert all(each.replica_nodes == [1] for each in after.values())
        async with Log.open(cluster.url) as log:
            await check(log, 2)
        await spread(cluster)
        cluster.kill(1)
        await cluster.ready()
        async with Log.open(cluster.url) as log, asyncio.timeout(DEADLINE_S):
            await check(log, 3)
        cluster.start(1)
        await cluster.ready()
        await cluster.in_sync("orders")

    with Growing(tmp_path) as cluster:
        asyncio.run(story(cluster))
