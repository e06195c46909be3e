"""Three shipped brokers on simulated machines, and a client on another, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from simulation.clients import SimulatedLog
from simulation.cluster import BROKERS, CLUSTER_ID
from simulation.loop import SimulatedLoop, live
from simulation.network import Network
from simulation.node import DIRECTORY, PORT, Node
from simulation.story import ended
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.data_directory import format_directory
from streamlog.client.admin import NewTopic
from streamlog.client.admin.cluster_descriptions import PartitionDescription
from streamlog.errors import StreamlogError

LATENCIES_S = (0.0002, 0.001)
T = TypeVar("T")


class Brokers:
    """Three brokers, one per rack if `racks` are given."""

    def __init__(self, loop: SimulatedLoop, racks: Sequence[str], settings: dict[str, str]) -> None:
        self.loop = loop
        self.network = Network(loop, latencies_s=LATENCIES_S)
        voters = ",".join(f"{each}@b{each}:{PORT}" for each in BROKERS)
        self.nodes: dict[int, Node] = {}
        for number in BROKERS:
            own = {"node.id": str(number), "controller.quorum.voters": voters}
            if racks:
                own["broker.rack"] = racks[number - 1]
            config = BrokerConfig().override(own | settings)
            node = self.nodes[number] = Node(self.network, f"b{number}", config=config)
            format_directory(DIRECTORY, node_id=number, cluster_id=CLUSTER_ID, files=node.disk)
        self.machine = self.network.machine("client")
        self.log = SimulatedLog(loop, self.machine, [f"b{number}" for number in BROKERS])

    def broker(self, number: int) -> Broker:
        broker = self.nodes[number].broker
        assert broker is not None
        return broker

    def now_s(self) -> float:
        return self.loop.time()

    async def create(self, name: str, *, replicas: int, configs: dict[str, str]) -> None:
        """Create a topic of one partition once all brokers have registered."""
        admin = self.log.admin()
        while True:
            try:
                if len((await admin.describe_cluster()).brokers) == len(self.nodes):
                    await admin.create_topics([NewTopic(name, 1, replicas, configs)])
                    return
            except StreamlogError:
                pass  # the controller election is still running
            await self.pause()

    async def layout(self, name: str) -> PartitionDescription:
        """Describe the topic's only partition: its leader and replicas."""
        descriptions = await self.log.admin().describe_partitions()
        return next(each for each in descriptions if each.topic == name)

    async def pause(self) -> None:
        """Let 0.2 s of simulated time pass."""
        await asyncio.sleep(0.2)


def run_brokers(
    story: Callable[[Brokers], Coroutine[object, object, T]],
    *,
    racks: Sequence[str] = (),
    settings: dict[str, str] | None = None,
) -> T:
    """Start three brokers, run the story of a client, and return its result."""
    found: list[T] = []

    async def life(loop: SimulatedLoop) -> None:
        brokers = Brokers(loop, racks, settings or {})
        for node in brokers.nodes.values():
            node.start()

        async def run_client() -> None:
            found.append(await story(brokers))

        await ended(brokers.machine.start(run_client()))

    life_errors = live(life, 1).errors
    assert life_errors == ()
    return found[0]
