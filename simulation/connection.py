"""End: one end of a simulated connection, as asyncio's transports are; and who listens for some."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from simulation.loop import SimulatedLoop
    from simulation.network import Network, ProtocolFactory
    from simulation.process import Process

WINDOW_BYTES = 64 * 1024
"""What a receiver that does not read is sent, before its sender has to keep the rest."""
HIGH_BYTES = 64 * 1024
SOCKET_BUFFER_BYTES = 128 * 1024
"""What the kernel takes from who writes to the socket himself."""


class End(asyncio.Transport):
    """One end; `peer` is the other one."""

    peer: End

    def __init__(
        self, network: Network, here: tuple[str, int], there: tuple[str, int], process: Process
    ) -> None:
        super().__init__({"sockname": here, "peername": there, "socket": None})
        self.here, self.there = here[0], there[0]
        self.process = process
        self.last_s = 0.0
        """When the last piece that was sent will arrive."""
        self.is_broken = False
        self.is_gone = False
        """Whether its process is: nobody closes it any more."""
        self._network = network
        self._protocol: asyncio.BaseProtocol | None = None
        self._context = contextvars.Context()
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self.flying_bytes = 0
        """Sent, and not there yet."""
        self._incoming: deque[bytes | None] = deque()
        self.incoming_bytes = 0
        """There, and not read yet."""
        self._reads = True
        self._closing = False
        self._lost = False
        self._high_bytes = HIGH_BYTES
        self._paused_writer = False
        self._second: SecondSocket | None = None

    @property
    def loop(self) -> SimulatedLoop:
        """Whose turns it takes."""
        return self._network.loop

    @property
    def is_open(self) -> bool:
        """Whether it may still carry something."""
        return not self._lost and not self.is_gone

    @property
    def is_over(self) -> bool:
        """Whether neither end needs it any more."""
        return not self.is_open and not self.peer.is_open

    # ---- its life ----

    def open(self, protocol: asyncio.BaseProtocol, context: contextvars.Context) -> None:
        """It is connected, and whose protocol it is is told."""
        self._protocol, self._context = protocol, context
        protocol.connection_made(self)
        if self._lost:  # before anybody had accepted it
            self.loop.call_soon(self._tell_lost, None, context=context.copy())
        self._feed_soon()

    def break_off(self) -> None:
        """Reset: what is under way in either direction is lost."""
        if self.is_broken or self.is_gone:
            return
        self.is_broken = True
        self._network.forget_held(self)
        self._outgoing.clear()
        self._incoming.clear()
        self._lose_soon(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def vanish(self) -> None:
        """The process is gone; what it has handed to its kernel may still arrive."""
        self.is_gone = True
        self._incoming.clear()
        self._outgoing.clear()

    def close(self) -> None:
        """See asyncio: what was written is sent first."""
        if not self._closing:
            self._closing = True
            if not self._outgoing:
                self._finish()

    def abort(self) -> None:
        """See asyncio."""
        if self._lost:
            return
        self._closing = True
        self._outgoing.clear()
        self.is_broken = True
        network, peer = self._network, self.peer
        network.forget_held(self)
        self.loop.call_later(0.001, peer.break_off, context=contextvars.Context())
        self._lose_soon(None)

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._closing or self._lost

    def _finish(self) -> None:
        self._network.ship(self, None)
        self._lose_soon(None)

    def _lose_soon(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        if self._second is not None:
            self._second.on_room()
        self.loop.call_soon(self._tell_lost, error, context=self._context.copy())

    def _tell_lost(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    # ---- out ----

    def write(self, data: Any) -> None:
        """See asyncio."""
        if self._closing or self._lost or not len(data):
            return
        self._outgoing.append(bytes(data))
        self._outgoing_bytes += len(data)
        self.pump()
        if self._outgoing_bytes > self._high_bytes and not self._paused_writer:
            self._paused_writer = True
            cast("asyncio.Protocol", self._protocol).pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """See asyncio."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self._outgoing_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        self._high_bytes = HIGH_BYTES if high is None else high

    def take(self, data: bytes) -> int:
        """What the kernel takes of a write to the socket: at least one byte, or it would block."""
        if self._lost:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        room_bytes = SOCKET_BUFFER_BYTES - self._outgoing_bytes
        if room_bytes <= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        taken = data[:room_bytes]
        self._outgoing.append(taken)
        self._outgoing_bytes += len(taken)
        self.pump()
        return len(taken)

    def pump(self) -> None:
        """Send what the other side has room for."""
        while self._outgoing:
            room_bytes = WINDOW_BYTES - self.flying_bytes - self.peer.incoming_bytes
            if room_bytes <= 0:
                break
            first = self._outgoing[0]
            size = self._network.split(min(len(first), room_bytes))
            piece = first[:size]
            if size == len(first):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = first[size:]
            self._outgoing_bytes -= size
            self.flying_bytes += size
            self._network.ship(self, piece)
        if self._lost or self.is_gone:
            return
        if self._closing and not self._outgoing:
            self._finish()
        elif self._paused_writer and self._outgoing_bytes <= self._high_bytes // 4:
            self._paused_writer = False
            resume = cast("asyncio.Protocol", self._protocol).resume_writing
            self.loop.call_soon(resume, context=self._context.copy())
        if self._second is not None and self._outgoing_bytes < SOCKET_BUFFER_BYTES // 2:
            self._second.on_room()

    # ---- in ----

    def receive(self, piece: bytes | None) -> None:
        """The kernel has it; the process reads it when it has its turn."""
        self._incoming.append(piece)
        if piece is not None:
            self.incoming_bytes += len(piece)
            self.peer.flying_bytes -= len(piece)
        if self._protocol is not None:
            self._feed_soon()

    def pause_reading(self) -> None:
        """See asyncio."""
        self._reads = False

    def resume_reading(self) -> None:
        """See asyncio."""
        if not self._reads:
            self._reads = True
            self._feed_soon()

    def is_reading(self) -> bool:
        """See asyncio."""
        return self._reads and not self._closing

    def _feed_soon(self) -> None:
        self.loop.call_soon(self._feed, context=self._context.copy())

    def _feed(self) -> None:
        """One read of the socket."""
        if not self._incoming or not self._reads or self._lost or self.is_gone:
            return
        piece = self._incoming.popleft()
        if piece is None:
            protocol = cast("asyncio.Protocol", self._protocol)
            if not protocol.eof_received():
                self.close()
            return
        left = _hand_over(self._protocol, piece)
        if left:
            self._incoming.appendleft(left)
        self.incoming_bytes -= len(piece) - len(left)
        self.peer.pump()
        if self._incoming:
            self._feed_soon()

    # ---- the rest of asyncio's ----

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio."""
        return cast("asyncio.BaseProtocol", self._protocol)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio; `second_socket` makes one for who writes past the transport."""
        if name == "second_socket":
            return self._make_second
        return super().get_extra_info(name, default)

    def _make_second(self) -> SecondSocket:
        self._second = SecondSocket(self)
        return self._second


class SecondSocket:
    """What `socket.fromfd` gives of a connection: a socket of one's own for the same stream."""

    def __init__(self, end: End) -> None:
        self._end = end
        self.on_writable: tuple[Callable[..., object], tuple[Any, ...], Any] | None = None
        self._closed = False
        self._told = False

    def settimeout(self, _: float | None) -> None:
        """It never waits."""

    def fileno(self) -> int:
        """It has none."""
        raise OSError(errno.EBADF, "a simulated socket has no descriptor")

    def send(self, data: Any, flags: int = 0) -> int:
        """See socket."""
        return self._end.take(bytes(data))

    def sendmsg(self, buffers: Iterable[Any], ancillary: object = (), flags: int = 0) -> int:
        """See socket."""
        return self._end.take(b"".join(buffers))

    def close(self) -> None:
        """See socket."""
        self._closed = True
        self.on_writable = None

    def on_room(self) -> None:
        """There is room, or an error to be told: whoever waits has a turn."""
        if self.on_writable is not None and not self._closed and not self._told:
            self._told = True
            _, _, context = self.on_writable
            self._end.loop.call_soon(self._tell, context=context.copy())

    def _tell(self) -> None:
        self._told = False
        if self.on_writable is not None:
            callback, args, _ = self.on_writable
            callback(*args)
            self._end.pump()


class Listening:
    """As asyncio.Server."""

    def __init__(
        self,
        network: Network,
        key: tuple[str, int],
        factory: ProtocolFactory,
        process: Process,
        context: contextvars.Context,
    ) -> None:
        self.key = key
        self.factory = factory
        self.process = process
        self.context = context
        self._network = network

    @property
    def sockets(self) -> tuple[Listening, ...]:
        """See asyncio."""
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        """See socket."""
        return self.key

    def close(self) -> None:
        """See asyncio."""
        self._network.forget(self.key)

    async def wait_closed(self) -> None:
        """See asyncio."""

    async def start_serving(self) -> None:
        """It serves already."""

    def is_serving(self) -> bool:
        """See asyncio."""
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _hand_over(protocol: Any, piece: bytes) -> bytes:
    """Give bytes to a protocol; what has no room in its buffer is left."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(piece)
        return b""
    buffer = memoryview(protocol.get_buffer(len(piece)))
    size = min(len(buffer), len(piece))
    buffer[:size] = piece[:size]
    protocol.buffer_updated(size)
    return piece[size:]
