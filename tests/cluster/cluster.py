"""Brokers of a cluster as separate processes, and the actions of an operator.

Use it as `with Cluster(tmp_path) as cluster: asyncio.run(story(cluster))`, with a story that begins
with `await cluster.ready()`. It starts three `streamlog broker --config FILE`; their logs are
printed at the end, so that they appear below a failed test.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import pytest

from chaos.ports import reserved_ports
from streamlog.broker.storage.catalog import new_id
from streamlog.broker.storage.data_directory import format_directory
from streamlog.errors import StreamlogError
from streamlog.protocol.messages.cluster_metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from streamlog.protocol.schema import Message
from streamlog.transport.client_connection import TcpTransport
from streamlog.transport.security import Security

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0
STOP_S = 30.0
"""The longest time from SIGTERM to a broker's exit, as promised for rolling restarts."""
ASK_MS = 1_000
ASK_AGAIN_S = 0.05
LAST_LINES = 60

SETTINGS: Mapping[str, str] = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "group.initial.rebalance.delay.ms": "0",
}
"""Short time-outs: a failover takes about 2 seconds instead of 10."""
QUORUM_SETTINGS: Mapping[str, str] = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.request.timeout.ms": "600",
}
"""Short time-outs for quorums of several voters."""

AT_LENGTH = pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough",
    reason="slow: needs STREAMLOG_PROFILE=thorough (`make properties`)",
)
M = TypeVar("M", bound=Message)


@dataclass
class Node:
    """One broker through all its lives."""

    number: int
    port: int
    directory: Path
    inner_port: int = 0
    """The port for other brokers."""
    registry: str = ""
    """Where it serves the schema registry, if it does."""
    environment: dict[str, str] = field(default_factory=dict)
    """Additional environment variables for its next start."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def config(self) -> Path:
        return self.directory / "broker.properties"

    @property
    def log(self) -> Path:
        return self.directory / "broker.log"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Cluster:
    """Brokers 1 to n, which are also controllers. A context manager: leaving it ends them."""

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        inner: str = "",
        outer: str = "PLAINTEXT",
        security: Security | None = None,
        has_registry: bool = False,
    ) -> None:
        """Prepare the brokers without starting them; `settings` apply to all, on top of `SETTINGS`.

        With `inner`, brokers connect to each other by a second listener of this name; the listener
        of clients is called `outer`. With `security`, the test connects by the inner one, with
        these settings. With `has_registry`, each serves the schema registry.
        """
        self._has_registry = has_registry
        self._inner, self._outer, self._security = inner, outer, security
        self.cluster_id = new_id()
        self._directory = directory
        self._count = brokers
        self._settings = dict(settings or {})
        self._stack = ExitStack()
        self.nodes: dict[int, Node] = {}

    def __enter__(self) -> Self:
        """Create the directories and start the brokers, without waiting until they are `ready`."""
        ports = self._stack.enter_context(reserved_ports(3 * self._count))
        inner_ports, registry_ports = ports[self._count :], ports[2 * self._count :]
        for number, port in enumerate(ports[: self._count], 1):
            inner_port = inner_ports[number - 1] if self._inner else port
            node = Node(
                *(number, port, self._directory / f"broker-{number}"),
                inner_port=inner_port,
                registry=f"127.0.0.1:{registry_ports[number - 1]}",
            )
            self.nodes[number] = node
            node.directory.mkdir(parents=True, exist_ok=True)
            format_directory(str(node.data), node_id=number, cluster_id=self.cluster_id)
        for node in self.nodes.values():
            self.configure(node.number)
            self.start(node.number)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            self.kill(node.number)
        self._stack.close()
        for node in self.nodes.values():
            print(f"--- broker {node.number}, {node.address}\n{self._last_lines(node)}")  # noqa: T201

    @property
    def bootstrap(self) -> str:
        """The bootstrap addresses for clients."""
        return ",".join(node.address for node in self.nodes.values())

    @property
    def registry_urls(self) -> str:
        """The URLs of the schema registry, one a broker."""
        return ",".join(f"http://{node.registry}" for node in self.nodes.values())

    @property
    def url(self) -> str:
        """The URL of the log."""
        return f"kafka://{self.bootstrap}"

    @property
    def inner_url(self) -> str:
        """The URL of the log at the listener of brokers."""
        addresses = (f"127.0.0.1:{node.inner_port}" for node in self.nodes.values())
        return f"kafka://{','.join(addresses)}"

    @property
    def voters(self) -> str:
        """The setting that names the voters."""
        return ",".join(
            f"{each.number}@127.0.0.1:{each.inner_port}" for each in self.nodes.values()
        )

    def configure(self, number: int, settings: Mapping[str, str] | None = None) -> None:
        """Write a broker's settings for its next start; `settings` override the common ones."""
        node = self.nodes[number]
        given = {
            "node.id": str(number),
            "log.dirs": str(node.data),
            "listeners": f"{self._outer}://{node.address}" + self._inner_listener(node),
            **SETTINGS,
            **({} if self._count == 1 else self._quorum()),
            **({"schema.registry.listener": node.registry} if self._has_registry else {}),
            **self._settings,
            **(settings or {}),
        }
        node.config.write_text("".join(f"{name}={value}\n" for name, value in given.items()))

    def _inner_listener(self, node: Node) -> str:
        return f",{self._inner}://127.0.0.1:{node.inner_port}" if self._inner else ""

    def _quorum(self) -> dict[str, str]:
        return {"controller.quorum.voters": self.voters, **QUORUM_SETTINGS}

    # ---- actions ----

    def start(self, number: int) -> None:
        """Start a stopped broker, without waiting until it is ready."""
        node = self.nodes[number]
        assert not node.is_running, f"broker {number} runs already"
        paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                [sys.executable, "-m", "streamlog", "broker", "--config", str(node.config)],
                env={**os.environ, "PYTHONPATH": paths, **node.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, number: int) -> None:
        """Kill a broker with SIGKILL, and wait for its end."""
        process = self.nodes[number].process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def pause(self, number: int) -> None:
        """Suspend a broker with SIGSTOP: its sockets stay open, but it does not answer."""
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """Resume a broker with SIGCONT."""
        self._signal(number, signal.SIGCONT)

    async def stop(self, number: int, *, within_s: float = STOP_S) -> int:
        """Stop a broker with SIGTERM, and return its exit code; a late exit fails the test."""
        process = self._signal(number, signal.SIGTERM)
        try:
            return await asyncio.to_thread(process.wait, within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"broker {number} did not stop within {within_s} s") from None

    async def restart(self, number: int) -> int:
        """Stop and start a broker, wait until all are ready, and return the exit code."""
        code = await self.stop(number)
        self.start(number)
        await self.ready()
        return code

    def _signal(self, number: int, which: signal.Signals) -> subprocess.Popen[bytes]:
        process = self.nodes[number].process
        assert process is not None, f"broker {number} was not started"
        process.send_signal(which)
        return process

    # ---- questions ----

    async def ready(self, *, within_s: float = DEADLINE_S) -> None:
        """Wait until all running brokers see each other alive, and a controller."""
        wanted = {node.number for node in self.nodes.values() if node.is_running}

        async def all_know() -> bool:
            for number in wanted:
                seen = await self.ask(number, DescribeClusterRequest(), DescribeClusterResponse)
                if seen.controller_id < 0 or {each.broker_id for each in seen.brokers} != wanted:
                    return False
            return True

        await self.until(all_know, f"brokers {sorted(wanted)} know of each other", within_s)

    async def in_sync(self, *topics: str, within_s: float = DEADLINE_S) -> None:
        """Wait until every replica of these topics, or of all, is in sync and has a leader."""

        async def are() -> bool:
            partitions = await self.partitions(*topics)
            known = {topic for topic, _ in partitions}  # A broker that has just started knows none.
            return known >= {*topics} and all(
                each.leader_id >= 0 and set(each.isr_nodes) == set(each.replica_nodes)
                for each in partitions.values()
            )

        await self.until(are, "all replicas are in sync", within_s)

    async def partitions(self, *topics: str) -> dict[tuple[str, int], MetadataResponsePartition]:
        """Return the metadata of these topics' partitions, or of all, from one broker."""
        about = [MetadataRequestTopic(name=each) for each in topics] or None
        request = MetadataRequest(topics=about, allow_auto_topic_creation=False)
        answer = await self.ask(self._any(), request, MetadataResponse)
        return {
            (topic.name or "", each.partition_index): each
            for topic in answer.topics
            for each in topic.partitions
        }

    async def ask(self, number: int, request: Message, kind: type[M]) -> M:
        """Send a request to one broker. Raises the connection's errors."""
        node = self.nodes[number]
        transport = await TcpTransport.connect(
            "127.0.0.1",
            node.port if self._security is None else node.inner_port,
            client_id="tester",
            timeout_ms=ASK_MS,
            security=self._security,
        )
        try:
            answer = await transport.call(request, timeout_ms=ASK_MS)
        finally:
            await transport.close()
        assert isinstance(answer, kind)
        return answer

    async def until(
        self, is_so: Callable[[], Awaitable[bool]], what: str, within_s: float = DEADLINE_S
    ) -> None:
        """Repeat a check until it succeeds, also while a running broker can't be reached."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        why = "it is not so"
        while True:
            try:
                if await is_so():
                    return
            except StreamlogError as error:
                why = str(error)
            ended = [
                node
                for node in self.nodes.values()
                if node.process is not None and (node.process.poll() or 0) > 0
            ]
            assert not ended, f"a broker has ended with an error: {self._last_lines(ended[0])}"
            assert asyncio.get_running_loop().time() < deadline_s, f"not in time: {what}: {why}"
            await asyncio.sleep(ASK_AGAIN_S)

    def log_text(self, number: int) -> str:
        """Return the log of a broker over all its lives."""
        path = self.nodes[number].log
        return path.read_text(errors="replace") if path.exists() else ""

    def _any(self) -> int:
        running = [node.number for node in self.nodes.values() if node.is_running]
        assert running, "no broker runs"
        return running[0]

    def _last_lines(self, node: Node) -> str:
        return "\n".join(self.log_text(node.number).splitlines()[-LAST_LINES:])
