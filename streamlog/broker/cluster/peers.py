"""NodeConnections: connections to the other nodes of the cluster, and their credentials."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener, listeners_of, protocols_of
from streamlog.broker.config.security import AUTHORIZER_NONE, CLIENT_AUTH_NONE
from streamlog.broker.security.acl_authorizer import super_users_of
from streamlog.broker.security.principals import ANONYMOUS, of_user
from streamlog.broker.security.users import Credentials
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    CorruptData,
    LogError,
    RequestTimedOut,
    StreamlogError,
)
from streamlog.protocol.scram import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
)
from streamlog.transport.client_connection import PromptTransport, TcpTransport, Transport
from streamlog.transport.security import Security

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.protocol.schema import Message


_BROKERS = "inter.broker.listener.name"
_CONTROLLERS = "controller.listener.names"


def peer_listener(config: BrokerConfig) -> Listener:
    """Return the listener for connections between brokers.

    Raises:
        ConfigError: no listener has the configured name.
    """
    return _find_listener(_BROKERS, config.peers.listener, _listeners(config))


def controller_listener(config: BrokerConfig) -> Listener:
    """Return the listener for connections to controllers.

    A node that is not a controller has no such listener; it takes the protocol from
    listener.security.protocol.map.

    Raises:
        ConfigError: no listener has the configured name.
    """
    name = config.peers.controller_listener
    if not name:
        return peer_listener(config)
    listeners = _listeners(config)
    protocol = protocols_of(config.security).get(name.upper())
    if not config.quorum.is_controller and protocol is not None:
        return Listener(name=name.upper(), protocol=protocol)
    return _find_listener(_CONTROLLERS, name, listeners)


def peer_security(config: BrokerConfig, listener: Listener) -> Security:
    """Return how a broker with these settings connects to others at such a listener.

    Raises:
        ConfigError: settings that the listener requires are missing.
    """
    security, peers = config.security, config.peers
    if listener.has_sasl and not peers.user:
        raise ConfigError(
            f"brokers connect to each other over listener {listener.name}, which uses"
            f" {listener.protocol}: set sasl.inter.broker.username and"
            " sasl.inter.broker.password"
        )
    if listener.has_sasl and peers.mechanism not in security.sasl_mechanisms.split(","):
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol={peers.mechanism} is not in"
            f" sasl.enabled.mechanisms={security.sasl_mechanisms}: add it there"
        )
    shows_own = listener.has_tls and security.client_auth != CLIENT_AUTH_NONE
    return Security(
        protocol=listener.protocol,
        ca_file=security.truststore if listener.has_tls else "",
        certificate_file=security.keystore if shows_own else "",
        key_password=security.key_password,
        checks_name=peers.checks_name,
        mechanism=peers.mechanism if listener.has_sasl else "",
        user=peers.user if listener.has_sasl else "",
        password=peers.password if listener.has_sasl else "",
    )


def check_trusted(config: BrokerConfig, listener: Listener, principal: str | None) -> None:
    """Raise ConfigError if ACLs would deny requests between brokers.

    `principal` is the principal of their certificates; None without certificates.
    """
    # With SASL, the user of the brokers is a super user by itself; see `peer_principals`.
    if config.security.authorizer == AUTHORIZER_NONE or listener.has_sasl:
        return
    if (principal or ANONYMOUS) in super_users_of(config.security.super_users):
        return
    if principal is None:
        raise ConfigError(
            f"authorizer.class.name={config.security.authorizer}, but brokers do not"
            f" authenticate on listener {listener.name} ({listener.protocol}), over which they"
            " connect to each other: use SSL with ssl.client.auth=required, or SASL_SSL"
        )
    raise ConfigError(
        f"authorizer.class.name={config.security.authorizer}, and other brokers see this one"
        f" as {principal}: add that to super.users on all brokers (super.users={principal};...)"
    )


def peer_principals(config: BrokerConfig) -> frozenset[str]:
    """Return the principal of brokers that connect by SASL; it may do everything."""
    return frozenset({of_user(config.peers.user)}) if config.peers.user else frozenset()


def peer_credentials(config: BrokerConfig) -> Credentials:
    """Return the credentials of the inter-broker user, derived from this broker's settings."""
    if not config.peers.user:
        return {}
    return {
        config.peers.user: {
            each: ScramCredential.of(
                each, config.peers.password, secrets.token_bytes(SALT_BYTES), ITERATIONS_DEFAULT
            )
            for each in ScramMechanism
        }
    }


def _listeners(config: BrokerConfig) -> Sequence[Listener]:
    """Return the listeners in the settings, or the default one without security."""
    return listeners_of(config.security) or (Listener(),)


def _find_listener(setting: str, name: str, listeners: Sequence[Listener]) -> Listener:
    if not name:
        return listeners[0]
    found = next((each for each in listeners if each.name == name.upper()), None)
    if found is None:
        names = ", ".join(each.name for each in listeners)
        raise ConfigError(f"{setting}={name} is not a listener: use one of {names}")
    return found


PEER_CLIENT_ID = "streamlog-broker"
"""The client id of brokers; a request that has it is not forwarded again."""

Address = tuple[str, int]
_log = repeated.logger(__name__)


class BrokerPeers:
    """Connections to other brokers, by id."""

    def __init__(
        self, address: Callable[[int], Address | None], *, security: Security | None = None
    ) -> None:
        """`address` returns the address of a broker; None if it is unknown.

        `security` is how to connect; see `peer_security`.
        """
        self._address = address
        self._security = security
        self._connections: dict[int, tuple[Address, Transport]] = {}
        self._connecting: dict[int, asyncio.Lock] = {}
        self._refusals: dict[int, str] = {}
        """The last refusal of each broker that was logged."""

    async def call(self, node_id: int, request: Message, *, timeout_ms: int) -> Message:
        """Send a request to a broker.

        Raises:
            ConnectionLost: it can't be reached, or has closed the connection.
            RequestTimedOut: no response arrived in time.
            CorruptData: the response is malformed.
        """
        transport = await self.transport(node_id, timeout_ms=timeout_ms)
        try:
            return await transport.call(request, timeout_ms=timeout_ms)
        except (ConnectionLost, RequestTimedOut, CorruptData):
            # After any failure the state of the connection is unknown: a late response could be
            # taken for that of the next request.
            await self._give_up(node_id, transport)
            raise

    async def connect(self, node_id: int, *, timeout_ms: int) -> PromptTransport:
        """Open a connection to a broker; the caller is its only user and closes it.

        Raises:
            ConnectionLost: it can't be reached.
            RequestTimedOut: it accepts connections, and does not answer.
        """
        address = self._address(node_id)
        if address is None:
            raise ConnectionLost(f"the address of broker {node_id} is not known yet")
        return await self._connect_to_node(node_id, address, timeout_ms)

    async def transport(self, node_id: int, *, timeout_ms: int) -> Transport:
        """Return the shared connection to a broker; open it if needed.

        Raises:
            ConnectionLost: it can't be reached.
            RequestTimedOut: it accepts connections, and does not answer.
        """
        # One connection attempt at a time per broker; the others wait for it and share the result.
        async with self._connecting.setdefault(node_id, asyncio.Lock()):
            address = self._address(node_id)
            known = self._connections.get(node_id)
            # A broker that has moved is registered with another address.
            if known is not None and known[0] == address:
                return known[1]
            if known is not None:
                await self._give_up(node_id, known[1])
            if address is None:
                raise ConnectionLost(f"the address of broker {node_id} is not known yet")
            transport = await self._connect_to_node(node_id, address, timeout_ms)
            self._connections[node_id] = address, transport
            return transport

    async def close(self) -> None:
        """Close all connections."""
        async with AsyncExitStack() as stack:  # All of them, even if the task is cancelled.
            for node_id, (_, transport) in self._connections.items():
                stack.push_async_callback(self._give_up, node_id, transport)

    async def _connect_to_node(
        self, node_id: int, address: Address, timeout_ms: int
    ) -> PromptTransport:
        try:
            return await TcpTransport.connect(
                *address,
                client_id=PEER_CLIENT_ID,
                timeout_ms=timeout_ms,
                security=self._security,
                is_broker=True,
            )
        except LogError as refusal:
            message = f"broker {node_id} refuses this one, or is not trusted by it: {refusal}"
            # Logged once, not for each attempt: a wrong password makes every one of them fail.
            if self._refusals.get(node_id) != message:
                self._refusals[node_id] = message
                _log.error("%s", message)
            raise ConnectionLost(message) from None

    async def _give_up(self, node_id: int, transport: Transport) -> None:
        known = self._connections.get(node_id)
        if known is not None and known[1] is transport:
            del self._connections[node_id]
        try:
            await transport.close()
        except StreamlogError:
            return  # It is lost already.


class NodeConnections:
    """The connections of this node to all others.

    Raises:
        ConfigError: settings that the others require are missing.
    """

    def __init__(self, config: BrokerConfig, metadata: ClusterMetadata) -> None:
        # Separate connections by purpose: a node answers the requests of a connection in order, so
        # that a slow request would hold up all behind it, such as fetches of the metadata log.
        self._metadata = metadata
        voters = config.quorum.addresses()
        peer = peer_listener(config)
        self._listener = peer.name
        security = peer_security(config, controller_listener(config))
        self.quorum = BrokerPeers(voters.get, security=security)
        """For the replication of the metadata log."""
        self.controllers = BrokerPeers(voters.get, security=security)
        """For requests to the controller."""
        self.brokers = BrokerPeers(self._endpoint, security=peer_security(config, peer))
        """For brokers, whose addresses come from their registrations."""
        self.coordinators = BrokerPeers(self._endpoint, security=peer_security(config, peer))
        """For questions to coordinators, for which producers wait."""
        self.lag = BrokerPeers(self._endpoint, security=peer_security(config, peer))
        """For questions to leaders about the lag of groups, which may wait for a disk."""
        self.registry = BrokerPeers(self._endpoint, security=peer_security(config, peer))
        """For writes of the schema registry, which wait until they are committed."""

    def _endpoint(self, node_id: int) -> Address | None:
        broker = self._metadata.brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    async def close(self) -> None:
        """Close all connections."""
        for each in (
            self.quorum,
            self.controllers,
            self.brokers,
            self.coordinators,
            self.lag,
            self.registry,
        ):
            await each.close()
