"""Connections without sockets, in a loop whose time passes only when nothing else is to do.

What a broker writes, and when, is exact, however busy the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import ConnectionConfig
from streamlog.broker.server.connection import Client, Connection
from streamlog.broker.server.connections import Connections
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.clock import ManualClock
from streamlog.protocol.api_table import api_of
from streamlog.protocol.frame import encode_request
from streamlog.protocol.schema import Message

T = TypeVar("T")
P = ParamSpec("P")
WALL_MS = 1_700_000_000_000


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes only when nothing else is ready; work in threads takes no time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self._now_ms = 0
        select = self._selector.select  # type: ignore[attr-defined]  # of asyncio's loops

        def pass_time(timeout: float | None) -> object:
            ready = select(0)
            if not ready and timeout:
                self.advance(max(round(timeout * 1000), 1))
            return ready

        self._selector.select = pass_time  # type: ignore[attr-defined]  # as above

    def advance(self, by_ms: int) -> None:
        self._now_ms += by_ms
        self._clock.advance(by_ms)

    def time(self) -> float:
        return self._now_ms / 1000


class Inline(Executor):
    """An executor that runs work at once, in the caller's thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Wire(asyncio.Transport):
    """A client's side of a connection, with its socket; records what it receives and when."""

    def __init__(self, principal: str | None) -> None:
        super().__init__(
            {
                "peername": ("10.0.0.1", 5000),
                "sockname": ("127.0.0.1", 9092),
                "principal": principal,
                "second_socket": lambda: self,
            }
        )
        self.sent: list[tuple[int, bytes]] = []
        self.ended = False
        self._reads = True
        self._pending = b""

    def connect(self, client: Connection) -> None:
        self._client = client
        client.connection_made(self)

    def deliver(self, data: bytes) -> None:
        """Send bytes to the broker while it reads; keep the rest."""
        self._pending += data
        while self._pending and self._reads and not self.ended:
            room = self._client.get_buffer(-1)
            size_bytes = min(len(room), len(self._pending))
            room[:size_bytes] = self._pending[:size_bytes]
            self._pending = self._pending[size_bytes:]
            self._client.buffer_updated(size_bytes)

    # ---- the socket ----

    def settimeout(self, _: float) -> None:
        """Do nothing: it never blocks."""

    def send(self, data: bytes, _: int = 0) -> int:
        self.sent.append((round(asyncio.get_running_loop().time() * 1000), bytes(data)))
        return len(data)

    def sendmsg(self, buffers: Sequence[bytes], *_: object) -> int:
        return self.send(b"".join(map(bytes, buffers)))

    # ---- the transport ----

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        asyncio.get_running_loop().call_soon(self.deliver, b"")

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().call_soon(self._client.connection_lost, None)

    def abort(self) -> None:
        self.close()


def framed(request: Message, number: int, version: int, client_id: str) -> bytes:
    return b"".join(encode_request(api_of(type(request)), version, number, client_id, request))


def on_wires(story: Callable[[Broker, Callable[[], Wire]], Awaitable[None]], **limits: int) -> None:
    """Run a story with a broker, and with what connects clients to it."""
    clock = ManualClock(wall_ms=WALL_MS)
    config = BrokerConfig(flush="os", connections=ConnectionConfig(**limits))

    async def main() -> None:
        async with Broker.open(
            "data", config=config, files=MemoryFiles(), clock=clock, threads=lambda _: Inline()
        ) as broker:
            connections: Connections[Client] = Connections(
                lambda: broker.directory.config.connections,
                quota_table=lambda: broker.directory.altered.quotas,
            )

            def connected() -> Wire:
                wire = Wire(None)
                endpoint = ("127.0.0.1", 9092)
                client = Connection(
                    broker, listener="L", endpoint=endpoint, connections=connections, gate=None
                )
                wire.connect(client)
                return wire

            await story(broker, connected)
            connections.close()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        runner.run(main())
