"""Listening: every listener of a broker, opened and closed together.

They share one set of connections, so that what all clients may cost is bounded for the broker.
The one that a process on this machine can use most easily, without security if there is such a
one, is opened last: that is the one it is told of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from streamlog import repeated
from streamlog.broker.cluster.peer_security import (
    check_trusted,
    controller_listener,
    peer_listener,
    peer_security,
)
from streamlog.broker.config.listeners import Listener
from streamlog.broker.config.security import PLAINTEXT, PROTOCOLS, SASL_PLAINTEXT, SecurityConfig
from streamlog.broker.security.mechanisms import OAUTHBEARER, PLAIN, Tokens
from streamlog.broker.security.tokens import SignedTokens, UnsecuredTokens
from streamlog.broker.server.acceptor import WILDCARDS, Acceptor
from streamlog.broker.server.certificates import Certificates
from streamlog.broker.server.connection import Client
from streamlog.broker.server.connections import Connections
from streamlog.broker.server.jwk_set import JwkSet
from streamlog.errors import ConfigError
from streamlog.protocol.messages.broker_registration import RegisteredListener as BrokerListener

if TYPE_CHECKING:
    from types import TracebackType

    from streamlog.broker.broker import Broker
    from streamlog.broker.config.broker import BrokerConfig
    from streamlog.broker.config.connections import ConnectionConfig
    from streamlog.broker.storage.disk.descriptors import Shares

_log = repeated.logger(__name__)


class SocketServer:
    """Serves one broker at several listeners. An async context manager."""

    def __init__(self, broker: Broker, listeners: Sequence[Listener]) -> None:
        """Nothing is listened to yet.

        Raises:
            ConfigError: a listener has TLS, and there is no certificate for it; or there are other
            brokers, and a listener has no address for them.
        """
        self._broker = broker
        config = broker.directory.config.security
        connections: Connections[Client] = Connections(
            lambda: broker.directory.config.connections,
            quota_table=lambda: broker.directory.altered.quotas,
            most=broker.shares.connections,
            preferred=broker.directory.config.peers.listener.upper() if len(listeners) > 1 else "",
        )
        broker.figures.connections = connections.counts
        _tell_bound(broker.shares, broker.directory.config.connections)
        has_tls = any(each.has_tls for each in listeners)
        tls = Certificates(config, broker.clock) if has_tls else None
        if broker.directory.config.quorum.voters:
            _check_peers(broker.directory.config, {each.name: each for each in listeners}, tls)
        self._keys: JwkSet | None = None
        tokens = self._tokens(config) if any(each.has_sasl for each in listeners) else None
        for each in listeners:
            if each.protocol == SASL_PLAINTEXT and PLAIN in config.sasl_mechanisms.split(","):
                _log.warning("listener %s takes passwords (PLAIN) without TLS", each.name)
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
        """Listen.

        Raises:
            ListenError: an address is taken, or is not one of this machine's.
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
            self._broker.listens_at([_told(each) for each in self.servers])
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
        # Each of them is told why: who is at an end in order lets others lead before.
        await self._stack.__aexit__(kind, error, traceback)

    def _tokens(self, config: SecurityConfig) -> Tokens | None:
        if OAUTHBEARER not in config.sasl_mechanisms.split(","):
            return None
        if config.unsecured_tokens:
            _log.warning("tokens without a signature are taken: anybody can be any user")
            return UnsecuredTokens(config)
        self._keys = JwkSet(config.jwks_url, refresh_ms=config.jwks_refresh_ms)
        return SignedTokens(config, self._keys)


def _check_peers(
    config: BrokerConfig, listeners: Mapping[str, Listener], tls: Certificates | None
) -> None:
    """Raise ConfigError if other nodes could not come to this one, or would not be let in."""
    for each in listeners.values():
        if each.host in WILDCARDS and each.advertised is None:
            raise ConfigError(
                f"listener {each.name} is on all addresses of this machine; which of them do other"
                " brokers and clients use? Say it in advertised.listeners, such as"
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
            f"controller.quorum.voters says that node {config.node_id} is reached at port"
            f" {voter[1]}, but its listener for that, {own.name}, is at port {own.port}: give both"
            " the same port, or say in controller.listener.names which listener is meant"
        )


def _tell_bound(allowed: Shares, limits: ConnectionConfig) -> None:
    if allowed.connections < limits.max_connections:
        _log.warning(
            "%d open files allow %d connections, fewer than max.connections=%d: raise the limit"
            " (ulimit -n, LimitNOFILE=)",
            allowed.limit,
            allowed.connections,
            limits.max_connections,
        )


def _ports(listener: Listener) -> set[int]:
    """The ports by which it may be reached."""
    advertised = () if listener.advertised is None else (listener.advertised[1],)
    return {listener.port, *advertised}


def _told(server: Acceptor) -> BrokerListener:
    """A listener, as brokers and clients are told of it."""
    host, port = server.advertised
    protocol = PROTOCOLS.index(server.listener.protocol)
    return BrokerListener(
        name=server.listener.name, host=host, port=port, security_protocol=protocol
    )
