"""The members' level: `QuorumMember` with its files and controller, as it is shipped.

Three nodes on the simulated loop create topics and settings while they are killed, lose power and
are cut off from each other, and their disks are slow. Snapshots come often. What was answered is
there in the end, on every node, and nodes that have applied the same records are the same (Q7).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from simulation.life import Life
from simulation.loop import SimulatedLoop, live
from simulation.threads import SimulatedThread
from streamlog.broker.quorum.controller.decision import ControllerContext
from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
from streamlog.broker.quorum.quorum_member import QuorumMember
from streamlog.broker.quorum.raft.raft_state import Timeouts
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import ConnectionLost, RequestTimedOut, StreamlogError
from streamlog.protocol.codec import decode, encode
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from streamlog.protocol.schema import Message

VOTERS = (1, 2, 3)
OBSERVER = 4
TIMEOUTS = Timeouts(
    election_ms=300,
    election_backoff_ms=300,
    fetch_ms=600,
    request_ms=400,
    retry_ms=20,
    wait_ms=100,
)
TROUBLE_S = 20.0
PATIENCE_S = 30.0


class SimulatedClock:
    """The loop's."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        """Monotonic."""
        return round(self._loop.time() * 1000)

    def wall_ms(self) -> int:
        """Since some epoch."""
        return self.now_ms() + 1_700_000_000_000


class Node:
    """A machine of the cluster: its disk, and the process that runs on it, if one does."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.files = MemoryFiles()
        self.member: QuorumMember | None = None
        self._process: asyncio.Task[None] | None = None

    def start(self, *, rejoins: bool = False) -> QuorumMember:
        """Begin with what is on the disk."""
        loop = self.cluster.loop
        realm = ControllerContext(
            metadata=ClusterMetadata(),
            cluster_id="cluster",
            node_id=self.node_id,
            chance=Random(loop.chance.randrange(2**32)),
        )
        member = QuorumMember.open(
            self.files,
            "data",
            realm,
            voters=self.cluster.voters,
            clock=SimulatedClock(loop),
            timeouts=TIMEOUTS,
            snapshot_bytes=self.cluster.snapshot_bytes,
            rejoins=rejoins,
        )
        self.member = member
        self._process = loop.create_task(self._run(member))
        return member

    async def _run(self, member: QuorumMember) -> None:
        try:
            await member.run(Links(self.cluster, self.node_id), SimulatedThread(self.cluster.loop))
        except StreamlogError as error:
            self.cluster.failures.append(f"node {self.node_id}: {error}")
        if self.member is member:
            self.member = None
            member.close()

    async def stop(self) -> None:
        """End it in good order."""
        if self.member is not None and self._process is not None:
            self.member.stop()
            await self._process

    async def kill(self, *, power: bool) -> None:
        """End it now; with the power goes what was not synced."""
        member, self.member = self.member, None
        keep = self.cluster.loop.chance.choice([0, 1, 70, 400]) if power else None
        if self._process is not None:
            self._process.cancel()
            await asyncio.wait([self._process])
        self.files.crash(keep_bytes=keep)  # Only now: until here it still reads what it has open.
        if member is not None:
            member.close()  # its thread has gone with it


class Links:
    """What a node says to others, over a network that may be cut."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id

    async def call(self, node_id: int, request: Message, *, timeout_ms: int) -> Message:
        """See `Peers`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._carried(self._node_id, node_id)
                member = self._cluster.nodes[node_id].member
                if member is None:
                    raise ConnectionLost(f"nobody listens on node {node_id}")
                answer = await member.handle(_over_wire(request))  # type: ignore[arg-type]
                await self._carried(node_id, self._node_id)
                return _over_wire(answer)
        except TimeoutError:
            raise RequestTimedOut(f"no answer from node {node_id}") from None

    async def _carried(self, sender: int, receiver: int) -> None:
        chance = self._cluster.loop.chance
        await asyncio.sleep(chance.choice(self._cluster.latencies_s))
        if (sender, receiver) in self._cluster.cut:
            await asyncio.Event().wait()


def _over_wire(message: Message) -> Message:
    version = message.__versions__.last
    return decode(type(message), version, encode(message, version))


class Cluster:
    """All nodes."""

    def __init__(
        self,
        loop: SimulatedLoop,
        *,
        voters: tuple[int, ...] = VOTERS,
        observers: tuple[int, ...] = (),
        snapshot_bytes: int = 1 << 30,
    ) -> None:
        self.loop = loop
        self.voters = voters
        self.snapshot_bytes = snapshot_bytes
        self.latencies_s: tuple[float, ...] = (0.001,)
        self.cut: set[tuple[int, int]] = set()
        self.failures: list[str] = []
        self.nodes = {each: Node(self, each) for each in (*voters, *observers)}

    def start(self) -> None:
        """Switch all on."""
        for node in self.nodes.values():
            node.start()

    @property
    def members(self) -> list[QuorumMember]:
        """Those that live."""
        return [node.member for node in self.nodes.values() if node.member is not None]

    def active(self) -> QuorumMember | None:
        """The active controller: of two that think so, the later one."""
        active = [member for member in self.members if member.is_active]
        return max(active, key=lambda member: member.epoch, default=None)

    async def elected(self) -> QuorumMember:
        """The active controller, once there is one."""
        async with asyncio.timeout(PATIENCE_S):
            while (member := self.active()) is None:  # noqa: ASYNC110 - the time is simulated
                await asyncio.sleep(0.01)
            return member

    async def agreed(self, offset: int) -> None:
        """Wait until all nodes live and have applied what is before `offset`."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._agree(offset):  # noqa: ASYNC110 - the time is simulated
                await asyncio.sleep(0.05)

    def _agree(self, offset: int) -> bool:
        return len(self.members) == len(self.nodes) and all(
            member.applied_offset >= offset and not member.is_rejoining for member in self.members
        )

    async def put(self, name: str, value: str) -> bool:
        """Set a setting of all brokers; whether it was said to have happened."""
        member = await self.elected()
        resource = AlterConfigsResource(
            resource_type=4,
            resource_name="",
            configs=[AlterableConfig(name=name, config_operation=0, value=value)],
        )
        try:
            answer = member.submit(IncrementalAlterConfigsRequest(resources=[resource]), 1)
            if isinstance(answer, asyncio.Future):
                async with asyncio.timeout(5):
                    answer = await answer
        except (StreamlogError, TimeoutError):
            return False
        codes = [each.error_code for each in answer.responses]  # type: ignore[attr-defined]
        if codes != [0]:
            raise RuntimeError(f"{name}={value}: {codes}")
        return True


async def _trouble(cluster: Cluster, counts: Counter[str]) -> None:
    chance, loop = cluster.loop.chance, cluster.loop
    end_s = loop.time() + TROUBLE_S
    while loop.time() < end_s:
        await asyncio.sleep(chance.uniform(0.05, 1.0))
        node = chance.choice(list(cluster.nodes.values()))
        kind = chance.choice(["kill", "power", "cut", "heal", "stop", "heal"])
        counts[kind] += 1
        if kind == "cut":
            other = chance.choice(list(cluster.nodes))
            cluster.cut |= {(node.node_id, other), (other, node.node_id)}
        elif kind == "heal":
            cluster.cut.clear()
        elif node.member is not None:
            await (node.stop() if kind == "stop" else node.kill(power=kind == "power"))
            await asyncio.sleep(chance.choice([0.001, 0.05, 1.0]))
            node.start()
    cluster.cut.clear()
    for node in cluster.nodes.values():
        if node.member is None:
            node.start()


async def _story(loop: SimulatedLoop) -> Counter[str]:
    chance = loop.chance
    cluster = Cluster(
        loop,
        observers=(OBSERVER,),
        snapshot_bytes=chance.choice([500, 5_000, 1 << 30]),
    )
    cluster.latencies_s = chance.choice([(0.001,), (0.0005, 0.005, 0.05), (0.001, 0.2)])
    counts: Counter[str] = Counter()
    digests: dict[int, str] = {}
    acked: list[int] = []

    def seen(member: QuorumMember) -> None:
        digest = member.metadata.digest()
        if digests.setdefault(member.applied_offset, digest) != digest:
            loop.errors.append(f"Q7: two states at offset {member.applied_offset}")

    async def load() -> None:
        for number in range(10_000):
            if await cluster.put("log.segment.bytes", str(1_000_000 + number)):
                acked.append(number)
                counts["acknowledged"] += 1
            for member in cluster.members:
                seen(member)
            await asyncio.sleep(chance.uniform(0.01, 0.2))

    cluster.start()
    async with asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(load())
        await _trouble(cluster, counts)
        loading.cancel()
    await _healed(cluster, acked, counts)
    for member in cluster.members:
        seen(member)
    loop.errors.extend(cluster.failures)
    for node in cluster.nodes.values():
        await node.stop()
    return counts


async def _healed(cluster: Cluster, acked: list[int], counts: Counter[str]) -> None:
    """Everything works again, and what was answered is there."""
    while not await cluster.put("log.retention.ms", "77"):
        counts["tried again"] += 1
    leader = await cluster.elected()
    await cluster.agreed(leader.applied_offset)
    for member in cluster.members:
        found = dict(member.metadata.config(4, ""))
        last = int(found.get("log.segment.bytes", "1000000")) - 1_000_000
        if acked and last < acked[-1]:
            cluster.loop.errors.append(f"{last} is the last setting, {acked[-1]} was acknowledged")
        if found.get("log.retention.ms") != "77":
            cluster.loop.errors.append("the last setting is missing")


def simulate(seed: int) -> Life:
    """One life."""
    lived = live(_story, seed, until_s=10_000)
    return Life(
        seed=seed,
        events=lived.turns,
        counts=lived.result,
        violations=lived.errors,
        trace=lived.trace,
        story=lived.story,
    )
