"""Cluster: brokers as processes, their network, and what an operator sees of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final

from chaos.broker import START_TIMEOUT_S, BrokerProcess, build_shim
from chaos.network import Bridge, Loopback, Network
from chaos.world import is_inside
from streamlog.broker.quorum.raft.raft_wire import METADATA_TOPIC
from streamlog.broker.storage.catalog import new_id
from streamlog.cli.cluster_command import read_status
from streamlog.client.admin.cluster_descriptions import PartitionDescription
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.protocol.messages.quorum_messages import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
)
from streamlog.transport.client_connection import TcpTransport

LEADERS_SHARE: Final = 2 / 3
"""How often a fault is one of who leads something, or decides."""
NOBODY: Final = -1
ASK_MS: Final = 1_000
STATUS_S: Final = 10.0
"""For one look at all of them."""
UNKNOWN: Final = "no broker can say how the cluster is"
LOOK_S: Final = 0.2
"""Between two looks at how the brokers are."""
TEST_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "broker.session.timeout.ms": "1500",
        "broker.heartbeat.interval.ms": "300",
        "replica.lag.time.max.ms": "2000",
        "controller.quorum.election.timeout.ms": "300",
        "controller.quorum.election.backoff.max.ms": "300",
        "controller.quorum.fetch.timeout.ms": "600",
        "controller.quorum.request.timeout.ms": "600",
        "leader.imbalance.check.interval.seconds": "20",
    }
)
"""Short times, so that what is to happen happens soon."""


class Cluster:
    """Brokers 1 to n, a log for their clients, and their network."""

    def __init__(self, brokers: Iterable[BrokerProcess], network: Network, log: Log) -> None:
        self.brokers = {each.node_id: each for each in brokers}
        self.network = network
        self.log = log

    @property
    def replication_factor(self) -> int:
        """Of the topics that are tried: every broker has everything."""
        return len(self.brokers)

    async def start(self) -> None:
        """All that are not running, at once; return when they listen.

        Raises:
            ExceptionGroup: of RuntimeError: one does not start.
        """
        async with asyncio.TaskGroup() as starting:
            for each in self.brokers.values():
                starting.create_task(each.start())

    async def kill(self) -> None:
        """All of them, at once."""
        async with asyncio.TaskGroup() as ending:
            for each in self.brokers.values():
                ending.create_task(each.kill())

    def heal(self) -> None:
        """Nothing comes between the brokers, and their disks and clocks are in order."""
        self.network.heal()
        for each in self.brokers.values():
            each.turn({})

    async def victim(self, chance: Random) -> BrokerProcess:
        """One that runs; more often than not it leads something."""
        running = [each for each in self.brokers.values() if each.is_running]
        if chance.random() < LEADERS_SHARE:
            leaders = [self.brokers[number] for number in await self._leaders()]
            running = [each for each in leaders if each.is_running] or running
        return chance.choice(running or list(self.brokers.values()))

    async def controller(self) -> int | None:
        """Who decides, by its own account and in the newest epoch; None if nobody does now."""
        asked = [self._leads(each) for each in self.brokers.values() if each.is_running]
        _, number = max(await asyncio.gather(*asked), default=(NOBODY, NOBODY))
        return None if number == NOBODY else number

    async def _leads(self, broker: BrokerProcess) -> tuple[int, int]:
        """Its epoch as the quorum's leader, and its number."""
        wanted = DescribeQuorumTopic(
            topic_name=METADATA_TOPIC, partitions=[DescribeQuorumPartition(partition_index=0)]
        )
        try:
            transport = await TcpTransport.connect(
                broker.host, broker.port, client_id="chaos", timeout_ms=ASK_MS
            )
            try:
                request = DescribeQuorumRequest(topics=[wanted])
                answer = await transport.call(request, timeout_ms=ASK_MS)
            finally:
                await transport.close()
        except StreamlogError:
            return NOBODY, NOBODY
        if not isinstance(answer, DescribeQuorumResponse) or not answer.topics:
            return NOBODY, NOBODY
        described = answer.topics[0].partitions[0]
        if described.error_code or described.leader_id != broker.node_id:
            return NOBODY, NOBODY
        return described.leader_epoch, broker.node_id

    async def all_there(self, within_s: float) -> None:
        """Wait until the controller knows all brokers.

        Raises:
            TimeoutError: it does not.
        """
        async with asyncio.timeout(within_s):
            while True:
                with suppress(StreamlogError):
                    known = (await self.log.admin().describe_cluster()).brokers
                    if len(known) == len(self.brokers):
                        return
                await asyncio.sleep(LOOK_S)

    async def partitions(self) -> list[PartitionDescription]:
        """All of them, internal ones too; none if nobody can say at present."""
        try:
            async with asyncio.timeout(5), self.log.admin() as admin:
                return await admin.describe_partitions()
        except (StreamlogError, TimeoutError):
            return []

    async def leader(self, topic: str, partition: int = 0) -> BrokerProcess:
        """Who leads it, as soon as anybody does."""
        while True:
            for each in await self.partitions():
                if (each.topic, each.partition) == (topic, partition) and each.leader > 0:
                    return self.brokers[each.leader]
            await asyncio.sleep(LOOK_S)

    async def all_in_sync(self, within_s: float) -> list[str]:
        """Wait until the cluster is proved well; what is not proved, if it takes longer."""
        left = [UNKNOWN]
        try:
            async with asyncio.timeout(within_s):
                while left:
                    left = await self._problems()
                    if left:
                        await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return left
        return []

    async def _problems(self) -> list[str]:
        """As `streamlog cluster status` tells them."""
        try:
            async with asyncio.timeout(STATUS_S), self.log.admin() as admin:
                status = await read_status(admin)
        except (StreamlogError, TimeoutError):
            return [UNKNOWN]
        missing = [f"broker {each} is missing" for each in status.missing]
        return [*status.problems, *missing] or ([] if status.is_healthy else [UNKNOWN])

    async def _leaders(self) -> list[int]:
        leaders = [each.leader for each in await self.partitions() if each.leader in self.brokers]
        deciding = await self.controller()
        return [*sorted(leaders), *([] if deciding is None else [deciding])]


@asynccontextmanager
async def running(
    directory: Path,
    *,
    brokers: int = 3,
    lossy: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
    own_settings: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    two_disks: Collection[int] = (),
    module: str = "streamlog",
) -> AsyncIterator[Cluster]:
    """A cluster from its first start to the death of all its brokers.

    `settings` are those of all brokers, `own_settings` those of some, by their ids.
    Those in `two_disks` have a second one, which is the one that fails (`BrokerProcess.turn`).

    `module` has the brokers' command line.
    Its network can be broken inside a world of its own (`world`), and is loopback elsewhere.
    """
    shim = build_shim(directory)
    network: Network = Bridge(brokers) if is_inside() else Loopback(brokers)
    numbers = range(1, brokers + 1)
    places = {number: network.address(number) for number in numbers}
    voters = ",".join(f"{number}@{host}:{port}" for number, (host, port) in places.items())
    cluster_id = new_id() if brokers > 1 else None
    quorum = {"controller.quorum.voters": voters} if brokers > 1 else {}
    given = {**TEST_SETTINGS, **quorum, **settings}
    processes = [
        BrokerProcess(
            directory / f"broker{number}",
            shim,
            node_id=number,
            host=places[number][0],
            port=places[number][1],
            settings={**given, "node.id": str(number), **own_settings.get(number, {})},
            command=network.command(number),
            lossy=lossy,
            cluster_id=cluster_id,
            module=module,
            second_disk=number in two_disks,
        )
        for number in numbers
    ]
    addresses = ",".join(each.address for each in processes)
    try:
        async with asyncio.TaskGroup() as starting:
            for each in processes:
                starting.create_task(each.start())
        timeout_ms = round(START_TIMEOUT_S * 1000)
        async with Log.attach(f"kafka://{addresses}", timeout_ms=timeout_ms) as log:
            cluster = Cluster(processes, network, log)
            await cluster.all_there(START_TIMEOUT_S)
            yield cluster
    finally:
        network.heal()
        for each in processes:
            await each.kill()
        network.close()
