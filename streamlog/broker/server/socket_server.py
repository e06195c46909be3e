"""SocketServer: opens the listeners of a broker, accepts connections, and closes both together.

All listeners share one set of connections, so that the limits on clients hold for the broker as a
whole. A listener without security, if there is one, opens last: the data directory names the last
one to local processes that find the directory in use, and such a listener is the easiest to use.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Self

from streamlog import repeated
from streamlog.broker.broker import Broker
from streamlog.broker.cluster.peers import (
    check_trusted,
    controller_listener,
    peer_listener,
    peer_security,
)
from streamlog.broker.config.connections import Listener
from streamlog.broker.config.security import PLAINTEXT, PROTOCOLS, SASL_PLAINTEXT, SecurityConfig
from streamlog.broker.security.authentication import OAUTHBEARER, PLAIN, Tokens
from streamlog.broker.security.tokens import SignedTokens, UnsecuredTokens
from streamlog.broker.server.connection import Client, Connection
from streamlog.broker.server.connections import Connections
from streamlog.broker.server.jwk_set import JwkSet
from streamlog.broker.server.sasl_handshake import SaslHandshake
from streamlog.broker.server.tls import Certificates, TlsConnection
from streamlog.errors import ConfigError, ListenError
from streamlog.listening import accept_no_more
from streamlog.metrics.process import process_metrics
from streamlog.protocol.messages.broker_registration import RegisteredListener as BrokerListener
from streamlog.transport.socket_buffers import SYSTEM_BUFFERS, SocketBuffers

if TYPE_CHECKING:
    from types import TracebackType

    from streamlog.broker.config.broker import BrokerConfig
    from streamlog.broker.config.connections import ConnectionConfig
    from streamlog.broker.storage.disk.descriptors import Shares


STOP_TIMEOUT_MS = 2_000
"""How long a stop waits for clients to read their responses."""
WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 - named here to tell them from real addresses


class Acceptor:
    """Serves a broker at one listener, while entered."""

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
        """Prepare a server at a listener, or, without security, at a host and port.

        A listener with TLS needs `tls`, one with OAUTHBEARER needs `tokens`. The acceptors of one
        broker share their `connections`. The last one to be entered is the one that the data
        directory names to processes that find it in use.
        """
        self.listener = listener or Listener(host=host, port=port)
        self.host = self.listener.host
        self.port = self.listener.port
        """The port; if 0 was asked for, after entering, the one that the system has chosen."""
        self._broker = broker
        self._tls = tls
        self._tokens = tokens
        self._servers: list[asyncio.Server] = []
        # Not `or`: one without a connection is empty, so it counts as false.
        if connections is None:
            connections = Connections(
                lambda: broker.directory.config.connections,
                quota_table=lambda: broker.directory.altered.quotas,
                most=broker.shares.connections,
            )
        self._connections: Connections[Client] = connections

    @property
    def advertised(self) -> tuple[str, int]:
        """The host and port that clients get, unless those depend on how a client has connected."""
        reachable = "127.0.0.1" if self.host in WILDCARDS else self.host
        return self.listener.advertised or (reachable, self.port)

    async def __aenter__(self) -> Self:
        """Open the listener.

        Raises:
            ListenError: the address is in use, or is not one of this machine's.
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
        # Leadership is handed over while other brokers can still connect. The first acceptor to
        # exit does it for the whole broker.
        try:
            if kind is None:
                await self._broker.leave()
        finally:
            await self._stop()

    async def _listen(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        limits = self._broker.directory.config.connections
        buffers = SocketBuffers(limits.send_buffer_bytes, limits.receive_buffer_bytes)
        try:
            server = await loop.create_server(
                self._connection,
                address,
                self.port,
                backlog=self._broker.shares.backlog,
                start_serving=buffers == SYSTEM_BUFFERS,
            )
        except OSError as error:
            if self._servers and error.errno == errno.EADDRNOTAVAIL:
                return  # Another address of the name is open: this machine has no IPv6, say.
            raise
        # With port 0, the first address gets any free port, and the next one has to get that too.
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        if buffers == SYSTEM_BUFFERS:
            return
        for listening in server.sockets:
            # Before it listens: connections inherit the sizes, and the window that a client sees
            # depends on them.
            buffers.apply(listening)
        await server.start_serving()

    def _connection(self) -> asyncio.BufferedProtocol:
        # A listener on all addresses: each client gets the address to which it has connected, since
        # another one may be in a network that it can't reach.
        varies = self.host in WILDCARDS and self.listener.advertised is None
        endpoint = None if varies else self.advertised
        connection = Connection(
            self._broker,
            listener=self.listener.name,
            endpoint=endpoint,
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
        return SaslHandshake(
            broker.directory.config.security,
            users=lambda: broker.users,
            tokens=self._tokens,
            clock=broker.clock,
            tell=partial(self._connections.on_authentication, self.listener.name),
        )

    async def _stop(self) -> None:
        """Accept no more requests, write the pending responses, and close the connections."""
        self._connections.close()
        await accept_no_more(self._servers)
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
            # A client that does not read would otherwise keep the broker from stopping.
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


_log = repeated.logger(__name__)


class SocketServer:
    """Serves a broker at several listeners, while entered."""

    def __init__(self, broker: Broker, listeners: Sequence[Listener]) -> None:
        """Check the settings and load the certificates; nothing is opened yet.

        Raises:
            ConfigError: a listener with TLS has no certificate, or, in a cluster, a listener has no
                address that other brokers can connect to.
        """
        self._broker = broker
        config = broker.directory.config.security
        connections: Connections[Client] = Connections(
            lambda: broker.directory.config.connections,
            quota_table=lambda: broker.directory.altered.quotas,
            most=broker.shares.connections,
            preferred=broker.directory.config.peers.listener.upper() if len(listeners) > 1 else "",
        )
        broker.directory.metrics.collect(connections.metrics)
        broker.directory.metrics.collect(process_metrics)
        _tell_bound(broker.shares, broker.directory.config.connections)
        has_tls = any(each.has_tls for each in listeners)
        tls = Certificates(config, broker.clock) if has_tls else None
        if broker.directory.config.quorum.voters:
            _check_peers(broker.directory.config, {each.name: each for each in listeners}, tls)
        self._keys: JwkSet | None = None
        tokens = self._tokens(config) if any(each.has_sasl for each in listeners) else None
        for each in listeners:
            if each.protocol == SASL_PLAINTEXT and PLAIN in config.sasl_mechanisms.split(","):
                _log.warning("listener %s accepts passwords (PLAIN) without TLS", each.name)
        self.servers = [
            Acceptor(
                broker,
                listener=each,
                tls=tls if each.has_tls else None,
                tokens=tokens,
                connections=connections,
            )
            for each in listeners
        ]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open all listeners, or none.

        Raises:
            ListenError: an address is in use, or is not one of this machine's.
        """
        if self._keys is not None:
            self._stack.callback(self._keys.close)
            await self._keys.open()
        first = min(self.servers, key=lambda each: each.listener.protocol != PLAINTEXT)
        try:
            for server in self.servers:
                if server is not first:
                    await self._stack.enter_async_context(server)
            await self._stack.enter_async_context(first)
            # Only now: the cluster must not learn of a listener that is not open.
            self._broker.listens_at([_broker_listener(each) for each in self.servers])
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # With the error, if any: on an orderly exit, acceptors hand leadership over first.
        await self._stack.__aexit__(kind, error, traceback)

    def _tokens(self, config: SecurityConfig) -> Tokens | None:
        if OAUTHBEARER not in config.sasl_mechanisms.split(","):
            return None
        if config.unsecured_tokens:
            _log.warning(
                "accepting tokens without a signature: any client can claim to be any user"
            )
            return UnsecuredTokens(config)
        self._keys = JwkSet(config.jwks_url, refresh_ms=config.jwks_refresh_ms)
        return SignedTokens(config, self._keys)


def _check_peers(
    config: BrokerConfig, listeners: Mapping[str, Listener], tls: Certificates | None
) -> None:
    """Raise ConfigError if other nodes could not connect to this one, or would be refused."""
    for each in listeners.values():
        if each.host in WILDCARDS and each.advertised is None:
            raise ConfigError(
                f"listener {each.name} listens on all addresses of this machine: set the one"
                " that other brokers and clients use in advertised.listeners, such as"
                f" {each.name}://this-machine:{each.port}"
            )
    peers, controllers = peer_listener(config), controller_listener(config)
    for listener in (peers, controllers):
        own = listeners.get(listener.name)
        security = peer_security(config, listener)
        principal = None
        if own is not None and tls is not None and own.has_tls:
            principal = tls.own_principal(security, (own.advertised or (own.host, 0))[0])
        check_trusted(config, listener, principal)
    voter = config.quorum.addresses().get(config.node_id)
    own = listeners.get(controllers.name)
    if voter is not None and own is not None and voter[1] not in _ports(own):
        raise ConfigError(
            f"controller.quorum.voters says that node {config.node_id} has port {voter[1]},"
            f" but its controller listener {own.name} has port {own.port}: give both the same"
            " port, or name another listener in controller.listener.names"
        )


def _tell_bound(allowed: Shares, limits: ConnectionConfig) -> None:
    if allowed.connections < limits.max_connections:
        _log.warning(
            "%d open files allow %d connections, fewer than max.connections=%d: raise the"
            " limit (ulimit -n, LimitNOFILE=)",
            allowed.limit,
            allowed.connections,
            limits.max_connections,
        )


def _ports(listener: Listener) -> set[int]:
    """Return the ports at which others may reach a listener."""
    advertised = () if listener.advertised is None else (listener.advertised[1],)
    return {listener.port, *advertised}


def _broker_listener(server: Acceptor) -> BrokerListener:
    """Return a listener as brokers and clients see it."""
    host, port = server.advertised
    protocol = PROTOCOLS.index(server.listener.protocol)
    return BrokerListener(
        name=server.listener.name, host=host, port=port, security_protocol=protocol
    )
