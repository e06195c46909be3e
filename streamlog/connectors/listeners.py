"""Listeners: sockets that receive messages for a source, over TCP, TLS and UDP.

What was received waits in an `Inbox` until the source yields it. Rules of the module:

- The inbox is bounded. When it is full, connections are not read, so their senders wait; datagrams
  stay in the kernel, which drops those that find no room there, and counts them.
- No task: sockets call back on the event loop, so nothing outlives `async with listening(...)`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from streamlog.allowed_paths import check_path
from streamlog.connect import SourceContext, SourcePartition
from streamlog.connectors.message_framing import Framer
from streamlog.errors import ConfigError, CorruptData, ListenError
from streamlog.listening import accept_no_more
from streamlog.listening import parse_address as listening_address
from streamlog.repeated import logger

log = logger(__name__)

TransportName: TypeAlias = Literal["tcp", "udp"]

HELD_BYTES_MAX = 4 * 1024 * 1024
"""What an inbox holds before it takes no more."""
TAKEN_MAX = 10_000
"""The most messages of one step."""
CONNECTIONS_MAX = 1_000
"""More connections than this are closed at once."""
DATAGRAM_BYTES_MAX = 65_536
DATAGRAMS_AT_ONCE = 256
"""Datagrams that are read before the loop does anything else."""
RECEIVE_BUFFER_BYTES = 8 * 1024 * 1024
"""What the kernel is asked to hold of datagrams. net.core.rmem_max limits it, unless the process
has CAP_NET_ADMIN."""
LISTENERS_MAX = 1_000
SO_RCVBUFFORCE = 33
"""Linux: as SO_RCVBUF, without its limit, for a process that has CAP_NET_ADMIN (socket(7))."""
SO_RXQ_OVFL = 40
"""Linux: each datagram comes with the number of those that were dropped (socket(7))."""
MESSAGE_OVERHEAD_BYTES = 100
"""What an object of Python adds to each message, so that empty lines are bounded as well."""


class Received(NamedTuple):
    """A message, who sent it, and for a connection, how to answer."""

    data: bytes
    peer: str
    connection: MessageConnection | None


class Inbox:
    """Messages that were received and not taken yet."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held: deque[Received] = deque()
        self._held_bytes = 0
        self._arrived = asyncio.Event()
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be received."""
        return self._held_bytes >= self._bytes_max

    def put(self, message: Received) -> None:
        """Add a message; a full inbox takes it as well, since it was received already."""
        self._held.append(message)
        self._held_bytes += len(message.data) + MESSAGE_OVERHEAD_BYTES
        self._arrived.set()

    def when_room(self, resume: Callable[[], None]) -> None:
        """Call `resume` once there is room again."""
        self._waiting.append(resume)

    async def take(self) -> list[Received]:
        """Return what has arrived, at most `TAKEN_MAX` messages; wait for the first one."""
        # `clear` before `wait`, with nothing awaited between the test and `clear`: an arrival in
        # between can't be missed.
        while not self._held:
            self._arrived.clear()
            await self._arrived.wait()
        taken = [self._held.popleft() for _ in range(min(TAKEN_MAX, len(self._held)))]
        self._held_bytes -= sum(len(each.data) + MESSAGE_OVERHEAD_BYTES for each in taken)
        if not self.is_full:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                resume()
        return taken


class _Clients:
    """The connections of a listener."""

    def __init__(self) -> None:
        self.open: set[MessageConnection] = set()
        self.is_over = False
        """Whether the listener has stopped, so that nothing takes what a client sends."""

    def close(self) -> None:
        """Close all connections, and those that are made from now on."""
        self.is_over = True
        for connection in [*self.open]:
            connection.close()


class MessageConnection(asyncio.Protocol):
    """One client: its bytes go through a framer into the inbox."""

    def __init__(self, inbox: Inbox, framer: Framer, clients: _Clients) -> None:
        self._inbox = inbox
        self._framer = framer
        self._clients = clients
        self._transport: asyncio.Transport | None = None
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to receive."""
        if not isinstance(transport, asyncio.Transport):
            return
        self._transport = transport
        # Two elements for IPv4, four for IPv6; none if the client has gone already.
        name: tuple[str, int] = transport.get_extra_info("peername") or ("", 0)
        self._peer = str(name[0])
        if self._clients.is_over:
            # Its handshake of TLS has taken until now.
            transport.abort()
        elif len(self._clients.open) >= CONNECTIONS_MAX:
            log.warning("%s: closed, there are %s connections", self._peer, CONNECTIONS_MAX)
            transport.abort()
        # Added even so: `connection_lost`, which removes it, follows.
        self._clients.open.add(self)

    def data_received(self, data: bytes) -> None:
        """Cut what came into messages."""
        try:
            messages = self._framer.feed(data)
        except CorruptData as error:
            log.warning("%s: closed: %s", self._peer, error)
            self.close()
            return
        self._put(messages)

    def eof_received(self) -> None:
        """Take the last message, which may lack its end."""
        self._put(self._framer.finish())

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        del error
        self._clients.open.discard(self)
        self._transport = None

    def _put(self, messages: list[bytes]) -> None:
        for message in messages:
            self._inbox.put(Received(message, self._peer, self))
        if self._inbox.is_full and self._transport is not None:
            # The kernel's buffers fill up, then the sender's, then the sender waits.
            self._transport.pause_reading()
            self._inbox.when_room(self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def answer(self, data: bytes) -> None:
        """Send bytes, unless the client has gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


class DatagramReader:
    """Reads datagrams of a socket into the inbox, and counts what the kernel has dropped.

    Args:
        bound: a bound socket.
        inbox: takes the datagrams.
        dropped: called with the number of datagrams that the kernel dropped since the last call.
    """

    def __init__(
        self, bound: socket.socket, inbox: Inbox, dropped: Callable[[int], object]
    ) -> None:
        self._socket = bound
        self._inbox = inbox
        self._dropped = dropped
        self._drops = 0
        self._loop = asyncio.get_running_loop()
        self._is_open = True

    def start(self) -> None:
        """Receive, until the inbox is full."""
        if self._is_open:
            self._loop.add_reader(self._socket.fileno(), self._receive)

    def close(self) -> None:
        """Receive no more."""
        self._is_open = False
        self._loop.remove_reader(self._socket.fileno())

    def _receive(self) -> None:
        # One call back for many datagrams: a turn of the loop costs more than a datagram.
        for _ in range(DATAGRAMS_AT_ONCE):
            try:
                data, ancillary, _, peer = self._socket.recvmsg(DATAGRAM_BYTES_MAX, 64)
            except BlockingIOError:
                return
            for level, kind, value in ancillary:
                if level == socket.SOL_SOCKET and kind == SO_RXQ_OVFL:
                    self._count(struct.unpack("=I", value[:4])[0])
            self._inbox.put(Received(data, str(peer[0]), None))
            if self._inbox.is_full:
                self._loop.remove_reader(self._socket.fileno())
                self._inbox.when_room(self.start)
                return

    def _count(self, drops: int) -> None:
        # The kernel counts since the socket was opened, in 32 bits that wrap around.
        if drops != self._drops:
            self._dropped((drops - self._drops) % 2**32)
            self._drops = drops


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of the setting `address`; see `listening.parse_address`."""
    return listening_address(text, setting="address", example=5140)


def check_listeners(count: int) -> None:
    """Raise ConfigError if a number of listeners is out of range."""
    if not 1 <= count <= LISTENERS_MAX:
        raise ConfigError(f"listeners={count} is not from 1 to {LISTENERS_MAX}")


def listener_parts(count: int) -> list[SourcePartition]:
    """Return a part for each of a source's listeners."""
    return [{"listener": number} for number in range(count)]


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a listener's TLS, in PEM.

    Attributes:
        certificate: the listener's certificate, with those that sign it.
        key: its private key.
        client_ca: the certificates that sign clients'; a client must have one then.
    """

    certificate: str
    key: str
    client_ca: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context of a server.

        Raises:
            ConfigError: a file can't be read, or is none of its kind.
        """
        for name in ("certificate", "key", "client_ca"):
            if (path := getattr(self, name)) is not None:
                check_path(f"tls.{name}", path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(Path(self.certificate), Path(self.key))
            if self.client_ca is not None:
                context.load_verify_locations(Path(self.client_ca))
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the files of tls can't be used: {error}") from error
        return context


@asynccontextmanager
async def listening_tcp(
    address: str, inbox: Inbox, make_framer: Callable[[], Framer], tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Accept connections while the block lasts.

    Raises:
        ListenError: the address is taken, or is not of this machine.
    """
    host, port = parse_address(address)
    clients = _Clients()
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            lambda: MessageConnection(inbox, make_framer(), clients),
            host,
            port,
            ssl=tls,
            reuse_port=True,  # The workers of one machine share the port.
        )
    except OSError as error:
        raise ListenError(f"{address} can't be listened on: {error}") from error
    try:
        yield
    finally:
        await accept_no_more([server])
        # Not `wait_closed`: it waits for clients that keep their connections open.
        server.close()
        clients.close()


@asynccontextmanager
async def listening_udp(
    address: str, inbox: Inbox, dropped: Callable[[int], object]
) -> AsyncIterator[None]:
    """Receive datagrams while the block lasts; `dropped`: see `DatagramReader`.

    Raises:
        ListenError: the address is taken, or is not of this machine.
    """
    host, port = parse_address(address)
    # asyncio's endpoints hide the ancillary data, which has the kernel's drops.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as bound:
        bound.settimeout(0)  # Never blocks.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ask_for_room(bound)
        bound.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        try:
            bound.bind((host, port))
        except OSError as error:
            raise ListenError(f"{address} can't be listened on: {error}") from error
        reader = DatagramReader(bound, inbox, dropped)
        reader.start()
        try:
            yield
        finally:
            reader.close()


def ask_for_room(bound: socket.socket) -> None:
    """Ask the kernel for `RECEIVE_BUFFER_BYTES`; it gives less if it has to, and says nothing."""
    try:
        bound.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    except PermissionError:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)


def listening(
    transport: TransportName,
    address: str,
    inbox: Inbox,
    make_framer: Callable[[], Framer],
    *,
    tls: TlsFiles | None,
    context: SourceContext,
) -> AbstractAsyncContextManager[None]:
    """Receive what arrives on an address while the block lasts; the kernel's drops are counted.

    Raises:
        ConfigError: a file of `tls` can't be used.
    """
    if transport == "udp":
        return listening_udp(address, inbox, partial(context.count, "kernel_drops"))
    return listening_tcp(address, inbox, make_framer, None if tls is None else tls.context())
