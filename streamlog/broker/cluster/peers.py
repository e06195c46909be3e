"""Peers: requests of this broker to others of its cluster.

One connection for each, made when it is needed and given up when it fails. Where a broker is, the
metadata knows, and before there is any, the list of voters (`controller.quorum.voters`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.cluster.peer_security import controller_listener, peer_listener, peer_security
from streamlog.errors import (
    ConnectionLost,
    CorruptData,
    LogError,
    RequestTimedOut,
    StreamlogError,
)
from streamlog.transport.client_connection import TcpTransport, Transport

if TYPE_CHECKING:
    from streamlog.broker.config.broker import BrokerConfig
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.protocol.schema import Message
    from streamlog.transport.security import Security


PEER_CLIENT_ID = "streamlog-broker"
"""As what brokers come to each other: such a request is not handed on once more."""

Address = tuple[str, int]
_log = repeated.logger(__name__)


class BrokerPeers:
    """The other brokers, by number."""

    def __init__(
        self, address: Callable[[int], Address | None], *, security: Security | None = None
    ) -> None:
        """`address` tells where one is reached; None if that is not known.

        `security` is how; see `peer_security`.
        """
        self._address = address
        self._security = security
        self._connections: dict[int, tuple[Address, Transport]] = {}
        self._connecting: dict[int, asyncio.Lock] = {}
        self._refusals: dict[int, str] = {}
        """As they were told; once, and not with every attempt."""

    async def call(self, node_id: int, request: Message, *, timeout_ms: int) -> Message:
        """Ask one of them.

        Raises:
            ConnectionLost: it can't be reached, or hung up.
            RequestTimedOut: no answer came in time.
            CorruptData: what came can't be read.
        """
        transport = await self.transport(node_id, timeout_ms=timeout_ms)
        try:
            return await transport.call(request, timeout_ms=timeout_ms)
        except (ConnectionLost, RequestTimedOut, CorruptData):
            await self._give_up(node_id, transport)
            raise

    async def connect(self, node_id: int, *, timeout_ms: int) -> Transport:
        """A connection to one of them that nobody else uses; whoever asks for it closes it.

        Raises:
            ConnectionLost: it can't be reached.
            RequestTimedOut: it listens, and does not answer.
        """
        address = self._address(node_id)
        if address is None:
            raise ConnectionLost(f"where broker {node_id} is reached is not known (yet)")
        return await self._connected(node_id, address, timeout_ms)

    async def transport(self, node_id: int, *, timeout_ms: int) -> Transport:
        """The connection to one of them, made if there is none.

        Raises:
            ConnectionLost: it can't be reached.
            RequestTimedOut: it listens, and does not answer.
        """
        async with self._connecting.setdefault(node_id, asyncio.Lock()):
            address = self._address(node_id)
            known = self._connections.get(node_id)
            if known is not None and known[0] == address:
                return known[1]
            if known is not None:
                await self._give_up(node_id, known[1])
            if address is None:
                raise ConnectionLost(f"where broker {node_id} is reached is not known (yet)")
            transport = await self._connected(node_id, address, timeout_ms)
            self._connections[node_id] = address, transport
            return transport

    async def close(self) -> None:
        """Hang up on all of them."""
        async with AsyncExitStack() as stack:  # All of them, also if cancelled meanwhile.
            for node_id, (_, transport) in self._connections.items():
                stack.push_async_callback(self._give_up, node_id, transport)

    async def _connected(self, node_id: int, address: Address, timeout_ms: int) -> Transport:
        try:
            return await TcpTransport.connect(
                *address,
                client_id=PEER_CLIENT_ID,
                timeout_ms=timeout_ms,
                security=self._security,
                is_broker=True,
            )
        except LogError as refusal:
            told = f"broker {node_id} does not let this one in, or is not taken: {refusal}"
            if self._refusals.get(node_id) != told:
                self._refusals[node_id] = told
                _log.error("%s", told)
            raise ConnectionLost(told) from None

    async def _give_up(self, node_id: int, transport: Transport) -> None:
        known = self._connections.get(node_id)
        if known is not None and known[1] is transport:
            del self._connections[node_id]
        try:
            await transport.close()
        except StreamlogError:
            return  # It was lost before.


class NodeConnections:
    """All that this node has connections to.

    Raises:
        ConfigError: the settings lack what the others ask for.
    """

    def __init__(self, config: BrokerConfig, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        voters = config.quorum.addresses()
        between = peer_listener(config)
        self._listener = between.name
        security = peer_security(config, controller_listener(config))
        self.quorum = BrokerPeers(voters.get, security=security)
        """For the log of the quorum."""
        self.controllers = BrokerPeers(voters.get, security=security)
        """For what the controller decides."""
        self.brokers = BrokerPeers(self._endpoint, security=peer_security(config, between))
        """For brokers, which are reached when they have registered."""
        self.coordinators = BrokerPeers(self._endpoint, security=peer_security(config, between))
        """For what is waited for by those who write."""

    def _endpoint(self, node_id: int) -> Address | None:
        broker = self._metadata.brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    async def close(self) -> None:
        """Hang up on all of them."""
        for each in (self.quorum, self.controllers, self.brokers, self.coordinators):
            await each.close()
