"""Nodes of a cluster in one process: real brokers and real listeners, on disks in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any, Self, TypeVar

from chaos.ports import reserved_ports
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener
from streamlog.broker.server.socket_server import SocketServer
from streamlog.broker.storage.data_directory import format_directory
from streamlog.broker.storage.disk.files import Files
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import LogDirectoryError
from streamlog.protocol.schema import Message
from tests.broker.node import context

T = TypeVar("T")
M = TypeVar("M", bound=Message)

QUICK = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
}
"""Timeouts long enough for a busy machine."""
CLUSTER_ID = "bG9nLXRlc3QtY2x1c3Rlcg"
WAIT_S = 120


class Node:
    """One node: its disk, and its broker while that runs."""

    def __init__(
        self, node_id: int, settings: dict[str, str], port: int, cluster_id: str = CLUSTER_ID
    ) -> None:
        self.node_id = node_id
        self.port = port
        self.files = MemoryFiles()
        self.view: Files | None = None
        """The files as the broker sees them, if a test puts faults in between."""
        self.others: Sequence[str] = ()
        """Further directories, on other disks."""
        self.config = BrokerConfig().override({**QUICK, "node.id": str(node_id), **settings})
        format_directory("data", node_id=node_id, cluster_id=cluster_id, files=self.files)
        self.broker: Broker | None = None
        self._process: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def start(self) -> Broker:
        """Start the broker; return when it listens."""
        listens = asyncio.Event()
        self._stop = asyncio.Event()
        self._process = asyncio.ensure_future(self._serve(listens))
        waiting = asyncio.ensure_future(listens.wait())
        await asyncio.wait([waiting, self._process], return_when=asyncio.FIRST_COMPLETED)
        if self._process.done():
            waiting.cancel()
            self._process.result()
        assert self.broker is not None
        return self.broker

    async def _serve(self, listens: asyncio.Event) -> None:
        listener = Listener(host="127.0.0.1", port=self.port)
        try:
            async with (
                Broker.open(
                    "data", others=self.others, config=self.config, files=self.view or self.files
                ) as broker,
                SocketServer(broker, [listener]),
            ):
                self.broker = broker
                listens.set()
                await self._stop.wait()
        finally:
            self.broker = None

    async def stop(self) -> None:
        """Stop the broker cleanly."""
        self._stop.set()
        if self._process is not None:
            await self._process

    async def kill(self) -> None:
        """Kill the broker without notice; bytes that were not synced are lost."""
        process, self._process = self._process, None
        if process is not None:
            process.cancel()
            with suppress(asyncio.CancelledError, LogDirectoryError):
                await process
            self.files.crash()

    @property
    def ended(self) -> asyncio.Task[None]:
        assert self._process is not None
        return self._process


class Cluster:
    """Nodes by id: voters, and brokers without a vote."""

    def __init__(
        self, voters: int = 3, *, brokers: int = 0, controllers_only: bool = False, **more: str
    ) -> None:
        self._stack = AsyncExitStack()
        self._ports = ExitStack()
        numbers = range(1, voters + brokers + 1)
        ports = self._ports.enter_context(reserved_ports(len(numbers)))
        listed = ",".join(f"{n}@127.0.0.1:{ports[n - 1]}" for n in numbers[:voters])
        shared = {"controller.quorum.voters": listed, **more}
        self.nodes = {
            number: Node(
                number,
                shared
                | ({"process.roles": "broker"} if number > voters else {})
                | (
                    {"process.roles": "controller"} if controllers_only and number <= voters else {}
                ),
                ports[number - 1],
            )
            for number in numbers
        }

    async def __aenter__(self) -> Self:
        for node in self.nodes.values():
            await node.start()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        for node in self.nodes.values():
            await node.kill()
        self._ports.close()

    @property
    def brokers(self) -> list[Broker]:
        return [node.broker for node in self.nodes.values() if node.broker is not None]

    def active(self) -> Broker | None:
        """Return the broker of the active controller, or None."""
        return next((each for each in self.brokers if each._member.quorum.is_active), None)

    async def controller(self) -> Node:
        """Wait for an active controller; return its node."""
        await until(lambda: self.active() is not None)
        broker = self.active()
        assert broker is not None
        return self.nodes[broker.directory.node_id]

    async def ready(self, *numbers: int) -> None:
        """Wait until every running broker sees all brokers, or those of `numbers`, as live."""
        wanted = frozenset(numbers) or frozenset(
            number for number, node in self.nodes.items() if node.config.quorum.is_broker
        )
        await until(
            lambda: (
                all(each._member.live_brokers() == wanted for each in self.brokers)
                and bool(self.brokers)
            )
        )


class Unstarted(Cluster):
    """A cluster whose nodes the test starts."""

    async def __aenter__(self) -> Self:
        return self


def run_cluster(
    cluster: Callable[[], Cluster], story: Callable[[Cluster], Awaitable[None]]
) -> None:
    """Run the story on a cluster."""

    async def life() -> None:
        async with asyncio.timeout(2 * WAIT_S), cluster() as made:
            await story(made)

    asyncio.run(life())


async def until(holds: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - no event covers several brokers
            await asyncio.sleep(0.02)


async def call(broker: Broker, request: Message, kind: type[M]) -> M:
    """Send a request to the broker; return its response."""
    answer = await broker.handle(request, context(request))
    assert isinstance(answer, kind), answer
    return answer


Story = Callable[[Cluster], Coroutine[Any, Any, None]]
