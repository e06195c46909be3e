"""BrokerServer: the TCP listener, from the socket to `Broker.begin` and back.

What a connection does is in `connection`; here they are accepted, and ended when the broker stops.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Self

from streamlog.broker.broker import Broker
from streamlog.broker.config.listeners import Listener
from streamlog.broker.server.connection import Client, Connection
from streamlog.broker.server.connections import Connections
from streamlog.broker.server.sasl_handshake import SaslHandshake
from streamlog.broker.server.tls import TlsConnection
from streamlog.errors import ListenError

if TYPE_CHECKING:
    from types import TracebackType

    from streamlog.broker.security.mechanisms import Tokens
    from streamlog.broker.server.certificates import Certificates

STOP_TIMEOUT_MS = 2_000
"""How long stopping waits for clients to take what was written for them."""
WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 - named here to tell them from real addresses


class Acceptor:
    """Serves one broker at one listener. An async context manager."""

    def __init__(
        self,
        broker: Broker,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        listener: Listener | None = None,
        tls: Certificates | None = None,
        tokens: Tokens | None = None,
        connections: Connections[Client] | None = None,
    ) -> None:
        """A server at a listener, or without security at a host and port.

        `tls` is for a listener that has it, `tokens` for OAUTHBEARER. Servers of one broker share
        their `connections`; the last that is entered is where processes that find the data
        directory in use are sent to.
        """
        self.listener = listener or Listener(host=host, port=port)
        self.host = self.listener.host
        self.port = self.listener.port
        """After entering: the port that was taken, if 0 was asked for."""
        self._broker = broker
        self._tls = tls
        self._tokens = tokens
        self._servers: list[asyncio.Server] = []
        self._connections: Connections[Client] = connections or Connections(
            lambda: broker.directory.config.connections,
            quota_table=lambda: broker.directory.altered.quotas,
            most=broker.shares.connections,
        )

    @property
    def advertised(self) -> tuple[str, int]:
        """What clients are told, as far as it is the same for all."""
        reachable = "127.0.0.1" if self.host in WILDCARDS else self.host
        return self.listener.advertised or (reachable, self.port)

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ListenError: the address is taken, or is not one of this machine's.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                self.host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            # A name such as localhost may have two addresses; both get the same port.
            for address in dict.fromkeys(str(info[4][0]) for info in found):
                await self._listen(loop, address)
        except OSError as error:
            await self._stop()
            raise ListenError(_no_listener(self.host, self.port, error)) from error
        self._broker.listens(*self.advertised, listener=self.listener.name)
        self._connections.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self._broker.leave()
        finally:
            await self._stop()

    async def _listen(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        try:
            server = await loop.create_server(
                self._connection, address, self.port, backlog=self._broker.shares.backlog
            )
        except OSError as error:
            if self._servers and error.errno == errno.EADDRNOTAVAIL:
                return  # Another address of the same name is served: there is no IPv6 here.
            raise
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]

    def _connection(self) -> asyncio.BufferedProtocol:
        # On all addresses a client is told the one that it has come by.
        varies = self.host in WILDCARDS and self.listener.advertised is None
        place = None if varies else self.advertised
        connection = Connection(
            self._broker,
            listener=self.listener.name,
            place=place,
            connections=self._connections,
            gate=self._gate(),
        )
        if self._tls is None:
            return connection
        return TlsConnection(
            self._tls, connection, listener=self.listener, connections=self._connections
        )

    def _gate(self) -> SaslHandshake | None:
        if not self.listener.has_sasl:
            return None
        broker = self._broker
        config = broker.directory.config.security
        return SaslHandshake(
            config, users=lambda: broker.users, tokens=self._tokens, clock=broker.clock
        )

    async def _stop(self) -> None:
        """Take no more, write what is answered, and hang up."""
        self._connections.close()
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.stop()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_MS / 1000):
                for connection in connections:
                    await connection.closed.wait()
        except TimeoutError:
            for connection in connections:
                connection.abort()
            for connection in connections:
                await connection.closed.wait()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()


def _no_listener(host: str, port: int, error: OSError) -> str:
    where = f"{host or '0.0.0.0'}:{port}"  # noqa: S104 - shown, not bound
    if error.errno == errno.EADDRINUSE:
        return f"can't listen on {where}: another process does; stop it, or choose another port"
    if error.errno == errno.EACCES:
        return f"can't listen on {where}: not allowed; choose a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"can't listen on {where}: no address of this machine; use 127.0.0.1 or 0.0.0.0"
    return f"can't listen on {where}: {error.strerror or error}"
